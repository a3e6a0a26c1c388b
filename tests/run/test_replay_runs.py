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
from rljax.run import fit as driver
from tests.run.tiny_runs import TINY, assert_same_state

CONFIG = TINY["dqn"]
LONGER = CONFIG.replace(total_timesteps=64 * 30, eval_every=None)


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent") / "run"
    rljax.fit(CONFIG, run_dir=folder)
    return folder


def test_a_fork_keeps_the_buffer_and_its_priorities(parent: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rljax.fit(LONGER.replace(learning_rate=5e-4), fork=parent, run_dir=tmp_path / "a")
    start = rljax.load_run(tmp_path / "a", checkpoint=1536)
    assert_same_state(start.state, rljax.load_run(parent).state)
    assert int(start.state.replay.size) == 100


@pytest.mark.parametrize(
    ("changes", "anew"),
    [
        ({"buffer_size": 800}, "priorities, replay"),
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
    with pytest.warns(rljax.RljaxWarning, match=f"made anew, since the configuration changed: {anew}"):
        result = rljax.fit(LONGER.replace(**changes), fork=parent, run_dir=tmp_path / "a")
    start = rljax.load_run(tmp_path / "a", checkpoint=1536).state
    assert int(start.replay.size) == 0
    assert not np.asarray(start.priorities.leaves).any()
    updates = result.metrics["train/updates"]
    assert updates[0] == 0  # 64 steps are fewer than learning_starts
    assert updates[-1] > 0


def test_seeds_of_one_program_are_the_runs_alone() -> None:
    many = rljax.fit(CONFIG, seeds=2)
    for i in range(2):
        alone = rljax.fit(CONFIG.replace(seed=CONFIG.seed + i))
        np.testing.assert_array_equal(many.metrics["train/updates"][i], alone.metrics["train/updates"])
        for a, b in zip(jax.tree.leaves(many.state.params), jax.tree.leaves(alone.state.params), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=2e-3, atol=2e-4)
        np.testing.assert_array_equal(many.state.replay.position, jnp.broadcast_to(alone.state.replay.position, 2))


@pytest.mark.parametrize("prioritized", [pytest.param(False, marks=pytest.mark.slow), True])
def test_no_buffer_is_copied_by_the_driver(prioritized: bool) -> None:
    agent = rljax.make_agent(CONFIG.replace(buffer_size=400_000, prioritized=prioritized, eval_every=None))
    states = jax.eval_shape(jax.vmap(agent.init), jax.random.split(jax.random.key(0), 4))
    iteration = driver._vectorized(agent, 4)
    names = sorted(jax.eval_shape(iteration, states, jnp.int32(0))[1])
    chunk = driver._compile_chunk(iteration, states, (4,), len(names), 8)
    held = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(states.replay.data))
    assert chunk.memory_analysis().temp_size_in_bytes < 0.1 * held  # type: ignore[attr-defined]


def test_more_seeds_than_memory_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(rljax.ConfigError, match=r"seeds = 1000000: the state of so many runs needs .* GB, this device has"):
        rljax.fit(CONFIG.replace(buffer_size=100_000, learning_starts=100), seeds=1_000_000, run_dir=tmp_path / "a")
    assert not (tmp_path / "a").exists()
