"""The engine of MicroRTS against the Java engine: recorded transitions, and live ones where Java is installed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.core.errors import ConfigError
from rljax.envs.microrts.java.positions import Position, orders_array
from rljax.envs.microrts.java.states import rows_of, state_of
from rljax.envs.microrts.named_maps import find_map
from rljax.envs.microrts.observation import visible_cells
from rljax.envs.microrts.rules import engine
from rljax.envs.microrts.rules.maps import MAPS
from rljax.envs.microrts.rules.state import Orders, RTSState
from rljax.envs.microrts.rules.units import (
    ATTACK,
    BASE,
    EMPTY,
    HARVEST,
    HEAVY,
    HP,
    LIGHT,
    MOVE,
    OFFSETS,
    PRODUCE,
    RESOURCE,
    WORKER,
)
from rljax.run.microrts.parity import differences, joint_conflicts, record
from tests.envs.microrts.oracle import GOLDEN, load, record_sight
from tests.envs.play import QUICK

RECORDED = sorted(path.stem for path in GOLDEN.glob("*.npz"))


def test_every_map_is_recorded() -> None:
    assert {name.split("-")[0] for name in RECORDED} == set(MAPS) - {"basesWorkers16x16A"}
    assert find_map("basesWorkers16x16A").units == find_map("basesWorkers16x16").units


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_cycles_of_the_java_engine_are_reproduced(name: str) -> None:
    transitions = load(GOLDEN / f"{name}.npz")
    wrong, illegal = differences(transitions, name.split("-")[0], QUICK)
    joint = joint_conflicts(transitions)
    assert len(wrong) == 400
    assert joint.mean() < 0.05
    assert not (wrong & ~joint).any()
    assert not illegal.any()


def compare_live(java: Any, map_name: str, count: int, seed: int) -> None:
    for bots in (False, True):
        transitions = record(java, map_name, count // 2, seed, bots)
        wrong, illegal = differences(transitions, map_name, QUICK)
        joint = joint_conflicts(transitions)
        kind = "bots" if bots else "random"
        print(f"\n{map_name}, {kind}: {len(wrong)} positions, {(wrong & ~joint).sum()} differ; {joint.sum()} with a joint conflict, of which {(wrong & joint).sum()} differ; {illegal.sum()} legal orders differ")  # fmt: skip  # noqa: E501
        assert not (wrong & ~joint).any()
        assert not illegal.any()


@pytest.mark.slow
def test_live_cycles_of_the_java_engine_are_reproduced(java_engine: Any) -> None:
    compare_live(java_engine, "basesWorkers8x8", 600, seed=int.from_bytes(os.urandom(4)))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("map_name", MAPS)
def test_ten_thousand_live_cycles_of_the_java_engine_are_reproduced(java_engine: Any, map_name: str) -> None:
    compare_live(java_engine, map_name, 10_000, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("map_name", ["melee4x4light2", "basesWorkers16x16"])
def test_players_see_through_fog_what_they_see_in_the_java_engine(java_engine: Any, map_name: str) -> None:
    states, seen, units = record_sight(java_engine, map_name, 150, seed=int.from_bytes(os.urandom(4)))
    visible = np.stack([jax.vmap(visible_cells, (0, None))(states, player) for player in range(2)], axis=1)
    np.testing.assert_array_equal(visible, seen)
    np.testing.assert_array_equal(visible & (states.unit != EMPTY)[:, None], units)
    assert 0.1 < seen.mean() < 0.99


def position(shape: tuple[int, int], resources: tuple[int, int], *units: tuple[int, int, int, int]) -> RTSState:
    """Return the state with these units: type, owner, row, column."""
    game_map = find_map("melee4x4light2")._replace(shape=shape, resources=resources, units=tuple((*unit, 0) for unit in units))
    return jax.tree.map(jnp.asarray, game_map.start())


def orders_of(shape: tuple[int, int], *orders: tuple[int, int, int, int, int]) -> Orders:
    """Return these orders: row, column, action, parameter, product."""
    planes = np.zeros((3, *shape), np.int8)
    for row, column, *order in orders:
        planes[:, row, column] = order
    return Orders(*planes)


UP, RIGHT, DOWN, LEFT = range(4)
issue = jax.jit(engine.issue, compiler_options=QUICK)
cycle = jax.jit(engine.cycle, compiler_options=QUICK)


def test_two_that_want_one_cell_both_wait_for_the_shorter_time() -> None:
    state = position((3, 3), (0, 0), (LIGHT, 0, 1, 0), (WORKER, 1, 1, 2))
    orders = orders_of((3, 3), (1, 0, MOVE, RIGHT, -1), (1, 2, MOVE, LEFT, -1))
    state = issue(state, orders, np.zeros((3, 3), bool))
    assert state.action.sum() == 0
    assert state.remaining[1].tolist() == [8, 0, 8]


def test_three_that_want_one_cell_all_wait_whatever_the_seats() -> None:
    for owners in ((0, 1, 1), (1, 0, 0), (0, 0, 0)):
        places = ((1, 0, RIGHT), (1, 2, LEFT), (0, 1, DOWN))
        state = position((3, 3), (0, 0), *((HEAVY, owner, r, c) for owner, (r, c, _) in zip(owners, places, strict=True)))
        state = issue(state, orders_of((3, 3), *((r, c, MOVE, d, -1) for r, c, d in places)), np.zeros((3, 3), bool))
        assert state.action.sum() == 0
        assert state.remaining.sum() == 30


@pytest.mark.parametrize(("resources", "waits"), [(1, True), (2, False)])
def test_productions_that_cannot_be_paid_for_together_all_wait(resources: int, waits: bool) -> None:
    state = position((3, 4), (resources, 0), (BASE, 0, 1, 0), (BASE, 0, 1, 3), (LIGHT, 1, 2, 2))
    orders = orders_of((3, 4), (1, 0, PRODUCE, UP, WORKER), (1, 3, PRODUCE, UP, WORKER))
    state = issue(state, orders, np.zeros((3, 4), bool))
    assert state.remaining[1].tolist() == [50, 0, 0, 50]
    assert bool((state.action == PRODUCE).any()) is not waits


@pytest.mark.slow
def test_walls_and_edges_stop_moves() -> None:
    state = position((2, 2), (0, 0), (LIGHT, 0, 0, 0), (RESOURCE, -1, 1, 1))
    legal = engine.legal_orders(state, np.array([[False, True], [False, False]]))
    assert legal.move[:, 0, 0].tolist() == [False, False, True, False]


LATE = {
    "stays": (),
    "leaves": ((30, MOVE, RIGHT),),
    "leaves later": ((31, MOVE, RIGHT),),
    "attacks": ((33, ATTACK, OFFSETS.tolist().index([0, -1])),),
}
"""Orders of a light that stands where a resource was: cycles, actions and parameters. It attacks the worker on its left."""


def late_harvest(occupant: Iterable[tuple[int, int, int]]) -> dict[int, list[tuple[int, int, int, int]]]:
    """Return orders by cycle: row, column, action, parameter. A worker exhausts a resource that another harvests until cycle 38,
    and a light is in its place from cycle 28.
    """
    orders = {0: [(1, 0, HARVEST, RIGHT)], 18: [(0, 1, HARVEST, DOWN)], 20: [(1, 2, MOVE, LEFT)]}
    return orders | {time: [(1, 1, *order)] for time, *order in occupant}


def late_units() -> tuple[tuple[int, int, int, int, int], ...]:
    return (RESOURCE, -1, 1, 1, 1), (WORKER, 0, 1, 0, 0), (WORKER, 0, 0, 1, 0), (LIGHT, 1, 1, 2, 0), (BASE, 1, 3, 3, 0)


@pytest.mark.parametrize("name", LATE)
def test_a_late_harvest_kills_who_has_come_to_where_the_resource_was(name: str) -> None:
    """The victim still does what is due in that cycle: its attack hits, and if it leaves, it dies where it goes."""
    game_map = find_map("melee4x4light2")._replace(shape=(4, 4), resources=(0, 0), units=late_units())
    state, ordered = jax.tree.map(jnp.asarray, game_map.start()), late_harvest(LATE[name])
    for time in range(39):
        assert int(state.unit[1, 1]) == (RESOURCE if time < 20 else LIGHT if 28 <= time < 38 else EMPTY)
        orders = orders_of((4, 4), *((*order, -1) for order in ordered.get(time, ())))
        state = cycle(state, orders, np.zeros((4, 4), bool))
    assert not (state.unit == LIGHT).any()
    assert int(state.carried[0, 1]) == 1
    assert int(state.owner[1, 0]) == (-1 if name == "attacks" else 0)
    assert np.unique(state.remaining).tolist() == [0]


@pytest.mark.slow
@pytest.mark.parametrize("name", LATE)
def test_late_harvests_are_those_of_the_java_engine(java_engine: Any, name: str) -> None:
    units = np.array([(i, kind, owner, c, r, carried, HP[kind]) for i, (kind, owner, r, c, carried) in enumerate(late_units())])
    walls, none = np.zeros((4, 4), bool), orders_array([])
    start = Position(walls, 0, np.zeros(2, np.int32), units.astype(np.int32), none, np.array([], np.int32))
    game = java_engine.game_at(start)
    state, ordered = state_of(game.position()), late_harvest(LATE[name])
    for time in range(42):
        orders = orders_of((4, 4), *((*order, -1) for order in ordered.get(time, ())))
        rows = [rows_of(game.position(), orders, player) for player in range(2)]
        for player in range(2):
            game.issue(player, rows[player])
        game.cycle()
        state, after = cycle(state, orders, walls), state_of(game.position())
        for field in ("unit", "owner", "hp", "carried", "action", "remaining", "resources"):
            np.testing.assert_array_equal(getattr(state, field), getattr(after, field), f"{field} at {time}")


def test_a_player_without_units_has_lost() -> None:
    units = ((LIGHT, 0, 0, 0), (LIGHT, 1, 0, 1))
    results = [int(engine.winner(position((2, 2), (0, 0), *some))) for some in (units, units[:1], units[1:], ())]
    assert results == [engine.NOT_OVER, 0, 1, engine.DRAW]


def test_an_unknown_map_names_the_closest() -> None:
    with pytest.raises(ConfigError, match=r"unknown map 'basesWorkers8x9'.*basesWorkers8x8"):
        find_map("basesWorkers8x9")


def test_golden_files_are_small() -> None:
    assert sum(path.stat().st_size for path in Path(GOLDEN).iterdir()) < 400_000


def test_cells_pay_row_by_row_and_those_that_are_too_dear_are_left_out() -> None:
    rng = np.random.default_rng(0)
    costs = rng.choice([0, *engine.PRICES], (200, 3, 4), p=[0.4, 0.1, 0.1, 0.1, 0.15, 0.15])
    budgets = rng.integers(0, 20, 200)
    expected = np.zeros(costs.shape, bool)
    for game, left in enumerate(budgets):
        for cell in np.ndindex(3, 4):
            if 0 < costs[game][cell] <= left:
                expected[game][cell], left = True, left - costs[game][cell]
    np.testing.assert_array_equal(jax.vmap(engine.paid)(jnp.asarray(costs), jnp.asarray(budgets)), expected)
