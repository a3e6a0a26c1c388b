"""`fit_phases`: train the phases of a run one after the other, each in a run folder of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from rljax.core.config import Config
from rljax.core.errors import ConfigError, TrainingError, TrainingInterrupted
from rljax.core.places import as_path, atomic_folder, lock_folder
from rljax.core.plain import OBJECT_PREFIX, class_name
from rljax.run.files.checkpoint import CHECKPOINTS, check_path, link, noted_best
from rljax.run.files.folder import (
    CONFIG_FILE,
    PHASES_FILE,
    add_checksum,
    check_free,
    check_frozen,
    last_iteration,
    load_checkpoint,
    read_config,
    read_info,
    replace_config,
)
from rljax.run.fit import FitResult, fit
from rljax.run.loggers.parts import Logger
from rljax.run.phases.plan import Phase, as_phases, check_phases, dump_phases, load_phases, phases_table, resolve, same_but_runs
from rljax.run.progress import Progress, default_progress
from rljax.run.signals import note_signals

PhaseCallback = Callable[[str, int, dict[str, float]], bool | None]


class PhasesResult(NamedTuple):
    """Where a run of phases ended.

    Attributes:
        phase: name of the last phase that was trained.
        result: its state and metrics, as `fit` returned them.
        complete: whether all phases are complete.
    """

    phase: str
    result: FitResult
    complete: bool


def fit_phases(
    phases: Mapping[str, Phase | Config] | str | os.PathLike[str] | None = None,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | bool = False,
    progress: bool | Callable[[str], Progress] = False,
    callback: PhaseCallback | None = None,
    loggers: Sequence[str | Logger] = (),
    checkpoint_every: int | None = None,
    checkpoint_seconds: float | None = 60.0,
    keep: int | None = 3,
    max_minutes: float | None = None,
) -> PhasesResult:
    """Train several phases one after the other: specialists, say, a student of them, and its reinforcement.

    `run_dir/NAME` is an ordinary run folder for each phase; wherever a phase names an earlier one, it learns from that run at its
    end. Whether all phases can be trained is checked before the first one begins. However the run ends, also by a kill within a
    phase or between two, `resume` continues it bit for bit.

    Args:
        phases: phases by name, in their order, or a TOML file of them (see `load_phases`). May be omitted to resume a run whose
            environments and networks have names.
        run_dir: folder to create.
        resume: folder of a run to continue, with its phases as they were. True continues the run in `run_dir`, or starts a new
            one if there is none.
        progress: True shows the progress of each phase; a function of a phase's title returns what shows it.
        callback: function called with (phase, environment steps of the phase, metrics) for each record. If it returns True, the
            run ends early.
        loggers: names or objects of loggers, which each phase begins anew (see `fit`).
        checkpoint_every: number of steps of a phase between checkpoints.
        checkpoint_seconds: number of seconds between checkpoints.
        keep: number of checkpoints of each phase to keep besides the best one; None keeps all.
        max_minutes: number of minutes after which to end the run, which can be resumed later.

    Raises:
        ConfigError: a phase cannot be trained, `run_dir` exists, or the phases are not those of the run to resume; nothing was
            written.
        TrainingError: a loss or parameter became NaN or infinite; the message names the phase and the step.
        TrainingInterrupted: Ctrl-C or SIGTERM; the state is saved.
    """
    if jax.process_count() > 1:
        raise ConfigError("phases: are trained by a single process")
    given = None if phases is None else load_phases(phases) if isinstance(phases, (str, os.PathLike)) else as_phases(phases)
    folder, resumed = _folder(run_dir, resume)
    check_path(folder, f"run folder {folder}")
    if resumed:
        frozen = read_phases(folder)
        _check_same(folder, frozen, frozen if given is None else given)
        given = frozen if given is None else given
    elif given is None:
        raise ConfigError("nothing to train: give phases, or resume=RUN")
    else:
        check_free(folder)
    check_phases(given, data=not resumed)
    if not resumed:
        _create(folder, given)
    end = None if max_minutes is None else time.monotonic() + 60.0 * max_minutes
    limits: dict[str, Any] = {"loggers": loggers, "checkpoint_every": checkpoint_every, "checkpoint_seconds": checkpoint_seconds,
                              "keep": keep}  # fmt: skip
    with lock_folder(folder), note_signals() as stopping:
        ended: list[str] = []
        for number, (name, named) in enumerate(given.items(), 1):
            run, phase = folder / name, resolve(named, given, folder)
            _follow(run, phase.config)
            if number < len(given) and is_finished(run):
                _link_best(run)
                continue
            minutes = None if end is None else max((end - time.monotonic()) / 60.0, 1e-9)
            shown = progress(phase_title(name, number, given)) if callable(progress) else progress
            if progress is True:
                shown = default_progress(phase_title(name, number, given))
            try:
                result = fit(
                    phase.config,
                    run_dir=run,
                    resume=True,
                    init_from=phase.init_from,
                    seeds=phase.seeds,
                    progress=shown,
                    callback=_of_phase(callback, name, ended),
                    max_minutes=minutes,
                    **limits,
                )
            except TrainingError as error:
                raise TrainingError(f"phase {name}: {error}") from error
            except TrainingInterrupted as stop:
                raise TrainingInterrupted(f"phase {name}: {stop}", stop.result, stop.signum) from None
            if stopping.signum is not None and number < len(given):
                raise TrainingInterrupted(f"interrupted after phase {name}, saved in {folder}", result, stopping.signum)
            if not result.complete or (ended and number < len(given)):
                return PhasesResult(name, result, False)
    return PhasesResult(name, result, True)


def phase_title(name: str, number: int, phases: Mapping[str, Phase]) -> str:
    """Return the title of the n-th phase, counted from 1."""
    return f"phase {number} of {len(phases)}, {name}: {phases[name].config.algorithm}"


def read_phases(folder: Path) -> dict[str, Phase]:
    """Read the phases of a run.

    Raises:
        ConfigError: there is no run of phases, or its file has been changed.
    """
    file = folder / PHASES_FILE
    if not file.is_file():
        raise ConfigError(f"{folder}: no run of phases there (no {PHASES_FILE})")
    check_frozen(file)
    return load_phases(file)


def is_finished(run: Path) -> bool:
    """Return whether a phase's run is there and has spent its budget."""
    if not (run / CONFIG_FILE).is_file():
        return False
    config, info, meta = read_config(run), read_info(run), load_checkpoint(run).meta
    return bool(meta["iteration"] >= last_iteration(config, info))


def _link_best(run: Path) -> None:
    """Link the best checkpoint of a finished run, which other phases read: a kill may have come before the last link."""
    step = noted_best(run / CHECKPOINTS)
    if step is not None:
        link(run / CHECKPOINTS, "best", step)


def _folder(run_dir: str | os.PathLike[str] | None, resume: str | os.PathLike[str] | bool) -> tuple[Path, bool]:
    """Return the run's folder, and whether there is a run to continue."""
    if not isinstance(resume, bool):
        if run_dir is not None and as_path(run_dir, "run_dir").resolve() != as_path(resume, "resume").resolve():
            raise ConfigError(f"run_dir: a resumed run stays in its folder {resume}")
        return as_path(resume, "resume").resolve(), True
    if run_dir is None:
        raise ConfigError("run_dir: expected a folder, in which each phase finds the runs of the others")
    folder = as_path(run_dir, "run_dir").resolve()
    return folder, resume and (folder / PHASES_FILE).exists()


def _create(folder: Path, phases: Mapping[str, Phase]) -> None:
    try:
        with atomic_folder(folder) as aside:
            (aside / PHASES_FILE).write_text(add_checksum(dump_phases(phases)), encoding="utf-8")
    except OSError as error:
        check_free(folder)
        raise ConfigError(f"run folder {folder}: cannot be made: {error.strerror}") from None


def _check_same(folder: Path, frozen: Mapping[str, Phase], given: Mapping[str, Phase]) -> None:
    """Refuse to resume a run with other phases; of objects only the classes are compared, since a script may be renamed."""
    there, here = ({name: _classes(fields) for name, fields in phases_table(phases).items()} for phases in (frozen, given))
    why = "a run that is resumed keeps its phases; train the changed ones into another folder"
    if list(there) != list(here):
        raise ConfigError(f"run {folder}: has the phases {', '.join(there)}, not {', '.join(here)}: {why}")
    for name in there:
        changed = [key for key in {**there[name], **here[name]} if there[name].get(key) != here[name].get(key)]
        if changed:
            raise ConfigError(f"run {folder}: {', '.join(changed)} of phase {name} changed: {why}")


def _classes(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _classes(inner) for key, inner in value.items()}
    return OBJECT_PREFIX + class_name(value) if isinstance(value, str) and value.startswith(OBJECT_PREFIX) else value


def _follow(run: Path, config: Config) -> None:
    """Let a run that has begun know where the other phases are, if the folder was moved since."""
    if (run / CONFIG_FILE).is_file():
        frozen = read_config(run)
        if frozen != config and type(frozen) is type(config) and same_but_runs(frozen, config):
            with lock_folder(run):
                replace_config(run, config)


def _of_phase(
    callback: PhaseCallback | None, name: str, ended: list[str]
) -> Callable[[int, dict[str, float]], bool | None] | None:
    """Return the callback of a phase's run, which adds the phase to `ended` if it ends the run.

    A run whose budget is spent at that record does not say so.
    """
    if callback is None:
        return None

    def of_phase(step: int, metrics: dict[str, float]) -> bool | None:
        end = callback(name, step, metrics)
        if end:
            ended.append(name)
        return end

    return of_phase
