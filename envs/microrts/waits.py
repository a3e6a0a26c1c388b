"""How long units wait that are given no order."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rljax.envs.microrts.engine import any_of, around, is_idle
from rljax.envs.microrts.layout import games_last, over_cells
from rljax.envs.microrts.state import Orders, RTSState
from rljax.envs.microrts.units import NONE, RANGE


class Waits(NamedTuple):
    """How long units wait that are given no order.

    Attributes:
        cycles: number of cycles.
        combat_cycles: that of units whose range an enemy is in or would enter with a step; None: as all others.
        until_change: whether units wait no longer than until something changes.
    """

    cycles: int
    combat_cycles: int | None
    until_change: bool

    def of(self, state: RTSState, orders: Orders | None = None) -> jax.Array:
        """Return the number of cycles for the unit in each cell, i8 `[H, W]`.

        Args:
            state: where the game is.
            orders: what both players order now; None: nothing. An order is a change, too.
        """
        wait = jnp.full_like(state.hp, self.cycles)
        if self.until_change:
            first = _until_next_end(state)
            if orders is not None:
                first = jnp.where(_any_given(state, orders), 1, first)
            wait = jnp.minimum(wait, first).astype(wait.dtype)
        if self.combat_cycles is not None:
            wait = jnp.where(_enemies_near(state), jnp.minimum(wait, jnp.int8(self.combat_cycles)), wait)
        return wait


@games_last
def _any_given(state: RTSState, orders: Orders) -> jax.Array:
    return over_cells(jnp.logical_or, is_idle(state) & (orders.action != NONE))


@games_last
def _until_next_end(state: RTSState) -> jax.Array:
    """Return the number of cycles until the first unit is idle that has an order or whose order was cancelled, i16 []."""
    busy = state.remaining > 0
    return over_cells(jnp.minimum, jnp.where(busy, state.remaining, jnp.iinfo(jnp.int16).max))


@games_last
def _enemies_near(state: RTSState) -> jax.Array:
    """Return which units could attack an enemy that is a step nearer, bool `[H, W]`; ranges are counted in steps here."""
    near = []
    for player in range(2):
        seen = state.owner == 1 - player
        for distance in range(1, RANGE.max() + 2):
            seen = any_of([seen, *around(seen, False)])
            attacks = [state.unit == kind for kind, reach in enumerate(RANGE) if reach and reach + 1 == distance]
            if attacks:
                near.append((state.owner == player) & any_of(attacks) & seen)
    return any_of(near)
