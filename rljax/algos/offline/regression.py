"""Policies that imitate the actions of high advantage, which IQL and AWAC have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax.algos.common.losses import advantage_weighted_regression, positive_advantage_regression
from rljax.algos.common.soft_policy import init_soft_policy, policy_outputs
from rljax.algos.common.state import normalize_obs
from rljax.algos.offline.parts import OfflineParts, OfflineState, drawn_action, log_prob_of_choice, offline_state, policy_of
from rljax.algos.offline.training import Learner, no_noise, offline_agent
from rljax.collect.replay import NStep
from rljax.core.agent import Agent, Metrics


def init_actor_critic(parts: OfflineParts, key: jax.Array, targets: tuple[str, ...] = ("critic",)) -> OfflineState:
    """Return the state before the first iteration, with targets of these networks."""

    def init_params(key: jax.Array, obs: Any) -> Any:
        policy_key, value_key = jax.random.split(key)
        params = init_soft_policy(parts.policy, policy_key, obs)
        return params if parts.value is None else params | {"value": parts.value.init(value_key, obs)}

    return offline_state(parts, key, init_params, targets, parts.policy.head)


def regression_loss(parts: OfflineParts, params: Any, batch: NStep, advantage: jax.Array) -> tuple[jax.Array, Metrics]:
    """Return the loss of the policy f32 [], which imitates the actions of a batch by their advantages f32 `[B]`, and metrics.

    Advantages are constants here. Weights are those of `advantage_weights`.
    """
    config, advantage = parts.config, jax.lax.stop_gradient(advantage)
    distribution = policy_of(parts.policy, params, batch.obs, batch.action.mask)
    log_prob = log_prob_of_choice(parts.policy, distribution, batch.action)
    if config.advantage_weights == "positive":
        loss = positive_advantage_regression(log_prob, advantage)
    else:
        loss = advantage_weighted_regression(log_prob, advantage, config.beta, config.max_weight)
    return loss, {
        "train/policy_loss": loss,
        "train/advantage": jnp.mean(advantage),
        "train/entropy": jnp.mean(distribution.entropy()),
    }


def regression_agent(
    parts: OfflineParts,
    init: Callable[[jax.Array], OfflineState],
    update: Callable[[Any, NStep, Any], tuple[Any, Metrics]],
    update_noise: Callable[[jax.Array, tuple[int, ...]], Any] = no_noise,
) -> Agent:
    """Return the agent of an algorithm with such a policy, which explores by its own samples."""
    policy = parts.policy

    def explore(params: Any, obs: Any, mask: jax.Array | None, noise: jax.Array) -> jax.Array:
        return drawn_action(policy, policy_of(policy, params, obs, mask), noise)

    def act(
        state: Any, obs: Any, carry: Any, key: jax.Array, deterministic: bool = False, mask: jax.Array | None = None
    ) -> tuple[Any, Any]:
        outputs = policy_outputs(policy, state.params, normalize_obs(state, obs))
        distribution = policy.head.distribution(outputs, mask)
        if deterministic:
            return policy.head.to_env(distribution.mode()), carry
        noise = policy.head.noise(key, outputs.shape[:-1])
        return policy.head.to_env(drawn_action(policy, distribution, noise)), carry

    return offline_agent(parts, Learner(init, update, explore, policy.head.to_env, policy.head.noise, update_noise, act))
