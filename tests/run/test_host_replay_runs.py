"""Runs whose replay buffer is in the host's memory: the same numbers, resumed and donated like all others."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

import rljax
from tests.run.tiny_runs import TINY, assert_same_run, assert_same_state

pytestmark = pytest.mark.slow


@pytest.mark.same_bits
@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_a_run_is_that_with_the_buffer_on_the_device(name: str) -> None:
    config = TINY[name].replace(total_timesteps=8 * 64, eval_every=None)
    found = rljax.fit(config.replace(replay_memory="host"))
    expected = rljax.fit(config)
    assert found.metrics["train/updates"].sum() > 0
    assert_same_state(found.state, expected.state)
    kinds = {x.sharding.memory_kind for x in jax.tree.leaves(found.state.replay.data.obs)}
    assert kinds == {"pinned_host"}


def test_a_resumed_run_has_its_buffer_in_the_hosts_memory_again(tmp_path: Path) -> None:
    config = TINY["dqn"].replace(replay_memory="host", total_timesteps=8 * 64, eval_every=None)
    rljax.fit(config, run_dir=tmp_path / "whole")
    rljax.fit(config, run_dir=tmp_path / "cut", callback=lambda step, metrics: step >= 4 * 64)
    restored = rljax.load_run(tmp_path / "cut").state.replay.data
    assert restored.obs.sharding.memory_kind == restored.next_obs.sharding.memory_kind == "pinned_host"
    assert restored.reward.sharding.memory_kind == "device"
    rljax.fit(config, resume=tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_the_whole_program_and_its_evaluation_run() -> None:
    config = TINY["sac"].replace(replay_memory="host", total_timesteps=6 * 64, eval_every=None)
    result = jax.jit(rljax.make_train(config))(jax.random.key(0))
    assert result.state.replay.data.obs.sharding.memory_kind == "pinned_host"
    assert rljax.evaluate(rljax.make_agent(config), result.state, jax.random.key(1), num_episodes=2).shape == (2,)
