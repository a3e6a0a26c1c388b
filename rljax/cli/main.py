"""The `rljax` command: `rljax --help` teaches it."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rljax.cli.overrides import axes_of, overrides_of
from rljax.core.errors import ConfigError, RljaxError, RljaxWarning, TrainingInterrupted

DESCRIPTION = """Reinforcement learning in one compiled JAX program.

  rljax train cartpole_ppo                              train a preset; makes runs/cartpole_ppo
  rljax train cartpole_ppo --learning-rate 1e-3         change any field of its configuration
  rljax train cartpole_ppo --network.hidden "[128,128]" also inside tables
  rljax train tmaze_ppo_gru --network.type lstm         a policy with memory
  rljax train my_config.toml --run-dir runs/mine        train your own file, into a folder of your choice
  rljax train cartpole_ppo --seeds 8                    8 seeds in one program
  rljax train --resume runs/mine                        go on after Ctrl-C, a kill or --max-minutes, bit for bit
  rljax train --resume runs/mine --total-timesteps 1e6  train a run for longer
  rljax train --fork runs/mine --learning-rate 1e-4     a new run from a checkpoint, with anything changed
  rljax sweep cartpole_ppo --seeds 8 --learning-rate 1e-4 1e-3    a grid of values times seeds in one program
  rljax tune cartpole_ppo --trials 64                   better numbers with Optuna, 16 trials at once
  rljax eval runs/cartpole_ppo                          play 100 episodes with the trained agent
  rljax show runs/cartpole_ppo                          configuration, figures, checkpoints, learning curve
  rljax plot runs/*                                     learning curves with confidence bands, as PNG or SVG
  rljax plot --kind openloop runs/cartpole_dreamer      what a world model foresees, against what came
  rljax record runs/cartpole_ppo --out agent.gif        watch it play
  rljax tournament runs/* --include random,mcts         agents of a game against each other, with ratings
  rljax play runs/tictactoe_selfplay                    play against an agent in the terminal
  rljax export runs/cartpole_ppo --out policy           the policy as files that JAX alone (or ONNX) runs
  rljax list                                            presets, environments, algorithms and their fields
  rljax bench ppo                                       measure this machine, beside rejax where it is installed"""


@dataclasses.dataclass
class Train:
    """Train an agent. Every field of the configuration is a flag: --total-timesteps 1e6, --seed 3 (see `rljax list ppo`)."""

    config: tyro.conf.Positional[str | None] = None
    """A preset (`rljax list`) or a TOML file; not with --resume or --fork."""
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
    """A preset (`rljax list`) or a TOML file; not with --resume."""
    seeds: int = 1
    """Seeds of each combination: --seed, --seed + 1, ..."""
    search: Literal["grid", "random", "sobol"] = "grid"
    """grid, or random or sobol: points of a space, where a field may be a range, low:high or low:high:log."""
    samples: int | None = None
    """How many points a random or sobol search tries."""
    run_dir: str | None = None
    """Folder to make: results.csv, best.toml, sweep.png; sweeps/NAME, with a number where that is taken, unless given."""
    resume: str | None = None
    """A sweep's folder: train the runs that are not in its results.csv yet."""
    max_runs: int = 4096
    """Refuse sweeps of more runs than this."""
    batch_size: int | None = None
    """Runs in one program at most; as many as fit in memory (at most 64 on a CPU) unless given."""
    episodes: int = 100
    """Played with the last policy of each run, to rank them."""
    parquet: bool = False
    """Write results.parquet as well."""


@dataclasses.dataclass
class Tune:
    """Look for better numbers with Optuna, a batch of trials at a time in one program. Fields are ranges (low:high or
    low:high:log) or lists: --learning-rate 1e-5:1e-2:log --ent-coef 0 0.01. Without any, a wide prior of the usual ones."""

    config: tyro.conf.Positional[str | None] = None
    """A preset (`rljax list`) or a TOML file; not with --resume."""
    trials: int = 64
    """Of the study, those of other processes included."""
    batch_size: int = 16
    """Trials that train at once."""
    seeds: int = 1
    """Of each trial, whose value is their mean."""
    episodes: int = 100
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
    seed: int = 0
    """Key of the episodes."""
    sample: bool = False
    """Sample actions instead of taking the most probable one."""


@dataclasses.dataclass
class Eval(_Played):
    """Play whole episodes with a trained agent and print what it scored."""

    episodes: int = 100
    """How many episodes."""


@dataclasses.dataclass
class Record(_Played):
    """Record an agent playing, as a GIF or an MP4."""

    out: str = "agent.gif"
    """The file: .gif or .mp4."""
    episodes: int = 1
    """How many episodes, one after the other."""
    max_steps: int = 1000
    """Cut an episode off after this many steps."""
    fps: int = 30
    """Frames per second."""


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
    games: int = 100
    """Games of each pairing, the seats taken in turn."""
    system: Literal["auto", "round-robin", "swiss"] = "auto"
    """round-robin, swiss, or auto: swiss from more than 50 pairings on."""
    out: str = "tournament.png"
    """The heat map: .png, .svg or .pdf."""
    seed: int = 0
    """Key of the games."""
    sample: bool = False
    """Sample actions instead of taking the most probable one; always so where the best policy is random, as in poker."""
    simulations: int = 0
    """Positions that the runs' agents look at before each move; 0: they take what their policies say."""


@dataclasses.dataclass
class Play(Saved):
    """Play a game against a trained agent in the terminal."""

    seat: int = 0
    """Yours: 0 or 1."""
    seed: int = 0
    """Key of the game."""
    sample: bool = False
    """The agent samples its actions; always so where the best policy is random, as in poker."""
    simulations: int = 0
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
    """List presets, environments and algorithms; with a name, the fields of that algorithm or the text of that preset."""

    name: tyro.conf.Positional[str | None] = None
    """An algorithm or a preset."""


@dataclasses.dataclass
class Bench:
    """Measure speed on this machine: compile and run time apart, interleaved with a peer where one is installed."""

    suite: tyro.conf.Positional[str] = "ppo"
    """What to measure: ppo, recurrent, dqn, dreamer, league, sweep, devices, presets, or fit."""
    repeats: int = 5
    """Interleaved repeats; medians are reported."""
    json: str | None = None
    """A file for the tables as JSON as well."""


Command = (
    Train | Sweep | Tune | Eval | Show | Plot | Record | Tournament | Play | Export
    | Annotated[List, tyro.conf.subcommand("list")] | Bench
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 the run failed, 2 the input was wrong, 130 interrupted."""
    try:
        command, overrides = _parse(sys.argv[1:] if arguments is None else list(arguments))
        with _one_line_warnings():
            _run(command, overrides)
    except ConfigError as error:
        _fail(error, 2)
    except RljaxError as error:
        _fail(error, 1)
    except TrainingInterrupted as stop:
        _fail(stop, 128 + stop.signum)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader (head, say) has gone; without this, Python complains once more while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


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
    print(f"rljax: {message}", file=sys.stderr, flush=True)
    if "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized():
        # At exit JAX would wait for the other processes of the run; so they notice that this one is gone.
        sys.stdout.flush()
        os._exit(status)
    sys.exit(status)


_OF_FIELDS: dict[str, type] = {"train": Train, "sweep": Sweep, "tune": Tune}
"""Commands of which fields of the configuration are flags."""


def _parse(arguments: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """The command, and the fields of the configuration to change: values of `train`, lists or ranges of the others."""
    own, fields = _split(arguments) if arguments and arguments[0] in _OF_FIELDS else (list(arguments), [])
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            command, rest = tyro.cli(Command, args=own, prog="rljax", description=DESCRIPTION, return_unknown_args=True)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise ConfigError(f"{_first_lines(errors.getvalue())} (see rljax --help)") from None
    if rest and rest[0].startswith("--"):
        raise ConfigError(f"unknown option {rest[0]} (see rljax {type(command).__name__.lower()} --help)")
    if rest:
        raise ConfigError(f"unexpected argument '{rest[0]}': options look like --learning-rate 1e-3")
    if isinstance(command, (Sweep, Tune)):
        return command, axes_of(fields)
    return command, overrides_of([(name, values[0]) for name, values in fields])


def _split(arguments: Sequence[str]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The arguments of the command itself, and the others as (name, values): fields of the configuration, of which `train` takes
    one value each; no value is true."""
    several = arguments[0] != "train"
    known = {"help", *(field.name for field in dataclasses.fields(_OF_FIELDS[arguments[0]]))}
    own: list[str] = []
    fields: list[tuple[str, list[str]]] = []
    tokens = list(arguments)
    while tokens:
        token = tokens.pop(0)
        name, equals, value = token.removeprefix("--").partition("=")
        if not token.startswith("--") or not name or name.replace("-", "_") in known:
            own.append("None" if token == "none" else token)
        else:
            values = [value] if equals else []
            while tokens and not tokens[0].startswith("--") and (several or not values):
                values.append(tokens.pop(0))
            fields.append((name, values or ["true"]))
    return own, fields


def _first_lines(box: str) -> str:
    """What tyro's box of a message says, in one line: its first paragraph, and the next where that ends in a colon."""
    lines = [line.strip("│╭╮╰╯─|+- ") for line in box.splitlines()[1:]]
    paragraphs = [" ".join(group) for filled, group in itertools.groupby(lines, bool) if filled]
    said = " ".join(paragraphs[:2] if paragraphs and paragraphs[0].endswith(":") else paragraphs[:1])
    return said.rstrip(".") or "bad arguments"


def _run(command: Any, overrides: dict[str, Any]) -> None:
    _use_compilation_cache()
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
