"""Benchmarks: compile time and run time apart, medians, interleaved with a peer library if one is installed.

`rljax reproduce bench_NAME` records a suite for docs/benchmarks.md.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.common.training import make_train
from rljax.algos.dreamer.config import DreamerConfig
from rljax.algos.ppo import PPOConfig, ppo_init, ppo_parts
from rljax.collect.evaluation import evaluate
from rljax.core.agent import make_agent
from rljax.core.compilation_cache import use_compilation_cache
from rljax.core.config_files import load_config
from rljax.run.bench.devices import print_devices
from rljax.run.bench.dreamer import print_dreamer
from rljax.run.bench.launches import print_launches
from rljax.run.bench.league import print_league
from rljax.run.bench.load import noted_load
from rljax.run.bench.microrts import print_microrts
from rljax.run.bench.processes import print_processes
from rljax.run.bench.products import products_alone
from rljax.run.bench.rejax_peer import dqn_settings, ppo_settings, rejax_program, start_rejax
from rljax.run.bench.simulators import print_simulators
from rljax.run.bench.sweep import print_sweep
from rljax.run.bench.timing import Program, hardware, steps_of, time_interleaved
from rljax.run.fit import fit
from rljax.run.progress import Silent


def bench_ppo(repeats: int) -> None:
    """PPO: start-up, compile and run time of `cartpole_ppo_cleanrl` beside rejax's PPO and beside its matrix products alone, and
    time to solve `cartpole_ppo`."""
    # A program read from the cache would seem to need no time to compile.
    use_compilation_cache(False)
    print(hardware())
    _print_startup(repeats)
    config = load_config("cartpole_ppo_cleanrl", eval_every=None)
    _print_peers("cartpole_ppo_cleanrl", config, ppo_settings(config), f"{steps_of(config):,} steps", repeats)
    _print_time_to_solve(repeats)


def bench_fit(repeats: int) -> None:
    """Overhead of `fit` beside the pure program: run folder, JSON lines, checks, and checkpoints every 10 s or every second."""
    use_compilation_cache(False)
    print(hardware())
    _print_fit(repeats)


def bench_dqn(repeats: int) -> None:
    """DQN: `cartpole_dqn_rejax` beside rejax's DQN with the same work and beside its matrix products alone, and what a seed costs
    among 32 vmapped ones."""
    use_compilation_cache(False)
    print(hardware())
    config = load_config("cartpole_dqn_rejax", eval_every=None)
    work = f"{steps_of(config):,} steps, {config.updates_per_step} gradient steps of {config.batch_size} per vector step"
    _print_peers("cartpole_dqn_rejax", config, dqn_settings(config), work, repeats)
    _print_seeds(config.replace(total_timesteps=20_000), 32, repeats)


def bench_recurrent(repeats: int) -> None:
    """PPO with a GRU and an LSTM beside a feed-forward one of that size, beside a usual implementation of recurrent PPO, and
    beside their matrix products alone.

    That implementation is only in the repository.
    """
    use_compilation_cache(False)
    print(hardware())
    peers = "rljax.run.bench.peers"
    make_peer = importlib.import_module(f"{peers}.recurrent_ppo").make_recurrent_ppo if importlib.util.find_spec(peers) else None
    _print_recurrent(PPOConfig(env="CartPole-v1", total_timesteps=102_400, num_envs=16), make_peer, repeats)


def bench_dreamer(repeats: int) -> None:
    """Dreamer, size 1M on CartPole: updates per second, the times of their parts, and the cost of many seeds in one program."""
    use_compilation_cache(False)
    print(hardware())
    # The buffer is small, since timed programs copy it with the state.
    print_dreamer(DreamerConfig(env="CartPole-v1", num_steps=1, buffer_size=4_160, total_timesteps=20_000), repeats)


def bench_launches(_repeats: int) -> None:
    """Kernels that whole runs of presets start on an H200 that need not be there, beside rejax's PPO and DQN. It needs the extra
    `cuda13` or `cuda12`."""
    print_launches(
        {
            "cartpole_ppo_cleanrl": lambda config: rejax_program(ppo_settings(config)),
            "cartpole_dqn_rejax": lambda config: rejax_program(dqn_settings(config)),
        }
    )


SUITES: dict[str, Callable[[int], None]] = {
    "ppo": bench_ppo,
    "recurrent": bench_recurrent,
    "dqn": bench_dqn,
    "dreamer": bench_dreamer,
    "league": print_league,
    "launches": bench_launches,
    "microrts": print_microrts,
    "simulators": print_simulators,
    "sweep": print_sweep,
    "devices": print_devices,
    "processes": print_processes,
    "fit": bench_fit,
}


def run_suite(name: str, repeats: int) -> dict[str, Any]:
    """Run a suite, which prints its tables, and note the load (see `noted_load`)."""
    with noted_load() as load:
        SUITES[name](repeats)
    return load


class _Clock(Silent):
    """Progress that notes when `fit` has compiled its program."""

    def compiled(self) -> None:
        self.at = time.perf_counter()


def _print_fit(repeats: int) -> None:
    """Print interleaved run times without compiling; those of `fit` last until the final checkpoint is on the disk."""
    config = load_config("cartpole_ppo_cleanrl", eval_every=None)
    pure = jax.jit(make_train(config)).lower(jax.random.key(0)).compile()
    variants: dict[str, dict[str, Any]] = {
        "fit, nothing written": {},
        "fit, JSON lines, a checkpoint every 10 s": {"run_dir": True, "checkpoint_seconds": 10.0},
        "fit, JSON lines, a checkpoint every second": {"run_dir": True, "checkpoint_seconds": 1.0},
    }
    runs: dict[str, list[float]] = {"jit(make_train)": [], **{name: [] for name in variants}}
    for seed in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(pure(jax.random.key(seed)))
        runs["jit(make_train)"].append(time.perf_counter() - started)
        for name, options in variants.items():
            with tempfile.TemporaryDirectory() as folder:
                where = {"run_dir": Path(folder) / "run"} if "run_dir" in options else {}
                clock = _Clock()
                fit(config, key=jax.random.key(seed), progress=clock, **{**options, **where})
                runs[name].append(time.perf_counter() - clock.at)
    print(f"\ncartpole_ppo_cleanrl, {steps_of(config):,} steps, one seed; median [min, max] of {repeats} interleaved runs\n")
    print("| what runs | run, s | against jit(make_train): of the medians, median of the pairs' |")
    print("| --- | --- | --- |")
    base = runs["jit(make_train)"]
    for name, seconds in runs.items():
        spread = f"{median(seconds):.2f} [{min(seconds):.2f}, {max(seconds):.2f}]"
        pairs = median(a / b for a, b in zip(seconds, base, strict=True))
        print(f"| {name} | {spread} | {median(seconds) / median(base):.3f}, {pairs:.3f} |")


def _print_startup(repeats: int) -> None:
    programs = ("pass", "import rljax", "import rljax; rljax.make_train, rljax.load_config('cartpole_ppo')")
    bare, imports, used = (median(_seconds([sys.executable, "-c", code]) for _ in range(repeats)) for code in programs)
    print(
        f"import rljax: {imports - bare:.2f} s, and {used - bare:.2f} s with what the training of a preset imports "
        f"(median of {repeats}, interpreter start of {bare:.2f} s taken off)"
    )
    cold, warm = [], []
    for _ in range(max(1, repeats // 2)):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "rljax.cli.main", "train", "cartpole_ppo", "--total-timesteps", "2048"]
            cold.append(_seconds(command, folder))
            warm.append(_seconds(command, folder))
    print(
        f"rljax train cartpole_ppo, 2,048 steps: first start {median(cold):.1f} s, second {median(warm):.1f} s with a warm "
        f"compilation cache, ratio {median(warm) / median(cold):.2f}"
    )


def _seconds(command: list[str], folder: str | None = None) -> float:
    """Return the wall time of a process; with a `folder`, it runs there with its own compilation cache."""
    env = dict(os.environ)
    if folder is not None:
        env["JAX_COMPILATION_CACHE_DIR"] = str(Path(folder) / "xla")
    started = time.perf_counter()
    subprocess.run(command, check=True, cwd=folder, env=env, stdout=subprocess.DEVNULL, timeout=600)
    return time.perf_counter() - started


def _print_peers(name: str, config: Any, settings: dict[str, Any], work: str, repeats: int) -> None:
    """Print times of a configuration, of its products alone, and of rejax with the `settings` of the same work."""
    train = make_train(config)
    programs: dict[str, Program] = {"rljax": train, "products alone": products_alone(train)}
    with start_rejax(settings) or nullcontext() as peer:
        compiling = peer.seconds() if peer else 0.0  # before the programs here compile
        timings = time_interleaved(programs, repeats, beside={"rejax": peer.run} if peer else None)
    if peer:
        timings["rejax"] = timings["rejax"]._replace(compile=compiling)
    print(f"\n{name}, {work}, one seed, evaluation off;")
    print(f"median [min, max] of {repeats} interleaved runs\n")
    if peer is None:
        print("without a ratio: rejax is not installed\n")
    print("| library | trace + compile, s | run, s | steps/s |" + (" speed against rejax |" if peer else ""))
    print("| --- | --- | --- | --- |" + (" --- |" if peer else ""))
    for library, timing in timings.items():
        run = median(timing.runs)
        ratio = f" {median(timings['rejax'].runs) / run:.2f} |" if peer else ""
        spread = f"{run:.2f} [{min(timing.runs):.2f}, {max(timing.runs):.2f}]"
        print(f"| {library} | {timing.compile:.1f} | {spread} | {steps_of(config) / run:,.0f} |{ratio}")


def _print_recurrent(config: PPOConfig, make_peer: Callable[[PPOConfig], Program] | None, repeats: int) -> None:
    """Print times of recurrent programs, all with the environment, batch, epochs and minibatches of `config`."""
    flat = config.replace(network={"type": "mlp", "hidden": [128, 128]})
    configs = {"rljax, feed-forward": flat}
    programs: dict[str, Program] = {"rljax, feed-forward": make_train(flat)}
    for cell in ("gru", "lstm"):
        recurrent = config.replace(network={"type": cell, "hidden": [64], "size": 64, "head_hidden": [64]})
        configs |= dict.fromkeys((f"rljax, {cell}", f"peer, {cell}"), recurrent)
        programs[f"rljax, {cell}"] = make_train(recurrent)
        if make_peer is not None:
            programs[f"peer, {cell}"] = make_peer(recurrent)
        programs[f"products alone, {cell}"] = products_alone(programs[f"rljax, {cell}"])
    timings = time_interleaved(programs, repeats, compiles=min(repeats, 3))
    peer = "none, it is in the repository only" if make_peer is None else "recurrent PPO in the manner of PureJaxRL"
    print(
        f"\nPPO on {config.env} of rljax, {steps_of(config):,} steps, {config.num_envs} environments x {config.num_steps} "
        f"steps, {config.num_epochs} epochs of {config.num_minibatches} minibatches, one seed; peer: {peer};\n"
        f"median [min, max] of {repeats} interleaved runs\n"
    )
    print("| program | parameters | trace + compile, s | run, s | steps/s |" + (" speed against the peer |" if make_peer else ""))
    print("| --- | --- | --- | --- | --- |" + (" --- |" if make_peer else ""))
    for name, (compiling, runs) in timings.items():
        base = timings.get(f"peer{name[name.index(',') :]}")
        ratio = (f" {median(base.runs) / median(runs):.2f} |" if base else "  |") if make_peer else ""
        print(
            f"| {name} | {_num_params(configs[name]) if name in configs else ''} | {compiling:.1f} | {median(runs):.2f} "
            f"[{min(runs):.2f}, {max(runs):.2f}] | {steps_of(config) / median(runs):,.0f} |{ratio}"
        )


def _num_params(config: PPOConfig) -> str:
    shapes = jax.eval_shape(partial(ppo_init, ppo_parts(config)), jax.random.key(0)).params
    return f"{sum(x.size for x in jax.tree.leaves(shapes)):,}"


def _print_seeds(config: Any, seeds: int, repeats: int) -> None:
    """Print the run time of many seeds in one program against that of one, both without compiling."""
    train = make_train(config)
    programs: dict[str, Program] = {"one": train, "many": lambda key: jax.vmap(train)(jax.random.split(key, seeds))}
    timings = time_interleaved(programs, repeats)
    one, many = (median(timings[name].runs) for name in ("one", "many"))
    ratios = sorted(b / seeds / a for a, b in zip(timings["one"].runs, timings["many"].runs, strict=True))
    print(
        f"\n{seeds} seeds in one vmap, {steps_of(config):,} steps each: {many / seeds:.3f} s per seed, one alone "
        f"{one:.3f} s; ratio of the medians {many / seeds / one:.2f}, median [min, max] of the pairs' {median(ratios):.2f} "
        f"[{ratios[0]:.2f}, {ratios[-1]:.2f}], {repeats} interleaved runs"
    )


def _print_time_to_solve(repeats: int, seeds: int = 20, threshold: float = 475.0) -> None:
    """Print the steps until a greedy evaluation of 100 episodes reaches the threshold, and the training time that takes."""
    config = load_config("cartpole_ppo")
    budget = steps_of(config)
    seconds_per_step = median(time_interleaved({"rljax": make_train(config)}, repeats)["rljax"].runs) / budget
    curve_config = config.replace(eval_every=1024, eval_episodes=100)
    agent = make_agent(curve_config)

    def train(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        result = make_train(curve_config)(key)
        return result.metrics["eval/return"], jnp.mean(evaluate(agent, result.state, jax.random.fold_in(key, 1)))

    curves, final = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), seeds))
    reached = np.asarray(curves) >= threshold
    steps = np.where(reached.any(1), (reached.argmax(1) + 1) * config.steps_per_iteration, budget)
    print(
        f"\ncartpole_ppo, {seeds} seeds: greedy return >= {threshold:g} after a median of {np.median(steps):,.0f} steps "
        f"({np.median(steps) * seconds_per_step:.2f} s of training), worst seed {steps.max():,} steps "
        f"({steps.max() * seconds_per_step:.2f} s); {int(reached.any(1).sum())} of {seeds} reached it, "
        f"{int((np.asarray(final) >= threshold).sum())} of {seeds} hold it after {budget:,} steps "
        f"({budget * seconds_per_step:.2f} s)"
    )
