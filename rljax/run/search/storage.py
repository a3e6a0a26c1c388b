"""Where studies are kept: a journal or a database in a file, or a server; nothing else is written to."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import IO, Any

from rljax.core.errors import ConfigError


def absolute(storage: str) -> str:
    """A file's path wherever it is opened from."""
    if "://" not in storage:
        return str(Path(storage).resolve())
    kind, _, path = storage.partition(":///")
    return f"{kind}:///{Path(path).resolve()}" if kind == "sqlite" and path else storage


def file_of(storage: str) -> str | None:
    """The file of a storage; None where it is on a server, or in memory."""
    if "://" not in storage:
        return storage
    kind, _, path = storage.partition(":///")
    return path.partition("?")[0] or None if kind.partition("+")[0] == "sqlite" else None


def is_inside(path: str | Path, folder: Path) -> bool:
    """Whether a path leads into a folder, wherever `..` and symbolic links in either take it."""
    try:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    except ValueError:  # a null character: there is no such path
        return False


def check_storage(where: str) -> None:
    """Refuse a file that is there and is no study: Optuna would write into whatever it is.

    Raises:
        ConfigError: it is something else.
    """
    path = file_of(where)
    if path is None or not os.path.lexists(path):
        return
    wrong = ConfigError(f"storage = {where!r}: there is something else than a study; nothing was written to it")
    if not os.path.isfile(path):
        raise wrong
    if "://" in where:
        import sqlite3

        try:
            with contextlib.closing(sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)) as database:
                tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        except sqlite3.DatabaseError:
            raise wrong from None
        if tables and not {"studies", "trials", "version_info"} <= tables:
            raise wrong
        return
    with open(path, "rb") as file:
        first = file.readline(1_000_000)
    try:
        if first.endswith(b"\n") and "op_code" not in json.loads(first):
            raise wrong
    except (ValueError, TypeError, RecursionError):
        raise wrong from None
    if first and not first.endswith(b"\n") and not first.startswith(b'{"op_code"'):
        raise wrong


def journal(path: str) -> Any:
    """Optuna's journal in a file. The half of a line that a full disk has left at its end is cut off: nothing could follow it."""
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    with contextlib.suppress(FileNotFoundError), open(path, "rb+") as file:
        lock = JournalFileSymlinkLock(path)
        if not _ends_with_a_line(file):
            lock.acquire()  # others may be writing right now
            try:
                if not _ends_with_a_line(file):
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
            finally:
                lock.release()
    return JournalFileBackend(path)


def _ends_with_a_line(file: IO[bytes]) -> bool:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 1, 0))
    return file.read(1) in (b"\n", b"")
