"""The state of a game of MicroRTS and the orders given in it, as arrays over the cells of the map."""

from __future__ import annotations

import jax
from flax import struct


class RTSState(struct.PyTreeNode):
    """State of a game on a map of H x W cells. Cells without a unit have -1 in `unit`, `owner` and `product`, and 0 elsewhere.

    Attributes:
        unit: type of the unit in each cell, i8 `[H, W]`; -1: none.
        owner: 0 or 1; -1 for resources and empty cells; i8 `[H, W]`.
        hp: hit points, i8 `[H, W]`.
        carried: resources that a worker carries or that a resource has left, i8 `[H, W]`.
        action: type of the action under way, i8 `[H, W]`; NONE if the unit is idle or waits.
        parameter: its direction (0 to 3), or for an attack the index of its target in `OFFSETS`, i8 `[H, W]`.
        product: type of the unit that is produced, i8 `[H, W]`; -1: none.
        remaining: cycles until the action happens, i16 `[H, W]`; 0: the unit is idle and may be given an order.
        born: cycle in which the unit appeared, i16 `[H, W]`; those of the start have -n, ..., -1 in the order of the map.
            Only scripted players read it: their oldest worker harvests, say.
        resources: resources of both players, i32 `[2]`.
        time: cycles played, i32 `[]`.
    """

    unit: jax.Array
    owner: jax.Array
    hp: jax.Array
    carried: jax.Array
    action: jax.Array
    parameter: jax.Array
    product: jax.Array
    remaining: jax.Array
    born: jax.Array
    resources: jax.Array
    time: jax.Array


class Orders(struct.PyTreeNode):
    """One order for each cell, for the units of both players; those for cells without an idle unit of a player are not read.

    Attributes:
        action: type of the action, i8 `[H, W]`. NONE: wait for `parameter` cycles; 0 of them: no order, the unit stays idle.
        parameter: direction of a move, harvest, return or production, or the index in `OFFSETS` of the target of an attack,
            i8 `[H, W]`.
        product: type of the unit to produce, i8 `[H, W]`; read for productions only.
    """

    action: jax.Array
    parameter: jax.Array
    product: jax.Array


class LegalOrders(struct.PyTreeNode):
    """Legal orders of the idle units, each bool `[n, H, W]`; all False for cells without an idle unit of a player.

    To wait is always legal. A production is legal if its direction and its type both are.

    Attributes:
        move, harvest, give, produce: by direction, `[4, H, W]`; `give` is to return resources to a base.
        product: by the type of unit, `[7, H, W]`.
        attack: by the target, `[49, H, W]`.
    """

    move: jax.Array
    harvest: jax.Array
    give: jax.Array
    produce: jax.Array
    product: jax.Array
    attack: jax.Array
