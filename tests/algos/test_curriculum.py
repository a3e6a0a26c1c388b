"""PPO with a curriculum: episodes have the parameters of their level, seeds their own curricula, and runs resume bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rljax
from rljax.algos.ppo import ppo_collect, ppo_init, ppo_parts, ppo_update
from rljax.collect.curriculum.levels import LEVEL
from rljax.collect.environments import make_evaluation_env
from tests.run.tiny_runs import assert_same_state

STARTS = (9, 6, 0)
CONFIG = rljax.PPOConfig(
    env="SparseGridWorld-v0",
    env_params={"num_rooms": 2, "width": 3, "max_steps_in_episode": 8},
    num_envs=8,
    num_steps=16,
    num_minibatches=1,
    num_epochs=1,
    total_timesteps=128 * 12,
    learning_rate=1e-2,
    network={"hidden": [8]},
)
EARLY = {"threshold": 0.3, "min_episodes": 4}


def with_curriculum(kind: str, **changes: Any) -> rljax.PPOConfig:
    options = EARLY if kind == "success" else {}
    return CONFIG.replace(curriculum={"type": kind, "levels": [{"head_start": x} for x in STARTS], **options}, **changes)


@pytest.fixture(scope="module", params=["success", "plr"])
def run(request: pytest.FixtureRequest) -> tuple[Any, Any, Any, Any]:
    """Six iterations of two seeds: parts, rollouts, curricula before each iteration, and metrics, `[6, 2, ...]`."""
    parts = ppo_parts(with_curriculum(request.param))

    def train(key: jax.Array) -> Any:
        def step(state: Any, _: None) -> Any:
            before = state.curriculum
            state, rollout = ppo_collect(parts, state)
            state, metrics = ppo_update(parts, state, rollout)
            return state, (rollout.steps, before, metrics)

        return jax.lax.scan(step, ppo_init(parts, key), None, 6)[1]

    return parts, *jax.jit(jax.vmap(train, out_axes=1))(jax.random.split(jax.random.key(3)))


@pytest.mark.slow
def test_an_episode_begins_as_its_level_says_and_keeps_its_level(run: Any) -> None:
    parts, steps, _, _ = run
    done, level = np.asarray(steps.terminated | steps.truncated), np.asarray(steps.extras[LEVEL])
    obs = np.asarray(steps.obs)
    way = np.asarray(parts.env.env.env.way)
    height = obs.shape[-1] - 3
    begins = done[:, :, :-1]
    assert begins.sum() > 100
    cell = np.stack([obs[..., :height].argmax(-1), obs[..., height:].argmax(-1)], -1)[:, :, 1:]
    np.testing.assert_array_equal(cell[begins], way[np.array(STARTS)[level[:, :, 1:][begins]]])
    np.testing.assert_array_equal(level[:, :, 1:][~begins], level[:, :, :-1][~begins])
    assert len(np.unique(level)) >= 2


def test_levels_are_drawn_from_the_curriculum_of_the_own_seed(run: Any) -> None:
    parts, steps, before, metrics = run
    done, level = np.asarray(steps.terminated | steps.truncated), np.asarray(steps.extras[LEVEL])
    probability = np.asarray(jax.vmap(jax.vmap(parts.curriculum.probability))(before))
    for iteration in range(6):
        for seed in range(2):
            begun = level[iteration, seed, 1:][done[iteration, seed, :-1]]
            allowed = probability[iteration, seed] > 0
            assert allowed[begun].all()
            expected = probability[iteration, seed] * len(begun)
            counts = np.bincount(begun, minlength=3)
            assert (np.abs(counts - expected) <= 5 * np.sqrt(expected * (1 - probability[iteration, seed])) + 1e-6).all()
    assert any(name.startswith("curriculum/") for name in metrics)
    state = jax.tree.leaves(before)[0]
    assert not np.array_equal(state[-1, 0], state[-1, 1])


def test_training_with_a_curriculum_may_be_part_of_a_larger_program() -> None:
    """As in sweeps, whose configurations are traced."""
    metrics = jax.eval_shape(lambda key: rljax.make_train(with_curriculum("plr"))(key), jax.random.key(0)).metrics
    assert metrics["curriculum/effective_levels"].shape == (12,)


def test_evaluations_play_the_configurations_own_parameters() -> None:
    env, params = make_evaluation_env(with_curriculum("uniform"))
    assert params == make_evaluation_env(CONFIG)[1]
    assert env.reset_env(jax.random.key(0), params)[1].env_state.row == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["success", "plr"])
def test_a_resumed_run_goes_on_bit_for_bit(kind: str, tmp_path: Path) -> None:
    config = with_curriculum(kind)
    rljax.fit(config.replace(total_timesteps=128 * 5, anneal_lr=False), run_dir=tmp_path / "run")
    whole = rljax.fit(config.replace(anneal_lr=False))
    assert_same_state(rljax.fit(resume=tmp_path / "run", total_timesteps=128 * 12).state, whole.state)
