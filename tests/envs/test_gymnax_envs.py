"""Every environment of gymnax works by its id."""

from __future__ import annotations

import functools
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import pytest

from rljax.core.check import check_play
from rljax.core.contract import check_contract
from rljax.core.environments.spaces import as_space
from rljax.core.errors import ConfigError
from rljax.envs import make_env

# The images are downloaded when the environment is built.
NEEDS_DATA = {"MNISTBandit-bsuite"}
# Whose observations are not as their spaces say: of another dtype, or out of bounds.
NOT_AS_DECLARED = {"Catch-bsuite", "FourRooms-misc", "GaussianBandit-misc", "MemoryChain-bsuite", "MetaMaze-misc"}
# Compiling takes most of the time here, so XLA need not optimise.
QUICK = {"xla_backend_optimization_level": 0}


# Ten to twenty seconds each; two others of their kind are tried in CI.
LONG = {"Freeway-MinAtar", "Seaquest-MinAtar", "SpaceInvaders-MinAtar"}


def param(env_id: str) -> Any:
    return pytest.param(env_id, marks=pytest.mark.long if env_id in LONG else pytest.mark.slow)


@pytest.mark.parametrize("env_id", [param(env_id) for env_id in gymnax.registered_envs if env_id not in NEEDS_DATA])
def test_gymnax_environment_meets_the_contract_and_steps(env_id: str) -> None:
    env, params = make_env("gymnax:" + env_id)
    doubts = check_contract(env, params) + check_play(env, params)
    assert bool(doubts) == (env_id in NOT_AS_DECLARED)
    action_space = as_space(env.action_space(params))

    @functools.partial(jax.jit, compiler_options=QUICK)
    def first_step(key: jax.Array) -> Any:
        reset_key, action_key, step_key = jax.random.split(key, 3)
        obs, state = env.reset_env(reset_key, params)
        action = action_space.sample(action_key)
        return obs, env.step_env(step_key, state, action, params), action_space.contains(action)

    first_obs, (obs, state, reward, terminated, _), legal = first_step(jax.random.key(0))
    assert legal
    assert (obs.shape, obs.dtype) == (first_obs.shape, first_obs.dtype)
    assert (reward.shape, reward.dtype) == ((), jnp.float32)
    assert jnp.isfinite(reward)
    assert (terminated.shape, terminated.dtype) == ((), jnp.bool_)

    # Auto-reset is traced only: compiling it for every environment takes long.
    key, action = jax.eval_shape(lambda: (jax.random.key(0), action_space.sample(jax.random.key(0))))
    after = jax.eval_shape(env.step, key, state, action, params)
    assert jax.tree.map(jnp.shape, after[1]) == jax.tree.map(jnp.shape, state)
    assert after[4].dtype == jnp.bool_
    assert after[5]["final_observation"].shape == after[0].shape == obs.shape


@pytest.mark.parametrize("env_id", sorted(NEEDS_DATA))
def test_missing_data_is_one_clear_line(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline() -> None:
        raise OSError("offline")

    monkeypatch.setattr("gymnax.utils.load_mnist.load_mnist", offline)
    with pytest.raises(
        ConfigError, match=f"environment {env_id} cannot be built, it needs data that could not be loaded: offline"
    ):
        make_env(env_id)


def test_integer_rewards_of_gymnax_become_floats_of_the_same_value() -> None:
    env, params = make_env("UmbrellaChain-bsuite")
    theirs, _ = gymnax.make("UmbrellaChain-bsuite")

    @functools.partial(jax.jit, compiler_options=QUICK)
    @jax.vmap
    def rewards(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        _, state = theirs.reset_env(key, params)
        return tuple(e.step_env(key, state, jnp.int32(1), params)[2] for e in (env, theirs))

    ours, raw = rewards(jax.random.split(jax.random.key(1), 64))
    assert raw.dtype == jnp.int32
    assert ours.dtype == jnp.float32
    assert ours.tolist() == raw.tolist()
    assert len(set(ours.tolist())) > 1
