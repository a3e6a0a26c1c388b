"""Distances on the map of MicroRTS, and ways around obstacles."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.envs.microrts.rules.units import DIRECTIONS

FAR = 1 << 14
"""Distance to what cannot be reached, or is not there."""


def distance_map(cells: jax.Array) -> jax.Array:
    """Return the Manhattan distance of every cell to the nearest of `cells`, bool `[H, W]`; `FAR` if there is none.

    Args:
        cells: the cells.

    Returns:
        i32 `[H, W]`.
    """
    height, width = cells.shape
    across, down = (jnp.abs(jnp.arange(size)[:, None] - jnp.arange(size)) for size in (width, height))
    along_row = jnp.min(jnp.where(cells[:, None, :], across, FAR), axis=-1)
    return jnp.minimum(jnp.min(down[:, :, None] + along_row, axis=1), FAR)


class _Search(NamedTuple):
    """Search for the way of one unit after the other.

    Attributes:
        unit: number of the unit that is looked at, i32 `[]`.
        steps: the first step found for each unit, i32 `[K]`; -1: none so far.
        reserved: cells that the units before it enter, bool `[H W]`.
        seen: cells that its search has come to, bool `[H W]`.
        rank: place in the queue of those that it has yet to leave, i32 `[H W]`, the least first; `_NEVER` for all others.
        first: first step on the way to each cell, i32 `[H W]`.
        queued: number of places in the queue that were given away, i32 `[]`.
    """

    unit: jax.Array
    steps: jax.Array
    reserved: jax.Array
    seen: jax.Array
    rank: jax.Array
    first: jax.Array
    queued: jax.Array


_NEVER = np.iinfo(np.int32).max


def first_steps(
    free: jax.Array,
    place: jax.Array,
    goal: jax.Array,
    reach: jax.Array,
    goes: jax.Array,
    closed: jax.Array,
) -> jax.Array:
    """Return the first step of each of K units to a cell within reach of its goal, i32 `[K]`: a direction, or -1 for no way.

    The units look for their ways one after the other, as those of microRTS's scripted players do, and none goes through the
    cells that those before it enter in this step. The search is A* (Hart et al., 1968) with the Manhattan distance. Of cells that
    are equally promising it leaves the one found last, and it looks up, right, down and left; it does not come back to a cell
    that it has found before by a longer way, so that ways around obstacles are not always the shortest.

    Args:
        free: which cells can be entered, bool `[H, W]`.
        place: row and column of the units, i32 `[K, 2]`.
        goal: row and column of their goals, i32 `[K, 2]`.
        reach: how near they want to come, Euclidean, i32 `[K]`.
        goes: which of the units go, bool `[K]`.
        closed: cells that a unit may not go through besides, bool `[K, H, W]`.
    """
    height, width = free.shape
    # More than the search puts in its queue: the start, and the four neighbours of each cell that it leaves.
    places = 4 * height * width + 1
    # No way is longer than the number of cells, and no distance than height + width; maps have up to 128 x 128 cells.
    assert (height * width + height + width) * places < _NEVER, "a rank fits into 32 bits"
    cells = jnp.arange(height * width)
    rows, columns = cells // width, cells % width
    free, closed = free.reshape(-1), closed.reshape(len(goes), -1)
    # Those that go come first, in their order.
    number_of = jnp.where(goes, jnp.cumsum(goes), jnp.sum(goes) + jnp.cumsum(~goes)) - 1
    order = jnp.zeros(goes.shape, jnp.int32).at[number_of].set(jnp.arange(len(goes)))
    place, goal, reach, closed = (x[order] for x in (place, goal, reach, closed))
    starts = place[:, 0] * width + place[:, 1]

    def begun(search: _Search) -> _Search:
        here = cells == starts[jnp.minimum(search.unit, len(goes) - 1)]
        return search._replace(
            seen=here, rank=jnp.where(here, 0, _NEVER), first=jnp.full(cells.shape, -1), queued=jnp.ones((), jnp.int32)
        )

    def leave(search: _Search) -> _Search:
        """Leave the first cell of the queue, or end the search there and begin the next unit's."""
        unit = search.unit
        down, right = jnp.abs(rows - goal[unit, 0]), jnp.abs(columns - goal[unit, 1])
        number = jnp.argmin(search.rank)
        here = cells == number
        place_in_queue, step = search.rank[number], search.first[number]
        there = (place_in_queue < _NEVER) & (down[number] ** 2 + right[number] ** 2 <= reach[unit] ** 2)
        over = there | (place_in_queue == _NEVER)
        # A rank is the length of the way so far and to the goal, times `places`, less `queued` when it was found.
        length = (place_in_queue + places - 1) // places - jnp.where(number == starts[unit], 0, down[number] + right[number])
        open_ = free & ~closed[unit] & ~search.reserved & ~search.seen
        seen, rank, first = search.seen, jnp.where(here, _NEVER, search.rank), search.first
        for d, (step_down, step_right) in enumerate(DIRECTIONS.tolist()):
            found = open_ & (rows == number // width + step_down) & (columns == number % width + step_right)
            rank = jnp.where(found, (length + 1 + down + right) * places - (search.queued + d), rank)
            first = jnp.where(found, jnp.where(number == starts[unit], d, step), first)
            seen |= found
        way = jnp.where(there, step, -1)
        enters = there & (cells == starts[unit] + jnp.asarray(DIRECTIONS @ np.array([width, 1]))[way])
        after = search._replace(unit=unit + 1, steps=search.steps.at[order[unit]].set(way), reserved=search.reserved | enters)
        going_on = search._replace(seen=seen, rank=rank, first=first, queued=search.queued + 4)
        return jax.tree.map(lambda a, b: jnp.where(over, a, b), begun(after), going_on)

    nothing = jnp.zeros(cells.shape, bool)
    zero = jnp.zeros((), jnp.int32)
    start = _Search(zero, jnp.full(goes.shape, -1), nothing, nothing, cells, cells, zero)
    return jax.lax.while_loop(lambda search: search.unit < jnp.sum(goes), leave, begun(start)).steps
