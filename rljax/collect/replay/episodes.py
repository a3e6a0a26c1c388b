"""Samples of a replay buffer that are more than single steps: sequences, trajectories, and steps grouped by their episode."""

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
    """`length` steps that follow each other, for models with a memory; episodes may end and begin inside.

    Args:
        replay: its data are a `Transition`, or any structure with fields `terminated` and `truncated`.
        bits: random bits u32 `[B]`.
        length: L.
    """
    data = take_windows(replay, sample_windows(replay, bits, length), length)
    ended = data.terminated | data.truncated
    return Sequences(data, jnp.concatenate([jnp.ones_like(ended[:, :1]), ended[:, :-1]], 1))


class Trajectories(NamedTuple):
    """Pieces of single episodes: `data` a tree of arrays `[B, L, ...]`; `valid` bool `[B, L]`, False after the piece's end."""

    data: Any
    valid: jax.Array


def sample_trajectories(replay: Replay, bits: jax.Array, max_length: int) -> Trajectories:
    """The episodes that uniformly drawn steps belong to, from their first step on.

    An episode is as long as the buffer holds it, and at most `max_length` steps: of a longer one its first steps, or where the
    drawn step is not among these the piece that ends with it.

    Args:
        replay: its data are a `Transition`, or any structure with fields `terminated` and `truncated`.
        bits: random bits u32 `[B]`.
        max_length: L.
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
    """A number for the episode of each step, i32 `[capacity, num_envs]`, -1 where a row holds no data.

    Steps of one episode share a number, no two episodes do, of any environment; for `group_by`.
    """
    order = (replay.position - replay.size + jnp.arange(replay.capacity)) % replay.capacity
    ended = (replay.data.terminated | replay.data.truncated)[order]
    number = jnp.cumsum(ended, 0) - ended
    number = number * replay.num_envs + jnp.arange(replay.num_envs)
    number = jnp.where((jnp.arange(replay.capacity) < replay.size)[:, None], number, -1)
    return jnp.zeros_like(number).at[order].set(number)


class Groups(NamedTuple):
    """For each group the places of its members among the keys, i32 `[G, M]`, and which of these are members, bool `[G, M]`."""

    place: jax.Array
    valid: jax.Array


def group_by(keys: jax.Array, groups: jax.Array, max_size: int) -> Groups:
    """The members of each group, in their order: those i with `keys[i] == groups[g]`, the first `max_size` of them.

    Args:
        keys: i32 `[B]`, the group of each member (an episode, an opponent, a task).
        groups: i32 `[G]`, which groups.
        max_size: M.
    """
    order = jnp.argsort(keys, stable=True)
    sorted_keys = keys[order]
    start, end = (jnp.searchsorted(sorted_keys, groups, side=side) for side in ("left", "right"))
    place = start[:, None] + jnp.arange(max_size)
    return Groups(order[jnp.minimum(place, keys.shape[0] - 1)], place < end[:, None])
