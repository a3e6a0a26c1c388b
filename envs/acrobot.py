"""Acrobot-v1: swing the free end of a two-link chain above a line with a torque at the joint between the links.

Source: Sutton, "Generalization in reinforcement learning: successful examples using sparse coarse coding" (1996), with the
dynamics of Sutton and Barto's book; the numbers and the Runge-Kutta step are those of Gymnasium's Acrobot-v1.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environments.environment import Environment
from rljax.core.environments.spaces import Box, Discrete
from rljax.envs import drawing


@struct.dataclass
class AcrobotState:
    """Angles in rad, in [-pi, pi): `theta1` of the first link is 0 when it hangs down, `theta2` is relative to the first link."""

    theta1: jax.Array
    theta2: jax.Array
    theta1_dot: jax.Array
    theta2_dot: jax.Array
    time: jax.Array


@struct.dataclass
class AcrobotParams:
    """SI units; `com` is the distance from a link's joint to its centre of mass, `moment` the moment of inertia of each link."""

    gravity: float = 9.8
    length1: float = 1.0
    mass1: float = 1.0
    mass2: float = 1.0
    com1: float = 0.5
    com2: float = 0.5
    moment: float = 1.0
    torque: float = 1.0
    max_speed1: float = 4 * math.pi
    max_speed2: float = 9 * math.pi
    dt: float = 0.2
    max_steps_in_episode: int = 500


class Acrobot(Environment):
    """Observation f32 `[6]`: cos and sin of both angles, both angular velocities. Actions 0, 1, 2: torque -1, 0, 1.

    The reward is -1 per step, and 0 for the step that reaches the line, which ends the episode.
    """

    reward_threshold = -100.0

    @property
    def name(self) -> str:
        return "Acrobot-v1"

    @property
    def default_params(self) -> AcrobotParams:
        return AcrobotParams()

    def observation_space(self, params: AcrobotParams) -> Box:
        high = jnp.array([1.0, 1.0, 1.0, 1.0, params.max_speed1, params.max_speed2], jnp.float32)
        return Box(-high, high, (6,))

    def action_space(self, params: AcrobotParams) -> Discrete:
        return Discrete(3)

    def reset_env(self, key: jax.Array, params: AcrobotParams) -> tuple[jax.Array, AcrobotState]:
        theta1, theta2, theta1_dot, theta2_dot = jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1)
        state = AcrobotState(theta1, theta2, theta1_dot, theta2_dot, jnp.zeros((), jnp.int32))
        return _observe(state), state

    def step_env(
        self, key: jax.Array, state: AcrobotState, action: jax.Array, params: AcrobotParams
    ) -> tuple[jax.Array, AcrobotState, jax.Array, jax.Array, dict[str, Any]]:
        torque = (action - 1) * params.torque
        start = (state.theta1, state.theta2, state.theta1_dot, state.theta2_dot)
        k1 = _derivatives(start, torque, params)
        k2 = _derivatives(_along(start, k1, params.dt / 2), torque, params)
        k3 = _derivatives(_along(start, k2, params.dt / 2), torque, params)
        k4 = _derivatives(_along(start, k3, params.dt), torque, params)
        mean = tuple((a + 2 * b + 2 * c + d) / 6 for a, b, c, d in zip(k1, k2, k3, k4, strict=True))
        theta1, theta2, theta1_dot, theta2_dot = _along(start, mean, params.dt)
        state = AcrobotState(
            theta1=_wrap(theta1),
            theta2=_wrap(theta2),
            theta1_dot=jnp.clip(theta1_dot, -params.max_speed1, params.max_speed1),
            theta2_dot=jnp.clip(theta2_dot, -params.max_speed2, params.max_speed2),
            time=state.time + 1,
        )
        terminated = -jnp.cos(state.theta1) - jnp.cos(state.theta1 + state.theta2) > 1.0
        return _observe(state), state, jnp.where(terminated, 0.0, -1.0).astype(jnp.float32), terminated, {}

    def render(self, state: AcrobotState, params: AcrobotParams) -> jax.Array:
        picture = drawing.canvas(256, 256, (0.0, 0.0), 4.8)
        picture = drawing.capsule(picture, -2.2, 1.0, 2.2, 1.0, 0.02, drawing.GREEN)
        elbow_x, elbow_y = jnp.sin(state.theta1), -jnp.cos(state.theta1)
        tip_x, tip_y = elbow_x + jnp.sin(state.theta1 + state.theta2), elbow_y - jnp.cos(state.theta1 + state.theta2)
        picture = drawing.capsule(picture, 0.0, 0.0, elbow_x, elbow_y, 0.11, drawing.BLUE)
        picture = drawing.capsule(picture, elbow_x, elbow_y, tip_x, tip_y, 0.11, (96, 152, 204))
        for x, y in ((0.0, 0.0), (elbow_x, elbow_y)):
            picture = drawing.circle(picture, x, y, 0.075, drawing.GOLD)
        return drawing.finish(drawing.circle(picture, tip_x, tip_y, 0.06, drawing.PAPER))


def _derivatives(position: tuple[jax.Array, ...], torque: jax.Array, params: AcrobotParams) -> tuple[jax.Array, ...]:
    """Return the time derivatives of (theta1, theta2, theta1_dot, theta2_dot)."""
    theta1, theta2, theta1_dot, theta2_dot = position
    cos2, sin2 = jnp.cos(theta2), jnp.sin(theta2)
    coupling = params.mass2 * params.length1 * params.com2
    inertia2 = params.mass2 * params.com2**2 + params.moment
    d1 = params.mass1 * params.com1**2 + params.mass2 * params.length1**2 + params.moment + inertia2 + 2 * coupling * cos2
    d2 = inertia2 + coupling * cos2
    # Gymnasium writes these sines as cos(angle - pi / 2).
    phi2 = params.mass2 * params.com2 * params.gravity * jnp.sin(theta1 + theta2)
    phi1 = (
        -coupling * sin2 * theta2_dot * (theta2_dot + 2 * theta1_dot)
        + (params.mass1 * params.com1 + params.mass2 * params.length1) * params.gravity * jnp.sin(theta1)
        + phi2
    )
    ratio = d2 / d1
    theta2_acc = (torque + ratio * phi1 - coupling * theta1_dot**2 * sin2 - phi2) / (inertia2 - d2 * ratio)
    theta1_acc = -(d2 * theta2_acc + phi1) / d1
    return theta1_dot, theta2_dot, theta1_acc, theta2_acc


def _along(start: tuple[jax.Array, ...], slope: tuple[jax.Array, ...], dt: float) -> tuple[jax.Array, ...]:
    return tuple(s + dt * k for s, k in zip(start, slope, strict=True))


def _wrap(angle: jax.Array) -> jax.Array:
    return angle - 2 * math.pi * jnp.floor((angle + math.pi) / (2 * math.pi))


def _observe(state: AcrobotState) -> jax.Array:
    angles = (jnp.cos(state.theta1), jnp.sin(state.theta1), jnp.cos(state.theta2), jnp.sin(state.theta2))
    return jnp.stack([*angles, state.theta1_dot, state.theta2_dot])
