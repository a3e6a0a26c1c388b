"""Checkpoints in paths that Orbax cannot write to, and on disks without symbolic links."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import pytest

import rljax
from rljax.run.export.packing import pack
from rljax.run.files.checkpoint import check_path, link, read_checkpoint, write_checkpoint
from rljax.run.files.folder import RunInfo, create_run_dir, load_checkpoint, read_config, replace_config
from rljax.run.phases.train import is_finished
from tests.run.tiny_runs import CONFIG, assert_same_state

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


def refuse_links(*_: object, **__: object) -> None:
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


def checkpoints_of(run: Path, best_step: int, *steps: int) -> Path:
    folder = run / "checkpoints"
    run.mkdir()
    for step in steps:
        write_checkpoint(folder, step, {"step": jnp.array(step)}, {"iteration": 1, "keys": {}, "best_step": best_step})
    return folder


def test_a_link_that_cannot_be_made_leaves_no_wrong_one_and_takes_no_folder_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "best").symlink_to("step_1")
    (tmp_path / "latest").mkdir()  # of a copy that followed links
    (tmp_path / "latest" / "file").touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "symlink", refuse_links)
        for name in ("best", "latest"):
            link(tmp_path, name, 2)
    assert [path.name for path in tmp_path.rglob("*")] == ["latest", "file"]
    link(tmp_path, "latest", 3)
    assert (tmp_path / "latest").readlink() == Path("step_3")


def test_links_move_as_windows_moves_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename onto a file fails there, and a replacement of a link to a folder."""
    replace = Path.replace

    def replace_there(path: Path, target: Path) -> Path:
        if target.is_symlink():
            raise PermissionError(errno.EACCES, "Access is denied")
        return replace(path, target)

    def rename_there(path: Path, target: Path) -> Path:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "Cannot create a file when that file already exists")
        return replace(path, target)

    (tmp_path / "config.toml").touch()
    monkeypatch.setattr(Path, "replace", replace_there)
    monkeypatch.setattr(Path, "rename", rename_there)
    for step in (1, 2):
        link(tmp_path, "latest", step)
        assert (tmp_path / "latest").readlink() == Path(f"step_{step}")
    replace_config(tmp_path, CONFIG)
    assert read_config(tmp_path) == CONFIG
    assert {path.name for path in tmp_path.iterdir()} == {"latest", "config.toml"}


def test_the_best_checkpoint_of_a_copy_without_links_is_the_noted_one(tmp_path: Path) -> None:
    folder = checkpoints_of(tmp_path / "run", 2, 1, 2, 3)
    assert load_checkpoint(tmp_path / "run", "best").meta["step"] == 2
    (folder / "best").symlink_to("step_1")  # the link counts where there is one
    assert load_checkpoint(tmp_path / "run", "best").meta["step"] == 1
    (folder / "best").unlink()
    shutil.copytree(folder / "step_1", folder / "best")  # links could be made once, and were followed in a copy
    assert load_checkpoint(tmp_path / "run", "best").meta["step"] == 2
    shutil.rmtree(folder / "step_2")
    assert load_checkpoint(tmp_path / "run", "best").meta["step"] == 1
    shutil.rmtree(folder / "best")
    with pytest.raises(rljax.ConfigError, match=r"points to step_2, which \S+/run does not have, only 1, 3"):
        load_checkpoint(tmp_path / "run", "best")
    (folder / "step_3" / "meta.json").write_text("{")
    write_checkpoint(folder, 1, {"step": jnp.array(1)}, {"iteration": 1, "keys": {}, "best_step": 1})
    assert load_checkpoint(tmp_path / "run", "best").meta["step"] == 1


@pytest.mark.slow
def test_runs_train_and_go_on_where_no_link_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rljax.fit(CONFIG, run_dir=tmp_path / "linked")
    monkeypatch.setattr(os, "symlink", refuse_links)
    rljax.fit(CONFIG, run_dir=tmp_path / "run", callback=lambda step, _: step >= 500)
    result = rljax.fit(resume=tmp_path / "run")
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_symlink()]
    for checkpoint in ("latest", "best"):
        ours, linked = (rljax.load_run(tmp_path / run, checkpoint=checkpoint) for run in ("run", "linked"))
        assert ours.step == linked.step
        assert_same_state(ours.state, linked.state)
    rljax.save(tmp_path / "saved", CONFIG, result.state)
    assert_same_state(rljax.load(tmp_path / "saved")[1], result.state)


@pytest.mark.slow
def test_phases_read_the_best_checkpoint_where_no_link_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = CONFIG.replace(total_timesteps=128, eval_every=64, eval_episodes=2)
    phases = {"first": first, "second": rljax.Phase(CONFIG.replace(total_timesteps=64), init_from="first/checkpoints/best")}
    linked = rljax.fit_phases(phases, run_dir=tmp_path / "linked")
    monkeypatch.setattr(os, "symlink", refuse_links)
    end = rljax.fit_phases(phases, run_dir=tmp_path / "run")
    assert_same_state(end.result.state, linked.result.state)
    assert is_finished(tmp_path / "run" / "first")
