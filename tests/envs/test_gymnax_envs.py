"""Every environment of gymnax works by its id."""

from __future__ import annotations

import gymnax
import jax
import jax.numpy as jnp
import pytest

from rljax.core.environment import check_environment
from rljax.core.errors import ConfigError
from rljax.core.spaces import as_space
from rljax.envs import make_env

# The images are downloaded when the environment is built.
NEEDS_DATA = {"MNISTBandit-bsuite"}


@pytest.mark.parametrize("env_id", [env_id for env_id in gymnax.registered_envs if env_id not in NEEDS_DATA])
def test_gymnax_environment_meets_the_contract_and_steps(env_id: str) -> None:
    env, params = make_env("gymnax:" + env_id)
    check_environment(env, params)
    action_space = as_space(env.action_space(params))

    @jax.jit
    def first_step(key: jax.Array) -> tuple:
        reset_key, action_key, step_key = jax.random.split(key, 3)
        obs, state = env.reset(reset_key, params)
        return obs, env.step(step_key, state, action_space.sample(action_key), params)

    first_obs, (obs, _, reward, terminated, truncated, info) = first_step(jax.random.key(0))
    final = info["final_observation"]
    assert obs.shape == first_obs.shape == final.shape
    assert obs.dtype == first_obs.dtype == final.dtype
    assert reward.dtype == jnp.float32
    assert terminated.dtype == truncated.dtype == jnp.bool_
    assert reward.shape == terminated.shape == truncated.shape == ()


@pytest.mark.parametrize("env_id", sorted(NEEDS_DATA))
def test_missing_data_is_one_clear_line(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline() -> None:
        raise OSError("offline")

    monkeypatch.setattr("gymnax.utils.load_mnist.load_mnist", offline)
    with pytest.raises(ConfigError, match=f"environment {env_id} cannot be built, it needs data that could not be loaded: offline"):
        make_env(env_id)


def test_integer_rewards_of_gymnax_become_floats_of_the_same_value() -> None:
    env, params = make_env("UmbrellaChain-bsuite")
    theirs, _ = gymnax.make("UmbrellaChain-bsuite")
    _, state = theirs.reset(jax.random.key(0), params)
    keys = jax.random.split(jax.random.key(1), 64)
    ours = jax.vmap(env.step_env, (0, None, None, None))(keys, state, jnp.int32(1), params)[2]
    raw = jax.vmap(theirs.step_env, (0, None, None, None))(keys, state, jnp.int32(1), params)[2]
    assert raw.dtype == jnp.int32
    assert ours.dtype == jnp.float32
    assert ours.tolist() == raw.tolist()
    assert len(set(ours.tolist())) > 1
