"""Wrappers: what each changes, what it leaves alone, and that stacks of them delegate."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.core.contract import check_contract
from rljax.core.environments.environment import Environment, EnvParams, EnvState, action_mask_of
from rljax.core.environments.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from rljax.core.environments.wrappers import (
    ClipReward,
    EpisodeStatistics,
    FlattenObservation,
    PixelObservation,
    TimeLimit,
    Wrapper,
    can_render,
    resize_picture,
)
from rljax.core.errors import ConfigError

REWARDS = [0.5, -3.0, 2.0, 7.0, -0.25]


class Scripted(Environment):
    """Rewards of REWARDS in turn, then terminates; nested observation; action 1 is legal at even times only."""

    @property
    def default_params(self) -> EnvParams:
        return EnvParams(max_steps_in_episode=1000)

    def observation_space(self, params: EnvParams) -> Dict:
        return Dict(
            {"z": Box(-2.0, 3.0, (2, 2)), "a": Tuple((Discrete(9), MultiDiscrete((3, 4)))), "m": Box(jnp.zeros(1), 10.0, (1,))}
        )

    def action_space(self, params: EnvParams) -> Discrete:
        return Discrete(2)

    def observe(self, state: EnvState) -> dict[str, Any]:
        time = state.time
        z = jnp.stack([time, time + 1, time + 2, -time]).reshape(2, 2).astype(jnp.float32) / 4
        return {"z": z, "a": (time, jnp.stack([time % 3, time % 4])), "m": time[None] * 1.0}

    def reset_env(self, key: jax.Array, params: EnvParams) -> tuple[Any, EnvState]:
        state = EnvState(jnp.zeros((), jnp.int32))
        return self.observe(state), state

    def step_env(self, key: jax.Array, state: EnvState, action: Any, params: EnvParams) -> Any:
        reward = jnp.array(REWARDS)[state.time]
        state = EnvState(state.time + 1)
        return self.observe(state), state, reward, state.time >= len(REWARDS), {"inner": state.time}

    def action_mask(self, state: EnvState, params: EnvParams) -> jax.Array:
        return jnp.stack([jnp.asarray(True), state.time % 2 == 0])

    def render(self, state: EnvState, params: EnvParams) -> jax.Array:
        return jnp.full((2, 3, 3), state.time, jnp.uint8)


def roll(env: Environment, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
    """Rewards, terminated, truncated and info of consecutive steps with auto-reset, each `[steps]`."""
    params = env.default_params

    def step(state: Any, key: jax.Array) -> tuple[Any, Any]:
        _, state, reward, terminated, truncated, info = env.step(key, state, jnp.int32(0), params)
        return state, (reward, terminated, truncated, info)

    def run(key: jax.Array) -> Any:
        return jax.lax.scan(step, env.reset(key, params)[1], jax.random.split(key, steps))[1]

    return jax.tree.map(np.asarray, jax.jit(run)(jax.random.key(0)))


def test_episode_statistics_equal_a_plain_loop() -> None:
    rewards, terminated, _, info = roll(EpisodeStatistics(Scripted()), 12)
    total, length = 0.0, 0
    for step in range(12):
        reward = REWARDS[step % len(REWARDS)]
        total, length = total + reward, length + 1
        assert rewards[step] == reward
        assert info["episode_return"][step] == pytest.approx(total)
        assert info["episode_length"][step] == length
        assert terminated[step] == (length == len(REWARDS))
        if terminated[step]:
            total, length = 0.0, 0
    assert info["episode_return"].dtype == np.float32
    assert info["episode_length"].dtype == np.int32
    assert info["inner"].tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]


def test_clipping_outside_leaves_the_statistics_raw() -> None:
    rewards, _, _, info = roll(ClipReward(EpisodeStatistics(Scripted()), 1.0), 5)
    np.testing.assert_allclose(rewards, [0.5, -1.0, 1.0, 1.0, -0.25])
    np.testing.assert_allclose(info["episode_return"], np.cumsum(REWARDS))


def test_clipping_inside_clips_the_statistics_too() -> None:
    rewards, _, _, info = roll(EpisodeStatistics(ClipReward(Scripted(), 2.0)), 5)
    np.testing.assert_allclose(rewards, [0.5, -2.0, 2.0, 2.0, -0.25])
    np.testing.assert_allclose(info["episode_return"], np.cumsum(rewards))


def test_time_limit_truncates_and_does_not_terminate() -> None:
    _, terminated, truncated, info = roll(TimeLimit(Scripted(), 3), 7)
    assert not terminated.any()
    assert truncated.tolist() == [False, False, True] * 2 + [False]
    np.testing.assert_allclose(info["final_observation"]["m"][:, 0], [1, 2, 3, 1, 2, 3, 1])


def test_termination_before_the_time_limit_is_no_truncation() -> None:
    _, terminated, truncated, _ = roll(TimeLimit(Scripted(), 6), 10)
    assert np.flatnonzero(terminated).tolist() == [4, 9]
    assert not truncated.any()


def test_the_environments_own_limit_still_holds() -> None:
    class Short(Scripted):
        @property
        def default_params(self) -> EnvParams:
            return EnvParams(max_steps_in_episode=2)

    _, _, truncated, _ = roll(TimeLimit(Short(), 3), 4)
    assert truncated.tolist() == [False, True, False, True]


def test_flatten_concatenates_leaves_with_their_bounds() -> None:
    env = FlattenObservation(Scripted())
    params = env.default_params
    check_contract(env, params)
    obs, state = env.reset(jax.random.key(0), params)
    obs, *_ = env.step_env(jax.random.key(0), state, jnp.int32(0), params)
    assert obs.dtype == jnp.float32
    # Keys in sorted order: a (0..8, 0..2, 0..3), m, z.
    np.testing.assert_allclose(obs, [1, 1, 1, 1, 0.25, 0.5, 0.75, -0.25])
    space = env.observation_space(params)
    assert space.shape == (8,)
    np.testing.assert_allclose(space.low, [0, 0, 0, 0, -2, -2, -2, -2])
    np.testing.assert_allclose(space.high, [8, 2, 3, 10, 3, 3, 3, 3])
    assert space.contains(obs)
    assert not space.contains(obs.at[0].set(9))


def test_flatten_changes_the_final_observation_too() -> None:
    _, _, _, info = roll(FlattenObservation(Scripted()), 5)
    assert info["final_observation"].shape == (5, 8)
    assert info["final_observation"][4].tolist()[0] == 5


STACKS = {
    "plain": lambda env: Wrapper(env),
    "deep": lambda env: TimeLimit(FlattenObservation(ClipReward(EpisodeStatistics(env), 1.0)), 4),
    "reversed": lambda env: EpisodeStatistics(ClipReward(FlattenObservation(TimeLimit(env, 4)), 1.0)),
}


@pytest.mark.parametrize("stack", STACKS)
def test_mask_render_name_and_spaces_reach_through_a_stack(stack: str) -> None:
    env = STACKS[stack](Scripted())
    params = env.default_params
    check_contract(env, params)
    assert env.name == "Scripted"
    assert params == Scripted().default_params
    assert env.action_space(params) == Discrete(2)
    _, state = env.reset(jax.random.key(0), params)
    for time in range(3):
        assert action_mask_of(env, state, params).tolist() == [True, time % 2 == 0]
        assert env.render(state, params).tolist() == np.full((2, 3, 3), time).tolist()
        _, state, *_ = env.step(jax.random.key(0), state, jnp.int32(0), params)


def test_a_wrapped_environment_without_a_mask_has_none() -> None:
    class Foreign:
        """As gymnax's environments: no action_mask, no render."""

        name = "Foreign"

    assert action_mask_of(Foreign(), None, None) is None
    _, state = EpisodeStatistics(Scripted()).reset(jax.random.key(0))
    assert EpisodeStatistics(Foreign()).action_mask(state, None) is None


@pytest.mark.parametrize(("height", "width", "size"), [(8, 12, 4), (4, 4, 4), (9, 14, 4), (3, 5, 7), (256, 384, 64), (7, 30, 3)])
def test_a_picture_is_resized_as_a_loop_over_its_pixels_does(height: int, width: int, size: int) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)
    down, across = max(1, height // size), max(1, width // size)
    got = jax.jit(resize_picture, static_argnums=(1, 2))(picture, size, size)
    assert got.dtype == jnp.uint8
    assert got.shape == (size, size, 3)
    for row, column in np.random.default_rng(1).integers(0, size, (30, 2)):
        # The centre of each sample, in pixels of the source.
        rows = [int((row * down + k + 0.5) * height / (size * down)) for k in range(down)]
        columns = [int((column * across + k + 0.5) * width / (size * across)) for k in range(across)]
        mean = picture[np.ix_(rows, columns)].astype(float).mean((0, 1))
        np.testing.assert_array_less(np.abs(np.asarray(got[row, column]) - mean), 0.5 + 1e-9)


class Gradient(Scripted):
    """Its picture says the time in red, and in green and blue where a pixel is."""

    def render(self, state: EnvState, params: EnvParams) -> jax.Array:
        row, column = jnp.meshgrid(jnp.arange(16), jnp.arange(32), indexing="ij")
        return jnp.stack([jnp.full((16, 32), state.time), row, column], -1).astype(jnp.uint8)


@pytest.mark.slow
def test_the_picture_is_what_is_observed_and_all_else_stays() -> None:
    plain, env = Scripted(), PixelObservation(TimeLimit(Gradient(), 4), 8)
    params = env.default_params
    check_contract(env, params)
    space = env.observation_space(params)
    assert (space.shape, space.dtype, space.low, space.high) == ((8, 8, 3), jnp.uint8, 0, 255)
    obs, state = env.reset(jax.random.key(0), params)
    assert space.contains(obs)
    assert obs.dtype == jnp.uint8
    np.testing.assert_array_equal(obs[:, :, 0], 0)
    np.testing.assert_array_equal(obs[:, 0, 1], 2 * np.arange(8) + 1)  # the means 0.5, 2.5, ... rounded up
    np.testing.assert_array_equal(obs[0, :, 2], 4 * np.arange(8) + 2)
    obs, state, *_ = env.step_env(jax.random.key(0), state, jnp.int32(0), params)
    np.testing.assert_array_equal(obs[:, :, 0], 1)
    assert env.render(state, params).shape == (16, 32, 3)
    assert action_mask_of(env, state, params).tolist() == [True, False]
    rewards, terminated, truncated, info = roll(env, 8)
    expected = roll(TimeLimit(plain, 4), 8)
    np.testing.assert_array_equal(rewards, expected[0])
    np.testing.assert_array_equal(terminated, expected[1])
    np.testing.assert_array_equal(truncated, expected[2])
    np.testing.assert_array_equal(info["final_observation"][:, 0, 0, 0], [1, 2, 3, 4] * 2)


def test_an_environment_without_pictures_is_refused_in_one_line() -> None:
    class Blind(Scripted):
        render = Environment.render

    class Grey(Scripted):
        def render(self, state: EnvState, params: EnvParams) -> jax.Array:
            return jnp.zeros((8, 8))

    assert can_render(EpisodeStatistics(Scripted()))
    for env in (Blind(), EpisodeStatistics(Blind())):
        assert not can_render(env)
        with pytest.raises(ConfigError, match=r"^environment Blind: PixelObservation needs one that can be rendered, and"):
            PixelObservation(env)
    with pytest.raises(ConfigError, match=r"^environment Grey: render returned float32\[8, 8\], expected uint8\[H, W, 3\]"):
        check_contract(PixelObservation(Grey()), EnvParams())
    for size in (0, True, 6.0):
        with pytest.raises(ConfigError, match=r"PixelObservation: size = .*, expected an integer of at least 1"):
            PixelObservation(Scripted(), size)


def test_gymnaxs_render_is_not_ours() -> None:
    import gymnax

    with pytest.raises(ConfigError, match="can be rendered"):
        PixelObservation(gymnax.make("Breakout-MinAtar")[0])
