"""Imitation learns: clones reach the return of whom they imitate, reinforcement begins there, and a student is as good as its
teacher with a fraction of the parameters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from tests.algos.imitation.recorded import balances, record

SEEDS = 3


def returns_of(config: Any, states: Any, episodes: int = 32) -> np.ndarray:
    """Mean greedy return of each seed."""
    agent = rljax.make_agent(config)
    play = jax.jit(jax.vmap(lambda state: jnp.mean(rljax.evaluate(agent, state, jax.random.key(77), episodes))))
    return np.asarray(play(states))


def trained(agent_or_config: Any) -> Any:
    """Final states of several seeds, and their metrics."""
    return jax.jit(jax.vmap(rljax.make_train(agent_or_config)))(jax.random.split(jax.random.key(11), SEEDS))


@pytest.fixture(scope="module")
def clones(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """Clones of a script that balances the pole for all 500 steps: configuration, states, and the run of the first one."""
    folder = tmp_path_factory.mktemp("imitation")
    episodes = record(folder / "data", "CartPole-v1", balances, 16, 500)
    assert min(len(episode.reward) for episode in episodes) == 500
    config = rljax.BCConfig(
        dataset=str(folder / "data"), total_timesteps=1024 * 60, learning_rate=3e-3, normalize_observations=True
    )
    states = trained(config).state
    rljax.save(folder / "clone", config, jax.tree.map(lambda x: x[0], states))
    return config, states, folder / "clone"


@pytest.mark.slow
def test_clones_reach_the_return_of_a_script(clones: tuple[Any, Any, Path]) -> None:
    config, states, _ = clones
    found = returns_of(config, states)
    print("clones:", found)
    assert (found >= 475).all()


@pytest.mark.long
def test_reinforcement_from_a_clone_with_a_fading_divergence_begins_at_its_return(clones: tuple[Any, Any, Path]) -> None:
    """After the first iterations, where reinforcement from scratch is far below, and at the end."""
    _, _, run = clones
    config = rljax.load_config(
        "cartpole_ppo",
        total_timesteps=8_192,
        eval_every=1_024,
        eval_episodes=16,
        normalize_observations=True,
        teacher_kl_coef=1.0,
        teacher_kl_share=0.5,
    )
    from_clone = trained(rljax.begin_from(config, run)).metrics
    scratch = trained(config.replace(teacher_kl_coef=None)).metrics
    ours, theirs = (np.asarray(m["eval/return"])[:, np.isfinite(m["eval/return"][0])] for m in (from_clone, scratch))
    print("from the clone:", ours.mean(0), "from scratch:", theirs.mean(0))
    assert ours[:, :3].mean() >= 450
    assert ours[:, -1].mean() >= 400
    assert theirs[:, :3].mean() < 300
    weight, divergence = (np.asarray(from_clone[f"train/{name}"]) for name in ("teacher_kl_coef", "teacher_kl"))
    assert (weight[:, -1] == 0.0).all()
    half = weight.shape[1] // 2
    assert divergence[:, :half].mean() < 0.5 * divergence[:, -half // 2 :].mean()


@pytest.mark.long
def test_a_student_with_a_quarter_of_the_parameters_is_as_good_as_its_teacher(clones: tuple[Any, Any, Path]) -> None:
    teacher_config, states, run = clones
    config = rljax.DistillConfig(
        teachers=(str(run),),
        network={"hidden": [24, 24]},
        total_timesteps=1024 * 60,
        learning_rate=3e-3,
        normalize_observations=True,
    )
    result = trained(config)
    size = lambda params: sum(x.size for x in jax.tree.leaves(params))  # noqa: E731
    assert SEEDS * size(jax.tree.map(lambda x: x[0], states.params)) >= 4 * size(result.state.params)
    teacher = returns_of(teacher_config, states)[0]
    found = returns_of(config, result.state)
    print("teacher:", teacher, "students:", found)
    assert (found >= 0.95 * teacher).all()


@pytest.mark.long
def test_clones_with_memory_remember_what_decides(tmp_path: Path) -> None:
    """The turn at the end of the T-maze depends on the first observation alone: without memory the mean return is 0 at best."""

    def turns(key: jax.Array, obs: Any, state: Any) -> jax.Array:
        return jnp.where(obs[3] > 0, state.side + 1, 0).astype(jnp.int32)

    record(tmp_path / "data", "TMaze-v0", turns, 64, 9)
    config = rljax.BCConfig(
        env="TMaze-v0",
        dataset=str(tmp_path / "data"),
        total_timesteps=512 * 150,
        num_steps=32,
        num_minibatches=2,
        learning_rate=1e-2,
        network={"type": "gru", "size": 32, "hidden": [32], "head_hidden": [], "activation": "relu"},
    )
    found = returns_of(config, trained(config).state)
    print("memory:", found)
    assert (found >= 0.95).all()
