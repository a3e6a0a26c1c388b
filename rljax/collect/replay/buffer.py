"""Replay: ring buffers on the device, trees of arrays `[capacity, num_envs, ...]`, and what is sampled from them.

A row is one step of all N environments, so that a row is written at one place and each environment's steps follow each other.
The buffer is part of an agent's state: it is saved, resumed and vmapped like everything else.

Memory: `capacity * num_envs` times the bytes of one environment's step. Every array is kept in the dtype it is given in, so
images should be uint8 (networks convert them), and masks are bool. A transition keeps its next observation too, which makes
observations count twice: it is what a bootstrap at a truncation needs, where the row after belongs to another episode.

Nothing here passes a buffer through `cond` or `where`: both would copy it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.errors import ConfigError

T = TypeVar("T")


class Replay(struct.PyTreeNode):
    """A first-in-first-out ring of rows.

    Attributes:
        data: tree of arrays `[capacity, num_envs, ...]`.
        position: i32 [], the row that is written next.
        size: i32 [], how many rows hold data.
    """

    data: Any
    position: jax.Array
    size: jax.Array

    @property
    def capacity(self) -> int:
        """Rows that fit."""
        return int(jax.tree.leaves(self.data)[0].shape[0])

    @property
    def num_envs(self) -> int:
        return int(jax.tree.leaves(self.data)[0].shape[1])


class Places(NamedTuple):
    """Positions of samples in the buffer, i32 `[B]`: the row (the first of a window) and the environment."""

    row: jax.Array
    env: jax.Array


class Transition(NamedTuple):
    """One step as learners from replay want it: of a row `[N, ...]`, of a buffer `[capacity, N, ...]`, of a sample `[B, ...]`.

    `next_obs` is before any reset; `next_mask` are the legal actions there, None where the environment has no masks.
    """

    obs: Any
    action: Any
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_obs: Any
    next_mask: jax.Array | None


class NStep(NamedTuple):
    """n steps as one: arrays `[B, ...]`. The target of `obs, action` is `reward + discount * value(next_obs)`."""

    obs: Any
    action: Any
    reward: jax.Array
    discount: jax.Array
    next_obs: Any
    next_mask: jax.Array | None


def init_replay(example: Any, capacity: int, num_envs: int) -> Replay:
    """An empty buffer of `capacity` rows of `num_envs` environments.

    Args:
        example: one environment's step, a tree of arrays or `jax.ShapeDtypeStruct`s without leading axes.
        capacity: rows.
        num_envs: N.
    """
    data = jax.tree.map(lambda x: jnp.zeros((capacity, num_envs, *x.shape), x.dtype), example)
    return Replay(data, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def add_rows(replay: Replay, rows: Any) -> Replay:
    """Write K rows `[K, num_envs, ...]`, K at most the capacity, over the oldest ones.

    Raises:
        ConfigError: more rows than the buffer holds.
    """
    count, capacity = int(jax.tree.leaves(rows)[0].shape[0]), replay.capacity
    if count > capacity:
        raise ConfigError(f"{count} rows cannot be added to a buffer of {capacity}")
    data = jax.tree.map(lambda ring, new: _write(ring, new, replay.position), replay.data, rows)
    return Replay(data, (replay.position + count) % capacity, jnp.minimum(replay.size + count, capacity))


def _write(ring: jax.Array, new: jax.Array, position: jax.Array) -> jax.Array:
    """`new [K, ...]` into `ring [C, ...]` from `position` on, going on at 0 after the end.

    As slices and not as a scatter, which is a loop over rows on the CPU: one slice that ends at the end of the ring at the
    latest, and where K > 1 may wrap, one at its beginning. What they cover too much is written back as it was.
    """
    count, capacity = new.shape[0], ring.shape[0]
    new = new.astype(ring.dtype)
    if count == 1:
        return jax.lax.dynamic_update_slice_in_dim(ring, new, position, 0)
    step = jnp.arange(count)
    first = jnp.minimum(position, capacity - count)
    for start in (first, jnp.zeros_like(position)):
        old = jax.lax.dynamic_slice_in_dim(ring, start, count, 0)
        source = start + step - position
        source = jnp.where(source < 0, source + capacity, source)
        inside = (source < count).reshape(-1, *(1,) * (new.ndim - 1))
        block = jnp.where(inside, new[jnp.minimum(source, count - 1)], old)
        ring = jax.lax.dynamic_update_slice_in_dim(ring, block, start, 0)
    return ring


def num_windows(replay: Replay, length: int = 1) -> jax.Array:
    """Count the windows of `length` consecutive rows in the buffer, over all environments, i32 []."""
    return jnp.maximum(replay.size - length + 1, 0) * replay.num_envs


def sample_windows(replay: Replay, bits: jax.Array, length: int = 1) -> Places:
    """Uniformly drawn windows of `length` rows, with replacement; none spans the place that is written next.

    A buffer with no such window gives places whose rows hold no data: check `num_windows` (learners wait for `learning_starts`).

    Args:
        replay: the buffer.
        bits: random bits u32 `[B]`, so that those of many samples are drawn at once.
        length: rows in a window.
    """
    # Modulo of 32 bits: the bias is below size / 2^32.
    index = (bits % jnp.maximum(num_windows(replay, length), 1).astype(jnp.uint32)).astype(jnp.int32)
    age, env = index // replay.num_envs, index % replay.num_envs
    oldest = replay.position - replay.size
    return Places((oldest + age) % replay.capacity, env)


class OnlineQueue(struct.PyTreeNode):
    """Which sequences of each stream were sampled for a first time already (the online queue of DreamerV3's replay: Hafner et
    al., 2025, Methods).

    Counters only, none of which depends on what is drawn: where those of `Replay` stay scalars under vmap over seeds, these do.

    Attributes:
        written: i32 [], rows added since the start; whoever adds rows counts them: `queue.replace(written=queue.written + K)`.
        taken: i32 [], sequences handed out, or lost because the ring overwrote them first.
    """

    written: jax.Array
    taken: jax.Array


def init_online_queue() -> OnlineQueue:
    """The queue of an empty buffer."""
    return OnlineQueue(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def sample_online(replay: Replay, queue: OnlineQueue, bits: jax.Array, length: int) -> tuple[Places, OnlineQueue]:
    """Windows of `length + 1` rows, the first of them context: new sequences first, each once, and uniform ones for the rest.

    The trained rows of new sequences tile each stream: counted from the start, number c of an environment has the context row
    `c * length` and trains on the `length` rows after it. They come in the order in which they were written, environment by
    environment; those whose context row is overwritten are passed over. What is not new is drawn by `sample_windows`, and as
    there the buffer has to hold a window: check `num_windows(replay, length + 1)`.

    Args:
        replay: the buffer.
        queue: of this buffer; its `written` counts the rows added to it. Exact below 2^31 rows and as many sequences.
        bits: random bits u32 `[B]`.
        length: L, trained rows in a sequence.

    Returns:
        `(places [B], queue)`; take them with `take_windows(replay, places, length + 1)`.
    """
    count, num_envs = bits.shape[0], replay.num_envs
    # Floor divisions: the first gives 0 or -1 sequences before any row is written, the second rounds up.
    written = jnp.maximum((queue.written - 1) // length, 0) * num_envs
    oldest = jnp.maximum(-((replay.size - queue.written) // length), 0) * num_envs
    first = jnp.maximum(queue.taken, oldest)
    new = jnp.clip(written - first, 0, count)
    number = first + jnp.arange(count)
    row = (replay.position - queue.written + number // num_envs * length) % replay.capacity
    uniform = sample_windows(replay, bits, length + 1)
    is_new = jnp.arange(count) < new
    places = Places(jnp.where(is_new, row, uniform.row), jnp.where(is_new, number % num_envs, uniform.env))
    return places, queue.replace(taken=first + new)


def read_apart(read: Callable[[jax.Array], T], bits: jax.Array, wanted: jax.Array) -> T:
    """`read(bits)` where `wanted`, else zeros; for reads of a buffer that the same program has just written to.

    XLA fuses a write into the gather that follows it. The gather then reads the ring as it was before the write, so it must be
    kept: the whole buffer is copied in every turn. A loop that is entered once or not at all is a boundary to fusion, and its
    counter added to the bits keeps the read inside.

    Args:
        read: `bits -> tree of arrays`.
        bits: random bits u32 of any shape.
        wanted: bool [].
    """
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(read, bits))
    return jax.lax.fori_loop(0, wanted.astype(jnp.int32), lambda i, _: read(bits + i.astype(jnp.uint32)), nothing)


def take(replay: Replay, places: Places) -> Any:
    """The steps at `places`, a tree of arrays `[B, ...]`."""
    return jax.tree.map(lambda x: x[places.row, places.env], replay.data)


def take_windows(replay: Replay, places: Places, length: int) -> Any:
    """The `length` steps from each of `places` on, a tree of arrays `[B, length, ...]`."""
    rows = _window(replay, places, length)
    return jax.tree.map(lambda x: x[rows, places.env[:, None]], replay.data)


def _window(replay: Replay, places: Places, length: int) -> jax.Array:
    return (places.row[:, None] + jnp.arange(length)) % replay.capacity


def put_windows(replay: Replay, places: Places, values: Any) -> Replay:
    """Write `values [B, length, ...]` back over the windows from `places` on: a learner's own notes on what it sampled.

    `values` has the structure of `replay.data`, with None for the parts that stay as they are.
    """
    length = int(jax.tree.leaves(values)[0].shape[1])
    rows = _window(replay, places, length)
    data = jax.tree.map(
        lambda new, ring: ring if new is None else ring.at[rows, places.env[:, None]].set(new.astype(ring.dtype)),
        values,
        replay.data,
        is_leaf=lambda x: x is None,
    )
    return replay.replace(data=data)


def take_n_step(
    replay: Replay,
    places: Places,
    n: int,
    gamma: float | jax.Array,
    scale: Callable[[jax.Array], jax.Array] | None = None,
) -> NStep:
    """n-step transitions (Sutton, 1988; Mnih et al., 2016) from each of `places` on, in a buffer of `Transition`.

    With m <= n the steps to the end of the episode, or n:

        reward   = r_0 + gamma r_1 + ... + gamma^(m-1) r_(m-1)
        discount = gamma^m, or 0 where step m-1 terminated

    and `next_obs` is where step m-1 led: of a truncated episode its final observation.

    Args:
        replay: its data are a `Transition`.
        places: starts of windows of n rows, from `sample_windows(replay, bits, n)`.
        n: steps.
        gamma: discount per step.
        scale: what each reward counts as, elementwise (a normaliser's clip, say); None: as it is.
    """
    data: Transition = replay.data
    gamma = jnp.asarray(gamma, jnp.float32)
    if n == 1:
        step: Transition = take(replay, places)
        discount = jnp.where(step.terminated, 0.0, gamma)
        reward = step.reward if scale is None else scale(step.reward)
        return NStep(step.obs, step.action, reward, discount, step.next_obs, step.next_mask)
    rows, envs = _window(replay, places, n), places.env[:, None]
    reward = data.reward[rows, envs]
    reward = reward if scale is None else scale(reward)
    ended = data.terminated[rows, envs] | data.truncated[rows, envs]
    taken = jnp.cumsum(ended, 1) - ended == 0
    steps = jnp.sum(taken, 1)
    last = Places((places.row + steps - 1) % replay.capacity, places.env)
    obs, action = take(replay.replace(data=(data.obs, data.action)), places)
    terminated, next_obs, next_mask = take(replay.replace(data=(data.terminated, data.next_obs, data.next_mask)), last)
    return NStep(
        obs=obs,
        action=action,
        reward=jnp.sum(jnp.where(taken, reward, 0.0) * gamma ** jnp.arange(n), 1),
        discount=jnp.where(terminated, 0.0, gamma**steps),
        next_obs=next_obs,
        next_mask=next_mask,
    )
