"""Folders that are made whole or not at all, held by one process, and watched while they are written to."""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

from rljax.core.errors import ConfigError, RljaxError, RljaxWarning

LOCK_FILE = ".lock"


@contextlib.contextmanager
def made_aside(folder: Path) -> Iterator[Path]:
    """A folder to fill, beside `folder`, that gets its name at the end: a kill or a full disk leaves nothing under that name.

    What a process that was killed meanwhile has left there is removed.

    Raises:
        OSError: it cannot be made, or something is at `folder` by now.
    """
    _remove_left(folder)
    aside = folder.parent / f".{folder.name}.new-{os.getpid()}"
    try:
        aside.mkdir(parents=True)
        with locked(aside):
            yield aside
            aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _remove_left(folder: Path) -> None:
    if not folder.parent.is_dir():
        return
    prefix = f".{folder.name}.new-"
    for left in [path for path in folder.parent.iterdir() if path.name.startswith(prefix) and path.name[len(prefix) :].isdigit()]:
        with contextlib.suppress(ConfigError), locked(left):  # of a process that lives: leave it alone
            shutil.rmtree(left, ignore_errors=True)
            warnings.warn(f"removed {left}, left by a process that was killed while it began", RljaxWarning, stacklevel=2)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder for this process; the system lets go of it however the process ends.

    Raises:
        ConfigError: another process trains there.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    try:
        file = (folder / LOCK_FILE).open("w")
    except OSError as error:
        raise ConfigError(f"run folder {folder} cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"run folder {folder}: another process is training there") from None
        except OSError:
            pass  # a file system without locks
        yield


class Watched:
    """A folder that is known again as long as this is open: an inode in use is not given to another folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            self._descriptor: int | None = os.open(folder, os.O_RDONLY)
        except OSError:  # Windows cannot open folders, and does not let go of those with open files
            self._descriptor = None

    @property
    def there(self) -> bool:
        """Whether the folder is where it was."""
        if self._descriptor is None:
            return True
        try:
            return os.path.samestat(os.stat(self.folder), os.fstat(self._descriptor))
        except OSError:
            return False

    def check(self) -> None:
        """Raise a RljaxError where the folder is gone, or is another one by now."""
        if self.there:
            return
        raise RljaxError(f"training stopped: {self.folder} was moved or removed meanwhile; nothing was written in its place")

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
