"""Parameters drawn for each episode: their distribution, that they hold, and that training and evaluation see them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import wrappers
from rljax.collect.environments import make_evaluation_env
from rljax.envs import make_env


@pytest.mark.slow
def test_each_episode_draws_and_keeps_its_parameters() -> None:
    env, params = make_env("CartPole-v1")
    varied = wrappers.RandomizeParams(env, {"force": (5.0, 15.0), "max_steps_in_episode": (3, 6)})
    keys = jax.random.split(jax.random.key(0), 4000)
    _, states = jax.jit(jax.vmap(varied.reset_env, (0, None)))(keys, params)
    force, limit = (np.asarray(states.drawn[name]) for name in ("force", "max_steps_in_episode"))
    assert force.min() >= 5.0
    assert force.max() <= 15.0
    counts = np.histogram(force, 10, (5.0, 15.0))[0]
    assert ((counts - 400.0) ** 2 / 400.0).sum() < 33.7, "chi-square of 9 degrees, 1e-4"
    assert set(limit.tolist()) == {3, 4, 5, 6}
    assert np.bincount(limit)[3:].min() > 850
    assert abs(np.corrcoef(force, limit)[0, 1]) < 0.08

    # One step of each is that of the environment with these parameters; the limit is the episode's own.
    for i in range(5):
        own = params.replace(force=force[i], max_steps_in_episode=limit[i])
        state, plain = jax.tree.map(lambda x, i=i: x[i], (states, states.env_state))
        for time in range(int(limit[i])):
            key = jax.random.key(time)
            assert not varied.is_truncated(state, params)
            found, state, *_ = varied.step_env(key, state, jnp.int32(1), params)
            expected, plain, *_ = env.step_env(key, plain, jnp.int32(1), own)
            np.testing.assert_array_equal(found, expected)
        assert varied.is_truncated(state, params)
        assert varied.render(state, params).shape == env.render(plain, own).shape


@pytest.mark.slow
def test_training_draws_anew_in_every_episode_and_evaluation_too() -> None:
    config = rljax.PPOConfig(env="CartPole-v1", randomize={"max_steps_in_episode": [1, 4]}, num_envs=8, num_steps=64)
    agent = rljax.make_agent(config)
    state = agent.init(jax.random.key(0))
    env, params = make_evaluation_env(config)
    assert env.observation_space(params).shape == (4,)
    returns = np.asarray(rljax.evaluate(agent, state, jax.random.key(1), num_episodes=200))
    assert set(returns.tolist()) == {1.0, 2.0, 3.0, 4.0}
    _, metrics = jax.jit(agent.step)(state)
    assert 1.8 < float(metrics["episode/length"]) < 3.2
    assert float(metrics["episode/count"]) > 150


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"forse": [1, 2]}, "has no parameter 'forse': did you mean 'force'"),
        ({"force": [2.0, 1.0]}, r"force = .*: expected two numbers \[low, high\] with low <= high, such as \[0.5, 2.0\]"),
        ({"force": 2.0}, "force = 2.0: expected two numbers"),
        ({"force": [1.0, "a"]}, "force = .*: expected two numbers"),
        ({"force": [1.0, float("nan")]}, "force = .*: expected two numbers"),
        ({"force": [-3e38, 3e38]}, "force = .*: expected numbers of float32, and their difference, too"),
        ({"max_steps_in_episode": [1.5, 2]}, r"max_steps_in_episode = .*: expected two whole numbers .* such as \[1, 3\]"),
        ({"max_steps_in_episode": [0, 2]}, "max_steps_in_episode = .*: expected at least 1"),
    ],
)
def test_bad_tables_are_one_clear_line(table: dict[str, Any], message: str) -> None:
    with pytest.raises(rljax.ConfigError, match=f"randomize: .*{message}") as error:
        rljax.make_agent(rljax.PPOConfig(env="CartPole-v1", randomize=table))
    assert "\n" not in str(error.value)


def test_ranges_lie_within_the_bounds_of_a_parameter() -> None:
    for table, allowed in (({"change": [0.5, 1.5]}, "at least 0 and at most 1"), ({"num_steps": [0, 3]}, "at least 1")):
        with pytest.raises(rljax.ConfigError, match=f"randomize: .*: expected {allowed}"):
            rljax.make_agent(rljax.PPOConfig(env="Scouting-v0", randomize=table))


def test_what_an_environment_says_of_the_ends_of_a_range_is_one_line() -> None:
    class Picky(type(rljax.make_env("CartPole-v1")[0])):  # type: ignore[misc]
        def observation_space(self, params: Any) -> Any:
            assert isinstance(params.max_steps_in_episode, int)  # of the kind that the default is
            if params.max_steps_in_episode > 4:
                raise ValueError("too many steps")
            return super().observation_space(params)

    table = {"max_steps_in_episode": [1, 5]}
    with pytest.raises(rljax.ConfigError, match="randomize: ValueError: too many steps"):
        rljax.make_agent(rljax.PPOConfig(env=Picky(), env_params={"max_steps_in_episode": 3}, randomize=table))


def test_levels_and_randomisation_go_together() -> None:
    """A curriculum chooses some parameters, others are drawn."""
    curriculum = {"type": "uniform", "levels": {"max_steps_in_episode": [2, 3]}}
    config = rljax.PPOConfig(env="CartPole-v1", randomize={"force": [5.0, 15.0]}, curriculum=curriculum, num_envs=8, num_steps=32)
    agent = rljax.make_agent(config)
    _, metrics = jax.jit(agent.step)(agent.init(jax.random.key(0)))
    assert 2.0 <= float(metrics["episode/length"]) <= 3.0
