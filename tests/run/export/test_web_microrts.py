"""The page of MicroRTS: its rules, views and scripted players are those of Python; what it cannot play is refused in one line."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.envs import resolve_env
from rljax.envs.microrts.actions import ORDERS
from rljax.envs.microrts.rules import engine
from rljax.envs.microrts.rules.state import RTSState
from rljax.envs.microrts.rules.units import ATTACK, BARRACKS, BASE, HARVEST, HEAVY, LIGHT, MOVE, NONE, OFFSETS, PRODUCE, WORKER
from rljax.envs.microrts.scripted import bots
from rljax.envs.microrts.scripted.players import actions_of
from rljax.envs.microrts.words import cell_names
from rljax.run.export.checks import random_inputs
from rljax.run.export.onnx import onnx_or_reason
from rljax.run.export.signature import read_signature
from rljax.run.export.steps import read_step, with_probs
from rljax.run.export.web import describe_page
from tests.envs.play import QUICK
from tests.run.export.kinds import player_of, ppo

NUM_STEPS = 1000

GAMES: dict[str, dict[str, Any]] = {
    "8 x 8": {"map_name": "basesWorkers8x8", "wait_cycles": 5, "max_cycles": 600, "worker_weight": 0.1, "attack_weight": 0.3},
    "8 x 8, until something changes": {
        "map_name": "basesWorkers8x8",
        "wait_cycles": 5,
        "wait_until_change": True,
        "max_cycles": 400,
    },
    "4 x 4, cycle by cycle": {"map_name": "melee4x4light2", "max_cycles": 150, "win_weight": 10.0},
}


NETWORK: dict[str, Any] = {"encoder": "cells", "channels": [4], "kernels": [3], "hidden": [8]}


def config_of(env: str = "MicroRTS-v0", **env_params: Any) -> rljax.Config:
    if env == "MicroRTS-v0":
        return rljax.SelfPlayConfig(env=env, network=NETWORK, env_params=env_params)
    return ppo(env, NETWORK, time_limit=None, normalize_observations=False, env_params=env_params)


def played(description: dict[str, Any], pairs: list[tuple[str, str]], uniform: np.ndarray, run_node: Any, views: bool) -> Any:
    """Steps of games that the page plays with players of these names, who draw the numbers `uniform`, `[T, 2, H W]`."""
    given = {"description": description, "pairs": pairs, "uniform": uniform.tolist(), "views": views}
    return run_node("mirror_microrts.mjs", given, 280)


def stacked(steps: list[dict[str, Any]], name: str, like: RTSState) -> RTSState:
    """States of the page's steps, `[T, ...]`."""
    fields = {
        field: np.array([step[name][field] for step in steps], x.dtype).reshape(len(steps), *x.shape)
        for field, x in vars(like).items()
    }
    return RTSState(**fields)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", GAMES)
def test_page_takes_the_steps_of_the_game_in_python(name: str, run_node: Any) -> None:
    env, params = resolve_env("MicroRTS-v0", GAMES[name])
    uniform = np.random.default_rng(0).random((NUM_STEPS, 2, env.walls.size))
    # Any legal order, and more attacks and harvests.
    pairs = [("any", "any"), ("randombiased", "any"), ("any", "randombiased")]
    found = played(describe_page(config_of(**GAMES[name])), pairs, uniform, run_node, views=True)
    steps = found["steps"]
    start = env.map.start()
    state, after = stacked(steps, "state", start), stacked(steps, "next", start)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def in_python(state: RTSState, action: jax.Array) -> Any:
        def step(state: RTSState, action: jax.Array) -> Any:
            obs, after, reward, terminated, _ = env.step_env(jax.random.key(0), state, action, params)
            return obs, env.action_mask(after, params), after, reward, terminated

        return jax.vmap(step)(state, action)

    # What is seen and legal is compared after each step, and thus before all but the first of a game.
    action = np.array([step["action"] for step in steps], np.int32)
    obs, mask, expected, reward, terminated = jax.tree.map(np.asarray, in_python(state, action))
    for field, values in vars(expected).items():
        np.testing.assert_array_equal(getattr(after, field), values, err_msg=field)
    np.testing.assert_allclose([step["reward"] for step in steps], reward, rtol=1e-6)
    np.testing.assert_array_equal([step["terminated"] for step in steps], terminated)
    begins = np.array([step["begins"] for step in steps])
    np.testing.assert_array_equal(begins[1:], terminated[:-1], err_msg="a game begins after the end of another")
    going_on = ~begins[1:]
    seen = np.array([step["obs"] for step in steps], np.float32).reshape(obs.shape)
    np.testing.assert_allclose(seen[1:][going_on], obs[:-1][going_on], rtol=1e-6, atol=0.0)
    legal = np.array([[list(map(int, of_seat)) for of_seat in step["mask"]] for step in steps], bool)
    np.testing.assert_array_equal(legal[1:][going_on], mask[:-1][going_on])
    first_obs, first_state = env.reset_env(jax.random.key(0), params)
    for t in np.flatnonzero(begins):
        np.testing.assert_allclose(seen[t], first_obs, rtol=1e-6)
    np.testing.assert_array_equal(legal[begins], np.broadcast_to(env.action_mask(first_state, params), legal[begins].shape))
    for field, value in vars(start).items():
        np.testing.assert_array_equal(found["first"][field], np.ravel(value) if value.ndim else value)
    assert begins.sum() > 3, "several games"
    # Workers move, harvest, return and produce, some also attack; the light units of the small map move and attack.
    assert len(np.unique(after.action)) == {"8 x 8": 5, "8 x 8, until something changes": 6}.get(name, 3)


@pytest.mark.slow
def test_late_harvests_of_the_page_kill_who_has_come_to_where_the_resource_was(run_node: Any) -> None:
    """Two workers would harvest where a unit of the second player stands now; it also goes away, or attacks, in that cycle."""
    env, _ = resolve_env("MicroRTS-v0", {"map_name": "melee4x4light2"})
    units = ((WORKER, 0, 1, 0, 0), (WORKER, 1, 0, 1, 0), (LIGHT, 1, 1, 1, 0), (HEAVY, 1, 3, 3, 0))
    start = env.map._replace(units=units, resources=(0, 0)).start()
    for action, parameter in ((NONE, 0), (MOVE, 1), (ATTACK, OFFSETS.tolist().index([0, -1]))):
        fields = {name: np.array(value) for name, value in vars(start).items()}
        for row, column, *order in ((1, 0, HARVEST, 1), (0, 1, HARVEST, 2), (1, 1, action, parameter), (3, 3, MOVE, 3)):
            fields["action"][row, column], fields["parameter"][row, column] = order
            fields["remaining"][row, column] = 9
        state = RTSState(**fields)
        given = {
            "description": describe_page(config_of(map_name="melee4x4light2")),
            "pairs": [("passive", "passive")],
            "uniform": np.zeros((1, 2, 16)).tolist(),
            "views": True,
            "begin": {name: np.ravel(value).tolist() if value.ndim else int(value) for name, value in fields.items()},
        }
        after = stacked(run_node("mirror_microrts.mjs", given, 60)["steps"], "next", start)
        assert not (after.unit == LIGHT).any()
        assert after.carried[0, 0, 1] == 0
        assert after.carried[0, 1, 0] == (action != ATTACK)
        played = in_one_step(state)
        for field, value in vars(played).items():
            np.testing.assert_array_equal(getattr(after, field)[0], value, err_msg=field)


@pytest.mark.slow
def test_an_order_of_the_page_that_cannot_be_paid_takes_nothing_from_those_after_it(run_node: Any) -> None:
    """A worker, a barracks that is too dear after it, and a worker that can still be paid."""
    env, params = resolve_env("MicroRTS-v0", {"map_name": "melee4x4light2"})
    units = ((BASE, 0, 0, 0, 0), (WORKER, 0, 2, 0, 0), (BASE, 0, 3, 3, 0), (BASE, 1, 0, 3, 0))
    start = env.map._replace(units=units, resources=(5, 5)).start()
    state = jax.tree.map(jnp.asarray, start)
    mask = np.asarray(env.action_mask(state, params)).reshape(2, 16, -1)[0]
    wanted = {(0, 0): (PRODUCE, 1, WORKER), (2, 0): (PRODUCE, 1, BARRACKS), (3, 3): (PRODUCE, 3, WORKER)}
    action, uniform = np.zeros((2, 16), np.int32), np.zeros((1, 2, 16))
    for (row, column), order in wanted.items():
        cell, number = 4 * row + column, ORDERS.tolist().index(list(order))
        legal = np.flatnonzero(mask[cell]).tolist()
        action[0, cell], uniform[0, 0, cell] = number, (legal.index(number) + 0.5) / len(legal)
    given = {
        "description": describe_page(config_of(map_name="melee4x4light2")),
        "pairs": [("any", "passive")],
        "uniform": uniform.tolist(),
        "views": True,
        "begin": {name: np.ravel(value).tolist() if np.ndim(value) else int(value) for name, value in vars(start).items()},
    }
    steps = run_node("mirror_microrts.mjs", given, 60)["steps"]
    assert steps[0]["action"][0] == action[0].tolist()
    after, expected = stacked(steps, "next", start), env.step_env(jax.random.key(0), state, action, params)[1]
    for field, value in vars(expected).items():
        np.testing.assert_array_equal(getattr(after, field)[0], value, err_msg=field)
    assert np.argwhere(np.asarray(expected.action) == PRODUCE).tolist() == [[0, 0], [3, 3]]


@functools.partial(jax.jit, compiler_options=QUICK)
def in_one_step(state: RTSState) -> RTSState:
    """Return the state after the cycles until a unit is idle."""
    return engine.advance(engine.skip(state, 2000))


def test_the_page_names_cells_as_a_terminal_does(run_node: Any) -> None:
    """On a map of more than 26 columns: after "z" come "aa", "ab", ..."""
    height, width = 2, 30
    found = run_node("names_microrts.mjs", {"height": height, "width": width}, 60)
    names = cell_names((height, width))
    assert names[25:28] == ("z1", "aa1", "ab1")
    assert found["names"] == list(names)
    assert found["texts"][: width + height] == [name.removesuffix("1") for name in names[:width]] + ["1", "2"]
    letter = 0.75  # width of a bold letter in heights; an m has 0.9, most have 0.6
    assert all(2 * letter * size < 1 for size in found["sizes"][:width]), "names of two letters stand apart"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_scripted_players_of_the_page_give_the_orders_of_pythons(run_node: Any) -> None:
    env, _ = resolve_env("MicroRTS-v0", {"wait_cycles": 5})
    num_steps, rushes = 300, list(bots.FIGHTERS)
    keys = jax.random.split(jax.random.key(0), (num_steps, 2))
    uniform = np.asarray(jax.vmap(jax.vmap(lambda key: jax.random.bits(key, env.walls.shape, jnp.uint16)))(keys)) / 2**16
    pairs = [
        ("rangedrush", "heavyrush"),
        ("lightrush", "randombiased"),
        ("workerrush", "rangedrush"),
        ("randombiased", "lightrush"),
    ]
    description = describe_page(config_of(wait_cycles=5))
    steps = played(description, pairs, uniform.reshape(num_steps, 2, -1), run_node, views=False)["steps"]

    @functools.partial(jax.jit, compiler_options=QUICK)
    def in_python(states: RTSState, keys: jax.Array) -> Any:
        def of_seats(state: RTSState, orders: Any) -> jax.Array:
            return actions_of(env, state, jax.tree.map(lambda x: jnp.where(state.owner == 0, x[0], x[1]), orders))

        def orders(state: RTSState, keys: jax.Array) -> Any:
            seats, walls = jnp.arange(2), env.walls
            drawn = jax.vmap(lambda key, seat: bots.random_biased(key, state, seat, walls))(keys, seats)
            rush = jax.vmap(lambda kind, seat: bots.rush(keys[0], state, seat, walls, fighter=kind), (0, None))
            rushed = jax.vmap(rush, (None, 0), 1)(jnp.array([*bots.FIGHTERS.values()]), seats)
            return of_seats(state, drawn), jax.vmap(lambda orders: of_seats(state, orders))(rushed)

        return jax.vmap(orders)(states, keys)

    drawn, rushed = jax.tree.map(np.asarray, in_python(stacked(steps, "state", env.map.start()), keys))
    expected = {"randombiased": drawn, **{name: rushed[:, i] for i, name in enumerate(rushes)}}
    for name, actions in {**expected, "passive": np.zeros_like(drawn)}.items():
        np.testing.assert_array_equal([step["bots"][name] for step in steps], actions, err_msg=name)
    made = {product for step in steps for product in step["next"]["product"]}
    assert made >= {WORKER, BARRACKS, HEAVY}, "there are buildings and fighters"


REFUSED: dict[str, tuple[rljax.Config, str]] = {
    "fog": (config_of(fog=True), "env_params.fog = true: a page plays MicroRTS-v0 with fog = false only"),
    "heads": (
        config_of(actions="gridnet"),
        "env_params.actions = 'gridnet': a page plays MicroRTS-v0 with actions = 'cells' only",
    ),
    "units": (
        config_of("MicroRTSBots-v0", actions="units"),
        "env_params.actions = 'units': a page plays MicroRTSBots-v0 with actions = 'cells' only",
    ),
    "entities": (
        config_of(observation="entities"),
        "env_params.observation = 'entities': a page plays MicroRTS-v0 with observation = 'planes' only",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_page_cannot_play_is_refused_in_one_line(name: str) -> None:
    config, message = REFUSED[name]
    with pytest.raises(rljax.ConfigError) as refused:
        describe_page(config)
    assert str(refused.value) == message


def test_scripted_players_of_the_training_are_offered_first() -> None:
    described = describe_page(config_of("MicroRTSBots-v0", opponents=["lightrush", "passive", "lightrush"]))["microrts"]
    assert described["opponents"][:3] == ["lightrush", "passive", "randombiased"]
    assert sorted(described["opponents"]) == sorted(bots.BOTS)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_policy_of_cells_becomes_onnx_with_the_probabilities_of_every_cell() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("jax2onnx")
    agent, state = player_of(config_of("MicroRTSBots-v0", opponents=["passive"]))
    policy = with_probs(read_step(agent, state, read_signature(agent), True), state)
    model, reason = onnx_or_reason(policy, state)
    assert reason is None
    obs, mask = random_inputs(policy, 5)
    action, probs = onnxruntime.InferenceSession(model).run(["action", "probs"], {"obs": obs, "mask": mask})
    np.testing.assert_array_equal(
        action, agent.act(state, jax.numpy.asarray(obs), None, jax.random.key(0), True, jax.numpy.asarray(mask))[0]
    )
    legal = np.asarray(mask).reshape(probs.shape)
    assert probs.shape == (5, 64, 65)
    np.testing.assert_allclose(probs.sum(axis=-1), 1.0, rtol=1e-5)
    assert (probs[~legal & legal.any(axis=-1, keepdims=True)] == 0.0).all()
