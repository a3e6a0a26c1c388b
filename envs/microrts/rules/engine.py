"""The rules of MicroRTS: legal orders, what becomes of the orders of one cycle, and the actions that are due at its end.

Everything is computed for all cells at once: rows and columns are the first axes, and any that follow, such as games, are left as
they are (see `games_last`). The rules were taken from the description of microRTS (Ontanon, "The combinatorial multi-armed bandit
problem and its application to real-time strategy games", 2013) and from the behaviour of its engine, with which the tests compare
this one. Actions that are due in the same cycle happen in the order in which they were ordered: productions first, then harvests,
returns and moves, and attacks, the shortest, last.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.envs.microrts.rules.bits import is_set, pack
from rljax.envs.microrts.rules.layout import games_last, once, over_cells, running_sum
from rljax.envs.microrts.rules.state import LegalOrders, Orders, RTSState
from rljax.envs.microrts.rules.units import (
    ATTACK,
    ATTACK_TIME,
    BASE,
    COST,
    DAMAGE,
    DIRECTIONS,
    EMPTY,
    HARVEST,
    HARVEST_TIME,
    HP,
    MOBILE,
    MOVE,
    MOVE_TIME,
    NONE,
    NUM_TYPES,
    OFFSETS,
    PRODUCE,
    PRODUCE_TIME,
    PRODUCES,
    RANGE,
    REACH,
    RESOURCE,
    RETURN,
    RETURN_TIME,
    WORKER,
)

NOT_OVER, DRAW = -2, -1
_DISTANCE = np.hypot(OFFSETS[:, 0], OFFSETS[:, 1])
PRICES = sorted(set(COST.tolist()), reverse=True)
"""The costs of products, from the largest to the smallest."""
IN_REACH = [int(i) for i in np.flatnonzero((_DISTANCE > 0) & (RANGE.max() >= _DISTANCE))]
"""The targets in `OFFSETS` that a unit can reach."""


class Padded:
    """An array over the cells with a margin, whose shifts are slices: much faster than to pad each shift."""

    def __init__(self, cells: jax.Array, fill: Any, margin: int = 1):
        edges = [(margin, margin, 0)] * 2 + [(0, 0, 0)] * (cells.ndim - 2)
        self.cells = once(jax.lax.pad(once(cells), jnp.asarray(fill, cells.dtype), edges))
        self.shape, self.margin = cells.shape[:2], margin

    def at(self, offset: np.ndarray) -> jax.Array:
        """Return for every cell the value of the cell `offset` (rows and columns) away, `[H, W]`."""
        top, left = (self.margin + int(step) for step in offset)
        return self.cells[top : top + self.shape[0], left : left + self.shape[1]]


def of_type(table: np.ndarray, kind: jax.Array) -> jax.Array:
    """Return the entry of a table `[7]` for each cell's type, in the dtype of `kind`; 0 where there is none (-1)."""
    result = jnp.zeros_like(kind)
    for value in np.unique(table[table != 0]):
        is_value = [kind == t for t in np.flatnonzero(table == value)]
        result = jnp.where(any_of(is_value), kind.dtype.type(value), result)
    return result


def any_of(planes: list[jax.Array]) -> jax.Array:
    """Return where any of the planes, bool `[...]`, is True."""
    result = planes[0]
    for plane in planes[1:]:
        result = result | plane
    return result


def is_idle(state: RTSState) -> jax.Array:
    """Return which cells have a unit that may be given an order, bool `[H, W]`."""
    return (state.owner >= 0) & (state.remaining == 0)


def claims(acting: jax.Array, direction: jax.Array) -> list[jax.Array]:
    """Return for each direction which cells are the target of a unit that acts in that direction, 4 bool `[H, W]`."""
    chosen = Padded(jnp.where(acting, direction, -1), -1)
    return [chosen.at(-DIRECTIONS[d]) == d for d in range(4)]


def along(planes: list[jax.Array], direction: jax.Array) -> jax.Array:
    """Return for every cell the value of `planes[direction]`; of the first where the direction is not 0 to 3."""
    result = planes[0]
    for d in range(1, 4):
        result = jnp.where(direction == d, planes[d], result)
    return result


def around(x: jax.Array, fill: Any) -> list[jax.Array]:
    """Return for every cell the values of the cells above, on the right, below and on the left, 4 `[H, W]`."""
    padded = Padded(x, fill)
    return [padded.at(offset) for offset in DIRECTIONS]


def _spent(state: RTSState, paying: jax.Array, product: jax.Array) -> jax.Array:
    """Return what both players pay for the products of the cells in `paying`, i32 `[2]`."""
    return _by_player(state, jnp.where(paying, of_type(COST, product), 0))


def _by_player(state: RTSState, amount: jax.Array) -> jax.Array:
    """Return the sum over the cells of each player's units, i32 `[2]`; its size must be less than 2^15."""
    # Both sums at once, each in 16 bits.
    both = over_cells(
        jnp.add, jnp.where(state.owner == 1, amount.astype(jnp.int32) << 16, jnp.where(state.owner == 0, amount, 0))
    )
    first = ((both + (1 << 15)) & 0xFFFF) - (1 << 15)
    return jnp.stack([first, (both - first) >> 16])


def resources_left(state: RTSState) -> jax.Array:
    """Return the resources of both players that no production under way has reserved, i32 `[2]`."""
    return state.resources - _spent(state, state.action == PRODUCE, state.product)


def paid(cost: jax.Array, left: jax.Array) -> jax.Array:
    """Return which costs are paid, bool `[H, W]`, if cells pay row by row and one that is too dear for what is left is left out.

    Args:
        cost: costs of products, 0 where there is none, i32 `[H, W]`.
        left: resources of the player, i32 `[]`.
    """
    # In 16 bits if the sum fits.
    dtype = np.int16 if cost.shape[0] * cost.shape[1] * PRICES[0] < 2**15 else np.int32
    cost, left = cost.astype(dtype), jnp.minimum(left, np.iinfo(dtype).max).astype(dtype)
    # From the dearest on: where a cheaper one cannot be paid, a dearer one after it cannot either.
    for price in PRICES:
        cost = jnp.where((cost == price) & (running_sum(cost) > left), 0, cost)
    return cost > 0


def free_cells(state: RTSState, walls: np.ndarray) -> jax.Array:
    """Return which cells are empty, no wall, and not the target of a move or production under way, bool `[H, W]`."""
    enters = (state.action == MOVE) | (state.action == PRODUCE)
    return (state.unit == EMPTY) & ~walls & ~any_of(claims(enters, state.parameter))


@games_last
def legal_orders(state: RTSState, walls: np.ndarray) -> LegalOrders:
    """Return the legal orders of all idle units of both players."""
    idle = is_idle(state)
    left = resources_left(state)
    free = around(free_cells(state, walls), False)
    worker, mobile = idle & (state.unit == WORKER), idle & (of_type(MOBILE.astype(int), state.unit) > 0)
    empty_handed, loaded = worker & (state.carried == 0), worker & (state.carried > 0)
    own_base = [loaded & (base == state.owner) for base in around(jnp.where(state.unit == BASE, state.owner, -1), -1)]
    # In bytes, as the costs are small.
    left = once(jnp.minimum(left, np.iinfo(np.int8).max).astype(jnp.int8))
    budget = jnp.where(state.owner == 0, left[0], left[1])
    affordable = {cost: idle & (budget >= cost) for cost in set(COST.tolist())}
    beside_free = any_of(free)
    product = [
        affordable[int(COST[t])] & beside_free & any_of([state.unit == maker for maker in np.flatnonzero(PRODUCES[:, t])])
        if PRODUCES[:, t].any()
        else jnp.zeros_like(idle)
        for t in range(NUM_TYPES)
    ]
    return LegalOrders(
        move=jnp.stack([mobile & cell for cell in free]),
        harvest=jnp.stack([empty_handed & cell for cell in around(state.unit == RESOURCE, False)]),
        give=jnp.stack(own_base),
        produce=jnp.stack([any_of(product) & cell for cell in free]),
        product=jnp.stack(product),
        attack=_attackable(state, mobile),
    )


def _attackable(state: RTSState, mobile: jax.Array) -> jax.Array:
    reach = jnp.where(mobile, of_type(RANGE, state.unit), 0)
    opponent = jnp.where(state.owner >= 0, 1 - state.owner, -2)
    owner = Padded(state.owner, -1, REACH)
    planes = [jnp.zeros_like(mobile)] * len(OFFSETS)
    for i in IN_REACH:
        planes[i] = (reach >= int(np.ceil(_DISTANCE[i]))) & (owner.at(OFFSETS[i]) == opponent)
    return jnp.stack(planes)


@games_last
def is_legal(orders: Orders, legal: LegalOrders) -> jax.Array:
    """Return which cells' orders are legal actions, bool `[H, W]`; waiting is not one of them."""
    directed = once(pack([*legal.move, *legal.harvest, *legal.give, *legal.produce]))
    product, attack = once(pack([*legal.product])), once(pack([*legal.attack]))
    can_act = (orders.parameter >= 0) & (orders.parameter < 4) & is_set(directed, 4 * (orders.action - MOVE) + orders.parameter)
    can_make = (orders.action != PRODUCE) | is_set(product, orders.product)
    return (orders.action != NONE) & jnp.where(orders.action == ATTACK, is_set(attack, orders.parameter), can_act & can_make)


def _durations(state: RTSState, orders: Orders) -> jax.Array:
    """Return how many cycles each cell's order takes, u8 `[H, W]`."""
    by_action = {
        NONE: orders.parameter.astype(jnp.uint8),
        MOVE: of_type(MOVE_TIME, state.unit.astype(jnp.uint8)),
        PRODUCE: of_type(PRODUCE_TIME, orders.product.astype(jnp.uint8)),
        HARVEST: HARVEST_TIME, RETURN: RETURN_TIME, ATTACK: ATTACK_TIME,
    }  # fmt: skip
    result = jnp.zeros(state.unit.shape, jnp.uint8)
    for action, duration in by_action.items():
        result = jnp.where(orders.action == action, jnp.asarray(duration, jnp.uint8), result)
    return result


@games_last
def issue(state: RTSState, orders: Orders, walls: np.ndarray) -> RTSState:
    """Give orders to the idle units of both players; orders for other cells are not read.

    A unit whose order is not legal waits for as long as the order would have taken, and so do units whose orders are in conflict,
    for the shortest of their orders: those that would enter the same cell, and all productions of a player that cannot pay for
    them together. microRTS compares conflicting orders two by two, so with three or more its result depends on the order of its
    list; here it does not.
    """
    return carry_out(state, orders, is_legal(orders, legal_orders(state, walls)))


@games_last
def carry_out(state: RTSState, orders: Orders, valid: jax.Array) -> RTSState:
    """Do `issue` for orders of which is known which are legal, bool `[H, W]`."""
    idle = is_idle(state)
    valid = idle & valid
    duration = _durations(state, orders)
    enters = valid & ((orders.action == MOVE) | (orders.action == PRODUCE))
    wait = _shortest_of_rivals(enters, orders.parameter, duration)
    produces = valid & (orders.action == PRODUCE)
    cannot_pay = _spent(state, produces, orders.product) > resources_left(state)
    for player in range(2):
        own = produces & (state.owner == player)
        shortest = over_cells(jnp.minimum, jnp.where(own, duration, _LONG))
        wait = jnp.where(own & cannot_pay[player], jnp.minimum(wait, shortest), wait)
    cancelled = wait < _LONG
    acts, duration, wait = once((valid & ~cancelled, duration, wait))
    return state.replace(
        action=jnp.where(acts, orders.action, jnp.where(idle, NONE, state.action)),
        parameter=jnp.where(acts, orders.parameter, jnp.where(idle, 0, state.parameter)),
        product=jnp.where(acts & (orders.action == PRODUCE), orders.product, jnp.where(idle, EMPTY, state.product)),
        remaining=jnp.where(idle, once(jnp.where(cancelled, wait, duration)).astype(jnp.int16), state.remaining),
    )


_LONG = np.uint8(255)
"""Longer than any order."""


def _shortest_of_rivals(enters: jax.Array, direction: jax.Array, duration: jax.Array) -> jax.Array:
    """Return the shortest duration among orders that enter the same cell, u8 `[H, W]`; `_LONG` for those without rivals."""
    entering = claims(enters, direction)
    rivals = sum(plane.astype(jnp.int8) for plane in entering)
    shortest, durations = jnp.full(enters.shape, _LONG), Padded(duration, _LONG)
    for d, plane in enumerate(entering):
        shortest = jnp.minimum(shortest, jnp.where(plane, durations.at(-DIRECTIONS[d]), _LONG))
    contested = jnp.where(rivals > 1, shortest, _LONG)
    return jnp.where(enters, along(around(contested, _LONG), direction), _LONG)


@games_last
def advance(state: RTSState) -> RTSState:
    """Play one cycle: all actions that are due happen, then units without hit points die."""
    due = state.remaining == 1
    state = state.replace(remaining=jnp.maximum(state.remaining - 1, 0), time=state.time + 1)
    state, due = once((state, due))
    acts = {action: due & (state.action == action) for action in (MOVE, HARVEST, RETURN, PRODUCE, ATTACK)}
    damage = jnp.where(acts[ATTACK], of_type(DAMAGE, state.unit), 0)
    aim, direction, product = state.parameter, state.parameter, state.product
    state = state.replace(
        action=jnp.where(due, NONE, state.action),
        parameter=jnp.where(due, 0, state.parameter),
        product=jnp.where(due, EMPTY, state.product),
    )
    gives = acts[RETURN] & along(around(state.unit == BASE, False), direction)
    cost = jnp.where(acts[PRODUCE], of_type(COST, product), 0)
    gained = _by_player(state, jnp.where(gives, state.carried, 0) - cost)
    state = state.replace(resources=state.resources + gained, carried=jnp.where(gives, 0, state.carried))
    state = _harvest(state, acts[HARVEST], direction)
    state = _enter(state, acts[MOVE], acts[PRODUCE], direction, product)
    return once(_hit(state, damage, aim))


def _harvest(state: RTSState, harvests: jax.Array, direction: jax.Array) -> RTSState:
    """Workers take one resource each; if too few are left, player 0's workers come first, then those in the upper rows.

    A worker harvests whatever is in its target's cell now, as in Java. If another worker has exhausted the resource meanwhile and
    a unit has come to its place, that unit dies, and the worker has a resource.
    """
    workers = Padded(jnp.where(harvests, direction + 4 * state.owner, -1), -1)
    is_resource, there = state.unit == RESOURCE, state.unit != EMPTY
    left = jnp.where(is_resource, state.carried, there.astype(state.carried.dtype))
    gains = jnp.zeros_like(left)
    # From the upper row to the lower: a worker above a resource harvests downwards (2), one on its left to the right (1).
    for player in range(2):
        for d in (2, 1, 3, 0):
            takes = ((workers.at(-DIRECTIONS[d]) == d + 4 * player) & (left > 0)).astype(left.dtype)
            gains = gains + takes * (1 << d)
            left = left - takes
    gained = harvests & along([(gain >> d) & 1 > 0 for d, gain in enumerate(around(gains, 0))], direction)
    left, gained = once((left, gained))
    carried = jnp.where(is_resource, left, state.carried + gained.astype(state.carried.dtype))
    # What is gone is removed with all units without hit points, after moves and attacks: what it was to do now still happens.
    return state.replace(carried=carried, hp=jnp.where(there & (left <= 0), 0, state.hp))


def _enter(state: RTSState, moves: jax.Array, produces: jax.Array, direction: jax.Array, product: jax.Array) -> RTSState:
    """Units move to, or appear in, the cells that their orders have reserved."""
    kind = jnp.where(produces, product, state.unit)
    hp = jnp.where(produces, of_type(HP, product), state.hp)
    carried = jnp.where(produces, 0, state.carried)
    toward = jnp.where(moves | produces, direction + 1, 0)
    # All that a unit brings along in two bytes, so that few arrays are shifted; it has at most 10 hit points and carries 1.
    head = toward | (kind + 1) << 3 | ((state.owner == 1) << 6).astype(jnp.int8)
    body = hp | carried << 4
    now = jnp.minimum(state.time, np.iinfo(np.int16).max).astype(jnp.int16)
    heads, bodies, births = Padded(head, 0), Padded(body, 0), Padded(jnp.where(produces, now, state.born), 0)
    head, body, born = jnp.zeros_like(head), jnp.zeros_like(body), jnp.zeros_like(state.born)
    for d, offset in enumerate(DIRECTIONS):
        comes = heads.at(-offset) & 7 == d + 1
        head, body = jnp.where(comes, heads.at(-offset), head), jnp.where(comes, bodies.at(-offset), body)
        born = jnp.where(comes, births.at(-offset), born)
    head, body, born = once((head, body, born))
    enters = head > 0
    state = _clear(state, moves)
    return state.replace(
        unit=jnp.where(enters, (head >> 3 & 7) - 1, state.unit),
        owner=jnp.where(enters, head >> 6, state.owner),
        hp=jnp.where(enters, body & 15, state.hp),
        carried=jnp.where(enters, body >> 4, state.carried),
        born=jnp.where(enters, born, state.born),
    )


def _clear(state: RTSState, cells: jax.Array) -> RTSState:
    """Remove the units of these cells."""
    return state.replace(
        unit=jnp.where(cells, EMPTY, state.unit),
        owner=jnp.where(cells, -1, state.owner),
        hp=jnp.where(cells, 0, state.hp),
        carried=jnp.where(cells, 0, state.carried),
        action=jnp.where(cells, NONE, state.action),
        parameter=jnp.where(cells, 0, state.parameter),
        product=jnp.where(cells, EMPTY, state.product),
        remaining=jnp.where(cells, 0, state.remaining),
        born=jnp.where(cells, 0, state.born),
    )


def _hit(state: RTSState, damage: jax.Array, aim: jax.Array) -> RTSState:
    """Attacks reduce the hit points of whatever is in their target's cell now."""
    total = jnp.zeros_like(state.hp)
    shots = Padded(jnp.where(damage > 0, aim, -1), -1, REACH)
    strength = Padded(damage, 0)
    for i in IN_REACH:
        # Only fighters with a damage of 1 hit targets that are not beside them.
        hit = strength.at(-OFFSETS[i]) if _DISTANCE[i] == 1 else jnp.ones_like(total)
        total = total + jnp.where(shots.at(-OFFSETS[i]) == i, hit, 0)
    total = once(total)
    hp = jnp.where(state.unit == EMPTY, 0, state.hp - total)
    return _clear(state.replace(hp=hp), (state.unit != EMPTY) & (hp <= 0))


@games_last
def skip(state: RTSState, max_cycles: jax.Array | int) -> RTSState:
    """Play all cycles before the one in which the next action of a player's unit is due, none if a unit is idle.

    Nothing happens and nothing can be ordered in them. At least one cycle before `max_cycles` is left to be played.
    """
    soonest = over_cells(jnp.minimum, jnp.where(state.owner >= 0, state.remaining, np.iinfo(np.int16).max)).astype(jnp.int32)
    cycles = jnp.clip(soonest - 1, 0, jnp.maximum(max_cycles - 1 - state.time, 0))
    remaining = jnp.maximum(state.remaining - cycles.astype(state.remaining.dtype), 0)
    return state.replace(remaining=remaining, time=state.time + cycles)


@games_last
def cycle(state: RTSState, orders: Orders, walls: np.ndarray) -> RTSState:
    """Give orders to both players' idle units and play one cycle."""
    return advance(issue(state, orders, walls))


@games_last
def winner(state: RTSState) -> jax.Array:
    """Return the player whose opponent has no units, -1 if neither has any (a draw), or -2 if both have, i32 `[]`."""
    alive = [over_cells(jnp.logical_or, state.owner == player) for player in range(2)]
    return jnp.where(alive[0], jnp.where(alive[1], NOT_OVER, 0), jnp.where(alive[1], 1, DRAW)).astype(jnp.int32)


def merge_orders(state: RTSState, first: Orders, second: Orders) -> Orders:
    """Return the orders of player 0 from `first` and those of player 1 from `second`."""
    return jax.tree.map(lambda a, b: jnp.where(state.owner == 0, a, b), first, second)
