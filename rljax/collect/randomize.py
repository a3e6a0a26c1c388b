"""Domain randomisation: parameters of an environment that are drawn anew for each episode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.environments.environment import field_names, outside_bounds, with_fields
from rljax.core.environments.wrappers import Wrapper
from rljax.core.errors import ConfigError, did_you_mean, first_line, shown
from rljax.core.games.chance import step_shapes
from rljax.core.games.game import Game
from rljax.core.games.game_wrappers import Step, WrappedGame


class RandomizedState(NamedTuple):
    """State of `RandomizeParams`: that of the environment, and the parameters drawn for the episode, by name."""

    env_state: Any
    drawn: Mapping[str, jax.Array]


class RandomizeParams(Wrapper):
    """Draw parameters for each episode, uniformly between two bounds; they hold until it ends (Tobin et al., "Domain
    randomization for transferring deep neural networks from simulation to the real world", 2017).

    A policy does not observe them: what it needs to know of them it must find out, for which it may need memory.

    Args:
        env: an environment whose parameters are fields of a dataclass or a NamedTuple.
        ranges: `{ name: (low, high) }` of parameters that are numbers or arrays of numbers; of whole numbers both bounds are
            drawn, too.
    """

    def __init__(self, env: Any, ranges: Mapping[str, tuple[float, float]]):
        super().__init__(env)
        self.ranges = dict(ranges)

    def inner(self, state: RandomizedState) -> Any:
        return state.env_state

    def inner_params(self, state: RandomizedState, params: Any) -> Any:
        return with_fields(params, state.drawn)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, RandomizedState]:
        draw_key, key = jax.random.split(key)
        keys = jax.random.split(draw_key, len(self.ranges))
        drawn = {
            name: _draw(k, getattr(params, name), *self.ranges[name]) for k, name in zip(keys, sorted(self.ranges), strict=True)
        }
        obs, state = self.env.reset_env(key, with_fields(params, drawn))
        return obs, RandomizedState(state, drawn)

    def step_env(
        self, key: jax.Array, state: RandomizedState, action: Any, params: Any
    ) -> tuple[Any, RandomizedState, jax.Array, jax.Array, dict[str, Any]]:
        obs, env_state, reward, terminated, info = self.env.step_env(
            key, state.env_state, action, self.inner_params(state, params)
        )
        return obs, RandomizedState(env_state, state.drawn), reward, terminated, info


class GameRandomizeParams(RandomizeParams, WrappedGame):
    """`RandomizeParams` for games: all players of a game have the same parameters, which only scripted players know."""

    def __init__(self, game: Game, ranges: Mapping[str, tuple[float, float]]):
        super().__init__(game, ranges)
        self.hides_state = True

    def step_outcome(self, state: RandomizedState, action: Any, outcome: jax.Array, params: Any) -> Step:
        obs, env_state, *rest = self.env.step_outcome(state.env_state, action, outcome, self.inner_params(state, params))
        return obs, RandomizedState(env_state, state.drawn), *rest

    def initial_states(self, params: Any) -> tuple[Any, jax.Array]:
        raise NotImplementedError(f"{self.name} with randomize does not enumerate its initial states")


def _draw(key: jax.Array, default: Any, low: float, high: float) -> jax.Array:
    dtype, shape = jnp.result_type(default), jnp.shape(default)
    if jnp.issubdtype(dtype, jnp.integer):
        return jax.random.randint(key, shape, int(low), int(high) + 1, dtype)
    return jax.random.uniform(key, shape, dtype, float(low), float(high))


def randomized(env: Any, env_params: Any, table: Mapping[str, Any]) -> Any:
    """Return the environment or game with the parameters that a configuration's `randomize` names drawn for each episode.

    Raises:
        ConfigError: there is no such parameter, a range is none, or the environment cannot take it anew for each episode.
    """
    ranges = {name: _range(env, env_params, name, bounds) for name, bounds in table.items()}
    for values in _corners(env_params, ranges):
        _check_spaces(env, with_fields(env_params, values))
    wrapped = GameRandomizeParams(env, ranges) if isinstance(env, Game) else RandomizeParams(env, ranges)
    try:
        state, action, key = step_shapes(wrapped, env_params)
        jax.eval_shape(lambda k, s, a: wrapped.step_env(k, s, a, env_params), key, state, action)
    except (TypeError, ValueError, IndexError) as error:
        raise ConfigError(
            f"randomize: {env.name} cannot take {', '.join(ranges)} anew for each episode, its program depends on them: "
            f"{first_line(error)}"
        ) from error
    return wrapped


def _corners(env_params: Any, ranges: Mapping[str, tuple[float, float]]) -> Iterator[dict[str, Any]]:
    """Yield the parameters with all ranges at their lower ends, all at their upper ends, and with each one at the other end."""
    low, high = {}, {}
    for name, bounds in ranges.items():
        default = getattr(env_params, name)
        ends = (np.full(jnp.shape(default), x, jnp.result_type(default)) for x in bounds)
        low[name], high[name] = (end.item() if isinstance(default, (bool, int, float)) else end for end in ends)
    yield from (low, high)
    for name in ranges:
        yield low | {name: high[name]}
        yield high | {name: low[name]}


def _check_spaces(env: Any, env_params: Any) -> None:
    """Refuse parameters that the environment itself refuses, when it is asked for its spaces."""
    try:
        env.observation_space(env_params)
        env.action_space(env_params)
    except ConfigError as error:
        raise ConfigError(f"randomize: {error}") from error
    except Exception as error:  # whatever an environment of one's own raises
        raise ConfigError(f"randomize: {first_line(error)}") from error


def _range(env: Any, env_params: Any, name: str, bounds: Any) -> tuple[float, float]:
    known = field_names(env_params)
    if name not in known:
        hint = did_you_mean(name, known) if known else "it has none"
        raise ConfigError(f"randomize: {env.name} has no parameter '{name}': {hint}")
    default = getattr(env_params, name)
    dtype = (
        None
        if isinstance(default, bool) or not isinstance(default, (int, float, np.ndarray, np.generic, jax.Array))
        else (jnp.result_type(default))
    )
    if dtype is None or not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)):
        raise ConfigError(
            f"randomize: parameter {name} of {env.name} is a {type(default).__name__}, expected one that is a number"
        )
    whole = bool(jnp.issubdtype(dtype, jnp.integer))
    numbers = isinstance(bounds, (list, tuple)) and len(bounds) == 2 and all(_is_number(x, whole) for x in bounds)
    if not numbers or bounds[0] > bounds[1]:
        example = "[1, 3]" if whole else "[0.5, 2.0]"
        kind = "whole numbers" if whole else "numbers"
        raise ConfigError(
            f"randomize: {name} = {shown(bounds)}: expected two {kind} [low, high] with low <= high, such as {example}"
        )
    with np.errstate(over="ignore"):
        width = float(bounds[1]) - float(bounds[0])
        finite = whole or np.isfinite(np.asarray([*bounds, width], np.float64).astype(jnp.dtype(dtype))).all()
    if not finite:
        raise ConfigError(
            f"randomize: {name} = {shown(bounds)}: expected numbers of {jnp.dtype(dtype).name}, and their difference, too"
        )
    allowed = outside_bounds(env_params, name, np.asarray(bounds))
    if allowed is not None:
        raise ConfigError(f"randomize: {name} = {shown(bounds)}: expected {allowed}")
    return bounds[0], bounds[1]


def _is_number(x: Any, whole: bool) -> bool:
    if isinstance(x, bool) or not isinstance(x, (int, float)):
        return False
    return bool(np.isfinite(x)) and (not whole or (x == int(x) and abs(x) < 2**31 - 1))
