"""Matches: whole games of two players against each other, all at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.collect.rollout import initial_environments
from rljax.core.agent import Agent
from rljax.core.environment import tree_where
from rljax.core.errors import ConfigError
from rljax.core.game import Game
from rljax.core.versus import Player


class Match(NamedTuple):
    """G games. `result` f32 `[G]`: the return of the first player's side; NaN where a game did not end. `seat` i32 `[G]`: the
    team it played; `length` i32 `[G]` steps."""

    result: jax.Array
    seat: jax.Array
    length: jax.Array


def policy_player(agent: Agent, state: Any, deterministic: bool = False) -> Player:
    """The policy of an agent as a player: its samples, or its mode."""

    def play(key: jax.Array, _: Any, obs: Any, mask: jax.Array) -> jax.Array:
        action: jax.Array = agent.act(state, obs, None, key, deterministic, mask)[0]
        return action

    return play


def play_match(
    game: Game, params: Any, first: Player, second: Player, key: jax.Array, num_games: int, max_steps: int = 10_000
) -> Match:
    """`num_games` whole games, the teams taken in turn. Pure: works under jit and vmap.

    Args:
        game: the game.
        params: of it.
        first: plays all of one team.
        second: plays all others.
        key: random key.
        num_games: how many.
        max_steps: give up on a game after this many steps.
    """
    if num_games < 1:
        raise ConfigError(f"num_games = {num_games}: expected a whole number > 0")
    teams = np.array(game.teams)
    seat = jnp.arange(num_games) % (teams.max() + 1)
    reset_key, loop_key = jax.random.split(key)
    state, obs = initial_environments(game, params, reset_key, num_games)

    def one_step(key: jax.Array, state: Any, obs: Any, seat: jax.Array) -> tuple[Any, ...]:
        first_key, second_key, step_key = jax.random.split(key, 3)
        mask = game.action_mask(state, params)
        own = jnp.asarray(teams) == seat
        action = jnp.where(own, first(first_key, state, obs, mask), second(second_key, state, obs, mask))
        obs, state, reward, over, _ = game.step_env(step_key, state, action, params)
        return state, obs, reward[jnp.argmax(own)], over | game.is_truncated(state, params)

    def going(loop: tuple[Any, ...]) -> jax.Array:
        time, _, _, _, _, over = loop
        return (time < max_steps) & ~jnp.all(over)

    def step(loop: tuple[Any, ...]) -> tuple[Any, ...]:
        time, state, obs, total, length, over = loop
        keys = jax.random.split(jax.random.fold_in(loop_key, time), num_games)
        after = jax.vmap(one_step)(keys, state, obs, seat)
        # A state that is over is never entered: players need not know what to do there, and a search might look for ever.
        state, obs = jax.vmap(tree_where)(over | after[3], (state, obs), after[:2])
        total = jnp.where(over, total, total + after[2])
        return time + 1, state, obs, total, length + ~over, over | after[3]

    start = (
        jnp.zeros((), jnp.int32),
        state,
        obs,
        jnp.zeros(num_games),
        jnp.zeros(num_games, jnp.int32),
        jnp.zeros(num_games, bool),
    )
    _, _, _, total, length, over = jax.lax.while_loop(going, step, start)
    return Match(jnp.where(over, total, jnp.nan), seat, length)
