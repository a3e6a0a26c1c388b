"""Records: one line of JSON for each window of iterations."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

MAX_RECORDS = 1000
"""Default number of records in a run: enough for any curve, and a bound on the file."""


def summarize(rows: dict[str, np.ndarray]) -> dict[str, float]:
    """One value per metric for a window of iterations, each `[window]`.

    Episode means are weighted by their counts, counts add up, evaluations keep the last one, everything else is averaged.
    """
    counts = rows.get("episode/count")
    summary = {}
    for name, values in rows.items():
        known = np.isfinite(values)
        if name.startswith("eval/"):
            summary[name] = float(values[known][-1]) if known.any() else math.nan
        elif name.endswith("/count"):
            summary[name] = float(np.sum(values))
        elif name.startswith("episode/") and counts is not None:
            total = counts[known].sum()
            summary[name] = float((values[known] * counts[known]).sum() / total) if total else math.nan
        else:
            summary[name] = float(np.mean(values))
    return summary


class JsonLines:
    """Appends records to a file, one JSON object per line, flushed each; NaN and infinities are written as null."""

    def __init__(self, path: Path):
        self.file = path.open("a", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
        self.file.write(json.dumps(finite, allow_nan=False) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()
