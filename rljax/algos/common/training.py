"""The loop around any agent: `init`, then `step` in a scan, with evaluation between iterations where the config asks for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.algos.common.teacher import check_teacher
from rljax.collect.environments import try_environment
from rljax.collect.evaluation import play_episodes
from rljax.collect.own_agent import check_own_act, check_own_state
from rljax.core.agent import Agent, Metrics, check_average, make_agent, stack_metrics
from rljax.core.config import Config
from rljax.core.errors import ConfigError, shown
from rljax.core.keys import as_single_key


class TrainResult(NamedTuple):
    """Result of training: the final state, and metrics of each iteration, f32 `[num_iterations]`."""

    state: Any
    metrics: dict[str, Any]


def make_train(config_or_agent: Config | Agent) -> Callable[[jax.Array], TrainResult]:
    """Return a pure function from a key to a trained agent: `train(key) -> TrainResult(state, metrics)`.

    The whole run, environments included, is one traced program: `jax.jit(train)(key)` compiles it, `jax.vmap(train)` trains
    one agent per key. A configuration may hold traced hyperparameters, so those can be vmapped too. It takes
    `config.num_iterations` iterations of `config.steps_per_iteration` environment steps. To train with your own loss, pass an
    agent: `make_train(make_agent(config, loss_fn=my_loss))`.

    Raises:
        ConfigError: the configuration does not fit the environment or the network, or it has a `teacher_kl_coef` and the run
            would begin with random parameters.
    """
    agent = config_or_agent if isinstance(config_or_agent, Agent) else make_agent(config_or_agent)
    config = agent.config
    try_environment(config)
    check_own_act(agent)
    check_teacher(agent, "make_train(rljax.begin_from(config, RUN))")

    def train(key: jax.Array) -> TrainResult:
        names: list[str] = []

        def step(state: Any, iteration: jax.Array) -> tuple[Any, jax.Array]:
            state, metrics = train_iteration(agent, state, iteration)
            names[:] = sorted(metrics)
            return state, stack_metrics(metrics)

        state, stacked = jax.lax.scan(step, agent.init(as_single_key(key)), jnp.arange(config.num_iterations))
        return TrainResult(state, dict(zip(names, stacked.T, strict=True)))

    return train


def train_iteration(agent: Agent, state: Any, iteration: jax.Array, num_iterations: int | None = None) -> tuple[Any, Metrics]:
    """One `agent.step`, and the evaluation that is due after it: see `evaluation_metrics`."""
    state, metrics = take_step(agent, state)
    return state, metrics | evaluation_metrics(agent, state, iteration, num_iterations)


def take_step(agent: Agent, state: Any) -> tuple[Any, Metrics]:
    """Return `agent.step(state)`, with the metrics as f32.

    Raises:
        ConfigError: a step of the user's own does not return a state like the one before, and at least one scalar by name.
    """
    check_average(agent)
    result = agent.step(state)
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping) and result[1]):
        what = "no metrics" if isinstance(result, tuple) and len(result) == 2 else type(result).__name__
        raise ConfigError(f"the agent's step: returned {what}, expected (state, a dictionary of scalars), such as episode/return")
    after, metrics = result
    check_own_state(state, after)
    for name, x in metrics.items():
        if not isinstance(name, str):
            raise ConfigError(f"the agent's step: a metric has the name {shown(name)}, expected a string")
        if jnp.shape(x) != ():
            raise ConfigError(f"the agent's step: the metric {name} has shape {list(jnp.shape(x))}, expected a scalar")
    return after, {name: jnp.asarray(x, jnp.float32) for name, x in metrics.items()}


def evaluation_metrics(agent: Agent, state: Any, iteration: jax.Array, num_iterations: int | None = None) -> Metrics:
    """The evaluation that is due after an iteration, `eval/...`: NaN where none is, no metrics where the configuration has none.
    So is a league's exploitability (`Agent.exploitability`), which has an interval of its own.

    `eval/return` and `eval/length` are means over all episodes, those that were cut included; `eval/count` is how many ended,
    and of games, which are played against random play, `eval/distinct` how many differ from each other. Evaluations have keys of
    their own, so none of them changes the training.

    Args:
        agent: from `make_agent`.
        state: its state after the iteration.
        iteration: i32 [], counted from 0. It must not be batched: under vmap over seeds the evaluation then stays a branch that
            is skipped, where a batched condition would make every iteration evaluate.
        num_iterations: number of iterations of the run; the last is always evaluated. None: `config.num_iterations`.
    """
    config = agent.config
    last = (config.num_iterations if num_iterations is None else num_iterations) - 1

    def where_due(field: str, measure: Callable[[Any], Metrics], names: Iterable[str]) -> Metrics:
        due = evaluation_due(getattr(config, field), config.steps_per_iteration, iteration, field) | (iteration == last)
        measured: Metrics = jax.lax.cond(due, measure, lambda _: {name: jnp.full((), jnp.nan) for name in names}, state)
        return measured

    metrics: Metrics = {}
    exploitability = agent.exploitability
    if exploitability is not None and getattr(config, "exploitability_every", None) is not None:
        name = "league/exploitability"
        metrics |= where_due(
            "exploitability_every", lambda state: {name: jnp.asarray(exploitability(state), jnp.float32)}, [name]
        )
    if config.eval_every is None:
        return metrics

    report = agent.report or (lambda _: {})

    def evaluation(state: Any) -> Metrics:
        key = jax.random.fold_in(state.eval_key, iteration)
        results = play_episodes(agent, state, key, config.eval_episodes)
        return {
            "eval/return": jnp.mean(results.returns),
            "eval/length": jnp.mean(results.lengths),
            "eval/count": jnp.sum(results.ended, dtype=jnp.float32),
            **({} if results.distinct is None else {"eval/distinct": results.distinct.astype(jnp.float32)}),
        } | report(state)

    distinct = ("eval/distinct",) if config.of_games else ()
    names = ("eval/return", "eval/length", "eval/count", *distinct, *jax.eval_shape(report, state))
    return metrics | where_due("eval_every", evaluation, names)


def evaluation_due(eval_every: int, steps_per_iteration: int, iteration: jax.Array, field: str = "eval_every") -> jax.Array:
    """Return whether an iteration (counted from 0) crosses a multiple of `eval_every` steps, bool []. `field` is what the
    configuration calls this number.

    That is so where (iteration + 1) * steps mod eval_every < steps, which is worked out without the product: it would
    overflow an i32 after 2^31 steps.

    Raises:
        ConfigError: the two are large and have hardly a common divisor.
    """
    common = math.gcd(eval_every, steps_per_iteration)
    every, steps = eval_every // common, steps_per_iteration // common
    if steps >= every:
        return jnp.asarray(True)
    if every * steps >= 2**31:
        raise ConfigError(f"{field} = {eval_every}: expected a multiple of num_envs * num_steps = {steps_per_iteration}")
    return (iteration + 1) % every * steps % every < steps
