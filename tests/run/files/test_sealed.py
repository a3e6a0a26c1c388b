"""What is read from a run's folder is what was written, or one line says what is wrong with it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.places import WatchedFolder, atomic_folder, lock_folder
from rljax.run.files import records as records_module
from rljax.run.files.checkpoint import CheckpointError, checkpoint_steps, named_arrays, read_checkpoint, read_meta
from rljax.run.files.folder import read_config, read_info
from rljax.run.files.outputs import atomic_file
from rljax.run.files.records import truncate_after
from rljax.run.start import start_resumed
from rljax.run.view.curves import read_metrics
from rljax.run.view.show import show
from tests.run.tiny_runs import assert_same_state, edit_sealed

CONFIG = rljax.PPOConfig(
    env="CartPole-v1", num_envs=4, num_steps=8, num_minibatches=2, total_timesteps=192, network={"hidden": [4]}, eval_every=64
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "a"
    rljax.fit(CONFIG, run_dir=folder, checkpoint_every=64)
    return folder


@pytest.fixture
def run(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "a", symlinks=True)
    return tmp_path / "a"


def newest(run: Path) -> Path:
    return run / "checkpoints" / f"step_{checkpoint_steps(run / 'checkpoints')[0]}"


def one_line(call: Callable[[], object], match: str) -> None:
    with pytest.raises(rljax.ConfigError, match=match) as error:
        call()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 700


@pytest.mark.slow
def test_every_bit_of_meta_json_counts(run: Path) -> None:
    file = newest(run) / "meta.json"
    usual = file.read_bytes()
    told = 0
    for place in random.Random(0).sample(range(8 * (len(usual) - 1)), 400):  # the last byte ends the line
        flipped = bytearray(usual)
        flipped[place // 8] ^= 1 << place % 8
        file.write_bytes(flipped)
        with pytest.raises(CheckpointError):
            read_meta(file.parent)
        told += 1
    assert told == 400
    with pytest.warns(rljax.RljaxWarning, match=r"step_192 is damaged: .*falling back to step 128"):
        assert rljax.load_run(run).step == 128


@pytest.mark.slow
def test_config_and_run_json_are_as_they_were_written(run: Path) -> None:
    for name, read in (("config.toml", read_config), ("run.json", read_info)):
        usual, expected = (run / name).read_bytes(), read(run)
        for place in random.Random(1).sample(range(8 * len(usual)), 150):
            flipped = bytearray(usual)
            flipped[place // 8] ^= 1 << place % 8
            (run / name).write_bytes(flipped)
            try:
                assert read(run) == expected, "in the comment that holds the checksum, or the white space at the end"
            except rljax.ConfigError as error:
                assert "\n" not in str(error)  # noqa: PT017
        for length in (0, 1, len(usual) // 2, len(usual) - 2):
            (run / name).write_bytes(usual[:length])
            with pytest.raises(rljax.ConfigError):
                read(run)
        (run / name).write_bytes(usual)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"files": {}}, "files = {}: expected a table of"),
        ({"files": {"../../../etc/passwd": [1, 2]}}, "is none of the files that were written"),
        ({"files": None}, "files = None"),
        ({"iteration": "3"}, "iteration = '3': expected a whole number from 0"),
        ({"iteration": True}, "iteration = True"),
        ({"scores": 3}, "scores = 3: expected a list of numbers or null or null"),
        ({"returns": [1]}, "returns = "),
        ({"best_step": -1}, "best_step = -1"),
        ({"step": 1.5}, "step = 1.5"),
        ({"arrays": {"key": [[-2], "uint32"]}}, "arrays = "),
        ({"arrays": {"key": [[2], "no_dtype"]}}, "arrays = "),
        ({"arrays": {"nowhere": [[2], "uint32"]}}, "nowhere is missing"),
        ({"arrays": {"key": [[3], "uint32"]}}, r"key is not uint32\[3\]"),
        ({"score_name": "\x1b[2J"}, "score_name"),
    ],
)
def test_a_meta_json_of_wrong_types_is_one_line_that_names_the_field(run: Path, changes: dict[str, Any], message: str) -> None:
    edit_sealed(newest(run) / "meta.json", **changes)
    one_line(lambda: read_checkpoint(newest(run)), message)
    with pytest.warns(rljax.RljaxWarning, match="falling back to step 128"):
        assert rljax.load_run(run).step == 128
    show(run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 10**12}, "seeds = 1000000000000: expected a whole number from 1 to 1048576 or null"),
        ({"seeds": 2**20 + 1}, "seeds = 1048577: expected a whole number from 1 to 1048576 or null"),
        ({"seeds": 2**20}, "says seeds = 1048576, but its checkpoint has another number"),
        ({"seeds": "x" * 5000}, r"seeds = 'x{56}\.\.\.x{19}': expected"),
        ({"key_impl": 3}, "key_impl = 3: expected an implementation of random keys"),
        ({"key_impl": "none"}, "key_impl = 'none'"),
        ({"first_step": None}, "first_step = None: expected a whole number"),
        ({"step_offset": 0.5}, "step_offset = 0.5"),
        ({"forked_from": "x"}, "forked_from = 'x': expected a table of"),
        ({"forked_from": {"checkpoint": 1, "step": 2}}, "forked_from"),
    ],
)
def test_a_run_json_of_wrong_types_is_one_line_that_names_the_field(run: Path, changes: dict[str, Any], message: str) -> None:
    edit_sealed(run / "run.json", **changes)
    one_line(lambda: rljax.load_run(run), message)
    one_line(lambda: rljax.fit(resume=run), message)
    one_line(lambda: rljax.fit(CONFIG, fork=run), message)


def test_runs_of_before_there_were_checksums_are_read(run: Path) -> None:
    state = rljax.load_run(run).state
    for file in [run / "run.json", *run.glob("checkpoints/step_*/meta.json")]:
        table = json.loads(file.read_text())
        del table["checksum"]
        table.pop("keys", None)
        file.write_text(json.dumps(table))
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.partition("\n")[2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_state(rljax.load_run(run).state, state)
    table["surplus"] = 1
    file.write_text(json.dumps(table))
    one_line(lambda: read_checkpoint(file.parent), "unknown field 'surplus'")


def test_files_beside_and_behind_links_are_not_read(run: Path) -> None:
    path = newest(run)
    (path / "state" / ".DS_Store").write_text("a file manager's")
    assert rljax.load_run(run).step == 192
    file = next(p for p in (path / "state").rglob("*") if p.is_file() and p.stat().st_size > 100)
    shutil.copy(file, run / "elsewhere")
    file.unlink()
    file.symlink_to(run / "elsewhere")
    one_line(lambda: read_checkpoint(path), "is missing")


def test_other_names_among_checkpoints_are_passed_over(run: Path) -> None:
    for name in ("step_²", "step_٣", "step_007", "step_", "step_1e3", "step_" + "9" * 200):
        (run / "checkpoints" / name).mkdir()
    assert checkpoint_steps(run / "checkpoints") == [192, 128, 64, 0]
    assert rljax.load_run(run).step == 192
    show(run)


def test_a_best_that_points_nowhere_is_one_line(run: Path) -> None:
    best = run / "checkpoints" / "best"
    for target in ("step_5", "../..", "/etc"):
        best.unlink()
        best.symlink_to(target)
        one_line(
            lambda: rljax.load_run(run, checkpoint="best"),
            rf"points to {target}, which .* does not have, only 0, 64, 128",
        )
    assert rljax.load_run(run).step == 192


class Keyed(rljax.Environment):
    """An environment that draws with keys of its own, of another implementation than the run's."""

    name = "Keyed"

    def observation_space(self, params: Any) -> rljax.Box:
        return rljax.Box(0.0, 1.0, (1,))

    def action_space(self, params: Any) -> rljax.Discrete:
        return rljax.Discrete(2)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, Any]:
        return jnp.zeros(1), {"rbg": jax.random.key(1, impl="rbg"), "unsafe": jax.random.key(2, impl="unsafe_rbg")}

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        key, draw = jax.random.split(state["rbg"])
        obs = jax.random.uniform(draw, (1,))
        return obs, {**state, "rbg": key}, obs[0], jnp.array(False), {}


@pytest.mark.slow
def test_an_environment_may_have_keys_of_another_implementation(tmp_path: Path) -> None:
    config = CONFIG.replace(env=Keyed(), time_limit=10, eval_every=None, total_timesteps=128)
    whole = rljax.fit(config).state
    rljax.fit(config, run_dir=tmp_path / "a", callback=lambda step, _: step >= 32, checkpoint_every=32)
    state = rljax.fit(config, run_dir=tmp_path / "a", resume=True).state
    assert_same_state(state, whole)
    assert_same_state(rljax.load_run(tmp_path / "a", env=Keyed()).state, whole)


def test_a_state_with_keys_of_other_implementations_is_saved_and_read(tmp_path: Path) -> None:
    from rljax.run.files.checkpoint import key_impls, restore_state, write_checkpoint

    state = {impl: jax.random.key(5, impl=impl) for impl in ("rbg", "unsafe_rbg", "threefry2x32")}
    state["several"] = jax.random.split(jax.random.key(6, impl="rbg"), 3)
    meta = {"iteration": 0, "keys": key_impls(state)}
    saved = read_checkpoint(write_checkpoint(tmp_path, 0, named_arrays(state), meta))
    read = restore_state(saved.arrays, jax.eval_shape(lambda: state), saved.meta["keys"], tmp_path)
    assert_same_state(read, state)
    for name, key in state.items():
        assert jax.random.key_impl(read[name]) == jax.random.key_impl(key)
        np.testing.assert_array_equal(jax.random.bits(read["several"][1]), jax.random.bits(state["several"][1]))
    other = {**state, "rbg": jax.random.key(5, impl="unsafe_rbg")}
    one_line(
        lambda: restore_state(saved.arrays, other, saved.meta["keys"], "here"), "rbg is a key of rbg there and of unsafe_rbg here"
    )


@pytest.mark.slow
def test_a_folder_that_moves_is_noticed_and_nothing_written_in_its_place(tmp_path: Path) -> None:
    def take_away(step: int, _: object) -> None:
        if step == 64:
            quiet = 0
            while quiet < 20:  # what is being written while the folder moves may end in the new one
                quiet = 0 if list((tmp_path / "a" / "checkpoints").glob(".writing_*")) else quiet + 1
                time.sleep(0.05)
            (tmp_path / "a").rename(tmp_path / "b")
            (tmp_path / "a" / "checkpoints").mkdir(parents=True)

    with pytest.raises(rljax.RljaxError, match=r"training stopped: .*/a was moved or removed meanwhile"):
        rljax.fit(CONFIG, run_dir=tmp_path / "a", callback=take_away, checkpoint_every=32)
    assert [p.name for p in (tmp_path / "a").rglob("*")] == ["checkpoints"]
    assert rljax.load_run(tmp_path / "b").step < 192
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(rljax.RljaxError, match="was moved or removed meanwhile"):
        rljax.fit(CONFIG, run_dir=tmp_path / "a", callback=lambda *_: shutil.rmtree(tmp_path / "a", ignore_errors=True))
    assert not (tmp_path / "a").exists()


def test_a_folder_made_again_at_once_is_another_one(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with WatchedFolder(tmp_path / "a") as watched:
        for _ in range(20):  # file systems give the number of a folder that is gone to the next one
            (tmp_path / "a").rmdir()
            (tmp_path / "a").mkdir()
            with pytest.raises(rljax.RljaxError, match="moved or removed"):
                watched.check()


def test_what_a_killed_start_left_is_removed_and_told(tmp_path: Path) -> None:
    left = tmp_path / ".a.new-123456789"
    (left / "checkpoints").mkdir(parents=True)
    (tmp_path / ".a.new-mine").mkdir()
    alive = tmp_path / ".a.new-12345"
    alive.mkdir()
    with warnings.catch_warnings(record=True) as told, lock_folder(alive), atomic_folder(tmp_path / "a") as aside:
        (aside / "x").write_text("x")
        assert {p.name for p in tmp_path.iterdir()} == {".a.new-mine", alive.name, aside.name}
    assert [str(warning.message) for warning in told] == [f"removed {left}, left by a process that was killed while starting"]
    assert (tmp_path / "a" / "x").read_text() == "x"


def test_processes_of_one_id_that_share_a_disk_write_beside_each_other(tmp_path: Path) -> None:
    """Both make the same: neither meets the other's temporary place. Of two folders, that which is ready first stays."""
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(atomic_folder(tmp_path / "a"))
        (one / "x").write_text("one")
        with atomic_folder(tmp_path / "a") as other:
            (other / "x").write_text("other")
        with pytest.raises(OSError, match="not empty"):
            stack.close()
    assert (tmp_path / "a" / "x").read_text() == "other"
    with atomic_file(tmp_path / "b") as first, atomic_file(tmp_path / "b") as second:
        second.write_text("second")
        first.write_text("first")
    assert {path.name: path.is_dir() for path in tmp_path.iterdir()} == {"a": True, "b": False}
    assert (tmp_path / "b").read_text() == "first"


@pytest.mark.slow
def test_a_full_disk_under_the_metrics_is_told_once_and_the_checkpoints_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    monkeypatch.setattr(
        records_module.JsonLines, "close", lambda self: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    usual = rljax.run.files.checkpoint.CheckpointWriter.close
    monkeypatch.setattr(
        rljax.run.files.checkpoint.CheckpointWriter, "close", lambda self: (closed.append("writer"), usual(self))[1]
    )
    with pytest.raises(OSError, match="No space left"):
        rljax.fit(CONFIG, run_dir=tmp_path / "a")
    assert closed == ["writer"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
def test_a_record_that_does_not_fit_leaves_no_half_of_it(tmp_path: Path) -> None:
    file = records_module.JsonLines(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left on device"):
        file.write({"step": 1})
    file.close()  # and nothing is tried again


def test_a_damaged_step_takes_no_later_records_back(tmp_path: Path) -> None:
    lines = [json.dumps({"step": step, "x": 1.0}) + "\n" for step in range(0, 1000, 100)]
    for place, wrong in ((3, 10**9), (5, 1), (0, 10**5)):
        file = tmp_path / "metrics.jsonl"
        file.write_text("".join([*lines[:place], json.dumps({"step": wrong}) + "\n", *lines[place + 1 :]]))
        assert truncate_after(file, 700) == 700
        kept = file.read_text().splitlines(keepends=True)
        assert kept[place + 1 :] == lines[place + 1 : 8]
        assert len(kept) == 8


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 1e999}', '{"step": "1"}', '{"step": true}', '{"step": 1, "episode/return": "x"}', '{"step": 1, "seeds": 3}',
        '{"step": 1, "seeds": {"a": [1, "b"]}}', '{"step": 1, "hyperparameters": 3}', "[1]", "[" * 100_000, "\x00\xff",
    ],
)  # fmt: skip
def test_a_line_of_metrics_of_wrong_types_is_named(run: Path, line: str) -> None:
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], line, *lines[1:]]) + "\n")
    one_line(lambda: read_metrics(run), "metrics.jsonl, line 2: not a record of metrics")


def test_what_files_say_does_not_steer_the_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m"
    edit_sealed(run / "run.json", forked_from={"checkpoint": evil, "step": 3}, rljax=None)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    changed = json.dumps({"step": 10, "hyperparameters": {evil: evil}})
    (run / "metrics.jsonl").write_text("\n".join([lines[0], changed, *lines[1:]]) + "\n")
    show(run)
    out = capsys.readouterr().out
    assert "owned" in out
    text = (run / "config.toml").read_text().partition("\n")[2]
    (run / "config.toml").write_text(text.replace('"CartPole-v1"', json.dumps(evil)))
    with pytest.raises(rljax.ConfigError) as error:
        rljax.load_run(run)
    warning = str(rljax.RljaxWarning(evil))
    for told in (out, str(error.value), warning):
        assert not set(told) & set("\x1b\x07\u202e\x9b\r")


def test_only_the_first_process_writes_the_budget_of_an_extended_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (run / "config.toml").read_text()
    for first in (False, True):
        monkeypatch.setattr("rljax.run.start.is_first", lambda first=first: first)
        assert start_resumed(run, None, 10_000, None).extended
        assert ((run / "config.toml").read_text() == before) != first


def test_resuming_reads_what_was_written(run: Path) -> None:
    """The part of a resume that reads: the state is that of `load_run`, with the pending rows and the scores."""
    start = start_resumed(run, None, None, None)
    assert_same_state(start.state, rljax.load_run(run).state)
    assert start.iteration == 6
    assert start.meta["best_step"] in (64, 128, 192)
    assert jnp.asarray(start.state.iteration) == 6
