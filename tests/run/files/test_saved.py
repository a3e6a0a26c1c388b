"""What `save` writes is a run: it reads back bit for bit, trains on, and every command takes it. Names that come late."""

from __future__ import annotations

import functools
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rljax
from rljax.cli.main import main
from rljax.run.view.curves import curves
from tests.run.files.test_sealed import Keyed
from tests.run.tiny_runs import TINY, assert_same_state

CONFIG = TINY["ppo"].replace(eval_every=None, total_timesteps=64 * 8)


@pytest.fixture(scope="module")
def trained() -> rljax.TrainResult:
    """Three seeds."""
    return rljax.fit(CONFIG, seeds=3)


def single(result: rljax.TrainResult) -> rljax.TrainResult:
    return jax.tree.map(lambda x: x[1], result)


@pytest.mark.slow
def test_what_is_saved_reads_back_and_trains_on(trained: rljax.TrainResult, tmp_path: Path) -> None:
    one = single(trained)
    assert rljax.save(tmp_path / "a", CONFIG, one.state) == tmp_path / "a"
    agent, state = rljax.load(tmp_path / "a")
    assert agent.config == CONFIG
    assert_same_state(state, one.state)
    assert rljax.load_run(tmp_path / "a").step == 64 * 8
    # On from there as an unbroken loop of steps does.
    longer = CONFIG.replace(total_timesteps=64 * 10)
    step = jax.jit(rljax.make_agent(longer).step)
    expected = step(step(state)[0])[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", rljax.RljaxWarning)
        result = rljax.fit(resume=tmp_path / "a", total_timesteps=64 * 10)
    assert result.state.iteration == 10
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), result.state.params, expected.params)


@pytest.mark.slow
def test_every_command_takes_it(
    trained: rljax.TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rljax.save("many", rljax.make_agent(CONFIG), trained.state, metrics=trained.metrics)
    rljax.save("one", CONFIG.replace(seed=40), single(trained).state, metrics=single(trained).metrics)
    steps, values = curves("many", "episode/return")
    np.testing.assert_array_equal(steps, 64 * (1 + np.arange(8)))
    np.testing.assert_array_equal(values, trained.metrics["episode/return"].astype(np.float64))
    for command in (
        ["show", "many"],
        ["plot", "many", "one", "--out", "a.png"],
        ["record", "one", "--out", "a.gif", "--max-steps", "5"],
    ):
        main(command)
    out = capsys.readouterr().out
    assert "512" in out
    # The best seed is that of the highest last return.
    last = np.array([row[np.isfinite(row)][-1] for row in trained.metrics["episode/return"]])
    best = rljax.load("many", seed_index="best")[1]
    assert_same_state(best, jax.tree.map(lambda x: x[int(np.argmax(last))], trained.state))


@pytest.mark.slow
def test_a_damaged_or_foreign_one_is_refused(trained: rljax.TrainResult, tmp_path: Path) -> None:
    folder, state = tmp_path / "a", single(trained).state
    rljax.save(folder, CONFIG, state)
    cases: list[tuple[Any, Any, str]] = [
        (CONFIG, state, "exists already"),
        (CONFIG.replace(network={"hidden": [7]}), state, "the state does not fit the configuration"),
        (CONFIG, state.params, "the state does not fit the configuration"),
        (CONFIG, None, "the state does not fit the configuration"),
        (CONFIG, jax.tree.map(lambda x: x[None], trained.state), "the state does not fit the configuration"),
    ]
    for config, given, message in cases:
        path = folder if message.startswith("exists") else tmp_path / "b"
        with pytest.raises(rljax.ConfigError, match=message):
            rljax.save(path, config, given)
    for metrics in ({"a": np.zeros(9)}, {"a": np.zeros((2, 8))}, {"a": np.zeros(())}):
        with pytest.raises(rljax.ConfigError, match=r"metrics: 'a' has shape \[.*\], expected \[at most 8 iterations\]"):
            rljax.save(tmp_path / "b", CONFIG, state, metrics=metrics)
    for metrics, said in (
        ([1], r"metrics = \[1\]: expected a dictionary of arrays by name"),
        ({1: np.zeros(8)}, "metrics = .*: expected a dictionary of arrays by name"),
        ({"a": "b"}, "metrics: 'a' = 'b': expected an array of numbers"),
    ):
        with pytest.raises(rljax.ConfigError, match=f"^{said}"):
            rljax.save(tmp_path / "b", CONFIG, state, metrics=metrics)  # type: ignore[arg-type]
    with pytest.raises(rljax.ConfigError, match=r"metrics: 'a' and 'b' have 8 and 7 iterations, expected as many of each"):
        rljax.save(tmp_path / "b", CONFIG, state, metrics={"a": np.zeros(8), "b": np.zeros(7)})
    assert not (tmp_path / "b").exists()
    data = max((folder / "checkpoints" / "latest").resolve().rglob("*"), key=lambda file: file.stat().st_size * file.is_file())
    whole = bytearray(data.read_bytes())
    whole[len(whole) // 2] ^= 1
    data.write_bytes(whole)
    with pytest.raises(rljax.ConfigError, match="damaged"):
        rljax.load(folder)


def test_an_agent_with_a_loss_of_its_own_acts_and_trains_on_with_that_only(trained: rljax.TrainResult, tmp_path: Path) -> None:
    make = functools.partial(rljax.make_agent, loss_fn=rljax.ppo_loss)
    rljax.save(tmp_path / "a", make(CONFIG), single(trained).state)
    agent, state = rljax.load(tmp_path / "a")
    agent.act(state, np.zeros((2, 4), np.float32), None, jax.random.key(0))
    with pytest.raises(
        rljax.ConfigError, match="was trained with the loss function ppo_loss: load it with that make_agent to train on"
    ):
        agent.step(state)
    agent, state = rljax.load(tmp_path / "a", make_agent=make)
    jax.eval_shape(agent.step, state)


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_of_an_environment_may_be_of_another_implementation(tmp_path: Path, impl: str) -> None:
    """The state of the environment has keys that come before the agent's own."""
    agent = rljax.make_agent(CONFIG.replace(env=Keyed(), time_limit=10, num_envs=2))
    state = jax.jit(agent.init)(jax.random.key(0, impl=impl))
    loaded = rljax.load(rljax.save(tmp_path / "a", agent, state), env=Keyed())[1]
    assert_same_state(loaded, state)
    assert str(jax.random.key_impl(loaded.key)) == impl
    many = jax.tree.map(lambda x: jax.numpy.stack([x, x, x]), state)
    assert_same_state(rljax.load(rljax.save(tmp_path / "b", agent, many), env=Keyed())[1], many)


def test_what_could_not_be_read_back_is_not_saved(trained: rljax.TrainResult, tmp_path: Path) -> None:
    """Leaves of another dtype, and keys of another implementation than the run's."""
    state = single(trained).state
    for wrong in (
        state.replace(params=jax.tree.map(lambda x: x.astype(np.float16), state.params)),
        state.replace(iteration=8),
        state.replace(eval_key=jax.random.key(0, impl="unsafe_rbg")),
        state.replace(key=jax.random.key_data(state.key)),
    ):
        with pytest.raises(rljax.ConfigError, match="the state does not fit the configuration"):
            rljax.save(tmp_path / "a", CONFIG, wrong)
    assert not (tmp_path / "a").exists()
    rljax.save(tmp_path / "a", CONFIG, jax.tree.map(on_host, state))
    assert_same_state(rljax.load(tmp_path / "a")[1], state)


def on_host(x: Any) -> Any:
    return x if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x)


GAME = TINY["self_play"].replace(eval_every=None, total_timesteps=64)


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, rljax.Agent, Any]:
    agent = rljax.make_agent(GAME)
    state = jax.jit(agent.init)(jax.random.key(0))
    return rljax.save(tmp_path_factory.mktemp("games") / "player", agent, state), agent, state


@pytest.mark.slow
def test_agents_and_folders_play_tournaments(player: tuple[Path, rljax.Agent, Any], tmp_path: Path) -> None:
    folder, agent, state = player
    how: dict[str, Any] = {"include": ["random"], "num_games": 8, "opening_moves": 0, "sample": True}
    of_folder = rljax.tournament([folder], out=tmp_path / "a.png", **how)
    assert of_folder.names == ("player", "random")
    assert (tmp_path / "a.png").exists()
    assert of_folder.played.sum() == 2 * 8
    for given in ({"x": (agent, state)}, {"x": rljax.load_run(folder)}):
        np.testing.assert_array_equal(rljax.tournament(given, **how).wins, of_folder.wins)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ([(agent, state)], {}, "needs a name for each"),
        ({"x": 5}, {}, "int: expected a run folder, a Run, or"),
        ([folder, folder], {}, "a tournament of player, player: expected different players"),
        ([folder], {"num_games": 0}, "num_games = 0"),
        ([folder], {"opening_moves": -1}, "opening_moves = -1"),
        ([folder], {"out": "a.jpg"}, "a.jpg"),
    ]
    for given, wrong, message in cases:
        with pytest.raises(rljax.ConfigError, match=message):
            rljax.tournament(given, **(how | wrong))


@pytest.mark.slow
def test_a_person_plays_a_folder_or_an_agent(player: tuple[Path, rljax.Agent, Any]) -> None:
    folder, agent, state = player

    def game(opponent: Any) -> tuple[float | None, list[str]]:
        lines: list[str] = []

        def ask(prompt: str) -> str:
            return prompt.partition("(")[2].split()[0].rstrip(",")  # the first legal move

        return rljax.play(opponent, ask=ask, say=lines.append), lines

    total, lines = game(folder)
    assert total in (-1.0, 0.0, 1.0)
    assert len(lines) > 3
    assert game((agent, state)) == (total, lines)
    with pytest.raises(rljax.ConfigError, match="seat = 2"):
        rljax.play(folder, seat=2)


@pytest.mark.slow
def test_names_that_come_late_are_public_and_cost_nothing_before() -> None:
    code = """
import sys, rljax
late = ["plot", "record", "play", "tournament"]
assert set(late) < set(rljax.__all__) and set(late) < set(dir(rljax))
heavy = ["matplotlib", "PIL", "scipy.stats", "imageio", *(f"rljax.run.view.{name}" for name in ("plot", "record", "tournament"))]
assert not [name for name in heavy if name in sys.modules], [name for name in heavy if name in sys.modules]
assert all(callable(getattr(rljax, name)) for name in late)
assert rljax.record.__module__ == "rljax.run.view.record"
try:
    rljax.plots
except AttributeError as error:
    assert str(error) == "module 'rljax' has no attribute 'plots'"
else:
    raise SystemExit("no error")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
