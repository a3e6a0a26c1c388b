"""How long units wait that are given no order."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rljax.envs.microrts.engine import any_of, around
from rljax.envs.microrts.layout import games_last
from rljax.envs.microrts.state import RTSState
from rljax.envs.microrts.units import RANGE


class Waits(NamedTuple):
    """How long units wait that are given no order.

    Attributes:
        cycles: number of cycles.
        combat_cycles: that of units whose range an enemy is in or would enter with a step; None: as all others.
    """

    cycles: int
    combat_cycles: int | None

    def of(self, state: RTSState) -> jax.Array:
        """Return the number of cycles for the unit in each cell, i8 `[H, W]`."""
        usual = jnp.full_like(state.hp, self.cycles)
        if self.combat_cycles is None:
            return usual
        return jnp.where(_enemies_near(state), jnp.int8(self.combat_cycles), usual)


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
