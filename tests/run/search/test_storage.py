"""Folders of sweeps and studies are made whole, and a study's storage is a study, where the user said it is."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tomllib
import warnings
from pathlib import Path
from typing import Any

import optuna
import pytest
import tomli_w

import rljax
from rljax.run.files.outputs import make_folder
from rljax.run.search import plan as plans
from rljax.run.search import study as studies
from rljax.run.search import tune as tuning
from rljax.run.search.storage import absolute, check_storage, file_of, is_inside, journal
from tests.run.tiny_runs import assert_refused

CONFIG = rljax.PPOConfig(
    env="CartPole-v1", num_envs=4, num_steps=16, num_minibatches=2, total_timesteps=640, network={"hidden": [8]}
)
SPACE = {"learning_rate": rljax.Range(1e-4, 1e-2, log=True)}


class Killed(BaseException):
    """Stands for kill -9: no handler of the library catches it."""


@pytest.mark.parametrize(("operation", "occurrence"), [("mkdir", 1), ("write_text", 1), ("write_text", 2), ("rename", 1)])
@pytest.mark.parametrize("error", [Killed(), OSError(28, "No space left on device")])
def test_a_sweep_that_could_not_begin_leaves_nothing_in_its_place(
    operation: str, occurrence: int, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plans.plan_sweep(CONFIG, {"learning_rate": [1e-3, 1e-2]})
    usual, count = getattr(Path, operation), 0

    def stopped(self: Path, *arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += str(tmp_path) in str(self)
        if count == occurrence:
            raise error
        return usual(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, operation, stopped)
        if isinstance(error, Killed):
            patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # nor does it clean up
        with pytest.raises((Killed, rljax.ConfigError)) as told:
            plans.create_sweep_dir(tmp_path / "a", plan, 5)
    assert isinstance(told.value, Killed) or "cannot be made: No space left on device" in str(told.value)
    assert not (tmp_path / "a").exists()
    with warnings.catch_warnings(record=True) as told_of:
        plans.create_sweep_dir(tmp_path / "a", plan, 5)
    assert all("left by a process that was killed" in str(warning.message) for warning in told_of)
    assert plans.read_sweep(tmp_path / "a")[0].cells == plan.cells
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_what_is_there_is_not_replaced(tmp_path: Path) -> None:
    make_folder(tmp_path / "a", {"x": "1"}, "resume it")
    (tmp_path / "b").mkdir()
    (tmp_path / "c").symlink_to("nowhere")
    for name in "abc":
        with pytest.raises(rljax.ConfigError, match="exists already; resume it"):
            make_folder(tmp_path / name, {"x": "2"}, "resume it")
    assert (tmp_path / "a" / "x").read_text() == "1"
    assert not list((tmp_path / "b").iterdir())


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("results.csv", b"cell,seed\x00\n", "is not the table of this sweep"),
        ("results.csv", b"cell,learning_rate,seed,return,train_return\n\xb2,1,0,1,1\n", "is not the table of this sweep"),
        ("sweep.toml", b"a = [" + b"[" * 5000, "sweep.toml: "),
        ("sweep.toml", b"seeds = " + b"9" * 5000, "sweep.toml: "),
        ("sweep.toml", b"\xff", "sweep.toml: "),
        ("sweep.toml", b"seeds = 1000000000000", "differs from what was written"),
        (
            "sweep.toml",
            b"seeds = 1048577\nsearch = 'grid'\nsamples = 'none'\nepisodes = 1\nspace = {}",
            "seeds = 1048577: expected a whole number from 1 to 1,048,576",
        ),
        (
            "sweep.toml",
            b"seeds = 1048576\nsearch = 'grid'\nsamples = 'none'\nepisodes = 1\nspace = {gamma = [%s]}"
            % b", ".join(b"0.%d" % i for i in range(11, 31)),
            "more than max_runs",
        ),
        ("sweep.toml", b"seeds = 1\nsearch = 'grid'\nsamples = 'none'\nepisodes = 'x'\nspace = {}", "episodes = 'x': expected"),
        ("sweep.toml", b"seeds = 1\nsearch = 'grid'\nsamples = 'none'\nepisodes = 1\nspace = 3", "differs from what was written"),
    ],
)
def test_damaged_files_of_a_sweep_are_one_line(file: str, text: bytes, message: str, tmp_path: Path) -> None:
    plans.create_sweep_dir(tmp_path / "a", plans.plan_sweep(CONFIG, {"learning_rate": [1e-3, 1e-2]}), 5)
    (tmp_path / "a" / file).write_bytes(text)
    with pytest.raises(rljax.RljaxError, match=message) as error:
        rljax.resume_sweep(tmp_path / "a")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


def foreign_database(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE accounts (name TEXT)")
    database.commit()
    database.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "json", "list", "half", "folder", "database", "text as database"])
def test_nothing_but_a_study_is_written_to(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    if kind == "folder":
        path.mkdir()
    elif kind == "database":
        foreign_database(path)
    else:
        path.write_text({"json": '{"a": 1}\n', "half": '{"a": 1}', "list": "[1, 2]\n"}.get(kind, "dear diary\n"))
    before = None if kind == "folder" else path.read_bytes()
    storage = f"sqlite:///{path}" if "database" in kind else str(path)
    with pytest.raises(rljax.ConfigError, match="there is something other than a study; nothing was written to it"):
        rljax.tune(CONFIG, SPACE, trials=1, storage=storage, run_dir=tmp_path / "a")
    assert not (tmp_path / "a").exists()
    if before is not None:
        assert path.read_bytes() == before
    assert not list(tmp_path.glob("precious*.*"))


@pytest.mark.slow
def test_studies_are_known_as_such(tmp_path: Path) -> None:
    for storage in (str(tmp_path / "journal"), f"sqlite:///{tmp_path / 'study.db'}"):
        check_storage(storage)  # there is nothing yet
        studies.open_study(storage, "none")
        check_storage(storage)
    (tmp_path / "empty").touch()
    check_storage(str(tmp_path / "empty"))
    assert file_of("mysql://me@server/db") is None
    assert file_of("sqlite://") is None
    assert file_of(absolute("sqlite:///x.db")) == str(Path("x.db").resolve())


@pytest.mark.slow
def test_no_file_says_where_else_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = {"seeds": 1, "episodes": 2, "pruner": "none"}
    elsewhere = str(tmp_path / "elsewhere")
    tuning._create_study_dir(tmp_path / "a", CONFIG, SPACE, elsewhere, same)
    message = "is not in this folder: give the same storage again to continue"
    with pytest.raises(rljax.ConfigError, match=message):
        rljax.resume_tune(tmp_path / "a", trials=1)
    with pytest.raises(rljax.ConfigError, match=message):
        rljax.tune(CONFIG, SPACE, run_dir=tmp_path / "a", **same)
    assert_refused(["tune", "--resume", str(tmp_path / "a")], message, capsys)
    with pytest.raises(rljax.ConfigError, match=r"storage = .*other.*: the study of .* is in .*elsewhere"):
        rljax.resume_tune(tmp_path / "a", storage=str(tmp_path / "other"))
    for outside in ("mysql://root@localhost/db", f"sqlite:///{tmp_path}/x.db", "../../x"):
        table = {**same, "storage": outside, "space": {"learning_rate": "1e-4:1e-2"}}
        (tmp_path / "a" / "tune.toml").write_text(tomli_w.dumps(table))
        with pytest.raises(rljax.ConfigError, match=message):
            rljax.resume_tune(tmp_path / "a", trials=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]
    (tmp_path / "a" / "tune.toml").write_text(tomli_w.dumps({**table, "storage": 3}))
    with pytest.raises(rljax.ConfigError, match=r"tune.toml: differs from what was written \(TypeError: storage = 3\)"):
        rljax.resume_tune(tmp_path / "a", trials=1)


@pytest.mark.slow
def test_paths_with_dots_and_links_lead_out_of_no_folder(tmp_path: Path) -> None:
    study, victim = tmp_path / "study", tmp_path / "victim.journal"
    tuning._create_study_dir(study, CONFIG, SPACE, None, {"seeds": 1, "episodes": 2, "pruner": "none"})
    studies.open_study(str(victim), "none")
    before = victim.read_bytes()
    (study / "link").symlink_to(victim)
    (study / "nowhere").symlink_to(tmp_path / "made.journal")
    (study / "up").symlink_to("..")
    paths = [f"{study}/../victim.journal", f"{study}/link", f"{study}/nowhere", f"{study}/up/victim.journal"]
    paths += [f"sqlite:///{path}" for path in paths] + [f"sqlite:///file:{victim}?uri=true", f"{study}/\0"]
    usual = (study / "tune.toml").read_text()
    for path in paths:
        table = {**tomllib.loads(usual), "storage": path}
        (study / "tune.toml").write_text(tomli_w.dumps(table))
        with pytest.raises(rljax.ConfigError, match="is not in this folder: give the same storage again to continue") as error:
            rljax.resume_tune(study, trials=1)
        assert "\n" not in str(error.value)
    assert victim.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["study", "victim.journal"]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["victim.journal", "made.journal", "study/study.journal"])
def test_a_studys_own_journal_that_leads_elsewhere_is_refused(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, victim = tmp_path / "study", tmp_path / "victim.journal"
    tuning._create_study_dir(study, CONFIG, SPACE, None, {"seeds": 1, "episodes": 2, "pruner": "none"})
    studies.open_study(str(victim), "none")
    before = victim.read_bytes()
    (study / "study.journal").symlink_to(tmp_path / target)
    message = "there is something other than a study" if target.startswith("study") else "study.journal: leads out of this folder"
    assert_refused(["tune", "--resume", str(study), "--trials", "1"], message, capsys)
    assert victim.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["study", "victim.journal"]


def test_a_storage_in_its_folder_is_found_through_a_link_to_the_folder(tmp_path: Path) -> None:
    study = tmp_path / "study"
    tuning._create_study_dir(study, CONFIG, SPACE, str(study / "mine.journal"), {"seeds": 1, "episodes": 2, "pruner": "none"})
    (tmp_path / "link").symlink_to("study")
    assert tuning._storage_of(tmp_path / "link", None) == str(study / "mine.journal")
    (study / "mine.journal").symlink_to("real.journal")
    assert tuning._storage_of(study, None) == str(study / "mine.journal")
    assert is_inside(study / ".." / "study" / "x", tmp_path / "link")
    assert not is_inside(tmp_path / "study-2", study)


@pytest.mark.timeout(60)
def test_the_lock_that_a_killed_process_left_beside_a_relative_path_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optuna waits for as long as the link is there, and as it leads nowhere, its age is never known."""
    monkeypatch.chdir(tmp_path)
    Path("study").mkdir()
    journal("study/study.journal")
    Path("study/study.journal.lock").symlink_to("study/study.journal")
    optuna.create_study(storage=optuna.storages.JournalStorage(journal("study/study.journal")))
    assert [file.name for file in Path("study").iterdir()] == ["study.journal"]
    for made in monitored_locks(monkeypatch, "study/study.journal"):
        assert Path(made).is_absolute()


def monitored_locks(monkeypatch: pytest.MonkeyPatch, path: str) -> list[str]:
    """Return what the links of a journal's lock, given by a relative path, lead to."""
    links: list[str] = []
    whole = os.symlink

    def noted(target: str, link: str) -> None:
        links.append(target)
        whole(target, link)

    monkeypatch.setattr(os, "symlink", noted)
    optuna.storages.JournalStorage(journal(path)).get_all_studies()
    assert links
    return links


def test_a_journal_needs_no_symbolic_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def symlink(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(os, "symlink", symlink)
    path = str(tmp_path / "journal")
    study = studies.open_study(path, "none")
    study.enqueue_trial({"learning_rate": 1e-3})
    Path(path).write_bytes(Path(path).read_bytes() + b'{"op_code":4,"worker')
    assert len(studies.open_study(path, "none").trials) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["journal"]


@pytest.mark.slow
def test_a_study_that_cannot_be_opened_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(studies, "journal", broken)
    with pytest.raises(rljax.ConfigError, match=r"storage = .*: cannot be opened"):
        rljax.tune(CONFIG, SPACE, trials=1, batch_size=1, run_dir=tmp_path / "study")
    assert not list(tmp_path.iterdir())


def test_a_journal_whose_last_line_was_cut_off_goes_on(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    study = studies.open_study(path, "none")
    study.enqueue_trial({"learning_rate": 1e-3})
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole + b'{"op_code":4,"worker')  # what a full disk leaves
    again = studies.open_study(path, "none")
    assert Path(path).read_bytes().startswith(whole + b'{"op_code":0')
    again.enqueue_trial({"learning_rate": 1e-2})
    assert len(optuna.load_study(study_name=studies.STUDY, storage=optuna.storages.JournalStorage(journal(path))).trials) == 2
    assert not os.path.lexists(path + ".lock")
