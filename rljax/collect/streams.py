"""Streams: the experience that an update learns from, whether environments, games or data gave it."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from rljax.collect.rollout import Steps
from rljax.nn.modules.classes import sum_of

B = TypeVar("B")


class Streams(NamedTuple):
    """T steps of S streams, arrays `[T, S, ...]`.

    A stream is an environment, one seat of a game in which all move at once, or a game in which P seats take turns.

    Attributes:
        obs: observations as the networks take them, normalised where the configuration asks for it.
        action: actions taken.
        mask: legal actions, bool `[T, S, A]`; None without masks.
        reward: rewards from a step to the next one of the same seat, f32 `[T, S]`, or `[T, S, K]` for K value heads.
        terminated: whether the episode terminated before that next step, bool, shape of `reward`.
        truncated: whether it was truncated before that next step, bool, shape of `reward`.
        log_prob: log-probabilities that the acting policy gave the actions, f32 `[T, S]`.
        next_obs: observations that the steps led to, before any reset; None if the next values are known without them.
        begins: where an episode begins, bool `[T, S]`; False in the first step, which `carry` precedes. None without memory.
        carry: memory of the acting policy before the first step, `[S, ...]`; None without memory.
        own: whether the learner took the step and may learn from it, bool `[T, S]`; None: all steps.
        seat: seat that took the step, one-hot bool `[T, S, P]`; all False if the step is nobody's. None: one seat in each stream.
            Each seat has its own memory: `carry` is then `[S, P, ...]`. Traces of advantages follow own steps only.
        follows: index of the next step of the same seat, i32 `[T, S]`, in place of `next_obs`. The last step is then there for
            its value only. None: see `next_obs`.
        teacher: what a teacher's policy would have done, `[T, S, ...]` (see `rljax.algos.common.teacher`); None without one.
    """

    obs: Any
    action: jax.Array
    mask: jax.Array | None
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    log_prob: jax.Array
    next_obs: Any = None
    begins: jax.Array | None = None
    carry: Any = None
    own: jax.Array | None = None
    seat: jax.Array | None = None
    follows: jax.Array | None = None
    teacher: Any = None


def of_seat(tree: Any, seat: jax.Array | None) -> Any:
    """Return the part `[N, ...]` of the seats that take the step, of leaves `[N, P, ...]`; the tree itself without seats.

    Args:
        tree: leaves `[N, P, ...]`.
        seat: one-hot bool `[N, P]`; 0 or False is returned where it is False everywhere. None: without seats.
    """
    if seat is None:
        return tree

    def part(x: jax.Array) -> jax.Array:
        # By a sum over the seats, which fuses where a gather would not. Of flags it says whether any is True.
        which = seat.reshape(seat.shape + (1,) * (x.ndim - seat.ndim))
        return sum_of(jnp.where(which, x, jnp.zeros((), x.dtype)), axis=seat.ndim - 1)

    return jax.tree.map(part, tree)


def with_seat(tree: Any, seat: jax.Array | None, now: Any) -> Any:
    """Undo `of_seat`: return leaves `[N, P, ...]` of `tree` with those of `now`, `[N, ...]`, for the seats that take the step."""
    if seat is None:
        return now

    def put(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.where(seat.reshape(seat.shape + (1,) * (x.ndim - seat.ndim)), jnp.expand_dims(y, seat.ndim - 1), x)

    return jax.tree.map(put, tree, now)


def traced_seat(streams: Streams) -> jax.Array | None:
    """Return the seats whose steps traces of advantages follow, bool `[T, S, P]`: those of own steps. None without seats."""
    if streams.seat is None or streams.own is None:
        return streams.seat
    return streams.seat & streams.own[..., None]


def own_mean(x: jax.Array, own: jax.Array | None, axis: tuple[int, ...] | None = None) -> jax.Array:
    """Return the mean of `x` over the steps that count, bool `own` of a shape that broadcasts; 0 if there are none. None: all."""
    if own is None:
        return jnp.mean(x, axis=axis)
    count = jnp.sum(jnp.broadcast_to(own, x.shape), axis=axis, dtype=jnp.float32)
    return jnp.sum(jnp.where(own, x, 0.0), axis=axis) / jnp.maximum(count, 1.0)


def own_std(x: jax.Array, own: jax.Array | None) -> jax.Array:
    """Return the standard deviation of `x` over the steps that count, as in `own_mean`."""
    return jnp.std(x) if own is None else jnp.sqrt(own_mean(jnp.square(x - own_mean(x, own)), own))


def episode_starts(steps: Steps) -> jax.Array:
    """Return at which steps an episode begins, bool `[T, N]`; the first step is left to the carry before the rollout."""
    done = steps.terminated | steps.truncated
    return jnp.concatenate([jnp.zeros_like(done[:1]), done[:-1]])


def batch_major(batch: B) -> B:
    """Swap time and streams, except in `carry`, which has streams only: minibatches of trajectories are drawn from streams."""
    trajectories: Any = batch
    swapped = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), trajectories._replace(carry=None))
    result: B = swapped._replace(carry=trajectories.carry)
    return result


def flat_steps(batch: Any) -> Any:
    """Merge time and streams: `[T, S, ...]` becomes `[T * S, ...]`."""
    return jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), batch)


def own_steps(batch: Any, own: jax.Array, key: jax.Array, size: int) -> Any:
    """Return `size` steps of `batch` `[B, ...]`: the learner's own in their order, from a random one on and round.

    If there are more own steps than `size`, some are left out, each with the same probability; if there are fewer, some are
    repeated. If there are none, the first step of all is repeated: a loss must weigh steps by their `own`, which is then False.

    Args:
        batch: tree of arrays `[B, ...]`.
        own: which are the learner's own, bool `[B]`.
        key: random key of the first step.
        size: number of steps to return, at most B.
    """
    # Places by a running count: sorting as many random numbers costs a CPU thirty times as much.
    rank, count = jnp.cumsum(own) - 1, jnp.maximum(jnp.sum(own), 1)
    places = jnp.zeros(own.shape, jnp.int32).at[jnp.where(own, rank, len(own))].set(jnp.arange(len(own)), mode="drop")
    first = jax.random.randint(key, (), 0, count)
    chosen = places[(first + jnp.arange(size)) % count]
    return jax.tree.map(lambda x: x[chosen], batch)
