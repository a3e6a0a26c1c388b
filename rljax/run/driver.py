"""The loop of `fit`: chunks of compiled iterations, with all side effects between them."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.collect.environments import evaluation_opponent
from rljax.collect.rollout import NO_ACTION
from rljax.core.config import env_name
from rljax.core.config_files import config_table
from rljax.core.contract import describe
from rljax.core.devices import make_mesh, replicated, shardings
from rljax.core.errors import ConfigError, RljaxError, RljaxWarning, TrainingError, TrainingInterrupted
from rljax.core.host import WAITING, failures_explained
from rljax.run.chunks import (
    INT32,
    Seeds,
    compile_chunk,
    iterations_before_learning,
    iterations_to,
    overlapped_chunk,
    seeds_iteration,
    vectorized_iteration,
)
from rljax.run.divergence import Fault, diverged_steps, divergence_reasons, find_fault, first_bad
from rljax.run.files.checkpoint import CHECKPOINTS, CheckpointWriter, key_impls, link, named_arrays
from rljax.run.files.folder import METRICS_FILE
from rljax.run.files.records import JsonLines, Records, aggregate_seeds, record_of, truncate_after, window_length
from rljax.run.files.remote import Remote
from rljax.run.files.scores import Scores
from rljax.run.loggers.parts import RunStart, with_seeds
from rljax.run.loggers.several import Loggers
from rljax.run.processes import distribute, gather_state, gather_values, is_first
from rljax.run.progress import Pace, Progress
from rljax.run.signals import Stopping
from rljax.run.start import Start

MAX_CHUNK = 1024
"""Largest number of iterations in one call of the compiled chunk."""

MAX_CHUNK_BYTES = 16 * 2**20
"""Largest size of a chunk's metrics: with thousands of seeds a chunk has fewer iterations."""

CHUNK_SECONDS = 0.2
"""Target duration of a chunk: short enough for a live progress bar, long enough that the host costs nothing."""

HISTOGRAMS = 50
"""Number of times in a run that loggers get histograms."""

MAX_METRICS_BYTES = 100_000_000
"""Largest size of the metrics that `fit` returns; larger ones are averaged over the iterations of each record."""

Callback = Callable[[int, dict[str, float]], bool | None]


class FitResult(struct.PyTreeNode):
    """Result of `fit`: the trained state and its metrics, as from `make_train`, and the run's progress.

    Attributes:
        state: trained state; for several seeds each leaf is `[seeds, ...]`.
        metrics: metrics of the iterations of this call, NumPy arrays `[iterations]` or `[seeds, iterations]`.
        step: number of environment steps taken, including those before a fork.
        seeds: number of agents trained; None if the state has no axis of seeds.
        complete: whether the whole budget is spent.
    """

    state: Any
    metrics: dict[str, np.ndarray]
    step: int = struct.field(pytree_node=False)
    seeds: int | None = struct.field(pytree_node=False)
    complete: bool = struct.field(pytree_node=False)


class Driver:
    """One call of `fit`: compile the chunk, run it until the budget is spent, and do all side effects between chunks.

    With several processes only the first one has the folder; `saves` says whether there is one, since all processes take part in
    saving. S is the number of seeds, 1 if the state has no axis of seeds. Iterations are counted from the start of the run.
    """

    def __init__(
        self,
        start: Start,
        folder: Path | None,
        saves: bool,
        resumed: bool,
        loggers: Loggers,
        progress: Progress,
        callback: Callback | None,
        checkpoint_every: int | None,
        checkpoint_seconds: float | None,
        keep: int | None,
        remote: Remote | None = None,
    ):
        self.remote = remote
        self.start, self.folder, self.saves, self.resumed, self.loggers, self.progress, self.callback = (
            start, folder, saves, resumed, loggers, progress, callback
        )  # fmt: skip
        self.checkpoint_every, self.checkpoint_seconds, self.keep = checkpoint_every, checkpoint_seconds, keep
        self.config = start.agent.config
        self.num_seeds = start.info.seeds or 1
        missing = [name for name in ("params", "iteration") if not hasattr(start.state, name)]
        if missing:
            raise ConfigError(
                f"the agent's init: returned {describe(start.state)}, which has no {missing[0]}: "
                "derive your own state from rljax.core.state.State"
            )
        self.layout = self._layout(start.state)
        self.done, self.last = start.iteration, start.last_iteration
        # With jit, the iteration is traced once for both the names of the metrics and the compilation of the chunk.
        several = start.info.seeds is not None
        iteration = seeds_iteration(start.agent, self.num_seeds, self.last)
        self.iteration = jax.jit(iteration if several else vectorized_iteration(start.agent, None, self.last))
        self.diverged = diverged_steps(start.meta, self.num_seeds)
        example = Seeds(start.state, jax.ShapeDtypeStruct((self.num_seeds,), jnp.bool_)) if several else start.state
        self.names = sorted(jax.eval_shape(self.iteration, example, INT32)[1])
        self.scores = Scores(self.num_seeds, start.meta)
        for seed in np.flatnonzero(~self.alive):
            self.scores.leave_out(int(seed))
        window = window_length(self.last - self._first_iteration(), self.num_seeds, len(self.names))
        pending = start.pending
        if pending is None or pending.shape[1:] != (self.num_seeds, len(self.names)):
            pending = np.zeros((0, self.num_seeds, len(self.names)), np.float32)
        self.records = Records(self.names, window, self.done - len(pending), self.last, pending, self._emit)
        self.perf, self.pace = {"perf/steps_per_second": math.nan}, Pace()
        self.learns_at = self.done + iterations_before_learning(self.config, start.state)
        # Keep the metrics of every iteration; if they would be too large, one row per record.
        self.row_bytes = 4 * self.num_seeds * len(self.names)
        self.every_iteration = (self.last - self.done) * self.row_bytes <= MAX_METRICS_BYTES
        self.rows: list[np.ndarray] = []
        self.failed_at: int | None = None  # step of the iteration that failed
        self.stop = False
        self.failure: Exception | None = None
        self.file: JsonLines | None = None
        self.writer: CheckpointWriter | None = None

    def run(self, stopping: Stopping, max_minutes: float | None) -> FitResult:
        deadline = math.inf if max_minutes is None else time.monotonic() + 60.0 * max_minutes
        state, self.start = self.start.state, self.start._replace(state=None)
        failed = True
        try:
            self._open()
            # With a smaller budget than before, the pending rows may complete the last window now.
            self.records.add(np.zeros((0, self.num_seeds, len(self.names)), np.float32))
            if self.done < self.last:
                self.progress.start(self._step(self.last))
                try:
                    state = self._train(state, deadline, stopping)
                except TrainingError as error:
                    self._record_failure(error)
                    raise
                finally:
                    self.progress.stop()
            failed = self.failure is not None
        finally:
            with contextlib.ExitStack() as closing:  # closes each one whatever another raises, the loggers first
                if self.writer is not None:
                    closing.callback(self.writer.close)
                if self.file is not None:
                    closing.callback(self.file.close)
                closing.callback(self.loggers.close, failed)
        if self.failure is not None:
            raise self.failure
        rows = np.concatenate([np.zeros((0, self.num_seeds, len(self.names)), np.float32), *self.rows])
        rows = np.moveaxis(rows, 0, -1) if self.start.info.seeds else rows[:, 0].T
        metrics = {name: rows[..., i, :] for i, name in enumerate(self.names)}
        step, complete = self._step(self.done), self.done >= self.last
        result = FitResult(state=state, metrics=metrics, step=step, seeds=self.start.info.seeds, complete=complete)
        if stopping.signum is not None and not complete:
            where = "nothing is kept without a run folder" if self.folder is None else f"saved in {self.folder}"
            raise TrainingInterrupted(f"interrupted at step {step:,}, {where}", result, stopping.signum)
        return result

    def _open(self) -> None:
        """Remove what an earlier process wrote about later steps, open the files of the run, and start the loggers."""
        start, table = self.start, config_table(self.config)
        if start.info.seeds:
            table["seeds"] = start.info.seeds
        written = self._step(self.records.written)
        whom = evaluation_opponent(self.config)
        opponent = {} if whom is None else {"eval_opponent": whom}
        if self.folder is not None:
            with _explain_disk_errors(self.folder):
                if self.resumed:
                    self._repair(written)
                fresh = not (self.folder / METRICS_FILE).exists() or not (self.folder / METRICS_FILE).stat().st_size
                self.file = JsonLines(self.folder / METRICS_FILE)
                if fresh or start.extended:
                    self.file.write({"step": written, "hyperparameters": table, **opponent})
            send = (lambda: None) if self.remote is None else partial(self.remote.send, self.folder)
            send()  # a place that cannot be written to is noticed before the training
            self.writer = CheckpointWriter(self.folder / CHECKPOINTS, self.keep, self.scores.best_step, send)
        name = self.folder.name if self.folder else f"{self.config.algorithm}-{table['env']}"
        self.loggers.start(RunStart(name, self.folder, {**table, **opponent}, written, self.resumed))

    def _repair(self, written: int) -> None:
        """Restore the folder of a resumed run to its state at the checkpoint: remove later records and repair the links."""
        assert self.folder is not None
        kept = truncate_after(self.folder / METRICS_FILE, written)
        if kept < written:
            since = f"after step {kept:,}" if kept >= 0 else "of the run so far"
            warnings.warn(f"{self.folder / METRICS_FILE}: records {since} are missing", RljaxWarning, stacklevel=2)
        checkpoints = self.folder / CHECKPOINTS
        for link_name, step in (("latest", self._step(self.done)), ("best", self.scores.best_step)):
            if step is not None and (checkpoints / f"step_{step}").exists():
                link(checkpoints, link_name, step)

    def _train(self, state: Any, deadline: float, stopping: Stopping) -> Any:
        """Run chunks until the budget is spent or a stop is requested; return the final state."""
        layout = self.layout
        if self.start.info.seeds is not None:
            state = Seeds(state, jnp.asarray(self.alive))
            layout = layout if layout is None else Seeds(layout, replicated(layout))
        state = state if layout is None else distribute(state, layout)
        # It depends on the whole budget, not on the rest of it: a resumed run then reuses the compiled program.
        size = max(1, min(MAX_CHUNK, self.last, MAX_CHUNK_BYTES // self.row_bytes))
        seeds_shape = (self.num_seeds,) if self.start.info.seeds else ()
        agent = self.start.agent
        if agent.halves is not None and agent.step is getattr(agent.made, "step", None) and not seeds_shape:
            chunk = overlapped_chunk(agent, state, len(self.names), size, self.last)
        else:
            chunk = compile_chunk(self.iteration, state, seeds_shape, len(self.names), size, layout)
        self.progress.compiled()
        WAITING.reset()
        counted: np.ndarray | None = self._counters(state)
        length, saved_at, looked_at = 1, time.monotonic(), time.monotonic()
        while self.done < self.last and not self.stop:
            # The time of cheap iterations does not predict the first one that learns, which may take a thousand times as long.
            length = 1 if self.done == self.learns_at - 1 else min(length, size, self._next_stop() - self.done)
            started = time.perf_counter()
            with self._explain_host_errors():
                state, buffer, finite = chunk(state, np.int32(self.done), np.int32(length))
                # Slice on the host: JAX would compile a program for each length.
                new = np.array(np.asarray(buffer)[:length]).reshape(length, self.num_seeds, len(self.names))
            seconds = time.perf_counter() - started
            speed = length * self.config.steps_per_iteration * self.num_seeds / seconds
            self.perf = {"perf/steps_per_second": speed} | WAITING.shares(seconds)
            bad = None if isinstance(state, Seeds) and finite else first_bad(new, self.names, self.alive)
            illegal = self._first_illegal(new)
            # No records of steps after a failure.
            end = min((found[0] + 1 for found in (bad, illegal) if found is not None), default=length)
            if self.file is not None or self.loggers.loggers or self.callback is not None or not self.every_iteration:
                self.records.add(new[:end])
            if self.every_iteration:
                self.rows.append(new)
            if illegal is not None:
                self._stop_illegal(new, *illegal)
            if bad is not None or not finite:
                self._stop_not_finite(new, bad, _states(gather_state(state, layout)))
            if counted is not None:
                self._check_counter(counted, length, state)
                counted = None
            before, self.done = self.done, self.done + length
            if isinstance(state, Seeds):
                self._note_diverged(new, np.asarray(state.alive))
            self.scores.update(self.names, new)
            now = time.monotonic()
            if before >= self.learns_at:
                self.pace.add(now - looked_at, length)
            looked_at = now
            self.progress.update(
                self._step(self.done),
                speed,
                aggregate_seeds("episode/return", self.scores.returns["episode/return"]),
                self.pace.left(self.last - self.done),
            )
            if self.loggers.want_histograms and self._crossed(before, -(-self._step(self.last) // HISTOGRAMS)):
                self.loggers.histograms(self._step(self.done), _states(state))
            late = self.checkpoint_seconds is not None and time.monotonic() - saved_at > self.checkpoint_seconds
            late = late and self.writer is not None and not self.writer.busy
            # Approach CHUNK_SECONDS, growing at most fourfold at a time: the first chunk is one iteration.
            length = max(1, min(4 * length, round(CHUNK_SECONDS / seconds * length)))
            self.stop |= time.monotonic() >= deadline or stopping.signum is not None
            # Clocks and signals of several processes differ: they use the clock of the first, and all stop when one does.
            stops, lates, lengths = gather_values(self.stop, late, length).T
            self.stop, late, length = bool(stops.any()), bool(lates[0]), int(lengths[0])
            if self.saves:
                best = self._has_evaluated() and self.scores.improved(self._step(self.done))
                every = self.checkpoint_every is not None and self._crossed(before, self.checkpoint_every)
                if best or self.done == self.last or self.stop or every or late:
                    self._save(_states(gather_state(state, layout)), best)
                    saved_at = time.monotonic()
                    if isinstance(state, Seeds):
                        alive = jnp.asarray(self.alive)
                        state = state._replace(alive=alive if layout is None else distribute(alive, layout.alive))
        return _states(gather_state(state, layout))

    @contextlib.contextmanager
    def _explain_host_errors(self) -> Iterator[None]:
        """Stop the run with one line if its program stopped because a call of the host failed: data that could not be read, or a
        simulator."""
        try:
            with failures_explained():
                yield
        except RljaxError as failure:
            raise TrainingError(f"training stopped: {failure}{self._saved_note()}") from None

    def _save(self, state: Any, best: bool) -> None:
        """Save a state after checking that its numbers are finite; mark seeds with other numbers as diverged."""
        arrays = named_arrays(state)
        while (fault := find_fault(arrays, self.alive, self.start.info.seeds is not None)) is not None:
            why, since = self._described(fault, self.done)
            if self.alive.sum() == 1:
                self.failed_at = self._step(self.done)
                raise TrainingError(f"training stopped: {why}; that state was not saved{self._saved_note()}")
            self._leave_out(fault.seed, since, why)
        meta = {**self.scores.meta(self.done), "keys": key_impls(state)}
        if self.start.info.seeds is not None:
            meta["diverged"] = self.diverged
        if self.writer is not None:
            self.loggers.flush()
            self.writer.save(self._step(self.done), arrays, meta, self.records.pending, best)

    @property
    def alive(self) -> np.ndarray:
        """True for each seed that has not diverged, bool `[S]`."""
        return np.array([step is None for step in self.diverged])

    def _leave_out(self, seed: int, step: int, why: str) -> None:
        """Mark a seed as diverged: its training stops, and it cannot become the best."""
        self.diverged[seed] = step
        self.scores.leave_out(seed)
        if is_first():
            warnings.warn(
                f"seed_index {seed} of {self.num_seeds} diverged: {why}; its training stops, the others continue",
                RljaxWarning,
                stacklevel=2,
            )

    def _note_diverged(self, rows: np.ndarray, alive: np.ndarray) -> None:
        """Mark the seeds that diverged in the iterations of `rows`, the latest ones."""
        lost = np.flatnonzero(self.alive & ~alive)
        for seed, (row, what) in zip(lost, divergence_reasons(rows, self.names, lost), strict=True):
            step = self._step(self.done - len(rows) + row + 1)
            self._leave_out(int(seed), step, f"{what} in the iteration that ended at step {step:,}")

    def _layout(self, state: Any) -> Any:
        """Return the sharding of the state over several devices, on which a restored state is not yet; None for one device."""
        if self.config.num_devices == 1:
            return None
        mesh = make_mesh(self.config.num_devices)
        return shardings(mesh, state, self.config.num_envs, 0 if self.start.info.seeds is None else 1)

    def _next_stop(self) -> int:
        """Return the iteration at which the chunk must end: at an evaluation that may be the best, or at a due checkpoint."""
        stops, steps = [self.last], self.config.steps_per_iteration
        if self.done < self.learns_at - 1:
            stops.append(self.learns_at - 1)
        if self.saves and self.config.eval_every is not None:
            stops.append(iterations_to(self.done * steps, steps, self.config.eval_every) + self.done)
        if self.saves and self.checkpoint_every is not None:
            stops.append(iterations_to(self._step(self.done), steps, self.checkpoint_every) + self.done)
        return min(stops)

    def _has_evaluated(self) -> bool:
        """Return whether the last iteration ended with an evaluation (see `train_iteration`)."""
        every, steps = self.config.eval_every, self.config.steps_per_iteration
        return every is not None and (self.done == self.last or self.done * steps // every > (self.done - 1) * steps // every)

    def _crossed(self, before: int, every: int) -> bool:
        return self._step(self.done) // every > self._step(before) // every

    def _step(self, iterations: int) -> int:
        """Return the number of environment steps after `iterations` iterations."""
        return self.start.info.step_offset + iterations * self.config.steps_per_iteration

    def _first_iteration(self) -> int:
        return (self.start.info.first_step - self.start.info.step_offset) // self.config.steps_per_iteration

    def _emit(self, iterations: int, summary: dict[str, np.ndarray]) -> None:
        """Write one record and call the callback, which may stop the run; once it has, or has failed, it is not called again."""
        step = self._step(iterations)
        metrics = {name: aggregate_seeds(name, values) for name, values in summary.items()} | self.perf
        if not self.every_iteration:
            self.rows.append(np.stack([summary[name] for name in self.names], -1)[None].astype(np.float32))
        if self.file is not None:
            with _explain_disk_errors(self.folder):
                self.file.write(record_of(step, summary, bool(self.start.info.seeds), **self.perf))
        if self.loggers.loggers:
            self.loggers.log(step, with_seeds(metrics, summary if self.start.info.seeds else {}))
        if self.callback is not None and not self.stop:
            try:
                self.stop = bool(self.callback(step, metrics))
            except TrainingInterrupted:
                self.stop = True  # raised by a run within the callback; this run has received the signal, too
            except Exception as error:
                # Finish and save the chunk before raising it: hours of training must not be lost to a typo.
                self.stop, self.failure = True, error

    def _record_failure(self, error: TrainingError) -> None:
        """Write why the run stopped after its records; a resumed run removes it with the records after its checkpoint."""
        if self.file is not None:
            why = str(error).removeprefix("training stopped: ").removesuffix(self._saved_note())
            # Without a known step, after those of the checkpoint, at which a resumed run goes on.
            step = self._step(self.done) + 1 if self.failed_at is None else self.failed_at
            with contextlib.suppress(OSError):  # of a full disk, say
                self.file.write({"step": step, "failure": why})

    def _saved_note(self) -> str:
        """Return the end of a message about a stopped run: its last good checkpoint, if it has a folder."""
        if self.folder is None or self.writer is None:
            return ""
        self.writer.wait()
        return f"; the last good checkpoint is {(self.folder / CHECKPOINTS / 'latest').resolve()}"

    def _first_illegal(self, rows: np.ndarray) -> tuple[int, int] | None:
        """Return `(iteration, seed)` of the first row in which a policy had no legal action, or None."""
        if NO_ACTION not in self.names:
            return None
        found = rows[:, :, self.names.index(NO_ACTION)] > 0
        if not found.any():
            return None
        row, seed = np.unravel_index(int(np.argmax(found)), found.shape)
        return int(row), int(seed)

    def _stop_illegal(self, rows: np.ndarray, row: int, seed: int) -> NoReturn:
        """Stop the run at an iteration in which a policy had no legal action."""
        self.failed_at, steps = self._step(self.done + row + 1), rows[row, seed, self.names.index(NO_ACTION)]
        # A student learns in the environments of its teachers.
        where = "an environment of the teachers" if hasattr(self.config, "teachers") else env_name(self.config)
        raise TrainingError(
            f"training stopped: action_mask of {where} allowed no action (of some head) in "
            f"{steps:.0f} steps of the iteration that ended at step {self.failed_at:,}; an unfinished episode needs one"
            f"{self._saved_note()}"
        )

    def _stop_not_finite(self, rows: np.ndarray, bad: tuple[int, int, int] | None, state: Any) -> NoReturn:
        """Stop the run at the first iteration whose losses are not finite; with several seeds, when all have diverged."""
        kept = self._saved_note()
        if bad is None:
            self.failed_at = self._step(self.done + len(rows))
            raise TrainingError(f"training stopped: parameters are not finite after step {self.failed_at:,}{kept}")
        row, seed, column = bad
        self.failed_at = self._step(self.done + row + 1)
        of_seed = f" of seed {seed}" if self.start.info.seeds else ""
        # A replay buffer still has what broke the loss. What came in the same iteration may be due to parameters that broke.
        fault = find_fault(named_arrays(state), np.arange(self.num_seeds) == seed, self.start.info.seeds is not None)
        why = "rewards or observations that are not finite, or too high a learning_rate?"
        if fault is not None and fault.collected and fault.age is not None:
            described, since = self._described(fault, self.done + len(rows))
            why = described if since <= self._step(self.done + row) else why
        raise TrainingError(
            f"training stopped: {self.names[column]}{of_seed} became {rows[row, seed, column]} in the iteration that ended at "
            f"step {self.failed_at:,} ({why}){kept}"
        )

    def _counters(self, state: Any) -> np.ndarray:
        """Return how many iterations each seed has counted, `[S]`; a copy, since the next chunk takes over the state's memory."""
        return np.array(np.ravel(_states(state).iteration))

    def _check_counter(self, before: np.ndarray, length: int, state: Any) -> None:
        """Stop the run if its first chunk did not count its iterations, which a step of the user's own may forget."""
        after, expected = self._counters(state), before + length
        wrong = (after != expected) & (np.array(state.alive) if isinstance(state, Seeds) else True)  # others keep their state
        if wrong.any():
            found, due = after[wrong][0], expected[wrong][0]
            self.failed_at = self._step(self.done + length)
            raise TrainingError(
                f"training stopped: the agent's step left state.iteration at {found}, expected {due}: add 1 in each step, "
                f"state.replace(iteration=state.iteration + 1), since what is annealed follows it{self._saved_note()}"
            )

    def _described(self, fault: Fault, done: int) -> tuple[str, int]:
        """Return what was wrong in the state after `done` iterations, and since which step."""
        since = self._step(done) - (fault.age or 0) * self.config.num_envs
        step = f"at step {since:,}" if fault.age is not None else f"by step {since:,}"
        return f"{fault.what}{f' of {env_name(self.config)}' if fault.collected else ''} was {fault.value} {step}", since


def _states(state: Any) -> Any:
    return state.states if isinstance(state, Seeds) else state


@contextlib.contextmanager
def _explain_disk_errors(folder: Path | None) -> Iterator[None]:
    """Turn an error of the disk (full or gone) into one line."""
    try:
        yield
    except OSError as error:
        raise RljaxError(f"training stopped: {folder} cannot be written: {error.strerror or error}") from error
