"""Positions of the Java engine as states of the JAX engine, and orders from one to the other."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from rljax.envs.microrts.java.positions import Position, orders_array
from rljax.envs.microrts.rules.state import Orders, RTSState
from rljax.envs.microrts.rules.units import (
    ATTACK,
    ATTACK_TIME,
    EMPTY,
    HARVEST,
    HARVEST_TIME,
    MOVE,
    MOVE_TIME,
    NONE,
    NUM_TYPES,
    OFFSETS,
    PRODUCE,
    PRODUCE_TIME,
    REACH,
    RETURN,
    RETURN_TIME,
    SPAN,
)

_FIXED_TIME = {HARVEST: HARVEST_TIME, RETURN: RETURN_TIME, ATTACK: ATTACK_TIME}


def state_of(position: Position) -> RTSState:
    """Return a position of the Java engine as a state of the JAX engine, with NumPy arrays."""
    shape = position.terrain.shape
    unit, owner, product = (np.full(shape, EMPTY, np.int8) for _ in range(3))
    hp, carried, action, parameter = (np.zeros(shape, np.int8) for _ in range(4))
    remaining, born = (np.zeros(shape, np.int16) for _ in range(2))
    places = {}
    # The engine adds new units at the end of its list.
    for number, (name, kind, player, x, y, load, health) in enumerate(position.units.tolist(), -len(position.units)):
        places[name] = y, x
        born[y, x] = number
        unit[y, x], owner[y, x], carried[y, x], hp[y, x] = kind, player, load, health
    for order, started in zip(position.orders.tolist(), position.started.tolist(), strict=True):
        place = places[order[0]]
        kind, direction, made = encoded(order, *place)
        action[place], product[place] = kind, made
        parameter[place] = 0 if kind == NONE else direction
        remaining[place] = started + duration(kind, direction, made, int(unit[place])) - position.time
    time = np.asarray(position.time, np.int32)
    fields: tuple[Any, ...] = (unit, owner, hp, carried, action, parameter, product, remaining, born, position.resources, time)
    return RTSState(*fields)


def position_of(state: RTSState, walls: np.ndarray) -> Position:
    """Return a state of the JAX engine, with NumPy arrays, as a position of the Java engine: the inverse of `state_of`.

    Units are numbered in the order of their birth, and one that waits is said to have begun just now.
    """
    places = _by_age(state)
    columns = (state.unit, state.owner, places[1], places[0], state.carried, state.hp)
    of_units = [column[places] if column.ndim == 2 else column for column in columns]
    units = np.stack([np.arange(len(places[0])), *of_units], axis=1).astype(np.int32)
    orders, started = [], []
    for number, row, column in zip(range(len(units)), *(axis.tolist() for axis in places), strict=True):
        place = row, column
        left, kind, parameter, product = (int(x[place]) for x in (state.remaining, state.action, state.parameter, state.product))
        if left:
            parameter = left if kind == NONE else parameter
            orders.append(_row(number, kind, parameter, product, row, column))
            started.append(int(state.time) + left - duration(kind, parameter, product, int(state.unit[place])))
    resources = np.asarray(state.resources, np.int32)
    return Position(walls, int(state.time), resources, units, orders_array(orders), np.array(started, np.int32))


def lasting_ids(state: RTSState) -> np.ndarray:
    """Return a number for each unit of `position_of(state)` that stays its own while it lives, i32 `[n]`, above 0.

    Units of one player and type that appear in the same cycle share one.
    """
    places = _by_age(state)
    begun = state.born[places].astype(np.int32) - np.iinfo(np.int16).min
    return np.asarray((begun * 3 + state.owner[places] + 1) * NUM_TYPES + state.unit[places])


def _by_age(state: RTSState) -> tuple[np.ndarray, ...]:
    """Return the cells of all units, rows and columns, in the order of their birth."""
    places = np.nonzero(state.unit != EMPTY)
    return tuple(axis[np.argsort(state.born[places], kind="stable")] for axis in places)


def duration(action: int, parameter: int, product: int, unit: int) -> int:
    """Return the number of cycles that an action of a unit takes."""
    if action in _FIXED_TIME:
        return _FIXED_TIME[action]
    return int({NONE: parameter, MOVE: MOVE_TIME[unit], PRODUCE: PRODUCE_TIME[product]}[action])


def encoded(order: list[int], row: int, column: int) -> tuple[int, int, int]:
    """Return action, parameter and product, as in `Orders`, of a row of `orders_array` for the unit in a cell."""
    _, kind, parameter, produced, x, y = order
    if kind == ATTACK:
        return kind, (y - row + REACH) * SPAN + x - column + REACH, EMPTY
    return kind, max(parameter, 0), produced


def orders_of(position: Position, orders: np.ndarray) -> Orders:
    """Return orders i32 `[K, 6]` as those of the JAX engine, with NumPy arrays; other cells wait 0 cycles."""
    planes = np.zeros((3, *position.terrain.shape), np.int8)
    planes[2] = EMPTY
    places = {unit[0]: (unit[4], unit[3]) for unit in position.units.tolist()}
    for order in orders.tolist():
        place = places[order[0]]
        planes[(slice(None), *place)] = encoded(order, *place)
    return Orders(*planes)


def rows_of(position: Position, orders: Orders, player: int) -> np.ndarray:
    """Return a player's orders of the JAX engine as i32 `[K, 6]`, in the order of the map's rows; the inverse of `orders_of`.

    Units that have an order under way, or wait 0 cycles, are left out.
    """
    planes = np.stack([np.asarray(plane) for plane in jax.tree.leaves(orders)]).astype(int)
    busy = set(position.orders[:, 0].tolist())
    found = []
    for name, _, owner, x, y, _, _ in sorted(position.units.tolist(), key=lambda unit: (unit[4], unit[3])):
        action, parameter, product = planes[:, y, x].tolist()
        if owner != player or name in busy or (action == NONE and parameter == 0):
            continue
        found.append(_row(name, action, parameter, product, y, x))
    return orders_array(found)


def _row(name: int, action: int, parameter: int, product: int, row: int, column: int) -> tuple[int, ...]:
    """Return the row of `orders_array` of an order of the JAX engine for the unit in a cell: the inverse of `encoded`."""
    if action == ATTACK:
        down, right = OFFSETS[parameter]
        return name, action, -1, -1, column + right, row + down
    return name, action, parameter, product if action == PRODUCE else -1, -1, -1
