"""Benchmarks as records: what `rljax bench` prints."""

from __future__ import annotations

import contextlib
import io

from rljax.run.bench.suites import SUITES
from rljax.run.bench.timing import printed_tables
from rljax.run.reproduce.report import Report

REPEATS = {"fit": 9}
"""Interleaved repeats; 3 in the other suites."""


def suite(report: Report, name: str) -> None:
    """The tables and notes of one suite, as facts; `printed` has its lines as they were, without the one of the hardware."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        SUITES[name](REPEATS.get(name, 3))
    report.say(said.getvalue())
    report.facts["repeats"] = REPEATS.get(name, 3)
    report.facts |= printed_tables(said.getvalue())
    report.facts["printed"] = said.getvalue().strip().splitlines()[1:]
