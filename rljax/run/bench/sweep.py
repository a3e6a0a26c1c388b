"""`rljax bench sweep`: the cost of many agents in one program, and the overhead of `sweep`."""

from __future__ import annotations

from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from rljax.algos.common.training import make_train
from rljax.core.compilation_cache import use_compilation_cache
from rljax.core.config_files import load_config
from rljax.run.bench.timing import Program, hardware, steps_of, time_interleaved
from rljax.run.search.sweep import sweep

COUNTS = {"cpu": (1, 16, 64), "gpu": (1, 64, 512, 2048)}
"""Numbers of agents in one program, by platform."""

RATES = (1e-4, 3e-4, 1e-3)
SEEDS = 16


def print_sweep(repeats: int) -> None:
    """Print times of PPO with PureJaxRL's settings on CartPole: 1 to 2048 agents, and a sweep of 3 learning rates x 16 seeds."""
    use_compilation_cache(False)
    print(hardware())
    config = load_config("cartpole_ppo_cleanrl", eval_every=None)
    if jax.default_backend() == "cpu":
        config = config.replace(total_timesteps=51_200)
    counts = COUNTS.get(jax.default_backend(), COUNTS["gpu"])
    print_agents(config, counts, repeats)
    print_overhead(config, repeats)


def print_agents(config: Any, counts: tuple[int, ...], repeats: int) -> None:
    """Print a row for each number of agents."""
    train = make_train(config)

    def many(count: int) -> Program:
        return lambda key: jax.vmap(train)(jax.random.split(key, count)).state.params

    timings = time_interleaved({str(count): many(count) for count in counts}, repeats)
    alone = median(timings[str(counts[0])].runs) / counts[0]
    print(f"\nagents in one vmap, {steps_of(config):,} steps each; medians of {repeats} interleaved runs\n")
    print("| agents | trace + compile, s | run, s | environment steps/s | run time per agent, of that of one alone |")
    print("| --- | --- | --- | --- | --- |")
    for count in counts:
        compiling, runs = timings[str(count)]
        seconds = median(runs)
        speed = count * steps_of(config) / seconds
        print(f"| {count:,} | {compiling:.1f} | {seconds:.2f} | {speed:,.0f} | {seconds / count / alone:.3f} |")


def print_overhead(config: Any, repeats: int) -> None:
    """Print times of `sweep` beside the bare program: it adds compiling, chunks and the episodes at the end."""
    rates = jnp.repeat(jnp.array(RATES), SEEDS)

    def bare(key: jax.Array) -> Any:
        keys = jnp.tile(jax.random.split(key, SEEDS), (len(RATES),))
        return jax.vmap(lambda rate, k: make_train(config.replace(learning_rate=rate))(k).state.params)(rates, keys)

    def whole(_: int) -> None:
        sweep(config, {"learning_rate": list(RATES)}, seeds=SEEDS, episodes=10)

    timings = time_interleaved({"bare": bare}, repeats, beside={"sweep": whole})
    timing, spent = timings["bare"], median(timings["sweep"].runs)
    print(
        f"\nsweep of {len(RATES)} learning rates x {SEEDS} seeds: {spent:.1f} s with compiling and 10 episodes of each; "
        f"the bare vmap {timing.compile:.1f} s to trace and compile, {median(timing.runs):.1f} s to run"
    )
