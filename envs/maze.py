"""Maze-v0: find the way to the goal in a maze that is new in every episode."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.environments.environment import Environment, bounded
from rljax.core.environments.spaces import Box, Discrete
from rljax.core.errors import check_int
from rljax.envs import drawing

WALL_WIDTH = 0.16
"""Width of the walls in a picture, in cells."""


@struct.dataclass
class MazeState:
    """State: a maze, and the cells of the agent and of the goal.

    Attributes:
        walls: bool `[2 size - 1, 2 size - 1]`: cell (r, c) is the square (2r, 2c), the square between two cells is True if there
            is a wall, and the corners where four cells meet are True.
        row: agent's row, from the top, i32 [].
        column: agent's column, from the left, i32 [].
        goal_row: goal's row, i32 [].
        goal_column: goal's column, i32 [].
        time: number of steps since the reset, i32 [].
    """

    walls: jax.Array
    row: jax.Array
    column: jax.Array
    goal_row: jax.Array
    goal_column: jax.Array
    time: jax.Array


@struct.dataclass
class MazeParams:
    """Parameters: `loops` is the probability that a wall of the perfect maze is taken away."""

    loops: float = bounded(0.0, ge=0, le=1)
    goal_reward: float = 1.0
    max_steps_in_episode: int = 50


class Maze(Environment):
    """Walk to the goal in a maze of `size` x `size` cells, which is drawn anew for every episode.

    The maze is perfect: exactly one way without detours leads from any cell to any other. It is a minimum spanning tree of the
    grid with random weights (see `spanning_tree`). Each wall that is left is taken away with the probability `loops`. The goal is
    in a random cell, and the start in a random cell that would be at least `size - 1` moves away if there were no walls. The
    shortest way has at most `size**2 - 1` moves.
    Observation f32 `[2 size - 1, 2 size - 1, 3]`, zeros and ones: walls, agent and goal (see `MazeState.walls` for the squares).
    With `view` above 0 only the squares up to `view` away from the agent, which is in the middle: f32 `[2 view + 1, 2 view + 1,
    3]`. What is outside the maze is a wall.
    Actions 0, 1, 2, 3: move to the cell above, to the right, below, to the left; a move into a wall or off the grid stays in
    place. The reward is `goal_reward` for the step that reaches the goal, which ends the episode, and 0 for every other. By
    default an episode is truncated after twice as many steps as there are cells.

    The best return is `goal_reward` (1). Since no maze is known beforehand, a policy has to find the way from what it sees: Cobbe
    et al., "Leveraging procedural generation to benchmark reinforcement learning" (2020), has such mazes among its tasks.
    """

    reward_threshold = 0.9

    def __init__(self, size: int = 5, view: int = 0):
        check_int("Maze-v0", 2, size=size)
        check_int("Maze-v0", 0, view=view)
        self.size = size
        self.view = view

    @property
    def name(self) -> str:
        return "Maze-v0"

    @property
    def default_params(self) -> MazeParams:
        return MazeParams(max_steps_in_episode=2 * self.size**2)

    def observation_space(self, params: MazeParams) -> Box:
        side = 2 * self.view + 1 if self.view else 2 * self.size - 1
        return Box(0.0, 1.0, (side, side, 3))

    def action_space(self, params: MazeParams) -> Discrete:
        return Discrete(4)

    def reset_env(self, key: jax.Array, params: MazeParams) -> tuple[jax.Array, MazeState]:
        size = self.size
        num_cells, num_walls = size**2, 2 * size * (size - 1)
        key, tree_key = jax.random.split(key)
        goal, places, kept = jnp.split(jax.random.uniform(key, (1 + num_cells + num_walls,)), (1, 1 + num_cells))
        open_ = spanning_tree(jax.random.bits(tree_key, (num_walls,)), size) | (kept < params.loops)
        goal_row, goal_column = jnp.divmod((goal[0] * num_cells).astype(jnp.int32), size)
        # From every cell, even the middle one, a corner is at least `size - 1` away.
        rows, columns = np.divmod(np.arange(num_cells), size)
        far = jnp.abs(rows - goal_row) + jnp.abs(columns - goal_column) >= size - 1
        row, column = jnp.divmod(jnp.argmax(jnp.where(far, places, -1.0)).astype(jnp.int32), size)
        state = MazeState(_walls(open_, size), row, column, goal_row, goal_column, jnp.zeros((), jnp.int32))
        return self._observe(state), state

    def step_env(
        self, key: jax.Array, state: MazeState, action: jax.Array, params: MazeParams
    ) -> tuple[jax.Array, MazeState, jax.Array, jax.Array, dict[str, Any]]:
        down = (action == 2).astype(jnp.int32) - (action == 0).astype(jnp.int32)
        right = (action == 1).astype(jnp.int32) - (action == 3).astype(jnp.int32)
        row = jnp.clip(state.row + down, 0, self.size - 1)
        column = jnp.clip(state.column + right, 0, self.size - 1)
        # The square between (2r, 2c) and (2r', 2c') is (r + r', c + c'); off the grid, it is the agent's own.
        blocked = state.walls[state.row + row, state.column + column]
        row, column = jnp.where(blocked, state.row, row), jnp.where(blocked, state.column, column)
        state = MazeState(state.walls, row, column, state.goal_row, state.goal_column, state.time + 1)
        terminated = (row == state.goal_row) & (column == state.goal_column)
        reward = jnp.where(terminated, params.goal_reward, 0.0).astype(jnp.float32)
        return self._observe(state), state, reward, terminated, {}

    def render(self, state: MazeState, params: MazeParams) -> jax.Array:
        size = self.size
        picture = drawing.canvas(256, 256, (size / 2, size / 2), size + 0.4)
        column, row = _squares(picture.x, size), _squares(size - picture.y, size)
        walls = jnp.pad(state.walls, 1, constant_values=True)[row, column]
        inside = jnp.maximum(jnp.abs(picture.x - size / 2), jnp.abs(picture.y - size / 2)) < (size + WALL_WIDTH) / 2
        picture = drawing.paint(picture, jnp.where(walls & inside, -1.0, 1.0), drawing.INK)
        picture = drawing.rectangle(picture, state.goal_column + 0.5, size - state.goal_row - 0.5, 0.6, 0.6, drawing.GREEN)
        x, y = state.column + 0.5, size - state.row - 0.5
        picture = drawing.circle(picture, x, y, 0.28, drawing.INK)
        return drawing.finish(drawing.circle(picture, x, y, 0.24, drawing.GOLD))

    def _observe(self, state: MazeState) -> jax.Array:
        squares = np.arange(2 * self.size - 1)
        planes = [
            state.walls,
            (squares[:, None] == 2 * state.row) & (squares == 2 * state.column),
            (squares[:, None] == 2 * state.goal_row) & (squares == 2 * state.goal_column),
        ]
        if self.view:
            padded = [jnp.pad(plane, self.view, constant_values=i == 0) for i, plane in enumerate(planes)]
            side = 2 * self.view + 1
            planes = [jax.lax.dynamic_slice(x, (2 * state.row, 2 * state.column), (side, side)) for x in padded]
        return jnp.stack(planes, axis=-1).astype(jnp.float32)


def spanning_tree(bits: jax.Array, size: int) -> jax.Array:
    """Return which walls between the cells of a grid are open in the minimum spanning tree for random weights, bool `[E]`.

    The cells have numbers from 0 in the top left corner, row by row. The E = 2 size (size - 1) walls are those between (r, c) and
    (r, c + 1), then those between (r, c) and (r + 1, c), each row by row.

    By the algorithm of Boruvka (1926; see Nesetril, Milkova and Nesetrilova, "Otakar Boruvka on minimum spanning tree problem",
    2001): in each round all components take their cheapest edge at once, which at least halves their number. The number of rounds
    is therefore fixed, and each is a few operations on all walls, where Kruskal's and Prim's algorithms take one edge at a time.
    Every spanning tree is possible, but not all are equally likely.

    Args:
        bits: random numbers, u32 `[E]`. The weights of the walls are in their order, up to the lowest bits.
        size: number of rows and of columns.
    """
    near, far = _ends(size)
    num_cells, num_walls = size**2, len(near)
    # Equal weights could close a cycle, so the remainder of each weight is the wall's number. Half of the range avoids overflow.
    weight = (bits >> 1) // num_walls * num_walls + np.arange(num_walls, dtype=np.uint32)
    none = np.uint32(2**32 - 1)
    cells = np.arange(num_cells)

    def merge(_round: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        component, open_ = carry
        one, other = component[near], component[far]
        between = one != other
        offered = jnp.where(between, weight, none)
        cheapest = jnp.full(num_cells, none).at[jnp.concatenate([one, other])].min(jnp.tile(offered, 2))
        open_ |= between & ((cheapest[one] == weight) | (cheapest[other] == weight))
        # Each component points at the one across its cheapest wall. Two of them point at each other: one is the root.
        wall = (cheapest % num_walls).astype(jnp.int32)
        root = jnp.where(cheapest < none, one[wall] + other[wall] - cells, cells)
        root = jnp.where((root[root] == cells) & (cells < root), cells, root)
        for _ in range((num_cells - 2).bit_length()):  # doubles the length of each pointer, which has at most num_cells - 1 parts
            root = root[root]
        return root[component], open_

    # A component is named by one of its cells. The rounds are a loop because a program that unrolls them takes longer to compile.
    start = jnp.arange(num_cells), jnp.zeros(num_walls, bool)
    return jax.lax.fori_loop(0, num_cells.bit_length() - 1, merge, start)[1]


def _ends(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the two cells beside each wall, i32 `[E]` each, in the order of `spanning_tree`."""
    cells = np.arange(size**2, dtype=np.int32).reshape(size, size)
    near = np.concatenate([cells[:, :-1].ravel(), cells[:-1].ravel()])
    far = np.concatenate([cells[:, 1:].ravel(), cells[1:].ravel()])
    return near, far


def _walls(open_: jax.Array, size: int) -> jax.Array:
    """Return the squares of a maze, as in `MazeState.walls`, from its open walls, bool `[E]`."""
    side, beside = 2 * size - 1, size * (size - 1)
    source = np.empty((side, side), np.int32)  # where each square's value is among: a cell, a corner, the walls
    source[::2, ::2], source[1::2, 1::2] = 0, 1
    source[::2, 1::2] = 2 + np.arange(beside).reshape(size, size - 1)
    source[1::2, ::2] = 2 + beside + np.arange(beside).reshape(size - 1, size)
    return jnp.concatenate([np.array([False, True]), ~open_])[source]


def _squares(place: jax.Array, size: int) -> jax.Array:
    """Return the squares at places along a side, in cells, as indices of a maze with a wall around it."""
    line = jnp.round(place)
    on_line = jnp.abs(place - line) < WALL_WIDTH / 2
    return jnp.clip(jnp.where(on_line, 2 * line, 2 * jnp.floor(place) + 1), 0, 2 * size).astype(jnp.int32)
