"""Territory-v0: two teams of two paint a grid."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.environments.environment import bounded
from rljax.core.environments.spaces import Box, Discrete
from rljax.core.games.game import Game
from rljax.envs import drawing

SIZE = 7
MOVES = np.array([[0, 0], [-1, 0], [0, 1], [1, 0], [0, -1]])
"""Moves of the actions: stay, up, right, down, left."""


@struct.dataclass
class TerritoryState:
    """State: `paint` i32 `[7, 7]`, 0 for none, else 1 + the team; `place` i32 `[4, 2]`, each player's row and column; `time`."""

    paint: jax.Array
    place: jax.Array
    time: jax.Array


@struct.dataclass
class TerritoryParams:
    max_steps: int = bounded(30, ge=1)


class Territory(Game):
    """Players 0 and 1 play against 2 and 3 on 7 x 7 cells; a player who leaves on one side enters on the opposite side.

    All players start at random cells and move at the same time. A player paints the cell that it enters; a cell with players of
    both teams keeps its colour.

    Actions: 0 stay, 1 up, 2 right, 3 down, 4 left. Observation of each player, f32 `[7, 7, 5]`, with the player in the middle:
    the cells of its own team, the cells of the other team, its teammate, the opponents, and in every cell the share of steps that
    are left. The reward, equal for both players of a team, is the number of cells that the team gained on the other in the step.
    An episode has `max_steps` steps; its return is the final lead in cells minus the initial one.
    """

    num_players = 4

    @property
    def name(self) -> str:
        return "Territory-v0"

    @property
    def default_params(self) -> TerritoryParams:
        return TerritoryParams()

    @property
    def teams(self) -> tuple[int, ...]:
        return (0, 0, 1, 1)

    def observation_space(self, params: TerritoryParams) -> Box:
        return Box(0.0, 1.0, (SIZE, SIZE, 5))

    def action_space(self, params: TerritoryParams) -> Discrete:
        return Discrete(len(MOVES))

    def observe(self, state: TerritoryState, params: TerritoryParams) -> jax.Array:
        teams, cells = jnp.array(self.teams), jnp.arange(SIZE)
        # The cell at each place of a player's view, and the places of all players in it, [P, P, 2].
        rows, columns = ((state.place[:, i, None] + cells - SIZE // 2) % SIZE for i in range(2))
        paint = state.paint.reshape(-1)[rows[:, :, None] * SIZE + columns[:, None, :]]
        seen = (state.place - state.place[:, None] + SIZE // 2) % SIZE
        at = (seen[..., :1] == cells)[..., :, None] & (seen[..., 1:] == cells)[..., None, :]
        is_mate = (teams == teams[:, None]) & ~jnp.eye(self.num_players, dtype=bool)
        mate, opponents = (jnp.any(at & who[..., None, None], axis=1) for who in (is_mate, teams != teams[:, None]))
        left = jnp.full(paint.shape, 1.0 - state.time / jnp.maximum(params.max_steps, 1))
        of_team = teams[:, None, None]
        return jnp.stack([paint == 1 + of_team, paint == 2 - of_team, mate, opponents, left], axis=-1)

    def reset_env(self, key: jax.Array, params: TerritoryParams) -> tuple[jax.Array, TerritoryState]:
        place = jax.random.randint(key, (self.num_players, 2), 0, SIZE)
        state = TerritoryState(_paint_cells(jnp.zeros((SIZE, SIZE), jnp.int32), place), place, jnp.zeros((), jnp.int32))
        return self.observe(state, params), state

    def step_env(
        self, key: jax.Array, state: TerritoryState, action: jax.Array, params: TerritoryParams
    ) -> tuple[jax.Array, TerritoryState, jax.Array, jax.Array, dict[str, Any]]:
        place = (state.place + jnp.asarray(MOVES)[action]) % SIZE
        paint = _paint_cells(state.paint, place)
        gained = _lead(paint) - _lead(state.paint)
        state = TerritoryState(paint, place, state.time + 1)
        reward = gained * jnp.array([1.0, 1.0, -1.0, -1.0])
        return self.observe(state, params), state, reward, state.time >= params.max_steps, {}

    def text(self, state: TerritoryState, params: TerritoryParams, player: int) -> str:
        """The whole map, with the player's own number in brackets; of several players in a cell the first is shown."""
        cells = [[" .ab"[1 + int(paint)].center(3) for paint in row] for row in state.paint]
        for other in reversed([player, *(p for p in range(self.num_players) if p != player)]):
            row, column = (int(x) for x in state.place[other])
            cells[row][column] = f"[{other}]" if other == player else str(other).center(3)
        cells_of = ", ".join(
            f"of team {'ab'[team]} (players {' and '.join(str(p) for p in range(self.num_players) if self.teams[p] == team)}): "
            f"{int(jnp.sum(state.paint == 1 + team))}"
            for team in range(2)
        )
        left = params.max_steps - int(state.time)
        return "\n".join(["".join(row) for row in cells] + [f"cells {cells_of}; steps left: {left}"])

    def action_names(self, params: TerritoryParams) -> tuple[str, ...]:
        return ("stay", "up", "right", "down", "left")

    def render(self, state: TerritoryState, params: TerritoryParams) -> jax.Array:
        picture = drawing.canvas(256, 256, (SIZE / 2, SIZE / 2), SIZE + 0.2, drawing.GREY)
        colors = jnp.array([drawing.PAPER, (158, 188, 220), (236, 170, 166)], jnp.float32)
        for row in range(SIZE):
            for column in range(SIZE):
                fill = colors[state.paint[row, column]]
                picture = drawing.rectangle(picture, column + 0.5, SIZE - row - 0.5, 0.94, 0.94, fill)
        for player, color in enumerate((drawing.BLUE, drawing.BLUE, drawing.RED, drawing.RED)):
            x, y = state.place[player, 1] + 0.5, SIZE - state.place[player, 0] - 0.5
            picture = drawing.circle(drawing.circle(picture, x, y, 0.32, drawing.INK), x, y, 0.28, color)
        return drawing.finish(picture)


def _paint_cells(paint: jax.Array, place: jax.Array) -> jax.Array:
    cells = jnp.arange(SIZE)
    at = (place[:, :1] == cells)[:, :, None] & (place[:, 1:] == cells)[:, None, :]
    first, second = at[0] | at[1], at[2] | at[3]
    return jnp.where(first & ~second, 1, jnp.where(second & ~first, 2, paint))


def _lead(paint: jax.Array) -> jax.Array:
    return jnp.sum(paint == 1) - jnp.sum(paint == 2)
