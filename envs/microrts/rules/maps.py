"""Maps of microRTS by name: size, walls, resources of the players and the units at the start."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rljax.core.errors import ConfigError, did_you_mean, shown
from rljax.envs.microrts.rules.state import RTSState
from rljax.envs.microrts.rules.units import BASE, EMPTY, HP, LIGHT, NONE, RESOURCE, WORKER

_Unit = tuple[int, int, int, int, int]


class GameMap(NamedTuple):
    """A map of H x W cells.

    Attributes:
        name: its name, as in microRTS without ".xml".
        shape: H and W.
        resources: resources of both players at the start.
        units: type, owner (-1: none), row, column and resources of each unit at the start.
        walls: rows and columns of the walls.
    """

    name: str
    shape: tuple[int, int]
    resources: tuple[int, int]
    units: tuple[_Unit, ...]
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
        for number, (kind, player, row, column, left) in enumerate(self.units, -len(self.units)):
            place = row, column
            unit[place], owner[place], hp[place], carried[place] = kind, player, HP[kind], left
            born[place] = number
        return RTSState(
            unit=unit, owner=owner, hp=hp, carried=carried,
            action=cells(NONE), parameter=cells(0), product=cells(EMPTY), remaining=cells(0, np.int16), born=born,
            resources=resources, time=time,
        )  # fmt: skip


_BASES_WORKERS_16 = (
    (RESOURCE, -1, 0, 0, 25),
    (RESOURCE, -1, 1, 0, 25),
    (RESOURCE, -1, 14, 15, 25),
    (RESOURCE, -1, 15, 15, 25),
    (BASE, 0, 2, 2, 0),
    (BASE, 1, 13, 13, 0),
    (WORKER, 0, 1, 1, 0),
    (WORKER, 1, 14, 14, 0),
)

MAPS = {
    game_map.name: game_map
    for game_map in (
        GameMap(
            "melee4x4light2",
            (4, 4),
            (0, 0),
            ((LIGHT, 0, 0, 0, 0), (LIGHT, 0, 1, 0, 0), (LIGHT, 1, 2, 3, 0), (LIGHT, 1, 3, 3, 0)),
        ),
        GameMap(
            "basesWorkers8x8",
            (8, 8),
            (5, 5),
            (
                (RESOURCE, -1, 0, 0, 20),
                (RESOURCE, -1, 7, 7, 20),
                (BASE, 0, 1, 2, 0),
                (BASE, 1, 6, 5, 0),
                (WORKER, 0, 1, 1, 0),
                (WORKER, 1, 6, 6, 0),
            ),
        ),
        GameMap("basesWorkers16x16", (16, 16), (5, 5), _BASES_WORKERS_16),
        # In microRTS, too, the two maps have the same content.
        GameMap("basesWorkers16x16A", (16, 16), (5, 5), _BASES_WORKERS_16),
    )
}


def find_map(name: str) -> GameMap:
    """Return the map of this name.

    Raises:
        ConfigError: there is no such map; the closest match is named.
    """
    if not isinstance(name, str) or name not in MAPS:
        raise ConfigError(f"MicroRTS: unknown map {shown(name)}: {did_you_mean(str(name), MAPS)}")
    return MAPS[name]
