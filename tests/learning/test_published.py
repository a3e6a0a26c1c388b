"""Published figures can be had again: each experiment on seeds of its own, beside its record. On demand, since it takes hours."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax.run.reproduce import reproduce
from rljax.run.reproduce.experiments import FIRST_SEED

RESULTS = Path(__file__).parents[2] / "results"
RECORDS = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json") if path.stem != "earlier"}
LEARNED = sorted(name for name, record in RECORDS.items() if record["raw"])
CHANCE = 0.01
"""Of a count so low that it is put down to the code and not to the seeds."""


def least_count(count: int, of: int, seeds: int) -> int:
    """The least count among `seeds` that goes with `count` of `of` seeds before: fewer come by chance once in a hundred times.

    A binomial bound. A record without a failure does not say that there are none, only that they are rare: one in of + 1 is
    taken to fail.
    """
    p = min(count / of, 1 - 1 / (of + 1))
    chance = np.cumsum([math.comb(seeds, k) * p**k * (1 - p) ** (seeds - k) for k in range(seeds + 1)])
    return int(np.argmax(chance > CHANCE))


def medians_like(values: np.ndarray) -> tuple[float, float]:
    """Between which numbers the median of other seeds lies: Tukey's fences, 1.5 times the quartiles' distance outside of them.

    One seed among many that is far off widens them by nothing. A twentieth of the median is allowed at least, since many seeds
    may come to the same; a quarter where fewer than five say little of how far seeds are apart.
    """
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    least = (0.05 if len(values) >= 5 else 0.25) * abs(middle) + 1e-3
    apart = max(1.5 * (high - low), least)
    return float(low - apart), float(high + apart)


def differing(record: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What was found that does not go with a record: too few seeds that solve it, or have a value, or another median."""
    wrong = []
    for measure in record["summary"]:
        then, now = (np.array(of["raw"][measure], np.float64) for of in (record, found))
        known_then, known_now = then[np.isfinite(then)], now[np.isfinite(now)]
        counts = {"have a value": (len(known_then), len(known_now))}
        if (threshold := record["thresholds"].get(measure)) is not None:
            counts["solve it"] = (int((known_then >= threshold).sum()), int((known_now >= threshold).sum()))
        for what, (before, count) in counts.items():
            least = least_count(before, len(then), len(now))
            wrong += [f"{measure}: {count} of {len(now)} {what}, expected {least}"] if count < least else []
        if len(known_then) and len(known_now):
            low, high = medians_like(known_then)
            median = np.median(known_now)
            wrong += [] if low <= median <= high else [f"{measure}: median {median:g}, expected {low:g} to {high:g}"]
    return wrong


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", LEARNED)
def test_an_experiment_on_other_seeds_comes_to_its_record(name: str, tmp_path: Path) -> None:
    """As many seeds as in the record: of 5, three that solve it would go with 19 of 20, and nothing much would be refused."""
    record = RECORDS[name]
    found = reproduce(name, tmp_path, seeds=len(record["seeds"]), first_seed=FIRST_SEED + 1000)
    assert differing(record, found) == [], found["raw"]


def test_counts_that_go_with_a_record_are_those_that_a_binomial_gives() -> None:
    assert least_count(0, 20, 20) == 0
    assert least_count(19, 20, 20) == 16
    assert least_count(20, 20, 20) == 16
    assert least_count(19, 20, 5) == 3
    draws = np.random.default_rng(0).binomial(20, 0.75, 200_000)
    least = least_count(15, 20, 20)
    assert (draws < least).mean() <= CHANCE < (draws <= least).mean()


def made(values: Sequence[float | None], threshold: float) -> dict[str, Any]:
    return {"raw": {"return": list(values)}, "thresholds": {"return": threshold}, "summary": {"return": {}}}


def test_one_seed_far_off_does_not_let_a_worse_result_pass() -> None:
    usual = [-87.0, -85.2, -84.9, -84.4, -84.1, -83.9, -83.6, -83.3, -83.2, -83.1]
    usual += [-82.9, -82.7, -82.4, -82.2, -81.8, -81.5, -80.9, -80.1, -78.0]
    record = made([-500.0, *usual], -100.0)
    shifted = [x + 1.0 for x in usual]
    assert differing(record, made([-500.0, -500.0, *shifted[1:]], -100.0)) == []
    assert differing(record, made([-500.0] * 8 + usual[:12], -100.0)) == ["return: 12 of 20 solve it, expected 16"]
    draw = np.random.default_rng(0)
    other = [differing(record, made(list(draw.choice([-500.0, *usual], 20)), -100.0)) for _ in range(200)]
    assert sum(wrong == [] for wrong in other) >= 195
    assert [line[:18] for line in differing(record, made([x - 10 for x in (*usual, -83.0)], -100.0))] == ["return: median -93"]
    assert [line[:18] for line in differing(record, made([x + 10 for x in (*usual, -83.0)], -100.0))] == ["return: median -73"]
    assert "return: 10 of 20 have a value, expected 16" in differing(record, made([*usual[:10], *[None] * 10], -100.0))


@pytest.mark.parametrize("name", LEARNED)
def test_a_record_goes_with_itself_and_with_none_that_is_clearly_worse(name: str) -> None:
    record = RECORDS[name]
    assert differing(record, record) == []
    for measure in [measure for measure, found in record["summary"].items() if "median" in found]:
        values = np.array(record["raw"][measure], np.float64)
        low, middle, high = np.nanquantile(values, [0.25, 0.5, 0.75])
        worse = middle - 3 * (high - low) - 0.3 * abs(middle) - 0.01
        found = {"raw": {**record["raw"], measure: np.full(len(values), worse)}}
        assert any(line.startswith(f"{measure}: ") for line in differing(record, found))
