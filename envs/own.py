"""A user's own environments by "package.module:Class", and advice for those that commands cannot find by such a name."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from rljax.core.config import OBJECT_PREFIX
from rljax.core.errors import ConfigError, did_you_mean, first_line


def is_path(env_id: str) -> bool:
    """Return whether an id has the form "package.module:Class"."""
    module, colon, name = env_id.partition(":")
    return bool(colon) and all(part.isidentifier() for dotted in (module, name) for part in dotted.split("."))


def import_env(env_id: str) -> Callable[..., Any]:
    """Import the module of "package.module:Class" and return a function that builds the environment.

    Only a class of environments or games, or an existing environment, is accepted. Nothing else is called, since a configuration
    may come from somebody else.

    Raises:
        ConfigError: there is no such module or name, the module cannot be imported, or the object is not an environment.
    """
    module_name, _, path = env_id.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(f"env = '{env_id}': importing {module_name} raised {first_line(error)}") from error
        where = "expected one that is installed, or lies in the working directory"
        raise ConfigError(f"env = '{env_id}': there is no module '{error.name}', {where}") from None
    except (Exception, SystemExit) as error:
        raise ConfigError(f"env = '{env_id}': importing {module_name} raised {first_line(error)}") from error
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            known = [name for name, value in vars(found).items() if isinstance(value, type) and _is_environment(value)]
            hint = did_you_mean(part, known) if known else "it has no environments"
            raise ConfigError(f"env = '{env_id}': {module_name} has no '{part}': {hint}")
        found = getattr(found, part)
    if not _is_environment(found):
        raise ConfigError(f"env = '{env_id}': is no environment: expected a class with reset_env and step_env")
    return found if isinstance(found, type) else lambda: found


def _is_environment(x: Any) -> bool:
    return all(callable(getattr(x, name, None)) for name in ("reset_env", "step_env"))


def path_of(factory: Any) -> str | None:
    """Return "package.module:Class" of a class that other processes can import, and None for anything else."""
    if isinstance(factory, functools.partial) or not isinstance(factory, type):
        return None
    if factory.__module__ == "__main__" or "<locals>" in factory.__qualname__:
        return None
    return f"{factory.__module__}:{factory.__qualname__}"


def how_to_name(path: str | None) -> str:
    """Return advice on how to name an environment so that commands find it; `path` is that of its class, None if unknown."""
    if path is not None:
        return f'name it by its class for commands to find it: env = "{path}"'
    return 'put its class in a module of its own for commands to find it: env = "module:Class"'


def object_error(text: str) -> ConfigError:
    """Return the error for an environment of which a run folder has only the object's class, `text` "object:module:Class"."""
    module, _, name = text.removeprefix(OBJECT_PREFIX).rpartition(":")
    importable = module not in ("", "__main__") and "<locals>" not in name
    again = "in Python give it again, load_run(path, env=...) or fit(config, resume=...)"
    how = how_to_name(f"{module}:{name}" if importable else None)
    return ConfigError(f"the environment was given as an object of class {name}: {again}; before training, {how}")
