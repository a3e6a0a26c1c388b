"""Bots of the Java engine as scripted players, to train against: a compiled program asks Java what they order in its states."""

from __future__ import annotations

import functools
import threading
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.errors import ConfigError, RljaxError, did_you_mean, first_line, shown
from rljax.core.host import WAITING
from rljax.envs.microrts.java.coac import TABLE, CoacMemory, recalled
from rljax.envs.microrts.java.engine import SEARCHING, Java, JavaBot, start_java
from rljax.envs.microrts.java.positions import NONE
from rljax.envs.microrts.java.states import lasting_ids, orders_of, position_of
from rljax.envs.microrts.rules.state import Orders, RTSState
from rljax.envs.microrts.rules.units import EMPTY

JAVA = "java:"
"""Before the name of a bot of the Java engine."""

OPPONENTS = ("coac", "heavyrush", "lightrush", "passive", "rangedrush", "rojobot", "workerrush")
"""Bots whose orders follow from the state, and those of CoacAI from its memory, too. They order the same each time, but for
CoacAI: where the way of a fighter is blocked, it moves in a direction that nothing here decides.
"""

NOBODY = 2
"""In place of a player's number: there is nothing to order."""

_LOCK = threading.Lock()
"""Programs may ask from several threads."""


def is_java(name: Any) -> bool:
    """Return whether a player is named as a bot of the Java engine."""
    return isinstance(name, str) and name.startswith(JAVA)


class RememberingBot(NamedTuple):
    """Bot with memory.

    Attributes:
        act: `(key, state, player, walls, memory) -> (orders, memory)`.
        shape: shape of the memory, an i32 array; zeros where a game begins.
    """

    act: Callable[[jax.Array, RTSState, jax.Array | int, np.ndarray, jax.Array], tuple[Orders, jax.Array]]
    shape: tuple[int, ...]


@functools.cache
def java_bot(name: str) -> Callable[..., Orders] | RememberingBot:
    """Return a bot of the Java engine as a `rljax.envs.microrts.scripted.bots.Bot`.

    It is asked as if its game had begun in the state, CoacAI with its memory of the game, and the seed of its random numbers
    follows from the map, so its orders depend on map, state and memory alone. Runs against it can be repeated and resumed bit for
    bit, except those against CoacAI (see `OPPONENTS`).
    A compiled program calls Java in this process, on the host, for all states that are stacked by `vmap` at once.

    Args:
        name: name in `OPPONENTS`.

    Raises:
        ConfigError: there is no such bot, or it searches or plays at random.
        RljaxError: when a program with it is traced: Java is not installed.
    """
    if name not in OPPONENTS:
        searches = name.partition(":")[0] in SEARCHING
        why = "it searches for a time, so that its orders are never quite the same; " if searches else ""
        raise ConfigError(f"scripted player {shown(JAVA + name)}: {why}{did_you_mean(name, OPPONENTS)}")

    def asks(memory: jax.Array | None, state: RTSState, player: jax.Array | int, walls: np.ndarray) -> Any:
        """Return the orders, with a memory the pair of orders and memory."""
        java = start_java()
        bot = java.bot(name)
        known = RTSState(*(getattr(state, field) for field in RTSState.__dataclass_fields__))
        plane = jax.ShapeDtypeStruct(walls.shape, np.int8)
        orders = Orders(plane, plane, plane)  # type: ignore[arg-type]

        def ask(states: RTSState, players: jax.Array, memories: jax.Array | None = None) -> Any:
            with WAITING.during("java"), _LOCK:
                try:
                    of_states = jax.tree.map(np.asarray, states)
                    if memories is None:
                        return _orders(java, bot, walls, of_states, np.asarray(players))
                    after = np.array(memories)
                    return _orders(java, bot, walls, of_states, np.asarray(players), after), after
                except java.jpype.JException as error:
                    raise RljaxError(f"Java bot {name}: {first_line(error)}") from None

        given = known, jnp.asarray(player, jnp.int32), *(() if memory is None else (memory,))
        shapes = orders if memory is None else (orders, jax.ShapeDtypeStruct(TABLE, np.int32))
        return jax.pure_callback(ask, shapes, *given, vmap_method="broadcast_all")

    if name == "coac":
        return RememberingBot(lambda _key, state, player, walls, memory: asks(memory, state, player, walls), TABLE)
    return lambda _key, state, player, walls: asks(None, state, player, walls)


_coac_memory = functools.cache(CoacMemory)


def _orders(
    java: Java,
    bot: JavaBot,
    walls: np.ndarray,
    states: RTSState,
    players: np.ndarray,
    memories: np.ndarray | None = None,
) -> Orders:
    """Return a bot's orders in states, leaves `[..., H, W]`, as these players or `NOBODY`, i32 `[...]`.

    Memories of CoacAI, i32 `[..., *TABLE]`, are changed in place.
    """
    coac = None if memories is None else _coac_memory(java)
    planes = np.zeros((3, *players.shape, *walls.shape), np.int8)
    planes[2] = EMPTY
    leaves = jax.tree.leaves(states)
    idle = (states.owner == players[..., None, None]) & (states.remaining == 0)
    # On maps of unknown size a new RoJoBot draws the program that it then follows to the end: the same one in a whole game.
    seed = zlib.crc32(walls.tobytes())
    for place in map(tuple, np.argwhere(idle.any((-2, -1)))):
        state, player = RTSState(*(leaf[place] for leaf in leaves)), int(players[place])
        position = position_of(state, walls)
        new = bot.as_new(seed)
        if coac is None or memories is None:
            rows = new.orders(java.game_at(position), player)
        else:
            ids, game = lasting_ids(state), java.game_at(position)
            coac.write(new.bot, recalled(memories[place], ids), game, position)
            rows = new.orders(game, player)
            memories[place] = coac.read(new.bot, set(rows[rows[:, 1] != NONE, 0].tolist())).table(ids)
        found = orders_of(position, rows[rows[:, 1] != NONE])
        for plane, orders in zip(planes, jax.tree.leaves(found), strict=True):
            plane[place] = orders
    return Orders(*planes)
