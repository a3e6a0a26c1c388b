"""Prepare observations for networks: one batch axis, one flat vector, and a separate goal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from rljax.core.environments.wrappers import flatten_observation
from rljax.core.errors import ConfigError

GOAL = "goal"
"""Key of an observation dictionary whose entry is the goal, what the agent is told to do."""


def one_batch_axis(obs: Any, obs_ndims: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
    """Flatten the batch axes of `obs [*batch, *obs_shape]` into one; return `(obs [B, *obs_shape], batch)`. `obs_ndims` is the
    number of axes of one observation, for each leaf in tree order.
    """
    leaves, structure = jax.tree.flatten(obs)
    batch = leaves[0].shape[: leaves[0].ndim - obs_ndims[0]]
    leaves = [x.reshape((-1, *x.shape[x.ndim - ndim :])) for x, ndim in zip(leaves, obs_ndims, strict=True)]
    return jax.tree.unflatten(structure, leaves), batch


def flat_axes(tree: Any, batch_axes: int) -> Any:
    """Flatten the first axes of leaves `[*batch, *]` into one, `[B, *]`."""
    return jax.tree.map(lambda x: x.reshape((-1, *x.shape[batch_axes:])), tree)


def ravel_observation(obs: Any) -> jax.Array:
    """Return observations as f32 vectors `[B, D]`: leaves `[B, ...]` flattened and concatenated in order."""
    return jax.vmap(flatten_observation)(obs)


def split_goal(obs: Any, film: bool) -> tuple[Any, jax.Array | None]:
    """Return `(obs without the goal, goal [B, D])` if `film`, for networks that the goal modulates; else the observation and
    None.

    Raises:
        ConfigError: the observations have no goal.
    """
    if not film:
        return obs, None
    if not isinstance(obs, Mapping) or GOAL not in obs or len(obs) < 2:
        raise ConfigError(f"network.goal = 'film': expected observations that are dictionaries with a key '{GOAL}' among others")
    return {name: x for name, x in obs.items() if name != GOAL}, ravel_observation(obs[GOAL])
