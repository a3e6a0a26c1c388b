"""Positions and orders of microRTS as NumPy arrays that belong to no engine: what the Java engine says, and nothing else."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

UNIT_TYPES = ("Resource", "Base", "Barracks", "Worker", "Light", "Heavy", "Ranged")
"""Names of the unit types, by number."""

NONE, MOVE, HARVEST, RETURN, PRODUCE, ATTACK = range(6)
"""Kinds of orders."""

UNIT_COLUMNS = ("id", "type", "owner", "x", "y", "carried", "hp")
ORDER_COLUMNS = ("id", "kind", "parameter", "produced", "x", "y")


class Position(NamedTuple):
    """State of a game.

    Attributes:
        terrain: walls, bool `[H, W]`.
        time: cycles since the start.
        resources: resources of the two players, i32 `[2]`.
        units: i32 `[U, 7]`, columns `UNIT_COLUMNS`, in the order of the engine's list; the owner of a resource is -1.
        orders: orders under way, i32 `[K, 6]`; columns as in `orders_array`.
        started: cycle at which each order began, i32 `[K]`.
    """

    terrain: np.ndarray
    time: int
    resources: np.ndarray
    units: np.ndarray
    orders: np.ndarray
    started: np.ndarray


def orders_array(rows: Any) -> np.ndarray:
    """Return orders as i32 `[K, 6]`, columns `ORDER_COLUMNS`.

    They are the unit's id, the kind of the order, its direction (0 up, 1 right, 2 down, 3 left; for `NONE` the number of cycles;
    else -1), the type of the unit to produce (else -1), and the cell to attack (else -1, -1).
    """
    return np.array(list(rows), np.int32).reshape(-1, len(ORDER_COLUMNS))


def from_json(table: dict[str, Any]) -> Position:
    """Return the position that the engine's JSON describes."""
    board = table["pgs"]
    height, width = board["height"], board["width"]
    terrain = np.array([cell == "1" for cell in board["terrain"]]).reshape(height, width)
    resources = np.zeros(2, np.int32)
    for player in board["players"]:
        resources[player["ID"]] = player["resources"]
    units = [
        (u["ID"], UNIT_TYPES.index(u["type"]), u["player"], u["x"], u["y"], u["resources"], u["hitpoints"])
        for u in board["units"]
    ]
    orders = orders_array(order_from_json(entry["ID"], entry["action"]) for entry in table["actions"])
    started = np.array([entry["time"] for entry in table["actions"]], np.int32)
    return Position(terrain, table["time"], resources, np.array(units, np.int32).reshape(-1, len(UNIT_COLUMNS)), orders, started)


def to_json(position: Position) -> dict[str, Any]:
    """Return the table from which the engine reads a position: the inverse of `from_json`."""
    height, width = position.terrain.shape
    units = [
        {"type": UNIT_TYPES[kind], "ID": name, "player": owner, "x": x, "y": y, "resources": carried, "hitpoints": hp}
        for name, kind, owner, x, y, carried, hp in position.units.tolist()
    ]
    actions = [
        {"ID": order[0], "time": time, "action": order_to_json(order)}
        for order, time in zip(position.orders.tolist(), position.started.tolist(), strict=True)
    ]
    board = {
        "width": width,
        "height": height,
        "terrain": "".join("01"[int(cell)] for cell in position.terrain.reshape(-1)),
        "players": [{"ID": player, "resources": int(amount)} for player, amount in enumerate(position.resources)],
        "units": units,
    }
    return {"time": int(position.time), "pgs": board, "actions": actions}


def order_from_json(unit: int, action: dict[str, Any]) -> tuple[int, ...]:
    """Return a row of `orders_array`."""
    produced = UNIT_TYPES.index(action["unitType"]) if "unitType" in action else -1
    return unit, action["type"], action.get("parameter", -1), produced, action.get("x", -1), action.get("y", -1)


def order_to_json(order: list[int]) -> dict[str, Any]:
    """Return the engine's table of a row of `orders_array`."""
    _, kind, parameter, produced, x, y = order
    action: dict[str, Any] = {"type": kind}
    if kind == ATTACK:
        return {**action, "x": x, "y": y}
    if parameter >= 0:
        action["parameter"] = parameter
    if kind == PRODUCE:
        action["unitType"] = UNIT_TYPES[produced]
    return action
