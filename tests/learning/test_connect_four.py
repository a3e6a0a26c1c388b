"""What AlphaZero learns of Connect Four: against random play, against a search, and against a perfect solver."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import rljax
from rljax.collect.games.matches import play_match
from rljax.core.games.versus import Player, random_player
from rljax.planning import search_player
from rljax.planning.mcts import searching
from rljax.run.reproduce.playing.games import best_moves
from rljax.run.reproduce.playing.solver import solved_positions, value_losing_rates

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

SIMULATIONS = 32


@pytest.mark.parametrize(
    ("moves", "random", "uct", "share", "share_of_phase"),
    # A tenth of the preset's budget, and a third of it; all of it comes to 100 %, 98 % and a third of the first rate.
    [(600_000, 0.9, 0.2, 0.8, 0.95), (2_000_000, 0.97, 0.65, 0.7, 0.85)],
)
def test_alphazero_beats_a_search_and_loses_value_less_and_less_often(
    moves: int, random: float, uct: float, share: float, share_of_phase: float, figure: Any
) -> None:
    config = rljax.load_config("connect_four_alphazero", total_timesteps=moves, eval_every=None)
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
    search = searching(rljax.make_mcts(game, params, num_simulations=100), game)

    def score(opponent: Player, games: int) -> tuple[float, float]:
        def play(state: Any, key: jax.Array) -> jax.Array:
            return play_match(game, params, search_player(agent, state, SIMULATIONS), opponent, key, games).result

        result = np.asarray(jax.jit(play)(state, jax.random.key(1)))
        return float((result > 0).mean()), float((result < 0).mean())

    against_random, against_uct = score(random_player, 400), score(search, 200)
    figure(f"Connect Four with {SIMULATIONS} simulations won, lost: random {against_random}, UCT of 100 {against_uct}")
    assert against_random[0] >= random
    assert against_uct[0] >= uct
    assert rates[-1]["all"] < share * rates[0]["all"]
    assert rates[-1]["all"] < rates[1]["all"]
    for phase, rate in rates[-1].items():
        assert rate < share_of_phase * rates[0][phase], phase
