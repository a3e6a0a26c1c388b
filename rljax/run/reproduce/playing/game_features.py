"""Experiments with features in games, each beside a control; every player has a task whose best score is known."""

from __future__ import annotations

import dataclasses
from typing import Any

from rljax.algos.ppo import PPOConfig
from rljax.core.config_files import load_config
from rljax.core.environments.wrappers import PublicObservation
from rljax.envs.hidden_bit import HiddenBit
from rljax.envs.race import Race
from rljax.league.config import SelfPlayConfig
from rljax.run.reproduce.features import CRITIC_STEPS, steps_to
from rljax.run.reproduce.playing.scouting import late_looks, scout
from rljax.run.reproduce.report import Report

FRAMES = 9
"""Observations of its own last moves that a player of the T-maze sees: from the junction just as far back as the sign."""


def as_game(source: str | PPOConfig, **changes: Any) -> SelfPlayConfig:
    """Return the self-play of two players with the task and the settings of PPO, of a preset or a configuration, half of its
    environments each.
    """
    config = load_config(source, eval_every=None) if isinstance(source, str) else source
    fields = {field.name for field in dataclasses.fields(SelfPlayConfig)} - {"upgo_coef"}
    given = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name in fields}
    given |= {"env": f"race:{config.env}", "num_envs": config.num_envs // 2}
    return SelfPlayConfig(**given | changes)


def features(report: Report) -> None:
    """Measure memory, frames, action heads, a pointer, bonuses, a privileged critic and value heads in games."""
    for turns in (True, False):
        memory(report, turns)
    composite(report)
    picks(report)
    exploration(report)
    information(report)
    critics(report)


def memory(report: Report, turns: bool) -> None:
    """Compare policies with memory, with frames and without either in a T-maze for each player, taking turns or at once."""
    how = "in turns" if turns else "at once"
    mlp = {"network": {"hidden": [32, 32]}}
    for name, changes in (("gru", {}), ("mlp", mlp), ("frames", mlp | {"frame_stack": FRAMES})):
        arm = f"T-maze, {name}, {how}"
        run = report.train(as_game("tmaze_ppo_gru", env_params={"turns": turns}, **changes), arm, preset="tmaze_ppo_gru")
        report.measure(arm, report.returns(run), 0.95)


def composite(report: Report) -> None:
    """Compare auto-regressive and independent heads where two choices must agree."""
    for heads in ("autoregressive", "independent"):
        run = report.train(as_game("composite_ppo", action_heads=heads), heads, preset="composite_ppo")
        report.measure(heads, report.returns(run, 1000, sample=True))


def picks(report: Report) -> None:
    """Compare a transformer that points at its choice with an MLP."""
    for name, changes in (("pointer", {}), ("picking MLP", {"network": {"hidden": [64, 64]}})):
        run = report.train(as_game("target_pick_ppo", **changes), name, preset="target_pick_ppo")
        report.measure(name, report.returns(run))


def exploration(report: Report) -> None:
    """Compare bonuses of counts and of random network distillation with none where random moves hardly ever find the goal."""
    for bonus, kind, changes in (("count", "count", {}), ("rnd", "rnd", {}), ("no bonus", "count", {"intrinsic": None})):
        preset = f"sparse_gridworld_ppo_{kind}"
        run = report.train(as_game(preset, **changes), bonus, preset=preset)
        report.measure(bonus, report.returns(run, 10), 1.0)


def information(report: Report) -> None:
    """Compare a bonus for information with none, by the looks at a hidden plan."""
    for arm, bonus in (("bonus for information", True), ("no bonus for information", False)):
        run = report.train(as_game(scout({}, bonus)), arm)
        report.measure(f"{arm}: looks", late_looks(run.metrics))


def critics(report: Report) -> None:
    """Compare critics that see a hidden bit or not, and one and two value heads, by the steps to a return of 7."""
    public = Race(PublicObservation(HiddenBit()))
    two = as_game("hidden_bit_ppo_heads", total_timesteps=CRITIC_STEPS)
    arms = {
        "privileged critic": as_game("hidden_bit_ppo", total_timesteps=CRITIC_STEPS),
        "public critic": as_game("hidden_bit_ppo", total_timesteps=CRITIC_STEPS, env=public),
        "two value heads": two.replace(env=public),
    }
    for name, config in arms.items():
        run = report.train(config, name, preset="hidden_bit_ppo_heads" if "heads" in name else "hidden_bit_ppo")
        report.measure(f"{name}: steps", steps_to(run, 7.0))
