"""AlphaZero: the observations and the rewards that it learns from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.collect.games.matches import play_match, policy_player
from rljax.collect.normalizers import RunningStatistics, init_statistics, normalize, return_deviation, update_statistics
from rljax.core.environments.spaces import Box
from rljax.core.games.game_wrappers import GameView, WrappedGame
from rljax.envs.tic_tac_toe import TicTacToe
from rljax.planning.alphazero import alphazero_collect, alphazero_init, alphazero_parts, alphazero_update
from rljax.run.reproduce.playing.perfect import perfect_player

TINY = rljax.AlphaZeroConfig(
    num_envs=8, num_steps=8, num_simulations=4, num_minibatches=2, total_timesteps=64 * 16, network={"hidden": [8]}
)


class Seen(GameView):
    """Tic-tac-toe whose players see their observations changed."""

    def __init__(self, change: Callable[[jax.Array], jax.Array]):
        super().__init__(TicTacToe())
        self.view = change

    def observation_space(self, params: Any) -> Box:
        return Box(-np.inf, np.inf, (18,))


class Paying(WrappedGame):
    """Tic-tac-toe for larger rewards."""

    def __init__(self, factor: float):
        super().__init__(TicTacToe())
        self.factor = factor

    def step_env(self, *arguments: Any) -> Any:
        obs, state, reward, *after = self.env.step_env(*arguments)
        return obs, state, self.factor * reward, *after


def assert_close(a: Any, b: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), a, b)


@pytest.mark.slow
def test_search_loss_and_actions_see_observations_standardised_by_the_statistics() -> None:
    """An iteration is that of a game whose players see standardised observations; its own ones enter the statistics after it."""
    rng = np.random.default_rng(0)
    mean, var = (jnp.asarray(rng.uniform(0.2, 2.0, 18), jnp.float32) for _ in range(2))
    statistics = RunningStatistics(mean, var, jnp.float32(640.0))
    config = TINY.replace(normalize_observations=True)
    by_hand = TINY.replace(env=Seen(lambda obs: normalize(statistics, obs)))

    @jax.jit
    def iteration(state: Any) -> Any:
        after, moves = alphazero_collect(alphazero_parts(config), state)
        return alphazero_update(alphazero_parts(config), after, moves), moves

    @jax.jit
    def iteration_by_hand(key: jax.Array) -> Any:
        state = alphazero_init(alphazero_parts(by_hand), key)
        after, moves = alphazero_collect(alphazero_parts(by_hand), state)
        return state, alphazero_update(alphazero_parts(by_hand), after, moves), moves

    agent, agent_by_hand = rljax.make_agent(config), rljax.make_agent(by_hand)
    state = agent.init(jax.random.key(0)).replace(obs_statistics=statistics)
    (after, metrics), moves = iteration(state)
    before, (expected, expected_metrics), expected_moves = iteration_by_hand(jax.random.key(0))
    assert_close(state.params, before.params)
    assert_close(moves.weights, expected_moves.weights)
    assert_close((after.params, metrics), (expected.params, expected_metrics))
    assert_close(after.obs_statistics, update_statistics(statistics, moves.obs))
    assert_close(agent.policy_and_value(state, moves.obs), agent_by_hand.policy_and_value(before, expected_moves.obs))
    actions = agent.act(state, moves.obs, None, jax.random.key(1), True)[0]
    np.testing.assert_array_equal(actions, agent_by_hand.act(before, expected_moves.obs, None, jax.random.key(1), True)[0])
    assert len(np.unique(actions)) > 1


def test_statistics_are_there_where_the_configuration_asks_for_them() -> None:
    shapes = jax.eval_shape(rljax.make_agent(TINY).init, jax.random.key(0))
    assert shapes.obs_statistics is None
    assert shapes.reward_statistics is None
    config = TINY.replace(normalize_observations=True, normalize_rewards=True)
    state = jax.eval_shape(rljax.make_agent(config).init, jax.random.key(0))
    expected = jax.eval_shape(lambda: init_statistics(jnp.zeros(18)))
    assert state.obs_statistics == expected
    assert state.reward_statistics.discounted_return.shape == (16,)


@pytest.mark.slow
def test_observations_far_from_zero_are_learned_from_if_they_are_normalised(figure: Any) -> None:
    config = rljax.AlphaZeroConfig(
        env=Seen(lambda obs: 1000.0 * obs + 500.0),
        num_envs=64,
        num_steps=8,
        num_simulations=8,
        num_epochs=4,
        network={"hidden": [64]},
        learning_rate=3e-3,
        total_timesteps=40_000,
    )

    def lost(normalized: bool) -> np.ndarray:
        own = config.replace(normalize_observations=normalized)

        def of_seed(key: jax.Array) -> jax.Array:
            player = policy_player(rljax.make_agent(own), rljax.make_train(own)(key).state, True)
            return jnp.mean(play_match(own.env, None, player, perfect_player(), jax.random.key(5), 200).result < 0)

        return np.asarray(jax.jit(jax.vmap(of_seed))(jax.random.split(jax.random.key(0), 2)))

    normalized, plain = lost(True), lost(False)
    figure(f"AlphaZero, tic-tac-toe seen as 500 and 1500: lost to a perfect player {normalized} normalised, {plain} as it is")
    assert normalized.mean() < 0.5
    assert plain.mean() > 0.6


@pytest.mark.slow
@pytest.mark.parametrize("how", ["scale_rewards", "normalize_rewards"])
def test_large_rewards_brought_to_the_size_of_small_ones_are_learned_from_as_those(how: str) -> None:
    """The search adds values to the game's rewards: values of the larger ones are larger, and its policies are the same."""
    factor = 64.0
    found = []
    for size in (1.0, factor):
        config = TINY.replace(env=Paying(size), **{how: 1.0 / size if how == "scale_rewards" else True})
        agent = rljax.make_agent(config)
        state = agent.init(jax.random.key(0))
        if how == "normalize_rewards":  # before the first iteration nothing is known of their size
            rewards = state.reward_statistics
            known = rewards.statistics.replace(var=jnp.float32(size**2 / 4), count=jnp.float32(128.0))
            state = state.replace(reward_statistics=rewards._replace(statistics=known))
        step = jax.jit(agent.step)
        for _ in range(3):
            state, metrics = step(state)
        found.append((state, metrics, agent.policy_and_value(state, jnp.eye(18))))
    (state, metrics, (logits, value)), (of_large, metrics_of_large, (same_logits, large_value)) = found
    assert_close(of_large.params, state.params)
    assert float(metrics["episode/count"]) > 0
    assert_close(metrics_of_large.pop("episode/return"), factor * metrics.pop("episode/return"))
    assert_close(metrics_of_large, metrics)
    assert_close(same_logits, logits)
    assert_close(large_value, factor * value)
    if how == "normalize_rewards":
        # Of a return that is 0 before the last move, and a win or a loss after it.
        assert 0.1 < float(return_deviation(state.reward_statistics)) < 0.9
        assert_close(return_deviation(of_large.reward_statistics), factor * return_deviation(state.reward_statistics))


def test_clipped_rewards_are_refused() -> None:
    told = (
        r"^clip_rewards = 0.5: a search adds whole rewards to values, .*; expected none; scale_rewards or normalize_rewards suit"
    )
    with pytest.raises(rljax.ConfigError, match=told):
        rljax.AlphaZeroConfig(clip_rewards=0.5)
