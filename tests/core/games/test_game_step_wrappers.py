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
from rljax.run.players import check_one_game, played_game

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


def test_a_result_that_is_nan_for_one_player_is_a_draw() -> None:
    class Half(WrappedGame):
        def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Step:
            obs, state, reward, _, info = self.env.step_env(key, state, action, params)
            return obs, state, reward, jnp.any(action == 8), {**info, "result": jnp.array([jnp.nan, 1.0])}

    game, params = make_env("TicTacToe-v0")
    env = GameEndOnNaN(Half(game))
    _, state = env.reset_env(KEY, params)
    _, state, _, terminated, info = env.step_env(KEY, state, jnp.array([0, 0]), params)
    assert not terminated
    assert info["metrics"]["ended_by_nan"] == 0
    _, _, _, terminated, info = env.step_env(KEY, state, jnp.array([8, 8]), params)
    assert terminated
    assert info["metrics"]["ended_by_nan"] == 1
    np.testing.assert_array_equal(info["result"], [0, 0])


def test_initial_states_are_those_of_the_game() -> None:
    game, params = make_env("KuhnPoker-v0")
    states, probabilities = GameEndOnNaN(game).initial_states(params)
    expected, _ = game.initial_states(params)
    assert isinstance(states, EndOnNaNState)
    assert states.spoilt.shape == probabilities.shape
    jax.tree.map(np.testing.assert_array_equal, states.env_state, expected)


@pytest.mark.slow
@pytest.mark.parametrize("end_on_nan", [True, False])
def test_self_play_trains_where_games_fail_only_with_end_on_nan(end_on_nan: bool) -> None:
    game, _ = make_env("TicTacToe-v0")
    config = rljax.SelfPlayConfig(env=Fails(game), total_timesteps=1024, num_envs=32, num_steps=8, end_on_nan=end_on_nan)
    agent = rljax.make_agent(config)
    state, metrics = jax.jit(agent.step)(agent.init(KEY))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params)) == end_on_nan
    if end_on_nan:
        assert metrics["episode/count"] > 0


@pytest.mark.parametrize("kind", [rljax.LeagueConfig, rljax.AlphaZeroConfig])
def test_leagues_and_searches_take_end_on_nan(kind: Any) -> None:
    agent = rljax.make_agent(kind(env="TicTacToe-v0", end_on_nan=True))
    before = jax.eval_shape(agent.init, KEY)
    after, _ = jax.eval_shape(agent.step, before)
    assert jax.tree.structure(after) == jax.tree.structure(before)


def test_players_with_and_without_end_on_nan_meet() -> None:
    # Of objects, which are compared layer by layer: names alone would say that the game is the same.
    configs = [rljax.SelfPlayConfig(env=make_env("TicTacToe-v0")[0], end_on_nan=given) for given in (True, False)]
    for config, other in (configs, configs[::-1]):
        check_one_game("one", config, "other", played_game(other))
