"""Describe environments by their ids, for lists of them."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any

from rljax.core.contract import innermost
from rljax.envs import probes
from rljax.envs.registry import factory_of, make_env, named_arguments


def describe_env(env_id: str) -> str:
    """Describe an environment in one sentence: from its module's docstring if that begins with its id, else from its class's.

    Raises:
        ConfigError: there is no such environment.
    """
    factory = factory_of(env_id)
    if not isinstance(factory, type):
        factory = type(innermost(make_env(env_id)[0]))
    told = (getattr(sys.modules.get(factory.__module__), "__doc__", None) or "").partition("\n")[0]
    title, _, text = told.partition(": ")
    found = sentence(text if title == env_id else inspect.cleandoc(factory.__doc__ or ""))
    return found[:1].upper() + found[1:]


def is_probe(env_id: str) -> bool:
    """Return whether an environment is a probe, which tests one thing that a learner must get right."""
    return getattr(factory_of(env_id), "__module__", "") == probes.__name__


def constructor_arguments(env_id: str) -> dict[str, Any]:
    """Return the arguments of an environment's constructor that `make_env` takes like parameters, and their defaults."""
    return named_arguments(factory_of(env_id))


def sentence(text: str) -> str:
    """Return the first sentence of the first paragraph."""
    return re.split(r"(?<=[.?!])\s", " ".join(text.partition("\n\n")[0].split()), maxsplit=1)[0]
