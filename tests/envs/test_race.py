"""Races: each player's environment is the one that it would play alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.contract import check_contract
from rljax.core.errors import ConfigError
from rljax.envs import TMaze, make_env
from rljax.envs.race import Race


@pytest.mark.parametrize("turns", [True, False])
def test_players_play_their_own_environments_as_if_alone(turns: bool) -> None:
    """Against the environment stepped by itself with the same actions, until all episodes are over."""
    game, params = make_env("race:TMaze-v0", num_players=3, turns=turns, length=1, max_steps_in_episode=6)
    alone, own_params = make_env("TMaze-v0", length=1, max_steps_in_episode=6)
    step, own_step = jax.jit(game.step_env), jax.jit(alone.step_env)
    over_at: list[list[int]] = []
    for seed in range(6):
        obs, state = game.reset_env(jax.random.key(seed), params)
        envs = [jax.tree.map(lambda x, i=i: x[i], state.envs) for i in range(3)]
        over, order, rng = [False] * 3, [], np.random.default_rng(seed)
        for time in range(30):
            moves = np.asarray(game.to_move(state))
            expected = [p for p in range(3) if not over[p]]
            if turns:
                expected = [next(p for p in ((order[-1] + 1 + i) % 3 if order else i for i in range(3)) if not over[p])]
                order.append(expected[0])
            assert np.flatnonzero(moves).tolist() == expected
            action = jnp.asarray(rng.integers(0, 3, 3), jnp.int32)
            obs, state, reward, done, _ = step(jax.random.key(time), state, action, params)
            for p in range(3):
                if p not in expected:
                    assert float(reward[p]) == 0.0
                    continue
                own_obs, envs[p], own_reward, terminated, _ = own_step(jax.random.key(0), envs[p], action[p], own_params)
                over[p] = bool(terminated | alone.is_truncated(envs[p], own_params))
                np.testing.assert_array_equal(obs[p], own_obs)
                assert float(reward[p]) == float(own_reward)
            assert bool(done) == all(over)
            if done:
                over_at.append([time])
                break
    assert len(over_at) == 6


def test_relative_rewards_sum_to_zero() -> None:
    plain, params = make_env("race:CartPole-v1", num_players=3)
    game, _ = make_env("race:CartPole-v1", num_players=3, relative=True)
    _, state = plain.reset_env(jax.random.key(0), params)
    state = state._replace(over=jnp.array([False, True, False]))
    action = jnp.zeros(3, jnp.int32)
    own, between = (x.step_env(jax.random.key(0), state, action, params)[2] for x in (plain, game))
    assert own.tolist() == [1.0, 0.0, 1.0]
    assert between.tolist() == [0.5, -1.0, 0.5]


class Counted(rljax.Environment):
    """An episode ends with action 1; its metrics are what its player has done."""

    def observation_space(self, params: Any) -> rljax.Box:
        return rljax.Box(0.0, 9.0, (1,))

    def action_space(self, params: Any) -> rljax.Discrete:
        return rljax.Discrete(2)

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        return jnp.zeros(1), jnp.int32(0)

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        state = state + 1
        metrics = {"steps": state, "ended": action == 1}
        return jnp.float32(state)[None], state, jnp.float32(0.0), action == 1, {"metrics": metrics}


@pytest.mark.parametrize("turns", [True, False])
def test_metrics_are_the_mean_over_the_last_steps_of_all_players(turns: bool) -> None:
    """Also of those who wait, or who have finished before."""
    game: Any = Race(Counted(), 2, turns=turns)
    _, state = game.reset_env(jax.random.key(0), game.default_params)
    lengths, done = jnp.array([1, 3]), False
    while not done:
        action = (state.envs + 1 >= lengths).astype(jnp.int32)
        _, state, _, done, info = game.step_env(jax.random.key(0), state, action, game.default_params)
    assert {name: float(x) for name, x in info["metrics"].items()} == {"steps": 2.0, "ended": 1.0}
    assert check_contract(game, game.default_params) == []


def test_the_entry_result_of_an_environment_decides_no_race() -> None:
    class Told(TMaze):
        def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
            *rest, info = super().step_env(key, state, action, params)
            return *rest, {**info, "result": jnp.ones(())}

    game: Any = Race(Told())
    _, state = game.reset_env(jax.random.key(0), game.default_params)
    assert "result" not in game.step_env(jax.random.key(0), state, jnp.zeros(2, jnp.int32), game.default_params)[-1]


@pytest.mark.slow
def test_races_are_checked_and_bad_ones_refused() -> None:
    for name in ("race:Composite-v0", "race:Pendulum-v1", "race:HiddenBit-v0"):
        rljax.check_environment(*make_env(name))
    with pytest.raises(ConfigError, match="race: TicTacToe-v0 is a game already"):
        make_env("race:TicTacToe-v0")
    with pytest.raises(ConfigError, match="num_players = 1: expected at least 2"):
        make_env("race:TMaze-v0", num_players=1)
    with pytest.raises(ConfigError, match="unknown environment 'TMaze-v1'"):
        make_env("race:TMaze-v1")
    with pytest.raises(ConfigError, match="num_players"):
        make_env("race:TMaze-v0", num_playrs=3)
    assert Race(make_env("CartPole-v1")[0]).name == "race:CartPole-v1"
