"""Bots of the Java engine as scripted players, to train against: a compiled program asks Java what they order in its states."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.errors import ConfigError, RljaxError, did_you_mean, shown
from rljax.core.host import WAITING
from rljax.envs.microrts.java.engine import SEARCHING, Java, start_java
from rljax.envs.microrts.java.positions import NONE
from rljax.envs.microrts.java.states import orders_of, position_of
from rljax.envs.microrts.state import Orders, RTSState
from rljax.envs.microrts.units import EMPTY

JAVA = "java:"
"""Before the name of a bot of the Java engine."""

WITHOUT_MEMORY = ("coac", "heavyrush", "lightrush", "passive", "rangedrush", "rojobot", "workerrush")
"""Bots that can be asked about a state without having seen those before it. Of these only CoacAI is not always of the same mind:
where the way of a fighter is blocked, it moves in a random direction.
"""

_LOCK = threading.Lock()
"""A bot decides for one state at a time, but a program may ask from several threads."""


@functools.cache
def java_bot(name: str) -> Callable[..., Orders]:
    """Return a bot of the Java engine as a `rljax.envs.microrts.bots.Bot`.

    It is made to forget what it did before, so its orders depend on the state alone: runs against it can be repeated and resumed
    bit for bit, except those against CoacAI, which moves at random now and then. It sees the whole state, with fog, too. A
    compiled program calls Java in this process, on the host, once a step for all states that are stacked by `vmap`.

    Args:
        name: name in `WITHOUT_MEMORY`.

    Raises:
        ConfigError: there is no such bot, or it searches or plays at random.
        RljaxError: Java is not installed.
    """
    if name not in WITHOUT_MEMORY:
        why = (
            "it searches for a time, so that its orders are never quite the same; " if name.partition(":")[0] in SEARCHING else ""
        )
        raise ConfigError(f"scripted player {shown(JAVA + name)}: {why}{did_you_mean(name, WITHOUT_MEMORY)}")
    java = start_java()
    bot = java.bot(name)

    def play(_key: jax.Array, state: RTSState, player: jax.Array | int, walls: np.ndarray) -> Orders:
        known = RTSState(*(getattr(state, field) for field in RTSState.__dataclass_fields__))
        planes = Orders(*(jax.ShapeDtypeStruct(walls.shape, np.int8) for _ in range(3)))

        def ask(states: RTSState, players: jax.Array) -> Orders:
            started = time.perf_counter()
            try:
                return _orders(java, bot, walls, jax.tree.map(np.asarray, states), np.asarray(players))
            except RljaxError as error:
                WAITING.fail(error)
                raise
            finally:
                WAITING.add("java", time.perf_counter() - started)

        found: Orders = jax.pure_callback(ask, planes, known, jnp.asarray(player, jnp.int32), vmap_method="broadcast_all")
        return found

    return play


def _orders(java: Java, bot: Any, walls: np.ndarray, states: RTSState, players: np.ndarray) -> Orders:
    """Return a bot's orders in states, leaves `[..., H, W]`, as these players, i32 `[...]`."""
    planes = np.zeros((3, *players.shape, *walls.shape), np.int8)
    planes[2] = EMPTY
    with _LOCK:
        for place in np.ndindex(players.shape):
            state, player = jax.tree.map(lambda x, place=place: x[place], states), int(players[place])
            if not ((state.owner == player) & (state.remaining == 0)).any():
                continue
            position = position_of(state, walls)
            bot.reset()
            rows = bot.orders(java.game_at(position), player)
            found = orders_of(position, rows[rows[:, 1] != NONE])
            for plane, orders in zip(planes, jax.tree.leaves(found), strict=True):
                plane[place] = orders
    return Orders(*planes)
