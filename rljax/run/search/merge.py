"""Sweeps in parts, which any number of machines train apart, and their end in one table."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from rljax.core.agent import MakeAgent
from rljax.core.agent import make_agent as standard_agent
from rljax.core.errors import ConfigError
from rljax.core.places import lock_folder
from rljax.run.files.folder import CONFIG_FILE, SWEEP_FILE
from rljax.run.files.outputs import atomic_file
from rljax.run.search.plan import (
    SweepResult,
    check_room,
    check_same,
    is_part_of,
    parts_in,
    read_results,
    read_sweep,
    sweep_files,
    write_results,
)
from rljax.run.search.population import Printer
from rljax.run.search.sweep import write_best


def merge_sweep(
    run_dir: str | os.PathLike[str], *, progress: Printer = lambda _: None, make_agent: MakeAgent = standard_agent
) -> SweepResult:
    """Merge the parts of a sweep in a folder into one sweep there.

    Runs that no part has trained yet have the return NaN. They can be merged later, or trained by `resume_sweep`; until each cell
    is whole, only the whole ones are compared.

    Args:
        run_dir: the folder that was given to each part.
        progress: function that is called with lines of text.
        make_agent: as given to `sweep`.

    Raises:
        ConfigError: there are no parts, not all are of one sweep, or the folder has files that are of no sweep.
        RljaxError: a table cannot be read, or every whole cell has diverged.
    """
    folder = Path(run_dir)
    parts = parts_in(folder)
    if not parts:
        raise ConfigError(f"{folder}: no parts of a sweep there; expected the run_dir of a sweep with part = K/N")
    first, episodes = read_sweep(parts[0], make_agent)
    plan = first._replace(part=None)
    files = sweep_files(plan, episodes)
    for part in parts[1:]:
        if not is_part_of(part, plan, episodes):
            raise ConfigError(f"{part}: is a part of another sweep than {parts[0]}; move one of them away")
    check_room(folder)
    if (folder / SWEEP_FILE).exists():
        check_same(folder, {name: text for name, text in files.items() if (folder / name).exists()})
    with lock_folder(folder):
        returns, train_returns, done = read_results(plan, *parts, folder)
        for name in (SWEEP_FILE, CONFIG_FILE):  # a merge that was stopped goes on where there is a sweep.toml
            with atomic_file(folder / name) as aside:
                aside.write_text(files[name], encoding="utf-8")
        write_results(folder, plan, returns, train_returns, done)
        progress(f"{len(parts)} part{'s' * (len(parts) > 1)}: {done.sum()} of {plan.runs} runs")
        result = plan.result(returns, train_returns)
        if done.all() or np.isfinite(result.means).any():
            write_best(result, plan, folder)
    return result
