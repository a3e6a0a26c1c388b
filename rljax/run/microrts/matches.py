"""Matches of players of MicroRTS-v0, policies say, against the bots of the Java engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from rljax.collect.games.matches import Games
from rljax.core.game import Game
from rljax.core.versus import Player, seat_player
from rljax.envs.microrts.game import MicroRTS
from rljax.envs.microrts.state import Orders, RTSState
from rljax.run.microrts.games import JavaGames, play_java_games
from rljax.run.microrts.java import start_java


def microrts_of(game: Game) -> MicroRTS | None:
    """Return the game of MicroRTS that a game is, with or without wrappers around it, or None."""
    inner: Any = game
    while not isinstance(inner, MicroRTS) and hasattr(inner, "env"):
        inner = inner.env
    return inner if isinstance(inner, MicroRTS) else None


def play_java_match(
    game: MicroRTS,
    params: Any,
    make: Callable[[Any], Player],
    state: Any,
    bot: str,
    key: jax.Array,
    num_games: int,
    opening_moves: int = 0,
    say: Callable[[str], None] = print,
) -> Games:
    """Play whole games against a bot of the Java engine, in the Java engine; the player decides for all of them at once.

    Args:
        game: the game, which gives the map, observations and actions.
        params: its parameters; `max_cycles` is the limit of a game.
        make: function from the state of an agent to the player.
        state: state of the agent.
        bot: name of the bot.
        key: random key.
        num_games: number of games, from both seats in turn.
        opening_moves: number of cycles at the start in which both players' orders are random.
        say: called with a line of text before the Java engine is fetched.

    Returns:
        Results of which entrant 0 is the player, and entrant 1 the bot.
    """
    java = start_java(say)
    key, seed_key = jax.random.split(key)
    seed = int(jax.random.randint(seed_key, (), 0, np.iinfo(np.int32).max))

    def observed(states: RTSState) -> tuple[Any, Any]:
        return game.observe(states, params), game.action_mask(states, params)

    def first(agent: Any, states: RTSState) -> Any:
        return jax.vmap(lambda s: seat_player(make(agent), game, params).initial(s, observed(s)[0]))(states)

    def act(agent: Any, key: jax.Array, states: RTSState, carry: Any) -> tuple[Orders, Any]:
        def one(key: jax.Array, s: RTSState, carry: Any) -> tuple[Orders, Any]:
            action, carry = seat_player(make(agent), game, params).act(key, s, *observed(s), carry)
            return game.orders(s, action), carry

        return jax.vmap(one)(jax.random.split(key, num_games), states, carry)

    begin, decide_all = jax.jit(first), jax.jit(act)
    carry: Any = None
    cycle = 0

    def decide(states: RTSState) -> tuple[Orders, Orders]:
        nonlocal carry, cycle
        if cycle == 0:
            carry = begin(state, states)
        orders, carry = decide_all(state, jax.random.fold_in(key, cycle), states, carry)
        cycle += 1
        orders = jax.tree.map(np.asarray, orders)
        return orders, orders

    limit = int(params.max_cycles)
    return games_of(
        play_java_games(java, game.map_name, bot, decide, num_games, max_cycles=limit, opening_cycles=opening_moves, seed=seed)
    )


def games_of(played: JavaGames) -> Games:
    """Return the results of games against a Java bot as those of a match of two entrants, the player and the bot."""
    result = np.where(played.winner < 0, 0.0, np.where(played.winner == played.seat, 1.0, -1.0)).astype(np.float32)
    place = np.stack([1 + (result < 0), 1 + (result > 0)], axis=-1).astype(np.int32)
    seating = np.stack([played.seat, 1 - played.seat], axis=-1)
    returns: Any = np.stack([result, -result], axis=-1)
    return Games(returns, place, seating, played.length, played.new)  # type: ignore[arg-type]
