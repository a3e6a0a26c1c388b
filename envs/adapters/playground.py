"""MuJoCo Playground (Zakka et al., 2025): `playground:CheetahRun`, `playground:CartpoleSwingup` and so on, in MJX in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mujoco_playground import registry

from rljax.envs.adapters import check_name, with_arguments
from rljax.envs.adapters.brax_api import BraxEnv

IMPLEMENTATION = "jax"
"""MJX's own implementation of the physics; the one in Warp cannot be traced into a training step."""


BY_WRAPPERS = ("episode_length", "action_repeat")
"""Fields that only Playground's own training wrappers read; here they are `max_steps_in_episode` and `action_repeat`."""


def ids() -> list[str]:
    return sorted(registry.ALL_ENVS)


def factory(name: str) -> Callable[..., Any]:
    """Return the function that builds an environment; its arguments are the plain fields of its configuration."""
    check_name("playground", name, ids())
    config = registry.get_default_config(name)
    given = {key: value for key, value in config.items() if isinstance(value, (bool, int, float)) and key not in BY_WRAPPERS}
    limit = int(config.get("episode_length", 1000))
    ours = {"impl": IMPLEMENTATION} if "impl" in config else {}

    def build(**changes: Any) -> BraxEnv:
        return BraxEnv(registry.load(name, config_overrides={**ours, **changes}), f"playground:{name}", limit)

    return with_arguments(build, given)


def adapt(env: Any) -> BraxEnv:
    return BraxEnv(env, f"playground:{type(env).__name__}", int(env._config.get("episode_length", 1000)))
