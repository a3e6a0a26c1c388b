"""Wrappers of games: what the game is stays, what they change is what they say."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.collect.environments import make_game
from rljax.core.check import check_environment
from rljax.core.games.game import Game
from rljax.core.games.game_wrappers import (
    CentralCritic,
    FlattenPlayers,
    FreeForAll,
    GameFrameStack,
    GameTimeLimit,
    PlayerGroups,
    player_view,
    stack_of,
    without_added,
)
from rljax.core.games.versus import Versus, advance_carry, random_actions
from rljax.envs import KuhnPoker, make_env
from tests.collect.games.parade import Parade
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
    again, _ = player_view(outer, game.observe(state.env_state, params))
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


@pytest.mark.parametrize(
    "game",
    [Parade((0, 1, 2), turns=True), pytest.param(Parade((0, 1), drops=True), marks=pytest.mark.slow)],
    ids=["in turns", "some at once"],
)
def test_players_observe_what_they_saw_at_their_own_last_moves(game: Parade) -> None:
    """As plain Python remembers it; so do players of matches, who keep the frames themselves."""
    count, params = 3, game.default_params.replace(steps=12)
    flat = FlattenPlayers(game)
    stacked = GameFrameStack(flat, count)

    @jax.jit
    def look(state: Any, frames: Any) -> Any:
        seen, after = player_view(stacked, game.observe(state.env_state, params), frames)
        moves = stacked.to_move(state)
        return flat.observe(state.env_state, params), seen, moves, advance_carry(moves, frames, after)

    @jax.jit
    def play(key: jax.Array, state: Any) -> Any:
        return stacked.step_env(key, state, random_actions(stacked, params, key, stacked.action_mask(state, params)), params)

    obs, state = jax.jit(stacked.reset_env)(KEY, params)
    frames, over = jax.tree.map(jnp.zeros_like, state.frames), False
    saw: list[list[np.ndarray]] = [[] for _ in range(game.num_players)]
    while not over:
        now, seen, moves, frames = jax.tree.map(np.asarray, look(state, frames))
        for player, before in enumerate(saw):
            expected = [*[(before or now[player : player + 1])[0]] * count, *before, now[player]][-count:]
            np.testing.assert_array_equal(obs[player], np.concatenate(expected))
        np.testing.assert_array_equal(seen, obs)
        np.testing.assert_array_equal(stacked.observe(state, params), obs)
        for player in np.flatnonzero(moves):
            saw[player].append(now[player])
        obs, state, _, over, _ = play(jax.random.key(sum(map(len, saw))), state)
    assert max(map(len, saw)) >= count
    assert obs.shape[1:] == stacked.observation_space(params).shape


@pytest.mark.slow
def test_frames_are_in_all_states_of_which_searches_and_trees_are_made() -> None:
    check_environment(GameFrameStack(KuhnPoker(), 3))  # among others `initial_states` and `observe`
    game = GameFrameStack(FlattenPlayers(Race()), 2)
    params = game.default_params
    _, state = game.reset_env(KEY, params)
    action = jnp.zeros(2, jnp.int32)
    outcomes = jnp.arange(len(game.chance(state, action, params)))
    possible = jax.vmap(lambda outcome: game.step_outcome(state, action, outcome, params)[:2])(outcomes)
    found = game.step_env(jax.random.key(5), state, action, params)[:2]
    same = [jnp.all(jnp.reshape(a == b, (len(outcomes), -1)), 1) for a, b in zip(*map(jax.tree.leaves, (possible, found)))]  # noqa: B905
    assert bool(jnp.any(jnp.all(jnp.stack(same), 0)))


def test_frames_are_stacked_under_the_views_of_critics_and_groups() -> None:
    fields: Any = {"flatten_observations": True, "central_critic": True, "weights": "player"}
    game, params = make_game(rljax.SelfPlayConfig(env="TicTacToe-v0", frame_stack=2, **fields))
    assert [type(layer).__name__ for layer in layers(game)] == [
        "PlayerGroups", "CentralCritic", "GameFrameStack", "FlattenPlayers", "TicTacToe"
    ]  # fmt: skip
    obs, state = game.reset_env(KEY, params)
    assert obs["obs"]["obs"].shape == (2, 36)
    assert obs["obs"]["privileged"].shape == (2, 36)
    jax.tree.map(np.testing.assert_array_equal, obs, game.observe(state, params))
    assert stack_of(make_game(rljax.SelfPlayConfig(env="TicTacToe-v0", frame_stack=1))[0]) is None


@pytest.mark.parametrize("game", [Parade((0, 1, 0)), FlattenPlayers(Parade((0, 1, 0)))], ids=["dictionary", "array"])
def test_what_critics_and_groups_see_more_can_be_taken_off(game: Game) -> None:
    params = game.default_params
    own, _ = game.reset_env(KEY, params)
    for outer in (game, CentralCritic(game), PlayerGroups(game, (0, 1, 0)), PlayerGroups(CentralCritic(game), (0, 1, 0))):
        obs, _ = outer.reset_env(KEY, params)
        jax.tree.map(np.testing.assert_array_equal, without_added(outer, params, obs), own)


@pytest.mark.slow
def test_in_a_free_for_all_somebody_else_plays_the_mates_of_an_agent() -> None:
    """It gets its own rewards, also where it sees more than the game shows."""
    game = FreeForAll(wrapped(Parade((0, 0))))
    params = game.default_params
    assert (game.num_teams, Versus(game).team_size) == (2, 1)
    env = Versus(game, lambda key, state, obs, mask: jnp.full(2, 2) + 0 * obs["seat"])
    obs, state = env.reset_env(KEY, params)
    assert obs["obs"]["privileged"].shape == (3,)
    obs, state, reward, *_ = env.step_env(KEY, state, jnp.asarray(3), params)
    assert float(reward) == 3.0 * (1 + int(state.team))
    np.testing.assert_array_equal(jnp.sort(state.obs["totals"][0]), [2.0, 3.0])


def layers(game: Any) -> list[Any]:
    return [game, *(layers(game.env) if hasattr(game, "env") else [])]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            Parade((0, 1)),
            "frame_stack: observations of Parade are Dict, expected arrays with an axis; flatten_observations makes",
        ),
        (
            "race:HiddenBit-v0",
            "frame_stack: observations of .* have a part that only the critic sees, expected arrays with an axis",
        ),
    ],
)
def test_observations_that_cannot_be_stacked_are_refused_in_one_line(env: Any, message: str) -> None:
    with pytest.raises(rljax.ConfigError, match=f"^{message}"):
        rljax.make_agent(rljax.SelfPlayConfig(env=env, frame_stack=2))
