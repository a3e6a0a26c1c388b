"""Modules that are imported when they are first asked for."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from functools import partial
from types import ModuleType

PACKAGES = (
    "algos",
    "algos.common",
    "algos.imitation",
    "algos.offline",
    "collect",
    "collect.curriculum",
    "core",
    "core.environments",
    "core.games",
    "nn",
    "nn.latent",
    "nn.modules",
    "nn.outputs",
    "run",
    "run.bench",
    "run.demos",
    "run.files",
    "run.launch",
    "run.loggers",
    "run.microrts",
    "run.phases",
    "run.search",
    "run.view",
)
"""The packages that import nothing themselves."""

LOCK = threading.RLock()
"""Threads that import modules at the same time might each wait for one that the other imports."""


def modules_when_asked() -> None:
    """Let `rljax.core.games.versus` be there after `import rljax`, and so for every module of these packages."""
    for package in PACKAGES:
        name = f"rljax.{package}"
        importlib.import_module(name)
        sys.modules[name].__getattr__ = partial(_module_of, name)  # type: ignore[method-assign]


def _module_of(package: str, name: str) -> ModuleType:
    with LOCK:
        if name.startswith("_") or importlib.util.find_spec(f"{package}.{name}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(f"{package}.{name}")
