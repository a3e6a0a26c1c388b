"""Conservative Q-learning for discrete actions: Kumar et al., "Conservative Q-learning for offline reinforcement learning"
(2020).

Deep Q-learning with a loss that lowers the values of actions that the dataset lacks, so that none of them seems good because
nobody tried it. `cql_update` is public, so a user can own the loop:

    parts = cql_parts(config)
    state = cql_init(parts, key)
    batches = rljax.open_dataset(path).batches(config.batch_size)
    state, metrics = cql_update(parts, state, dataset_batch(parts, state, batches.read(0)))

With `anneal_lr`, it adds 1 to `state.iteration` after the gradient steps of an iteration.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rljax.algos.common.config import WIDE
from rljax.algos.common.losses import label_smoothed_cross_entropy
from rljax.algos.common.off_policy import check_replay_memory, transition_example
from rljax.algos.common.q_learning import (
    check_discrete,
    dqn_target,
    epsilon_greedy,
    exploring_noise,
    make_q_network,
    q_act,
    q_values,
)
from rljax.algos.offline.parts import OfflineConfig, OfflineParts, OfflineState, learn, offline_state, step_example
from rljax.algos.offline.training import Learner, no_noise, offline_agent
from rljax.collect.environments import make_training_env
from rljax.collect.replay import NStep
from rljax.core.agent import Agent, Metrics, register_agent
from rljax.core.config import algorithm, leaf, static
from rljax.core.environments.spaces import Discrete
from rljax.nn.modules.classes import entry_of
from rljax.nn.outputs.actions import soft_head


@algorithm("cql")
class CQLConfig(OfflineConfig):
    """Conservative Q-learning for discrete actions."""

    network: Any = static(
        default=WIDE,
        doc="{ hidden = [256, 256], activation = 'relu', layer_norm = false }, with encoder = 'cnn' for images, or a Module",
    )
    alpha: float = leaf(
        default=1.0, doc="weight of the loss that lowers the values of other actions than the recorded ones", ge=0
    )
    double: bool = static(
        default=True, doc="double Q-learning: choose the next action by the online network and evaluate it by the target network"
    )
    epsilon: float = leaf(default=0.05, doc="probability of a random action when actions are sampled, as online", ge=0, le=1)


def cql_parts(config: CQLConfig) -> OfflineParts:
    """Build environment and network.

    Raises:
        ConfigError: environment or network do not fit the algorithm or each other, or the buffer cannot fit the device.
    """
    env, env_params = make_training_env(config)
    num_actions = check_discrete("CQL", env, env_params)
    if config.online:
        check_replay_memory(config, step_example(env, env_params, soft_head(Discrete(num_actions))))
    obs = transition_example(env, env_params, None).obs
    return OfflineParts(config, env, env_params, make_q_network(config.network, num_actions, obs, config.dtype))


def cql_init(parts: OfflineParts, key: jax.Array) -> OfflineState:
    """Return the state before the first iteration; `params` are those of the network's module."""
    network = parts.policy
    head = soft_head(Discrete(network.num_actions))
    return offline_state(parts, key, lambda key, obs: dict(network.module.init(key, obs)), ("params",), head)


def cql_update(parts: OfflineParts, state: Any, batch: NStep, _: None = None) -> tuple[Any, Metrics]:
    """Take one gradient step on a batch `[B, ...]`, and move the target network.

    Returns:
        The next state, and metrics `train/...`.
    """
    network = parts.policy
    next_q = q_values(network, state.target_params, batch.next_obs)
    chooser_q = q_values(network, state.params, batch.next_obs) if parts.config.double else next_q
    target = dqn_target(batch, next_q, chooser_q)
    return learn(parts, state, lambda params: cql_loss(parts, params, batch, target))


def cql_loss(parts: OfflineParts, params: Any, batch: NStep, target: jax.Array) -> tuple[jax.Array, Metrics]:
    """Return half the squared error towards `target`, f32 `[B]`, plus `alpha (logsumexp_a Q(s, a) - Q(s, a_recorded))` over legal
    actions, f32 [] (eq. 4), and metrics.
    """
    q = q_values(parts.policy, params, batch.obs)
    # With values as logits, that is the cross-entropy to the recorded action.
    conservative_loss = jnp.mean(label_smoothed_cross_entropy(q, batch.action.action, legal=batch.action.mask))
    taken = entry_of(q, batch.action.action)
    value_loss = 0.5 * jnp.mean(jnp.square(taken - target))
    return value_loss + parts.config.alpha * conservative_loss, {
        "train/value_loss": value_loss,
        "train/conservative_loss": conservative_loss,
        "train/td_error": jnp.mean(jnp.abs(taken - target)),
        "train/value": jnp.mean(taken),
    }


def make_cql(config: CQLConfig) -> Agent:
    """The agent of a configuration."""
    parts = cql_parts(config)
    network = parts.policy

    def explore(params: Any, obs: Any, mask: jax.Array | None, noise: jax.Array) -> jax.Array:
        return epsilon_greedy(q_values(network, params, obs), config.epsilon, noise, mask)

    learner = Learner(
        init=lambda key: cql_init(parts, key),
        update=lambda *args: cql_update(parts, *args),
        explore=explore,
        to_env=lambda action: action,
        act_noise=exploring_noise,
        update_noise=no_noise,
        act=q_act(network, config.epsilon),
    )
    return offline_agent(parts, learner)


register_agent(CQLConfig, make_cql)
