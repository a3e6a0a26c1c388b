"""Rollouts of games.

Q is the number of players whose observations a step takes: all P where they move at once, 1 (whoever moves) where they take
turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.core import FrozenDict

from rljax.collect.resets import EnvironmentNoise, fresh_episodes, fresh_pool
from rljax.collect.rollout import metrics_of, reset_carry, steps_without_action
from rljax.collect.scans import packed_scan
from rljax.collect.streams import of_seat, with_seat
from rljax.core.environments.environment import step_or_restart
from rljax.core.games.game import RESULT, Game
from rljax.core.games.versus import advance_carry
from rljax.moved import moved_names
from rljax.nn.modules.classes import argmax_of, sum_of


class Playing(NamedTuple):
    """E games under way.

    Attributes:
        game: states of the games, `[E, ...]`.
        returns: returns of the players so far, f32 `[E, P]`.
        length: number of steps so far, i32 `[E]`.
        team: team of the learner, i32 `[E]`.
        lane: opponent that the game began with, i32 `[E]`; a learner has two, 0 and 1, one for new games and one for older ones.
        scripted: memories of scripted players by name, `[E, P, ...]` each, zeros where a game begins and in games against others.
    """

    game: Any
    returns: jax.Array
    length: jax.Array
    team: jax.Array
    lane: jax.Array
    scripted: Any = None


class GameSteps(NamedTuple):
    """T steps of E games, arrays `[T, E, ...]`.

    Attributes:
        obs: observations of the acting players, `[T, E, Q, ...]`.
        mask: legal actions of the acting players, bool `[T, E, Q, A]`; None without masks.
        action: actions of the acting players, `[T, E, Q, ...]`.
        mine: whether the learner took the action, bool `[T, E, Q]`.
        moves: players whose actions count, bool `[T, E, P]`.
        reward: rewards of all players, f32 `[T, E, P]`.
        done: whether the step ended the game, bool `[T, E]`.
        returns: returns of the game so far, f32 `[T, E, P]`.
        length: number of steps of the game so far, i32 `[T, E]`.
        team: team of the learner, i32 `[T, E]`.
        lane: opponent that the game began with, i32 `[T, E]`.
        metrics: metrics of `info["metrics"]`, f32 `[T, E]` each.
        extras: entries of `info` that the rollout was asked to keep; `final_observation` has what all players observed after the
            step, before any reset. Also `result`, if the game has it.
        carry: memory of all seats before the first step, `[E, P, ...]`; None without memory.
    """

    obs: Any
    mask: jax.Array | None
    action: jax.Array
    mine: jax.Array
    moves: jax.Array
    reward: jax.Array
    done: jax.Array
    returns: jax.Array
    length: jax.Array
    team: jax.Array
    lane: jax.Array
    metrics: Mapping[str, jax.Array] = FrozenDict()
    extras: Mapping[str, Any] = FrozenDict()
    carry: Any = None

    @property
    def result(self) -> jax.Array:
        """Return what decides games that end, f32 `[T, E, P]`: the game's own results, or else returns."""
        return self.extras.get(RESULT, self.returns)


class GameNoise(NamedTuple):
    """Random numbers of T steps of E games: for actions, teams and lanes of games that begin (i32 `[T, E]`), and environments."""

    action: jax.Array
    team: jax.Array
    lane: jax.Array
    env: EnvironmentNoise


Decide = Callable[[Any, Any, jax.Array, jax.Array, jax.Array, jax.Array, Any], tuple[Any, Any]]
"""`(obs [E, Q, ...], mask [E, Q, A] or None, mine [E, Q], team [E], lane [E], one step's noise, carry [E, Q, ...] or None) ->
(action [E, Q, ...], carry)`: the actions of all acting players, and their memory after it.
"""


def acting_view(game: Game, state: Any, obs: Any, params: Any) -> tuple[Any, Any, jax.Array, jax.Array]:
    """`(obs [E, Q, ...], mask [E, Q, A] or None, player i32 [E, Q], moves bool [E, P])` of those whose actions come next."""
    moves = jax.vmap(game.to_move)(state)
    mask = jax.vmap(lambda s: game.action_mask(s, params))(state)
    if game.turn_gap == 0:
        return obs, mask, jnp.broadcast_to(jnp.arange(game.num_players), moves.shape), moves
    return *of_acting(game, (obs, mask), moves), argmax_of(moves)[:, None], moves


def of_acting(game: Game, tree: Any, moves: jax.Array) -> Any:
    """Return the acting players' part of leaves `[E, P, ...]`: `[E, Q, ...]`; `moves`, bool `[E, P]`, are those to move."""
    if game.turn_gap == 0:
        return tree
    return jax.tree.map(lambda x: x[:, None], of_seat(tree, moves))


def moves_without_action(mask: jax.Array | None, moves: jax.Array, nvec: tuple[int, ...], action: jax.Array) -> jax.Array | None:
    """Count how often some head of a player to move had no legal action, f32 []; None without masks.

    Args:
        mask: legal actions, bool `[..., Q, A]`, or `[..., Q, A, A]` for pairs.
        moves: players to move, bool `[..., P]`.
        nvec: number of actions of each head.
        action: actions taken, i32 `[..., Q]`, or `[..., Q, heads]`.
    """
    if mask is None:
        return None
    acting = action.shape[moves.ndim - 1]
    looked = moves if acting == moves.shape[-1] else sum_of(moves)[..., None]
    return steps_without_action(mask, action if action.ndim > looked.ndim else None, nvec=nvec, relevant=looked)


def _remembered(game: Game, carry: Any, after: Any, moves: jax.Array) -> Any:
    """Return the memory of all seats `[E, P, ...]`: that after the step, `[E, Q, ...]`, of those who moved."""
    if game.turn_gap:
        return with_seat(carry, moves, jax.tree.map(lambda x: x[:, 0], after))
    return advance_carry(moves, carry, after)


def game_rollout(
    game: Game,
    params: Any,
    act: Decide,
    to_env: Callable[[jax.Array], Any],
    playing: Playing,
    obs: Any,
    noise: GameNoise,
    only_mine: bool,
    carry: Any = None,
    keep: tuple[str, ...] = (),
    scripted: Callable[[Any, jax.Array, jax.Array, Any, Any], tuple[Any, Any]] | None = None,
) -> tuple[Playing, Any, Any, GameSteps]:
    """Step E games T times.

    Args:
        game: the game, unbatched.
        params: its parameters.
        act: chooses the actions.
        to_env: `action -> action` as the game takes it; the steps keep the one before.
        playing: where the games are.
        obs: observations of all players, `[E, P, ...]`.
        noise: `[T, E, ...]`.
        only_mine: whether the learner plays all players.
        carry: memory of all seats, `[E, P, ...]`, zeros where a game begins; None without memory. A seat's memory advances when
            it moves.
        keep: entries of `info` that `GameSteps.extras` shall hold.
        scripted: `(states [E, ...], keys [E], own bool [E, P], action [E, P, ...], memories) -> (action, memories)` replaces the
            actions of players who are not the learner's by those of scripted players; None: without them.

    Returns:
        `(playing, obs, carry, steps)`.
    """
    teams = jnp.asarray(game.teams)
    pool = fresh_pool(game, params, noise.env)

    def step(loop: tuple[Playing, Any, Any], noise_t: GameNoise) -> tuple[tuple[Playing, Any, Any], GameSteps]:
        now, obs, carry = loop
        view, mask, player, moves = acting_view(game, now.game, obs, params)
        mine = jnp.ones(player.shape, bool) if only_mine else teams[player] == now.team[:, None]
        action, after = act(view, mask, mine, now.team, now.lane, noise_t.action, of_acting(game, carry, moves))
        joint = to_env(action if game.turn_gap == 0 else jnp.repeat(action, game.num_players, axis=1))
        step_keys, memories = noise_t.env.step_key, now.scripted
        if scripted is not None:
            both = jax.vmap(jax.random.split)(step_keys)  # Nobody sees the chance of the step.
            step_keys = both[:, 0]
            joint, memories = scripted(now.game, both[:, 1], teams == now.team[:, None], joint, memories)
        next_obs, state, reward, terminated, truncated, info = jax.vmap(
            lambda k, f, s, a: step_or_restart(game, k, f, s, a, params)
        )(step_keys, fresh_episodes(game, params, noise_t.env, pool), now.game, joint)
        done = terminated | truncated
        returns, length = now.returns + reward, now.length + 1
        told = (RESULT,) if RESULT in info else ()
        happened = GameSteps(
            view,
            mask,
            action,
            mine,
            moves,
            reward,
            done,
            returns,
            length,
            now.team,
            now.lane,
            metrics_of(info),
            FrozenDict({name: info[name] for name in (*keep, *told)}),
        )
        playing = Playing(
            game=state,
            returns=jnp.where(done[:, None], 0.0, returns),
            length=jnp.where(done, 0, length),
            team=jnp.where(done, noise_t.team, now.team),
            lane=jnp.where(done, noise_t.lane, now.lane),
            scripted=reset_carry(memories, done),
        )
        return (playing, next_obs, reset_carry(_remembered(game, carry, after, moves), done)), happened

    before = carry
    (playing, obs, carry), steps = packed_scan(step, (playing, obs, carry), noise)
    return playing, obs, carry, steps._replace(carry=before)


__getattr__ = moved_names(__name__)
