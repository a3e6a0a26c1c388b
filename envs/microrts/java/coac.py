"""The memory of CoacAI: those fields of its Java class that last from one position of a game to the next."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from rljax.envs.microrts.java.engine import BOTS, Java
from rljax.envs.microrts.java.positions import Position
from rljax.envs.microrts.java.states import position_of
from rljax.envs.microrts.maps import find_map

BEGUN, KNOWN_MAP, ATTACKS, SEPARATED = (1 << bit for bit in range(4))
"""Bits of the marks.

`BEGUN`: it was asked in this game. `KNOWN_MAP`: by the first position it knows the map. `ATTACKS`: no resources were left, so all
units attack. `SEPARATED`: a base was walled in by resources.
"""

_FLAGS = {"attackAll": ATTACKS, "wasSeparated": SEPARATED}
_MAP = "maps/16x16/basesWorkers16x16A.xml"
"""The map that it knows."""


class CoacMemory:
    """Reads and writes the memory of bots of the class `ai.coac.CoacAI`.

    It is two things: marks, an int of bits, 0 where a game begins, and the base for which each worker harvests, by their ids.
    """

    def __init__(self, java: Java):
        kind = java.jpype.JClass(BOTS["coac"]).class_
        self._fields = {name: kind.getDeclaredField(name) for name in ("harvesting", "map", "myWorkersCombat", *_FLAGS)}
        for field in self._fields.values():
            field.setAccessible(True)
        self._list, self._long = (java.jpype.JClass(name) for name in ("java.util.ArrayList", "java.lang.Long"))

    def read(self, bot: Any) -> tuple[int, dict[int, int]]:
        """Return the memory of a bot that was asked."""
        marks = BEGUN | (KNOWN_MAP if str(self._fields["map"].get(bot)) == _MAP else 0)
        for name, mark in _FLAGS.items():
            marks |= mark if self._fields[name].getBoolean(bot) else 0
        return marks, {int(worker): int(base) for worker, base in self._fields["harvesting"].get(bot).items()}

    def write(self, bot: Any, marks: int, harvesters: dict[int, int], position: Position) -> None:
        """Give its memory to a new bot that will be asked about a position."""
        # In a game that begins it looks for the map itself, but by a hash of the units' ids, which are others here.
        known = marks & KNOWN_MAP or (not marks and _begins_known_map(position))
        self._fields["map"].set(bot, _MAP if known else "")
        self._fields["myWorkersCombat"].set(bot, self._list())  # it looks for the map while there is no such list
        for name, mark in _FLAGS.items():
            self._fields[name].setBoolean(bot, bool(marks & mark))
        harvesting = self._fields["harvesting"].get(bot)
        for worker, base in harvesters.items():
            harvesting.put(self._long(worker), self._long(base))


def _begins_known_map(position: Position) -> bool:
    start = _known_start()
    pairs = zip(
        (position.terrain, position.units, position.resources), (start.terrain, start.units, start.resources), strict=True
    )
    return all(np.array_equal(here, there) for here, there in pairs)


@functools.cache
def _known_start() -> Position:
    known = find_map("basesWorkers16x16A")
    return position_of(known.start(), known.wall_cells())
