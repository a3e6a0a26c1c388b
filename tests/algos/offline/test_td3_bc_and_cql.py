"""TD3+BC and CQL: their losses against plain NumPy, and which gradient steps train what."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.common.soft_policy import Choice
from rljax.collect.demos import open_dataset
from rljax.collect.replay import NStep
from tests.run.tiny_data import tiny_dataset

B = 16
SMALL: dict[str, Any] = {"num_steps": 4, "batch_size": B, "network": {"hidden": [8]}, "total_timesteps": 40}


@pytest.fixture(scope="module")
def td3_bc() -> tuple[Any, Any, NStep, jax.Array]:
    config = rljax.TD3BCConfig(
        env="Pendulum-v1",
        dataset=tiny_dataset("Pendulum-v1"),
        policy_delay=2,
        target_update_every=3,
        tau=0.25,
        gamma=0.9,
        **SMALL,
    )
    parts = rljax.td3_bc_parts(config)
    state = jax.jit(lambda key: rljax.td3_bc_init(parts, key))(jax.random.key(0))
    state = state.replace(
        params=jax.tree.map(lambda x: x + 0.3, state.params), target_params=jax.tree.map(lambda x: x - 0.2, state.target_params)
    )
    batch = rljax.dataset_batch(parts, state, open_dataset(config.dataset).batches(B).read(0))
    return parts, state, batch, 3.0 * rljax.td3_bc_noise(parts, jax.random.key(1), ())


def q_of(parts: Any, critics: Any, obs: Any, action: Any) -> np.ndarray:
    one = [jax.tree.map(lambda x, i=i: x[i], critics) for i in range(2)]
    return np.stack([np.asarray(parts.policy.critic.apply(params, obs, jnp.asarray(action)))[:, 0] for params in one])


def test_the_losses_of_td3_bc(td3_bc: Any) -> None:
    parts, state, batch, noise = td3_bc
    obs, action = batch.obs, np.asarray(batch.action.action)
    actor = lambda params, obs: np.tanh(np.asarray(parts.policy.actor.apply(params["actor"], obs)))  # noqa: E731
    smoothing = np.clip(0.2 * np.asarray(noise), -0.5, 0.5)
    assert (np.abs(smoothing) == 0.5).any()
    following = np.clip(actor(state.target_params, batch.next_obs) + smoothing, -1.0, 1.0)
    next_q = q_of(parts, state.target_params["critic"], batch.next_obs, following).min(0)
    wanted = np.asarray(batch.reward) + np.asarray(batch.discount) * next_q
    target = rljax.td3_bc_target(parts, state.target_params, batch, noise)
    np.testing.assert_allclose(target, wanted, rtol=1e-4)
    loss, _ = rljax.td3_bc_critic_loss(parts, state.params["critic"], batch, target)
    squared = 0.5 * (q_of(parts, state.params["critic"], obs, action) - wanted) ** 2
    assert float(loss) == pytest.approx(squared.sum(0).mean(), rel=1e-4)

    own = actor(state.params, obs)
    q = q_of(parts, state.params["critic"], obs, own)[0]
    weight = 2.5 / np.abs(q).mean()
    loss, metrics = rljax.td3_bc_actor_loss(parts, state.params, batch)
    assert float(metrics["train/bc_loss"]) == pytest.approx(((own - action) ** 2).mean(), rel=1e-4)
    assert float(loss) == pytest.approx(((own - action) ** 2).mean() - weight * q.mean(), rel=1e-4)


def test_the_policy_takes_every_second_step_and_the_targets_every_third(td3_bc: Any) -> None:
    parts, state, batch, noise = td3_bc
    update = jax.jit(lambda state: rljax.td3_bc_update(parts, state, batch, noise)[0])
    changed = lambda a, b: bool(any(np.any(x != y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True)))  # noqa: E731
    for number in range(1, 7):
        after = update(state)
        assert changed(after.params["critic"], state.params["critic"])
        assert changed(after.params["actor"], state.params["actor"]) == (number % 2 == 0)
        assert changed(after.opt_state["actor"], state.opt_state["actor"]) == (number % 2 == 0)
        moves = 0.25 if number % 3 == 0 else 0.0
        for target, before, params in zip(
            *map(jax.tree.leaves, (after.target_params, state.target_params, after.params)), strict=True
        ):
            np.testing.assert_allclose(target, before + moves * (params - before), rtol=1e-5, atol=1e-6)
        state = after


def test_the_loss_of_cql_is_a_squared_error_and_the_log_of_a_sum_over_legal_actions() -> None:
    parts = rljax.cql_parts(rljax.CQLConfig(env="MaskedBandit-v0", alpha=0.5, **SMALL))
    state = jax.jit(lambda key: rljax.cql_init(parts, key))(jax.random.key(0))
    n = parts.policy.num_actions
    obs = jax.random.normal(jax.random.key(1), (B, *parts.env.observation_space(parts.env_params).shape))
    action = jnp.arange(B) % n
    mask = (jax.random.uniform(jax.random.key(2), (B, n)) < 0.5) | (jnp.arange(n) == action[:, None])
    reward, discount = jnp.arange(B, dtype=jnp.float32), jnp.full(B, 0.9)
    batch = NStep(obs, Choice(action, mask), reward, discount, obs, mask)
    target = jnp.linspace(-1.0, 1.0, B)
    loss, metrics = rljax.cql_loss(parts, state.params, batch, target)
    q = np.asarray(parts.policy.module.apply(state.params, obs), np.float64)
    taken = q[np.arange(B), np.asarray(action)]
    sums = np.log(np.where(np.asarray(mask), np.exp(q), 0.0).sum(-1))
    squared = 0.5 * ((taken - np.asarray(target)) ** 2).mean()
    assert float(metrics["train/conservative_loss"]) == pytest.approx((sums - taken).mean(), rel=1e-4)
    assert float(metrics["train/value_loss"]) == pytest.approx(squared, rel=1e-4)
    assert float(loss) == pytest.approx(squared + 0.5 * (sums - taken).mean(), rel=1e-4)


def test_bad_input_is_one_clear_line() -> None:
    with pytest.raises(rljax.ConfigError, match="TD3\\+BC needs a Box of actions, not a Discrete; CQL, IQL and AWAC take"):
        rljax.make_agent(rljax.TD3BCConfig(**SMALL))
    with pytest.raises(rljax.ConfigError, match="env = Pendulum-v1: CQL needs a Discrete action space, not a Box"):
        rljax.make_agent(rljax.CQLConfig(env="Pendulum-v1", **SMALL))
