"""EnvPool (Weng et al., 2022): `envpool:Pong-v5`, `envpool:Ant-v4` and so on, in threads of C++."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import envpool

from rljax.core.errors import ConfigError
from rljax.envs.adapters import check_name, plain_values, with_arguments
from rljax.envs.adapters.gymnasium import TIMEOUT, simulated
from rljax.envs.simulators.environment import SimulatedEnv

NOT_OURS = ("num_envs", "batch_size", "seed", "num_threads", "thread_affinity_offset", "task")
"""Arguments of EnvPool that say how environments are run, or what the id has said: another task ends the whole process."""


def ids() -> list[str]:
    return sorted(envpool.list_all_envs())


def factory(name: str) -> Callable[..., Any]:
    """Return the function that builds an environment; its arguments are EnvPool's, and `timeout` (see Gymnasium's adapter)."""
    check_name("envpool", name, ids())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own spaces
        config = envpool.make_spec(name).config
    arguments = {key: value for key, value in plain_values(config._asdict()).items() if key not in NOT_OURS}
    return with_arguments(functools.partial(_make, name), arguments | {"timeout": TIMEOUT})


def adapt(env: Any) -> Any:
    raise ConfigError(f"env: {type(env).__name__} is an object of EnvPool; give its id, such as env = 'envpool:Pong-v5'")


def _make(name: str, timeout: float = TIMEOUT, **arguments: Any) -> SimulatedEnv:
    return _made(name, float(timeout), tuple(sorted(arguments.items())))


@functools.lru_cache(maxsize=32)
def _made(name: str, timeout: float, arguments: tuple[tuple[str, Any], ...]) -> SimulatedEnv:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = envpool.make_spec(name, **dict(arguments))
        spaces = spec.gymnasium_observation_space, spec.gymnasium_action_space
    threshold = getattr(spec.config, "reward_threshold", None)
    # One process: its threads are EnvPool's own.
    return simulated(f"envpool:{name}", "envpool", name, dict(arguments), *spaces, 1, timeout, threshold)
