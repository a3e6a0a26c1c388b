"""The scripted players of `bots` as players of a game of `MicroRTS`: orders in its encodings of actions."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.games.game import RememberingScript, ScriptedPlayer
from rljax.envs.microrts.actions import NUM_ORDERS, ORDERS
from rljax.envs.microrts.java.engine import start_java
from rljax.envs.microrts.java.players import JAVA, RememberingBot, is_java
from rljax.envs.microrts.observation import hide, visible_cells
from rljax.envs.microrts.rules.engine import is_idle, merge_orders
from rljax.envs.microrts.rules.state import Orders, RTSState
from rljax.envs.microrts.rules.units import ATTACK, HARVEST, HEADS, MOVE, NONE, NUM_TYPES, PRODUCE, RETURN
from rljax.envs.microrts.scripted.bots import find_bot, order
from rljax.envs.microrts.seats import turn_actions

_SHAPE = HEADS[0], HEADS[-1], NUM_TYPES + 1
"""Actions, parameters (targets of attacks are most), and products from -1."""


def _table_of_orders() -> np.ndarray:
    table = np.zeros(_SHAPE, np.int32)
    action, parameter, product = ORDERS.T.astype(int)
    table[action, parameter, product + 1] = np.arange(NUM_ORDERS)
    return table


_NUMBER = _table_of_orders()


def actions_of(game: Any, state: RTSState, orders: Orders) -> Any:
    """Return orders as the actions of both players, i32 `[2, H * W]`, or `[2, H * W * 7]` for "gridnet".

    Units wait for as long as the game lets them, however long the order was to. For "units" it is the next of the actions that
    give the orders, those of units one by one, each i32 `[2]`; units whose orders are no longer legal wait.
    """
    if game.actions != "gridnet":
        parameter = jnp.where(orders.action == NONE, 0, orders.parameter).astype(jnp.int32)
        product = jnp.where(orders.action == PRODUCE, orders.product, -1) + 1
        numbers = jnp.asarray(_NUMBER)[orders.action.astype(jnp.int32), parameter, product.astype(jnp.int32)]
        if game.actions == "units":
            return game.by_unit.next_action(state, numbers)
        heads = numbers[..., None]
    else:
        directed = [jnp.where(orders.action == kind, orders.parameter, 0) for kind in (MOVE, HARVEST, RETURN, PRODUCE, ATTACK)]
        product = jnp.where(orders.action == PRODUCE, orders.product, 0)
        heads = jnp.stack([orders.action, *directed[:4], product, directed[4]], axis=-1).astype(jnp.int32)
    own = [jnp.where((is_idle(state) & (state.owner == player))[..., None], heads, 0).reshape(-1) for player in range(2)]
    return jnp.stack([own[0], turn_actions(own[1], game.actions)])


def seen_by(game: Any, state: RTSState, player: jax.Array | int, names: Sequence[str]) -> RTSState:
    """Return what scripted players of these names see of a state: with fog, what is within the sight of a player's units.

    Raises:
        ConfigError: a bot of the Java engine among them cannot play with fog.
        RljaxError: there are bots of the Java engine, and Java is not installed.
    """
    if not game.fog:
        return state
    for name in filter(is_java, names):
        start_java().check_plays_with_fog(game.map_name, name.removeprefix(JAVA))
    return hide(state, visible_cells(state, player))


def scripted_player(game: Any, name: str) -> ScriptedPlayer:
    """Return a scripted player of the game; it acts for both seats.

    Where units are ordered one by one it decides anew in each step of a cycle: a random player draws anew for those left, and
    CoacAI may let one more worker harvest than it would in Java.

    Raises:
        ConfigError: there is none of this name; the closest match is named.
    """
    bot = find_bot(name)

    def act(key: jax.Array, state: RTSState, carry: Any) -> tuple[Any, Any]:
        def of_player(player: jax.Array, key: jax.Array, memory: Any) -> tuple[Orders, Any]:
            return order(bot, key, seen_by(game, state, player, (name,)), player, game.walls, memory)

        orders, after = jax.vmap(of_player)(jnp.arange(2), jax.random.split(key), carry)
        first, second = (jax.tree.map(itemgetter(player), orders) for player in range(2))
        return actions_of(game, state, merge_orders(state, first, second)), after

    if isinstance(bot, RememberingBot):
        return RememberingScript(
            lambda key, state, _params, carry: act(key, state, carry), lambda seats: jnp.zeros((seats, *bot.shape), jnp.int32)
        )
    return lambda key, state, _params: act(key, state, None)[0]
