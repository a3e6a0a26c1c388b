"""Rollouts of games.

Q is the number of players seen at a step: all P where they move at once, 1 (whoever moves) where they take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.core import FrozenDict

from rljax.collect.rollout import EnvironmentNoise, fresh_episodes, metrics_of, steps_without_action
from rljax.core.environment import step_or_restart
from rljax.core.game import Game
from rljax.moved import moved_names


class Playing(NamedTuple):
    """E games under way.

    Attributes:
        game: states of the games, `[E, ...]`.
        returns: returns of the players so far, f32 `[E, P]`.
        length: number of steps so far, i32 `[E]`.
        team: team of the learner, i32 `[E]`.
        lane: which of the learner's two opponents the game began with, i32 `[E]`.
    """

    game: Any
    returns: jax.Array
    length: jax.Array
    team: jax.Array
    lane: jax.Array


class GameSteps(NamedTuple):
    """T steps of E games, arrays `[T, E, ...]`.

    Attributes:
        obs: observations of the acting players, `[T, E, Q, ...]`.
        mask: legal actions of the acting players, bool `[T, E, Q, A]`.
        action: actions of the acting players, i32 `[T, E, Q]`.
        mine: whether the learner took the action, bool `[T, E, Q]`.
        moves: players whose actions count, bool `[T, E, P]`.
        reward: rewards of all players, f32 `[T, E, P]`.
        done: whether the step ended the game, bool `[T, E]`.
        returns: returns of the game so far, f32 `[T, E, P]`.
        length: number of steps of the game so far, i32 `[T, E]`.
        team: team of the learner, i32 `[T, E]`.
        lane: opponent that the game began with, i32 `[T, E]`.
        metrics: metrics of `info["metrics"]`, f32 `[T, E]` each.
    """

    obs: Any
    mask: jax.Array
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


class GameNoise(NamedTuple):
    """Random numbers of T steps of E games: for actions, teams and lanes of games that begin (i32 `[T, E]`), and environments."""

    action: jax.Array
    team: jax.Array
    lane: jax.Array
    env: EnvironmentNoise


def acting_view(game: Game, state: Any, obs: Any, params: Any) -> tuple[Any, jax.Array, jax.Array, jax.Array]:
    """`(obs [E, Q, ...], mask [E, Q, A], player i32 [E, Q], moves bool [E, P])`: those whose actions the next step takes."""
    moves = jax.vmap(game.to_move)(state)
    mask = jax.vmap(lambda s: game.action_mask(s, params))(state)
    if game.turn_gap == 0:
        return obs, mask, jnp.broadcast_to(jnp.arange(game.num_players), moves.shape), moves
    # By a sum over the players, which fuses where a gather would not.
    chosen = jax.tree.map(lambda x: _of_mover(x, moves), obs)
    return chosen, _of_mover(mask, moves), jnp.argmax(moves, axis=-1)[:, None], moves


def moves_without_action(mask: jax.Array, moves: jax.Array, nvec: tuple[int, ...]) -> jax.Array:
    """Count how often some head of a player to move had no legal action, f32 []; `mask [..., Q, A]`, `moves [..., P]`."""
    looked = moves if mask.shape[-2] == moves.shape[-1] else jnp.any(moves, axis=-1, keepdims=True)
    return steps_without_action(mask, nvec=nvec, relevant=looked)


def _of_mover(x: jax.Array, moves: jax.Array) -> jax.Array:
    """The mover's part of `[E, P, ...]`: `[E, 1, ...]`."""
    which = moves.reshape(moves.shape + (1,) * (x.ndim - 2))
    if x.dtype == jnp.bool_:
        return jnp.any(x & which, axis=1, keepdims=True)
    return jnp.sum(jnp.where(which, x, 0), axis=1, keepdims=True, dtype=x.dtype)


def game_rollout(
    game: Game,
    params: Any,
    act: Callable[[Any, jax.Array, jax.Array, jax.Array, jax.Array], jax.Array],
    playing: Playing,
    obs: Any,
    noise: GameNoise,
    only_mine: bool,
) -> tuple[Playing, Any, GameSteps]:
    """Step E games T times.

    Args:
        game: the game, unbatched.
        params: its parameters.
        act: `(obs [E, Q, ...], mask, mine, lane [E], one step's noise) -> action i32 [E, Q]`.
        playing: where the games are.
        obs: observations of all players, `[E, P, ...]`.
        noise: `[T, E, ...]`.
        only_mine: whether the learner plays all players.
    """
    teams = jnp.asarray(game.teams)

    def step(loop: tuple[Playing, Any], noise_t: GameNoise) -> tuple[tuple[Playing, Any], GameSteps]:
        now, obs = loop
        seen, mask, player, moves = acting_view(game, now.game, obs, params)
        mine = jnp.ones(player.shape, bool) if only_mine else teams[player] == now.team[:, None]
        action = act(seen, mask, mine, now.lane, noise_t.action)
        joint = action if game.turn_gap == 0 else jnp.repeat(action, game.num_players, axis=1)
        next_obs, state, reward, terminated, truncated, info = jax.vmap(
            lambda k, f, s, a: step_or_restart(game, k, f, s, a, params)
        )(noise_t.env.step_key, fresh_episodes(game, params, noise_t.env), now.game, joint)
        done = terminated | truncated
        returns, length = now.returns + reward, now.length + 1
        happened = GameSteps(seen, mask, action, mine, moves, reward, done, returns, length, now.team, now.lane, metrics_of(info))
        after = Playing(
            game=state,
            returns=jnp.where(done[:, None], 0.0, returns),
            length=jnp.where(done, 0, length),
            team=jnp.where(done, noise_t.team, now.team),
            lane=jnp.where(done, noise_t.lane, now.lane),
        )
        return (after, next_obs), happened

    (playing, obs), steps = jax.lax.scan(step, (playing, obs), noise)
    return playing, obs, steps


__getattr__ = moved_names(__name__)
