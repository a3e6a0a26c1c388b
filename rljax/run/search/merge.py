"""Sweeps in parts, which any number of machines train apart, and their end in one table."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from rljax.core.agent import MakeAgent
from rljax.core.agent import make_agent as standard_agent
from rljax.core.errors import ConfigError
from rljax.run.files.outputs import atomic_file
from rljax.run.files.places import lock_folder
from rljax.run.search.plan import SWEEP_FILE, SweepResult, check_same, read_results, read_sweep, sweep_files, write_results
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
        ConfigError: there are no parts, or not all are of one sweep.
        RljaxError: a table cannot be read, or every whole cell has diverged.
    """
    folder = Path(run_dir)
    parts = sorted(path for path in folder.glob("part_*_of_*") if (path / SWEEP_FILE).exists())
    if not parts:
        raise ConfigError(f"{folder}: no parts of a sweep there; expected the run_dir of a sweep with part = K/N")
    plans, files = [], []
    for part in parts:
        plan, episodes = read_sweep(part, make_agent)
        plans.append(plan._replace(part=None))
        files.append(sweep_files(plans[-1], episodes))
        if files[-1] != files[0]:
            raise ConfigError(f"{part}: is a part of another sweep than {parts[0]}; move one of them away")
    if (folder / SWEEP_FILE).exists():
        check_same(folder, files[0])
    plan = plans[0]
    with lock_folder(folder):
        returns, train_returns, done = read_results(plan, *parts, folder)
        write_results(folder, plan, returns, train_returns, done)
        for name, text in files[0].items():
            with atomic_file(folder / name) as aside:
                aside.write_text(text, encoding="utf-8")
        progress(f"{len(parts)} part{'s' * (len(parts) > 1)}: {done.sum()} of {plan.runs} runs")
        result = SweepResult(plan.config, plan.cells, plan.config.seed + np.arange(plan.seeds), returns, train_returns)
        if done.all() or np.isfinite(result.means).any():
            write_best(result, plan, folder)
    return result
