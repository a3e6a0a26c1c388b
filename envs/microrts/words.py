"""A game of MicroRTS in words, for a person at a terminal: the map as a player sees it, and the names of cells and orders.

Columns are letters and rows are numbers, from the top left corner of the player's own side: the second player's map is turned by
half, as all that it sees and orders.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rljax.envs.microrts.actions import ORDERS
from rljax.envs.microrts.rules.units import ACTION_NAMES, ATTACK, EMPTY, NONE, OFFSETS, PRODUCE, RESOURCE, UNIT_NAMES

SYMBOLS = ("$", "B", "K", "W", "L", "H", "R")
"""A letter for each type of unit; those of the opponent are small."""

LEGEND = (
    "B base, K barracks, W worker, L light, H heavy, R ranged; small letters: the opponent's; $ resources, # wall",
    "* waits for an order, + carries a resource",
)
_DIRECTIONS = ("up", "right", "down", "left")


def _target(index: int) -> str:
    """Return a target of an attack, as "up2-left"."""
    row, column = OFFSETS[index].tolist()
    steps = ((row, "up" if row < 0 else "down"), (column, "left" if column < 0 else "right"))
    return "-".join(f"{word}{abs(n) if abs(n) > 1 else ''}" for n, word in steps if n) or "here"


def _order(action: int, parameter: int, product: int) -> str:
    if action == NONE:
        return "wait"
    if action == ATTACK:
        return f"attack-{_target(parameter)}"
    what = UNIT_NAMES[product].lower() if action == PRODUCE else ACTION_NAMES[action]
    return f"{what}-{_DIRECTIONS[parameter]}"


ORDER_NAMES = tuple(_order(*order) for order in ORDERS.tolist())
"""The orders in `ORDERS` as a person types them: "move-up", "worker-left" to produce one there, "attack-up2-left"."""

GRIDNET_NAMES = (
    ("wait", *ACTION_NAMES[1:]),
    *[_DIRECTIONS] * 4,
    tuple(name.lower() for name in UNIT_NAMES),
    tuple(map(_target, range(len(OFFSETS)))),
)
"""For each of the `HEADS`: its actions."""

GRIDNET_HEADS = ("order", "move", "harvest", "return", "produce", "what to produce", "attack")


def cell_names(shape: tuple[int, int]) -> tuple[str, ...]:
    """Return the names of the cells of a map, row by row: "a1", "b1", ..."""
    return tuple(f"{_letters(column)}{row + 1}" for row in range(shape[0]) for column in range(shape[1]))


def _letters(column: int) -> str:
    """Return a column's name: "a" to "z", then "aa", "ab", ..."""
    return ("" if column < 26 else _letters(column // 26 - 1)) + "abcdefghijklmnopqrstuvwxyz"[column % 26]


def describe(seen: Any, visible: Any, player: int, walls: np.ndarray, fog: bool, max_cycles: int) -> str:
    """Return the map and the resources as a player sees them.

    Args:
        seen: state with the player's pending orders as actions under way.
        visible: cells that the player sees, bool `[H, W]`.
        player: 0 or 1.
        walls: walls of the map, bool `[H, W]`.
        fog: whether the opponent's resources are hidden.
        max_cycles: cycles after which the game is a draw.
    """
    height, width = walls.shape
    columns = [_letters(column) for column in range(width)]
    side = len(str(height))
    lines = [" " * side + "".join(f" {name:>2} " for name in columns).rstrip()]
    turned = slice(None, None, -1 if player else 1)
    cells = (np.asarray(x)[turned, turned] for x in (seen.unit, seen.owner, seen.carried, seen.remaining, visible, walls))
    unit, owner, carried, remaining, visible, walls = cells
    for row in range(height):
        line = f"{row + 1:{side}}"
        for column in range(width):
            at = row, column
            symbol, before, after = ("#" if walls[at] else "." if visible[at] else "?"), " ", " "
            if visible[at] and unit[at] != EMPTY:
                symbol = SYMBOLS[unit[at]]
                if unit[at] != RESOURCE:
                    symbol = symbol if owner[at] == player else symbol.lower()
                    before = "+" if carried[at] > 0 else " "
                    after = "*" if owner[at] == player and remaining[at] == 0 else " "
            line += f" {before}{symbol}{after}"
        lines.append(line.rstrip())
    theirs = "" if fog else f", the opponent {int(seen.resources[1 - player])}"
    lines.append(f"cycle {int(seen.time):,} of {int(max_cycles):,}; you have {int(seen.resources[player])} resources{theirs}")
    return "\n".join([*lines, *LEGEND])
