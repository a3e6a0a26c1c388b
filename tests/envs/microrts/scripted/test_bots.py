"""Scripted players of MicroRTS: their orders are legal in positions of the Java engine, and rushes beat weaker players."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.core.errors import ConfigError
from rljax.envs.microrts.against_bots import MicroRTSBots
from rljax.envs.microrts.game import MicroRTS
from rljax.envs.microrts.named_maps import find_map
from rljax.envs.microrts.rules import engine
from rljax.envs.microrts.rules.map_files import MAX_SIDE
from rljax.envs.microrts.rules.state import Orders, RTSState
from rljax.envs.microrts.rules.units import (
    ATTACK,
    BARRACKS,
    BASE,
    COST,
    DIRECTIONS,
    HARVEST,
    HEAVY,
    LIGHT,
    MOVE,
    NONE,
    PRODUCE,
    RESOURCE,
    RETURN,
    WORKER,
)
from rljax.envs.microrts.scripted.bots import BOTS, PAUSE, find_bot
from rljax.envs.microrts.scripted.paths import FAR, distance_map, first_steps
from rljax.envs.microrts.scripted.players import actions_of, scripted_player, seen_by
from rljax.run.microrts.parity import Transitions
from tests.envs.microrts.oracle import GOLDEN, load, record_bot
from tests.envs.microrts.rules.test_engine import position
from tests.envs.play import QUICK

MAP = "basesWorkers8x8"
WALLS = find_map(MAP).wall_cells()


def recorded(kind: str) -> Transitions:
    return load(GOLDEN / f"{MAP}-{kind}.npz")


def orders_of_bots(names: tuple[str, ...], states: RTSState) -> dict[str, Orders]:
    """Return both players' orders of scripted players in N positions, leaves `[N, H, W]`."""

    def all_orders(key: jax.Array, state: RTSState) -> dict[str, Orders]:
        keys = jax.random.split(key)
        players = [(keys[player], state, jnp.int32(player), WALLS) for player in range(2)]
        both = {name: [BOTS[name](*player) for player in players] for name in names}
        return {name: engine.merge_orders(state, *orders) for name, orders in both.items()}

    keys = jax.random.split(jax.random.key(0), len(states.time))
    orders = jax.jit(jax.vmap(all_orders), compiler_options=QUICK)(keys, states)
    return jax.tree.map(np.asarray, orders)


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [("passive", "randombiased", "lightrush"), pytest.param(("workerrush", "heavyrush", "rangedrush"), marks=pytest.mark.long)],
)
def test_all_orders_are_legal_in_recorded_positions(names: tuple[str, ...]) -> None:
    """By the Java engine's own list of legal orders; orders of one player are in no conflict with each other."""
    for kind in ("bots", "random"):
        found = recorded(kind)
        idle = (found.before.owner >= 0) & (found.before.remaining == 0)
        for name, orders in orders_of_bots(names, found.before).items():
            legal = found.legal
            planes = {MOVE: legal.move, HARVEST: legal.harvest, RETURN: legal.give, PRODUCE: legal.produce, ATTACK: legal.attack}
            acts = idle & (orders.action != NONE)
            for n, y, x in np.argwhere(acts):
                action, parameter = orders.action[n, y, x], orders.parameter[n, y, x]
                assert planes[action][n, parameter, y, x], (name, kind, n, y, x, action, parameter)
                assert action != PRODUCE or legal.product[n, orders.product[n, y, x], y, x], (name, kind, n, y, x)
            for player in range(2):
                own = acts & (found.before.owner == player)
                assert_no_conflicts(found.before, orders, own, player)
            assert acts.any() == (name != "passive")
            waits = orders.parameter[idle & (orders.action == NONE)]
            assert set(waits.tolist()) <= {0, PAUSE}


def assert_no_conflicts(states: RTSState, orders: Orders, own: np.ndarray, player: int) -> None:
    claimed = set()
    spent = np.zeros(len(own), int)
    under_way = (states.action == PRODUCE) & (states.owner == player)
    reserved = np.where(under_way, COST[states.product], 0).sum((1, 2))
    for n, y, x in np.argwhere(own & np.isin(orders.action, (MOVE, PRODUCE))):
        down, right = DIRECTIONS[orders.parameter[n, y, x]]
        assert (n, y + down, x + right) not in claimed
        claimed.add((n, y + down, x + right))
        spent[n] += COST[orders.product[n, y, x]] if orders.action[n, y, x] == PRODUCE else 0
    assert (spent[spent > 0] <= (states.resources[:, player] - reserved)[spent > 0]).all()


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize(("name", "resources"), [("lightrush", 1), ("heavyrush", 2)])
def test_a_worker_is_trained_where_a_fighter_is_too_dear(name: str, resources: int, seat: int) -> None:
    """As the Java bots do: without a worker, nothing else would ever bring the resources for the fighter."""
    units = (RESOURCE, -1, 0, 0), (BARRACKS, seat, 2, 2), (BASE, seat, 4, 2), (BASE, 1 - seat, 6, 5)
    state = position((8, 8), (resources, resources), *units)
    orders = BOTS[name](jax.random.key(0), state, seat, np.zeros((8, 8), bool))
    assert np.argwhere(np.asarray(orders.action) != NONE).tolist() == [[4, 2]]
    assert (int(orders.action[4, 2]), int(orders.product[4, 2])) == (PRODUCE, WORKER)


def test_units_that_cannot_act_take_no_orders_from_others() -> None:
    """The 18 in the upper rows are blocked, and one below is beside a base: Java's bot wins at once."""
    blocked = [(HEAVY, 0, row, column) for row in (0, 1) for column in range(9)]
    around_them = [(RESOURCE, -1, 2, column) for column in range(9)] + [(RESOURCE, -1, row, 9) for row in (0, 1)]
    state = position((16, 16), (0, 0), *blocked, *around_them, (HEAVY, 0, 10, 10), (BASE, 1, 10, 11))
    orders = BOTS["heavyrush"](jax.random.key(0), state, 0, np.zeros((16, 16), bool))
    assert np.argwhere(np.asarray(orders.action) != NONE).tolist() == [[10, 10]]
    assert int(orders.action[10, 10]) == ATTACK
    assert (np.asarray(orders.parameter)[:2, :9] == PAUSE).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("workerrush", marks=pytest.mark.long), "lightrush", "heavyrush", "rangedrush"])
def test_rushes_give_the_orders_of_the_java_bots(java_engine: Any, name: str) -> None:
    """Those that differ are of bots that remember: the place of a building, or where a base was."""
    assert_same_orders(*record_bot(java_engine, MAP, name, ("coac", "lightrush", "workerrush", "heavyrush")), name)


@pytest.mark.slow
def test_with_fog_a_rush_gives_the_orders_of_the_java_bot(java_engine: Any) -> None:
    """Those that differ are of fighters that remember the enemy they went for."""
    states, seat, wanted = record_bot(java_engine, MAP, "workerrush", ("coac", "workerrush", "rangedrush"), fog=True)
    game: Any = MicroRTS(MAP, fog=True)
    seen = jax.vmap(lambda state, player: seen_by(game, state, player, ()))(states, seat)
    assert_same_orders(seen, seat, wanted, "workerrush")
    with pytest.raises(AssertionError):  # without fog
        assert_same_orders(states, seat, wanted, "workerrush")


def assert_same_orders(states: RTSState, seat: np.ndarray, wanted: Orders, name: str) -> None:
    play = jax.jit(jax.vmap(lambda state, player: BOTS[name](jax.random.key(0), state, player, WALLS)), compiler_options=QUICK)
    orders = jax.tree.map(np.asarray, play(states, seat))
    idle = (states.owner == seat[:, None, None]) & (states.remaining == 0)
    acts = wanted.action != NONE
    same = (orders.action == wanted.action) & (~acts | (orders.parameter == wanted.parameter))
    same &= (wanted.action != PRODUCE) | (orders.product == wanted.product)
    assert idle.sum() > 500
    print(f"\n{name}: {same[idle].mean():.3f} of {idle.sum()} orders are equal")
    assert same[idle].mean() > 0.97
    assert same[idle & acts].mean() > 0.93


@pytest.mark.long
def test_rushes_beat_random_and_passive_players() -> None:
    """16 games each, from both seats: a worker rush wins all; it takes the time that the Java bot takes against a passive one."""
    start = jax.tree.map(jnp.asarray, find_map(MAP).start())
    rush, weak = BOTS["workerrush"], (BOTS["randombiased"], BOTS["passive"])

    def play(key: jax.Array, player: jax.Array, is_passive: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(loop: tuple[jax.Array, RTSState]) -> tuple[jax.Array, RTSState]:
            key, now = jax.random.split(loop[0])
            ours = rush(now, loop[1], player, WALLS)
            theirs = [bot(now, loop[1], 1 - player, WALLS) for bot in weak]
            other = jax.tree.map(lambda a, b: jnp.where(is_passive, b, a), *theirs)
            orders = jax.tree.map(lambda a, b: jnp.where(loop[1].owner == player, a, b), ours, other)
            return key, engine.cycle(loop[1], orders, WALLS)

        def going(loop: tuple[jax.Array, RTSState]) -> jax.Array:
            return (engine.winner(loop[1]) == engine.NOT_OVER) & (loop[1].time < 1000)

        _, end = jax.lax.while_loop(going, step, (key, start))
        return engine.winner(end), end.time

    player, is_passive = jnp.arange(32) % 2, jnp.arange(32) >= 16
    keys = jax.random.split(jax.random.key(1), 32)
    winner, time = jax.jit(jax.vmap(play), compiler_options=QUICK)(keys, player, is_passive)
    np.testing.assert_array_equal(winner, player)
    assert np.asarray(time)[16:].tolist() == [185] * 16


def plain_search(free: np.ndarray, start: tuple[int, int], goal: tuple[int, int], reach: int) -> tuple[int, int]:
    """Return the first step and the length of the way that A* finds with a sorted list, both -1 for no way."""
    way_to, queue = {start: ()}, [(0, start)]  # the best at the end, and of equal ones the newest
    while queue:
        _, (y, x) = queue.pop()
        way = way_to[y, x]
        if (y - goal[0]) ** 2 + (x - goal[1]) ** 2 <= reach**2:
            return way[0], len(way)
        for direction, (down, right) in enumerate(DIRECTIONS.tolist()):
            there = (y + down, x + right)
            inside = 0 <= there[0] < free.shape[0] and 0 <= there[1] < free.shape[1]
            if not inside or there in way_to or not free[there]:
                continue
            way_to[there] = (*way, direction)
            length = len(way) + 1 + abs(there[0] - goal[0]) + abs(there[1] - goal[1])
            place = len(queue)
            while place and queue[place - 1][0] < length:
                place -= 1
            queue.insert(place, (length, there))
    return -1, -1


def test_ways_are_those_of_a_plain_search_and_units_do_not_get_in_each_others_way() -> None:
    rng = np.random.default_rng(0)
    find = jax.jit(jax.vmap(first_steps), compiler_options=QUICK)
    games, units, shape = 60, 5, (6, 9)
    free = rng.random((games, *shape)) < 0.75
    place, goal = rng.integers(0, shape, (2, games, units, 2))
    reach, goes = rng.choice([1, 3], (games, units)), rng.random((games, units)) < 0.8
    goes &= ((place - goal) ** 2).sum(-1) > reach**2
    closed = rng.random((games, units, *shape)) < 0.1
    steps = np.asarray(find(*map(jnp.asarray, (free, place, goal, reach, goes, closed))))
    found, blocked = 0, 0
    for game in range(games):
        reserved = np.zeros(shape, bool)
        for unit in range(units):
            here, there = tuple(place[game, unit].tolist()), tuple(goal[game, unit].tolist())
            open_ = free[game] & ~closed[game, unit]
            step, _ = plain_search(open_ & ~reserved, here, there, int(reach[game, unit])) if goes[game, unit] else (-1, -1)
            assert steps[game, unit] == step
            if step >= 0:
                found += 1
                blocked += step != plain_search(open_, here, there, int(reach[game, unit]))[0]
                reserved[tuple(np.array(here) + DIRECTIONS[step])] = True
    assert found > 100
    assert blocked > 3


def test_a_way_that_needs_a_long_search_is_that_of_a_plain_search() -> None:
    """A pocket of over 2,048 cells lies before the goal. The way above it comes near the goal first, but is the longer one."""
    free = np.ones((50, 64), bool)
    free[[1, -2], 1:-1] = free[1:-1, [1, 50, 62]] = False
    free[24, 1] = True
    # Above, the way winds.
    free[:9, 51:] = False
    free[:9:2, 51:] = True
    free[[1, 5], -1] = free[[3, 7], 51] = True
    start, goal = (24, 0), (24, 63)
    direction, length = plain_search(free, start, goal, 1)
    assert (direction, length) == (2, 112)
    one = np.ones(1, np.int32)
    step = jax.jit(first_steps)(free, np.array([start]), np.array([goal]), one, one > 0, np.zeros((1, *free.shape), bool))
    assert step.tolist() == [direction]


def test_ways_are_found_on_the_largest_maps() -> None:
    side = MAX_SIDE
    free, one = np.ones((side, side), bool), np.ones(1, np.int32)
    args = free, np.zeros((1, 2), np.int32), np.full((1, 2), side - 1), one, one > 0, np.zeros((1, side, side), bool)
    assert jax.jit(first_steps, compiler_options=QUICK)(*args).tolist() == [
        plain_search(free, (0, 0), (side - 1, side - 1), 1)[0]
    ]


def test_distances_are_those_to_the_nearest_cell() -> None:
    cells = np.random.default_rng(1).random((5, 7)) < 0.1
    ys, xs = np.nonzero(cells)
    rows, columns = np.indices(cells.shape)
    down, right = np.abs(rows[..., None] - ys), np.abs(columns[..., None] - xs)
    np.testing.assert_array_equal(distance_map(jnp.asarray(cells)), (down + right).min(-1))
    assert (np.asarray(distance_map(jnp.zeros((3, 3), bool))) == FAR).all()


@pytest.mark.slow
@pytest.mark.parametrize("actions", ["cells", pytest.param("gridnet", marks=pytest.mark.slow)])
def test_orders_as_actions_of_the_game_give_the_same_orders(actions: str) -> None:
    game: Any = MicroRTS(MAP, actions=actions)
    found = recorded("bots")
    states = jax.tree.map(lambda x: x[:100], found.before)
    play = scripted_player(game, "workerrush")

    def both(key: jax.Array, state: RTSState) -> tuple[Orders, Orders, jax.Array]:
        rush = [find_bot("workerrush")(key, state, player, WALLS) for player in range(2)]
        wanted = engine.merge_orders(state, *rush)
        action = play(key, state, None)
        return wanted, game.orders(state, action), jnp.all(action == actions_of(game, state, wanted))

    keys = jax.random.split(jax.random.key(0), 100)
    wanted, got, same = jax.jit(jax.vmap(both), compiler_options=QUICK)(keys, states)
    acts = np.asarray((states.owner >= 0) & (states.remaining == 0) & (wanted.action != NONE))
    assert acts.sum() > 50
    assert np.asarray(same).all()
    for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True):
        np.testing.assert_array_equal(np.where(acts, a, 0), np.where(acts, b, 0))
    assert not np.asarray(got.action)[~acts].any()


@pytest.mark.parametrize("against_bots", [False, True])
def test_with_fog_a_scripted_player_acts_on_what_its_units_see(against_bots: bool) -> None:
    """On a map of 8 x 8 the players do not see each other at the beginning, so a fighter has nowhere to go."""
    key = jax.random.key(0)

    def goes(fog: bool) -> list[bool]:
        env: Any = MicroRTSBots(("passive", "lightrush"), MAP, fog=fog) if against_bots else MicroRTS(MAP, fog=fog)
        params = env.default_params
        begun = env.reset(key, params)[1]
        game = begun.game if against_bots else begun
        out_of_sight = game.replace(unit=game.unit.at[1, 1].set(LIGHT))  # in place of the worker of player 0
        in_sight = out_of_sight.replace(unit=out_of_sight.unit.at[4, 2].set(WORKER), owner=out_of_sight.owner.at[4, 2].set(1))

        def act(state: RTSState) -> jax.Array:
            if not against_bots:
                return env.scripted["lightrush"](key, state, params)[0]
            # The agent is player 1, and its opponent was drawn before: the rush.
            drawn = begun._replace(team=jnp.int32(1), game=state, carry=jnp.full(2, 2))
            return env._opponent_action(key, drawn, params)[0][0]

        return [bool(jax.jit(act)(state).reshape(8, 8)[1, 1] > 0) for state in (out_of_sight, in_sight)]

    assert goes(fog=True) == [False, True]
    assert goes(fog=False) == [True, True]


def test_an_unknown_player_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown scripted player 'workerush': did you mean 'workerrush"):
        find_bot("workerush")
