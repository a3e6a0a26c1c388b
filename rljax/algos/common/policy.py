"""Parts of the policy gradient algorithms: the policy with its action head, its rollout, and `Agent.act`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax.errors import FlaxError

from rljax.algos.common.cell_scan import scan_cell
from rljax.algos.common.config import OnPolicyConfig
from rljax.algos.common.state import normalize_obs
from rljax.collect.resets import environment_noise
from rljax.collect.rollout import Steps, reset_carry, rollout_scan
from rljax.collect.streams import of_seat, with_seat
from rljax.core.agent import Act
from rljax.core.environments.environment import action_mask_of
from rljax.core.environments.spaces import Box, Discrete, as_space, head_sizes
from rljax.core.environments.wrappers import join_privileged, split_privileged
from rljax.core.errors import ConfigError, shown
from rljax.moved import moved_names
from rljax.nn.actor_critic import make_network
from rljax.nn.cells import num_cells
from rljax.nn.modules.layers import product_dtype
from rljax.nn.outputs.actions import ActionHead, action_head
from rljax.nn.outputs.composite import composite_head
from rljax.nn.outputs.pointed import Pointed, pointed_head
from rljax.nn.policy import Policy
from rljax.nn.shapes import network_shapes


class HasPolicy(Protocol):
    """Parts with a `Policy`."""

    @property
    def policy(self) -> Any: ...


class PolicyParts(HasPolicy, Protocol):
    """Fields that the parts of every algorithm with a policy have."""

    @property
    def config(self) -> OnPolicyConfig: ...
    @property
    def env(self) -> Any: ...
    @property
    def env_params(self) -> Any: ...
    @property
    def head(self) -> ActionHead: ...


def build_policy(
    network: Any,
    env: Any,
    env_params: Any,
    *,
    action_heads: str = "independent",
    log_std: str = "parameter",
    num_values: int = 1,
    dtype: str = "float32",
) -> tuple[Policy, ActionHead]:
    """Build the policy of a `network` table or module for an environment, and its action head.

    Args:
        network: field of a configuration.
        env: the environment.
        env_params: its parameters.
        action_heads: "independent" or "autoregressive", for actions of several heads.
        log_std: where a Gaussian policy's log_std comes from, "parameter" or "network".
        num_values: K, the number of value heads.
        dtype: dtype of products, that field of a configuration.

    Raises:
        ConfigError: the network does not fit the environment, or the action space has no policy.
    """
    space = as_space(env.action_space(env_params))
    independent = action_heads == "independent"
    if not independent and (isinstance(space, Discrete) or head_sizes(space) is None):
        raise ConfigError(f"action_heads = 'autoregressive': the actions of {env.name} do not have heads; use 'independent'")
    if log_std == "network" and not isinstance(space, Box):
        raise ConfigError(f"log_std = 'network': the actions of {env.name} are not continuous; use 'parameter'")
    # Of heads that depend on each other, the first one points, and the others see at what.
    points = not independent and isinstance(network, Mapping) and network.get("pointer") is True
    head = action_head(space, log_std) if independent else pointed_head(space) if points else composite_head(space)
    obs, _ = jax.eval_shape(lambda: env.reset_env(jax.random.key(0), env_params))
    check_heads(action_heads, env, env_params)
    if points and isinstance(obs, Mapping) and "entities" in obs:
        _check_points(head_sizes(space) or (), obs["entities"].shape[0])
    module = make_network(network, head.num_outputs, num_values, head.policy_gain, points, product_dtype(dtype), num_cells(obs))
    policy = Policy(module, tuple(x.ndim for x in jax.tree.leaves(obs)), head.num_log_std, head.module)
    _check_policy(policy, head, obs, num_values)
    return policy, head


def check_heads(action_heads: str, env: Any, env_params: Any) -> None:
    """Refuse independent heads where what is legal depends on the actions of earlier heads."""
    state = jax.eval_shape(lambda: env.reset_env(jax.random.key(0), env_params))[1]
    mask = jax.eval_shape(lambda s: action_mask_of(env, s, env_params), state)
    if mask is not None and mask.ndim > 1 and action_heads == "independent":
        raise ConfigError(
            f"action_heads = 'independent': what is legal in {env.name} depends on the actions of earlier heads"
            "; expected 'autoregressive'"
        )


def _check_points(sizes: tuple[int, ...], entities: int) -> None:
    """Refuse heads of which the first cannot point at every entity."""
    if len(sizes) < 2 or sizes[0] < entities:
        raise ConfigError(
            f"network.pointer = true: expected at least two heads, the first with an action for each of {entities} entities; "
            f"the heads have {shown(list(sizes))} actions"
        )


def _check_policy(policy: Policy, head: ActionHead, obs: Any, num_values: int) -> None:
    """Refuse a user's network whose outputs have the wrong shapes."""
    zeros = jax.tree.map(lambda x: jnp.zeros((3, *x.shape), x.dtype), obs)
    name = type(policy.network).__name__
    _check_carry(policy, zeros)
    public, privileged = split_privileged(zeros)
    arguments = (public,) if privileged is None else (public, privileged)

    if policy.in_parts:
        of_all = partial(policy.init_with_output, method="bare"), partial(policy.apply, method="bare"), zeros
    else:  # not through the policy, which takes two results for granted
        of_all = policy.network.init_with_output, policy.network.apply, *arguments
    result, _ = network_shapes(policy.network, *of_all)
    shapes = jax.tree.map(
        lambda x: (x.context if isinstance(x, Pointed) else x).shape, result, is_leaf=lambda x: isinstance(x, Pointed)
    )
    values = () if num_values == 1 else (num_values,)
    value = "B" if num_values == 1 else f"B, {num_values}"
    expected = ((3, head.num_outputs), (3, *values))
    if shapes != expected:
        raise ConfigError(
            f"network = {name}: expected (outputs [B, {head.num_outputs}], value [{value}]) for this action "
            f"space; 3 observations gave shapes {shapes}, not {expected}"
        )


def _check_carry(policy: Policy, obs: Any) -> None:
    """Refuse a user's network whose memory breaks the contract of `Policy`; `obs` are 3 observations."""
    name = type(policy.network).__name__
    try:
        with jax.ensure_compile_time_eval():
            carry = policy.initial_carry((3,))
            begins_with_zeros = not any(bool(jnp.any(x != 0)) for x in jax.tree.leaves(carry))
        if carry is None:
            return
        variables = jax.eval_shape(policy.init, jax.random.key(0), obs)
        after = jax.eval_shape(policy.apply, variables, obs, carry)[2]
    except ConfigError:
        raise
    except (TypeError, ValueError, AttributeError, FlaxError) as error:
        raise ConfigError(f"network = {name}: initial_carry, which has no parameters, or a step fails: {error}") from error
    if not begins_with_zeros:
        raise ConfigError(f"network = {name}: expected an initial_carry of zeros, which begin an episode")
    before, after = (jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", tree) for tree in (carry, after))
    if before != after:
        raise ConfigError(f"network = {name}: advance makes {after} of a carry {before}, expected the same shapes and dtypes")


def policy_and_value(parts: HasPolicy, params: Any, obs: Any, carry: Any = None) -> tuple[Any, jax.Array, Any]:
    """`(outputs [..., head.num_outputs], value [...], carry)` of normalised observations `[..., *obs_shape]`.

    `carry` is what the policy remembers from before; None begins an episode, and stays None without memory.
    """
    outputs, value, carry = parts.policy.apply(params, obs, carry)
    return outputs, value, carry


def policy_unroll(
    parts: HasPolicy, params: Any, obs: Any, carry: Any, begins: jax.Array | None, seat: jax.Array | None = None
) -> tuple[Any, jax.Array, Any]:
    """The policy along trajectories: `(outputs [T, N, ...], value [T, N], carry [T, N, ...] after each step)`.

    Encoder and heads see all steps at once; only what remembers is inside the scan. With a GRU or an LSTM there is no
    forward-mode derivative (`jax.jvp`), see `scan_cell`.

    Args:
        parts: parts of the algorithm.
        params: parameters of the policy.
        obs: normalised, `[T, N, *obs_shape]`.
        carry: memory of the policy before the first step, `[N, ...]`, or `[N, P, ...]` of P seats; None without memory.
        begins: where an episode begins, bool `[T, N]`: the carry is forgotten before the step. None will do without memory.
        seat: which of P seats takes the step, one-hot bool `[T, N, P]`: its memory advances. None: without seats.
    """
    return unroll(parts, params, obs, carry, begins, seat)[:3]


def unroll(
    parts: HasPolicy, params: Any, obs: Any, carry: Any, begins: jax.Array | None, seat: jax.Array | None = None
) -> tuple[Any, jax.Array, Any, Any]:
    """`policy_unroll`, and the memory after the last step as that before the first: `[N, ...]`, or `[N, P, ...]` of P seats."""
    if carry is None:
        return (*policy_and_value(parts, params, obs), None)
    policy = parts.policy
    embedded = policy.apply(params, obs, method="embed")

    def step(carry: Any, inputs: Any) -> tuple[Any, Any]:
        x, begins_t, seat_t = inputs
        carry = reset_carry(carry, begins_t)
        after = policy.apply(params, of_seat(carry, seat_t), x, method="advance")
        return with_seat(carry, seat_t, after), after

    if policy.cell is None:
        last, carries = jax.lax.scan(step, carry, (embedded.x, begins, seat))
    else:
        assert begins is not None
        apply = partial(policy.apply, method="of_cell")
        last, carries = scan_cell(policy.cell, apply, params, carry, embedded.x.x, begins, seat)
    outputs, value = policy.apply(params, carries, embedded, method="policy_and_value")
    return outputs, value, carries, last


def rollout_outputs(parts: PolicyParts, params: Any, obs: Any, carry: Any) -> tuple[Any, jax.Array]:
    """`(outputs [T, N, ...], value [T, N])` in one pass after the rollout, of normalised observations and the carry after each of
    them: no scan."""
    embedded = parts.policy.apply(params, obs, method="embed")
    outputs, value = parts.policy.apply(params, carry, embedded, method="policy_and_value")
    return outputs, value


def policy_rollout(
    parts: PolicyParts, state: Any, params: Any, keep: tuple[str, ...] = (), view: Callable[[Any], Any] = lambda obs: obs
) -> tuple[Any, Steps]:
    """Step the environments of `state` `num_steps` times with the policy of `params`, which sees `view` of observations.

    Returns:
        The state with environments, carry and key moved on, and what happened, `[T, N, ...]`, with `keep` of the infos.
    """
    config, head = parts.config, parts.head
    key, noise_key, env_key = jax.random.split(state.key, 3)

    def act(obs: Any, carry: Any, mask: jax.Array | None, noise: jax.Array) -> tuple[jax.Array, Any]:
        outputs, _, carry = policy_and_value(parts, params, normalize_obs(state, view(obs)), carry)
        return head.sample(head.distribution(outputs, mask), noise), carry

    env_state, obs, carry, steps = rollout_scan(
        parts.env,
        parts.env_params,
        act,
        head.to_env,
        state.env_state,
        state.obs,
        head.noise(noise_key, (config.num_steps, config.num_envs)),
        environment_noise(parts.env, parts.env_params, env_key, config.num_steps, config.num_envs, config),
        state.carry,
        keep,
    )
    return state.replace(key=key, env_state=env_state, obs=obs, carry=carry), steps


def with_zeros_for_critic(obs: Any, whole: Any) -> tuple[Any, tuple[int, ...]]:
    """Return observations with zeros in place of what only the critic sees, and their leading axes.

    Args:
        obs: observations, with or without what only the critic sees.
        whole: the shapes of one observation.
    """
    (public, _), (visible, hidden) = split_privileged(obs), split_privileged(whole)
    leaf, one = (jax.tree.leaves(x)[0] for x in (public, visible))
    batch = leaf.shape[: leaf.ndim - one.ndim]
    # Nothing that acts depends on the zeros, so XLA drops them.
    return join_privileged(public, jax.tree.map(lambda x: jnp.zeros((*batch, *x.shape), x.dtype), hidden)), batch


def policy_act(parts: PolicyParts) -> Act:
    """`Agent.act` for states with `params` and `obs_statistics`: the mode, or a sample.

    Observations may come without what only the critic sees.
    """
    whole = jax.eval_shape(lambda: parts.env.reset_env(jax.random.key(0), parts.env_params))[0]

    def act(
        state: Any, obs: Any, carry: Any, key: jax.Array, deterministic: bool = False, mask: jax.Array | None = None
    ) -> tuple[Any, Any]:
        obs, batch = with_zeros_for_critic(obs, whole)
        outputs, _, carry = policy_and_value(parts, state.params, normalize_obs(state, obs), carry)
        distribution = parts.head.distribution(outputs, mask)
        return parts.head.to_env(parts.head.choose(distribution, key, batch, deterministic)), carry

    return act


__getattr__ = moved_names(__name__)
