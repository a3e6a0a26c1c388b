"""Spaces of Gymnasium as those of rljax, and the layout of their elements in shared arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from rljax.core.environments.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from rljax.core.errors import ConfigError, shown
from rljax.envs.simulators.processes import Layout
from rljax.envs.simulators.worker import CHANNELS_FIRST, GRAY

_NARROWED: dict[Any, Any] = {
    np.dtype(wide): np.dtype(narrow)
    for wide, narrow in ((np.float64, np.float32), (np.int64, np.int32), (np.uint64, np.uint32), (np.longdouble, np.float32))
}
"""Numbers that JAX has half as wide, unless it is told otherwise."""


def convert_spaces(title: str, observation: Any, action: Any, channels_first: bool = False) -> tuple[Any, Any, Layout]:
    """Return the spaces of an environment of Gymnasium as those of rljax, and the layout of their elements.

    Args:
        title: how messages begin.
        observation: Gymnasium's space.
        action: Gymnasium's space.
        channels_first: whether pictures come as `[C, H, W]`, which become `[H, W, C]`.

    Raises:
        ConfigError: there is no such space here (texts, graphs, sequences, unions), or not for actions (tuples, a Box of whole
            numbers, MultiBinary of several dimensions, and a Dict of anything but Discrete).
    """
    obs_leaves: list[Any] = []
    action_leaves: list[Any] = []
    obs_space, obs_structure = _observation(title, observation, obs_leaves, channels_first)
    action_space, action_structure = _action(title, action, action_leaves)
    return obs_space, action_space, Layout(obs_leaves, action_leaves, obs_structure, action_structure)


def _observation(title: str, space: Any, leaves: list[Any], channels_first: bool) -> tuple[Any, Any]:
    """Return the space, and what is subtracted from its arrays in their structure (see `worker.leaves`)."""
    if isinstance(space, spaces.Dict):
        parts = {name: _observation(title, space[name], leaves, channels_first) for name in sorted(space.spaces)}
        return Dict({name: part[0] for name, part in parts.items()}), {name: part[1] for name, part in parts.items()}
    if isinstance(space, spaces.Tuple):
        found = [_observation(title, part, leaves, channels_first) for part in space.spaces]
        return Tuple(tuple(part[0] for part in found)), tuple(part[1] for part in found)
    if isinstance(space, spaces.Discrete):
        leaves.append(((), np.dtype(np.int32)))
        return Discrete(int(space.n)), int(space.start) or None
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        leaves.append((space.shape, np.dtype(np.int32)))
        return MultiDiscrete(tuple(space.nvec.tolist())), space.start if np.any(space.start) else None
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        own: Any = np.dtype(space.dtype)
        dtype = _NARROWED.get(own, own)
        low, high = (space.low, space.high) if isinstance(space, spaces.Box) else (0, 1)
        low, high, shape, change = _bound(low, dtype), _bound(high, dtype), space.shape, None
        if channels_first and dtype == np.uint8 and len(shape) == 3:
            low, high, shape, change = np.moveaxis(low, 0, -1), np.moveaxis(high, 0, -1), (*shape[1:], shape[0]), CHANNELS_FIRST
        elif dtype == np.uint8 and len(shape) == 2 and np.all(low == 0) and np.all(high == 255):
            low, high, shape, change = low[..., None], high[..., None], (*shape, 1), GRAY
        leaves.append((shape, dtype))
        return Box(low, high, shape, dtype), change
    raise ConfigError(f"{title}: observations in {shown(space)} are not supported")


def _action(title: str, space: Any, leaves: list[Any]) -> tuple[Any, Any]:
    """Return the space, and how its elements are made (see `worker.action_of`)."""
    if isinstance(space, spaces.Dict):
        heads = [part for part in space.values() if not isinstance(part, spaces.Discrete)]
        if heads:
            raise ConfigError(
                f"{title}: actions in {shown(space)} are not supported: every entry of a Dict of actions is a Discrete, "
                f"and not a {type(heads[0]).__name__}"
            )
        parts = {name: _action(title, space[name], leaves) for name in sorted(space.spaces)}
        return Dict({name: part[0] for name, part in parts.items()}), {name: part[1] for name, part in parts.items()}
    if isinstance(space, spaces.Discrete):
        leaves.append(((), np.dtype(np.int32)))
        return Discrete(int(space.n)), (np.dtype(space.dtype), int(space.start) or None, None, True)
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        leaves.append((space.shape, np.dtype(np.int32)))
        start = space.start if np.any(space.start) else None
        return MultiDiscrete(tuple(space.nvec.tolist())), (np.dtype(space.dtype), start, None, False)
    if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
        leaves.append((space.shape, np.dtype(np.int32)))
        return MultiDiscrete((2,) * space.shape[0]), (np.dtype(space.dtype), None, None, False)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        leaves.append((space.shape, np.dtype(np.float32)))
        bounds = _bound(space.low, np.dtype(np.float32)), _bound(space.high, np.dtype(np.float32))
        return Box(*bounds, space.shape), (np.dtype(space.dtype), None, (space.low, space.high), False)
    raise ConfigError(f"{title}: actions in {shown(space)} are not supported")


def _bound(bound: Any, dtype: np.dtype[Any]) -> Any:
    """Return a bound in a narrower dtype; what does not fit there is as far as it goes."""
    if np.issubdtype(dtype, np.floating):
        with np.errstate(over="ignore"):
            return np.asarray(bound).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        return np.clip(bound, limits.min, limits.max).astype(dtype)
    return np.asarray(bound, dtype)
