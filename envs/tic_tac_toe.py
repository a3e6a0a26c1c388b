"""TicTacToe-v0: three in a row on 3 x 3 cells."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.environments.spaces import Box, Discrete
from rljax.core.games.game import Game
from rljax.envs import drawing

LINES = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]])


@struct.dataclass
class TicTacToeState:
    """State: `board` i32 `[9]`, row by row, 0 for an empty cell, else 1 + the player; `time` counts the moves."""

    board: jax.Array
    time: jax.Array


@struct.dataclass
class TicTacToeParams:
    pass


class TicTacToe(Game):
    """Three in a row on 3 x 3 cells; player 0 begins.

    Action: a cell, row by row. Observation of each player, f32 `[18]`: the player's own marks, then the other's. Reward at the
    end: 1 for the winner, -1 for the loser, 0 for a draw, which is the result of best play on both sides.
    """

    @property
    def name(self) -> str:
        return "TicTacToe-v0"

    @property
    def default_params(self) -> TicTacToeParams:
        return TicTacToeParams()

    def observation_space(self, params: TicTacToeParams) -> Box:
        return Box(0.0, 1.0, (18,))

    def action_space(self, params: TicTacToeParams) -> Discrete:
        return Discrete(9)

    def to_move(self, state: TicTacToeState) -> jax.Array:
        return jnp.arange(2) == state.time % 2

    def action_mask(self, state: TicTacToeState, params: TicTacToeParams) -> jax.Array:
        return (state.board == 0) | ~self.to_move(state)[:, None]

    def observe(self, state: TicTacToeState, params: TicTacToeParams) -> jax.Array:
        marks = state.board == jnp.array([[1], [2]])
        return jnp.concatenate([marks, marks[::-1]], axis=-1).astype(jnp.float32)

    def initial_states(self, params: TicTacToeParams) -> tuple[TicTacToeState, jax.Array]:
        return TicTacToeState(jnp.zeros((1, 9), jnp.int32), jnp.zeros(1, jnp.int32)), jnp.ones(1)

    def reset_env(self, key: jax.Array, params: TicTacToeParams) -> tuple[jax.Array, TicTacToeState]:
        state = TicTacToeState(jnp.zeros(9, jnp.int32), jnp.zeros((), jnp.int32))
        return self.observe(state, params), state

    def step_env(
        self, key: jax.Array, state: TicTacToeState, action: jax.Array, params: TicTacToeParams
    ) -> tuple[jax.Array, TicTacToeState, jax.Array, jax.Array, dict[str, Any]]:
        mover = state.time % 2
        board = jnp.where(jnp.arange(9) == action[mover], mover + 1, state.board)
        won = jnp.any(jnp.all((board == mover + 1)[LINES], axis=-1))
        state = TicTacToeState(board, state.time + 1)
        reward = jnp.where(won, jnp.where(jnp.arange(2) == mover, 1.0, -1.0), 0.0)
        return self.observe(state, params), state, reward, won | (state.time == 9), {}

    def text(self, state: TicTacToeState, params: TicTacToeParams, player: int) -> str:
        marks = [(str(i + 1), "X", "O")[int(mark)] for i, mark in enumerate(state.board)]
        board = "\n---+---+---\n".join(" " + " | ".join(marks[i : i + 3]) for i in (0, 3, 6))
        return f"{board}\nyou are {'XO'[player]}"

    def action_names(self, params: TicTacToeParams) -> tuple[str, ...]:
        return tuple(str(i + 1) for i in range(9))

    def render(self, state: TicTacToeState, params: TicTacToeParams) -> jax.Array:
        picture = drawing.canvas(256, 256, (1.5, 1.5), 3.4)
        for i in (1.0, 2.0):
            picture = drawing.capsule(picture, i, 0.1, i, 2.9, 0.02, drawing.GREY)
            picture = drawing.capsule(picture, 0.1, i, 2.9, i, 0.02, drawing.GREY)
        for cell in range(9):
            x, y = cell % 3 + 0.5, 2.5 - cell // 3
            cross = picture
            for side in (-1.0, 1.0):
                cross = drawing.capsule(cross, x - 0.28, y - 0.28 * side, x + 0.28, y + 0.28 * side, 0.06, drawing.BLUE)
            ring = drawing.circle(drawing.circle(picture, x, y, 0.34, drawing.RED), x, y, 0.22, drawing.PAPER)
            mark = state.board[cell]
            picture = picture._replace(rgb=jnp.where(mark == 1, cross.rgb, jnp.where(mark == 2, ring.rgb, picture.rgb)))
        for line in LINES:
            ends = [(float(cell % 3 + 0.5), float(2.5 - cell // 3)) for cell in (line[0], line[2])]
            struck = drawing.capsule(picture, *ends[0], *ends[1], 0.04, drawing.INK)
            marks = state.board[line]
            full = (marks[0] > 0) & jnp.all(marks == marks[0])
            picture = picture._replace(rgb=jnp.where(full, struck.rgb, picture.rgb))
        return drawing.finish(picture)
