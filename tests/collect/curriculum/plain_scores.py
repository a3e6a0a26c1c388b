"""Scores of levels of games by plain loops over the moves of each game."""

from __future__ import annotations

from typing import Any

import numpy as np


class PlainScores:
    """The mean |A| of the moves that count, of the games of each level that ended last; games go on in the next rollout.

    Attributes:
        under_way: |A| of the moves so far of each game that has not ended.
        scores: score of each level, f64 `[L]`; 0 for none.
        seen: which levels have a score, bool `[L]`.
    """

    def __init__(self, games: int, levels: int):
        self.under_way: list[list[float]] = [[] for _ in range(games)]
        self.scores, self.seen = np.zeros(levels), np.zeros(levels, bool)

    def add(self, advantage: np.ndarray, own: np.ndarray, done: Any, level: Any) -> None:
        """Add a rollout: advantages of moves and which of them count, `[T, E, Q]`, ends of games and their levels, `[T, E]`."""
        done, level = np.asarray(done), np.asarray(level)
        ended: list[list[float]] = [[] for _ in self.scores]
        for game, moves in enumerate(self.under_way):
            for t in range(len(done)):
                moves += np.abs(advantage[t, game][own[t, game]]).tolist()
                if done[t, game]:
                    ended[level[t, game]] += [np.mean(moves)] if moves else []
                    moves.clear()
        for i, found in enumerate(ended):
            if found:
                self.scores[i], self.seen[i] = np.mean(found), True
