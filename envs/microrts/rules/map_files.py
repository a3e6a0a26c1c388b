"""Maps of microRTS in its own XML files."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rljax.core.errors import ConfigError, did_you_mean, first_line, shown
from rljax.envs.microrts.rules.maps import GameMap, StartingUnit
from rljax.envs.microrts.rules.units import HP, RESOURCE, UNIT_NAMES, WORKER

MAX_BYTES = 1_000_000
"""Largest size of a file of a map."""

MAX_SIDE = 128
"""Longest side of a map, that of the largest of microRTS."""

MAX_CARRIED = int(np.iinfo(np.int8).max)
"""Most resources in one cell, as many as the arrays of a state hold."""

MAX_RESOURCES = 10_000
"""Most resources of a player at the start."""


def read_map(path: Path) -> GameMap:
    """Read a map from an XML file of microRTS.

    Raises:
        ConfigError: the file cannot be read, or describes no map that the game can hold; the message names the place.
    """
    if not os.path.isfile(path):
        reason = "it is no file" if os.path.exists(path) else "No such file"
        raise ConfigError(f"{shown(str(path))}: cannot read the map: {reason}")
    if os.path.getsize(path) > MAX_BYTES:
        raise ConfigError(f"{path}: has more than {MAX_BYTES:,} bytes")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the map: {error.strerror}") from None
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # the last: an unknown encoding
        raise ConfigError(f"{path}: is no XML: {first_line(error)}") from None
    try:
        return _map_of(root, path.stem)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _map_of(root: ElementTree.Element, name: str) -> GameMap:
    if root.tag != "rts.PhysicalGameState":
        raise ConfigError(f"is no map of microRTS: expected rts.PhysicalGameState, got {shown(root.tag)}")
    height, width = (_number(root.attrib, side, "the map", 1, MAX_SIDE) for side in ("height", "width"))
    terrain = "".join((root.findtext("terrain") or "").split())
    if len(terrain) != height * width or set(terrain) - {"0", "1"}:
        raise ConfigError(f"terrain: expected {height * width} digits 0 (free) and 1 (wall) for {width} x {height} cells")
    walls = np.array([cell == "1" for cell in terrain]).reshape(height, width)
    elements = root.findall("players/*")
    players = {
        _number(player.attrib, "ID", "a player", 0, 1): _number(player.attrib, "resources", "a player", 0, MAX_RESOURCES)
        for player in elements
    }
    if len(elements) != 2 or set(players) != {0, 1}:
        raise ConfigError("players: expected two, with the IDs 0 and 1")
    units: dict[tuple[int, int], StartingUnit] = {}
    for element in root.iterfind("units/*"):
        unit = _unit(element, height, width)
        place = unit.row, unit.column
        if place in units or walls[place]:
            there = "a wall" if walls[place] else "another unit"
            raise ConfigError(f"the {UNIT_NAMES[unit.kind]} at x = {unit.column}, y = {unit.row}: {there} is there, too")
        units[place] = unit
    for player in range(2):
        if all(unit.owner != player for unit in units.values()):
            raise ConfigError(f"units: player {player} has none, expected at least one of each player")
    cells = tuple((int(row), int(column)) for row, column in np.argwhere(walls))
    return GameMap(name, (height, width), (players[0], players[1]), tuple(units.values()), cells)


def _unit(element: ElementTree.Element, height: int, width: int) -> StartingUnit:
    text = element.get("type", "")
    if text not in UNIT_NAMES:
        raise ConfigError(f"unit type {shown(text)}: {did_you_mean(text, UNIT_NAMES)}")
    kind = UNIT_NAMES.index(text)
    column = _number(element.attrib, "x", text, 0, width - 1)
    row = _number(element.attrib, "y", text, 0, height - 1)
    name = f"the {text} at x = {column}, y = {row}"
    owner = _number(element.attrib, "player", name, -1, 1)
    if (owner == -1) != (kind == RESOURCE):
        raise ConfigError(f"{name}: player = {owner}, expected {'-1' if kind == RESOURCE else '0 or 1'}")
    carried = _number(element.attrib, "resources", name, 0, {RESOURCE: MAX_CARRIED, WORKER: 1}.get(kind, 0))
    return StartingUnit(kind, owner, row, column, carried, _number(element.attrib, "hitpoints", name, 1, HP[kind]))


def _number(attributes: Mapping[str, str], field: str, owner: str, least: int, most: int) -> int:
    text = attributes.get(field, "")
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 10 and least <= int(text) <= most):
        allowed = f"a whole number from {least} to {most}" if least < most else str(least)
        raise ConfigError(f"{owner}: {field} = {shown(text)}, expected {allowed}")
    return int(text)
