"""A user's own environments by "package.module:Class", and advice for those that commands cannot find by such a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rljax.core.errors import ConfigError
from rljax.core.own import import_own
from rljax.core.plain import OBJECT_PREFIX


def import_env(env_id: str) -> Callable[..., Any]:
    """Import the module of "package.module:Class" and return a function that builds the environment.

    Only a class of environments or games, or an existing environment, is accepted. Nothing else is called, since a configuration
    may come from somebody else.

    Raises:
        ConfigError: there is no such module or name, the module cannot be imported, or the object is not an environment.
    """
    found = import_own("env", env_id, _is_environment, "environment", "a class with reset_env and step_env")
    return found if isinstance(found, type) else lambda: found


def _is_environment(x: Any) -> bool:
    return all(callable(getattr(x, name, None)) for name in ("reset_env", "step_env"))


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
