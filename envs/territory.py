"""Territory-v0: two teams of two paint a grid."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.game import Game
from rljax.core.spaces import Box, Discrete
from rljax.envs import drawing

SIZE = 7
MOVES = np.array([[0, 0], [-1, 0], [0, 1], [1, 0], [0, -1]])
"""Of the actions: stay, up, right, down, left."""


@struct.dataclass
class TerritoryState:
    """`paint` i32 `[7, 7]`: 0 for none, else 1 + the team; `place` i32 `[4, 2]`, row and column of each player; `time` steps."""

    paint: jax.Array
    place: jax.Array
    time: jax.Array


@struct.dataclass
class TerritoryParams:
    max_steps: int = 30


class Territory(Game):
    """Players 0 and 1 against 2 and 3 on 7 x 7 cells without borders: who leaves on one side comes in on the other. All move at
    once; a player paints the cell it comes to, and where both teams are on one cell it stays as it was. All begin anywhere.

    Actions: 0 stays, 1 up, 2 right, 3 down, 4 left. Observation of each player, f32 `[7, 7, 5]`, with itself in the middle: the
    own team's cells, the others' cells, its mate, the opponents, and everywhere the share of steps that are left.
    Reward, the same for both of a team: the cells that it gained on the other team in the step. An episode is `max_steps` steps,
    and its return the lead at the end, in cells, less that at the beginning.
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
        # The cell that lies at each place of a player's view, and the places of all players in it, [P, P, 2].
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
        state = TerritoryState(_painted(jnp.zeros((SIZE, SIZE), jnp.int32), place), place, jnp.zeros((), jnp.int32))
        return self.observe(state, params), state

    def step_env(
        self, key: jax.Array, state: TerritoryState, action: jax.Array, params: TerritoryParams
    ) -> tuple[jax.Array, TerritoryState, jax.Array, jax.Array, dict[str, Any]]:
        place = (state.place + jnp.asarray(MOVES)[action]) % SIZE
        paint = _painted(state.paint, place)
        gained = _lead(paint) - _lead(state.paint)
        state = TerritoryState(paint, place, state.time + 1)
        reward = gained * jnp.array([1.0, 1.0, -1.0, -1.0])
        return self.observe(state, params), state, reward, state.time >= params.max_steps, {}

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


def _painted(paint: jax.Array, place: jax.Array) -> jax.Array:
    cells = jnp.arange(SIZE)
    at = (place[:, :1] == cells)[:, :, None] & (place[:, 1:] == cells)[:, None, :]
    first, second = at[0] | at[1], at[2] | at[3]
    return jnp.where(first & ~second, 1, jnp.where(second & ~first, 2, paint))


def _lead(paint: jax.Array) -> jax.Array:
    return jnp.sum(paint == 1) - jnp.sum(paint == 2)
