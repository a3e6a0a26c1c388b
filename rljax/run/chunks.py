"""Compiled programs of a run: iterations of one or several seeds, and chunks of any number of iterations. No I/O here."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.common.training import evaluation_metrics, take_step, train_iteration
from rljax.collect.replay import Replay
from rljax.core.agent import Agent, Metrics, stack_metrics
from rljax.core.config import Config
from rljax.core.devices import replicated
from rljax.core.host import WAITING
from rljax.core.state import Role, roles_of
from rljax.run.files.records import UPDATES, is_loss

INT32 = jax.ShapeDtypeStruct((), jnp.int32)
"""Shape and dtype of a number of iterations."""

Chunk = Callable[..., tuple[Any, jax.Array, jax.Array]]


class Seeds(NamedTuple):
    """State of a run of several seeds.

    Attributes:
        states: state of every seed, `[S, ...]`.
        alive: whether each seed has not diverged, bool `[S]`.
    """

    states: Any
    alive: Any

    @property
    def params(self) -> Any:
        return self.states.params


def surviving_iteration(agent: Agent, num_iterations: int) -> Callable[..., tuple[Any, tuple[Metrics, jax.Array]]]:
    """Return `(alive, state, iteration) -> (state, (metrics, alive))` of one seed: `train_iteration` that stops at divergence.

    If a loss or a parameter becomes NaN or infinite, the seed is no longer alive and keeps the state from before, also in all
    later iterations. That iteration reports its metrics as they are; later ones report NaN. The replay buffer still receives
    steps, which are not used, because its rows are counted for all seeds together.
    """

    def iteration(alive: jax.Array, state: Any, i: jax.Array) -> tuple[Any, tuple[Metrics, jax.Array]]:
        after, metrics = take_step(agent, state)
        going = alive & losses_are_finite(metrics) & all_finite(after.params)
        state = _select(going, after, state)
        evaluated = evaluation_metrics(agent, state, i, num_iterations)
        metrics = {name: jnp.where(alive, x, jnp.nan) for name, x in metrics.items()}
        return state, (metrics | {name: jnp.where(going, x, jnp.nan) for name, x in evaluated.items()}, going)

    return iteration


def _select(going: jax.Array, after: Any, before: Any) -> Any:
    """Return `after` if `going`, else `before`. Replay buffers are not copied: they are always those of `after`."""

    def chosen(new: Any, old: Any) -> Any:
        if isinstance(new, Replay):
            return new
        if jnp.issubdtype(new.dtype, jax.dtypes.prng_key):
            return jax.lax.select(jnp.broadcast_to(going, new.shape), new, old)
        return jnp.where(going, new, old)

    return jax.tree.map(chosen, after, before, is_leaf=lambda x: isinstance(x, Replay))


def all_finite(tree: Any) -> jax.Array:
    """Return whether every number in a tree is finite, bool []."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def losses_are_finite(metrics: Metrics) -> jax.Array:
    """Return whether all losses (see `is_loss`) of an iteration are finite, bool []; True without a gradient step."""
    finite = [jnp.isfinite(x) for name, x in metrics.items() if is_loss(name)]
    untrained = metrics[UPDATES] == 0 if UPDATES in metrics else jnp.asarray(False)
    return untrained | jnp.all(jnp.stack([jnp.asarray(True), *finite]))


def vectorized_iteration(agent: Agent, seeds: int | None, num_iterations: int | None = None) -> Callable[..., Any]:
    """Return `(state, iteration) -> (state, metrics)` of `train_iteration`, over the axis of seeds if `seeds` is not None."""
    if seeds is None:
        return lambda state, i: train_iteration(agent, state, i, num_iterations)
    return lambda states, i: vmap_runs(
        lambda _, state, i: train_iteration(agent, state, i, num_iterations), seeds, None, states, i
    )


def seeds_iteration(agent: Agent, seeds: int, num_iterations: int) -> Callable[[Seeds, jax.Array], tuple[Seeds, Any]]:
    """Return `(seeds, iteration) -> (seeds, metrics)`, with metrics `[S]`; see `surviving_iteration`."""
    one = surviving_iteration(agent, num_iterations)

    def iteration(run: Seeds, i: jax.Array) -> tuple[Seeds, Any]:
        states, (metrics, alive) = vmap_runs(one, seeds, run.alive, run.states, i)
        return Seeds(states, alive), metrics

    return iteration


def vmap_runs(iteration: Callable[..., Any], runs: int, values: Any, states: Any, i: jax.Array) -> Any:
    """Map `iteration(values, state, i) -> (state, metrics)` over runs; leaves of `values` and `states` are `[runs, ...]`.

    The count of iterations is not batched, so that a skipped evaluation stays a branch that costs nothing. Neither are the
    counters of replay buffers, which are equal in all runs: every run then writes the same rows, a slice instead of a scatter.
    """
    axes = _map_counters(jax.tree.map(lambda _: 0, states), lambda _: None)
    states = _map_counters(states, lambda count: count[0])
    states, metrics = jax.vmap(iteration, in_axes=(0, axes, None), out_axes=(axes, 0))(values, states, i)
    return _map_counters(states, lambda count: jnp.broadcast_to(count, (runs,))), metrics


def _map_counters(state: Any, change: Callable[[Any], Any]) -> Any:
    """Return `state` with a function applied to the counters of its replay buffers."""

    def changed(x: Any) -> Any:
        return x.replace(position=change(x.position), size=change(x.size)) if isinstance(x, Replay) else x

    return jax.tree.map(changed, state, is_leaf=lambda x: isinstance(x, Replay))


def compile_chunk(
    iteration: Callable[..., Any], example: Any, seeds_shape: tuple[int, ...], num_metrics: int, size: int, layout: Any = None
) -> Chunk:
    """Compile `chunk(state, first, length) -> (state, metrics f32 [size, *seeds, num_metrics], finite)` for length <= size.

    The length is the bound of a loop and not the length of a scan, so that chunks of any length (the last one, say) run the
    same program.
    """

    def chunk(state: Any, first: jax.Array, length: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        state, buffer = run_iterations(iteration, state, first, length, (size, *seeds_shape, num_metrics))
        if isinstance(state, Seeds):
            return state, buffer, jnp.any(state.alive)
        return state, buffer, all_finite(state.params)

    # The output is the next input, so it needs the same sharding.
    results = None if layout is None else (layout, *2 * [replicated(layout)])
    return jax.jit(chunk, donate_argnums=0, out_shardings=results).lower(example, INT32, INT32).compile()


def overlapped_chunk(agent: Agent, example: Any, num_metrics: int, size: int, num_iterations: int) -> Chunk:
    """Compile the halves of an agent's step, and return a `Chunk` that runs them at the same time, in two threads.

    The numbers are those of `agent.step`. What is noted as waiting for simulators is only the time after an update was done.
    """
    halves = agent.halves
    assert halves is not None
    collect, update = (jax.jit(half).lower(example).compile() for half in (halves.collect, halves.update))
    collected, (updated, metrics) = (jax.eval_shape(half, example) for half in (halves.collect, halves.update))

    def row_of(state: Any, metrics: Metrics, iteration: jax.Array) -> tuple[jax.Array, jax.Array]:
        metrics = metrics | evaluation_metrics(agent, state, iteration, num_iterations)
        return stack_metrics(metrics), all_finite(state.params)

    finish = jax.jit(row_of).lower(halves.join(collected, updated), metrics, INT32).compile()
    thread = ThreadPoolExecutor(1, "rljax-collect")

    # The state is not donated: `collect` may read any of it after `update` has begun, and would find it deleted.
    def both(state: Any) -> tuple[Any, Metrics, float]:
        """Take a step; what the next state does not take from either half is freed at its end."""
        collecting = thread.submit(lambda state: jax.block_until_ready(collect(state)), state)
        try:
            updated, metrics = jax.block_until_ready(update(state))
        finally:
            started = time.perf_counter()
            collected = collecting.result()
            waited = time.perf_counter() - started
        return halves.join(collected, updated), metrics, waited

    def chunk(state: Any, first: Any, length: Any) -> tuple[Any, Any, Any]:
        rows, waited = np.full((size, num_metrics), np.nan, np.float32), 0.0
        finite: Any = True
        for i in range(int(length)):
            state, metrics, seconds = both(state)
            waited += seconds
            rows[i], finite = map(np.asarray, finish(state, metrics, np.int32(first + i)))
        WAITING.replace("simulator", waited)
        return state, rows, finite

    return chunk


def run_iterations(
    iteration: Callable[..., Any], state: Any, first: jax.Array, length: jax.Array, shape: tuple[int, ...]
) -> tuple[Any, jax.Array]:
    """Run `length` iterations from `first` on; return the state and an f32 array of `shape` with their metrics in its first rows.

    The last axis of the array is that of the metrics.
    """

    def body(i: jax.Array, carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        state, buffer = carry
        state, metrics = iteration(state, first + i)
        return state, buffer.at[i].set(jnp.moveaxis(stack_metrics(metrics), 0, -1))

    return jax.lax.fori_loop(0, length, body, (state, jnp.full(shape, jnp.nan)))


def iterations_before_learning(config: Config, state: Any) -> int:
    """Return the number of iterations that begin with too few steps in the replay buffer; the last may learn before its end."""
    if getattr(config, "dataset", None) is not None:
        return 0  # it learns from the dataset at once
    buffers = [getattr(state, name) for name, role in roles_of(state).items() if role.role is Role.BUFFER]
    replay = next((value for value in buffers if isinstance(value, Replay)), None)
    if replay is None:
        return 0
    missing = config.rows_before_learning - int(np.ravel(replay.size)[0])
    return max(0, -(-missing * config.num_envs // config.steps_per_iteration))


def iterations_to(step: int, per_iteration: int, every: int) -> int:
    """Return the number of iterations until the count of steps reaches the next multiple of `every`."""
    return -(-((step // every + 1) * every - step) // per_iteration)
