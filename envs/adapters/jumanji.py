"""Jumanji (Bonnet et al., 2024): `jumanji:Snake-v1`, `jumanji:Game2048-v1`, `jumanji:Tetris-v0` and so on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jumanji
import numpy as np
from flax import struct
from jumanji import specs
from jumanji.registration import _REGISTRY, load

from rljax.core.environments.spaces import Box, Dict, Discrete, MultiDiscrete
from rljax.envs.adapters import FromSuite, SuiteParams, check_name, like, plain_arguments, raw_key, with_arguments

MASK = "action_mask"


@struct.dataclass
class JumanjiState:
    """The environment's own state and what it showed last: its mask, and whether the time limit has come."""

    env_state: Any
    mask: jax.Array | None
    truncated: jax.Array


class JumanjiEnv(FromSuite):
    """An environment of Jumanji. An episode that ends with a discount above 0, or at the time limit, is truncated.

    The observation is a dictionary of its parts, without the mask. Several numbers that are legal or not together (as in Tetris,
    whose mask is `[4, 10]`) are one choice among all combinations; those with a mask each (as in Cleaner) are heads. The rewards
    of several agents are summed up.
    """

    def __init__(self, env: Any, name: str):
        super().__init__(env, name)
        spec = env.action_spec
        sizes = tuple(np.asarray(getattr(spec, "num_values", ())).ravel().tolist())
        shape = getattr(getattr(env.observation_spec, MASK, None), "shape", None)
        self._joint = sizes if len(sizes) > 1 and shape == sizes else None
        if self._joint:
            self._space: Any = Discrete(math.prod(sizes))
        elif isinstance(spec, specs.DiscreteArray):
            self._space = Discrete(sizes[0])
        elif sizes:
            self._space = MultiDiscrete(sizes)
        else:
            self._space = Box(spec.minimum, spec.maximum, spec.shape, spec.dtype)

    def observation_space(self, params: SuiteParams) -> Any:
        return _space_of(self.env.observation_spec)

    def action_space(self, params: SuiteParams) -> Any:
        return self._space

    def action_mask(self, state: JumanjiState, params: SuiteParams) -> jax.Array | None:
        return state.mask

    def is_truncated(self, state: JumanjiState, params: SuiteParams) -> jax.Array:
        return state.truncated

    def reset_env(self, key: jax.Array, params: SuiteParams) -> tuple[Any, JumanjiState]:
        state, timestep = self.env.reset(raw_key(key))
        return self._seen(state, timestep, jnp.asarray(False))

    def step_env(
        self, key: jax.Array, state: JumanjiState, action: jax.Array, params: SuiteParams
    ) -> tuple[Any, JumanjiState, jax.Array, jax.Array, dict[str, Any]]:
        if self._joint:
            action = jnp.stack(jnp.unravel_index(action, self._joint)).astype(jnp.int32)
        after, timestep = self.env.step(state.env_state, action)
        stays = jnp.all(timestep.discount > 0)
        limit, played = getattr(self.env, "time_limit", None), getattr(after, "step_count", getattr(after, "step", None))
        if limit is not None and played is not None:
            # Most environments do not tell their time limit from an end: at the limit, it counts as the former.
            stays |= played >= limit
        obs, new = self._seen(like(after, state.env_state), timestep, timestep.last() & stays)
        return obs, new, jnp.sum(timestep.reward).astype(jnp.float32), timestep.last() & ~stays, {}

    def _seen(self, state: Any, timestep: Any, truncated: jax.Array) -> tuple[Any, JumanjiState]:
        obs = timestep.observation
        mask = getattr(obs, MASK, None)
        # Without a choice, which comes at the end of an episode, everything is as good as anything else.
        mask = None if mask is None else self._heads(jnp.asarray(mask, bool))
        return _plain(obs), JumanjiState(state, mask, truncated)

    def _heads(self, mask: jax.Array) -> jax.Array:
        """Return a mask as rljax has it: heads one after the other, each with something legal."""
        rows = mask.reshape(1 if self._joint else math.prod(mask.shape[:-1]), -1)
        return (rows | ~rows.any(-1, keepdims=True)).ravel()


def _plain(obs: Any) -> Any:
    """Return an observation with named parts as a dictionary, without its mask."""
    if not hasattr(obs, "_asdict") and not hasattr(obs, "__dataclass_fields__"):
        return obs
    parts = obs._asdict() if hasattr(obs, "_asdict") else {name: getattr(obs, name) for name in obs.__dataclass_fields__}
    return {name: _plain(part) for name, part in parts.items() if name != MASK}


def _space_of(spec: Any) -> Any:
    if isinstance(spec, specs.Array):
        low, high = (getattr(spec, side, default) for side, default in (("minimum", -jnp.inf), ("maximum", jnp.inf)))
        return Box(low, high, spec.shape, spec.dtype)
    return Dict({name: _space_of(part) for name, part in spec._specs.items() if name != MASK})


def ids() -> list[str]:
    return sorted(jumanji.registered_environments())


def factory(name: str) -> Callable[..., Any]:
    """Return the function that builds an environment; its arguments are the plain ones of its class, such as `time_limit`."""
    check_name("jumanji", name, ids())
    arguments = plain_arguments(load(_REGISTRY[name].entry_point))
    return with_arguments(lambda **given: JumanjiEnv(jumanji.make(name, **given), f"jumanji:{name}"), arguments)


def adapt(env: Any) -> JumanjiEnv:
    return JumanjiEnv(env, f"jumanji:{type(env).__name__}")
