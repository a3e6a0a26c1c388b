"""MountainCar-v0: drive an underpowered car out of a valley by rocking back and forth.

Source: Moore, "Efficient memory-based learning for robot control" (1990); the numbers are those of Gymnasium's MountainCar-v0.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environments.environment import Environment
from rljax.core.environments.spaces import Box, Discrete
from rljax.envs import drawing


@struct.dataclass
class MountainCarState:
    position: jax.Array
    velocity: jax.Array
    time: jax.Array


@struct.dataclass
class MountainCarParams:
    """Positions on the x axis of a hill of height `sin(3 x)`; velocities and accelerations are per step."""

    min_position: float = -1.2
    max_position: float = 0.6
    max_speed: float = 0.07
    goal_position: float = 0.5
    goal_velocity: float = 0.0
    force: float = 0.001
    gravity: float = 0.0025
    max_steps_in_episode: int = 200


class MountainCar(Environment):
    """Observation f32 `[2]`: position and velocity. Actions 0, 1, 2: push left, nothing, push right. Reward -1 per step."""

    reward_threshold = -110.0

    @property
    def name(self) -> str:
        return "MountainCar-v0"

    @property
    def default_params(self) -> MountainCarParams:
        return MountainCarParams()

    def observation_space(self, params: MountainCarParams) -> Box:
        low = jnp.array([params.min_position, -params.max_speed], jnp.float32)
        high = jnp.array([params.max_position, params.max_speed], jnp.float32)
        return Box(low, high, (2,))

    def action_space(self, params: MountainCarParams) -> Discrete:
        return Discrete(3)

    def reset_env(self, key: jax.Array, params: MountainCarParams) -> tuple[jax.Array, MountainCarState]:
        return start(key)

    def step_env(
        self, key: jax.Array, state: MountainCarState, action: jax.Array, params: MountainCarParams
    ) -> tuple[jax.Array, MountainCarState, jax.Array, jax.Array, dict[str, Any]]:
        state, terminated = drive(state, (action - 1) * params.force, params)
        return jnp.stack([state.position, state.velocity]), state, jnp.full((), -1.0, jnp.float32), terminated, {}

    def render(self, state: MountainCarState, params: MountainCarParams) -> jax.Array:
        return draw(state, params)


def start(key: jax.Array) -> tuple[jax.Array, MountainCarState]:
    """Put the car at rest at a random place in the valley; return `(obs f32 [2], state)`."""
    position = jax.random.uniform(key, (), minval=-0.6, maxval=-0.4)
    velocity = jnp.zeros((), jnp.float32)
    return jnp.stack([position, velocity]), MountainCarState(position, velocity, jnp.zeros((), jnp.int32))


def drive(state: MountainCarState, push: jax.Array, params: Any) -> tuple[MountainCarState, jax.Array]:
    """Take a step with the acceleration `push` (f32 []); return `(state, at the goal bool [])`. The left wall stops the car."""
    velocity = state.velocity + push - params.gravity * jnp.cos(3 * state.position)
    velocity = jnp.clip(velocity, -params.max_speed, params.max_speed)
    position = jnp.clip(state.position + velocity, params.min_position, params.max_position)
    velocity = jnp.where((position <= params.min_position) & (velocity < 0), 0.0, velocity)
    terminated = (position >= params.goal_position) & (velocity >= params.goal_velocity)
    return MountainCarState(position, velocity, state.time + 1), terminated


def draw(state: MountainCarState, params: Any) -> jax.Array:
    """Draw the car on its hill, uint8 `[256, 384, 3]`."""
    picture = drawing.canvas(256, 384, (-0.3, 0.62), 1.86, (232, 240, 247))
    # The edge needs the distance to the curve: to first order, it is the vertical distance over the slope's length.
    slope = 1.35 * jnp.cos(3 * picture.x)
    distance = (picture.y - _height(picture.x)) / jnp.sqrt(1 + slope**2)
    picture = drawing.paint(picture, distance, drawing.GREEN)
    picture = drawing.paint(picture, distance + 0.02, (196, 190, 172))
    flag_x, flag_y = params.goal_position, _height(params.goal_position)
    picture = drawing.capsule(picture, flag_x, flag_y, flag_x, flag_y + 0.2, 0.006, drawing.INK)
    picture = drawing.rectangle(picture, flag_x + 0.05, flag_y + 0.175, 0.1, 0.06, drawing.GOLD)
    tilt = jnp.arctan(1.35 * jnp.cos(3 * state.position))
    cos, sin = jnp.cos(tilt), jnp.sin(tilt)

    def on_car(along: float, up: float) -> tuple[jax.Array, jax.Array]:
        return state.position + along * cos - up * sin, _height(state.position) + along * sin + up * cos

    picture = drawing.rectangle(picture, *on_car(-0.005, 0.105), 0.085, 0.05, drawing.RED, angle=tilt, rounding=0.02)
    picture = drawing.rectangle(picture, *on_car(0.0, 0.07), 0.17, 0.055, drawing.RED, angle=tilt, rounding=0.02)
    for along in (-0.05, 0.05):
        x, y = on_car(along, 0.033)
        picture = drawing.circle(drawing.circle(picture, x, y, 0.033, drawing.INK), x, y, 0.014, drawing.GREY)
    return drawing.finish(picture)


def _height(x: Any) -> jax.Array:
    return 0.45 * jnp.sin(3 * x) + 0.55
