"""Shared by all tests: small helpers and a compilation cache for the session."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest
from jax._src import compiler

from rljax.collect import environments
from rljax.core.config import ALGORITHMS
from rljax.core.errors import RljaxError
from rljax.envs.microrts.java.engine import start_java
from rljax.envs.microrts.java.install import is_there, microrts_folder

SIMPLE_FUSIONS = {"xla_cpu_use_fusion_emitters": False}
# What tests define is not tried before each training: most of it is small, and some of it wrong on purpose.
environments.KNOWN = (*environments.KNOWN, "test_", "tests.")
COMPILE_OPTIONS = compiler.get_compile_options
XLA_FLAGS = os.environ.get("XLA_FLAGS", "")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow-share", metavar="I/N", default="0/1", help="of N shares of the slow tests only number I, from 0 on")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the slow tests of other shares; a test's share depends on its name alone."""
    share, shares = map(int, config.getoption("--slow-share").split("/"))
    slow = [item for item in items if item.get_closest_marker("slow")]
    others = {item for item in slow if zlib.crc32(item.nodeid.encode()) % shares != share}
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def pytest_configure(config: pytest.Config) -> None:
    """Each process of a run (pytest-xdist) has cores of its own: sharing them, they wait for each other a tenth of the time."""
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER"), os.environ.get("PYTEST_XDIST_WORKER_COUNT")
    if worker is None:
        config.pluginmanager.register(SaysFailures(config))
    if worker is None or workers is None or not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    own = cores[int(worker.removeprefix("gw")) :: int(workers)]
    if own:
        os.sched_setaffinity(0, own)


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c() -> None:
    """Jobs that a shell runs in the background ignore Ctrl-C, which tests send to themselves and to their children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Programs that several tests compile are compiled once; honours JAX_COMPILATION_CACHE_DIR, which subprocesses inherit."""
    folder = tmp_path_factory.getbasetemp()
    # Processes of one run (pytest-xdist) have folders of their own in one folder.
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    path = os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(shared / "xla"))
    jax.config.update("jax_compilation_cache_dir", path)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


@functools.cache
def _fusions_may_be_simple() -> bool:
    """Whether XLA has its older code generator for fusions: without optimisations it compiles three to four times faster."""
    try:
        jax.jit(lambda: 0, compiler_options=SIMPLE_FUSIONS)()  # reads XLA_FLAGS, which may change for processes from here on
    except jax.errors.JaxRuntimeError:
        return False
    return jax.default_backend() == "cpu"


def _with_simple_fusions(*args: Any, env_options_overrides: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    """JAX's own function, with an option of XLA that JAX has no setting for."""
    return COMPILE_OPTIONS(*args, env_options_overrides={**SIMPLE_FUSIONS, **(env_options_overrides or {})}, **kwargs)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Most tests compile far longer than they compute: XLA optimises for those that train (two thirds of all time).

    The default generator's code for fusions gives the same bits in whatever program they are, the older one's does not: tests
    that are `same_bits` need the former. All before any fixture, so that those of a module are compiled as its tests are.
    """
    folder = item.path.parent.name
    fast = folder != "learning"
    jax.config.update("jax_disable_most_optimizations", fast)
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(fast))  # for processes that a test starts
    if _fusions_may_be_simple():
        simple = fast and item.get_closest_marker("same_bits") is None
        compiler.get_compile_options = _with_simple_fusions if simple else COMPILE_OPTIONS
        flags = [f"--{name}={value}".lower() for name, value in SIMPLE_FUSIONS.items()]
        os.environ["XLA_FLAGS"] = " ".join([XLA_FLAGS, *(flags if simple else ())])


TESTS_SO_FAR = [0]
"""Number of tests since JAX's caches were cleared."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Clear JAX's caches now and then: the garbage collector walks all that was traced, in the end for most of the time."""
    TESTS_SO_FAR[0] += 1
    if nextitem is not None and nextitem.path != item.path and TESTS_SO_FAR[0] >= 100:
        TESTS_SO_FAR[0] = 0
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def java_engine() -> Any:
    """The Java engine of microRTS, for tests that compare with it or play in it."""
    if not is_there(microrts_folder()):
        pytest.skip("the Java engine of microRTS is not here: rljax.envs.microrts.java.install.fetch_microrts fetches it")
    try:
        return start_java()
    except RljaxError as error:
        pytest.skip(str(error))


@pytest.fixture
def forget_algorithms() -> Iterator[Callable[[], None]]:
    """Algorithms that a test registers, and their modules, are forgotten after it, as other tests list what there is; call it to
    forget them at once, as another process does not know them."""
    algorithms, modules = set(ALGORITHMS), set(sys.modules)

    def forget() -> None:
        for name in set(ALGORITHMS) - algorithms:
            module = ALGORITHMS[name].__module__
            del ALGORITHMS[name]
            if module not in modules:
                sys.modules.pop(module, None)

    yield forget
    forget()


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """`figure(line)` shows a line at the end of the test run, also when the test passes: what a learning test measured."""
    return lambda line: record_property("figure", line)


class SaysFailures:
    """Shows each failure when it happens: a run that its time limit ends has no summary."""

    def __init__(self, config: pytest.Config):
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\n{report.nodeid} failed after {report.duration:.0f} s: {report.longreprtext[-1000:]}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    properties = [p for r in reports if getattr(r, "when", None) == "call" for p in r.user_properties]
    lines = [str(line) for name, line in properties if name == "figure"]
    if lines:
        terminalreporter.section("figures")
        terminalreporter.write_line("\n".join(lines))
