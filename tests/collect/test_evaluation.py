"""Evaluation plays whole episodes, one per slot, and sees what training sees but the true rewards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import rljax
from rljax import PPOConfig, evaluate, make_agent, make_train
from rljax.algos.common.training import train_iteration
from rljax.collect.evaluation import play_episodes
from rljax.collect.normalizers import RunningStatistics
from rljax.core.agent import Agent
from rljax.core.environments.environment import Environment
from rljax.core.environments.spaces import Box, Discrete


@struct.dataclass
class TwoState:
    long: jax.Array
    pay: jax.Array
    time: jax.Array


class TwoLengths(Environment):
    """Half of the episodes last 2 steps, half 50; reward 1 per step. The observation says which: 99 or 101."""

    def observation_space(self, params: Any) -> Box:
        return Box(99.0, 101.0, (1,))

    def action_space(self, params: Any) -> Discrete:
        return Discrete(2)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, TwoState]:
        long_key, pay_key = jax.random.split(key)
        state = TwoState(jax.random.bernoulli(long_key), jax.random.uniform(pay_key), jnp.zeros((), jnp.int32))
        return self._obs(state), state

    def _obs(self, state: TwoState) -> jax.Array:
        return jnp.where(state.long, 101.0, 99.0)[None]

    def step_env(self, key: jax.Array, state: TwoState, action: jax.Array, params: Any) -> Any:
        state = state.replace(time=state.time + 1)
        return self._obs(state), state, self._reward(state, action), state.time >= jnp.where(state.long, 50, 2), {}

    def _reward(self, state: TwoState, action: jax.Array) -> jax.Array:
        return jnp.ones(())


class TwoPays(TwoLengths):
    """The reward per step is drawn as an episode begins, so no two episodes have one return."""

    def _reward(self, state: TwoState, action: jax.Array) -> jax.Array:
        return state.pay


class Tell(TwoLengths):
    """One step; reward 1 for telling the kind of episode, else 0."""

    def step_env(self, key: jax.Array, state: TwoState, action: jax.Array, params: Any) -> Any:
        return self._obs(state), state, jnp.where((action == 1) == state.long, 1.0, 0.0), jnp.asarray(True), {}


class Endless(TwoLengths):
    """An episode that begins well ends with action 1 only; another ends at once. Reward 1 per step."""

    def _obs(self, state: TwoState) -> jax.Array:
        return jnp.ones(1)

    def step_env(self, key: jax.Array, state: TwoState, action: jax.Array, params: Any) -> Any:
        return self._obs(state), state, jnp.ones(()), (action == 1) | ~state.long, {}


class Fixed(nn.Module):
    """A policy whose outputs are a given function of the observation; one parameter, so that there is something to train."""

    outputs: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        bias = self.param("bias", nn.initializers.zeros, ())
        return self.outputs(obs) + bias, jnp.zeros(obs.shape[:-1])


def threshold(obs: jax.Array) -> jax.Array:
    """Action 1 where the observation is positive."""
    return jnp.concatenate([-obs, obs], axis=-1)


def fixed_agent(env: Any, outputs: Callable[[jax.Array], jax.Array] = threshold, **changes: Any) -> tuple[Agent, Any]:
    config = PPOConfig(env=env, num_envs=2, num_steps=4, num_minibatches=1, network=Fixed(outputs), **changes)
    agent = make_agent(config)
    return agent, jax.jit(agent.init)(jax.random.key(0))


def test_every_slot_plays_one_whole_episode_so_short_ones_count_no_more() -> None:
    agent, state = fixed_agent(TwoLengths())
    results = jax.jit(lambda key: play_episodes(agent, state, key, 400))(jax.random.key(1))
    returns, lengths = np.asarray(results.returns), np.asarray(results.lengths)
    assert returns.shape == lengths.shape == (400,)
    assert set(returns) == {2.0, 50.0}
    np.testing.assert_array_equal(returns, lengths)
    # 4 standard deviations; the first 400 episodes to finish would hold one long one in 26.
    assert abs(np.mean(returns == 50) - 0.5) < 0.1


def test_a_slots_result_stays_that_of_its_first_episode_while_others_go_on() -> None:
    agent, state = fixed_agent(TwoPays())
    key = jax.random.key(8)
    early, late = jax.jit(lambda key: tuple(play_episodes(agent, state, key, 32, max_steps=n) for n in (2, 50)))(key)
    short = np.asarray(early.ended)
    assert np.all(late.ended)
    assert 4 < short.sum() < 28
    np.testing.assert_array_equal(late.returns[short], early.returns[short])
    np.testing.assert_array_equal(late.lengths, np.where(short, 2, 50))
    assert len(np.unique(late.returns)) == 32


def test_an_episode_that_does_not_end_within_max_steps_counts_with_its_return_so_far() -> None:
    agent, state = fixed_agent(TwoLengths())
    results = jax.jit(lambda key: play_episodes(agent, state, key, 32, max_steps=7))(jax.random.key(1))
    returns = np.asarray(results.returns)
    np.testing.assert_array_equal(results.lengths, returns)
    np.testing.assert_array_equal(returns, np.where(results.ended, 2.0, 7.0))
    assert 4 < np.sum(results.ended) < 28


@pytest.mark.slow
def test_a_policy_whose_good_episodes_never_end_has_the_better_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Action 1 ends the episode at once with reward 1, action 0 goes on at 1 a step; half of the episodes offer no choice."""
    monkeypatch.setattr(play_episodes, "__kwdefaults__", {**play_episodes.__kwdefaults__, "max_steps": 20})
    returns = {}
    for name, outputs in (("ends", threshold), ("goes on", lambda obs: threshold(-obs))):
        agent, state = fixed_agent(Endless(), outputs, eval_every=8, eval_episodes=64, total_timesteps=8)
        _, metrics = jax.jit(lambda state, agent=agent: train_iteration(agent, state, jnp.int32(0)))(state)
        returns[name] = float(metrics["eval/return"])
        assert float(metrics["eval/length"]) == pytest.approx(returns[name])
        assert float(metrics["eval/count"]) == pytest.approx(64 if name == "ends" else 32, abs=16 if name == "goes on" else 0)
    assert returns["ends"] == 1.0
    assert 5.0 < returns["goes on"] < 16.0


@pytest.mark.slow
def test_greedy_takes_the_mode_and_sampling_follows_the_probabilities() -> None:
    # Right with probability 1 / (1 + exp(-1)) = 0.731, and right is the mode.
    agent, state = fixed_agent(Tell(), lambda obs: threshold(obs - 100.0) / 2.0)
    greedy, sampled = jax.jit(
        lambda key: tuple(evaluate(agent, state, key, 2000, deterministic=greedy) for greedy in (True, False))
    )(jax.random.key(2))
    np.testing.assert_array_equal(greedy, 1.0)
    assert abs(np.mean(sampled) - 1 / (1 + np.exp(-1))) < 0.04


def test_returns_are_of_true_rewards_whatever_training_does_to_them() -> None:
    agent, state = fixed_agent(TwoLengths(), clip_rewards=0.1, normalize_rewards=True)
    returns = jax.jit(lambda key: evaluate(agent, state, key, 8))(jax.random.key(1))
    assert set(np.asarray(returns)) == {2.0, 50.0}


def test_the_policy_sees_observations_normalized_by_the_frozen_statistics_of_training() -> None:
    agent, state = fixed_agent(Tell(), normalize_observations=True)

    @jax.jit
    def mean_return(mean: jax.Array) -> jax.Array:
        statistics = RunningStatistics(mean, jnp.ones(1), jnp.ones(()))
        return jnp.mean(evaluate(agent, state.replace(obs_statistics=statistics), jax.random.key(3), 400))

    assert mean_return(jnp.full(1, 100.0)) == 1.0
    # With mean 0 every observation looks positive, and would not if evaluation went on learning the mean.
    assert mean_return(jnp.zeros(1)) == pytest.approx(0.5, abs=0.1)


@pytest.mark.slow
def test_illegal_actions_are_never_taken() -> None:
    # MaskedBandit pays -1 for an illegal arm; arm 4 never is legal, and this policy wants nothing else.
    agent, state = fixed_agent("MaskedBandit-v0", lambda obs: jnp.zeros((*obs.shape[:-1], 5)).at[..., 4].set(50.0))
    greedy, sampled = jax.jit(
        lambda key: tuple(evaluate(agent, state, key, 64, deterministic=greedy) for greedy in (True, False))
    )(jax.random.key(4))
    for returns in (greedy, sampled):
        assert jnp.all(returns >= 0.0)
        assert jnp.any(returns > 0.0)


def test_time_limit_and_flattened_observations_hold_in_evaluation_too() -> None:
    agent, state = fixed_agent(TwoLengths(), time_limit=7, flatten_observations=True)
    returns = jax.jit(lambda key: evaluate(agent, state, key, 16))(jax.random.key(1))
    assert set(np.asarray(returns)) == {2.0, 7.0}


@pytest.mark.slow
def test_evaluation_is_a_pure_function_of_its_key_the_same_under_vmap() -> None:
    agent, state = fixed_agent(Tell(), lambda obs: threshold(obs - 100.0) / 2.0)

    def run(key: jax.Array) -> jax.Array:
        return evaluate(agent, state, key, 32, deterministic=False)

    keys = jax.random.split(jax.random.key(5), 3)
    single = jax.jit(run)
    one_by_one = jnp.stack([single(key) for key in keys])
    assert len(np.unique(one_by_one, axis=0)) == 3
    np.testing.assert_array_equal(one_by_one[0], single(keys[0]))
    np.testing.assert_array_equal(jax.jit(jax.vmap(run))(keys), one_by_one)
    assert jax.eval_shape(run, jax.random.PRNGKey(5)).shape == (32,)


class TellAtRandom(Tell):
    """The same, said to be a task whose best policy is random."""

    best_is_random = True


def outputs_of_tell(obs: jax.Array) -> jax.Array:
    return threshold(obs - 100.0) / 2.0


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"time_limit": 5, "flatten_observations": True, "clip_rewards": 1.0}])
def test_samples_are_judged_where_the_best_policy_is_random_whatever_wraps_the_environment(changes: dict[str, Any]) -> None:
    key = jax.random.key(2)
    for env, greedy in ((Tell(), True), (TellAtRandom(), False)):
        agent, state = fixed_agent(env, outputs_of_tell, **changes)
        unless_given, given = jax.jit(
            lambda a=agent, s=state, g=greedy: (evaluate(a, s, key, 200), evaluate(a, s, key, 200, deterministic=g))
        )()
        np.testing.assert_array_equal(unless_given, given)
        assert bool(jnp.all(unless_given == 1.0)) == greedy


@pytest.mark.slow
@pytest.mark.parametrize("env", [Tell(), TellAtRandom()])
def test_training_logs_the_return_of_samples_where_the_best_policy_is_random(env: Any) -> None:
    config = PPOConfig(
        env=env, num_envs=2, num_steps=4, num_minibatches=1, total_timesteps=8, network=Fixed(outputs_of_tell),
        learning_rate=0.0, eval_every=8, eval_episodes=2000,
    )  # fmt: skip
    logged = float(jax.jit(make_train(config))(jax.random.key(0)).metrics["eval/return"][0])
    # Right with probability 1 / (1 + exp(-1)), and right is the mode.
    assert logged == pytest.approx(1 / (1 + np.exp(-1)) if env.best_is_random else 1.0, abs=0.04)


@pytest.mark.slow
def test_evaluations_of_games_count_the_distinct_ones() -> None:
    """A greedy agent always shows the same hand on a seat, so only the opponent's three make a difference: six games."""
    agent = make_agent(rljax.SelfPlayConfig(env="BiasedRPS-v0", num_envs=8, num_steps=8, num_minibatches=2))
    results = jax.jit(lambda key: play_episodes(agent, agent.init(key), key, 64, deterministic=True))(jax.random.key(0))
    assert results.distinct is not None
    assert int(results.distinct) == 2 * 3


def test_more_episodes_than_memory_are_one_line_before_anything_is_compiled() -> None:
    agent = rljax.make_agent(rljax.PPOConfig(network={"hidden": [4]}))
    state = jax.eval_shape(agent.init, jax.random.key(0))
    with pytest.raises(
        rljax.ConfigError, match=r"num_episodes = 2000000000: playing so many at once needs \d+\.\d GB, this device"
    ):
        jax.eval_shape(lambda s: rljax.evaluate(agent, s, jax.random.key(0), 2_000_000_000), state)


def test_a_state_that_is_not_the_agents_is_one_line(tmp_path: Path) -> None:
    config = rljax.PPOConfig(num_envs=2, num_steps=8, num_minibatches=1, network={"hidden": [8]})
    agent = rljax.make_agent(config)
    states = jax.vmap(agent.init)(jax.random.split(jax.random.key(0), 3))
    one = jax.tree.map(lambda x: x[0], states)
    other = rljax.make_agent(rljax.DQNConfig(num_envs=2, buffer_size=2000, network={"hidden": [8]})).init(jax.random.key(0))
    for state in (states, other, None, rljax.TrainResult(one, {})):
        for look in (
            lambda s: rljax.evaluate(agent, s, jax.random.key(1), 2),
            lambda s: rljax.record(agent, s, tmp_path / "a.gif", key=jax.random.key(1), max_steps=2),
        ):
            with pytest.raises(rljax.ConfigError, match="the state does not fit the agent: expected one state"):
                look(state)
    assert rljax.evaluate(agent, one, jax.random.key(1), 2, max_steps=3).tolist() == [3.0, 3.0]
    with pytest.raises(rljax.ConfigError, match="max_steps = 0"):
        rljax.evaluate(agent, one, jax.random.key(1), 2, max_steps=0)
    for wrong in ("False", 0):
        for look in (
            lambda: rljax.evaluate(agent, one, jax.random.key(1), 2, deterministic=wrong),  # noqa: B023
            lambda: rljax.record(agent, one, tmp_path / "a.gif", key=jax.random.key(1), deterministic=wrong),  # noqa: B023
        ):
            with pytest.raises(rljax.ConfigError, match=f"^deterministic = {wrong!r}: expected True, False or None$"):
                look()
    assert rljax.evaluate(agent, one, jax.random.key(1), 2, max_steps=3, deterministic=np.bool_(True)).tolist() == [3.0, 3.0]


def test_what_is_no_agent_is_one_line(tmp_path: Path) -> None:
    agent = rljax.make_agent(rljax.PPOConfig(env="CartPole-v1", num_envs=2, network={"hidden": [4]}))
    for given in (agent.config, "runs/a"):
        said = f"^agent: expected an agent, as make_agent\\(config\\) returns it, got {type(given).__name__}$"
        with pytest.raises(rljax.ConfigError, match=said):
            rljax.evaluate(given, agent, jax.random.key(0))
        with pytest.raises(rljax.ConfigError, match=said):
            rljax.record(given, agent, tmp_path / "a.gif", key=jax.random.key(0))
