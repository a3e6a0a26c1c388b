"""Imports of code that is not rljax's: suites of environments, and a user's own modules."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from types import ModuleType

_IMPORTING = threading.RLock()


def import_quietly(name: str) -> ModuleType:
    """Import a module. What it prints meanwhile goes to standard error, as it is no result of the command that imports it.

    Raises:
        Exception: whatever the module raises.
    """
    with _IMPORTING:  # threads that redirect at once would restore each other's
        if name in sys.modules:
            return importlib.import_module(name)
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module(name)
