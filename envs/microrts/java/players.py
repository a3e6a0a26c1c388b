"""Bots of the Java engine as scripted players, to train against: a compiled program asks Java what they order in its states."""

from __future__ import annotations

import functools
import threading
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.errors import ConfigError, RljaxError, did_you_mean, first_line, shown
from rljax.core.host import WAITING
from rljax.envs.microrts.java.engine import SEARCHING, Java, JavaBot, start_java
from rljax.envs.microrts.java.positions import NONE
from rljax.envs.microrts.java.states import orders_of, position_of
from rljax.envs.microrts.state import Orders, RTSState
from rljax.envs.microrts.units import EMPTY

JAVA = "java:"
"""Before the name of a bot of the Java engine."""

WITHOUT_MEMORY = ("coac", "heavyrush", "lightrush", "passive", "rangedrush", "rojobot", "workerrush")
"""Bots that can be asked about a state without having seen those before it. They order the same each time, but for CoacAI: where
the way of a fighter is blocked, it moves in a direction that nothing here decides. CoacAI also remembers in a game which workers
harvest, so it orders workers otherwise without its memory.
"""

NOBODY = 2
"""In place of a player's number: there is nothing to order."""

_LOCK = threading.Lock()
"""Programs may ask from several threads."""


def is_java(name: Any) -> bool:
    """Return whether a player is named as a bot of the Java engine."""
    return isinstance(name, str) and name.startswith(JAVA)


@functools.cache
def java_bot(name: str) -> Callable[..., Orders]:
    """Return a bot of the Java engine as a `rljax.envs.microrts.bots.Bot`.

    It is asked as if its game had begun in the state, and its random numbers are drawn from the state, so its orders depend on
    the state alone. Runs against it can be repeated and resumed bit for bit, except those against CoacAI (see `WITHOUT_MEMORY`).
    It sees the whole state, with fog, too. A compiled program calls Java in this process, on the host, for all states that are
    stacked by `vmap` at once.

    Args:
        name: name in `WITHOUT_MEMORY`.

    Raises:
        ConfigError: there is no such bot, or it searches or plays at random.
        RljaxError: when a program with it is traced: Java is not installed.
    """
    if name not in WITHOUT_MEMORY:
        searches = name.partition(":")[0] in SEARCHING
        why = "it searches for a time, so that its orders are never quite the same; " if searches else ""
        raise ConfigError(f"scripted player {shown(JAVA + name)}: {why}{did_you_mean(name, WITHOUT_MEMORY)}")

    def play(_key: jax.Array, state: RTSState, player: jax.Array | int, walls: np.ndarray) -> Orders:
        java = start_java()
        bot = java.bot(name)
        known = RTSState(*(getattr(state, field) for field in RTSState.__dataclass_fields__))
        plane = jax.ShapeDtypeStruct(walls.shape, np.int8)

        def ask(states: RTSState, players: jax.Array) -> Orders:
            with WAITING.during("java"), _LOCK:
                try:
                    return _orders(java, bot, walls, jax.tree.map(np.asarray, states), np.asarray(players))
                except java.jpype.JException as error:
                    raise RljaxError(f"Java bot {name}: {first_line(error)}") from None

        shapes = Orders(plane, plane, plane)  # type: ignore[arg-type]
        found: Orders = jax.pure_callback(ask, shapes, known, jnp.asarray(player, jnp.int32), vmap_method="broadcast_all")
        return found

    return play


def _orders(java: Java, bot: JavaBot, walls: np.ndarray, states: RTSState, players: np.ndarray) -> Orders:
    """Return a bot's orders in states, leaves `[..., H, W]`, as these players or `NOBODY`, i32 `[...]`."""
    planes = np.zeros((3, *players.shape, *walls.shape), np.int8)
    planes[2] = EMPTY
    for place in np.ndindex(players.shape):
        state, player = jax.tree.map(lambda x, place=place: x[place], states), int(players[place])
        if not ((state.owner == player) & (state.remaining == 0)).any():
            continue
        position = position_of(state, walls)
        new = bot.as_new(seed=zlib.crc32(position.units.tobytes()))
        rows = new.orders(java.game_at(position), player)
        found = orders_of(position, rows[rows[:, 1] != NONE])
        for plane, orders in zip(planes, jax.tree.leaves(found), strict=True):
            plane[place] = orders
    return Orders(*planes)
