"""Experiments with presets of one agent: whether they solve their tasks, and after how many steps."""

from __future__ import annotations

from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.common.training import make_train
from rljax.collect.environments import make_evaluation_env
from rljax.core.config_files import load_config
from rljax.core.games.versus import random_player
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
"""Presets of tasks for which several algorithms have a preset."""

LAG_STEPS = 200_000
HELD_EPISODES = 200
TUNED_STEPS = 10_000


def solves(report: Report, preset: str, threshold: float | None = None) -> Trained:
    """Measure greedy mean returns; without a `threshold`, the environment's is used."""
    run = report.train(preset, eval_every=None)
    report.measure("return", report.returns(run), run.threshold if threshold is None else threshold)
    return run


def holds(report: Report, preset: str, threshold: float | None = None) -> None:
    """Measure greedy mean returns at the end, and the lowest of the preset's evaluations in the last fifth of its budget.

    Evaluations are of more episodes than the preset's: Pendulum's returns differ so much from start to start that the lowest mean
    of 32 says nothing about the policy.
    """
    run = report.train(preset, eval_episodes=HELD_EPISODES)
    needed = run.threshold if threshold is None else threshold
    report.measure("return", report.returns(run), needed)
    late = [step > 0.8 * run.agent.config.total_timesteps for step in run.evaluated_at]
    report.measure("least in the last fifth", run.curve[:, late].min(1), needed)


def gridworld(report: Report) -> None:
    """Compare the greedy move from every cell with the optimal moves: right or down, never against the wall."""
    run = solves(report, "gridworld_ppo")
    size = make_env(run.agent.config.env)[0].size
    rows, columns = np.divmod(np.arange(size * size - 1), size)
    obs = jnp.concatenate([jax.nn.one_hot(rows, size), jax.nn.one_hot(columns, size)], axis=-1)
    act = jax.vmap(lambda state: run.agent.act(state, obs, None, jax.random.key(0), True)[0])
    actions = np.asarray(report.time_program(act, run.states))
    optimal = ((actions == 2) & (rows < size - 1)) | ((actions == 1) & (columns < size - 1))
    report.measure("share of cells with an optimal move", optimal.mean(1), 1.0)


def first_solved(report: Report) -> None:
    """Measure the steps until an evaluation first solves the task, NaN if none does; there is one every fiftieth of the budget.

    Times are medians of 3, for one seed without evaluations.
    """
    seconds = report.facts.setdefault("seconds of one seed", {})
    for preset in COMPARED:
        config = load_config(preset)
        timing = time_interleaved({preset: make_train(config.replace(eval_every=None))}, 3)[preset]
        seconds[preset] = [timing.compile, median(timing.runs)]
        run = report.train(preset, eval_every=max(config.total_timesteps // 50, config.steps_per_iteration), eval_episodes=32)
        report.measure(f"{preset}: steps", first_step(run.curve, run.evaluated_at, run.threshold))
        report.measure(f"{preset}: return", report.returns(run), run.threshold)


def policy_lag(report: Report) -> None:
    """Compare the same run with and without V-trace's correction, its actors 8 iterations behind."""
    lagging: dict[str, Any] = {"policy_lag": 8, "total_timesteps": LAG_STEPS, "eval_every": None}
    for arm, corrected in (("V-trace", True), ("no correction", False)):
        run = report.train("cartpole_impala", arm, off_policy_correction=corrected, **lagging)
        report.measure(arm, report.returns(run), 475.0)


def breakout(report: Report) -> None:
    """Measure returns of the trained policy and of uniformly random actions."""
    run = report.train("breakout_pqn", eval_every=None)
    report.measure("return", report.returns(run))
    report.measure("at random", returns_at_random(report, run))


def returns_at_random(report: Report, run: Trained) -> np.ndarray:
    """Return mean returns of uniformly random legal actions in the run's environment, f32 `[seeds]`."""
    env, params = make_evaluation_env(run.agent.config)

    def uniform(
        state: Any, obs: Any, carry: Any, key: jax.Array, deterministic: bool = False, mask: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        del deterministic
        if mask is None:
            mask = jnp.ones((len(jax.tree.leaves(obs)[0]), env.action_space(params).n), bool)
        return random_player(key, state, obs, mask), carry

    return report.returns(run._replace(agent=run.agent._replace(act=uniform)))


def tuning(report: Report) -> None:
    """Compare tuned hyperparameters with the preset, on higher seeds than those of the study, which no trial used."""
    from rljax.run.search.tune import tune

    config = load_config("cartpole_ppo", total_timesteps=TUNED_STEPS, eval_every=None)
    found = tune(config, trials=64, seeds=4)
    report.facts["tuned"] = {name: getattr(found.best, name) for name in found.study.best_trial.params}
    for arm, tried in (("tuned", found.best), ("preset", config)):
        report.measure(arm, report.returns(report.train(tried, arm, preset="cartpole_ppo")))
