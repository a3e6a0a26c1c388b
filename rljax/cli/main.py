"""The `rljax` command: `rljax --help` teaches it."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from rljax.core.errors import ConfigError, RljaxError

DESCRIPTION = """Reinforcement learning in one compiled JAX program.

  rljax train cartpole_ppo                              train a preset; makes runs/cartpole_ppo
  rljax train cartpole_ppo --learning-rate 1e-3         change any field of its configuration
  rljax train cartpole_ppo --network.hidden "[128,128]" also inside tables
  rljax train my_config.toml --run-dir runs/mine        train your own file, into a folder of your choice
  rljax eval runs/cartpole_ppo                          play 100 episodes with the trained agent
  rljax list                                            presets, environments, algorithms and their fields
  rljax bench ppo                                       measure this machine, beside rejax where it is installed"""


@dataclasses.dataclass
class Train:
    """Train an agent. Every field of the configuration is a flag: --total-timesteps 1e6, --seed 3 (see `rljax list ppo`)."""

    config: tyro.conf.Positional[str]
    """A preset (`rljax list`) or a TOML file."""
    run_dir: str | None = None
    """Folder to make for this run; runs/NAME, with a number where that is taken, unless given."""


@dataclasses.dataclass
class Eval:
    """Play whole episodes with a trained agent and print what it scored."""

    run: tyro.conf.Positional[str]
    """The run's folder."""
    episodes: int = 100
    """How many episodes."""
    seed: int = 0
    """Key of the episodes."""
    sample: bool = False
    """Sample actions instead of taking the most probable one."""


@dataclasses.dataclass
class List:
    """List presets, environments and algorithms; with a name, the fields of that algorithm or the text of that preset."""

    name: tyro.conf.Positional[str | None] = None
    """An algorithm or a preset."""


@dataclasses.dataclass
class Bench:
    """Measure speed on this machine: compile and run time apart, interleaved with a peer where one is installed."""

    suite: tyro.conf.Positional[str] = "ppo"
    """What to measure: ppo."""
    repeats: int = 5
    """Interleaved repeats; medians are reported."""


Command = Train | Eval | Annotated[List, tyro.conf.subcommand("list")] | Bench


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 the run failed, 2 the input was wrong, 130 interrupted."""
    try:
        command, rest = _parse(sys.argv[1:] if arguments is None else arguments)
        _run(command, rest)
    except ConfigError as error:
        _fail(error, 2)
    except RljaxError as error:
        _fail(error, 1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader (head, say) has gone; without this, Python complains once more while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _fail(message: object, status: int) -> None:
    print(f"rljax: {message}", file=sys.stderr)
    sys.exit(status)


def _parse(arguments: Sequence[str]) -> tuple[Any, list[str]]:
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(Command, args=list(arguments), prog="rljax", description=DESCRIPTION, return_unknown_args=True)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise ConfigError(f"{_first_lines(errors.getvalue())} (see rljax --help)") from None


def _first_lines(box: str) -> str:
    """What tyro's box of a message says, in one line: the text between its title and its first rule."""
    lines = [line.strip("│╭╮╰╯─|+- ") for line in box.splitlines()]
    said = [line for line in lines[1:] if line]
    return " ".join(said[:3] if said and said[0].endswith(":") else said[:1]).rstrip(".") or "bad arguments"


def _run(command: Any, rest: list[str]) -> None:
    overrides = _overrides(rest)
    if overrides and not isinstance(command, Train):
        raise ConfigError(f"unknown option {rest[0]} (see rljax {type(command).__name__.lower()} --help)")
    _use_compilation_cache()
    from rljax.cli import commands

    if isinstance(command, Train):
        commands.train(command.config, command.run_dir, overrides)
    elif isinstance(command, Eval):
        commands.evaluate_run(command.run, command.episodes, command.seed, command.sample)
    elif isinstance(command, List):
        commands.list_names(command.name)
    else:
        commands.bench(command.suite, command.repeats)


def _overrides(rest: Sequence[str]) -> dict[str, Any]:
    """`--learning-rate 1e-3 --anneal-lr=false --network.hidden [64,64]` as a (nested) table; a flag without a value is true."""
    table: dict[str, Any] = {}
    i = 0
    while i < len(rest):
        flag = rest[i]
        if not flag.startswith("--") or flag == "--":
            raise ConfigError(f"unexpected argument '{flag}': options look like --learning-rate 1e-3")
        name, equals, text = flag[2:].partition("=")
        i += 1
        if not equals:
            has_value = i < len(rest) and not rest[i].startswith("--")
            text = rest[i] if has_value else "true"
            i += has_value
        *tables, leaf = name.replace("-", "_").split(".")
        target = table
        for part in tables:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise ConfigError(f"--{name}: {part} was given a value of its own before")
        target[leaf] = _value(text)
    return table


def _value(text: str) -> Any:
    """A TOML value, or else the text itself: `64`, `1e-3`, `true`, `[64, 64]`, `{ size = 5 }`, `CartPole-v1`."""
    try:
        return tomllib.loads(f"x = {text}")["x"] if "\n" not in text else text
    except tomllib.TOMLDecodeError:
        return text


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
