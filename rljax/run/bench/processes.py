"""`rljax bench processes`: weak scaling of a run over several processes with a core each, as over several machines."""

from __future__ import annotations

import os
import socket
import sys
import time
from statistics import median

import jax
import numpy as np

from rljax.algos.common.training import make_train
from rljax.core.errors import ConfigError
from rljax.run.bench.devices import ENVS, ITERATIONS, ONE_THREAD, time_processes, weak_config
from rljax.run.bench.timing import Timing, hardware
from rljax.run.bench.workers import serve
from rljax.run.processes import join_processes

COUNTS = (1, 2, 4)
"""Numbers of processes; those for which there are cores."""


def print_processes(repeats: int) -> None:
    """Print run times of PPO on CartPole in 1, 2 and 4 processes, each with a core, and the environments of a single one."""
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError("bench processes: this system cannot keep a process on one core, which Linux can")
    print(hardware())
    cores = sorted(os.sched_getaffinity(0))
    counts = tuple(count for count in COUNTS if count <= len(cores))
    timings = _time(counts, cores, repeats)
    steps = weak_config(1, ENVS, ITERATIONS).total_timesteps
    print(
        f"\nPPO on CartPole, {ENVS} environments and {steps:,} steps for each process, which has a core; medians [min, max] of "
        f"{repeats} interleaved runs; efficiency: time of one / time of the slowest of all"
    )
    if len(counts) == 1:
        print("without an efficiency: there is one core only")
    print("\n| processes | environments | trace + compile, s | run, s | environment steps/s | efficiency |")
    print("| --- | --- | --- | --- | --- | --- |")
    for count, (compiling, runs) in timings.items():
        seconds = median(runs)
        spread, speed = f"{seconds:.2f} [{min(runs):.2f}, {max(runs):.2f}]", count * steps / seconds
        efficiency = median(one / both for one, both in zip(timings[1].runs, runs, strict=True))
        shown = f"{efficiency:.2f}" if len(counts) > 1 else ""
        print(f"| {count} | {count * ENVS:,} | {compiling:.1f} | {spread} | {speed:,.0f} | {shown} |")


def _time(counts: tuple[int, ...], cores: list[int], repeats: int) -> dict[int, Timing]:
    commands = {}
    for count in counts:
        port = _free_port()
        settings = [[count, index, port, cores[index], ENVS, ITERATIONS] for index in range(count)]
        commands[count] = [["rljax.run.bench.processes", *map(str, each)] for each in settings]
    return time_processes(commands, dict.fromkeys(counts, f"--xla_force_host_platform_device_count=1 {ONE_THREAD}"), repeats)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _serve(count: int, index: int, port: int, core: int, envs: int, iterations: int) -> None:
    """Train as process `index` of `count`, on one core."""
    os.sched_setaffinity(0, {core})
    join_processes(f"127.0.0.1:{port}", count, index)
    started = time.perf_counter()
    train = make_train(weak_config(count, envs, iterations))
    # The seed is a number of the host, which all processes have; what is compared is small and the same in all.
    run = jax.jit(lambda seed: train(jax.random.key(seed)).metrics).lower(np.uint32(0)).compile()
    serve(lambda seed: run(np.uint32(seed)), started)


if __name__ == "__main__":
    _serve(*map(int, sys.argv[1:]))
