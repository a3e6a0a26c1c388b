"""Runs whose state holds a replay buffer: forks keep it or start it anew, and many seeds write it without copies."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.collect.minibatches import ravel
from rljax.run import chunks as driver
from tests.run.tiny_runs import TINY, assert_same_state

CONFIG = TINY["dqn"]
LONGER = CONFIG.replace(total_timesteps=64 * 30, eval_every=None)


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent") / "run"
    rljax.fit(CONFIG, run_dir=folder)
    return folder


@pytest.mark.slow
def test_a_fork_keeps_the_buffer_and_its_priorities(parent: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rljax.fit(LONGER.replace(learning_rate=5e-4), fork=parent, run_dir=tmp_path / "a")
    start = rljax.load_run(tmp_path / "a", checkpoint=1536)
    assert_same_state(start.state, rljax.load_run(parent).state)
    assert int(start.state.replay.size) == 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "anew"),
    [
        pytest.param({"buffer_size": 800}, "priorities, replay", marks=pytest.mark.slow),
        pytest.param(
            {"num_envs": 2, "num_steps": 32},
            "env_state, obs, priorities, replay, reward_statistics",
            marks=pytest.mark.slow,
        ),
        ({"env": "gymnax:CartPole-v1"}, "env_state, obs, priorities, replay"),
    ],
)
def test_a_buffer_that_does_not_fit_starts_empty_and_says_so(
    changes: dict[str, Any], anew: str, parent: Path, tmp_path: Path
) -> None:
    with pytest.warns(rljax.RljaxWarning, match=f"initialised anew, because the configuration changed: {anew}"):
        result = rljax.fit(LONGER.replace(**changes), fork=parent, run_dir=tmp_path / "a")
    start = rljax.load_run(tmp_path / "a", checkpoint=1536).state
    assert int(start.replay.size) == 0
    assert not np.asarray(start.priorities.leaves).any()
    updates = result.metrics["train/updates"]
    assert updates[0] == 0  # 64 steps are fewer than learning_starts
    assert updates[-1] > 0


@pytest.mark.slow
def test_the_target_network_of_a_fork_moves_whatever_number_of_updates_it_brings(tmp_path: Path) -> None:
    """7 gradient steps, where the target of the fork moves every 6 steps in turns of 2: no turn ends with a multiple of 6."""
    config = CONFIG.replace(
        train_every=4, updates_per_step=1, prioritized=False, learning_starts=85, total_timesteps=64 * 3, eval_every=None
    )
    rljax.fit(config, run_dir=tmp_path / "a")
    odd = int(rljax.load_run(tmp_path / "a").state.updates)
    assert odd == 7
    fork = config.replace(updates_per_step=2, target_update_every=6, tau=1.0, total_timesteps=64 * 6)
    state = rljax.fit(fork, fork=tmp_path / "a").state
    before = rljax.load_run(tmp_path / "a").state.target_params
    moved = [np.abs(a - b).max() for a, b in zip(jax.tree.leaves(state.target_params), jax.tree.leaves(before), strict=True)]
    assert max(moved) > 0


@pytest.mark.slow
def test_priorities_of_another_exponent_start_anew(parent: Path, tmp_path: Path) -> None:
    with pytest.warns(rljax.RljaxWarning, match="initialised anew, because the configuration changed: priorities, replay"):
        rljax.fit(LONGER.replace(priority_alpha=0.0), fork=parent, run_dir=tmp_path / "a")


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [None, pytest.param(2, marks=pytest.mark.long)])
def test_past_policies_and_targets_made_anew_are_copies_of_the_weights_taken_over(seeds: int | None, tmp_path: Path) -> None:
    config = TINY["impala"].replace(total_timesteps=64 * 4, eval_every=None)
    rljax.fit(config, run_dir=tmp_path / "a", seeds=seeds)
    old = rljax.load_run(tmp_path / "a").state
    with pytest.warns(rljax.RljaxWarning, match="past_params"):
        rljax.fit(config.replace(policy_lag=5, total_timesteps=64 * 6), fork=tmp_path / "a", run_dir=tmp_path / "b", seeds=seeds)
    start = rljax.load_run(tmp_path / "b", checkpoint=64 * 4).state
    flat = ravel(old.params) if seeds is None else jax.vmap(ravel)(old.params)
    np.testing.assert_array_equal(start.past_params, jnp.broadcast_to(flat[..., None, :], start.past_params.shape))
    assert start.past_params.shape[-2] == 5


@pytest.mark.slow
def test_a_fork_to_a_fixed_temperature_has_it(tmp_path: Path) -> None:
    config = TINY["sac"].replace(eval_every=None)
    rljax.fit(config, run_dir=tmp_path / "a")
    longer = config.replace(temperature=0.01, total_timesteps=config.total_timesteps * 2)
    metrics = rljax.fit(longer, fork=tmp_path / "a").metrics
    np.testing.assert_allclose(metrics["train/temperature"], 0.01, rtol=1e-5)


@pytest.mark.long
def test_seeds_of_one_program_are_the_runs_alone() -> None:
    many = rljax.fit(CONFIG, seeds=2)
    for i in range(2):
        alone = rljax.fit(CONFIG.replace(seed=CONFIG.seed + i))
        np.testing.assert_array_equal(many.metrics["train/updates"][i], alone.metrics["train/updates"])
        for a, b in zip(jax.tree.leaves(many.state.params), jax.tree.leaves(alone.state.params), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=2e-3, atol=2e-4)
        np.testing.assert_array_equal(many.state.replay.position, jnp.broadcast_to(alone.state.replay.position, 2))


@pytest.mark.slow
@pytest.mark.parametrize("prioritized", [pytest.param(False, marks=pytest.mark.slow), True])
def test_no_buffer_is_copied_by_the_driver(prioritized: bool) -> None:
    agent = rljax.make_agent(CONFIG.replace(buffer_size=400_000, prioritized=prioritized, eval_every=None))
    states = jax.eval_shape(jax.vmap(agent.init), jax.random.split(jax.random.key(0), 4))
    iteration = driver.vectorized_iteration(agent, 4)
    names = sorted(jax.eval_shape(iteration, states, jnp.int32(0))[1])
    chunk = driver.compile_chunk(iteration, states, (4,), len(names), 8)
    held = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(states.replay.data))
    assert chunk.memory_analysis().temp_size_in_bytes < 0.1 * held  # type: ignore[attr-defined]


def test_more_seeds_than_memory_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(rljax.ConfigError, match=r"seeds = 1000000: the state of so many runs needs .* GB, this device has"):
        rljax.fit(CONFIG.replace(buffer_size=100_000, learning_starts=100), seeds=1_000_000, run_dir=tmp_path / "a")
    assert not (tmp_path / "a").exists()
