"""Levels: values of an environment's parameters, of which each episode takes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.environments.environment import field_names, with_fields
from rljax.core.environments.spaces import as_space
from rljax.core.environments.wrappers import Wrapper
from rljax.core.errors import ConfigError, did_you_mean, first_line, shown
from rljax.core.games.chance import step_shapes
from rljax.core.games.game import Game
from rljax.core.games.game_wrappers import Step, WrappedGame
from rljax.envs import resolve_env

LEVEL = "level"
"""Entry of the info of `Levels`: the episode's level, i32 []."""

LEVEL_SCORE = "level_score"
"""Entry of that info: what `LevelState.score` was before the step."""

MAX_LEVELS = 65_536
"""Largest number of levels: each is looked at before training."""


class LevelParams(struct.PyTreeNode):
    """Parameters of an environment with L levels.

    Attributes:
        base: the parameters of the environment; those that levels do not name are the same in all of them.
        values: the parameters that levels differ in, by name, `[L, ...]`.
        cumulative: running sum of the weights of the levels, f32 `[L]`: an episode takes each with a probability in proportion
            to its weight.
    """

    base: Any
    values: Mapping[str, jax.Array]
    cumulative: jax.Array

    def with_probability(self, probability: jax.Array) -> LevelParams:
        """Return the parameters with other weights of the levels, f32 `[L]`."""
        # Sums that are computed in parallel rise or fall by rounding errors where there is no weight.
        sums = jax.lax.cummax(jnp.where(probability > 0, jnp.cumsum(probability), 0.0))
        result: LevelParams = self.replace(cumulative=sums)
        return result

    def of(self, level: Any) -> Any:
        """Return the environment's parameters in a level, i32 []."""
        return with_fields(self.base, {name: x[level] for name, x in self.values.items()})

    def draw(self, key: jax.Array) -> jax.Array:
        """Draw a level, i32 []."""
        # The product is below the last sum, so a level without weight is never drawn.
        point = jax.random.uniform(key) * self.cumulative[-1]
        return jnp.searchsorted(self.cumulative, point, side="right").astype(jnp.int32)


class LevelState(NamedTuple):
    """State of `Levels`.

    Attributes:
        env_state: state of the environment.
        level: the episode's level, i32 [].
        score: sum of the scores of the steps that rollouts took of this episode so far, f32 []; of a game f32 [2]: this sum over
            the learner's moves, and their number.
    """

    env_state: Any
    level: jax.Array
    score: jax.Array


class Levels(Wrapper):
    """Draw a level for each episode, whose parameters hold until it ends; `info["level"]` says which. Takes `LevelParams`."""

    score_shape: tuple[int, ...] = ()

    @property
    def default_params(self) -> LevelParams:
        """One level, with the environment's default parameters."""
        return LevelParams(self.env.default_params, {}, np.ones(1, np.float32))  # type: ignore[arg-type]

    def inner(self, state: LevelState) -> Any:
        return state.env_state

    def inner_params(self, state: LevelState, params: LevelParams) -> Any:
        return params.of(state.level)

    def reset_env(self, key: jax.Array, params: LevelParams) -> tuple[Any, LevelState]:
        level_key, key = jax.random.split(key)
        level = params.draw(level_key)
        obs, env_state = self.env.reset_env(key, params.of(level))
        return obs, LevelState(env_state, level, jnp.zeros(self.score_shape, jnp.float32))

    def step_env(
        self, key: jax.Array, state: LevelState, action: Any, params: LevelParams
    ) -> tuple[Any, LevelState, jax.Array, jax.Array, dict[str, Any]]:
        return self._told(state, self.env.step_env(key, state.env_state, action, params.of(state.level)))

    def _told(self, before: LevelState, step: Step) -> tuple[Any, LevelState, jax.Array, jax.Array, dict[str, Any]]:
        obs, env_state, reward, terminated, info = step
        info = {**info, LEVEL: before.level, LEVEL_SCORE: before.score}
        return obs, before._replace(env_state=env_state), reward, terminated, info

    def observation_space(self, params: LevelParams) -> Any:
        return super().observation_space(params.base)

    def action_space(self, params: LevelParams) -> Any:
        return super().action_space(params.base)


class GameLevels(Levels, WrappedGame):
    """`Levels` for games: all players of a game are on the same level, which scripted players and searches know, as they know the
    rules.
    """

    score_shape = (2,)

    def step_outcome(self, state: LevelState, action: Any, outcome: jax.Array, params: LevelParams) -> Step:
        return self._told(state, self.env.step_outcome(state.env_state, action, outcome, params.of(state.level)))

    def initial_states(self, params: LevelParams) -> tuple[Any, jax.Array]:
        raise NotImplementedError(f"{self.name} with levels does not enumerate its initial states")

    def head_names(self, params: LevelParams) -> tuple[str, ...]:
        return super().head_names(params.base)

    def action_names(self, params: LevelParams) -> tuple[str, ...]:
        return super().action_names(params.base)


def level_state(env_state: Any) -> LevelState:
    """Return the state of `Levels` in a state that other wrappers may be around."""
    found: LevelState = next(filter(_is_level_state, jax.tree.leaves(env_state, is_leaf=_is_level_state)))
    return found


def with_score(env_state: Any, score: jax.Array) -> Any:
    """Return a state that holds one of `Levels`, with another `LevelState.score`."""
    changed = lambda x: x._replace(score=score) if _is_level_state(x) else x  # noqa: E731
    return jax.tree.map(changed, env_state, is_leaf=_is_level_state)


def _is_level_state(x: Any) -> bool:
    return isinstance(x, LevelState)


def with_levels(env: Any, env_params: Any, levels: Any) -> tuple[Levels, LevelParams]:
    """Return an environment or game whose episodes take levels, all with the same probability, and its parameters.

    Args:
        env: the environment or game, as training takes it.
        env_params: its parameters.
        levels: a list of tables such as `[{ start_distance = 4 }, { start_distance = 8 }]`, or a table of lists,
            `{ start_distance = [4, 8] }`.

    Raises:
        ConfigError: the levels are not tables of one set of parameters, or the environment cannot take one of them for each
            episode.
    """
    params = _level_params(env, env_params, levels)
    wrapped = GameLevels(env) if isinstance(env, Game) else Levels(env)
    try:
        state, action, key = step_shapes(wrapped, params)
        jax.eval_shape(wrapped.step_env, key, state, action, params)
    except (TypeError, ValueError, IndexError) as error:
        raise ConfigError(
            f"curriculum.levels: {env.name} cannot take {', '.join(params.values)} anew for each episode, its program depends on "
            f"them: {first_line(error)}"
        ) from error
    return wrapped, params


def _level_params(env: Any, env_params: Any, levels: Any) -> LevelParams:
    """Return the parameters of `with_levels`, without looking whether the environment can take them anew for each episode."""
    columns = _columns(levels)
    # Sweeps make their environments in a traced function, in which the numbers of the levels are to be numbers all the same.
    with jax.ensure_compile_time_eval():
        values = {name: _stacked(env, env_params, name, column) for name, column in columns.items()}
        count = len(next(iter(values.values())))
        params = LevelParams(env_params, values, jnp.cumsum(jnp.full(count, 1.0 / count)))
        _check_spaces(env, params, count)
    return params


def _columns(levels: Any) -> dict[str, Sequence[Any]]:
    """Return the values of each parameter over the levels."""
    example = (
        "expected a list of tables, such as [{ max_steps_in_episode = 50 }, { max_steps_in_episode = 100 }], or a table of lists"
    )
    if isinstance(levels, Mapping):
        columns = dict(levels)
        if not columns or not all(isinstance(column, (list, tuple)) and column for column in columns.values()):
            raise ConfigError(f"curriculum.levels = {shown(columns)}: {example}")
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ConfigError(f"curriculum.levels: expected lists of one length, got {lengths}")
    else:
        if not isinstance(levels, (list, tuple)) or not levels or not all(isinstance(x, Mapping) and x for x in levels):
            raise ConfigError(f"curriculum.levels = {shown(levels)}: {example}")
        for i, level in enumerate(levels):
            if set(level) != set(levels[0]):
                raise ConfigError(
                    f"curriculum.levels[{i}]: has {', '.join(sorted(level))}, and levels[0] has {', '.join(sorted(levels[0]))}; "
                    "expected the same parameters in all levels"
                )
        columns = {name: [level[name] for level in levels] for name in levels[0]}
    count = len(next(iter(columns.values())))
    if count > MAX_LEVELS:
        raise ConfigError(f"curriculum.levels: got {count} levels, expected at most {MAX_LEVELS}")
    return columns


def _stacked(env: Any, env_params: Any, name: str, column: Sequence[Any]) -> jax.Array:
    """Return the values of one parameter as an array `[L, ...]` of its dtype."""
    known = field_names(env_params)
    if name not in known:
        hint = did_you_mean(name, known) if known else "it has none"
        raise ConfigError(f"curriculum.levels: {env.name} has no parameter '{name}' that can change between episodes: {hint}")
    default = getattr(env_params, name)
    if not isinstance(default, (bool, int, float, np.ndarray, np.generic, jax.Array)):
        raise ConfigError(
            f"curriculum.levels: parameter {name} of {env.name} is a {type(default).__name__}, expected one that is a number or "
            "an array, which can be stacked"
        )
    values = []
    for i, value in enumerate(column):
        try:
            values.append(getattr(resolve_env(env, {name: value})[1], name))
        except ConfigError as error:
            raise ConfigError(f"curriculum.levels[{i}]: {error}") from error
    return jnp.asarray(np.stack([np.asarray(x) for x in values]), jnp.result_type(default))


def _check_spaces(env: Any, params: LevelParams, count: int) -> None:
    """Refuse levels whose actions or observations are not those of the environment's own parameters."""
    values = {name: np.asarray(x) for name, x in params.values.items()}
    for what in ("action_space", "observation_space"):
        expected = _outline(getattr(env, what)(params.base))
        for i in range(count):
            level = params.replace(values={name: x[i : i + 1] for name, x in values.items()}).of(0)
            try:
                found = _outline(getattr(env, what)(level))
            except ConfigError as error:
                raise ConfigError(f"curriculum.levels[{i}]: {error}") from error
            if found != expected:
                raise ConfigError(
                    f"curriculum.levels[{i}]: the {what} of {env.name} is {found} there, expected that of env_params, {expected}"
                )


def _outline(space: Any) -> str:
    """Describe what a policy must know of a space: its kind, numbers of actions, shapes and dtypes."""
    space = as_space(space)
    if hasattr(space, "spaces"):
        parts = space.spaces.items() if isinstance(space.spaces, Mapping) else enumerate(space.spaces)
        return f"{type(space).__name__}({', '.join(f'{name}: {_outline(part)}' for name, part in parts)})"
    actions = getattr(space, "nvec", getattr(space, "n", None))
    counts = "" if actions is None else f"{np.asarray(actions).tolist()}, "
    return f"{type(space).__name__}({counts}{[int(size) for size in space.shape]}, {jnp.dtype(space.dtype).name})"
