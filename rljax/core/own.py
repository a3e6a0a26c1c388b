"""A user's own classes by "package.module:Class": environments, games, algorithms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rljax.core.errors import ConfigError, did_you_mean, first_line
from rljax.core.imports import import_quietly

ADDRESSES = ("zoo:", "hub:")
"""Prefixes of the addresses of packed agents. `zoo:NAME` has the form of "module:Class", but names no class."""


def is_path(text: str) -> bool:
    """Return whether a text has the form "package.module:Class"."""
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for dotted in (module, name) for part in dotted.split("."))


def import_own(field: str, path: str, is_one: Callable[[Any], bool], kind: str, expected: str) -> Any:
    """Import the module of "package.module:Class" and return what has that name there, which is not called.

    Args:
        field: field of the configuration that has the path, for messages.
        path: "package.module:Class".
        is_one: whether an object is of the kind that the field takes; anything else is refused, since a configuration may come
            from somebody else.
        kind: name of that kind, such as "environment".
        expected: what is allowed, for messages.

    Raises:
        ConfigError: there is no such module or name, the module cannot be imported, or the object is of another kind.
    """
    given, (module_name, _, names) = f"{field} = '{path}'", path.partition(":")
    try:
        module = import_quietly(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{given}: importing {module_name} raised {first_line(error)}") from error
        where = "expected one that is installed, or lies in the working directory"
        raise ConfigError(f"{given}: there is no module '{error.name}', {where}") from None
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{given}: importing {module_name} raised {first_line(error)}") from error
    found: Any = module
    for part in names.split("."):
        if not hasattr(found, part):
            known = [name for name, value in vars(found).items() if isinstance(value, type) and is_one(value)]
            hint = did_you_mean(part, known) if known else f"it has no {kind}s"
            raise ConfigError(f"{given}: {module_name} has no '{part}': {hint}")
        found = getattr(found, part)
    if not is_one(found):
        raise ConfigError(f"{given}: is no {kind}: expected {expected}")
    return found


def path_of(factory: Any) -> str | None:
    """Return "package.module:Class" of a class that other processes can import, and None for anything else."""
    if isinstance(factory, functools.partial) or not isinstance(factory, type):
        return None
    if factory.__module__ == "__main__" or "<locals>" in factory.__qualname__:
        return None
    return f"{factory.__module__}:{factory.__qualname__}"
