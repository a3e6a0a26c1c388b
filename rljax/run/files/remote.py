"""A copy of a run's folder elsewhere (a bucket, a network disk) that can be resumed whenever the machine that trains is lost.

URL/config.toml  run.json  metrics.jsonl  checkpoints/step_N/{state/, meta.json}

A checkpoint is whole there once its meta.json is, which is copied last and has the checksums of the other files. Buckets replace
a file at once; in folders, it is written under another name first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from rljax.core.config import Config
from rljax.core.config_files import comparable_table, config_of, parse_toml
from rljax.core.errors import ConfigError, RljaxError, RljaxWarning, how_to_install, reason_of, shown
from rljax.core.places import LOCK_FILE, atomic_folder, lock_folder
from rljax.run.files.checkpoint import (
    CHECKPOINTS,
    META_FILE,
    CheckpointError,
    check_checkpoint,
    checkpoint_steps,
    parse_step,
    read_meta,
)
from rljax.run.files.folder import CHECKSUM_LINE, CONFIG_FILE, INFO_FILE, METRICS_FILE

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""Extras of rljax by the scheme of the addresses that they open."""

PLACES = "expected s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, or a folder"

NO_ADDRESS = re.compile(r"(?!file:|local:)[A-Za-z][A-Za-z0-9+.-]+:/(?!/)|(?i:s3a?|gs|gcs):(?!//)")
"""Addresses with a slash too few, which fsspec would take for folders here. A single letter is a drive of Windows."""

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors that only a disk has, never a bucket."""


class Remote:
    """A place for the copy of one run.

    Args:
        url: address that fsspec knows (`s3://bucket/run`, `gs://bucket/run`), or a folder. Credentials are found as the library
            of each store finds them.

    Raises:
        ConfigError: the address is of no store that is known here, or lacks a slash.
    """

    def __init__(self, url: str | os.PathLike[str]):
        import fsspec
        from fsspec.implementations.local import LocalFileSystem

        if not isinstance(url, (str, os.PathLike)):
            raise ConfigError(f"sync = {shown(url)}: {PLACES}")
        url = os.fspath(url)
        # For messages, which end in logs.
        self.url = re.sub(r"(://[^/@:]*):[^/@]*@", r"\1@", url).rstrip("/")
        if not url.rstrip("/") or NO_ADDRESS.match(url):  # without a name: a variable of the shell that is not set, say
            raise ConfigError(f"sync = {shown(url)}: {PLACES}")
        try:
            self.fs, self.path = fsspec.core.url_to_fs(url.rstrip("/"))
            self.is_folder = isinstance(self.fs, LocalFileSystem)
            if self.is_folder:
                self.fs = LocalFileSystem(auto_mkdir=True)
        except ImportError as error:
            extra = EXTRAS.get(url.partition("://")[0])
            raise ConfigError(
                f"sync = {shown(self.url)}: {reason_of(error) if extra is None else how_to_install(extra)}"
            ) from None
        except Exception as error:  # an unknown scheme or host, or credentials that a store looks for at once
            raise ConfigError(f"sync = {shown(self.url)}: {reason_of(error)}; {PLACES}") from None
        if not self.is_folder and set(self.path) & set("*?[]"):  # fsspec would take them for patterns
            raise ConfigError(f"sync = {shown(self.url)}: expected an address without * ? [ ]")

    def check(self, config: Config | None, here: Sequence[int] | None = None) -> bool:
        """Check that the place can be written to, and return whether there is a run.

        Args:
            config: configuration of the only run that may be there, whatever its budget; None if none may.
            here: steps of the checkpoints of a run in a folder here, the newest first; None without one.

        Raises:
            ConfigError: there is something else, another run, or one that this version cannot read, or the same one has gone on
                elsewhere, which is not to be lost.
            RljaxError: the place cannot be written to.
        """
        name = f"sync = {shown(self.url)}"
        with self._explained():
            self.fs.pipe_file(self._at(".rljax"), b"")
            self.fs.rm_file(self._at(".rljax"))
            steps = self._steps()
            if not steps or not self.fs.exists(self._at(CONFIG_FILE)):
                self._check_begun(config, name)
                return False
            if config is None:
                raise ConfigError(f"{name}: there is a run already; choose another place, or go on with it (--or-resume)")
            text = self.fs.cat_file(self._at(CONFIG_FILE)).decode()
        changed = _changes(config, text, name)
        if changed:
            raise ConfigError(f"{name}: there is another run, whose {', '.join(changed)} differ; choose another place")
        if here is not None and steps[0] > max(here, default=-1):
            raise ConfigError(f"{name}: the run there is at step {steps[0]} already, that in the folder here is not: move the "
                              "folder away, to go on with the one there")  # fmt: skip
        return True

    def send(self, folder: Path) -> None:
        """Make the copy equal to a run's folder, in an order that leaves a whole copy at every moment.

        The copy of a checkpoint whose meta.json is damaged here stays as it is.

        Raises:
            RljaxError: the place cannot be written to.
        """
        with self._explained():
            for name in (CONFIG_FILE, INFO_FILE, METRICS_FILE):
                if (folder / name).exists():
                    self._replace(name, (folder / name).read_bytes())
            here = checkpoint_steps(folder / CHECKPOINTS)
            # A damaged one must not take the place of its copy, which may be whole.
            for step in filter(lambda step: _is_readable(folder / CHECKPOINTS / f"step_{step}"), reversed(here)):
                self._send_checkpoint(folder, f"{CHECKPOINTS}/step_{step}")
            for step in set(self._steps(whole=False)) - set(here):
                self._remove(f"{CHECKPOINTS}/step_{step}")

    def restore(self, folder: Path, replace: bool = False) -> bool:
        """Create a run's folder from the copy, with its newest whole checkpoint and the best one; return whether there is one.

        `replace` says whether an earlier copy may be at `folder`, which is removed once the new one is whole. What is not of the
        run (plots, recordings) stays.

        Raises:
            ConfigError: the earlier copy has been trained on here, which is not to be lost.
            RljaxError: the place cannot be read.
        """
        with self._explained(folder):
            steps = self._steps()
            if not steps:
                return False
            with replaced_run(folder, self.url) if replace else atomic_folder(folder) as aside:
                for name in (CONFIG_FILE, INFO_FILE, METRICS_FILE):
                    if self.fs.exists(self._at(name)):
                        self.fs.get_file(self._at(name), str(aside / name))
                newest = next((step for step in steps if self._fetch_checkpoint(aside, step)), None)
                if newest is None:
                    raise RljaxError(f"{self.url}: all its checkpoints are damaged")
                best = read_meta(aside / CHECKPOINTS / f"step_{newest}")["best_step"]
                if best != newest and best in steps:
                    self._fetch_checkpoint(aside, best)
        return True

    def _check_begun(self, config: Config | None, name: str) -> None:
        """Check that what is at a place without a run is of a copy that had just begun; see `check`."""
        there = [file for file in (CONFIG_FILE, INFO_FILE, METRICS_FILE) if self.fs.exists(self._at(file))]
        if CONFIG_FILE not in there:
            # A copy begins with its configuration: `send` would remove checkpoints of something else.
            there += [f"{CHECKPOINTS}/step_{step}" for step in self._steps(whole=False)[:1]]
        if not there:
            return
        text = self.fs.cat_file(self._at(CONFIG_FILE)) if CONFIG_FILE in there else b""
        if not text.startswith(CHECKSUM_LINE.encode()):
            raise ConfigError(f"{name}: there is something else ({', '.join(there)}); choose another place")
        changed = [] if config is None else _changes(config, text.decode(), name)
        if changed:
            raise ConfigError(f"{name}: there is another run, whose {', '.join(changed)} differ; choose another place")

    def _send_checkpoint(self, folder: Path, name: str) -> None:
        meta = (folder / name / META_FILE).read_bytes()
        target = self._at(f"{name}/{META_FILE}")
        if self.fs.exists(target) and self.fs.cat_file(target) == meta:
            return
        self._remove(name)
        for file in sorted(path for path in (folder / name).rglob("*") if path.is_file() and path.name != META_FILE):
            self.fs.put_file(str(file), self._at(file.relative_to(folder).as_posix()))
        self._replace(f"{name}/{META_FILE}", meta)

    def _fetch_checkpoint(self, folder: Path, step: int) -> bool:
        """Copy a checkpoint here; return whether it is whole. A damaged one is removed, with a warning."""
        name = f"{CHECKPOINTS}/step_{step}"
        try:
            for file in self.fs.find(self._at(name)):
                inside = Path(file[len(self._at(name)) + 1 :])
                if inside.is_absolute() or ".." in inside.parts:
                    raise CheckpointError(f"{shown(file)} is no file of a checkpoint")
                to = folder / name / inside
                to.parent.mkdir(parents=True, exist_ok=True)
                self.fs.get_file(file, str(to))
            check_checkpoint(folder / name)
        except (CheckpointError, FileNotFoundError) as error:
            shutil.rmtree(folder / name, ignore_errors=True)
            warnings.warn(f"{self.url}/{name} is not whole: {reason_of(error)}", RljaxWarning, stacklevel=2)
            return False
        return True

    def _replace(self, name: str, data: bytes) -> None:
        if self.is_folder:
            self.fs.pipe_file(self._at(f"{name}.new"), data)
            self.fs.mv(self._at(f"{name}.new"), self._at(name))
        else:
            self.fs.pipe_file(self._at(name), data)

    def _remove(self, name: str) -> None:
        """Remove a checkpoint, its meta.json first: without it, no half of it counts."""
        meta = self._at(f"{name}/{META_FILE}")
        if self.fs.exists(meta):
            self.fs.rm_file(meta)
        if self.fs.exists(self._at(name)):
            self.fs.rm(self._at(name), recursive=True)

    def _steps(self, whole: bool = True) -> list[int]:
        """Return the steps of the checkpoints there, the newest first; also of those without a meta.json if not `whole`."""
        self.fs.invalidate_cache()
        try:
            found = self.fs.ls(self._at(CHECKPOINTS), detail=False)
        except FileNotFoundError:
            return []
        names = [path.rstrip("/").rpartition("/")[2] for path in found]
        steps = {parse_step(name.removeprefix("step_")): f"{CHECKPOINTS}/{name}/{META_FILE}" for name in names}
        there = (step for step, meta in steps.items() if step is not None and (not whole or self.fs.exists(self._at(meta))))
        return sorted(there, reverse=True)

    def _at(self, name: str) -> str:
        return f"{self.path}/{name}"

    @contextlib.contextmanager
    def _explained(self, folder: Path | None = None) -> Iterator[None]:
        """Turn the errors of all the stores into one line, also those of the disk if a `folder` is written or is the place."""
        try:
            yield
        except RljaxError:
            raise
        except Exception as error:
            written = self.url if folder is None and self.is_folder else folder
            if written is not None and isinstance(error, OSError) and error.errno in DISK_ERRORS:
                raise RljaxError(f"{written}: cannot be written: {error.strerror}") from error
            raise RljaxError(f"{self.url}: cannot be reached: {type(error).__name__}: {reason_of(error)}") from error


def _changes(config: Config, text: str, name: str) -> list[str]:
    """Return the names of fields, but for the budget, in which the configuration in a text differs from this one."""
    # Read as a configuration, it has the fields that an earlier version of rljax did not have.
    there = comparable_table(config_of(parse_toml(text, name), name))
    given = comparable_table(config)
    return [key for key in {**there, **given} if there.get(key) != given.get(key) and key != "total_timesteps"]


def _is_readable(checkpoint: Path) -> bool:
    try:
        read_meta(checkpoint)
    except ConfigError:
        return False
    return True


@contextlib.contextmanager
def replaced_run(folder: Path, source: str) -> Iterator[Path]:
    """Yield a new folder, to fetch a run from `source` into; it takes the place of an earlier copy at `folder` once it is whole.

    What is not of the run there (plots, recordings) stays.

    Raises:
        ConfigError: the earlier copy is being trained on here, or has been, which is not to be lost.
        OSError: the folder cannot be written.
    """
    old = folder.with_name(f".{folder.name}.old")
    _finish_replacing(old, folder)
    with lock_folder(folder) if folder.exists() else contextlib.nullcontext(), atomic_folder(folder) as aside:
        yield aside
        if folder.exists():
            _check_behind(folder, aside, source)
            folder.rename(old)
    _finish_replacing(old, folder)


def _check_behind(folder: Path, aside: Path, source: str) -> None:
    """Raise a ConfigError if a run here, or that of a phase, has a checkpoint after the newest one of what was fetched."""
    for config in [aside / CONFIG_FILE, *aside.glob(f"*/{CONFIG_FILE}")]:
        run = folder / config.parent.relative_to(aside)
        here, there = (max(checkpoint_steps(path / CHECKPOINTS), default=0) for path in (run, config.parent))
        if here > there:
            raise ConfigError(f"{run}: the run here is at step {here} already, its copy in {source} at step {there}: move the "
                              "folder away, to fetch the copy")  # fmt: skip


def _finish_replacing(old: Path, folder: Path) -> None:
    """Move what is not of the run from the folder of its earlier copy to the new one, or all back if a kill left no new one."""
    if not old.exists():
        return
    if not folder.exists():
        old.rename(folder)
        return
    _keep_own_files(old, folder)
    shutil.rmtree(old)


def _keep_own_files(old: Path, folder: Path) -> None:
    for path in old.iterdir():
        if path.name in (CONFIG_FILE, INFO_FILE, METRICS_FILE, CHECKPOINTS, LOCK_FILE):
            continue
        if not os.path.lexists(folder / path.name):
            path.rename(folder / path.name)
        elif (path / CONFIG_FILE).exists():  # the run of a phase
            _keep_own_files(path, folder / path.name)
