"""Copies of runs elsewhere: whole at every moment, resumed bit for bit, and never of two runs at one place."""

from __future__ import annotations

import contextlib
import errno
import json
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

import rljax
from rljax.core.config_files import dump_config
from rljax.core.places import lock_folder
from rljax.run.files.checkpoint import CHECKPOINTS, CheckpointWriter, checkpoint_steps
from rljax.run.files.folder import CONFIG_FILE, add_checksum
from rljax.run.files.remote import Remote
from tests.run.tiny_runs import CONFIG, TINY_TOML, assert_refused, assert_same_run, assert_same_state, edit_sealed, records


class Killed(BaseException):
    """Stands for kill -9 where the test itself must survive: no handler of the library catches it."""


WRITES = ("pipe_file", "put_file", "mv", "rm_file", "rm")


class Dying:
    """A file system that dies at the n-th change, before or in the middle of it."""

    def __init__(self, fs: Any, lives: int, half: bool):
        self.fs, self.lives, self.half = fs, lives, half

    def __getattr__(self, name: str) -> Any:
        usual = getattr(self.fs, name)
        if name not in WRITES:
            return usual

        def until_killed(*arguments: Any, **options: Any) -> Any:
            self.lives -= 1
            if self.lives == 0:
                if self.half and name == "pipe_file":
                    usual(arguments[0], arguments[1][: len(arguments[1]) // 2])
                if self.half and name == "rm":
                    self.fs.rm_file(self.fs.find(arguments[0])[-1])
                if self.half and name == "put_file":
                    self.fs.pipe_file(arguments[1], Path(arguments[0]).read_bytes()[:-1])
                raise Killed
            return usual(*arguments, **options)

        return until_killed


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "run"
    rljax.fit(CONFIG, run_dir=folder, checkpoint_every=320, keep=None)
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    """A place like a bucket."""
    url = f"memory:/{tmp_path}"
    yield url
    fs = fsspec.filesystem("memory")
    if fs.exists(url):
        fs.rm(url, recursive=True)


def at(reference: Path, folder: Path, steps: list[int]) -> Path:
    """The run as it was when these were its checkpoints."""
    shutil.copytree(reference, folder, symlinks=True, ignore=shutil.ignore_patterns("best", "latest", "step_*"))
    for step in steps:
        shutil.copytree(reference / CHECKPOINTS / f"step_{step}", folder / CHECKPOINTS / f"step_{step}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bucket", "folder [of a disk]"])
def test_a_copy_that_was_killed_at_any_moment_has_a_whole_checkpoint(
    kind: str, reference: Path, tmp_path: Path, place: str
) -> None:
    place, half = (place, False) if kind == "bucket" else (str(tmp_path / kind), True)  # buckets have no half of a file
    steps = sorted(checkpoint_steps(reference / CHECKPOINTS))
    before, after = at(reference, tmp_path / "a", steps[1:3]), at(reference, tmp_path / "b", steps[2:4])
    lines = (reference / "metrics.jsonl").read_text().splitlines(True)
    (before / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["step"] <= steps[2]))
    other = at(reference, tmp_path / "c", steps[1:3])  # whose second checkpoint another life has written
    edit_sealed(other / CHECKPOINTS / f"step_{steps[2]}" / "meta.json", time="2026-01-01T00:00:00+00:00")
    restored, lives = [], 0
    while not restored or restored[-1] != "all":
        lives += 1
        remote = Remote(f"{place}/{lives}")
        remote.send(other if lives % 2 else before)
        remote.fs = Dying(remote.fs, lives, half)
        try:
            remote.send(after)
            restored.append("all")
        except Killed:
            restored.append("killed")
        folder = tmp_path / f"restored_{lives}"
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no half of a checkpoint counts
            assert Remote(f"{place}/{lives}").restore(folder)
        newest = checkpoint_steps(folder / CHECKPOINTS)[0]
        assert newest in steps[1:4]
        known = [record for record in records(reference) if record["step"] <= newest]
        assert records(folder)[: len(known)] == known
        # What a kill left there is no obstacle to the next copy.
        Remote(f"{place}/{lives}").send(after)
        assert Remote(f"{place}/{lives}")._steps(whole=False) == steps[3:1:-1]
    assert lives > 10
    assert_same_state(rljax.load_run(folder).state, rljax.load_run(reference, checkpoint=steps[3]).state)


@pytest.mark.slow
def test_a_run_whose_machine_is_lost_again_and_again_is_the_same_run(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Remote.__init__
    for lives in (12, 40, 75):

        def dying(self: Remote, url: str, lives: int = lives) -> None:
            usual(self, url)
            self.fs = Dying(self.fs, lives, True)

        monkeypatch.setattr(Remote, "__init__", dying)
        with pytest.raises(Killed):
            rljax.fit(CONFIG, run_dir=tmp_path / "run", resume=True, sync=tmp_path / "bucket", checkpoint_every=128, keep=1)
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
    monkeypatch.setattr(Remote, "__init__", usual)
    rljax.fit(CONFIG, run_dir=tmp_path / "run", resume=True, sync=tmp_path / "bucket")
    assert_same_run(tmp_path / "run", reference)
    assert Remote(str(tmp_path / "bucket")).restore(tmp_path / "copy")
    rljax.fit(resume=tmp_path / "copy")
    assert_same_run(tmp_path / "copy", reference)


@pytest.mark.slow
def test_a_damaged_copy_falls_back_to_the_one_before(reference: Path, tmp_path: Path, place: str) -> None:
    remote = Remote(place)
    assert not remote.restore(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    remote.send(reference)
    steps = remote._steps()
    (damaged,) = remote.fs.glob(f"{remote.path}/{CHECKPOINTS}/step_{steps[0]}/state/_METADATA")
    remote.fs.pipe_file(damaged, b"?")
    with pytest.warns(rljax.RljaxWarning, match=f"step_{steps[0]} is not whole: .*_METADATA differs"):
        assert remote.restore(tmp_path / "run")
    assert rljax.load_run(tmp_path / "run").step == steps[1]


@pytest.mark.slow
def test_a_place_has_one_run_and_never_loses_its_progress(reference: Path, tmp_path: Path, place: str) -> None:
    remote = Remote(place)
    assert not remote.check(None)
    remote.send(reference)
    assert remote.check(CONFIG, checkpoint_steps(reference / CHECKPOINTS))
    assert remote.check(CONFIG.replace(total_timesteps=10_000))
    with pytest.raises(rljax.ConfigError, match="there is a run already"):
        rljax.fit(CONFIG, run_dir=tmp_path / "new", sync=place)
    with pytest.raises(rljax.ConfigError, match="there is another run, whose seed, gamma differ"):
        rljax.fit(CONFIG.replace(gamma=0.5, seed=8), run_dir=tmp_path / "new", resume=True, sync=place)
    older = at(reference, tmp_path / "older", checkpoint_steps(reference / CHECKPOINTS)[2:])
    with pytest.raises(rljax.ConfigError, match="the run there is at step 1536 already"):
        rljax.fit(resume=older, sync=place)
    assert not (tmp_path / "new").exists()
    assert remote._steps() == checkpoint_steps(reference / CHECKPOINTS)


@pytest.mark.slow
def test_a_copy_takes_the_place_of_an_earlier_one_and_loses_nothing(
    reference: Path, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, remote, folder = sorted(checkpoint_steps(reference / CHECKPOINTS)), Remote(place), tmp_path / "run"
    remote.send(at(reference, tmp_path / "before", steps[:2]))
    assert remote.restore(folder, replace=True)
    (folder / "curve.png").write_text("mine")
    remote.send(at(reference, tmp_path / "after", steps[1:3]))
    usual = Path.rename
    for lives in range(1, 5):  # killed at each change of a name

        def dying(self: Path, target: Path, left: list[int] = [lives]) -> Path:  # noqa: B006
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return usual(self, target)

        monkeypatch.setattr(Path, "rename", dying)
        with contextlib.suppress(Killed):
            Remote(place).restore(folder, replace=True)
        monkeypatch.setattr(Path, "rename", usual)
    assert Remote(place).restore(folder, replace=True)
    assert (folder / "curve.png").read_text() == "mine"
    assert rljax.load_run(folder).step == steps[2]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".run")] == []
    shutil.copytree(reference / CHECKPOINTS / f"step_{steps[3]}", folder / CHECKPOINTS / f"step_{steps[3]}")
    with pytest.raises(rljax.ConfigError, match=f"the run here is at step {steps[3]} already, its copy in .* at step {steps[2]}"):
        remote.restore(folder, replace=True)
    assert rljax.load_run(folder).step == steps[3]
    shutil.rmtree(folder / CHECKPOINTS / f"step_{steps[3]}")
    with lock_folder(folder), pytest.raises(rljax.ConfigError, match="another process is training there"):
        remote.restore(folder, replace=True)
    assert rljax.load_run(folder).step == steps[2]


def test_files_of_something_else_are_not_replaced(place: str) -> None:
    remote = Remote(place)

    def put(name: str, text: str) -> None:
        remote.fs.pipe_file(f"{remote.path}/{name}", text.encode())

    put("metrics.jsonl", "mine")
    with pytest.raises(rljax.ConfigError, match=r"there is something else \(metrics.jsonl\); choose another place"):
        remote.check(None)
    put("config.toml", "port = 80")
    for config in (None, CONFIG):
        with pytest.raises(rljax.ConfigError, match=r"there is something else \(config.toml, metrics.jsonl\)"):
            remote.check(config)
    put("config.toml", add_checksum(dump_config(CONFIG)))  # a copy that was stopped before its first checkpoint
    assert not remote.check(None)
    assert not remote.check(CONFIG.replace(total_timesteps=10_000))
    with pytest.raises(rljax.ConfigError, match="there is another run, whose gamma differ"):
        remote.check(CONFIG.replace(gamma=0.5))


@pytest.mark.parametrize("file", ["model.pt", "meta.json"])
def test_checkpoints_of_something_else_are_not_removed(file: str, tmp_path: Path, place: str) -> None:
    remote = Remote(place)
    names = [f"{remote.path}/{CHECKPOINTS}/step_{step}/{file}" for step in (64, 1000)]
    for name in names:
        remote.fs.pipe_file(name, b"mine")
    for resume in (False, True):
        with pytest.raises(
            rljax.ConfigError, match=rf"there is something else \({CHECKPOINTS}/step_1000\); choose another place"
        ):
            rljax.fit(CONFIG, run_dir=tmp_path / "run", resume=resume, sync=place)
    assert [remote.fs.cat_file(name) for name in names] == [b"mine", b"mine"]


def test_a_damaged_checkpoint_leaves_its_copy_alone(reference: Path, tmp_path: Path, place: str) -> None:
    steps, remote = checkpoint_steps(reference / CHECKPOINTS)[:3], Remote(place)
    run = at(reference, tmp_path / "run", steps)
    remote.send(run)
    (run / CHECKPOINTS / f"step_{steps[0]}" / "meta.json").unlink()
    (run / CHECKPOINTS / f"step_{steps[1]}" / "meta.json").write_text("{")
    remote.send(run)
    assert remote._steps() == steps
    assert remote.restore(tmp_path / "copy")
    assert checkpoint_steps(tmp_path / "copy" / CHECKPOINTS)[0] == steps[0]
    assert remote.fs.cat_file(f"{remote.path}/{CHECKPOINTS}/step_{steps[1]}/meta.json") != b"{"


def test_a_file_of_a_copy_never_lands_outside_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Remote(str(tmp_path / "bucket"))
    (tmp_path / "bucket" / CHECKPOINTS / "step_64").mkdir(parents=True)
    (tmp_path / "bucket" / CHECKPOINTS / "step_64" / "meta.json").write_text("")
    outside = f"{remote.path}/{CHECKPOINTS}/step_64/../../../evil"  # a name that a bucket may have
    monkeypatch.setattr(remote.fs, "find", lambda _: [outside])
    monkeypatch.setattr(remote.fs, "get_file", lambda _, to: Path(to).write_text("evil"))
    with (
        pytest.warns(rljax.RljaxWarning, match=r"step_64 is not whole: .*evil' is no file of a checkpoint"),
        pytest.raises(rljax.RljaxError, match="all its checkpoints are damaged"),
    ):
        remote.restore(tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["bucket"]


def test_the_copy_of_an_earlier_version_goes_on(place: str) -> None:
    remote = Remote(place)
    remote.fs.pipe_file(f"{remote.path}/{CHECKPOINTS}/step_64/meta.json", b"")

    def copy_of(text: str) -> Remote:
        remote.fs.pipe_file(f"{remote.path}/config.toml", text.encode())
        return remote

    text = dump_config(CONFIG)
    assert "gae_lambda = 0.95\n" in text
    earlier = text.replace("gae_lambda = 0.95\n", "")  # a field that was added since
    assert copy_of(earlier).check(CONFIG)
    with pytest.raises(rljax.ConfigError, match="whose gae_lambda differ"):
        remote.check(CONFIG.replace(gae_lambda=0.9))
    with pytest.raises(rljax.ConfigError, match=r"sync = .*: unknown field 'no_such_field'"):
        copy_of(f"no_such_field = 1\n{text}").check(CONFIG)
    with pytest.raises(rljax.ConfigError, match=r"sync = .*line 1"):
        copy_of("?").check(CONFIG)


def test_the_copy_of_a_run_with_an_object_goes_on_when_the_script_is_renamed(place: str) -> None:
    remote, config = Remote(place), CONFIG.replace(env=rljax.make_env("CartPole-v1")[0])
    remote.fs.pipe_file(f"{remote.path}/{CHECKPOINTS}/step_64/meta.json", b"")
    text = re.sub(r"object:[\w.]+:", "object:__main__:", dump_config(config))
    assert "object:__main__:CartPole" in text
    remote.fs.pipe_file(f"{remote.path}/config.toml", text.encode())
    assert remote.check(config)


@pytest.mark.slow
def test_a_place_that_fails_for_a_while_does_not_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, calls = Remote.send, []

    def send(self: Remote, folder: Path) -> None:
        calls.append(folder)
        if len(calls) in failing:
            raise rljax.RljaxError("the network is down")
        usual(self, folder)

    monkeypatch.setattr(Remote, "send", send)
    failing = {2, 3}
    with pytest.warns(rljax.RljaxWarning, match="the newest checkpoint is only in .*: the network is down"):
        rljax.fit(CONFIG, run_dir=tmp_path / "a", sync=tmp_path / "bucket", checkpoint_every=320)
    assert Remote(str(tmp_path / "bucket"))._steps() == checkpoint_steps(tmp_path / "a" / CHECKPOINTS)
    failing = set(range(len(calls) + 2, 100))
    with pytest.raises(rljax.RljaxError, match="the newest checkpoint is only in"), pytest.warns(rljax.RljaxWarning):
        rljax.fit(CONFIG, run_dir=tmp_path / "b", sync=tmp_path / "other", checkpoint_every=320)
    assert rljax.load_run(tmp_path / "b").step == 1536


def test_what_is_no_place_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY_TOML)
    Path("file").write_text("")
    assert_refused(["train", "tiny.toml", "--sync", "nowhere://a/b"], "sync = 'nowhere://a/b': Protocol not known", capsys)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    assert_refused(["train", "tiny.toml", "--sync", "s3://a/b"], "pip install 'rljax-jit[s3]'", capsys)
    assert_refused(["train", "tiny.toml", "--or-resume"], "--or-resume: needs --run-dir", capsys)
    with pytest.raises(rljax.RljaxError, match="file/run: cannot be reached: "):
        rljax.fit(CONFIG, run_dir=tmp_path / "runs/a", sync=tmp_path / "file" / "run")
    with pytest.raises(rljax.ConfigError, match="give run_dir"):
        rljax.fit(CONFIG, sync=tmp_path / "bucket")
    assert not Path("runs").exists()


def test_a_full_disk_is_not_taken_for_a_place_that_cannot_be_reached(
    reference: Path, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = Remote(place)
    remote.send(reference)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(remote.fs, "get_file", full)
    with pytest.raises(rljax.RljaxError, match="run: cannot be written: No space left on device") as raised:
        remote.restore(tmp_path / "run")
    assert "cannot be reached" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_at_a_folder_is_told_once_until_it_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, remote, full = tmp_path / "run", Remote(str(tmp_path / "disk")), True
    (run / CHECKPOINTS).mkdir(parents=True)
    (run / CONFIG_FILE).write_text("")
    usual = remote.fs.pipe_file

    def pipe_file(path: str, data: bytes) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        usual(path, data)

    monkeypatch.setattr(remote.fs, "pipe_file", pipe_file)
    writer = CheckpointWriter(run / CHECKPOINTS, None, None, lambda: remote.send(run))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for full in (True, True, False, True, True):  # noqa: B007
            writer._send()
    message = f"the newest checkpoint is only in {run / CHECKPOINTS}: {remote.url}: cannot be written: No space left on device"
    assert [str(x.message) for x in told] == [message, message], "not twice in a row, but again after a copy that was made"
    with pytest.raises(rljax.RljaxError, match="the newest checkpoint is only in"):
        writer.close()


def test_a_place_without_a_name_or_in_the_run_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for nothing in ("", "/"):
        with pytest.raises(rljax.ConfigError, match=f"sync = '{nothing}': expected s3://BUCKET/FOLDER"):
            rljax.fit(CONFIG, run_dir="run", sync=nothing)
    for inside in ("run", "run/copy", Path("other/../run")):
        with pytest.raises(rljax.ConfigError, match=r"is in the run folder .*: choose a place outside"):
            rljax.fit(CONFIG, run_dir="run", sync=inside)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["s3:/a", "s3:a/b", "S3:a", "gs:/a", "memory:/a/b", Path("s3://bucket/run")])
def test_an_address_with_a_slash_too_few_makes_no_folder(address: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(rljax.ConfigError, match=f"^sync = '{address}': expected s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, or a "):
        rljax.fit(CONFIG, run_dir="run", sync=address)
    assert list(tmp_path.iterdir()) == []


def test_folders_with_colons_are_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("C:/runs", "run-10:15/a", "runs/s3:/a", f"file:{tmp_path}/a", f"file://{tmp_path}/a"):
        assert Remote(folder).is_folder


def test_an_address_of_no_store_is_told_what_is_one() -> None:
    with pytest.raises(rljax.ConfigError, match=r"Protocol not known: nowhere; expected s3://BUCKET/FOLDER, gs://.* a folder$"):
        Remote("nowhere://a/b")
    with pytest.raises(rljax.ConfigError, match=r"^sync = 3: expected s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, or a folder$"):
        rljax.fit(CONFIG, run_dir="run", sync=3)  # type: ignore[arg-type]


def test_a_password_in_an_address_is_in_no_message() -> None:
    with pytest.raises(rljax.ConfigError, match=r"sync = 'ftp://me@127.0.0.1:9/a'") as error:  # where nobody listens
        Remote("ftp://me:secret@127.0.0.1:9/a")
    assert "secret" not in str(error.value)


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket of a server on this machine that speaks the protocol of S3."""
    s3fs = pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("ENDPOINT_URL", f"http://{host}:{port}"), ("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b")):
            patch.setenv(f"AWS_{name}", value)
        s3fs.S3FileSystem.clear_instance_cache()
        fsspec.filesystem("s3").mkdir("rljax-test")
        yield "s3://rljax-test/runs/a"
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.slow
def test_a_command_killed_with_kill_9_goes_on_from_s3(bucket: str, tmp_path: Path) -> None:
    config = CONFIG.replace(total_timesteps=64 * 200, eval_every=None)
    (tmp_path / "tiny.toml").write_text(dump_config(config))
    rljax.fit(config, run_dir=tmp_path / "whole")
    command = [sys.executable, "-m", "rljax", "train", "tiny.toml", "--run-dir", "run", "--or-resume", "--sync", bucket]
    process = subprocess.Popen([*command, "--checkpoint-every", "256"], cwd=tmp_path, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 100
    while (Remote(bucket)._steps() or [0])[0] < 512 and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert 512 <= Remote(bucket)._steps()[0] < config.total_timesteps
    shutil.rmtree(tmp_path / "run")
    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    run, whole = (rljax.load_run(tmp_path / name) for name in ("run", "whole"))
    assert run.step == whole.step
    assert_same_state(run.state, whole.state)
    assert records(tmp_path / "run") == records(tmp_path / "whole")


@pytest.mark.slow
def test_a_bucket_that_is_not_there_is_one_line_before_training(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(rljax.RljaxError, match=r"s3://no-such-bucket/a: cannot be reached: .*bucket"):
        rljax.fit(CONFIG, run_dir=tmp_path / "run", sync="s3://no-such-bucket/a")
    assert not (tmp_path / "run").exists()
