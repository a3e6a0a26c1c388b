"""Experiments with world models: returns on the way and at the end of the budget."""

from __future__ import annotations

from rljax.run.reproduce.report import Report, first_step

EPISODES = 50


def learns(report: Report, preset: str) -> None:
    """Evaluations during training are the preset's own."""
    run = report.trained(preset)
    report.facts["evaluated at"] = run.evaluated_at
    report.measured("curve", run.curve)
    report.measured("return", report.returns(run, EPISODES), run.threshold)
    report.measured("first solved: steps", first_step(run.curve, run.evaluated_at, run.threshold))
