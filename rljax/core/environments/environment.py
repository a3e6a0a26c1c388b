"""The environment contract: a few pure functions, with the signature of gymnax 1.x.

A custom environment writes `reset_env`, `step_env` and two spaces; `Environment` adds auto-reset, the time limit and defaults.
Any gymnax environment meets the contract too, so code here asks for attributes and never for the class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.errors import ConfigError, first_line

COMPONENTS = "reward_components"
"""Entry of an environment's `info` that holds the streams of its reward: a dictionary of f32 [], or f32 `[P]` of a game."""

BELIEF = "belief_entropy"
"""Entry of an environment's `info`: entropy of the hidden state given all observations so far, in nats, f32 [], or `[P]` of a
game."""

METRICS = "metrics"
"""Key of a dictionary of scalars in an environment's `info` that training logs as `env/NAME`."""


@struct.dataclass
class EnvState:
    """Values that change within an episode. `time` counts the steps since the reset."""

    time: jax.Array


@struct.dataclass
class EnvParams:
    """Values that are fixed within an episode. A state with a `time` field is truncated at `max_steps_in_episode` steps."""

    max_steps_in_episode: int = 1000


class SimulatorParams:
    """Parameters of an environment outside JAX, which has none of its own.

    Attributes:
        ended: None, or `(state, done)` of an episode: `reset_env` then begins the episode after it, if bool [] `done`. This is
            no field of a dataclass, so that `env_params` cannot name it.
        trains: whether a run trains on these episodes; its simulators outlive those of evaluations.
    """

    def __init__(self, ended: tuple[Any, jax.Array] | None = None, trains: bool = False):
        self.ended, self.trains = ended, trains


jax.tree_util.register_pytree_node(
    SimulatorParams, lambda params: ((params.ended,), params.trains), lambda trains, parts: SimulatorParams(*parts, trains)
)


class Environment:
    """Base class of environments: pure functions of a key, a state, an action and parameters; nothing is stored in `self`.

    Subclasses write `reset_env`, `step_env`, `observation_space` and `action_space`, and override `default_params`,
    `is_truncated`, `action_mask`, `render` and `name` where they differ from the defaults.

    Attributes:
        reward_threshold: mean return at which the task counts as solved (Gymnasium's if it has one), or None.
        best_is_random: whether the best policy is random, so that policies are evaluated by sampled actions.
        outside_jax: whether a simulator outside JAX takes the steps, so that states cannot be copied, saved or gone back to.
        files_digest: SHA-256 of what was read from files that may change (a map, say), as 64 hexadecimal digits; "" without such
            files. A run folder notes it, so that nobody resumes the run with other files.
    """

    reward_threshold: float | None = None
    best_is_random: bool = False
    outside_jax: bool = False
    files_digest: str = ""

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def default_params(self) -> Any:
        return EnvParams()

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        """Start an episode; return `(obs, state)`."""
        raise NotImplementedError(f"{self.name} must define reset_env(key, params) -> (obs, state)")

    def step_env(
        self, key: jax.Array, state: Any, action: Any, params: Any
    ) -> tuple[Any, Any, jax.Array, jax.Array, dict[str, Any]]:
        """Take a step without auto-reset; return `(obs, state, reward f32 [], terminated bool [], info)`."""
        raise NotImplementedError(
            f"{self.name} must define step_env(key, state, action, params) -> (obs, state, reward, terminated, info)"
        )

    def is_truncated(self, state: Any, params: Any) -> jax.Array:
        """Return whether a time limit ends the episode here, bool []; False if the state has no `time` or the params no limit."""
        if hasattr(state, "time") and hasattr(params, "max_steps_in_episode"):
            return jnp.asarray(state.time >= params.max_steps_in_episode)
        return jnp.asarray(False)

    def observation_space(self, params: Any) -> Any:
        raise NotImplementedError(f"{self.name} must define observation_space(params)")

    def action_space(self, params: Any) -> Any:
        raise NotImplementedError(f"{self.name} must define action_space(params)")

    def action_mask(self, state: Any, params: Any) -> jax.Array | None:
        """Return the legal actions, bool `[A]`, or None if all are legal.

        For a MultiDiscrete or a Dict, A runs over the actions of all heads in order. If the legal actions of a head depend on the
        choices of earlier heads, return bool `[A, A]`: entry `[i, j]` says whether j is legal once an earlier head has chosen i,
        and entry `[i, i]` whether i is legal at all. Other entries are not read.
        """
        return None

    def innermost_state(self, state: Any) -> Any:
        """Return the state without what wrappers add to it."""
        return state

    def render(self, state: Any, params: Any) -> jax.Array:
        """Return an RGB picture of the state, uint8 `[H, W, 3]`."""
        raise NotImplementedError(f"{self.name} cannot be rendered: it does not define render(state, params)")

    def reset(self, key: jax.Array, params: Any = None) -> tuple[Any, Any]:
        """Start an episode; return `(obs, state)`. `params` defaults to `default_params`."""
        return strong(self.reset_env(key, self.default_params if params is None else params))

    def step(
        self, key: jax.Array, state: Any, action: Any, params: Any = None
    ) -> tuple[Any, Any, jax.Array, jax.Array, jax.Array, dict[str, Any]]:
        """Take a step with auto-reset; return `(obs, state, reward, terminated, truncated, info)`.

        If the episode ended, `obs` and `state` already belong to the next one. `info["final_observation"]` is always the
        observation before the reset, which a bootstrap at a truncation needs.
        """
        params = self.default_params if params is None else params
        key_step, key_reset = jax.random.split(key)
        return step_and_reset(self, key_step, key_reset, state, action, params)


def step_and_reset(
    env: Any, key_step: jax.Array, key_reset: jax.Array, state: Any, action: Any, params: Any
) -> tuple[Any, Any, jax.Array, jax.Array, jax.Array, dict[str, Any]]:
    """Do `Environment.step` with its two keys given, so that a rollout can draw the keys of all its steps at once."""
    fresh = None if is_outside_jax(env) else env.reset_env(key_reset, params)
    return step_or_restart(env, key_step, fresh, state, action, params)


def step_or_restart(
    env: Any, key: jax.Array, fresh: tuple[Any, Any] | None, state: Any, action: Any, params: Any
) -> tuple[Any, Any, jax.Array, jax.Array, jax.Array, dict[str, Any]]:
    """Do `Environment.step` with the next episode given: if this one ends, continue with `fresh`, a result of `reset_env`.

    `info` has the final observation and, in an environment with masks, the legal actions there as `final_action_mask`. An
    environment outside JAX begins its next episode itself, when this one has ended; `fresh` is not used.
    """
    final_obs, next_state, reward, terminated, info = env.step_env(key, state, action, params)
    truncated = env.is_truncated(next_state, params)
    final_mask = action_mask_of(env, next_state, params)
    if final_mask is not None:
        info = {**info, "final_action_mask": final_mask}
    done = terminated | truncated
    if is_outside_jax(env):
        fresh = following_episode(env, key, next_state, done)
    obs, next_state = tree_where(done, fresh, (final_obs, next_state))
    obs, next_state = strong((obs, next_state))
    return obs, next_state, reward, terminated, truncated, {**info, "final_observation": final_obs}


def following_episode(env: Any, key: jax.Array, state: Any, done: jax.Array) -> tuple[Any, Any]:
    """Return `(obs, state)` of the episode that follows one of an environment outside JAX, if bool [] `done`; else nothing of
    use.
    """
    fresh: tuple[Any, Any] = env.reset_env(key, SimulatorParams((env.innermost_state(state), done)))
    return fresh


def step_or_stay(
    env: Any, key: jax.Array, obs: Any, state: Any, action: Any, params: Any
) -> tuple[Any, Any, jax.Array, jax.Array, jax.Array, dict[str, Any]]:
    """Do `Environment.step` where nothing follows the end of an episode: it goes back to `obs` and `state`, and ends again.

    An environment outside JAX cannot go back: its episode stays where it ended.
    """
    if not is_outside_jax(env):
        return step_or_restart(env, key, (obs, state), state, action, params)
    final_obs, state, reward, terminated, info = env.step_env(key, state, action, params)
    return final_obs, state, reward, terminated, env.is_truncated(state, params), {**info, "final_observation": final_obs}


def attribute(env: Any, name: str, *default: Any) -> Any:
    """Return `getattr(env, name, *default)`; any error that a property raises becomes one line.

    Raises:
        ConfigError: there is no such attribute and no default, or reading it raises.
    """
    try:
        return getattr(env, name, *default)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"environment {type(env).__name__}: {name} raised {first_line(error)}") from error


def is_outside_jax(env: Any) -> bool:
    """Return whether an environment is outside JAX; those of other libraries (gymnax) need not say that they are not."""
    outside: bool = attribute(env, "outside_jax", False)
    return outside


def strong(tree: Any) -> Any:
    """Return the same values without weak types: a weak type (of a Python number, say) would make a second call recompile."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), tree)


def same_structure(a: Any, b: Any) -> bool:
    """Return whether two trees have the same structure; their leaves may differ."""
    left: Any = jax.tree.structure(a)
    return bool(left == jax.tree.structure(b))


def tree_where(condition: jax.Array, on_true: Any, on_false: Any) -> Any:
    """Apply `jnp.where` to two trees of one structure; `condition` is a scalar."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), on_true, on_false)


LIMITS = ("max_steps_in_episode", "max_cycles")
"""Parameters that say how long an episode lasts at most, so they are at least 1."""


def bounded(default: Any, *, ge: float, le: float | None = None) -> Any:
    """Declare a field of an environment's parameters, a dataclass, with its smallest and its largest value."""
    return dataclasses.field(default=default, metadata={"ge": ge, "le": le})


def outside_bounds(params: Any, name: str, value: Any) -> str | None:
    """Return what is expected of a parameter, "at least 1", if a number or an array is outside its bounds, else None."""
    fields = dataclasses.fields(params) if dataclasses.is_dataclass(params) else ()
    declared: Mapping[str, Any] = next((field.metadata for field in fields if field.name == name), {})
    low, high = declared.get("ge", 1 if name in LIMITS else None), declared.get("le")
    if (low is None or not np.any(value < low)) and (high is None or not np.any(value > high)):
        return None
    return f"at least {low}" + ("" if high is None else f" and at most {high}")


def field_names(params: Any) -> list[str]:
    """Return the names of the fields of parameters, a NamedTuple or a dataclass; of anything else none."""
    if dataclasses.is_dataclass(params):
        return [field.name for field in dataclasses.fields(params)]
    return list(getattr(params, "_fields", ()))


def with_fields(params: Any, values: Mapping[str, Any]) -> Any:
    """Return parameters, a NamedTuple or a dataclass, with other values of some fields."""
    return params._replace(**values) if hasattr(params, "_replace") else dataclasses.replace(params, **values)


def action_mask_of(env: Any, state: Any, params: Any) -> jax.Array | None:
    """Return the environment's action mask, or None; environments of other libraries (gymnax) need not define the method."""
    mask_of = getattr(env, "action_mask", None)
    return None if mask_of is None else mask_of(state, params)


def plays_greedily(env: Any, deterministic: bool | None) -> bool:
    """Return whether to evaluate a policy by its mode instead of samples: `deterministic`, or by `best_is_random` if None."""
    return not attribute(env, "best_is_random", False) if deterministic is None else deterministic
