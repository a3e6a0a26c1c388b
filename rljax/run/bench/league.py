"""`rljax bench league`: the cost of opponents from a pool beside plain self-play, and of games beside those of pgx."""

from __future__ import annotations

import importlib.util
from statistics import median
from typing import Any

import jax

from rljax.algos.common.training import make_train
from rljax.core.compilation_cache import use_compilation_cache
from rljax.league.config import LeagueConfig, SelfPlayConfig
from rljax.league.training import make_games
from rljax.run.bench.timing import hardware, time_interleaved

ITERATIONS = 10
NUM_STEPS = 32
# Games in turns, and games whose players all move at once. Both sizes take a second or two.
CONNECT_FOUR: dict[str, Any] = {"env": "ConnectFour-v0", "num_envs": 1024, "num_minibatches": 8}
TERRITORY: dict[str, Any] = {"env": "Territory-v0", "num_envs": 256, "num_minibatches": 8}


def print_league(repeats: int) -> None:
    """Print times of plain self-play and of a league with 16 opponents at once, and of self-play in pgx's Connect Four."""
    use_compilation_cache(False)
    print(hardware())
    peers = {}
    if importlib.util.find_spec("pgx") is not None:
        peers["self-play, pgx's game"] = SelfPlayConfig(**_sized({**CONNECT_FOUR, "env": "pgx:connect_four"}))
    else:
        print("\nwithout pgx's game: pgx is not installed")
    _print_game("Connect Four", CONNECT_FOUR, peers, repeats)
    _print_game("Territory, two teams of two that move at once", TERRITORY, {}, repeats)
    _print_memory()


def _print_game(title: str, game: dict[str, Any], peers: dict[str, Any], repeats: int) -> None:
    size = _sized(game)
    plain = SelfPlayConfig(**size)
    # In games against other players only one side's moves are used: two epochs of half as many are the same number of updates.
    league = LeagueConfig(
        **{**size, "num_epochs": 2 * plain.num_epochs, "num_minibatches": plain.num_minibatches // 2},
        main_exploiters=0,
        league_exploiters=0,
        num_slots=16,
        pool_size=64,
        snapshot_every=plain.num_envs * plain.num_steps,
    )
    configs = {"plain self-play": plain, "league, 16 opponents": league, **peers}
    timings = time_interleaved({name: make_train(config) for name, config in configs.items()}, repeats)
    print(f"\n{title}, {ITERATIONS} iterations of {plain.num_envs} games x {plain.num_steps} steps, {repeats} interleaved runs")
    print("\n| | trace + compile, s | run, s | steps/s | times plain self-play |")
    print("| --- | --- | --- | --- | --- |")
    first = median(timings["plain self-play"].runs)
    for name, timing in timings.items():
        seconds = median(timing.runs)
        rate = plain.total_timesteps / seconds
        print(f"| {name} | {timing.compile:.1f} | {seconds:.2f} | {rate:,.0f} | {seconds / first:.2f} |")


def _sized(game: dict[str, Any]) -> dict[str, Any]:
    return {**game, "num_steps": NUM_STEPS, "total_timesteps": ITERATIONS * game["num_envs"] * NUM_STEPS}


def _print_memory() -> None:
    full = LeagueConfig(env="ConnectFour-v0", num_envs=1024, num_slots=8)
    agent = make_games(full)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    analysis: Any = jax.jit(agent.step, donate_argnums=0).lower(state).compile().memory_analysis()
    print(
        f"\nmemory of a step of {len(full.roles)} learners, {full.num_slots} opponents each, {full.pool_size} in the pool: state "
        f"{analysis.argument_size_in_bytes / 2**20:.1f} MiB, in place {analysis.alias_size_in_bytes / 2**20:.1f} MiB, "
        f"beside it {analysis.temp_size_in_bytes / 2**20:.1f} MiB"
    )
