"""Rollouts of games, and advantages of players who take turns.

Q is the number of players seen at a step: all P where they move at once, 1 (whoever moves) where they take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.core import FrozenDict

from rljax.collect.rollout import EnvironmentNoise, fresh_episodes, metrics_of, steps_without_action
from rljax.core.environment import step_or_restart, tree_where
from rljax.core.game import Game


class Playing(NamedTuple):
    """E games under way.

    Attributes:
        game: the states, `[E, ...]`.
        returns: of each player so far, f32 `[E, P]`.
        length: steps so far, i32 `[E]`.
        team: which one the learner plays, i32 `[E]`.
        lane: which of its two opponents the game began with, i32 `[E]`.
    """

    game: Any
    returns: jax.Array
    length: jax.Array
    team: jax.Array
    lane: jax.Array


class GameSteps(NamedTuple):
    """T steps of E games, arrays `[T, E, ...]`.

    Attributes:
        obs: what those who were looked at saw, `[T, E, Q, ...]`.
        mask: their legal actions, bool `[T, E, Q, A]`.
        action: i32 `[T, E, Q]`.
        mine: whether the learner played them, bool `[T, E, Q]`.
        moves: who moved, bool `[T, E, P]`.
        reward: f32 `[T, E, P]`.
        done: where the game was over, bool `[T, E]`.
        returns: of the game up to here, f32 `[T, E, P]`.
        length: of the game up to here, i32 `[T, E]`.
        team: the learner's, i32 `[T, E]`.
        lane: i32 `[T, E]`.
        metrics: the numbers of `info["metrics"]`, f32 `[T, E]` each.
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
        obs: what all players see there, `[E, P, ...]`.
        noise: `[T, E, ...]`.
        only_mine: whether all players are the learner.
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


class TurnAdvantages(NamedTuple):
    """Each f32 or bool `[T, ..., P]`, of the steps where a player moves; 0 and False elsewhere.

    Attributes:
        gae: generalised advantages.
        upgo: those of upgoing returns.
        known: whether what came of the move is known; only then may it be learned from.
    """

    gae: jax.Array
    upgo: jax.Array
    known: jax.Array


class _Ahead(NamedTuple):
    """Sums of each player, going backwards: the rewards since the step before its next move, and that move."""

    reward: jax.Array
    value: jax.Array
    gae: jax.Array
    upgoing: jax.Array
    known: jax.Array


def turn_advantages(
    reward: jax.Array,
    value: jax.Array,
    moves: jax.Array,
    done: jax.Array,
    last_value: jax.Array,
    last_moves: jax.Array,
    gamma: float | jax.Array,
    gae_lambda: float | jax.Array,
    turn_gap: int,
) -> TurnAdvantages:
    """Advantages of players who move now and then: a transition runs from a player's move to its next one, and the rewards in
    between belong to it (generalised advantage estimation, Schulman et al., 2016, over these; upgoing returns, Vinyals et al.,
    2019). The discount counts moves, not steps.

    Moves in the last `turn_gap` steps are not learned from, whatever came of them: those that ended the game are known and the
    others are not, so that to keep what is known would be to see the good ends only.

    Args:
        reward: f32 `[T, ..., P]`.
        value: of what a player saw when it moved, f32 `[T, ..., P]`; elsewhere it does not matter.
        moves: bool `[T, ..., P]`.
        done: where a game was over, bool `[T, ...]`.
        last_value: of what comes after the last step, f32 `[..., P]`.
        last_moves: who moves there, bool `[..., P]`.
        gamma: discount per move.
        gae_lambda: trace decay per move.
        turn_gap: steps of others between two moves of a player at most.
    """
    length = reward.shape[0]
    settled = jnp.arange(length) < length - turn_gap
    zeros = jnp.zeros_like(last_value)
    first = _Ahead(zeros, jnp.where(last_moves, last_value, 0.0), zeros, jnp.where(last_moves, last_value, 0.0), last_moves)

    def backward(ahead: _Ahead, now: tuple[jax.Array, ...]) -> tuple[_Ahead, TurnAdvantages]:
        reward_t, value_t, moves_t, done_t, settled_t = now
        over = jnp.broadcast_to(done_t[..., None], moves_t.shape)
        ahead = tree_where(over, _Ahead(zeros, zeros, zeros, zeros, jnp.ones_like(over)), ahead)
        total = ahead.reward + reward_t
        known = ahead.known & settled_t
        error = jnp.where(known, total + gamma * ahead.value - value_t, 0.0)
        gae = jnp.where(known, error + gamma * gae_lambda * ahead.gae, 0.0)
        upgoing = jnp.where(known, total + gamma * ahead.upgoing, value_t)
        # Before this move the return goes on with what came of it only where that was no worse than expected.
        moved = _Ahead(zeros, value_t, gae, jnp.where(error >= 0.0, upgoing, value_t), jnp.ones_like(over))
        result = TurnAdvantages(gae, upgoing - value_t, known)
        result = tree_where(moves_t, result, TurnAdvantages(zeros, zeros, jnp.zeros_like(over)))
        return tree_where(moves_t, moved, ahead._replace(reward=total)), result

    return jax.lax.scan(backward, first, (reward, value, moves, done, settled), reverse=True)[1]


def view_advantages(
    reward: jax.Array,
    value: jax.Array,
    moves: jax.Array,
    done: jax.Array,
    last_value: jax.Array,
    last_moves: jax.Array,
    gamma: float | jax.Array,
    gae_lambda: float | jax.Array,
    turn_gap: int,
) -> TurnAdvantages:
    """`turn_advantages` of the acting players: `value` and the results are `[T, E, Q]`, `last_value` is `[E, Q]`."""
    players = moves.shape
    value, last_value = jnp.broadcast_to(value, players), jnp.broadcast_to(last_value, players[1:])
    found = turn_advantages(reward, value, moves, done, last_value, last_moves, gamma, gae_lambda, turn_gap)
    # Where players take turns, that of the one who moved; all else is 0.
    return jax.tree.map(lambda x: jnp.sum(x, axis=-1, keepdims=True, dtype=x.dtype), found) if turn_gap else found
