"""Runs that read a dataset in their compiled step: exact resume, the share of waiting, and data that vanishes or changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rljax
from rljax.algos.common.feed import make_feed
from rljax.core.agent import Agent
from rljax.core.errors import ConfigError, TrainingError
from tests.collect.demos.made import made

CONFIG = rljax.PPOConfig(
    env="CartPole-v1", num_envs=2, num_steps=4, num_minibatches=1, num_epochs=1, total_timesteps=8 * 40, network={"hidden": [4]}
)


def reading(folder: Path, budget: int = 2**30, iterations: int = 40) -> Agent:
    """An agent whose metrics have what it read in each iteration."""
    dataset = rljax.open_dataset(folder, budget=budget)
    agent = rljax.make_agent(CONFIG.replace(total_timesteps=8 * iterations))
    feed = make_feed(dataset.windows(3, 4))

    def step(state: Any) -> Any:
        after, metrics = agent.step(state)
        return after, metrics | {"data/sum": feed(state.iteration).reward.sum()}

    return agent._replace(step=step, own="reading", data=lambda: dataset.digest)


def sums(folder: Path, count: int) -> list[float]:
    windows = rljax.open_dataset(folder).windows(3, 4)
    return [float(windows.read(number).reward.sum()) for number in range(count)]


@pytest.mark.slow
def test_fit_and_make_train_read_the_same_and_a_resumed_run_goes_on(tmp_path: Path) -> None:
    made(tmp_path / "data")
    expected = sums(tmp_path / "data", 40)
    trained = jax.jit(rljax.make_train(reading(tmp_path / "data")))(jax.random.key(0))
    np.testing.assert_allclose(trained.metrics["data/sum"], expected, rtol=1e-5, atol=1e-5)
    first = rljax.fit(reading(tmp_path / "data", iterations=17), run_dir=tmp_path / "run")
    np.testing.assert_allclose(first.metrics["data/sum"], expected[:17], rtol=1e-5, atol=1e-5)
    rest = rljax.fit(reading(tmp_path / "data"), run_dir=tmp_path / "run", resume=True)
    np.testing.assert_allclose(rest.metrics["data/sum"], expected[17:], rtol=1e-5, atol=1e-5)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    waits = [record["perf/data_wait"] for record in records if "perf/data_wait" in record]
    assert len(waits) == len([record for record in records if "perf/steps_per_second" in record])
    assert all(0.0 <= wait <= 1.0 for wait in waits)


@pytest.mark.slow
def test_seeds_of_a_run_read_the_same_data(tmp_path: Path) -> None:
    made(tmp_path / "data")
    result = rljax.fit(reading(tmp_path / "data", iterations=6), seeds=3)
    np.testing.assert_allclose(result.metrics["data/sum"], [sums(tmp_path / "data", 6)] * 3, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_run_is_not_resumed_with_other_data(tmp_path: Path) -> None:
    made(tmp_path / "data")
    rljax.fit(reading(tmp_path / "data", iterations=3), run_dir=tmp_path / "run")
    made(tmp_path / "other", seed=1)
    with pytest.raises(ConfigError, match="its dataset has changed since the run began"):
        rljax.fit(reading(tmp_path / "other"), run_dir=tmp_path / "run", resume=True)


@pytest.mark.slow
def test_data_that_vanishes_stops_a_run_with_one_line(tmp_path: Path) -> None:
    made(tmp_path / "data", 60)
    agent = reading(tmp_path / "data", budget=0, iterations=4000)

    def remove(step: int, _: Any) -> None:
        for file in (tmp_path / "data" / "shards").rglob("reward.npy"):
            file.unlink()

    with pytest.raises(TrainingError, match=r"training stopped: .*reward\.npy: cannot be read any more") as caught:
        rljax.fit(agent, run_dir=tmp_path / "run", callback=remove)
    assert "the last good checkpoint is" in str(caught.value)
    assert "\n" not in str(caught.value)
