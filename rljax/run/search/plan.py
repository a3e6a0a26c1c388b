"""Plans, files and results of sweeps."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tomli_w

from rljax.core.agent import MakeAgent, check_own, own_of
from rljax.core.agent import make_agent as standard_agent
from rljax.core.config import Config, dump_config, load_config
from rljax.core.errors import ConfigError, RljaxError, first_line, how_to_install, shown
from rljax.run.episodes import check_one_run
from rljax.run.files.folder import CONFIG_FILE
from rljax.run.files.outputs import atomic_file, make_folder, read_table, write_csv
from rljax.run.initial import IN_SEARCHES, check_teacher
from rljax.run.search.space import Cell, Range, apply_cell, cells_of, check_counts, check_space, is_leaf, parse_space, space_table

SWEEP_FILE, RESULTS_FILE, BEST_FILE, PICTURE = "sweep.toml", "results.csv", "best.toml", "sweep.png"

MAX_RUNS = 4096
"""Largest number of runs in a sweep, unless the user allows more."""

MAX_STORED_RUNS = 2**24
"""Largest number of runs in a resumed sweep: a file with more is damaged, or would take all memory."""


class SweepResult(NamedTuple):
    """Result of a sweep of C cells and S seeds.

    Attributes:
        config: configuration whose fields were swept.
        cells: values of the swept fields in each of the C cells.
        seeds: seeds of the runs, `[S]`.
        returns: mean greedy return of each run's final policy, f64 `[C, S]` (with sampled actions if the best policy of the task
            is random); minus infinity if a loss was not finite.
        train_returns: last known mean return of training episodes, f64 `[C, S]`.
    """

    config: Any
    cells: list[Cell]
    seeds: np.ndarray
    returns: np.ndarray
    train_returns: np.ndarray

    @property
    def means(self) -> np.ndarray:
        """Mean return of each cell over seeds, f64 `[C]`."""
        means: np.ndarray = self.returns.mean(1)
        return means

    @property
    def best_cell(self) -> int:
        """Index of the cell with the highest mean return."""
        return int(np.argmax(np.where(np.isnan(self.means), -np.inf, self.means)))

    @property
    def best(self) -> Any:
        """Configuration of the cell with the highest mean return."""
        return apply_cell(self.config, self.cells[self.best_cell])


class Plan(NamedTuple):
    """Plan of a sweep: everything that determines its numbers."""

    config: Config
    space: dict[str, tuple[Any, ...] | Range]
    seeds: int
    search: str
    samples: int | None
    cells: list[Cell]
    make_agent: MakeAgent = standard_agent

    @property
    def runs(self) -> int:
        return len(self.cells) * self.seeds


def plan_sweep(
    config: Config,
    space: Mapping[str, Any],
    *,
    seeds: int = 1,
    search: str = "grid",
    samples: int | None = None,
    max_runs: int = MAX_RUNS,
    make_agent: MakeAgent = standard_agent,
) -> Plan:
    """Check the arguments of a sweep and list its cells.

    Raises:
        ConfigError: a field or value is not allowed, or there are more than `max_runs` runs.
    """
    if isinstance(seeds, bool) or not isinstance(seeds, int) or not 1 <= seeds <= 2**32 - config.seed:
        raise ConfigError(f"seeds = {shown(seeds)}: expected a whole number from 1 (seed + seeds at most 2**32)")
    checked = check_space(config, space, search)
    counts = [len(values) for values in checked.values() if not isinstance(values, Range)]
    count = math.prod(counts) if search == "grid" else (samples or 0)
    if count * seeds > max_runs:
        what = " x ".join(map(str, [*(counts if search == "grid" else [count]), seeds]))
        raise ConfigError(f"a sweep of {what} (seeds) = {count * seeds} runs: more than max_runs = {max_runs}")
    cells = cells_of(checked, search, samples, config.seed)
    # Values may be allowed individually but not together. One agent per structure checks environment and network.
    for found in {structure_of(config, cell): apply_cell(config, cell) for cell in cells}.values():
        check_one_run(found, "sweep")
        own_of(found, make_agent)
        check_teacher(make_agent(found), IN_SEARCHES)
    return Plan(config, checked, seeds, search, samples, cells, make_agent)


def is_batchable(config: Config, name: str, value: Any) -> bool:
    """Return whether runs of one program may differ in this field: it must be a leaf with a number."""
    return is_leaf(config, name) and isinstance(value, (int, float)) and not isinstance(value, bool)


def structure_of(config: Config, cell: Cell) -> str:
    """Return a text that is the same for all cells that share a program."""
    return repr([(name, "a number" if is_batchable(config, name, value) else value) for name, value in cell.items()])


def create_sweep_dir(folder: Path, plan: Plan, episodes: int) -> None:
    """Create the folder of a sweep, with everything that determines its numbers.

    Raises:
        ConfigError: the folder exists or cannot be created, or the sweep has objects that cannot be written.
    """
    table = {
        "seeds": plan.seeds,
        "search": plan.search,
        "samples": "none" if plan.samples is None else plan.samples,
        "episodes": episodes,
        "own": own_of(plan.config, plan.make_agent),
        "space": space_table(plan.space),
    }
    try:
        files = {CONFIG_FILE: dump_config(plan.config), SWEEP_FILE: tomli_w.dumps(table)}
    except TypeError:
        raise ConfigError("a sweep over objects cannot be written: leave run_dir out, or sweep over names") from None
    make_folder(folder, files, "to continue a sweep there, resume it")


def read_sweep(folder: Path, make_agent: MakeAgent = standard_agent) -> tuple[Plan, int]:
    """Read the plan in a sweep's folder, and the number of episodes that its policies play."""
    table = read_table(folder, SWEEP_FILE, "sweep")
    config = load_config(folder / CONFIG_FILE)
    check_own(f"the sweep in {folder}", table.get("own", ""), own_of(config, make_agent))
    try:
        samples = None if table["samples"] == "none" else table["samples"]
        how = {"seeds": table["seeds"], "search": table["search"], "samples": samples}
        space, episodes = parse_space(table["space"]), table["episodes"]
    except (KeyError, AttributeError) as error:
        raise ConfigError(f"{folder / SWEEP_FILE}: differs from what was written ({first_line(error)})") from None
    try:
        check_counts(episodes=episodes)
        return plan_sweep(config, space, **how, max_runs=MAX_STORED_RUNS, make_agent=make_agent), episodes
    except ConfigError as error:
        raise ConfigError(f"{folder / SWEEP_FILE}: {error}") from None


def write_results(folder: Path, plan: Plan, returns: np.ndarray, train_returns: np.ndarray, done: np.ndarray) -> None:
    rows = []
    for cell, seed in itertools.product(range(len(plan.cells)), range(plan.seeds)):
        if done[cell, seed]:
            values = [x if isinstance(x, (int, float, str)) else json.dumps(x) for x in plan.cells[cell].values()]
            rows.append([cell, *values, plan.config.seed + seed, returns[cell, seed], train_returns[cell, seed]])
    write_csv(folder / RESULTS_FILE, _header(plan), rows)


def _header(plan: Plan) -> list[str]:
    return ["cell", *plan.space, "seed", "return", "train_return"]


def read_results(folder: Path, plan: Plan) -> list[tuple[int, int, float, float]]:
    path = folder / RESULTS_FILE
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
        if reader.fieldnames != _header(plan):
            raise ValueError
        read = [
            (int(row["cell"]), int(row["seed"]) - plan.config.seed, float(row["return"]), float(row["train_return"]))
            for row in rows
        ]
        if all(0 <= cell < len(plan.cells) and 0 <= seed < plan.seeds for cell, seed, _, _ in read):
            return read
        raise ValueError
    except OSError as error:
        raise RljaxError(f"{path}: cannot be read: {error.strerror}") from None
    except (KeyError, ValueError, TypeError, csv.Error):
        raise RljaxError(f"{path}: is not the table of this sweep; move it away to train its runs again") from None


def write_parquet(result: SweepResult, path: Path) -> None:
    """Write the table of all runs as a parquet file.

    Raises:
        ConfigError: pyarrow is not installed, or the file cannot be written.
    """
    check_parquet()
    import pyarrow
    import pyarrow.parquet

    pairs = list(itertools.product(range(len(result.cells)), range(len(result.seeds))))
    columns: dict[str, list[Any]] = {"cell": [cell for cell, _ in pairs]}
    for name in result.cells[0]:
        values = [result.cells[cell][name] for cell, _ in pairs]
        plain = all(isinstance(x, (int, float)) for x in values)
        columns[name] = values if plain else [x if isinstance(x, str) else json.dumps(x) for x in values]
    columns["seed"] = [int(result.seeds[seed]) for _, seed in pairs]
    columns["return"] = [float(result.returns[pair]) for pair in pairs]
    columns["train_return"] = [float(result.train_returns[pair]) for pair in pairs]
    with atomic_file(path) as aside:
        pyarrow.parquet.write_table(pyarrow.table(columns), aside)


def check_parquet() -> None:
    """Check that parquet files can be written, before any work is done."""
    import importlib.util

    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"parquet: needs pyarrow: {how_to_install('parquet')}")
