"""How long units wait that are given no order."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rljax.envs.microrts.rules.engine import is_idle
from rljax.envs.microrts.rules.layout import games_last, over_cells
from rljax.envs.microrts.rules.state import Orders, RTSState
from rljax.envs.microrts.rules.units import NONE


class Waits(NamedTuple):
    """How long units wait that are given no order.

    Attributes:
        cycles: largest number of cycles.
        until_change: whether they wait only until something changes; False: always `cycles`.
    """

    cycles: int
    until_change: bool

    def of(self, state: RTSState, orders: Orders) -> jax.Array:
        """Return the number of cycles, i8 []: one if a unit is given an order, since others may then decide otherwise."""
        longest = self.longest(state)
        return jnp.where(_any_given(state, orders), jnp.int8(1), longest) if self.until_change else longest

    def longest(self, state: RTSState) -> jax.Array:
        """Return the number of cycles if no unit is given an order, i8 []."""
        if not self.until_change:
            return jnp.asarray(self.cycles, jnp.int8)
        return jnp.minimum(_until_next_end(state), self.cycles).astype(jnp.int8)


@games_last
def _any_given(state: RTSState, orders: Orders) -> jax.Array:
    return over_cells(jnp.logical_or, is_idle(state) & (orders.action != NONE))


@games_last
def _until_next_end(state: RTSState) -> jax.Array:
    """Return the number of cycles until the first unit is idle that has an order or whose order was cancelled, i16 []."""
    busy = state.remaining > 0
    return over_cells(jnp.minimum, jnp.where(busy, state.remaining, jnp.iinfo(jnp.int16).max))
