"""SparseGridWorld-v0: rooms in a chain, with the only reward at the far end of the last room."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.environments.environment import Environment
from rljax.core.environments.spaces import Box, Discrete
from rljax.core.errors import check_int
from rljax.envs import drawing

ROOM_HEIGHT = 3


@struct.dataclass
class SparseGridWorldState:
    """State: `row` counts from the top and `column` from the left, i32 []."""

    row: jax.Array
    column: jax.Array
    time: jax.Array


@struct.dataclass
class SparseGridWorldParams:
    """Parameters: episodes begin `head_start` steps along the shortest way (`SparseGridWorld.way`), i32 [] below its length."""

    head_start: int = 0
    goal_reward: float = 1.0
    max_steps_in_episode: int = 100


class SparseGridWorld(Environment):
    """`num_rooms` rooms of 3 rows and `width` columns lie below each other, with walls of one row between them.

    Every episode starts in the top left corner, or `head_start` steps along the shortest way from there. Each wall has one gap:
    the first at its right end, the second at its left end, and so on alternately. The goal is in the bottom row, at the next end
    in this sequence, so the way there crosses every room.
    Observation f32 `[height + width]`, `height = 4 num_rooms - 1`: the row and the column, one-hot each.
    Actions 0, 1, 2, 3: up, right, down, left; a move off the grid or into a wall stays in place.
    The reward is `goal_reward` for the step that reaches the goal, which ends the episode, and 0 for every other.

    The best return is `goal_reward` (1), in `shortest_way` (40) steps. A uniform policy reaches the goal of the default grid
    (11 x 11, three rooms) in 1.8e-7 of its episodes (`reach_probability`), and no reward leads there: a learner needs a bonus for
    unseen states. Bonuses from counts: Strehl and Littman, "An analysis of model-based interval estimation" (2008);
    Bellemare et al., "Unifying count-based exploration and intrinsic motivation" (2016).
    """

    reward_threshold = 0.9

    def __init__(self, num_rooms: int = 3, width: int = 11):
        check_int("SparseGridWorld-v0", 2, num_rooms=num_rooms, width=width)
        self.num_rooms = num_rooms
        self.width = width
        self.height = (ROOM_HEIGHT + 1) * num_rooms - 1
        self.goal = (self.height - 1, width - 1 if num_rooms % 2 else 0)

    @property
    def name(self) -> str:
        return "SparseGridWorld-v0"

    @property
    def default_params(self) -> SparseGridWorldParams:
        return SparseGridWorldParams()

    @property
    def shortest_way(self) -> int:
        """Number of steps from the start to the goal."""
        return self.num_rooms * (self.width - 1) + self.height - 1

    @property
    def way(self) -> np.ndarray:
        """Cells of a shortest way from the start to the goal, i32 `[shortest_way + 1, 2]`: along each room, then down its end."""
        cells = [(0, 0)]
        for room in range(self.num_rooms):
            right = room % 2 == 0
            last = min((room + 1) * (ROOM_HEIGHT + 1), self.height - 1)
            columns = range(1, self.width) if right else range(self.width - 2, -1, -1)
            cells += [(cells[-1][0], column) for column in columns]
            cells += [(row, cells[-1][1]) for row in range(cells[-1][0] + 1, last + 1)]
        return np.asarray(cells, np.int32)

    def observation_space(self, params: SparseGridWorldParams) -> Box:
        return Box(0.0, 1.0, (self.height + self.width,))

    def action_space(self, params: SparseGridWorldParams) -> Discrete:
        return Discrete(4)

    def reset_env(self, key: jax.Array, params: SparseGridWorldParams) -> tuple[jax.Array, SparseGridWorldState]:
        row, column = jnp.asarray(self.way)[jnp.clip(params.head_start, 0, self.shortest_way - 1)]
        state = SparseGridWorldState(row, column, jnp.zeros((), jnp.int32))
        return self._observe(state), state

    def step_env(
        self, key: jax.Array, state: SparseGridWorldState, action: jax.Array, params: SparseGridWorldParams
    ) -> tuple[jax.Array, SparseGridWorldState, jax.Array, jax.Array, dict[str, Any]]:
        down = (action == 2).astype(jnp.int32) - (action == 0).astype(jnp.int32)
        right = (action == 1).astype(jnp.int32) - (action == 3).astype(jnp.int32)
        row = jnp.clip(state.row + down, 0, self.height - 1)
        column = jnp.clip(state.column + right, 0, self.width - 1)
        blocked = self.is_wall(row, column)
        row, column = jnp.where(blocked, state.row, row), jnp.where(blocked, state.column, column)
        state = SparseGridWorldState(row, column, state.time + 1)
        terminated = (row == self.goal[0]) & (column == self.goal[1])
        reward = jnp.where(terminated, params.goal_reward, 0.0).astype(jnp.float32)
        return self._observe(state), state, reward, terminated, {}

    def is_wall(self, row: Any, column: Any) -> Any:
        """Return whether there is a wall in each cell, bool of the cells' shape."""
        period = ROOM_HEIGHT + 1
        gap = (1 - row // period % 2) * (self.width - 1)
        return (row % period == ROOM_HEIGHT) & (column != gap)

    def render(self, state: SparseGridWorldState, params: SparseGridWorldParams) -> jax.Array:
        extent = max(self.height, self.width)
        picture = drawing.canvas(256, 256, (self.width / 2, self.height / 2), extent + 0.4, drawing.INK)
        column = jnp.clip(jnp.floor(picture.x), 0, self.width - 1)
        row = jnp.clip(jnp.floor(self.height - picture.y), 0, self.height - 1)
        off = jnp.maximum(jnp.abs(picture.x - column - 0.5), jnp.abs(self.height - picture.y - row - 0.5))
        floor = jnp.where(self.is_wall(row.astype(jnp.int32), column.astype(jnp.int32)), 1.0, off - 0.47)
        picture = drawing.paint(picture, floor, drawing.PAPER)
        goal_row, goal_column = self.goal
        picture = drawing.rectangle(picture, goal_column + 0.5, self.height - goal_row - 0.5, 0.94, 0.94, drawing.GREEN)
        x, y = state.column + 0.5, self.height - state.row - 0.5
        picture = drawing.circle(picture, x, y, 0.4, drawing.INK)
        return drawing.finish(drawing.circle(picture, x, y, 0.34, drawing.GOLD))

    def _observe(self, state: SparseGridWorldState) -> jax.Array:
        rows, columns = jnp.arange(self.height) == state.row, jnp.arange(self.width) == state.column
        return jnp.concatenate([rows, columns]).astype(jnp.float32)


def reach_probability(env: SparseGridWorld, num_steps: int) -> float:
    """Return the probability that a uniform policy reaches the goal within `num_steps`, by the exact distribution over cells."""
    rows, columns = np.mgrid[: env.height, : env.width]
    place = np.zeros((env.height, env.width))
    place[0, 0] = 1.0
    for _ in range(num_steps):
        moved = np.zeros_like(place)
        moved[env.goal] = 4.0 * place[env.goal]
        place[env.goal] = 0.0
        for down, right in ((-1, 0), (0, 1), (1, 0), (0, -1)):
            row, column = np.clip(rows + down, 0, env.height - 1), np.clip(columns + right, 0, env.width - 1)
            wall = env.is_wall(row, column)
            np.add.at(moved, (np.where(wall, rows, row), np.where(wall, columns, column)), place)
        place = moved / 4.0
    return float(place[env.goal])
