"""The facts of the units of microRTS (its UnitTypeTable 2, without randomness) and the numbering of actions and directions.

All tables are NumPy arrays that are indexed by the type of a unit. Directions are up, right, down, left; up is towards row 0.
"""

from __future__ import annotations

import numpy as np

EMPTY = -1
RESOURCE, BASE, BARRACKS, WORKER, LIGHT, HEAVY, RANGED = range(7)
UNIT_NAMES = ("Resource", "Base", "Barracks", "Worker", "Light", "Heavy", "Ranged")
NUM_TYPES = len(UNIT_NAMES)

NONE, MOVE, HARVEST, RETURN, PRODUCE, ATTACK = range(6)
ACTION_NAMES = ("none", "move", "harvest", "return", "produce", "attack")

DIRECTIONS = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]])
"""Change of row and column for up, right, down, left."""

REACH = 3
"""Largest range of an attack, in cells."""
SPAN = 2 * REACH + 1
OFFSETS = np.array([(row, column) for row in range(-REACH, REACH + 1) for column in range(-REACH, REACH + 1)])
"""Change of row and column for each of the 49 targets of an attack, row by row."""

HEADS = (6, 4, 4, 4, 4, NUM_TYPES, SPAN * SPAN)
"""Sizes of the heads of an order: action, directions of move, harvest, return and produce, type produced, target of attack."""

TURNED_DIRECTIONS = np.array([2, 3, 0, 1])
"""Directions after half a turn."""
TURNED_HEADS = (np.arange(6), *[TURNED_DIRECTIONS] * 4, np.arange(NUM_TYPES), np.arange(SPAN * SPAN)[::-1])
"""For each of the `HEADS`: its actions after half a turn."""

#                      Resource Base Barracks Worker Light Heavy Ranged
COST = np.array(        [1,     10,   5,       1,     2,    3,    2])  # fmt: skip
HP = np.array(          [1,     10,   4,       1,     4,    8,    1])  # fmt: skip
DAMAGE = np.array(      [0,      0,   0,       1,     2,    4,    1])  # fmt: skip
RANGE = np.array(       [0,      0,   0,       1,     1,    1,    3])  # fmt: skip
SIGHT = np.array(       [0,      5,   3,       3,     2,    2,    3])  # fmt: skip
PRODUCE_TIME = np.array([0,    200, 100,      50,    80,  120,  100])  # fmt: skip
MOVE_TIME = np.array(   [0,      0,   0,      10,     8,   10,   10])  # fmt: skip
ATTACK_TIME, HARVEST_TIME, RETURN_TIME = 5, 20, 10

MOBILE = MOVE_TIME > 0
"""Which types move and attack, bool `[7]`."""

PRODUCES = np.zeros((NUM_TYPES, NUM_TYPES), bool)
"""`PRODUCES[a, b]`: whether units of type a produce units of type b."""
PRODUCES[BASE, WORKER] = True
PRODUCES[BARRACKS, [LIGHT, HEAVY, RANGED]] = True
PRODUCES[WORKER, [BASE, BARRACKS]] = True
