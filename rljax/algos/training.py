"""The loop around any agent: `init`, then `step` in a scan, with evaluation between iterations where the config asks for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.collect.evaluation import play_episodes
from rljax.core.agent import Agent, Metrics, make_agent, stack_metrics
from rljax.core.config import Config
from rljax.core.errors import ConfigError
from rljax.core.keys import as_key


class TrainResult(NamedTuple):
    """What training returns: the final state, and metrics with a leading axis of iterations, each f32 `[num_iterations]`."""

    state: Any
    metrics: dict[str, Any]


def make_train(config: Config) -> Callable[[jax.Array], TrainResult]:
    """A pure function from a key to a trained agent: `train(key) -> TrainResult(state, metrics)`.

    The whole run, environments included, is one traced program: `jax.jit(train)(key)` compiles it, `jax.vmap(train)` trains
    one agent per key. `config` may hold traced hyperparameters, so those can be vmapped too. It takes
    `config.num_iterations` iterations of `config.steps_per_iteration` environment steps.

    Raises:
        ConfigError: the configuration does not fit the environment or the network.
    """
    agent = make_agent(config)

    def train(key: jax.Array) -> TrainResult:
        names: list[str] = []

        def step(state: Any, iteration: jax.Array) -> tuple[Any, jax.Array]:
            state, metrics = train_iteration(agent, state, iteration)
            names[:] = sorted(metrics)
            return state, stack_metrics(metrics)

        state, stacked = jax.lax.scan(step, agent.init(as_key(key)), jnp.arange(config.num_iterations))
        return TrainResult(state, dict(zip(names, stacked.T, strict=True)))

    return train


def train_iteration(agent: Agent, state: Any, iteration: jax.Array) -> tuple[Any, Metrics]:
    """One `agent.step`, and the evaluation that is due after it (`eval/...`; NaN where none is).

    `iteration` (i32 [], counted from 0) must not be batched: under vmap over seeds the evaluation then stays a branch that
    is skipped, where a batched condition would make every iteration evaluate.
    """
    config = agent.config
    state, metrics = agent.step(state)
    if config.eval_every is None:
        return state, metrics
    due = evaluation_due(config.eval_every, config.steps_per_iteration, iteration)

    report = agent.report or (lambda _: {})

    def evaluation(state: Any) -> Metrics:
        key = jax.random.fold_in(state.eval_key, iteration)
        results = play_episodes(agent, state, key, config.eval_episodes)
        ended = jnp.isfinite(results.returns)
        return {
            "eval/return": jnp.nanmean(results.returns),
            "eval/length": jnp.mean(results.lengths, where=ended),
            "eval/count": jnp.sum(ended, dtype=jnp.float32),
        } | report(state)

    names = ("eval/return", "eval/length", "eval/count", *jax.eval_shape(report, state))
    return state, metrics | jax.lax.cond(due, evaluation, lambda _: {name: jnp.full((), jnp.nan) for name in names}, state)


def evaluation_due(eval_every: int, steps_per_iteration: int, iteration: jax.Array) -> jax.Array:
    """Whether an iteration (counted from 0) crosses a multiple of `eval_every` steps, bool []; neither need divide the other.

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
        raise ConfigError(f"eval_every = {eval_every}: expected a multiple of num_envs * num_steps = {steps_per_iteration}")
    return (iteration + 1) % every * steps % every < steps
