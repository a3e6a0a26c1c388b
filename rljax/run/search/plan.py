"""Plans, files and results of sweeps."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tomli_w

from rljax.algos.common.teacher import check_teacher
from rljax.core.agent import MakeAgent, check_own, own_of
from rljax.core.agent import make_agent as standard_agent
from rljax.core.config import Config
from rljax.core.config_files import dump_config, load_config
from rljax.core.errors import ConfigError, RljaxError, first_line, how_to_install, shown
from rljax.run.episodes import check_one_run
from rljax.run.files.folder import (
    BEST_FILE,
    CONFIG_FILE,
    SWEEP_FILE,
    add_checksum,
    check_frozen,
    check_num_seeds,
    without_checksum,
)
from rljax.run.files.outputs import atomic_file, make_folder, read_table, write_csv
from rljax.run.initial import IN_SEARCHES
from rljax.run.search.space import (
    Cell,
    Range,
    apply_cell,
    cells_of,
    check_counts,
    check_samples,
    check_space,
    is_leaf,
    parse_space,
    space_table,
)

RESULTS_FILE, PICTURE = "results.csv", "sweep.png"

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
        """Configuration of the cell with the highest mean return; on one device, as its runs were."""
        return apply_cell(self.config, self.cells[self.best_cell]).replace(num_devices=1)


class Plan(NamedTuple):
    """Plan of a sweep: everything that determines its numbers.

    `part` (k, n) is the k-th of n parts, which are trained apart and then merged.
    """

    config: Config
    space: dict[str, tuple[Any, ...] | Range]
    seeds: int
    search: str
    samples: int | None
    cells: list[Cell]
    make_agent: MakeAgent = standard_agent
    part: tuple[int, int] | None = None

    @property
    def groups(self) -> list[list[int]]:
        """The cells, those that share a program in one list."""
        groups: dict[str, list[int]] = {}
        for i, cell in enumerate(self.cells):
            groups.setdefault(structure_of(self.config, cell), []).append(i)
        return list(groups.values())

    @property
    def mine(self) -> np.ndarray:
        """Which runs are to be trained, bool `[C, S]`: all, or those of the part, which are of as few programs as possible."""
        ordered = np.concatenate([np.array(group)[:, None] * self.seeds + np.arange(self.seeds) for group in self.groups]).ravel()
        number, count = self.part or (1, 1)
        mine = np.zeros((len(self.cells), self.seeds), bool)
        mine.flat[np.array_split(ordered, count)[number - 1]] = True
        return mine

    @property
    def runs(self) -> int:
        """Number of runs to be trained."""
        return int(self.mine.sum())

    def result(self, returns: np.ndarray, train_returns: np.ndarray) -> SweepResult:
        """Return the result of runs with these returns, `[C, S]` each."""
        return SweepResult(self.config, self.cells, self.config.seed + np.arange(self.seeds), returns, train_returns)


def plan_sweep(
    config: Config,
    space: Mapping[str, Any],
    *,
    seeds: int = 1,
    search: str = "grid",
    samples: int | None = None,
    max_runs: int = MAX_RUNS,
    make_agent: MakeAgent = standard_agent,
    part: tuple[int, int] | str | None = None,
) -> Plan:
    """Check the arguments of a sweep and list its cells.

    Raises:
        ConfigError: a field or value is not allowed, there are more than `max_runs` runs, or no such part.
    """
    check_num_seeds(seeds, config)
    checked = check_space(config, space, search)
    counts = [len(values) for values in checked.values() if not isinstance(values, Range)]
    if search != "grid":
        check_samples(search, samples)
    count = math.prod(counts) if search == "grid" else (samples or 0)
    part = None if part is None else parse_part(part)
    if count * seeds > max_runs:
        what = " x ".join(map(str, [*(counts if search == "grid" else [count]), seeds]))
        raise ConfigError(f"a sweep of {what} (seeds) = {count * seeds} runs: more than max_runs = {max_runs}")
    if part is not None and not 1 <= part[0] <= part[1] <= count * seeds:
        raise ConfigError(f"part = {part[0]}/{part[1]}: expected K/N with 1 <= K <= N <= {count * seeds}, the number of runs")
    cells = cells_of(checked, search, samples, config.seed)
    # Values may be allowed individually but not together. One agent per structure checks environment and network.
    for found in {structure_of(config, cell): apply_cell(config, cell) for cell in cells}.values():
        check_one_run(found, "sweep")
        own_of(found, make_agent)
        check_teacher(make_agent(found), IN_SEARCHES)
    return Plan(config, checked, seeds, search, samples, cells, make_agent, part)


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
    make_folder(folder, sweep_files(plan, episodes), "to continue a sweep there, resume it")


def begin_sweep(run_dir: Path, plan: Plan, episodes: int) -> Path:
    """Create the folder of a sweep and return it. A part has a folder of its own in `run_dir`, and may have been begun before.

    Raises:
        ConfigError: the folder exists already; for a part: with another sweep, beside parts of another sweep or parts that train
            the same runs, or with files that the merged sweep would replace.
    """
    if plan.part is None:
        create_sweep_dir(run_dir, plan, episodes)
        return run_dir
    check_room(run_dir)
    folder = run_dir / "part_{}_of_{}".format(*plan.part)
    if not (folder / SWEEP_FILE).exists():
        for other in parts_in(run_dir):
            _check_beside(other, plan, episodes)
        try:
            create_sweep_dir(folder, plan, episodes)
        except ConfigError:
            # Another job may have just begun this part; if both train it, the lock stops one.
            if not (folder / SWEEP_FILE).exists():
                raise
    check_same(folder, sweep_files(plan, episodes))
    return folder


def parts_in(run_dir: Path) -> list[Path]:
    """Return the folders of the parts of a sweep that were begun in its folder."""
    return sorted(path for path in run_dir.glob("part_*_of_*") if (path / SWEEP_FILE).exists())


def is_part_of(folder: Path, plan: Plan, episodes: int) -> bool:
    """Return whether a folder has a part, any one, of a sweep.

    Raises:
        ConfigError: the folder cannot be read.
    """
    if _differing(folder, sweep_files(plan._replace(part=_part_in(folder)), episodes)) is None:
        return True
    # An earlier version may have written the same sweep in other words. Agents are made for this, which takes longer.
    there, episodes_there = read_sweep(folder, plan.make_agent)
    return sweep_files(there._replace(part=None), episodes_there) == sweep_files(plan._replace(part=None), episodes)


def _part_in(folder: Path) -> tuple[int, int] | None:
    part = read_table(folder, SWEEP_FILE, "sweep").get("part")
    return None if part is None else parse_part(part)


def _check_beside(other: Path, plan: Plan, episodes: int) -> None:
    """Check that a part can be merged with another one, and trains none of its runs."""
    assert plan.part is not None
    number, count = plan.part
    if not is_part_of(other, plan, episodes):
        raise ConfigError(f"{other}: is a part of another sweep than part {number}/{count} of this one; choose another folder")
    part = _part_in(other)
    if part is None or (part[1] != count and np.any(plan.mine & plan._replace(part=part).mine)):
        raise ConfigError(
            f"part = {number}/{count}: {other} has some of its runs; divide a sweep into the same number of parts everywhere, or "
            "move that folder away"
        )


def check_room(folder: Path) -> None:
    """Check that the merged sweep would replace no file in a folder that is not of a sweep.

    Raises:
        ConfigError: it would.
    """
    names = (CONFIG_FILE, RESULTS_FILE, BEST_FILE, PICTURE)
    there = [name for name in names if os.path.lexists(folder / name)]
    if there and not (folder / SWEEP_FILE).exists():
        raise ConfigError(
            f"{folder}: {', '.join(there)} there is of no sweep, and the merged sweep would replace it: move it away, or choose "
            "another folder for the parts"
        )


def check_same(folder: Path, files: Mapping[str, str]) -> None:
    """Check that a folder has a sweep with these files.

    Raises:
        ConfigError: it has another one.
    """
    if (name := _differing(folder, files)) is not None:
        raise ConfigError(f"{folder}: there is another sweep ({name} differs); choose another folder")


def _differing(folder: Path, files: Mapping[str, str]) -> str | None:
    """Return the name of the first of these files that a folder has not, or with another text; None if it has all."""
    for name, text in files.items():
        try:
            # Folders of earlier versions have no checksum.
            if without_checksum((folder / name).read_text(encoding="utf-8")) != without_checksum(text):
                return name
        except (OSError, ValueError):
            return name
    return None


def sweep_files(plan: Plan, episodes: int) -> dict[str, str]:
    """Return the texts of the files that determine the numbers of a sweep, by name.

    Raises:
        ConfigError: the sweep has objects that cannot be written.
    """
    table = {
        "seeds": plan.seeds,
        "search": plan.search,
        "samples": "none" if plan.samples is None else plan.samples,
        "episodes": episodes,
        "own": own_of(plan.config, plan.make_agent),
        **({} if plan.part is None else {"part": "{}/{}".format(*plan.part)}),
        "space": space_table(plan.space),
    }
    try:
        return {CONFIG_FILE: add_checksum(dump_config(plan.config)), SWEEP_FILE: tomli_w.dumps(table)}
    except TypeError:
        raise ConfigError("a sweep over objects cannot be written: leave run_dir out, or sweep over names") from None


def read_sweep(folder: Path, make_agent: MakeAgent = standard_agent) -> tuple[Plan, int]:
    """Read the plan in a sweep's folder, and the number of episodes that its policies play.

    Raises:
        ConfigError: there is no sweep, its configuration has been changed, or it was begun with another `make_agent`.
    """
    table = read_table(folder, SWEEP_FILE, "sweep")
    check_frozen(folder / CONFIG_FILE)
    config = load_config(folder / CONFIG_FILE)
    check_own(f"the sweep in {folder}", table.get("own", ""), own_of(config, make_agent))
    try:
        samples = None if table["samples"] == "none" else table["samples"]
        how = {"seeds": table["seeds"], "search": table["search"], "samples": samples}
        space, episodes = parse_space(table["space"]), table["episodes"]
        part = None if "part" not in table else parse_part(table["part"])
    except (KeyError, AttributeError) as error:
        raise ConfigError(f"{folder / SWEEP_FILE}: differs from what was written ({first_line(error)})") from None
    try:
        check_counts(episodes=episodes)
        return plan_sweep(config, space, **how, max_runs=MAX_STORED_RUNS, make_agent=make_agent, part=part), episodes
    except ConfigError as error:
        raise ConfigError(f"{folder / SWEEP_FILE}: {error}") from None


def parse_part(part: Any) -> tuple[int, int]:
    """Return the numbers of a text `K/N`, part K of N; or two whole numbers as they are.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(part, (tuple, list)) and len(part) == 2 and all(type(number) is int for number in part):
        return part[0], part[1]
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", part) if isinstance(part, str) else None
    if found is None:
        raise ConfigError(f"part = {shown(part)}: expected K/N, part K of N, such as 3/16")
    return int(found[1]), int(found[2])


def write_results(folder: Path, plan: Plan, returns: np.ndarray, train_returns: np.ndarray, done: np.ndarray) -> None:
    rows = []
    for cell, seed in itertools.product(range(len(plan.cells)), range(plan.seeds)):
        if done[cell, seed]:
            rows.append(
                [
                    cell,
                    *map(_text, plan.cells[cell].values()),
                    plan.config.seed + seed,
                    returns[cell, seed],
                    train_returns[cell, seed],
                ]
            )
    write_csv(folder / RESULTS_FILE, _header(plan), rows)


def _text(value: Any) -> str:
    """Return a value of a cell as it stands in `results.csv`; None is "none", as in `sweep.toml`."""
    return "none" if value is None else str(value) if isinstance(value, (int, float, str)) else json.dumps(value)


def _same_value(value: Any, text: str) -> bool:
    """Return whether a text of `results.csv` is this value of a cell."""
    if isinstance(value, float):  # another machine may round a point of a logarithmic range differently
        return math.isclose(value, float(text), rel_tol=1e-12) or text == _text(value)
    return text == _text(value) or (value in (None, "none") and text == "null")  # as earlier versions wrote


def _header(plan: Plan) -> list[str]:
    return ["cell", *plan.space, "seed", "return", "train_return"]


def read_results(plan: Plan, *folders: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the returns, the returns in training, and which of them are known, each `[C, S]`, of `results.csv` in these folders.

    Raises:
        RljaxError: one cannot be read, or is of another sweep.
    """
    returns, train_returns = np.full((2, len(plan.cells), plan.seeds), np.nan)
    done = np.zeros(returns.shape, bool)
    for folder in folders:
        for cell, seed, value, train_value in _rows(folder, plan):
            returns[cell, seed], train_returns[cell, seed], done[cell, seed] = value, train_value, True
    return returns, train_returns, done


def _rows(folder: Path, plan: Plan) -> list[tuple[int, int, float, float]]:
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
        for row, (cell, seed, _, _) in zip(rows, read, strict=True):
            if not (0 <= cell < len(plan.cells) and 0 <= seed < plan.seeds):
                raise ValueError
            # The values may have been changed in sweep.toml, which moves the cells.
            if not all(_same_value(value, row[name]) for name, value in plan.cells[cell].items()):
                raise ValueError
        return read
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
