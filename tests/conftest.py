"""Shared by all tests: small helpers and a compilation cache for the session."""

from __future__ import annotations

import os
from collections.abc import Callable

import jax
import pytest


@pytest.fixture(scope="session", autouse=True)
def _compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Programs that several tests compile are compiled once; honours JAX_COMPILATION_CACHE_DIR, which subprocesses inherit."""
    folder = tmp_path_factory.getbasetemp()
    # Processes of one run (pytest-xdist) have folders of their own in one folder.
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    path = os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(shared / "xla"))
    jax.config.update("jax_compilation_cache_dir", path)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """`figure(line)` shows a line at the end of the test run, also when the test passes: what a learning test measured."""
    return lambda line: record_property("figure", line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    properties = [p for r in reports if getattr(r, "when", None) == "call" for p in r.user_properties]
    lines = [str(line) for name, line in properties if name == "figure"]
    if lines:
        terminalreporter.section("figures")
        terminalreporter.write_line("\n".join(lines))
