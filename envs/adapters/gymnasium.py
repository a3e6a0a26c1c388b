"""Gymnasium (Towers et al., 2024): `gymnasium:Ant-v5`, `gymnasium:ALE/Pong-v5`, `gymnasium:my_package:MyEnv-v0` and so on."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from rljax.core.devices import usable_cores
from rljax.core.environments.spaces import head_sizes
from rljax.core.errors import ConfigError, did_you_mean, first_line
from rljax.core.imports import import_quietly
from rljax.envs.adapters import plain_arguments, plain_values, with_arguments
from rljax.envs.simulators.environment import DrawnEnv, SimulatedEnv
from rljax.envs.simulators.processes import Plan
from rljax.envs.simulators.spaces import convert_spaces
from rljax.envs.simulators.worker import legal, mask_of

TIMEOUT, MAX_TIMEOUT = 60.0, 1e6
"""Time in seconds that a step or a reset may take, unless `env_params` says another, and the longest that it may say."""

OWN_ARGUMENTS = {"workers": 0, "timeout": TIMEOUT}
"""Arguments that every environment takes here besides its own: the number of processes, 0 for one on each processor, and the
time."""


def ids() -> list[str]:
    """Return the ids of the newest versions that Gymnasium knows without further packages."""
    newest: dict[str, int] = {}
    for spec in gymnasium.registry.values():
        if spec.namespace is None:
            newest[spec.name] = max(newest.get(spec.name, 0), spec.version or 0)
    return sorted(spec.id for spec in gymnasium.registry.values() if (spec.name, spec.version) in newest.items())


def factory(name: str) -> Callable[..., Any]:
    """Return the function that builds an environment; its arguments are those of Gymnasium's class and `OWN_ARGUMENTS`."""
    spec = _spec(name)
    entry = spec.entry_point
    if getattr(entry, "__module__", "") == "__main__":
        raise ConfigError(
            f"env = 'gymnasium:{name}': is of this script or notebook, which the processes of simulators do not run: put it into "
            f"a module that registers it, and write 'gymnasium:module:{spec.id}'"
        )
    try:
        module, _, attribute = entry.partition(":") if isinstance(entry, str) else ("", "", "")
        arguments = plain_arguments(getattr(import_quietly(module), attribute) if module else entry)
    except Exception as error:
        raise ConfigError(f"env = 'gymnasium:{name}': {first_line(error)}") from error
    arguments.pop("render_mode", None)  # for those who look at it
    arguments |= plain_values(spec.kwargs) | {"max_episode_steps": spec.max_episode_steps or 0}
    return with_arguments(functools.partial(_make, name), arguments | OWN_ARGUMENTS)


def adapt(env: Any) -> Any:
    raise ConfigError(
        f"env: {type(env).__name__} is an object of Gymnasium, of which many are needed: register it there and give its id, "
        "env = 'gymnasium:my_package:MyEnv-v0'"
    )


def _spec(name: str) -> Any:
    """Return Gymnasium's entry of an id, after importing the package that the id may begin with."""
    package, colon, env_id = name.rpartition(":")
    try:
        if colon:
            import_quietly(package)
        elif name.startswith("ALE/"):
            gymnasium.register_envs(import_quietly("ale_py"))
    except ModuleNotFoundError as error:
        hint = "" if error.name == "ale_py" else ": is it in the current folder, or on PYTHONPATH?"
        raise ConfigError(f"env = 'gymnasium:{name}': {error.name} is not installed{hint}") from error
    except Exception as error:
        raise ConfigError(f"env = 'gymnasium:{name}': {package} cannot be imported: {first_line(error)}") from error
    try:
        return gymnasium.spec(env_id)
    except gymnasium.error.Error as error:
        listed_by = None if colon else "rljax list gymnasium"  # which imports no package of a user
        raise ConfigError(f"env = 'gymnasium:{name}': {did_you_mean(env_id, ids(), listed_by, 'gymnasium:')}") from error


def _make(name: str, workers: int = 0, timeout: float = TIMEOUT, **arguments: Any) -> SimulatedEnv:
    if arguments.get("max_episode_steps") == 0:
        arguments["max_episode_steps"] = -1  # Gymnasium's number for no limit, whatever the id has
    return _made(name, workers, float(timeout), tuple(sorted(arguments.items())))


@functools.lru_cache(maxsize=32)
def _made(name: str, workers: int, timeout: float, arguments: tuple[tuple[str, Any], ...], draws: bool = False) -> SimulatedEnv:
    given = dict(arguments) | ({"render_mode": "rgb_array"} if draws else {})
    env = gymnasium.make(name, disable_env_checker=True, **given)
    spaces = env.observation_space, env.action_space
    threshold = env.spec.reward_threshold if env.spec else None
    picture, drawn, mask = None, None, None
    if draws or not isinstance(env.action_space, gymnasium.spaces.Box):
        info: Any = None
        with contextlib.suppress(Exception):  # what fails here fails in the simulators' processes, which say so
            info = env.reset(seed=0)[1]
        try:
            mask = None if info is None else mask_of(env, info)
        except Exception as error:
            raise ConfigError(f"env = 'gymnasium:{name}': its mask of actions: {first_line(error)}") from error
    if draws:
        picture = np.asarray(env.render()).shape
    elif "rgb_array" in env.metadata.get("render_modes", ()):
        drawn = functools.partial(_made, name, workers, timeout, arguments, draws=True)
    env.close()
    return simulated(f"gymnasium:{name}", "gymnasium", name, given, *spaces, workers, timeout, threshold, mask, picture, drawn)


def simulated(
    title: str,
    suite: str,
    name: str,
    arguments: dict[str, Any],
    observation_space: Any,
    action_space: Any,
    workers: int,
    timeout: float,
    reward_threshold: float | None,
    mask: Any = None,
    picture: tuple[int, ...] | None = None,
    drawn: Callable[[], Any] | None = None,
) -> SimulatedEnv:
    """Return an environment of one of `worker.SUITES`; the spaces are Gymnasium's, and `mask` is one that it has shown, if any.

    Raises:
        ConfigError: a number is not allowed, a space is not supported, or the mask has not one flag for each action.
    """
    if workers < 0:
        raise ConfigError(f"workers = {workers}: expected a whole number >= 0; 0: one for each processor")
    if not 0 < timeout <= MAX_TIMEOUT:
        raise ConfigError(f"timeout = {timeout:g}: expected a number of seconds > 0 and <= {MAX_TIMEOUT:g}")
    obs_space, actions, layout = convert_spaces(
        f"env = '{title}'", observation_space, action_space, channels_first=suite == "envpool"
    )
    heads = () if mask is None else head_sizes(actions) or ()
    try:
        if heads:
            legal(mask, heads)
    except ValueError as error:
        raise ConfigError(f"env = '{title}': {error}, one for each action") from None
    plan = Plan(title, suite, name, arguments, layout, workers or usable_cores(), timeout, heads, picture)
    return (SimulatedEnv if picture is None else DrawnEnv)(plan, obs_space, actions, reward_threshold, drawn)
