"""Maps of microRTS by name: size, walls, resources of the players and the units at the start."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from rljax.envs.microrts.rules.state import RTSState
from rljax.envs.microrts.rules.units import BASE, EMPTY, HP, LIGHT, NONE, RESOURCE, WORKER
from rljax.moved import moved_names


class StartingUnit(NamedTuple):
    """A unit at the start: its type, its owner (-1: none), where it is, its resources, and its hit points (None: all)."""

    kind: int
    owner: int
    row: int
    column: int
    resources: int = 0
    hit_points: int | None = None


class GameMap(NamedTuple):
    """A map of H x W cells.

    Attributes:
        name: its name, as in microRTS without ".xml".
        shape: H and W.
        resources: resources of both players at the start.
        units: the units at the start, as `StartingUnit` or plain tuples. Scripted players take those before others for older.
        walls: rows and columns of the walls.
    """

    name: str
    shape: tuple[int, int]
    resources: tuple[int, int]
    units: tuple[StartingUnit, ...]
    walls: tuple[tuple[int, int], ...] = ()

    def wall_cells(self) -> np.ndarray:
        """Return which cells are walls, bool `[H, W]`."""
        cells = np.zeros(self.shape, bool)
        for place in self.walls:
            cells[place] = True
        return cells

    def start(self) -> RTSState:
        """Return the state at the start, with NumPy arrays."""

        def cells(value: int, dtype: type = np.int8) -> Any:
            return np.full(self.shape, value, dtype)

        resources: Any = np.array(self.resources, np.int32)
        time: Any = np.zeros((), np.int32)
        unit, owner, hp, carried, born = cells(EMPTY), cells(-1), cells(0), cells(0), cells(0, np.int16)
        for number, each in enumerate(itertools.starmap(StartingUnit, self.units), -len(self.units)):
            place = each.row, each.column
            unit[place], owner[place], carried[place], born[place] = each.kind, each.owner, each.resources, number
            hp[place] = HP[each.kind] if each.hit_points is None else each.hit_points
        return RTSState(
            unit=unit, owner=owner, hp=hp, carried=carried,
            action=cells(NONE), parameter=cells(0), product=cells(EMPTY), remaining=cells(0, np.int16), born=born,
            resources=resources, time=time,
        )  # fmt: skip


_BASES_WORKERS_16 = (
    StartingUnit(RESOURCE, -1, 0, 0, 25),
    StartingUnit(RESOURCE, -1, 1, 0, 25),
    StartingUnit(RESOURCE, -1, 14, 15, 25),
    StartingUnit(RESOURCE, -1, 15, 15, 25),
    StartingUnit(BASE, 0, 2, 2),
    StartingUnit(BASE, 1, 13, 13),
    StartingUnit(WORKER, 0, 1, 1),
    StartingUnit(WORKER, 1, 14, 14),
)

MAPS = {
    game_map.name: game_map
    for game_map in (
        GameMap(
            "melee4x4light2",
            (4, 4),
            (0, 0),
            (
                StartingUnit(LIGHT, 0, 0, 0),
                StartingUnit(LIGHT, 0, 1, 0),
                StartingUnit(LIGHT, 1, 2, 3),
                StartingUnit(LIGHT, 1, 3, 3),
            ),
        ),
        GameMap(
            "basesWorkers8x8",
            (8, 8),
            (5, 5),
            (
                StartingUnit(RESOURCE, -1, 0, 0, 20),
                StartingUnit(RESOURCE, -1, 7, 7, 20),
                StartingUnit(BASE, 0, 1, 2),
                StartingUnit(BASE, 1, 6, 5),
                StartingUnit(WORKER, 0, 1, 1),
                StartingUnit(WORKER, 1, 6, 6),
            ),
        ),
        GameMap("basesWorkers16x16", (16, 16), (5, 5), _BASES_WORKERS_16),
        # In microRTS, too, the two maps have the same content.
        GameMap("basesWorkers16x16A", (16, 16), (5, 5), _BASES_WORKERS_16),
    )
}


__getattr__ = moved_names(__name__)
