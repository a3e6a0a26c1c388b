"""Folders that the commands create and read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import rljax
from rljax.cli.options import Saved, Train
from rljax.core.config import ALGORITHMS
from rljax.core.config_files import find_algorithm, holds_phases, names_algorithm, preset_names
from rljax.core.errors import ConfigError
from rljax.core.places import numbered
from rljax.run.files.checkpoint import CHECKPOINTS, read_meta
from rljax.run.files.folder import PHASES_FILE, Run, read_info, refuse_dataset, refuse_search, split_path
from rljax.run.files.scores import best_seed


def folder_name(source: str) -> str:
    """Return the name of a new folder for what a preset, a file or an algorithm describes."""
    return find_algorithm(source).algorithm if names_algorithm(source) else Path(source).stem


def refuse_folder(source: str | None) -> None:
    """Refuse the folder of a dataset, a sweep or a study in place of a configuration; names mean presets and algorithms first."""
    if source is not None and os.path.isdir(source) and source not in {*preset_names(), *ALGORITHMS}:
        refuse_dataset(Path(source))
        refuse_search(Path(source))


def free_folder(path: Path) -> Path:
    """Return `path`, or `path-2`, `path-3`, ... if it exists: training a preset again never touches an earlier run."""
    return next(candidate for candidate in numbered(path) if not os.path.lexists(candidate))


@contextlib.contextmanager
def reserved_folder(path: Path) -> Iterator[Path]:
    """Create and yield the folder that `free_folder` returns, so that no other process takes it before this one has
    created its run.

    If nothing is in it at the end, it is removed, with its parents if they are new, too. A folder that cannot be made is yielded
    all the same: who writes there says why.
    """
    new_parents = [parent for parent in path.parents if not parent.exists()]
    while True:
        folder = free_folder(path)
        try:
            folder.mkdir(parents=True)
        except OSError:
            if os.path.lexists(folder):  # another process has just taken it
                continue
        break
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # one is not empty
            for made in (folder, *new_parents):
                made.rmdir()


def fork_folder(run: Path) -> Path:
    """Return the folder for a fork of a run: next to the run, even if the run is the working directory."""
    name = f"{run.resolve().name}-fork"
    return run.with_name(name) if run.name not in ("", "..") else run.resolve().with_name(name)


def wants_phases(options: Train) -> bool:
    """Return whether a run of phases is to be trained or resumed."""
    if options.resume is not None:
        return os.path.isfile(Path(options.resume) / PHASES_FILE)
    return options.config is not None and holds_phases(options.config)


def check_or_resume(options: Train) -> None:
    """Refuse --or-resume without the folder that it is about."""
    if options.or_resume and options.run_dir is None:
        raise ConfigError("--or-resume: needs --run-dir, the folder in which the run may be already")


def load_saved(options: Saved) -> tuple[Run, str]:
    """Load the run, checkpoint and seed that a command names; return the run and the seed's label for messages."""
    folder, _ = split_path(options.run)
    seed_index = parse_seed_index(options)
    run = rljax.load_run(options.run, checkpoint=options.checkpoint, seed_index=seed_index)
    if read_info(folder).seeds is None:
        return run, ""
    if seed_index == "best":
        seed_index = best_seed(read_meta(folder / CHECKPOINTS / f"step_{run.step}"))
    return run, f" (seed {seed_index})"


def parse_seed_index(options: Saved) -> int | str:
    """Return the seed that a command names, as functions take it."""
    text = options.seed_index
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text
