"""What the policy gradient algorithms share: a policy with its action head, the rollout of it, and `Agent.act`."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax.errors import FlaxError

from rljax.algos.off_policy import seen
from rljax.collect.rollout import Steps, environment_noise, rollout_scan
from rljax.core.agent import Act
from rljax.core.errors import ConfigError
from rljax.nn.distributions import ActionHead, action_head
from rljax.nn.networks import Policy, make_network


class PolicyFields(Protocol):
    """Fields of a configuration that say what the policy is and how far a rollout goes."""

    @property
    def network(self) -> Any: ...
    @property
    def log_std(self) -> str: ...
    @property
    def num_envs(self) -> int: ...
    @property
    def num_steps(self) -> int: ...


class PolicyParts(Protocol):
    """What the parts of an algorithm with a policy have in common."""

    @property
    def config(self) -> PolicyFields: ...
    @property
    def env(self) -> Any: ...
    @property
    def env_params(self) -> Any: ...
    @property
    def policy(self) -> Any: ...
    @property
    def head(self) -> ActionHead: ...


def build_policy(config: PolicyFields, env: Any, env_params: Any) -> tuple[Policy, ActionHead]:
    """The policy of a configuration for an environment, and its action head.

    Raises:
        ConfigError: the network does not fit the environment, or the action space has no policy.
    """
    head = action_head(env.action_space(env_params), config.log_std)
    obs, _ = jax.eval_shape(lambda: env.reset_env(jax.random.key(0), env_params))
    obs_ndims = tuple(x.ndim for x in jax.tree.leaves(obs))
    policy = Policy(make_network(config.network, head.num_outputs), obs_ndims, head.num_log_std)
    _check_policy(policy, head, obs)
    return policy, head


def _check_policy(policy: Policy, head: ActionHead, obs: Any) -> None:
    """One line for a user's network that puts out the wrong shapes."""
    zeros = jax.tree.map(lambda x: jnp.zeros((3, *x.shape), x.dtype), obs)
    name = type(policy.network).__name__
    try:
        result, variables = jax.eval_shape(lambda x: policy.network.init_with_output(jax.random.key(0), x), zeros)
    except (TypeError, ValueError, FlaxError) as error:
        raise ConfigError(f"network = {name}: cannot be applied to observations of this environment: {error}") from error
    if set(variables) - {"params"}:
        raise ConfigError(f"network = {name}: expected parameters only, but it has variables of {sorted(variables)}")
    shapes = jax.tree.map(lambda x: x.shape, result)
    expected = ((3, head.num_outputs), (3,))
    if shapes != expected:
        raise ConfigError(
            f"network = {name}: expected (outputs [B, {head.num_outputs}], value [B]) for this action "
            f"space; 3 observations gave shapes {shapes}, not {expected}"
        )


def policy_and_value(parts: PolicyParts, params: Any, obs: Any) -> tuple[jax.Array, jax.Array]:
    """`(outputs [..., head.num_outputs], value [...])` of normalised observations `[..., *obs_shape]`."""
    outputs, value = parts.policy.apply(params, obs)
    return jnp.asarray(outputs), jnp.asarray(value)


def policy_rollout(parts: PolicyParts, state: Any, params: Any) -> tuple[Any, Steps]:
    """Step the environments of `state` `num_steps` times with the policy of `params`.

    Returns:
        The state with environments and key moved on, and what happened, `[T, N, ...]`.
    """
    config, head = parts.config, parts.head
    key, noise_key, env_key = jax.random.split(state.key, 3)

    def act(obs: Any, mask: jax.Array | None, noise: jax.Array) -> jax.Array:
        outputs, _ = policy_and_value(parts, params, seen(state, obs))
        return head.sample(head.distribution(outputs, mask), noise)

    env_state, obs, steps = rollout_scan(
        parts.env,
        parts.env_params,
        act,
        head.to_env,
        state.env_state,
        state.obs,
        head.noise(noise_key, (config.num_steps, config.num_envs)),
        environment_noise(parts.env, parts.env_params, env_key, config.num_steps, config.num_envs),
    )
    return state.replace(key=key, env_state=env_state, obs=obs), steps


def policy_act(parts: PolicyParts) -> Act:
    """`Agent.act` for states with `params` and `obs_statistics`: the mode, or a sample."""

    def act(
        state: Any, obs: Any, carry: Any, key: jax.Array, deterministic: bool = False, mask: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        outputs, value = policy_and_value(parts, state.params, seen(state, obs))
        distribution = parts.head.distribution(outputs, mask)
        action = distribution.mode() if deterministic else parts.head.sample(distribution, parts.head.noise(key, value.shape))
        return parts.head.to_env(action), carry

    return act
