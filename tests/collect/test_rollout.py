"""Rollouts of an environment whose observations tell everything, so that what happened can be followed in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from rljax.collect.resets import environment_noise, initial_environments
from rljax.collect.rollout import Steps, episode_metrics, rollout_scan
from rljax.core.environments.environment import Environment
from rljax.core.environments.spaces import Box, Discrete
from rljax.core.environments.wrappers import EpisodeStatistics
from rljax.nn.outputs.actions import action_head

T, N = 20, 3


@struct.dataclass
class ClockState:
    limit: jax.Array
    truncates: jax.Array
    time: jax.Array


class Clock(Environment):
    """Each episode draws its length and how it ends; obs = [length, whether truncated, time]; reward = time + 10 action."""

    def observation_space(self, params: Any) -> Box:
        return Box(0.0, 100.0, (3,))

    def action_space(self, params: Any) -> Discrete:
        return Discrete(3)

    def _obs(self, state: ClockState) -> jax.Array:
        return jnp.stack([state.limit, state.truncates.astype(jnp.int32), state.time]).astype(jnp.float32)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, ClockState]:
        limit_key, end_key = jax.random.split(key)
        limit = jax.random.randint(limit_key, (), 1, 7)
        state = ClockState(limit, jax.random.bernoulli(end_key), jnp.zeros((), jnp.int32))
        return self._obs(state), state

    def step_env(self, key: jax.Array, state: ClockState, action: jax.Array, params: Any) -> Any:
        state = state.replace(time=state.time + 1)
        reward = state.time + 10.0 * action
        return self._obs(state), state, reward, (state.time >= state.limit) & ~state.truncates, {}

    def is_truncated(self, state: ClockState, params: Any) -> jax.Array:
        return (state.time >= state.limit) & state.truncates


class Result(NamedTuple):
    steps: Steps
    final_obs: np.ndarray
    first_obs: np.ndarray
    last_obs: np.ndarray


@pytest.fixture(scope="module")
def rollouts() -> list[Result]:
    """Two rollouts, the second from where the first ended; the policy prefers action 2 at odd times."""
    env = EpisodeStatistics(Clock())
    head = action_head(env.action_space(None))

    def act(obs: jax.Array, carry: None, mask: jax.Array | None, noise: jax.Array) -> tuple[jax.Array, None]:
        outputs = jax.nn.one_hot(2, 3) * jnp.where(obs[..., 2:] % 2 == 1, 100.0, -100.0)
        return head.sample(head.distribution(outputs, mask), noise), carry

    @jax.jit
    def rollout(env_state: Any, obs: jax.Array, noise_key: jax.Array, env_key: jax.Array) -> Any:
        noise, keys = head.noise(noise_key, (T, N)), environment_noise(env, None, env_key, T, N)
        return rollout_scan(env, None, act, head.to_env, env_state, obs, noise, keys)

    env_state, obs = initial_environments(env, None, jax.random.key(0), N)
    results = []
    for i in (1, 2):
        first_obs = obs
        env_state, obs, _, steps = rollout(env_state, obs, jax.random.key(10 * i), jax.random.key(10 * i + 1))
        results.append(jax.tree.map(np.asarray, Result(steps, steps.next_obs, first_obs, obs)))
    return results


def every_step(result: Result) -> Iterator[tuple[int, int, np.ndarray, Steps, np.ndarray, np.ndarray]]:
    """`(t, n, obs, step, final_obs, next_obs)` of each step."""
    for t in range(T):
        for n in range(N):
            steps: Steps = jax.tree.map(lambda x, t=t, n=n: x[t, n], result.steps)
            next_obs = result.steps.obs[t + 1, n] if t + 1 < T else result.last_obs[n]
            yield t, n, steps.obs, steps, result.final_obs[t, n], next_obs


@pytest.mark.slow
def test_a_rollout_holds_every_step_of_every_environment(rollouts: list[Result]) -> None:
    for result in rollouts:
        assert result.steps.obs.shape == (T, N, 3)
        assert result.steps.action.shape == result.steps.reward.shape == (T, N)
        assert result.steps.mask is None
        np.testing.assert_array_equal(result.steps.obs[0], result.first_obs)


def test_final_obs_is_where_the_step_led_before_any_reset(rollouts: list[Result]) -> None:
    ends = {"terminated": 0, "truncated": 0}
    for result in rollouts:
        for _, _, obs, step, final_obs, next_obs in every_step(result):
            np.testing.assert_array_equal(final_obs, obs + np.array([0, 0, 1]))
            over = final_obs[2] == final_obs[0]
            assert step.terminated == (over and not obs[1])
            assert step.truncated == (over and obs[1])
            if over:
                assert next_obs[2] == 0
                ends["terminated"] += step.terminated
                ends["truncated"] += step.truncated
            else:
                np.testing.assert_array_equal(next_obs, final_obs)
    assert min(ends.values()) > 5


def test_environments_and_episodes_differ(rollouts: list[Result]) -> None:
    starts = [tuple(next_obs) for result in rollouts for _, _, _, _, _, next_obs in every_step(result) if next_obs[2] == 0]
    assert len(set(starts)) > 6
    obs = rollouts[0].steps.obs
    assert not np.array_equal(obs[:, 0], obs[:, 1])


def test_actions_are_the_policys_and_reach_the_environment(rollouts: list[Result]) -> None:
    for result in rollouts:
        for _, _, obs, step, _, _ in every_step(result):
            assert (step.action == 2) == (obs[2] % 2 == 1)
            assert step.reward == obs[2] + 1 + 10 * step.action
        even = result.steps.action[result.steps.obs[..., 2] % 2 == 0]
        assert 0.2 < even.mean() < 0.8  # of 0 and 1, alike


def test_running_totals_restart_at_episodes_and_go_on_over_rollouts(rollouts: list[Result]) -> None:
    total = np.zeros(N)
    for result in rollouts:
        for _, n, obs, step, _, next_obs in every_step(result):
            total[n] += step.reward
            assert step.episode_return == pytest.approx(total[n])
            assert step.episode_length == obs[2] + 1
            if next_obs[2] == 0:
                total[n] = 0.0


def test_episode_metrics_are_means_over_the_episodes_that_ended(rollouts: list[Result]) -> None:
    for result in rollouts:
        ended = [step for _, _, _, step, _, _ in every_step(result) if step.terminated or step.truncated]
        metrics = episode_metrics(result.steps)
        assert metrics["episode/count"] == len(ended)
        assert metrics["episode/return"] == pytest.approx(sum(s.episode_return for s in ended) / len(ended), rel=1e-6)
        assert metrics["episode/length"] == pytest.approx(sum(s.episode_length for s in ended) / len(ended), rel=1e-6)
        assert all(value.shape == () and value.dtype == jnp.float32 for value in metrics.values())


def test_episode_metrics_are_nan_where_no_episode_ended(rollouts: list[Result]) -> None:
    never = np.zeros((T, N), bool)
    metrics = episode_metrics(rollouts[0].steps._replace(terminated=never, truncated=never))
    assert metrics["episode/count"] == 0
    assert jnp.isnan(metrics["episode/return"])
    assert jnp.isnan(metrics["episode/length"])


def test_fresh_environments_differ_and_have_no_weak_types() -> None:
    class WeakClock(Clock):
        def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, ClockState]:
            obs, state = super().reset_env(key, params)
            return obs, state.replace(time=jnp.asarray(0))  # weakly typed, as users write it

    env_state, obs = initial_environments(WeakClock(), None, jax.random.key(0), 16)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((env_state, obs)))
    assert env_state.time.dtype == jnp.int32
    assert len(np.unique(obs, axis=0)) > 3
