"""Pendulum-v1: swing a pendulum up with a motor too weak to lift it, and hold it there.

The numbers and the semi-implicit Euler step are those of Gymnasium's Pendulum-v1.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environments.environment import Environment
from rljax.core.environments.spaces import Box
from rljax.envs import drawing


@struct.dataclass
class PendulumState:
    """State: `theta` is 0 upright and grows counter-clockwise without wrapping (rad); `theta_dot` is in rad/s."""

    theta: jax.Array
    theta_dot: jax.Array
    time: jax.Array


@struct.dataclass
class PendulumParams:
    """SI units: m/s^2, kg, m, N m, rad/s, s."""

    gravity: float = 10.0
    mass: float = 1.0
    length: float = 1.0
    max_torque: float = 2.0
    max_speed: float = 8.0
    dt: float = 0.05
    max_steps_in_episode: int = 200


class Pendulum(Environment):
    """Observation f32 `[3]`: cos and sin of the angle, angular velocity. Action f32 `[1]`: torque, clipped to its bounds.

    The reward is `-(theta^2 + 0.1 theta_dot^2 + 0.001 torque^2)` of the state before the step, with theta in [-pi, pi]. Episodes
    never terminate.
    """

    # Gymnasium has no threshold; an optimal controller averages about -145.
    reward_threshold = -200.0

    @property
    def name(self) -> str:
        return "Pendulum-v1"

    @property
    def default_params(self) -> PendulumParams:
        return PendulumParams()

    def observation_space(self, params: PendulumParams) -> Box:
        high = jnp.array([1.0, 1.0, params.max_speed], jnp.float32)
        return Box(-high, high, (3,))

    def action_space(self, params: PendulumParams) -> Box:
        return Box(-params.max_torque, params.max_torque, (1,))

    def reset_env(self, key: jax.Array, params: PendulumParams) -> tuple[jax.Array, PendulumState]:
        theta, theta_dot = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        state = PendulumState(math.pi * theta, theta_dot, jnp.zeros((), jnp.int32))
        return _observe(state), state

    def step_env(
        self, key: jax.Array, state: PendulumState, action: jax.Array, params: PendulumParams
    ) -> tuple[jax.Array, PendulumState, jax.Array, jax.Array, dict[str, Any]]:
        torque = jnp.clip(action[0], -params.max_torque, params.max_torque)
        wrapped = state.theta - 2 * math.pi * jnp.floor((state.theta + math.pi) / (2 * math.pi))
        reward = -(wrapped**2 + 0.1 * state.theta_dot**2 + 0.001 * torque**2)
        inertia = params.mass * params.length**2 / 3
        acceleration = 1.5 * params.gravity / params.length * jnp.sin(state.theta) + torque / inertia
        theta_dot = jnp.clip(state.theta_dot + params.dt * acceleration, -params.max_speed, params.max_speed)
        state = PendulumState(state.theta + params.dt * theta_dot, theta_dot, state.time + 1)
        return _observe(state), state, reward, jnp.zeros((), jnp.bool_), {}

    def render(self, state: PendulumState, params: PendulumParams) -> jax.Array:
        picture = drawing.canvas(256, 256, (0.0, 0.0), 2.9)
        picture = drawing.circle(picture, 0.0, 0.0, 1.2, (240, 239, 235))
        picture = drawing.circle(picture, 0.0, 1.0, 0.17, drawing.GREY)
        picture = drawing.circle(picture, 0.0, 1.0, 0.14, (240, 239, 235))
        x, y = -jnp.sin(state.theta), jnp.cos(state.theta)
        picture = drawing.capsule(picture, 0.0, 0.0, x, y, 0.09, drawing.RED)
        return drawing.finish(drawing.circle(picture, 0.0, 0.0, 0.045, drawing.INK))


def _observe(state: PendulumState) -> jax.Array:
    return jnp.stack([jnp.cos(state.theta), jnp.sin(state.theta), state.theta_dot])
