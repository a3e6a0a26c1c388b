"""Numbers of the environment's own: `info["metrics"]` at the last step of each episode is logged as `env/NAME`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import rljax
from rljax.envs import TicTacToe
from rljax.run.files.records import aggregate_seeds, summarize
from tests.run.tiny_runs import TINY


@struct.dataclass
class State:
    length: jax.Array
    total: jax.Array
    time: jax.Array


class Told(rljax.Environment):
    """Episodes of 1 to 9 steps with random rewards; the metrics say their lengths and returns, so that both are known twice."""

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        state = State(jax.random.randint(key, (), 1, 10), jnp.zeros(()), jnp.zeros((), jnp.int32))
        return jnp.zeros(2), state

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        reward = jax.random.uniform(key)
        state = State(state.length, state.total + reward, state.time + 1)
        metrics = {"time": state.time, "total": state.total, "odd": state.time % 2 == 1, "count": 2.0}
        return jnp.zeros(2), state, reward, state.time >= state.length, {"metrics": metrics}

    def observation_space(self, params: Any) -> Any:
        return rljax.Box(0.0, 1.0, (2,))

    def action_space(self, params: Any) -> Any:
        return rljax.Discrete(2)


class Steered(Told):
    def action_space(self, params: Any) -> Any:
        return rljax.Box(-1.0, 1.0, (1,))


class ToldGame(TicTacToe):
    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        *result, _ = super().step_env(key, state, action, params)
        return *result, {"metrics": {"time": result[1].time, "total": result[2][0], "count": 2.0}}


GAMES = ("self_play", "league", "alphazero")


def config_of(name: str) -> Any:
    """A tiny run of an algorithm, without evaluations."""
    env = ToldGame() if name in GAMES else Steered() if name == "sac" else Told()
    return TINY[name].replace(env=env, eval_every=None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "ppo",
        "self_play",
        pytest.param("dqn", marks=pytest.mark.slow),
        pytest.param("dreamer", marks=pytest.mark.long),
        pytest.param("alphazero", marks=pytest.mark.long),
    ],
)
def test_metrics_are_means_over_the_last_steps_of_episodes(name: str) -> None:
    """One learner for each way in which steps are collected. Of a whole game the sum of rewards is that of its last step."""
    agent = rljax.make_agent(config_of(name))
    step = jax.jit(agent.step)
    state, ended = agent.init(jax.random.key(0)), 0.0
    for _ in range(3):
        state, metrics = step(state)
        np.testing.assert_allclose(metrics["env/time"], metrics["episode/length"], rtol=1e-6)
        np.testing.assert_allclose(metrics["env/total"], metrics["episode/return"], rtol=1e-4, atol=1e-6)
        ended += float(metrics["episode/count"])
    assert ended > 3
    assert metrics["env/count"].dtype == jnp.float32
    assert float(metrics["env/count"]) == 2.0
    if "env/odd" in metrics:
        assert 0.0 < float(metrics["env/odd"]) < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alphazero", "dqn", "impala", "pqn", "sac"])
def test_other_learners_log_them(name: str) -> None:
    agent = rljax.make_agent(config_of(name))
    metrics = jax.eval_shape(lambda key: agent.step(agent.init(key))[1], jax.random.key(0))
    assert {"env/time", "env/total", "env/count"} <= set(metrics)


@pytest.mark.slow
def test_they_reach_the_records_and_curves(tmp_path: Path) -> None:
    rljax.fit(config_of("ppo"), run_dir=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    records = [line for line in lines if "episode/length" in line]
    assert records
    for record in records:
        assert record["env/time"] == pytest.approx(record["episode/length"])
        assert record["env/count"] == 2.0


def test_windows_weigh_them_by_episodes_whatever_their_names() -> None:
    nan = np.nan
    rows = {name: np.array(column)[:, None] for name, column in
            {"episode/count": (1.0, 0.0, 3.0), "env/won": (1.0, nan, 0.0), "env/count": (5.0, nan, 1.0)}.items()}  # fmt: skip
    assert summarize(rows) == {"episode/count": [4.0], "env/won": [0.25], "env/count": [2.0]}
    assert aggregate_seeds("env/count", np.array([1.0, 3.0])) == 2.0
