"""Processes of simulators: they share arrays with this one, and a byte tells each what to do."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.core.errors import RljaxError
from rljax.core.host import WAITING
from rljax.envs.simulators.worker import BEGIN, DONE, RESTART, STEP

START_SECONDS = 300.0
"""Time for processes to import a suite and to make their environments."""


class SimulatorError(RljaxError, RuntimeError):
    """A simulator outside JAX failed, hung or was killed."""


class Layout(NamedTuple):
    """Arrays of a suite's observations and actions, and how they are made of its own objects.

    Attributes:
        obs: shape and dtype of each array of an observation.
        action: the same of an action.
        obs_structure: see `worker.leaves`.
        action_structure: see `worker.action_of`.
    """

    obs: list[tuple[tuple[int, ...], np.dtype[Any]]]
    action: list[tuple[tuple[int, ...], np.dtype[Any]]]
    obs_structure: Any
    action_structure: Any


class Plan(NamedTuple):
    """Description of an environment and of the processes that simulate it.

    Attributes:
        title: how messages name it.
        suite: key of `worker.SUITES`.
        name: id within the suite.
        arguments: further arguments of what makes it.
        layout: of its arrays.
        workers: largest number of processes.
        timeout: time for a step or a reset of all rows, in seconds.
        heads: numbers of actions of the heads that have a mask, or () if all actions are legal.
        picture: shape of the picture that comes with each observation, or None.
    """

    title: str
    suite: str
    name: str
    arguments: dict[str, Any]
    layout: Layout
    workers: int
    timeout: float
    heads: tuple[int, ...] = ()
    picture: tuple[int, ...] | None = None


class Simulators:
    """Rows of simulators in several processes.

    Attributes:
        obs: observations, arrays `[N, ...]` that the next call changes; then the mask of actions, bool `[N, A]`, and the picture,
            uint8 `[N, H, W, 3]`, where there are such.
        action: where actions are written before a step, arrays `[N, ...]`.
        reward: f32 `[N]`.
        terminated: bool `[N]`.
        truncated: bool `[N]`.

    Raises:
        SimulatorError: a process could not be started, or its environments could not be made.
    """

    def __init__(self, plan: Plan, count: int):
        self.plan, self.count = plan, count
        flags = {name: ((), np.dtype(bool)) for name in ("which", "terminated", "truncated")}
        shapes = {
            **{f"obs{i}": x for i, x in enumerate(plan.layout.obs)},
            **{f"action{i}": x for i, x in enumerate(plan.layout.action)},
            **({"mask": ((sum(plan.heads),), np.dtype(bool))} if plan.heads else {}),
            **({} if plan.picture is None else {"picture": (plan.picture, np.dtype(np.uint8))}),
            "reward": ((), np.dtype(np.float32)),
            "seed": ((), np.dtype(np.uint32)),
            **flags,
        }
        where, size = {}, 0
        for name, (shape, dtype) in shapes.items():
            where[name] = ((count, *shape), dtype, size)
            size += -(-count * int(np.prod(shape)) * dtype.itemsize // 64) * 64
        self._file = _shared_file(max(size, mmap.PAGESIZE))
        memory = mmap.mmap(self._file, 0)
        arrays = {name: np.ndarray(shape, dtype, memory, offset) for name, (shape, dtype, offset) in where.items()}
        self.obs = [arrays[f"obs{i}"] for i in range(len(plan.layout.obs))]
        self.obs += [arrays[name] for name in ("mask", "picture") if name in arrays]
        self.action = [arrays[f"action{i}"] for i in range(len(plan.layout.action))]
        self.reward, self.terminated, self.truncated = arrays["reward"], arrays["terminated"], arrays["truncated"]
        self._which, self._seed = arrays["which"], arrays["seed"]
        edges = np.linspace(0, count, min(plan.workers, count) + 1).astype(int)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._closer = weakref.finalize(self, _close, self._processes, self._connections, self._file)
        try:
            for rows in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
                self._start(rows, where)
            self._await("start", START_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        return not self._closer.alive

    @property
    def process_ids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def begin(self, seeds: np.ndarray) -> None:
        """Begin an episode in all rows, u32 seeds `[N]`."""
        self._which[:], self._seed[:] = True, seeds
        self._call(BEGIN, "reset")

    def step(self, which: np.ndarray) -> None:
        """Take a step of `action` in some rows, bool `[N]`."""
        self._which[:] = which
        self._call(STEP, "step")

    def restart(self, which: np.ndarray) -> None:
        """Begin the next episode in some rows, bool `[N]`."""
        self._which[:] = which
        self._call(RESTART, "reset")

    def close(self) -> None:
        """End the processes."""
        self._closer()

    def _start(self, rows: tuple[int, int], where: dict[str, Any]) -> None:
        plan, layout = self.plan, self.plan.layout
        here, there = socket.socketpair()
        script = Path(__file__).with_name("worker.py")
        command = [sys.executable, str(script), str(there.fileno()), str(self._file)]
        with there:
            try:
                # What simulators print must not mix with what the program prints.
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=(there.fileno(), self._file), close_fds=True
                )
            except OSError as error:
                here.close()
                raise SimulatorError(f"{plan.title}: a process of its simulators cannot be started: {error}") from error
        connection = Connection(here.detach())
        self._processes.append(process)
        self._connections.append(connection)
        try:
            connection.send(
                {
                    "path": [x or os.getcwd() for x in sys.path],
                    "suite": plan.suite,
                    "name": plan.name,
                    "arguments": plan.arguments,
                    "rows": rows,
                    "arrays": where,
                    "num_obs": len(layout.obs),
                    "num_actions": len(layout.action),
                    "obs": layout.obs_structure,
                    "action": layout.action_structure,
                    "heads": plan.heads,
                }
            )
        except OSError:
            self._fail(connection, "start")

    def _call(self, command: bytes, what: str) -> None:
        started = time.perf_counter()
        try:
            for connection in self._connections:
                try:
                    connection.send_bytes(command)
                except OSError:
                    self._fail(connection, what)
            self._await(what, self.plan.timeout)
        except BaseException:
            # After Ctrl-C, say, an answer would be taken for that to the next call.
            self.close()
            raise
        WAITING.add("simulator", time.perf_counter() - started)

    def _await(self, what: str, seconds: float) -> None:
        """Wait for the answers of all processes."""
        left, missing = seconds, set(self._connections)
        while missing:
            # In short parts: the time in which all of these processes were stopped (Ctrl-Z) does not count.
            part = min(left, 1.0)
            ready = wait(list(missing), part)
            left -= 0.0 if ready else part
            if not ready and left > 0:
                continue
            if not ready:
                raise SimulatorError(
                    f"{self.plan.title}: a simulator did not answer a {what} within {seconds:g} s, so its process was ended; "
                    "one that is slow needs a longer env_params = { timeout = SECONDS }"
                )
            for connection in ready:
                assert isinstance(connection, Connection)
                try:
                    answer = connection.recv_bytes()
                except (EOFError, OSError):
                    self._fail(connection, what)
                if answer != DONE:
                    raise SimulatorError(f"{self.plan.title}: a simulator failed in a {what}: {answer.decode(errors='replace')}")
                missing.remove(connection)

    def _fail(self, connection: Connection, what: str) -> None:
        process = self._processes[self._connections.index(connection)]
        try:
            status = process.wait(5.0)
        except subprocess.TimeoutExpired:
            status = None
        if status is None:
            how = "hung up"
        elif status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        else:
            how = f"exited with status {status}"
        raise SimulatorError(f"{self.plan.title}: a process of its simulators {how} in a {what}")


def _shared_file(size: int) -> int:
    """Return the descriptor of a file without a name, which processes can map."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("rljax-simulators")
    else:
        with tempfile.TemporaryFile() as opened:
            file = os.dup(opened.fileno())
    os.ftruncate(file, size)
    return file


def _close(processes: list[subprocess.Popen[bytes]], connections: list[Connection], file: int) -> None:
    for connection in connections:
        connection.close()
    for process in processes:
        # A simulator has nothing to save, and one that hangs would not listen.
        process.kill()
    for process in processes:
        process.wait()
    os.close(file)
