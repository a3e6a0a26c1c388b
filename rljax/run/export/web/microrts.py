"""Data of MicroRTS for its page: the map, and the tables of units and orders."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from rljax.core.errors import ConfigError
from rljax.envs.microrts.actions import ORDERS
from rljax.envs.microrts.against_bots import MicroRTSBots
from rljax.envs.microrts.game import MicroRTS
from rljax.envs.microrts.rules.units import (
    ATTACK,
    ATTACK_TIME,
    COST,
    DAMAGE,
    DIRECTIONS,
    HARVEST,
    HARVEST_TIME,
    HP,
    MOVE_TIME,
    OFFSETS,
    PRODUCE_TIME,
    PRODUCES,
    RANGE,
    RETURN,
    RETURN_TIME,
    TURNED_DIRECTIONS,
    UNIT_NAMES,
)
from rljax.envs.microrts.scripted.bots import BOTS
from rljax.envs.microrts.seats import TURNED
from rljax.run.export.metadata import plain

PLAYED = {"actions": "cells", "observation": "planes", "fog": False}
"""The options of the environment that the page plays with."""

UNITS = {
    "names": UNIT_NAMES, "cost": COST, "hp": HP, "damage": DAMAGE, "range": RANGE, "produces": PRODUCES,
    "move_time": MOVE_TIME, "produce_time": PRODUCE_TIME,
}  # fmt: skip


def describe_microrts(env: MicroRTS | MicroRTSBots) -> dict[str, Any]:
    """Return the map, the tables, and the scripted players, those the agent was trained against first.

    Raises:
        ConfigError: names the option that the page has no code for.
    """
    game = env if isinstance(env, MicroRTS) else env.env
    for name, played in PLAYED.items():
        value = getattr(game, name)
        if value != played:
            shown, expected = (str(x).lower() if isinstance(x, bool) else repr(x) for x in (value, played))
            raise ConfigError(f"env_params.{name} = {shown}: a page plays {env.name} with {name} = {expected} only")
    height, width = game.map.shape
    start = {field.name: np.ravel(getattr(game.map.start(), field.name)) for field in dataclasses.fields(game.map.start())}
    start["time"] = start["time"].item()
    tables = {
        "map": {"height": height, "width": width, "walls": game.walls.ravel().astype(int), "start": start},
        "units": UNITS,
        "times": {HARVEST: HARVEST_TIME, RETURN: RETURN_TIME, ATTACK: ATTACK_TIME},
        "directions": DIRECTIONS, "offsets": OFFSETS, "orders": ORDERS,
        "turned": TURNED["cells"][0], "turned_directions": TURNED_DIRECTIONS,
    }  # fmt: skip
    return {
        **plain(tables),
        "waits": game.waits._asdict(),
        "drawn": game.best_is_random,
        "opponents": list(dict.fromkeys([*(name for name in getattr(env, "opponents", ()) if name in BOTS), *BOTS])),
    }
