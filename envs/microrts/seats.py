"""The second player's side of the map: everything it sees and orders is turned by half, so both players look from the same side.

Maps are symmetric in this way, so what is learned from one seat serves the other.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rljax.envs.microrts.actions import ORDERS
from rljax.envs.microrts.rules.units import ATTACK, NONE, OFFSETS, TURNED_DIRECTIONS, TURNED_HEADS


def _turned_orders() -> np.ndarray:
    def turned(action: int, parameter: int, product: int) -> tuple[int, int, int]:
        if action == NONE:
            return action, parameter, product
        return action, len(OFFSETS) - 1 - parameter if action == ATTACK else int(TURNED_DIRECTIONS[parameter]), product

    orders = [tuple(order) for order in ORDERS.tolist()]
    return np.array([orders.index(turned(*order)) for order in orders])


TURNED = {"cells": (_turned_orders(),), "gridnet": TURNED_HEADS}
"""For each encoding of actions and each of its heads: the actions of a cell after half a turn; after two, nothing
has changed."""


def turn_actions(action: jax.Array, actions: str) -> jax.Array:
    """Return the actions of all cells, i32 `[H W]` or `[H W K]` flat, row by row, after half a turn."""
    heads = action.reshape(-1, len(TURNED[actions]))[::-1]
    turned = [jnp.asarray(head, action.dtype)[heads[:, k]] for k, head in enumerate(TURNED[actions])]
    return jnp.stack(turned, axis=-1).reshape(action.shape)
