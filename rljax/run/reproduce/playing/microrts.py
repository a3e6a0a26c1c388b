"""Experiments with MicroRTS: its rules beside the Java engine of microRTS, and games of trained agents against its bots."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from rljax.collect.games.matches import play_match, policy_player
from rljax.core.agent import Agent
from rljax.core.config_files import load_config
from rljax.envs.microrts.java.engine import check_java, start_java
from rljax.envs.microrts.rules.maps import MAPS
from rljax.envs.microrts.rules.units import NONE
from rljax.league.config import SelfPlayConfig
from rljax.league.exploit import branch
from rljax.run.microrts.matches import java_program, microrts_of, play_java_match
from rljax.run.microrts.parity import differences, joint_conflicts, record
from rljax.run.players import game_of
from rljax.run.reproduce.playing.games import shared_fields
from rljax.run.reproduce.playing.imitation import TOWARDS_CLONE, cloned_player
from rljax.run.reproduce.report import Report, Trained, fresh_keys

POSITIONS = 10_000
"""Cycles on each map that are compared with the Java engine's."""

SCRIPTED = ("workerrush", "lightrush", "randombiased")
"""Bots whose models in JAX the agents are trained against."""

OTHERS = ("passive", "heavyrush", "rangedrush", "coac", "rojobot")
SEARCHING = ("droplet:10", "grojoa3n:10", "izanagi:10", "mixedbot:10", "tiamat:10", "umsbot:10")
"""Bots that search, here for 10 ms a cycle: a tenth of what they have in competitions."""

GAMES = {**dict.fromkeys(SCRIPTED, 100), **dict.fromkeys(OTHERS, 40), **dict.fromkeys(SEARCHING, 4)}
"""Number of games against each bot, half of them from each seat."""

COAC_GAMES = {bot: count for bot, count in GAMES.items() if bot != "grojoa3n:10"}
"""The same for the league that trains against CoacAI: GRojoA3N takes several minutes for a game with it."""

LARGE_GAMES = {**dict.fromkeys(SCRIPTED, 40), **dict.fromkeys(OTHERS, 20)}
"""The same on the grid of 16 x 16, where games are longer: two games of GRojoA3N, which searches, took more than 15 minutes."""

LARGE: dict[str, Any] = {"total_timesteps": 450_000, "num_minibatches": 32, "ent_coef": 0.002, "final_ent_coef": 0.0002}
"""On the grid of 16 x 16: a small part of the preset's steps, an hour of one core, with as many gradient steps as on 8 x 8, and a
smaller entropy bonus: there is little time to try things out."""

COAC_CLONE: dict[str, Any] = {
    "episodes": 600, "total_timesteps": 600_000, "openings": 3, "player": "java:coac",
    "against": ["self", "java:workerrush", "java:lightrush", "java:rojobot"],
}  # fmt: skip
"""CoacAI won competitions, and beats the rushes."""

LARGE_CLONE: dict[str, Any] = {**COAC_CLONE, "episodes": 400, "total_timesteps": 500_000, "num_minibatches": 16, "openings": 2}
"""A rush with workers comes too late on this map, and CoacAI's clone beats other rushes."""

AGAINST_COAC: dict[str, Any] = {
    "total_timesteps": 2_400_000,
    "scripted": ["workerrush", "lightrush", "java:coac", "java:coac", "java:coac", "java:coac"],
    "ent_coef": 0.002, "final_ent_coef": 0.0, "teacher_kl_share": 0.1,
}  # fmt: skip
"""Changes to the preset for the league that trains against CoacAI."""

LARGE_AGAINST_COAC: dict[str, Any] = {
    **LARGE, **TOWARDS_CLONE, "total_timesteps": 900_000, "scripted": AGAINST_COAC["scripted"],
    "final_ent_coef": 0.0, "teacher_kl_share": 0.1, "eval_every": None,
}  # fmt: skip
"""Changes for a second part of the training on the grid of 16 x 16, against CoacAI. It begins with the agent that beats the
rushes, and keeps close to it at first: a clone loses nearly all games against CoacAI and learns little from them.
"""

FOG_STEPS = 300_000
FOG_GAMES = 200
FOG_NETWORK: dict[str, Any] = {"encoder": "cells", "channels": [32, 32], "kernels": [3, 3], "hidden": [32]}
FOG_ARMS: dict[str, dict[str, Any]] = {"GRU": FOG_NETWORK | {"type": "gru"}, "no memory": FOG_NETWORK}
"""Networks in the fog of war: with the first one each cell remembers."""

POINTS = 20
"""Number of points of a learning curve."""

ENOUGH = 0.9
"""Share of games to win against each of `SCRIPTED`."""


def league(report: Report) -> None:
    """Play the bots with a league of the grid of 8 x 8."""
    play_bots(report, trained_league(report, "microrts_8x8_league", {"total_timesteps": 400_000}), GAMES)


def league_from_coac(report: Report) -> None:
    """Play the bots with a league of the grid of 8 x 8 that begins with a clone of CoacAI, a bot of the Java engine, and trains
    against it in the games that the two would play if both were asked in each cycle, as in Java.
    """
    check_java()
    preset = "microrts_8x8_league"
    params = {**load_config(preset).env_params, "wait_until_change": True}
    run = trained_league(report, preset, COAC_CLONE, env_params=params, **AGAINST_COAC)
    measure_curve(report, run)
    play_bots(report, run, COAC_GAMES)


def large_league(report: Report) -> None:
    """Play the bots with a league of the grid of 16 x 16 that begins with a clone of CoacAI, and measure its learning curve."""
    check_java()
    run = trained_league(report, "microrts_16x16_league", LARGE_CLONE, **LARGE)
    measure_curve(report, run)
    play_bots(report, run, LARGE_GAMES)


def large_league_against_coac(report: Report) -> None:
    """Do as `large_league`, then train against CoacAI in the games that the two would play if both were asked in each cycle, as
    in Java; measure the learning curve of that part, and play the bots with its agent.
    """
    check_java()
    preset = "microrts_16x16_league"
    before = trained_league(report, preset, LARGE_CLONE, **LARGE)
    params = {**load_config(preset).env_params, "wait_until_change": True}
    begin = partial(begin_with, before)
    run = report.train(preset, "against CoacAI", begin=begin, env_params=params, **LARGE_AGAINST_COAC)
    measure_curve(report, run)
    play_bots(report, run, LARGE_GAMES)


def trained_league(report: Report, preset: str, cloning: Mapping[str, Any], **changes: Any) -> Trained:
    """Train a league that scripted players take part in. As in AlphaStar, its main agent begins with a clone."""
    of_clone = {name: changes[name] for name in ("env_params",) if name in changes}
    clone, _ = cloned_player(report, load_config(preset, **of_clone), **{"episodes": 300, **cloning})
    changes = {**TOWARDS_CLONE, "teacher_kl_share": 0.25, "eval_every": None, **changes}
    return report.train(preset, begin=partial(begin_with, clone), **changes)


def begin_with(before: Trained, agent: Agent) -> Agent:
    """Return the agent, but its runs begin with the policy and values of the first seed of another run."""
    first = jax.tree.map(lambda x: x[0], before.states.params)
    return agent._replace(init=lambda key: branch(agent, first, key))


def measure_curve(report: Report, run: Trained, arm: str | None = None) -> None:
    """Measure how often a league, or an arm of several, wins against its scripted players in the course of the training."""
    parts = np.array_split(run.metrics["league/win_rate_scripted"], POINTS, axis=1)
    curve = np.stack([np.nanmean(part, axis=1) for part in parts], axis=1)
    measured = f"share of games won against scripted players in training, in {POINTS} equal parts of it"
    report.measure(measured if arm is None else f"{arm}: {measured}", curve)


def fog(report: Report) -> None:
    """Train leagues in the fog of war, with and without memory, from scratch; let the two play each other."""
    preset = "microrts_8x8_league"
    params = {**load_config(preset).env_params, "fog": True}
    changes: dict[str, Any] = {"env_params": params, "eval_every": None, "total_timesteps": FOG_STEPS}
    runs = [report.train(preset, arm, network=network, **changes) for arm, network in FOG_ARMS.items()]
    for arm, run in zip(FOG_ARMS, runs, strict=True):
        measure_curve(report, run, arm)
    game, params = game_of(runs[0].agent.config)

    def match(states: Any, key: jax.Array) -> Any:
        first, second = (policy_player(run.agent, state, deterministic=False) for run, state in zip(runs, states, strict=True))
        return play_match(game, params, first, second, key, FOG_GAMES)

    played = report.time_program(jax.vmap(match), [run.states for run in runs], fresh_keys(runs[0]))
    first, second = FOG_ARMS
    for name, count in (("won", played.result > 0), ("drawn", played.result == 0), ("lost", played.result < 0)):
        report.measure(f"{first} against {second}: {name} of {FOG_GAMES} games", np.sum(count, axis=1))


def bots_only(report: Report) -> None:
    """Train against scripted players only."""
    play_bots(report, report.train("microrts_8x8_ppo", eval_every=None), GAMES)


def self_play(report: Report) -> None:
    """Train for as many steps as the league, but by self-play."""
    config = load_config("microrts_8x8_league", eval_every=None)
    same = ("env_params", "ent_coef", "vf_clip_eps", "normalize_rewards")
    control = SelfPlayConfig(**shared_fields(config, *same))
    play_bots(report, report.train(control, "self-play", preset="microrts_8x8_league"), GAMES)


def play_bots(report: Report, run: Trained, number_of_games: Mapping[str, int]) -> None:
    """Play the bots of the Java engine with sampled actions; record wins, draws and losses from both seats."""
    check_java()
    base, params = game_of(run.agent.config)
    game = microrts_of(base)
    assert game is not None
    program = java_program(game, params, partial(policy_player, run.agent, deterministic=False))
    states = [jax.tree.map(lambda x, i=i: x[i], run.states) for i in range(len(report.seeds))]
    for bot, count in number_of_games.items():
        played = [
            play_java_match(game, params, program, state, bot, key, count, say=report.say)
            for state, key in zip(states, fresh_keys(run), strict=True)
        ]
        for seat in range(2):
            report.measure(f"{bot}: won, drawn and lost as player {seat}", [games.counts(seat) for games in played])
        share = [np.mean(games.result[:, 0] > 0) for games in played]
        report.measure(f"{bot}: share of {count} games won", share, ENOUGH if bot in SCRIPTED else None)


def parity(report: Report) -> None:
    """Compare cycles of the engine in JAX with those of the Java engine, half of them of random play and half of bots."""
    java = start_java(report.say)
    for map_name in MAPS:
        for kind, bots in (("random", False), ("bots", True)):
            cycles = record(java, map_name, max(1, round(POSITIONS / 2 * report.budget)), report.seeds[0], bots)
            wrong, illegal = differences(cycles, map_name)
            joint = joint_conflicts(cycles)
            report.facts[f"{map_name}: {kind}"] = {
                "positions": len(wrong),
                "orders": int(np.sum(cycles.orders.action != NONE)),
                "states that differ": int(np.sum(wrong & ~joint)),
                "legal orders that differ": int(np.sum(illegal)),
                "joint conflicts": int(np.sum(joint)),
                "joint conflicts that differ": int(np.sum(wrong & joint)),
            }
            report.say(f"{map_name}, {kind}: {report.facts[f'{map_name}: {kind}']}")
