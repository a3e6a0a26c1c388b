"""Agents that must learn: every preset, many seeds in one vmap, greedy mean return over 100 episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax

SEEDS = 5
"""Those of the table in docs/results.md are 20 others (`rljax reproduce`); with a quarter of them the slow tests end in time."""


def trained(config: Any) -> tuple[np.ndarray, Any]:
    """Greedy mean returns f32 `[SEEDS]`, and the batched final state."""
    agent = rljax.make_agent(config)

    def train(key: jax.Array) -> tuple[jax.Array, Any]:
        state = rljax.make_train(config)(key).state
        return jnp.mean(rljax.evaluate(agent, state, jax.random.fold_in(key, 1), num_episodes=100)), state

    returns, state = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(config.seed), SEEDS))
    return np.asarray(returns), state


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("preset", "max_steps", "threshold", "mean"),
    [
        ("cartpole_ppo", 100_000, 475.0, 495.0),
        pytest.param("cartpole_ppo_cleanrl", 500_000, 475.0, 495.0, marks=pytest.mark.long),
        pytest.param("acrobot_ppo", 400_000, -100.0, -86.0, marks=pytest.mark.long),
        pytest.param("pendulum_ppo", 200_000, -200.0, -172.0, marks=pytest.mark.long),
        pytest.param("cartpole_dqn", 150_000, 475.0, 490.0, marks=pytest.mark.long),
        pytest.param("acrobot_dqn", 100_000, -100.0, -88.0, marks=pytest.mark.long),
        ("pendulum_sac", 30_000, -180.0, -164.0),
        pytest.param("cartpole_pqn", 100_000, 475.0, 490.0, marks=pytest.mark.long),
        pytest.param("cartpole_impala", 100_000, 475.0, 495.0, marks=pytest.mark.long),
    ],
)
def test_every_seed_solves_the_presets_task(
    preset: str, max_steps: int, threshold: float, mean: float, figure: Callable[[str], None]
) -> None:
    """`mean` over seeds is close to that of the table in docs/results.md. One preset for each algorithm and kind of action;
    the others are long, and have a record."""
    config = rljax.load_config(preset)
    assert config.total_timesteps <= max_steps
    returns, _ = trained(config)
    figure(
        f"| `{preset}` | {config.total_timesteps:,} | {int((returns >= threshold).sum())} of {SEEDS} at {threshold:g} "
        f"| {returns.mean():.1f} | {returns.min():.1f} |",
    )
    assert (returns >= threshold).all(), np.sort(returns)
    assert returns.mean() >= mean, np.sort(returns)


@pytest.mark.long
def test_cartpole_is_first_solved_within_30k_steps_by_every_seed() -> None:
    """Steps and not seconds: at the speed that `rljax bench ppo` prints, 30,000 steps are about 0.6 s of training."""
    config = rljax.load_config("cartpole_ppo", eval_every=1_000, eval_episodes=100)
    curves = np.asarray(
        jax.jit(jax.vmap(lambda key: rljax.make_train(config)(key).metrics["eval/return"]))(
            jax.random.split(jax.random.key(config.seed), SEEDS)
        )
    )
    reached = curves >= 475.0
    steps = (reached.argmax(axis=1) + 1) * config.steps_per_iteration
    assert reached.any(axis=1).all()
    assert np.median(steps) <= 17_000
    assert steps.max() <= 30_000


@pytest.mark.slow
def test_gridworld_policy_is_optimal_from_every_cell(figure: Callable[[str], None]) -> None:
    """Every greedy move of every seed shortens the way: right or down, never against the wall."""
    config = rljax.load_config("gridworld_ppo")
    returns, states = trained(config)
    agent = rljax.make_agent(config)
    size = 7
    rows, columns = np.divmod(np.arange(size * size - 1), size)
    obs = jnp.concatenate([jax.nn.one_hot(rows, size), jax.nn.one_hot(columns, size)], axis=-1)
    actions = np.asarray(jax.vmap(lambda state: agent.act(state, obs, None, jax.random.key(0), True)[0])(states))
    optimal = ((actions == 2) & (rows < size - 1)) | ((actions == 1) & (columns < size - 1))
    figure(
        f"| `gridworld_ppo` | {config.total_timesteps:,} | {int(optimal.all(1).sum())} of {SEEDS} optimal from every cell "
        f"| {returns.mean():.3f} | {returns.min():.3f} |",
    )
    assert optimal.all(), f"{(~optimal.all(1)).sum()} seeds take a detour"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_mazes_never_seen_are_found_through_by_every_seed(figure: Callable[[str], None]) -> None:
    """Evaluations draw their own mazes: a grid of 5 x 5 cells has half a billion, and training sees some thirty thousand. The
    bounds allow for the 0.03 by which a mean of 100 episodes is off."""
    config = rljax.load_config("maze_ppo")
    returns, _ = trained(config)
    figure(f"| `maze_ppo` | {config.total_timesteps:,} | {SEEDS} seeds | {returns.mean():.3f} | {returns.min():.3f} |")
    assert (returns >= 0.85).all(), np.sort(returns)
    assert returns.mean() >= 0.9, np.sort(returns)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_breakout_is_learned_from_images(figure: Callable[[str], None]) -> None:
    """The uniform policy's mean return is 0.4; 300,000 steps of the preset's 2 million are enough to return the ball again and
    again."""
    config = rljax.load_config("breakout_pqn", total_timesteps=300_000, epsilon_steps=100_000, eval_every=None)
    agent = rljax.make_agent(config)

    def train(key: jax.Array) -> jax.Array:
        state = rljax.make_train(config)(key).state
        return jnp.mean(rljax.evaluate(agent, state, jax.random.fold_in(key, 1), num_episodes=100))

    returns = np.asarray(jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(config.seed), 2)))
    figure(f"| `breakout_pqn` | {config.total_timesteps:,} | 2 seeds | {returns.mean():.1f} | {returns.min():.1f} |")
    assert (returns >= 4.0).all(), returns


@pytest.mark.long
@pytest.mark.parametrize(
    ("env", "best"),
    [("MaskedBandit-v0", 4.0), ("MultiDiscreteMatch-v0", 1.0)],
)
def test_every_seed_solves_a_task_whose_heads_have_their_last_action_masked(env: str, best: float) -> None:
    """The mask is needed and the best return is known: a masked action that leaked in would be seen as a lower return."""
    config = rljax.PPOConfig(
        env=env,
        total_timesteps=40_000,
        num_envs=16,
        num_steps=16,
        num_minibatches=2,
        learning_rate=3e-3,
        network={"hidden": [32]},
    )
    returns, _ = trained(config)
    assert (returns >= best - 1e-3).all(), np.sort(returns)
