"""`rljax bench league`: the cost of opponents from a pool beside plain self-play, and of games beside those of pgx."""

from __future__ import annotations

import importlib.util
from statistics import median
from typing import Any

import jax

from rljax.algos.common.training import make_train
from rljax.league.config import LeagueConfig, SelfPlayConfig
from rljax.league.training import make_games
from rljax.run.bench.timing import hardware, time_interleaved, use_compilation_cache

ITERATIONS = 10
SIZE: dict[str, Any] = {
    "env": "ConnectFour-v0",
    "num_envs": 1024,
    "num_steps": 32,
    "num_minibatches": 8,
    "total_timesteps": ITERATIONS * 1024 * 32,
}


def print_league(repeats: int) -> None:
    """Print times of Connect Four: plain self-play, a league with 16 opponents at once, and self-play in pgx's game."""
    use_compilation_cache(False)
    print(hardware())
    plain = SelfPlayConfig(**SIZE)
    # In games against other players only one side's moves are used: two epochs of half as many are the same number of updates.
    league = LeagueConfig(
        **{**SIZE, "num_epochs": 2 * plain.num_epochs, "num_minibatches": plain.num_minibatches // 2},
        main_exploiters=0,
        league_exploiters=0,
        num_slots=16,
        pool_size=64,
        snapshot_every=1024 * 32,
    )
    configs: dict[str, Any] = {"plain self-play": plain, "league, 16 opponents": league}
    if importlib.util.find_spec("pgx") is not None:
        configs["self-play, pgx's game"] = plain.replace(env="pgx:connect_four")
    else:
        print("\nwithout pgx's game: pgx is not installed")
    timings = time_interleaved({name: make_train(config) for name, config in configs.items()}, repeats)
    size = f"{ITERATIONS} iterations of {SIZE['num_envs']} games x {SIZE['num_steps']} steps"
    print(f"\nConnect Four, {size}, {repeats} interleaved runs")
    print("\n| | trace + compile, s | run, s | steps/s | times plain self-play |")
    print("| --- | --- | --- | --- | --- |")
    first = median(timings["plain self-play"].runs)
    for name, timing in timings.items():
        seconds = median(timing.runs)
        ratio = seconds / first
        rate = SIZE["total_timesteps"] / seconds
        print(f"| {name} | {timing.compile:.1f} | {seconds:.2f} | {rate:,.0f} | {ratio:.2f} |")
    full = LeagueConfig(env="ConnectFour-v0", num_envs=1024, num_slots=8)
    agent = make_games(full)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    analysis: Any = jax.jit(agent.step, donate_argnums=0).lower(state).compile().memory_analysis()
    print(
        f"\nmemory of a step of {len(full.roles)} learners, {full.num_slots} opponents each, {full.pool_size} in the pool: state "
        f"{analysis.argument_size_in_bytes / 2**20:.1f} MiB, in place {analysis.alias_size_in_bytes / 2**20:.1f} MiB, "
        f"beside it {analysis.temp_size_in_bytes / 2**20:.1f} MiB"
    )
