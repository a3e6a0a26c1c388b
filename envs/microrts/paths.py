"""Distances on the map of MicroRTS: to the nearest of some cells, and along shortest paths around obstacles."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rljax.core.errors import ConfigError
from rljax.envs.microrts.units import DIRECTIONS

FAR = 1 << 14
"""Distance to what cannot be reached, or is not there."""

MAX_WIDTH = 32
"""Largest number of columns: a row of the map is a word of bits."""


def distance_map(cells: jax.Array, squared: bool = False) -> jax.Array:
    """Return the distance of every cell to the nearest of `cells`, bool `[H, W]`; `FAR` if there is none.

    Args:
        cells: the cells.
        squared: the square of the Euclidean distance instead of the Manhattan distance.

    Returns:
        i32 `[H, W]`.
    """
    height, width = cells.shape
    across, down = (jnp.abs(jnp.arange(size)[:, None] - jnp.arange(size)) for size in (width, height))
    if squared:
        across, down = across**2, down**2
    along_row = jnp.min(jnp.where(cells[:, None, :], across, FAR), axis=-1)
    return jnp.minimum(jnp.min(down[:, :, None] + along_row, axis=1), FAR)


class _Flood(NamedTuple):
    """Cells reached from the goals, as bits of rows u32 `[K, H]`; steps until each neighbour was reached, i32 `[K, 4]`; whether
    a goal's flood is over, bool `[K]`; number of steps.
    """

    reached: jax.Array
    steps: jax.Array
    over: jax.Array
    time: jax.Array


def path_lengths(free: jax.Array, row: jax.Array, column: jax.Array, goal_row: jax.Array, goal_column: jax.Array) -> jax.Array:
    """Return the number of steps from each neighbour of K cells to the cell's goal, over free cells; the goal need not be free.

    A cell's flood ends two steps after it has reached the cell's first neighbour: enough to know the shortest way and those
    around one obstacle.

    Args:
        free: which cells can be entered, bool `[H, W]`, with `W` at most 32.
        row, column: the cells, i32 `[K]`.
        goal_row, goal_column: where they want to go, i32 `[K]`.

    Returns:
        i32 `[K, 4]`, by direction; `FAR` where the flood did not come.

    Raises:
        ConfigError: the map is too wide.
    """
    height, width = free.shape
    if width > MAX_WIDTH:
        raise ConfigError(f"MicroRTS: paths on a map of {width} columns: expected at most {MAX_WIDTH}")
    rows = jnp.sum(free.astype(jnp.uint32) << jnp.arange(width, dtype=jnp.uint32), axis=-1, dtype=jnp.uint32)
    goal = jnp.where(
        jnp.arange(height) == goal_row[:, None], jnp.uint32(1) << goal_column[:, None].astype(jnp.uint32), jnp.uint32(0)
    )
    passable = rows | goal
    there = jnp.stack([row, column], axis=-1)[:, None] + DIRECTIONS
    inside = jnp.all((there >= 0) & (there < jnp.array([height, width])), axis=-1)
    there = jnp.where(inside[..., None], there, 0)

    def spread(flood: _Flood) -> _Flood:
        vertical = jnp.pad(flood.reached[:, 1:], ((0, 0), (0, 1))) | jnp.pad(flood.reached[:, :-1], ((0, 0), (1, 0)))
        reached = (flood.reached | flood.reached << 1 | flood.reached >> 1 | vertical) & passable
        words = jnp.take_along_axis(flood.reached, there[..., 0], axis=1)
        has = inside & ((words >> there[..., 1].astype(jnp.uint32)) & 1 == 1)
        steps = jnp.where(has & (flood.steps == FAR) & ~flood.over[:, None], flood.time, flood.steps)
        # Here `steps` knows what was reached before this step; if nothing was added, it knows all.
        over = flood.over | jnp.all(reached == flood.reached, axis=-1) | (flood.time >= jnp.min(steps, axis=-1) + 2)
        return _Flood(reached, steps, over, flood.time + 1)

    start = _Flood(goal, jnp.full(inside.shape, FAR), jnp.zeros(row.shape, bool), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(lambda flood: ~jnp.all(flood.over), spread, start).steps
