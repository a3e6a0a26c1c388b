"""Proximal policy optimisation (Schulman et al., 2017), with the details of Huang et al.,
"The 37 implementation details of PPO" (2022).

One iteration is `ppo_collect` then `ppo_update`; both are public, so a user can own the loop:

    parts = ppo_parts(config)
    state = ppo_init(parts, key)
    state, rollout = ppo_collect(parts, state)
    state, metrics = ppo_update(parts, state, rollout)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from flax.core import FrozenDict

from rljax.algos.budget import check_batch
from rljax.algos.off_policy import seen
from rljax.algos.optimizer import adam, annealed
from rljax.algos.policy import build_policy, policy_act, policy_and_value, policy_rollout
from rljax.collect.environments import make_training_env
from rljax.collect.minibatches import init_optimizer, minibatch_steps
from rljax.collect.normalizers import (
    RewardStatistics,
    RunningStatistics,
    init_reward_statistics,
    init_statistics,
    normalize_rewards,
    update_statistics,
)
from rljax.collect.returns import gae
from rljax.collect.rollout import Steps, episode_metrics, initial_environments
from rljax.core.agent import Agent, Metrics, register_agent
from rljax.core.config import Config, algorithm, leaf, static
from rljax.core.keys import as_key
from rljax.nn.distributions import ActionHead


@algorithm("ppo")
class PPOConfig(Config):
    """Proximal policy optimisation. Defaults are those of the reference implementations for small problems."""

    num_steps: int = static(default=128, doc="steps per environment in one rollout", gt=0)
    num_epochs: int = static(default=4, doc="passes over each rollout", gt=0)
    num_minibatches: int = static(default=4, doc="minibatches per pass; must divide num_envs * num_steps", gt=0)
    network: Any = static(
        default=FrozenDict(), doc="{ hidden = [64, 64], activation = 'tanh', shared = false }, or a flax.linen Module"
    )
    log_std: str = static(
        default="parameter", doc="where a Gaussian policy's log_std comes from", choices=("parameter", "network")
    )
    learning_rate: float = leaf(default=2.5e-4, doc="Adam step size", ge=0)
    anneal_lr: bool = static(default=True, doc="lower the learning rate linearly, to 0 after the last iteration")
    adam_eps: float = leaf(default=1e-5, doc="Adam epsilon", gt=0)
    gae_lambda: float = leaf(default=0.95, doc="trace decay of the advantages", ge=0, le=1)
    clip_eps: float = leaf(default=0.2, doc="how far the probability ratio may move", gt=0)
    vf_clip_eps: float | None = leaf(default=0.2, doc="how far a value may move in one update; none: as far as it likes", gt=0)
    dual_clip: float | None = leaf(default=None, doc="lower bound c > 1 on the objective of bad actions, in advantages", gt=1)
    vf_coef: float = leaf(default=0.5, doc="weight of the value loss", ge=0)
    ent_coef: float = leaf(default=0.01, doc="weight of the entropy bonus", ge=0)
    max_grad_norm: float | None = leaf(default=0.5, doc="clip the global gradient norm", gt=0)
    normalize_advantages: bool = static(default=True, doc="standardise the advantages of each minibatch")
    target_kl: float | None = leaf(
        default=None, doc="skip the rest of an iteration's updates once the policy has moved this far", gt=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_batch(self)

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.num_steps


class PPOParts(NamedTuple):
    """What a configuration stands for: built once, closed over by every function here."""

    config: PPOConfig
    env: Any
    env_params: Any
    policy: nn.Module
    head: ActionHead


class PPOState(struct.PyTreeNode):
    """The whole truth about a run. N environments; statistics are None where the config does not ask for them."""

    params: Any
    opt_state: Any
    obs_statistics: RunningStatistics | None
    reward_statistics: RewardStatistics | None
    env_state: Any
    obs: Any
    key: jax.Array
    eval_key: jax.Array
    iteration: jax.Array


class Rollout(NamedTuple):
    """T steps of N environments, with what the policy that took them thought. Arrays are `[T, N, ...]`."""

    steps: Steps
    log_prob: jax.Array
    value: jax.Array
    next_value: jax.Array


class Minibatch(NamedTuple):
    """B transitions, with advantages and value targets; `obs` is normalised already. Arrays are `[B, ...]`."""

    obs: Any
    action: jax.Array
    mask: jax.Array | None
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array


LossFn = Callable[[PPOParts, Any, Minibatch], tuple[jax.Array, Metrics]]


def ppo_parts(config: PPOConfig) -> PPOParts:
    """Build environment, policy and action head.

    Raises:
        ConfigError: environment or network do not fit the contract, or each other.
    """
    env, env_params = make_training_env(config)
    policy, head = build_policy(config, env, env_params)
    return PPOParts(config, env, env_params, policy, head)


def ppo_init(parts: PPOParts, key: jax.Array) -> PPOState:
    """The state before the first iteration."""
    params_key, env_key, eval_key, key = jax.random.split(as_key(key), 4)
    env_state, obs = initial_environments(parts.env, parts.env_params, env_key, parts.config.num_envs)
    params = parts.policy.init(params_key, obs)
    first_obs = jax.tree.map(lambda x: x[0], obs)
    return PPOState(
        params=params,
        opt_state=init_optimizer(adam(parts.config), params),
        obs_statistics=init_statistics(first_obs) if parts.config.normalize_observations else None,
        reward_statistics=init_reward_statistics(parts.config.num_envs) if parts.config.normalize_rewards else None,
        env_state=env_state,
        obs=obs,
        key=key,
        eval_key=eval_key,
        iteration=jnp.zeros((), jnp.int32),
    )


def ppo_collect(parts: PPOParts, state: PPOState) -> tuple[PPOState, Rollout]:
    """Step the environments `num_steps` times with the policy of `state`; values and log-probabilities in one pass after."""
    state, steps = policy_rollout(parts, state, state.params)
    outputs, value = policy_and_value(parts, state.params, seen(state, steps.obs))
    _, next_value = policy_and_value(parts, state.params, seen(state, steps.next_obs))
    log_prob = parts.head.distribution(outputs, steps.mask).log_prob(steps.action)
    chex.assert_equal_shape([log_prob, value, next_value, steps.reward])
    return state, Rollout(steps, log_prob, value, next_value)


def ppo_update(parts: PPOParts, state: PPOState, rollout: Rollout, loss_fn: LossFn | None = None) -> tuple[PPOState, Metrics]:
    """Improve the policy on a rollout: `num_epochs` passes of `num_minibatches` gradient steps.

    Args:
        parts: from `ppo_parts`.
        state: as `ppo_collect` returned it; its observation statistics are still those of the rollout.
        rollout: arrays `[T, N, ...]`.
        loss_fn: `(parts, params, minibatch) -> (loss, metrics)`, `ppo_loss` unless given.

    Returns:
        The next state, and metrics `train/...`, means over the gradient steps taken.
    """
    config, steps = parts.config, rollout.steps
    done = steps.terminated | steps.truncated
    reward, reward_statistics = steps.reward, state.reward_statistics
    if reward_statistics is not None:
        reward_statistics, reward = normalize_rewards(reward_statistics, reward, done, config.gamma)
    advantage = gae(reward, rollout.value, rollout.next_value, steps.terminated, steps.truncated, config.gamma, config.gae_lambda)
    target = advantage + rollout.value

    batch = Minibatch(seen(state, steps.obs), steps.action, steps.mask, rollout.log_prob, rollout.value, advantage, target)
    batch = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), batch)
    learning_rate = annealed(config, state.iteration)
    key, shuffle_key = jax.random.split(state.key)
    target_kl = config.target_kl
    params, opt_state, metrics = minibatch_steps(
        lambda params, minibatch: (loss_fn or ppo_loss)(parts, params, minibatch),
        adam(config),
        state.params,
        state.opt_state,
        batch,
        shuffle_key,
        num_epochs=config.num_epochs,
        num_minibatches=config.num_minibatches,
        learning_rate=learning_rate,
        stop=None if target_kl is None else lambda metrics: metrics["train/approx_kl"] > target_kl,
    )
    metrics |= {
        "train/value": jnp.mean(rollout.value),
        "train/explained_variance": 1.0 - jnp.var(target - rollout.value) / (jnp.var(target) + 1e-8),
        "train/learning_rate": learning_rate,
    }
    obs_statistics = state.obs_statistics
    if obs_statistics is not None:
        # Only now: statistics that moved between rollout and update would make the first ratio differ from 1.
        obs_statistics = update_statistics(obs_statistics, steps.obs)
    state = state.replace(
        params=params,
        opt_state=opt_state,
        obs_statistics=obs_statistics,
        reward_statistics=reward_statistics,
        key=key,
        iteration=state.iteration + 1,
    )
    return state, metrics


def ppo_loss(parts: PPOParts, params: Any, batch: Minibatch) -> tuple[jax.Array, Metrics]:
    """The clipped surrogate objective, value loss and entropy bonus of one minibatch (Schulman et al., 2017, eq. 7 and 9).

    With `dual_clip` c the objective of an action with negative advantage is at least c A (Ye et al., 2020, eq. 5).

    Returns:
        The loss f32 [], and metrics; `train/approx_kl` among them is what `target_kl` is compared with: the mean of
        (ratio - 1) - log ratio (Schulman, "Approximating KL divergence", 2020).
    """
    config = parts.config
    outputs, value = policy_and_value(parts, params, batch.obs)
    distribution = parts.head.distribution(outputs, batch.mask)
    log_ratio = distribution.log_prob(batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    advantage = batch.advantage
    if config.normalize_advantages:
        advantage = (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)

    objective = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - config.clip_eps, 1.0 + config.clip_eps) * advantage)
    if config.dual_clip is not None:
        objective = jnp.where(advantage < 0.0, jnp.maximum(objective, config.dual_clip * advantage), objective)
    policy_loss = -jnp.mean(objective)

    squared_error = jnp.square(value - batch.target)
    if config.vf_clip_eps is not None:
        clipped = batch.value + jnp.clip(value - batch.value, -config.vf_clip_eps, config.vf_clip_eps)
        squared_error = jnp.maximum(squared_error, jnp.square(clipped - batch.target))
    value_loss = 0.5 * jnp.mean(squared_error)

    entropy = jnp.mean(distribution.entropy())
    loss = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
    return loss, {
        "train/policy_loss": policy_loss,
        "train/value_loss": value_loss,
        "train/entropy": entropy,
        "train/approx_kl": jnp.mean(ratio - 1.0 - log_ratio),
        "train/clip_fraction": jnp.mean(jnp.abs(ratio - 1.0) > config.clip_eps, dtype=jnp.float32),
    }


def make_ppo(config: PPOConfig) -> Agent:
    """The PPO agent of a configuration."""
    parts = ppo_parts(config)

    def init(key: jax.Array) -> PPOState:
        return ppo_init(parts, key)

    def step(state: PPOState) -> tuple[PPOState, Metrics]:
        state, rollout = ppo_collect(parts, state)
        state, metrics = ppo_update(parts, state, rollout)
        return state, episode_metrics(rollout.steps) | metrics

    return Agent(init, step, policy_act(parts), config)


register_agent(PPOConfig, make_ppo)
