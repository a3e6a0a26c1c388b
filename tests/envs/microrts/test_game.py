"""MicroRTS-v0 as a game: actions, masks, observations, rewards, ends and pictures, each against plain Python."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.core.contract import check_contract
from rljax.core.errors import ConfigError
from rljax.envs import MicroRTS, make_env
from rljax.envs.microrts.actions import NUM_ORDERS, ORDERS, biased_choice, cell_mask, drop_own_conflicts, random_choice
from rljax.envs.microrts.observation import NUM_PLANES, visible_cells
from rljax.envs.microrts.rules import engine
from rljax.envs.microrts.rules.state import Orders, RTSState
from rljax.envs.microrts.rules.units import (
    ATTACK,
    BARRACKS,
    BASE,
    COST,
    DIRECTIONS,
    HARVEST,
    HEADS,
    LIGHT,
    MOVE,
    NONE,
    OFFSETS,
    PRODUCE,
    RESOURCE,
    RETURN,
    SIGHT,
    WORKER,
)  # fmt: skip
from rljax.envs.microrts.scripted.bots import find_bot
from rljax.envs.microrts.seats import TURNED
from tests.envs.microrts.rules.test_engine import DOWN, LEFT, RIGHT, UP, orders_of, position
from tests.envs.play import QUICK

STEPS, GAMES = 200, 4


class Played(NamedTuple):
    """Steps of random games, `[T, N, ...]`."""

    state: RTSState
    mask: np.ndarray
    orders: Orders
    obs: Any
    reward: np.ndarray
    components: dict[str, np.ndarray]
    after: RTSState


def upright(mask: jax.Array, actions: str) -> jax.Array:
    """Return the masks of both players as the first sees the map."""
    starts = np.cumsum((0, *map(len, TURNED[actions])))
    order = np.concatenate([start + head for start, head in zip(starts, TURNED[actions], strict=False)])
    return jnp.stack([mask[0], mask[1].reshape(-1, len(order))[::-1, order].reshape(-1)])


@functools.cache
def random_play(actions: str) -> Played:
    """Play random legal actions, half of them other than waiting, on the map 8 x 8."""
    env, params = make_env("MicroRTS-v0", actions=actions)
    width = max(heads := env._heads)
    starts = np.cumsum((0, *heads[:-1]))
    padded = np.where(np.arange(width) < np.array(heads)[:, None], starts[:, None] + np.arange(width), 0)
    exists = np.arange(width) < np.array(heads)[:, None]

    def step(state: RTSState, key: jax.Array) -> tuple[RTSState, Any]:
        mask = env.action_mask(state, params)
        legal = mask.reshape(2, 64, sum(heads))[..., padded] & exists
        wait = jnp.zeros((len(heads), width)).at[0, 0].set(-1.0)
        action = jnp.argmax(jnp.where(legal, jax.random.gumbel(key, legal.shape) + wait, -jnp.inf), axis=-1)
        orders = env.orders(state, action.reshape(2, -1))
        obs, after, reward, terminated, info = env.step_env(key, state, action.reshape(2, -1), params)
        start = env.reset_env(key, params)[1]
        return jax.tree.map(functools.partial(jnp.where, terminated), start, after), (
            state, upright(mask, actions), orders, obs, reward, info["reward_components"], after)  # fmt: skip

    def game(key: jax.Array) -> Any:
        return jax.lax.scan(step, env.reset_env(key, params)[1], jax.random.split(key, STEPS))[1]

    run = jax.jit(jax.vmap(game, out_axes=1), compiler_options=QUICK)
    return Played(*jax.tree.map(np.asarray, run(jax.random.split(jax.random.key(0), GAMES))))


@pytest.mark.slow
def test_the_default_game_is_registered_and_keeps_the_contract() -> None:
    env, params = make_env("MicroRTS-v0")
    assert isinstance(env, MicroRTS)
    assert env.action_space(params).nvec == (NUM_ORDERS,) * 64
    for arguments in ({"actions": "gridnet", "observation": "paper", "fog": True}, {"map_name": "melee4x4light2", "observation": "entities"}):  # fmt: skip  # noqa: E501
        assert check_contract(*make_env("MicroRTS-v0", **arguments)) == []


@pytest.mark.slow
@pytest.mark.parametrize("actions", ["cells", "gridnet"])
def test_random_legal_actions_order_what_they_say(actions: str) -> None:
    """Every order is legal in the engine, a player's orders do not conflict with each other, and all kinds occur."""
    played = random_play(actions)
    given = played.orders.action != NONE
    idle = (played.state.owner >= 0) & (played.state.remaining == 0)
    assert not (given & ~idle).any()
    assert set(np.unique(played.orders.action)) >= {MOVE, HARVEST, RETURN, PRODUCE}
    for t, n in np.argwhere(given.any((2, 3)))[::7]:
        orders, owner = jax.tree.map(lambda x: x[t, n], (played.orders, played.state.owner))  # noqa: B023
        for player in range(2):
            targets, cost = [], 0
            for y, x in np.argwhere(given[t, n] & (owner == player)):
                if orders.action[y, x] in (MOVE, PRODUCE):
                    targets.append((y, x) + DIRECTIONS[orders.parameter[y, x]])
                cost += COST[orders.product[y, x]] if orders.action[y, x] == PRODUCE else 0
            assert len({tuple(target) for target in targets}) == len(targets)
            assert cost <= played.state.resources[t, n, player]


@pytest.mark.parametrize(("actions", "heads"), [("cells", (NUM_ORDERS,)), ("gridnet", HEADS)])
def test_masks_leave_one_action_where_nothing_can_be_ordered(actions: str, heads: tuple[int, ...]) -> None:
    played = random_play(actions)
    mask = played.mask.reshape(STEPS, GAMES, 2, 8, 8, sum(heads))
    for player in range(2):
        able = (played.state.owner == player) & (played.state.remaining == 0)
        assert (mask[:, :, player][~able].sum(-1) == len(heads)).all()
        for start, turned in zip(np.cumsum((0, *heads)), TURNED[actions], strict=False):
            head = mask[:, :, player, ..., start : start + len(turned)]
            assert head.any(-1).all()
            # The first action of the head, as the player sees it.
            assert head[~able][:, turned[0] if player else 0].all()


def test_the_masks_of_cells_are_the_legal_orders_of_the_engine() -> None:
    played = random_play("cells")
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[::5], played.state)
    legal = jax.jit(jax.vmap(lambda s: engine.legal_orders(s, np.zeros((8, 8), bool))), compiler_options=QUICK)(flat)
    mask = played.mask.reshape(-1, 2, 8, 8, NUM_ORDERS)[::5].any(1)
    for index, (action, parameter, product) in enumerate(ORDERS.tolist()):
        planes = {MOVE: legal.move, HARVEST: legal.harvest, RETURN: legal.give, PRODUCE: legal.produce, ATTACK: legal.attack}
        expected = np.ones((len(mask), 8, 8), bool) if action == NONE else np.asarray(planes[action][:, parameter])
        if action == PRODUCE:
            expected = expected & np.asarray(legal.product[:, product])
        np.testing.assert_array_equal(mask[..., index], expected)


def mirrored(kind: np.ndarray, parameter: np.ndarray) -> np.ndarray:
    """Return the parameters of orders `[..., H, W]` after half a turn, in plain NumPy, each in the cell where it was."""
    return np.where(kind == ATTACK, len(OFFSETS) - 1 - parameter, np.where(kind == NONE, parameter, (parameter + 2) % 4))


@pytest.mark.slow
@pytest.mark.parametrize("actions", ["cells", "gridnet"])
def test_both_players_look_from_the_same_side(actions: str) -> None:
    """In a position turned by half with the units exchanged, each player sees, may order and orders what the other did."""
    env, params = make_env("MicroRTS-v0", actions=actions)
    state = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[::7], random_play(actions).state)
    turned = {name: x[:, ::-1, ::-1] for name, x in vars(state).items() if x.ndim == 3}
    turned["owner"] = np.where(turned["owner"] < 0, -1, 1 - turned["owner"]).astype(np.int8)
    turned["parameter"] = mirrored(turned["action"], turned["parameter"]).astype(np.int8)
    other = state.replace(**turned, resources=state.resources[:, ::-1])
    ends = np.cumsum(env._heads * 64)[:-1]

    def seen(state: RTSState, noise: jax.Array) -> tuple[Any, ...]:
        mask = env.action_mask(state, params)
        drawn = jnp.split(jnp.where(mask, noise, -1.0), ends, axis=1)
        action = jnp.stack([jnp.argmax(head, axis=1) for head in drawn], axis=1)
        return env.observe(state, params), mask, env.orders(state, action)

    see = jax.jit(jax.vmap(seen), compiler_options=QUICK)
    noise = np.random.default_rng(0).random((len(state.time), 1, sum(env._heads) * 64), np.float32)
    (obs, mask, orders), (obs_of, mask_of, orders_of) = jax.tree.map(np.asarray, (see(state, noise), see(other, noise)))
    np.testing.assert_array_equal(obs_of, obs[:, ::-1])
    np.testing.assert_array_equal(mask_of, mask[:, ::-1])
    back = jax.tree.map(lambda x: x[:, ::-1, ::-1], orders_of)
    # Of orders that rule each other out, those of other units are given.
    both = (orders.action != NONE) & (back.action != NONE)
    assert both.sum() > 0.8 * (orders.action != NONE).sum() > 0
    for name in ("action", "product"):
        np.testing.assert_array_equal(getattr(back, name)[both], getattr(orders, name)[both])
    np.testing.assert_array_equal(mirrored(back.action, back.parameter)[both], orders.parameter[both])


@pytest.mark.slow
@pytest.mark.parametrize(("draw", "weight"), [(random_choice, 1), (biased_choice, 5)])
def test_random_choices_have_the_weights_of_the_legal_orders(draw: Any, weight: int) -> None:
    state = position((3, 3), (1, 0), (WORKER, 0, 0, 0), (BASE, 0, 1, 1), (LIGHT, 1, 0, 1), (RESOURCE, -1, 1, 0))
    legal = engine.legal_orders(state, np.zeros((3, 3), bool))
    bits = jax.random.bits(jax.random.key(0), (20_000, 3, 3), jnp.uint16)
    choice = np.asarray(jax.jit(jax.vmap(lambda b: draw(legal, b)))(bits))
    mask = np.moveaxis(np.asarray(cell_mask(legal)), 0, -1)
    weights = mask * np.where(np.isin(ORDERS[:, 0], (HARVEST, RETURN, ATTACK)), weight, 1)
    # The worker may harvest, attack, or wait.
    assert weights[0, 0].sum() == 2 * weight + 1
    for cell in np.ndindex(3, 3):
        shares = np.bincount(choice[:, *cell], minlength=NUM_ORDERS) / len(choice)
        np.testing.assert_allclose(shares, weights[cell] / weights[cell].sum(), atol=0.02)
        assert (shares[~mask[cell]] == 0).all()


@pytest.mark.slow
def test_an_order_that_an_earlier_one_rules_out_is_not_given() -> None:
    """As in Gym-microRTS: of two workers that want one cell the upper goes, and the second production waits for resources."""
    shape, walls = (4, 4), np.zeros((4, 4), bool)
    state = position(shape, (1, 1), (WORKER, 0, 0, 1), (WORKER, 0, 1, 0), (BASE, 0, 3, 0), (BASE, 0, 3, 3), (BASE, 1, 0, 3))
    orders = orders_of(shape, (0, 1, MOVE, DOWN, -1), (1, 0, MOVE, RIGHT, -1), (3, 0, PRODUCE, UP, WORKER),
                       (3, 3, PRODUCE, LEFT, WORKER), (0, 3, PRODUCE, LEFT, WORKER))  # fmt: skip
    kept = drop_own_conflicts(state, orders, engine.legal_orders(state, walls))
    assert np.argwhere(np.asarray(kept.action) != NONE).tolist() == [[0, 1], [0, 3], [3, 0]]
    state = engine.issue(state, kept, walls)
    assert state.remaining.tolist() == [[0, 10, 0, 50], [0] * 4, [0] * 4, [50, 0, 0, 0]]
    # An order that cannot be paid takes no resources from those after it.
    state = position(shape, (5, 0), (BASE, 0, 0, 0), (WORKER, 0, 2, 0), (BASE, 0, 3, 3), (BASE, 1, 0, 3))
    orders = orders_of(shape, (0, 0, PRODUCE, RIGHT, WORKER), (2, 0, PRODUCE, RIGHT, BARRACKS), (3, 3, PRODUCE, LEFT, WORKER))
    kept = drop_own_conflicts(state, orders, engine.legal_orders(state, walls))
    assert np.argwhere(np.asarray(kept.action) != NONE).tolist() == [[0, 0], [3, 3]]


def test_paper_planes_are_those_of_gym_microrts() -> None:
    """The five layers that Gym-microRTS shows, clipped and one-hot, computed in plain NumPy."""
    played = random_play("cells")
    planes = played.obs[..., :27]
    after = played.after
    for player in range(2):
        whose = np.where(after.owner < 0, 0, np.where(after.owner == player, 1, 2))
        layers = [after.hp, after.carried, whose, after.unit + 1, after.action]
        one_hot = [np.eye(n)[np.clip(layer, 0, n - 1)] for layer, n in zip(layers, (5, 5, 3, 8, 6), strict=True)]
        expected = np.concatenate(one_hot, axis=-1)
        np.testing.assert_array_equal(planes[:, :, player], expected if player == 0 else expected[:, :, ::-1, ::-1])


@pytest.mark.slow
def test_entities_are_the_cells_with_units() -> None:
    env, params = make_env("MicroRTS-v0", observation="entities", max_entities=8)
    obs, state = env.reset(jax.random.key(0), params)
    assert obs["entities"].shape == (2, 8, NUM_PLANES + 2)
    assert obs["entity_mask"].sum(1).tolist() == [6, 6]
    places = np.argwhere(np.asarray(state.unit) >= 0)
    np.testing.assert_allclose(obs["entities"][0, :6, -2:], places / 7, atol=1e-6)
    assert (obs["entities"][:, 6:] == 0).all()


def test_fog_hides_what_no_unit_sees() -> None:
    env, params = make_env("MicroRTS-v0", fog=True)
    obs, state = env.reset(jax.random.key(0), params)
    assert env.hides_state
    for player in range(2):
        own = np.argwhere(np.asarray(state.owner) == player)
        expected = [
            [any(np.hypot(*(place - (y, x))) <= SIGHT[int(state.unit[tuple(place)])] for place in own) for x in range(8)]
            for y in range(8)
        ]
        np.testing.assert_array_equal(visible_cells(state, player), expected)
        hidden = ~np.array(expected) if player == 0 else ~np.array(expected)[::-1, ::-1]
        assert hidden.any()
        assert (np.asarray(obs)[player][hidden][:, [0, 5, 10, 13, 21]] == 1).all()
        assert np.asarray(obs)[player, ..., 12].sum() == 0
    assert np.asarray(make_env("MicroRTS-v0")[0].reset(jax.random.key(0), params)[0])[0, ..., 12].sum() == 2


def test_components_count_the_orders_that_were_begun() -> None:
    played = random_play("cells")
    new = (played.state.remaining == 0) & (played.orders.action != NONE)
    # A cancelled order is not begun: it is not under way afterwards, and is due no sooner than in five cycles.
    begun = new & (played.after.action == played.orders.action)
    kinds = {
        "resource": np.isin(played.orders.action, (HARVEST, RETURN)),
        "worker": (played.orders.action == PRODUCE) & (played.orders.product == WORKER),
        "building": (played.orders.action == PRODUCE) & np.isin(played.orders.product, (BASE, BARRACKS)),
        "combat": (played.orders.action == PRODUCE) & (played.orders.product >= LIGHT),
    }
    for name, kind in kinds.items():
        expected = [(begun & kind & (played.state.owner == player)).sum((2, 3)) for player in range(2)]
        np.testing.assert_array_equal(played.components[name], np.stack(expected, -1))
        assert played.components[name].any() or name == "combat"
    np.testing.assert_array_equal(played.reward, played.components["win"])


@pytest.mark.slow
def test_a_game_ends_with_the_last_unit_of_a_player_and_weights_count() -> None:
    env, params = make_env("MicroRTS-v0", map_name="melee4x4light2", win_weight=10.0, attack_weight=0.5)
    state = jax.tree.map(jnp.asarray, position((4, 4), (0, 0), (LIGHT, 0, 0, 0), (WORKER, 1, 0, 1)))
    target = int(np.flatnonzero((OFFSETS == [0, 1]).all(1))[0])
    attack = int(np.flatnonzero(([ATTACK, target, -1] == ORDERS).all(1))[0])
    action = jnp.zeros((2, 16), jnp.int32).at[0, 0].set(attack)
    step, key = jax.jit(env.step_env, compiler_options=QUICK), jax.random.key(0)
    rewards, ends = [], []
    for _ in range(5):
        _, state, reward, terminated, _ = step(key, state, action, params)
        rewards.append(reward.tolist())
        ends.append(bool(terminated))
    assert rewards == [[0.5, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [10.0, -10.0]]
    assert ends == [False] * 4 + [True]


@pytest.mark.slow
def test_a_game_is_drawn_at_the_limit_of_cycles() -> None:
    env, params = make_env("MicroRTS-v0", map_name="melee4x4light2", max_cycles=2)
    _, state = env.reset(jax.random.key(0), params)
    step = jax.jit(env.step_env, compiler_options=QUICK)
    for end in (False, True):
        _, state, reward, terminated, _ = step(jax.random.key(0), state, jnp.zeros((2, 16), jnp.int32), params)
        assert bool(terminated) is end
        assert reward.tolist() == [0.0, 0.0]


def test_the_picture_shows_owners_numbers_and_changes() -> None:
    env, params = make_env("MicroRTS-v0")
    _, state = env.reset(jax.random.key(0), params)
    draw = jax.jit(env.render, compiler_options=QUICK)
    image = np.asarray(draw(state, params))
    assert image.shape == (288, 256, 3)
    assert image.dtype == np.uint8
    tile = image[:256].reshape(8, 32, 8, 32, 3).swapaxes(1, 2)
    blue, red = ((tile == color).all(-1).any((2, 3)) for color in ((70, 110, 255), (240, 70, 60)))
    np.testing.assert_array_equal(blue, np.asarray(state.owner) == 0)
    np.testing.assert_array_equal(red, np.asarray(state.owner) == 1)
    fewer = state.replace(carried=state.carried.at[0, 0].set(7))
    changed = (np.asarray(draw(fewer, params)) != image).any(-1)
    assert changed[:32, :32].any()
    assert not changed[32:].any()
    loaded = np.asarray(draw(state.replace(carried=state.carried.at[1, 1].set(1)), params))
    ink = (loaded != image).any(-1)
    assert ink[32:64, 32:64].sum() == ink.sum() > 10
    assert (image[ink].max(-1) >= 140).all()  # it is on the worker, not on the dark ground beside it
    rich = [np.asarray(draw(state.replace(resources=jnp.array([n, 0])), params))[256:, :32] for n in (99, 100, 127)]
    assert all((one != other).any() for one, other in itertools.combinations(rich, 2))


@pytest.mark.parametrize("wait_cycles", [5, 100])
def test_units_that_wait_until_something_changes_play_the_games_of_those_that_are_asked_in_each_cycle(wait_cycles: int) -> None:
    """Bots that go by the state alone, after random openings: the same end at the same time, with far fewer steps."""

    key = jax.random.key(0)

    def played(starts: RTSState, **waits: Any) -> tuple[RTSState, jax.Array]:
        env, params = make_env("MicroRTS-v0", max_cycles=400, **waits)

        def going(now: tuple[RTSState, jax.Array, jax.Array]) -> jax.Array:
            return ~now[1]

        def step(now: tuple[RTSState, jax.Array, jax.Array]) -> tuple[RTSState, jax.Array, jax.Array]:
            orders = both_bots(now[0], env.walls)
            state, _, over = env.play(now[0], env.with_waits(now[0], orders), params)
            return state, over, now[2] + 1

        end, _, steps = jax.vmap(lambda s: jax.lax.while_loop(going, step, (s, jnp.asarray(False), 0)))(starts)
        return end, steps

    def both_bots(state: RTSState, walls: np.ndarray, names: tuple[str, str] = ("workerrush", "lightrush")) -> Orders:
        return engine.merge_orders(state, *(find_bot(name)(key, state, player, walls) for player, name in enumerate(names)))

    def opened(key: jax.Array) -> RTSState:
        env, params = make_env("MicroRTS-v0")
        _, state = env.reset_env(key, params)
        for now in jax.random.split(key, 6):
            orders = engine.merge_orders(state, *(find_bot("randombiased")(now, state, player, env.walls) for player in range(2)))
            state, _, _ = env.play(state, orders, params)
        return state

    starts = jax.jit(jax.vmap(opened), compiler_options=QUICK)(jax.random.split(key, 12))
    every, until_change = (
        jax.jit(functools.partial(played, **waits), compiler_options=QUICK)(starts)
        for waits in ({"wait_cycles": 1}, {"wait_cycles": wait_cycles, "wait_until_change": True})
    )
    jax.tree.map(np.testing.assert_array_equal, every[0], until_change[0])
    assert len(np.unique(every[0].time)) > 3
    assert np.sum(until_change[1]) < 0.6 * np.sum(every[1])


def test_an_order_that_is_cancelled_is_a_change_when_its_time_is_over() -> None:
    """Two want one cell, so both wait for 8 cycles; a third, which was given no order, is asked again when they are."""
    env, params = make_env("MicroRTS-v0", map_name="melee4x4light2", wait_cycles=100, wait_until_change=True)
    state = position((4, 4), (0, 0), (LIGHT, 0, 0, 0), (LIGHT, 1, 0, 2), (LIGHT, 0, 3, 3))
    play = jax.jit(lambda state, orders: env.play(state, env.with_waits(state, orders), params)[0], compiler_options=QUICK)
    state = play(state, orders_of((4, 4), (0, 0, MOVE, RIGHT, -1), (0, 2, MOVE, LEFT, -1)))
    assert np.asarray(engine.is_idle(state)).sum() == int(state.time) == 1
    state = play(state, orders_of((4, 4)))
    assert int(state.time) == 8
    assert np.asarray(engine.is_idle(state)).sum() == 3


@pytest.mark.slow
def test_a_step_lasts_until_the_next_unit_is_idle() -> None:
    """With waits of five cycles and nobody else at work, the state is that of five cycles of the engine."""
    env, params = make_env("MicroRTS-v0", wait_cycles=5, max_cycles=60)
    step, key = jax.jit(env.step_env, compiler_options=QUICK), jax.random.key(0)
    _, state = env.reset_env(key, params)
    produce = int(np.flatnonzero(([PRODUCE, RIGHT, WORKER] == ORDERS).all(1))[0])
    row, column = np.argwhere((np.asarray(state.owner) == 0) & (np.asarray(state.unit) == BASE))[0]
    action = jnp.zeros((2, 64), jnp.int32).at[0, row * 8 + column].set(produce)
    single = jax.jit(lambda s, o: engine.cycle(s, o, env.walls), compiler_options=QUICK)
    ends = []
    for _ in range(12):
        orders = env.orders(state, action)
        expected = single(state, orders)
        for _ in range(4):
            assert not bool(((expected.owner >= 0) & (expected.remaining == 0)).any())
            expected = single(expected, jax.tree.map(jnp.zeros_like, orders))
        _, state, _, terminated, _ = step(key, state, action, params)
        jax.tree.map(np.testing.assert_array_equal, state, expected)
        ends.append(bool(terminated))
    assert ends == [False] * 11 + [True]
    assert int(state.time) == 60
    assert ((np.asarray(state.owner) == 0) & (np.asarray(state.unit) == WORKER)).sum() == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"wait_cycles": 0}, "wait_cycles = 0, expected"),
        ({"wait_cycles": 101}, "wait_cycles = 101, expected"),
        ({"wait_until_change": 1}, "wait_until_change = 1, expected true or false"),
        ({"map_name": "basesWorker8x8"}, "unknown map 'basesWorker8x8'.*basesWorkers8x8"),
        ({"actions": "gridnets"}, "actions = 'gridnets'.*gridnet"),
        ({"observation": "plane"}, "observation = 'plane'.*planes"),
        ({"max_entities": 0}, "max_entities = 0, expected"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        make_env("MicroRTS-v0", **arguments)
    assert "\n" not in str(caught.value)
