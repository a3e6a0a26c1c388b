"""Processes of benchmarks. Each compiles a program and prints the seconds that took; then, for each line of input, it runs the
program and prints those of the run.

Nothing that changes JAX is imported here (see `rljax.core.threefry`): a peer runs as it does for its own users.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from rljax.core.errors import RljaxError

SECONDS = "seconds:"
"""Beginning of a line in which a worker tells a time."""

ENDED = "a process of the benchmark ended; its output is above"
"""The message about a worker that is gone."""


class Worker:
    """A process that runs a module of rljax which calls `serve`. Without a cache of compiled programs.

    Args:
        command: module, and its arguments.
        env: variables of its environment, beside those of this process.
    """

    def __init__(self, command: list[str], env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false", **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self) -> None:
        """Let it run its program once.

        Raises:
            RljaxError: the process ended.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise RljaxError(ENDED) from None

    def seconds(self) -> float:
        """Wait for the next time that it tells: of compiling first, then of each run.

        Raises:
            RljaxError: the process ended.
        """
        assert self.process.stdout is not None
        # Libraries print lines of their own, such as Gloo when processes meet.
        line = next((line for line in self.process.stdout if line.startswith(SECONDS)), "")
        if not line:
            raise RljaxError(ENDED)
        return float(line.removeprefix(SECONDS))

    def run(self, _: int) -> None:
        """Let it run its program once, and wait for that."""
        self.begin()
        self.seconds()

    def end_input(self) -> None:
        """Let it end."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def serve(run: Callable[[int], Any], started: float) -> None:
    """Print the seconds since `started`, which compiling took; then, for each line of input, those of a run."""
    print(SECONDS, time.perf_counter() - started, flush=True)
    for seed, _ in enumerate(sys.stdin):
        started = time.perf_counter()
        jax.block_until_ready(run(seed))
        print(SECONDS, time.perf_counter() - started, flush=True)
