"""The loop of `fit`: chunks of compiled iterations, and between them everything impure."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.collect.environments import EVALUATION_OPPONENT
from rljax.collect.rollout import NO_ACTION
from rljax.core.config import config_table, env_name
from rljax.core.devices import make_mesh, replicated, shardings
from rljax.core.errors import (
    RljaxError,
    RljaxWarning,
    TrainingError,
    TrainingInterrupted,
)
from rljax.run.chunks import (
    INT32,
    Seeds,
    compile_chunk,
    iterations_before_learning,
    iterations_to,
    seeds_iteration,
    vectorized_iteration,
)
from rljax.run.divergence import diverged_in, find_fault, first_bad, why_lost
from rljax.run.files.checkpoint import CHECKPOINTS, CheckpointWriter, key_impls, link, named_arrays
from rljax.run.files.folder import METRICS_FILE
from rljax.run.files.records import JsonLines, Records, cut_after, over_seeds, record_of, window_of
from rljax.run.files.scores import SCORES, Scores
from rljax.run.loggers import Loggers, RunStart
from rljax.run.processes import all_of, is_first, on_this_process, over_processes
from rljax.run.progress import Pace, Progress
from rljax.run.signals import Stopping
from rljax.run.start import Start

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

MAX_METRICS_BYTES = 100_000_000
"""Size of the metrics that `fit` returns at most; beyond it they are averaged over the iterations of each record."""

Callback = Callable[[int, dict[str, float]], bool | None]


class FitResult(NamedTuple):
    """The result of `fit`: what `make_train` returns, and where the run is.

    Attributes:
        state: the trained state, `[seeds, ...]` in each leaf of a run of several seeds.
        metrics: those of the iterations of this call, NumPy arrays `[iterations]` or `[seeds, iterations]`.
        step: environment steps taken, those before a fork included.
        seeds: how many agents were trained; None where the state has no axis of seeds.
        complete: whether the whole budget is spent.
    """

    state: Any
    metrics: dict[str, np.ndarray]
    step: int
    seeds: int | None
    complete: bool


class Driver:
    """One call of `fit`: compiles the chunk, runs it until the budget is spent, and sees to everything between chunks.

    Of several processes only the first has a folder; `saves` says whether there is one, as saving takes them all.

    S is the number of seeds, 1 where the state has no axis for them. Iterations are counted from the run's own beginning.
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
    ):
        self.start, self.folder, self.saves, self.resumed, self.loggers, self.progress, self.callback = (
            start, folder, saves, resumed, loggers, progress, callback
        )  # fmt: skip
        self.checkpoint_every, self.checkpoint_seconds, self.keep = checkpoint_every, checkpoint_seconds, keep
        self.config = start.agent.config
        self.num_seeds = start.info.seeds or 1
        self.layout = self._layout(start.state)
        self.done, self.last = start.iteration, start.last_iteration
        # Jitted, so that finding out the names of the metrics and compiling the chunk trace the iteration once.
        several = start.info.seeds is not None
        iteration = seeds_iteration(start.agent, self.num_seeds, self.last)
        self.iteration = jax.jit(iteration if several else vectorized_iteration(start.agent, None, self.last))
        self.diverged = diverged_in(start.meta, self.num_seeds)
        example = Seeds(start.state, jax.ShapeDtypeStruct((self.num_seeds,), jnp.bool_)) if several else start.state
        self.names = sorted(jax.eval_shape(self.iteration, example, INT32)[1])
        self.scores = Scores(self.num_seeds, start.meta)
        for seed in np.flatnonzero(~self.alive):
            self.scores.leave_out(int(seed))
        window = window_of(self.last - self._first_iteration(), self.num_seeds, len(self.names))
        pending = start.pending
        if pending is None or pending.shape[1:] != (self.num_seeds, len(self.names)):
            pending = np.zeros((0, self.num_seeds, len(self.names)), np.float32)
        self.records = Records(self.names, window, self.done - len(pending), self.last, pending, self._emit)
        self.speed, self.pace = math.nan, Pace()
        self.learns_at = self.done + iterations_before_learning(self.config, start.state)
        # Every iteration's metrics, unless they are too many; one row per record then.
        self.row_bytes = 4 * self.num_seeds * len(self.names)
        self.every_iteration = (self.last - self.done) * self.row_bytes <= MAX_METRICS_BYTES
        self.rows: list[np.ndarray] = []
        self.stop = False
        self.failure: Exception | None = None
        self.file: JsonLines | None = None
        self.writer: CheckpointWriter | None = None

    def run(self, stopping: Stopping, max_minutes: float | None) -> FitResult:
        deadline = math.inf if max_minutes is None else time.monotonic() + 60.0 * max_minutes
        state, self.start = self.start.state, self.start._replace(state=None)
        try:
            self._open()
            self.records.add(np.zeros((0, self.num_seeds, len(self.names)), np.float32))  # a smaller budget may end a window now
            if self.done < self.last:
                self.progress.start(self._step(self.last))
                try:
                    state = self._train(state, deadline, stopping)
                finally:
                    self.progress.stop()
        finally:
            with contextlib.ExitStack() as closing:  # each, whatever another raises; the loggers first
                if self.writer is not None:
                    closing.callback(self.writer.close)
                if self.file is not None:
                    closing.callback(self.file.close)
                closing.callback(self.loggers.close)
        if self.failure is not None:
            raise self.failure
        rows = np.concatenate([np.zeros((0, self.num_seeds, len(self.names)), np.float32), *self.rows])
        rows = np.moveaxis(rows, 0, -1) if self.start.info.seeds else rows[:, 0].T
        metrics = {name: rows[..., i, :] for i, name in enumerate(self.names)}
        step, complete = self._step(self.done), self.done >= self.last
        result = FitResult(state, metrics, step, self.start.info.seeds, complete)
        if stopping.signum is not None and not complete:
            where = "nothing is kept without a run folder" if self.folder is None else f"saved in {self.folder}"
            raise TrainingInterrupted(f"interrupted at step {step:,}, {where}", result, stopping.signum)
        return result

    def _open(self) -> None:
        """Open the files of the run and tell the loggers; what an earlier process wrote of later steps is taken back first."""
        start, table = self.start, config_table(self.config)
        if start.info.seeds:
            table["seeds"] = start.info.seeds
        written = self._step(self.records.written)
        opponent = {"eval_opponent": EVALUATION_OPPONENT} if self.config.of_games else {}
        if self.folder is not None:
            with _disk(self.folder):
                if self.resumed:
                    self._mend(written)
                fresh = not (self.folder / METRICS_FILE).exists() or not (self.folder / METRICS_FILE).stat().st_size
                self.file = JsonLines(self.folder / METRICS_FILE)
                if fresh or start.extended:
                    self.file.write({"step": written, "hyperparameters": table, **opponent})
            self.writer = CheckpointWriter(self.folder / CHECKPOINTS, self.keep, self.scores.best_step)
        name = self.folder.name if self.folder else f"{self.config.algorithm}-{table['env']}"
        self.loggers.start(RunStart(name, self.folder, {**table, **opponent}, written, self.resumed))

    def _mend(self, written: int) -> None:
        """Make the folder of a run that goes on what it was at its checkpoint: no later records, links that point somewhere."""
        assert self.folder is not None
        kept = cut_after(self.folder / METRICS_FILE, written)
        if kept < written:
            since = f"after step {kept:,}" if kept >= 0 else "of the run so far"
            warnings.warn(f"{self.folder / METRICS_FILE}: records {since} are missing", RljaxWarning, stacklevel=2)
        checkpoints = self.folder / CHECKPOINTS
        for link_name, step in (("latest", self._step(self.done)), ("best", self.scores.best_step)):
            if step is not None and (checkpoints / f"step_{step}").exists():
                link(checkpoints, link_name, step)

    def _train(self, state: Any, deadline: float, stopping: Stopping) -> Any:
        """Run chunks until the budget is spent or something asks to stop; returns the final state."""
        layout = self.layout
        if self.start.info.seeds is not None:
            state = Seeds(state, jnp.asarray(self.alive))
            layout = layout if layout is None else Seeds(layout, replicated(layout))
        state = state if layout is None else over_processes(state, layout)
        # Not of what is left: a run that goes on is the same program as before, which need not be compiled again.
        size = max(1, min(MAX_CHUNK, self.last, MAX_CHUNK_BYTES // self.row_bytes))
        seeds_shape = (self.num_seeds,) if self.start.info.seeds else ()
        chunk = compile_chunk(self.iteration, state, seeds_shape, len(self.names), size, layout)
        self.progress.compiled()
        length, saved_at, looked_at = 1, time.monotonic(), time.monotonic()
        while self.done < self.last and not self.stop:
            # What cheap iterations took says nothing of the first one that learns, which may be a thousand times as long.
            length = 1 if self.done == self.learns_at - 1 else min(length, size, self._next_stop() - self.done)
            started = time.perf_counter()
            state, buffer, finite = chunk(state, np.int32(self.done), np.int32(length))
            # Cut on the host: JAX would compile a program for each length.
            new = np.array(np.asarray(buffer)[:length]).reshape(length, self.num_seeds, len(self.names))
            seconds = time.perf_counter() - started
            self.speed = length * self.config.steps_per_iteration * self.num_seeds / seconds
            bad = None if isinstance(state, Seeds) and finite else first_bad(new, self.names, self.alive)
            if self.file is not None or self.loggers.loggers or self.callback is not None or not self.every_iteration:
                self.records.add(new if bad is None else new[: bad[0] + 1])
            if self.every_iteration:
                self.rows.append(new)
            self._check_legal(new)
            self._check_finite(new, bad, bool(finite))
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
                self.speed,
                over_seeds("episode/return", self.scores.returns["episode/return"]),
                self.pace.left(self.last - self.done),
            )
            if self.loggers.want_histograms and self._crossed(before, -(-self._step(self.last) // HISTOGRAMS)):
                self.loggers.histograms(self._step(self.done), _states(state))
            late = self.checkpoint_seconds is not None and time.monotonic() - saved_at > self.checkpoint_seconds
            late = late and self.writer is not None and not self.writer.busy
            # Towards CHUNK_SECONDS, not faster than fourfold: the first chunk is one iteration.
            length = max(1, min(4 * length, round(CHUNK_SECONDS / seconds * length)))
            self.stop |= time.monotonic() >= deadline or stopping.signum is not None
            # Clocks and signals of several processes differ: they go by the first one's clock, and stop when one does.
            stops, lates, lengths = all_of(self.stop, late, length).T
            self.stop, late, length = bool(stops.any()), bool(lates[0]), int(lengths[0])
            if self.saves:
                best = self._evaluated() and self.scores.improved(self._step(self.done))
                every = self.checkpoint_every is not None and self._crossed(before, self.checkpoint_every)
                if best or self.done == self.last or self.stop or every or late:
                    self._save(_states(on_this_process(state, layout)), best)
                    saved_at = time.monotonic()
                    if isinstance(state, Seeds):
                        alive = jnp.asarray(self.alive)
                        state = state._replace(alive=alive if layout is None else over_processes(alive, layout.alive))
        return _states(on_this_process(state, layout))

    def _save(self, state: Any, best: bool) -> None:
        """Save a state whose numbers are as they should be; of a seed whose are not, note that it has diverged."""
        arrays = named_arrays(state)
        while (fault := find_fault(arrays, self.alive, self.start.info.seeds is not None)) is not None:
            since = self._step(self.done) - (fault.age or 0) * self.config.num_envs
            step = f"at step {since:,}" if fault.age is not None else f"by step {since:,}"
            why = f"{fault.what}{f' of {env_name(self.config)}' if fault.collected else ''} was {fault.value} {step}"
            if self.alive.sum() == 1:
                raise TrainingError(f"training stopped: {why}; nothing of it was saved{self._kept()}")
            self._leave_out(fault.seed, since, why)
        meta = {**self.scores.meta(self.done), "keys": key_impls(state)}
        if self.start.info.seeds is not None:
            meta["diverged"] = self.diverged
        if self.writer is not None:
            self.writer.save(self._step(self.done), arrays, meta, self.records.pending, best)

    @property
    def alive(self) -> np.ndarray:
        """Which seeds have not diverged, bool `[S]`."""
        return np.array([step is None for step in self.diverged])

    def _leave_out(self, seed: int, step: int, why: str) -> None:
        """Note that a seed has diverged: it trains no more, and is no candidate for the best."""
        self.diverged[seed] = step
        self.scores.leave_out(seed)
        if is_first():
            warnings.warn(
                f"seed_index {seed} of {self.num_seeds} diverged: {why}; it trains no more, the others go on",
                RljaxWarning,
                stacklevel=2,
            )

    def _note_diverged(self, rows: np.ndarray, alive: np.ndarray) -> None:
        """Leave out the seeds that diverged in the iterations of `rows`, the last ones done."""
        lost = np.flatnonzero(self.alive & ~alive)
        for seed, (row, what) in zip(lost, why_lost(rows, self.names, lost), strict=True):
            step = self._step(self.done - len(rows) + row + 1)
            self._leave_out(int(seed), step, f"{what} in the iteration that ended at step {step:,}")

    def _layout(self, state: Any) -> Any:
        """Where the state lies on several devices (one that was read from a checkpoint is on none of them); None on one."""
        if self.config.num_devices == 1:
            return None
        mesh = make_mesh(self.config.num_devices)
        return shardings(mesh, state, self.config.num_envs, 0 if self.start.info.seeds is None else 1)

    def _next_stop(self) -> int:
        """The iteration at which the host must look: an evaluation whose weights may be the best, or a checkpoint that is due."""
        stops, steps = [self.last], self.config.steps_per_iteration
        if self.done < self.learns_at - 1:
            stops.append(self.learns_at - 1)
        if self.saves and self.config.eval_every is not None:
            stops.append(iterations_to(self.done * steps, steps, self.config.eval_every) + self.done)
        if self.saves and self.checkpoint_every is not None:
            stops.append(iterations_to(self._step(self.done), steps, self.checkpoint_every) + self.done)
        return min(stops)

    def _evaluated(self) -> bool:
        """Whether the last iteration ended with an evaluation (see `train_iteration`)."""
        every, steps = self.config.eval_every, self.config.steps_per_iteration
        return every is not None and (self.done == self.last or self.done * steps // every > (self.done - 1) * steps // every)

    def _crossed(self, before: int, every: int) -> bool:
        return self._step(self.done) // every > self._step(before) // every

    def _step(self, iterations: int) -> int:
        """Environment steps after so many iterations."""
        return self.start.info.step_offset + iterations * self.config.steps_per_iteration

    def _first_iteration(self) -> int:
        return (self.start.info.first_step - self.start.info.step_offset) // self.config.steps_per_iteration

    def _emit(self, iterations: int, summary: dict[str, np.ndarray]) -> None:
        """Write one record, and ask the callback whether to stop; once it has had enough, or failed, it is not asked again."""
        step = self._step(iterations)
        metrics = {name: over_seeds(name, values) for name, values in summary.items()}
        metrics["perf/steps_per_second"] = self.speed
        if not self.every_iteration:
            self.rows.append(np.stack([summary[name] for name in self.names], -1)[None].astype(np.float32))
        if self.file is not None:
            speed = {"perf/steps_per_second": self.speed}
            with _disk(self.folder):
                self.file.write(record_of(step, summary, bool(self.start.info.seeds), **speed))
        if self.loggers.loggers:
            logged = dict(metrics)
            if self.start.info.seeds and self.num_seeds <= MAX_LOGGED_SEEDS:
                logged |= {
                    f"seed_{i}/{name}": float(x) for name in SCORES if name in summary for i, x in enumerate(summary[name])
                }
            self.loggers.log(step, logged)
        if self.callback is not None and not self.stop:
            try:
                self.stop = bool(self.callback(step, metrics))
            except TrainingInterrupted:
                self.stop = True  # of a run within the callback; this one has noted the signal, too
            except Exception as error:
                # The chunk is finished and saved before it is raised: hours of training are not lost to a typo.
                self.stop, self.failure = True, error

    def _kept(self) -> str:
        """What of a run that is stopped is left."""
        if self.folder is None or self.writer is None:
            return ""
        self.writer.wait()
        return f"; the last good checkpoint is {(self.folder / CHECKPOINTS / 'latest').resolve()}"

    def _check_legal(self, rows: np.ndarray) -> None:
        """Stop where there was nothing that a policy may do."""
        if NO_ACTION not in self.names:
            return
        steps = rows[:, :, self.names.index(NO_ACTION)]
        if not (steps > 0).any():
            return
        row, seed = np.unravel_index(int(np.argmax(steps > 0)), steps.shape)
        step = self._step(self.done + int(row) + 1)
        raise TrainingError(
            f"training stopped: action_mask of {env_name(self.config)} allowed no action (of some head) in "
            f"{steps[row, seed]:.0f} steps of the iteration that ended at step {step:,}; an episode that goes on needs one"
            f"{self._kept()}"
        )

    def _check_finite(self, rows: np.ndarray, bad: tuple[int, int, int] | None, finite: bool) -> None:
        """Stop at the first iteration whose losses are not numbers; of several seeds, where none is left."""
        if bad is None and finite:
            return
        kept = self._kept()
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


def _states(state: Any) -> Any:
    return state.states if isinstance(state, Seeds) else state


@contextlib.contextmanager
def _disk(folder: Path | None) -> Iterator[None]:
    """One line for a disk that is full or gone."""
    try:
        yield
    except OSError as error:
        raise RljaxError(f"training stopped: {folder} cannot be written: {error.strerror or error}") from error
