"""Published figures can be had again: each experiment on seeds of its own, beside its record. On demand, since it takes hours."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rljax.run.reproduce import reproduce
from rljax.run.reproduce.experiments import FIRST_SEED

RESULTS = Path(__file__).parents[2] / "results"
RECORDS = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json") if path.stem != "earlier"}
LEARNED = sorted(name for name, record in RECORDS.items() if record["raw"])
SEEDS = 5


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", LEARNED)
def test_an_experiment_on_other_seeds_comes_to_its_record(name: str, tmp_path: Path) -> None:
    """As many seeds solve it, but for one; the median lies where the record's seeds do, or no further out than they are apart."""
    record = RECORDS[name]
    seeds = min(SEEDS, len(record["seeds"]))
    found = reproduce(name, tmp_path, seeds=seeds, first_seed=FIRST_SEED + 1000)
    for measure, then in record["summary"].items():
        now = found["summary"][measure]
        if "solved" in then:
            share = then["solved"] / len(record["seeds"])
            assert now["solved"] >= np.floor(share * seeds - 1), (measure, found["raw"][measure])
        if "median" in then:
            apart = then["max"] - then["min"] + 0.05 * abs(then["median"]) + 1e-3
            assert then["min"] - apart <= now["median"] <= then["max"] + apart, (measure, found["raw"][measure])
