"""IQL and AWAC: their losses against plain NumPy, transitions of a dataset, and batches of a dataset and a replay buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.common.soft_policy import Choice, policy_outputs
from rljax.algos.offline.parts import log_prob_of_choice, policy_action, policy_of
from rljax.algos.offline.training import Learner, no_noise, offline_agent
from rljax.collect.demos import DatasetInfo, observation_statistics, open_dataset
from rljax.collect.replay import NStep
from rljax.core.environments.spaces import Box, Discrete
from rljax.nn.outputs.actions import dreamer_head
from rljax.run.demos.writer import Episode, write_dataset
from tests.run.tiny_data import tiny_dataset

SMALL: dict[str, Any] = {
    "num_steps": 4,
    "batch_size": 32,
    "network": {"hidden": [8]},
    "total_timesteps": 40,
    "buffer_size": 64,
    "learning_starts": 8,
}
B = 32


def batch_of(parts: Any, state: Any) -> NStep:
    return rljax.dataset_batch(parts, state, open_dataset(parts.config.dataset).batches(B).read(0))


@pytest.fixture(scope="module", params=["CartPole-v1", "Pendulum-v1"])
def env(request: pytest.FixtureRequest) -> str:
    return request.param


def log_prob(outputs: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Log-probabilities by a categorical, or by a Gaussian with the mean tanh(m) and the deviation 0.9 sigmoid(s + 2) + 0.1."""
    if action.ndim == 1:
        x = outputs - outputs.max(-1, keepdims=True)
        return np.take_along_axis(x - np.log(np.exp(x).sum(-1, keepdims=True)), action[:, None], -1)[:, 0]
    mean, deviation = np.tanh(outputs[:, :1]), 0.9 / (1.0 + np.exp(-outputs[:, 1:] - 2.0)) + 0.1
    return (-0.5 * ((action - mean) / deviation) ** 2 - np.log(deviation) - 0.5 * np.log(2.0 * np.pi))[:, 0]


def q_by_hand(parts: Any, critics: Any, obs: Any, action: Any) -> np.ndarray:
    """The smaller value of both critics of the given actions, or of a Discrete of every action without any."""
    both = []
    for i in range(2):
        one = jax.tree.map(lambda x, i=i: x[i], critics)
        if isinstance(parts.policy.space, Box):
            both.append(np.asarray(parts.policy.critic.apply(one, obs, action))[:, 0])
        else:
            every = np.asarray(parts.policy.critic.apply(one, obs))
            both.append(every if action is None else np.take_along_axis(every, np.asarray(action)[:, None], -1)[:, 0])
    return np.stack(both)


def test_the_loss_of_iql_is_an_expectile_a_bootstrap_from_it_and_a_weighted_regression(env: str) -> None:
    config = rljax.IQLConfig(env=env, dataset=tiny_dataset(env), expectile=0.8, beta=2.0, max_weight=1.5, gamma=0.9, **SMALL)
    parts = rljax.iql_parts(config)
    state = jax.jit(lambda key: rljax.iql_init(parts, key))(jax.random.key(0))
    target = jax.tree.map(lambda x: 1.5 * x + 0.1, state.target_params)
    batch = batch_of(parts, state)
    graded = jax.jit(jax.value_and_grad(lambda params: rljax.iql_loss(parts, params, target, batch), has_aux=True))
    (loss, metrics), grads = graded(state.params)
    value, following = (np.asarray(parts.value.apply(state.params["value"], o))[:, 0] for o in (batch.obs, batch.next_obs))
    action = np.asarray(batch.action.action)
    error = q_by_hand(parts, target["critic"], batch.obs, action).min(0) - value
    assert (error < 0).any()
    assert (error > 0).any()
    expectile = np.where(error < 0, 0.2, 0.8) * error**2
    wanted = np.asarray(batch.reward) + np.asarray(batch.discount) * following
    squared = 0.5 * (q_by_hand(parts, state.params["critic"], batch.obs, action) - wanted) ** 2
    weight = np.minimum(np.exp(2.0 * error), 1.5)
    assert (weight == 1.5).any()
    regression = -weight * log_prob(np.asarray(policy_outputs(parts.policy, state.params, batch.obs)), action)
    assert float(metrics["train/state_value_loss"]) == pytest.approx(expectile.mean(), rel=1e-4)
    assert float(metrics["train/value_loss"]) == pytest.approx(squared.sum(0).mean(), rel=1e-4)
    assert float(metrics["train/policy_loss"]) == pytest.approx(regression.mean(), rel=1e-4)
    assert float(loss) == pytest.approx(expectile.mean() + squared.sum(0).mean() + regression.mean(), rel=1e-4)
    # Each loss trains its own network: the value does not follow the critics' errors, nor the critics the policy's.
    slope = np.mean(-2.0 * np.where(error < 0, 0.2, 0.8) * error)
    last = grads["value"]["params"]
    assert float(last[max(last)]["bias"][0]) == pytest.approx(slope, rel=1e-3)


def test_the_loss_of_awac_bootstraps_from_the_policy_and_weighs_by_its_advantage(env: str) -> None:
    config = rljax.AWACConfig(env=env, dataset=tiny_dataset(env), beta=0.5, gamma=0.9, **SMALL)
    parts = rljax.awac_parts(config)
    state = jax.jit(lambda key: rljax.awac_init(parts, key))(jax.random.key(0))
    target = jax.tree.map(lambda x: 1.5 * x + 0.1, state.target_params)
    batch, noise = batch_of(parts, state), rljax.awac_noise(parts, jax.random.key(1), ())
    loss, metrics = jax.jit(lambda params: rljax.awac_loss(parts, params, target, batch, noise))(state.params)
    here, there = (np.asarray(policy_outputs(parts.policy, state.params, o)) for o in (batch.obs, batch.next_obs))
    action = np.asarray(batch.action.action)

    def value(critics: Any, obs: Any, outputs: np.ndarray, z: Any) -> np.ndarray:
        if env == "CartPole-v1":
            p = np.exp(np.stack([log_prob(outputs, np.full(B, a)) for a in range(2)], -1))
            return (p * q_by_hand(parts, critics, obs, None).min(0)).sum(-1)
        deviation = 0.9 / (1.0 + np.exp(-outputs[:, 1:] - 2.0)) + 0.1
        drawn = np.clip(np.tanh(outputs[:, :1]) + deviation * np.asarray(z), -1.0, 1.0)
        return q_by_hand(parts, critics, obs, jnp.asarray(drawn)).min(0)

    next_noise, own_noise = (None, None) if noise is None else (noise[1], noise[0])
    wanted = np.asarray(batch.reward) + np.asarray(batch.discount) * value(target["critic"], batch.next_obs, there, next_noise)
    q = q_by_hand(parts, state.params["critic"], batch.obs, action)
    squared = 0.5 * (q - wanted) ** 2
    advantage = q.min(0) - value(state.params["critic"], batch.obs, here, own_noise)
    regression = -np.exp(0.5 * advantage) * log_prob(here, action)
    assert float(metrics["train/value_loss"]) == pytest.approx(squared.sum(0).mean(), rel=1e-4)
    assert float(metrics["train/policy_loss"]) == pytest.approx(regression.mean(), rel=1e-4)
    assert float(loss) == pytest.approx(squared.sum(0).mean() + regression.mean(), rel=1e-4)
    positive = parts._replace(config=config.replace(advantage_weights="positive"))
    _, metrics = jax.jit(lambda params: rljax.awac_loss(positive, params, target, batch, noise))(state.params)
    regression = -np.maximum(advantage, 0.0) * log_prob(here, action)
    assert float(metrics["train/policy_loss"]) == pytest.approx(regression.mean(), rel=1e-4)


def test_a_cut_episode_bootstraps_from_what_was_seen_after_its_last_step(tmp_path: Path) -> None:
    numbers, space = np.arange(1.0, 9.0, dtype=np.float32), Box(-2.0, 2.0, (1,))
    end = np.array([False, False, True])
    first = Episode(numbers[:4, None], numbers[:3, None] / 2.0 - 1.0, None, numbers[:3], end, end & False, game=0)
    second = Episode(numbers[4:, None], numbers[:3, None] / 2.0 - 1.0, None, 10.0 + numbers[:3], end & False, end, game=1)
    write_dataset(tmp_path / "data", DatasetInfo("BoxTarget-v0", {}, Box(0, 9, (1,)), space, False), [first, second])
    dataset = open_dataset(tmp_path / "data")
    parts = rljax.iql_parts(rljax.IQLConfig(env="Pendulum-v1", gamma=0.9, clip_rewards=12.5, **SMALL))
    state = jax.eval_shape(lambda key: rljax.iql_init(parts, key), jax.random.key(0))
    batch = rljax.dataset_batch(parts, state, dataset.batches(64).read(0))
    obs, after, discount = (np.asarray(x).reshape(64) for x in (batch.obs, batch.next_obs, batch.discount))
    np.testing.assert_array_equal(after, obs + 1.0)
    np.testing.assert_array_equal(discount, np.where(obs == 3.0, 0.0, np.float32(0.9)))
    assert {3.0, 7.0} <= set(obs.tolist())
    number = np.where(obs > 4.0, obs - 4.0, obs)
    np.testing.assert_array_equal(batch.reward, np.minimum(np.where(obs > 4.0, 10.0 + number, number), 12.5))
    np.testing.assert_allclose(np.asarray(batch.action.action)[:, 0], (number / 2.0 - 1.0) / 2.0, atol=1e-6)
    statistics = observation_statistics(dataset)
    np.testing.assert_allclose(statistics.mean, [numbers.mean()])
    np.testing.assert_allclose(statistics.var, [numbers.var()], rtol=1e-6)
    assert float(statistics.count) == 8


def test_one_function_is_compiled_for_several_seeds_and_then_for_one() -> None:
    """The first compilation computes the statistics of the dataset's observations, and later ones reuse them."""
    config = rljax.IQLConfig(dataset=tiny_dataset("CartPole-v1"), normalize_observations=True, **SMALL)
    train, keys = rljax.make_train(config), jax.random.split(jax.random.key(0), 2)
    several = jax.jit(jax.vmap(train))(keys).state.params
    for i, key in enumerate(keys):
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, atol=1e-6), several, jax.jit(train)(key).state.params)


def test_a_loop_of_ones_own_learns_what_the_agent_learns() -> None:
    config = rljax.IQLConfig(
        dataset=tiny_dataset("CartPole-v1"), reward_scale=0.1, scale_rewards=3.0, learning_rate=1e-2, **SMALL
    )
    agent, parts = rljax.make_agent(config), rljax.iql_parts(config)
    state = jax.jit(agent.init)(jax.random.key(0))
    expected, metrics = jax.jit(agent.step)(state)
    batches = open_dataset(config.dataset).batches(B, count=config.num_steps, seed=config.seed).read(0)
    update = jax.jit(lambda state, steps: rljax.iql_update(parts, state, rljax.dataset_batch(parts, state, steps)))
    found, losses = state, []
    for i in range(config.num_steps):
        found, each = update(found, jax.tree.map(lambda x, i=i: x[i], batches))
        losses.append(float(each["train/value_loss"]))
    assert np.mean(losses) == pytest.approx(float(metrics["train/value_loss"]), rel=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), found.params, expected.params)


def test_actions_of_the_policy_are_those_of_the_environment_and_back() -> None:
    space = Box(np.array([[-3.0, 0.0]]), np.array([[-1.0, 10.0]]), (1, 2))
    action = space.sample(jax.random.key(0)) + jnp.zeros((4, 1, 2))
    assert policy_action(space, action).shape == (4, 2)
    np.testing.assert_allclose(dreamer_head(space).to_env(policy_action(space, action)), action, rtol=1e-6)
    np.testing.assert_array_equal(policy_action(space, jnp.array([[[-3.5, 10.5]]])), [[-1.0, 1.0]])
    assert policy_action(Discrete(3), np.array([2, 0], np.int64)).dtype == jnp.int32


def test_an_action_that_the_mask_rules_out_teaches_nothing() -> None:
    parts = rljax.iql_parts(rljax.IQLConfig(env="MaskedBandit-v0", **SMALL))
    state = jax.jit(lambda key: rljax.iql_init(parts, key))(jax.random.key(0))
    actions = parts.policy.space.n
    mask = jnp.ones((2, actions), bool).at[1, 0].set(False)
    obs = jnp.ones((2, *parts.env.observation_space(parts.env_params).shape))
    choice = Choice(jnp.zeros(2, jnp.int32), mask)

    def losses(params: Any) -> tuple[jax.Array, jax.Array]:
        first, second = -log_prob_of_choice(parts.policy, policy_of(parts.policy, params, obs, mask), choice)
        return second, first

    (second, first), grads = jax.jit(jax.value_and_grad(losses, has_aux=True))(state.params)
    assert float(first) == pytest.approx(np.log(actions), rel=0.1)
    assert float(second) == 0.0
    assert all(np.all(np.asarray(x) == 0.0) for x in jax.tree.leaves(grads))


@pytest.fixture(scope="module")
def fives(tmp_path_factory: pytest.TempPathFactory) -> str:
    """40 steps of CartPole whose rewards are 5; in the environment they are 1."""
    path, end = tmp_path_factory.mktemp("fives") / "data", np.arange(20) == 19
    env, params = rljax.make_env("CartPole-v1")
    rows = np.zeros((21, 4), np.float32), np.zeros(20, np.int32), None, np.full(20, 5.0, np.float32), end, end & False
    info = DatasetInfo("CartPole-v1", {}, env.observation_space(params), env.action_space(params), False)
    write_dataset(path, info, [Episode(*rows, game=game) for game in range(2)])
    return str(path)


@pytest.mark.parametrize("share", [None, 0.25])
def test_online_a_batch_has_its_share_of_the_dataset_and_the_rest_from_the_buffer(share: float | None, fives: str) -> None:
    changes = {"num_envs": 2, "num_steps": 10, "batch_size": 2_000, "buffer_size": 4_000, "learning_starts": 30}
    config = rljax.IQLConfig(dataset=fives, online=True, dataset_share=share, reward_scale=2.0, **{**SMALL, **changes})
    parts = rljax.iql_parts(config)

    def update(state: Any, batch: NStep, _: Any) -> tuple[Any, Any]:
        is_new = jnp.any(batch.obs != 0, axis=-1)
        return state, {"train/reward": jnp.mean(batch.reward), "train/new": jnp.mean(is_new, dtype=jnp.float32)}

    learner = Learner(
        lambda key: rljax.iql_init(parts, key),
        update,
        lambda params, obs, mask, noise: jnp.argmax(noise, -1).astype(jnp.int32),
        lambda action: action,
        parts.policy.head.noise,
        no_noise,
        lambda *args: (jnp.zeros((), jnp.int32), None),
    )
    agent = offline_agent(parts, learner)
    step, state, found = jax.jit(agent.step), jax.jit(agent.init)(jax.random.key(0)), []
    for _ in range(3):
        state, metrics = step(state)
        found.append([float(metrics[f"train/{name}"]) for name in ("new", "reward", "dataset_share")])
        assert float(metrics["train/updates"]) == 10
    # Turns of two steps: the 15th is the first that finds 30 steps in the buffer.
    held = 2.0 * np.arange(1, 31)
    wanted = np.where(held < 30, 1.0, 40 / (40 + held) if share is None else share).reshape(3, 10).mean(1)
    for (new, reward, reported), each in zip(found, wanted, strict=True):
        assert reported == pytest.approx(each, rel=1e-5)
        assert new == pytest.approx(1.0 - each, abs=0.02)
        assert reward == pytest.approx(2.0 * (5.0 * each + 1.0 * (1.0 - each)), abs=0.15)


def test_bad_input_is_one_clear_line(tmp_path: Path) -> None:
    def message(config: Any) -> str:
        with pytest.raises(rljax.ConfigError) as error:
            rljax.fit(config, run_dir=tmp_path / "run")
        assert "\n" not in str(error.value)
        return str(error.value)

    config = rljax.IQLConfig(dataset=tiny_dataset("CartPole-v1"), **SMALL)
    assert "dataset = none: expected the folder of a dataset" in message(config.replace(dataset=None))
    assert "was recorded in CartPole-v1, but env = 'Acrobot-v1'" in message(config.replace(env="Acrobot-v1"))
    assert "no dataset there" in message(config.replace(dataset=str(tmp_path)))
    assert "IQL needs a Box or Discrete action space, not a MultiDiscrete" in message(config.replace(env="MultiDiscreteMatch-v0"))
    env, params = rljax.make_env("MaskedBandit-v0")
    spaces = env.observation_space(params), env.action_space(params)
    one = Episode(
        np.zeros((2, *spaces[0].shape), np.float32), np.ones(1, np.int32), None, np.ones(1), np.ones(1, bool), np.zeros(1, bool)
    )
    write_dataset(tmp_path / "data", DatasetInfo("MaskedBandit-v0", {}, *spaces, False), [one])
    assert "recorded without legal actions, but env = 'MaskedBandit-v0' is with them" in message(
        config.replace(env="MaskedBandit-v0", dataset=str(tmp_path / "data"))
    )
    assert not (tmp_path / "run").exists()
    with pytest.raises(rljax.ConfigError, match="normalize_rewards = true: expected false; reward_scale scales"):
        config.replace(normalize_rewards=True)
    with pytest.raises(rljax.ConfigError, match=r"^train_every = 2: expected 1 without online = true, which takes no steps$"):
        config.replace(train_every=2)
    assert config.replace(train_every=2, online=True).turns == 2
