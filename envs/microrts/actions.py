"""Actions of a player as orders: which there are in a cell, which are legal, and what they order.

Two encodings give every cell its own action. "cells" has one head for each cell, of the 65 orders that some unit may be given.
"gridnet" has the seven heads of Gym-microRTS for each cell (Huang et al., "Gym-microRTS: toward affordable full game real-time
strategy games research with deep reinforcement learning", 2021): type, directions of move, harvest, return and production, type
to produce, target; only those that the type needs are read. In cells without an idle unit of the player, the first action of each
head is the only legal one; to the second player, whose side is turned (`rljax.envs.microrts.seats`), it is the first too.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rljax.envs.microrts.rules.bits import count, nth, pack, unpack, words
from rljax.envs.microrts.rules.engine import IN_REACH, Padded, along, around, is_legal, of_type, paid, resources_left
from rljax.envs.microrts.rules.layout import games_last, once
from rljax.envs.microrts.rules.state import LegalOrders, Orders, RTSState
from rljax.envs.microrts.rules.units import (
    ATTACK,
    BASE,
    COST,
    DIRECTIONS,
    EMPTY,
    HARVEST,
    HEADS,
    MOVE,
    NONE,
    NUM_TYPES,
    PRODUCE,
    RETURN,
    TURNED_HEADS,
)

_MADE = tuple(range(BASE, NUM_TYPES))
ORDERS = np.array(
    [(NONE, 0, EMPTY)]
    + [(action, d, EMPTY) for action in (MOVE, HARVEST, RETURN) for d in range(4)]
    + [(PRODUCE, d, kind) for d in range(4) for kind in _MADE]
    + [(ATTACK, target, EMPTY) for target in IN_REACH],
    np.int8,
)
"""The 65 orders of a cell: action, parameter and product."""

NUM_ORDERS = len(ORDERS)

BIAS = 5
"""How much more often `biased_choice` draws an attack, a harvest or a return of resources than any other order."""

_PREFERRED = np.packbits(np.isin(ORDERS[:, 0], (HARVEST, RETURN, ATTACK)), bitorder="little")
"""These orders, as bits in the order of `pack`."""


@games_last
def cell_mask(legal: LegalOrders) -> jax.Array:
    """Return which of the orders in `ORDERS` are legal in each cell, bool `[65, H, W]`; to wait always is."""
    return jnp.stack(_planes(legal))


def _planes(legal: LegalOrders) -> list[jax.Array]:
    produce = [legal.produce[d] & legal.product[kind] for d in range(4) for kind in _MADE]
    attack = [legal.attack[target] for target in IN_REACH]
    wait = jnp.ones_like(legal.move[0])
    return [wait, *legal.move, *legal.harvest, *legal.give, *produce, *attack]


@games_last
def random_choice(legal: LegalOrders, bits: jax.Array) -> jax.Array:
    """Return a random legal order of each cell, uniform over those in `ORDERS`, as an index, i8 `[H, W]`.

    Args:
        legal: the legal orders.
        bits: random bits, u16 `[H, W]`.
    """
    packed = once(pack(_planes(legal)))
    # 16 bits times at most 65 orders fit into 32.
    number = once((bits.astype(jnp.uint32) * once(count(packed)).astype(jnp.uint32) >> 16).astype(jnp.uint8))
    return once(nth(packed, number).astype(jnp.int8))


@games_last
def biased_choice(legal: LegalOrders, bits: jax.Array) -> jax.Array:
    """Do as `random_choice`, but attacks, harvests and returns of resources have `BIAS` times the weight of other orders."""
    packed = once(pack(_planes(legal)))
    preferred, others = ([byte & bit for byte, bit in zip(packed, bits_, strict=True)] for bits_ in (_PREFERRED, ~_PREFERRED))
    weight = once(count(preferred) * np.uint8(BIAS))
    # 16 bits times a weight of at most 29 + 5 * 36 = 209 fit into 32.
    number = bits.astype(jnp.uint32) * once(weight + count(others)).astype(jnp.uint32) >> 16
    number = once(number.astype(jnp.uint8))
    prefers = number < weight
    among = [jnp.where(prefers, *pair) for pair in zip(preferred, others, strict=True)]
    return once(nth(among, jnp.where(prefers, number // np.uint8(BIAS), number - weight)).astype(jnp.int8))


@games_last
def gridnet_mask(state: RTSState, legal: LegalOrders) -> jax.Array:
    """Return the legal actions of the seven heads of each cell, bool `[78, H, W]`, in the map's orientation."""
    heads = [legal.move, legal.harvest, legal.give, legal.produce, legal.product, legal.attack]
    can = [jnp.any(planes, axis=0) for planes in heads]
    types = jnp.stack([jnp.ones_like(can[0]), *can[:4], can[5]])
    filled = [_first_if_none(state, planes, turned) for planes, turned in zip(heads, TURNED_HEADS[1:], strict=True)]
    return jnp.concatenate([types, *filled])


def read_heads(cells: int) -> tuple[tuple[int, tuple[int, ...]] | None, ...]:
    """Return with which types of orders the heads of "gridnet" are read, as `MultiDiscrete` takes it, 7 for each cell."""
    kinds = (MOVE, HARVEST, RETURN, PRODUCE, PRODUCE, ATTACK)
    return tuple(entry for cell in range(cells) for entry in (None, *((len(HEADS) * cell, (kind,)) for kind in kinds)))


def _first_if_none(state: RTSState, planes: jax.Array, turned: np.ndarray) -> jax.Array:
    none, second = ~jnp.any(planes, axis=0), state.owner == 1
    planes = planes.at[0].set(planes[0] | none & ~second)
    return planes.at[turned[0]].set(planes[turned[0]] | none & second)


def player_masks(state: RTSState, mask: jax.Array, turned: tuple[np.ndarray, ...]) -> jax.Array:
    """Return the masks of both players, bool `[2, H * W * A]`, the second's after half a turn.

    In cells without an idle unit of the player only the first action of each head is legal.

    Args:
        state: the state.
        mask: legal actions of each cell's unit, bool `[A, H, W]`.
        turned: the actions of each head of a cell after half a turn; all heads have A actions together.
    """
    starts = np.cumsum([0, *(len(head) for head in turned)])
    order = np.concatenate([start + head for start, head in zip(starts, turned, strict=False)])
    first = np.packbits(np.isin(np.arange(len(order)), starts), bitorder="little")

    @games_last
    def packed(state: RTSState, mask: jax.Array) -> list[jax.Array]:
        # The second player's side is turned while it is still in bits: to move every action of every cell takes much longer.
        sides = [pack([*mask]), [byte[::-1, ::-1] for byte in pack([mask[i] for i in order])]]
        own = [state.owner == 0, state.owner[::-1, ::-1] == 1]
        masks = [
            words([jnp.where(cells, byte, fill) for byte, fill in zip(once(side), first, strict=True)])
            for cells, side in zip(own, sides, strict=True)
        ]
        return [jnp.stack(pair) for pair in zip(*masks, strict=True)]

    return once(unpack(packed(state, mask), len(order))).reshape(2, -1)


def orders_of_cells(state: RTSState, action: jax.Array) -> Orders:
    """Return the orders of both players' actions i32 `[2, H * W]`, indices in `ORDERS`."""
    return orders_at(_of_owner(state, action.reshape(2, *state.unit.shape)).astype(jnp.int8))


@games_last
def orders_at(choice: jax.Array) -> Orders:
    """Return the orders of which these are the indices in `ORDERS`, i8 `[H, W]`."""
    choice = once(choice)
    return once(Orders(*(_look_up(column, choice) for column in ORDERS.T)))


def _look_up(table: np.ndarray, index: jax.Array) -> jax.Array:
    """Return `table[index]`, computed as a sum of steps: XLA for CPUs takes from tables one element at a time."""
    result = jnp.full(index.shape, table[0])
    for i in np.flatnonzero(np.diff(table)):
        result += jnp.where(index > np.int8(i), table[i + 1] - table[i], np.int8(0))
    return result


def orders_of_gridnet(state: RTSState, action: jax.Array) -> Orders:
    """Return the orders of both players' actions i32 `[2, H * W * 7]`."""
    heads = action.reshape(2, *state.unit.shape, len(HEADS)).astype(jnp.int8)
    kind, move, harvest, give, produce, product, target = (_of_owner(state, heads[..., i]) for i in range(len(HEADS)))
    parameter = jnp.zeros_like(kind)
    for type_, head in ((MOVE, move), (HARVEST, harvest), (RETURN, give), (PRODUCE, produce), (ATTACK, target)):
        parameter = jnp.where(kind == type_, head, parameter)
    return Orders(kind, parameter, jnp.where(kind == PRODUCE, product, EMPTY).astype(jnp.int8))


def _of_owner(state: RTSState, of_players: jax.Array) -> jax.Array:
    return jnp.where(state.owner == 1, of_players[1], of_players[0])


@games_last
def drop_own_conflicts(state: RTSState, orders: Orders, legal: LegalOrders) -> Orders:
    """Return the orders without those that are not legal and those that need what an earlier order of the player needs.

    As in Gym-microRTS, orders are taken row by row, and one that needs the same cell, or resources that those before it leave no
    longer, is not given: its unit stays idle. A production whose cell is taken still takes its resources from those after it.
    """
    valid = is_legal(orders, legal)
    cost = jnp.where(valid & (orders.action == PRODUCE), of_type(COST, orders.product), 0).astype(jnp.int32)
    left = resources_left(state)
    for player in range(2):
        own = jnp.where(state.owner == player, cost, 0)
        valid &= (own == 0) | paid(own, left[player])
    enters = valid & ((orders.action == MOVE) | (orders.action == PRODUCE))
    units = Padded(jnp.where(enters, orders.parameter + 4 * state.owner, -1), -1)
    taken = [jnp.zeros_like(valid)] * 2
    late = jnp.zeros_like(orders.parameter)
    # The unit above a cell comes first (it goes down), then those on its left and right, then the one below.
    for d in (2, 1, 3, 0):
        for player in range(2):
            wants = units.at(-DIRECTIONS[d]) == d + 4 * player
            late += jnp.where(wants & taken[player], 1 << d, 0).astype(late.dtype)
            taken[player] |= wants
    valid &= ~(enters & along([(bits >> d) & 1 > 0 for d, bits in enumerate(around(late, 0))], orders.parameter))
    return Orders(
        jnp.where(valid, orders.action, NONE).astype(jnp.int8),
        jnp.where(valid, orders.parameter, 0).astype(jnp.int8),
        jnp.where(valid, orders.product, EMPTY).astype(jnp.int8),
    )
