"""Experiments with world models: returns on the way and at the end of the budget."""

from __future__ import annotations

import numpy as np

from rljax.collect.environments import make_evaluation_env
from rljax.run.reproduce.report import Report

EPISODES = 50


def learns(report: Report, preset: str) -> None:
    """Evaluations during training are the preset's own."""
    run = report.trained(preset)
    threshold = make_evaluation_env(run.agent.config)[0].reward_threshold
    report.facts["evaluated at"] = run.evaluated_at
    report.measured("curve", run.curve)
    report.measured("return", report.returns(run, EPISODES), threshold)
    reached = run.curve >= (np.inf if threshold is None else threshold)
    first = np.array([*run.evaluated_at, np.nan])[np.where(reached.any(1), reached.argmax(1), -1)]
    report.measured("first solved: steps", first)
