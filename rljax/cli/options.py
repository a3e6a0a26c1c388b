"""The commands and their options: each class is a command, each field a flag of it, each docstring its help."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import tyro

from rljax.cli.parsing import Bounds


@dataclasses.dataclass
class Train:
    """Train an agent. Every field of the configuration is a flag: --total-timesteps 1e6, --seed 3 (see `rljax list ppo`)."""

    config: tyro.conf.Positional[str | None] = None
    """A preset or an algorithm (`rljax list`), or a TOML file; not with --resume or --fork."""
    run_dir: str | None = None
    """Folder to make for this run; runs/NAME, with a number where that is taken, unless given."""
    seeds: int | None = None
    """Train this many seeds in one program: --seed, --seed + 1, ..."""
    resume: str | None = None
    """A run's folder: go on from its latest checkpoint. Only --total-timesteps may be changed."""
    fork: str | None = None
    """A checkpoint, or a run's folder: a new run from there, with any field changed."""
    log: tuple[str, ...] = ()
    """Loggers besides metrics.jsonl: tensorboard, wandb, mlflow, aim."""
    max_minutes: float | None = None
    """Stop and save after this long."""
    checkpoint_every: float | None = None
    """Save each time this many environment steps have been taken."""
    checkpoint_seconds: float | None = 60.0
    """Save when this long has passed since the last save; none: only at the end, and where other options say so."""
    keep: int | None = 3
    """How many checkpoints to keep besides the best; none: all."""
    coordinator: str | None = None
    """Of a run of several processes or machines: address:port of process 0, the same for all."""
    num_processes: int = 1
    """How many there are; their devices together are --num-devices."""
    process_id: int = 0
    """Which of them this is, from 0; the first writes and speaks."""


@dataclasses.dataclass
class Sweep:
    """Train every combination of values of some fields, times seeds, in as few programs as possible:
    --learning-rate 1e-4 3e-4 1e-3 --ent-coef 0 0.01. A field with one value is changed in all."""

    config: tyro.conf.Positional[str | None] = None
    """A preset or an algorithm (`rljax list`), or a TOML file; not with --resume."""
    seeds: int = 1
    """Seeds of each combination: --seed, --seed + 1, ..."""
    search: Literal["grid", "random", "sobol"] = "grid"
    """grid, or random or sobol: points of a space, where a field may be a range, low:high or low:high:log."""
    samples: Annotated[int | None, Bounds(1, 1_000_000)] = None
    """How many points a random or sobol search tries."""
    run_dir: str | None = None
    """Folder to make: results.csv, best.toml, sweep.png; sweeps/NAME, with a number where that is taken, unless given."""
    resume: str | None = None
    """A sweep's folder: train the runs that are not in its results.csv yet."""
    max_runs: Annotated[int, Bounds(1, 1_000_000)] = 4096
    """Refuse sweeps of more runs than this."""
    batch_size: Annotated[int | None, Bounds(1, 1_000_000)] = None
    """Runs in one program at most; as many as fit in memory (at most 64 on a CPU) unless given."""
    episodes: Annotated[int, Bounds(1, 1_000_000)] = 100
    """Played with the last policy of each run, to rank them."""
    parquet: bool = False
    """Write results.parquet as well."""


@dataclasses.dataclass
class Tune:
    """Look for better numbers with Optuna, a batch of trials at a time in one program. Fields are ranges (low:high or
    low:high:log) or lists: --learning-rate 1e-5:1e-2:log --ent-coef 0 0.01. Without any, a wide prior of the usual ones."""

    config: tyro.conf.Positional[str | None] = None
    """A preset or an algorithm (`rljax list`), or a TOML file; not with --resume."""
    trials: Annotated[int, Bounds(1, 1_000_000)] = 64
    """Of the study, those of other processes included."""
    batch_size: Annotated[int, Bounds(1, 1_000_000)] = 16
    """Trials that train at once."""
    seeds: int = 1
    """Of each trial, whose value is their mean."""
    episodes: Annotated[int, Bounds(1, 1_000_000)] = 100
    """Played with each last policy."""
    pruner: Literal["percentile", "median", "halving", "none"] = "percentile"
    """Which trials are given up early: the worst quarter at each tenth, the worse half, by successive halving, or none."""
    storage: str | None = None
    """An Optuna URL (sqlite:///study.db) or the file of a journal; study.journal in the folder unless given."""
    run_dir: str | None = None
    """Folder to make: trials.csv, best.toml, tune.png; tunes/NAME, with a number where that is taken, unless given."""
    resume: str | None = None
    """A study's folder: go on with it, or help another process that works on it."""


@dataclasses.dataclass
class Saved:
    """What a command needs to find an agent."""

    run: tyro.conf.Positional[str]
    """The run's folder, or one of its checkpoints."""
    checkpoint: str = "latest"
    """latest, best or a number of steps."""
    seed_index: str = "best"
    """Of a run of several seeds: which one, from 0, or best."""


@dataclasses.dataclass
class Played(Saved):
    seed: Annotated[int, Bounds(0, 2**32 - 1)] = 0
    """Key of the episodes."""
    sample: bool = False
    """Sample actions instead of taking the most probable one."""


@dataclasses.dataclass
class Eval(Played):
    """Play whole episodes with a trained agent and print what it scored."""

    episodes: Annotated[int, Bounds(1, 1_000_000)] = 100
    """How many episodes."""


@dataclasses.dataclass
class Record(Played):
    """Record an agent playing, as a GIF or an MP4."""

    out: str = "agent.gif"
    """The file: .gif or .mp4."""
    episodes: Annotated[int, Bounds(1, 1000)] = 1
    """How many episodes, one after the other."""
    max_steps: Annotated[int, Bounds(1, 1_000_000)] = 1000
    """Cut an episode off after this many steps."""
    fps: Annotated[int | None, Bounds(1, 1000)] = None
    """Frames per second; 30, and 1 of games in which players take turns, unless given."""


@dataclasses.dataclass
class Export(Saved):
    """Write the policy as files that run without rljax: by jax.export for CPU, CUDA and TPU, and as ONNX with jax2onnx."""

    out: str = "policy"
    """The folder to make."""


@dataclasses.dataclass
class Tournament:
    """Let agents of one game play each other: ratings with 95 % intervals, and a heat map of the results."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Folders of runs, or checkpoints."""
    include: str = ""
    """Players that need no training, by commas: random (whose rating is 1000), mcts (100 simulations)."""
    games: Annotated[int, Bounds(1, 1_000_000)] = 100
    """Games of each pairing, the seats taken in turn. Where nobody draws moves, a repeated game counts once."""
    openings: Annotated[int | None, Bounds(0, 1000)] = None
    """Random moves that each game begins with, each opening played from both seats; as the game says, or none with --sample and
    where games differ by themselves, unless given."""
    system: Literal["auto", "round-robin", "swiss"] = "auto"
    """round-robin, swiss, or auto: swiss from more than 50 pairings on."""
    out: str = "tournament.png"
    """The heat map: .png, .svg or .pdf."""
    seed: Annotated[int, Bounds(0, 2**32 - 1)] = 0
    """Key of the games."""
    sample: bool = False
    """Sample actions instead of taking the most probable one; always so where the best policy is random, as in poker."""
    simulations: Annotated[int, Bounds(0, 100_000)] = 0
    """Positions that the runs' agents look at before each move; 0: they take what their policies say."""


@dataclasses.dataclass
class Play(Saved):
    """Play a game against a trained agent in the terminal."""

    seat: int = 0
    """Yours, from 0; the agent takes all others."""
    seed: Annotated[int, Bounds(0, 2**32 - 1)] = 0
    """Key of the game."""
    sample: bool = False
    """The agent samples its actions; always so where the best policy is random, as in poker."""
    simulations: Annotated[int, Bounds(0, 100_000)] = 0
    """Positions that the agent looks at before each move; 0: it takes what its policy says."""


@dataclasses.dataclass
class Plot:
    """Draw learning curves, the interquartile mean over seeds with a 95 % bootstrap interval, or what a world model foresees,
    or the results of a league.

    Runs that differ in their seed only are one curve."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Folders of runs."""
    kind: Literal["curves", "openloop", "payoffs"] = "curves"
    """curves; openloop: true and predicted observations of one run of Dreamer, and the error of each step ahead; payoffs: what
    the players of one league have got against each other."""
    out: str | None = None
    """The picture: .png, .svg or .pdf; KIND.png unless given."""
    metric: str | None = None
    """Of curves: what to draw; eval/return where all runs have it, else episode/return, unless given."""


@dataclasses.dataclass
class Show:
    """Print a run: its configuration, figures, checkpoints and learning curve."""

    run: tyro.conf.Positional[str]
    """The run's folder."""


@dataclasses.dataclass
class List:
    """List presets, environments and algorithms; with a name, the fields of that algorithm, the text of that preset, or what that
    environment is."""

    name: tyro.conf.Positional[str | None] = None
    """An algorithm, a preset or an environment."""


@dataclasses.dataclass
class Bench:
    """Measure speed on this machine: compile and run time apart, interleaved with a peer where one is installed."""

    suite: tyro.conf.Positional[str] = "ppo"
    """The benchmark to run: ppo, recurrent, dqn, dreamer, league, sweep, devices, or fit."""
    repeats: Annotated[int, Bounds(1, 1000)] = 5
    """Interleaved repeats; medians are reported."""
    json: str | None = None
    """A file for the tables as JSON as well."""


@dataclasses.dataclass
class Reproduce:
    """Measure a published figure again and write its record, results/NAME.json; without a name, list what there is."""

    name: tyro.conf.Positional[str | None] = None
    """An experiment."""
    seeds: Annotated[int | None, Bounds(1, 1_000_000)] = None
    """How many seeds; as many as were published unless given."""
    first_seed: Annotated[int, Bounds(0, 2**32 - 1)] = 5000
    """The first of them; presets were tuned with others."""
    budget: float = 1.0
    """The share of each configuration's steps to train: 0.1 for a quick look."""
    out: str = "results"
    """The folder for the record."""


Command = (
    Train | Sweep | Tune | Eval | Show | Plot | Record | Tournament | Play | Export
    | Annotated[List, tyro.conf.subcommand("list")] | Bench | Reproduce
)  # fmt: skip
