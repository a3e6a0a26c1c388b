"""The driver: trains in compiled chunks and does everything impure between them."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.training import TrainResult, train_iteration
from rljax.core.agent import Agent, make_agent, stack_metrics
from rljax.core.config import Config, config_table
from rljax.core.errors import ConfigError, RljaxError, TrainingError, TrainingInterrupted
from rljax.core.keys import as_key
from rljax.run.checkpoint import CHECKPOINTS, CheckpointWriter
from rljax.run.folder import CONFIG_FILE, METRICS_FILE, check_free, create_run_dir, locked, split_path
from rljax.run.loggers import Logger, Loggers, RunStart
from rljax.run.progress import Progress, Silent
from rljax.run.records import JsonLines, Records, cut_after, last_known, over_seeds, window_of
from rljax.run.start import Start, start_forked, start_new, start_resumed

MAX_CHUNK = 1024
"""Iterations in one call of the compiled chunk at most."""

MAX_CHUNK_BYTES = 16 * 2**20
"""Size of a chunk's metrics at most: with thousands of seeds a chunk has fewer iterations."""

CHUNK_SECONDS = 0.2
"""How long a chunk should take: short enough for a live progress bar, long enough that the host costs nothing."""

HISTOGRAMS = 50
"""How often in a run loggers get histograms."""

MAX_LOGGED_SEEDS = 64
"""With more seeds than this, loggers get the aggregates only; metrics.jsonl has every seed."""

SCORES = ("eval/return", "episode/return")
"""What seeds are compared by: the first of these that is known."""

Callback = Callable[[int, dict[str, float]], bool | None]


def fit(
    config_or_agent: Config | Agent | None = None,
    *,
    key: jax.Array | None = None,
    seeds: int | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | bool = False,
    fork: str | os.PathLike[str] | None = None,
    total_timesteps: int | None = None,
    progress: Progress | None = None,
    callback: Callback | None = None,
    loggers: Sequence[str | Logger] = (),
    checkpoint_every: int | None = None,
    checkpoint_seconds: float | None = 60.0,
    keep: int | None = 3,
    max_minutes: float | None = None,
) -> TrainResult:
    """Train from the host: the numbers of `make_train`, bit for bit, with a run folder, progress and checks on the way.

    Whenever it ends (budget, callback, `max_minutes`, Ctrl-C), the whole state is saved; a run resumed from there, or from
    any checkpoint after a kill, goes on bit for bit as the uninterrupted one would have.

    Args:
        config_or_agent: what to train, or an agent made of it already; not needed to resume a run whose environment and
            network have names.
        key: random key; `jax.random.key(config.seed)` unless given.
        seeds: train this many agents in one program; their state and metrics have a leading axis `[seeds]`. Their keys are those
            of `config.seed, config.seed + 1, ...`, or come from splitting `key`.
        run_dir: folder to make for `config.toml`, `metrics.jsonl` and checkpoints; None writes nothing.
        resume: a run's folder: go on where its latest whole checkpoint is. True: `run_dir`'s, or a new run where there is none,
            so that a script that is started again goes on by itself. Only `total_timesteps` may differ from the frozen
            configuration.
        fork: a checkpoint, or a run's folder: start a new run of `config_or_agent` from that state; steps are counted on.
        total_timesteps: another budget for the run that is resumed. An annealed learning rate follows the new budget's schedule
            from there on, so that of a completed run rises again: to (1 - done / total) of the initial one.
        progress: how to show progress; None shows nothing.
        callback: called with (environment steps, metrics) for each record; True ends the run early.
        loggers: names ("tensorboard", "wandb", "mlflow", "aim") or objects with the methods of `Logger`.
        checkpoint_every: save the state each time this many environment steps have been taken.
        checkpoint_seconds: save the state when this long has passed since the last save. It is saved at the end in any case, and
            after an evaluation that is the best so far.
        keep: how many checkpoints to keep besides the best one; None keeps all.
        max_minutes: end the run after this long, to be resumed another time.

    Returns:
        `TrainResult(state, metrics)`, the metrics of the iterations of this call as NumPy arrays `[iterations]`, or
        `[seeds, iterations]`.

    Raises:
        ConfigError: the configuration cannot be trained, `run_dir` exists, or the run cannot be resumed or forked; nothing was
            written.
        TrainingError: a loss or parameter became NaN or infinite; says at which step and which metric went first.
        TrainingInterrupted: Ctrl-C, or SIGTERM; the state is saved and in the error's `result`. A second one stops at once.
        RljaxError: the run folder cannot be written (a full disk, say); the last good checkpoint is kept.
    """
    for name, value in (("checkpoint_every", checkpoint_every), ("keep", keep), ("max_minutes", max_minutes)):
        if value is not None and not value > 0:
            raise ConfigError(f"{name} = {value!r}: expected a number > 0")
    attached = Loggers(loggers)
    agent = config_or_agent if config_or_agent is None or isinstance(config_or_agent, Agent) else make_agent(config_or_agent)
    folder = _folder(run_dir, resume)
    resumed = folder is not None and bool(resume) and ((folder / CONFIG_FILE).exists() or resume is not True)
    if not resumed:
        if agent is None:
            raise ConfigError("nothing to train: give a configuration, or resume=RUN")
        if total_timesteps is not None:
            raise ConfigError("total_timesteps is for a run that is resumed: otherwise it is a field of the configuration")
        if folder is not None:
            check_free(folder)
    with contextlib.ExitStack() as stack:
        if resumed and folder is not None:
            if not folder.is_dir():
                raise ConfigError(f"{folder}: no run there; a run folder is what `rljax train` makes")
            stack.enter_context(locked(folder))
            start = start_resumed(folder, agent, total_timesteps, seeds)
        elif fork is not None and agent is not None:
            start = start_forked(fork, agent, seeds)
        elif agent is not None:
            start = start_new(agent, None if key is None else as_key(key), seeds)
        driver = _Driver(
            start, folder, resumed, attached, progress or Silent(), callback, checkpoint_every, checkpoint_seconds, keep
        )
        if folder is not None and not resumed:
            create_run_dir(folder, start.agent.config, start.info, start.state, driver.scores.meta(start.iteration))
            stack.enter_context(locked(folder))
        stopping = stack.enter_context(_signals())
        return driver.run(stopping, max_minutes)


def _folder(run_dir: str | os.PathLike[str] | None, resume: str | os.PathLike[str] | bool) -> Path | None:
    if isinstance(resume, bool):
        if resume and run_dir is None:
            raise ConfigError("resume = True: needs run_dir, the folder to go on in; or give the folder itself, resume=RUN")
        return None if run_dir is None else Path(run_dir)
    folder, checkpoint = split_path(resume)
    if run_dir is not None and Path(run_dir) != folder:
        raise ConfigError(f"run_dir = {str(run_dir)!r}: a resumed run stays in its folder {folder}; to branch it, fork it")
    if checkpoint != "latest":
        raise ConfigError(
            f"resume = {str(resume)!r}: a run resumes from its latest checkpoint, {folder}; to go on from another, fork it"
        )
    return folder


class _Scores:
    """The last known returns of each seed and the best evaluation so far: what meta.json says of a checkpoint."""

    def __init__(self, num_seeds: int, meta: dict[str, Any]):
        known = meta.get("returns", {})
        self.returns = {name: _from_json(known.get(name), num_seeds) for name in SCORES}
        self.best_score: float = -math.inf if meta.get("best_score") is None else meta["best_score"]
        self.best_step: int | None = meta.get("best_step")

    def update(self, names: list[str], rows: np.ndarray) -> None:
        """Take in rows `[iterations, S, metrics]`."""
        for name in SCORES:
            if name in names:
                values = last_known(rows[:, :, names.index(name)])
                self.returns[name] = np.where(np.isfinite(values), values, self.returns[name])

    def improved(self, step: int) -> bool:
        """Whether the evaluation just made is the best so far (the mean over seeds); it is then noted as that."""
        score = over_seeds("eval/return", self.returns["eval/return"])
        if not score > self.best_score:
            return False
        self.best_score, self.best_step = score, step
        return True

    def meta(self, iteration: int) -> dict[str, Any]:
        score_name = next((name for name in SCORES if np.isfinite(self.returns[name]).any()), SCORES[-1])
        returns = {name: _to_json(values) for name, values in self.returns.items()}
        return {
            "iteration": iteration,
            "score_name": score_name,
            "scores": returns[score_name],
            "returns": returns,
            "best_score": None if self.best_step is None else self.best_score,
            "best_step": self.best_step,
        }


class _Driver:
    """One call of `fit`: compiles the chunk, runs it until the budget is spent, and sees to everything between chunks.

    S is the number of seeds, 1 where the state has no axis for them. Iterations are counted from the run's own beginning.
    """

    def __init__(
        self,
        start: Start,
        folder: Path | None,
        resumed: bool,
        loggers: Loggers,
        progress: Progress,
        callback: Callback | None,
        checkpoint_every: int | None,
        checkpoint_seconds: float | None,
        keep: int | None,
    ):
        self.start, self.folder, self.resumed, self.loggers, self.progress, self.callback = (
            start, folder, resumed, loggers, progress, callback
        )  # fmt: skip
        self.checkpoint_every, self.checkpoint_seconds, self.keep = checkpoint_every, checkpoint_seconds, keep
        self.config = start.agent.config
        self.num_seeds = start.info.seeds or 1
        self.done, self.last = start.iteration, start.last_iteration
        # Jitted, so that finding out the names of the metrics and compiling the chunk trace the iteration once.
        self.iteration = jax.jit(_vectorized(start.agent, start.info.seeds))
        self.names = sorted(jax.eval_shape(self.iteration, start.state, _INT32)[1])
        self.scores = _Scores(self.num_seeds, start.meta)
        self.window = window_of(self.last - self._first_iteration(), self.num_seeds, len(self.names))
        pending = start.pending
        if pending is None or pending.shape[1:] != (self.num_seeds, len(self.names)):
            pending = np.zeros((0, self.num_seeds, len(self.names)), np.float32)
        self.records = Records(self.names, self.window, self.done - len(pending), self.last, pending, self._emit)
        self.speed = math.nan
        self.file: JsonLines | None = None
        self.writer: CheckpointWriter | None = None

    def run(self, stopping: _Stopping, max_minutes: float | None) -> TrainResult:
        deadline = math.inf if max_minutes is None else time.monotonic() + 60.0 * max_minutes
        first = self.done
        # Pages that no iteration has written to yet take no memory.
        rows = np.empty((self.last - first, self.num_seeds, len(self.names)), np.float32)
        state, self.start = self.start.state, self.start._replace(state=None)
        try:
            self._open()
            if self.done < self.last:
                self.progress.start(self._step(self.last))
                try:
                    state = self._train(state, rows, first, deadline, stopping)
                finally:
                    self.progress.stop()
        finally:
            self.loggers.close()
            if self.file is not None:
                self.file.close()
            if self.writer is not None:
                self.writer.close()
        done = np.moveaxis(rows[: self.done - first], 0, -1)
        done = done if self.start.info.seeds else done[0]
        result = TrainResult(state, {name: done[..., i, :] for i, name in enumerate(self.names)})
        if stopping.signum is not None and self.done < self.last:
            step = self._step(self.done)
            where = "nothing is kept without a run folder" if self.folder is None else f"saved in {self.folder}"
            raise TrainingInterrupted(f"interrupted at step {step:,}, {where}", result, stopping.signum)
        return result

    def _open(self) -> None:
        """Open the files of the run and tell the loggers; what an earlier process wrote of later steps is taken back first."""
        start, table = self.start, config_table(self.config)
        if start.info.seeds:
            table["seeds"] = start.info.seeds
        written = self._step(self.records.written)
        if self.folder is not None:
            with _disk(self.folder):
                if self.resumed:
                    cut_after(self.folder / METRICS_FILE, written)
                fresh = not (self.folder / METRICS_FILE).exists() or not (self.folder / METRICS_FILE).stat().st_size
                self.file = JsonLines(self.folder / METRICS_FILE)
                if fresh or start.extended:
                    self.file.write({"step": written, "hyperparameters": table})
            self.writer = CheckpointWriter(self.folder / CHECKPOINTS, self.keep, self.scores.best_step)
        name = self.folder.name if self.folder else f"{self.config.algorithm}-{table['env']}"
        self.loggers.start(RunStart(name, self.folder, table, written if self.resumed else 0))

    def _train(self, state: Any, rows: np.ndarray, first: int, deadline: float, stopping: _Stopping) -> Any:
        """Run chunks until the budget is spent or something asks to stop; returns the final state."""
        metrics_bytes = 4 * self.num_seeds * len(self.names)
        size = max(1, min(MAX_CHUNK, self.last - self.done, MAX_CHUNK_BYTES // metrics_bytes))
        chunk = _compile_chunk(self.iteration, state, (self.num_seeds,) if self.start.info.seeds else (), len(self.names), size)
        self.progress.compiled()
        length, saved_at, saved = 1, time.monotonic(), self.done
        stop = False
        while self.done < self.last and not stop and stopping.signum is None:
            length = min(length, size, self._next_stop() - self.done)
            started = time.perf_counter()
            state, buffer, finite = chunk(state, np.int32(self.done), np.int32(length))
            new = rows[self.done - first : self.done - first + length]
            new[:] = np.asarray(buffer)[:length].reshape(new.shape)
            seconds = time.perf_counter() - started
            self.speed = length * self.config.steps_per_iteration * self.num_seeds / seconds
            bad = _first_bad(new, self.names)
            with _disk(self.folder):
                stop = self.records.add(new if bad is None else new[: bad[0] + 1])
            self._check_finite(new, bad, bool(finite))
            before, self.done = self.done, self.done + length
            self.scores.update(self.names, new)
            stop |= time.monotonic() >= deadline
            self.progress.update(self._step(self.done), self.speed, over_seeds("", self.scores.returns["episode/return"]))
            if self.loggers.want_histograms and self._crossed(before, -(-self._step(self.last) // HISTOGRAMS)):
                self.loggers.histograms(self._step(self.done), state)
            if self.writer is not None:
                best = self._evaluated() and self.scores.improved(self._step(self.done))
                ends = self.done == self.last or stop or stopping.signum is not None
                every = self.checkpoint_every is not None and self._crossed(before, self.checkpoint_every)
                late = self.checkpoint_seconds is not None and time.monotonic() - saved_at > self.checkpoint_seconds
                if best or ends or every or (late and not self.writer.busy):
                    self.writer.save(self._step(self.done), state, self.scores.meta(self.done), self.records.pending, best)
                    saved_at, saved = time.monotonic(), self.done
            # Towards CHUNK_SECONDS, not faster than fourfold: the first chunk is one iteration.
            length = max(1, min(4 * length, round(CHUNK_SECONDS / seconds * length)))
        if self.writer is not None and saved < self.done:
            # A signal came after the last chunk was looked at.
            self.writer.save(self._step(self.done), state, self.scores.meta(self.done), self.records.pending, False)
        return state

    def _next_stop(self) -> int:
        """The iteration at which the host must look: an evaluation whose weights may be the best, or a checkpoint that is due."""
        stops, steps = [self.last], self.config.steps_per_iteration
        if self.writer is not None and self.config.eval_every is not None:
            stops.append(_crossing(self.done * steps, steps, self.config.eval_every) + self.done)
        if self.writer is not None and self.checkpoint_every is not None:
            stops.append(_crossing(self._step(self.done), steps, self.checkpoint_every) + self.done)
        return min(stops)

    def _evaluated(self) -> bool:
        """Whether the last iteration ended with an evaluation (see `evaluation_due`)."""
        every, steps = self.config.eval_every, self.config.steps_per_iteration
        return every is not None and self.done * steps // every > (self.done - 1) * steps // every

    def _crossed(self, before: int, every: int) -> bool:
        return self._step(self.done) // every > self._step(before) // every

    def _step(self, iterations: int) -> int:
        """Environment steps after so many iterations."""
        return self.start.info.step_offset + iterations * self.config.steps_per_iteration

    def _first_iteration(self) -> int:
        return (self.start.info.first_step - self.start.info.step_offset) // self.config.steps_per_iteration

    def _emit(self, iterations: int, summary: dict[str, np.ndarray]) -> bool:
        """Write one record; whether the callback asked to stop."""
        step = self._step(iterations)
        metrics = {name: over_seeds(name, values) for name, values in summary.items()}
        metrics["perf/steps_per_second"] = self.speed
        if self.file is not None:
            per_seed = {"seeds": {name: values.tolist() for name, values in summary.items()}} if self.start.info.seeds else {}
            self.file.write({"step": step, **metrics, **per_seed})
        if self.loggers.loggers:
            logged = dict(metrics)
            if self.start.info.seeds and self.num_seeds <= MAX_LOGGED_SEEDS:
                logged |= {
                    f"seed_{i}/{name}": float(x) for name in SCORES if name in summary for i, x in enumerate(summary[name])
                }
            self.loggers.log(step, logged)
        return self.callback is not None and bool(self.callback(step, metrics))

    def _check_finite(self, rows: np.ndarray, bad: tuple[int, int, int] | None, finite: bool) -> None:
        """Stop at the first iteration whose losses are not numbers."""
        if bad is None and finite:
            return
        kept = ""
        if self.folder is not None and self.writer is not None:
            self.writer.wait()
            kept = f"; the last good checkpoint is {(self.folder / CHECKPOINTS / 'latest').resolve()}"
        if bad is None:
            raise TrainingError(
                f"training stopped: parameters are not finite after step {self._step(self.done + len(rows)):,}{kept}"
            )
        row, seed, column = bad
        of_seed = f" of seed {seed}" if self.start.info.seeds else ""
        raise TrainingError(
            f"training stopped: {self.names[column]}{of_seed} became {rows[row, seed, column]} in the iteration that ended at "
            f"step {self._step(self.done + row + 1):,} (rewards or observations that are not finite, or too high a "
            f"learning_rate?){kept}"
        )


_INT32 = jax.ShapeDtypeStruct((), jnp.int32)

Chunk = Callable[..., tuple[Any, jax.Array, jax.Array]]


def _vectorized(agent: Agent, seeds: int | None) -> Callable[..., Any]:
    """`(state, iteration) -> (state, metrics)`, over the states' axis of seeds where there is one."""

    def iteration(state: Any, i: jax.Array) -> Any:
        return train_iteration(agent, state, i)

    # The count of iterations is not batched, so that an evaluation stays a branch that is skipped.
    return iteration if seeds is None else jax.vmap(iteration, in_axes=(0, None))


def _compile_chunk(
    iteration: Callable[..., Any], example: Any, seeds_shape: tuple[int, ...], num_metrics: int, size: int
) -> Chunk:
    """`chunk(state, first, length) -> (state, metrics f32 [size, *seeds, num_metrics], finite)`, for every length <= size.

    The number of iterations is an argument of a loop and not the length of a scan, so that chunks of any length (the last
    one, say) run the same program.
    """

    def chunk(state: Any, first: jax.Array, length: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        def body(i: jax.Array, carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
            state, buffer = carry
            state, metrics = iteration(state, first + i)
            return state, buffer.at[i].set(jnp.moveaxis(stack_metrics(metrics), 0, -1))

        buffer = jnp.full((size, *seeds_shape, num_metrics), jnp.nan)
        state, buffer = jax.lax.fori_loop(0, length, body, (state, buffer))
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(state.params)]))
        return state, buffer, finite

    return jax.jit(chunk, donate_argnums=0).lower(example, _INT32, _INT32).compile()


def _first_bad(rows: np.ndarray, names: list[str]) -> tuple[int, int, int] | None:
    """`(iteration, seed, metric)` of the first loss in rows `[iterations, S, metrics]` that is not finite."""
    # The values are made before the losses, and the losses before all that is derived from them.
    order = ["train/value", "train/policy_loss", "train/value_loss", *names]
    columns = [names.index(name) for name in dict.fromkeys(order) if name.startswith("train/") and name in names]
    bad = ~np.isfinite(rows[:, :, columns])
    if not bad.any():
        return None
    row, seed, column = np.unravel_index(int(np.argmax(bad)), bad.shape)
    return int(row), int(seed), columns[int(column)]


def _crossing(step: int, per_iteration: int, every: int) -> int:
    """Iterations until the count of steps crosses the next multiple of `every`."""
    return -(-((step // every + 1) * every - step) // per_iteration)


class _Stopping(NamedTuple):
    """Which signal asked to stop, as the one entry of a list, or none yet."""

    received: list[int]

    @property
    def signum(self) -> int | None:
        return self.received[0] if self.received else None


@contextlib.contextmanager
def _signals() -> Iterator[_Stopping]:
    """Within it, the first Ctrl-C or SIGTERM only notes itself; the next has its usual effect. Other threads are left alone."""
    stopping = _Stopping([])
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in usual.items():
            signal.signal(number, handler)

    def note(signum: int, _: Any) -> None:
        stopping.received.append(signum)
        restore()
        # Python looks at signals between its own instructions only; the system's own handling does not wait for a long chunk.
        # It would end a notebook's whole kernel, though.
        if usual[signal.SIGINT] is signal.default_int_handler and not _interactive():
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        print("stopping: finishing the chunk and saving; once more stops at once", file=sys.stderr, flush=True)

    for number in usual:
        signal.signal(number, note)
    try:
        yield stopping
    finally:
        restore()


def _interactive() -> bool:
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


@contextlib.contextmanager
def _disk(folder: Path | None) -> Iterator[None]:
    """One line for a disk that is full or gone."""
    try:
        yield
    except OSError as error:
        raise RljaxError(f"training stopped: {folder} cannot be written: {error.strerror or error}") from error


def _to_json(values: np.ndarray) -> list[float | None]:
    return [float(x) if math.isfinite(x) else None for x in values]


def _from_json(values: list[float | None] | None, size: int) -> np.ndarray:
    return np.full(size, math.nan) if values is None else np.array([math.nan if x is None else x for x in values])
