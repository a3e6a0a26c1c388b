"""Storages of studies: a journal or a database in a file, or a server. Files that are not studies are never written to."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import IO, Any

from rljax.core.errors import ConfigError


def absolute(storage: str) -> str:
    """Return the storage with the absolute path of its file, if it has one."""
    if "://" not in storage:
        return str(Path(storage).resolve())
    kind, _, path = storage.partition(":///")
    return f"{kind}:///{Path(path).resolve()}" if kind == "sqlite" and path else storage


def file_of(storage: str) -> str | None:
    """Return the path of a storage's file; None if it is on a server or in memory."""
    if "://" not in storage:
        return storage
    kind, _, path = storage.partition(":///")
    return path.partition("?")[0] or None if kind.partition("+")[0] == "sqlite" else None


def is_inside(path: str | Path, folder: Path) -> bool:
    """Return whether a path is inside a folder, after `..` and symbolic links in both are resolved."""
    try:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    except ValueError:  # a null character: no such path can exist
        return False


def check_storage(where: str) -> None:
    """Refuse an existing file that is not a study: Optuna would write into any file.

    Raises:
        ConfigError: the file is something else.
    """
    path = file_of(where)
    if path is None or not os.path.lexists(path):
        return
    wrong = ConfigError(f"storage = {where!r}: there is something other than a study; nothing was written to it")
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
    """Return Optuna's journal in a file, after removing an incomplete last line that a full disk may have left."""
    from optuna.storages.journal import JournalFileBackend

    # The lock is a link to the journal. One to a relative path leads nowhere, and Optuna would wait for it for ever.
    path = absolute(path)
    left = f"{path}.lock"
    if os.path.lexists(left) and not os.path.exists(left):
        os.unlink(left)
    lock = _journal_lock(path)
    with contextlib.suppress(FileNotFoundError), open(path, "rb+") as file:
        if not _ends_with_a_line(file):
            lock.acquire()  # others may be writing right now
            try:
                if not _ends_with_a_line(file):
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
            finally:
                lock.release()
    return JournalFileBackend(path, lock)


def _journal_lock(path: str) -> Any:
    """Return Optuna's lock for a journal: a symbolic link, or a file where none can be made (Google Drive, Windows)."""
    from optuna.storages.journal import JournalFileOpenLock, JournalFileSymlinkLock

    trial = f"{path}.{secrets.token_hex(8)}"
    try:
        os.symlink(path, trial)
        os.unlink(trial)
    except OSError:
        return JournalFileOpenLock(path)
    return JournalFileSymlinkLock(path)


def _ends_with_a_line(file: IO[bytes]) -> bool:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 1, 0))
    return file.read(1) in (b"\n", b"")
