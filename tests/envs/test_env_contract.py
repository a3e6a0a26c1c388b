"""What every environment promises: spaces, auto-reset, stable types; and what `check_environment` says of a broken one."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from rljax.core.check import check_environment
from rljax.core.contract import check_contract
from rljax.core.environments.environment import Environment, EnvParams, EnvState
from rljax.core.environments.spaces import Box, Dict, Discrete, MultiDiscrete
from rljax.core.environments.wrappers import EpisodeStatistics
from rljax.core.errors import ConfigError, RljaxWarning
from rljax.core.games.versus import Versus
from rljax.envs import env_ids, game_ids, make_env
from tests.envs.play import QUICK, legal_action

HEADS = Dict({"verb": Discrete(3), "target": Discrete(2)})
NUM_ENVS = 8
NUM_STEPS = 120


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [*env_ids(), *game_ids()])
def test_shipped_environments_and_games_keep_the_contract(env_id: str) -> None:
    assert check_contract(*make_env(env_id)) == []


def not_in_ci(env_id: str) -> Any:
    """MicroRTS against all scripted players takes a minute to compile; its engine is checked in CI by MicroRTS-v0."""
    return pytest.param(env_id, marks=pytest.mark.long) if env_id == "MicroRTSBots-v0" else env_id


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [*map(not_in_ci, env_ids()), *game_ids()])
def test_shipped_environments_and_games_pass_the_whole_check(env_id: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RljaxWarning)
        check_environment(*make_env(env_id))


@pytest.mark.slow
@pytest.mark.parametrize(
    "env_id", [pytest.param(name, marks=[pytest.mark.long] if name.startswith("MicroRTS") else []) for name in env_ids()]
)
def test_observations_and_types_along_random_episodes(env_id: str) -> None:
    """Observations lie in their space, the final one too; the scan's carry keeps its types; a next episode starts at time 0."""
    env, params = make_env(env_id)
    space = env.observation_space(params)

    def step(carry: tuple[Any, Any], key: jax.Array) -> tuple[tuple[Any, Any], Any]:
        obs, state = carry
        action_key, step_key = jax.random.split(key)
        action = legal_action(env, action_key, state, params)
        obs, state, reward, terminated, truncated, info = env.step(step_key, state, action, params)
        inside = space.contains(obs) & space.contains(info["final_observation"]) & env.action_space(params).contains(action)
        return (obs, state), (inside, reward, terminated, truncated, info["final_observation"], obs, time_of(state))

    def time_of(state: Any) -> jax.Array:
        time: jax.Array = (state.game if isinstance(env, Versus) else state).time
        return time

    def roll(key: jax.Array) -> Any:
        reset_key, key = jax.random.split(key)
        return jax.lax.scan(step, env.reset(reset_key, params), jax.random.split(key, NUM_STEPS))

    def first_step(key: jax.Array) -> Any:
        obs, state = env.reset(key, params)
        return obs, state, env.step(key, state, legal_action(env, key, state, params), params)

    for leaf in jax.tree.leaves(jax.eval_shape(first_step, jax.random.key(0))):
        assert not leaf.weak_type
    run = jax.jit(lambda: jax.vmap(roll)(jax.random.split(jax.random.key(0), NUM_ENVS)), compiler_options=QUICK)
    inside, reward, terminated, truncated, final, obs, time = jax.tree.map(np.asarray, run()[1])
    assert inside.all()
    assert reward.dtype == jnp.float32
    assert np.isfinite(reward).all()
    done = terminated | truncated
    for seen, last in zip(jax.tree.leaves(obs), jax.tree.leaves(final), strict=True):
        np.testing.assert_array_equal(seen[~done], last[~done])
    np.testing.assert_array_equal(time[done], 0)
    assert (time[~done] > 0).all()


@struct.dataclass
class CounterState:
    time: Any


class Counter(Environment):
    """Counts from -1, which no step ever shows, to `limit` and terminates there; `extra` says what to break."""

    def __init__(self, limit: int = 3, zero: Any = None):
        self.limit, self.zero = limit, jnp.zeros((), jnp.int32) if zero is None else zero

    @property
    def default_params(self) -> EnvParams:
        return EnvParams(max_steps_in_episode=5)

    def observation_space(self, params: EnvParams) -> Box:
        return Box(-1.0, 100.0, (1,))

    def action_space(self, params: EnvParams) -> Any:
        return Discrete(2)

    def reset_env(self, key: jax.Array, params: EnvParams) -> tuple[Any, Any]:
        return jnp.full((1,), -1.0), CounterState(self.zero)

    def step_env(self, key: jax.Array, state: Any, action: Any, params: EnvParams) -> Any:
        state = CounterState(state.time + 1)
        return jnp.full((1,), state.time, jnp.float32), state, jnp.ones(()), state.time >= self.limit, {}


def roll_counter(env: Environment, steps: int) -> tuple[Any, ...]:
    params = env.default_params

    def step(state: Any, key: jax.Array) -> tuple[Any, Any]:
        obs, state, _, terminated, truncated, info = env.step(key, state, jnp.int32(0), params)
        return state, (obs[0], info["final_observation"][0], terminated, truncated)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(key: jax.Array) -> Any:
        return jax.lax.scan(step, env.reset(key, params)[1], jax.random.split(key, steps))[1]

    return tuple(map(np.asarray, run(jax.random.key(0))))


def test_termination_resets_and_keeps_the_final_observation() -> None:
    obs, final, terminated, truncated = roll_counter(Counter(limit=3), 7)
    assert obs.tolist() == [1, 2, -1, 1, 2, -1, 1]
    assert final.tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert terminated.tolist() == [False, False, True] * 2 + [False]
    assert not truncated.any()


def test_truncation_resets_and_keeps_the_final_observation() -> None:
    obs, final, terminated, truncated = roll_counter(Counter(limit=100), 11)
    assert obs.tolist() == [1, 2, 3, 4, -1, 1, 2, 3, 4, -1, 1]
    assert final.tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1]
    assert not terminated.any()
    assert np.flatnonzero(truncated).tolist() == [4, 9]


def test_an_end_that_is_both_is_reported_as_both() -> None:
    _, _, terminated, truncated = roll_counter(Counter(limit=5), 5)
    assert terminated.tolist() == truncated.tolist() == [False] * 4 + [True]


def test_each_episode_starts_from_a_fresh_key() -> None:
    env, params = make_env("Pendulum-v1", max_steps_in_episode=1)
    _, state = env.reset(jax.random.key(0), params)
    starts = set()
    step = jax.jit(env.step)
    for key in jax.random.split(jax.random.key(1), 5):
        obs, state, *_ = step(key, state, jnp.zeros(1), params)
        assert float(jnp.arctan2(obs[1], obs[0])) == pytest.approx(float(state.theta), abs=1e-5)
        starts.add(float(state.theta))
    assert len(starts) == 5


@pytest.mark.parametrize("zero", [0, np.int32(0), jnp.zeros((), jnp.int32)], ids=["python", "numpy", "jax"])
@pytest.mark.parametrize("vmapped", [False, True])
def test_scan_over_a_state_that_starts_with_a_python_int(zero: Any, vmapped: bool) -> None:
    env = Counter(limit=3, zero=zero)
    check_contract(env, env.default_params)
    params = env.default_params

    def roll(key: jax.Array) -> jax.Array:
        def step(state: Any, key: jax.Array) -> tuple[Any, Any]:
            obs, state, *_ = env.step(key, state, jnp.int32(0), params)
            return state, obs[0]

        return jax.lax.scan(step, env.reset(key, params)[1], jax.random.split(key, 4))[1]

    for transform in (lambda f: f, jax.jit):
        obs = (
            transform(jax.vmap(roll))(jax.random.split(jax.random.key(0), 2))[0]
            if vmapped
            else transform(roll)(jax.random.key(0))
        )
        assert obs.tolist() == [1, 2, -1, 1]


def broken(**methods: Any) -> Environment:
    return type("Broken", (Counter,), methods)()


def step_with(**changes: Any) -> Any:
    """Counter's step with the named parts of its result passed through a function; a part that becomes None is left out."""
    names = ("obs", "state", "reward", "terminated", "info")

    def step_env(self: Counter, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        parts = zip(names, Counter.step_env(self, key, state, action, params), strict=True)
        changed = [changes[name](part) if name in changes else part for name, part in parts]
        return tuple(part for part in changed if part is not None)

    return step_env


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ({"step_env": step_with(obs=lambda _: jnp.zeros(2))}, ["observation", "float32[2]", "float32[1]"]),
        ({"step_env": step_with(obs=lambda obs: obs.astype(jnp.int32))}, ["observation", "int32[1]", "float32[1]"]),
        ({"step_env": step_with(obs=lambda obs: {"a": obs})}, ["observation", "structure"]),
        ({"observation_space": lambda *_: Box(-1.0, 1.0, (3,))}, ["observation", "observation_space", "(3,)"]),
        ({"step_env": step_with(reward=lambda _: jnp.bool_(True))}, ["reward", "bool[]", "float32[]"]),
        ({"step_env": step_with(reward=lambda _: jnp.ones(1))}, ["reward", "float32[1]"]),
        ({"step_env": step_with(terminated=lambda done: done.astype(jnp.float32))}, ["terminated", "float32[]", "bool[]"]),
        ({"step_env": step_with(terminated=lambda done: done[None])}, ["terminated", "bool[1]"]),
        ({"step_env": step_with(state=lambda state: CounterState(state.time * 1.0))}, ["state.time", "float32[]", "int32[]"]),
        ({"step_env": step_with(state=lambda state: (state.time,))}, ["state", "structure"]),
        pytest.param(
            {"step_env": step_with(state=lambda state: EnvState(state.time))}, ["state", "structure"],
        ),
        ({"step_env": step_with(info=lambda _: None)}, ["4 values", "(obs, state, reward, terminated, info)"]),
        ({"is_truncated": lambda *_: jnp.float32(0)}, ["is_truncated", "float32[]"]),
        ({"action_mask": lambda *_: jnp.ones(3, bool)}, ["action_mask", "bool[3]", "bool[2]"]),
        ({"action_mask": lambda *_: jnp.ones(2)}, ["action_mask", "float32[2]"]),
        (
            {"action_space": lambda *_: MultiDiscrete((2, 3)), "action_mask": lambda *_: jnp.ones((2, 3), bool)},
            ["action_mask", "bool[2,3]", "bool[5]", "bool[5,5]"],
        ),
        ({"action_mask": lambda *_: jnp.ones((2, 2), bool)}, ["action_mask", "bool[2,2]", "expected bool[2]"]),
        (
            {"action_space": lambda *_: HEADS, "action_mask": lambda *_: jnp.ones((2, 2), bool)},
            ["action_mask", "bool[2,2]", "bool[5]", "bool[5,5]"],
        ),
        (
            {"action_space": lambda *_: HEADS, "action_mask": lambda *_: jnp.ones((5, 5))},
            ["action_mask", "float32[5,5]", "bool[5,5]"],
        ),
        ({"action_space": lambda *_: Dict({"a": Discrete(2), "b": Box(0.0, 1.0)})}, ["action_space", "Discrete", "Box"]),
        ({"action_space": lambda *_: Dict({})}, ["action_space", "at least one head"]),
        (
            {"action_space": lambda *_: Box(-1.0, 1.0, (2,)), "action_mask": lambda *_: jnp.ones((2, 2), bool)},
            ["action_mask", "Discrete"],
        ),
        (
            {"action_space": lambda *_: Box(-1.0, 1.0, (2,)), "action_mask": lambda *_: jnp.ones(2, bool)},
            ["action_mask", "Discrete"],
        ),
    ],
)  # fmt: skip
def test_check_environment_refuses_in_one_line(methods: dict[str, Any], words: list[str]) -> None:
    env = broken(**methods)
    with pytest.raises(ConfigError) as caught:
        check_contract(env, env.default_params)
    message = str(caught.value)
    assert message.startswith("environment Broken: ")
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("space", [MultiDiscrete((3, 2)), HEADS], ids=["multi", "dict"])
@pytest.mark.parametrize("shape", [(5,), (5, 5)])
def test_masks_of_heads_and_of_pairs_of_heads_are_accepted(space: Any, shape: tuple[int, ...]) -> None:
    env = broken(action_space=lambda *_: space, action_mask=lambda *_: jnp.ones(shape, bool))
    check_contract(env, env.default_params)


def test_dictionary_observations_fit_their_space() -> None:
    class Named(Counter):
        def __init__(self, **shapes: tuple[int, ...]):
            super().__init__()
            self.shapes = shapes

        def observation_space(self, params: Any) -> Dict:
            return Dict({name: Box(-1.0, 100.0, shape) for name, shape in self.shapes.items()})

        def reset_env(self, key: jax.Array, params: Any) -> Any:
            obs, state = super().reset_env(key, params)
            return {"a": obs}, state

        def step_env(self, *arguments: Any) -> Any:
            obs, *rest = super().step_env(*arguments)
            return ({"a": obs}, *rest)

    check_contract(Named(a=(1,)), EnvParams())
    with pytest.raises(ConfigError, match=r"observation\['a'\] float32\[1\] does not fit observation_space of shape \(2,\)"):
        check_contract(Named(a=(2,)), EnvParams())
    with pytest.raises(ConfigError, match=r"observation has the keys \['a'\], but observation_space \['b'\]"):
        check_contract(Named(b=(1,)), EnvParams())


def test_missing_methods_are_named() -> None:
    class Empty(Environment):
        pass

    with pytest.raises(NotImplementedError, match="Empty must define reset_env"):
        Empty().reset(jax.random.key(0))
    with pytest.raises(NotImplementedError, match="Empty cannot be rendered"):
        Empty().render(None, None)


def test_environment_without_time_is_never_truncated() -> None:
    class Endless(Counter):
        def reset_env(self, key: jax.Array, params: Any) -> Any:
            return jnp.zeros(1), jnp.zeros((), jnp.int32)

        def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
            return jnp.zeros(1), state + 1, jnp.ones(()), jnp.zeros((), bool), {}

    env = Endless()
    check_contract(env, env.default_params)
    assert not roll_counter(env, 10)[3].any()


def test_step_compiles_once_when_the_state_starts_with_a_python_int() -> None:
    """A weakly typed carry would compile a driver's chunk a second time."""
    env = Counter(limit=3, zero=0)
    step = jax.jit(env.step)
    _, state = env.reset(jax.random.key(0))
    for _ in range(4):
        _, state, *_ = step(jax.random.key(0), state, jnp.int32(0))
    assert not state.time.weak_type
    assert step._cache_size() == 1


def test_python_numbers_are_accepted_as_reward_and_flag() -> None:
    class Plain(Counter):
        def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
            obs, state, *_ = super().step_env(key, state, action, params)
            return obs, state, 1.0, False, {}

    env = EpisodeStatistics(Plain())
    check_contract(env, env.default_params)
    _, state = env.reset(jax.random.key(0))
    for expected in (1.0, 2.0, 3.0):
        _, state, reward, terminated, _, info = jax.jit(env.step)(jax.random.key(0), state, jnp.int32(0))
        assert (float(reward), bool(terminated)) == (1.0, False)
        assert float(info["episode_return"]) == expected
