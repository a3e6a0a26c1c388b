"""Exact reports of runs with averaged parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.league import exact_report
from rljax.league.training import game_init, game_parts
from tests.league.test_game_tree import Chain

ALONE: dict[str, Any] = {
    "num_envs": 4,
    "num_slots": 1,
    "num_minibatches": 1,
    "main_exploiters": 0,
    "league_exploiters": 0,
    "pool_size": 2,
    "network": {"hidden": [4]},
    "exploitability_every": 10_000,
}


@pytest.mark.slow
def test_a_report_has_the_exploitability_of_the_averaged_parameters() -> None:
    config = rljax.LeagueConfig(env="KuhnPoker-v0", average_decay=0.9, **ALONE)
    parts = game_parts(config)
    state = game_init(parts, jax.random.key(0))
    rng = np.random.default_rng(0)
    other = jax.tree.map(lambda x: x + rng.normal(size=x.shape).astype(np.float32), state.params)
    report = jax.jit(lambda s: exact_report(parts, s))
    without, with_other = report(state), report(state.replace(average_params=other))
    acting = report(state.replace(params=other))
    assert float(without.averaged) == float(without.last) == float(with_other.last)
    np.testing.assert_allclose(with_other.averaged, acting.last, rtol=1e-6)
    assert abs(float(with_other.averaged) - float(with_other.last)) > 0.01


class Meeting(Chain):
    """Only the last move counts, so both actions of the moves before lead to one state."""

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> tuple[Any, ...]:
        return super().step_env(key, state, jnp.where(state.time == self.limit - 1, action, 0), params)


@pytest.mark.slow
def test_where_paths_meet_mixtures_are_unknown_and_the_last_policy_is_known() -> None:
    """The first player moves last of three. It loses 1 if it gives up, and the other player cannot change that."""
    parts = game_parts(rljax.LeagueConfig(env=Meeting(3), **ALONE))
    report = jax.jit(lambda s: exact_report(parts, s))(game_init(parts, jax.random.key(0)))
    assert np.isnan([report.average, report.average_value, report.meta_nash, report.meta_nash_value]).all()
    assert -1.0 < float(report.last_value) < 0.0
    np.testing.assert_allclose(report.last, -report.last_value / 2, rtol=1e-5)
