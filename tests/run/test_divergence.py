"""Numbers that go wrong: nothing of them is saved, and a seed that diverges stops alone."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import rljax
from rljax.core.environments.environment import Environment
from rljax.core.environments.spaces import Box, Discrete, MultiDiscrete
from rljax.envs.tic_tac_toe import TicTacToe
from rljax.league.training import game_collect
from rljax.run.chunks import losses_are_finite
from rljax.run.divergence import find_fault, first_bad
from rljax.run.files.checkpoint import checkpoint_steps, named_arrays, read_meta
from rljax.run.files.scores import best_seed
from rljax.run.view.curves import read_metrics
from rljax.run.view.show import show, status_of
from tests.run.tiny_runs import TINY, records

STEPS = 64  # in an iteration of the tiny runs


@struct.dataclass
class BreakingParams:
    max_steps_in_episode: int = 10
    breaks_at: int = 10**9
    below: float = 2.0
    """Only environments whose number, drawn at the first reset, is below this break."""


@struct.dataclass
class BreakingState:
    time: jax.Array
    total: jax.Array
    number: jax.Array
    never: jax.Array
    """Infinity and NaN, of the environment's own."""


class Breaking(Environment):
    """Rewards, or observations, are NaN from a total of so many steps on; `total` goes on over resets by time alone."""

    def __init__(self, what: str = "reward", continuous: bool = False):
        self.what, self.continuous = what, continuous

    @property
    def default_params(self) -> BreakingParams:
        return BreakingParams()

    def observation_space(self, params: Any) -> Box:
        return Box(-1.0, 1.0, (2,))

    def action_space(self, params: Any) -> Any:
        return Box(-1.0, 1.0, (1,)) if self.continuous else Discrete(2)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, BreakingState]:
        number = jax.random.uniform(key)
        zero = jnp.zeros((), jnp.int32)
        return jnp.zeros(2), BreakingState(zero, zero, number, jnp.array([jnp.nan, -jnp.inf]))

    def is_truncated(self, state: BreakingState, params: Any) -> jax.Array:
        return jnp.asarray(False)

    def step_env(self, key: jax.Array, state: BreakingState, action: Any, params: Any) -> Any:
        total = state.total + 1
        broken = (total > params.breaks_at) & (state.number < params.below)
        wrong = jnp.where(broken, jnp.nan, 0.0)
        obs = jnp.stack([jnp.sin(0.1 * total), jnp.cos(0.1 * total)])
        reward = jnp.sin(0.3 * total) + (wrong if self.what == "reward" else 0.0)
        obs = obs + (wrong if self.what == "obs" else 0.0)
        return obs, state.replace(time=state.time + 1, total=total), reward, jnp.asarray(False), {}


def breaking(name: str, what: str, breaks_at: int, **changes: Any) -> Any:
    """The tiny run of an algorithm in that environment, which begins to learn near its end."""
    env = Breaking(what, continuous=name == "sac")
    config = TINY[name].replace(env=env, env_params={"breaks_at": breaks_at}, eval_every=None)
    if name != "ppo":
        config = config.replace(learning_starts=1_400, buffer_size=2_000)
    return config.replace(**changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("dqn", "reward"),
        ("dqn", "obs"),
        ("sac", "reward"),
        pytest.param("dreamer", "reward", marks=pytest.mark.long),
        pytest.param("dreamer", "obs", marks=pytest.mark.long),
    ],
)
def test_what_is_collected_is_checked_before_it_is_saved(name: str, what: str, tmp_path: Path) -> None:
    # The 151st step of 4 environments is the first wrong one, in the tenth iteration.
    config = breaking(name, what, 150)
    label = {"reward": "reward", "obs": "observation"}[what]
    first = 608 if name == "dreamer" else 604  # whose rows hold what the step before them led to
    with pytest.raises(rljax.TrainingError, match=rf"the {label} of .*Breaking.* was nan at step {first};.*/step_576$"):
        rljax.fit(config, run_dir=tmp_path / "a", checkpoint_every=STEPS, checkpoint_seconds=None)
    assert checkpoint_steps(tmp_path / "a" / "checkpoints")[0] == 576
    why = re.escape(f"the {label} of ") + r".*Breaking.* was nan at step " + str(first)
    assert re.fullmatch(f"{why}; that state was not saved", read_metrics(tmp_path / "a").failure or "")
    assert re.search(rf"stopped at step 640 of [\d,]+: {why}.*; to go on:", status_of(tmp_path / "a"))
    # The environment mended, the run goes on from there to its end: nothing in the checkpoint is wrong.
    mended = config.replace(env=Mended(what, continuous=name == "sac"))
    result = rljax.fit(mended, run_dir=tmp_path / "a", resume=True)
    assert result.metrics["train/updates"][-1] > 0
    assert read_metrics(tmp_path / "a").failure is None
    assert "failure" not in (tmp_path / "a" / "metrics.jsonl").read_text()
    assert all(np.isfinite(values[-1]) for metric, values in result.metrics.items() if metric.startswith("train/"))


@pytest.mark.slow
def test_a_loss_that_breaks_before_a_save_names_the_wrong_number_in_the_buffer(tmp_path: Path) -> None:
    config = breaking("dqn", "reward", 150)
    with pytest.raises(
        rljax.TrainingError, match=r"train/\w+ became nan in .* step 1,\d+ \(the reward of .* was nan at step 604\);.*"
    ):
        rljax.fit(config, run_dir=tmp_path / "a", checkpoint_seconds=None)
    assert checkpoint_steps(tmp_path / "a" / "checkpoints") == [0]


@pytest.mark.slow
def test_rewards_that_broken_parameters_led_to_are_not_named_as_the_cause() -> None:
    config = TINY["sac"].replace(env="Pendulum-v1", total_timesteps=20_000, learning_starts=1_400, buffer_size=20_000)
    with pytest.raises(rljax.TrainingError, match=r"step 1,408 \(rewards or observations .*, or too high a learning_rate\?\)"):
        rljax.fit(config.replace(learning_rate=1e30, eval_every=None))


class Mended(Breaking):
    """The same by name, without the fault."""

    def step_env(self, key: jax.Array, state: BreakingState, action: Any, params: Any) -> Any:
        return super().step_env(key, state, action, params.replace(breaks_at=10**9))


Mended.__name__ = Mended.__qualname__ = "Breaking"


@pytest.mark.slow
def test_untrained_iterations_have_no_losses(tmp_path: Path) -> None:
    config = breaking("dqn", "reward", 10**9, total_timesteps=64 * 23, learning_starts=128)
    result = rljax.fit(config, run_dir=tmp_path / "a")
    trained = result.metrics["train/updates"] > 0
    assert 0 < trained.sum() < len(trained)
    for name, values in result.metrics.items():
        if name.startswith("train/") and name not in ("train/updates", "train/epsilon", "train/learning_rate"):
            np.testing.assert_array_equal(np.isfinite(values), trained, err_msg=name)
    lines = [r for r in records(tmp_path / "a") if "hyperparameters" not in r]
    assert [r["train/value"] is not None for r in lines] == list(trained)


def test_an_unknown_open_loop_error_is_no_divergence() -> None:
    known = {"train/updates": 2.0, "train/loss": 1.0}
    unknown = {"train/openloop_error_15": math.nan, "train/copy_last_error_15": math.nan}

    def finite(metrics: dict[str, float]) -> tuple[bool, bool]:
        rows, names = np.array([[list(metrics.values())]]), list(metrics)
        in_program = losses_are_finite({name: jnp.float32(x) for name, x in metrics.items()})
        return bool(in_program), first_bad(rows, names, np.ones(1, bool)) is None

    assert finite(known | unknown) == (True, True)
    assert finite(known | unknown | {"train/loss": math.nan}) == (False, False)


def seeds_below(config: Any, seeds: int) -> np.ndarray:
    """The least number that the environments of each seed drew."""
    keys = jax.vmap(jax.random.key)(np.arange(config.seed, config.seed + seeds, dtype=np.uint32))
    states = jax.vmap(rljax.make_agent(config).init)(keys)
    return np.asarray(states.env_state.env_state.number).min(1)


SEEDS = 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", pytest.param("dqn", marks=pytest.mark.slow)])
def test_a_seed_that_diverges_is_frozen_and_the_others_go_on_bit_for_bit(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = breaking(name, "reward", 10**9)
    if name == "dqn":
        config = config.replace(learning_starts=100)
    numbers = seeds_below(config, SEEDS)
    victim = int(np.argmin(numbers))
    below = float(np.sort(numbers)[:2].mean())
    wrong = config.replace(env_params={"breaks_at": 150, "below": below})
    well = rljax.fit(config.replace(env_params={"breaks_at": 10**9, "below": below}), seeds=SEEDS, run_dir=tmp_path / "well")
    with pytest.warns(
        rljax.RljaxWarning, match=rf"seed_index {victim} of 4 diverged: train/\w+ became nan .* step 640;.* continue"
    ):
        result = rljax.fit(wrong, seeds=SEEDS, run_dir=tmp_path / "a", checkpoint_every=320)
    others = np.array([i for i in range(SEEDS) if i != victim])
    ours, theirs = (named_arrays(jax.tree.map(lambda x: x[others], r.state)) for r in (result, well))
    for leaf in ours:
        assert ours[leaf].tobytes() == theirs[leaf].tobytes(), leaf
    for metric, values in result.metrics.items():
        np.testing.assert_array_equal(values[others], well.metrics[metric][others], err_msg=metric)
        np.testing.assert_array_equal(values[victim, :9], well.metrics[metric][victim, :9], err_msg=metric)
        assert np.isnan(values[victim, 10:]).all(), metric
    # The frozen one is what it was after nine iterations.
    assert int(result.state.iteration[victim]) == 9
    assert np.isfinite(np.concatenate([x.ravel() for x in jax.tree.leaves(jax.tree.map(np.asarray, result.state.params))])).all()
    meta = read_meta((tmp_path / "a" / "checkpoints" / "latest").resolve())
    assert meta["diverged"] == [640 if i == victim else None for i in range(SEEDS)]
    assert meta["scores"][victim] is None
    assert best_seed(meta) != victim
    show(tmp_path / "a")
    assert f"seed_index {victim} diverged at step 640: its training stopped\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_resumed_run_does_not_repeat_the_failure(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    config = breaking("ppo", "reward", 150)
    numbers = seeds_below(config, SEEDS)
    config = config.replace(env_params={"breaks_at": 150, "below": float(np.sort(numbers)[:2].mean())})
    with pytest.warns(rljax.RljaxWarning, match="diverged"):
        whole = rljax.fit(config, seeds=SEEDS, run_dir=tmp_path / "whole")
    stop: Callable[..., bool] = lambda step, _: step >= 900  # noqa: E731
    with pytest.warns(rljax.RljaxWarning, match="diverged"):
        rljax.fit(config, seeds=SEEDS, run_dir=tmp_path / "a", callback=stop, checkpoint_every=64)
    recwarn.clear()
    resumed = rljax.fit(config, run_dir=tmp_path / "a", resume=True)
    assert not [w for w in recwarn if issubclass(w.category, rljax.RljaxWarning)]
    ours, theirs = named_arrays(resumed.state), named_arrays(whole.state)
    for leaf in ours:
        assert ours[leaf].tobytes() == theirs[leaf].tobytes(), leaf
    assert records(tmp_path / "a") == records(tmp_path / "whole")


@pytest.mark.slow
def test_all_seeds_diverged_stop_the_run(tmp_path: Path) -> None:
    with pytest.raises(rljax.TrainingError, match=r"train/\w+ of seed \d became nan .* step 640 .*last good checkpoint is"):
        rljax.fit(breaking("ppo", "reward", 150), seeds=2, run_dir=tmp_path / "a")


def test_faults_are_found_where_they_are_and_infinities_that_belong_there_are_not() -> None:
    reward = np.zeros((2, 5, 3), np.float32)
    arrays = {
        "env_state/own": np.full((2, 3), np.nan, np.float32),
        "league/lowest": np.full((2,), -np.inf, np.float32),
        "params/kernel": np.ones((2, 4), np.float32),
        "replay/data/reward": reward,
        "replay/data/obs": np.zeros((2, 5, 3, 7), np.float32),
        "replay/position": np.array([2, 2], np.int32),
        "replay/data/done": np.zeros((2, 5, 3), bool),
    }
    everybody = np.ones(2, bool)
    assert find_fault(arrays, everybody, True) is None
    reward[1, 4, 0], reward[1, 0, 2] = np.inf, np.nan
    # Rows from the oldest to the newest: 2, 3, 4, 0, 1.
    fault = find_fault(arrays, everybody, True)
    assert fault is not None
    assert (fault.what, fault.seed, fault.age) == ("the reward", 1, 2)
    assert math.isinf(fault.value) or math.isnan(fault.value)
    assert find_fault(arrays, np.array([True, False]), True) is None
    # The current observation is that of the newest row, too: the row says since when.
    arrays["obs"], arrays["replay/data/obs"][1, 1] = np.full((2, 3, 7), np.nan, np.float32), np.nan
    reward[:] = 0.0
    fault = find_fault(arrays, np.array([False, True]), True)
    assert fault is not None
    assert (fault.what, fault.age) == ("the observation", 0)
    del arrays["obs"]
    arrays["replay/data/obs"][:] = 0.0
    arrays["obs_statistics/var"] = np.array([[1.0], [np.nan]], np.float32)
    fault = find_fault(arrays, everybody, True)
    assert fault is not None
    assert (fault.what, fault.seed, fault.age) == ("obs_statistics/var", 1, None)


class NothingLegal(Breaking):
    """The last head has no legal action at one step of a hundred."""

    def __init__(self, nvec: tuple[int, ...]):
        super().__init__()
        self.nvec = nvec

    def action_space(self, params: Any) -> Any:
        return Discrete(self.nvec[0]) if len(self.nvec) == 1 else MultiDiscrete(self.nvec)

    def action_mask(self, state: BreakingState, params: Any) -> jax.Array:
        last = np.arange(sum(self.nvec)) >= sum(self.nvec[:-1])
        return ~(jnp.asarray(last) & (state.total == 100))


class NothingToPlay(TicTacToe):
    """No move is legal at the fourth, in games under way."""

    def action_mask(self, state: Any, params: Any) -> jax.Array:
        return super().action_mask(state, params) & (jnp.sum(state.board != 0) != 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("ppo", NothingLegal((3, 2))),
        ("dqn", NothingLegal((3,))),
        pytest.param("sac", NothingLegal((3,)), marks=pytest.mark.slow),
        pytest.param("pqn", NothingLegal((3,)), marks=pytest.mark.slow),
        pytest.param("impala", NothingLegal((3, 2)), marks=pytest.mark.slow),
        pytest.param("dreamer", NothingLegal((3, 2)), marks=pytest.mark.long),
        pytest.param("self_play", NothingToPlay(), marks=pytest.mark.slow),
        pytest.param("alphazero", NothingToPlay(), marks=pytest.mark.slow),
    ],
)
def test_a_mask_that_allows_nothing_in_an_episode_under_way_stops_the_run(
    name: str, env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljax.run.fit.try_environment", lambda _: None)  # which might find it before
    # In the 101st step of each of 4 environments, or in every game.
    said = r"\d+ steps .* step 64" if isinstance(env, NothingToPlay) else "4 steps .* step 448"
    config = TINY[name].replace(env=env, eval_every=None)
    with pytest.raises(rljax.TrainingError, match=rf"action_mask of .*Nothing\w+.* allowed no action .* in {said};"):
        rljax.fit(config)


@pytest.mark.slow
@pytest.mark.parametrize(("env", "step"), [(Breaking(), 640), (NothingLegal((3, 2)), 448)])
def test_the_records_end_with_the_step_at_which_training_failed(
    env: Any, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljax.run.fit.try_environment", lambda _: None)
    monkeypatch.setattr(
        "rljax.run.driver.CHUNK_SECONDS", 1e9
    )  # chunks of 1, 4 and 16 iterations: the failure is within the third
    config = breaking("ppo", "reward", 150, env=env)
    for resume in (False, True):
        with pytest.raises(rljax.TrainingError):
            rljax.fit(config, run_dir=tmp_path / "a", resume=resume, checkpoint_seconds=None)
        lines = records(tmp_path / "a")
        assert "failure" in lines[-1]
        assert [line["step"] for line in lines if "hyperparameters" not in line] == [*range(64, step + 1, 64), step]


@pytest.mark.slow
def test_a_league_stops_at_the_step_at_which_a_learner_diverges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exploiter, here, whose parameters break in the seventh iteration; the main agent's are as they should be."""

    def breaks(parts: Any, state: Any) -> Any:
        state, steps = game_collect(parts, state)
        wrong = jnp.where(state.iteration == 6, jnp.nan, 0.0)
        return state.replace(params=jax.tree.map(lambda x: x.at[1].add(wrong), state.params)), steps

    monkeypatch.setattr("rljax.league.training.game_collect", breaks)
    monkeypatch.setattr("rljax.run.driver.CHUNK_SECONDS", 1e9)  # the third chunk has 16 iterations from the sixth on
    config = TINY["league"].replace(eval_every=None, exploitability_every=None)
    with pytest.raises(rljax.TrainingError, match=r"train/value became nan in the iteration that ended at step 448 \("):
        rljax.fit(config, run_dir=tmp_path / "a", checkpoint_seconds=None)
    assert [line["step"] for line in records(tmp_path / "a") if "failure" in line] == [448]


@pytest.mark.slow
def test_masks_that_are_as_they_should_be_are_counted_as_that() -> None:
    """Also at the ends of games, where nothing is legal."""
    env = NothingLegal((3, 2))
    config = TINY["ppo"].replace(env=env, eval_every=None, total_timesteps=64 * 6)
    assert (rljax.fit(config).metrics["train/no_legal_action"] == 0).all()
    game = rljax.fit(TINY["self_play"].replace(total_timesteps=64 * 3, eval_every=None)).metrics
    assert (game["train/no_legal_action"] == 0).all()
    assert game["episode/count"].sum() > 0
