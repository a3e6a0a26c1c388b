"""NAVIX (Pignatelli et al., 2024), MiniGrid in JAX: `navix:Navix-DoorKey-8x8-v0` and so on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import navix

from rljax.core.environments.spaces import Box, Discrete
from rljax.core.errors import ConfigError, did_you_mean
from rljax.envs.adapters import FromSuite, SuiteParams, check_name, like, raw_key

OBSERVATIONS = ("symbolic", "symbolic_first_person", "categorical", "categorical_first_person", "rgb", "rgb_first_person")
TRUNCATION, TERMINATION = 1, 2


class NavixEnv(FromSuite):
    """A grid world of NAVIX. Symbols of a grid are integers, i32 (not pixels); pictures are uint8."""

    def __init__(self, env: Any, name: str):
        super().__init__(env, name)
        self.pictures = jnp.dtype(env.observation_space.dtype) == jnp.uint8 and int(env.observation_space.maximum) == 255
        self._shape = jax.eval_shape(lambda key: env.reset(raw_key(key)), jax.random.key(0)).observation.shape

    def observation_space(self, params: SuiteParams) -> Box:
        return Box(0, 255, self._shape, jnp.uint8 if self.pictures else jnp.int32)

    def action_space(self, params: SuiteParams) -> Discrete:
        return Discrete(len(self.env.action_set))

    def is_truncated(self, state: Any, params: SuiteParams) -> jax.Array:
        return state.step_type == TRUNCATION

    def reset_env(self, key: jax.Array, params: SuiteParams) -> tuple[jax.Array, Any]:
        state = self.env.reset(raw_key(key))
        return self._seen(state), state

    def step_env(
        self, key: jax.Array, state: Any, action: jax.Array, params: SuiteParams
    ) -> tuple[jax.Array, Any, jax.Array, jax.Array, dict[str, Any]]:
        # Its `step` would also make the next episode, which under vmap happens at every step.
        state = like(self.env._step(state, action), state)
        return self._seen(state), state, jnp.float32(state.reward), state.step_type == TERMINATION, {}

    def render(self, state: Any, params: SuiteParams) -> jax.Array:
        return navix.observations.rgb(state.state)

    def _seen(self, state: Any) -> jax.Array:
        return state.observation.astype(jnp.uint8 if self.pictures else jnp.int32)


def ids() -> list[str]:
    return sorted(navix.registry())


def factory(name: str) -> Callable[..., Any]:
    """Return the function that builds an environment. Arguments: `observation`, one of `OBSERVATIONS`, and `max_steps`, whose
    default is that of `navix.make`; 0 means the default, too.
    """
    check_name("navix", name, ids())
    default = navix.make(name).max_steps

    def build(observation: str = "symbolic", max_steps: int = default) -> NavixEnv:
        if observation not in OBSERVATIONS:
            raise ConfigError(f"env = 'navix:{name}': observation = '{observation}': {did_you_mean(observation, OBSERVATIONS)}")
        if max_steps < 0:
            raise ConfigError(
                f"env = 'navix:{name}': max_steps = {max_steps}: expected a whole number >= 0; 0: the limit of navix.make"
            )
        made = navix.make(name, observation_fn=getattr(navix.observations, observation), max_steps=max_steps or default)
        return NavixEnv(made, f"navix:{name}")

    return build


def adapt(env: Any) -> NavixEnv:
    return NavixEnv(env, f"navix:{type(env).__name__}")
