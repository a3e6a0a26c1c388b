"""Experiments with presets of one agent: do they solve their tasks, and after how many steps?"""

from __future__ import annotations

from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.common.training import make_train
from rljax.collect.environments import make_evaluation_env
from rljax.core.config import load_config
from rljax.envs import make_env
from rljax.run.bench.timing import time_interleaved
from rljax.run.reproduce.report import Report, Trained, first_step

COMPARED = (
    "cartpole_ppo",
    "cartpole_impala",
    "cartpole_pqn",
    "cartpole_dqn",
    "acrobot_ppo",
    "acrobot_dqn",
    "pendulum_ppo",
    "pendulum_sac",
)
"""Presets of tasks that several algorithms have one for."""

LAG_STEPS = 200_000
TUNED_STEPS = 10_000


def solves(report: Report, preset: str, threshold: float | None = None) -> Trained:
    """Greedy mean returns; `threshold` is the environment's unless given."""
    run = report.trained(preset, eval_every=None)
    report.measured("return", report.returns(run), run.threshold if threshold is None else threshold)
    return run


def holds(report: Report, preset: str, threshold: float | None = None) -> None:
    """Greedy mean returns at the end, and the least of the preset's own evaluations in the last fifth of its budget."""
    run = report.trained(preset)
    needed = run.threshold if threshold is None else threshold
    report.measured("return", report.returns(run), needed)
    late = [step > 0.8 * run.agent.config.total_timesteps for step in run.evaluated_at]
    report.measured("least in the last fifth", run.curve[:, late].min(1), needed)


def gridworld(report: Report) -> None:
    """The greedy move from every cell, beside the moves that shorten the way: right or down, never against the wall."""
    run = solves(report, "gridworld_ppo")
    size = make_env(run.agent.config.env)[0].size
    rows, columns = np.divmod(np.arange(size * size - 1), size)
    obs = jnp.concatenate([jax.nn.one_hot(rows, size), jax.nn.one_hot(columns, size)], axis=-1)
    act = jax.vmap(lambda state: run.agent.act(state, obs, None, jax.random.key(0), True)[0])
    actions = np.asarray(report.timed(act, run.states))
    optimal = ((actions == 2) & (rows < size - 1)) | ((actions == 1) & (columns < size - 1))
    report.measured("share of cells with an optimal move", optimal.mean(1), 1.0)


def first_solved(report: Report) -> None:
    """Evaluations every fiftieth of the budget: steps until the first that solves the task, NaN where none does.

    Times are those of one seed with evaluation off, medians of 3.
    """
    seconds = report.facts.setdefault("seconds of one seed", {})
    for preset in COMPARED:
        config = load_config(preset)
        timing = time_interleaved({preset: make_train(config.replace(eval_every=None))}, 3)[preset]
        seconds[preset] = [timing.compile, median(timing.runs)]
        run = report.trained(preset, eval_every=max(config.total_timesteps // 50, config.steps_per_iteration), eval_episodes=32)
        report.measured(f"{preset}: steps", first_step(run.curve, run.evaluated_at, run.threshold))
        report.measured(f"{preset}: return", report.returns(run), run.threshold)


def policy_lag(report: Report) -> None:
    """The same run with and without V-trace, its actors 8 iterations behind."""
    lagging: dict[str, Any] = {"policy_lag": 8, "total_timesteps": LAG_STEPS, "eval_every": None}
    for arm, corrected in (("V-trace", True), ("no correction", False)):
        run = report.trained("cartpole_impala", arm, off_policy_correction=corrected, **lagging)
        report.measured(arm, report.returns(run), 475.0)


def breakout(report: Report) -> None:
    """Trained, and with actions drawn uniformly."""
    run = report.trained("breakout_pqn", eval_every=None)
    report.measured("return", report.returns(run))
    env, params = make_evaluation_env(run.agent.config)
    actions = env.action_space(params).n

    def uniform(
        state: Any, obs: jax.Array, carry: Any, key: jax.Array, deterministic: bool = False, mask: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        del state, deterministic, mask
        return jax.random.randint(key, (len(obs),), 0, actions), carry

    report.measured("at random", report.returns(run._replace(agent=run.agent._replace(act=uniform))))


def tuning(report: Report) -> None:
    """The study's own seeds are below those of the comparison, which no trial saw."""
    from rljax.run.search.tune import tune

    config = load_config("cartpole_ppo", total_timesteps=TUNED_STEPS, eval_every=None)
    found = tune(config, trials=64, seeds=4)
    report.facts["tuned"] = {name: getattr(found.best, name) for name in found.study.best_trial.params}
    for arm, tried in (("tuned", found.best), ("preset", config)):
        report.measured(arm, report.returns(report.trained(tried, arm, preset="cartpole_ppo")))
