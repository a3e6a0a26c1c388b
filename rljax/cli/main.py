"""The `rljax` command: `rljax --help` teaches it."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rljax.cli.parsing import Bounds, parse
from rljax.cli.terminal import print_anywhere
from rljax.core.errors import ConfigError, RljaxError, RljaxWarning, TrainingInterrupted, first_line

DESCRIPTION = "Reinforcement learning in one compiled JAX program."

EXAMPLES = (
    ("rljax train cartpole_ppo", "train a preset; makes runs/cartpole_ppo"),
    ("rljax train cartpole_ppo --learning-rate 1e-3", "change any field of its configuration"),
    ('rljax train cartpole_ppo --network.hidden "[128,128]"', "also inside tables"),
    ("rljax train tmaze_ppo_gru --network.type lstm", "a policy with memory"),
    ("rljax train my_config.toml --run-dir runs/mine", "train your own file, into a folder of your choice"),
    ("rljax train ppo --env Acrobot-v1", "any algorithm with its defaults"),
    ("rljax train cartpole_ppo --seeds 8", "8 seeds in one program"),
    ("rljax train --resume runs/mine", "go on after Ctrl-C, a kill or --max-minutes, bit for bit"),
    ("rljax train --resume runs/mine --total-timesteps 1e6", "train a run for longer"),
    ("rljax train --fork runs/mine --learning-rate 1e-4", "a new run from a checkpoint, with anything changed"),
    ("rljax sweep cartpole_ppo --seeds 8 --learning-rate 1e-4 1e-3", "a grid of values times seeds in one program"),
    ("rljax tune cartpole_ppo --trials 64", "better numbers with Optuna, 16 trials at once"),
    ("rljax eval runs/cartpole_ppo", "play 100 episodes with the trained agent"),
    ("rljax show runs/cartpole_ppo", "configuration, figures, checkpoints, learning curve"),
    ("rljax plot runs/*", "learning curves with confidence bands, as PNG or SVG"),
    ("rljax plot --kind openloop runs/cartpole_dreamer", "what a world model foresees, against what came"),
    ("rljax record runs/cartpole_ppo --out agent.gif", "watch it play"),
    ("rljax tournament runs/* --include random,mcts", "agents of a game against each other, with ratings"),
    ("rljax play runs/tictactoe_selfplay", "play against an agent in the terminal"),
    ("rljax export runs/cartpole_ppo --out policy", "the policy as files that JAX alone (or ONNX) runs"),
    ("rljax list", "presets, environments, algorithms and their fields"),
    ("rljax bench ppo", "measure this machine, beside rejax where it is installed"),
    ("rljax reproduce cartpole_ppo", "measure a published figure again"),
)


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
class _Played(Saved):
    seed: Annotated[int, Bounds(0, 2**32 - 1)] = 0
    """Key of the episodes."""
    sample: bool = False
    """Sample actions instead of taking the most probable one."""


@dataclasses.dataclass
class Eval(_Played):
    """Play whole episodes with a trained agent and print what it scored."""

    episodes: Annotated[int, Bounds(1, 1_000_000)] = 100
    """How many episodes."""


@dataclasses.dataclass
class Record(_Played):
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 the run failed, 2 the input was wrong, 130 interrupted."""
    print_anywhere()
    try:
        try:
            command, overrides = parse(sys.argv[1:] if arguments is None else list(arguments), Command, DESCRIPTION, EXAMPLES)
            with _one_line_warnings():
                _run(command, overrides)
        finally:
            sys.stdout.flush()  # what cannot be printed is noticed here, and not while Python exits
    except ConfigError as error:
        _fail(error, 2)
    except RljaxError as error:
        _fail(error, 1)
    except TrainingInterrupted as stop:
        _fail(stop, 128 + stop.signum)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:  # the reader (head, say) has gone
        _drop_output()
        sys.exit(141)
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            _drop_output()
            _fail(f"output cannot be written: {error.strerror}", 1)
        _fail(RljaxError(first_line(error) if error.filename is None else f"{error.filename}: {error.strerror}"), 1)
    except MemoryError as error:
        _fail(f"out of memory ({first_line(error)})", 1)


def _drop_output() -> None:
    """Without this, Python complains once more while it exits."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Our own warnings as one line each, every time; the others as Python shows them."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", RljaxWarning)
        usual = warnings.showwarning

        def show(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, RljaxWarning):
                print(f"rljax: warning: {message}", file=sys.stderr, flush=True)
            else:
                usual(message, category, *rest, **more)

        warnings.showwarning = show
        yield


def _fail(message: object, status: int) -> None:
    with contextlib.suppress(OSError):  # the status says it where nothing can be printed
        print(f"rljax: {message}", file=sys.stderr, flush=True)
    if "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized():
        # At exit JAX would wait for the other processes of the run; so they notice that this one is gone.
        sys.stdout.flush()
        os._exit(status)
    sys.exit(status)


def _run(command: Any, overrides: dict[str, Any]) -> None:
    _use_compilation_cache()
    # For env = "module:Class"; last, so that no file there takes the place of what is installed.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    from rljax.cli import commands

    if isinstance(command, Train):
        commands.train(command, overrides)
    elif isinstance(command, Sweep):
        commands.sweep_of(command, overrides)
    elif isinstance(command, Tune):
        commands.tune_of(command, overrides)
    elif isinstance(command, Eval):
        commands.evaluate_run(command)
    elif isinstance(command, Record):
        commands.record_run(command)
    elif isinstance(command, Tournament):
        commands.tournament_of(command)
    elif isinstance(command, Play):
        commands.play_run(command)
    elif isinstance(command, Export):
        commands.export_run(command)
    elif isinstance(command, Plot):
        commands.plot_runs(command)
    elif isinstance(command, Show):
        commands.show_run(command.run)
    elif isinstance(command, List):
        commands.list_names(command.name)
    elif isinstance(command, Reproduce):
        commands.reproduce_figure(command)
    else:
        commands.bench(command.suite, command.repeats, command.json)


def _use_compilation_cache() -> None:
    """Keep compiled programs between starts, in JAX_COMPILATION_CACHE_DIR where that is set, else in the user's cache."""
    import jax

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(root / "rljax" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


if __name__ == "__main__":
    main()
