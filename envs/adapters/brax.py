"""Brax (Freeman et al., 2021): `brax:ant`, `brax:halfcheetah`, `brax:inverted_pendulum` and so on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brax import envs

from rljax.envs.adapters import check_name, plain_arguments, with_arguments
from rljax.envs.adapters.brax_api import BraxEnv


def ids() -> list[str]:
    return sorted(envs._envs)


def factory(name: str) -> Callable[..., Any]:
    """Return the function that builds an environment; its arguments are those of Brax's class, such as `backend`."""
    check_name("brax", name, ids())
    arguments = plain_arguments(envs._envs[name])
    return with_arguments(lambda **given: BraxEnv(envs.get_environment(name, **given), f"brax:{name}"), arguments)


def adapt(env: Any) -> BraxEnv:
    return BraxEnv(env, f"brax:{type(env).__name__}")
