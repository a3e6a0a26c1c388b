"""Experiments with environments of other suites: each needs the extra of its suite."""

from __future__ import annotations

from statistics import median

from rljax.algos.common.training import make_train
from rljax.algos.ppo import PPOConfig
from rljax.run.bench.timing import time_interleaved
from rljax.run.reproduce.presets import returns_at_random
from rljax.run.reproduce.report import Report

RESETS = ("each", "optimistic", "pool")
REPEATS = 5

CRAFTAX = PPOConfig(
    env="craftax:Craftax-Classic-Symbolic-v1",
    num_envs=64,
    num_steps=32,
    total_timesteps=2048,
    num_epochs=2,
    num_minibatches=8,
    network={"hidden": [64]},
)
"""One iteration, for timing: the network is small, so that the environment takes most of the time."""


DOORKEY = PPOConfig(
    env="navix:Navix-DoorKey-5x5-v0",
    num_envs=32,
    num_steps=64,
    total_timesteps=500_000,
    num_epochs=4,
    num_minibatches=8,
    learning_rate=3e-4,
    ent_coef=0.02,
    normalize_observations=True,
    network={"hidden": [64, 64]},
)
"""The agent sees the whole grid. It gets 1 at the goal behind the door, if it has found and used the key within 100 steps."""

GAME_2048 = PPOConfig(
    env="pgx:2048",
    num_envs=64,
    num_steps=64,
    total_timesteps=1_000_000,
    num_epochs=2,
    num_minibatches=8,
    learning_rate=1e-3,
    ent_coef=0.01,
    normalize_rewards=True,
    network={"hidden": [128, 128]},
)
"""The agent sees the board as 31 layers, and only moves that change it are legal; the reward is the sum of the tiles merged."""


def craftax_resets(report: Report) -> None:
    """Time one iteration of PPO in Craftax-Classic for each kind of resets, in turn; the facts have medians and every run."""
    configs = {kind: report.configure(CRAFTAX, kind, reset=kind)[0] for kind in RESETS}
    timings = time_interleaved({kind: make_train(config) for kind, config in configs.items()}, REPEATS)
    report.facts["repeats"] = REPEATS
    for kind, timing in timings.items():
        steps = configs[kind].total_timesteps
        report.facts[f"{kind}: seconds to compile"] = timing.compile
        report.facts[f"{kind}: seconds of each run"] = timing.runs
        report.facts[f"{kind}: steps per second"] = steps / median(timing.runs)
        report.compiling += timing.compile
        report.running += sum(timing.runs)
        report.say(f"{report.name}: {kind}: {steps / median(timing.runs):,.0f} steps/s, compiled in {timing.compile:.0f} s")


def learns(report: Report, config: PPOConfig, threshold: float | None = None) -> None:
    """Measure greedy and sampled mean returns after training, and those of random legal actions."""
    run = report.train(config, report.name)
    report.measure("return", report.returns(run), threshold)
    report.measure("sampled", report.returns(run, sample=True))
    report.measure("at random", returns_at_random(report, run))
