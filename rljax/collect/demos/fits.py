"""Check that a dataset is of the environment that a configuration names."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np

from rljax.collect.demos.dataset import Dataset, open_dataset
from rljax.collect.demos.schema import named_leaves
from rljax.collect.environments import RULES
from rljax.core.config import env_name
from rljax.core.environments.observation_wrappers import FrameStack
from rljax.core.environments.spaces import Box, Space, as_space, head_sizes
from rljax.core.errors import ConfigError, RljaxWarning, shown
from rljax.core.games.game_wrappers import GameFrameStack
from rljax.core.games.versus import Versus
from rljax.core.plain import to_plain

VIEWS = ("flatten_observations", "frame_stack")
"""Fields of configurations that change the space of observations."""


def open_fitting(config: Any, env: Any, env_params: Any, held_out: float = 0.0) -> Dataset:
    """Open the dataset that a configuration names (see `open_dataset`), and check that it is of its environment.

    Observations that were recorded without the frames that the policy sees are stacked when they are read. Other rules than
    those that the dataset was recorded with get a warning.

    Raises:
        ConfigError: there is none, it is damaged, or it was recorded in another environment (see `check_dataset`).
    """
    if config.dataset is None:
        raise ConfigError("dataset = none: expected the folder of a dataset, such as `rljax demo` records")
    found = _in_frames(open_dataset(config.dataset, held_out=held_out), env, env_params)
    check_dataset(found, env, env_params, env_name(config))
    _warn_of_rules(found, config, env)
    return found


def _in_frames(dataset: Dataset, env: Any, env_params: Any) -> Dataset:
    """Return a dataset whose observations are stacked as those of `env`, if it was recorded without that."""
    stack = next((level for level in _levels(env) if isinstance(level, (FrameStack, GameFrameStack))), None)
    if stack is None or _form(as_space(stack.env.observation_space(env_params))) != _form(dataset.info.observation_space):
        return dataset
    space = as_space(stack.observation_space(env_params))
    return dataset._replace(info=dataset.info._replace(observation_space=space, frames=stack.count))


def check_dataset(dataset: Dataset, env: Any, env_params: Any, name: str) -> None:
    """Check that a dataset was recorded in an environment, or in the game that it plays one seat of.

    Bounds of spaces may differ, and parameters that do not change the shapes.

    Args:
        dataset: the dataset.
        env: the environment, with observations as the policy sees them.
        env_params: its parameters.
        name: its name, for the message.

    Raises:
        ConfigError: it was recorded in another environment, or with other spaces; the message names both.
    """
    levels = _levels(env)
    names = {name, *(level.name for level in levels)}
    recorded = dataset.info.env
    if recorded not in names:
        raise ConfigError(f"dataset = {str(dataset.path)!r}: was recorded in {recorded}, but env = {name!r}")
    for what, here, there in (
        ("observations", env.observation_space(env_params), dataset.info.observation_space),
        ("actions", env.action_space(env_params), dataset.info.action_space),
    ):
        of_env, of_data = _form(as_space(here)), _form(there)
        if of_env != of_data and what == "observations" and of_data == _form(as_space(levels[-1].observation_space(env_params))):
            raise ConfigError(
                f"dataset = {str(dataset.path)!r}: holds observations as {recorded} gives them, {_said(of_data)}, but the policy "
                f"sees {_said(of_env)}: expected flatten_observations = false, and an algorithm that sees all parts of them"
            )
        if of_env != of_data:
            views = {field: value for field, value in dataset.info.wrappers.items() if field in VIEWS}
            fields = "".join(f" and {field} = {str(value).lower()}" for field, value in views.items())
            raise ConfigError(
                f"dataset = {str(dataset.path)!r}: was recorded in {recorded} with {what} {_said(of_data)}, "
                f"but those of env = {name!r} are {_said(of_env)}: expected the same env_params{fields}"
            )


def _warn_of_rules(dataset: Dataset, config: Any, env: Any) -> None:
    """Warn of the rules that a dataset was recorded with, where the configuration has others."""
    of_game = dataset.info.env != env_name(config) and any(isinstance(level, Versus) for level in _levels(env))
    if of_game and not config.of_games:
        return  # an agent against a fixed player leaves the rules of the game's matches to the others
    recorded = {rule: value for rule, value in dataset.info.wrappers.items() if rule in RULES}
    # In a sweep a value may be traced.
    own = {rule: to_plain(x) for rule in recorded if not isinstance(x := getattr(config, rule), jax.core.Tracer)}
    differ = [rule for rule in own if own[rule] != recorded[rule]]
    if differ:
        there, here = (" and ".join(f"{rule} = {_said(table[rule])}" for rule in differ) for table in (recorded, own))
        matches = ", and plays no matches with the recorded players" if config.of_games else ""
        warnings.warn(
            f"dataset = {str(dataset.path)!r}: was recorded with {there}, but the configuration has {here}: set what was "
            f"recorded, or the policy is evaluated by other rules{matches}",
            RljaxWarning,
            stacklevel=3,
        )


def _levels(env: Any) -> list[Any]:
    """Return an environment or game, and those inside it."""
    levels = [env]
    while (inner := getattr(levels[-1], "env", None)) is not None:
        levels.append(inner)
    return levels


def _form(space: Space) -> Any:
    """Return a space of heads in words, such as "Discrete(2)", or the shapes of a space's leaves by name."""
    sizes = None if isinstance(space, Box) else head_sizes(space)
    if sizes is not None:
        return f"{type(space).__name__}({', '.join(map(str, sizes))})"
    example = jax.eval_shape(space.sample, jax.eval_shape(lambda: jax.random.key(0)))
    leaves = {path.removeprefix("x").removeprefix("."): list(x.shape) for path, x in named_leaves("x", _plain(example)).items()}
    return leaves[""] if list(leaves) == [""] else leaves


def _said(form: Any) -> str:
    return form if isinstance(form, str) else shown(form)


def _plain(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.empty(x.shape, np.int8), tree)
