"""`rljax train` of a run of phases."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljax.cli.folders import check_or_resume, free_folder
from rljax.cli.options import Train
from rljax.cli.overrides import merge_tables
from rljax.cli.parsing import split_commas
from rljax.core.devices import device_summary
from rljax.core.errors import ConfigError, TrainingInterrupted, printable
from rljax.run.files.folder import PHASES_FILE, check_free
from rljax.run.phases.plan import Phase, check_names, load_phases
from rljax.run.phases.train import fit_phases, read_phases
from rljax.run.progress import default_progress
from rljax.run.view.layout import say


def train_phases(options: Train, overrides: dict[str, Any]) -> None:
    """Train or resume a run of phases, and print what to do next."""
    refused = [name for name in ("fork", "init_from", "seeds", "coordinator", "sync") if getattr(options, name) is not None]
    if refused:
        raise ConfigError(f"--{refused[0].replace('_', '-')}: is not for a run of phases; its file may give init_from and seeds")
    if options.resume is not None:
        if overrides or options.run_dir is not None or options.or_resume:
            name = next(iter(overrides), "run_dir" if options.run_dir is not None else "or_resume")
            raise ConfigError(f"--{name.replace('_', '-')}: a run of phases is resumed as it is, in its own folder")
        folder, phases = Path(options.resume), read_phases(Path(options.resume))
    else:
        source = str(options.config)
        phases = changed_phases(source, overrides)
        folder = Path(options.run_dir or free_folder(Path("runs") / Path(source).stem))
        check_or_resume(options)
        if not (options.or_resume and (folder / PHASES_FILE).is_file()):
            check_free(folder)
    steps = sum(phase.config.total_timesteps * (phase.seeds or 1) for phase in phases.values())
    say(f"{'training' if options.resume is None else 'resuming'} {len(phases)} phases, {steps:,} steps, in {folder}")
    say(f"device: {device_summary()}")
    quoted = printable(shlex.quote(str(folder)))
    limits = {name: getattr(options, name) for name in ("checkpoint_every", "checkpoint_seconds", "keep", "max_minutes")}
    how: dict[str, Any] = {"run_dir": folder, "resume": options.or_resume} if options.resume is None else {"resume": folder}
    try:
        end = fit_phases(phases, progress=default_progress, loggers=split_commas(options.log), **limits, **how)
    except TrainingInterrupted as stop:
        raise TrainingInterrupted(f"{stop}; to go on: rljax train --resume {quoted}", stop.result, stop.signum) from None
    if not end.complete:
        say(f"stopped in phase {end.phase} at step {end.result.step:,}; to go on:", f"rljax train --resume {quoted}")
        return
    say(f"all phases of {folder} are complete")
    last = shlex.quote(str(folder / end.phase))
    print("next:")
    print(f"  rljax eval {last}")
    print(f"  rljax show {quoted}")
    print(f"  rljax plot {quoted}/*/")


def changed_phases(source: str, overrides: dict[str, Any]) -> dict[str, Phase]:
    """Load the phases of a file with the fields of flags changed: `--seed` in all of them, `--student.num-envs` in one."""
    phases = load_phases(source)
    one = {name: change for name, change in overrides.items() if name in phases}
    everywhere = {name: change for name, change in overrides.items() if name not in phases}
    check_names(everywhere, phases)
    changes = {}
    for name, phase in phases.items():
        own = one.get(name, {})
        if not isinstance(own, Mapping):
            raise ConfigError(f"--{name}: is a phase: give a field of it, such as --{name}.total-timesteps 1e6")
        changes[name] = _merge(phase, {**everywhere, **own})
    return load_phases(source, **changes)


def _merge(phase: Phase, changes: dict[str, Any]) -> dict[str, Any]:
    return merge_tables(lambda: phase.config, changes)
