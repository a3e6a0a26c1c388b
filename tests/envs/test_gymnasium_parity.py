"""Our classic control environments against Gymnasium's own classes, transition by transition."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.envs import make_env
from rljax.envs.acrobot import AcrobotState
from rljax.envs.cartpole import CartPoleState
from rljax.envs.mountain_car import MountainCarState
from rljax.envs.pendulum import PendulumState

NUM_STATES = 1500


class Case(NamedTuple):
    state: Callable[..., Any]
    draw: Callable[[np.random.Generator], np.ndarray]
    """Random states, f64 [NUM_STATES, d], a good part of them a step or so before the end of an episode."""
    low: tuple[float, ...]
    high: tuple[float, ...]
    """Range of the initial state."""
    stay: Callable[[Any], Any]
    """A policy of the observation that never terminates, for jnp and numpy."""


def near(rng: np.random.Generator, values: np.ndarray, column: int, edges: tuple[float, ...], width: float) -> np.ndarray:
    """`values` with the first half's `column` moved to within `width` of one of `edges`."""
    half = len(values) // 2
    values[:half, column] = rng.choice(edges, half) + rng.uniform(-width, width, half)
    return values


def draw_cartpole(rng: np.random.Generator) -> np.ndarray:
    states = rng.uniform([-2.4, -3, -0.21, -3], [2.4, 3, 0.21, 3], (NUM_STATES, 4))
    states = near(rng, states, 2, (-math.radians(12), math.radians(12)), 0.05)
    states[::5, 0] = rng.choice([-2.4, 2.4], len(states[::5])) + rng.uniform(-0.05, 0.05, len(states[::5]))
    return states


def draw_acrobot(rng: np.random.Generator) -> np.ndarray:
    many = rng.uniform([-math.pi, -math.pi, -4 * math.pi, -9 * math.pi], [math.pi, math.pi, 4 * math.pi, 9 * math.pi], (40000, 4))
    many[::2, 2:] *= 0.2
    height = -np.cos(many[:, 0]) - np.cos(many[:, 0] + many[:, 1])
    at_line = many[np.abs(height - 1.0) < 0.1]
    return np.concatenate([at_line[: NUM_STATES // 2], many[: NUM_STATES - NUM_STATES // 2]])


def draw_car(goal: float) -> Callable[[np.random.Generator], np.ndarray]:
    def draw(rng: np.random.Generator) -> np.ndarray:
        states = rng.uniform([-1.2, -0.07], [0.6, 0.07], (NUM_STATES, 2))
        return np.clip(near(rng, states, 0, (goal, goal, -1.2), 0.05), [-1.2, -0.07], [0.6, 0.07])

    return draw


CASES = {
    "CartPole-v1": Case(
        CartPoleState, draw_cartpole, (-0.05,) * 4, (0.05,) * 4,
        lambda obs: (obs[0] * 0.1 + obs[1] * 0.3 + obs[2] * 3 + obs[3] > 0) * 1,
    ),
    "Pendulum-v1": Case(
        PendulumState, lambda rng: rng.uniform([-20, -8], [20, 8], (NUM_STATES, 2)), (-math.pi, -1.0), (math.pi, 1.0),
        lambda obs: obs[:1] * 0,
    ),
    "Acrobot-v1": Case(AcrobotState, draw_acrobot, (-0.1,) * 4, (0.1,) * 4, lambda _: 1),
    "MountainCar-v0": Case(MountainCarState, draw_car(0.5), (-0.6, 0.0), (-0.4, 0.0), lambda _: 1),
    "MountainCarContinuous-v0": Case(MountainCarState, draw_car(0.45), (-0.6, 0.0), (-0.4, 0.0), lambda obs: obs[:1] * 0),
}  # fmt: skip
LIMITS = {
    "CartPole-v1": 500, "Pendulum-v1": 200, "Acrobot-v1": 500, "MountainCar-v0": 200, "MountainCarContinuous-v0": 999,
}  # fmt: skip


def draw_actions(rng: np.random.Generator, space: gymnasium.Space) -> np.ndarray:
    """Legal actions, and for a Box also some outside of its bounds, which are clipped."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return rng.integers(space.n, size=NUM_STATES)
    return rng.uniform(1.5 * space.low, 1.5 * space.high, (NUM_STATES, 1)).astype(np.float32)


def gymnasium_transitions(env_id: str, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    env = gymnasium.make(env_id).unwrapped
    env.reset(seed=0)
    observed, rewards, terminated = [], [], []
    for state, action in zip(states, actions, strict=True):
        env.state = state.copy()
        if env_id == "CartPole-v1":
            env.steps_beyond_terminated = None
        obs, reward, done, truncated, _ = env.step(action)
        assert not truncated
        observed.append(np.array(obs))
        rewards.append(reward)
        terminated.append(done)
    return np.stack(observed), np.array(rewards, np.float64), np.array(terminated)


@pytest.mark.parametrize("env_id", CASES)
def test_transitions_equal_gymnasiums(env_id: str) -> None:
    case = CASES[env_id]
    rng = np.random.default_rng(7)
    states = case.draw(rng).astype(np.float32)
    actions = draw_actions(rng, gymnasium.make(env_id).action_space)
    # Both start from the same f32 numbers; Gymnasium then computes in f64.
    their_obs, their_reward, their_terminated = gymnasium_transitions(env_id, states.astype(np.float64), actions)

    env, params = make_env(env_id)
    batch = case.state(*jnp.asarray(states).T, jnp.zeros(NUM_STATES, jnp.int32))
    step = jax.jit(jax.vmap(env.step_env, in_axes=(None, 0, 0, None)))
    obs, state, reward, terminated, _ = step(jax.random.key(0), batch, jnp.asarray(actions), params)

    scale = np.maximum(1.0, np.abs(their_obs).max(0))
    np.testing.assert_allclose(np.asarray(obs) / scale, their_obs / scale, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(reward, their_reward, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(terminated, their_terminated)
    np.testing.assert_array_equal(state.time, 1)
    if env_id != "Pendulum-v1":
        assert 0.05 < their_terminated.mean() < 0.95, "both outcomes must be tested"


@pytest.mark.parametrize("env_id", CASES)
def test_formulas_equal_gymnasiums_in_double_precision(env_id: str) -> None:
    case = CASES[env_id]
    rng = np.random.default_rng(8)
    states = case.draw(rng)
    actions = draw_actions(rng, gymnasium.make(env_id).action_space)
    their_obs, their_reward, their_terminated = gymnasium_transitions(env_id, states, actions)
    env, params = make_env(env_id)
    with jax.enable_x64(True):
        batch = case.state(*jnp.asarray(states, jnp.float64).T, jnp.zeros(NUM_STATES, jnp.int32))
        step = jax.jit(jax.vmap(env.step_env, in_axes=(None, 0, 0, None)))
        obs, _, reward, terminated, _ = step(jax.random.key(0), batch, jnp.asarray(actions), params)
        obs, reward = np.asarray(obs), np.asarray(reward)
    # Gymnasium returns observations in f32.
    np.testing.assert_allclose(obs, their_obs, rtol=3e-7, atol=3e-7)
    np.testing.assert_allclose(reward, their_reward, rtol=2e-7, atol=1e-12)
    np.testing.assert_array_equal(terminated, their_terminated)


@pytest.mark.parametrize("env_id", CASES)
def test_spaces_equal_gymnasiums(env_id: str) -> None:
    env, params = make_env(env_id)
    theirs = gymnasium.make(env_id)
    space = env.observation_space(params)
    assert space.shape == theirs.observation_space.shape
    np.testing.assert_allclose(space.low, theirs.observation_space.low, rtol=1e-6)
    np.testing.assert_allclose(space.high, theirs.observation_space.high, rtol=1e-6)
    action_space = env.action_space(params)
    assert action_space.shape == theirs.action_space.shape
    if isinstance(theirs.action_space, gymnasium.spaces.Discrete):
        assert action_space.n == theirs.action_space.n
    else:
        np.testing.assert_allclose(np.broadcast_to(action_space.low, (1,)), theirs.action_space.low)
        np.testing.assert_allclose(np.broadcast_to(action_space.high, (1,)), theirs.action_space.high)


@pytest.mark.parametrize("env_id", CASES)
def test_initial_states_are_uniform_over_gymnasiums_range(env_id: str) -> None:
    case = CASES[env_id]
    env, params = make_env(env_id)
    _, state = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(jax.random.split(jax.random.key(1), 4000), params)
    fields = [getattr(state, name) for name in type(state).__dataclass_fields__ if name != "time"]
    ours = np.stack(fields, 1)
    low, high = np.array(case.low), np.array(case.high)
    theirs = gymnasium.make(env_id)
    their_states = np.stack([(theirs.reset(seed=seed), theirs.unwrapped.state)[1] for seed in range(300)])
    for states in (ours, their_states):
        assert (states >= low - 1e-6).all()
        assert (states <= high + 1e-6).all()
    width = high - low
    np.testing.assert_allclose(ours.min(0), low, atol=0.01 * width.max())
    np.testing.assert_allclose(ours.max(0), high, atol=0.01 * width.max())
    np.testing.assert_allclose(ours.mean(0), (low + high) / 2, atol=0.03 * width.max())
    np.testing.assert_allclose(ours.std(0), width / math.sqrt(12), atol=0.02 * width.max())
    correlation = np.corrcoef(ours[:, width > 0].T)
    np.testing.assert_allclose(correlation, np.eye(int((width > 0).sum())), atol=0.08)
    np.testing.assert_array_equal(state.time, 0)


@pytest.mark.parametrize("env_id", CASES)
def test_truncation_comes_at_gymnasiums_time_limit(env_id: str) -> None:
    case, limit = CASES[env_id], LIMITS[env_id]
    theirs = gymnasium.make(env_id)
    obs, _ = theirs.reset(seed=3)
    for step in range(1, limit + 1):
        obs, _, terminated, truncated, _ = theirs.step(case.stay(obs))
        assert not terminated
        assert truncated == (step == limit)

    env, params = make_env(env_id)

    def act(carry: tuple[Any, Any], key: jax.Array) -> tuple[tuple[Any, Any], tuple[jax.Array, jax.Array]]:
        obs, state = carry
        obs, state, _, terminated, truncated, _ = env.step(key, state, case.stay(obs), params)
        return (obs, state), (terminated, truncated)

    keys = jax.random.split(jax.random.key(2), 2 * limit + 1)
    _, (terminated, truncated) = jax.jit(lambda: jax.lax.scan(act, env.reset(jax.random.key(0), params), keys))()
    assert not terminated.any()
    np.testing.assert_array_equal(np.flatnonzero(truncated) + 1, [limit, 2 * limit])


def test_time_limit_is_a_parameter() -> None:
    env, params = make_env("Pendulum-v1", max_steps_in_episode=3)
    _, state = env.reset(jax.random.key(0), params)
    ends = []
    for key in jax.random.split(jax.random.key(1), 6):
        _, state, _, _, truncated, _ = env.step(key, state, jnp.zeros(1), params)
        ends.append(bool(truncated))
    assert ends == [False, False, True] * 2
