"""Folders that are created atomically, locked by one process, and watched while they are written to."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from rljax.core.errors import ConfigError, RljaxError, RljaxWarning, shown

LOCK_FILE = ".lock"
LEFT_SECONDS = 6 * 3600
"""Age from which an unfinished folder counts as left by a killed process where no lock tells."""


def numbered(path: Path) -> Iterator[Path]:
    """Yield `path`, `path-2`, `path-3`, ...: names for what must not touch what has the name already."""
    yield path
    for number in itertools.count(2):
        yield path.with_name(f"{path.name}-{number}")


def as_path(value: object, name: str) -> Path:
    """Return the path that a user gave as the argument `name`.

    Raises:
        ConfigError: it is no path.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise ConfigError(f"{name} = {shown(value)}: expected a path, as a text or a pathlib.Path")
    return Path(value)


def user_cache() -> Path:
    """Return the user's folder for what rljax can fetch or make again. It need not be there yet.

    Raises:
        ConfigError: the system knows no home folder of this user.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rljax"
    except RuntimeError:  # a container whose user has a number only
        raise ConfigError("this user has no home folder to keep files in: set HOME, or XDG_CACHE_HOME to a folder") from None


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `folder`; rename it to `folder` at the end, so that a kill leaves no half of it there.

    Temporary folders left by processes that were killed are removed; where folders cannot be locked, those that are hours old.

    Raises:
        ConfigError: `folder` is the working directory, or holds it.
        OSError: the folder cannot be created, or there is something at `folder` by now.
    """
    refuse_working_directory(folder)
    _remove_left(folder)
    # Processes in several containers may have one id, and share a disk.
    aside = folder.parent / f".{folder.name}.new-{secrets.randbits(64)}"
    try:
        aside.mkdir(parents=True)
        with lock_folder(aside):
            yield aside
            aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def refuse_working_directory(folder: Path) -> None:
    """Raise a ConfigError if a folder to create is the working directory or holds it.

    Otherwise it would be replaced, and the shell would stand in a folder that is gone.
    """
    with contextlib.suppress(FileNotFoundError):  # it is gone already
        if Path(os.getcwd()).is_relative_to(os.path.realpath(folder)):
            raise ConfigError(f"{folder}: is the working directory or one of its parents; give another folder")


def _remove_left(folder: Path) -> None:
    if not folder.parent.is_dir():
        return
    prefix = f".{folder.name}.new-"
    for left in [path for path in folder.parent.iterdir() if path.name.startswith(prefix) and path.name[len(prefix) :].isdigit()]:
        # A living process holds the lock: leave its folder alone. Another process may have finished or removed it just now.
        with contextlib.suppress(ConfigError, FileNotFoundError):
            age = time.time() - left.stat().st_mtime
            with lock_folder(left) as locked:
                if locked or age >= LEFT_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
                    warnings.warn(f"removed {left}, left by a process that was killed while starting", RljaxWarning, stacklevel=2)


@contextlib.contextmanager
def lock_folder(folder: Path, what: str = "", taken: str = "another process is training there") -> Iterator[bool]:
    """Lock a folder for this process; the system releases the lock however the process ends.

    Yields whether it is locked: it is not on Windows, nor on file systems without locks.

    Args:
        folder: the folder.
        what: what it is, for messages; by default a run folder.
        taken: what another process does there.

    Raises:
        ConfigError: another process has locked it, or it cannot be written.
    """
    what = what or f"run folder {folder}"
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield False
        return
    try:
        file = (folder / LOCK_FILE).open("w")
    except OSError as error:
        raise ConfigError(f"{what} cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        except BlockingIOError:
            raise ConfigError(f"{what}: {taken}") from None
        except OSError:  # a file system without locks
            locked = False
        yield locked


class WatchedFolder:
    """Folder that is kept open, to notice when it is moved or replaced: an inode in use is not given to another folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            self._descriptor: int | None = os.open(folder, os.O_RDONLY)
        except OSError:  # Windows cannot open folders, but does not let one with open files be moved either
            self._descriptor = None

    @property
    def there(self) -> bool:
        """True if the folder is still where it was."""
        if self._descriptor is None:
            return True
        try:
            return os.path.samestat(os.stat(self.folder), os.fstat(self._descriptor))
        except OSError:
            return False

    def check(self) -> None:
        """Raise a RljaxError if the folder is gone or has been replaced."""
        if self.there:
            return
        raise RljaxError(f"training stopped: {self.folder} was moved or removed meanwhile; nothing was written in its place")

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> WatchedFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
