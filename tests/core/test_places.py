"""Folders that are made whole or not at all, and locks where the system has none."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

import rljax
from rljax.core.places import LEFT_SECONDS, atomic_folder, lock_folder

TINY = rljax.PPOConfig(num_envs=2, num_steps=4, num_minibatches=1, total_timesteps=8, network={"hidden": [4]})
NO_PATHS: dict[str, Callable[[Any], Any]] = {
    "run_dir": lambda x: rljax.fit(TINY, run_dir=x),
    "path": lambda x: rljax.save(x, TINY, None),
    "out": lambda x: rljax.record(rljax.make_agent(TINY), None, x, key=jax.random.key(0)),
    "path of a dataset": rljax.open_dataset,
    "path to record to": lambda x: rljax.demonstrations("random", x, num_episodes=1, env="CartPole-v1"),
    "out for NumPy": lambda x: rljax.export_numpy(rljax.make_agent(TINY), None, x),
    "path of a policy": rljax.load_policy,
    "run_dir of phases": lambda x: rljax.fit_phases({"a": TINY}, run_dir=x),
    "run_dir of a sweep": lambda x: rljax.sweep(TINY, {"gamma": [0.9]}, run_dir=x),
    "run_dir of a study": lambda x: rljax.tune(TINY, {"gamma": [0.9]}, trials=1, run_dir=x),
}
"""Calls that take a path, by the argument's name, which may be followed by a remark."""

fcntl = pytest.importorskip("fcntl")


@pytest.mark.parametrize("name", NO_PATHS)
def test_what_is_no_path_is_one_line(name: str) -> None:
    with pytest.raises(rljax.ConfigError, match=rf"^{name.partition(' ')[0]} = 3: expected a path, as a text or a pathlib.Path$"):
        NO_PATHS[name](3)


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
