"""Scores of the agents in a checkpoint: their latest returns and their best evaluation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rljax.run.files.records import last_finite

SCORES = ("eval/rating", "eval/return", "episode/return")
"""Metrics to compare seeds by: the first one that is known. Only games with a pool of past players have ratings."""

EVALUATIONS = SCORES[:2]


class Scores:
    """Last known returns of each seed and best evaluation so far; a checkpoint keeps them in its meta.json.

    Args:
        num_seeds: number of seeds S.
        meta: meta.json of the checkpoint from which the run continues; empty for a new run.
    """

    def __init__(self, num_seeds: int, meta: dict[str, Any]):
        known = meta.get("returns") or {}
        self.returns = {name: _from_json(known.get(name), num_seeds) for name in SCORES}
        self.best_score: float = -math.inf if meta.get("best_score") is None else meta["best_score"]
        self.best_scores = _from_json(meta.get("best_scores"), num_seeds)
        self.best_step: int | None = meta.get("best_step")
        self.left_out = np.zeros(num_seeds, bool)

    def update(self, names: list[str], rows: np.ndarray) -> None:
        """Update the returns with rows `[iterations, S, metrics]`."""
        for name in set(EVALUATIONS) & set(names):
            evaluations = rows[:, :, names.index(name)]
            made = np.isfinite(evaluations).any(1)
            if made.any():
                # Take all seeds from the last evaluation: one whose episodes did not end must not keep a score of older weights.
                self.returns[name] = evaluations[made][-1].astype(np.float64)
        if "episode/return" in names:  # a step of the user's own may not report it
            values = last_finite(rows[:, :, names.index("episode/return")])
            self.returns["episode/return"] = np.where(np.isfinite(values), values, self.returns["episode/return"])
        for known in self.returns.values():
            known[self.left_out] = math.nan

    def leave_out(self, seed: int) -> None:
        """Drop the score of a seed that has diverged; past and future scores of the run are means over the other seeds."""
        self.left_out[seed] = True
        others = self.best_scores[~self.left_out]
        if np.isfinite(others).any():  # checkpoints of earlier versions do not have the score of each seed
            self.best_score = float(np.mean(others))
        for known in self.returns.values():
            known[seed] = math.nan

    def improved(self, step: int) -> bool:
        """Return whether the latest evaluation is the best so far, and if so, note it.

        Evaluations are compared by the mean over seeds without those left out, all of which must be known.
        """
        name = next((name for name in EVALUATIONS if np.isfinite(self.returns[name]).any()), "eval/return")
        score = float(np.mean(self.returns[name][~self.left_out]))
        if not score > self.best_score:  # NaN is not greater
            return False
        self.best_score, self.best_scores, self.best_step = score, self.returns[name].copy(), step
        return True

    def meta(self, iteration: int) -> dict[str, Any]:
        """Return the scores for the meta.json of a checkpoint after `iteration` iterations."""
        score_name = next((name for name in SCORES if np.isfinite(self.returns[name]).any()), SCORES[-1])
        returns = {name: _to_json(values) for name, values in self.returns.items()}
        return {
            "iteration": iteration,
            "score_name": score_name,
            "scores": returns[score_name],
            "returns": returns,
            "best_score": None if self.best_step is None else self.best_score,
            "best_scores": None if self.best_step is None else _to_json(self.best_scores),
            "best_step": self.best_step,
        }


def best_seed(meta: dict[str, Any]) -> int:
    """Return the index of the seed with the highest score in a checkpoint's meta.json; 0 if none has a score."""
    scores = [-np.inf if score is None else score for score in meta.get("scores") or [0.0]]
    return int(np.argmax(scores))


def _to_json(values: np.ndarray) -> list[float | None]:
    return [float(x) if math.isfinite(x) else None for x in values]


def _from_json(values: list[float | None] | None, size: int) -> np.ndarray:
    return np.full(size, math.nan) if values is None else np.array([math.nan if x is None else x for x in values])
