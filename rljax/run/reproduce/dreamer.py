"""Experiments with world models: returns during training and at the end of the budget."""

from __future__ import annotations

from rljax.run.reproduce.report import Report, first_step

EPISODES = 50


def learns(report: Report, preset: str) -> None:
    """Measure the preset's own evaluations during training, and returns at the end."""
    run = report.train(preset)
    report.facts["evaluated at"] = run.evaluated_at
    report.measure("curve", run.curve)
    report.measure("return", report.returns(run, EPISODES), run.threshold)
    report.measure("first solved: steps", first_step(run.curve, run.evaluated_at, run.threshold))
