"""Wrappers of observations: frames against a deque, pictures against arithmetic on plain arrays."""

from __future__ import annotations

from collections import deque
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import wrappers
from rljax.envs import make_env


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["CartPole-v1", "GridWorldPixels-v0"])
def test_frames_are_those_of_a_deque(env_id: str) -> None:
    env, params = make_env(env_id)
    stacked, count = wrappers.FrameStack(env, 3), 3
    (obs, state), (seen, its) = env.reset_env(jax.random.key(0), params), stacked.reset_env(jax.random.key(0), params)
    frames: deque[Any] = deque([np.asarray(obs)] * count, maxlen=count)
    for i in range(5):
        np.testing.assert_array_equal(seen, np.concatenate(frames, -1))
        assert stacked.observation_space(params).contains(seen)
        obs, state, *_ = env.step_env(jax.random.key(i), state, jnp.int32(i % 2), params)
        seen, its, *_ = stacked.step_env(jax.random.key(i), its, jnp.int32(i % 2), params)
        frames.append(np.asarray(obs))
    assert stacked.observation_space(params).shape == seen.shape
    assert stacked.observation_space(params).dtype == seen.dtype
    np.testing.assert_array_equal(stacked.render(its, params), env.render(state, params))


@pytest.mark.parametrize("flat", [False, True])
def test_stacked_frames_have_a_space_under_a_trace(flat: bool) -> None:
    """As in sweeps, which make their environments in a traced function."""
    env, params = make_env("CartPole-v1")
    stacked = wrappers.FrameStack(wrappers.FlattenObservation(env) if flat else env, 2)

    def bounds(_: jax.Array) -> tuple[Any, Any]:
        space = stacked.observation_space(params)
        return space.low, space.high

    low, high = jax.jit(bounds)(jnp.zeros(()))
    own = env.observation_space(params)
    np.testing.assert_array_equal(low, np.tile(own.low, 2))
    np.testing.assert_array_equal(high, np.tile(own.high, 2))


@pytest.mark.slow
def test_grey_pictures_of_another_size() -> None:
    env, params = make_env("CartPole-v1")
    pixels = wrappers.PixelObservation(env, 32)
    grey = wrappers.GrayScale(pixels)
    small = wrappers.Resize(grey, 8, 16)
    picture = np.asarray(pixels.reset_env(jax.random.key(0), params)[0], float)
    expected = picture @ [0.299, 0.587, 0.114]
    found = grey.reset_env(jax.random.key(0), params)[0]
    assert found.shape == (32, 32, 1) == grey.observation_space(params).shape
    assert np.abs(np.asarray(found)[..., 0] - expected).max() <= 0.5
    seen = small.reset_env(jax.random.key(0), params)[0]
    assert seen.shape == (8, 16, 1) == small.observation_space(params).shape
    means = np.asarray(found, float).reshape(8, 4, 16, 2, 1).mean((1, 3))
    assert np.abs(np.asarray(seen) - means).max() <= 0.5
    obs, *_ = wrappers.FrameStack(small, 2).reset_env(jax.random.key(0), params)
    assert obs.shape == (8, 16, 2)


def test_what_does_not_fit_is_one_clear_line() -> None:
    env, params = make_env("CartPole-v1")
    with pytest.raises(rljax.ConfigError, match=r"^GrayScale: observations of CartPole.* are no pictures, uint8\[H, W, C\]$"):
        wrappers.GrayScale(env).observation_space(params)
    with pytest.raises(rljax.ConfigError, match=r"^GrayScale: pictures of .* have 1 channels, expected 3"):
        wrappers.GrayScale(wrappers.GrayScale(wrappers.PixelObservation(env, 8))).reset_env(jax.random.key(0), params)
    with pytest.raises(rljax.ConfigError, match="Resize: width = 0, expected an integer of at least 1"):
        wrappers.Resize(env, 8, 0)
    with pytest.raises(
        rljax.ConfigError, match=r"^frame_stack: observations of .* have a part that only the critic sees, expected arrays"
    ):
        rljax.make_agent(rljax.PPOConfig(env="HiddenBit-v0", frame_stack=2))
