"""Advantage-weighted actor-critic: Nair et al., "AWAC: Accelerating online reinforcement learning with offline datasets" (2020).

The critics learn the values of the policy, as in SAC without an entropy; the policy imitates the recorded actions of high
advantage, so it stays near the dataset without a model of who acted in it. `awac_update` is public, so a user can own the loop:

    parts = awac_parts(config)
    state = awac_init(parts, key)
    batches = rljax.open_dataset(path).batches(config.batch_size)
    noise = awac_noise(parts, key, ())
    state, metrics = awac_update(parts, state, dataset_batch(parts, state, batches.read(0)), noise)

With `anneal_lr`, it adds 1 to `state.iteration` after the gradient steps of an iteration.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rljax.algos.common.soft_policy import q_of_choice
from rljax.algos.offline.parts import (
    OfflineParts,
    OfflineState,
    RegressionConfig,
    actor_critic_parts,
    critics_loss,
    learn,
    policy_of,
    policy_value,
    regression_head,
)
from rljax.algos.offline.regression import init_actor_critic, regression_agent, regression_loss
from rljax.collect.replay import NStep
from rljax.core.agent import Agent, Metrics, register_agent
from rljax.core.config import algorithm, leaf
from rljax.core.environments.spaces import Box


@algorithm("awac")
class AWACConfig(RegressionConfig):
    """Advantage-weighted actor-critic for continuous or discrete actions."""

    beta: float = leaf(default=1.0, doc="inverse temperature of the weights exp(beta A), 1 / lambda; 0 is cloning", ge=0)


def awac_parts(config: AWACConfig) -> OfflineParts:
    """Build environment and networks.

    Raises:
        ConfigError: environment or network do not fit the algorithm or each other, or the buffer cannot fit the device.
    """
    return actor_critic_parts(config, "AWAC", regression_head)


def awac_init(parts: OfflineParts, key: jax.Array) -> OfflineState:
    """Return the state before the first iteration; `params` are `actor` and `critic` (both critics, stacked)."""
    return init_actor_critic(parts, key)


def awac_noise(parts: OfflineParts, key: jax.Array, shape: tuple[int, ...]) -> jax.Array | None:
    """Draw the noise of updates, f32 `[*shape, 2, batch_size, A]`, of actions at observations and at next ones; None for a
    Discrete, whose expectations are exact."""
    policy = parts.policy
    return policy.head.noise(key, (*shape, 2, parts.config.batch_size)) if isinstance(policy.space, Box) else None


def awac_update(parts: OfflineParts, state: Any, batch: NStep, noise: jax.Array | None) -> tuple[Any, Metrics]:
    """Take one gradient step on a batch `[B, ...]`, and move the target critics.

    Returns:
        The next state, and metrics `train/...`.
    """
    return learn(parts, state, lambda params: awac_loss(parts, params, state.target_params, batch, noise))


def awac_loss(
    parts: OfflineParts, params: Any, target_params: Any, batch: NStep, noise: jax.Array | None
) -> tuple[jax.Array, Metrics]:
    """Return the sum of both losses of a batch, f32 [], and metrics: the squared errors of both critics (eq. 5), and the
    regression of the policy (eq. 13), whose advantage is `min Q(s, a) - E_a'[min Q(s, a')]`.
    """
    policy = parts.policy
    here, there = (None, None) if noise is None else noise
    following = policy_of(policy, params, batch.next_obs, batch.next_mask)
    next_value = policy_value(policy, target_params["critic"], following, batch.next_obs, there)
    target = jax.lax.stop_gradient(batch.reward + batch.discount * next_value)
    q = q_of_choice(policy, params["critic"], batch.obs, batch.action)
    value_loss = critics_loss(q, target)
    value = policy_value(policy, params["critic"], policy_of(policy, params, batch.obs, batch.action.mask), batch.obs, here)
    policy_loss, metrics = regression_loss(parts, params, batch, jnp.min(q, axis=0) - value)
    return value_loss + policy_loss, metrics | {"train/value_loss": value_loss, "train/value": jnp.mean(q)}


def make_awac(config: AWACConfig) -> Agent:
    """The agent of a configuration."""
    parts = awac_parts(config)
    return regression_agent(
        parts,
        lambda key: awac_init(parts, key),
        lambda *args: awac_update(parts, *args),
        lambda key, shape: awac_noise(parts, key, shape),
    )


register_agent(AWACConfig, make_awac)
