"""Opponent models: windows against a plain list, divergence by beta, a linear probe on z, and what a policy does with it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.opponents import OpponentModel, OpponentView, against_scripted, train_opponent_model
from rljax.collect.rollout import initial_environments
from rljax.core.environment import step_and_reset
from rljax.core.errors import ConfigError
from rljax.envs import HabitRPS
from rljax.envs.habit_rps import SIGNS

LATENT = 4


def habits() -> Any:
    """HabitRPS-v0 against one of its scripted players, drawn for each game."""
    game = HabitRPS()
    return against_scripted(game, game.default_params, SIGNS)


def habit_model(key: jax.Array, beta: float = 1.0) -> tuple[OpponentModel, Any]:
    """Train a model of the habits on the signs that an opponent showed; returns it and its metrics."""
    env = habits()
    return train_opponent_model(env, env.default_params, key, observed=lambda obs: obs[3:6], window=20, latent=LATENT, beta=beta)


def habit_policy(env: Any) -> rljax.PPOConfig:
    """Return the configuration of a policy without memory, against the habits."""
    return rljax.PPOConfig(
        env=env, num_envs=64, num_steps=40, total_timesteps=150_000, learning_rate=2e-3, network={"hidden": [32]}
    )


def play_habits(act: Any, env: Any, key: jax.Array, games: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Play whole games by `act`, `(key, obs [N, F]) -> action [N]`.

    Returns:
        Returns f32 `[N]`, and before the last round observations f32 `[N, F]` and the number of the opponent, i32 `[N]`.
    """
    params = env.default_params
    state, obs = initial_environments(env, params, key, games)

    def step(loop: Any, key: jax.Array) -> Any:
        state, obs = loop
        keys = jax.random.split(key, (games, 2))
        action = act(key, obs)
        after, now, reward, *_ = jax.vmap(lambda k, s, a: _step(env, k, s, a, params))(keys, state, action)
        return (now, after), (reward, obs, state.env_state.carry[:, 0])

    _, (reward, seen, opponent) = jax.lax.scan(step, (state, obs), jax.random.split(key, params.num_rounds))
    return jnp.sum(reward, axis=0), seen[-1], opponent[-1]


def _step(env: Any, keys: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
    return step_and_reset(env, keys[0], keys[1], state, action, params)


def habit_return(agent: Any, state: Any, key: jax.Array, how: str, games: int = 256) -> jax.Array:
    """Return the greedy mean return of a policy that sees z, "z = 0" or the "z of another game" in its place, f32 []."""

    def act(key: jax.Array, obs: jax.Array) -> jax.Array:
        own, z = obs[:, :-LATENT], obs[:, -LATENT:]
        z = {"z": z, "z = 0": jnp.zeros_like(z), "z of another game": jnp.roll(z, 1, axis=0)}[how]
        action: jax.Array = agent.act(state, jnp.concatenate([own, z], axis=-1), None, key, True)[0]
        return action

    return jnp.mean(play_habits(act, agent.config.env, jax.random.fold_in(key, 3), games)[0])


def probe(model: OpponentModel, key: jax.Array, games: int = 1024) -> float:
    """Return the share of games in which a linear regression on z, fitted to the first half of them, names the opponent."""

    def act(key: jax.Array, _obs: jax.Array) -> jax.Array:
        return jax.random.randint(key, (games,), 0, len(SIGNS))

    _, obs, opponent = jax.jit(lambda key: play_habits(act, OpponentView(habits(), model), key, games))(key)
    z, named = np.asarray(obs[:, -LATENT:]), np.asarray(opponent) - 1
    x, half = np.column_stack([z, np.ones(games)]), games // 2
    weights = np.linalg.lstsq(x[:half], np.eye(len(SIGNS))[named[:half]], rcond=None)[0]
    return float(np.mean((x[half:] @ weights).argmax(1) == named[half:]))


class Echo:
    """Stands for a network: its embedding is its input."""

    def apply(self, _params: Any, x: jax.Array, method: str) -> jax.Array:
        assert method == "embedding"
        return x


def test_the_window_has_the_last_observed_steps_of_the_episode() -> None:
    env = habits()
    params = env.default_params.replace(num_rounds=5)
    model: Any = OpponentModel(Echo(), None, 3, lambda obs: obs[3:6])  # type: ignore[arg-type]
    view = OpponentView(env, model)
    step = jax.jit(view.step)
    obs, state = view.reset(jax.random.key(0), params)
    rows = [[*np.asarray(obs[3:6]), 1.0]]
    for time in range(12):
        padded = [[0.0] * 4] * 3 + rows
        np.testing.assert_allclose(obs[7:].reshape(3, 4), padded[-3:])
        obs, state, _, terminated, _, info = step(jax.random.key(time), state, jnp.int32(time % 3), params)
        final = info["final_observation"]
        np.testing.assert_allclose(final[7:].reshape(3, 4)[-1], [*np.asarray(final[3:6]), 1.0])
        rows = [*([] if terminated else rows), [*np.asarray(obs[3:6]), 1.0]]
        assert bool(terminated) == (time % 5 == 4)
    assert view.observation_space(params).shape == obs.shape


def test_sizes_that_do_not_fit_are_one_line() -> None:
    env = habits()
    with pytest.raises(ConfigError, match="window = 0, expected an integer of at least 1"):
        train_opponent_model(env, env.default_params, jax.random.key(0), window=0)
    with pytest.raises(ConfigError, match="num_minibatches = 7: must divide num_envs \\* num_steps = 4096"):
        train_opponent_model(env, env.default_params, jax.random.key(0), num_minibatches=7)


@pytest.mark.slow
def test_a_probe_names_the_opponent_and_a_policy_wins_more_with_z_than_without_or_with_anothers() -> None:
    models = {beta: habit_model(jax.random.key(0), beta) for beta in (1.0, 4.0)}
    kl = {beta: float(metrics["train/kl"][-1]) for beta, (_, metrics) in models.items()}
    assert kl[1.0] > 3 * kl[4.0]
    model, metrics = models[1.0]
    assert metrics["train/loss"][-1] < metrics["train/loss"][0]
    assert probe(model, jax.random.key(1)) > 0.8  # 1 / 3 by chance
    agent = rljax.make_agent(habit_policy(OpponentView(habits(), model)))
    result = jax.jit(jax.vmap(rljax.make_train(agent)))(jax.random.split(jax.random.key(2), 2))
    keys = jax.random.split(jax.random.key(3), 2)
    found = {}
    for how in ("z", "z = 0", "z of another game"):
        found[how] = jax.jit(jax.vmap(lambda s, k, how=how: habit_return(agent, s, k, how)))(result.state, keys)
    # Who remembers only the last sign wins 3 of 20; who knows the habit from the first round, 8.
    assert (found["z"] > 4.2).all()
    assert (found["z"] > found["z = 0"] + 2.0).all()
    assert (found["z"] > found["z of another game"] + 2.0).all()
    assert (
        agent.act(jax.tree.map(lambda x: x[0], result.state), jnp.zeros(7 + LATENT), None, jax.random.key(0), True)[0].shape == ()
    )
