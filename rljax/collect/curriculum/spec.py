"""Tables that describe a curriculum."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax

from rljax.collect.curriculum.levels import LevelParams, with_levels
from rljax.collect.curriculum.rules import (
    SCORES,
    Curriculum,
    EpisodeSteps,
    prioritized_levels,
    success_rate_levels,
    uniform_levels,
)
from rljax.core.environments.environment import METRICS, attribute
from rljax.core.errors import ConfigError, did_you_mean, shown
from rljax.core.games.chance import step_shapes

_KEYS = {
    "uniform": (),
    "success": ("success", "threshold", "review", "min_episodes", "decay"),
    "plr": ("score", "temperature", "staleness", "replay"),
}

_RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "threshold": ("a number > 0 and <= 1", lambda x: 0 < x <= 1),
    "review": ("a number >= 0 and < 1", lambda x: 0 <= x < 1),
    "min_episodes": ("a number >= 1", lambda x: x >= 1),
    "decay": ("a number > 0 and <= 1", lambda x: 0 < x <= 1),
    "temperature": ("a number > 0", lambda x: x > 0),
    "staleness": ("a number >= 0 and <= 1", lambda x: 0 <= x <= 1),
    "replay": ("a number >= 0 and < 1", lambda x: 0 <= x < 1),
}


def make_curriculum(table: Mapping[str, Any], env: Any, env_params: Any) -> tuple[Curriculum, Any, LevelParams]:
    """Return the rule of a configuration's `curriculum` table, the environment or game that takes its levels, and its parameters.

    Tables are `{ type = "uniform", levels = ... }`, `{ type = "success", levels = ..., success = ..., threshold = 0.8, review =
    0.25, min_episodes = 32, decay = 0.99 }` and `{ type = "plr", levels = ..., score = "value_l1", temperature = 0.1, staleness =
    0.1, replay = 0.5 }`; see `with_levels`, `success_rate_levels` and `prioritized_levels`. `success` is the least return of an
    episode that is a success (by default the environment's `reward_threshold`), or the name of one of the environment's metrics,
    which is above 0 at the end of one.

    Args:
        table: the table.
        env: the environment, as training takes it, with the statistics of episodes; or a game.
        env_params: its parameters.

    Raises:
        ConfigError: an unknown type or key, a value that is not allowed, or levels that the environment cannot take.
    """
    options = dict(table)
    if "type" not in options or "levels" not in options:
        raise ConfigError(
            f"curriculum = {shown(options)}: expected a table with a type and levels, such as "
            "{ type = 'success', levels = [...] }"
        )
    kind, levels = options.pop("type"), options.pop("levels")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise ConfigError(f"curriculum.type = {shown(kind)}: {did_you_mean(str(kind), _KEYS)}")
    for key, value in options.items():
        if key not in _KEYS[kind]:
            known = ["type", "levels", *_KEYS[kind]]
            raise ConfigError(f"curriculum.{key}: unknown key of type '{kind}', {did_you_mean(key, known)}")
        if key in _RANGES:
            expected, allowed = _RANGES[key]
            if not _is_number(value) or not allowed(value):
                raise ConfigError(f"curriculum.{key} = {shown(value)}: expected {expected}")
    if options.get("score", "gae") not in SCORES:
        raise ConfigError(f"curriculum.score = {shown(options['score'])}: {did_you_mean(str(options['score']), SCORES)}")
    wrapped, params = with_levels(env, env_params, levels)
    count = len(params.cumulative)
    if kind == "uniform":
        return uniform_levels(count), wrapped, params
    if kind == "plr":
        return prioritized_levels(count, **options), wrapped, params
    decay, least = options.get("decay", 0.99), options.get("min_episodes", 32)
    if decay < 1 and least >= 1 / (1 - decay):
        raise ConfigError(
            f"curriculum.min_episodes = {shown(least)}: expected less than 1 / (1 - decay) = {1 / (1 - decay):g}, "
            "which a record never exceeds"
        )
    succeeded = _success(options.pop("success", None), env, env_params)
    rule = success_rate_levels(count, succeeded, **options)
    return rule, wrapped, params.with_probability(rule.probability(rule.init()))


def _success(success: Any, env: Any, env_params: Any) -> Callable[[EpisodeSteps], jax.Array]:
    """Return `steps -> bool [T, N]`: whether an episode that ends at a step is a success."""
    if isinstance(success, str):
        state, action, key = step_shapes(env, env_params)
        info = jax.eval_shape(lambda k, s, a: env.step_env(k, s, a, env_params)[-1], key, state, action)
        metrics = info.get(METRICS, {})
        if success not in metrics:
            hint = did_you_mean(success, metrics) if metrics else "it has none"
            raise ConfigError(f"curriculum.success = {shown(success)}: {env.name} has no such metric in its info: {hint}")
        name = success
        return lambda steps: steps.metrics[name] > 0
    least = attribute(env, "reward_threshold", None) if success is None else success
    if least is None:
        raise ConfigError(
            f"curriculum.success: {env.name} has no reward_threshold, so give the least return of a success, or a metric's name"
        )
    if not _is_number(least):
        raise ConfigError(
            f"curriculum.success = {shown(least)}: expected a number, the least return of a success, or a metric's name"
        )
    number = float(least)  # JAX refuses whole numbers beyond i32
    return lambda steps: steps.returns >= number


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)
