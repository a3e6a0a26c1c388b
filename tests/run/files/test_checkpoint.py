"""Checkpoints in paths that Orbax cannot write to, and on disks without symbolic links."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import pytest

import rljax
from rljax.run.export.packing import pack
from rljax.run.files.checkpoint import check_path, read_checkpoint, write_checkpoint
from rljax.run.files.folder import RunInfo, create_run_dir
from tests.run.tiny_runs import CONFIG

on_posix = pytest.mark.skipif(sys.platform == "win32", reason="a backslash is a slash there")


@on_posix
@pytest.mark.parametrize(("name", "says"), [("a[1]", r"has \[ in it"), ("a\\b", r"has \\ in it"), ("a\udcff", "valid UTF-8")])
@pytest.mark.parametrize(
    "write",
    [
        lambda folder, tmp_path: rljax.fit(CONFIG, run_dir=folder),
        lambda folder, tmp_path: rljax.fit(CONFIG, run_dir=folder, resume=True),
        lambda folder, tmp_path: rljax.fit_phases({"one": CONFIG}, run_dir=folder),
        lambda folder, tmp_path: pack(tmp_path / "run", folder),
        lambda folder, tmp_path: create_run_dir(folder, CONFIG, RunInfo(), {}, {}),
    ],
    ids=["fit", "resume", "phases", "pack", "save"],
)
def test_a_path_to_which_no_checkpoint_can_be_written_is_refused(
    write: Callable[[Path, Path], object], name: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(rljax.ConfigError, match=says) as refused:
        write(tmp_path / name / "run", tmp_path)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


@on_posix
def test_a_copy_may_be_where_it_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(rljax.ConfigError, match=r"sync = .* has \\ in it"):
        rljax.fit(CONFIG, run_dir=tmp_path / "run", sync=tmp_path / "a\\b")
    assert not (tmp_path / "run").exists()
    check_path(tmp_path / "a[1]", "run", written=False)
    state = {"a": jnp.arange(3)}
    written = write_checkpoint(tmp_path, 1, {"a": jnp.arange(3)}, {"iteration": 1, "keys": {}})
    for name in ("a[1]", "a\\b"):
        shutil.copytree(written, tmp_path / name / "step_1")
    assert (read_checkpoint(tmp_path / "a[1]" / "step_1").arrays["a"] == state["a"]).all()
    with pytest.raises(rljax.ConfigError, match=r"can be read from a path that has \\ in it"):
        read_checkpoint(tmp_path / "a\\b" / "step_1")
