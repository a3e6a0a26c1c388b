"""What AlphaZero learns of Connect Four: against random play, against a search, and against a perfect solver."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import rljax
from rljax.collect.matches import play_match
from rljax.core.versus import Player, random_player
from rljax.planning import search_player
from rljax.planning.mcts import searching
from rljax.run.reproduce.games import best_moves
from rljax.run.reproduce.solver import solved_positions, value_losing_rates

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SIMULATIONS = 32


def test_alphazero_beats_a_search_and_loses_value_less_and_less_often(figure: Any) -> None:
    config = rljax.load_config("connect_four_alphazero", total_timesteps=2_000_000, eval_every=None)
    agent = rljax.make_agent(config)
    parts = 3
    positions = solved_positions(300)
    act = jax.jit(lambda state: best_moves(agent, positions, state))
    learn = jax.jit(lambda state: jax.lax.fori_loop(0, config.num_iterations // parts, lambda _, s: agent.step(s)[0], state))
    state = jax.jit(agent.init)(jax.random.key(0))
    rates = [value_losing_rates(positions, np.asarray(act(state)))]
    for _ in range(parts):
        state = learn(state)
        rates.append(value_losing_rates(positions, np.asarray(act(state))))
    for part, found in enumerate(rates):
        figure(f"Connect Four, moves that lose value after {part}/{parts} of {config.total_timesteps:,} moves: {found}")
    game, params = rljax.make_env(config.env)
    uct = searching(rljax.make_mcts(game, params, num_simulations=100), game)

    def score(opponent: Player, games: int) -> tuple[float, float]:
        def play(state: Any, key: jax.Array) -> jax.Array:
            return play_match(game, params, search_player(agent, state, SIMULATIONS), opponent, key, games).result

        result = np.asarray(jax.jit(play)(state, jax.random.key(1)))
        return float((result > 0).mean()), float((result < 0).mean())

    against_random, against_uct = score(random_player, 400), score(uct, 200)
    figure(f"Connect Four with {SIMULATIONS} simulations won, lost: random {against_random}, UCT of 100 {against_uct}")
    # A third of the preset's budget, which comes to 100 %, 96 % and a third of the first rate.
    assert against_random[0] >= 0.97
    assert against_uct[0] >= 0.65
    assert rates[-1]["all"] < 0.7 * rates[0]["all"]
    assert rates[-1]["all"] < rates[1]["all"]
    for phase, rate in rates[-1].items():
        assert rate < 0.85 * rates[0][phase], phase
