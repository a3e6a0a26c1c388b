"""Experiment with an opponent whose plan is hidden, beside controls."""

from __future__ import annotations

from typing import Any

import numpy as np

from rljax.algos.ppo import PPOConfig
from rljax.envs import make_env
from rljax.envs.scouting import best_play
from rljax.run.reproduce.report import Report

SCOUTS: dict[str, tuple[dict[str, Any], bool]] = {
    "the answer depends on the plan": ({}, False),
    "the answer depends on the plan, bonus": ({}, True),
    "the answer is always the same": ({"depends": False}, False),
    "the answer is always the same, bonus": ({"depends": False}, True),
    "a look costs more than it brings": ({"look_cost": 4.0}, False),
}
"""Parameters of Scouting-v0, and whether there is a bonus for information."""


def scout(env_params: dict[str, Any], bonus: bool) -> PPOConfig:
    """Return the configuration of a scout, with a bonus for the information that a step gives or without."""
    return PPOConfig(
        env="Scouting-v0",
        env_params=env_params,
        num_envs=64,
        num_steps=32,
        total_timesteps=100_000,
        learning_rate=2e-3,
        ent_coef=0.05,
        network={"hidden": [32]},
        intrinsic={"type": "entropy_reduction"} if bonus else None,
        intrinsic_coef=4.0,
    )


def scouting(report: Report) -> None:
    """Measure greedy returns in Scouting-v0 and the looks of an episode at the end of training, beside those of the best play."""
    for name, (env_params, bonus) in SCOUTS.items():
        run = report.train(scout(env_params, bonus), name)
        best, looks = (float(x) for x in best_play(*make_env("Scouting-v0", **env_params)))
        report.facts[f"{name}: best return"], report.facts[f"{name}: looks of the best play"] = best, looks
        report.measure(f"{name}: return", report.returns(run, 200))
        report.measure(f"{name}: looks", late_looks(run.metrics))


def late_looks(metrics: Any) -> np.ndarray:
    """Return the mean number of looks of an episode in the last five iterations, f64 `[seeds]`."""
    return np.asarray(metrics["env/looks"])[:, -5:].mean(1)
