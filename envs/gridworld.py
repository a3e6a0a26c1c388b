"""GridWorld-v0 and GridWorldPixels-v0: walk to the far corner of an empty grid."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environments.environment import Environment
from rljax.core.environments.spaces import Box, Discrete
from rljax.core.errors import check_int
from rljax.envs import drawing


@struct.dataclass
class GridWorldState:
    """State: `row` counts from the top and `column` from the left, i32 []."""

    row: jax.Array
    column: jax.Array
    time: jax.Array


@struct.dataclass
class GridWorldParams:
    goal_reward: float = 1.0
    step_reward: float = -0.01
    max_steps_in_episode: int = 100


class GridWorld(Environment):
    """Walk to the goal in the bottom right corner of a `size` x `size` grid. Every episode starts in a random other cell.

    Observation f32 `[2 * size]`: the row and the column, one-hot each, in which the best policy and its values are almost linear.
    Actions 0, 1, 2, 3: up, right, down, left; a move off the grid stays in place. The reward is `goal_reward` for the step that
    reaches the goal, which ends the episode, and `step_reward` for every other; `optimal_return` gives the best return.
    """

    # The optimum is a mean of 0.949 over the start cells; failing from one start in a hundred costs 0.02.
    reward_threshold = 0.94

    def __init__(self, size: int = 7):
        check_int(self.name, 2, size=size)
        self.size = size

    @property
    def name(self) -> str:
        return "GridWorld-v0"

    @property
    def default_params(self) -> GridWorldParams:
        return GridWorldParams()

    def observation_space(self, params: GridWorldParams) -> Box:
        return Box(0.0, 1.0, (2 * self.size,))

    def action_space(self, params: GridWorldParams) -> Discrete:
        return Discrete(4)

    def reset_env(self, key: jax.Array, params: GridWorldParams) -> tuple[jax.Array, GridWorldState]:
        # This takes one hash of the key, and randint takes three; with auto-reset, it is computed at every step.
        cell = (jax.random.uniform(key) * (self.size**2 - 1)).astype(jnp.int32)
        state = GridWorldState(cell // self.size, cell % self.size, jnp.zeros((), jnp.int32))
        return self._observe(state), state

    def step_env(
        self, key: jax.Array, state: GridWorldState, action: jax.Array, params: GridWorldParams
    ) -> tuple[jax.Array, GridWorldState, jax.Array, jax.Array, dict[str, Any]]:
        down = (action == 2).astype(jnp.int32) - (action == 0).astype(jnp.int32)
        right = (action == 1).astype(jnp.int32) - (action == 3).astype(jnp.int32)
        row = jnp.clip(state.row + down, 0, self.size - 1)
        column = jnp.clip(state.column + right, 0, self.size - 1)
        state = GridWorldState(row, column, state.time + 1)
        terminated = (row == self.size - 1) & (column == self.size - 1)
        reward = jnp.where(terminated, params.goal_reward, params.step_reward).astype(jnp.float32)
        return self._observe(state), state, reward, terminated, {}

    def render(self, state: GridWorldState, params: GridWorldParams) -> jax.Array:
        return self._draw(state, 256)

    def _draw(self, state: GridWorldState, pixels: int) -> jax.Array:
        picture = drawing.canvas(pixels, pixels, (self.size / 2, self.size / 2), self.size + 0.2, drawing.GREY)
        off_x = picture.x - jnp.clip(jnp.round(picture.x - 0.5), 0, self.size - 1) - 0.5
        off_y = picture.y - jnp.clip(jnp.round(picture.y - 0.5), 0, self.size - 1) - 0.5
        picture = drawing.paint(picture, jnp.maximum(jnp.abs(off_x), jnp.abs(off_y)) - 0.47, drawing.PAPER)
        picture = drawing.rectangle(picture, self.size - 0.5, 0.5, 0.94, 0.94, drawing.GREEN)
        x, y = state.column + 0.5, self.size - state.row - 0.5
        picture = drawing.circle(picture, x, y, 0.34, drawing.INK)
        return drawing.finish(drawing.circle(picture, x, y, 0.3, drawing.GOLD))

    def _observe(self, state: GridWorldState) -> jax.Array:
        cells = jnp.arange(self.size)
        return jnp.concatenate([cells == state.row, cells == state.column]).astype(jnp.float32)


class GridWorldPixels(GridWorld):
    """`GridWorld` with its picture as the observation.

    The observation is uint8 `[pixels, pixels, 3]`; all else is the same. The picture is drawn at this size, in a tenth of the
    time of `PixelObservation(GridWorld())`, which shrinks one of 256 x 256.
    """

    def __init__(self, size: int = 7, pixels: int = 64):
        super().__init__(size)
        check_int(self.name, 1, pixels=pixels)
        self.pixels = pixels

    @property
    def name(self) -> str:
        return "GridWorldPixels-v0"

    def observation_space(self, params: GridWorldParams) -> Box:
        return Box(0, 255, (self.pixels, self.pixels, 3), jnp.uint8)

    def _observe(self, state: GridWorldState) -> jax.Array:
        return self._draw(state, self.pixels)


def optimal_return(row: Any, column: Any, size: int, params: GridWorldParams, discount: Any = 1.0) -> jax.Array:
    """Return the best return from cells other than the goal, at the start of an episode, f32 in the cells' broadcast shape.

    With d moves to the goal and discount g it is `step_reward * (1 + g + ... + g^(d - 2)) + goal_reward * g^(d - 1)`. If the
    time limit is shorter than d, it is the discounted sum of `step_reward` until the limit.
    """
    distance = (size - 1 - jnp.asarray(row)) + (size - 1 - jnp.asarray(column))
    reached = distance <= params.max_steps_in_episode
    misses = jnp.where(reached, distance - 1, params.max_steps_in_episode).astype(jnp.float32)
    discount = jnp.asarray(discount, jnp.float32)
    power = discount**misses
    total = jnp.where(discount == 1.0, misses, (1.0 - power) / jnp.where(discount == 1.0, 1.0, 1.0 - discount))
    return params.step_reward * total + jnp.where(reached, params.goal_reward * power, 0.0)
