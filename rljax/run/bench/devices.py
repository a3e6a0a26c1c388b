"""`rljax bench devices`: weak scaling, with a fixed number of environments per device. A CPU simulates several devices."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Mapping
from statistics import median

import jax

from rljax.algos.common.training import make_train
from rljax.algos.ppo import PPOConfig
from rljax.core.compilation_cache import use_compilation_cache
from rljax.core.devices import usable_cores
from rljax.run.bench.timing import Program, Timing, hardware, time_interleaved
from rljax.run.bench.workers import Worker, serve

COUNTS = (1, 2, 4, 8)
"""Numbers of devices; real ones only as far as they exist."""

ENVS = 256
"""Number of environments per device."""

ITERATIONS = 20

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
"""XLA flag for simulated devices: without it, a single device would use all cores, and distort the comparison."""


def print_devices(repeats: int) -> None:
    """Print run times of PPO on CartPole on 1, 2, 4 and 8 devices, each with the environments and batches of a single one."""
    use_compilation_cache(False)
    print(hardware())
    simulated = jax.default_backend() == "cpu"
    counts = COUNTS if simulated else tuple(n for n in COUNTS if n <= jax.device_count())
    timings = _time_simulated(counts, repeats) if simulated else _time_real(counts, repeats)
    cores = usable_cores() if simulated else max(counts)
    steps = weak_config(1, ENVS, ITERATIONS).total_timesteps
    print(
        f"\nPPO on CartPole, {ENVS} environments and {steps:,} steps for each device; medians [min, max] of {repeats} "
        "interleaved runs"
    )
    if simulated:
        print(
            f"simulated devices: threads of a CPU with {cores} core{'s' * (cores > 1)} for this process. Up to {cores} at once "
            "they have a core each, and the efficiency is time of one / time; more share cores, and what is shown is their work: "
            "time x cores / devices / time of one"
        )
    print("\n| devices | environments | trace + compile, s | run, s | environment steps/s | efficiency | work, of one alone |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    alone = median(timings[counts[0]].runs)
    for count, (compiling, runs) in timings.items():
        seconds = median(runs)
        spread, speed = f"{seconds:.2f} [{min(runs):.2f}, {max(runs):.2f}]", count * steps / seconds
        efficiency, work = (f"{alone / seconds:.2f}", "") if count <= cores else ("", f"{seconds * cores / count / alone:.2f}")
        print(f"| {count} | {count * ENVS:,} | {compiling:.1f} | {spread} | {speed:,.0f} | {efficiency} | {work} |")


def weak_config(count: int, envs: int, iterations: int) -> PPOConfig:
    """Return the configuration for `count` devices, each of which has its part of every minibatch."""
    num_envs, num_steps = count * envs, 32
    return PPOConfig(
        env="CartPole-v1",
        num_envs=num_envs,
        num_steps=num_steps,
        num_minibatches=4,
        total_timesteps=iterations * num_envs * num_steps,
        num_devices=count,
    )


def _time_real(counts: tuple[int, ...], repeats: int) -> dict[int, Timing]:
    programs: dict[str, Program] = {str(count): make_train(weak_config(count, ENVS, ITERATIONS)) for count in counts}
    return {int(name): timing for name, timing in time_interleaved(programs, repeats).items()}


def _time_simulated(counts: tuple[int, ...], repeats: int) -> dict[int, Timing]:
    """Time a process for each number of devices, which is fixed in a process."""
    commands = {n: [["rljax.run.bench.devices", *map(str, (n, ENVS, ITERATIONS))]] for n in counts}
    return time_processes(commands, {n: f"--xla_force_host_platform_device_count={n} {ONE_THREAD}" for n in counts}, repeats)


def time_processes(commands: Mapping[int, list[list[str]]], flags: Mapping[int, str], repeats: int) -> dict[int, Timing]:
    """Time groups of processes that run together; the groups compile one by one and run in turn.

    The time of a group is that of its slowest process.

    Args:
        commands: module and arguments of each process of a group, by the name of the group.
        flags: XLA flags of each group.
        repeats: number of runs of each group.

    Raises:
        RljaxError: a process ended.
    """
    timings: dict[int, Timing] = {}
    groups: dict[int, list[Worker]] = {}
    try:
        for name, group in commands.items():
            env = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags[name]}", "JAX_PLATFORMS": "cpu"}
            groups[name] = [Worker(command, env) for command in group]
            timings[name] = Timing(max(worker.seconds() for worker in groups[name]), [])
        for _ in range(repeats):
            for name, workers in groups.items():
                for worker in workers:
                    worker.begin()
                timings[name].runs.append(max(worker.seconds() for worker in workers))
    except BaseException:
        for worker in itertools.chain(*groups.values()):
            worker.process.kill()
        raise
    finally:
        # All inputs end before one process is waited for: those of a group end together.
        for worker in itertools.chain(*groups.values()):
            worker.end_input()
        for worker in itertools.chain(*groups.values()):
            worker.process.wait()
    return timings


def _serve(count: int, envs: int, iterations: int) -> None:
    started = time.perf_counter()
    run = jax.jit(make_train(weak_config(count, envs, iterations))).lower(jax.random.key(0)).compile()
    serve(lambda seed: run(jax.random.key(seed)), started)


if __name__ == "__main__":
    _serve(*map(int, sys.argv[1:]))
