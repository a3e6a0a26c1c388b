"""Records of metrics: one line of JSON for each window of iterations."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rljax.collect.rollout import NO_ACTION

MAX_RECORDS = 1000
"""Largest number of records in a run: enough for any curve, and a bound on the file."""

MAX_VALUES = 4_000_000
"""Largest number of values in all records, to bound the file of a run of thousands of seeds, which then has fewer records."""

MIN_RECORDS = 50


COUNTS = (NO_ACTION, "league/branches", "league/resets", "league/snapshots")
"""Metrics that count something in an iteration, beside those called `.../count`."""

UPDATES = "train/updates"
"""Metric with the number of gradient steps in an iteration; without one, the losses of the iteration are unknown."""

NO_LOSSES = ("train/openloop_error_", "train/copy_last_error_")
"""First parts of the names of metrics of `train/` that may be unknown, NaN, in an iteration with gradient steps."""


def window_length(num_iterations: int, num_seeds: int, num_metrics: int) -> int:
    """Return the number of iterations per record."""
    records = min(MAX_RECORDS, max(MIN_RECORDS, MAX_VALUES // (num_seeds * num_metrics)))
    return -(-num_iterations // records)


def summarize(rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Summarize a window of iterations, each metric `[window, S]`, as one value per metric and seed, f64 `[S]`.

    Means over episodes are weighted by their counts, counts are summed, and of evaluations the last one is kept. Losses (see
    `is_loss`) are averaged over the iterations with gradient steps (over all, if `train/updates` does not tell), so that a NaN
    among them shows; everything else over those in which it is known.
    """
    if all(len(values) == 1 for values in rows.values()):
        return {name: values[0].astype(np.float64) for name, values in rows.items()}
    counts = rows.get("episode/count")
    summary: dict[str, Any] = {}
    for name, values in rows.items():
        known = ~np.isnan(values)
        if name.startswith("eval/"):
            summary[name] = last_finite(values)
        elif is_count(name):
            summary[name] = np.sum(values, 0, dtype=np.float64)
        elif is_loss(name) and name != UPDATES and UPDATES in rows:
            trained = rows[UPDATES] != 0
            total = np.sum(values, 0, dtype=np.float64, where=trained)
            summary[name] = np.where(trained.any(0), total / np.maximum(trained.sum(0), 1), math.nan)
        elif is_loss(name):
            summary[name] = np.mean(values, 0, dtype=np.float64)  # a loss that is NaN must show
        else:
            each = counts if counts is not None and name.startswith(("episode/", "env/")) else 1.0
            weights = np.where(known, each, 0.0).astype(np.float64)
            total = weights.sum(0)
            mean = (np.where(known, values, 0.0) * weights).sum(0) / np.maximum(total, 1.0)
            summary[name] = np.where(total > 0, mean, math.nan)
    return summary


def is_loss(name: str) -> bool:
    """Return whether a metric is known, and must be finite, in every iteration with gradient steps."""
    return name.startswith("train/") and not name.startswith(NO_LOSSES)


def is_count(name: str) -> bool:
    """Return whether a metric is summed over iterations and seeds; metrics of environments are always means."""
    return name in COUNTS or (name.endswith("/count") and not name.startswith("env/"))


def last_finite(values: np.ndarray) -> np.ndarray:
    """Return the last finite value of each column of `[window, S]`, f64 `[S]`; NaN where there is none."""
    known = np.isfinite(values)
    last = len(values) - 1 - np.argmax(known[::-1], axis=0)
    return np.where(known.any(0), values[last, np.arange(values.shape[1])], math.nan).astype(np.float64)


def aggregate_seeds(name: str, values: np.ndarray) -> float:
    """Return one value for all seeds `[S]` of a metric: the mean of the finite ones, or for counts their sum."""
    if len(values) == 1:
        return float(values[0])
    known = values[np.isfinite(values)]
    if not len(known):
        return math.nan
    return float(known.sum() if is_count(name) else known.mean())


def record_of(step: int, summary: Mapping[str, np.ndarray], has_seeds: bool, **more: float) -> dict[str, Any]:
    """Return a line of metrics.jsonl: metrics `[S]` aggregated over seeds, `more`, and with several seeds the values of each."""
    metrics = {name: aggregate_seeds(name, values) for name, values in summary.items()}
    per_seed = {"seeds": {name: values.tolist() for name, values in summary.items()}} if has_seeds else {}
    return {"step": step, **metrics, **more, **per_seed}


class JsonLines:
    """File to which records are appended at once, one JSON object per line; NaN and infinities are written as null."""

    def __init__(self, path: Path):
        # No buffer: bytes that a full disk refused must not be written again when the file is closed.
        self.file = path.open("ab", buffering=0)

    def write(self, record: dict[str, Any]) -> None:
        line = (json.dumps(_without_nan(record), allow_nan=False) + "\n").encode()
        start = os.fstat(self.file.fileno()).st_size
        try:
            while line:
                line = line[self.file.write(line) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(self.file.fileno(), start)  # no half of a line
            raise

    def close(self) -> None:
        self.file.close()


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    return [_without_nan(v) for v in value] if isinstance(value, list) else value


def truncate_after(path: Path, step: int) -> int:
    """Remove the records of later steps from a metrics file, and a line that a kill cut off: those iterations run again.

    Lines that cannot be read are left as they are, and a file of which nothing is removed keeps its time. Return the step of the
    last record that is kept, or -1 without one.
    """
    if not path.exists():
        return -1
    ends: list[tuple[int, int | None]] = []
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                ends.append(((ends[-1][0] if ends else 0) + len(line), _step_of(line)))
    following: list[int | None] = []
    after: int | None = None
    for _, found in reversed(ends):
        following.append(after)
        after = found if found is not None else after
    kept, last = 0, -1
    for (end, found), after in zip(ends, reversed(following), strict=True):
        # Steps increase: one that is higher than the next is damaged, and no reason to remove the records after it.
        if found is not None and (after is None or found <= after):
            if found > step:
                break
            last = found
        kept = end
    if kept < path.stat().st_size:
        os.truncate(path, kept)
    return last


def _step_of(line: bytes) -> int | None:
    """Return the step in a line; None if it cannot be read."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


class Records:
    """Collector that turns the metrics of iterations into records, one for each full window.

    Rows wait in `pending` until their window is full; a checkpoint saves them.

    Args:
        names: names of the metrics, in the order of the rows' last axis.
        window: number of iterations per record.
        first: iteration at which the run continues, not counting the rows in `pending`.
        last: iteration at which the run ends.
        emit: function called with (number of iterations done, metric -> `[S]`) for each record.
        pending: rows that wait for their window to be full, `[iterations, S, metrics]`.
    """

    def __init__(
        self,
        names: list[str],
        window: int,
        first: int,
        last: int,
        pending: np.ndarray,
        emit: Callable[[int, dict[str, np.ndarray]], None],
    ):
        self.names, self.window, self.written, self.last, self.pending, self.emit = names, window, first, last, pending, emit

    def add(self, rows: np.ndarray) -> None:
        """Add rows `[iterations, S, metrics]`."""
        self.pending = np.concatenate([self.pending, rows])
        while len(self.pending):
            length = min(self.window, self.last - self.written)
            if length > len(self.pending):
                break
            window, self.pending = self.pending[:length], self.pending[length:]
            self.written += length
            self.emit(self.written, summarize({name: window[:, :, i] for i, name in enumerate(self.names)}))
