"""Scripted players of MicroRTS: passive, random, and the rushes, which train one kind of fighter and send it to the enemy.

They follow the public descriptions of microRTS's bots of the same names and what those do in positions put before them: paths
are shortest ones, ties are broken in the same way, and older units come first. Unlike those, these have no memory: a building
is begun beside its builder at once. See `Bot`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.errors import ConfigError, did_you_mean, shown
from rljax.envs.microrts.actions import biased_choice, orders_at
from rljax.envs.microrts.java.players import JAVA, NOBODY, OPPONENTS, RememberingBot, is_java, java_bot
from rljax.envs.microrts.rules.engine import along, around, claims, free_cells, is_idle, legal_orders, paid, resources_left
from rljax.envs.microrts.rules.state import Orders, RTSState
from rljax.envs.microrts.rules.units import (
    ATTACK,
    BARRACKS,
    BASE,
    COST,
    DIRECTIONS,
    EMPTY,
    HARVEST,
    HEAVY,
    LIGHT,
    MOBILE,
    MOVE,
    NONE,
    PRODUCE,
    RANGE,
    RANGED,
    REACH,
    RESOURCE,
    RETURN,
    SPAN,
    WORKER,
)
from rljax.envs.microrts.scripted.paths import FAR, distance_map, first_steps

Bot = Callable[[jax.Array, RTSState, jax.Array | int, np.ndarray], Orders] | RememberingBot
"""`(key, state, player, walls) -> orders` for the idle units of player 0 or 1, which may be traced; `walls` is bool `[H, W]`. Or
`RememberingBot`."""

PAUSE = 10
"""Number of cycles for which a unit without an order waits."""

MAX_ORDERS = 16
"""Largest number of moving units that a rush gives orders in a cycle; others, in the lowest rows, get theirs in the next."""


def passive(_key: jax.Array, state: RTSState, _player: jax.Array | int, _walls: np.ndarray) -> Orders:
    """Do nothing."""
    zero = jnp.zeros(state.unit.shape, jnp.int8)
    return Orders(action=zero + NONE, parameter=zero + PAUSE, product=zero + EMPTY)


def random_biased(key: jax.Array, state: RTSState, player: jax.Array | int, walls: np.ndarray) -> Orders:
    """Draw each unit's order from its legal ones; attacks, harvests and returns of resources are more likely: `biased_choice`.

    Units whose order conflicts with that of a unit before them, row by row, wait.
    """
    bits = jax.random.bits(key, state.unit.shape, jnp.uint16)
    orders = orders_at(biased_choice(legal_orders(state, walls), bits))
    return _without_conflicts(state, player, _let_wait(orders, orders.action == NONE))


def _without_conflicts(state: RTSState, player: jax.Array | int, orders: Orders) -> Orders:
    """Let units wait whose production can no longer be paid, or that would enter the same cell as a unit before them."""
    own = is_idle(state) & (state.owner == player)
    cost = jnp.where(own & (orders.action == PRODUCE), jnp.asarray(COST)[jnp.maximum(orders.product, 0)], 0)
    cannot = (cost > 0) & ~paid(cost, resources_left(state)[player])
    enters = own & ~cannot & ((orders.action == MOVE) | (orders.action == PRODUCE))
    arrives, taken = claims(enters, orders.parameter), jnp.zeros_like(own)
    # The unit above a cell, which goes down, comes first, then those on its left, on its right and below.
    for d in (2, 1, 3, 0):
        cannot |= enters & (orders.parameter == d) & around(arrives[d] & taken, False)[d]
        taken |= arrives[d]
    return _let_wait(orders, cannot)


def _let_wait(orders: Orders, cells: jax.Array) -> Orders:
    return Orders(
        action=jnp.where(cells, jnp.int8(NONE), orders.action),
        parameter=jnp.where(cells, jnp.int8(PAUSE), orders.parameter),
        product=jnp.where(cells, jnp.int8(EMPTY), orders.product),
    )


def rush(_key: jax.Array, state: RTSState, player: jax.Array | int, walls: np.ndarray, *, fighter: jax.Array | int) -> Orders:
    """Train fighters, and send each to the enemy's nearest unit.

    With workers as fighters, bases train workers all the time, and all but one, which harvests, fight. With others, bases train
    a worker when there is none, workers harvest and build a barracks, and barracks train fighters all the time. Workers build a
    base if there is none.

    Args:
        state: state of the game.
        player: 0 or 1.
        walls: walls of the map.
        fighter: type of the units that fight; it may be traced.
    """
    fighter = jnp.asarray(fighter, jnp.int32)
    own, idle = state.owner == player, is_idle(state) & (state.owner == player)
    free, left = free_cells(state, walls), resources_left(state)[player]
    orders, entered, spent = _train(state, player, free, left, fighter)

    legal = legal_orders(state, walls)
    # Units that cannot act wait, and leave their places among the K to others.
    can_act = jnp.any(jnp.concatenate([legal.move, legal.harvest, legal.give, legal.attack]), axis=0)
    waiting = jnp.asarray(MOBILE)[state.unit] & idle & can_act
    cell, units = _first_units(state, waiting)
    site, building, saves = _building(state, own, free, units, left - spent, fighter)
    free &= ~_entered(building != EMPTY, units, site, state.unit.shape)

    bases, resources = own & (state.unit == BASE), state.unit == RESOURCE
    busy = (building != EMPTY) | saves
    gathers = units.there & (units.kind == WORKER) & ~busy
    gathers &= (fighter != WORKER) | (cell == _oldest(state, own & (state.unit == WORKER)))
    enemies = state.owner == 1 - player
    # In fog there may be none in sight.
    fights = units.there & ~busy & ~gathers & jnp.any(enemies)
    # Without a base a worker still fetches the next resource; without resources it does nothing.
    gathers &= jnp.any(resources) & (jnp.any(bases) | (units.carried == 0))
    loaded = gathers & (units.carried > 0)
    goal_of = [_nearest(cells, state.born, units) for cells in (enemies, bases, resources)]
    goal = jnp.select([fights, loaded], goal_of[:2], goal_of[2])
    width = state.unit.shape[1]
    down, right = goal // width - units.row, goal % width - units.column
    reach = jnp.where(fights, jnp.asarray(RANGE)[units.kind], 1)
    acts = (fights | gathers) & (down**2 + right**2 <= reach**2)
    goes = (fights | gathers) & ~acts
    # Units give way to those that are trained only if they have just appeared themselves.
    closed = (units.born == state.time)[:, None, None] & entered
    place, goal = jnp.stack([units.row, units.column], axis=-1), jnp.stack([goal // width, goal % width], axis=-1)
    way = first_steps(free, place, goal, reach, goes, closed)
    trains = orders.action == PRODUCE
    taken = _entered(goes & (way >= 0), units, way, state.unit.shape)
    orders = _let_wait(orders, trains & along(around(taken, False), orders.parameter))

    side = jnp.argmax((jnp.stack([down, right], axis=-1)[:, None] == DIRECTIONS).all(-1), axis=-1)
    aim = (down + REACH) * SPAN + right + REACH
    cases = [building != EMPTY, acts & fights, acts & loaded, acts, goes & (way >= 0)]
    action = jnp.select(cases, [jnp.int32(a) for a in (PRODUCE, ATTACK, RETURN, HARVEST, MOVE)], NONE)
    parameter = jnp.select(cases, [site, aim, side, side, way], PAUSE)

    def put(cells: jax.Array, values: jax.Array) -> jax.Array:
        return cells.reshape(-1).at[cell].set(values.astype(jnp.int8), mode="drop").reshape(cells.shape)

    # Units that could act and are not among the K stay idle and are asked again in the next cycle.
    parameter_of = jnp.where(waiting, jnp.int8(0), orders.parameter)
    return Orders(
        action=put(orders.action, action), parameter=put(parameter_of, parameter), product=put(orders.product, building)
    )


def _train(
    state: RTSState, player: jax.Array | int, free: jax.Array, left: jax.Array, fighter: jax.Array
) -> tuple[Orders, jax.Array, jax.Array]:
    """Return the orders of bases and barracks, which cells they reserve, bool `[H, W]`, and what they cost, i32 `[]`.

    Workers appear on the side that is nearest to a resource, others on that nearest to an enemy; of equal sides the first.
    """
    own, idle = state.owner == player, is_idle(state) & (state.owner == player)
    trains = idle & (state.unit == BASE) & ((fighter == WORKER) | ~jnp.any(own & (state.unit == WORKER)))
    musters = idle & (state.unit == BARRACKS) & (fighter != WORKER)
    product = jnp.where(musters, fighter, jnp.where(trains, WORKER, EMPTY))
    to_resource, to_enemy = (distance_map(cells) for cells in (state.unit == RESOURCE, state.owner == 1 - player))
    sides = [
        jnp.where(is_free, jnp.where(product == WORKER, near, far), 2 * FAR)
        for is_free, near, far in zip(around(free, False), around(to_resource, FAR), around(to_enemy, FAR), strict=True)
    ]
    side, best = jnp.argmin(jnp.stack(sides), axis=0), jnp.min(jnp.stack(sides), axis=0)
    product = jnp.where(best < 2 * FAR, product, EMPTY)
    cost = jnp.where(product != EMPTY, jnp.asarray(COST)[jnp.maximum(product, 0)], 0)
    product = jnp.where(paid(cost, left), product, EMPTY)
    arrives, entered = claims(product != EMPTY, side), jnp.zeros_like(idle)
    # Two of them may want the same cell: the unit before, row by row, has it.
    for d in (2, 1, 3, 0):
        product = jnp.where((side == d) & around(arrives[d] & entered, False)[d], EMPTY, product)
        entered |= arrives[d]
    makes = product != EMPTY
    orders = Orders(
        action=jnp.where(makes, PRODUCE, NONE).astype(jnp.int8),
        parameter=jnp.where(makes, side, PAUSE).astype(jnp.int8),
        product=product.astype(jnp.int8),
    )
    return orders, entered, jnp.sum(jnp.where(makes, cost, 0))


class _Units(NamedTuple):
    """K units: row, column, type, carried resources, when they appeared, each `[K]`, and whether there is a unit, bool `[K]`."""

    row: jax.Array
    column: jax.Array
    kind: jax.Array
    carried: jax.Array
    born: jax.Array
    there: jax.Array


def _first_units(state: RTSState, cells: jax.Array) -> tuple[jax.Array, _Units]:
    """Return the numbers of the first K of `cells`, bool `[H, W]`, row by row, i32 `[K]`, and their units; H * W for none.

    The oldest comes first.
    """
    height, width = cells.shape
    (cell,) = jnp.nonzero(cells.reshape(-1), size=min(MAX_ORDERS, height * width), fill_value=height * width)
    born = state.born.reshape(-1).at[cell].get(mode="fill", fill_value=np.iinfo(np.int16).max)
    number = jnp.arange(len(cell))
    older = (born < born[:, None]) | ((born == born[:, None]) & (number < number[:, None]))
    cell = jnp.zeros_like(cell).at[jnp.sum(older, axis=1)].set(cell)
    here = jnp.minimum(cell, height * width - 1)
    kind, carried, born = (cells.reshape(-1)[here] for cells in (state.unit, state.carried, state.born))
    return cell, _Units(here // width, here % width, kind, carried, born, cell < height * width)


def _building(
    state: RTSState, own: jax.Array, free: jax.Array, units: _Units, left: jax.Array, fighter: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the direction in which each of the K units builds, i32 `[K]`, what, i32 `[K]`, `EMPTY` for nothing, and which waits
    for resources that are reserved, bool `[K]`.

    The first worker with a free cell beside it builds, the base before the barracks.
    """
    begun = state.action == PRODUCE
    reserved = jnp.sum(jnp.where(own & begun, jnp.asarray(COST)[jnp.maximum(state.product, 0)], 0))

    def wanted(kind: int) -> jax.Array:
        missing = ~jnp.any(own & ((state.unit == kind) | (begun & (state.product == kind))))
        return missing & (left + reserved >= int(COST[kind]))

    kind = jnp.where(wanted(BASE), BASE, jnp.where((fighter != WORKER) & wanted(BARRACKS), BARRACKS, EMPTY))
    open_sides = jnp.stack([is_free[units.row, units.column] for is_free in around(free, False)], axis=-1)
    able = units.there & (units.kind == WORKER) & jnp.any(open_sides, axis=-1)
    first = able & (jnp.cumsum(able) == 1) & (kind != EMPTY)
    pays = jnp.where(kind == BASE, int(COST[BASE]), int(COST[BARRACKS])) <= left
    return jnp.argmax(open_sides, axis=-1), jnp.where(first & pays, kind, EMPTY), first & ~pays


def _entered(enters: jax.Array, units: _Units, side: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return the cells on these sides of the units that enter them or build in them, bool `[H, W]`."""
    offset = jnp.asarray(DIRECTIONS)[side]
    row = jnp.where(enters, units.row + offset[:, 0], shape[0])
    return jnp.zeros(shape, bool).at[row, units.column + offset[:, 1]].set(True, mode="drop")


def _oldest(state: RTSState, cells: jax.Array) -> jax.Array:
    """Return the number of the cell among `cells`, bool `[H, W]`, whose unit is the oldest, i32 `[]`."""
    return jnp.argmin(jnp.where(cells, state.born, np.iinfo(np.int16).max))


def _nearest(cells: jax.Array, born: jax.Array, units: _Units) -> jax.Array:
    """Return the number of the nearest of `cells`, bool `[H, W]`, to each of K units by Manhattan distance, i32 `[K]`.

    Of equally near ones it is the oldest.
    """
    height, width = cells.shape
    rows = jnp.abs(jnp.arange(height) - units.row[:, None])
    columns = jnp.abs(jnp.arange(width) - units.column[:, None])
    distance = jnp.where(cells, ((rows[:, :, None] + columns[:, None, :]) << 16) + born, FAR << 16)
    return jnp.argmin(distance.reshape(len(rows), -1), axis=-1)


FIGHTERS = {"workerrush": WORKER, "lightrush": LIGHT, "heavyrush": HEAVY, "rangedrush": RANGED}
"""The scripted players that rush, and the type of the units that they send."""

BOTS: dict[str, Bot] = {
    "passive": passive,
    "randombiased": random_biased,
    **{name: partial(rush, fighter=kind) for name, kind in FIGHTERS.items()},
}
"""The scripted players in JAX by name."""

SCRIPTED = (*BOTS, *(JAVA + name for name in OPPONENTS))
"""Names of all scripted players: those in JAX, and bots of the Java engine."""


def find_bot(name: str) -> Bot:
    """Return the scripted player of this name: one of `BOTS`, or `java:` and a bot of the Java engine, see `java_bot`.

    Raises:
        ConfigError: there is none; the closest match is named.
    """
    if is_java(name):
        return java_bot(name.removeprefix(JAVA))
    if not isinstance(name, str) or name not in BOTS:
        raise ConfigError(f"MicroRTS: unknown scripted player {shown(name)}: {did_you_mean(str(name), BOTS)}")
    return BOTS[name]


def order(
    bot: Bot, key: jax.Array, state: RTSState, player: jax.Array | int, walls: np.ndarray, memory: Any = None
) -> tuple[Orders, Any]:
    """Return a bot's orders and its memory after them, None for a bot without memory.

    Args:
        bot: the bot.
        key, state, player, walls: as in `Bot`.
        memory: the memory before; None where a game begins.
    """
    if isinstance(bot, RememberingBot):
        return bot.act(key, state, player, walls, jnp.zeros(bot.shape, jnp.int32) if memory is None else memory)
    return bot(key, state, player, walls), None


def find_bots(names: Sequence[str]) -> Callable[..., tuple[Orders, Any]]:
    """Return the scripted players of these names as one, which is told which of them it is.

    It is `(which, key, state, player, walls, memory=None) -> (orders, memory)`. The memory has one for each name, as in
    `rljax.core.games.versus.one_of`. All that rush are one computation, whichever it is.

    Raises:
        ConfigError: there is none of a name; the closest match is named.
    """
    bots: list[Any] = [rush if name in FIGHTERS else find_bot(name) for name in names]
    kinds = list(dict.fromkeys(bots))
    from_java = [bot for name, bot in zip(names, bots, strict=True) if is_java(name)]
    fighters = np.array([FIGHTERS.get(name, WORKER) for name in names])
    branch = np.array([kinds.index(bot) for bot in bots])

    def play(
        which: jax.Array, key: jax.Array, state: RTSState, player: jax.Array | int, walls: np.ndarray, memory: Any = None
    ) -> tuple[Orders, Any]:
        fighter = jnp.asarray(fighters)[which]
        kind = jnp.asarray(branch)[which]
        orders, memories = [], {}
        for number, bot in enumerate(kinds):
            act = partial(rush, fighter=fighter) if bot is rush else bot
            # Java is asked for the games of its bot only.
            asked = jnp.where(kind == number, player, NOBODY) if bot in from_java else player
            given, memories[bot] = order(act, key, state, asked, walls, None if memory is None else memory[bots.index(bot)])
            orders.append(given)
        return jax.tree.map(lambda *of_kinds: jnp.stack(of_kinds)[kind], *orders), tuple(memories[bot] for bot in bots)

    return play
