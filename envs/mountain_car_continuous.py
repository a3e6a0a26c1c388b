"""MountainCarContinuous-v0: the car in the valley with a continuous engine, rewarded for the goal and charged for fuel.

The numbers are those of Gymnasium's MountainCarContinuous-v0.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environments.environment import Environment
from rljax.core.environments.spaces import Box
from rljax.envs.mountain_car import MountainCarState, draw, drive, start


@struct.dataclass
class MountainCarContinuousParams:
    """Positions on the x axis of a hill of height `sin(3 x)`; velocities and accelerations are per step."""

    min_position: float = -1.2
    max_position: float = 0.6
    max_speed: float = 0.07
    goal_position: float = 0.45
    goal_velocity: float = 0.0
    power: float = 0.0015
    gravity: float = 0.0025
    max_steps_in_episode: int = 999


class MountainCarContinuous(Environment):
    """Observation f32 `[2]`: position and velocity. Action f32 `[1]`: throttle, clipped to [-1, 1] in the dynamics.

    The reward is -0.1 times the squared action (before clipping, as in Gymnasium), plus 100 at the goal, which ends the episode.
    """

    reward_threshold = 90.0

    @property
    def name(self) -> str:
        return "MountainCarContinuous-v0"

    @property
    def default_params(self) -> MountainCarContinuousParams:
        return MountainCarContinuousParams()

    def observation_space(self, params: MountainCarContinuousParams) -> Box:
        low = jnp.array([params.min_position, -params.max_speed], jnp.float32)
        high = jnp.array([params.max_position, params.max_speed], jnp.float32)
        return Box(low, high, (2,))

    def action_space(self, params: MountainCarContinuousParams) -> Box:
        return Box(-1.0, 1.0, (1,))

    def reset_env(self, key: jax.Array, params: MountainCarContinuousParams) -> tuple[jax.Array, MountainCarState]:
        return start(key)

    def step_env(
        self, key: jax.Array, state: MountainCarState, action: jax.Array, params: MountainCarContinuousParams
    ) -> tuple[jax.Array, MountainCarState, jax.Array, jax.Array, dict[str, Any]]:
        state, terminated = drive(state, jnp.clip(action[0], -1.0, 1.0) * params.power, params)
        reward = 100.0 * terminated - 0.1 * action[0] ** 2
        return jnp.stack([state.position, state.velocity]), state, reward, terminated, {}

    def render(self, state: MountainCarState, params: MountainCarContinuousParams) -> jax.Array:
        return draw(state, params)
