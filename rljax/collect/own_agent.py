"""Check the functions of agents of one's own by tracing: nothing is computed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rljax.collect.environments import make_evaluation_env
from rljax.collect.resets import initial_environments
from rljax.core.agent import Agent, act_result, check_act_arguments
from rljax.core.contract import describe, is_array
from rljax.core.environments.environment import action_mask_of, same_structure
from rljax.core.environments.spaces import as_space
from rljax.core.errors import ConfigError, RljaxError, first_line

EXAMPLES = 3
"""Number of observations for which a policy is traced."""


def check_own_act(agent: Agent, state: Any = None) -> None:
    """Check what an `act` of one's own takes and, outside games, returns; do nothing for an algorithm of rljax's.

    Args:
        agent: any agent.
        state: its state; None: one of `agent.init`.

    Raises:
        ConfigError: it takes other arguments than `Act`, returns no `(action, carry)`, or an action that is not one of the
            environment's action space.
    """
    as_made = agent.made is not None and agent.act is agent.made.act
    if getattr(type(agent.config) if as_made else agent.act, "__module__", "").startswith("rljax."):
        return
    check_act_arguments(agent.act)
    if agent.config.of_games:
        return  # there it may act for a whole team at once
    env, env_params = make_evaluation_env(agent.config)
    space = as_space(env.action_space(env_params))

    def first_actions(key: jax.Array) -> Any:
        env_state, obs = initial_environments(env, env_params, key, EXAMPLES)
        mask = jax.vmap(lambda s: action_mask_of(env, s, env_params))(env_state)
        now = agent.init(key) if state is None else state
        try:
            result = agent.act(now, obs, None, key, True, mask)
        except RljaxError:
            raise
        except Exception as error:
            raise ConfigError(
                f"the agent's act: failed for {EXAMPLES} observations ({first_line(error)}), expected to act for any number"
            ) from error
        return act_result(result)[0], jax.vmap(space.sample)(jax.random.split(key, EXAMPLES))

    found, expected = jax.eval_shape(first_actions, jax.eval_shape(lambda: jax.random.key(0)))
    if not same_structure(found, expected):
        _refuse_action(found, expected, "")
    for (path, action), example in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        real = jnp.issubdtype(action.dtype, jnp.floating)
        if action.shape != example.shape or (real and not jnp.issubdtype(example.dtype, jnp.floating)):
            _refuse_action(action, example, jax.tree_util.keystr(path))


def _refuse_action(found: Any, expected: Any, where: str) -> None:
    raise ConfigError(
        f"the agent's act: returned {describe(found)} as its action{where}, expected {describe(expected)} for {EXAMPLES} "
        "observations"
    )


def check_own_state(before: Any, after: Any) -> None:
    """Check that a step returned a state like the one that it was given.

    Raises:
        ConfigError: structure, a shape or a dtype differs; the first such part is named.
    """
    # Every algorithm's step comes here, so what is as it should be must take no time.
    if same_structure(before, after) and all(map(_alike, jax.tree.leaves(before), jax.tree.leaves(after))):
        return
    before, after = jax.eval_shape(lambda: (before, after))  # of Python's and NumPy's numbers, too
    old, new = (
        {jax.tree_util.keystr(path).removeprefix("."): leaf for path, leaf in jax.tree.leaves_with_path(tree)}
        for tree in (before, after)
    )
    fault = None
    for name in (*old, *new):
        if name not in new:
            fault = f"a state without {name}, which is {describe(old[name])}"
        elif name not in old:
            fault = f"a state with {name}, which was not there"
        elif (new[name].shape, new[name].dtype) != (old[name].shape, old[name].dtype):
            fault = f"a state whose {name} is {describe(new[name])}, no longer {describe(old[name])}"
        if fault is not None:
            break
    if type(after) is not type(before):
        fault = f"{describe(after)} as its state, where it was {describe(before)}"
    if fault is None and not same_structure(before, after):
        fault = "a state of other containers, such as a list in place of a tuple"
    if fault is not None:
        raise ConfigError(f"the agent's step: returned {fault}; expected the structure, shapes and dtypes that init gave it")


def _alike(a: Any, b: Any) -> bool:
    return is_array(a) and is_array(b) and a.shape == b.shape and a.dtype == b.dtype
