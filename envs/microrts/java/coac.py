"""The memory of CoacAI: those fields of its Java class that last from one position of a game to the next."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from rljax.envs.microrts.java.engine import BOTS, Java, JavaGame
from rljax.envs.microrts.java.positions import Position
from rljax.envs.microrts.java.states import position_of
from rljax.envs.microrts.rules.maps import MAPS

BEGUN, KNOWN_MAP, ATTACKS, SEPARATED = (1 << bit for bit in range(4))
"""Bits of the marks.

`BEGUN`: it was asked in this game. `KNOWN_MAP`: by the first position it knows the map. `ATTACKS`: no resources were left, so all
units attack. `SEPARATED`: a base was walled in by resources.
"""

_FLAGS = {"attackAll": ATTACKS, "wasSeparated": SEPARATED}
_MAP = "maps/16x16/basesWorkers16x16A.xml"
"""The map that it knows."""

MAX_UNITS = 32
"""Largest number of units of which it remembers something here."""

TABLE = 1 + MAX_UNITS, 6
"""Shape of `Memory.table`."""

_KINDS = {
    "ai.coac.HarvestReturn": ("target", "base"),
    "ai.coac.CoacAttack": ("target",),
    "ai.coac.BuildModified": ("type", "x", "y"),
    "ai.coac.TrainDirection": ("type", "direction"),
    "ai.coac.TrueIdle": (),
    "ai.abstraction.Move": ("x", "y"),
}
"""Java classes of tasks, and their fields besides the unit and the bot's own pathfinder."""

_HARVESTS, _, _, _TRAINS, _WAITS, _ = _KINDS
_UNITS = "target", "base"
"""Fields that hold units."""

_GONE = -1
"""Number of a unit that is gone."""


class Task(NamedTuple):
    """Task that CoacAI gave to a unit.

    Attributes:
        unit: the unit's number in a position.
        kind: the task's Java class, in `_KINDS`.
        values: values of the fields of its kind; units by their numbers, -1 for one that is gone.
    """

    unit: int
    kind: str
    values: tuple[int, ...]


class Memory(NamedTuple):
    """CoacAI's memory of its game.

    Attributes:
        marks: bits, see `BEGUN`; 0 where a game begins.
        harvesting: the base for which each worker harvests, by their numbers in a position.
        tasks: the units' tasks. The bot turns them into orders in this sequence: ways lead around what was ordered before.
    """

    marks: int
    harvesting: dict[int, int]
    tasks: tuple[Task, ...]

    def table(self, ids: np.ndarray) -> np.ndarray:
        """Return it as numbers, i32 `TABLE`, with units by their `lasting_ids` in the position, which are `ids`.

        The first row has the marks. Each row after it has a unit, the base for which it harvests, the kind of its task, counted
        from 1, and the task's values; 0 stands for nothing and for who is gone.
        """
        kinds, told = list(_KINDS), {task.unit for task in self.tasks}
        rows = [
            (ids[task.unit], self._base(task.unit, ids), 1 + kinds.index(task.kind), *self._named(task, ids))
            for task in self.tasks
        ]
        rows += [(ids[unit], self._base(unit, ids)) for unit in self.harvesting if unit not in told]
        table = np.zeros(TABLE, np.int32)
        table[0, 0] = self.marks
        for row, values in zip(table[1:], rows, strict=False):
            row[: len(values)] = values
        return table

    def _base(self, unit: int, ids: np.ndarray) -> int:
        return int(ids[self.harvesting[unit]]) if unit in self.harvesting else 0

    @staticmethod
    def _named(task: Task, ids: np.ndarray) -> list[int]:
        values = zip(_KINDS[task.kind], task.values, strict=True)
        return [(0 if x == _GONE else int(ids[x])) if field in _UNITS else x for field, x in values]


def recalled(table: np.ndarray, ids: np.ndarray) -> Memory:
    """Undo `Memory.table` in a later position, with its `lasting_ids`; units that are gone are forgotten.

    Units that share an id are taken for each other.
    """
    harvesting: dict[int, int] = {}
    tasks: dict[int, Task] = {}
    alike: dict[int, list[int]] = {}
    for place, name in enumerate(ids.tolist()):
        alike.setdefault(name, []).append(place)
    untold = {name: list(places) for name, places in alike.items()}

    def number(name: int) -> int:
        return alike.get(name, [_GONE])[0]

    for name, base, kind, *values in table[1:].tolist():
        if not untold.get(name):
            continue
        unit = untold[name].pop(0)
        if number(base) != _GONE:
            harvesting[unit] = number(base)
        if kind:
            java, fields = list(_KINDS.items())[kind - 1]
            named = zip(fields, values, strict=False)
            tasks[unit] = Task(unit, java, tuple(number(x) if field in _UNITS else x for field, x in named))
    return Memory(int(table[0, 0]), harvesting, tuple(tasks.values()))


class CoacMemory:
    """Reads and writes the memory of bots of the class `ai.coac.CoacAI`."""

    def __init__(self, java: Java):
        def fields(name: str, *names: str) -> dict[str, Any]:
            found = {field: java.jpype.JClass(name).class_.getDeclaredField(field) for field in names}
            for field in found.values():
                field.setAccessible(True)
            return found

        self._fields = fields(BOTS["coac"], "harvesting", "map", "myWorkersCombat", *_FLAGS)
        self._fields |= fields("ai.abstraction.AbstractionLayerAIWait1", "actions", "pf")
        self._kinds = {name: (java.jpype.JClass(name), fields(name, *parts)) for name, parts in _KINDS.items()}
        self._completed = fields(_TRAINS, "completed")["completed"]
        self._list, self._long, self._types = (
            java.jpype.JClass("java.util.ArrayList"),
            java.jpype.JClass("java.lang.Long"),
            java.types,
        )

    def read(self, bot: Any, ordered: Collection[int]) -> Memory:
        """Return the memory of a bot that was asked, and has given orders to the units of these numbers."""
        marks = BEGUN | (KNOWN_MAP if str(self._fields["map"].get(bot)) == _MAP else 0)
        for name, mark in _FLAGS.items():
            marks |= mark if self._fields[name].getBoolean(bot) else 0
        harvesting = {int(worker): int(base) for worker, base in self._fields["harvesting"].get(bot).items()}
        tasks = []
        for unit, task in self._fields["actions"].get(bot).items():
            number, kind = int(unit.getID()), str(task.getClass().getName())
            if kind not in self._kinds:
                continue
            # A base that was ordered to train forgets it in the next cycle; others forget when their target is gone.
            if kind != _TRAINS or number not in ordered or not self._completed.getBoolean(task):
                parts = self._kinds[kind][1].items()
                tasks.append(Task(number, kind, tuple(_as_number(name, field.get(task)) for name, field in parts)))
        return Memory(marks, harvesting, tuple(tasks))

    def write(self, bot: Any, memory: Memory, game: JavaGame, position: Position) -> None:
        """Give its memory to a new bot that will be asked about a game in this position."""
        # In a game that begins it looks for the map itself, but by a hash of the units' ids, which are others here.
        known = memory.marks & KNOWN_MAP or (not memory.marks and _begins_known_map(position))
        self._fields["map"].set(bot, _MAP if known else "")
        self._fields["myWorkersCombat"].set(bot, self._list())  # it looks for the map while there is no such list
        for name, mark in _FLAGS.items():
            self._fields[name].setBoolean(bot, bool(memory.marks & mark))
        harvesting = self._fields["harvesting"].get(bot)
        for worker, base in memory.harvesting.items():
            harvesting.put(self._long(worker), self._long(base))
        tasks, finds_ways = self._fields["actions"].get(bot), self._fields["pf"].get(bot)
        unit_of, type_of = game.state.getPhysicalGameState().getUnit, self._types.getUnitType
        for task in memory.tasks:
            unit, kind = unit_of(task.unit), task.kind
            parts = dict(zip(_KINDS[kind], task.values, strict=True))
            if any(parts.get(name) == _GONE for name in _UNITS):
                # Its task is over. It keeps its turn if it gets another one now, or brings back what it has harvested.
                if game.state.getUnitAction(unit) is not None and not (kind == _HARVESTS and unit.getResources()):
                    continue
                kind, parts = _WAITS, {}
            made = {"target": unit_of, "base": unit_of, "type": type_of}
            given = [made.get(name, int)(value) for name, value in parts.items()]
            pathfinder = [] if kind in (_TRAINS, _WAITS) else [finds_ways]
            tasks.put(unit, self._kinds[kind][0](unit, *given, *pathfinder))


def _as_number(name: str, part: Any) -> int:
    """Return a part of a task as a number."""
    if name in _UNITS:
        return _GONE if part is None else int(part.getID())
    return int(part.ID if name == "type" else part)


def _begins_known_map(position: Position) -> bool:
    start = _known_start()
    pairs = zip(
        (position.terrain, position.units, position.resources), (start.terrain, start.units, start.resources), strict=True
    )
    return all(np.array_equal(here, there) for here, there in pairs)


@functools.cache
def _known_start() -> Position:
    known = MAPS["basesWorkers16x16A"]
    return position_of(known.start(), known.wall_cells())
