"""MicroRTS-v0 unit by unit: masks and next states against the engine and the orders of a whole cycle, step by step."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.check import check_environment
from rljax.core.contract import check_contract
from rljax.core.environments.spaces import legal_action
from rljax.core.errors import ConfigError
from rljax.envs import make_env
from rljax.envs.microrts.actions import NUM_ORDERS, ORDERS
from rljax.envs.microrts.by_unit import CycleState, begin_cycle
from rljax.envs.microrts.game import MicroRTS
from rljax.envs.microrts.rules import engine
from rljax.envs.microrts.rules.state import Orders, RTSState
from rljax.envs.microrts.rules.units import (
    ATTACK,
    BASE,
    DIRECTIONS,
    HARVEST,
    LIGHT,
    MOVE,
    NONE,
    PRODUCE,
    RETURN,
    WORKER,
)
from rljax.envs.microrts.scripted.bots import BOTS
from rljax.envs.microrts.scripted.players import actions_of, scripted_player
from rljax.run.microrts.matches import java_program
from tests.envs.microrts.oracle import GOLDEN, load
from tests.envs.microrts.rules.test_engine import DOWN, LEFT, RIGHT, UP, position
from tests.envs.play import QUICK

MAP, STEPS, END, WAIT = "basesWorkers8x8", 20, 64, 3


def number_of(*order: int) -> int:
    """Return the number of an order: action, parameter, and product, -1 if left out."""
    return int(np.flatnonzero(((*order, -1)[:3] == ORDERS).all(1))[0])


def turned(action: int, parameter: int, product: int) -> tuple[int, int, int]:
    """Return an order after half a turn."""
    if action in (NONE, ATTACK):
        return action, 0 if action == NONE else 48 - parameter, product
    return action, (parameter + 2) % 4, product


TURNED = np.array([number_of(*turned(*order)) for order in ORDERS.tolist()])


class Cycles(NamedTuple):
    """Cycles played by random legal actions from N recorded positions; steps `[N, T, ...]`, of which `lasts` are the cycle's.

    Attributes:
        before: the positions.
        state, mask, action: of each step.
        lasts: which steps belong to the cycle.
        after: the state after the cycle.
        components: components of the reward of the whole cycle.
        early: which steps ended the game or gave a reward before the cycle was played.
    """

    before: RTSState
    state: CycleState
    mask: np.ndarray
    action: dict[str, np.ndarray]
    lasts: np.ndarray
    after: CycleState
    components: dict[str, np.ndarray]
    early: np.ndarray


def recorded() -> RTSState:
    """Positions of recorded games of bots and of random players; in every second one all units were made idle."""
    states = [load(GOLDEN / f"{MAP}-{kind}.npz").before for kind in ("bots", "random")]
    state = jax.tree.map(lambda *x: np.concatenate(x)[::5], *states)
    busy = np.arange(len(state.time))[:, None, None] % 2 == 0
    none = {"action": NONE, "parameter": 0, "product": -1, "remaining": 0}
    return state.replace(
        **{name: np.where(busy, x, np.asarray(none[name], x.dtype)) for name, x in vars(state).items() if name in none}
    )


@functools.cache
def random_cycles() -> Cycles:
    env, params = make_env("MicroRTS-v0", actions="units", wait_cycles=WAIT, wait_until_change=True)
    space = env.action_space(params)

    def cycle(start: RTSState, noise: jax.Array) -> Any:
        def step(loop: tuple[CycleState, Any], noise: jax.Array) -> tuple[tuple[CycleState, Any], Any]:
            state, components = loop
            mask = env.action_mask(state, params)
            action = jax.vmap(lambda m, u: legal_action(space, m, u)[0])(mask, noise)
            _, after, _, terminated, info = env.step_env(jax.random.key(0), state, action, params)
            lasts = state.time == start.time
            got = info["reward_components"]
            early = (after.time == start.time) & (terminated | jnp.any(jnp.stack(jax.tree.leaves(got)) != 0))
            after, components = jax.tree.map(
                functools.partial(jnp.where, lasts), (after, jax.tree.map(jnp.add, components, got)), loop
            )
            return (after, components), (state, mask, action, lasts, early)

        zeros = {name: jnp.zeros(2) for name in ("win", "resource", "worker", "building", "combat", "attack")}
        end, steps = jax.lax.scan(step, (begin_cycle(start), zeros), noise)
        return (*steps[:4], *end, steps[4])

    before = recorded()
    noise = np.random.default_rng(0).random((len(before.time), STEPS, 2, space.flat_dim), np.float32)
    # To end is drawn less often than a unit, so that most cycles have several orders.
    noise[..., END] *= 0.7
    run = jax.jit(jax.vmap(cycle), compiler_options=QUICK)
    return Cycles(before, *jax.tree.map(np.asarray, run(before, noise)))


@pytest.mark.slow
def test_a_cycle_unit_by_unit_is_that_of_the_same_orders_given_at_once() -> None:
    played = random_cycles()
    assert (played.after.time > played.before.time).all()
    assert played.lasts.sum(1).mean() > 2
    assert not played.early.any()
    env, params = make_env("MicroRTS-v0", wait_cycles=WAIT, wait_until_change=True)
    last = jax.tree.map(lambda x: x[np.arange(len(x)), played.lasts.sum(1) - 1], (played.state, played.action))

    def at_once(before: RTSState, state: CycleState, action: Any) -> Any:
        orders = env.by_unit.give(state, action)[0].pending.orders
        _, after, _, _, info = env.step_env(jax.random.key(0), before, actions_of(env, before, orders), params)
        return after, info["reward_components"]

    after, components = jax.jit(jax.vmap(at_once), compiler_options=QUICK)(played.before, *last)
    for name, value in vars(after).items():
        np.testing.assert_array_equal(getattr(played.after, name), value)
    jax.tree.map(np.testing.assert_array_equal, played.components, components)
    jax.tree.map(np.testing.assert_array_equal, played.after.pending, jax.vmap(begin_cycle)(after).pending)
    assert set(np.unique(played.after.action)) >= {MOVE, HARVEST, RETURN, PRODUCE, ATTACK}


@pytest.mark.slow
def test_masks_allow_what_the_engine_allows_after_the_pending_orders() -> None:
    """In plain Python over the legal orders of a state in which the engine was given the player's own pending orders only."""
    played = random_cycles()
    walls, checked = np.zeros((8, 8), bool), 0

    @functools.partial(jax.jit, compiler_options=QUICK)
    @jax.vmap
    def legal_of(before: RTSState, state: CycleState) -> Any:
        def of(player: int) -> Any:
            own = (state.pending.duration > 0) & (before.owner == player)
            orders = jax.tree.map(lambda x, none: jnp.where(own, x, none), state.pending.orders, Orders(NONE, 0, -1))
            given = engine.issue(before, orders, walls)
            return engine.legal_orders(given, walls), engine.is_idle(given) & (given.owner == player) & ~own

        return [of(player) for player in range(2)]

    for t in (0, 1, 2, 4):
        at = jax.tree.map(lambda x: x[:, t], played.state)  # noqa: B023
        both = jax.tree.map(np.asarray, legal_of(played.before, at))
        for n in np.flatnonzero(played.lasts[:, t])[::9]:
            for player in range(2):
                legal, idle = jax.tree.map(lambda x: x[n], both[player])  # noqa: B023
                mask, sources, orders_legal = played.mask[n, t, player], [], set()
                # The second player numbers cells and orders as if the map were turned by half.
                order_of, place_of = (TURNED, 63 - np.arange(64)) if player else (np.arange(NUM_ORDERS), np.arange(64))
                for cell in range(64):
                    y, x = divmod(cell, 8)
                    allowed = {0}
                    for number, (action, d, product) in enumerate(ORDERS.tolist()):
                        plane = {MOVE: legal.move, HARVEST: legal.harvest, RETURN: legal.give, ATTACK: legal.attack}.get(action)
                        if plane is not None and plane[d, y, x]:
                            allowed.add(int(order_of[number]))
                        if action == PRODUCE and legal.produce[d, y, x] and legal.product[product, y, x]:
                            allowed.add(int(order_of[number]))
                    if idle[y, x] and len(allowed) > 1 and not at.pending.ended[n, player]:
                        place = int(place_of[cell])
                        sources.append(place)
                        orders_legal |= allowed
                        assert set(np.flatnonzero(mask[place, END + 1 :])) == allowed
                        checked += 1
                assert np.flatnonzero(np.diagonal(mask)[: END + 1]).tolist() == [*sorted(sources), END]
                assert set(np.flatnonzero(np.diagonal(mask)[END + 1 :])) == orders_legal | {0}
                assert np.flatnonzero(mask[END, END + 1 :]).tolist() == [0]
    assert checked > 200


class Small(NamedTuple):
    """The game on the smallest map, with compiled functions."""

    env: MicroRTS
    give: Any
    masks: Any
    step: Any


@functools.cache
def small() -> Small:
    env, params = make_env("MicroRTS-v0", map_name="melee4x4light2", actions="units")
    step = jax.jit(lambda s, a: env.step_env(jax.random.key(0), s, a, params)[1], compiler_options=QUICK)
    give, masks = (jax.jit(f, compiler_options=QUICK) for f in (env.by_unit.give, env.by_unit.masks))
    return Small(env, give, masks, step)


def legal_orders(state: RTSState) -> np.ndarray:
    """Return which orders each player may give in each cell of the smallest map, not turned, bool `[2, 16, 65]`."""
    mask = np.asarray(small().masks(state))
    first, second = np.diagonal(mask, axis1=1, axis2=2)[:, :16, None] & mask[:, :16, 17:]
    return np.stack([first, second[::-1, TURNED]])


def actions(cells: tuple[int, int], numbers: tuple[int, int]) -> dict[str, jax.Array]:
    """Return the actions that order the units in these cells of the smallest map; 16 ends."""
    source = cells[0], 15 - cells[1] if cells[1] < 16 else cells[1]
    order = numbers[0], int(TURNED[numbers[1]])
    return {"source": jnp.array(source, jnp.int32), "order": jnp.array(order, jnp.int32)}


@pytest.mark.slow
def test_pending_orders_reserve_cells_and_resources_for_their_own_player() -> None:
    units = ((WORKER, 0, 0, 1), (WORKER, 0, 1, 0), (BASE, 0, 3, 0), (BASE, 0, 3, 3), (WORKER, 1, 1, 2), (LIGHT, 1, 2, 3))
    state = begin_cycle(position((4, 4), (1, 0), *units))
    down, up = number_of(MOVE, DOWN), number_of(PRODUCE, UP, WORKER)
    legal = legal_orders(state)
    assert legal[0, 4, number_of(MOVE, RIGHT)]
    assert legal[1, 6, number_of(MOVE, LEFT)]
    assert legal[0, 15, number_of(PRODUCE, LEFT, WORKER)]
    state, passes = small().give(state, actions((1, 11), (down, 0)))
    assert not passes
    legal = legal_orders(state)
    assert not legal[0, 1].any()
    assert not legal[0, 4, number_of(MOVE, RIGHT)]
    assert not legal[1, 11].any()
    # The other player does not know that the cell will be taken.
    assert legal[1, 6, number_of(MOVE, LEFT)]
    state, _ = small().give(state, actions((12, 16), (up, 0)))
    legal = legal_orders(state)
    assert not legal[0, 15].any()
    assert not legal[1].any()


@pytest.mark.parametrize("observation", ["planes", "entities"])
def test_players_see_their_own_pending_orders_as_actions_under_way(observation: str) -> None:
    env, params = make_env("MicroRTS-v0", map_name="melee4x4light2", actions="units", observation=observation)
    state = begin_cycle(position((4, 4), (0, 0), (LIGHT, 1, 0, 3), (LIGHT, 0, 2, 1), (LIGHT, 0, 3, 3)))
    move = number_of(MOVE, UP)
    after, _ = small().give(state, actions((9, 3), (move, 0)))

    def look(state: RTSState) -> jax.Array:
        obs = env.observe(state, params)
        seen: jax.Array = obs["entities"] if observation == "entities" else obs.reshape(2, 16, -1)
        return seen

    look = jax.jit(look, compiler_options=QUICK)
    before, now = np.asarray(look(state)), np.asarray(look(after))
    # The second player sees the map turned by half.
    places = (1, 2) if observation == "entities" else (9, 12)
    for player, place in enumerate(places):
        assert np.flatnonzero((before[player] != now[player]).any(-1)).tolist() == [place]
    kind, direction, remaining = slice(21, 27), slice(27, 31), 31
    assert now[0, places[0], kind].tolist() == [0, 1, 0, 0, 0, 0]
    assert now[0, places[0], direction].tolist() == [1, 0, 0, 0]
    assert now[0, places[0], remaining] == pytest.approx(8 / 200)
    # One that waits is idle again in the next cycle.
    assert now[1, places[1], kind].tolist() == [1, 0, 0, 0, 0, 0]
    assert now[1, places[1], remaining] == pytest.approx(1 / 200)


@pytest.mark.slow
@pytest.mark.parametrize("fog", [False, True])
def test_sources_are_the_entities_that_a_player_observes(fog: bool) -> None:
    env, params = make_env("MicroRTS-v0", actions="units", observation="entities", max_entities=24, fog=fog)
    states = jax.tree.map(lambda x: x[::8], recorded())

    @functools.partial(jax.jit, compiler_options=QUICK)
    @jax.vmap
    def look(state: RTSState) -> Any:
        choices = [env.by_unit.choices(state, player) for player in range(2)]
        return env.observe(state, params), jax.tree.map(lambda *x: jnp.stack(x), *choices)

    obs, choices = jax.tree.map(np.asarray, look(states))
    there = choices.cell < 64
    np.testing.assert_array_equal(there, obs["entity_mask"])
    place = np.round(obs["entities"][..., -2:] * 7).astype(int)
    cell = place[..., 0] * 8 + place[..., 1]
    cell[:, 1] = 63 - cell[:, 1]
    np.testing.assert_array_equal(choices.cell[there], cell[there])
    own = obs["entities"][..., 11] == 1
    assert choices.source.any()
    assert not (choices.source & ~own).any()


@pytest.mark.slow
def test_a_player_without_idle_units_can_only_end_and_time_passes_when_both_have() -> None:
    state = begin_cycle(position((4, 4), (0, 0), (LIGHT, 0, 0, 0), (LIGHT, 0, 0, 2), (LIGHT, 1, 3, 3)))
    state = state.replace(remaining=state.remaining.at[3, 3].set(4))
    legal = np.diagonal(small().masks(state), axis1=1, axis2=2)
    assert np.flatnonzero(legal[1]).tolist() == [16, 17]
    assert np.flatnonzero(legal[0, :17]).tolist() == [0, 2, 16]
    step, times = small().step, []
    for cell in (0, 2):
        state = step(state, actions((cell, 16), (number_of(MOVE, DOWN), 0)))
        times.append(int(state.time))
    # The cycles in which nobody can be ordered are skipped.
    assert times == [0, 4]
    assert np.asarray(state.remaining)[[0, 0, 3], [0, 2, 3]].tolist() == [4, 4, 0]
    for time in range(5, 9):
        state = step(state, actions((16, 16), (0, 0)))
        assert int(state.time) == time
    # Player 0 could order both of its units, but it ends; the other has ordered its only one.
    assert legal_orders(state)[0].any(1).sum() == 2
    state = step(state, actions((16, 15), (0, number_of(MOVE, UP))))
    assert int(state.time) == 9
    assert int(state.remaining.sum()) == 7


def test_illegal_actions_end_or_wait() -> None:
    state = begin_cycle(position((4, 4), (0, 0), (LIGHT, 0, 0, 0), (LIGHT, 0, 0, 2), (LIGHT, 1, 3, 3)))
    up = number_of(MOVE, UP)
    state = small().step(state, actions((0, 5), (up, up)))
    assert state.pending.ended.tolist() == [False, True]
    assert np.argwhere(np.asarray(state.pending.duration)).tolist() == [[0, 0]]
    state = small().step(state, actions((0, 99), (0, 0)))
    assert int(state.time) == 1
    assert int(state.action.sum()) == 0
    # It waits for as long as the move would have taken.
    assert np.asarray(state.remaining)[0].tolist() == [7, 0, 0, 0]


@pytest.mark.long
@pytest.mark.parametrize("name", ["workerrush", "lightrush"])
def test_scripted_players_give_the_orders_that_they_give_at_once(name: str) -> None:
    env, _ = make_env("MicroRTS-v0", actions="units")
    at_once, _ = make_env("MicroRTS-v0")
    bot, player = BOTS[name], scripted_player(env, name)
    states = jax.tree.map(lambda x: x[::2], recorded())

    def orders(state: RTSState) -> tuple[Orders, Orders]:
        key = jax.random.key(0)
        planned, _ = env.by_unit.plan(lambda s, _: (player(key, s, None), None), state, None)
        both = engine.merge_orders(state, *(bot(key, state, player, env.walls) for player in range(2)))
        return planned, at_once.orders(state, actions_of(at_once, state, both))

    planned, expected = jax.tree.map(np.asarray, jax.jit(jax.vmap(orders), compiler_options=QUICK)(states))
    jax.tree.map(np.testing.assert_array_equal, planned, expected)
    assert (planned.action != NONE).sum() > 40


@pytest.mark.long
def test_a_policy_of_units_gives_whole_cycles_of_orders_to_the_java_engine() -> None:
    """The random player's orders are legal, in no conflict, and more than one a cycle."""
    game, params = make_env("MicroRTS-v0", actions="units")
    program = java_program(game, params, lambda _: rljax.core.games.versus.random_player)
    states = jax.tree.map(lambda x: x[::2], recorded())
    orders, _ = program.decide(None, jax.random.key(0), states, program.begin(None, states))
    orders = jax.tree.map(np.asarray, orders)
    check = jax.vmap(lambda s, o: engine.is_legal(o, engine.legal_orders(s, game.walls)))
    valid = jax.jit(check, compiler_options=QUICK)(states, orders)
    given = orders.action != NONE
    assert not (given & ~np.asarray(valid)).any()
    counts = np.stack([(given & (states.owner == player)).sum((1, 2)) for player in range(2)])
    assert counts.max() > 2
    for n, player in np.ndindex(len(given), 2):
        own = np.argwhere(given[n] & (states.owner[n] == player))
        targets = [tuple(c + DIRECTIONS[orders.parameter[n, *c]]) for c in own if orders.action[n, *c] in (MOVE, PRODUCE)]
        assert len(set(targets)) == len(targets)


@pytest.mark.slow
def test_the_contract_is_kept() -> None:
    arguments = {"map_name": "melee4x4light2", "actions": "units"}
    assert check_contract(*make_env("MicroRTS-v0", observation="entities", **arguments)) == []
    assert check_contract(*make_env("MicroRTSBots-v0", opponents=("passive",), **arguments)) == []


@pytest.mark.long
def test_random_play_keeps_the_contract() -> None:
    check_environment(*make_env("MicroRTS-v0", map_name="melee4x4light2", actions="units", max_cycles=40))


def test_the_space_names_the_heads() -> None:
    env, params = make_env("MicroRTS-v0", actions="units")
    assert {name: space.n for name, space in env.action_space(params).spaces.items()} == {"source": 65, "order": NUM_ORDERS}
    assert env.all_move
    assert env.turn_gap == 0


SMALL = {"num_envs": 4, "num_steps": 16, "num_minibatches": 1, "num_epochs": 1, "total_timesteps": 128}
PARAMS = {"map_name": "melee4x4light2", "actions": "units", "max_cycles": 30}


@pytest.mark.long
@pytest.mark.parametrize("algorithm", [rljax.PPOConfig, rljax.SelfPlayConfig])
def test_training_takes_auto_regressive_heads(algorithm: Any) -> None:
    env, arguments = ("MicroRTSBots-v0", {"opponents": ("lightrush",)}) if algorithm is rljax.PPOConfig else ("MicroRTS-v0", {})
    config = algorithm(env=env, env_params=PARAMS | arguments, action_heads="autoregressive", **SMALL)
    metrics = jax.jit(rljax.make_train(config), compiler_options=QUICK)(jax.random.key(0)).metrics
    losses = np.asarray(metrics["train/policy_loss"])
    assert np.isfinite(losses).all()
    # In most steps of the game nothing can be ordered; in the others the first policy is nearly uniform.
    assert np.asarray(metrics["train/entropy"])[0] > 0.5


@pytest.mark.slow
def test_independent_heads_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="action_heads = 'independent': what is legal in") as caught:
        rljax.make_agent(rljax.SelfPlayConfig(env="MicroRTS-v0", env_params=PARAMS, **SMALL)).init(jax.random.key(0))
    assert "\n" not in str(caught.value)
