"""What a Dreamer run needs in memory, against the state it has and the program it compiles to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import pytest

import rljax
from rljax.algos.dreamer import memory
from rljax.algos.dreamer.dreamer import dreamer_init, dreamer_parts
from rljax.cli.main import main
from rljax.core.memory import readable_bytes, tree_bytes

SMALL: dict[str, Any] = {
    "num_envs": 8,
    "num_steps": 4,
    "size": "debug",
    "batch_size": 4,
    "batch_length": 16,
    "horizon": 5,
    "train_ratio": 4,
    "buffer_size": 4_000,
    "total_timesteps": 10_000,
}


def config(**changes: Any) -> rljax.DreamerConfig:
    return rljax.DreamerConfig(**{**SMALL, **changes})


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"size": "1M"}, {"env": "GridWorldPixels-v0"}, {"representation": "dreamerpro"}, {"representation": "infonce"}],
)
def test_buffer_and_parameters_are_those_of_the_state(changes: dict[str, Any]) -> None:
    parts = dreamer_parts(config(**changes))
    state = jax.eval_shape(lambda: dreamer_init(parts, jax.random.key(0)))
    assert parts.memory["buffer"] == tree_bytes(state.replay.data)
    assert parts.memory["latents"] == tree_bytes((state.replay.data.deter, state.replay.data.stoch))
    assert parts.memory["parameters"] == tree_bytes((state.params, state.slow_critic, state.target, state.opt_state))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="debug", marks=pytest.mark.long),
        pytest.param(
            {"size": "1M", "batch_size": 16, "batch_length": 64, "horizon": 15, "train_ratio": 32},
            id="1M",
            marks=pytest.mark.long,
        ),
        pytest.param({"env": "GridWorldPixels-v0"}, id="pictures"),
    ],
)
def test_activations_are_within_a_factor_of_two_of_the_compiled_iteration(changes: dict[str, Any], figure: Any) -> None:
    agent = rljax.make_agent(config(**changes))
    state = jax.eval_shape(agent.init, jax.random.key(0))
    compiled = jax.jit(agent.step, donate_argnums=0).lower(state).compile()
    temporary = compiled.memory_analysis().temp_size_in_bytes  # type: ignore[union-attr]
    estimate = dreamer_parts(agent.config).memory["activations"]
    figure(f"activations of Dreamer {changes}: estimate {estimate / 1e6:.1f} MB, compiled {temporary / 1e6:.1f} MB")
    assert 0.5 < estimate / temporary < 2.0


def refused(monkeypatch: pytest.MonkeyPatch, limit: int | None, **changes: Any) -> str | None:
    """The error of a configuration on a device of `limit` bytes."""
    monkeypatch.setattr(memory, "device_memory", lambda: limit)
    try:
        dreamer_parts(config(**changes))
    except rljax.ConfigError as error:
        return str(error)
    return None


def test_a_buffer_that_is_too_large_is_refused_with_the_largest_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 100_000_000
    assert refused(monkeypatch, limit) is None
    assert refused(monkeypatch, None, buffer_size=10**9) is None
    message = refused(monkeypatch, limit, buffer_size=10**9)
    assert message is not None
    found = re.fullmatch(
        r"buffer_size = 1000000000: expected at most (\d+) here, as the run needs buffer 575 GB \(latents 544 GB\), "
        r"parameters .* MB, activations about .* MB, and this device has 0.1 GB",
        message,
    )
    assert found, message
    largest = int(found[1])
    assert largest > 100_000
    assert refused(monkeypatch, limit, buffer_size=largest) is None
    assert refused(monkeypatch, limit, buffer_size=largest + 8) is not None


@pytest.mark.filterwarnings("ignore::rljax.RljaxWarning")
@pytest.mark.parametrize(("buffer_size", "also"), [(4_000, ""), (10**8, " with a smaller buffer_size")])
def test_activations_that_are_too_large_are_refused_with_the_largest_batch(
    monkeypatch: pytest.MonkeyPatch, buffer_size: int, also: str
) -> None:
    limit = 100_000_000
    changes: dict[str, Any] = {"train_ratio": 512, "num_steps": 64, "learning_starts": 0}
    message = refused(monkeypatch, limit, batch_size=30_000, buffer_size=buffer_size, **changes)
    assert message is not None
    found = re.match(rf"batch_size = 30000: expected at most (\d+){also} here, as the run needs buffer", message)
    assert found, message
    largest = int(found[1])
    assert largest > 10
    rows = 64 * 8 if also else buffer_size
    for size, fits in ((largest, True), (largest + 1, False)):
        assert (refused(monkeypatch, limit, batch_size=size, buffer_size=rows, **changes) is None) == fits


def test_networks_that_are_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    message = refused(monkeypatch, 10_000_000, size="12M")
    assert message is not None
    assert message.startswith("size = '12M': expected a smaller one here, as the run needs buffer")


def test_a_run_says_what_it_needs_before_it_compiles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rljax.make_agent(rljax.PPOConfig()).memory == ""
    settings = config(buffer_size=100_000)
    line = rljax.make_agent(settings).memory
    assert re.fullmatch(r"buffer 58 MB \(latents 54 MB\), parameters 1\.5 MB, activations about \d\S* MB", line), line

    def stop(agent: Any, progress: Any, **_: Any) -> None:
        progress.prepare()
        progress.stop()
        raise rljax.ConfigError("stop")

    monkeypatch.setattr(rljax, "fit", stop)
    from rljax.core.config_files import dump_config

    (tmp_path / "a.toml").write_text(dump_config(settings))
    for options, of_each in (([], ""), (["--seeds", "3"], " of each seed")):
        with pytest.raises(SystemExit):
            main(["train", str(tmp_path / "a.toml"), "--run-dir", str(tmp_path / "run"), *options])
        title, _device, said, compiling = capsys.readouterr().out.splitlines()
        assert title.startswith("training dreamer on CartPole-v1")
        assert said == f"memory{of_each}: {line}"
        assert compiling == "compiling ..."


@pytest.mark.parametrize(
    ("count", "text"),
    [(2_100_000_000, "2.1 GB"), (400_000_000, "0.4 GB"), (25_000_000_000, "25 GB"), (10_000_000, "10 MB"), (300_000, "0.3 MB")],
)
def test_sizes_are_shown_in_two_digits(count: int, text: str) -> None:
    assert readable_bytes(count) == text
