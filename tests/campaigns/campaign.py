"""What the campaigns share: a record of what they found, and how they are begun."""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rljax.run.reproduce.report import hardware_table, source_commit, versions, write_record

RECORD = Path(__file__).parents[2] / "results" / "campaigns.json"


class Campaign:
    """Counts what came of each try; what may not happen is a failure, kept with its seed.

    Attributes:
        name: of the campaign, a key of the record's facts.
        seed: of the first try; try i has seed + i.
    """

    def __init__(self, name: str, seed: int):
        self.name, self.seed, self.tries = name, seed, 0
        self.counts: collections.Counter[str] = collections.Counter()
        self.failures: list[str] = []
        self.slowest = 0.0
        self.began, self.load, self.commit = datetime.datetime.now(datetime.UTC), os.getloadavg(), source_commit()

    def run(self, attempt: Callable[[int], list[str]], tries: int, max_seconds: float | None) -> None:
        """`attempt(seed)` returns what it saw; what it raises is a failure. Ends early after `max_seconds`."""
        started = told = time.monotonic()
        for seed in range(self.seed, self.seed + tries):
            before = time.monotonic()
            try:
                self.counts.update(attempt(seed))
            except Exception as error:
                self.failures.append(f"{self.name} {seed}: {type(error).__name__}: {error}")
                print(self.failures[-1], flush=True)
            now = time.monotonic()
            self.tries, self.slowest = self.tries + 1, max(self.slowest, now - before)
            if now - told > 30:
                told = now
                print(f"{self.name}: {self.tries} of {tries}, {len(self.failures)} failures, {dict(self.counts)}", flush=True)
            if max_seconds is not None and now - started > max_seconds:
                break

    def facts(self) -> dict[str, Any]:
        return {
            "date": self.began.isoformat(timespec="seconds"),
            "commit": self.commit,
            "load": [round(x, 2) for x in (*self.load, *os.getloadavg())],
            "first_seed": self.seed,
            "tries": self.tries,
            "outcomes": dict(sorted(self.counts.items())),
            "failures": self.failures,
            "slowest_seconds": round(self.slowest, 1),
        }


def record(campaign: Campaign, path: Path, configs: dict[str, Any]) -> None:
    """Put a campaign's facts into the record, beside those of the others."""
    table: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    table = {
        "name": "campaigns",
        "measures": "run folders, sweeps and studies that were killed or damaged: what was lost, and what was told",
        "command": "python -m tests.campaigns.kill --tries 1000; python -m tests.campaigns.corrupt --tries 5000",
        "note": "",
        "date": campaign.began.isoformat(timespec="seconds"),
        "commit": campaign.commit,
        "versions": versions(),
        "hardware": hardware_table(),
        "load": [round(x, 2) for x in (*campaign.load, *os.getloadavg())],
        "seconds": {},
        "seeds": [],
        "budget": 1.0,
        "configs": {**table.get("configs", {}), **configs},
        "raw": {},
        "thresholds": {},
        "summary": {},
        "facts": {**table.get("facts", {}), campaign.name: campaign.facts()},
    }
    write_record(path, table)


def main(run: Callable[[int, int, float | None], tuple[Campaign, dict[str, Any]]], tries: int) -> None:
    """`run(tries, seed, max_seconds)` from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=tries)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-minutes", type=float)
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    campaign, configs = run(options.tries, options.seed, options.max_minutes and 60 * options.max_minutes)
    record(campaign, options.record, configs)
    print(json.dumps(campaign.facts(), indent=1))
    sys.exit(1 if campaign.failures else 0)
