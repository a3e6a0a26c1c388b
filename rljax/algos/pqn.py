"""Parallelised Q-learning (Gallici et al., "Simplifying Deep Temporal Difference Learning", 2024): many environments and layer
normalisation in place of a replay buffer and a target network.

One iteration is `pqn_collect` then `pqn_update`; both are public, so a user can own the loop:

    parts = pqn_parts(config)
    state = pqn_init(parts, key)
    state, rollout = pqn_collect(parts, state)
    state, metrics = pqn_update(parts, state, rollout)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax.core import FrozenDict

from rljax.algos.common.config import EpsilonConfig, OnPolicyConfig
from rljax.algos.common.losses import huber_value_loss
from rljax.algos.common.optimizer import adam, annealed
from rljax.algos.common.q_learning import (
    QNetwork,
    check_discrete,
    epsilon_at,
    epsilon_greedy,
    exploring_noise,
    legal_max,
    make_q_network,
    q_act,
    q_values,
)
from rljax.algos.common.state import NormalizedState, after_update, initial_fields, normalize_obs, scaled_rewards
from rljax.collect.environments import make_training_env
from rljax.collect.minibatches import init_optimizer, minibatch_steps
from rljax.collect.resets import environment_noise
from rljax.collect.returns import q_lambda_returns
from rljax.collect.rollout import Steps, episode_metrics, rollout_scan
from rljax.collect.streams import flat_steps
from rljax.core.agent import Agent, Metrics, register_agent
from rljax.core.config import MIN_DIVISOR, algorithm, leaf, static
from rljax.nn.modules.classes import entry_of


@algorithm("pqn")
class PQNConfig(OnPolicyConfig, EpsilonConfig):
    """Parallelised Q-learning for discrete actions. The defaults are close to the authors' for small problems."""

    num_envs: int = static(default=32, doc="environments stepped in parallel", gt=0)
    num_steps: int = static(default=32, doc="steps per environment in one rollout", gt=0)
    num_epochs: int = static(default=2, doc="passes over each rollout", gt=0)
    num_minibatches: int = static(default=8, doc="minibatches per pass; must divide num_envs * num_steps", gt=0)
    network: Any = static(
        default=FrozenDict(),
        doc="{ hidden = [64, 64], activation = 'relu', layer_norm = true }, with encoder = 'cnn' for images, or a Module",
    )
    learning_rate: float = leaf(default=5e-4, doc="Adam step size", ge=0)
    adam_eps: float = leaf(default=1e-8, doc="Adam epsilon", ge=MIN_DIVISOR)
    max_grad_norm: float | None = leaf(default=10.0, doc="clip the global gradient norm", gt=0)
    huber_delta: float | None = leaf(
        default=None,
        doc="the loss is linear for errors beyond this (Huber), which limits the effect of rare failures; none: squared loss",
        gt=0,
    )
    q_lambda: float = leaf(default=0.65, doc="trace decay of the returns; 0 is one-step Q-learning", ge=0, le=1)


class PQNParts(NamedTuple):
    """Environment and network of a configuration, built once."""

    config: PQNConfig
    env: Any
    env_params: Any
    network: QNetwork


class PQNState(NormalizedState, kw_only=True):
    """State of a PQN run."""


class PQNRollout(NamedTuple):
    """T steps of N environments, and the highest Q of a legal action at `steps.next_obs`, f32 `[T, N]`."""

    steps: Steps
    next_q_max: jax.Array


class PQNMinibatch(NamedTuple):
    """B transitions with targets of their values; `obs` is normalised already. Arrays are `[B, ...]`."""

    obs: Any
    action: jax.Array
    target: jax.Array


LossFn = Callable[[PQNParts, Any, PQNMinibatch], tuple[jax.Array, Metrics]]


def pqn_parts(config: PQNConfig) -> PQNParts:
    """Build environment and network.

    Raises:
        ConfigError: environment or network do not fit the algorithm, or each other.
    """
    env, env_params = make_training_env(config)
    num_actions = check_discrete("PQN", env, env_params)
    obs, _ = jax.eval_shape(lambda: env.reset_env(jax.random.key(0), env_params))
    network = make_q_network(config.network, num_actions, obs, config.dtype, layer_norm=True)
    return PQNParts(config, env, env_params, network)


def pqn_init(parts: PQNParts, key: jax.Array) -> PQNState:
    """The state before the first iteration."""
    params_key, fields = initial_fields(parts.config, parts.env, parts.env_params, key)
    params = parts.network.module.init(params_key, fields["obs"])
    return PQNState(
        params=params,
        opt_state=init_optimizer(adam(parts.config), params),
        **fields,
    )


def pqn_collect(parts: PQNParts, state: PQNState) -> tuple[PQNState, PQNRollout]:
    """Step the environments `num_steps` times, epsilon-greedily; the values of the next observations in one pass after."""
    config = parts.config
    key, action_key, env_key = jax.random.split(state.key, 3)

    def act(obs: Any, _: None, mask: jax.Array | None, noise: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        numbers, epsilon = noise
        return epsilon_greedy(q_values(parts.network, state.params, normalize_obs(state, obs)), epsilon, numbers, mask), None

    numbers = exploring_noise(action_key, (config.num_steps, config.num_envs))
    env_state, obs, _, steps = rollout_scan(
        parts.env,
        parts.env_params,
        act,
        lambda action: action,
        state.env_state,
        state.obs,
        (numbers, epsilon_at(config, state.iteration, jnp.arange(config.num_steps))),
        environment_noise(parts.env, parts.env_params, env_key, config.num_steps, config.num_envs, config),
    )
    next_q_max = legal_max(q_values(parts.network, state.params, normalize_obs(state, steps.next_obs)), steps.next_mask)
    chex.assert_equal_shape([next_q_max, steps.reward])
    return state.replace(key=key, env_state=env_state, obs=obs), PQNRollout(steps, next_q_max)


def pqn_update(parts: PQNParts, state: PQNState, rollout: PQNRollout, loss_fn: LossFn | None = None) -> tuple[PQNState, Metrics]:
    """Fit Q to the Q(lambda) returns of a rollout: `num_epochs` passes of `num_minibatches` gradient steps.

    Args:
        parts: from `pqn_parts`.
        state: as `pqn_collect` returned it; its observation statistics are still those of the rollout.
        rollout: arrays `[T, N, ...]`.
        loss_fn: `(parts, params, minibatch) -> (loss, metrics)`, `pqn_loss` unless given.

    Returns:
        The next state, and metrics `train/...`, means over the gradient steps.
    """
    config, steps = parts.config, rollout.steps
    reward_statistics, reward = scaled_rewards(state, steps, config.gamma)
    target = q_lambda_returns(reward, rollout.next_q_max, steps.terminated, steps.truncated, config.gamma, config.q_lambda)

    batch = PQNMinibatch(normalize_obs(state, steps.obs), steps.action, target)
    batch = flat_steps(batch)
    learning_rate = annealed(config, state.iteration)
    key, shuffle_key = jax.random.split(state.key)
    params, opt_state, metrics = minibatch_steps(
        lambda params, minibatch: (loss_fn or pqn_loss)(parts, params, minibatch),
        adam(config),
        state.params,
        state.opt_state,
        batch,
        shuffle_key,
        num_epochs=config.num_epochs,
        num_minibatches=config.num_minibatches,
        learning_rate=learning_rate,
    )
    metrics |= {
        "train/epsilon": epsilon_at(config, state.iteration, jnp.int32(config.num_steps)),
        "train/learning_rate": learning_rate,
    }
    state = after_update(state, steps, params=params, opt_state=opt_state, reward_statistics=reward_statistics, key=key)
    return state, metrics


def pqn_loss(parts: PQNParts, params: Any, batch: PQNMinibatch) -> tuple[jax.Array, Metrics]:
    """Half the mean squared error of the values of the actions taken (Gallici et al., 2024, algorithm 1), or their Huber loss.

    After long success errors are tiny, and so is Adam's scale. One failure, an error as large as a return, then moves the weights
    far, in few steps and at any learning rate; `huber_delta` bounds its gradient.

    Returns:
        The loss f32 [], and metrics.
    """
    q = entry_of(q_values(parts.network, params, batch.obs), batch.action)
    error = q - batch.target
    loss = jnp.mean(huber_value_loss(q, batch.target, parts.config.huber_delta))
    return loss, {"train/value_loss": loss, "train/value": jnp.mean(q), "train/td_error": jnp.mean(jnp.abs(error))}


def make_pqn(config: PQNConfig, loss_fn: LossFn | None = None) -> Agent:
    """The PQN agent of a configuration, with a loss in place of `pqn_loss` where one is given."""
    parts = pqn_parts(config)

    def init(key: jax.Array) -> PQNState:
        return pqn_init(parts, key)

    def step(state: PQNState) -> tuple[PQNState, Metrics]:
        state, rollout = pqn_collect(parts, state)
        state, metrics = pqn_update(parts, state, rollout, loss_fn)
        return state, episode_metrics(rollout.steps) | metrics

    return Agent(init, step, q_act(parts.network, config.epsilon_end), config)


register_agent(PQNConfig, make_pqn, takes_loss=True)
