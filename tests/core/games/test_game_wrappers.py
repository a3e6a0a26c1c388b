"""Wrappers of games: what the game is stays, what they change is what they say."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.core.check import check_environment
from rljax.core.games.game import Game
from rljax.core.games.game_wrappers import CentralCritic, FlattenPlayers, GameTimeLimit, PlayerGroups, player_view
from rljax.envs import make_env
from tests.planning.dice import Race

KEY = jax.random.key(0)


def wrapped(game: Game) -> Game:
    return PlayerGroups(CentralCritic(FlattenPlayers(GameTimeLimit(game, 3))), (0, 1))


@pytest.mark.slow
def test_a_wrapped_game_is_the_same_game() -> None:
    for name in ("Leduc-v0", "Territory-v0"):
        game, params = make_env({"Leduc-v0": "LeducPoker-v0"}.get(name, name))
        outer = GameTimeLimit(FlattenPlayers(game), 1000)
        for attribute in (
            "num_players",
            "teams",
            "num_teams",
            "roles",
            "turn_gap",
            "all_move",
            "hides_state",
            "opening_moves",
            "name",
        ):
            assert getattr(outer, attribute) == getattr(game, attribute), attribute
        (obs, state), (inner_obs, inner) = outer.reset_env(KEY, params), game.reset_env(KEY, params)
        for time in range(4):
            np.testing.assert_array_equal(outer.to_move(state), game.to_move(inner))
            mask = game.action_mask(inner, params)
            np.testing.assert_array_equal(outer.action_mask(state, params), mask)
            np.testing.assert_array_equal(obs, np.asarray(inner_obs).reshape(game.num_players, -1))
            action = jnp.argmax(mask, axis=-1)
            obs, state, reward, over, _ = outer.step_env(KEY, state, action, params)
            inner_obs, inner, expected, ended, _ = game.step_env(KEY, inner, action, params)
            np.testing.assert_array_equal(reward, expected)
            assert bool(over) == bool(ended)
            assert int(state.elapsed) == time + 1


def test_a_time_limit_ends_a_game() -> None:
    game, params = make_env("TicTacToe-v0")
    limited = GameTimeLimit(game, 3)
    _, state = limited.reset_env(KEY, params)
    ends = []
    for move in range(4):
        ends.append(bool(limited.is_truncated(state, params)))
        _, state, *_ = limited.step_env(KEY, state, jnp.full(2, move), params)
    assert ends == [False, False, False, True]


@pytest.mark.slow
def test_views_are_functions_of_what_the_players_observe() -> None:
    game, params = make_env("TicTacToe-v0")
    outer = wrapped(game)
    obs, state = outer.reset_env(KEY, params)
    again = player_view(outer, game.observe(state.env_state, params))
    jax.tree.map(np.testing.assert_array_equal, obs, again)
    jax.tree.map(np.testing.assert_array_equal, obs, outer.observe(state, params))
    shapes: Any = outer.observation_space(params).spaces
    assert shapes["obs"].spaces["privileged"].shape == obs["obs"]["privileged"].shape[1:]
    assert shapes["group"].shape == obs["group"].shape[1:]
    check_environment(outer, params)


def test_chance_is_that_of_the_game() -> None:
    game = Race()
    params = game.default_params
    outer = FlattenPlayers(GameTimeLimit(game, 100))
    _, state = outer.reset_env(KEY, params)
    action = jnp.zeros(2, jnp.int32)
    probabilities = game.chance(state.env_state, action, params)
    np.testing.assert_array_equal(outer.chance(state, action, params), probabilities)
    for outcome in range(len(probabilities)):
        found = outer.step_outcome(state, action, jnp.int32(outcome), params)
        expected = game.step_outcome(state.env_state, action, jnp.int32(outcome), params)
        jax.tree.map(np.testing.assert_array_equal, found[1].env_state, expected[1])
        np.testing.assert_array_equal(found[2], expected[2])
