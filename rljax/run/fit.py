"""`fit`: train from the host, with a run folder, progress and checks on the way."""

from __future__ import annotations

import contextlib
import math
import numbers
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from rljax.collect.environments import try_environment
from rljax.core.agent import Agent, make_agent
from rljax.core.config import Config, config_table, env_name
from rljax.core.devices import warn_of_unseen_gpu
from rljax.core.errors import (
    ConfigError,
    ProcessLostError,
    RljaxWarning,
    first_line,
    shown,
)
from rljax.core.keys import as_key
from rljax.envs.registry import unknown_to_commands
from rljax.run.driver import Callback, Driver, FitResult
from rljax.run.files.folder import CONFIG_FILE, check_free, check_run, create_run_dir, split_path
from rljax.run.files.places import locked
from rljax.run.loggers import Logger, Loggers
from rljax.run.processes import check_processes, is_first, on_this_process
from rljax.run.progress import Progress, Silent, default_progress
from rljax.run.signals import noted_signals
from rljax.run.start import start_forked, start_new, start_resumed


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
) -> FitResult:
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
        `FitResult`. Its metrics are those of the iterations of this call; of a run so long, or of so many seeds, that these would
        take more than 100 MB, one mean for each record of metrics.jsonl.

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
