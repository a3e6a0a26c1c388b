"""`rljax sweep` and `rljax tune`."""

from __future__ import annotations

import contextlib
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rljax.cli.folders import folder_name, free_folder
from rljax.cli.options import Sweep, Tune
from rljax.cli.overrides import swallowed_hint
from rljax.core.config import env_name
from rljax.core.config_files import load_config
from rljax.core.devices import device_summary
from rljax.core.errors import ConfigError, TrainingInterrupted
from rljax.run.episodes import check_one_run
from rljax.run.files.folder import BEST_FILE, check_free
from rljax.run.search import plan as plans
from rljax.run.search import study as studies
from rljax.run.search import sweep as sweeps
from rljax.run.search import tune as tuning
from rljax.run.search.merge import merge_sweep
from rljax.run.search.space import apply_cell
from rljax.run.signals import sigterm_interrupts
from rljax.run.view.layout import format_number, make_console, make_table, print_table, say
from rljax.run.view.lines import format_value

FIXED = ("run_dir", "seeds", "search", "samples", "episodes", "part")
"""Options that are those of the beginning when a sweep goes on."""

WHY_ALONE = {"resume": "continues with the original settings", "merge": "joins the parts in one folder, as they were trained"}
"""Why options take no configuration and no fields beside them."""

TABLE_ROWS = 20
"""Number of cells of a sweep to print, best first."""


def sweep(options: Sweep, axes: dict[str, Any]) -> None:
    """`rljax sweep`: print a table of the returns of each combination of values, and write files of all runs."""
    if options.parquet:
        plans.check_parquet()
    if options.merge is not None:
        _merge(options, axes)
        return
    if options.resume is not None:
        _check_alone("resume", options, axes, FIXED)
        folder = Path(options.resume)
        plan, episodes = plans.read_sweep(folder)
        say(f"resuming the sweep in {folder}")
    else:
        name = _source(options.config, axes, "sweep")
        config, space = _split_axes(load_config(name), axes)
        how: dict[str, Any] = {name: getattr(options, name) for name in ("seeds", "search", "samples", "max_runs")}
        part = None if options.part is None else plans.parse_part(options.part)
        if part is not None and options.run_dir is None:
            raise ConfigError("--part: needs --run-dir, the folder of the whole sweep")
        plan, episodes = plans.plan_sweep(config, space, **how, part=part), options.episodes
        sweeps.check_numbers(options.batch_size, episodes)
        folder = plans.begin_sweep(Path(options.run_dir or free_folder(Path("sweeps") / folder_name(name))), plan, episodes)
        cells = f"{len(plan.cells)} cell{'s' * (len(plan.cells) > 1)} x {plan.seeds} seed{'s' * (plan.seeds > 1)}"
        count = "1 run" if plan.runs == 1 else f"{plan.runs} runs"
        runs = f" = {count}" if part is None else f", {count} of part {part[0]} of {part[1]}"
        programs = f" in {len(plan.groups)} programs" if len(plan.groups) > 1 else ""
        say(f"sweep of {config.algorithm} on {env_name(config)}: {cells}{runs}{programs} into {folder}")
    with _training("sweep", folder, _flags(options, "batch_size", "parquet")):
        result = sweeps.run_sweep(plan, folder, batch_size=options.batch_size, episodes=episodes, progress=say)
    if plan.part is not None:
        say(f"{folder} is complete; when all parts are:", f"rljax sweep --merge {shlex.quote(str(folder.parent))}")
        return
    _print_result(options, folder, result)


def _merge(options: Sweep, axes: dict[str, Any]) -> None:
    _check_alone("merge", options, axes, (*FIXED, "resume", "batch_size"))
    folder = Path(str(options.merge))
    result = merge_sweep(folder, progress=say)
    if (folder / BEST_FILE).exists():
        _print_result(options, folder, result)
    missing = int(np.isnan(result.returns).sum())
    if missing:
        say(f"{missing} runs are missing; to train them here:", f"rljax sweep --resume {shlex.quote(str(folder))}")


def _print_result(options: Sweep, folder: Path, result: plans.SweepResult) -> None:
    _print_cells(result)
    if options.parquet:
        plans.write_parquet(result, folder / "results.parquet")
    best = shlex.quote(str(folder / BEST_FILE))
    _print_files(folder)
    say("next:", f"rljax train {best}")


def tune(options: Tune, axes: dict[str, Any]) -> None:
    """`rljax tune`: print the best trial and write the files of the study."""
    studies.check_optuna()
    same: dict[str, Any] = {name: getattr(options, name) for name in ("seeds", "episodes", "pruner")}
    how: dict[str, Any] = {"trials": options.trials, "batch_size": options.batch_size, "progress": say}
    flags = _flags(options, "trials", "batch_size", "storage")
    if options.resume is not None:
        _check_alone("resume", options, axes, ("run_dir", *same))
        folder = Path(options.resume)
        tuning.read_tune(folder)
        say(f"resuming the study in {folder}")
        with _training("tune", folder, flags):
            result = tuning.resume_tune(folder, storage=options.storage, **how)
    else:
        name = _source(options.config, axes, "tune")
        config, space = _split_axes(load_config(name), axes)
        folder = Path(options.run_dir or free_folder(Path("tunes") / folder_name(name)))
        check_free(folder)
        check_one_run(config, "tuning")
        tried: dict[str, Any] = space or {name: x for name, x in tuning.default_space(config).items() if name not in axes}
        if axes and not tried:
            given = ", ".join(axes)
            raise ConfigError(f"nothing to tune: no field but {given} is searched by default; give one a range or several values")
        what = f"{', '.join(tried)} of {config.algorithm} on {env_name(config)}"
        say(f"tuning {what}, {options.batch_size} trials at once, into {folder}")
        with _training("tune", folder, flags):
            result = tuning.tune(config, tried, storage=options.storage, run_dir=folder, **same, **how)
    trial = result.study.best_trial
    values = ", ".join(f"{name} = {value:.6g}" for name, value in trial.params.items())
    say(f"best: trial {trial.number}, return {format_number(result.value)}: {values}")
    weights = studies.importances(result.study)
    if weights:
        say("importance: " + ", ".join(f"{name} {weight:.2f}" for name, weight in weights.items()))
    _print_files(folder)
    say("next:", f"rljax train {shlex.quote(str(folder / BEST_FILE))}")


def _print_files(folder: Path) -> None:
    say(f"{folder}: {', '.join(sorted(file.name for file in folder.iterdir() if not file.name.startswith('.')))}")


def _source(name: str | None, axes: dict[str, Any], command: str) -> str:
    """Return the preset or file that a command was given.

    Raises:
        ConfigError: it was given none.
    """
    if name is None:
        raise ConfigError(
            f"nothing to {command}: give a preset or a TOML file (see rljax list), or --resume FOLDER{swallowed_hint(axes)}"
        )
    return name


def _check_alone(option: str, options: Sweep | Tune, axes: dict[str, Any], names: tuple[str, ...]) -> None:
    """Refuse a configuration, fields and options of these names beside an option that takes a sweep or study as it is."""
    defaults = type(options)()
    given = [name for name in ("config", *names) if getattr(options, name) != getattr(defaults, name)]
    if given or axes:
        wrong = ", ".join([*given, *axes])
        raise ConfigError(f"--{option} {WHY_ALONE[option]}: give no configuration and no fields (here: {wrong})")


@contextlib.contextmanager
def _training(command: str, folder: Path, flags: str = "") -> Iterator[None]:
    """Say on which device agents train, and how to go on if they are interrupted; `flags` must be given again then."""
    say(f"device: {device_summary()}")
    with sigterm_interrupts() as received:  # schedulers send it before they take the machine away
        try:
            yield
        except KeyboardInterrupt:
            how = f"interrupted; to go on: rljax {command} --resume {shlex.quote(str(folder))}{flags}"
            raise TrainingInterrupted(how, None, signal.SIGTERM if received else signal.SIGINT) from None


def _flags(options: Any, *names: str) -> str:
    """Return the flags of these names that are not the defaults; they are given anew each time."""
    changed = [(name, getattr(options, name)) for name in names if getattr(options, name) != getattr(type(options), name)]
    values = [(name, "" if value is True else f" {shlex.quote(str(value))}") for name, value in changed]
    return "".join(f" --{name.replace('_', '-')}{value}" for name, value in values)


def _split_axes(config: Any, axes: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Split fields into fixed and searched ones; return the configuration with the fixed ones set, and the searched ones.

    A field with one value is fixed in all runs, as in `rljax train`; a field with several values or a range is searched.
    """
    single = {name: values[0] for name, values in axes.items() if isinstance(values, list) and len(values) == 1}
    return apply_cell(config, single), {name: values for name, values in axes.items() if name not in single}


def _print_cells(result: plans.SweepResult) -> None:
    missing = np.isnan(result.returns).sum(axis=1)
    columns = ("mean return", "std", "worst", "best", "diverged", *(["missing"] if missing.any() else []))
    table = make_table("rank", *result.cells[0], *columns, text=tuple(result.cells[0]))
    order = np.argsort(np.where(np.isnan(result.means), np.inf, -result.means), kind="stable")
    for rank, i in enumerate(order[:TABLE_ROWS]):
        returns = result.returns[i]
        known = returns[np.isfinite(returns)]
        figures = [format_number(x) for x in (known.mean(), known.std(), known.min(), known.max())] if len(known) else ["-"] * 4
        counts = [str(np.isneginf(returns).sum()), *([str(missing[i])] if missing.any() else [])]
        # A cell of which runs are missing has no mean yet, and comes last.
        place = "-" if missing[i] else str(rank + 1)
        table.add_row(place, *map(format_value, result.cells[i].values()), *figures, *counts)
    print_table(make_console(), table)
    if len(order) > TABLE_ROWS:
        print(f"... and {len(order) - TABLE_ROWS} more in results.csv")
