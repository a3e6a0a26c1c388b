"""HeavyBox-v0: two players push a beam that is too heavy for one."""

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

SIZE = 5
START_ROW = 3
MOVES = np.array([[0, 0], [-1, 0], [0, 1], [1, 0], [0, -1]])
"""Moves of the actions: stay, up, right, down, left."""
UP = 1


@struct.dataclass
class HeavyBoxState:
    """State: `place` i32 `[2, 2]`, each player's row and column; `beam` i32 `[2]`, row and left column of the beam; `time`."""

    place: jax.Array
    beam: jax.Array
    time: jax.Array


@struct.dataclass
class HeavyBoxParams:
    max_steps: int = bounded(25, ge=1)


class HeavyBox(Game):
    """Two players in a room of 5 x 5 cells push a beam, two cells wide, from the fourth row to the first.

    The beam moves up by one row if the players stand below its two cells and both go up in the same step; nothing else moves it,
    so one player alone gets nothing. Players do not enter the beam's cells or leave the room, and may share a cell. They start at
    random free cells, and the beam at random columns.

    Actions: 0 stay, 1 up, 2 right, 3 down, 4 left. Observation of each player, f32 `[9, 9, 5]`, with the player in the middle:
    the other player's cell, the beam's, those of the room, and in every cell the share of steps that are left and the player's
    number (0 or 1). Both players get 1/3 for each row that the beam moves. An episode ends when the beam is in the first row,
    with a return of 1, or after `max_steps` steps.
    """

    @property
    def name(self) -> str:
        return "HeavyBox-v0"

    @property
    def default_params(self) -> HeavyBoxParams:
        return HeavyBoxParams()

    @property
    def teams(self) -> tuple[int, ...]:
        return (0, 0)

    def observation_space(self, params: HeavyBoxParams) -> Box:
        return Box(0.0, 1.0, (2 * SIZE - 1, 2 * SIZE - 1, 5))

    def action_space(self, params: HeavyBoxParams) -> Discrete:
        return Discrete(len(MOVES))

    def observe(self, state: HeavyBoxState, params: HeavyBoxParams) -> jax.Array:
        cells = jnp.arange(SIZE)
        at = (state.place[:, :1] == cells)[:, :, None] & (state.place[:, 1:] == cells)[:, None, :]
        beam = jnp.tile(_beam_cells(state.beam), (2, 1, 1))
        room = jnp.stack([at[::-1], beam, jnp.ones_like(at)], axis=-1).astype(jnp.float32)
        edge, side = SIZE - 1, 2 * SIZE - 1
        padded = jnp.pad(room, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
        around = jax.vmap(lambda x, place: jax.lax.dynamic_slice(x, (place[0], place[1], 0), (side, side, 3)))(
            padded, state.place
        )
        left = 1.0 - state.time / jnp.maximum(params.max_steps, 1)
        same = jnp.stack([jnp.full(2, left), jnp.arange(2.0)], axis=-1)[:, None, None]
        return jnp.concatenate([around, jnp.broadcast_to(same, (2, side, side, 2))], axis=-1)

    def text(self, state: HeavyBoxState, params: HeavyBoxParams, player: int) -> str:
        rows = [["#" if cell else "." for cell in row] for row in np.asarray(_beam_cells(state.beam))]
        for who, sign in ((1 - player, "o"), (player, "x")):
            row, column = (int(x) for x in state.place[who])
            rows[row][column] = sign
        return "\n".join(map("".join, rows)) + f"\nyou are x; {params.max_steps - int(state.time)} steps are left"

    def action_names(self, params: HeavyBoxParams) -> tuple[str, ...]:
        return ("stay", "up", "right", "down", "left")

    def reset_env(self, key: jax.Array, params: HeavyBoxParams) -> tuple[jax.Array, HeavyBoxState]:
        beam_key, place_key = jax.random.split(key)
        beam = jnp.array([START_ROW, 0]).at[1].set(jax.random.randint(beam_key, (), 0, SIZE - 1))
        free = ~_beam_cells(beam).reshape(-1)
        cell = jnp.argmax(jnp.where(free, jax.random.uniform(place_key, (2, SIZE * SIZE)), -1.0), axis=-1)
        state = HeavyBoxState(jnp.stack([cell // SIZE, cell % SIZE], axis=-1), beam, jnp.zeros((), jnp.int32))
        return self.observe(state, params), state

    def step_env(
        self, key: jax.Array, state: HeavyBoxState, action: jax.Array, params: HeavyBoxParams
    ) -> tuple[jax.Array, HeavyBoxState, jax.Array, jax.Array, dict[str, Any]]:
        ends = state.beam + jnp.array([[1, 0], [1, 1]])
        stands = jnp.all(state.place[:, None] == ends, axis=-1)
        below = (stands[0, 0] & stands[1, 1]) | (stands[0, 1] & stands[1, 0])
        pushes = below & jnp.all(action == UP)
        beam = state.beam - jnp.array([1, 0]) * pushes
        to = jnp.clip(state.place + jnp.asarray(MOVES)[action], 0, SIZE - 1)
        blocked = _beam_cells(beam)[to[:, 0], to[:, 1]]
        state = HeavyBoxState(jnp.where(blocked[:, None], state.place, to), beam, state.time + 1)
        reward = jnp.full(2, pushes / START_ROW)
        over = (beam[0] == 0) | (state.time >= params.max_steps)
        return self.observe(state, params), state, reward, over, {}

    def render(self, state: HeavyBoxState, params: HeavyBoxParams) -> jax.Array:
        picture = drawing.canvas(256, 256, (SIZE / 2, SIZE / 2), SIZE + 0.2, drawing.GREY)
        for row in range(SIZE):
            for column in range(SIZE):
                fill = (222, 238, 226) if row == 0 else drawing.PAPER
                picture = drawing.rectangle(picture, column + 0.5, SIZE - row - 0.5, 0.94, 0.94, fill)
        x, y = state.beam[1] + 1.0, SIZE - state.beam[0] - 0.5
        picture = drawing.rectangle(picture, x, y, 1.9, 0.8, drawing.GOLD, rounding=0.1)
        for player, color in enumerate((drawing.BLUE, drawing.RED)):
            # Two in one cell are both seen.
            x, y = state.place[player, 1] + 0.42 + 0.16 * player, SIZE - state.place[player, 0] - 0.5
            picture = drawing.circle(drawing.circle(picture, x, y, 0.32, drawing.INK), x, y, 0.28, color)
        return drawing.finish(picture)


def _beam_cells(beam: jax.Array) -> jax.Array:
    """Return the cells of the beam, bool `[5, 5]`."""
    cells = jnp.arange(SIZE)
    return (cells == beam[0])[:, None] & ((cells == beam[1]) | (cells == beam[1] + 1))
