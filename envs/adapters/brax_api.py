"""Adapter of Brax's interface, which MuJoCo Playground has, too: `reset(key) -> State` and `step(State, action) -> State`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environments.environment import EnvParams, EnvState
from rljax.core.environments.spaces import Box, Dict
from rljax.core.environments.wrappers import PRIVILEGED
from rljax.envs.adapters import FromSuite, like, raw_key

PRIVILEGED_STATE = "privileged_state"
"""Playground's name of what only a critic may see."""


@struct.dataclass
class BraxState(EnvState):
    """The environment's own state, and the sums of its metrics over the episode, as Brax's own wrapper has them."""

    env_state: Any
    totals: dict[str, jax.Array]


class BraxEnv(FromSuite):
    """An environment of Brax or MuJoCo Playground. Actions are in [-1, 1]; an episode is done where a robot has fallen, say.

    Args:
        env: the environment, without wrappers.
        name: its name, for messages and records.
        max_steps: default of the time limit, which neither library has in its environments.
    """

    def __init__(self, env: Any, name: str, max_steps: int = 1000):
        super().__init__(env, name)
        self._max_steps = max_steps

    @property
    def default_params(self) -> EnvParams:
        return EnvParams(self._max_steps)

    @functools.cached_property
    def _first(self) -> Any:
        """Shapes and dtypes of the state after a reset."""
        return jax.eval_shape(lambda key: self.env.reset(raw_key(key)), jax.random.key(0))

    def observation_space(self, params: EnvParams) -> Any:
        obs = _named(self._first.obs)
        spaces = jax.tree.map(lambda x: Box(-jnp.inf, jnp.inf, x.shape, x.dtype), obs)
        return Dict(spaces) if isinstance(obs, dict) else spaces

    def action_space(self, params: EnvParams) -> Box:
        return Box(-1.0, 1.0, (self.env.action_size,))

    def reset_env(self, key: jax.Array, params: EnvParams) -> tuple[Any, BraxState]:
        state = self.env.reset(raw_key(key))
        totals = jax.tree.map(jnp.zeros_like, dict(state.metrics))
        return _named(state.obs), BraxState(time=jnp.int32(0), env_state=state, totals=totals)

    def step_env(
        self, key: jax.Array, state: BraxState, action: jax.Array, params: EnvParams
    ) -> tuple[Any, BraxState, jax.Array, jax.Array, dict[str, Any]]:
        after = like(self.env.step(state.env_state, action), state.env_state)
        totals = jax.tree.map(jnp.add, state.totals, dict(after.metrics))
        info = {"metrics": totals} if totals else {}
        state = BraxState(time=state.time + 1, env_state=after, totals=totals)
        return _named(after.obs), state, after.reward.astype(jnp.float32), after.done > 0.5, info


def _named(obs: Any) -> Any:
    """Call what only a critic may see what rljax calls it."""
    if not isinstance(obs, dict):
        return obs
    return {PRIVILEGED if name == PRIVILEGED_STATE else name: x for name, x in obs.items()}
