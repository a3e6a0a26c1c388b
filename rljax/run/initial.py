"""Begin runs with the parameters of another run: of a clone, say, which reinforcement then improves."""

from __future__ import annotations

import itertools
import os
import re
import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.common.config import EpsilonConfig, OnPolicyConfig
from rljax.core.agent import Agent, make_agent
from rljax.core.config import Config, env_name
from rljax.core.environments.spaces import Discrete
from rljax.core.errors import ConfigError, RljaxWarning, shown
from rljax.envs import resolve_env
from rljax.nn.opponents import check_same_opponent_model
from rljax.nn.spec import read_network
from rljax.run.files.checkpoint import describe, named_arrays, named_leaves
from rljax.run.files.folder import load_run

IN_SEARCHES = "make_agent=lambda config: rljax.begin_from(config, RUN), in Python"
"""How to begin the runs of a sweep or a study with a policy (see `rljax.algos.common.teacher.check_teacher`)."""

TEMPERATURE = "log_alpha"
"""Name of soft actor-critic's temperature, which is no part of the policy."""

ATTENTION = re.compile("(?i)(attention|pooling)[^/]*/value/")
"""Names of parameters that are no value's, though they are called so."""

NOT_OF_POLICY = re.compile(rf"(^|/)(critic|value|{TEMPERATURE})")
"""Names of parameters that may begin anew: the other run may have had none, or those of another algorithm."""

VALUE_HEADS = re.compile("(^|/)value(_head)?/")
"""Names of the parameters of value heads, also in networks of one's own."""

UNSEEN = ("strides", "dilations", "heads")
"""Keys of a `network` table that shapes of parameters do not tell, beside `activation`."""


def begin_from(config_or_agent: Config | Agent, path: str | os.PathLike[str], *, checkpoint: str | int = "latest") -> Agent:
    """Return an agent whose runs begin with the policy of another run, whatever algorithm trained it.

    The runs are new ones: steps count from 0, and optimiser, environments, statistics of rewards and random keys are those of any
    new run. The parameters, and the statistics that normalise observations, are those of the other run; so are copies of the
    parameters, such as the teacher of `teacher_kl_coef`, and in a league the pool's first players and what exploiters are reset
    to. Layers of the value that the other run has in another shape, value heads of other names or in another order, and a
    temperature that it lacks, begin anew, with a warning.

    Args:
        config_or_agent: configuration or agent of the new runs. All learners of a league begin with the same policy; but if the
            other run is a league with the same roles, each learner begins with the policy of the learner of its number.
        path: the other run's folder, or one of its checkpoints. An environment or network that was an object there is taken to
            be that of this configuration. Of a run with several seeds the best one is taken, of a league
            with other roles its first main agent, of averaged parameters the average.
        checkpoint: "latest", "best" or a number of steps.

    Raises:
        ConfigError: there is no such run, its policy has another network (the message names the first parameter or key of
            `network` that differs), or only one of both normalises observations.
    """
    agent = config_or_agent if isinstance(config_or_agent, Agent) else make_agent(config_or_agent)
    run = load_run(path, checkpoint=checkpoint, seed_index="best", objects=agent.config)
    return _begin(agent, run.config, run.state, str(path))


def check_begins(agent: Agent, other: Agent, name: str) -> None:
    """Check that runs of an agent can begin with the policies of runs of another one, before there are any.

    Raises:
        ConfigError: they cannot; the message calls the other runs `name`.
    """
    shapes = jax.eval_shape(other.init, jax.eval_shape(lambda: jax.random.key(0)))
    fields = ("params", "average_params", "obs_statistics")
    # Arrays of one number each, whatever their shapes.
    state = {field: jax.tree.map(lambda x: np.broadcast_to(np.zeros((), x.dtype), x.shape), getattr(shapes, field, None))
             for field in fields}  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RljaxWarning)  # the run itself warns
        _begin(agent, other.config, SimpleNamespace(**state), name)


def _begin(agent: Agent, config: Config, state: Any, path: str) -> Agent:
    """Return an agent whose runs begin with the policy in the state of a run with this configuration."""
    from rljax.league.exploit import branch  # Only few runs need leagues, which take a while to import.
    from rljax.league.parts import Player

    check_same_opponent_model(config, agent.config, path)
    fresh = jax.eval_shape(agent.init, jax.eval_shape(lambda: jax.random.key(0)))
    learners, learners_there = (getattr(config, "num_learners", None) for config in (agent.config, config))
    other_roles = learners_there is not None and getattr(config, "roles", None) != getattr(agent.config, "roles", None)
    average = getattr(state, "average_params", None)
    policy = (state.params if average is None else average, getattr(state, "obs_statistics", None))
    params, statistics = jax.tree.map(lambda x: x[0], policy) if other_roles else policy
    other_heads = config.value_names != agent.config.value_names
    taken, anew = _taken(params, fresh.params, learners, path, other_heads)
    _check_same_functions(config, agent.config, path)
    if len({any(TEMPERATURE in name for name, _ in named_leaves(x)) for x in (params, fresh.params)}) > 1:
        _check_discrete(agent.config, path)
    if anew:
        warnings.warn(f"{path}: has other values, so these begin anew: {', '.join(anew)}", RljaxWarning, stacklevel=3)
    statistics = _statistics(statistics, getattr(fresh, "obs_statistics", None), agent.config, learners, path)

    def init(key: jax.Array) -> Any:
        # Layers that begin anew are those of this key.
        leaves = zip(taken, jax.tree.leaves(agent.init(key).params), strict=True)
        merged = jax.tree.unflatten(jax.tree.structure(fresh.params), [own if given is None else given for given, own in leaves])
        return branch(agent, merged if statistics is None else Player(merged, statistics), key)

    return agent._replace(init=init)


def _taken(
    there: Any, here: Any, learners: int | None, path: Any, other_heads: bool
) -> tuple[list[np.ndarray | None], list[str]]:
    """Return the leaves of parameters for the shapes `here`, None for those that begin anew, and the names of these.

    With `other_heads`, value heads begin anew, though they may fit.
    """
    saved, found, anew = named_arrays(there), [], []
    for name, x in zip(named_arrays(here), jax.tree.leaves(here), strict=True):
        leaf = _of_learners(saved.get(name), x, learners)
        if other_heads and _is_named(VALUE_HEADS, name):
            leaf = None
        if leaf is None:
            if not _is_named(NOT_OF_POLICY, name):
                was = describe(saved[name]) if name in saved else "missing"
                raise ConfigError(
                    f"the network of this configuration cannot take the weights of {path}: {name} is {was} there and "
                    f"{describe(x)} here"
                )
            anew.append(name)
        found.append(leaf)
    unknown = [name for name in saved if name not in named_arrays(here) and not _is_named(NOT_OF_POLICY, name)]
    if unknown:
        raise ConfigError(
            f"the network of this configuration cannot take the weights of {path}: {unknown[0]} is {describe(saved[unknown[0]])} "
            "there and missing here"
        )
    return found, anew


def _is_named(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.search(name) is not None and ATTENTION.search(name) is None


def _check_same_functions(there: Config, here: Config, path: Any) -> None:
    """Refuse a network whose parameters have the same names and shapes, and which computes something else of them."""
    if not all(_has_table(config) for config in (there, here)):
        return
    was, now = _unseen(there), _unseen(here)
    for key, value in now.items():
        if was[key] != value:
            raise ConfigError(
                f"network.{key} = {shown(value)}: the policy of {path} was trained with {shown(was[key])}, expected the same"
            )


def _has_table(config: Config) -> bool:
    """Return whether `network` is a table of rljax: not of an algorithm of the user's own, and no module."""
    return type(config).__module__.startswith("rljax.") and isinstance(getattr(config, "network", None), Mapping)


def _unseen(config: Any) -> dict[str, Any]:
    """Return what shapes of parameters do not tell of the network that a configuration's table describes."""
    actor_critic = isinstance(config, OnPolicyConfig) and not isinstance(config, EpsilonConfig)
    spec = read_network(config.network, heads=actor_critic)
    usual = "tanh" if actor_critic and spec.encoder != "cells" else "relu"
    linear = spec.encoder == "mlp" and spec.hidden == () and not spec.head_hidden
    return {"activation": None if linear else spec.activation or usual, **{key: getattr(spec, key) for key in UNSEEN}}


def _check_discrete(config: Config, path: Any) -> None:
    """Refuse to hand continuous policies on between soft actor-critic and the algorithms of regression."""
    env, params = resolve_env(config.env, config.env_params)
    if not isinstance(env.action_space(params), Discrete):
        raise ConfigError(
            f"the policy of {path} cannot begin a run of {config.algorithm}: of the same outputs, sac makes other continuous "
            "actions than awac and iql"
        )


def _of_learners(there: np.ndarray | None, here: Any, learners: int | None) -> np.ndarray | None:
    """Return an array in the shape of `here`, for all learners if `learners` is not None; None if it does not fit."""
    if there is None or there.dtype != here.dtype:
        return None
    if learners is not None and there.shape == here.shape[1:]:
        return np.repeat(there[None], learners, 0)
    return there if there.shape == here.shape else None


def _statistics(there: Any, here: Any, config: Config, learners: int | None, path: Any) -> Any:
    """Return the statistics of observations that the policy needs, in the shapes `here`; None without."""
    if (there is None) != (here is None):
        sees = "observations as they are" if there is None else "normalised observations"
        raise ConfigError(f"normalize_observations = {str(here is not None).lower()}: the policy of {path} sees {sees}")
    if there is None:
        return None
    pairs = itertools.zip_longest(jax.tree.leaves(there), jax.tree.leaves(here))
    leaves = [None if x is None or y is None else _of_learners(np.asarray(x), y, learners) for x, y in pairs]
    if any(leaf is None for leaf in leaves):
        raise ConfigError(f"{path}: its policy sees other observations than those of env = {env_name(config)!r}")
    return jax.tree.unflatten(jax.tree.structure(here), [jnp.asarray(leaf) for leaf in leaves])
