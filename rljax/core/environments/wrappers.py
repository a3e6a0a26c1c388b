"""Environment wrappers: each is an environment around another one, unbatched (vmap adds the batch).

Normalisation needs statistics over all environments, so it is in `rljax.collect.normalizers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.environments.environment import COMPONENTS, Environment, action_mask_of, attribute
from rljax.core.environments.spaces import Box, Dict, Tuple, as_space
from rljax.core.errors import ConfigError, check_int, shown


class Wrapper(Environment):
    """Delegate everything to `env`; `inner(state)` is the wrapped environment's part of a wrapped state, and `inner_params(state,
    params)` are the parameters that it has there."""

    def __init__(self, env: Any):
        if isinstance(env, (str, type)):
            raise ConfigError(
                f"{type(self).__name__}: env = {shown(env)}: expected an environment, such as rljax.make_env('CartPole-v1')[0]"
            )
        self.env = env
        self.reward_threshold = attribute(env, "reward_threshold", None)
        self.best_is_random = attribute(env, "best_is_random", False)
        self.outside_jax = attribute(env, "outside_jax", False)

    def inner(self, state: Any) -> Any:
        return state

    def inner_params(self, state: Any, params: Any) -> Any:
        return params

    def innermost_state(self, state: Any) -> Any:
        inner: Any = self.inner(state)
        return self.env.innermost_state(inner) if isinstance(self.env, Environment) else inner

    @property
    def name(self) -> str:
        return self.env.name

    @property
    def default_params(self) -> Any:
        return self.env.default_params

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        return self.env.reset_env(key, params)

    def step_env(
        self, key: jax.Array, state: Any, action: Any, params: Any
    ) -> tuple[Any, Any, jax.Array, jax.Array, dict[str, Any]]:
        return self.env.step_env(key, state, action, params)

    def is_truncated(self, state: Any, params: Any) -> jax.Array:
        return self.env.is_truncated(self.inner(state), self.inner_params(state, params))

    def observation_space(self, params: Any) -> Any:
        return self.env.observation_space(params)

    def action_space(self, params: Any) -> Any:
        return self.env.action_space(params)

    def action_mask(self, state: Any, params: Any) -> jax.Array | None:
        return action_mask_of(self.env, self.inner(state), self.inner_params(state, params))

    def render(self, state: Any, params: Any) -> jax.Array:
        return self.env.render(self.inner(state), self.inner_params(state, params))


class EpisodeState(NamedTuple):
    env_state: Any
    episode_return: jax.Array
    episode_length: jax.Array


class EpisodeStatistics(Wrapper):
    """Add the totals of the episode up to this step: `info["episode_return"]` f32 [], `info["episode_length"]` i32 []."""

    def inner(self, state: EpisodeState) -> Any:
        return state.env_state

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, EpisodeState]:
        obs, env_state = self.env.reset_env(key, params)
        return obs, EpisodeState(env_state, jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32))

    def step_env(
        self, key: jax.Array, state: EpisodeState, action: Any, params: Any
    ) -> tuple[Any, EpisodeState, jax.Array, jax.Array, dict[str, Any]]:
        obs, env_state, reward, terminated, info = self.env.step_env(key, state.env_state, action, params)
        reward = jnp.asarray(reward, jnp.float32)  # Python numbers and whole numbers are allowed
        totals = EpisodeState(env_state, state.episode_return + reward, state.episode_length + 1)
        info = {**info, "episode_return": totals.episode_return, "episode_length": totals.episode_length}
        return obs, totals, reward, terminated, info


class TimeLimitState(NamedTuple):
    env_state: Any
    elapsed: jax.Array


class TimeLimit(Wrapper):
    """Truncate an episode after `max_steps` steps (in addition to the environment's own limit)."""

    def __init__(self, env: Any, max_steps: int):
        check_int("TimeLimit", 1, max_steps=max_steps)
        super().__init__(env)
        self.max_steps = max_steps

    def inner(self, state: TimeLimitState) -> Any:
        return state.env_state

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, TimeLimitState]:
        obs, env_state = self.env.reset_env(key, params)
        return obs, TimeLimitState(env_state, jnp.zeros((), jnp.int32))

    def step_env(
        self, key: jax.Array, state: TimeLimitState, action: Any, params: Any
    ) -> tuple[Any, TimeLimitState, jax.Array, jax.Array, dict[str, Any]]:
        obs, env_state, reward, terminated, info = self.env.step_env(key, state.env_state, action, params)
        return obs, TimeLimitState(env_state, state.elapsed + 1), reward, terminated, info

    def is_truncated(self, state: TimeLimitState, params: Any) -> jax.Array:
        return super().is_truncated(state, params) | (state.elapsed >= self.max_steps)


def without_components(info: dict[str, Any]) -> dict[str, Any]:
    """Return the info of a step without the components of its reward, which do not make up a reward that changed as a whole."""
    return {name: x for name, x in info.items() if name != COMPONENTS}


class ClipReward(Wrapper):
    """Clip each reward to `[-limit, limit]`. Components of the reward are left out of the info: only the reward is clipped."""

    def __init__(self, env: Any, limit: float):
        if isinstance(limit, (int, float)) and not limit > 0:
            raise ConfigError(f"ClipReward: limit = {shown(limit)}, expected a number > 0")
        super().__init__(env)
        self.limit = limit

    def step_env(
        self, key: jax.Array, state: Any, action: Any, params: Any
    ) -> tuple[Any, Any, jax.Array, jax.Array, dict[str, Any]]:
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        return obs, state, jnp.clip(reward, -self.limit, self.limit), terminated, without_components(info)


PRIVILEGED = "privileged"
"""Key of the part of an observation dictionary that only a critic may see."""


def split_privileged(obs: Any) -> tuple[Any, Any]:
    """Split an observation into `(public, privileged)`; `privileged` is None if it has no key `privileged`."""
    if not isinstance(obs, Mapping) or PRIVILEGED not in obs:
        return obs, None
    return {name: x for name, x in obs.items() if name != PRIVILEGED}, obs[PRIVILEGED]


def join_privileged(public: Any, privileged: Any) -> Any:
    """Undo `split_privileged`."""
    return public if privileged is None else {**public, PRIVILEGED: privileged}


def split_privileged_space(space: Any) -> tuple[Any, Any]:
    """Split a space of observations as `split_privileged` splits its elements."""
    if not isinstance(space, Dict):
        return space, None
    public, privileged = split_privileged(dict(space.spaces))
    return Dict(public), privileged


class PublicObservation(Wrapper):
    """Drop the privileged part of observations, for algorithms without a critic that may see it."""

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        obs, state = self.env.reset_env(key, params)
        return split_privileged(obs)[0], state

    def step_env(
        self, key: jax.Array, state: Any, action: Any, params: Any
    ) -> tuple[Any, Any, jax.Array, jax.Array, dict[str, Any]]:
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        return split_privileged(obs)[0], state, reward, terminated, info

    def observation_space(self, params: Any) -> Any:
        return split_privileged_space(as_space(self.env.observation_space(params)))[0]


class FlattenObservation(Wrapper):
    """Flatten every observation into one f32 vector; the leaves of dictionaries and tuples are concatenated in order."""

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, Any]:
        obs, state = self.env.reset_env(key, params)
        return flatten_observation(obs), state

    def step_env(
        self, key: jax.Array, state: Any, action: Any, params: Any
    ) -> tuple[jax.Array, Any, jax.Array, jax.Array, dict[str, Any]]:
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        return flatten_observation(obs), state, reward, terminated, info

    def observation_space(self, params: Any) -> Box:
        low, high = _flat_bounds(self.env.observation_space(params))
        return Box(low, high, low.shape)


def flatten_observation(obs: Any) -> jax.Array:
    """Concatenate all leaves of an unbatched observation into one f32 vector."""
    return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(obs)])


def _flat_bounds(space: Any) -> tuple[jax.Array, jax.Array]:
    space = as_space(space)
    if isinstance(space, Dict):
        parts = [_flat_bounds(space.spaces[name]) for name in sorted(space.spaces)]
    elif isinstance(space, Tuple):
        parts = [_flat_bounds(part) for part in space.spaces]
    elif isinstance(space, Box):
        low, high = (jnp.broadcast_to(jnp.asarray(b, jnp.float32), space.shape).ravel() for b in (space.low, space.high))
        return low, high
    else:
        counts = jnp.atleast_1d(jnp.asarray(space.nvec if hasattr(space, "nvec") else space.n, jnp.float32))
        return jnp.zeros_like(counts), counts - 1.0
    lows, highs = zip(*parts, strict=True)
    return jnp.concatenate(lows), jnp.concatenate(highs)


class PixelObservation(Wrapper):
    """Observe the picture that `render` draws, uint8 `[size, size, 3]`.

    The whole picture is stretched to a square. A picture is drawn at every step, and with auto-reset also the first one of the
    next episode: about 0.2 ms each for 256 x 256 pixels on one CPU core, next to nothing on a GPU.

    Args:
        env: an environment that can be rendered.
        size: number of pixels along each side.

    Raises:
        ConfigError: `env` cannot be rendered, or `size` is not a positive integer.
    """

    def __init__(self, env: Any, size: int = 64):
        if not can_render(env):
            raise ConfigError(f"environment {env.name}: PixelObservation needs one that can be rendered, and this has no render")
        check_int("PixelObservation", 1, size=size)
        super().__init__(env)
        self.size = size

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, Any]:
        _, state = self.env.reset_env(key, params)
        return self._observe(state, params), state

    def step_env(
        self, key: jax.Array, state: Any, action: Any, params: Any
    ) -> tuple[jax.Array, Any, jax.Array, jax.Array, dict[str, Any]]:
        _, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        return self._observe(state, params), state, reward, terminated, info

    def observation_space(self, params: Any) -> Box:
        return Box(0, 255, (self.size, self.size, 3), jnp.uint8)

    def _observe(self, state: Any, params: Any) -> jax.Array:
        picture = self.env.render(state, params)
        shape, dtype = jnp.shape(picture), jnp.result_type(picture)
        if len(shape) != 3 or shape[2] != 3 or dtype != jnp.uint8:
            found = f"{dtype}{list(shape)}"
            raise ConfigError(f"environment {self.name}: render returned {found}, expected uint8[H, W, 3]")
        return resize_picture(picture, self.size, self.size)


def can_render(env: Any) -> bool:
    """Return whether `env`, or one that it wraps, draws pictures by rljax's contract; gymnax's `render` opens a plot instead."""
    while isinstance(env, Wrapper) and type(env).render is Wrapper.render:
        env = env.env
    render = getattr(type(env), "render", None)
    return render is not None and render is not Environment.render and not (render.__module__ or "").startswith("gymnax.")


def resize_picture(picture: jax.Array, height: int, width: int) -> jax.Array:
    """Resize a picture, uint8 `[H, W, C] -> [height, width, C]`.

    Each pixel is the mean of as many source pixels as fit into it, or the nearest one. Integer arithmetic makes the result the
    same on every device.
    """
    taps = []
    for axis, size in enumerate((height, width)):
        given = picture.shape[axis]
        taps.append(max(1, given // size))
        samples = size * taps[axis]
        if samples != given:
            picture = picture[(slice(None),) * axis + ((2 * np.arange(samples) + 1) * given // (2 * samples),)]
    count = taps[0] * taps[1]
    blocks = picture.reshape(height, taps[0], width, taps[1], -1).astype(jnp.int32)
    return ((jnp.sum(blocks, (1, 3)) + count // 2) // count).astype(jnp.uint8)
