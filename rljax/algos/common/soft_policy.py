"""Policy and critics of soft actor-critic, for continuous and for discrete actions.

The difference between the two variants is only in this file. Continuous actions (Haarnoja et al., "Soft actor-critic algorithms
and applications", 2018) are the tanh of a Gaussian, and an expectation is one sample whose gradient goes through the action.
Discrete ones (Christodoulou, "Soft actor-critic for discrete action settings", 2019) have exact sums over all legal actions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.core.environments.spaces import Box, Discrete, as_space
from rljax.core.errors import ConfigError
from rljax.nn.modules.classes import entry_of
from rljax.nn.modules.layers import product_dtype
from rljax.nn.networks import make_feed_forward, one_batch_axis
from rljax.nn.outputs.actions import ActionHead, is_bounded, soft_head
from rljax.nn.shapes import network_shapes


class SoftPolicy(NamedTuple):
    """A policy and its critics, without their parameters.

    Attributes:
        space: action space; its `flat_dim`, A in shapes, is the number of actions of a Discrete, or the dimensions of a Box.
        head: from the actor's outputs to actions.
        actor: `obs [B, *obs_shape] -> outputs [B, A]`, logits; for a Box `[B, 2 A]`, means and log standard deviations.
        critic: `obs -> [B, A]`; for a Box `(obs, action [B, A]) -> [B, 1]`.
        obs_ndims: number of axes of one observation, per leaf in tree order.
    """

    space: Box | Discrete
    head: ActionHead
    actor: nn.Module
    critic: nn.Module
    obs_ndims: tuple[int, ...]


class Choice(NamedTuple):
    """An action as the buffer keeps it, an index or f32 `[..., A]` in [-1, 1], and what was legal, bool `[..., A]` or None.

    The policy's loss needs the mask of the observation, and a `Transition` has that of the next one only.
    """

    action: jax.Array
    mask: jax.Array | None


def check_soft_space(env: Any, env_params: Any, algorithm: str = "SAC") -> Box | Discrete:
    """The action space of an environment; `algorithm` is named in the message.

    Raises:
        ConfigError: it is neither Discrete nor a bounded Box.
    """
    with jax.ensure_compile_time_eval():  # bounds that an environment computes are numbers under jit too
        space = as_space(env.action_space(env_params))
    if not isinstance(space, (Box, Discrete)):
        raise ConfigError(
            f"env = {env.name}: {algorithm} needs a Box or Discrete action space, not a {type(space).__name__}; "
            "PPO takes every space"
        )
    if isinstance(space, Box) and not is_bounded(space):
        raise ConfigError(f"env = {env.name}: {algorithm} needs actions with finite bounds, not {space}; PPO takes any Box")
    return space


def make_soft_policy(
    spec: Any, space: Box | Discrete, obs: Any, head: ActionHead | None = None, dtype: str = "float32"
) -> SoftPolicy:
    """The networks that a config's fields `network` and `dtype` describe; `head` is another one than `soft_head(space)`.

    Raises:
        ConfigError: the table is wrong, or the networks do not fit the space or observations of the shapes of `obs`.
    """
    discrete = isinstance(space, Discrete)
    if isinstance(spec, nn.Module) and not discrete:
        name = type(spec).__name__
        raise ConfigError(f"network = {name}: a Module cannot be policy and critic of continuous actions both; give a table")
    head = soft_head(space) if head is None else head
    # A small gain: the first policy is nearly uniform, or nearly the tanh of a standard normal.
    actor = make_feed_forward(spec, head.num_outputs, head_gain=head.policy_gain, dtype=product_dtype(dtype))
    critic = make_feed_forward(spec, space.flat_dim if discrete else 1, dtype=product_dtype(dtype))
    policy = SoftPolicy(space, head, actor, critic, tuple(x.ndim for x in jax.tree.leaves(obs)))
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), obs)
    outputs, _ = network_shapes(actor, actor.init_with_output, actor.apply, one)
    if jax.tree.map(lambda x: x.shape, outputs) != (1, head.num_outputs):
        raise ConfigError(
            f"network = {type(actor).__name__}: expected outputs [B, {head.num_outputs}], one for each action, got {outputs} "
            "for B = 1"
        )
    return policy


def init_soft_policy(policy: SoftPolicy, key: jax.Array, obs: Any) -> dict[str, Any]:
    """Parameters `actor`, and `critic` of both critics stacked, leaves `[2, ...]`; for observations `[B, *obs_shape]`."""
    actor_key, critic_key = jax.random.split(key)
    batch = jax.tree.leaves(obs)[0].shape[0]
    action = (jnp.zeros((batch, policy.space.flat_dim)),) if isinstance(policy.space, Box) else ()
    critics = jax.vmap(lambda key: policy.critic.init(key, obs, *action))(jax.random.split(critic_key))
    return {"actor": policy.actor.init(actor_key, obs), "critic": critics}


def policy_outputs(policy: SoftPolicy, params: Any, obs: Any) -> jax.Array:
    """The outputs of the actor, f32 `[..., A]` or `[..., 2 A]`, at normalised observations `[..., *obs_shape]`."""
    obs, batch = one_batch_axis(obs, policy.obs_ndims)
    return jnp.asarray(policy.actor.apply(params["actor"], obs)).reshape(*batch, -1)


def critic_values(policy: SoftPolicy, critics: Any, obs: Any, *action: jax.Array) -> jax.Array:
    """Q of both critics f32 `[2, B]` of an action f32 `[B, A]` in [-1, 1]; of a Discrete `[2, B, A]`, of every action."""
    q = jax.vmap(lambda params: jnp.asarray(policy.critic.apply(params, obs, *action)))(critics)
    return q[..., 0] if action else q


def q_of_choice(policy: SoftPolicy, critics: Any, obs: Any, choice: Choice) -> jax.Array:
    """Q of both critics of the actions taken, f32 `[2, B]`."""
    if isinstance(policy.space, Box):
        return critic_values(policy, critics, obs, choice.action)
    return entry_of(critic_values(policy, critics, obs), choice.action)


def soft_value(
    policy: SoftPolicy, params: Any, critics: Any, obs: Any, mask: jax.Array | None, noise: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """`V(s) = E_a[min(Q_1, Q_2)(s, a)] + alpha H(s)` and the entropy H, each f32 `[B]`; no gradient for the temperature alpha.

    For a Box of one action, with its `-log pi(a|s)` in place of H (Haarnoja et al., 2018, eq. 3); for a Discrete of all legal
    actions (Christodoulou, 2019, eq. 10).

    Args:
        policy: from `make_soft_policy`.
        params: tree with `actor` and `log_alpha`, f32 [].
        critics: parameters of both critics.
        obs: normalised, `[B, *obs_shape]`.
        mask: legal actions bool `[B, A]`; None: all.
        noise: standard normal f32 `[B, A]`; None for a Discrete.
    """
    distribution = policy.head.distribution(policy_outputs(policy, params, obs), mask)
    if isinstance(policy.space, Box):
        assert noise is not None
        action, log_prob = distribution.sample_and_log_prob(noise)
        value, entropy = jnp.min(critic_values(policy, critics, obs, action), axis=0), -log_prob
    else:
        log_prob = distribution.logits
        probability = jnp.exp(log_prob)
        # Of an illegal action the logarithm is hardly finite: 0 times it, times a temperature, may be NaN.
        log_prob = log_prob if mask is None else jnp.where(mask, log_prob, 0.0)
        value = jnp.sum(probability * jnp.min(critic_values(policy, critics, obs), axis=0), axis=-1)
        entropy = -jnp.sum(probability * log_prob, axis=-1)
    return value + jnp.exp(jax.lax.stop_gradient(params["log_alpha"])) * entropy, entropy


def uniform_action(policy: SoftPolicy, noise: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Any legal action, each as likely, from the noise of the policy's head."""
    if isinstance(policy.space, Discrete):
        return policy.head.sample(policy.head.distribution(jnp.zeros_like(noise), mask), noise)
    return jax.lax.erf(noise * math.sqrt(0.5))
