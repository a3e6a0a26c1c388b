"""Sweeps: train a grid of hyperparameters, or points of a space, each with several seeds, in as few programs as possible."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rljax.core.agent import MakeAgent
from rljax.core.agent import make_agent as standard_agent
from rljax.core.config import Config
from rljax.core.config_files import dump_config
from rljax.core.devices import warn_of_unseen_gpu
from rljax.core.errors import RljaxError
from rljax.core.places import WatchedFolder, as_path, lock_folder
from rljax.run.files.folder import BEST_FILE
from rljax.run.files.outputs import is_current, write_text
from rljax.run.search.plan import (
    MAX_RUNS,
    PICTURE,
    RESULTS_FILE,
    Plan,
    SweepResult,
    begin_sweep,
    is_batchable,
    plan_sweep,
    read_results,
    read_sweep,
    write_results,
)
from rljax.run.search.population import Population, Printer, Programs, fill, train_batches
from rljax.run.search.space import apply_cell, check_counts
from rljax.run.view.layout import format_number

PARTS, TELL_SECONDS = 50, 10.0
"""Number of parts of a batch's training, after each of which progress may be reported, and least seconds between reports."""


def sweep(
    config: Config,
    space: Mapping[str, Any],
    *,
    seeds: int = 1,
    search: str = "grid",
    samples: int | None = None,
    max_runs: int = MAX_RUNS,
    batch_size: int | None = None,
    episodes: int = 100,
    run_dir: str | os.PathLike[str] | None = None,
    part: tuple[int, int] | str | None = None,
    progress: Printer = lambda _: None,
    make_agent: MakeAgent = standard_agent,
) -> SweepResult:
    """Train every cell of a sweep with every seed, and evaluate each run's final policy.

    Runs that differ only in leaves are trained in batches by one program; the others are grouped by structure. Seed i of a cell
    trains like `fit` of the cell's configuration with that seed, up to rounding, but a dataset is read in the order of
    `config.seed` by all.

    Args:
        config: configuration common to all runs.
        space: values to try for each field: a list, or with `search` "random" or "sobol" also a `Range`. Keys of tables have
            dotted names (`"network.hidden"`).
        seeds: number of seeds for each cell: `config.seed`, `config.seed + 1`, ...
        search: "grid", "random" or "sobol".
        samples: number of cells in a random or Sobol search.
        max_runs: largest number of runs, which is cells times seeds.
        batch_size: largest number of runs in one program; if None, as many as fit in memory, at most 64 on a CPU.
        episodes: number of episodes to play with the final policy of each run.
        run_dir: folder for `results.csv` (a line for each run), `best.toml` and `sweep.png`; None writes nothing.
        part: (k, n) or "k/n" trains the k-th of n parts of the runs, into a folder of its own in `run_dir`, and goes on with a
            part that was begun; returns of other runs are NaN. Any number of machines can so share a sweep; `merge_sweep` ends
            it.
        progress: function that is called with lines of text about the progress.
        make_agent: function from a configuration to its agent, such as `functools.partial(rljax.make_agent, loss_fn=my_loss)`.

    Raises:
        ConfigError: a field or value is not allowed, there are too many runs, or `run_dir` exists.
    """
    plan = plan_sweep(
        config, space, seeds=seeds, search=search, samples=samples, max_runs=max_runs, make_agent=make_agent, part=part
    )
    check_numbers(batch_size, episodes)
    folder = None if run_dir is None else begin_sweep(as_path(run_dir, "run_dir"), plan, episodes)
    return run_sweep(plan, folder, batch_size=batch_size, episodes=episodes, progress=progress)


def resume_sweep(
    run_dir: str | os.PathLike[str],
    *,
    batch_size: int | None = None,
    progress: Printer = lambda _: None,
    make_agent: MakeAgent = standard_agent,
) -> SweepResult:
    """Resume a sweep that was interrupted: runs in its `results.csv` are not trained again.

    Raises:
        ConfigError: there is no sweep in that folder, or it was begun with another `make_agent`.
    """
    folder = Path(run_dir)
    plan, episodes = read_sweep(folder, make_agent)
    return run_sweep(plan, folder, batch_size=batch_size, episodes=episodes, progress=progress)


def run_sweep(plan: Plan, folder: Path | None, *, batch_size: int | None, episodes: int, progress: Printer) -> SweepResult:
    """Train the runs that are not done yet, and write the results after every batch."""
    check_numbers(batch_size, episodes)
    warn_of_unseen_gpu()
    if folder is None:
        return _run(plan, None, batch_size, episodes, progress)
    with lock_folder(folder), WatchedFolder(folder) as watched:
        for left in folder.glob(".writing_*"):  # left by a process that was killed: no other writes here
            left.unlink(missing_ok=True)
        return _run(plan, watched, batch_size, episodes, progress)


def check_numbers(batch_size: int | None, episodes: int) -> None:
    """Check that the batch size and the number of episodes are positive."""
    check_counts(episodes=episodes)
    if batch_size is not None:
        check_counts(batch_size=batch_size)


def _run(plan: Plan, watched: WatchedFolder | None, batch_size: int | None, episodes: int, progress: Printer) -> SweepResult:
    folder = None if watched is None else watched.folder
    returns, train_returns, done = read_results(plan, *([] if folder is None else [folder]))
    mine, runs = plan.mine, plan.runs
    if done.any():
        progress(f"{done.sum()} of {runs} runs were done before")
    if done[mine].all() and folder is not None:
        what = folder if plan.part is None else "part {}/{}".format(*plan.part)
        progress(f"{what} is complete: no run is left to train")
    started, before = time.monotonic(), int(done.sum())

    def train_group(group: list[int]) -> None:
        """Train the runs of some cells that are not done: those of one program."""
        left = [(cell, seed) for cell in group for seed in range(plan.seeds) if mine[cell, seed] and not done[cell, seed]]
        if not left:
            return
        first = plan.cells[group[0]]
        names = tuple(name for name in first if is_batchable(plan.config, name, first[name]))
        programs = Programs(apply_cell(plan.config, first), names, plan.make_agent)

        def next_batch(size: int) -> list[tuple[int, int]]:
            return [run for run in left if not done[run]][:size]

        def train(batch: list[tuple[int, int]], size: int) -> None:
            padded = [batch[i] for i in fill(len(batch), size)]
            values = {name: np.array([plan.cells[cell][name] for cell, _ in padded], np.float32) for name in names}
            population = Population(programs, values, np.array([plan.config.seed + seed for _, seed in padded]))
            _train(population, len(batch), int(done.sum()), runs, progress)
            played, trained = population.play(episodes), population.scores["episode/return"]
            for k, run in enumerate(batch):
                returns[run], train_returns[run], done[run] = played[k], trained[k], True
            if watched is not None:
                watched.check()
                write_results(watched.folder, plan, returns, train_returns, done)
            share = (done.sum() - before) / (runs - before)
            rest = (time.monotonic() - started) * (1 - share) / share
            known = returns[done & np.isfinite(returns)]
            best = format_number(known.max() if len(known) else np.nan)
            progress(f"{done.sum()}/{runs} runs done, best return {best}, about {rest:.0f} s left")

        train_batches(programs, next_batch, train, programs.batch_size(len(left), batch_size), progress=progress)

    for group in plan.groups:
        train_group(group)
    result = plan.result(returns, train_returns)
    if plan.part is not None:
        return result
    if watched is not None:
        watched.check()
    write_best(result, plan, folder)
    return result


def write_best(result: SweepResult, plan: Plan, folder: Path | None) -> None:
    """Write the best configuration and a picture into the folder of a sweep, if it has one. Files that are so already are left.

    Raises:
        RljaxError: no cell has a finite result.
    """
    if not np.isfinite(result.means).any():
        kept = "" if folder is None else f"; {folder / RESULTS_FILE} has every run"
        raise RljaxError(f"no cell has a finite result: some run of each diverged (too high a learning_rate?){kept}")
    if folder is None:
        return
    from rljax.run.search.sweep_plot import draw_sweep

    write_text(folder / BEST_FILE, dump_config(result.best))
    if plan.space and not is_current(folder / PICTURE, folder / RESULTS_FILE, folder / BEST_FILE):
        draw_sweep(result, folder / PICTURE, plan)


def _train(population: Population, count: int, done: int, runs: int, progress: Printer) -> None:
    """Train a population to the end of the budget, and report progress every ten seconds."""
    iterations, told = population.programs.config.num_iterations, time.monotonic()
    for _ in range(PARTS):
        population.advance(-(-iterations // PARTS))
        if time.monotonic() - told > TELL_SECONDS and population.done < iterations:
            told = time.monotonic()
            share = 100 * population.done // iterations
            progress(f"{done}/{runs} runs done, {count} more at {share} %")
