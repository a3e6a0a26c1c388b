"""The environment contract: a few pure functions, with the signature of gymnax 1.x.

A custom environment writes `reset_env`, `step_env` and two spaces; `Environment` adds auto-reset, the time limit and defaults.
Any gymnax environment meets the contract too, so code here asks for attributes and never for the class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.errors import ConfigError, first_line
from rljax.core.spaces import Box, Dict, Discrete, Space, as_space, head_sizes


@struct.dataclass
class EnvState:
    """What changes within an episode. `time` counts the steps taken since the reset."""

    time: jax.Array


@struct.dataclass
class EnvParams:
    """What is fixed within an episode. A state with a `time` field is truncated at `max_steps_in_episode` steps."""

    max_steps_in_episode: int = 1000


class Environment:
    """Base class of environments: pure functions of a key, a state, an action and parameters; nothing is stored in `self`.

    Subclasses write `reset_env`, `step_env`, `observation_space` and `action_space`, and where they differ from the
    defaults here `default_params`, `is_truncated`, `action_mask`, `render` and `name`.

    Attributes:
        reward_threshold: the mean return from which the task counts as solved (Gymnasium's where it has one), or None.
        best_is_random: whether the best policy draws its actions, so that it is sampled ones that tell how good a policy is.
    """

    reward_threshold: float | None = None
    best_is_random: bool = False

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def default_params(self) -> Any:
        return EnvParams()

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        """Start an episode: `(obs, state)`."""
        raise NotImplementedError(f"{self.name} must define reset_env(key, params) -> (obs, state)")

    def step_env(
        self, key: jax.Array, state: Any, action: Any, params: Any
    ) -> tuple[Any, Any, jax.Array, jax.Array, dict[str, Any]]:
        """One transition without auto-reset: `(obs, state, reward f32 [], terminated bool [], info)`."""
        raise NotImplementedError(
            f"{self.name} must define step_env(key, state, action, params) -> (obs, state, reward, terminated, info)"
        )

    def is_truncated(self, state: Any, params: Any) -> jax.Array:
        """Whether a time limit ends the episode here, bool []. Never, if the state has no `time` or the params no limit."""
        if hasattr(state, "time") and hasattr(params, "max_steps_in_episode"):
            return jnp.asarray(state.time >= params.max_steps_in_episode)
        return jnp.asarray(False)

    def observation_space(self, params: Any) -> Any:
        raise NotImplementedError(f"{self.name} must define observation_space(params)")

    def action_space(self, params: Any) -> Any:
        raise NotImplementedError(f"{self.name} must define action_space(params)")

    def action_mask(self, state: Any, params: Any) -> jax.Array | None:
        """The legal actions, bool `[A]`: of a Discrete, or of all heads of a MultiDiscrete or a Dict in order; None: all are.

        Where the legal actions of a head depend on those that earlier heads chose, bool `[A, A]`: entry `[i, j]` says whether j
        is legal once an earlier head has chosen i, the diagonal whether i is legal at all. Other entries are not read.
        """
        return None

    def render(self, state: Any, params: Any) -> jax.Array:
        """An RGB picture of the state, uint8 `[H, W, 3]`."""
        raise NotImplementedError(f"{self.name} cannot be rendered: it does not define render(state, params)")

    def reset(self, key: jax.Array, params: Any = None) -> tuple[Any, Any]:
        """Start an episode: `(obs, state)`. `params` defaults to `default_params`."""
        return strong(self.reset_env(key, self.default_params if params is None else params))

    def step(
        self, key: jax.Array, state: Any, action: Any, params: Any = None
    ) -> tuple[Any, Any, jax.Array, jax.Array, jax.Array, dict[str, Any]]:
        """One transition with auto-reset: `(obs, state, reward, terminated, truncated, info)`.

        Where the episode ended, `obs` and `state` already belong to the next one; the last observation of the old one,
        which a bootstrap at a truncation needs, is always in `info["final_observation"]`.
        """
        params = self.default_params if params is None else params
        key_step, key_reset = jax.random.split(key)
        return step_and_reset(self, key_step, key_reset, state, action, params)


def step_and_reset(
    env: Any, key_step: jax.Array, key_reset: jax.Array, state: Any, action: Any, params: Any
) -> tuple[Any, Any, jax.Array, jax.Array, jax.Array, dict[str, Any]]:
    """`Environment.step` with its two keys drawn already, so that a rollout can draw those of all its steps at once."""
    return step_or_restart(env, key_step, env.reset_env(key_reset, params), state, action, params)


def step_or_restart(
    env: Any, key: jax.Array, fresh: tuple[Any, Any], state: Any, action: Any, params: Any
) -> tuple[Any, Any, jax.Array, jax.Array, jax.Array, dict[str, Any]]:
    """`Environment.step` with the next episode made already: `fresh` is what `reset_env` returned, taken where this one ends.

    `info` has the final observation, and of an environment with masks the legal actions there: `final_action_mask`.
    """
    final_obs, next_state, reward, terminated, info = env.step_env(key, state, action, params)
    truncated = env.is_truncated(next_state, params)
    final_mask = action_mask_of(env, next_state, params)
    if final_mask is not None:
        info = {**info, "final_action_mask": final_mask}
    obs, next_state = tree_where(terminated | truncated, fresh, (final_obs, next_state))
    obs, next_state = strong((obs, next_state))
    return obs, next_state, reward, terminated, truncated, {**info, "final_observation": final_obs}


def strong(tree: Any) -> Any:
    """The same values with their dtypes fixed: a weak type (of a Python number, say) would compile a second call anew."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), tree)


def tree_where(condition: jax.Array, on_true: Any, on_false: Any) -> Any:
    """`jnp.where` over two trees of one structure; `condition` is a scalar."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), on_true, on_false)


def action_mask_of(env: Any, state: Any, params: Any) -> jax.Array | None:
    """The environment's action mask, or None; environments from elsewhere (gymnax) need not define the method."""
    mask_of = getattr(env, "action_mask", None)
    return None if mask_of is None else mask_of(state, params)


def check_environment(env: Any, params: Any) -> None:
    """Trace one reset and one step and compare what comes back with the contract; nothing is computed.

    Raises:
        ConfigError: one line that names the environment, the part that is wrong and what was expected.
    """
    name = env.name
    if getattr(env, "num_players", 1) != 1:
        raise ConfigError(f"environment {name}: is a game of {env.num_players} players, expected an environment of one agent")
    key = jax.eval_shape(lambda: jax.random.key(0))
    obs, state = _traced_tuple(name, "reset_env", ("obs", "state"), env.reset_env, key, params)
    obs_space = _space(name, "observation_space", env.observation_space, params)
    action_space = _space(name, "action_space", env.action_space, params)
    if isinstance(action_space, Dict) and head_sizes(action_space) is None:
        raise ConfigError(f"environment {name}: a Dict as action_space takes at least one head, each Discrete: {action_space}")
    action = jax.eval_shape(action_space.sample, key)
    stepped = ("obs", "state", "reward", "terminated", "info")
    next_obs, next_state, reward, terminated, info = _traced_tuple(
        name, "step_env", stepped, env.step_env, key, state, action, params
    )
    _check_same(name, "observation", next_obs, obs)
    _check_same(name, "state", next_state, state)
    _check_fits(name, "observation", obs, obs_space)
    if not hasattr(reward, "shape") or reward.shape != () or not jnp.issubdtype(reward.dtype, jnp.floating):
        raise ConfigError(
            f"environment {name}: step_env returned a reward {_describe(reward)}, expected a float scalar float32[]"
        )
    truncated = _traced(name, "is_truncated", env.is_truncated, state, params)
    for label, flag in (("terminated flag", terminated), ("is_truncated result", truncated)):
        if not hasattr(flag, "shape") or flag.shape != () or flag.dtype != jnp.bool_:
            raise ConfigError(f"environment {name}: the {label} is {_describe(flag)}, expected bool[]")
    if not isinstance(info, Mapping):
        raise ConfigError(f"environment {name}: step_env returned an info {_describe(info)}, expected a dictionary, such as {{}}")
    mask = _traced(name, "action_mask", lambda s: action_mask_of(env, s, params), state)
    if mask is not None:
        _check_mask(name, mask, action_space)


def _traced(name: str, label: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The shapes of what a function of the environment returns; whatever it raises becomes one line, with the cause kept."""
    try:
        return jax.eval_shape(function, *arguments)
    except ConfigError:
        raise
    except NotImplementedError as error:
        raise ConfigError(f"environment {name}: {error}") from error
    except jax.errors.ConcretizationTypeError as error:
        raise ConfigError(
            f"environment {name}: {label} looks at a traced value with Python's if, while, bool() or int(); use jnp.where"
        ) from error
    except Exception as error:
        raise ConfigError(f"environment {name}: {label} raised {first_line(error)}") from error


def _traced_tuple(name: str, label: str, parts: tuple[str, ...], function: Callable[..., Any], *arguments: Any) -> Any:
    result = _traced(name, label, function, *arguments)
    expected = f"expected {len(parts)}: ({', '.join(parts)})"
    if not isinstance(result, (tuple, list)):
        raise ConfigError(f"environment {name}: {label} returned {_describe(result)}, {expected}")
    if len(result) != len(parts):
        raise ConfigError(f"environment {name}: {label} returned {len(result)} values, {expected}")
    return result


def _space(name: str, label: str, function: Callable[[Any], Any], params: Any) -> Space:
    try:
        return as_space(function(params))
    except (TypeError, NotImplementedError) as error:
        raise ConfigError(f"environment {name}: {label}: {error}") from error


def _describe(leaf: Any) -> str:
    return f"{jnp.dtype(leaf.dtype).name}[{','.join(map(str, leaf.shape))}]" if hasattr(leaf, "shape") else repr(leaf)


def _check_same(name: str, label: str, stepped: Any, reset: Any) -> None:
    # As text: the structures of two flax dataclasses compare equal whatever their classes.
    after, before = str(jax.tree.structure(stepped)), str(jax.tree.structure(reset))
    if after != before:
        raise ConfigError(f"environment {name}: step_env returned a {label} of structure {after}, but reset_env {before}")
    for (path, after), before in zip(jax.tree.leaves_with_path(stepped), jax.tree.leaves(reset), strict=True):
        if after.shape != before.shape or after.dtype != before.dtype:
            where = label + jax.tree_util.keystr(path)
            raise ConfigError(
                f"environment {name}: step_env returned {where} {_describe(after)}, but reset_env {_describe(before)}"
            )


def _check_fits(name: str, label: str, value: Any, space: Space) -> None:
    if isinstance(space, Dict) and isinstance(value, Mapping):
        if value.keys() != space.spaces.keys():
            raise ConfigError(
                f"environment {name}: {label} has the keys {sorted(value)}, but observation_space {sorted(space.spaces)}"
            )
        for key, part in space.spaces.items():
            _check_fits(name, f"{label}['{key}']", value[key], as_space(part))
    elif isinstance(space, Box) and hasattr(value, "shape") and tuple(value.shape) != space.shape:
        raise ConfigError(f"environment {name}: {label} {_describe(value)} does not fit observation_space of shape {space.shape}")


def _check_mask(name: str, mask: Any, action_space: Space) -> None:
    sizes = head_sizes(action_space)
    if sizes is None:
        raise ConfigError(
            f"environment {name}: action_mask needs an action space that is Discrete, MultiDiscrete or a Dict of Discrete,"
            f" not {action_space}"
        )
    total = sum(sizes)
    pairs = not isinstance(action_space, Discrete)
    if mask.dtype != jnp.bool_ or not (mask.shape == (total,) or (pairs and mask.shape == (total, total))):
        expected = f"bool[{total}]" + (f", or bool[{total},{total}] for pairs of heads" if pairs else "")
        raise ConfigError(f"environment {name}: action_mask is {_describe(mask)}, expected {expected}")
