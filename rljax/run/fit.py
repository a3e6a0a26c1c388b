"""The driver: trains in compiled chunks and does everything impure between them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.training import TrainResult, train_iteration
from rljax.core.agent import Agent, make_agent, stack_metrics
from rljax.core.config import Config
from rljax.core.errors import TrainingError
from rljax.core.keys import as_key
from rljax.run.checkpoint import METRICS_FILE, create_run_dir, save_checkpoint
from rljax.run.progress import Progress, Silent
from rljax.run.records import MAX_RECORDS, JsonLines, summarize

MAX_CHUNK = 1024
"""Iterations in one call of the compiled chunk at most: the size of its metrics buffer."""

CHUNK_SECONDS = 0.2
"""How long a chunk should take: short enough for a live progress bar, long enough that the host costs nothing."""


def fit(
    config_or_agent: Config | Agent,
    *,
    key: jax.Array | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    callback: Callable[[int, dict[str, float]], bool | None] | None = None,
    checkpoint_seconds: float = 60.0,
) -> TrainResult:
    """Train from the host: the numbers of `make_train`, bit for bit, with a run folder, progress and checks on the way.

    Args:
        config_or_agent: what to train, or an agent made of it already.
        key: random key; `jax.random.key(config.seed)` unless given.
        run_dir: folder to make for `config.toml`, `metrics.jsonl` and checkpoints; None writes nothing.
        progress: how to show progress; None shows nothing.
        callback: called with (environment steps, metrics) for each record; True ends the run early.
        checkpoint_seconds: save the state when this long has passed since the last save (and at the end).

    Returns:
        `TrainResult(state, metrics)`, the metrics as NumPy arrays `[iterations]`.

    Raises:
        ConfigError: the configuration cannot be trained, or `run_dir` exists; nothing was written.
        TrainingError: a loss or parameter became NaN or infinite; says at which step and which metric went first.
    """
    agent = config_or_agent if isinstance(config_or_agent, Agent) else make_agent(config_or_agent)
    config = agent.config
    key = jax.random.key(config.seed) if key is None else as_key(key)
    # Jitted, so that finding out the names of the metrics and compiling the chunk trace the iteration once.
    iteration = jax.jit(lambda state, i: train_iteration(agent, state, i))
    example = jax.eval_shape(agent.init, key)
    names = sorted(jax.eval_shape(iteration, example, _INT32)[1])
    folder = None if run_dir is None else create_run_dir(run_dir, config)
    log = _Log(config, names, None if folder is None else JsonLines(folder / METRICS_FILE), callback)
    progress = progress or Silent()
    progress.start(config.num_iterations * config.steps_per_iteration)
    try:
        chunk = _compile_chunk(iteration, example, len(names), min(MAX_CHUNK, config.num_iterations))
        state = _train(agent, jax.jit(agent.init)(key), chunk, names, folder, log, progress, checkpoint_seconds)
    finally:
        progress.stop()
        log.close()
    rows = np.concatenate(log.rows)
    return TrainResult(state, {name: rows[:, i] for i, name in enumerate(names)})


_INT32 = jax.ShapeDtypeStruct((), jnp.int32)

Chunk = Callable[..., tuple[Any, jax.Array, jax.Array]]


def _compile_chunk(iteration: Callable[..., Any], example: Any, num_metrics: int, size: int) -> Chunk:
    """`chunk(state, first, length) -> (state, metrics f32 [size, num_metrics], finite)`, one program for every length <= size.

    The number of iterations is an argument of a loop and not the length of a scan, so that chunks of any length (the last
    one, say) run the same program.
    """

    def chunk(state: Any, first: jax.Array, length: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        def body(i: jax.Array, carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
            state, buffer = carry
            state, metrics = iteration(state, first + i)
            return state, buffer.at[i].set(stack_metrics(metrics))

        state, buffer = jax.lax.fori_loop(0, length, body, (state, jnp.full((size, num_metrics), jnp.nan)))
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(state.params)]))
        return state, buffer, finite

    return jax.jit(chunk, donate_argnums=0).lower(example, _INT32, _INT32).compile()


def _train(
    agent: Agent,
    state: Any,
    chunk: Chunk,
    names: list[str],
    folder: Path | None,
    log: _Log,
    progress: Progress,
    checkpoint_seconds: float,
) -> Any:
    """Run chunks until the budget is spent or the callback has had enough; returns the final state."""
    per_iteration, total = agent.config.steps_per_iteration, agent.config.num_iterations
    done, length, last_return, saved_at = 0, 1, math.nan, time.monotonic()
    stop = False
    while done < total and not stop:
        length = min(length, MAX_CHUNK, total - done)
        started = time.perf_counter()
        state, buffer, finite = chunk(state, np.int32(done), np.int32(length))
        rows = np.asarray(buffer)[:length]
        seconds = time.perf_counter() - started
        _check_finite(rows, names, bool(finite), done, per_iteration, folder)
        done += length
        speed = length * per_iteration / seconds
        returns = rows[:, names.index("episode/return")]
        last_return = returns[np.isfinite(returns)][-1] if np.isfinite(returns).any() else last_return
        stop = log.add(rows, speed)
        progress.update(done * per_iteration, speed, last_return)
        if folder is not None and (done == total or stop or time.monotonic() - saved_at > checkpoint_seconds):
            save_checkpoint(folder, state, done * per_iteration)
            saved_at = time.monotonic()
        # Towards CHUNK_SECONDS, not faster than fourfold: the first chunk is one iteration.
        length = max(1, min(4 * length, round(CHUNK_SECONDS / seconds * length)))
    return state


def _check_finite(rows: np.ndarray, names: list[str], finite: bool, first: int, per_iteration: int, folder: Path | None) -> None:
    """Stop at the first iteration whose losses are not numbers."""
    kept = ""
    if folder is not None:
        latest = folder / "checkpoints" / "latest"
        kept = f"; the last good checkpoint is {latest.resolve()}" if latest.exists() else "; there was no checkpoint before it"
    # The values are made before the losses, and the losses before all that is derived from them.
    order = ["train/value", "train/loss", *names]
    columns = [names.index(name) for name in dict.fromkeys(order) if name.startswith("train/") and name in names]
    bad = ~np.isfinite(rows[:, columns])
    if bad.any():
        row = int(np.argmax(bad.any(axis=1)))
        name = names[columns[int(np.argmax(bad[row]))]]
        step = (first + row + 1) * per_iteration
        value = rows[row, names.index(name)]
        raise TrainingError(
            f"training stopped: {name} became {value} in the iteration that ended at step {step:,} "
            f"(rewards or observations that are not finite, or too high a learning_rate?){kept}"
        )
    if not finite:
        raise TrainingError(
            f"training stopped: parameters are not finite after step {(first + len(rows)) * per_iteration:,}{kept}"
        )


class _Log:
    """Collects the rows of all iterations and turns each window of them into a record."""

    def __init__(
        self,
        config: Config,
        names: list[str],
        file: JsonLines | None,
        callback: Callable[[int, dict[str, float]], bool | None] | None,
    ):
        self.config, self.names, self.file, self.callback = config, names, file, callback
        self.window = -(-config.num_iterations // MAX_RECORDS)
        self.rows: list[np.ndarray] = []
        self.pending = np.zeros((0, len(names)), np.float32)
        self.written = 0

    def add(self, rows: np.ndarray, steps_per_second: float) -> bool:
        """Take in rows `[iterations, metrics]`; whether the callback asked to stop."""
        self.rows.append(rows)
        if self.file is None and self.callback is None:
            return False
        self.pending = np.concatenate([self.pending, rows])
        while len(self.pending):
            length = min(self.window, self.config.num_iterations - self.written)
            if length > len(self.pending):
                break
            if self._record(length, steps_per_second):
                # What the chunk holds beyond the record that stopped the run is part of the state: record it too.
                while len(self.pending):
                    self._record(min(self.window, len(self.pending)), steps_per_second, call=False)
                return True
        return False

    def _record(self, length: int, steps_per_second: float, call: bool = True) -> bool:
        """Sum up the next `length` iterations; whether the callback asked to stop."""
        window, self.pending = self.pending[:length], self.pending[length:]
        self.written += length
        step = self.written * self.config.steps_per_iteration
        summary = summarize({name: window[:, i] for i, name in enumerate(self.names)})
        summary["perf/steps_per_second"] = steps_per_second
        if self.file is not None:
            self.file.write({"step": step, **summary})
        return call and self.callback is not None and bool(self.callback(step, summary))

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
