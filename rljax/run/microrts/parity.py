"""Cycles of the Java engine of microRTS, recorded as arrays by random and by bot play, and compared with the engine in JAX."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import jax
import numpy as np

from rljax.envs.microrts.named_maps import find_map
from rljax.envs.microrts.rules import engine
from rljax.envs.microrts.rules.state import LegalOrders, Orders, RTSState
from rljax.envs.microrts.rules.units import ATTACK, COST, DIRECTIONS, HARVEST, MOVE, NONE, PRODUCE, RETURN, SPAN, WORKER

BOTS = ("workerrush", "lightrush", "heavyrush", "rangedrush", "randombiased", "coac")
CENTER = SPAN * SPAN // 2


class Transitions(NamedTuple):
    """Positions before and after one cycle, `[N, ...]`, the orders given, and the legal orders before."""

    before: RTSState
    orders: Orders
    after: RTSState
    legal: LegalOrders


def state_of(game: Any) -> RTSState:
    """Return the state of a game of the Java engine.

    Times left come from the Java engine and not from our table of durations, which players use: what is compared must not depend
    on it.
    """
    position = game.position()
    shape = position.terrain.shape
    cells: dict[str, Any] = {name: np.zeros(shape, np.int8) for name in ("hp", "carried", "action", "parameter")}
    cells |= {name: np.full(shape, -1, np.int8) for name in ("unit", "owner", "product")}
    remaining, born = np.zeros((2, *shape), np.int16)
    under_way = {
        order[0]: (order, start) for order, start in zip(position.orders.tolist(), position.started.tolist(), strict=True)
    }
    board = game.state.getPhysicalGameState()
    for number, (name, kind, owner, x, y, carried, hp) in enumerate(position.units.tolist(), -len(position.units)):
        born[y, x] = number
        values = {"unit": kind, "owner": owner, "carried": carried, "hp": hp}
        if name in under_way:
            order, start = under_way[name]
            values |= dict(zip(("action", "parameter", "product"), _encoded(order, x, y), strict=True))
            unit = board.getUnit(name)
            remaining[y, x] = start + game.state.getUnitAction(unit).ETA(unit) - position.time
            if values["action"] == NONE:
                values["parameter"] = 0
        for field, value in values.items():
            cells[field][y, x] = value
    cells |= {"resources": position.resources.astype(np.int32), "time": np.asarray(position.time, np.int32)}
    return RTSState(**cells, remaining=remaining, born=born)


def _encoded(order: list[int], x: int, y: int) -> tuple[int, int, int]:
    _, kind, parameter, produced, target_x, target_y = order
    if kind == ATTACK:
        return kind, CENTER + (target_y - y) * SPAN + target_x - x, -1
    return kind, max(parameter, 0), produced


def legal_of(game: Any) -> LegalOrders:
    """Return the legal orders of all idle units of both players, as the Java engine has them."""
    shape = game.position().terrain.shape
    planes: dict[str, Any] = {name: np.zeros((4, *shape), bool) for name in ("move", "harvest", "give", "produce")}
    planes |= {"product": np.zeros((len(COST), *shape), bool), "attack": np.zeros((SPAN * SPAN, *shape), bool)}
    names = {MOVE: "move", HARVEST: "harvest", RETURN: "give", PRODUCE: "produce", ATTACK: "attack"}
    places = {row[0]: (row[4], row[3]) for row in game.position().units.tolist()}
    productions = set()
    for player in range(2):
        for order in game.legal(player).tolist():
            y, x = places[order[0]]
            action, parameter, product = _encoded(order, x, y)
            if action == NONE:
                continue
            planes[names[action]][parameter, y, x] = True
            if action == PRODUCE:
                planes["product"][product, y, x] = True
                productions.add((y, x, parameter, product))
    both = planes["produce"][:, None] & planes["product"][None]
    assert both.sum() == len(productions), "which units can be produced depends on the direction"
    return LegalOrders(**planes)


def record(java: Any, map_name: str, count: int, seed: int, bots: bool) -> Transitions:
    """Play games until `count` cycles in which an action was ordered or happened are recorded.

    Args:
        java: the Java engine.
        map_name: name of the map.
        count: number of transitions.
        seed: seed of all choices; the bots have their own random numbers.
        bots: whether bots play, with some random moves in between. If not, orders are random, and most games start with random
            units all over the map, so that all that can happen does.
    """
    rng = random.Random(seed)
    found: list[Transitions] = []
    while len(found) < count:
        game = java.game(map_name)
        players = [java.bot(rng.choice(BOTS)) for _ in range(2)]
        weights = [{NONE: rng.choice([0.3, 1, 3]), MOVE: 1, HARVEST: 3, RETURN: 3, PRODUCE: rng.choice([0.3, 1, 3]),
                    ATTACK: rng.choice([1, 3, 10])} for _ in range(2)]  # fmt: skip
        if not bots and rng.random() < 0.8:
            scatter_units(java, game, rng)
        for _ in range(600 if bots else 150):
            before = state_of(game)
            plans = [
                players[player].play(game, player)
                if bots and rng.random() < 0.95
                else random_plan(java, game, player, rng, weights)
                for player in range(2)
            ]
            orders = orders_of(game, plans)
            idle = (before.owner >= 0) & (before.remaining == 0)
            eventful = np.any(idle & (orders.action != NONE)) or np.any((before.remaining == 1) & (before.action != NONE))
            legal: Any = legal_of(game) if eventful else None
            for plan in plans:
                game.state.issueSafe(plan)
            over = game.cycle()
            if eventful:
                found.append(Transitions(before, orders, state_of(game), legal))
            if over or len(found) == count or overspent(game):
                break
    stacked: Transitions = jax.tree.map(lambda *leaves: np.stack(leaves), *found)
    return stacked


def scatter_units(java: Any, game: Any, rng: random.Random) -> None:
    """Put random units of both players all over the map of a game, and give the players random resources."""
    board = game.state.getPhysicalGameState()
    share, make = rng.choice([0.1, 0.2, 0.4]), java.jpype.JClass("rts.units.Unit")
    for player in range(2):
        game.state.getPlayer(player).setResources(rng.choice([0, 3, 5, 10, 20]))
    for y in range(board.getHeight()):
        for x in range(board.getWidth()):
            if board.getUnitAt(x, y) is None and rng.random() < share:
                kind = rng.choices(range(7), [1, 1, 2, 6, 3, 3, 3])[0]
                carried = rng.choice([1, 1, 2, 5]) if kind == 0 else int(kind == WORKER and rng.random() < 0.5)
                board.addUnit(make(-1 if kind == 0 else rng.randrange(2), java.types.getUnitType(kind), x, y, carried))


def random_plan(java: Any, game: Any, player: int, rng: random.Random, weights: list[dict[int, float]]) -> Any:
    """Return random orders, whose conflicts with each other are left in; but what is produced can be paid for."""
    plan, state = java.PlayerAction(), game.state
    budget = state.getPlayer(player).getResources() - state.getResourceUsage().getResourcesUsed(player)
    for unit in state.getUnits():
        if unit.getPlayer() != player or state.getActionAssignment(unit) is not None:
            continue
        choices = [action for action in unit.getUnitActions(state) if state.isUnitActionAllowed(unit, action)]
        action = rng.choices(choices, [weights[player][choice.getType()] for choice in choices])[0]
        cost = action.getUnitType().cost if action.getType() == PRODUCE else 0
        # Two productions that can only be paid for one by one are a conflict to be seen; three are one that the engine overlooks.
        if (cost > budget and rng.random() < 0.7) or action.getType() == NONE:
            action, cost = java.UnitAction(NONE, rng.choice([1, 1, 2, 5, 10])), 0
        budget -= cost
        plan.addUnitAction(unit, action)
    return plan


def orders_of(game: Any, plans: list[Any]) -> Orders:
    """Return the orders that plans of the Java engine give to units that have none under way."""
    board, state = game.state.getPhysicalGameState(), game.state
    orders = np.zeros((3, board.getHeight(), board.getWidth()), np.int8)
    orders[2] = -1
    for plan in plans:
        for pair in plan.getActions():
            unit, action = pair.m_a, pair.m_b
            if state.getActionAssignment(unit) is not None:
                continue
            kind = action.getType()
            parameter = max(action.ETA(unit), 0) if kind == NONE else action.getDirection()
            product = action.getUnitType().ID if kind == PRODUCE else -1
            target = (action.getLocationX(), action.getLocationY()) if kind == ATTACK else (-1, -1)
            x, y = unit.getX(), unit.getY()
            orders[:, y, x] = _encoded([0, kind, parameter, product, *target], x, y)
    return Orders(*orders)


def overspent(game: Any) -> bool:
    """Return whether a player of the Java engine has promised more resources than it has, as joint conflicts let it."""
    used = game.state.getResourceUsage()
    return any(used.getResourcesUsed(player) > game.state.getPlayer(player).getResources() for player in range(2))


def joint_conflicts(transitions: Transitions) -> np.ndarray:
    """Return where three or more orders are in one conflict, those under way included, bool `[N]`.

    The result of the Java engine then depends on the order of its list, or spends more than there is.
    """
    before, orders, legal = transitions.before, transitions.orders, transitions.legal
    legal_production = np.zeros(before.unit.shape, bool)
    enters = np.zeros((4, *before.unit.shape), bool)
    for d in range(4):
        is_made = np.any([(orders.product == t) & legal.product[:, t] for t in range(len(COST))], axis=0)
        moves = (orders.action == MOVE) & (orders.parameter == d) & legal.move[:, d]
        produces = (orders.action == PRODUCE) & (orders.parameter == d) & legal.produce[:, d] & is_made
        legal_production |= produces
        enters[d] = moves | produces
    height, width = before.unit.shape[1:]
    claims = np.zeros((len(before.unit), height + 2, width + 2), int)
    for d, (down, right) in enumerate(DIRECTIONS):
        claims[:, 1 + down : 1 + down + height, 1 + right : 1 + right + width] += enters[d]
    claims = claims[:, 1:-1, 1:-1]
    joint: np.ndarray = np.asarray((claims > 2).any((1, 2)))
    rival = np.zeros_like(legal_production)
    padded = np.pad(claims, ((0, 0), (1, 1), (1, 1)))
    for d, (down, right) in enumerate(DIRECTIONS):
        rival |= enters[d] & (padded[:, 1 + down : 1 + down + height, 1 + right : 1 + right + width] > 1)
    for player in range(2):
        new = legal_production & (before.owner == player)
        old = (before.action == PRODUCE) & (before.owner == player)
        cost = (np.where(new, COST[orders.product], 0) + np.where(old, COST[before.product], 0)).sum((1, 2))
        many = (new.sum((1, 2)) > 2) | (old.any((1, 2))) | (new & rival).any((1, 2))
        joint |= (cost > before.resources[:, player]) & many
    return joint


def differences(transitions: Transitions, map_name: str, options: dict[str, Any] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return where the JAX engine's next state, and where its legal orders, differ from those recorded, each bool `[N]`.

    `options` are those of XLA's compiler.
    """
    walls = find_map(map_name).wall_cells()

    def play(state: RTSState, orders: Orders) -> tuple[RTSState, LegalOrders]:
        return engine.cycle(state, orders, walls), engine.legal_orders(state, walls)

    after, legal = jax.jit(jax.vmap(play), compiler_options=options)(transitions.before, transitions.orders)
    younger = [_order_differs(*both) for both in zip(np.asarray(after.born), transitions.after.born, strict=True)]
    after = after.replace(born=transitions.after.born)
    return _differ(after, transitions.after) | younger, _differ(legal, transitions.legal)


def _order_differs(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether units are in another order by age; those that appeared in the same cycle may be."""
    units = second != 0
    first, second = first[units], second[units]
    return bool(np.any(np.diff(second[np.lexsort((second, first))]) <= 0))


def _differ(first: Any, second: Any) -> np.ndarray:
    unequal = jax.tree.map(lambda a, b: (np.asarray(a) != b).reshape(len(b), -1).any(1), first, second)
    return np.any(jax.tree.leaves(unequal), axis=0)
