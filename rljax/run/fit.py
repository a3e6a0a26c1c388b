"""The driver: trains in compiled chunks and does everything impure between them."""

from __future__ import annotations

import contextlib
import math
import numbers
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.training import TrainResult, train_iteration
from rljax.collect.environments import EVALUATION_OPPONENT, try_environment
from rljax.collect.replay import Replay
from rljax.collect.rollout import NO_ACTION
from rljax.core.agent import Agent, make_agent, stack_metrics
from rljax.core.config import Config, config_table, env_name
from rljax.core.devices import everywhere, make_mesh, shardings, warn_of_unseen_gpu
from rljax.core.errors import (
    ConfigError,
    ProcessLostError,
    RljaxError,
    RljaxWarning,
    TrainingError,
    TrainingInterrupted,
    first_line,
    shown,
)
from rljax.core.keys import as_key
from rljax.envs.registry import unknown_to_commands
from rljax.run.checkpoint import CHECKPOINTS, CheckpointWriter, key_impls, link, named_arrays
from rljax.run.divergence import Seeds, all_finite, bad_losses, diverged_in, find_fault, surviving_iteration
from rljax.run.folder import CONFIG_FILE, METRICS_FILE, check_free, check_run, create_run_dir, split_path
from rljax.run.loggers import Logger, Loggers, RunStart
from rljax.run.places import locked
from rljax.run.processes import all_of, check_processes, is_first, on_this_process, over_processes
from rljax.run.progress import Pace, Progress, Silent, default_progress
from rljax.run.records import JsonLines, Records, cut_after, over_seeds, record_of, window_of
from rljax.run.scores import SCORES, Scores
from rljax.run.signals import Stopping, noted_signals
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

MAX_METRICS_BYTES = 100_000_000
"""Size of the metrics that `fit` returns at most; beyond it they are averaged over the iterations of each record."""

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
    progress: Progress | bool = False,
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
            configuration; any other change is an error, as it would not be made.
        fork: a checkpoint, or a run's folder: start a new run of `config_or_agent` from that state; steps are counted on.
        total_timesteps: another budget for the run that is resumed. An annealed learning rate follows the new budget's schedule
            from there on, so that of a completed run rises again: to (1 - done / total) of the initial one. The evaluation at
            the old end, which every run ends with, stays; a run of the new budget from its beginning may have none there.
        progress: True shows a bar, or lines where output is neither a terminal nor a notebook; or an object with the methods of
            `rljax.run.progress.Progress`.
        callback: called with (environment steps, metrics) for each record; True ends the run early, after the chunk under way.
            What it raises is raised after that, too.
        loggers: names ("tensorboard", "wandb", "mlflow", "aim") or objects with the methods of `Logger`.
        checkpoint_every: save the state each time this many environment steps have been taken.
        checkpoint_seconds: save the state when this long has passed since the last save. It is saved at the end in any case, and
            after an evaluation that is the best so far.
        keep: how many checkpoints to keep besides the best one; None keeps all.
        max_minutes: end the run after this long, to be resumed another time.

    Returns:
        `TrainResult(state, metrics)`, the metrics of the iterations of this call as NumPy arrays `[iterations]`, or
        `[seeds, iterations]`; of a run so long, or of so many seeds, that these would take more than 100 MB, one mean for each
        record of metrics.jsonl.

    Raises:
        ConfigError: the configuration cannot be trained, `run_dir` exists, or the run cannot be resumed or forked; nothing was
            written.
        TrainingError: a loss or parameter became NaN or infinite; says at which step and which metric went first.
        TrainingInterrupted: Ctrl-C, or SIGTERM; the state is saved and in the error's `result`. A second one stops at once.
        RljaxError: the run folder cannot be written (a full disk, say); the last good checkpoint is kept.
    """
    checkpoint_every = _number("checkpoint_every", checkpoint_every, whole=True)
    keep = _number("keep", keep, whole=True)
    checkpoint_seconds = _number("checkpoint_seconds", checkpoint_seconds, zero=True)
    max_minutes = _number("max_minutes", max_minutes)
    first = is_first()
    attached = Loggers(loggers if first else ())
    agent = config_or_agent if config_or_agent is None or isinstance(config_or_agent, Agent) else make_agent(config_or_agent)
    if agent is not None:
        _check_single(agent.config)
        try_environment(agent.config)
        check_processes(agent.config)
    folder = _folder(run_dir, resume)
    resumed = folder is not None and bool(resume) and ((folder / CONFIG_FILE).exists() or resume is not True)
    if resume not in (True, False) and (key is not None or fork is not None):
        raise ConfigError("a resumed run goes on with its own state: give neither key nor fork with resume=RUN")
    if fork is not None and key is not None:
        raise ConfigError("a fork goes on with the keys of its checkpoint, or those of another seed: give no key with fork")
    if not resumed:
        if agent is None:
            raise ConfigError("nothing to train: give a configuration, or resume=RUN")
        if total_timesteps is not None:
            raise ConfigError("total_timesteps is for a run that is resumed: otherwise it is a field of the configuration")
        if folder is not None and first:
            check_free(folder)
    warn_of_unseen_gpu()
    shown_progress = _progress(progress if first else False, agent)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_noticing_losses(folder if first else None))
        shown_progress.prepare()
        stack.callback(shown_progress.stop)
        if resumed and folder is not None:
            check_run(folder)  # before a lock is made there
            if first:
                stack.enter_context(locked(folder))
            start = start_resumed(folder, agent, total_timesteps, seeds)
        elif fork is not None and agent is not None:
            start = start_forked(fork, agent, seeds)
        elif agent is not None:
            start = start_new(agent, None if key is None else _single_key(key), seeds)
        saves, folder = folder is not None, folder if first else None
        driver = _Driver(
            start,
            folder,
            saves,
            resumed,
            attached,
            shown_progress,
            callback,
            checkpoint_every,
            checkpoint_seconds,
            keep,
        )
        if saves and not resumed:
            state = on_this_process(start.state, driver.layout)
            if folder is not None:
                _tell_how_to_name(start.agent.config)
                create_run_dir(folder, start.agent.config, start.info, state, driver.scores.meta(start.iteration))
                stack.enter_context(locked(folder))
        stopping = stack.enter_context(noted_signals())
        return driver.run(stopping, max_minutes)


def _progress(progress: Progress | bool | None, agent: Agent | None) -> Progress:
    if progress is True:
        return default_progress(
            "" if agent is None else f"training {agent.config.algorithm} on {config_table(agent.config)['env']}"
        )
    return progress or Silent()


@contextlib.contextmanager
def _noticing_losses(folder: Path | None) -> Iterator[None]:
    """One line where another process of the run has died."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        kept = "" if folder is None else f"; start all processes again with {folder} to resume"
        raise ProcessLostError(f"training stopped: another process of the run is gone ({first_line(error)}){kept}") from error


def _folder(run_dir: str | os.PathLike[str] | None, resume: str | os.PathLike[str] | bool) -> Path | None:
    if isinstance(resume, bool):
        if resume and run_dir is None:
            raise ConfigError("resume = True: needs run_dir, the folder to go on in; or give the folder itself, resume=RUN")
        return None if run_dir is None else Path(run_dir).resolve()
    folder, checkpoint = split_path(resume)
    folder = folder.resolve()  # a callback may change the working directory
    if run_dir is not None and Path(run_dir).resolve() != folder:
        raise ConfigError(f"run_dir = {shown(str(run_dir))}: a resumed run stays in its folder {folder}; to branch it, fork it")
    if checkpoint != "latest":
        raise ConfigError(
            f"resume = {shown(str(resume))}: a run resumes from its latest checkpoint, {folder}; to go on from another, fork it"
        )
    return folder


def _number(name: str, value: Any, *, whole: bool = False, zero: bool = False) -> Any:
    """A positive number, None as it is; `1e5` is a whole number."""
    if value is None:
        return None
    kind = "a whole number" if whole else "a number"
    allowed = f"{kind} {'>= 0' if zero else '> 0'} or none"
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not (value >= 0 if zero else value > 0) or (whole and (math.isinf(value) or value != int(value))):
        raise ConfigError(f"{name} = {shown(value)}: expected {allowed}")
    return int(value) if whole else value


def _check_single(config: Config) -> None:
    for path, leaf in jax.tree_util.tree_flatten_with_path(config)[0]:
        if isinstance(leaf, jax.core.Tracer):
            name = jax.tree_util.keystr(path, simple=True)
            raise ConfigError(f"{name}: fit trains one configuration; traced values are for vmap of make_train")


def _tell_how_to_name(config: Config) -> None:
    """Say of a run whose environment other processes do not know by its name how they would."""
    how = unknown_to_commands(config.env)
    if how is not None:
        what = f"an object of class {env_name(config)}" if not isinstance(config.env, str) else f"{config.env!r}, registered"
        warnings.warn(
            f"env is {what} in this process, which commands such as rljax eval do not find; {how}", RljaxWarning, stacklevel=3
        )


def _single_key(key: jax.Array) -> jax.Array:
    key = as_key(key)
    if key.ndim:
        raise ConfigError(f"key: expected a single one, got {list(key.shape)}; fit(config, key=key, seeds=N) trains several")
    return key


class _Driver:
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
        self.names = sorted(jax.eval_shape(self.iteration, example, _INT32)[1])
        self.scores = Scores(self.num_seeds, start.meta)
        for seed in np.flatnonzero(~self.alive):
            self.scores.leave_out(int(seed))
        window = window_of(self.last - self._first_iteration(), self.num_seeds, len(self.names))
        pending = start.pending
        if pending is None or pending.shape[1:] != (self.num_seeds, len(self.names)):
            pending = np.zeros((0, self.num_seeds, len(self.names)), np.float32)
        self.records = Records(self.names, window, self.done - len(pending), self.last, pending, self._emit)
        self.speed, self.pace = math.nan, Pace()
        self.learns_at = self.done + _iterations_before_learning(self.config, start.state)
        # Every iteration's metrics, unless they are too many; one row per record then.
        self.row_bytes = 4 * self.num_seeds * len(self.names)
        self.every_iteration = (self.last - self.done) * self.row_bytes <= MAX_METRICS_BYTES
        self.rows: list[np.ndarray] = []
        self.stop = False
        self.failure: Exception | None = None
        self.file: JsonLines | None = None
        self.writer: CheckpointWriter | None = None

    def run(self, stopping: Stopping, max_minutes: float | None) -> TrainResult:
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
        result = TrainResult(state, {name: rows[..., i, :] for i, name in enumerate(self.names)})
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
            if step is not None and (checkpoints / f"step_{step}").exists() and not _points_to(checkpoints / link_name, step):
                link(checkpoints, link_name, step)

    def _train(self, state: Any, deadline: float, stopping: Stopping) -> Any:
        """Run chunks until the budget is spent or something asks to stop; returns the final state."""
        layout = self.layout
        if self.start.info.seeds is not None:
            state = Seeds(state, jnp.asarray(self.alive))
            layout = layout if layout is None else Seeds(layout, everywhere(layout))
        state = state if layout is None else over_processes(state, layout)
        # Not of what is left: a run that goes on is the same program as before, which need not be compiled again.
        size = max(1, min(MAX_CHUNK, self.last, MAX_CHUNK_BYTES // self.row_bytes))
        seeds_shape = (self.num_seeds,) if self.start.info.seeds else ()
        chunk = _compile_chunk(self.iteration, state, seeds_shape, len(self.names), size, layout)
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
            bad = None if isinstance(state, Seeds) and finite else _first_bad(new, self.names, self.alive)
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
        if not len(lost):
            return
        bad, columns = bad_losses(rows, self.names)
        for seed in lost:
            row = int(np.argmax(np.append(bad[:, seed].any(1), True)))
            if row < len(rows) and not np.isnan(rows[row, seed]).all():
                column = columns[int(np.argmax(bad[row, seed]))]
                what = f"{self.names[column]} became {rows[row, seed, column]}"
            else:
                # Nothing is known of the iteration after the one that the parameters broke in.
                row, what = row - 1, "its parameters became something else than finite numbers"
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
            stops.append(_crossing(self.done * steps, steps, self.config.eval_every) + self.done)
        if self.saves and self.checkpoint_every is not None:
            stops.append(_crossing(self._step(self.done), steps, self.checkpoint_every) + self.done)
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


_INT32 = jax.ShapeDtypeStruct((), jnp.int32)

Chunk = Callable[..., tuple[Any, jax.Array, jax.Array]]


def _iterations_before_learning(config: Config, state: Any) -> int:
    """Iterations that begin with too few steps in the replay buffer to learn from; the last one may learn before it ends."""
    replay = getattr(state, "replay", None)
    if not isinstance(replay, Replay):
        return 0
    missing = config.rows_before_learning - int(np.ravel(replay.size)[0])
    return max(0, -(-missing * config.num_envs // config.steps_per_iteration))


def vectorized_iteration(agent: Agent, seeds: int | None, num_iterations: int | None = None) -> Callable[..., Any]:
    """`(state, iteration) -> (state, metrics)` of `train_iteration`, over the states' axis of seeds where there is one."""
    if seeds is None:
        return lambda state, i: train_iteration(agent, state, i, num_iterations)
    return lambda states, i: over_runs(
        lambda _, state, i: train_iteration(agent, state, i, num_iterations), seeds, None, states, i
    )


def seeds_iteration(agent: Agent, seeds: int, num_iterations: int) -> Callable[[Seeds, jax.Array], tuple[Seeds, Any]]:
    """`(seeds, iteration) -> (seeds, metrics)`, metrics `[S]` each: see `surviving_iteration`."""
    one = surviving_iteration(agent, num_iterations)

    def iteration(run: Seeds, i: jax.Array) -> tuple[Seeds, Any]:
        states, (metrics, alive) = over_runs(one, seeds, run.alive, run.states, i)
        return Seeds(states, alive), metrics

    return iteration


def _states(state: Any) -> Any:
    return state.states if isinstance(state, Seeds) else state


def over_runs(iteration: Callable[..., Any], runs: int, values: Any, states: Any, i: jax.Array) -> Any:
    """`iteration(values, state, i) -> (state, metrics)` of many runs; leaves of `values` and `states` are `[runs, ...]`.

    The count of iterations is not batched, so that an evaluation stays a branch that is skipped; nor are the counters of replay
    buffers, which no run changes: every run then writes the same rows, one slice instead of a scatter.
    """
    axes = _with_counters(jax.tree.map(lambda _: 0, states), lambda _: None)
    states = _with_counters(states, lambda count: count[0])
    states, metrics = jax.vmap(iteration, in_axes=(0, axes, None), out_axes=(axes, 0))(values, states, i)
    return _with_counters(states, lambda count: jnp.broadcast_to(count, (runs,))), metrics


def _with_counters(state: Any, change: Callable[[Any], Any]) -> Any:
    """`state` with the counters of its replay buffers changed."""

    def changed(x: Any) -> Any:
        return x.replace(position=change(x.position), size=change(x.size)) if isinstance(x, Replay) else x

    return jax.tree.map(changed, state, is_leaf=lambda x: isinstance(x, Replay))


def _compile_chunk(
    iteration: Callable[..., Any], example: Any, seeds_shape: tuple[int, ...], num_metrics: int, size: int, layout: Any = None
) -> Chunk:
    """`chunk(state, first, length) -> (state, metrics f32 [size, *seeds, num_metrics], finite)`, for every length <= size.

    The number of iterations is an argument of a loop and not the length of a scan, so that chunks of any length (the last
    one, say) run the same program.
    """

    def chunk(state: Any, first: jax.Array, length: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        state, buffer = run_iterations(iteration, state, first, length, (size, *seeds_shape, num_metrics))
        if isinstance(state, Seeds):
            return state, buffer, jnp.any(state.alive)
        return state, buffer, all_finite(state.params)

    # What comes out goes in again, so it must lie where it lay.
    results = None if layout is None else (layout, *2 * [everywhere(layout)])
    return jax.jit(chunk, donate_argnums=0, out_shardings=results).lower(example, _INT32, _INT32).compile()


def run_iterations(
    iteration: Callable[..., Any], state: Any, first: jax.Array, length: jax.Array, shape: tuple[int, ...]
) -> tuple[Any, jax.Array]:
    """The state after `length` iterations from `first` on, and their metrics: the first rows of an f32 array of `shape`, metrics
    last."""

    def body(i: jax.Array, carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        state, buffer = carry
        state, metrics = iteration(state, first + i)
        return state, buffer.at[i].set(jnp.moveaxis(stack_metrics(metrics), 0, -1))

    return jax.lax.fori_loop(0, length, body, (state, jnp.full(shape, jnp.nan)))


def _first_bad(rows: np.ndarray, names: list[str], seeds: np.ndarray) -> tuple[int, int, int] | None:
    """`(iteration, seed, metric)` of the first loss in rows `[iterations, S, metrics]` that is not finite, of some seeds, bool
    `[S]`."""
    bad, columns = bad_losses(rows, names)
    bad &= seeds[:, None]
    if not bad.any():
        return None
    row, seed, column = np.unravel_index(int(np.argmax(bad)), bad.shape)
    return int(row), int(seed), columns[int(column)]


def _crossing(step: int, per_iteration: int, every: int) -> int:
    """Iterations until the count of steps crosses the next multiple of `every`."""
    return -(-((step // every + 1) * every - step) // per_iteration)


def _points_to(path: Path, step: int) -> bool:
    return path.is_symlink() and os.readlink(path) == f"step_{step}"


@contextlib.contextmanager
def _disk(folder: Path | None) -> Iterator[None]:
    """One line for a disk that is full or gone."""
    try:
        yield
    except OSError as error:
        raise RljaxError(f"training stopped: {folder} cannot be written: {error.strerror or error}") from error
