"""Environments by id: what is found, what is changed, and the one line that a mistake gets."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import pytest

import rljax.envs
from rljax.core.environments.wrappers import TimeLimit
from rljax.core.errors import ConfigError
from rljax.envs import CartPole, GridWorld, env_ids, gymnax_env_ids, make_env, register_env, registry, resolve_env


@pytest.fixture
def restored_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))


def message_of(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.slow
def test_importing_the_environments_does_not_import_gymnax() -> None:
    code = "import sys, rljax.envs; rljax.envs.make_env('CartPole-v1'); rljax.envs.env_ids(); sys.exit('gymnax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_every_exported_name_exists() -> None:
    for name in rljax.envs.__all__:
        assert hasattr(rljax.envs, name)


def test_names_are_the_ids() -> None:
    for env_id in env_ids():
        assert make_env(env_id)[0].name == env_id


def test_gymnax_ids_are_listed_apart() -> None:
    assert gymnax_env_ids() == gymnax.registered_envs
    assert "Breakout-MinAtar" in gymnax_env_ids()
    assert "Breakout-MinAtar" not in env_ids()


def test_our_environment_wins_over_gymnaxs_of_the_same_id() -> None:
    assert type(make_env("CartPole-v1")[0]) is CartPole
    forced, params = make_env("gymnax:CartPole-v1", gravity=5)
    assert type(forced).__module__.startswith("gymnax.")
    assert params.gravity == 5.0


def test_unknown_id_names_the_closest() -> None:
    assert (
        message_of(make_env, "Cartpole-v2") == "unknown environment 'Cartpole-v2': did you mean 'CartPole-v1'?; "
        'your own is found by env = "module:Class"'
    )
    assert "did you mean 'Breakout-MinAtar'?" in message_of(make_env, "breakout-minatari")
    assert message_of(make_env, "gymnax:Breakout").endswith("did you mean 'gymnax:Breakout-MinAtar'?")
    assert message_of(make_env, "zzzz") == (
        "unknown environment 'zzzz': rljax list lists what there is; your own is found by env = \"module:Class\""
    )
    assert message_of(make_env, "gymnax:Frogger").endswith("'gymnax:Frogger': rljax list gymnax lists what there is")
    # GridWorld is ours, so gymnax: does not find it.
    assert message_of(make_env, "gymnax:GridWorld-v0").startswith("unknown environment 'gymnax:GridWorld-v0'")
    assert message_of(make_env, "xminigrid:MiniGrid-FourRooms") == (
        "unknown environment 'xminigrid:MiniGrid-FourRooms': there is no suite 'xminigrid', did you mean "
        "'xland:MiniGrid-FourRooms'?"
    )
    assert "did you mean 'playground:CartpoleBalance'?" in message_of(make_env, "mujoco_playground:CartpoleBalance")
    assert "did you mean 'gymnasium:CartPole-v1'?" in message_of(make_env, "gym:CartPole-v1")
    assert "no suite" not in message_of(make_env, "CartPole-v1:") + message_of(make_env, "./env.py:Foo")
    assert "there is no suite 'jumanjy', did you mean 'jumanji'?" in message_of(make_env, "jumanjy:Snake-v1")
    assert "there is no suite 'xyz', expected one of: brax, craftax," in message_of(make_env, "xyz:Pong-v5")


def test_unknown_parameter_names_the_closest() -> None:
    expected = "environment CartPole-v1 has no parameter 'gravty': did you mean 'gravity'?"
    assert message_of(make_env, "CartPole-v1", gravty=1.0) == expected
    assert message_of(resolve_env, CartPole(), {"gravty": 1.0}) == expected
    assert message_of(make_env, "Breakout-MinAtar", max_steps=5).endswith("did you mean 'max_steps_in_episode'?")


@pytest.mark.parametrize("value", ["10", None, True, [1.0], 1j, jnp.ones(2), float("nan")])
def test_parameter_that_is_not_a_number_is_refused(value: Any) -> None:
    message = message_of(make_env, "CartPole-v1", gravity=value)
    assert message.startswith("environment CartPole-v1: parameter gravity = ")
    assert message.endswith("expected a number such as 9.8")


def test_step_limit_must_be_a_positive_integer() -> None:
    assert message_of(make_env, "CartPole-v1", max_steps_in_episode=20.5).endswith("expected an integer such as 500")
    assert message_of(make_env, "CartPole-v1", max_steps_in_episode="20").endswith("expected an integer such as 500")
    for env_id, limit in [
        ("CartPole-v1", "max_steps_in_episode"), ("MicroRTS-v0", "max_cycles"), ("MicroRTSBots-v0", "max_cycles")
    ]:  # fmt: skip
        for value in (0, -5, jnp.int32(0)):
            assert message_of(make_env, env_id, **{limit: value}).endswith("expected at least 1")
        jax.eval_shape(lambda value, env_id=env_id, limit=limit: make_env(env_id, **{limit: value})[1], jnp.int32(0))


@pytest.mark.parametrize(
    ("env_id", "params"),
    [
        ("HiddenBit-v0", {"num_steps": 0}),
        ("Scouting-v0", {"num_steps": -1}),
        ("MaskedBandit-v0", {"num_steps": jnp.int32(0)}),
        ("Composite-v0", {"num_steps": 0}),
        ("TargetPick-v0", {"num_picks": 0}),
        ("HabitRPS-v0", {"num_rounds": 0}),
        ("Territory-v0", {"max_steps": -1}),
        ("HeavyBox-v0", {"max_steps": -1}),
        ("TMaze-v0", {"length": -2}),
        ("race:TMaze-v0", {"length": 0}),
    ],
)
def test_lengths_of_episodes_are_at_least_1(env_id: str, params: dict[str, Any]) -> None:
    (name,) = params
    assert message_of(make_env, env_id, **params).endswith("expected at least 1")
    assert getattr(make_env(env_id, **{name: 1})[1], name) == 1
    jax.eval_shape(lambda value: make_env(env_id, **{name: value})[1], jnp.int32(0))


@pytest.mark.parametrize(("env_id", "name"), [("HabitRPS-v0", "habit"), ("Scouting-v0", "change"), ("Maze-v0", "loops")])
def test_probabilities_are_between_0_and_1(env_id: str, name: str) -> None:
    for value in (-4.0, 7.0, float("inf")):
        assert message_of(make_env, env_id, **{name: value}).endswith(f"{name} = {value}, expected at least 0 and at most 1")
    assert [getattr(make_env(env_id, **{name: value})[1], name) for value in (0, 1.0)] == [0.0, 1.0]


def test_parameters_keep_the_type_of_their_default() -> None:
    _, params = make_env("CartPole-v1", gravity=10, max_steps_in_episode=7)
    assert (params.gravity, type(params.gravity)) == (10.0, float)
    assert (params.max_steps_in_episode, type(params.max_steps_in_episode)) == (7, int)
    assert params.mass_cart == 1.0
    _, params = make_env("gymnax:Acrobot-v1", available_torque=[-2, 0, 2])
    assert params.available_torque.dtype == jnp.float32
    assert params.available_torque.tolist() == [-2.0, 0.0, 2.0]


def test_parameters_may_be_traced() -> None:
    def second_velocity(gravity: jax.Array) -> jax.Array:
        env, params = make_env("CartPole-v1", gravity=gravity)
        _, state = env.reset(jax.random.key(0), params)
        return env.step_env(jax.random.key(0), state, jnp.int32(1), params)[0][3]

    traced = jax.jit(jax.vmap(second_velocity))(jnp.array([9.8, 1.0]))
    assert traced[0] == pytest.approx(float(second_velocity(jnp.float32(9.8))), rel=1e-5)
    assert traced[0] != traced[1]


def test_constructor_arguments_are_given_like_parameters() -> None:
    env, params = make_env("GridWorld-v0", size=4, step_reward=-1)
    assert env.reset(jax.random.key(0), params)[0].shape == (8,)
    assert params.step_reward == -1.0
    env, _ = make_env("Catch-bsuite", rows=6)
    assert env.observation_space(env.default_params).shape == (6, 5)
    assert message_of(make_env, "GridWorld-v0", size=1) == "GridWorld-v0: size = 1, expected an integer of at least 2"
    expected = "environment GridWorld-v0: parameter size = '7', expected an integer such as 7"
    assert message_of(make_env, "GridWorld-v0", size="7") == expected
    assert message_of(make_env, "Reacher-misc", num_joints="a").endswith(
        "parameter num_joints = 'a', expected an integer such as 2"
    )
    assert message_of(make_env, "FrozenLake-misc", map_name="9x9").startswith(
        "environment FrozenLake-misc cannot be built with map_name="
    )
    assert "did you mean 'size'?" in message_of(make_env, "GridWorld-v0", sizes=4)
    # An environment that exists already has its size.
    assert "no parameter 'size'" in message_of(resolve_env, GridWorld(), {"size": 4})


def test_an_environment_object_is_taken_as_it_is() -> None:
    given = TimeLimit(CartPole(), 5)
    env, params = resolve_env(given, {"gravity": 3.0})
    assert env is given
    assert params == dataclasses.replace(CartPole().default_params, gravity=3.0)
    assert resolve_env("Pendulum-v1")[0].name == "Pendulum-v1"


def test_parameters_may_be_a_named_tuple() -> None:
    class Params(NamedTuple):
        speed: float = 1.0

    class Env(CartPole):
        @property
        def default_params(self) -> Any:
            return Params()

    assert resolve_env(Env(), {"speed": 2})[1] == Params(2.0)
    assert "did you mean 'speed'?" in message_of(resolve_env, Env(), {"speeed": 2})


def test_what_is_no_environment_is_refused() -> None:
    assert "neither an environment id nor an environment" in message_of(resolve_env, 3)
    assert message_of(resolve_env, CartPole).endswith("CartPole()")


@pytest.mark.usefixtures("restored_registry")
def test_registered_environment_is_made_by_id() -> None:
    register_env("Short-v0", lambda limit=3: TimeLimit(CartPole(), limit))
    assert "Short-v0" in env_ids()
    assert make_env("Short-v0")[0].max_steps == 3
    env, params = make_env("Short-v0", limit=9, gravity=1.0)
    assert (env.max_steps, params.gravity) == (9, 1.0)
    # An id of gymnax may be taken over, and gymnax's stays within reach.
    register_env("Breakout-MinAtar", CartPole)
    assert type(make_env("Breakout-MinAtar")[0]) is CartPole
    assert type(make_env("gymnax:Breakout-MinAtar")[0]).__name__ == "MinBreakout"


@pytest.mark.usefixtures("restored_registry")
def test_registering_never_overwrites() -> None:
    message = message_of(register_env, "CartPole-v1", GridWorld)
    assert message == "register_env('CartPole-v1'): this id is taken by rljax.envs.cartpole.CartPole; choose another id"
    assert type(make_env("CartPole-v1")[0]) is CartPole
    message_of(register_env, "", GridWorld)
    message_of(register_env, 3, GridWorld)
    message_of(register_env, "gymnax:X", GridWorld)
    message_of(register_env, "Mine-v0", GridWorld())


def test_registry_fixture_restores() -> None:
    assert "Short-v0" not in env_ids()
