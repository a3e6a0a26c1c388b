"""All offline algorithms bootstrap from the right observations, refuse datasets that do not fit, and continue online."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.collect.demos import DatasetInfo, open_dataset
from rljax.run.chunks import iterations_before_learning
from rljax.run.demos.writer import Episode, write_dataset
from tests.run.tiny_data import tiny_dataset
from tests.run.tiny_runs import assert_same_state

SMALL: dict[str, Any] = {"num_steps": 4, "batch_size": 16, "network": {"hidden": [8]}, "total_timesteps": 40}
GAMMA = 0.9

ALL = [
    rljax.IQLConfig(env="Pendulum-v1", **SMALL),
    rljax.AWACConfig(env="CartPole-v1", **SMALL),
    rljax.TD3BCConfig(env="Pendulum-v1", **SMALL),
    rljax.CQLConfig(env="CartPole-v1", **SMALL),
]


def written(path: Path, env_id: str) -> tuple[Any, dict[bytes, tuple[Any, float, np.ndarray, bool]]]:
    """A dataset of an episode that terminated and one that was cut; and by observation the action, the reward, the observation
    after it, and whether that one has no value."""
    env, params = rljax.make_env(env_id)
    spaces, rng = (env.observation_space(params), env.action_space(params)), np.random.default_rng(0)
    episodes, steps = [], {}
    for game, terminated in enumerate((True, False)):
        obs = rng.normal(size=(4, *spaces[0].shape)).astype(np.float32)
        action = np.array([0, 1, 1], np.int32) if hasattr(spaces[1], "n") else rng.uniform(-2, 2, (3, 1)).astype(np.float32)
        reward, last = rng.normal(size=3).astype(np.float32), np.arange(3) == 2
        episodes.append(Episode(obs, action, None, reward, last & terminated, last & (not terminated), game=game))
        for t in range(3):
            steps[obs[t].tobytes()] = action[t], float(reward[t]), obs[t + 1], terminated and t == 2
    write_dataset(path, DatasetInfo(env_id, {}, *spaces, False), episodes)
    return open_dataset(path), steps


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 200_000}, "batch_size = 200000: expected at most the 100000 transitions of the buffer"),
        ({"buffer_size": 500}, "learning_starts = 1000: expected at most the 500 steps of the buffer"),
        ({"replay_memory": "host", "num_devices": 2, "num_envs": 2}, "replay_memory = 'host': expected 'device'"),
    ],
)
def test_only_online_runs_are_refused_because_of_their_buffer(changes: dict[str, Any], message: str) -> None:
    for config_class in (rljax.IQLConfig, rljax.CQLConfig):
        assert not config_class(dataset="data", **changes).online
        with pytest.raises(rljax.ConfigError, match=message):
            config_class(dataset="data", online=True, **changes)


def test_the_target_of_cql_has_the_value_after_a_cut_and_none_after_an_end(tmp_path: Path) -> None:
    dataset, steps = written(tmp_path / "data", "CartPole-v1")
    parts = rljax.cql_parts(rljax.CQLConfig(env="CartPole-v1", gamma=GAMMA, **SMALL))
    state = jax.jit(lambda key: rljax.cql_init(parts, key))(jax.random.key(0))
    state = state.replace(target_params=jax.tree.map(lambda x: 1.5 * x + 0.1, state.target_params))
    batch = rljax.dataset_batch(parts, state, dataset.batches(64).read(0))
    _, metrics = jax.jit(lambda state: rljax.cql_update(parts, state, batch))(state)

    here = np.stack([np.frombuffer(obs, np.float32) for obs in steps])
    there = np.stack([after for _, _, after, _ in steps.values()])
    q = lambda params, obs: np.asarray(parts.policy.module.apply(params, obs))  # noqa: E731
    own, chooser, judge = q(state.params, here), q(state.params, there), q(state.target_params, there)
    errors, seen = {}, [x.tobytes() for x in np.asarray(batch.obs)]
    for i, (obs, (action, reward, _, ended)) in enumerate(steps.items()):
        target = reward if ended else reward + GAMMA * float(judge[i, chooser[i].argmax()])
        errors[obs] = float(own[i, action]) - target
    assert set(seen) == set(steps)
    assert float(metrics["train/td_error"]) == pytest.approx(np.mean([abs(errors[obs]) for obs in seen]), rel=1e-4)
    assert float(metrics["train/value_loss"]) == pytest.approx(np.mean([0.5 * errors[obs] ** 2 for obs in seen]), rel=1e-4)


@pytest.mark.slow
def test_the_target_of_td3_bc_has_the_value_after_a_cut_and_none_after_an_end(tmp_path: Path) -> None:
    dataset, steps = written(tmp_path / "data", "Pendulum-v1")
    parts = rljax.td3_bc_parts(rljax.TD3BCConfig(env="Pendulum-v1", gamma=GAMMA, normalize_observations=False, **SMALL))
    state = jax.jit(lambda key: rljax.td3_bc_init(parts, key))(jax.random.key(0))
    batch = rljax.dataset_batch(parts, state, dataset.batches(64).read(0))
    found = np.asarray(rljax.td3_bc_target(parts, state.target_params, batch, jnp.zeros((64, 1))))
    there = np.stack([after for _, _, after, _ in steps.values()])
    action = jnp.tanh(parts.policy.actor.apply(state.target_params["actor"], there))
    critics = [jax.tree.map(lambda x, i=i: x[i], state.target_params["critic"]) for i in range(2)]
    values = [np.asarray(parts.policy.critic.apply(critic, there, action))[:, 0] for critic in critics]
    wanted = {}
    for i, (obs, (_, reward, _, ended)) in enumerate(steps.items()):
        wanted[obs] = reward if ended else reward + GAMMA * float(min(values[0][i], values[1][i]))
    seen = [x.tobytes() for x in np.asarray(batch.obs)]
    assert set(seen) == set(steps)
    np.testing.assert_allclose(found, [wanted[obs] for obs in seen], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("config", ALL[2:], ids=lambda config: config.algorithm)
def test_a_dataset_of_another_environment_is_refused(config: Any, tmp_path: Path) -> None:
    other = {"Pendulum-v1": "CartPole-v1", "CartPole-v1": "Pendulum-v1"}[config.env]
    with pytest.raises(rljax.ConfigError, match=f"was recorded in {other}, but env = '{config.env}'") as error:
        rljax.fit(config.replace(dataset=tiny_dataset(other)), run_dir=tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [pytest.param(config, marks=pytest.mark.slow) for config in ALL[:2]] + ALL[2:],
    ids=lambda config: config.algorithm,
)
def test_online_it_goes_on_with_the_networks_and_statistics_of_the_offline_run(config: Any, tmp_path: Path) -> None:
    config = config.replace(dataset=tiny_dataset(config.env), normalize_observations=True, learning_rate=0.0, tau=1.0)
    agent = rljax.make_agent(config)
    offline = jax.jit(agent.init)(jax.random.key(5))
    offline = offline.replace(
        params=jax.tree.map(lambda x: x + 0.125, offline.params),
        obs_statistics=jax.tree.map(lambda x: x + 3.0, offline.obs_statistics),
        updates=jnp.int32(40),
        iteration=jnp.int32(10),
    )
    rljax.save(tmp_path / "offline", agent, offline)
    online = rljax.begin_from(config.replace(online=True, num_envs=2, learning_starts=4, buffer_size=32), tmp_path / "offline")
    begun = jax.jit(online.init)(jax.random.key(0))
    targets = {name: offline.params[name] for name in offline.target_params}

    def assert_carried_over(state: Any) -> None:
        assert_same_state(state.params, offline.params)
        assert_same_state(state.target_params, targets)
        assert_same_state(state.obs_statistics, offline.obs_statistics)

    assert_carried_over(begun)
    assert [int(begun.updates), int(begun.iteration), int(begun.replay.size)] == [0, 0, 0]
    # Without a learning rate its steps change nothing of that: observations stay normalised as the networks know them.
    after, metrics = jax.jit(online.step)(begun)
    assert_carried_over(after)
    assert [int(after.updates), int(after.replay.size)] == [4, 4]
    assert 0.0 < float(metrics["train/dataset_share"]) < 1.0


def test_nothing_waits_for_the_replay_buffer_where_there_is_a_dataset() -> None:
    config = rljax.CQLConfig(env="CartPole-v1", online=True, num_envs=2, learning_starts=16, buffer_size=64, **SMALL)
    state = rljax.make_agent(config).init(jax.random.key(0))
    assert iterations_before_learning(config, state) == 2
    assert iterations_before_learning(config.replace(dataset="data"), state) == 0


def test_an_agent_is_saved_without_its_dataset(tmp_path: Path) -> None:
    """To act it needs none; so an own loop, or who loads a run from another machine, may keep it."""
    config = rljax.CQLConfig(dataset=str(tmp_path / "gone"), network={"hidden": [4]}, batch_size=4)
    agent = rljax.make_agent(config)
    rljax.save(tmp_path / "run", agent, jax.jit(agent.init)(jax.random.key(0)))
    again, _ = rljax.load(tmp_path / "run")
    assert again.config == config
    with pytest.raises(rljax.ConfigError, match="no dataset there"):
        rljax.fit(resume=tmp_path / "run")
