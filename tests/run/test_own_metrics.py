"""Metrics of a step of the user's own: any scalars, with `episode/return` among them or not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.errors import ConfigError
from rljax.run.files.folder import load_checkpoint
from rljax.run.files.scores import best_seed
from rljax.run.search.sweep import sweep
from rljax.run.view.curves import curves
from tests.run.tiny_runs import TINY

CONFIG = TINY["ppo"].replace(eval_every=None)


def make_mine(config: Any) -> rljax.Agent:
    agent = rljax.make_agent(config)
    return agent._replace(step=lambda state: (agent.step(state)[0], {"train/mine": jnp.float32(0.5)}))


@pytest.mark.parametrize("seeds", [None, 2])
def test_fit_does_without_returns(seeds: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = rljax.fit(make_mine(CONFIG), seeds=seeds, run_dir=tmp_path / "run", progress=True)
    assert result.complete
    assert set(result.metrics) == {"train/mine"}
    assert "return - " in capsys.readouterr().out
    assert np.all(curves(tmp_path / "run", "train/mine").values == 0.5)
    assert best_seed(load_checkpoint(tmp_path / "run").meta) == 0
    rljax.save(tmp_path / "saved", make_mine(CONFIG), result.state, metrics=result.metrics)
    assert rljax.load_run(tmp_path / "saved", seed_index=None if seeds is None else "best").step == result.step


@pytest.mark.slow
def test_evaluations_choose_the_best_seed_where_they_are_known(tmp_path: Path) -> None:
    config = CONFIG.replace(eval_every=CONFIG.steps_per_iteration, eval_episodes=2)
    result = rljax.fit(make_mine(config), seeds=2, run_dir=tmp_path / "run")
    best = best_seed(load_checkpoint(tmp_path / "run").meta)
    assert best == int(np.argmax(result.metrics["eval/return"][:, -1]))


@pytest.mark.slow
def test_a_sweep_does_without_returns_of_training() -> None:
    result = sweep(CONFIG, {"gamma": [0.9]}, episodes=2, make_agent=make_mine)
    assert np.isfinite(result.returns).all()
    assert np.isnan(result.train_returns).all()


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (lambda state: state, "returned PPOState, expected (state, a dictionary of scalars)"),
        (lambda state: (state, {}), "returned no metrics, expected (state, a dictionary of scalars)"),
        (lambda state: (state, {"train/x": jnp.zeros(3)}), "the metric train/x has shape [3], expected a scalar"),
        (lambda state: (state, {"train/x": 0.0, 3: 0.0}), "a metric has the name 3, expected a string"),
    ],
)
def test_what_is_no_step_is_one_line(returned: Any, expected: str) -> None:
    agent = rljax.make_agent(CONFIG)._replace(step=returned)
    with pytest.raises(ConfigError, match=re.escape(expected)):
        jax.eval_shape(rljax.make_train(agent), jax.random.key(0))
    with pytest.raises(ConfigError, match=re.escape(expected)):
        rljax.fit(agent, seeds=2)


def test_metrics_of_other_dtypes_become_f32() -> None:
    agent = rljax.make_agent(CONFIG)
    mine = agent._replace(step=lambda state: (agent.step(state)[0], {"train/count": jnp.int32(3), "train/on": True}))
    metrics = jax.eval_shape(rljax.make_train(mine), jax.random.key(0)).metrics
    assert {x.dtype for x in metrics.values()} == {jnp.dtype("float32")}
