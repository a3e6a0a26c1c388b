"""Turns: streams and advantages of games, in which a seat moves now and then.

A transition runs from a seat's move to its next one, and the rewards in between belong to it; discounts count moves, not steps.
E games are S streams of P seats each: one stream per game where seats take turns, one per seat where all move at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.collect.games.rollout import GameSteps
from rljax.collect.returns import gae, upgo
from rljax.collect.scans import short_scan
from rljax.collect.streams import Streams, of_seat
from rljax.core.environments.environment import tree_where
from rljax.moved import moved_names


class Transitions(NamedTuple):
    """Steps of seats joined with their next steps, arrays `[T, S]`; 0 and False where no seat moves.

    Attributes:
        reward: sum of the seat's rewards, f32.
        next_value: value of its next step, 0 if the game ended before, f32.
        terminated: whether the game ended before it, bool.
        known: whether the next step, or the end, is known, bool; only then may the step be learned from.
    """

    reward: jax.Array
    next_value: jax.Array
    terminated: jax.Array
    known: jax.Array


class TurnAdvantages(NamedTuple):
    """Each f32 or bool `[T, ..., P]`, of the steps where a player moves; 0 and False elsewhere.

    Attributes:
        gae: generalised advantages.
        upgo: advantages of upgoing returns.
        known: whether the outcome of the move is known; only then may it be learned from.
    """

    gae: jax.Array
    upgo: jax.Array
    known: jax.Array


class SeatStreams(NamedTuple):
    """Streams of games with the values f32 `[T, S]`, or `[T, S, K]`, of each step and of what it led to.

    `streams.own` says which steps the learner took whose outcome is known.
    """

    streams: Streams
    value: jax.Array
    next_value: jax.Array


def transitions(
    reward: jax.Array, value: jax.Array, moves: jax.Array, done: jax.Array, last_value: jax.Array, last_moves: jax.Array
) -> Transitions:
    """Join each step with the next one of its seat.

    Args:
        reward: f32 `[T, S, P]`.
        value: value for the seat that moves, f32 `[T, S]`.
        moves: seat that moves, at most one, bool `[T, S, P]`.
        done: whether the step ended the game, bool `[T, S]`.
        last_value: value for the seat that moves after the last step, f32 `[S]`.
        last_moves: seat that moves after the last step, bool `[S, P]`.
    """

    def backward(ahead: Transitions, now: tuple[jax.Array, ...]) -> tuple[Transitions, Transitions]:
        reward_t, value_t, moves_t, done_t = now
        over = jnp.broadcast_to(done_t[..., None], moves_t.shape)
        zeros, yes = jnp.zeros_like(reward_t), jnp.ones_like(over)
        ahead = tree_where(over, Transitions(zeros, zeros, yes, yes), ahead)
        ahead = ahead._replace(reward=ahead.reward + reward_t)
        of_mover = of_seat(ahead, moves_t)
        moved = Transitions(zeros, jnp.broadcast_to(value_t[..., None], zeros.shape), ~yes, yes)
        return tree_where(moves_t, moved, ahead), of_mover

    none = jnp.zeros_like(reward[0])
    last = Transitions(none, jnp.where(last_moves, last_value[..., None], 0.0), jnp.zeros_like(last_moves), last_moves)
    return short_scan(backward, last, (reward, value, moves, done), reverse=True)[1]


def stream_transitions(
    reward: jax.Array, value: jax.Array, moves: jax.Array, done: jax.Array, last_value: jax.Array, last_moves: jax.Array
) -> tuple[Transitions, jax.Array]:
    """Join the steps of games, one stream for each value of a step.

    Args:
        reward: f32 `[T, ..., P]`.
        value: value for the player that moves, f32 `[T, ..., 1]`, or values for all players, f32 `[T, ..., P]`.
        moves: players that move, bool `[T, ..., P]`.
        done: whether the step ended the game, bool `[T, ...]`.
        last_value: value after the last step, f32 `[..., 1]` or `[..., P]`.
        last_moves: players that move after the last step, bool `[..., P]`.

    Returns:
        The transitions `[T, S]`, and who moves in each stream, bool `[T, S, seats]`.
    """
    length, streams = value.shape[0], value[0].size
    seat = moves.reshape(length, streams, -1)
    ended = jnp.broadcast_to(done[..., None], value.shape).reshape(length, streams)
    found = transitions(
        reward.reshape(seat.shape),
        value.reshape(length, streams),
        seat,
        ended,
        last_value.reshape(streams),
        last_moves.reshape(streams, -1),
    )
    return found, seat


def seat_streams(
    steps: GameSteps,
    value: jax.Array,
    log_prob: jax.Array,
    last_value: jax.Array,
    last_moves: jax.Array,
    turn_gap: int,
    ends: jax.Array | None = None,
) -> SeatStreams:
    """Return the streams of E games, with the values of what each step led to.

    Steps in the last `turn_gap` ones are not known: of these, only moves that ended the game have a known outcome, and to learn
    from them alone would favour moves that end games.

    Args:
        steps: `[T, E, ...]`, of Q acting players each; the rewards of K value heads are `[T, E, P, K]`.
        value: values for the acting players, f32 `[T, E, Q]`, or `[T, E, Q, K]` of K value heads.
        log_prob: log-probabilities of their actions, f32 `[T, E, Q]`.
        last_value: values for the acting players after the last step, f32 `[E, Q]`, or `[E, Q, K]`.
        last_moves: players that move after the last step, bool `[E, P]`.
        turn_gap: largest number of steps of others between two moves of a player.
        ends: whether a step ends the stream of a value head's rewards, bool `[T, E, K]`; None: where it ended the game.
    """
    length, several = len(value), steps.reward.ndim > steps.moves.ndim
    ends = steps.done if ends is None else ends
    if not several:
        following, seat = stream_transitions(steps.reward, value, steps.moves, ends, last_value, last_moves)
        known = following.known
    else:
        of_heads = jax.vmap(stream_transitions, (-1, -1, None, -1, -1, None), (-1, None))
        following, seat = of_heads(steps.reward, value, steps.moves, ends, last_value, last_moves)
        known = jnp.all(following.known, axis=-1)
    known &= (jnp.arange(length) < length - turn_gap)[:, None]
    by_stream = lambda tree: jax.tree.map(lambda x: x.reshape(length, -1, *x.shape[3:]), tree)  # noqa: E731
    streams = Streams(
        obs=by_stream(steps.obs),
        action=by_stream(steps.action),
        mask=by_stream(steps.mask),
        reward=following.reward,
        terminated=following.terminated,
        truncated=jnp.zeros_like(following.terminated),
        log_prob=by_stream(log_prob),
        own=by_stream(steps.mine) & known,
        seat=seat,
    )
    if steps.carry is not None:
        streams = streams._replace(begins=by_stream(game_starts(steps)), carry=seat_carry(steps.carry, value.shape[2]))
    return SeatStreams(streams, by_stream(value), following.next_value)


def game_starts(steps: GameSteps) -> jax.Array:
    """Return at which steps a game begins, bool `[T, E, Q]`; the first step is left to the carry before the rollout."""
    begins = jnp.concatenate([jnp.zeros_like(steps.done[:1]), steps.done[:-1]])
    return jnp.broadcast_to(begins[..., None], steps.mine.shape)


def seat_carry(carry: Any, acting: int) -> Any:
    """Return the memory of the seats of each stream, `[S, seats, ...]`, of games `[E, P, ...]` with `acting` players a step."""
    return jax.tree.map(lambda x: x.reshape(len(x) * acting, -1, *x.shape[2:]), carry)


class LastStep(NamedTuple):
    """The step after the last one of a rollout: the acting players' observations `[E, Q, ...]` and legal actions bool
    `[E, Q, A]`, and who moves, bool `[E, P]`.
    """

    obs: Any
    mask: jax.Array | None
    moves: jax.Array


def with_last_step(streams: Streams, steps: GameSteps, last: LastStep) -> Streams:
    """Return streams `[T + 1, S, ...]` with the step after the last one, for its value, and with `follows`.

    Args:
        streams: `[T, S, ...]` from `seat_streams`.
        steps: the steps that they were made of.
        last: what comes after them; observations normalised as those of the streams.
    """
    length = len(steps.done)
    index = jnp.broadcast_to(jnp.arange(length, dtype=jnp.float32)[:, None, None], steps.mine.shape)
    end = jnp.full(index.shape[1:], float(length))
    # Streams whose rewards end with a game have no next value there, whatever follows; that of a bonus goes on in the next game.
    goes_on = jnp.zeros_like(steps.done)
    following, _ = stream_transitions(jnp.zeros(steps.moves.shape), index, steps.moves, goes_on, end, last.moves)
    follows = jnp.append(following.next_value, end.reshape(1, -1), axis=0).astype(jnp.int32)

    def extended(tree: Any, after: Any) -> Any:
        return jax.tree.map(lambda x, y: jnp.concatenate([x, y.reshape(1, *x.shape[1:]).astype(x.dtype)]), tree, after)

    nothing = jax.tree.map(lambda x: jnp.zeros_like(x[0]), streams._replace(carry=None))
    tail = nothing._replace(obs=last.obs, seat=last.moves)
    if last.mask is not None:
        tail = tail._replace(mask=last.mask)
    if streams.begins is not None:
        tail = tail._replace(begins=jnp.broadcast_to(steps.done[-1][:, None], steps.mine.shape[1:]))
    return extended(streams._replace(carry=None), tail)._replace(carry=streams.carry, follows=follows)


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
    """Return the advantages of players who move now and then (generalised advantage estimation, Schulman et al., 2016, over their
    transitions; upgoing returns, Vinyals et al., 2019), in the shape of `value`.

    The first six arguments are those of `stream_transitions`. Moves in the last `turn_gap` steps count as not known, as in
    `seat_streams`.

    Args:
        gamma: discount per move.
        gae_lambda: trace decay per move.
        turn_gap: largest number of steps of others between two moves of a player.
    """
    following, seat = stream_transitions(reward, value, moves, done, last_value, last_moves)
    known = following.known & (jnp.arange(len(value)) < len(value) - turn_gap)[:, None]
    flat = value.reshape(known.shape)
    after = (following.reward, flat, following.next_value, following.terminated, jnp.zeros_like(following.terminated))
    seat = seat & known[..., None]
    found = TurnAdvantages(gae(*after, gamma, gae_lambda, seat), upgo(*after, gamma, seat) - flat, known)
    shaped: TurnAdvantages = jax.tree.map(lambda x: x.reshape(value.shape), found)
    return shaped


__getattr__ = moved_names(__name__)
