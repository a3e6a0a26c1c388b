"""CartPole-v1: balance a pole on a cart by pushing left or right.

Source: Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve difficult learning control problems" (1983);
the numbers and the explicit Euler step are those of Gymnasium's CartPole-v1.
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
class CartPoleState:
    x: jax.Array
    x_dot: jax.Array
    theta: jax.Array
    theta_dot: jax.Array
    time: jax.Array


@struct.dataclass
class CartPoleParams:
    """SI units: m/s^2, kg, m (half the pole), N, s, rad, m."""

    gravity: float = 9.8
    mass_cart: float = 1.0
    mass_pole: float = 0.1
    half_length: float = 0.5
    force: float = 10.0
    dt: float = 0.02
    theta_limit: float = 12 * 2 * math.pi / 360
    x_limit: float = 2.4
    max_steps_in_episode: int = 500


class CartPole(Environment):
    """Observation f32 `[4]`: cart position and velocity, pole angle and angular velocity. Reward 1 per step, so at most 500."""

    reward_threshold = 475.0

    @property
    def name(self) -> str:
        return "CartPole-v1"

    @property
    def default_params(self) -> CartPoleParams:
        return CartPoleParams()

    def observation_space(self, params: CartPoleParams) -> Box:
        high = jnp.array([params.x_limit * 2, jnp.inf, params.theta_limit * 2, jnp.inf], jnp.float32)
        return Box(-high, high, (4,))

    def action_space(self, params: CartPoleParams) -> Discrete:
        return Discrete(2)

    def reset_env(self, key: jax.Array, params: CartPoleParams) -> tuple[jax.Array, CartPoleState]:
        x, x_dot, theta, theta_dot = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        state = CartPoleState(x, x_dot, theta, theta_dot, jnp.zeros((), jnp.int32))
        return _observe(state), state

    def step_env(
        self, key: jax.Array, state: CartPoleState, action: jax.Array, params: CartPoleParams
    ) -> tuple[jax.Array, CartPoleState, jax.Array, jax.Array, dict[str, Any]]:
        force = jnp.where(action == 1, params.force, -params.force)
        total_mass = params.mass_cart + params.mass_pole
        pole_moment = params.mass_pole * params.half_length
        cos, sin = jnp.cos(state.theta), jnp.sin(state.theta)
        push = (force + pole_moment * state.theta_dot**2 * sin) / total_mass
        theta_acc = (params.gravity * sin - cos * push) / (params.half_length * (4 / 3 - params.mass_pole * cos**2 / total_mass))
        x_acc = push - pole_moment * theta_acc * cos / total_mass
        state = CartPoleState(
            x=state.x + params.dt * state.x_dot,
            x_dot=state.x_dot + params.dt * x_acc,
            theta=state.theta + params.dt * state.theta_dot,
            theta_dot=state.theta_dot + params.dt * theta_acc,
            time=state.time + 1,
        )
        terminated = (jnp.abs(state.x) > params.x_limit) | (jnp.abs(state.theta) > params.theta_limit)
        return _observe(state), state, jnp.ones((), jnp.float32), terminated, {}

    def render(self, state: CartPoleState, params: CartPoleParams) -> jax.Array:
        picture = drawing.canvas(256, 384, (0.0, 0.45), 2.2 * params.x_limit)
        picture = drawing.capsule(picture, -params.x_limit, 0.0, params.x_limit, 0.0, 0.015, drawing.GREY)
        for end in (-params.x_limit, params.x_limit):
            picture = drawing.capsule(picture, end, -0.1, end, 0.1, 0.02, drawing.RED)
        picture = drawing.rectangle(picture, state.x, 0.0, 0.7, 0.36, drawing.INK, rounding=0.07)
        pivot_y, length = 0.08, 2 * params.half_length
        tip_x, tip_y = state.x + length * jnp.sin(state.theta), pivot_y + length * jnp.cos(state.theta)
        picture = drawing.capsule(picture, state.x, pivot_y, tip_x, tip_y, 0.07, drawing.GOLD)
        return drawing.finish(drawing.circle(picture, state.x, pivot_y, 0.04, drawing.BLUE))


def _observe(state: CartPoleState) -> jax.Array:
    return jnp.stack([state.x, state.x_dot, state.theta, state.theta_dot])
