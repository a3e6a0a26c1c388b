"""Offline algorithms learn what nobody did: good policies from data of a bad one, on which cloning fails, for several seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from tests.algos.imitation.recorded import record

SEEDS = 3
WRONG_WAY = jnp.log(jnp.array([0.35, 0.2, 0.2, 0.25]))
"""Mostly up and left, away from the goal."""

GRID: dict[str, Any] = {
    "env": "GridWorld-v0",
    "gamma": 0.9,
    "num_steps": 100,
    "batch_size": 64,
    "learning_rate": 3e-3,
    "tau": 0.05,
    "reward_scale": 10.0,
    "network": {"hidden": [64]},
    "total_timesteps": 3_000,
}


def returns_of(config: Any) -> np.ndarray:
    """Greedy mean return of each seed after training."""
    agent = rljax.make_agent(config)

    def one(key: jax.Array) -> jax.Array:
        return jnp.mean(rljax.evaluate(agent, rljax.make_train(config)(key).state, jax.random.key(77), 64))

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(11), SEEDS)))


@pytest.fixture(scope="module")
def wrong_way(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("offline") / "data"
    record(path, "GridWorld-v0", lambda key, _obs, _state: jax.random.categorical(key, WRONG_WAY), 192, 100)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        rljax.IQLConfig(expectile=0.9, beta=10.0, **GRID),
        pytest.param(rljax.AWACConfig(beta=5.0, **GRID), marks=pytest.mark.long),
        rljax.CQLConfig(alpha=0.1, **GRID),
    ],
    ids=lambda config: config.algorithm,
)
def test_the_best_policy_is_found_in_the_data_of_a_bad_one(config: Any, wrong_way: str) -> None:
    found = returns_of(config.replace(dataset=wrong_way))
    print(config.algorithm, found)
    assert (found >= 0.9).all()


@pytest.mark.slow
def test_cloning_that_data_fails(wrong_way: str) -> None:
    config = rljax.BCConfig(env="GridWorld-v0", dataset=wrong_way, total_timesteps=1024 * 30, network={"hidden": [64]})
    found = returns_of(config)
    print("bc", found)
    assert (found < 0.0).all()


@pytest.mark.long
def test_actions_between_recorded_ones_are_found_where_cloning_finds_their_mean(tmp_path: Path) -> None:
    """Recorded actions are uniform, so their mean is 0, which costs 0.21; the right one is the observation."""
    record(tmp_path / "data", "BoxTarget-v0", lambda key, _obs, _state: jax.random.uniform(key, (2,), minval=-1.0), 2_000, 1)
    config = rljax.TD3BCConfig(
        env="BoxTarget-v0",
        dataset=str(tmp_path / "data"),
        num_steps=100,
        total_timesteps=1_200,
        batch_size=64,
        learning_rate=5e-3,
        network={"hidden": [32]},
    )

    def one(alpha: jax.Array, key: jax.Array) -> jax.Array:
        agent = rljax.make_agent(config.replace(alpha=alpha))
        return jnp.mean(rljax.evaluate(agent, rljax.make_train(agent)(key).state, jax.random.key(77), 64))

    of_seeds = jax.vmap(one, (None, 0))
    found, cloned = jax.jit(jax.vmap(of_seeds, (0, None)))(jnp.array([20.0, 0.0]), jax.random.split(jax.random.key(11), SEEDS))
    print("td3_bc", found, "without values", cloned)
    assert (found >= -0.08).all()
    assert (cloned <= -0.15).all()
