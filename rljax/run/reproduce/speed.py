"""Records of benchmarks: the output of `rljax bench`."""

from __future__ import annotations

import contextlib
import io

from rljax.run.bench.suites import run_suite
from rljax.run.bench.timing import parse_tables
from rljax.run.reproduce.report import Report

REPEATS = {"fit": 9, "league": 9}
"""Number of interleaved repeats by suite; 3 in the others."""


def suite(report: Report, name: str) -> None:
    """Record the tables and notes of one suite as facts; `printed` has its lines, without the one about the hardware."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        run_suite(name, REPEATS.get(name, 3))
    report.say(said.getvalue())
    report.facts["repeats"] = REPEATS.get(name, 3)
    report.facts |= parse_tables(said.getvalue())
    report.facts["printed"] = said.getvalue().strip().splitlines()[1:]
