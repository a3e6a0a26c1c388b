"""Command: the command's distribution, rewards that add up to the distance, and stated returns by play."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.core.errors import ConfigError
from rljax.envs import make_env
from rljax.envs.command import all_commands, blind_return, uniform_return
from tests.envs.play import play, standard_error, uniform

SIZES = [(4, 16), (3, 7), (2, 1)]


def obedient(_noise: jax.Array, obs: dict[str, jax.Array], _state: Any) -> jax.Array:
    return jnp.argmax(obs["goal"] - obs["observation"])


def r_squared(played: Any) -> float:
    """Of the commanded numbers, explained by those achieved at the end."""
    achieved, commanded = played.info["achieved"][:, -1], played.info["commanded"][:, -1]
    return float(1 - np.sum((commanded - achieved) ** 2) / np.sum((commanded - commanded.mean(0)) ** 2))


@pytest.mark.parametrize(("num_units", "num_builds"), SIZES)
def test_commands_are_all_the_ways_to_divide(num_units: int, num_builds: int) -> None:
    ways = [c for c in itertools.product(range(num_builds + 1), repeat=num_units) if sum(c) == num_builds]
    assert sorted(map(tuple, all_commands(num_units, num_builds).tolist())) == ways


def test_every_command_is_as_likely() -> None:
    env, params = make_env("Command-v0", num_units=3, num_builds=4)
    _, state = jax.jit(jax.vmap(env.reset, (0, None)))(jax.random.split(jax.random.key(0), 15_000), params)
    counts = np.zeros((5, 5), int)
    np.add.at(counts, tuple(np.asarray(state.commanded)[:, :2].T), 1)
    possible = np.add.outer(np.arange(5), np.arange(5)) <= 4
    assert (counts[~possible] == 0).all()
    np.testing.assert_allclose(counts[possible] / 15_000, 1 / 15, atol=0.01)


@pytest.mark.parametrize(("num_units", "num_builds"), SIZES)
def test_rewards_are_decreases_of_the_distance(num_units: int, num_builds: int) -> None:
    env, params = make_env("Command-v0", num_units=num_units, num_builds=num_builds)
    played = play(env, params, uniform(num_units), num_builds + 1, num_envs=100)
    np.testing.assert_array_equal(played.lengths, num_builds)
    for episode in range(100):
        goal = np.round(played.first_obs["goal"][episode] * num_builds).astype(int).tolist()
        built = [0] * num_units
        for t in range(num_builds):
            before = sum(abs(b - g) for b, g in zip(built, goal, strict=True))
            built[played.action[episode, t]] += 1
            after = sum(abs(b - g) for b, g in zip(built, goal, strict=True))
            assert played.reward[episode, t] == pytest.approx((before - after) / num_builds, abs=1e-6)
            for seen in (played.obs["observation"], played.info["achieved"]):
                np.testing.assert_allclose(seen[episode, t], np.divide(built, num_builds), atol=1e-6)
            np.testing.assert_allclose(played.info["commanded"][episode, t], np.divide(goal, num_builds), atol=1e-6)
        assert played.returns[episode] == pytest.approx(1 - after / num_builds, abs=1e-5)


@pytest.mark.parametrize(("num_units", "num_builds"), [(4, 16), (3, 7)])
def test_best_blind_and_uniform_returns(num_units: int, num_builds: int) -> None:
    env, params = make_env("Command-v0", num_units=num_units, num_builds=num_builds)
    best = play(env, params, obedient, num_builds)
    np.testing.assert_allclose(best.returns, 1.0, atol=1e-5)
    assert r_squared(best) > 1 - 1e-6
    blind = play(env, params, lambda _noise, _obs, state: state.time % num_units, num_builds, num_envs=4000)
    assert blind.returns.mean() == pytest.approx(blind_return(num_units, num_builds), abs=4 * standard_error(blind.returns))
    assert r_squared(blind) < 0.01
    by_chance = play(env, params, uniform(num_units), num_builds, num_envs=4000)
    stated = uniform_return(num_units, num_builds)
    assert by_chance.returns.mean() == pytest.approx(stated, abs=4 * standard_error(by_chance.returns))
    assert r_squared(by_chance) < 0.01


@pytest.mark.parametrize(("num_units", "num_builds"), [(4, 16), (3, 7)])
def test_equal_numbers_are_the_best_that_a_blind_policy_can_build(num_units: int, num_builds: int) -> None:
    commands = all_commands(num_units, num_builds)
    returns = [1 - np.abs(built - commands).sum(1).mean() / num_builds for built in commands]
    assert max(returns) == pytest.approx(blind_return(num_units, num_builds), abs=1e-9)


def test_stated_numbers() -> None:
    assert blind_return(4, 16) == pytest.approx(0.296, abs=0.0005)
    assert uniform_return(4, 16) == pytest.approx(0.226, abs=0.0005)


@pytest.mark.parametrize("arguments", [{"num_units": 1}, {"num_builds": 0}, {"num_units": 2.5}])
def test_bad_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        make_env("Command-v0", **arguments)
