"""Matches: whole games of two players against each other, all at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.collect.distinct import fingerprint, first_occurrences
from rljax.collect.rollout import initial_environments
from rljax.core.agent import Agent
from rljax.core.environment import plays_greedily, strong, tree_where
from rljax.core.errors import ConfigError
from rljax.core.game import Game
from rljax.core.versus import Player, random_player
from rljax.envs import resolve_env


class Match(NamedTuple):
    """Results of G games. `result` f32 `[G]` is the return of the first player's side, NaN where a game did not end; `seat` i32
    `[G]` is the team that it played; `length` i32 `[G]` is the number of steps; `new` bool `[G]` is False where an earlier game
    had the same seats, moves and observations.
    """

    result: jax.Array
    seat: jax.Array
    length: jax.Array
    new: jax.Array


def policy_player(agent: Agent, state: Any, deterministic: bool | None = None) -> Player:
    """Return the policy of an agent as a player, greedy or sampling; by default as in `rljax.evaluate`."""
    greedy = plays_greedily(resolve_env(agent.config.env, agent.config.env_params)[0], deterministic)

    def play(key: jax.Array, _: Any, obs: Any, mask: jax.Array) -> jax.Array:
        action: jax.Array = agent.act(state, obs, None, key, greedy, mask)[0]
        return action

    return play


class _Playing(NamedTuple):
    """Games under way; `total` is what each player has got, and `print` a fingerprint of the game up to here."""

    state: Any
    obs: Any
    total: jax.Array
    length: jax.Array
    print: jax.Array
    over: jax.Array


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
    if num_games < 1:
        raise ConfigError(f"num_games = {num_games}: expected a whole number > 0")
    if opening_moves < 0:
        raise ConfigError(f"opening_moves = {opening_moves}: expected 0 (none), or more")
    teams = np.array(game.teams)
    sides = int(teams.max()) + 1
    seat = jnp.arange(num_games) % sides
    reset_key, loop_key = jax.random.split(key)
    num_starts = -(-num_games // sides) if opening_moves else num_games
    state, obs = initial_environments(game, params, reset_key, num_starts)

    def begun(state: Any, obs: Any) -> _Playing:
        zero = jnp.zeros((), jnp.int32)
        return _Playing(state, obs, jnp.zeros(game.num_players), zero, fingerprint(obs), jnp.zeros((), bool))

    def moved(key: jax.Array, now: _Playing, action: jax.Array) -> _Playing:
        obs, state, reward, over, _ = game.step_env(key, now.state, action, params)
        moves = game.to_move(now.state)
        print_ = fingerprint(jnp.where(moves, action, 0), obs, reward, after=now.print)
        over |= game.is_truncated(state, params)
        # Players are never asked to act in a finished game: they need not handle it, and a search might not end.
        state, obs = tree_where(over, (now.state, now.obs), strong((state, obs)))
        return _Playing(state, obs, now.total + reward, now.length + 1, print_, over)

    def opened(key: jax.Array, now: _Playing) -> _Playing:
        act_key, step_key = jax.random.split(key)
        action = random_player(act_key, now.state, now.obs, game.action_mask(now.state, params))
        after = moved(step_key, now, action)
        return tree_where(after.over, now, after)

    def played(key: jax.Array, now: _Playing, seat: jax.Array) -> _Playing:
        first_key, second_key, step_key = jax.random.split(key, 3)
        mask = game.action_mask(now.state, params)
        own = jnp.asarray(teams) == seat
        ours, theirs = first(first_key, now.state, now.obs, mask), second(second_key, now.state, now.obs, mask)
        return tree_where(now.over, now, moved(step_key, now, jnp.where(own, ours, theirs)))

    def going(loop: tuple[jax.Array, _Playing]) -> jax.Array:
        return (loop[0] < max_steps) & ~jnp.all(loop[1].over)

    def step(loop: tuple[jax.Array, _Playing]) -> tuple[jax.Array, _Playing]:
        time, now = loop
        keys = jax.random.split(jax.random.fold_in(loop_key, time), num_games)
        return time + 1, jax.vmap(played)(keys, now, seat)

    now = jax.vmap(begun)(state, obs)
    if opening_moves:
        keys = jax.random.split(jax.random.fold_in(loop_key, max_steps), (opening_moves, num_starts))
        now = jax.lax.scan(lambda now, keys: (jax.vmap(opened)(keys, now), None), now, keys)[0]
        now = jax.tree.map(lambda x: jnp.repeat(x, sides, axis=0)[:num_games], now)
    _, now = jax.lax.while_loop(going, step, (jnp.zeros((), jnp.int32), now))
    total = now.total[jnp.arange(num_games), jnp.argmax(jnp.asarray(teams) == seat[:, None], axis=-1)]
    prints = jax.vmap(lambda game, seat: fingerprint(seat, after=game))(now.print, seat)
    return Match(jnp.where(now.over, total, jnp.nan), seat, now.length, first_occurrences(prints))
