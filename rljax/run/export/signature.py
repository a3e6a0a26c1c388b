"""Read the inputs of a policy from an agent, and check them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import export as jax_export

from rljax.collect.environments import make_evaluation_env
from rljax.core.agent import Agent
from rljax.core.contract import is_array
from rljax.core.environment import action_mask_of
from rljax.core.errors import ConfigError
from rljax.core.spaces import as_space
from rljax.core.wrappers import PublicObservation


class Signature(NamedTuple):
    """Inputs of a policy, unbatched, with `jax.ShapeDtypeStruct` leaves; `mask` is None if the environment has none."""

    env_name: str
    obs: Any
    mask: jax.ShapeDtypeStruct | None
    obs_space: Any
    action_space: Any


def read_signature(agent: Agent) -> Signature:
    env, env_params = make_evaluation_env(agent.config)
    # An exported policy does not get the part of observations that only a critic sees.
    env = PublicObservation(env)
    obs, env_state = jax.eval_shape(lambda: env.reset_env(jax.random.key(0), env_params))
    mask = jax.eval_shape(lambda s: action_mask_of(env, s, env_params), env_state)
    obs, mask = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (obs, mask))
    _check_structure(env.name, obs)
    obs_space, action_space = as_space(env.observation_space(env_params)), as_space(env.action_space(env_params))
    return Signature(env.name, obs, mask, obs_space, action_space)


def _check_structure(env_name: str, obs: Any) -> None:
    """Refuse containers that jax alone cannot read back: a user's class would have to be importable where the policy is used."""
    if type(obs) is dict and all(isinstance(key, str) for key in obs):
        parts = list(obs.values())
    elif type(obs) in (tuple, list):
        parts = list(obs)
    elif is_array(obs):
        return
    else:
        raise ConfigError(
            f"environment {env_name}: a policy can be exported for observations that are arrays, or dictionaries and tuples "
            f"of them, not {type(obs).__name__}; flatten_observations = true makes them vectors"
        )
    for part in parts:
        _check_structure(env_name, part)


def check_state(agent: Agent, state: Any) -> None:
    """Refuse a batch of states, or the state of another agent."""
    expected = jax.eval_shape(agent.init, jax.random.key(0))
    if not same_structure(state, expected) or jax.tree.map(jnp.shape, state) != jax.tree.map(jnp.shape, expected):
        raise ConfigError(
            "the state does not fit the agent: expected one state of agent.init or agent.step "
            "(take one state of a batch: jax.tree.map(lambda x: x[0], state))"
        )


def check_memoryless(agent: Agent, state: Any, signature: Signature) -> None:
    """Refuse a recurrent policy: the files have no carry, without which it would treat each step as the first of an episode."""
    arguments = [signature.obs, signature.mask]
    carry = jax.eval_shape(lambda obs, mask: agent.act(state, obs, None, jax.random.key(0), True, mask)[1], *arguments)
    if jax.tree.leaves(carry):
        raise ConfigError(
            "a policy with a memory (recurrent, a world model, an opponent model) cannot be exported: the files hold functions "
            "of one observation"
        )


def batched(signature: Signature) -> list[Any]:
    """Return the shapes of `[obs]` or `[obs, mask]` with a leading symbolic batch axis `b`."""
    (b,) = jax_export.symbolic_shape("b")
    arguments = [signature.obs] + ([] if signature.mask is None else [signature.mask])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((b, *x.shape), x.dtype), arguments)


def leaf_names(root: str, tree: Any) -> list[str]:
    """Return names for the leaves of a tree: `obs`, or `obs.camera`, `obs.speed`, ..."""
    keystr = jax.tree_util.keystr
    return [".".join([root, *(keystr((key,), simple=True) for key in path)]) for path, _ in jax.tree.leaves_with_path(tree)]


def input_names(signature: Signature) -> list[str]:
    return leaf_names("obs", signature.obs) + ([] if signature.mask is None else ["mask"])


def same_structure(a: Any, b: Any) -> bool:
    left: Any = jax.tree.structure(a)
    return bool(left == jax.tree.structure(b))


def action_shapes(exported: Any) -> Any:
    """Return the shapes of an artifact's action, `[b, ...]`."""
    return jax.tree.unflatten(exported.out_tree, exported.out_avals)
