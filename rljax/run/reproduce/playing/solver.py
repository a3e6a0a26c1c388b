"""Connect Four positions with the value of every move, from the perfect solver bitbully (AGPL; for tests and one experiment)."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

PHASES = {"opening": (0, 8), "middle": (8, 22), "end": (22, 42)}
"""Phases of a game, as ranges of the number of moves made."""


class Positions(NamedTuple):
    """N positions in which a mistake is possible.

    Attributes:
        board: boards, i32 `[N, 6, 7]`, as in `ConnectFourState`.
        time: number of moves made, i32 `[N]`.
        value: value of each move for the player to move, i32 `[N, 7]`: 1 wins, 0 draws, -1 loses; -2 is illegal.
    """

    board: np.ndarray
    time: np.ndarray
    value: np.ndarray


@functools.cache
def solved_positions(count: int, seed: int = 0) -> Positions:
    """Return distinct positions from games in which half of the moves are perfect and half random, so that they are realistic."""
    from bitbully import BitBully, Board

    solver, rng = BitBully(opening_book="default"), np.random.default_rng(seed)
    found: dict[bytes, tuple[np.ndarray, int, np.ndarray]] = {}
    while len(found) < count:
        game, board, time = Board(), np.zeros((6, 7), np.int32), 0
        while not game.is_game_over():
            scores = solver.score_all_moves(game)
            value = np.full(7, -2)
            for column, score in scores.items():
                value[column] = np.sign(score)
            if len(set(value[value > -2])) > 1:
                found[board.tobytes()] = (board.copy(), time, value)
            best = [column for column, score in scores.items() if score == max(scores.values())]
            column = int(rng.choice(best if rng.random() < 0.5 else list(scores)))
            game.play(column)
            board[int((board[:, column] > 0).sum()), column] = 1 + time % 2
            time += 1
    boards, times, values = zip(*list(found.values())[:count], strict=True)
    return Positions(np.stack(boards), np.array(times, np.int32), np.stack(values))


def value_losing_rates(positions: Positions, moves: np.ndarray) -> dict[str, float]:
    """Return the share of moves, i32 `[N]`, that lose value (from win to draw or loss, or draw to loss), by phase and overall."""
    lost = positions.value[np.arange(len(moves)), moves] < positions.value.max(1)
    rates = {name: lost[(low <= positions.time) & (positions.time < high)].mean() for name, (low, high) in PHASES.items()}
    return {name: round(float(rate), 3) for name, rate in {**rates, "all": lost.mean()}.items()}
