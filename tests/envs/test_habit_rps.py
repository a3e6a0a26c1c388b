"""HabitRPS: rounds in plain Python, and what knowing a habit is worth."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algos.opponents import against_scripted
from rljax.core.errors import ConfigError
from rljax.envs import make_env
from rljax.envs.habit_rps import SIGNS
from tests.envs.play import play, standard_error

BEATS = {0: 2, 1: 0, 2: 1}


def test_rounds_equal_plain_python() -> None:
    game, params = make_env("HabitRPS-v0", num_rounds=3)
    obs, state = game.reset_env(jax.random.key(0), params)
    np.testing.assert_array_equal(obs, [[0, 0, 0, 0, 0, 0, 1]] * 2)
    for time in range(3):
        for a in range(3):
            for b in range(3):
                obs, after, reward, over, _ = game.step_env(jax.random.key(0), state, jnp.array([a, b]), params)
                won = int(BEATS[a] == b) - int(BEATS[b] == a)
                assert reward.tolist() == [won, -won]
                left = 1 - (time + 1) / 3
                expected = [[*np.eye(3)[a], *np.eye(3)[b], left], [*np.eye(3)[b], *np.eye(3)[a], left]]
                np.testing.assert_allclose(obs, expected, atol=1e-6)
                assert bool(over) == (time == 2)
        state = after


@pytest.mark.slow
def test_knowing_a_habit_and_remembering_the_last_sign_are_worth_what_is_stated() -> None:
    game, params = make_env("HabitRPS-v0")
    env = against_scripted(game, params, SIGNS)
    knows = play(
        env, params, lambda _noise, _obs, state: state.carry[0] % 3, 20
    )  # opponent 1 favours rock, which paper, 1, beats
    remembers = play(env, params, lambda _noise, obs, _state: (jnp.argmax(obs[3:6]) + 1) % 3, 20)
    assert set(knows.first_state.carry[:, 0].tolist()) == {0}
    assert set(knows.state.carry[:, -1].ravel().tolist()) == {1, 2, 3}
    assert knows.reward[:, 1:].mean() == pytest.approx(0.4, abs=4 * standard_error(knows.reward[:, 1:].mean(1)))
    after_first = remembers.reward[:, 1:]
    assert after_first.mean() == pytest.approx(0.16, abs=4 * standard_error(after_first.mean(1)))


def test_an_unknown_scripted_player_is_one_line() -> None:
    game, params = make_env("HabitRPS-v0")
    with pytest.raises(ConfigError, match="scripted player 'rok': did you mean 'rock'"):
        against_scripted(game, params, ["rok"])
    with pytest.raises(ConfigError, match="scripted player 'rock': TicTacToe-v0 has none"):
        against_scripted(*make_env("TicTacToe-v0"), ["rock"])
