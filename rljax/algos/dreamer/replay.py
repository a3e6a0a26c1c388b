"""Rows of Dreamer's replay buffer: what they hold, and sequences read from it and written back."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.algos.common.state import normalize_obs
from rljax.collect.replay import Places, Replay
from rljax.nn.latent.rssm import RSSM, Latent


class DreamerRow(NamedTuple):
    """A step as the buffer keeps it, arrays `[capacity, num_envs, ...]`.

    `action` f32 `[..., A]` was taken at `obs`, and `reward` came on arriving there; the last observation of an episode has a row
    of its own, with an action of 0. `deter` and `stoch` (u8 `[..., G]`, classes) are the state there, as last inferred.
    """

    obs: Any
    action: jax.Array
    reward: jax.Array
    is_first: jax.Array
    is_last: jax.Array
    is_terminal: jax.Array
    deter: jax.Array
    stoch: jax.Array


class Replayed(NamedTuple):
    """Rows as they are replayed, `[T, B, ...]`; see `DreamerRow`. `action` is that before each row, `latent` the state before the
    first `[B, ...]`."""

    latent: Latent
    obs: Any
    action: jax.Array
    reward: jax.Array
    is_first: jax.Array
    is_last: jax.Array
    is_terminal: jax.Array


def row_example(rssm: RSSM, obs: Any, action: Any) -> DreamerRow:
    """The shapes of one environment's row; `obs` and `action` are the shapes of one observation and action."""
    shape: Any = jax.ShapeDtypeStruct
    flag = shape((), jnp.bool_)
    return DreamerRow(
        obs=obs,
        action=action,
        reward=shape((), jnp.float32),
        is_first=flag,
        is_last=flag,
        is_terminal=flag,
        # f32 whatever the dtype of products, so that a run can resume on another kind of device.
        deter=shape((rssm.deter,), jnp.float32),
        stoch=shape((rssm.groups,), jnp.uint8),
    )


def stored_latent(rssm: RSSM, deter: jax.Array, stoch: jax.Array) -> Latent:
    """A state as the buffer keeps it, u8 `[..., G]` for its sample, as the model takes it."""
    return Latent(deter, jax.nn.one_hot(stoch, rssm.classes))


def stored_classes(latent: Latent) -> jax.Array:
    """A state's sample as the buffer keeps it, u8 `[..., G]`."""
    return jnp.argmax(latent.stoch, axis=-1).astype(jnp.uint8)


def replayed(rssm: RSSM, replay: Replay, places: Places, length: int) -> Replayed:
    """The `length` rows that follow each of `places`, `[length, B, ...]`, with the state and the action at that place."""
    rows = (places.row + jnp.arange(length + 1)[:, None]) % replay.capacity
    data: DreamerRow = replay.data
    small = (data.obs, data.action, data.reward, data.is_first, data.is_last, data.is_terminal)
    obs, action, *flags = jax.tree.map(lambda x: x[rows, places.env], small)
    latent = stored_latent(rssm, data.deter[places.row, places.env], data.stoch[places.row, places.env])
    reward, is_first, is_last, is_terminal = (x[1:] for x in flags)
    return Replayed(latent, jax.tree.map(lambda x: x[1:], obs), action[:-1], reward, is_first, is_last, is_terminal)


def replayed_normalized(rssm: RSSM, state: Any, places: Places, length: int) -> Replayed:
    """`replayed` from the buffer of a state, with observations as its networks see them."""
    batch = replayed(rssm, state.replay, places, length)
    return batch._replace(obs=normalize_obs(state, batch.obs))


def write_latents(replay: Replay, places: Places, latents: Latent) -> Replay:
    """The buffer with states `[T, B, ...]` for the rows after each of `places`; the last wins of those that overlap."""
    step = jnp.arange(latents.deter.shape[0])[:, None]
    rows = (places.row + 1 + step) % replay.capacity
    # XLA does not define which of two writes to one place wins, and on GPUs it varies: drop all but one.
    inside = (rows[..., None] - places.row - 1) % replay.capacity < step.shape[0]
    index = jnp.arange(places.row.shape[0])
    overruled = inside & (places.env[:, None] == places.env) & (index[:, None] < index)
    rows = jnp.where(jnp.any(overruled, axis=-1), replay.capacity, rows)
    data: DreamerRow = replay.data
    return replay.replace(
        data=data._replace(
            deter=data.deter.at[rows, places.env].set(latents.deter.astype(data.deter.dtype), mode="drop"),
            stoch=data.stoch.at[rows, places.env].set(stored_classes(latents), mode="drop"),
        )
    )
