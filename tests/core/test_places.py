"""Folders that are made whole or not at all, and locks where the system has none."""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path

import pytest

import rljax
from rljax.core.places import LEFT_SECONDS, atomic_folder, lock_folder

fcntl = pytest.importorskip("fcntl")


@pytest.fixture(params=["windows", "no locks"])
def without_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    if request.param == "windows":
        monkeypatch.setitem(sys.modules, "fcntl", None)
    else:
        monkeypatch.setattr(fcntl, "flock", flock)


def test_a_lock_tells_whether_it_holds(tmp_path: Path) -> None:
    with lock_folder(tmp_path) as locked:
        assert locked
        with pytest.raises(rljax.ConfigError, match="another process is training there"), lock_folder(tmp_path):
            pass


@pytest.mark.usefixtures("without_locks")
def test_without_locks_only_old_unfinished_folders_are_removed(tmp_path: Path) -> None:
    with lock_folder(tmp_path) as locked:
        assert not locked
    living, killed = tmp_path / ".run.new-1", tmp_path / ".run.new-2"
    for folder in (living, killed):
        folder.mkdir()
        (folder / ".lock").touch()
    old = time.time() - LEFT_SECONDS - 60
    os.utime(killed, (old, old))
    with pytest.warns(rljax.RljaxWarning, match=r"removed \S+new-2, left by a process"), atomic_folder(tmp_path / "run"):
        pass
    assert living.exists()
    assert not killed.exists()


def test_with_locks_an_unfinished_folder_without_a_process_is_removed(tmp_path: Path) -> None:
    left, living = tmp_path / ".run.new-1", tmp_path / ".run.new-2"
    for folder in (left, living):
        folder.mkdir()
    with lock_folder(living), pytest.warns(rljax.RljaxWarning, match="new-1"), atomic_folder(tmp_path / "run"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".run.new-2", "run"]
