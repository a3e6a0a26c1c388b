"""The `rljax` command; `rljax --help` explains it."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from rljax.cli.options import (
    Bench,
    Command,
    Compile,
    Demo,
    Eval,
    Export,
    Launch,
    List,
    Log,
    Opponents,
    Pack,
    Play,
    Plot,
    Pull,
    Push,
    Record,
    Reproduce,
    Show,
    Sweep,
    Tournament,
    Train,
    Tune,
    Zoo,
)
from rljax.cli.parsing import OF_FIELDS, parse
from rljax.cli.terminal import open_streams, print_anywhere
from rljax.core.errors import ConfigError, RljaxError, RljaxWarning, TrainingInterrupted, first_line

DESCRIPTION = "Reinforcement learning in one compiled JAX program."

EXAMPLES = (
    ("rljax train cartpole_ppo", "train a preset into runs/cartpole_ppo"),
    ("rljax train cartpole_ppo --learning-rate 1e-3", "change any field of its configuration"),
    ('rljax train cartpole_ppo --network.hidden "[128,128]"', "change a key inside a table"),
    ("rljax train tmaze_ppo_gru --network.type lstm", "train a policy with memory"),
    ("rljax train my_config.toml --run-dir runs/mine", "train your own file, into a folder of your choice"),
    ("rljax train ppo --env Acrobot-v1", "train any algorithm with its defaults"),
    ("rljax train cartpole_ppo --seeds 8", "train 8 seeds in one program"),
    ("rljax train --resume runs/mine", "continue after Ctrl-C, a kill or --max-minutes, bit for bit"),
    ("rljax train --resume runs/mine --total-timesteps 1e6", "train a run for longer"),
    (
        "rljax train --fork runs/mine --total-timesteps 1e6 --learning-rate 1e-4",
        "train on as a new run, with any field changed",
    ),
    ("rljax sweep cartpole_ppo --seeds 8 --learning-rate 1e-4 1e-3", "train a grid of values times seeds in one program"),
    ("rljax tune cartpole_ppo --trials 64", "search for better hyperparameters with Optuna, 16 trials at once"),
    ("rljax eval runs/cartpole_ppo", "play 100 episodes with the trained agent"),
    ("rljax show runs/cartpole_ppo", "print configuration, latest and best returns, checkpoints, learning curve"),
    ("rljax plot runs/*", "draw learning curves with confidence bands, as PNG or SVG"),
    ("rljax plot --kind openloop runs/cartpole_dreamer", "compare a world model's predictions with the observations"),
    ("rljax record runs/cartpole_ppo --out agent.gif", "watch it play"),
    ("rljax log runs/* --log tensorboard,wandb", "send runs that are there already to loggers"),
    ("rljax demo runs/cartpole_ppo --episodes 500 --out data", "record episodes as data to learn from"),
    ("rljax opponents data --out model.json", "train a model of opponents on recorded games, for policies to see"),
    ("rljax tournament runs/* --include random,mcts", "rate the agents of a game against each other"),
    ("rljax play runs/tictactoe_selfplay", "play against an agent in the terminal"),
    ("rljax export runs/cartpole_ppo --out policy", "write the policy as files that JAX alone (or ONNX) runs"),
    ("rljax zoo", "list the trained agents that come with rljax: rljax play zoo:connect_four_selfplay"),
    ("rljax pack runs/cartpole_ppo", "write an agent to a small folder with its score and checksums"),
    ("rljax push runs/cartpole_ppo USER/REPO", "share an agent on the Hugging Face Hub; rljax pull USER/REPO fetches it"),
    ("rljax list", "list presets, environments, algorithms and their fields"),
    ("rljax bench ppo", "measure speed on this machine, beside rejax if it is installed"),
    ("rljax compile cartpole_ppo --target h200", "see whether a run fits on a device that is not here, and what bounds it"),
    ("rljax launch cartpole_ppo --accelerators H100:1 --max-price 3", "train on a rented machine, through SkyPilot"),
    ("rljax reproduce cartpole_ppo", "measure a published figure again"),
)


FUNCTIONS: dict[type, str] = {
    Train: "train.train",
    Sweep: "search.sweep",
    Tune: "search.tune",
    Eval: "train.evaluate",
    Show: "view.show",
    Plot: "view.plot",
    Record: "view.record",
    Log: "view.log",
    Demo: "data.demo",
    Opponents: "data.opponents",
    Tournament: "view.tournament",
    Play: "view.play",
    Export: "view.export",
    Zoo: "agents.zoo",
    Pack: "agents.pack",
    Push: "agents.push",
    Pull: "agents.pull",
    List: "listing.list_names",
    Bench: "measure.bench",
    Compile: "measure.compile_run",
    Launch: "launch.launch",
    Reproduce: "measure.reproduce",
}
"""Module and function of each command, imported when the command is given."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with status 0 (done), 1 (the run failed), 2 (the input was wrong), 130 (interrupted) or 143
    (a training, sweep or study was terminated)."""
    open_streams()
    print_anywhere()
    try:
        try:
            command, overrides = parse(sys.argv[1:] if arguments is None else list(arguments), Command, DESCRIPTION, EXAMPLES)
            with _one_line_warnings():
                _run(command, overrides)
        finally:
            sys.stdout.flush()  # so that output that cannot be written fails here, and not while Python exits
    except ConfigError as error:
        _fail(error, 2)
    except RljaxError as error:
        _fail(error, 1)
    except TrainingInterrupted as stop:
        # A program of a sweep or study may still run in a thread of its own, on which Python's exit would trip.
        _fail(stop, 128 + stop.signum, at_once=stop.result is None)
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
    """Send standard output to the null device, or Python complains once more while it exits."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Print every warning of rljax as one line, each time; leave the others to Python."""
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


def _fail(message: object, status: int, at_once: bool = False) -> None:
    with contextlib.suppress(OSError):  # where nothing can be printed, the exit status still tells
        print(f"rljax: {message}", file=sys.stderr, flush=True)
    # Of several processes, a normal exit would wait for the others; this one lets them notice that it is gone.
    if at_once or ("jax" in sys.modules and sys.modules["jax"].distributed.is_initialized()):
        sys.stdout.flush()
        os._exit(status)
    sys.exit(status)


def _run(command: Any, overrides: dict[str, Any]) -> None:
    directory = _working_directory()
    if not isinstance(command, Compile):  # a program for a device that is not there cannot be read from the cache
        _use_compilation_cache()
    # For env and algorithm = "module:Class". It comes last, so that no local file hides an installed package.
    if directory not in sys.path:
        sys.path.append(directory)
    from rljax.core.host import failures_explained

    with failures_explained():
        _dispatch(command, overrides)


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the working directory is gone; go to another one (cd) and start again") from None


def _dispatch(command: Any, overrides: dict[str, Any]) -> None:
    module, _, name = FUNCTIONS[type(command)].partition(".")
    function = getattr(importlib.import_module(f"rljax.cli.{module}"), name)
    if type(command).__name__.lower() in OF_FIELDS:
        from rljax.cli.folders import refuse_folder

        refuse_folder(command.config)
        function(command, overrides)
    else:
        function(command)


def _use_compilation_cache() -> None:
    """Keep compiled programs between starts, in JAX_COMPILATION_CACHE_DIR if it is set, else in the user's cache."""
    import jax

    from rljax.core.places import user_cache

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        with contextlib.suppress(ConfigError):  # a user without a home folder compiles anew
            jax.config.update("jax_compilation_cache_dir", str(user_cache() / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


if __name__ == "__main__":
    main()
