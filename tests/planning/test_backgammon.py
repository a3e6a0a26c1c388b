"""Search in backgammon, whose dice are chance, against the policy that guides it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest

import rljax
from rljax.collect.games.matches import play_match, policy_player
from rljax.planning import search_player


@pytest.mark.long
def test_search_beats_the_policy_that_guides_it_in_backgammon(figure: Any) -> None:
    """Self-play of 400,000 moves, then the search of 64 with that network against its greedy policy, 400 games."""
    pytest.importorskip("pgx")
    config = rljax.SelfPlayConfig(
        env="pgx:backgammon",
        num_envs=64,
        num_steps=64,
        num_minibatches=4,
        total_timesteps=400_000,
        learning_rate=1e-3,
        network={"hidden": [64, 64]},
    )
    state = jax.jit(rljax.make_train(config))(jax.random.key(0)).state
    agent = rljax.make_agent(config)
    game, params = rljax.make_env(config.env)

    @functools.partial(jax.jit, static_argnames="count")
    def results(state: Any, key: jax.Array, count: int) -> jax.Array:
        players = search_player(agent, state, 64), policy_player(agent, state, deterministic=True)
        return play_match(game, params, *players, key, count, max_steps=400).result

    points = np.concatenate([np.asarray(results(state, key, 100)) for key in jax.random.split(jax.random.key(1), 4)])
    points = points[np.isfinite(points)]
    share = float(np.mean(points > 0))
    half_width = 1.96 * np.sqrt(share * (1 - share) / len(points))
    figure(f"backgammon: search of 64 wins {share:.3f} +- {half_width:.3f} of {len(points)}, {points.mean():.2f} points a game")
    assert len(points) > 380
    assert share - half_width > 0.5
