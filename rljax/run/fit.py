"""`fit`: train from the host, with a run folder, progress and checks."""

from __future__ import annotations

import contextlib
import math
import numbers
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rljax.algos.common.teacher import check_teacher
from rljax.collect.environments import try_environment
from rljax.collect.own_agent import check_own_act
from rljax.core.agent import Agent, data_of, make_agent
from rljax.core.config import Config, env_name
from rljax.core.config_files import comparable_table, config_table
from rljax.core.devices import warn_of_unseen_gpu
from rljax.core.errors import ConfigError, ProcessLostError, RljaxWarning, TrainingError, first_line, shown
from rljax.core.keys import as_key
from rljax.core.memory import out_of_memory
from rljax.core.own import path_of
from rljax.core.places import as_path, lock_folder
from rljax.envs.registry import unknown_to_commands
from rljax.run.driver import Callback, Driver, FitResult
from rljax.run.episodes import check_one_run
from rljax.run.files.checkpoint import CHECKPOINTS, check_path, checkpoint_steps
from rljax.run.files.folder import CONFIG_FILE, check_free, check_run, create_run_dir, read_config, refuse_packed, split_path
from rljax.run.files.remote import Remote
from rljax.run.initial import begin_from
from rljax.run.loggers.parts import Logger
from rljax.run.loggers.several import Loggers
from rljax.run.processes import check_processes, check_same, gather_state, is_first
from rljax.run.progress import Progress, Silent, default_progress
from rljax.run.signals import note_signals
from rljax.run.start import BUDGET, start_forked, start_new, start_resumed


def fit(
    config_or_agent: Config | Agent | None = None,
    *,
    key: jax.Array | None = None,
    seeds: int | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | bool = False,
    fork: str | os.PathLike[str] | None = None,
    init_from: str | os.PathLike[str] | None = None,
    total_timesteps: int | None = None,
    progress: Progress | bool = False,
    callback: Callback | None = None,
    loggers: str | Logger | Iterable[str | Logger] | None = (),
    checkpoint_every: int | None = None,
    checkpoint_seconds: float | None = 60.0,
    keep: int | None = 3,
    max_minutes: float | None = None,
    sync: str | os.PathLike[str] | None = None,
) -> FitResult:
    """Train from the host, with a run folder, progress and checks; the numbers are those of `make_train`, bit for bit.

    However the run ends (budget, callback, `max_minutes`, Ctrl-C), the whole state is saved. A run resumed from there, or from
    any checkpoint after a kill, continues bit for bit as if it had not been interrupted.

    Args:
        config_or_agent: configuration to train, or an agent made from it. It may be omitted to resume a run whose environment
            and network have names.
        key: random key; if None, `jax.random.key(config.seed)`.
        seeds: number of agents to train in one program; their state and metrics have a leading axis `[seeds]`. Their keys are
            those of `config.seed, config.seed + 1, ...`, or come from splitting `key`. All read a dataset in the same order.
        run_dir: folder to create for `config.toml`, `metrics.jsonl` and checkpoints; None writes nothing.
        resume: folder of a run to continue from its latest whole checkpoint. True continues the run in `run_dir`, or starts a
            new one if there is none, so that a script continues when it is started again. Only `total_timesteps` may differ from
            the frozen configuration; any other change is an error.
        fork: a checkpoint, or a run's folder, from whose state to start a new run of `config_or_agent`; the count of steps
            continues.
        init_from: a checkpoint, or a run's folder, with whose policy the new run begins, at step 0 (see `rljax.begin_from`); its
            algorithm may be another one. `teacher_kl_coef` holds on to that policy.
        total_timesteps: new budget for a resumed run. An annealed learning rate follows the schedule of the new budget from
            there on, so that of a completed run rises again, to (1 - done / total) of the initial one. The evaluation at the old
            end remains, although an uninterrupted run of the new budget may have none there.
        progress: True shows a bar, or lines if the output is neither a terminal nor a notebook. May be an object with the methods
            of `rljax.run.progress.Progress`.
        callback: function called with (environment steps, metrics) for each record. If it returns True, the run ends early,
            after the current chunk. An error in it is raised after the current chunk, too.
        loggers: names ("tensorboard", "wandb", "mlflow", "aim") or objects with the methods of `Logger`, one or a list of them.
        checkpoint_every: number of environment steps between checkpoints.
        checkpoint_seconds: number of seconds between checkpoints. The state is also saved at the end, and after an evaluation
            that is the best so far.
        keep: number of checkpoints to keep besides the best one; None keeps all.
        max_minutes: number of minutes after which to end the run, which can be resumed later.
        sync: place for a copy of the run's folder, brought up to date after each checkpoint: `s3://bucket/run`, `gs://bucket/run`,
            or a folder. With `resume=True`, a run that is only there is copied back to `run_dir` and continued. If the place
            cannot be reached later, training goes on with a warning, and ends with an error if the last copy failed, too.

    Returns:
        `FitResult`. Its metrics are those of the iterations of this call. If they would take more than 100 MB, they have one mean
        for each record of metrics.jsonl instead.

    Raises:
        ConfigError: the configuration cannot be trained, `run_dir` exists, or the run cannot be resumed or forked; nothing was
            written.
        TrainingError: a loss or parameter became NaN or infinite; the message names the step and the first such metric.
        TrainingInterrupted: Ctrl-C or SIGTERM; the state is saved, and is in the error's `result`. A second signal stops at once.
        RljaxError: the run folder cannot be written (a full disk, say); the last good checkpoint is kept.
    """
    checkpoint_every = _number("checkpoint_every", checkpoint_every, whole=True)
    keep = _number("keep", keep, whole=True)
    checkpoint_seconds = _number("checkpoint_seconds", checkpoint_seconds, zero=True)
    max_minutes = _number("max_minutes", max_minutes)
    if callback is not None and not callable(callback):
        raise ConfigError(f"callback = {shown(callback)}: expected a function of (step, metrics)")
    first = is_first()
    attached = Loggers((loggers or ()) if first else ())
    agent = config_or_agent if config_or_agent is None or isinstance(config_or_agent, Agent) else make_agent(config_or_agent)
    if agent is not None:
        _check_single(agent.config)
        if seeds is not None:
            check_one_run(agent.config, f"seeds = {seeds}")
        try_environment(agent.config)
        check_own_act(agent)
        check_processes(agent.config)
    folder = _folder(run_dir, resume)
    if folder is not None:
        check_path(folder, f"run folder {folder}")
    resumed = folder is not None and bool(resume) and ((folder / CONFIG_FILE).exists() or resume is not True)
    if init_from is not None and (fork is not None or resume not in (True, False)):
        raise ConfigError("init_from: is for a new run, give neither resume=RUN nor fork with it")
    if resume not in (True, False) and (key is not None or fork is not None):
        raise ConfigError("a resumed run continues from its own state: give neither key nor fork with resume=RUN")
    if fork is not None and key is not None:
        raise ConfigError("a fork continues with the keys of its checkpoint, or those of another seed: give no key with fork")
    remote = None if sync is None else Remote(sync)
    if remote is not None:
        if folder is None or jax.process_count() > 1:
            raise ConfigError(f"sync = {shown(remote.url)}: is for the run folder of a single process: give run_dir")
        if remote.is_folder and Path(remote.path).resolve().is_relative_to(folder):
            raise ConfigError(f"sync = {shown(remote.url)}: is in the run folder {folder}: choose a place outside")
        if remote.is_folder:
            check_path(Path(remote.path), f"sync = {shown(remote.url)}", written=False)  # Orbax writes nothing there
        if resumed:
            remote.check(read_config(folder), checkpoint_steps(folder / CHECKPOINTS))
        elif resume and agent is not None:
            resumed = remote.check(agent.config) and remote.restore(folder)
        else:
            remote.check(None)
    if not resumed:
        if agent is None:
            raise ConfigError("nothing to train: give a configuration, or resume=RUN")
        if total_timesteps is not None:
            raise ConfigError("total_timesteps is for a resumed run: otherwise it is a field of the configuration")
        if folder is not None and first:
            check_free(folder)
        if init_from is not None:
            agent = begin_from(agent, init_from)
        if fork is None:
            check_teacher(agent, "init_from=RUN (rljax train --init-from RUN), or fork=RUN")
    warn_of_unseen_gpu()
    shown_progress = _progress(progress if first else False, agent)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_explain_errors_of_jax(folder if first else None))
        _check_same_run(
            agent,
            key=None if key is None else np.asarray(jax.random.key_data(_single_key(key))).tolist(),
            seeds=seeds,
            run_dir=None if folder is None else "a folder",
            resume=folder.name if folder is not None and resumed else None,
            fork=_name(fork),
            init_from=_name(init_from),
            checkpoint_every=checkpoint_every,
            **({} if total_timesteps is None else {BUDGET: total_timesteps}),
        )
        shown_progress.prepare()
        stack.callback(shown_progress.stop)
        if resumed and folder is not None:
            check_run(folder)  # before a lock file is created there
            refuse_packed(folder)
            if first:
                _lock(folder, stack)
            start = start_resumed(folder, agent, total_timesteps, seeds)
        elif fork is not None and agent is not None:
            start = start_forked(fork, agent, seeds)
        elif agent is not None:
            start = start_new(agent, None if key is None else _single_key(key), seeds, init_from)
        _check_same_run(start.agent, step=start.info.step_offset + start.iteration * start.agent.config.steps_per_iteration)
        saves, folder = folder is not None, folder if first else None
        driver = Driver(
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
            remote,
        )
        if saves and not resumed:
            state = gather_state(start.state, driver.layout)
            if folder is not None:
                _warn_of_unknown_env(start.agent.config)
                _warn_of_unknown_algorithm(type(start.agent.config))
                create_run_dir(folder, start.agent.config, start.info, state, driver.scores.meta(start.iteration))
                _lock(folder, stack)
        stopping = stack.enter_context(note_signals())
        return driver.run(stopping, max_minutes)


def _check_same_run(agent: Agent | None, **more: Any) -> None:
    """Refuse processes that would train different runs: `check_same` of `more`, and of the agent's configuration.

    Paths of data may be others on other machines; the digest of the data must be the same.
    """
    if jax.process_count() == 1:
        return
    if agent is not None:
        table = {name: value for name, value in comparable_table(agent.config).items() if name not in ("dataset", "teachers")}
        more = {**table, "digest of the data": data_of(agent), **more}
    check_same(more)


def _name(path: str | os.PathLike[str] | None) -> str | None:
    """Return the last part of a path, whose folders may be others on other machines."""
    return None if path is None else Path(path).name


def _lock(folder: Path, stack: contextlib.ExitStack) -> None:
    """Lock a run's folder until the end of the `stack`, with a warning where that is not possible."""
    if not stack.enter_context(lock_folder(folder)):
        warnings.warn(
            f"run folder {folder}: cannot be locked on this file system; do not train it from two processes",
            RljaxWarning,
            stacklevel=3,
        )


def _progress(progress: Progress | bool | None, agent: Agent | None) -> Progress:
    if progress is True:
        return default_progress(
            "" if agent is None else f"training {agent.config.algorithm} on {config_table(agent.config)['env']}"
        )
    if progress and not hasattr(progress, "prepare"):
        raise ConfigError(f"progress = {shown(progress)}: expected true, false, or an object with the methods of Progress")
    return progress or Silent()


@contextlib.contextmanager
def _explain_errors_of_jax(folder: Path | None) -> Iterator[None]:
    """Turn the error of a device without memory, and the one that follows when another process of the run has died, into one
    line."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if out_of_memory(error):
            raise TrainingError(
                f"the device's memory is not enough ({first_line(error)}); a run takes less with smaller num_envs, num_steps, "
                "buffers, batches or networks"
            ) from error
        if jax.process_count() == 1:
            raise
        kept = "" if folder is None else f"; start all processes again with {folder} to resume"
        raise ProcessLostError(f"training stopped: another process of the run is gone ({first_line(error)}){kept}") from error


def _folder(run_dir: str | os.PathLike[str] | None, resume: str | os.PathLike[str] | bool) -> Path | None:
    if isinstance(resume, bool):
        if resume and run_dir is None:
            raise ConfigError("resume = True: needs run_dir, the folder to continue in; or give the folder itself, resume=RUN")
        return None if run_dir is None else as_path(run_dir, "run_dir").resolve()
    folder, checkpoint = split_path(resume)
    folder = folder.resolve()  # a callback may change the working directory
    if run_dir is not None and as_path(run_dir, "run_dir").resolve() != folder:
        raise ConfigError(f"run_dir = {shown(str(run_dir))}: a resumed run stays in its folder {folder}; to branch it, fork it")
    if checkpoint != "latest":
        raise ConfigError(
            f"resume = {shown(str(resume))}: a run resumes from its latest checkpoint, {folder}; to use another one, fork it"
        )
    return folder


def _number(name: str, value: Any, *, whole: bool = False, zero: bool = False) -> Any:
    """Check a positive number; return it, or None as it is. `1e5` is a whole number."""
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


def _warn_of_unknown_env(config: Config) -> None:
    """Warn if other processes cannot find the environment by its name, and say how they could."""
    how = unknown_to_commands(config.env)
    if how is not None:
        what = f"an object of class {env_name(config)}" if not isinstance(config.env, str) else f"{config.env!r}, registered"
        warnings.warn(
            f"env is {what} in this process, which commands such as rljax eval do not find; {how}", RljaxWarning, stacklevel=3
        )


def _warn_of_unknown_algorithm(config_class: type[Config]) -> None:
    """Warn if other processes cannot find the algorithm, which is of the user's own, and say how they could."""
    if path_of(config_class) is None:
        warnings.warn(
            f"algorithm is {config_class.algorithm!r}, registered in this process, which commands such as rljax eval do not "
            'find; put its class in a module of its own for commands to find it: algorithm = "module:Class"',
            RljaxWarning,
            stacklevel=3,
        )


def _single_key(key: jax.Array) -> jax.Array:
    key = as_key(key)
    if key.ndim:
        raise ConfigError(f"key: expected a single one, got {list(key.shape)}; fit(config, key=key, seeds=N) trains several")
    return key
