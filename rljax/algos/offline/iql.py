"""Implicit Q-learning: Kostrikov, Nair and Levine, "Offline reinforcement learning with implicit Q-learning" (2021).

The value is an expectile of Q over the recorded actions, near their best one, so no action is ever evaluated that the dataset
lacks; the policy imitates the actions of high advantage. A gradient step is one on the sum of the three losses. `iql_update` is
public, so a user can own the loop:

    parts = iql_parts(config)
    state = iql_init(parts, key)
    batches = rljax.open_dataset(path).batches(config.batch_size)
    state, metrics = iql_update(parts, state, dataset_batch(parts, state, batches.read(0)))

With `anneal_lr`, it adds 1 to `state.iteration` after the gradient steps of an iteration.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rljax.algos.common.losses import expectile_loss
from rljax.algos.common.soft_policy import q_of_choice
from rljax.algos.offline.parts import (
    OfflineParts,
    OfflineState,
    RegressionConfig,
    actor_critic_parts,
    critics_loss,
    learn,
    regression_head,
)
from rljax.algos.offline.regression import init_actor_critic, regression_agent, regression_loss
from rljax.collect.replay import NStep
from rljax.core.agent import Agent, Metrics, register_agent
from rljax.core.config import algorithm, leaf
from rljax.nn.modules.layers import product_dtype
from rljax.nn.networks import make_feed_forward


@algorithm("iql")
class IQLConfig(RegressionConfig):
    """Implicit Q-learning for continuous or discrete actions."""

    expectile: float = leaf(
        default=0.7,
        doc="expectile of Q that the value estimates: 0.5 the mean over recorded actions, near 1 their best",
        gt=0,
        le=1,
    )


def iql_parts(config: IQLConfig) -> OfflineParts:
    """Build environment and networks.

    Raises:
        ConfigError: environment or network do not fit the algorithm or each other, or the buffer cannot fit the device.
    """
    value = make_feed_forward(config.network, 1, dtype=product_dtype(config.dtype))
    return actor_critic_parts(config, "IQL", regression_head)._replace(value=value)


def iql_init(parts: OfflineParts, key: jax.Array) -> OfflineState:
    """Return the state before the first iteration; `params` are `actor`, `critic` (both, stacked) and `value`."""
    return init_actor_critic(parts, key)


def iql_update(parts: OfflineParts, state: Any, batch: NStep, _: None = None) -> tuple[Any, Metrics]:
    """Take one gradient step on a batch `[B, ...]`, and move the target critics.

    Returns:
        The next state, and metrics `train/...`.
    """
    return learn(parts, state, lambda params: iql_loss(parts, params, state.target_params, batch))


def iql_loss(parts: OfflineParts, params: Any, target_params: Any, batch: NStep) -> tuple[jax.Array, Metrics]:
    """Return the sum of the three losses of a batch, f32 [], and metrics: the expectile loss of the value (eq. 5), the squared
    errors of both critics (eq. 6), and the regression of the policy (eq. 7).
    """
    value = _value(parts, params, batch.obs)
    next_value = jax.lax.stop_gradient(_value(parts, params, batch.next_obs))
    target_q = jnp.min(q_of_choice(parts.policy, target_params["critic"], batch.obs, batch.action), axis=0)
    state_value_loss = jnp.mean(expectile_loss(target_q - value, parts.config.expectile))
    q = q_of_choice(parts.policy, params["critic"], batch.obs, batch.action)
    target = batch.reward + batch.discount * next_value
    value_loss = critics_loss(q, target)
    policy_loss, metrics = regression_loss(parts, params, batch, target_q - value)
    return state_value_loss + value_loss + policy_loss, metrics | {
        "train/value_loss": value_loss,
        "train/state_value_loss": state_value_loss,
        "train/value": jnp.mean(q),
    }


def _value(parts: OfflineParts, params: Any, obs: Any) -> jax.Array:
    """Return the values f32 `[B]` of normalised observations."""
    assert parts.value is not None
    return jnp.asarray(parts.value.apply(params["value"], obs))[..., 0]


def make_iql(config: IQLConfig) -> Agent:
    """The agent of a configuration."""
    parts = iql_parts(config)
    return regression_agent(parts, lambda key: iql_init(parts, key), lambda *args: iql_update(parts, *args))


register_agent(IQLConfig, make_iql)
