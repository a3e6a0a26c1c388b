"""The values written in the probes' docstrings, measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.envs import make_env
from rljax.envs.probes import ProbeState, truncation_probe_values

# Compiling takes most of the time here, so XLA need not optimise.
QUICK = {"xla_backend_optimization_level": 0}

Policy = Callable[[jax.Array, jax.Array, Any], jax.Array]


def episode_returns(
    env_id: str, policy: Policy, steps: int, num_envs: int = 2000, discount: float = 1.0
) -> tuple[np.ndarray, ...]:
    """First observation and return of the first episode of many environments, and its length."""
    env, params = make_env(env_id)

    def episode(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        reset_key, key = jax.random.split(key)
        first_obs, state = env.reset(reset_key, params)

        def step(carry: Any, key: jax.Array) -> tuple[Any, None]:
            obs, state, total, weight, length = carry
            policy_key, step_key = jax.random.split(key)
            mask = env.action_mask(state, params)
            obs, state, reward, terminated, truncated, _ = env.step(step_key, state, policy(policy_key, obs, mask), params)
            alive = weight > 0
            weight_after = jnp.where(terminated | truncated, 0.0, weight * discount)
            return (obs, state, total + weight * reward, weight_after, length + alive), None

        carry = (first_obs, state, jnp.zeros(()), jnp.ones(()), jnp.zeros((), jnp.int32))
        (_, _, total, _, length), _ = jax.lax.scan(step, carry, jax.random.split(key, steps))
        return first_obs, total, length

    run = jax.jit(lambda: jax.vmap(episode)(jax.random.split(jax.random.key(0), num_envs)), compiler_options=QUICK)
    return tuple(map(np.asarray, run()))


def any_action(key: jax.Array, _obs: jax.Array, _mask: Any) -> jax.Array:
    return jax.random.randint(key, (), 0, 2)


def test_constant_reward_is_worth_one() -> None:
    obs, returns, lengths = episode_returns("ConstantReward-v0", any_action, 3)
    np.testing.assert_array_equal(obs, 0)
    np.testing.assert_array_equal(returns, 1)
    np.testing.assert_array_equal(lengths, 1)


def test_observation_reward_is_worth_the_observation() -> None:
    obs, returns, lengths = episode_returns("ObservationReward-v0", any_action, 3)
    np.testing.assert_array_equal(returns, obs[:, 0])
    assert abs(returns.mean()) < 0.1
    assert set(returns) == {-1.0, 1.0}
    np.testing.assert_array_equal(lengths, 1)


def test_delayed_reward_is_worth_the_discount() -> None:
    _, returns, lengths = episode_returns("DelayedReward-v0", any_action, 4, discount=0.7)
    np.testing.assert_allclose(returns, 0.7, rtol=1e-6)
    np.testing.assert_array_equal(lengths, 2)


def test_action_reward_best_is_one_and_uniform_zero() -> None:
    _, returns, _ = episode_returns("ActionReward-v0", lambda _key, obs, _mask: (obs[0] > 0).astype(jnp.int32), 2)
    np.testing.assert_array_equal(returns, 1)
    _, returns, _ = episode_returns("ActionReward-v0", lambda _key, obs, _mask: (obs[0] < 0).astype(jnp.int32), 2)
    np.testing.assert_array_equal(returns, -1)
    _, returns, _ = episode_returns("ActionReward-v0", any_action, 2)
    assert abs(returns.mean()) < 0.1


def uniform_legal(heads: tuple[int, ...]) -> Policy:
    def policy(key: jax.Array, _obs: jax.Array, mask: jax.Array) -> jax.Array:
        parts = jnp.split(jnp.where(mask, 0.0, -jnp.inf), np.cumsum(heads)[:-1])
        keys = jax.random.split(key, len(heads))
        picks = jnp.stack([jax.random.categorical(k, part) for k, part in zip(keys, parts, strict=True)])
        return picks[0] if len(heads) == 1 else picks

    return policy


@pytest.mark.slow
def test_masked_bandit_best_uniform_and_illegal() -> None:
    _, returns, lengths = episode_returns("MaskedBandit-v0", lambda _key, obs, _mask: jnp.argmax(obs[:4]), 6)
    np.testing.assert_array_equal(returns, 4)
    np.testing.assert_array_equal(lengths, 4)
    _, returns, _ = episode_returns("MaskedBandit-v0", uniform_legal((5,)), 6)
    assert returns.mean() == pytest.approx(4 / 3, abs=0.1)
    assert returns.min() >= 0
    _, returns, _ = episode_returns("MaskedBandit-v0", lambda _key, _obs, mask: jnp.argmin(mask), 6)
    np.testing.assert_array_equal(returns, -4)


def test_masked_bandits_mask_is_shown_varies_and_forbids_the_last_arm() -> None:
    env, params = make_env("MaskedBandit-v0")
    obs, state = jax.jit(jax.vmap(env.reset, (0, None)))(jax.random.split(jax.random.key(0), 500), params)
    mask = np.asarray(jax.vmap(env.action_mask, (0, None))(state, params))
    np.testing.assert_array_equal(mask[:, :4], obs[:, 4:8])
    assert not mask[:, 4].any()
    np.testing.assert_array_equal(mask.sum(1), 3)
    assert mask[np.arange(500), np.argmax(obs[:, :4], 1)].all()
    assert len(np.unique(mask, axis=0)) == 4
    assert len(np.unique(np.asarray(obs), axis=0)) == 12


@pytest.mark.slow
def test_multi_discrete_match_best_uniform_and_mask() -> None:
    def right(_key: jax.Array, obs: jax.Array, _mask: jax.Array) -> jax.Array:
        return jnp.stack([jnp.argmax(obs[:3]), jnp.argmax(obs[3:7]), jnp.argmax(obs[7:])])

    obs, returns, lengths = episode_returns("MultiDiscreteMatch-v0", right, 2)
    np.testing.assert_allclose(returns, 1)
    np.testing.assert_array_equal(lengths, 1)
    assert len(np.unique(obs, axis=0)) == 6
    _, returns, _ = episode_returns("MultiDiscreteMatch-v0", uniform_legal((3, 4, 2)), 2)
    assert returns.mean() == pytest.approx(11 / 18, abs=0.02)
    _, returns, _ = episode_returns("MultiDiscreteMatch-v0", lambda *_: jnp.array([2, 3, 1]), 2)
    np.testing.assert_array_equal(returns, 0)
    env, params = make_env("MultiDiscreteMatch-v0")
    assert env.action_mask(ProbeState(jnp.zeros(9), jnp.int32(0)), params).tolist() == [1, 1, 0, 1, 1, 1, 0, 1, 0]


def test_box_target_best_and_uniform() -> None:
    _, returns, lengths = episode_returns("BoxTarget-v0", lambda _key, obs, _mask: obs, 2)
    np.testing.assert_array_equal(returns, 0)
    np.testing.assert_array_equal(lengths, 1)
    _, returns, _ = episode_returns("BoxTarget-v0", lambda key, *_: jax.random.uniform(key, (2,), minval=-1, maxval=1), 2)
    assert returns.mean() == pytest.approx(-(1 / 3 + 0.64 / 3), abs=0.03)


def test_truncation_probe_shows_reset_and_final_observations_apart() -> None:
    env, params = make_env("TruncationProbe-v0")
    obs, state = env.reset(jax.random.key(0), params)
    seen = [(obs.tolist(), None, None, None)]
    step = jax.jit(env.step)
    for key in jax.random.split(jax.random.key(1), 6):
        obs, state, reward, terminated, truncated, info = step(key, state, jnp.int32(0), params)
        assert not terminated
        seen.append((obs.tolist(), info["final_observation"].tolist(), float(reward), bool(truncated)))
    assert seen == [
        ([1, 0], None, None, None),
        ([0, 1], [0, 1], -10, False),
        ([0, 1], [0, 1], 1, False),
        ([0, 1], [0, 1], 1, False),
        ([1, 0], [0, 1], 1, True),
        ([0, 1], [0, 1], -10, False),
        ([0, 1], [0, 1], 1, False),
    ]


@pytest.mark.parametrize("bootstrap", ["final", "reset", "none"])
def test_truncation_probe_values_are_those_of_tabular_td(bootstrap: str) -> None:
    """TD(0) in plain Python on the environment's own transitions; the two mistakes give clearly different values."""
    env, params = make_env("TruncationProbe-v0")
    discount, values = 0.9, np.zeros(2)

    def step(state: Any, key: jax.Array) -> tuple[Any, Any]:
        before = state.obs
        obs, state, reward, _, truncated, info = env.step(key, state, jnp.int32(0), params)
        return state, (before, obs, info["final_observation"], reward, truncated)

    _, state = env.reset(jax.random.key(0), params)
    _, history = jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 4))
    transitions = [tuple(np.asarray(part) for part in parts) for parts in zip(*history, strict=True)]
    for _ in range(300):
        targets: dict[int, list[float]] = {0: [], 1: []}
        for before, obs, final, reward, truncated in transitions:
            after = {"final": final, "reset": obs, "none": final * (not truncated)}[bootstrap]
            targets[int(before.argmax())].append(float(reward + discount * after @ values))
        values = np.array([np.mean(targets[0]), np.mean(targets[1])])
    np.testing.assert_allclose(values, truncation_probe_values(discount, params, bootstrap), rtol=1e-5)
    right = np.array([-1.0, 10.0])
    if bootstrap == "final":
        np.testing.assert_allclose(values, right, rtol=1e-5)
    else:
        assert (np.abs(values - right) > 2).all()
