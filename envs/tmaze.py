"""TMaze-v0: a sign at the start of a corridor says which way to turn at its end."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environments.environment import Environment, bounded
from rljax.core.environments.spaces import Box, Discrete
from rljax.envs import drawing


@struct.dataclass
class TMazeState:
    """State: `side` of the goal, 0 left and 1 right; `position` counts cells from the start and is `length` at the junction."""

    side: jax.Array
    position: jax.Array
    time: jax.Array


@struct.dataclass
class TMazeParams:
    """Parameters: `length` is the number of moves from the start to the junction."""

    length: int = bounded(8, ge=1)
    goal_reward: float = 1.0
    wrong_reward: float = -1.0
    bump_reward: float = -0.02
    max_steps_in_episode: int = 100


class TMaze(Environment):
    """The T-maze of Bakker, "Reinforcement learning with long short-term memory" (2002), section 4.1.

    Observation f32 `[4]`, one-hot: goal on the left, goal on the right (both only in the first observation of an episode),
    corridor, junction. Actions 0, 1, 2: forward, left, right. In the corridor only forward moves the agent. At the junction only
    left and right do, and they end the episode with `goal_reward` or `wrong_reward`. An action without a move gets `bump_reward`.

    No observation after the first depends on the side, so memory is necessary. The best return is `goal_reward` (1), in
    `length + 1` steps, for a policy that remembers. Without memory the choice at the junction is right half of the time: at best
    `(goal_reward + wrong_reward) / 2` (0). The uniform policy bumps on average twice per cell and half a time at the junction:
    `(goal_reward + wrong_reward) / 2 + (2 length + 1 / 2) bump_reward` (-0.33), ignoring the episodes that the limit cuts.
    """

    # A policy without memory that always turns one way has a mean of 0.
    reward_threshold = 0.9

    @property
    def name(self) -> str:
        return "TMaze-v0"

    @property
    def default_params(self) -> TMazeParams:
        return TMazeParams()

    def observation_space(self, params: TMazeParams) -> Box:
        return Box(0.0, 1.0, (4,))

    def action_space(self, params: TMazeParams) -> Discrete:
        return Discrete(3)

    def reset_env(self, key: jax.Array, params: TMazeParams) -> tuple[jax.Array, TMazeState]:
        side = (jax.random.bits(key) >> 31).astype(jnp.int32)
        state = TMazeState(side, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
        return self._observe(state, params), state

    def step_env(
        self, key: jax.Array, state: TMazeState, action: jax.Array, params: TMazeParams
    ) -> tuple[jax.Array, TMazeState, jax.Array, jax.Array, dict[str, Any]]:
        at_junction = state.position >= params.length
        forward = action == 0
        terminated = at_junction & ~forward
        bumps = at_junction == forward
        right_side = action == state.side + 1
        turned = jnp.where(right_side, params.goal_reward, params.wrong_reward)
        reward = jnp.where(terminated, turned, jnp.where(bumps, params.bump_reward, 0.0)).astype(jnp.float32)
        position = state.position + (forward & ~at_junction).astype(jnp.int32)
        state = TMazeState(state.side, position, state.time + 1)
        return self._observe(state, params), state, reward, terminated, {}

    def render(self, state: TMazeState, params: TMazeParams) -> jax.Array:
        picture = drawing.canvas(256, 384, (0.0, 0.0), 12.0, drawing.GREY)
        # The corridor has a length of ten units, whatever its number of cells: the junction is at x = 4.4.
        cell = 9.6 / params.length
        picture = drawing.rectangle(picture, -0.3, 0.0, 10.4, 1.0, drawing.PAPER)
        picture = drawing.rectangle(picture, 4.4, 0.0, 1.0, 6.0, drawing.PAPER)
        lines = jnp.abs((picture.x + 5.2) / cell - jnp.round((picture.x + 5.2) / cell)) * cell - 0.02
        picture = drawing.paint(
            picture, jnp.maximum(lines, jnp.maximum(jnp.abs(picture.y) - 0.12, picture.x - 4.0)), drawing.GREY
        )
        # The agent looks to the right, so its left is up.
        up = jnp.where(state.side == 0, 1.0, -1.0)
        picture = drawing.rectangle(picture, 4.4, 2.5 * up, 0.94, 0.94, drawing.GREEN)
        picture = drawing.rectangle(picture, 4.4, -2.5 * up, 0.94, 0.94, drawing.RED)
        # The sign is green while it can be read.
        sign = jnp.where(state.time == 0, jnp.asarray(drawing.GREEN), jnp.asarray(drawing.PAPER))
        picture = drawing.capsule(picture, -5.2, 0.9, -5.2, 2.0, 0.05, drawing.INK)
        picture = drawing.circle(picture, -5.2, 1.7, 0.5, drawing.INK)
        picture = drawing.circle(picture, -5.2, 1.7, 0.44, sign)
        tip = 1.7 + 0.26 * up
        picture = drawing.capsule(picture, -5.2, 1.7 - 0.26 * up, -5.2, tip, 0.04, drawing.INK)
        picture = drawing.capsule(picture, -5.4, tip - 0.2 * up, -5.2, tip, 0.04, drawing.INK)
        picture = drawing.capsule(picture, -5.0, tip - 0.2 * up, -5.2, tip, 0.04, drawing.INK)
        x = -5.2 + jnp.minimum(state.position, params.length) * cell
        picture = drawing.circle(picture, x, 0.0, 0.34, drawing.INK)
        return drawing.finish(drawing.circle(picture, x, 0.0, 0.29, drawing.GOLD))

    def _observe(self, state: TMazeState, params: TMazeParams) -> jax.Array:
        junction = state.position >= params.length
        seen = jnp.where(state.time == 0, state.side, 2 + junction.astype(jnp.int32))
        return (jnp.arange(4) == seen).astype(jnp.float32)
