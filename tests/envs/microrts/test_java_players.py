"""Bots of the Java engine as scripted players of compiled programs."""

from __future__ import annotations

import zlib
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.errors import ConfigError, RljaxError
from rljax.core.host import WAITING, failures_explained
from rljax.envs import make_env
from rljax.envs.microrts.game import MicroRTS
from rljax.envs.microrts.java import engine, players
from rljax.envs.microrts.java.coac import ATTACKS, BEGUN, KNOWN_MAP, SEPARATED, CoacMemory, Memory, Task, recalled
from rljax.envs.microrts.java.positions import NONE, PRODUCE
from rljax.envs.microrts.java.states import lasting_ids, orders_of, position_of, rows_of, state_of
from rljax.envs.microrts.rules.engine import merge_orders
from rljax.envs.microrts.rules.state import RTSState
from rljax.envs.microrts.scripted.bots import find_bot, find_bots, order
from rljax.run.microrts.games import stacked
from tests.envs.microrts.oracle import GOLDEN, load

MAP = "basesWorkers8x8"
WALLS = MicroRTS(MAP).walls


def recorded_states(map_name: str = MAP) -> list[RTSState]:
    """States of recorded games of random players and bots, some with every kind of order under way."""
    recorded = [load(GOLDEN / f"{map_name}-{kind}.npz").before for kind in ("random", "bots")]
    return [jax.tree.map(lambda x, i=i: x[i], states) for states in recorded for i in range(0, len(states.time), 7)]


def test_states_become_positions_and_states_again() -> None:
    states = recorded_states()
    assert {int(kind) for state in states for kind in state.action[state.remaining > 0]} == set(range(6))
    for state in states:
        again = state_of(position_of(state, WALLS))
        for name in set(RTSState.__dataclass_fields__) - {"born"}:
            np.testing.assert_array_equal(getattr(again, name), getattr(state, name), name)
        # Ages are counted anew, but who is older stays.
        there = np.nonzero(state.unit >= 0)
        older = [np.sign(born[there][:, None] - born[there]) for born in (state.born.astype(int), again.born.astype(int))]
        np.testing.assert_array_equal(older[1][older[0] != 0], older[0][older[0] != 0])


def test_a_compiled_program_gets_the_orders_of_the_java_bots(java_engine: engine.Java) -> None:
    states = recorded_states()[:40]
    both = stacked([np.zeros(len(states), np.int32), np.ones(len(states), np.int32)])
    for name in sorted(set(players.OPPONENTS) - {"coac"}):
        # Players and states are stacked by two nested vmaps.
        of_states = jax.vmap(partial(find_bot(f"java:{name}"), walls=WALLS), (None, 0, 0))
        given = jax.jit(jax.vmap(of_states, (None, None, 0)))(jax.random.key(0), stacked(states), both)
        ordered = 0
        for player in range(2):
            for number, state in enumerate(states):
                position = position_of(state, WALLS)
                rows = java_engine.bot(name).orders(java_engine.game_at(position), player)
                for found, wanted in zip(
                    jax.tree.leaves(given), jax.tree.leaves(orders_of(position, rows[rows[:, 1] != NONE])), strict=True
                ):
                    np.testing.assert_array_equal(found[player, number], wanted)
                ordered += np.sum(rows[:, 1] != NONE)
        assert (ordered > 0) == (name != "passive"), name


def test_answers_do_not_depend_on_what_was_asked_before(java_engine: engine.Java) -> None:
    """CoacAI keeps much of a game in spite of Java's `reset`, and RoJoBot draws random numbers on small maps."""

    def ask(name: str, map_name: str, states: list[RTSState]) -> np.ndarray:
        walls = MicroRTS(map_name).walls
        asked = partial(order, find_bot(f"java:{name}"), walls=walls)
        given, _ = jax.vmap(asked, (None, 0, None))(jax.random.key(0), stacked(states), 0)
        return np.stack(jax.tree.leaves(given), axis=1)

    def ask_new(name: str, state: RTSState) -> np.ndarray:
        position = position_of(state, WALLS)
        rows = java_engine.bot(name).orders(java_engine.game_at(position), 0)
        return np.stack(jax.tree.leaves(orders_of(position, rows[rows[:, 1] != NONE])))

    states, small = recorded_states(), recorded_states("melee4x4light2")
    for name, differing in {"coac": 0.02, "rojobot": 0.0}.items():  # CoacAI moves at random in some states
        ask(name, "melee4x4light2", small)
        given, backwards = ask(name, MAP, states), ask(name, MAP, states[::-1])[::-1]
        new = np.stack([ask_new(name, state) for state in states])
        for other in (backwards, new):
            assert np.mean((given != other).any((1, 2, 3))) <= differing, name
    np.testing.assert_array_equal(ask("rojobot", "melee4x4light2", small), ask("rojobot", "melee4x4light2", small))


@pytest.mark.slow
def test_rojobot_follows_one_program_in_a_game(java_engine: engine.Java) -> None:
    """On a map whose size it does not know, it draws one in Java when its game begins; the seed is that of all its games here."""
    map_name, seat = "basesWorkers12x12", 1
    walls = MicroRTS(map_name).walls
    ask = jax.jit(lambda state: order(find_bot("java:rojobot"), jax.random.key(0), state, seat, walls)[0])
    game, other = java_engine.game(map_name), java_engine.bot("lightrush")
    kept = java_engine.bot("rojobot").as_new(zlib.crc32(walls.tobytes()))
    asked = 0
    for _ in range(150):
        position = game.position()
        state = state_of(position)
        plan = kept.play(game, seat)
        rows = game.orders_in(plan)
        idle = (state.owner == seat) & (state.remaining == 0)
        assert same(orders_of(position, rows[rows[:, 1] != NONE]), ask(state), idle)
        asked += int(idle.any())
        for orders in (plan, other.play(game, 1 - seat)):
            game.state.issueSafe(orders)
        assert not game.cycle()
    assert asked > 10


def test_java_is_asked_for_the_games_of_its_bots_only(java_engine: engine.Java, monkeypatch: pytest.MonkeyPatch) -> None:
    assert java_engine.maps()
    asked: list[str] = []
    orders = engine.JavaBot.orders

    def noted(bot: engine.JavaBot, *args: Any) -> np.ndarray:
        asked.append(bot.name)
        return orders(bot, *args)

    monkeypatch.setattr(engine.JavaBot, "orders", noted)
    state = next(s for s in recorded_states() if ((s.owner == 1) & (s.remaining == 0)).any())
    bots = find_bots(["passive", "java:rojobot", "java:lightrush"])
    which = jnp.array([0, 1, 2, 2, 0])
    given, memories = jax.vmap(lambda which: bots(which, jax.random.key(0), jax.tree.map(jnp.asarray, state), 1, WALLS))(which)
    assert not jax.tree.leaves(memories)
    assert sorted(asked) == ["lightrush", "lightrush", "rojobot"]
    np.testing.assert_array_equal(given.action[2], given.action[3])


@pytest.mark.parametrize(("map_name", "cycles"), [(MAP, 2000), pytest.param("basesWorkers16x16A", 600, marks=pytest.mark.slow)])
def test_coac_remembers_its_game(java_engine: engine.Java, map_name: str, cycles: int) -> None:
    """A compiled program's CoacAI orders what one does that is kept for the whole game, but where the latter moves at random.

    Asked without its memory it lets more workers harvest, and does not know the larger map, on which it produces other units.
    """
    bot: Any = find_bot("java:coac")
    walls, knows = MicroRTS(map_name).walls, map_name != MAP
    ask = jax.jit(lambda state, memory: order(bot, jax.random.key(0), state, 0, walls, memory))
    game, kept, other = java_engine.game(map_name), java_engine.bot("coac"), java_engine.bot("lightrush")
    nothing = memory = jnp.zeros(bot.shape, jnp.int32)
    begun: dict[int, int] = {}
    asked = alike = alike_without = other_products = 0
    over = False
    while not over and game.position().time < cycles:
        position = game.position()
        state = state_of(position)
        born = np.array(state.born)
        for name, _, _, x, y, _, _ in position.units.tolist():
            born[y, x] = begun.setdefault(name, position.time or int(born[y, x]))
        state = state.replace(born=born)
        rows = kept.orders(game, 0)
        rows = rows[rows[:, 1] != NONE]
        given, memory = ask(state, memory)
        idle = (state.owner == 0) & (state.remaining == 0)
        if idle.any():
            wanted, without = orders_of(position, rows), ask(state, nothing)[0]
            produces = idle & ((wanted.action == PRODUCE) | (np.asarray(given.action) == PRODUCE))
            assert same(wanted, given, produces)
            asked += 1
            alike += same(wanted, given, idle)
            alike_without += same(wanted, without, idle)
            other_products += not same(wanted, without, idle & (wanted.action == PRODUCE))
        game.issue(0, rows)
        game.state.issueSafe(other.play(game, 1))
        over = game.cycle()
    assert asked > 20
    assert alike > 0.94 * asked
    assert alike_without < 0.97 * alike
    assert (other_products > 0) == knows
    assert memory[0].tolist() == [BEGUN | (KNOWN_MAP if knows else 0), 0, 0, 0, 0, 0]
    # Two workers harvest for the base.
    harvesters = memory[1:][memory[1:, 1] > 0]
    assert [len(set(harvesters[:, column].tolist())) for column in range(2)] == [2, 1]


def same(first: Any, second: Any, cells: np.ndarray) -> bool:
    """Return whether two `Orders` are equal in the given cells, bool `[H, W]`."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all((np.asarray(a)[cells] == np.asarray(b)[cells]).all() for a, b in pairs)


TASKS = (
    Task(3, "ai.coac.TrainDirection", (3, 2)),
    Task(5, "ai.abstraction.Move", (4, 6)),
    Task(4, "ai.coac.HarvestReturn", (0, 2)),
)
"""Tasks of units of the map's beginning, in an order of their own: of a base, and of workers."""

OTHER_TASKS = (
    Task(4, "ai.coac.CoacAttack", (5,)),
    Task(2, "ai.coac.TrueIdle", ()),
    Task(5, "ai.coac.BuildModified", (2, 3, 1)),
)


@pytest.mark.parametrize("tasks", [TASKS, OTHER_TASKS])
def test_the_memory_of_coac_is_read_as_it_was_written(java_engine: engine.Java, tasks: tuple[Task, ...]) -> None:
    memory = CoacMemory(java_engine)
    position = position_of(state_of(java_engine.game(MAP).position()), WALLS)
    for marks in (BEGUN, BEGUN | KNOWN_MAP, BEGUN | ATTACKS, BEGUN | SEPARATED, BEGUN | KNOWN_MAP | ATTACKS | SEPARATED):
        bot = java_engine.bot("coac").as_new(0).bot
        given = Memory(marks, {4: 2}, tasks)
        memory.write(bot, given, java_engine.game_at(position), position)
        assert memory.read(bot, ordered=[4]) == given


def test_what_coac_remembers_lasts_with_its_units() -> None:
    """As a table of numbers, in which units have ids that last. It is known whose target is gone; who is gone is forgotten."""
    ids = np.array([50, 40, 30, 20, 10, 60])
    for tasks in (TASKS, OTHER_TASKS):
        memory = Memory(BEGUN, {4: 2, 1: 3}, tasks)
        table = memory.table(ids)
        again = recalled(table, ids)
        assert again == memory
        assert [task.unit for task in again.tasks] == [task.unit for task in tasks]
        # Later there are others, too, and the units have other numbers.
        later = np.array([7, 60, 10, 20, 30, 40, 50])
        numbers = recalled(table, later)
        assert numbers.harvesting == {2: 4, 5: 3}
        assert [later[task.unit] for task in numbers.tasks] == [ids[task.unit] for task in tasks]
        assert np.array_equal(numbers.table(later), table)
    table = Memory(BEGUN, {4: 2}, TASKS).table(ids)
    without_resource_and_base_3 = recalled(table, np.array([40, 30, 10, 60]))
    assert without_resource_and_base_3.tasks == (TASKS[1]._replace(unit=3), TASKS[2]._replace(unit=2, values=(-1, 1)))
    many = Memory(0, {}, tuple(Task(unit, "ai.coac.TrueIdle", ()) for unit in range(40)))
    assert recalled(many.table(np.arange(1, 41)), np.arange(1, 41)).tasks == many.tasks[:32]


@pytest.mark.slow
@pytest.mark.parametrize("seat", [0, 1])
def test_games_against_coac_are_those_in_java(java_engine: engine.Java, seat: int) -> None:
    """The beginning of a game, before fights, in which CoacAI may move at random: in each step the same position as in Java."""
    made: tuple[Any, Any] = make_env("MicroRTS-v0", map_name=MAP, wait_cycles=5, wait_until_change=True)
    env, params = made
    coac, other = (find_bot(name) for name in ("java:coac", "lightrush"))
    key = jax.random.key(0)

    @jax.jit
    def step(state: RTSState, memory: jax.Array) -> tuple[RTSState, jax.Array]:
        orders, memory = order(coac, key, state, seat, WALLS, memory)
        rush, _ = order(other, key, state, 1 - seat, WALLS)
        both = (orders, rush) if seat == 0 else (rush, orders)
        return env.play(state, env.with_waits(state, merge_orders(state, *both)), params)[0], memory

    rush = jax.jit(lambda state: order(other, key, state, 1 - seat, WALLS)[0])
    game, bot, played = java_engine.game(MAP), java_engine.bot("coac"), {}
    for cycle in range(200):
        position = game.position()
        played[cycle] = state_of(position)
        rows = rows_of(position, jax.tree.map(np.asarray, rush(played[cycle])), 1 - seat)
        plans = {seat: bot.play(game, seat), 1 - seat: game.plan(1 - seat, rows[rows[:, 1] != NONE])}
        for player in range(2):
            game.state.issueSafe(plans[player])
        assert not game.cycle()
    state, memory, steps = env.reset_env(key, params)[1], jnp.zeros(coac.shape, jnp.int32), 0  # type: ignore[union-attr]
    while state.time < 200:
        for name in ("unit", "owner", "hp", "carried", "resources"):
            np.testing.assert_array_equal(getattr(state, name), getattr(played[int(state.time)], name), name)
        state, memory, steps = *step(state, memory), steps + 1
    assert 30 < steps < 150


def test_a_run_against_coac_is_read_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_java() -> None:
        raise AssertionError("Java was started")

    monkeypatch.setattr(players, "start_java", start_java)
    bot: Any = find_bot("java:coac")
    agent = rljax.make_agent(rljax.load_config("microrts_8x8_league", scripted=("java:coac", "java:rojobot")))
    state = jax.eval_shape(agent.init, jax.random.key(0))
    assert state.env_state.scripted["java:coac"].shape == (128, 2, *bot.shape)
    env, params = make_env("MicroRTSBots-v0", opponents=("workerrush", "java:coac"))
    state = jax.eval_shape(env.reset, jax.random.key(0), params)[1]
    assert [leaf.shape for leaf in jax.tree.leaves(state.carry)] == [(2,), (2, *bot.shape)]


def test_units_keep_their_lasting_ids_while_they_live() -> None:
    game: Any = MicroRTS(MAP)

    def step(state: RTSState, key: jax.Array) -> tuple[RTSState, RTSState]:
        rushes = [find_bot("workerrush")(key, state, player, WALLS) for player in range(2)]
        return game.play(state, game.with_waits(state, merge_orders(state, *rushes)), game.default_params)[0], state

    _, state = game.reset_env(jax.random.key(0), game.default_params)
    _, states = jax.jit(lambda state, keys: jax.lax.scan(step, state, keys))(state, jax.random.split(jax.random.key(0), 150))
    games = [jax.tree.map(lambda x, i=i: np.asarray(x[i]), states) for i in range(150)]
    before: dict[int, tuple[int, ...]] = {}
    moved = kept = units = 0
    for state in games:
        position, ids = position_of(state, WALLS), lasting_ids(state).tolist()
        now = {name: tuple(unit[3:5]) for name, unit in zip(ids, position.units.tolist(), strict=True)}
        assert len(now) == len(ids)
        assert min(now) > 0
        steps = [sum(abs(a - b) for a, b in zip(now[name], before[name], strict=True)) for name in now.keys() & before.keys()]
        assert max(steps, default=0) <= 1
        moved, kept, units = moved + sum(steps), kept + len(steps), units + len(before)
        before = now
    # Units that got another id when they moved would not be found again.
    assert moved > 50
    assert kept > 0.95 * units


@pytest.mark.slow
def test_a_java_bot_as_an_opponent_beats_a_player_that_only_waits(java_engine: engine.Java) -> None:
    assert java_engine.maps()
    made: tuple[Any, Any] = make_env("MicroRTSBots-v0", opponents=("java:workerrush", "passive", "java:coac"), wait_cycles=5)
    env, params = made[0], made[1].replace(max_cycles=600)

    def step(state: Any, key: jax.Array) -> tuple[Any, Any]:
        wait = jnp.zeros(64, jnp.int32)
        _, state, reward, over, _ = env.step_env(key, state, wait, params)
        return state, (reward, over, state.carry)

    _, state = jax.vmap(lambda key: env.reset_env(key, params))(jax.random.split(jax.random.key(0), 12))
    keys = jax.random.split(jax.random.key(1), (12, 121))
    _, (reward, over, carry) = jax.jit(jax.vmap(lambda s, k: jax.lax.scan(step, s, k)))(state, keys)
    first = np.argmax(over, axis=1)
    assert over.any(axis=1).all()
    opponent = np.asarray(carry[0])[np.arange(12), first, 0] - 1
    result = np.asarray(reward)[np.arange(12), first]
    assert set(opponent.tolist()) == {0, 1, 2}
    np.testing.assert_array_equal(result, np.where(opponent == 1, 0.0, -1.0))


def test_names_of_java_bots_are_checked() -> None:
    assert {"java:coac", "java:rojobot", "workerrush"} <= set(MicroRTS().scripted)
    for name, message in {
        "java:coax": "scripted player 'java:coax': did you mean 'coac'",
        "java:droplet": "scripted player 'java:droplet': it searches for a time, so that its orders are never quite the same; ",
        "java:tiamat:10": "'java:tiamat:10': it searches for a time",
        "java:randombiased": "scripted player 'java:randombiased': ",
    }.items():
        with pytest.raises(ConfigError, match=message):
            find_bot(name)
    with pytest.raises(ConfigError, match="scripted: no scripted player 'java:coax': did you mean 'java:coac'"):
        rljax.make_agent(rljax.load_config("microrts_8x8_league", scripted=["java:coax"]))


def test_without_java_an_opponent_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{name}'")

    monkeypatch.setattr(engine, "importlib", SimpleNamespace(import_module=import_module))
    bots = find_bots(["passive", "java:coac"])
    with pytest.raises(RljaxError, match=r"No module named 'jpype': pip install 'rljax-jit\[microrts\]'"):
        bots(jnp.int32(1), jax.random.key(0), jax.tree.map(jnp.asarray, recorded_states()[0]), 0, WALLS)


@pytest.mark.slow
def test_a_league_against_java_bots_repeats_bit_for_bit(java_engine: engine.Java) -> None:
    assert java_engine.maps()
    config = rljax.load_config(
        "microrts_8x8_league", scripted=["java:workerrush", "java:rojobot"], num_envs=16, num_steps=24, num_minibatches=2,
        total_timesteps=3 * 16 * 24, eval_every=None, snapshot_every=200, snapshot_timeout=400,
    )  # fmt: skip
    agent = rljax.make_agent(config)
    step = jax.jit(agent.step)
    state = jax.jit(agent.init)(jax.random.key(0))
    ends = []
    for _ in range(2):
        after = state
        for _ in range(3):
            after, metrics = step(after)
        ends.append(after)
    assert np.isfinite(metrics["train/policy_loss"])
    for a, b in zip(*(jax.tree.leaves(end.params) for end in ends), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("where", ["play", "as_new"])
def test_a_bot_that_fails_in_java_ends_the_program_with_its_line(
    java_engine: engine.Java, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    real = getattr(engine.JavaBot, where)

    def fails(bot: engine.JavaBot, *args: Any, **options: Any) -> Any:
        java_engine.jpype.JClass("java.util.ArrayList")().get(3)
        return real(bot, *args, **options)

    monkeypatch.setattr(engine.JavaBot, where, fails)
    state = next(s for s in recorded_states() if ((s.owner == 0) & (s.remaining == 0)).any())
    program = jax.jit(partial(find_bot("java:workerrush"), walls=WALLS))
    with pytest.raises(RljaxError, match=r"^Java bot workerrush: .*Index 3 out of bounds"), failures_explained():
        jax.block_until_ready(program(jax.random.key(0), state, 0))
    assert "perf/java_wait" in WAITING.shares(1.0)
    assert not caplog.records
