"""Craftax (Matthews et al., 2024): `craftax:Craftax-Symbolic-v1`, `craftax:Craftax-Classic-Pixels-v1` and so on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from craftax.craftax.constants import Achievement
from craftax.craftax.renderer import make_craftax_pixel_renderer
from craftax.craftax_classic.constants import Achievement as ClassicAchievement
from craftax.craftax_classic.renderer import make_craftax_pixel_renderer as make_classic_pixel_renderer
from craftax.craftax_env import make_craftax_env_from_name

from rljax.core.environments.spaces import as_space
from rljax.core.errors import ConfigError
from rljax.envs.adapters import FromSuite, check_name

NAMES = ("Craftax-Symbolic-v1", "Craftax-Pixels-v1", "Craftax-Classic-Symbolic-v1", "Craftax-Classic-Pixels-v1")
BLOCK = 16
"""Pixels along each side of a block in a picture."""
NEVER = 2**31 - 1


class CraftaxEnv(FromSuite):
    """Craftax or Craftax-Classic, with its own parameters. Achievements, in percent, are the metrics of an episode."""

    @property
    def default_params(self) -> Any:
        return self.env.default_params

    def observation_space(self, params: Any) -> Any:
        return as_space(self.env.observation_space(params))

    def action_space(self, params: Any) -> Any:
        return as_space(self.env.action_space(params))

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, Any]:
        return self.env.reset_env(key, params)

    def step_env(
        self, key: jax.Array, state: Any, action: jax.Array, params: Any
    ) -> tuple[jax.Array, Any, jax.Array, jax.Array, dict[str, Any]]:
        obs, state, reward, _, _ = self.env.step_env(key, state, action, params)
        # What Craftax calls done is also true at its time limit.
        over = self.env.is_terminal(state, params.replace(max_timesteps=NEVER))
        # Its own info has achievements only where it ends the episode itself, which a time limit around it may do before.
        kinds = ClassicAchievement if "Classic" in self._name else Achievement
        achieved = {f"Achievements/{x.name.lower()}": 100.0 * state.achievements[x.value].astype(jnp.float32) for x in kinds}
        return obs, state, jnp.float32(reward), jnp.asarray(over, bool), {"metrics": achieved}

    def is_truncated(self, state: Any, params: Any) -> jax.Array:
        return jnp.asarray(state.timestep >= params.max_timesteps)

    def render(self, state: Any, params: Any) -> jax.Array:
        return jnp.clip(self._draw(state), 0, 255).astype(jnp.uint8)

    @functools.cached_property
    def _draw(self) -> Callable[[Any], jax.Array]:
        """Craftax's own renderer; it makes textures of the size wanted, also inside a trace."""
        with jax.ensure_compile_time_eval():
            return (make_classic_pixel_renderer if "Classic" in self._name else make_craftax_pixel_renderer)(BLOCK)


def ids() -> list[str]:
    return list(NAMES)


def factory(name: str) -> Callable[[], CraftaxEnv]:
    check_name("craftax", name, NAMES)

    def build() -> CraftaxEnv:
        return CraftaxEnv(make_craftax_env_from_name(name, auto_reset=False), f"craftax:{name}")

    return build


def adapt(env: Any) -> CraftaxEnv:
    if "NoAutoReset" not in type(env).__name__:
        raise ConfigError(f"env: {type(env).__name__} resets itself: expected one made with auto_reset = False")
    return CraftaxEnv(env, f"craftax:{env.name}")
