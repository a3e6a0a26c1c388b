"""Matches: whole games of two or more players against each other, all at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.collect.distinct import fingerprint, first_occurrences
from rljax.collect.environments import make_game
from rljax.collect.resets import initial_environments
from rljax.core.agent import Agent, check_agent
from rljax.core.environments.environment import plays_greedily, strong, tree_where
from rljax.core.errors import ConfigError, check_whole
from rljax.core.games.game import RESULT, Game, lead
from rljax.core.games.game_wrappers import player_view
from rljax.core.games.versus import Player, Remembering, Seated, random_player, seat_player, where_players

MAX_SEATINGS = 24
"""Largest number of orders in which entrants are seated: all orders of up to four."""


class Games(NamedTuple):
    """Results of G games of N entrants.

    Attributes:
        result: result of each entrant, f32 `[G, N]`: the mean over its team's players of `info["result"]` in the last step, or of
            their returns if the game does not have it. NaN where a game did not end.
        place: place of each entrant by its result, i32 `[G, N]`, counted from 1; equal results share the better place. 0 where a
            game did not end.
        seating: entrant that played each team, i32 `[G, N]`.
        length: number of steps, i32 `[G]`.
        new: False where an earlier game had the same seating, moves and observations, bool `[G]`.
    """

    result: jax.Array
    place: jax.Array
    seating: jax.Array
    length: jax.Array
    new: jax.Array

    def counts(self, team: int) -> tuple[int, int, int]:
        """Return how many games of two teams entrant 0 won, drew and lost as this team."""
        place = np.asarray(self.place)[(np.asarray(self.seating)[:, team] == 0) & np.isfinite(self.result[:, 0])]
        ahead = place[:, 1] - place[:, 0]
        return int((ahead > 0).sum()), int((ahead == 0).sum()), int((ahead < 0).sum())


class Match(NamedTuple):
    """Results of G games. `result` f32 `[G]` is that of the first player's side, NaN where a game did not end; `seat` i32
    `[G]` is the team that it played; `length` i32 `[G]` is the number of steps; `new` bool `[G]` is False where an earlier game
    had the same seats, moves and observations.
    """

    result: jax.Array
    seat: jax.Array
    length: jax.Array
    new: jax.Array


def policy_player(agent: Agent, state: Any, deterministic: bool | None = None) -> Player:
    """Return the policy of an agent as a player of its game, greedy or sampling; by default as in `rljax.evaluate`.

    It takes the observations that the game itself gives, and changes them as its configuration says. Frames that it stacks are a
    part of its carry, beside its own memory.

    Raises:
        ConfigError: it is no agent.
    """
    check_agent(agent)
    game, _ = make_game(agent.config)
    greedy = plays_greedily(game, deterministic)
    return acting_player(game, lambda obs, carry, key, mask: agent.act(state, obs, carry, key, greedy, mask))


def acting_player(game: Game, act: Callable[[Any, Any, jax.Array, Any], tuple[Any, Any]]) -> Player:
    """Return a player that acts by what `game` shows of the observations of the game that all of its wrappers are around.

    Args:
        game: the game.
        act: `(obs, carry, key, mask) -> (action, carry)`.
    """

    def play(key: jax.Array, _: Any, obs: Any, mask: Any, carry: Any) -> tuple[Any, Any]:
        frames, memory = (None, None) if carry is None else carry
        seen, frames = player_view(game, obs, frames)
        action, memory = act(seen, memory, key, mask)
        return action, (frames, memory)

    return Remembering(play)


class _Playing(NamedTuple):
    """Games under way; `total` is what each player has got, `result` how the game stands for it, `print` a fingerprint of the
    game up to here, and `carries` is the memory of each different entrant at all seats.
    """

    state: Any
    obs: Any
    total: jax.Array
    result: jax.Array
    length: jax.Array
    print: jax.Array
    over: jax.Array
    carries: tuple[Any, ...]


def play_match(
    game: Game,
    params: Any,
    first: Player,
    second: Player,
    key: jax.Array,
    num_games: int,
    max_steps: int = 10_000,
    opening_moves: int = 0,
) -> Match:
    """Play `num_games` whole games, with the first player on each team in turn. Pure: works under jit and vmap.

    Deterministic players repeat the same game, one for each seat. With `opening_moves`, each game begins with random legal moves,
    and each opening is played once from every seat, as in matches between chess programs.

    Args:
        game: the game.
        params: parameters of the game.
        first: plays all of one team.
        second: plays all others.
        key: random key.
        num_games: how many.
        max_steps: give up on a game after this many steps.
        opening_moves: number of random moves at the start of a game; a move that would end the game is skipped. Their rewards
            count.
    """
    sides = game.num_teams
    entrants = (first, *(second,) * (sides - 1))
    # In game i the first player has team i; which of the others' teams is which makes no difference.
    seatings = [tuple((team - seat) % sides for team in range(sides)) for seat in range(sides)]
    found = play_games(game, params, entrants, key, num_games, max_steps, opening_moves, seatings)
    seat = jnp.arange(num_games, dtype=jnp.int32) % sides
    return Match(found.result[:, 0], seat, found.length, found.new)


def seatings_of(count: int) -> list[tuple[int, ...]]:
    """Return the orders in which to seat entrants on teams: each begins with the entrant of team 0.

    These are the rotations of the entrants' own order, then those of other orders; all of them for up to four entrants. So in
    any `count` games in a row that begin at a multiple of `count`, everybody plays every team once.
    """
    orders = itertools.islice(itertools.permutations(range(1, count)), max(1, MAX_SEATINGS // count))
    rings = [(0, *order) for order in orders]
    return [tuple(ring[(team - turn) % count] for team in range(count)) for ring in rings for turn in range(count)]


def joint_action(
    seated: Sequence[Seated],
    choosing: jax.Array,
    keys: Sequence[jax.Array],
    state: Any,
    obs: Any,
    mask: Any,
    carries: Sequence[Any],
) -> tuple[Any, tuple[Any, ...]]:
    """Let entrants choose the actions of their own players; return them, leaves `[P, ...]`, and the memory of each entrant.

    Args:
        seated: the entrants.
        choosing: number of the entrant of each player, i32 `[P]`.
        keys: a random key for each entrant.
        state: state of the game.
        obs: observations of all players, `[P, ...]`.
        mask: their legal actions.
        carries: memory of each entrant at all seats.
    """
    action, after = None, []
    for number, (player, key, carry) in enumerate(zip(seated, keys, carries, strict=True)):
        chosen, carry = player.act(key, state, obs, mask, carry)
        action = chosen if action is None else where_players(choosing == number, chosen, action)
        after.append(carry)
    return action, tuple(after)


def play_games(
    game: Game,
    params: Any,
    entrants: Sequence[Player],
    key: jax.Array,
    num_games: int,
    max_steps: int = 10_000,
    opening_moves: int = 0,
    seatings: Sequence[Sequence[int]] | None = None,
) -> Games:
    """Play `num_games` whole games of one entrant for each team. Pure: works under jit and vmap.

    Args:
        game: the game.
        params: its parameters.
        entrants: N players, one for each team; the same object may be there several times.
        key: random key.
        num_games: number of games.
        max_steps: give up on a game after this many steps.
        opening_moves: as in `play_match`; each opening is played with every seating.
        seatings: for each seating, the entrant that plays each team; game i has number i modulo their number. By default
            `seatings_of(N)`.

    Raises:
        ConfigError: the number of entrants is not that of the teams, or a number is not allowed.
    """
    check_whole(1, num_games=num_games)
    check_whole(0, opening_moves=opening_moves)
    if len(entrants) != game.num_teams:
        raise ConfigError(f"entrants: {len(entrants)}, expected one for each of the {game.num_teams} teams of {game.name}")
    table = np.array(seatings_of(len(entrants)) if seatings is None else seatings, np.int32)
    seating = jnp.asarray(table)[jnp.arange(num_games) % len(table)]
    teams = np.array(game.teams)
    # An entrant that sits on several teams chooses for all of them at once.
    different = list({id(player): player for player in entrants}.values())
    which = np.array([next(i for i, player in enumerate(different) if player is entrant) for entrant in entrants])
    seated = [seat_player(player, game, params) for player in different]
    reset_key, loop_key = jax.random.split(key)
    num_starts = -(-num_games // len(table)) if opening_moves else num_games
    state, obs = initial_environments(game, params, reset_key, num_starts)

    def begun(state: Any, obs: Any) -> _Playing:
        zero = jnp.zeros((), jnp.int32)
        carries = tuple(player.initial(state, obs) for player in seated)
        even = jnp.zeros(game.num_players)
        return _Playing(state, obs, even, even, zero, fingerprint(obs), jnp.zeros((), bool), carries)

    def moved(key: jax.Array, now: _Playing, action: Any, carries: tuple[Any, ...]) -> _Playing:
        obs, state, reward, over, info = game.step_env(key, now.state, action, params)
        told = where_players(game.to_move(now.state), action, jax.tree.map(jnp.zeros_like, action))
        print_ = fingerprint(told, obs, reward, after=now.print)
        over |= game.is_truncated(state, params)
        # Players are never asked to act in a finished game: they need not handle it, and a search might not end.
        state, obs = tree_where(over, (now.state, now.obs), strong((state, obs)))
        total = now.total + reward
        return _Playing(state, obs, total, info.get(RESULT, total), now.length + 1, print_, over, carries)

    chance = seat_player(random_player, game, params)

    def opened(key: jax.Array, now: _Playing) -> _Playing:
        act_key, step_key = jax.random.split(key)
        mask = game.action_mask(now.state, params)
        action, _ = chance.act(act_key, now.state, now.obs, mask, None)
        # Nobody remembers a random opening: it was not its own choice. Everybody sees the position that it led to.
        after = moved(step_key, now, action, now.carries)
        return tree_where(after.over, now, after)

    def played(key: jax.Array, now: _Playing, seating: jax.Array) -> _Playing:
        *keys, step_key = jax.random.split(key, len(seated) + 1)
        mask = game.action_mask(now.state, params)
        choosing = jnp.asarray(which)[seating][teams]
        action, carries = joint_action(seated, choosing, keys, now.state, now.obs, mask, now.carries)
        return tree_where(now.over, now, moved(step_key, now, action, carries))

    def going(loop: tuple[jax.Array, _Playing]) -> jax.Array:
        return (loop[0] < max_steps) & ~jnp.all(loop[1].over)

    def step(loop: tuple[jax.Array, _Playing]) -> tuple[jax.Array, _Playing]:
        time, now = loop
        keys = jax.random.split(jax.random.fold_in(loop_key, time), num_games)
        return time + 1, jax.vmap(played)(keys, now, seating)

    now = jax.vmap(begun)(state, obs)
    if opening_moves:
        keys = jax.random.split(jax.random.fold_in(loop_key, max_steps), (opening_moves, num_starts))
        now = jax.lax.scan(lambda now, keys: (jax.vmap(opened)(keys, now), None), now, keys)[0]
        now = jax.tree.map(lambda x: jnp.repeat(x, len(table), axis=0)[:num_games], now)
    _, now = jax.lax.while_loop(going, step, (jnp.zeros((), jnp.int32), now))
    member = teams == np.arange(game.num_teams)[:, None]
    of_team = jnp.sum(jnp.where(member, now.result[:, None], 0.0), axis=-1) / member.sum(1)
    # Entrant n played the team where the seating has n.
    result = jnp.take_along_axis(of_team, jnp.argsort(seating, axis=1), axis=1)
    place = 1 + jnp.sum(lead(result[:, None, :], result[:, :, None]) > 0, axis=-1, dtype=jnp.int32)
    over = now.over[:, None]
    prints = jax.vmap(lambda game, who: fingerprint(who, after=game))(now.print, seating)
    return Games(jnp.where(over, result, jnp.nan), jnp.where(over, place, 0), seating, now.length, first_occurrences(prints))
