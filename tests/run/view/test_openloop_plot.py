"""`rljax plot --kind openloop`: what is drawn of a run's buffer, and which runs cannot be drawn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.dreamer.dreamer import dreamer_init, dreamer_parts
from rljax.algos.dreamer.openloop import OpenLoop
from rljax.algos.dreamer.replay import Replayed
from rljax.cli.main import main
from rljax.core.config_files import dump_config
from rljax.nn.latent.decoders import Parts
from rljax.run.files.folder import RunInfo, create_run_dir
from rljax.run.files.scores import SCORES, Scores
from rljax.run.view import openloop
from rljax.run.view.openloop import plot_openloop
from tests.run.tiny_runs import assert_refused

SMALL: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 8,
    "size": "debug",
    "batch_size": 4,
    "batch_length": 12,
    "horizon": 2,
    "train_ratio": 6,
    "buffer_size": 80,
    "learning_starts": 20,
    "total_timesteps": 400,
}


def write_run(folder: Path, rows: int = 40, seeds: int | None = None, **changes: Any) -> Path:
    """A run that was never trained: `rows` of its buffer hold numbers, in episodes of 20 steps."""
    config = rljax.DreamerConfig(**{**SMALL, **changes})
    parts = dreamer_parts(config)
    state = dreamer_init(parts, jax.random.key(0))
    data = state.replay.data
    if data.obs.dtype == jnp.uint8:
        obs = jax.random.bits(jax.random.key(1), data.obs.shape, jnp.uint8)
    else:
        obs = jnp.cumsum(jax.random.normal(jax.random.key(1), data.obs.shape), axis=0)
    first = jnp.zeros_like(data.is_first).at[::20].set(True)
    replay = state.replay.replace(
        data=data._replace(obs=obs, is_first=first), size=jnp.int32(rows), position=jnp.int32(rows % 40)
    )
    state = state.replace(replay=replay)
    if seeds is not None:
        state = jax.tree.map(lambda x: jnp.stack([x] * seeds), state)
    returns = {name: [float(i) for i in range(seeds or 1)] for name in SCORES}
    meta = Scores(seeds or 1, {"returns": returns}).meta(0)
    create_run_dir(folder, config, RunInfo(seeds=seeds), state, meta)
    return folder


@pytest.mark.slow
def test_signals_errors_and_their_names_are_drawn(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    drawn = plot_openloop(run, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    for words in (*(f"obs[{i}]" for i in range(4)), "DREAMER on CartPole-v1 after 0 steps", "context", "true", "predicted"):
        assert f"<!-- {words} -->" in text, words
    assert drawn.error.shape == drawn.copy_last_error.shape == drawn.shuffled_error.shape == drawn.counts.shape == (7,)
    # 64 sequences, whose episodes end within a horizon of 7 in one of 20 rows each.
    assert drawn.counts[0] <= 64
    assert (np.diff(drawn.counts) <= 0).all()
    assert drawn.counts[-1] > 32
    # A random walk goes further away.
    assert drawn.copy_last_error[-1] > drawn.copy_last_error[0] > 0
    again = plot_openloop(run, tmp_path / "b.svg")
    np.testing.assert_array_equal(drawn.error, again.error)
    assert (tmp_path / "b.svg").read_text() == text


@pytest.mark.long
def test_images_are_drawn_in_strips(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", env="GridWorldPixels-v0", batch_length=8)
    drawn = plot_openloop(run, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert drawn.error.shape == (4,)
    # Of noise in 256 grey levels, two frames differ by 1/6 in the mean square.
    np.testing.assert_allclose(drawn.copy_last_error, 1 / 6, rtol=0.02)


@pytest.mark.slow
def test_the_best_seed_of_several_is_drawn_and_the_command_says_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "a", seeds=2)
    monkeypatch.chdir(tmp_path)
    main(["plot", "--kind", "openloop", str(run)])
    assert capsys.readouterr().out == "openloop.png\n"
    assert (tmp_path / "openloop.png").read_bytes().startswith(b"\x89PNG")


def test_those_sequences_are_drawn_that_go_on_for_longest_up_to_their_end() -> None:
    context, length, batch = 2, 6, 5
    is_first = np.zeros((length, batch), bool)
    for row, sequence in ((3, 0), (1, 2), (5, 3)):
        is_first[row, sequence] = True
    obs = np.arange(length * batch, dtype=np.float32).reshape(length, batch, 1)
    rows: Any = Replayed(None, obs, None, np.zeros((length, batch)), is_first, None, None)  # type: ignore[arg-type]
    valid = np.cumsum(is_first[context:], axis=0) == 0
    prediction: Any = Parts(np.log1p(obs[context:] + 0.5), ())
    result: Any = OpenLoop(None, prediction, None, None, None, None, valid)  # type: ignore[arg-type]
    found: Any = openloop._sequences(rows, result, context)
    # The whole ones, then the one that begins within its context.
    for sequence, i in zip(found, (1, 4, 2), strict=True):
        np.testing.assert_allclose(sequence.truth.vector, obs[:, i], rtol=1e-5)
        np.testing.assert_allclose(sequence.prediction.vector[context:], obs[context:, i] + 0.5, rtol=1e-5)
        assert np.isnan(sequence.prediction.vector[:context]).all()
    short = Replayed(None, obs[:, :1], None, np.zeros((length, 1)), is_first[:, :1], None, None)  # type: ignore[arg-type]
    only: Any = openloop._sequences(short, jax.tree.map(lambda x: x[:, :1], result), context)[0]
    np.testing.assert_array_equal(np.isnan(only.truth.vector[:, 0]), np.arange(length) >= 3)
    np.testing.assert_array_equal(np.isnan(only.prediction.vector[:, 0]), [True, True, False, True, True, True])


def test_strips_have_truth_prediction_and_their_difference() -> None:
    truth, prediction = np.zeros((4, 8, 8, 1)), np.full((4, 8, 8, 1), np.nan)
    truth[3], prediction[2], prediction[3] = 1.0, 0.25, 0.25
    strip = openloop._strip(openloop._Sequence(Parts(None, (truth,)), Parts(None, (prediction,))), 0, 2)  # type: ignore[arg-type]
    side = 8 + 2 * openloop.GAP
    assert strip.shape == (3 * side, 4 * side, 3)
    middles = strip[side // 2 :: side, side // 2 :: side, 0]
    np.testing.assert_allclose(middles, [[0.0, 0.0, 0.0, 1.0], [1.0, 1.0, 0.25, 0.25], [1.0, 1.0, 0.75, 0.25]])
    np.testing.assert_allclose(strip[1, [side // 2, side + side // 2]], np.tile([0, 0x72 / 255, 0xB2 / 255], (2, 1)))
    assert (strip[1, [2 * side + side // 2, 3 * side + side // 2]] == 1.0).all()


def test_names_are_those_of_the_observation_in_the_order_of_the_decoder() -> None:
    shape: Any = jax.ShapeDtypeStruct
    obs = {"b": shape((2,), jnp.float32), "a": shape((8, 8, 3), jnp.uint8), "c": {"d": shape((), jnp.int32)}}
    assert openloop._part_names(obs) == (["b[0]", "b[1]", "c.d"], ["a"])


@pytest.mark.slow
def test_runs_that_cannot_be_drawn_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "ppo"
    other.mkdir()
    (other / "config.toml").write_text(dump_config(rljax.PPOConfig()))
    (tmp_path / "r2").mkdir()
    (tmp_path / "r2" / "config.toml").write_text(dump_config(rljax.DreamerConfig(**SMALL, representation="r2dreamer")))
    young, out = write_run(tmp_path / "young", rows=12), tmp_path / "x.png"
    cases: list[tuple[Path, Path, str]] = [
        (tmp_path / "nowhere", out, "no run there"),
        (other, out, "a run of ppo; only runs of dreamer have a world model"),
        (tmp_path / "r2", out, "representation = 'r2dreamer': only 'decoder' predicts observations"),
        (young, out, r"its buffer has 12 rows after 0 steps, but a sequence needs batch_length \+ 1 = 13 rows"),
        (young, tmp_path / "x.jpg", r"ends in \.png or \.svg or \.pdf"),
    ]
    for run, path, message in cases:
        with pytest.raises(rljax.ConfigError, match=message) as error:
            plot_openloop(run, path)
        assert "\n" not in str(error.value)
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kind", "openloop", "a", "b"], "--kind openloop draws one run: expected a single folder, got 2"),
        (["--kind", "openloop", "a", "--metric", "x"], "--metric x: only --kind curves takes a metric"),
        (["--kind", "pictures", "a"], "--kind = 'pictures': expected one of: curves, openloop, payoffs"),
    ],
)
def test_bad_options_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(["plot", *arguments], message, capsys)


@pytest.mark.slow
def test_matplotlib_is_imported_only_where_something_is_drawn() -> None:
    code = "import sys, rljax, rljax.run.view.openloop; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
