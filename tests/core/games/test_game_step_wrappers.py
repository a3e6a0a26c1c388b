"""Wrappers of games that change what a step does."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.environments.step_wrappers import EndOnNaNState
from rljax.core.games.game_step_wrappers import GameEndOnNaN
from rljax.core.games.game_wrappers import Step, WrappedGame
from rljax.envs import make_env

KEY = jax.random.key(0)


class Fails(WrappedGame):
    """A game whose rewards, observations and results are NaN when a player takes action 8."""

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Step:
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        nan = jnp.where(jnp.any(action == 8), jnp.nan, 0.0)
        info = {**info, "result": jnp.ones(2) + nan}
        return jax.tree.map(lambda x: x + nan, obs), state, reward + 1 + nan, terminated, info


def test_a_game_that_fails_ends_as_a_draw() -> None:
    game, params = make_env("TicTacToe-v0")
    env = GameEndOnNaN(Fails(game))
    _, state = env.reset_env(KEY, params)
    obs, after, reward, terminated, info = env.step_env(KEY, state, jnp.array([0, 0]), params)
    assert not terminated
    np.testing.assert_array_equal(reward, [1, 1])
    np.testing.assert_array_equal(info["result"], [1, 1])
    obs, ended, reward, terminated, info = env.step_env(KEY, after, jnp.array([8, 8]), params)
    assert terminated
    np.testing.assert_array_equal(reward, [0, 0])
    np.testing.assert_array_equal(info["result"], [0, 0])
    assert info["metrics"]["ended_by_nan"] == 1
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(obs))
    jax.tree.map(np.testing.assert_array_equal, ended.env_state, after.env_state)


def test_initial_states_are_those_of_the_game() -> None:
    game, params = make_env("KuhnPoker-v0")
    states, probabilities = GameEndOnNaN(game).initial_states(params)
    expected, _ = game.initial_states(params)
    assert isinstance(states, EndOnNaNState)
    assert states.spoilt.shape == probabilities.shape
    jax.tree.map(np.testing.assert_array_equal, states.env_state, expected)


@pytest.mark.slow
def test_self_play_trains_with_end_on_nan() -> None:
    game, _ = make_env("TicTacToe-v0")
    config = rljax.SelfPlayConfig(env=Fails(game), total_timesteps=1024, num_envs=32, num_steps=8, end_on_nan=True)
    agent = rljax.make_agent(config)
    state = agent.init(KEY)
    for _ in range(2):
        state, _ = jax.jit(agent.step)(state)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))
