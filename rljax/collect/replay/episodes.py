"""Sample sequences and trajectories from a replay buffer, and group its steps by episode."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.collect.replay.buffer import Places, Replay, sample_windows, take_windows


class Sequences(NamedTuple):
    """Windows of steps: `data`, arrays `[B, L, ...]`; `is_first` bool `[B, L]`, where an episode (or the window) begins."""

    data: Any
    is_first: jax.Array


def sample_sequences(replay: Replay, bits: jax.Array, length: int) -> Sequences:
    """Sample sequences of `length` consecutive steps, for models with memory; episodes may end and begin within a sequence.

    Args:
        replay: its data are a `Transition`, or any structure with fields `terminated` and `truncated`.
        bits: random bits u32 `[B]`.
        length: number of steps L.
    """
    data = take_windows(replay, sample_windows(replay, bits, length), length)
    ended = data.terminated | data.truncated
    return Sequences(data, jnp.concatenate([jnp.ones_like(ended[:, :1]), ended[:, :-1]], 1))


class Trajectories(NamedTuple):
    """Parts of single episodes: `data` is a tree of arrays `[B, L, ...]`; `valid`, bool `[B, L]`, is False after the end of the
    part.
    """

    data: Any
    valid: jax.Array


def sample_trajectories(replay: Replay, bits: jax.Array, max_length: int) -> Trajectories:
    """Sample the episodes of uniformly drawn steps, from their first step in the buffer on.

    At most `max_length` steps of an episode are returned: its first steps or, if the drawn step is not among them, the steps that
    end with the drawn one.

    Args:
        replay: its data are a `Transition`, or any structure with fields `terminated` and `truncated`.
        bits: random bits u32 `[B]`.
        max_length: largest number of steps L.
    """
    drawn, capacity = sample_windows(replay, bits), replay.capacity
    age = (drawn.row - (replay.position - replay.size)) % capacity
    back = jnp.arange(1, max_length)
    rows, envs = (drawn.row[:, None] - back) % capacity, drawn.env[:, None]
    ended = replay.data.terminated[rows, envs] | replay.data.truncated[rows, envs]
    of_it = jnp.cumsum(ended | (back > age[:, None]), 1) == 0
    before = jnp.sum(of_it, 1)
    start = Places((drawn.row - before) % capacity, drawn.env)
    data = take_windows(replay, start, max_length)
    ended = data.terminated | data.truncated
    over = jnp.cumsum(ended, 1) - ended > 0
    return Trajectories(data, ~over & (jnp.arange(max_length) < (replay.size - (age - before))[:, None]))


def episode_ids(replay: Replay) -> jax.Array:
    """Number the episode of each step, i32 `[capacity, num_envs]`, for `group_by`; -1 where a row holds no data. Each episode of
    each environment has its own number.
    """
    order = (replay.position - replay.size + jnp.arange(replay.capacity)) % replay.capacity
    ended = (replay.data.terminated | replay.data.truncated)[order]
    number = jnp.cumsum(ended, 0) - ended
    number = number * replay.num_envs + jnp.arange(replay.num_envs)
    number = jnp.where((jnp.arange(replay.capacity) < replay.size)[:, None], number, -1)
    return jnp.zeros_like(number).at[order].set(number)


class Groups(NamedTuple):
    """Indices of each group's members among the keys, i32 `[G, M]`, and which of these entries are members, bool `[G, M]`."""

    place: jax.Array
    valid: jax.Array


def group_by(keys: jax.Array, groups: jax.Array, max_size: int) -> Groups:
    """Return the first `max_size` members of each group: indices i with `keys[i] == groups[g]`, in ascending order.

    Args:
        keys: group of each index (an episode, an opponent, a task), i32 `[B]`.
        groups: groups to look up, i32 `[G]`.
        max_size: largest number of members M.
    """
    order = jnp.argsort(keys, stable=True)
    sorted_keys = keys[order]
    start, end = (jnp.searchsorted(sorted_keys, groups, side=side) for side in ("left", "right"))
    place = start[:, None] + jnp.arange(max_size)
    return Groups(order[jnp.minimum(place, keys.shape[0] - 1)], place < end[:, None])
