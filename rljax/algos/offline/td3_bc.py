"""TD3+BC: Fujimoto and Gu, "A minimalist approach to offline reinforcement learning" (2021).

TD3 (Fujimoto et al., "Addressing function approximation error in actor-critic methods", 2018) with one more term: the policy
stays near the recorded actions. `td3_bc_update` is public, so a user can own the loop:

    parts = td3_bc_parts(config)
    dataset = rljax.open_dataset(path)
    batches = dataset.batches(config.batch_size)
    state = td3_bc_init(parts, key).replace(obs_statistics=rljax.observation_statistics(dataset))
    noise = td3_bc_noise(parts, key, ())
    state, metrics = td3_bc_update(parts, state, dataset_batch(parts, state, batches.read(0)), noise)

With `anneal_lr`, it adds 1 to `state.iteration` after the gradient steps of an iteration.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rljax.algos.common.off_policy import update_target
from rljax.algos.common.optimizer import adam, annealed
from rljax.algos.common.soft_policy import critic_values, policy_outputs, q_of_choice
from rljax.algos.common.state import normalize_obs
from rljax.algos.offline.parts import OfflineConfig, OfflineParts, OfflineState, actor_critic_parts, critics_loss
from rljax.algos.offline.regression import init_actor_critic
from rljax.algos.offline.training import Learner, offline_agent
from rljax.collect.minibatches import gradient_step, init_optimizer
from rljax.collect.replay import NStep
from rljax.core.agent import Agent, Metrics, register_agent
from rljax.core.config import algorithm, leaf, static
from rljax.core.environments.environment import tree_where
from rljax.core.environments.spaces import Box
from rljax.core.errors import ConfigError
from rljax.core.keys import draw
from rljax.nn.outputs.actions import ActionHead, dreamer_head


@algorithm("td3_bc")
class TD3BCConfig(OfflineConfig):
    """TD3 with behavioural cloning, for continuous actions. Its authors normalise observations, as is the default here."""

    normalize_observations: bool = static(
        default=True, doc="standardise observations by mean and variance of the dataset and clip them to [-10, 10]"
    )
    alpha: float = leaf(
        default=2.5, doc="weight of the values in the policy's loss, beside the distance to recorded actions", ge=0
    )
    target_noise: float = leaf(default=0.2, doc="standard deviation of the noise of target actions, in units of [-1, 1]", ge=0)
    target_noise_clip: float = leaf(default=0.5, doc="largest noise of target actions", ge=0)
    exploration_noise: float = leaf(default=0.1, doc="standard deviation of the noise of sampled actions", ge=0)
    policy_delay: int = static(default=2, doc="number of gradient steps of the critics for one of the policy", gt=0)
    target_update_every: int = static(default=2, doc="number of gradient steps between updates of the target networks", gt=0)


def td3_bc_parts(config: TD3BCConfig) -> OfflineParts:
    """Build environment and networks.

    Raises:
        ConfigError: environment or network do not fit the algorithm or each other, or the buffer cannot fit the device.
    """
    return actor_critic_parts(config, "TD3+BC", _head)


def _head(space: Any) -> ActionHead:
    if not isinstance(space, Box):
        raise ConfigError(f"TD3+BC needs a Box of actions, not a {type(space).__name__}; CQL, IQL and AWAC take a Discrete")
    # The actor puts out the action itself, before its tanh.
    return dreamer_head(space)._replace(num_outputs=space.flat_dim)


def td3_bc_init(parts: OfflineParts, key: jax.Array) -> OfflineState:
    """Return the state before the first iteration; `params` are `actor` and `critic` (both critics, stacked)."""
    state = init_actor_critic(parts, key, targets=("actor", "critic"))
    optimizer = adam(parts.config)
    # The policy's steps are fewer, so each network has an optimiser of its own.
    return state.replace(opt_state={name: init_optimizer(optimizer, params) for name, params in state.params.items()})


def td3_bc_noise(parts: OfflineParts, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw the noise of target actions, standard normal f32 `[*shape, batch_size, A]`."""
    return draw(jax.random.normal, key, (*shape, parts.config.batch_size, parts.policy.space.flat_dim))


def td3_bc_update(parts: OfflineParts, state: Any, batch: NStep, noise: jax.Array) -> tuple[Any, Metrics]:
    """Take a gradient step of the critics on a batch `[B, ...]`, and where it is due one of the policy; move the targets.

    Returns:
        The next state, and metrics `train/...`.
    """
    config, updates, optimizer = parts.config, state.updates + 1, adam(parts.config)
    rate = annealed(config, state.iteration)
    params, opt_state = state.params, state.opt_state
    target = td3_bc_target(parts, state.target_params, batch, noise)
    critic, critic_opt, metrics = gradient_step(
        lambda critic: td3_bc_critic_loss(parts, critic, batch, target), optimizer, params["critic"], opt_state["critic"], rate
    )
    actor, actor_opt, of_actor = gradient_step(
        lambda actor: td3_bc_actor_loss(parts, {"actor": actor, "critic": critic}, batch),
        optimizer,
        params["actor"],
        opt_state["actor"],
        rate,
    )
    due = updates % config.policy_delay == 0
    actor, actor_opt = tree_where(due, (actor, actor_opt), (params["actor"], opt_state["actor"]))
    params = {"actor": actor, "critic": critic}
    state = state.replace(
        params=params,
        target_params=update_target(config, state.target_params, params, updates),
        opt_state={"actor": actor_opt, "critic": critic_opt},
        updates=updates,
    )
    return state, of_actor | metrics


def td3_bc_target(parts: OfflineParts, target_params: Any, batch: NStep, noise: jax.Array) -> jax.Array:
    """Return `r + discount min Q(s', pi(s') + noise)` of the target networks, f32 `[B]`, with clipped noise (2018, eq. 14)."""
    config = parts.config
    smoothing = jnp.clip(config.target_noise * noise, -config.target_noise_clip, config.target_noise_clip)
    action = jnp.clip(_action(parts, target_params, batch.next_obs) + smoothing, -1.0, 1.0)
    next_q = jnp.min(critic_values(parts.policy, target_params["critic"], batch.next_obs, action), axis=0)
    return jax.lax.stop_gradient(batch.reward + batch.discount * next_q)


def td3_bc_critic_loss(parts: OfflineParts, critics: Any, batch: NStep, target: jax.Array) -> tuple[jax.Array, Metrics]:
    """Return half the squared errors of both critics, added up, f32 [], and metrics."""
    q = q_of_choice(parts.policy, critics, batch.obs, batch.action)
    loss = critics_loss(q, target)
    return loss, {"train/value_loss": loss, "train/value": jnp.mean(q)}


def td3_bc_actor_loss(parts: OfflineParts, params: Any, batch: NStep) -> tuple[jax.Array, Metrics]:
    """Return `-lambda Q_1(s, pi(s)) + |pi(s) - a|^2` with `lambda = alpha / mean |Q_1|`, f32 [] (2021, eq. 3 and 5), and metrics.

    The distance is a mean over the A dimensions, as in the authors' code; the critics are constants.
    """
    action = _action(parts, params, batch.obs)
    q = critic_values(parts.policy, jax.lax.stop_gradient(params["critic"]), batch.obs, action)[0]
    weight = parts.config.alpha / jnp.maximum(jax.lax.stop_gradient(jnp.mean(jnp.abs(q))), 1e-8)
    distance = jnp.mean(jnp.square(action - batch.action.action))
    loss = distance - weight * jnp.mean(q)
    return loss, {"train/policy_loss": loss, "train/bc_loss": distance}


def _action(parts: OfflineParts, params: Any, obs: Any) -> jax.Array:
    """Return the policy's action, f32 `[..., A]`, in [-1, 1]."""
    return jnp.tanh(policy_outputs(parts.policy, params, obs))


def make_td3_bc(config: TD3BCConfig) -> Agent:
    """The agent of a configuration."""
    parts = td3_bc_parts(config)
    head = parts.policy.head

    def explore(params: Any, obs: Any, _: jax.Array | None, noise: jax.Array) -> jax.Array:
        return jnp.clip(_action(parts, params, obs) + config.exploration_noise * noise, -1.0, 1.0)

    def act(
        state: Any, obs: Any, carry: Any, key: jax.Array, deterministic: bool = False, mask: jax.Array | None = None
    ) -> tuple[Any, Any]:
        seen = normalize_obs(state, obs)
        action = _action(parts, state.params, seen)
        if not deterministic:
            action = explore(state.params, seen, mask, head.noise(key, action.shape[:-1]))
        return head.to_env(action), carry

    learner = Learner(
        init=lambda key: td3_bc_init(parts, key),
        update=lambda *args: td3_bc_update(parts, *args),
        explore=explore,
        to_env=head.to_env,
        act_noise=head.noise,
        update_noise=lambda key, shape: td3_bc_noise(parts, key, shape),
        act=act,
    )
    return offline_agent(parts, learner)


register_agent(TD3BCConfig, make_td3_bc)
