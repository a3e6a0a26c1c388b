"""Read the inputs of a policy from an agent, and check them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from rljax.collect.environments import make_evaluation_env, make_game
from rljax.core.agent import Agent, check_agent, make_agent
from rljax.core.contract import is_array
from rljax.core.environments.environment import action_mask_of
from rljax.core.environments.spaces import as_space
from rljax.core.environments.wrappers import PublicObservation
from rljax.core.errors import ConfigError
from rljax.core.games.versus import OnePlayer
from rljax.planning.alphazero import AlphaZeroConfig


class Signature(NamedTuple):
    """Inputs of a policy, unbatched, with `jax.ShapeDtypeStruct` leaves; `mask` is None if the environment has none."""

    env_name: str
    obs: Any
    mask: jax.ShapeDtypeStruct | None
    obs_space: Any
    action_space: Any


def read_signature(agent: Agent) -> Signature:
    env, env_params = _one_player(agent.config) if agent.config.of_games else make_evaluation_env(agent.config)
    # An exported policy does not get the part of observations that only a critic sees.
    env = PublicObservation(env)
    obs, env_state = jax.eval_shape(lambda: env.reset_env(jax.random.key(0), env_params))
    mask = jax.eval_shape(lambda s: action_mask_of(env, s, env_params), env_state)
    obs, mask = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (obs, mask))
    _check_structure(env.name, obs)
    obs_space, action_space = as_space(env.observation_space(env_params)), as_space(env.action_space(env_params))
    return Signature(env.name, obs, mask, obs_space, action_space)


def _one_player(config: Any) -> tuple[Any, Any]:
    """Return the environment of one seat of a configuration's game, without what a central critic adds, and its parameters."""
    alone = config.replace(central_critic=False) if getattr(config, "central_critic", False) else config
    game, env_params = make_game(alone)
    return OnePlayer(game), env_params


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


def to_export(agent: Agent) -> Agent:
    """Return the agent on one device, with all products in f32, in which exported policies compute: bfloat16 is faster on
    accelerators alone.

    Raises:
        ConfigError: it is no agent.
    """
    check_agent(agent)
    if agent.config.num_devices > 1:
        alone = make_agent(agent.config.replace(num_devices=1))
        agent = agent._replace(init=alone.init, config=alone.config)
    if getattr(agent.config, "dtype", "float32") == "float32":
        return agent
    return make_agent(agent.config.replace(dtype="float32"))


def search_note(config: Any) -> str | None:
    """Return a note for agents that search before they move: the files hold the policy alone; None for all others."""
    if not isinstance(config, AlphaZeroConfig):
        return None
    return "the policy of the network alone: the search that AlphaZero plays with is not exported"


def leaf_names(root: str, tree: Any) -> list[str]:
    """Return names for the leaves of a tree: `obs`, or `obs.camera`, `obs.speed`, ..."""
    keystr = jax.tree_util.keystr
    return [".".join([root, *(keystr((key,), simple=True) for key in path)]) for path, _ in jax.tree.leaves_with_path(tree)]
