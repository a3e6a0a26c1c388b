"""Replay: ring buffers on the device, which are trees of arrays `[capacity, num_envs, ...]`, and samples from them.

A row is one step of all N environments, so that a row is written at one place and each environment's steps follow each other.
The buffer is part of an agent's state: it is saved, resumed and vmapped like everything else.

Memory: `capacity * num_envs` times the bytes of one environment's step. Every array keeps its dtype, so images
should be uint8 (networks convert them), and masks are bool. A transition also holds its next observation, so observations count
twice: a bootstrap at a truncation needs it, where the next row belongs to another episode.

Nothing here passes a buffer through `cond` or `where`: both would copy it.

A buffer may be larger than the device's memory: with `host`, its arrays with axes of their own (observations) are in pinned
memory of the host. The device writes a row by one transfer, and the host gathers what is sampled. What is one number for each
step (rewards, flags) stays on the device: it is small.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import struct
from jax.experimental import compute_on

from rljax.core.errors import ConfigError

T = TypeVar("T")

HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device
_call_on: Callable[..., Any] = getattr(compute_on, "compute_on2", compute_on.compute_on)
"""JAX 0.11 calls `compute_on2` `compute_on`, as 0.8.0 calls something else."""
HOST_GATHERS = "out_memory_spaces" in inspect.signature(_call_on).parameters
"""Sampling from a buffer in the host's memory works in this version of JAX; 0.8.0 cannot."""


class Replay(struct.PyTreeNode):
    """A first-in-first-out ring of rows.

    Attributes:
        data: tree of arrays `[capacity, num_envs, ...]`.
        position: index of the row that is written next, i32 [].
        size: number of rows that hold data, i32 [].
        host: whether arrays with axes beyond `[capacity, num_envs]` are in the host's memory.
    """

    data: Any
    position: jax.Array
    size: jax.Array
    host: bool = struct.field(pytree_node=False, default=False)

    @property
    def capacity(self) -> int:
        """Number of rows that the buffer can hold."""
        return int(jax.tree.leaves(self.data)[0].shape[0])

    @property
    def num_envs(self) -> int:
        return int(jax.tree.leaves(self.data)[0].shape[1])


class Places(NamedTuple):
    """Positions of samples in the buffer, i32 `[B]`: the row (the first of a window) and the environment."""

    row: jax.Array
    env: jax.Array


class Transition(NamedTuple):
    """Transition for learning from replay, with leading axes `[N]` in a row, `[capacity, N]` in a buffer and `[B]` in a sample.

    `next_obs` is the observation before any reset; `next_mask` has the legal actions there, or None if the environment has no
    mask.
    """

    obs: Any
    action: Any
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_obs: Any
    next_mask: jax.Array | None


class NStep(NamedTuple):
    """n-step transitions, arrays `[B, ...]`. The target of `obs, action` is `reward + discount * value(next_obs)`."""

    obs: Any
    action: Any
    reward: jax.Array
    discount: jax.Array
    next_obs: Any
    next_mask: jax.Array | None


def in_host_memory(state: Any) -> Any:
    """Return which leaves of a state, of one run or of several with a first axis, the host's memory holds: a tree of bools."""

    def leaves(x: Any) -> Any:
        if not isinstance(x, Replay):
            return False
        data = jax.tree.map(lambda leaf: x.host and leaf.ndim > 2 + x.position.ndim, x.data)
        return x.replace(data=data, position=False, size=False)

    return jax.tree.map(leaves, state, is_leaf=lambda x: isinstance(x, Replay))


def to_host_memory(state: Any) -> Any:
    """Move the leaves of `in_host_memory` there; what is there already stays."""
    return jax.tree.map(lambda x, host: jax.device_put(x, HOST) if host else x, state, in_host_memory(state))


def init_replay(example: Any, capacity: int, num_envs: int, host: bool = False) -> Replay:
    """Return an empty buffer of `capacity` rows of `num_envs` environments.

    Args:
        example: one environment's step, a tree of arrays or `jax.ShapeDtypeStruct`s without leading axes.
        capacity: number of rows.
        num_envs: number of environments N.
        host: keep arrays with axes of their own in the host's memory (see `Replay`).
    """
    data = jax.tree.map(lambda x: jnp.zeros((capacity, num_envs, *x.shape), x.dtype), example)
    return to_host_memory(Replay(data, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), host))


def add_rows(replay: Replay, rows: Any) -> Replay:
    """Write K rows `[K, num_envs, ...]`, K at most the capacity, over the oldest ones.

    Raises:
        ConfigError: more rows than the buffer holds.
    """
    count, capacity = int(jax.tree.leaves(rows)[0].shape[0]), replay.capacity
    if count > capacity:
        raise ConfigError(f"{count} rows cannot be added to a buffer of {capacity}")
    hosts = in_host_memory(replay).data
    data = jax.tree.map(
        lambda ring, new, host: _write(ring, new, replay.position, host), to_host_memory(replay).data, rows, hosts
    )
    position, size = (replay.position + count) % capacity, jnp.minimum(replay.size + count, capacity)
    return replay.replace(data=data, position=position, size=size)


@jax.custom_batching.custom_vmap
def _of_one_run(ring: jax.Array) -> jax.Array:
    """Return the ring as it is; refuse `vmap`: JAX cannot slice batched arrays in the host's memory."""
    return ring


@_of_one_run.def_vmap
def _of_several_runs(*_: Any) -> Any:
    raise ConfigError("replay_memory = 'host': expected 'device' under vmap, as one program has one buffer in the host's memory")


def _write(ring: jax.Array, new: jax.Array, position: jax.Array, host: bool = False) -> jax.Array:
    """Write `new [K, ...]` into `ring [C, ...]` from `position` on, continuing at 0 after the end.

    It writes slices, because a scatter is a loop over rows on the CPU: one slice that ends at the end of the ring at the latest,
    and for K > 1, which may wrap, one at its beginning. Rows of a slice that are not new are written back unchanged. With `host`
    the ring is in the host's memory, and `new` on the device.
    """
    count, capacity = new.shape[0], ring.shape[0]
    new = new.astype(ring.dtype)
    to_ring, to_device = (partial(jax.device_put, device=space) if host else lambda x: x for space in (HOST, DEVICE))
    if count == 1:
        return jax.lax.dynamic_update_slice_in_dim(ring, to_ring(new), position, 0)
    step = jnp.arange(count)
    first = jnp.minimum(position, capacity - count)
    for start in (first, jnp.zeros_like(position)):
        ring = _of_one_run(ring) if host else ring
        old = to_device(jax.lax.dynamic_slice_in_dim(ring, start, count, 0))
        source = start + step - position
        source = jnp.where(source < 0, source + capacity, source)
        inside = (source < count).reshape(-1, *(1,) * (new.ndim - 1))
        block = jnp.where(inside, new[jnp.minimum(source, count - 1)], old)
        ring = jax.lax.dynamic_update_slice_in_dim(ring, to_ring(block), start, 0)
    return ring


def num_windows(replay: Replay, length: int = 1) -> jax.Array:
    """Count the windows of `length` consecutive rows in the buffer, over all environments, i32 []."""
    return jnp.maximum(replay.size - length + 1, 0) * replay.num_envs


def sample_windows(replay: Replay, bits: jax.Array, length: int = 1) -> Places:
    """Draw windows of `length` rows uniformly, with replacement; no window spans the row that is written next.

    If the buffer has no such window, the result points to rows without data: check `num_windows` (algorithms wait for
    `learning_starts`).

    Args:
        replay: the buffer.
        bits: random bits u32 `[B]`, which the caller can draw for many samples at once.
        length: number of rows in a window.
    """
    # Modulo of 32 bits: the bias is below size / 2^32.
    index = (bits % jnp.maximum(num_windows(replay, length), 1).astype(jnp.uint32)).astype(jnp.int32)
    age, env = index // replay.num_envs, index % replay.num_envs
    oldest = replay.position - replay.size
    return Places((oldest + age) % replay.capacity, env)


class OnlineQueue(struct.PyTreeNode):
    """Online queue of DreamerV3's replay: counters that tell which sequences were not sampled yet (Hafner et al., 2025, Methods).

    The counters do not depend on random numbers, so under vmap over seeds they stay scalars where those of `Replay` do.

    Attributes:
        written: number of rows added since the start, i32 []; after adding K rows, call `queue.replace(written=queue.written +
            K)`.
        taken: number of sequences that were sampled, or overwritten before they could be, i32 [].
    """

    written: jax.Array
    taken: jax.Array


def init_online_queue() -> OnlineQueue:
    """Return the queue of an empty buffer."""
    return OnlineQueue(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def sample_online(replay: Replay, queue: OnlineQueue, bits: jax.Array, length: int) -> tuple[Places, OnlineQueue]:
    """Sample windows of `length + 1` rows, of which the first is context: new sequences once each, then uniformly drawn ones.

    The trained rows of new sequences tile each environment's stream: sequence c has the context row `c * length`, counted from
    the start, and trains on the `length` rows after it. New sequences come in the order in which they were written, environment
    by environment; sequences whose context row was overwritten are skipped. The remaining windows are drawn by `sample_windows`,
    for which the buffer must hold at least one: check `num_windows(replay, length + 1)`.

    Args:
        replay: the buffer.
        queue: the queue of this buffer; its `written` counts the rows added. Exact below 2^31 rows and sequences.
        bits: random bits u32 `[B]`.
        length: number of trained rows in a sequence.

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
    """Return `read(bits)` if `wanted`, else zeros, without a copy of a buffer that the same program has just written to.

    XLA fuses a write into the gather that follows it. The gather then reads the ring as it was before the write, so XLA keeps
    that ring and copies the whole buffer each time. A loop with at most one iteration prevents the fusion, and adding its counter
    to the bits keeps the read inside the loop.

    Args:
        read: `bits -> tree of arrays`.
        bits: random bits u32 of any shape.
        wanted: bool [].
    """
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(read, bits))
    return jax.lax.fori_loop(0, wanted.astype(jnp.int32), lambda i, _: read(bits + i.astype(jnp.uint32)), nothing)


def take(replay: Replay, places: Places) -> Any:
    """Return the steps at `places`, a tree of arrays `[B, ...]`."""
    return _gather(replay, places.row, places.env)


def take_windows(replay: Replay, places: Places, length: int) -> Any:
    """Return the `length` steps from each of `places` on, a tree of arrays `[B, length, ...]`."""
    rows = _window(replay, places, length)
    return _gather(replay, rows, places.env[:, None])


def _gather(replay: Replay, rows: jax.Array, envs: jax.Array) -> Any:
    """Return `data[rows, envs]` of a buffer; the host gathers what it holds, in one call, and sends it to the device."""
    structure: Any
    hosts, structure = jax.tree.flatten(in_host_memory(replay).data)
    leaves = structure.flatten_up_to(to_host_memory(replay).data)
    there = [x for x, host in zip(leaves, hosts, strict=True) if host]
    if there:
        index = jax.device_put((rows, envs), HOST)
        call = _call_on(lambda xs, index: [x[index] for x in xs], compute_type="device_host", out_memory_spaces=HOST)
        there = jax.device_put(call(there, index), DEVICE)
    gathered = iter(there)
    return structure.unflatten([next(gathered) if host else x[rows, envs] for x, host in zip(leaves, hosts, strict=True)])


def _window(replay: Replay, places: Places, length: int) -> jax.Array:
    return (places.row[:, None] + jnp.arange(length)) % replay.capacity


def put_windows(replay: Replay, places: Places, values: Any) -> Replay:
    """Overwrite the windows from `places` on with `values [B, length, ...]`, such as latent states that a learner recomputed.

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
    """Return n-step transitions (Sutton, 1988; Mnih et al., 2016) from each of `places` on, in a buffer of `Transition`.

    With m the number of steps to the end of the episode, at most n:

        reward   = r_0 + gamma r_1 + ... + gamma^(m-1) r_(m-1)
        discount = gamma^m, or 0 where step m-1 terminated

    and `next_obs` is the observation that step m-1 led to; in a truncated episode, its final observation.

    Args:
        replay: a buffer whose data are a `Transition`.
        places: starts of windows of n rows, from `sample_windows(replay, bits, n)`.
        n: number of steps.
        gamma: discount per step.
        scale: elementwise function of rewards, such as a normaliser's; None: the rewards are used as they are.
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
