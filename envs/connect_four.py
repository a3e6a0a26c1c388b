"""ConnectFour-v0: four in a row on 6 x 7 cells, where discs fall."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environments.spaces import Box, Discrete
from rljax.core.games.game import Game
from rljax.envs import drawing

ROWS, COLUMNS = 6, 7


@struct.dataclass
class ConnectFourState:
    """State: `board` i32 `[6, 7]`, row 0 at the bottom, 0 for an empty cell, else 1 + the player; `time` counts the moves."""

    board: jax.Array
    time: jax.Array


@struct.dataclass
class ConnectFourParams:
    pass


class ConnectFour(Game):
    """Four in a row on 6 x 7 cells; discs fall to the lowest empty cell of a column, player 0 begins.

    Action: a column. Observation of each player, f32 `[6, 7, 2]`, the lowest row first: the player's own discs, and the other
    player's. Reward at the end: 1 for the winner, -1 for the loser, 0 for a full board.

    The first player wins with the middle column; with best play, the results of the seven openings are loss, loss, draw, win,
    draw, loss, loss (Allis, 1988).
    """

    opening_moves = 4

    @property
    def name(self) -> str:
        return "ConnectFour-v0"

    @property
    def default_params(self) -> ConnectFourParams:
        return ConnectFourParams()

    def observation_space(self, params: ConnectFourParams) -> Box:
        return Box(0.0, 1.0, (ROWS, COLUMNS, 2))

    def action_space(self, params: ConnectFourParams) -> Discrete:
        return Discrete(COLUMNS)

    def to_move(self, state: ConnectFourState) -> jax.Array:
        return jnp.arange(2) == state.time % 2

    def action_mask(self, state: ConnectFourState, params: ConnectFourParams) -> jax.Array:
        return (state.board[-1] == 0) | ~self.to_move(state)[:, None]

    def observe(self, state: ConnectFourState, params: ConnectFourParams) -> jax.Array:
        own = jnp.array([[1, 2], [2, 1]])
        return (state.board[None, :, :, None] == own[:, None, None, :]).astype(jnp.float32)

    def reset_env(self, key: jax.Array, params: ConnectFourParams) -> tuple[jax.Array, ConnectFourState]:
        state = ConnectFourState(jnp.zeros((ROWS, COLUMNS), jnp.int32), jnp.zeros((), jnp.int32))
        return self.observe(state, params), state

    def initial_states(self, params: ConnectFourParams) -> tuple[ConnectFourState, jax.Array]:
        return ConnectFourState(jnp.zeros((1, ROWS, COLUMNS), jnp.int32), jnp.zeros(1, jnp.int32)), jnp.ones(1)

    def step_env(
        self, key: jax.Array, state: ConnectFourState, action: jax.Array, params: ConnectFourParams
    ) -> tuple[jax.Array, ConnectFourState, jax.Array, jax.Array, dict[str, Any]]:
        mover = state.time % 2
        # Compare instead of indexing, so that vmap does not turn it into a scatter.
        column = jnp.arange(COLUMNS) == action[mover]
        row = jnp.sum((state.board > 0) & column)
        board = jnp.where(column & (jnp.arange(ROWS)[:, None] == row), mover + 1, state.board)
        won = four_in_a_row(board == mover + 1)
        state = ConnectFourState(board, state.time + 1)
        reward = jnp.where(won, jnp.where(jnp.arange(2) == mover, 1.0, -1.0), 0.0)
        return self.observe(state, params), state, reward, won | (state.time == ROWS * COLUMNS), {}

    def text(self, state: ConnectFourState, params: ConnectFourParams, player: int) -> str:
        rows = ["|" + " ".join(".XO"[int(disc)] for disc in row) + "|" for row in state.board[::-1]]
        return "\n".join([*rows, " " + " ".join(self.action_names(params)), f"you are {'XO'[player]}"])

    def action_names(self, params: ConnectFourParams) -> tuple[str, ...]:
        return tuple(str(i + 1) for i in range(COLUMNS))

    def render(self, state: ConnectFourState, params: ConnectFourParams) -> jax.Array:
        picture = drawing.canvas(232, 264, (COLUMNS / 2, ROWS / 2), COLUMNS + 0.4)
        picture = drawing.rectangle(picture, COLUMNS / 2, ROWS / 2, COLUMNS + 0.2, ROWS + 0.2, drawing.BLUE)
        colors = jnp.array([drawing.PAPER, drawing.RED, drawing.GOLD], jnp.float32)
        winning = cells_of_four(state.board == 1) | cells_of_four(state.board == 2)
        for row in range(ROWS):
            for column in range(COLUMNS):
                picture = drawing.circle(picture, column + 0.5, row + 0.5, 0.4, colors[state.board[row, column]])
                picture = drawing.circle(
                    picture, column + 0.5, row + 0.5, jnp.where(winning[row, column], 0.14, -1.0), drawing.INK
                )
        return drawing.finish(picture)


def four_in_a_row(discs: jax.Array) -> jax.Array:
    """Return whether there are four discs next to each other in a row, column or diagonal of bool `[H, W]`, bool []."""
    found = jnp.zeros((), bool)
    for places in _fours(*discs.shape):
        found |= jnp.any(discs[places[0]] & discs[places[1]] & discs[places[2]] & discs[places[3]])
    return found


def cells_of_four(discs: jax.Array) -> jax.Array:
    """Return the cells of all fours that `four_in_a_row` finds, bool `[H, W]`."""
    cells = jnp.zeros(discs.shape, bool)
    for places in _fours(*discs.shape):
        four = discs[places[0]] & discs[places[1]] & discs[places[2]] & discs[places[3]]
        for place in places:
            cells = cells.at[place].max(four)
    return cells


def _fours(height: int, width: int) -> list[list[tuple[slice, slice]]]:
    """Return, for each direction, slices of the board: the first, second, third and fourth cells of every four in a row."""
    found = []
    for up, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        rows, columns = height - 3 * up, width - 3 * abs(right)
        first = 3 if right < 0 else 0
        starts = [(i * up, first + i * right) for i in range(4)]
        found.append([(slice(row, row + rows), slice(column, column + columns)) for row, column in starts])
    return found
