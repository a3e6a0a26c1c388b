"""Matches of players of MicroRTS-v0, policies say, against the bots of the Java engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.collect.games.matches import Games
from rljax.core.environments.environment import tree_where
from rljax.core.games.game import Game
from rljax.core.games.versus import Player, seat_player
from rljax.envs.microrts.game import MicroRTS
from rljax.envs.microrts.java.engine import start_java
from rljax.envs.microrts.rules.engine import is_idle
from rljax.envs.microrts.rules.state import Orders, RTSState
from rljax.run.microrts.games import JavaGames, play_java_games


def microrts_of(game: Game) -> MicroRTS | None:
    """Return the game of MicroRTS that a game is, with or without wrappers around it, or None."""
    inner: Any = game
    while not isinstance(inner, MicroRTS) and hasattr(inner, "env"):
        inner = inner.env
    return inner if isinstance(inner, MicroRTS) else None


class JavaProgram(NamedTuple):
    """Compiled player of G games at once: `begin(agent_state, states) -> carry` and `decide(agent_state, key, states, carry) ->
    (orders, carry)`; states and orders have leaves `[G, ...]`."""

    begin: Callable[[Any, RTSState], Any]
    decide: Callable[[Any, jax.Array, RTSState, Any], tuple[Orders, Any]]


def java_program(game: MicroRTS, params: Any, make: Callable[[Any], Player]) -> JavaProgram:
    """Return the compiled player of games in the Java engine.

    Args:
        game: the game, which gives the observations and what its actions order.
        params: its parameters.
        make: function from the state of an agent to the player.
    """

    def begin(agent: Any, states: RTSState) -> Any:
        return jax.vmap(lambda s: seat_player(make(agent), game, params).initial(s, game.observe(s, params)))(states)

    def decide(agent: Any, key: jax.Array, states: RTSState, carry: Any) -> tuple[Orders, Any]:
        seated = seat_player(make(agent), game, params)

        def act(key: jax.Array, s: RTSState, carry: Any) -> tuple[Any, Any]:
            return seated.act(key, s, game.observe(s, params), game.action_mask(s, params), carry)

        def next_unit(s: RTSState, memory: tuple[jax.Array, Any]) -> tuple[Any, tuple[jax.Array, Any]]:
            key, now = jax.random.split(memory[0])
            action, carry = act(now, s, memory[1])
            return action, (key, carry)

        def one(key: jax.Array, s: RTSState, carry: Any) -> tuple[Orders, Any]:
            if game.actions == "units":
                orders, (_, after) = game.by_unit.plan(next_unit, s, (key, carry))
            else:
                action, after = act(key, s, carry)
                orders = game.given(s, action)
            # The Java engine asks in each cycle, our game only in those in which a unit is idle.
            return orders, tree_where(jnp.any(is_idle(s)), after, carry)

        return jax.vmap(one)(jax.random.split(key, len(states.time)), states, carry)

    return JavaProgram(jax.jit(begin), jax.jit(decide))


def play_java_match(
    game: MicroRTS,
    params: Any,
    program: JavaProgram,
    state: Any,
    bot: str,
    key: jax.Array,
    num_games: int,
    opening_moves: int = 0,
    say: Callable[[str], None] = print,
) -> Games:
    """Play whole games against a bot of the Java engine, in the Java engine; the player decides for all of them at once.

    Args:
        game: the game, which gives the map; with its `fog`, the bot sees only cells within the sight of its units.
        params: its parameters; `max_cycles` is the limit of a game.
        program: the player, from `java_program` with the same game and parameters.
        state: state of the player's agent.
        bot: name of the bot, as in `Java.bot`.
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
    carry, cycle = None, 0

    def decide(states: RTSState) -> tuple[Orders, Orders]:
        nonlocal carry, cycle
        if cycle == 0:
            carry = program.begin(state, states)
        orders, carry = program.decide(state, jax.random.fold_in(key, cycle), states, carry)
        cycle += 1
        orders = jax.tree.map(np.asarray, orders)
        return orders, orders

    limit = int(params.max_cycles)
    played = play_java_games(
        java,
        game.map_name,
        bot,
        decide,
        num_games,
        max_cycles=limit,
        opening_cycles=opening_moves,
        seed=seed,
        waits=game.waits,
        fog=game.fog,
    )
    return games_of(played)


def games_of(played: JavaGames) -> Games:
    """Return the results of games against a Java bot as those of a match of two entrants, the player and the bot."""
    result = np.where(played.winner < 0, 0.0, np.where(played.winner == played.seat, 1.0, -1.0)).astype(np.float32)
    place = np.stack([1 + (result < 0), 1 + (result > 0)], axis=-1).astype(np.int32)
    seating = np.stack([played.seat, 1 - played.seat], axis=-1)
    results: Any = np.stack([result, -result], axis=-1)
    return Games(results, place, seating, played.length, played.new)  # type: ignore[arg-type]
