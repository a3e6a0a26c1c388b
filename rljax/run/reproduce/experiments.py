"""Table of experiments, and the function that runs one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rljax.core.compilation_cache import without_compilation_cache
from rljax.core.errors import ConfigError, did_you_mean
from rljax.run.reproduce import (
    distilling,
    dreamer,
    features,
    large_data,
    offline,
    presets,
    randomizing,
    speed,
    suites_learning,
)
from rljax.run.reproduce.playing import game_features, games, imitation, microrts, opponents, scouting
from rljax.run.reproduce.report import Report, write_record
from rljax.run.search.space import check_counts

FIRST_SEED = 5000
"""First seed by default: seeds from here on were not used to tune the presets."""


class Experiment(NamedTuple):
    """Experiment: `run` fills a report; `minutes` is its approximate time on one core, including compilation."""

    measures: str
    minutes: float
    seeds: int
    run: Callable[[Report], object]


def _solves(preset: str, minutes: float, threshold: float | None = None, seeds: int = 20) -> Experiment:
    measures = f"{preset}: greedy mean return over 100 episodes after training"
    return Experiment(measures, minutes, seeds, lambda report: presets.solves(report, preset, threshold))


def _holds(preset: str, minutes: float, threshold: float | None = None, seeds: int = 100) -> Experiment:
    measures = f"{preset}: greedy mean return over 100 episodes after training, and its lowest evaluation in the last fifth"
    return Experiment(measures, minutes, seeds, lambda report: presets.holds(report, preset, threshold))


def _dreams(preset: str, minutes: float, seeds: int = 5) -> Experiment:
    measures = f"{preset}: greedy mean return over 50 episodes after training, and its evaluations during training"
    return Experiment(measures, minutes, seeds, lambda report: dreamer.learns(report, preset))


def _plays_bots(trained: str, run: Callable[[Report], object]) -> Experiment:
    return Experiment(f"{trained}: games won, drawn and lost against bots of the Java engine of microRTS", 90, 1, run)


def _bench(suite: str, minutes: float) -> Experiment:
    return Experiment(f"output of `rljax bench {suite}`", minutes, 1, lambda report: speed.suite(report, suite))


EXPERIMENTS: dict[str, Experiment] = {
    "cartpole_ppo": _solves("cartpole_ppo", 1),
    "cartpole_ppo_cleanrl": _solves("cartpole_ppo_cleanrl", 3, 475.0),
    "acrobot_ppo": _solves("acrobot_ppo", 2),
    "pendulum_ppo": _solves("pendulum_ppo", 2),
    "cartpole_dqn": _holds("cartpole_dqn", 60),
    "cartpole_pqn": _holds("cartpole_pqn", 5),
    "cartpole_impala": _solves("cartpole_impala", 0.5),
    "acrobot_dqn": _solves("acrobot_dqn", 2),
    "pendulum_sac": _holds("pendulum_sac", 5, -180.0),
    "gridworld_ppo": Experiment(
        "gridworld_ppo: greedy mean return over 100 episodes, and the share of cells from which the greedy move is optimal",
        1,
        20,
        presets.gridworld,
    ),
    "maze_ppo": _solves("maze_ppo", 30, 0.9, seeds=5),
    "first_solved": Experiment(
        "steps until a greedy evaluation of 32 episodes first reaches the task's threshold, and returns at the end, of 8 presets",
        12,
        8,
        presets.first_solved,
    ),
    "policy_lag": Experiment(
        "cartpole_impala with actors 8 iterations behind: greedy mean return with and without V-trace's correction",
        2,
        20,
        presets.policy_lag,
    ),
    "breakout_pqn": Experiment(
        "breakout_pqn: greedy mean return over 100 episodes, trained and at random", 8, 3, presets.breakout
    ),
    "memory": Experiment("T-maze and memory chain, with memory and without: greedy mean return", 3, 10, features.memory),
    "entities": Experiment(
        "target_pick_ppo and an MLP: right picks of 8, with as many targets as in training and with more",
        6,
        10,
        features.entities,
    ),
    "composite": Experiment("composite_ppo, autoregressive or independent heads: sampled mean return", 3, 10, features.composite),
    "exploration": Experiment("sparse grid world: number of seeds that find the goal, by bonus", 3, 10, features.exploration),
    "curricula": Experiment(
        "SparseGridWorld-v0: steps until the goal is found from afar, by the rule of a curriculum of starts, or without one",
        2,
        10,
        features.curricula,
    ),
    "critics": Experiment("hidden_bit_ppo: steps to a return of 7, by critic; explained variance", 2, 10, features.critics),
    "command": Experiment("command_ppo: R2 between achieved and commanded numbers", 1, 10, features.command),
    "randomization": Experiment(
        "CartPole-v1 with poles of other lengths: greedy mean return, trained with one pole or with one drawn for each episode",
        2,
        10,
        randomizing.randomization,
    ),
    "scouting": Experiment(
        "Scouting-v0: returns and looks where the answer depends on what a look shows or not, with a bonus for information",
        2,
        5,
        scouting.scouting,
    ),
    "opponent_models": Experiment(
        "HabitRPS-v0: what a linear probe reads from an opponent model, and returns of policies that see z or something else",
        5,
        5,
        opponents.opponent_models,
    ),
    "game_features": Experiment(
        "memory, frames, action heads, pointer, bonuses, privileged critic and value heads in games of two, beside controls",
        15,
        5,
        game_features.features,
    ),
    "biased_rps_league": Experiment(
        "biased rock, paper, scissors: exploitability of a league and its controls", 4, 5, games.biased_rps
    ),
    "kuhn_league": Experiment("kuhn_league: NashConv and value", 6, 5, lambda report: games.poker(report, "kuhn_league")),
    "leduc_league": Experiment("leduc_league: NashConv and value", 35, 2, lambda report: games.poker(report, "leduc_league")),
    "kuhn3_selfplay": Experiment(
        "kuhn3_selfplay: mean win of a new PPO trained against two copies of it, and of an untrained policy",
        2,
        5,
        games.kuhn_of_three,
    ),
    "backgammon": Experiment(
        "backgammon: games won and points by a search with chance nodes against the policy that guides it",
        20,
        2,
        games.backgammon,
    ),
    "tictactoe_selfplay": Experiment(
        "tictactoe_selfplay: games lost to a perfect player", 3, 5, lambda report: games.tictactoe(report, "tictactoe_selfplay")
    ),
    "tictactoe_alphazero": Experiment(
        "tictactoe_alphazero: games lost to a perfect player, with and without search",
        2,
        3,
        lambda report: games.tictactoe(report, "tictactoe_alphazero"),
    ),
    "tictactoe_normalised": Experiment(
        "tictactoe_alphazero with rewards and observations of other sizes, normalised or not: games lost to a perfect player",
        5,
        5,
        games.normalisation,
    ),
    "number_duel_league": Experiment(
        "Number Duel: mean win of a new PPO trained against a league and its controls", 8, 3, games.number_duel
    ),
    "territory_selfplay": Experiment("territory_selfplay: mean lead over random and greedy players", 4, 3, games.territory),
    "heavy_box_selfplay": _solves("heavy_box_selfplay", 1, 0.95, seeds=5),
    "connect_four_selfplay": Experiment(
        "connect_four_selfplay: games won against random play and UCT",
        10,
        1,
        lambda report: games.connect_four(report, "connect_four_selfplay"),
    ),
    "connect_four_alphazero": Experiment(
        "connect_four_alphazero: games won against random play and UCT; moves that lose value",
        20,
        1,
        lambda report: games.connect_four(report, "connect_four_alphazero"),
    ),
    "branching": Experiment(
        "Connect Four: steps until an exploiter wins 70 % against a main agent, begun as a branch of it or anew",
        6,
        5,
        games.branching,
    ),
    "distillation": Experiment(
        "distillation with less than a quarter of the parameters, from one teacher and from two: student's share of the return",
        4,
        5,
        distilling.distillation,
    ),
    "cspl": Experiment(
        "fights of varied teams: specialists, a student of them and its reinforcement, beside PPO from scratch on all teams",
        20,
        5,
        distilling.cspl,
    ),
    "microrts_clone": Experiment(
        "a clone of a scripted player of MicroRTS: accuracy, games won as a share of its teacher's; PPO from it and from scratch",
        120,
        5,
        imitation.microrts_clone,
    ),
    "large_data": Experiment(
        "memory of the process, and time spent waiting, while it clones from pictures ten times the budget of memory for data",
        9,
        1,
        large_data.large_data,
    ),
    "microrts_parity": Experiment(
        f"MicroRTS: {microrts.POSITIONS:,} cycles on each map beside those of the Java engine", 15, 1, microrts.parity
    ),
    "microrts_8x8_league": _plays_bots("microrts_8x8_league", microrts.league),
    "microrts_8x8_coac": _plays_bots("microrts_8x8_league from a clone of CoacAI and against it", microrts.league_from_coac),
    "microrts_8x8_ppo": _plays_bots("microrts_8x8_ppo, trained against scripted players only", microrts.bots_only),
    "microrts_8x8_selfplay": _plays_bots("self-play with the steps of microrts_8x8_league", microrts.self_play),
    "microrts_16x16_league": _plays_bots(
        f"microrts_16x16_league from a clone of CoacAI, with {microrts.LARGE['total_timesteps']:,} steps", microrts.large_league
    ),
    "microrts_16x16_coac": _plays_bots(
        "microrts_16x16_league from a clone of CoacAI, then against it", microrts.large_league_against_coac
    ),
    "microrts_fog": Experiment(
        f"a league with memory and one without in the fog of war, with {microrts.FOG_STEPS:,} steps: games won in training and "
        "against each other",
        60,
        1,
        microrts.fog,
    ),
    "cartpole_dreamer_debug": _dreams("cartpole_dreamer_debug", 12),
    "cartpole_dreamer": _dreams("cartpole_dreamer", 60),
    "pendulum_dreamer": _dreams("pendulum_dreamer", 6),
    "gridworld_pixels_dreamer": _dreams("gridworld_pixels_dreamer", 10),
    "cartpole_r2dreamer": _dreams("cartpole_r2dreamer", 12),
    "cartpole_infonce": _dreams("cartpole_infonce", 12),
    "cartpole_dreamerpro": _dreams("cartpole_dreamerpro", 16),
    "offline": Experiment(
        "returns of cloning and of offline algorithms on data of poor players, and online from there and from scratch",
        15,
        5,
        offline.offline,
    ),
    "tuning": Experiment(
        "configuration that `rljax tune` finds for cartpole_ppo with 10,000 steps, beside the preset, on new seeds",
        3,
        20,
        presets.tuning,
    ),
    "craftax_resets": Experiment(
        "Craftax-Classic: steps per second of PPO on one core, by the kind of resets", 20, 1, suites_learning.craftax_resets
    ),
    "navix_doorkey": Experiment(
        "NAVIX's DoorKey 5 x 5 with PPO: mean return over 100 episodes, greedy, sampled and at random",
        6,
        5,
        lambda report: suites_learning.learns(report, suites_learning.DOORKEY, 0.95),
    ),
    "pgx_2048": Experiment(
        "2048 of pgx with PPO: mean return over 100 episodes, greedy, sampled and at random",
        10,
        3,
        lambda report: suites_learning.learns(report, suites_learning.GAME_2048),
    ),
    "smax_3m": Experiment(
        "SMAX 3m of JaxMARL with shared weights: mean return over 100 episodes, greedy, sampled and at random; battles won",
        15,
        3,
        suites_learning.smax,
    ),
    "overcooked": Experiment(
        "Overcooked of JaxMARL, cramped room, with shaped rewards as a component and without: mean return over 100 episodes",
        20,
        3,
        suites_learning.overcooked,
    ),
    "brax_ppo": Experiment(
        "Brax's inverted pendulum: greedy mean return over 100 episodes and steps per second, with PPO here and Brax's own",
        15,
        3,
        suites_learning.brax_ppo,
    ),
    "brax_halfcheetah": Experiment(
        "Brax's halfcheetah: greedy mean return over 100 episodes and steps per second, with PPO here and Brax's own",
        25,
        1,
        lambda report: suites_learning.brax_ppo(report, suites_learning.HALFCHEETAH),
    ),
    "bench_ppo": _bench("ppo", 4),
    "bench_recurrent": _bench("recurrent", 4),
    "bench_dqn": _bench("dqn", 6),
    "bench_dreamer": _bench("dreamer", 4),
    "bench_league": _bench("league", 2),
    "bench_microrts": _bench("microrts", 4),
    "bench_launches": _bench("launches", 6),
    "bench_sweep": _bench("sweep", 4),
    "bench_devices": _bench("devices", 4),
    "bench_processes": _bench("processes", 3),
    "bench_fit": _bench("fit", 3),
    "bench_simulators": _bench("simulators", 6),
}


def find_experiment(name: str) -> Experiment:
    """Return the experiment of this name.

    Raises:
        ConfigError: there is none; the closest match is named.
    """
    if name not in EXPERIMENTS:
        raise ConfigError(f"unknown experiment '{name}': {did_you_mean(name, EXPERIMENTS)}")
    return EXPERIMENTS[name]


def reproduce(
    name: str,
    folder: Path = Path("results"),
    *,
    seeds: int | None = None,
    first_seed: int = FIRST_SEED,
    budget: float = 1.0,
    quiet: bool = False,
    run_dir: str | Path | None = None,
) -> dict[str, Any]:
    """Run an experiment and write its record, `folder/NAME.json`.

    Args:
        name: name in `EXPERIMENTS`.
        folder: folder for the record; an existing record is replaced once the experiment is done.
        seeds: number of seeds; if None, the experiment's own number.
        first_seed: first of the seeds.
        budget: fraction of each configuration's steps to train: below 1 for a quick look.
        quiet: print nothing.
        run_dir: folder in which to keep runs and recorded data, `run_dir/NAME/from_FIRST_SEED`. If the experiment is run again
            with it, complete runs are only read, and one that was stopped goes on. Matches, evaluations, and training in steps of
            its own, as in fine-tuning and distillation, are done again.

    Returns:
        The record (see `rljax.run.reproduce.report`).

    Raises:
        ConfigError: no experiment has this name, or a number is out of range.
    """
    experiment = find_experiment(name)
    seeds = experiment.seeds if seeds is None else seeds
    check_counts(seeds=seeds)
    if not 0 < budget <= 1:
        raise ConfigError(f"budget = {budget:g}: expected a share of the steps, above 0 and at most 1")
    report = Report(name, experiment.measures, first_seed, seeds, budget, quiet, run_dir)
    with without_compilation_cache():
        experiment.run(report)
    changed = {"seeds": (seeds, experiment.seeds), "first-seed": (first_seed, FIRST_SEED), "budget": (budget, 1.0)}
    flags = "".join(f" --{flag} {value:g}" for flag, (value, usual) in changed.items() if value != usual)
    record = report.record(f"rljax reproduce {name}{flags}")
    write_record(folder / f"{name}.json", record)
    return record
