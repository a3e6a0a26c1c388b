"""Wrappers of steps, against loops in plain Python and results known beforehand."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import rljax
from rljax import wrappers
from rljax.collect.environments import make_evaluation_env, make_training_env
from rljax.core.environments.environment import Environment
from rljax.core.environments.spaces import Box, Discrete
from rljax.envs import make_env


@struct.dataclass
class Count:
    position: jax.Array
    time: jax.Array


class Line(Environment):
    """Walks by its action (0 to 2); the reward is the position; position 6 terminates, time 5 truncates."""

    def observation_space(self, params: Any) -> Box:
        return Box(0.0, 20.0, (2,))

    def action_space(self, params: Any) -> Discrete:
        return Discrete(3)

    def _obs(self, state: Count) -> jax.Array:
        return jnp.stack([state.position, state.time]).astype(jnp.float32)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, Count]:
        state = Count(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
        return self._obs(state), state

    def step_env(self, key: jax.Array, state: Count, action: jax.Array, params: Any) -> Any:
        state = Count(state.position + action, state.time + 1)
        return self._obs(state), state, state.position.astype(jnp.float32), state.position >= 6, {"action": action}

    def is_truncated(self, state: Count, params: Any) -> jax.Array:
        return state.time >= 5


def stepped(env: Any, actions: list[int], seed: int = 0) -> list[tuple[Any, ...]]:
    """`(obs, reward, terminated, truncated, info)` of consecutive steps without auto-reset."""
    params = env.default_params
    obs, state = env.reset_env(jax.random.key(seed), params)
    result: list[tuple[Any, ...]] = [(np.asarray(obs), state)]
    step = jax.jit(env.step_env)
    for i, action in enumerate(actions):
        obs, state, reward, terminated, info = step(jax.random.key(seed + i), state, jnp.int32(action), params)
        result.append((np.asarray(obs), float(reward), bool(terminated), bool(env.is_truncated(state, params)), info))
    return result


def test_rewards_are_scaled() -> None:
    plain, scaled = stepped(Line(), [1, 2, 1]), stepped(wrappers.ScaleReward(Line(), 0.5), [1, 2, 1])
    assert [x[1] for x in scaled[1:]] == [0.5 * x[1] for x in plain[1:]] == [0.5, 1.5, 2.0]


def test_the_return_that_solves_a_task_is_scaled_like_its_rewards() -> None:
    """Not by the field of the configuration, where the totals of episodes are those of true rewards."""
    env, _ = make_env("CartPole-v1")
    assert wrappers.ScaleReward(env, 0.5).reward_threshold == 237.5
    assert wrappers.ScaleReward(env, -1.0).reward_threshold is None
    assert wrappers.ScaleReward(Line(), 0.5).reward_threshold is None
    assert make_training_env(rljax.PPOConfig(env="CartPole-v1", scale_rewards=0.5))[0].reward_threshold == 475.0


def test_shaping_adds_up_to_the_difference_of_potentials() -> None:
    """With gamma = 1 an episode's return changes by the potential of its first state alone, if it terminates."""
    potential = lambda state, params: 10.0 - state.position  # noqa: E731
    plain = stepped(Line(), [2, 2, 2])
    shaped = stepped(wrappers.ShapeReward(Line(), potential, 1.0), [2, 2, 2])
    assert plain[-1][2]
    assert sum(x[1] for x in shaped[1:]) == sum(x[1] for x in plain[1:]) - 10.0
    discounted = stepped(wrappers.ShapeReward(Line(), potential, 0.9), [1])
    assert discounted[1][1] == pytest.approx(1.0 + 0.9 * 9.0 - 10.0)


@pytest.mark.parametrize(
    ("actions", "expected"),
    [([1], (1 + 2 + 3, 3, 3)), ([2], (2 + 4 + 6, 6, 3)), ([1, 1], (4 + 5, 5, 5)), ([0, 2], (2 + 4, 4, 5))],
)
def test_actions_are_repeated_until_the_episode_ends(actions: list[int], expected: tuple[int, int, int]) -> None:
    """Reward, position and time after the last action: action 2 terminates at its third step, the limit of 5 cuts the second."""
    obs, reward, *_ = stepped(wrappers.ActionRepeat(Line(), 3), actions)[-1]
    assert (reward, *obs) == expected


def test_an_action_repeated_once_is_the_action() -> None:
    plain, once = stepped(Line(), [1, 2, 0]), stepped(wrappers.ActionRepeat(Line(), 1), [1, 2, 0])
    for a, b in zip(plain[1:], once[1:], strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        assert a[1:4] == b[1:4]


def test_sticky_actions_repeat_what_was_done_and_not_what_was_chosen() -> None:
    env, probability = wrappers.StickyActions(Line(), 0.3), 0.3

    def episode(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(state: Any, keys: jax.Array) -> tuple[Any, Any]:
            choice = jax.random.randint(keys[0], (), 0, 3)
            _, state, _, _, info = env.step_env(keys[1], state, choice, None)
            return state, (choice, info["action"])

        return jax.lax.scan(step, env.reset_env(key, None)[1], jax.random.split(key, (30, 2)))[1]

    chosen, done = map(np.asarray, jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), 500)))
    np.testing.assert_array_equal(done[:, 0], chosen[:, 0])
    differs = done[:, 1:] != chosen[:, 1:]
    np.testing.assert_array_equal(done[:, 1:][differs], done[:, :-1][differs])
    # Of the repeated actions, a third were what was chosen anyway.
    assert differs.mean() == pytest.approx(probability * 2 / 3, abs=0.01)


def test_sticky_actions_refuse_masks_and_what_is_no_probability() -> None:
    env, params = make_env("MaskedBandit-v0")
    with pytest.raises(rljax.ConfigError, match=r"sticky_actions: .* has action masks"):
        wrappers.StickyActions(env, 0.25).reset_env(jax.random.key(0), params)
    with pytest.raises(rljax.ConfigError, match=r"probability = 1\.0: expected a number >= 0 and < 1"):
        wrappers.StickyActions(Line(), 1.0)
    with pytest.raises(rljax.ConfigError, match="ActionRepeat: times = 0, expected an integer of at least 1"):
        wrappers.ActionRepeat(Line(), 0)


@struct.dataclass
class Fragile:
    x: jax.Array
    best: jax.Array
    time: jax.Array


class Breaks(Environment):
    """Action 1 breaks the simulation where `where` says; `best` begins as an infinity, which is no failure."""

    def __init__(self, where: str):
        self.where = where

    def observation_space(self, params: Any) -> Box:
        return Box(-10.0, 10.0, (2,))

    def action_space(self, params: Any) -> Discrete:
        return Discrete(2)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, Fragile]:
        state = Fragile(jax.random.uniform(key), jnp.float32(-jnp.inf), jnp.zeros((), jnp.int32))
        return jnp.stack([state.x, state.x]), state

    def step_env(self, key: jax.Array, state: Fragile, action: jax.Array, params: Any) -> Any:
        bad = jnp.where(action == 1, jnp.nan if self.where != "infinite" else jnp.inf, 0.0)
        state = Fragile(
            state.x + (bad if self.where == "state" else 0.0), jnp.maximum(state.best, -1.0 - state.time), state.time + 1
        )
        obs = jnp.stack([state.x, state.x + (bad if self.where in ("observation", "infinite") else 0.0)])
        reward = 1.0 + (bad if self.where == "reward" else 0.0)
        return obs, state, reward, jnp.asarray(False), {"metrics": {"x": state.x}}

    def is_truncated(self, state: Fragile, params: Any) -> jax.Array:
        return state.time >= 8


@pytest.mark.parametrize("where", ["observation", "infinite", "reward", "state"])
def test_what_is_not_finite_ends_the_episode_and_poisons_nothing(where: str) -> None:
    env = wrappers.EndOnNaN(Breaks(where))
    results = stepped(env, [0, 0, 1])
    for obs, reward, terminated, _, info in results[1:3]:
        assert np.isfinite(obs).all()
        assert (reward, terminated, float(info["metrics"]["ended_by_nan"])) == (1.0, False, 0.0)
    obs, reward, terminated, _, info = results[3]
    assert np.isfinite(obs).all()
    assert (reward, terminated, float(info["metrics"]["ended_by_nan"])) == (0.0, True, 1.0)
    assert np.isfinite(float(info["metrics"]["x"]))


class BreaksFirst(Breaks):
    """Its episodes begin with a NaN."""

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, Fragile]:
        obs, state = super().reset_env(key, params)
        return obs.at[0].set(jnp.nan), state.replace(x=jnp.nan * state.x) if self.where == "state" else state


@pytest.mark.parametrize("where", ["observation", "state"])
def test_an_episode_that_begins_with_a_nan_ends_at_its_first_step(where: str) -> None:
    env = wrappers.EndOnNaN(BreaksFirst(where))
    results = stepped(env, [0])
    assert np.isfinite(results[0][0]).all()
    obs, reward, terminated, _, info = results[1]
    assert np.isfinite(obs).all()
    assert (reward, terminated, float(info["metrics"]["ended_by_nan"])) == (0.0, True, 1.0)


def test_action_masks_are_refused_where_actions_repeat() -> None:
    for changes in ({"action_repeat": 2}, {"sticky_actions": 0.25}):
        with pytest.raises(rljax.ConfigError, match=f"{next(iter(changes))}: .* has action masks"):
            make_training_env(rljax.PPOConfig(env="MaskedBandit-v0", **changes))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda env: wrappers.StickyActions(env, 2), "probability = 2: expected a number >= 0 and < 1"),
        (lambda env: wrappers.TimeLimit(env, -1), "max_steps = -1, expected an integer of at least 1"),
        (lambda env: wrappers.ClipReward(env, -1.0), r"limit = -1.0, expected a number > 0"),
        (lambda env: wrappers.FrameStack("CartPole-v1", 4), "FrameStack: env = 'CartPole-v1': expected an environment, such as"),
        (lambda env: wrappers.Resize(env, 8, 8).reset(jax.random.key(0)), "Resize: observations of .* are no pictures"),
    ],
)
def test_wrappers_check_what_they_are_given(make: Any, told: str) -> None:
    with pytest.raises(rljax.ConfigError, match=told):
        make(Line())


def test_a_parameter_is_drawn_by_one_of_levels_and_randomization() -> None:
    levels = {"type": "plr", "levels": {"force": [5.0, 10.0]}}
    with pytest.raises(rljax.ConfigError, match="randomize: force: is a parameter of the curriculum's levels, too"):
        make_training_env(rljax.PPOConfig(env="CartPole-v1", curriculum=levels, randomize={"force": [1.0, 2.0]}))
    with (
        pytest.raises(rljax.ConfigError, match=r"randomize: force = \(0, 1e\+300\): expected numbers of float32"),
        warnings.catch_warnings(action="error"),
    ):
        make_training_env(rljax.PPOConfig(env="CartPole-v1", randomize={"force": [0, 1e300]}))


@pytest.mark.slow
@pytest.mark.parametrize("config", [rljax.PPOConfig, rljax.DQNConfig])
def test_training_goes_on_where_a_simulation_fails(config: Any) -> None:
    shared: dict[str, Any] = {"env": Breaks("state"), "num_envs": 4, "num_steps": 16, "total_timesteps": 1024, "eval_every": 512}
    shared |= (
        {"num_minibatches": 2} if config is rljax.PPOConfig else {"learning_starts": 64, "buffer_size": 512, "batch_size": 16}
    )
    result = jax.jit(rljax.make_train(config(**shared, end_on_nan=True)))(jax.random.key(0))
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(result.state.params))
    share = np.asarray(result.metrics["env/ended_by_nan"])
    assert 0.1 < np.nanmean(share) <= 1.0, "random actions break nearly every episode"
    plain = jax.jit(rljax.make_train(config(**shared)))(jax.random.key(0))
    assert not all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(plain.state.params)), "without it, the run is lost"


@pytest.mark.slow
def test_fields_of_the_configuration_are_these_wrappers() -> None:
    config = rljax.PPOConfig(
        env=Line(), action_repeat=2, frame_stack=3, scale_rewards=0.1, sticky_actions=0.0, end_on_nan=True, time_limit=4,
        num_envs=2, num_steps=4, num_minibatches=1, total_timesteps=64,
    )  # fmt: skip
    env, params = make_training_env(config)
    obs, state = env.reset_env(jax.random.key(0), params)
    assert obs.shape == (6,) == env.observation_space(params).shape
    obs, state, reward, terminated, info = env.step_env(jax.random.key(0), state, jnp.int32(1), params)
    np.testing.assert_array_equal(obs, [0, 0, 0, 0, 2, 2])
    assert float(reward) == pytest.approx(0.3)
    assert float(info["episode_return"]) == 3.0, "totals are of true rewards"
    env, params = make_evaluation_env(config)
    assert float(env.step_env(jax.random.key(0), env.reset_env(jax.random.key(0), params)[1], jnp.int32(1), params)[2]) == 3.0
    assert not bool(terminated)
    result = jax.jit(rljax.make_train(config))(jax.random.key(0))
    losses = [x for name, x in result.metrics.items() if name.startswith("train/")]
    assert losses
    assert np.isfinite(np.asarray(losses)).all()


def test_masks_that_do_not_change_leave_a_repeated_action_legal() -> None:
    env, params = make_env("MultiDiscreteMatch-v0")
    for wrapped in (wrappers.StickyActions(env, 0.25), wrappers.ActionRepeat(env, 2)):
        _, state = wrapped.reset_env(jax.random.key(0), params)
        assert wrapped.action_mask(state, params) is not None
