"""A perfect player of tic-tac-toe, by plain recursion: it chooses uniformly among the moves that keep the value of the game."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.games.versus import Player
from rljax.envs.tic_tac_toe import LINES

POWERS = 3 ** np.arange(9)


@functools.cache
def optimal_moves() -> np.ndarray:
    """Return which moves are best, bool `[3 ** 9, 9]`, by the number of the board; False for boards that cannot occur."""
    table = np.zeros((3**9, 9), bool)

    @functools.cache
    def value(board: tuple[int, ...]) -> int:
        """Return the value for the player to move."""
        moves = sum(mark > 0 for mark in board)
        mover = moves % 2 + 1
        if any(all(board[cell] == 3 - mover for cell in line) for line in LINES):
            return -1
        if moves == 9:
            return 0
        after = {i: -value((*board[:i], mover, *board[i + 1 :])) for i in range(9) if board[i] == 0}
        best = max(after.values())
        table[np.array(board) @ POWERS, [i for i, v in after.items() if v == best]] = True
        return best

    assert value((0,) * 9) == 0
    return table


def perfect_player() -> Player:
    table = jnp.asarray(optimal_moves())

    def play(key: jax.Array, state: Any, _obs: Any, _mask: jax.Array) -> jax.Array:
        best = table[state.board @ jnp.asarray(POWERS)]
        return jnp.repeat(jnp.argmax(jnp.where(best, jax.random.uniform(key, (9,)), -1.0)), 2).astype(jnp.int32)

    return play
