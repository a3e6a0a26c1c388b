"""PQN: its targets and loss against numpy, masks, the schedule of exploration, and probes with known values."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import (
    ConfigError,
    PQNConfig,
    PQNMinibatch,
    PQNParts,
    PQNRollout,
    PQNState,
    make_agent,
    make_train,
    pqn_collect,
    pqn_init,
    pqn_loss,
    pqn_parts,
    pqn_update,
)
from rljax.algos.common.q_learning import epsilon_at, legal_max, q_values
from rljax.collect.normalizers import normalize
from rljax.envs.probes import TruncationProbeParams, truncation_probe_values

TINY = PQNConfig(
    env="MaskedBandit-v0",
    num_envs=4,
    num_steps=8,
    num_epochs=2,
    num_minibatches=2,
    total_timesteps=320,
    network={"hidden": [8]},
    learning_rate=1e-2,
)


# Probes


def trained(env: str, **changes: Any) -> tuple[Any, PQNState]:
    """Half the actions are random to the end, so that every action's value is learned."""
    small = {"num_envs": 8, "num_steps": 16, "num_minibatches": 2, "num_epochs": 4, "network": {"hidden": [16]}}
    rates = {"learning_rate": 1e-2, "epsilon_steps": 2_000, "epsilon_end": 0.5, "total_timesteps": 128 * 60}
    config = PQNConfig(env=env, **{**small, **rates, **changes})
    return make_agent(config), jax.jit(make_train(config))(jax.random.key(0)).state


def values(config: PQNConfig, state: PQNState, obs: list[list[float]]) -> np.ndarray:
    return np.asarray(q_values(pqn_parts(config).network, state.params, jnp.array(obs)))


@pytest.mark.slow
def test_a_constant_reward_is_every_actions_value() -> None:
    agent, state = trained("ConstantReward-v0")
    np.testing.assert_allclose(values(agent.config, state, [[0.0]]), 1.0, atol=0.05)


@pytest.mark.slow
def test_values_read_the_observation() -> None:
    agent, state = trained("ObservationReward-v0")
    np.testing.assert_allclose(values(agent.config, state, [[-1.0], [1.0]]), [[-1.0, -1.0], [1.0, 1.0]], atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("q_lambda", [0.0, 0.5, 1.0])
def test_a_value_is_discounted_once_per_step(q_lambda: float) -> None:
    # Value g at the first observation, 1 at the second; gamma 0.5 tells g from 1, from g^2 and from 0.
    agent, state = trained("DelayedReward-v0", gamma=0.5, q_lambda=q_lambda)
    np.testing.assert_allclose(values(agent.config, state, [[0.0], [1.0]]), [[0.5, 0.5], [1.0, 1.0]], atol=0.05)


@pytest.mark.slow
def test_each_action_has_its_own_value_and_the_better_is_played() -> None:
    agent, state = trained("ActionReward-v0")
    obs = [[-1.0], [1.0]]
    np.testing.assert_allclose(values(agent.config, state, obs), [[1.0, -1.0], [-1.0, 1.0]], atol=0.1)
    actions, _ = agent.act(state, jnp.array(obs), None, jax.random.key(0), True)
    np.testing.assert_array_equal(actions, [0, 1])


@pytest.mark.slow
@pytest.mark.parametrize("q_lambda", [0.0, 0.65])
def test_truncation_bootstraps_from_final_observation(q_lambda: float) -> None:
    # Reward 1 for ever, cut every 4 steps: 10 with gamma 0.9. With no bootstrap 2.5, with that of the reset observation -9.3.
    agent, state = trained("TruncationProbe-v0", gamma=0.9, q_lambda=q_lambda, total_timesteps=128 * 200)
    after_reset, going = truncation_probe_values(0.9, TruncationProbeParams())
    assert going == pytest.approx(10.0)
    q = values(agent.config, state, [[1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(q, [[after_reset, after_reset], [going, going]], atol=1.0)


@pytest.mark.slow
def test_a_masked_bandit_is_solved_and_illegal_arms_are_never_played() -> None:
    agent, state = trained("MaskedBandit-v0", num_steps=32, total_timesteps=256 * 80, q_lambda=0.3)
    env, params = pqn_parts(agent.config).env, pqn_parts(agent.config).env_params
    obs, env_state = jax.vmap(env.reset, (0, None))(jax.random.split(jax.random.key(1), 500), params)
    mask = jax.vmap(env.action_mask, (0, None))(env_state, params)
    greedy, _ = agent.act(state, obs, None, jax.random.key(2), True, mask)
    np.testing.assert_array_equal(greedy, jnp.argmax(obs[:, :4], axis=-1))
    # All explore, and the arms that they try are exactly the legal ones.
    explorer = make_agent(agent.config.replace(epsilon_end=1.0))
    tried, _ = explorer.act(state, jnp.tile(obs[:1], (500, 1)), None, jax.random.key(3), False, jnp.tile(mask[:1], (500, 1)))
    assert set(np.asarray(tried).tolist()) == set(np.flatnonzero(mask[0]).tolist())


# The rollout


@pytest.fixture(scope="module")
def tiny() -> tuple[PQNParts, PQNState, PQNState, PQNRollout]:
    """Parts, the state before and after a rollout, and the rollout."""
    parts = pqn_parts(TINY)
    state = jax.jit(lambda key: pqn_init(parts, key))(jax.random.key(0))
    collected, rollout = jax.jit(lambda s: pqn_collect(parts, s))(state)
    return parts, state, collected, rollout


@pytest.mark.slow
def test_a_rollout_plays_legal_actions_and_its_next_values_are_maxima_over_them(tiny: Any) -> None:
    parts, state, _, rollout = tiny
    steps = rollout.steps
    assert np.take_along_axis(np.asarray(steps.mask), np.asarray(steps.action)[..., None], -1).all()
    q = np.asarray(q_values(parts.network, state.params, steps.next_obs))
    best = np.where(steps.next_mask, q, -np.inf).max(-1)
    np.testing.assert_allclose(rollout.next_q_max, best, rtol=1e-5, atol=1e-6)
    assert (best < q.max(-1)).any()  # the mask mattered


def test_the_maximum_is_over_legal_actions_and_finite_where_there_is_none() -> None:
    q = jnp.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [-5.0, -6.0, -7.0]])
    mask = jnp.array([[True, True, False], [False, False, False], [False, True, True]])
    np.testing.assert_array_equal(legal_max(q, mask), [2.0, 3.0, -6.0])
    np.testing.assert_array_equal(legal_max(q, None), [3.0, 3.0, -5.0])


def test_epsilon_falls_linearly_by_environment_steps_and_then_stays() -> None:
    config = TINY.replace(epsilon_start=0.9, epsilon_end=0.1, epsilon_steps=64.0)
    # 4 environments and 8 steps: 32 environment steps in an iteration.
    shares = [float(epsilon_at(config, jnp.int32(i), jnp.int32(t))) for i, t in [(0, 0), (0, 4), (1, 0), (1, 4), (2, 0), (9, 7)]]
    np.testing.assert_allclose(shares, [0.9, 0.7, 0.5, 0.3, 0.1, 0.1], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_the_share_of_actions_that_are_not_greedy_is_epsilons(epsilon: float) -> None:
    config = TINY.replace(
        env="ActionReward-v0", num_envs=64, num_steps=64, total_timesteps=4096, epsilon_start=epsilon, epsilon_end=epsilon
    )
    parts = pqn_parts(config)
    state = pqn_init(parts, jax.random.key(3))
    _, rollout = jax.jit(lambda s: pqn_collect(parts, s))(state)
    greedy = jnp.argmax(q_values(parts.network, state.params, rollout.steps.obs), axis=-1)
    # A random action is the greedy one half the time.
    assert float(jnp.mean(rollout.steps.action != greedy)) == pytest.approx(epsilon / 2, abs=0.03)


# The loss and the update


@pytest.mark.slow
def test_the_loss_is_half_the_mean_squared_error_of_the_actions_taken(tiny: Any) -> None:
    parts, state, _, _ = tiny
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(20, 9)).astype(np.float32)
    action, target = rng.integers(0, 5, 20), rng.normal(size=20).astype(np.float32)
    q = np.asarray(q_values(parts.network, state.params, obs), np.float64)
    errors = [q[i, action[i]] - float(target[i]) for i in range(20)]
    loss, metrics = pqn_loss(parts, state.params, PQNMinibatch(jnp.asarray(obs), jnp.asarray(action), jnp.asarray(target)))
    assert float(loss) == pytest.approx(sum(e * e for e in errors) / 40, rel=1e-5)
    assert float(metrics["train/value_loss"]) == float(loss)
    assert float(metrics["train/td_error"]) == pytest.approx(np.abs(errors).mean(), rel=1e-5)
    assert float(metrics["train/value"]) == pytest.approx(np.mean([q[i, action[i]] for i in range(20)]), rel=1e-5, abs=1e-6)


def test_a_huber_loss_counts_large_errors_linearly_and_bounds_their_gradient(tiny: Any) -> None:
    _, state, _, _ = tiny
    parts = pqn_parts(TINY.replace(huber_delta=0.5))
    rng = np.random.default_rng(1)
    obs = rng.normal(size=(20, 9)).astype(np.float32)
    action, target = rng.integers(0, 5, 20), 5.0 * rng.normal(size=20).astype(np.float32)
    q = np.asarray(q_values(parts.network, state.params, obs), np.float64)
    errors = np.array([q[i, action[i]] - float(target[i]) for i in range(20)])
    assert 0 < (np.abs(errors) < 0.5).sum() < 20
    expected = np.where(np.abs(errors) < 0.5, 0.5 * errors**2, 0.5 * (np.abs(errors) - 0.25)).mean()
    batch = PQNMinibatch(jnp.asarray(obs), jnp.asarray(action), jnp.asarray(target))
    assert float(pqn_loss(parts, state.params, batch)[0]) == pytest.approx(expected, rel=1e-5)
    # A failure after long success: its gradient does not grow with its error.
    slopes = [
        jax.grad(lambda x: pqn_loss(parts, state.params, batch._replace(target=x))[0])(batch.target + x) for x in (50.0, 100.0)
    ]
    np.testing.assert_allclose(slopes[0], 0.5 / 20, rtol=1e-5)
    np.testing.assert_allclose(slopes[1], slopes[0], rtol=1e-6)


@pytest.mark.slow
def test_targets_are_q_lambda_returns_of_scaled_rewards_and_observations_are_normalised_as_in_the_rollout() -> None:
    config = TINY.replace(
        env="CartPole-v1", normalize_observations=True, normalize_rewards=True, num_epochs=1, num_minibatches=1, gamma=0.9
    )
    parts = pqn_parts(config)
    state = jax.jit(make_agent(config).step)(pqn_init(parts, jax.random.key(0)))[0]
    state, rollout = pqn_collect(parts, state)
    steps = rollout.steps
    seen: dict[str, Any] = {}

    def look(parts: PQNParts, params: Any, batch: PQNMinibatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        return pqn_loss(parts, params, batch)[0], {"target": jnp.sum(batch.target), "obs": jnp.sum(batch.obs)}

    after, seen = pqn_update(parts, state, rollout, look)
    np.testing.assert_allclose(seen["obs"], np.sum(normalize(state.obs_statistics, steps.obs)), rtol=1e-4)
    assert float(after.obs_statistics.count) == 2 * config.steps_per_iteration
    reward = np.asarray(steps.reward, np.float64) / np.sqrt(float(after.reward_statistics.statistics.var) + 1e-8)
    total, lam = 0.0, config.q_lambda
    for n in range(config.num_envs):
        following = float(rollout.next_q_max[-1, n])
        for t in reversed(range(config.num_steps)):
            bootstrap = float(rollout.next_q_max[t, n])
            future = bootstrap if steps.truncated[t, n] else (1 - lam) * bootstrap + lam * following
            following = reward[t, n] + (0.0 if steps.terminated[t, n] else config.gamma * future)
            total += following
    assert float(seen["target"]) == pytest.approx(total, rel=1e-4)


@pytest.mark.slow
def test_the_users_own_loop_equals_agent_step_and_metrics_are_finite(tiny: Any) -> None:
    parts, state, collected, rollout = tiny
    by_parts, update_metrics = jax.jit(lambda s, r: pqn_update(parts, s, r))(collected, rollout)
    by_step, metrics = jax.jit(make_agent(TINY).step)(state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), by_parts.params, by_step.params)
    names = ("value_loss", "value", "td_error", "grad_norm", "epsilon", "learning_rate")
    assert set(update_metrics) == {f"train/{name}" for name in names}
    assert set(metrics) == set(update_metrics) | {"episode/return", "episode/length", "episode/count", "train/no_legal_action"}
    assert all(np.isfinite(metrics[name]) for name in update_metrics)
    assert float(metrics["train/learning_rate"]) == pytest.approx(TINY.learning_rate)
    assert float(metrics["train/epsilon"]) == pytest.approx(1 - 0.95 * 32 / 50_000)


# Bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": "Pendulum-v1"}, "PQN needs a Discrete action space, not a Box"),
        ({"env": "MultiDiscreteMatch-v0"}, "PQN needs a Discrete action space, not a MultiDiscrete"),
        ({"num_minibatches": 5}, "num_minibatches = 5: must divide num_envs * num_steps = 4 * 8 = 32"),
        ({"total_timesteps": 31}, "total_timesteps = 31: expected at least num_envs * num_steps = 32"),
        ({"q_lambda": 1.1}, "q_lambda = 1.1: expected a number >= 0 and <= 1"),
        ({"epsilon_end": -0.1}, "epsilon_end = -0.1: expected a number >= 0 and <= 1"),
        ({"qlambda": 0.5}, "unknown field 'qlambda' of PQNConfig: did you mean 'q_lambda'?"),
        ({"network": nn.Dense(3)}, "network = Dense: expected values [B, 5], one for each action"),
        (
            {"network": {"type": "cnn", "channels": [4], "kernels": [3], "strides": [1]}},
            "observation of shape (9,): expected an image [height, width, channels] for encoder = 'cnn'",
        ),
    ],
)
def test_a_mistake_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_agent(PQNConfig(**({"env": "MaskedBandit-v0", "num_envs": 4, "num_steps": 8, "total_timesteps": 320} | changes)))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
