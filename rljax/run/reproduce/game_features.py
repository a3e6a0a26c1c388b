"""Experiments with features in games, each beside a control; every player has a task whose best score is known."""

from __future__ import annotations

import dataclasses
from typing import Any

from rljax.core.config import load_config
from rljax.core.wrappers import PublicObservation
from rljax.envs.hidden_bit import HiddenBit
from rljax.envs.race import Race
from rljax.league.config import SelfPlayConfig
from rljax.run.reproduce.features import CRITIC_STEPS, steps_to
from rljax.run.reproduce.report import Report


def as_game(preset: str, **changes: Any) -> SelfPlayConfig:
    """Return the self-play of two players with the task and the settings of a PPO preset, half of its environments each."""
    config = load_config(preset, eval_every=None)
    fields = {field.name for field in dataclasses.fields(SelfPlayConfig)} - {"upgo_coef"}
    given = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name in fields}
    given |= {"env": f"race:{config.env}", "num_envs": config.num_envs // 2}
    return SelfPlayConfig(**given | changes)


def features(report: Report) -> None:
    """Measure memory, action heads, a pointer, a bonus, a privileged critic and value heads in games."""
    for turns in (True, False):
        memory(report, turns)
    composite(report)
    picks(report)
    exploration(report)
    critics(report)


def memory(report: Report, turns: bool) -> None:
    """Compare policies with memory and without in a T-maze for each player, taking turns or at once."""
    how = "in turns" if turns else "at once"
    for name, changes in (("gru", {}), ("mlp", {"network": {"hidden": [32, 32]}})):
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
    """Compare a bonus of counts with none where random moves hardly ever find the goal."""
    for bonus, changes in (("count", {}), ("no bonus", {"intrinsic": None})):
        run = report.train(as_game("sparse_gridworld_ppo_count", **changes), bonus, preset="sparse_gridworld_ppo_count")
        report.measure(bonus, report.returns(run, 10), 1.0)


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
