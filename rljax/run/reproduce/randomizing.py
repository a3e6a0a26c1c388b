"""Experiment with poles of other lengths than that of training, with domain randomisation and without."""

from __future__ import annotations

from rljax.algos.ppo import PPOConfig
from rljax.run.reproduce.report import Report

LENGTHS = (0.25, 0.5, 1.0, 2.0, 3.0)
"""Half lengths in meters of the poles to balance; .5 is the environment's own."""

BASE = PPOConfig(
    env="CartPole-v1",
    num_envs=16,
    num_steps=64,
    learning_rate=1e-3,
    ent_coef=0.0,
    total_timesteps=500_000,
)

ARMS = {"plain": BASE, "randomized": BASE.replace(randomize={"half_length": [LENGTHS[0], LENGTHS[-1]]})}


def randomization(report: Report) -> None:
    """Measure greedy returns of policies that were trained with one pole, or with a pole of another length in each episode."""
    for name, config in ARMS.items():
        run = report.train(config, name)
        for length in LENGTHS:
            held = run.agent.config.replace(randomize={}, env_params={"half_length": length})
            report.measure(f"{name}: half length {length:g}", report.returns(run, 100, config=held))
