"""LunarLander-v3: land a rocket between two flags with its main engine and two side engines.

Source: Klimov's LunarLander as in Gymnasium's LunarLander-v3. The constants, the observation, the reward and the ends of episodes
are Gymnasium's; the class says how the motion differs.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from rljax.core.environments.environment import Environment
from rljax.core.environments.spaces import Box, Discrete
from rljax.envs import drawing
from rljax.envs.lander_physics import (
    CENTERS,
    CHUNK,
    DT,
    HEIGHT,
    HULL,
    LEG,
    LEG_DOWN,
    NUM_POINTS,
    PAD_HEIGHT,
    SCALE,
    SLEEP_STEPS,
    WIDTH,
    LunarLanderParams,
    LunarLanderState,
    advance,
    start,
    turned,
)


class LunarLander(Environment):
    """Observation f32 `[8]`: position, velocity, angle and angular velocity in Gymnasium's units, contact of both legs (0 or 1).

    Actions: 0 nothing, 1 left engine, 2 main engine, 3 right engine. Reaching the ground with the hull, or leaving the screen to
    the side, ends the episode with -100; coming to rest for half a second ends it with +100. Every other step is rewarded by the
    change of a potential (near the pad, slow, upright, 10 for each leg on the ground), less the fuel.

    The motion follows Gymnasium's closely, not exactly:

    - Box2D's joints give way a little and the joints here do not: after 100 steps of flight observations differ by up to 0.0004.
    - Box2D stops a leg at the moment when it reaches the ground, and here a leg is moved out of the ground after the step.
    - Only the feet of the legs, not their sides, push on the ground.

    Touchdowns therefore differ step by step, but the returns of fixed policies are those in Gymnasium within sampling error.
    """

    reward_threshold = 200.0

    @property
    def name(self) -> str:
        return "LunarLander-v3"

    @property
    def default_params(self) -> LunarLanderParams:
        return LunarLanderParams()

    def observation_space(self, params: LunarLanderParams) -> Box:
        high = jnp.array([2.5, 2.5, 10.0, 10.0, 2 * math.pi, 10.0, 1.0, 1.0], jnp.float32)
        return Box(-high.at[6:].set(0.0), high, (8,))

    def action_space(self, params: LunarLanderParams) -> Any:
        return Discrete(4)

    def throttle(self, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the power of the main engine, in 0..1, and of the side engines, in -1..1 (negative: the left one)."""
        return (action == 2).astype(jnp.float32), jnp.where(action == 1, -1.0, jnp.where(action == 3, 1.0, 0.0))

    def reset_env(self, key: jax.Array, params: LunarLanderParams) -> tuple[jax.Array, LunarLanderState]:
        key_ground, key_force, key_wind = jax.random.split(key, 3)
        heights = jax.random.uniform(key_ground, (NUM_POINTS + 1,), maxval=HEIGHT / 2)
        force = jax.random.uniform(key_force, (2,), minval=-1.0, maxval=1.0) * (params.initial_force / 1000)
        wind = jax.random.randint(key_wind, (2,), -9999, 9999)
        state = start(heights, force, wind, params)
        return observe(state), state

    def step_env(
        self, key: jax.Array, state: LunarLanderState, action: jax.Array, params: LunarLanderParams
    ) -> tuple[jax.Array, LunarLanderState, jax.Array, jax.Array, dict[str, Any]]:
        main, side = self.throttle(action)
        dispersion = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0) / SCALE
        next_state, crashed = advance(state, main, side, dispersion, params)
        obs = observe(next_state)
        reward = shaping(obs) - shaping(observe(state)) - 0.3 * main - 0.03 * jnp.abs(side)
        lost = crashed | (jnp.abs(obs[0]) >= 1.0)
        asleep = next_state.still >= SLEEP_STEPS
        reward = jnp.where(asleep, 100.0, jnp.where(lost, -100.0, reward)).astype(jnp.float32)
        return obs, next_state, reward, lost | asleep, {}

    def render(self, state: LunarLanderState, params: LunarLanderParams) -> jax.Array:
        return draw(state)


def observe(state: LunarLanderState) -> jax.Array:
    """Return the observation, f32 `[8]`, in Gymnasium's units."""
    return jnp.stack(
        [
            state.position[0] / (WIDTH / 2) - 1.0,
            (state.position[1] - (PAD_HEIGHT + LEG_DOWN)) / (HEIGHT / 2),
            state.velocity[0] * (WIDTH / 2 * DT),
            state.velocity[1] * (HEIGHT / 2 * DT),
            state.angle,
            state.spin * (20.0 * DT),
            state.contact[0].astype(jnp.float32),
            state.contact[1].astype(jnp.float32),
        ]
    )


def shaping(obs: jax.Array) -> jax.Array:
    """Return the potential whose differences are the reward, f32 []: near, slow, upright and on its legs is good."""
    x, y, x_dot, y_dot, angle, _, right, left = obs
    return -100 * (jnp.hypot(x, y) + jnp.hypot(x_dot, y_dot) + jnp.abs(angle)) + 10 * (right + left)


def draw(state: LunarLanderState) -> jax.Array:
    """Return the picture of a state, uint8 `[256, 384, 3]`."""
    picture = drawing.canvas(256, 384, (WIDTH / 2, HEIGHT / 2), WIDTH)
    for side in (-1, 1):
        x = WIDTH / 2 + side * CHUNK
        picture = drawing.capsule(picture, x, PAD_HEIGHT - 0.1, x, PAD_HEIGHT + 1.6, 0.04, drawing.INK)
        picture = drawing.rectangle(picture, x + 0.4, PAD_HEIGHT + 1.4, 0.8, 0.4, drawing.GOLD)
    for i in range(2):
        x, y = state.position + turned(state.leg_angle[i], CENTERS[1 + i])
        width, height = LEG[2] - LEG[0]
        picture = drawing.rectangle(picture, x, y, width, height, drawing.INK, angle=state.leg_angle[i])
    picture = drawing.polygon(picture, state.position + turned(state.angle, HULL), drawing.BLUE)
    places = jnp.arange(NUM_POINTS) * CHUNK
    surface = jnp.interp(picture.x[0], places, state.ground)
    steep = jnp.hypot(1.0, jnp.interp(picture.x[0] + 0.01, places, state.ground) / 0.01 - surface / 0.01)
    picture = drawing.paint(picture, (picture.y - surface) / steep, drawing.GREY)
    return drawing.finish(picture)
