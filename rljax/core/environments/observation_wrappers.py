"""Wrappers that change what is observed: several steps at once, and pictures without colours or of another size."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.core.environments.spaces import Box, Dict, as_space
from rljax.core.environments.step_wrappers import Stepped
from rljax.core.environments.wrappers import PRIVILEGED, Wrapper, resize_picture
from rljax.core.errors import ConfigError, check_int


class StackState(NamedTuple):
    env_state: Any
    frames: jax.Array


class FrameStack(Wrapper):
    """Observe the last `count` observations, the oldest first, joined along their last axis: `[..., C] -> [..., count * C]`. An
    episode begins with copies of its first observation (Mnih et al., "Human-level control through deep reinforcement learning",
    2015).

    Raises:
        ConfigError: observations are no arrays, or `count` is not a whole number above 0.
    """

    def __init__(self, env: Any, count: int):
        check_int("FrameStack", 1, count=count)
        super().__init__(env)
        self.count = count

    def inner(self, state: StackState) -> Any:
        return state.env_state

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, StackState]:
        obs, env_state = self.env.reset_env(key, params)
        self._box(params)
        frames = jnp.concatenate([obs] * self.count, axis=-1)
        return frames, StackState(env_state, frames)

    def step_env(self, key: jax.Array, state: StackState, action: Any, params: Any) -> Stepped:
        obs, env_state, reward, terminated, info = self.env.step_env(key, state.env_state, action, params)
        frames = jnp.concatenate([state.frames[..., obs.shape[-1] :], obs], axis=-1)
        return frames, StackState(env_state, frames), reward, terminated, info

    def observation_space(self, params: Any) -> Box:
        box = self._box(params)
        # By JAX, since the bounds have no values where the space is made under a trace.
        bounds = (jnp.broadcast_to(jnp.asarray(bound), box.shape) for bound in (box.low, box.high))
        low, high = (jnp.concatenate([bound] * self.count, -1) for bound in bounds)
        return Box(low, high, low.shape, box.dtype)

    def _box(self, params: Any) -> Box:
        space = as_space(self.env.observation_space(params))
        if not isinstance(space, Box) or not space.shape:
            if isinstance(space, Dict) and PRIVILEGED in space.spaces:
                what = "have a part that only the critic sees, expected arrays with an axis"
            else:
                what = f"are {type(space).__name__}, expected arrays with an axis; flatten_observations makes them one"
            raise ConfigError(f"frame_stack: observations of {self.name} {what}")
        return space


class _Picture(Wrapper):
    """Change each picture that is observed, uint8 `[H, W, C]`."""

    def change(self, picture: jax.Array) -> jax.Array:
        raise NotImplementedError

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, Any]:
        self.observation_space(params)
        obs, state = self.env.reset_env(key, params)
        return self.change(obs), state

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Stepped:
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        return self.change(obs), state, reward, terminated, info

    def observation_space(self, params: Any) -> Box:
        space = as_space(self.env.observation_space(params))
        if not isinstance(space, Box) or len(space.shape) != 3 or space.dtype != jnp.uint8:
            raise ConfigError(f"{type(self).__name__}: observations of {self.name} are no pictures, uint8[H, W, C]")
        shape = jax.eval_shape(self.change, jax.ShapeDtypeStruct(space.shape, jnp.uint8)).shape
        return Box(0, 255, shape, jnp.uint8)


class GrayScale(_Picture):
    """Observe the brightness of pictures, uint8 `[H, W, 3] -> [H, W, 1]` (ITU-R BT.601, in integers, rounded)."""

    def change(self, picture: jax.Array) -> jax.Array:
        if picture.shape[-1] != 3:
            raise ConfigError(f"GrayScale: pictures of {self.name} have {picture.shape[-1]} channels, expected 3")
        weighted = picture.astype(jnp.int32) * jnp.array([299, 587, 114])
        return ((jnp.sum(weighted, -1, keepdims=True) + 500) // 1000).astype(jnp.uint8)


class Resize(_Picture):
    """Observe pictures of another size, uint8 `[H, W, C] -> [height, width, C]`; see `resize_picture`.

    Raises:
        ConfigError: `height` or `width` is not a whole number above 0.
    """

    def __init__(self, env: Any, height: int, width: int):
        check_int("Resize", 1, height=height, width=width)
        super().__init__(env)
        self.height = height
        self.width = width

    def change(self, picture: jax.Array) -> jax.Array:
        return resize_picture(picture, self.height, self.width)
