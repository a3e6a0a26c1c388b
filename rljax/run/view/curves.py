"""Read records from metrics.jsonl, and the curve of one metric for each seed of a run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.core.errors import ConfigError, did_you_mean
from rljax.run.files.folder import METRICS_FILE, check_run
from rljax.run.files.sealed import is_number, whole

NOT_METRICS = ("step", "seeds", "hyperparameters")


class History(NamedTuple):
    """Contents of a metrics file.

    Attributes:
        hyperparameters: (step, configuration) at the start of the run and after each change of the configuration.
        records: dictionaries metric -> value, ordered by their `step`; unknown values are None.
        failure: the error that ended the run; None if none did.
    """

    hyperparameters: list[tuple[int, dict[str, Any]]]
    records: list[dict[str, Any]]
    failure: str | None = None

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics, sorted."""
        return sorted({name for record in self.records for name in record} - set(NOT_METRICS))


class Curves(NamedTuple):
    """Curve of a metric: `steps` i64 `[R]` (environment steps, increasing) and `values` f64 `[S, R]`, NaN where unknown."""

    steps: np.ndarray
    values: np.ndarray


def read_metrics(run_dir: str | os.PathLike[str]) -> History:
    """Read the metrics of a run. An incomplete last line, cut off by a kill, is ignored; an empty or missing file is no error.

    Raises:
        ConfigError: there is no run, or a line is not a record (the message names file and line).
    """
    folder = Path(run_dir)
    check_run(folder)
    file = folder / METRICS_FILE
    history, failure = History([], []), None
    try:
        lines = file.read_bytes().splitlines() if file.exists() else []
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        record = _record(line)
        if record is None:
            if number == len(lines):
                break
            raise ConfigError(f"{file}, line {number}: not a record of metrics")
        step = record["step"]
        # The run went on after an error that is not the last line. A number is a metric of the user's own.
        failure = record["failure"] if isinstance(record.get("failure"), str) else None
        if failure is not None:
            continue
        if "hyperparameters" in record:
            history.hyperparameters.append((step, record["hyperparameters"]))
            continue
        # A run that fell back to an earlier checkpoint repeats some steps: their last records count.
        while history.records and history.records[-1]["step"] >= step:
            history.records.pop()
        history.records.append(record)
    return history._replace(failure=failure)


def _record(line: bytes) -> dict[str, Any] | None:
    """Parse a line of a metrics file; return None if it is not a record (a step, and numbers or null)."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not whole().test(record.get("step")):
        return None
    if "hyperparameters" in record:
        return record if isinstance(record["hyperparameters"], dict) else None
    if isinstance(record.get("failure"), str):
        return record
    seeds = record.get("seeds", {})
    if not isinstance(seeds, dict) or not all(isinstance(row, list) for row in seeds.values()):
        return None
    values = [value for name, value in record.items() if name not in NOT_METRICS]
    values += [value for row in seeds.values() for value in row]
    return record if all(value is None or is_number(value) for value in values) else None


def curves(run_dir: str | os.PathLike[str], metric: str, history: History | None = None) -> Curves:
    """Return the curve of a metric for each seed of a run, or a single one for a metric that all seeds share (such as speed).

    Args:
        run_dir: the run's folder.
        metric: name of the metric, such as "episode/return".
        history: result of `read_metrics`, if it has been read already.

    Raises:
        ConfigError: there is no run, nothing is recorded yet, or there is no such metric (the closest name is given).
    """
    history = read_metrics(run_dir) if history is None else history
    if not history.records:
        raise ConfigError(f"{run_dir}: nothing recorded yet (no records in {METRICS_FILE})")
    if metric not in history.metrics:
        raise ConfigError(f"{run_dir}: no metric '{metric}': {did_you_mean(metric, history.metrics)}")
    rows = [record.get("seeds", {}).get(metric, [record.get(metric)]) for record in history.records]
    num_seeds = max(map(len, rows))
    unknown = [None] * num_seeds
    steps = np.array([record["step"] for record in history.records], np.int64)
    values = np.array([row if len(row) == num_seeds else unknown for row in rows], np.float64)
    return Curves(steps, values.T)


def common_grid(steps: np.ndarray, points: int) -> np.ndarray:
    """Return the grid on which to draw curves known at `steps` `[R]`.

    Few distinct steps are the grid themselves; otherwise it has the middles of `points` equal bins from the first to the last.
    """
    distinct = np.unique(steps).astype(np.float64)
    if len(distinct) <= points:
        return distinct
    edges = np.linspace(distinct[0], distinct[-1], points + 1)
    return (edges[1:] + edges[:-1]) / 2


def on_grid(curves: Curves, grid: np.ndarray) -> np.ndarray:
    """Average curves over bins, f64 `[S, G]`: each point of `grid` `[G]` is the mean of the known values nearest to it.

    Empty bins between others are interpolated; outside a seed's known values the result is NaN.
    """
    nearest = np.searchsorted((grid[1:] + grid[:-1]) / 2, curves.steps)
    binned = np.full((len(curves.values), len(grid)), np.nan)
    for row, values in zip(binned, curves.values, strict=True):
        known = np.isfinite(values)
        counts = np.bincount(nearest[known], minlength=len(grid))
        sums = np.bincount(nearest[known], values[known], minlength=len(grid))
        if counts.any():
            full = counts > 0
            row[:] = np.interp(grid, grid[full], sums[full] / counts[full], left=np.nan, right=np.nan)
    return binned
