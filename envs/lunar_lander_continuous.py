"""LunarLanderContinuous-v3: the rocket of LunarLander-v3 with engines whose power the action sets.

The numbers are those of Gymnasium's `LunarLander-v3` with `continuous=True`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rljax.core.environments.spaces import Box
from rljax.envs.lander_physics import LunarLanderParams
from rljax.envs.lunar_lander import LunarLander


class LunarLanderContinuous(LunarLander):
    """Observation f32 `[8]` as in LunarLander. Action f32 `[2]`: main engine and side engines, clipped to [-1, 1].

    The main engine is off up to 0, and above 0 it gives 50% to 100% of its power. The side engines are off in -0.5..0.5. Beyond
    that, their power is the size of the action; negative actions fire the left engine, positive ones the right engine.
    """

    @property
    def name(self) -> str:
        return "LunarLanderContinuous-v3"

    def action_space(self, params: LunarLanderParams) -> Box:
        return Box(-1.0, 1.0, (2,))

    def throttle(self, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        main, side = jnp.clip(action, -1.0, 1.0)
        return jnp.where(main > 0, (main + 1) / 2, 0.0), jnp.where(jnp.abs(side) > 0.5, side, 0.0)
