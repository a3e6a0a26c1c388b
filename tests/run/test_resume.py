"""Runs survive: exact resume in a new process, kills at any moment, damaged checkpoints, full disks, extension."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.config import ALGORITHMS
from rljax.envs.cartpole import CartPole
from rljax.run import driver as driver_module
from rljax.run.files import checkpoint as checkpoint_module
from rljax.run.files import records as records_module
from rljax.run.files.checkpoint import checkpoint_steps, named_arrays
from rljax.run.progress import Silent
from rljax.run.start import start_forked, start_resumed
from tests.run.tiny_runs import (
    CONFIG,
    LEAGUES,
    OWN_NETWORKS,
    TINY,
    VARIANTS,
    assert_same_run,
    assert_same_state,
    edit_sealed,
    records,
)
from tests.run.tiny_teacher import ready


class Killed(BaseException):
    """Stands for kill -9 where the test itself must survive: no handler of the library catches it."""


class KillAt(Silent):
    """Ends training at the first chunk that reaches a step."""

    def __init__(self, step: int):
        self.step = step

    def update(self, step: int, steps_per_second: float, episode_return: float, seconds_left: float) -> None:
        if step >= self.step:
            raise Killed


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "run"
    rljax.fit(CONFIG, run_dir=folder)
    return folder


QUICK = (("ppo", None),)
"""Those that are not slow tests."""

LONG = ("alphazero", "awac", "bc", "cql", "distill", "dreamer", "impala", "impala with memory", "td3_bc")
"""Half a minute and more: their programs are large, or like another one's."""

NOT_ONE = ("awac", "bc", "cql", "dqn", "impala", "impala with memory", "pqn", "sac", "self_play")
NOT_SEVERAL = ("alphazero", "distill", "dreamer", "iql", "league", *LEAGUES, "ppo with memory", "td3_bc")
LEFT_OUT = (*((name, None) for name in NOT_ONE), *((name, 3) for name in NOT_SEVERAL))
"""Programs that take long to compile and show nothing that the others do not: of each algorithm one number of seeds is left."""


def test_every_algorithm_is_here() -> None:
    assert set(TINY) == set(ALGORITHMS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        pytest.param(name, seeds, marks=() if (name, seeds) in QUICK else pytest.mark.long if name in LONG else pytest.mark.slow)
        for name in sorted({**TINY, **VARIANTS, **LEAGUES})
        for seeds in (None, 3)
        if (name, seeds) not in LEFT_OUT
    ],
)
def test_half_a_run_and_the_other_half_in_a_new_process_are_the_whole_run(name: str, seeds: int | None, tmp_path: Path) -> None:
    assert_halves_are_the_whole(ready({**TINY, **VARIANTS, **LEAGUES}[name]), seeds, tmp_path, "rljax.fit(resume=sys.argv[1])")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seeds"), [("league with numbers", 3), ("self-play with numbers", None), ("alphazero", 3)])
def test_half_a_run_of_a_game_with_an_own_network_and_the_other_half_are_the_whole_run(
    name: str, seeds: int | None, tmp_path: Path
) -> None:
    config = OWN_NETWORKS[name]
    program = f"from tests.run.tiny_runs import OWN_NETWORKS; rljax.fit(OWN_NETWORKS[{name!r}], resume=sys.argv[1])"
    assert_halves_are_the_whole(config, seeds, tmp_path, program, network=config.network)


def assert_halves_are_the_whole(config: Any, seeds: int | None, folder: Path, program: str, **objects: Any) -> None:
    """Half of the run, and the other half by a program in a new process, are the whole run; `objects` are not in its folder."""
    rljax.fit(config, run_dir=folder / "whole", seeds=seeds)
    half = config.num_iterations // 2 * config.steps_per_iteration
    stop = lambda step, _: step >= half  # noqa: E731
    rljax.fit(config, run_dir=folder / "halves", seeds=seeds, callback=stop, checkpoint_every=half)
    between = rljax.load_run(folder / "halves", **objects).step
    assert half <= between < config.total_timesteps
    subprocess.run([sys.executable, "-c", f"import sys, rljax; {program}", folder / "halves"], check=True, timeout=300)
    assert_same_run(folder / "whole", folder / "halves", **objects)


@pytest.mark.slow
def test_killed_between_checkpoints_repeats_what_was_not_saved(tmp_path: Path, reference: Path) -> None:
    with pytest.raises(Killed):
        rljax.fit(CONFIG, run_dir=tmp_path / "a", progress=KillAt(900), checkpoint_every=300, checkpoint_seconds=None)
    written = records(tmp_path / "a")[-1]["step"]
    saved = rljax.load_run(tmp_path / "a").step
    assert 300 <= saved < written  # so that records must be taken back
    rljax.fit(resume=tmp_path / "a")
    assert_same_run(tmp_path / "a", reference)


@pytest.mark.slow
def test_a_record_half_full_at_the_checkpoint_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "MAX_RECORDS", 5)  # windows of 5 iterations, 320 steps
    config = CONFIG.replace(eval_every=None)
    rljax.fit(config, run_dir=tmp_path / "whole")
    assert [r["step"] for r in records(tmp_path / "whole")] == [0, 320, 640, 960, 1280, 1536]
    with pytest.raises(Killed):
        rljax.fit(config, run_dir=tmp_path / "a", progress=KillAt(700), checkpoint_every=448, checkpoint_seconds=None)
    assert rljax.load_run(tmp_path / "a").step % 320
    rljax.fit(resume=tmp_path / "a")
    assert_same_run(tmp_path / "a", tmp_path / "whole")


@pytest.mark.slow
def test_resuming_again_and_again_is_exact(tmp_path: Path, reference: Path) -> None:
    for step in range(100, CONFIG.total_timesteps, 200):
        with pytest.raises(Killed):
            rljax.fit(CONFIG, run_dir=tmp_path / "a", resume=True, progress=KillAt(step), checkpoint_every=64, keep=1)
    rljax.fit(CONFIG, run_dir=tmp_path / "a", resume=True)
    assert_same_run(tmp_path / "a", reference)


STEPS_OF_A_WRITE = ["mkdir", "write_text", "rename", "symlink_to"]


@pytest.mark.slow
@pytest.mark.parametrize("operation", STEPS_OF_A_WRITE)
@pytest.mark.parametrize("occurrence", [1, 2, 3])
def test_killed_at_any_step_of_a_checkpoint_write(
    operation: str, occurrence: int, tmp_path: Path, reference: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0
    usual = getattr(Path, operation)

    def until_killed(self: Path, *arguments: Any, **options: Any) -> Any:
        nonlocal count
        if "checkpoints" in self.parts and "a" in self.parts:
            count += 1
            if count >= occurrence:
                raise Killed
        return usual(self, *arguments, **options)

    rljax.fit(CONFIG, run_dir=tmp_path / "a", callback=lambda step, _: step >= 400)
    with monkeypatch.context() as patch:
        patch.setattr(Path, operation, until_killed)
        with pytest.raises(Killed):
            rljax.fit(resume=tmp_path / "a", checkpoint_every=64, keep=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing half written is taken for a checkpoint, not even to be passed over
        assert rljax.load_run(tmp_path / "a").step >= 400
        rljax.fit(resume=tmp_path / "a", keep=1)
    assert_same_run(tmp_path / "a", reference)
    names = {p.name for p in (tmp_path / "a" / "checkpoints").iterdir()}
    assert names == {"latest", "best", "step_1536", (tmp_path / "a/checkpoints/best").resolve().name}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kill_9_at_random_moments_of_the_command(tmp_path: Path) -> None:
    config = CONFIG.replace(total_timesteps=64 * 3000, eval_every=None, normalize_rewards=False)
    rljax.fit(config, run_dir=tmp_path / "whole")
    rljax.fit(config, run_dir=tmp_path / "killed", callback=lambda *_: True)
    command = [sys.executable, "-m", "rljax.cli.main", "train", "--resume", "killed", "--checkpoint-every", "64", "--keep", "2"]
    moments = random.Random(0)
    steps = [rljax.load_run(tmp_path / "killed").step]
    during_writes = 0
    for _ in range(6):
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        newest = steps[-1]
        deadline = time.monotonic() + 120
        while checkpoint_steps(tmp_path / "killed" / "checkpoints")[0] == newest and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(moments.uniform(0.0, 0.4))
        process.send_signal(signal.SIGKILL)
        _, err = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, err
        during_writes += any((tmp_path / "killed" / "checkpoints").glob(".writing_*"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            steps.append(rljax.load_run(tmp_path / "killed").step)
    assert steps == sorted(set(steps)), "every life got further"
    assert during_writes > 0, "no kill fell into a write: the test does not test that"
    rljax.fit(resume=tmp_path / "killed")
    assert_same_run_but_links(tmp_path / "killed", tmp_path / "whole")


def assert_same_run_but_links(a: Path, b: Path) -> None:
    assert_same_state(rljax.load_run(a).state, rljax.load_run(b).state)
    assert records(a) == records(b)


def damage(path: Path, how: str) -> None:
    data = max((p for p in (path / "state").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    if how == "truncated":
        os.truncate(data, data.stat().st_size // 2)
    elif how == "flipped bit":
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
    elif how == "missing file":
        data.unlink()
    elif how == "no meta":
        (path / "meta.json").unlink()
    elif how == "broken meta":
        os.truncate(path / "meta.json", 20)
    else:
        shutil.rmtree(path)
        path.mkdir()


SLOW_DAMAGE = ("truncated", "missing file", "no meta", "broken meta", "empty")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["flipped bit", *(pytest.param(how, marks=pytest.mark.slow) for how in SLOW_DAMAGE)])
def test_a_damaged_latest_checkpoint_falls_back_to_the_one_before(how: str, tmp_path: Path, reference: Path) -> None:
    rljax.fit(CONFIG, run_dir=tmp_path / "a", callback=lambda step, _: step >= 700, checkpoint_every=320)
    newest, before, *_ = checkpoint_steps(tmp_path / "a" / "checkpoints")
    damage(tmp_path / "a" / "checkpoints" / f"step_{newest}", how)
    with pytest.warns(rljax.RljaxWarning, match=rf"step_{newest} is damaged: .*falling back to step {before}") as caught:
        assert rljax.load_run(tmp_path / "a").step == before
    assert "\n" not in str(caught[0].message)
    with pytest.warns(rljax.RljaxWarning, match="falling back"):
        rljax.fit(resume=tmp_path / "a")
    assert_same_run(tmp_path / "a", reference)


@pytest.mark.slow
def test_no_whole_checkpoint_is_one_line_and_a_named_one_is_never_replaced_by_another(tmp_path: Path) -> None:
    rljax.fit(CONFIG, run_dir=tmp_path / "a", checkpoint_every=640)
    steps = checkpoint_steps(tmp_path / "a" / "checkpoints")
    damage(tmp_path / "a" / "checkpoints" / f"step_{steps[1]}", "truncated")
    with pytest.raises(rljax.ConfigError, match="is damaged"):
        rljax.load_run(tmp_path / "a", checkpoint=steps[1])
    assert rljax.load_run(tmp_path / "a", checkpoint=steps[0]).step == steps[0]
    for step in steps:
        damage(tmp_path / "a" / "checkpoints" / f"step_{step}", "empty")
    with pytest.raises(rljax.ConfigError, match="all its checkpoints are damaged") as error:
        rljax.load_run(tmp_path / "a")
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["checkpoint", "metrics"])
def test_a_full_disk_stops_with_one_line_and_keeps_the_last_good_checkpoint(
    where: str, tmp_path: Path, reference: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    writes = 0

    def fails_the_fifth_time(usual: Any) -> Any:
        def write(*arguments: Any, **options: Any) -> Any:
            nonlocal writes
            writes += 1
            if writes >= 5:
                raise full
            return usual(*arguments, **options)

        return write

    with monkeypatch.context() as patch:
        if where == "checkpoint":
            patch.setattr(checkpoint_module, "_checksums", fails_the_fifth_time(checkpoint_module._checksums))
        else:
            patch.setattr(records_module.JsonLines, "write", fails_the_fifth_time(records_module.JsonLines.write))
        with pytest.raises(rljax.RljaxError, match="cannot be written: No space left on device") as error:
            rljax.fit(CONFIG, run_dir=tmp_path / "a", checkpoint_every=64)
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "a" / "checkpoints").glob(".writing*"))
    assert rljax.load_run(tmp_path / "a").step > 0
    rljax.fit(resume=tmp_path / "a")
    assert_same_run(tmp_path / "a", reference)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounting a small disk needs root")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, timeout=30).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(rljax.RljaxError, match="No space left on device") as error:
            rljax.fit(CONFIG, run_dir=disk / "a", checkpoint_every=64, keep=100)
        assert "\n" not in str(error.value)
        step = rljax.load_run(disk / "a").step
        assert 0 < step < CONFIG.total_timesteps
        shutil.copytree(disk / "a", tmp_path / "b", symlinks=True)
    finally:
        subprocess.run(["umount", disk], check=True, timeout=30)
    rljax.fit(resume=tmp_path / "b")
    assert rljax.load_run(tmp_path / "b").step == CONFIG.total_timesteps


@pytest.mark.slow
def test_a_run_that_is_extended_goes_on_as_one_with_that_budget(tmp_path: Path) -> None:
    config = CONFIG.replace(anneal_lr=False)
    short = config.replace(total_timesteps=config.total_timesteps // 2)
    rljax.fit(config, run_dir=tmp_path / "whole")
    rljax.fit(short, run_dir=tmp_path / "a")
    result = rljax.fit(resume=tmp_path / "a", total_timesteps=config.total_timesteps)
    assert len(result.metrics["train/value"]) == 12
    assert rljax.load_run(tmp_path / "a").config == config
    assert_same_state(rljax.load_run(tmp_path / "a").state, rljax.load_run(tmp_path / "whole").state)
    lines = records(tmp_path / "a")
    assert [(r["step"], r["hyperparameters"]["total_timesteps"]) for r in lines if "hyperparameters" in r] == [
        (0, 768),
        (768, 1536),
    ]
    ours, whole = ([r for r in records(tmp_path / name) if "hyperparameters" not in r] for name in ("a", "whole"))
    # The one thing more: the short run ended, after 12 iterations, with an evaluation.
    assert ours[11].keys() == whole[11].keys()
    assert ours[11]["eval/return"] is not None
    assert whole[11]["eval/return"] is None
    without = [{k: v for k, v in r.items() if i != 11 or not k.startswith("eval/")} for i, r in enumerate(whole)]
    assert [{k: v for k, v in r.items() if i != 11 or not k.startswith("eval/")} for i, r in enumerate(ours)] == without


@pytest.mark.slow
def test_an_annealed_rate_follows_the_schedule_of_the_new_budget(tmp_path: Path) -> None:
    rljax.fit(CONFIG.replace(total_timesteps=768), run_dir=tmp_path / "a")
    rates = rljax.fit(resume=tmp_path / "a", total_timesteps=1536).metrics["train/learning_rate"]
    np.testing.assert_allclose(rates, 1e-3 * (1 - np.arange(12, 24) / 24), rtol=1e-6)


@pytest.mark.slow
def test_a_complete_run_returns_its_state_and_takes_no_step(tmp_path: Path) -> None:
    state = rljax.fit(CONFIG, run_dir=tmp_path / "a").state
    lines = records(tmp_path / "a")
    again = rljax.fit(CONFIG, run_dir=tmp_path / "a", resume=True)
    assert_same_state(again.state, state)
    assert again.metrics["train/value"].shape == (0,)
    assert records(tmp_path / "a") == lines


@pytest.mark.slow
def test_other_changes_are_refused_before_anything_is_done(tmp_path: Path, reference: Path) -> None:
    rljax.fit(CONFIG, run_dir=tmp_path / "a", callback=lambda step, _: step >= 500)
    files = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    changed = CONFIG.replace(learning_rate=1.0, num_envs=8)
    with pytest.raises(
        rljax.ConfigError, match=r"^num_envs, learning_rate: a resumed run keeps its configuration.*fork="
    ) as error:
        rljax.fit(changed, run_dir=tmp_path / "a", resume=True)
    assert "\n" not in str(error.value)
    assert {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()} == files
    rljax.fit(CONFIG, run_dir=tmp_path / "a", resume=True)
    assert_same_run(tmp_path / "a", reference)


@pytest.mark.slow
def test_what_cannot_be_resumed_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(rljax.ConfigError, match="no run there"):
        rljax.fit(resume=tmp_path / "nowhere")
    with pytest.raises(rljax.ConfigError, match="needs run_dir"):
        rljax.fit(CONFIG, resume=True)
    with pytest.raises(rljax.ConfigError, match="nothing to train"):
        rljax.fit()
    rljax.fit(CONFIG, run_dir=tmp_path / "a")
    with pytest.raises(rljax.ConfigError, match=r"total_timesteps = 64: run .* has taken 1536 steps already"):
        rljax.fit(resume=tmp_path / "a", total_timesteps=64)
    with pytest.raises(rljax.ConfigError, match=r"seeds = 3: run .* has a single one"):
        rljax.fit(resume=tmp_path / "a", seeds=3)
    with pytest.raises(rljax.ConfigError, match="stays in its folder"):
        rljax.fit(resume=tmp_path / "a", run_dir=tmp_path / "b")
    with pytest.raises(rljax.ConfigError, match="to use another one, fork it"):
        rljax.fit(resume=tmp_path / "a" / "checkpoints" / "best")
    for wrong in (
        {"keep": 0},
        {"keep": 2.5},
        {"keep": "3"},
        {"checkpoint_seconds": -1},
        {"checkpoint_every": True},
        {"keep": float("inf")},
    ):
        with pytest.raises(rljax.ConfigError, match=f"{next(iter(wrong))} = .*: expected a"):
            rljax.fit(CONFIG, run_dir=tmp_path / "b", **wrong)
    with pytest.raises(rljax.ConfigError, match="give neither key nor fork"):
        rljax.fit(resume=tmp_path / "a", key=jax.random.key(0))
    with pytest.raises(rljax.ConfigError, match="give no key with fork"):
        rljax.fit(CONFIG, fork=tmp_path / "a", key=jax.random.key(0))
    with pytest.raises(rljax.ConfigError, match="key: expected a single one"):
        rljax.fit(CONFIG, key=jax.random.split(jax.random.key(0)))
    with pytest.raises(rljax.ConfigError, match=r"learning_rate: an agent has one value, got \(2,\)"):
        rljax.fit(CONFIG.replace(learning_rate=jnp.array([1e-3, 1e-4])))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(rljax.ConfigError, match="no run there"):
        rljax.fit(resume=tmp_path / "empty")
    assert not list((tmp_path / "empty").iterdir())


def test_a_run_is_not_resumed_with_other_files_of_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = rljax.make_agent(CONFIG)
    state = agent.init(jax.random.key(0))
    monkeypatch.setattr(CartPole, "files_digest", "0" * 64)
    folder = rljax.save(tmp_path / "run", agent, state)
    assert start_resumed(folder, None, None, None).info.env_files == "0" * 64
    monkeypatch.setattr(CartPole, "files_digest", "1" * 64)
    with pytest.raises(rljax.ConfigError, match=r"the files of CartPole-v1 \(a map, say\) have changed since the run began"):
        rljax.fit(resume=folder)
    assert start_forked(folder, agent, None).info.env_files == "1" * 64
    edit_sealed(folder / "run.json", env_files=None)  # as if an earlier version had written it
    assert start_resumed(folder, None, None, None).info.env_files == ""


@pytest.mark.slow
def test_a_copy_of_a_run_whose_links_were_followed_or_lost_resumes(tmp_path: Path, reference: Path) -> None:
    rljax.fit(CONFIG, run_dir=tmp_path / "a", callback=lambda step, _: step >= 500)
    shutil.copytree(tmp_path / "a", tmp_path / "followed", symlinks=False)
    assert not (tmp_path / "followed" / "checkpoints" / "latest").is_symlink()
    shutil.copytree(tmp_path / "a", tmp_path / "lost", symlinks=True)
    for name in ("latest", "best"):
        (tmp_path / "lost" / "checkpoints" / name).unlink()
    followed, best = (rljax.load_run(tmp_path / copy, checkpoint="best") for copy in ("followed", "a"))
    assert followed.step == best.step
    for copy in ("followed", "lost"):
        rljax.fit(resume=tmp_path / copy)
        assert_same_run(tmp_path / copy, reference)
        assert (tmp_path / copy / "checkpoints" / "latest").is_symlink()
    complete = tmp_path / "lost" / "checkpoints" / "latest"
    complete.unlink()
    rljax.fit(resume=tmp_path / "lost")
    assert complete.resolve().name == "step_1536"


@pytest.mark.slow
def test_records_that_are_gone_are_spoken_of(tmp_path: Path) -> None:
    rljax.fit(CONFIG, run_dir=tmp_path / "a", callback=lambda step, _: step >= 500)
    (tmp_path / "a" / "metrics.jsonl").unlink()
    with pytest.warns(rljax.RljaxWarning, match=r"metrics\.jsonl: records of the run so far are missing"):
        rljax.fit(resume=tmp_path / "a")
    assert rljax.load_run(tmp_path / "a").step == 1536


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="permissions work otherwise there")
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rljax.fit(CONFIG, run_dir=tmp_path / "a", callback=lambda step, _: step >= 500)
    (tmp_path / "a" / ".lock").unlink()
    (tmp_path / "a" / ".lock").mkdir()  # cannot be opened, not even by root
    with pytest.raises(rljax.ConfigError, match="cannot be written: Is a directory"):
        rljax.fit(resume=tmp_path / "a")
    (tmp_path / "a" / ".lock").rmdir()
    (tmp_path / "a" / ".config.toml").mkdir()
    with pytest.raises(rljax.ConfigError, match="cannot be written: Is a directory"):
        rljax.fit(resume=tmp_path / "a", total_timesteps=3000)
    assert rljax.load_run(tmp_path / "a").config == CONFIG


@pytest.mark.slow
def test_the_working_directory_may_change_under_a_run(tmp_path: Path, reference: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    rljax.fit(CONFIG, run_dir="a", callback=lambda *_: os.chdir(tmp_path / "elsewhere"))
    assert_same_run(tmp_path / "a", reference)
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.slow
def test_what_a_callback_raises_comes_out_as_it_is_after_a_save(tmp_path: Path, reference: Path) -> None:
    asked = []

    def broken(step: int, _: dict[str, float]) -> None:
        asked.append(step)
        if step >= 640:
            raise FileNotFoundError("mine")

    with pytest.raises(FileNotFoundError, match="mine"):
        rljax.fit(CONFIG, run_dir=tmp_path / "a", callback=broken, checkpoint_seconds=None)
    assert asked[-1] == 640  # not asked again for the rest of the chunk
    assert rljax.load_run(tmp_path / "a").step >= 640
    rljax.fit(resume=tmp_path / "a")
    assert_same_run(tmp_path / "a", reference)


@pytest.mark.slow
def test_a_script_started_again_after_its_run_was_extended_keeps_the_longer_budget(tmp_path: Path) -> None:
    short = CONFIG.replace(total_timesteps=768)
    rljax.fit(short, run_dir=tmp_path / "a", resume=True)
    rljax.fit(resume=tmp_path / "a", total_timesteps=1536)
    with pytest.warns(rljax.RljaxWarning, match="total_timesteps = 768: refused, run .* has taken 1536 steps already"):
        result = rljax.fit(short, run_dir=tmp_path / "a", resume=True)
    assert int(result.state.iteration) == 24
    assert rljax.load_run(tmp_path / "a").config.total_timesteps == 1536


@pytest.mark.slow
def test_a_budget_cut_to_the_steps_taken_completes_the_last_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "MAX_RECORDS", 5)  # windows of 5 iterations, 320 steps
    rljax.fit(CONFIG.replace(eval_every=None), run_dir=tmp_path / "a", max_minutes=1e-9)
    assert [r["step"] for r in records(tmp_path / "a")] == [0]
    rljax.fit(resume=tmp_path / "a", total_timesteps=64)
    assert [r["step"] for r in records(tmp_path / "a") if "train/value" in r] == [64]


@pytest.mark.slow
def test_a_budget_without_end_needs_no_memory_for_its_metrics(tmp_path: Path) -> None:
    endless = CONFIG.replace(total_timesteps=10**11)
    result = rljax.fit(endless, run_dir=tmp_path / "a", max_minutes=1e-9)
    assert int(result.state.iteration) == 1
    assert all(values.shape == (0,) for values in result.metrics.values())  # no record was full yet


@pytest.mark.slow
def test_metrics_that_would_be_too_large_are_those_of_the_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = rljax.fit(CONFIG).metrics["train/value"]
    monkeypatch.setattr(records_module, "MAX_RECORDS", 6)  # of 4 iterations each
    monkeypatch.setattr(driver_module, "MAX_METRICS_BYTES", 1000)
    thinned = rljax.fit(CONFIG, run_dir=tmp_path / "a").metrics["train/value"]
    np.testing.assert_allclose(thinned, whole.reshape(6, 4).mean(1), rtol=1e-6)
    assert [r["train/value"] for r in records(tmp_path / "a")[1:]] == pytest.approx(thinned)


@pytest.mark.slow
def test_a_run_of_another_version_is_one_clear_line(tmp_path: Path) -> None:
    rljax.fit(CONFIG, run_dir=tmp_path / "a")
    config, info = tmp_path / "a" / "config.toml", tmp_path / "a" / "run.json"
    kept, kept_info = config.read_text(), info.read_text()
    config.write_text(kept + "learning_rat = 1\n" if "[network]" not in kept else "momentum = 0.5\n" + kept)
    edit_sealed(info, rljax="9.8.7")
    with pytest.raises(rljax.ConfigError, match=r"unknown field 'momentum' .*\(the run was made by rljax 9\.8\.7\)"):
        rljax.load_run(tmp_path / "a")
    config.write_text(kept)
    edit_sealed(info, format=2)
    with pytest.raises(rljax.ConfigError, match=r"has format 2 .*this version of rljax reads format 1"):
        rljax.load_run(tmp_path / "a")
    info.write_text(kept_info)
    meta = tmp_path / "a" / "checkpoints" / "latest" / "meta.json"
    edit_sealed(meta, format=7)
    for read in (lambda: rljax.load_run(tmp_path / "a"), lambda: rljax.fit(resume=tmp_path / "a")):
        with pytest.raises(rljax.ConfigError, match="has format 7"):  # and no fall-back, which would write over it
            read()


@pytest.mark.slow
def test_only_one_process_trains_in_a_folder(tmp_path: Path) -> None:
    rljax.fit(CONFIG, run_dir=tmp_path / "a", callback=lambda step, _: step >= 500)
    program = (
        "import sys, rljax\n"
        "def hold(step, _):\n    print('training', flush=True); sys.stdin.readline(); return True\n"
        "rljax.fit(resume=sys.argv[1], callback=hold)"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program, tmp_path / "a"], **pipes) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "training\n"
        with pytest.raises(rljax.ConfigError, match="another process is training there"):
            rljax.fit(resume=tmp_path / "a")
        other.communicate("go on\n", timeout=120)
    rljax.fit(resume=tmp_path / "a")


@pytest.mark.slow
def test_a_folder_that_cannot_be_locked_is_trained_with_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    for how in ({"callback": lambda step, _: step >= 500}, {"resume": True}):
        with pytest.warns(rljax.RljaxWarning) as warned:
            rljax.fit(CONFIG, run_dir=tmp_path / "a", **how)
        lines = [str(w.message) for w in warned if w.category is rljax.RljaxWarning]
        assert len(lines) == 1
        assert re.fullmatch(r"run folder \S+/a: cannot be locked .*; do not train it from two processes", lines[0])


@pytest.mark.slow
def test_keys_of_another_kind_and_arrays_without_elements_survive(tmp_path: Path) -> None:
    key = jax.random.key(3, impl="rbg")
    whole = rljax.fit(CONFIG, key=key).state
    rljax.fit(CONFIG, key=key, run_dir=tmp_path / "a", callback=lambda step, _: step >= 500)
    resumed = rljax.fit(resume=tmp_path / "a").state
    assert jax.random.key_impl(resumed.key) == "rbg"
    assert_same_state(resumed, whole)

    state = {
        "empty": jnp.zeros((0, 3)),
        "bf16": jnp.ones(2, jnp.bfloat16),
        "flag": jnp.array(True),
        "byte": jnp.arange(3, dtype=jnp.uint8),
    }
    path = checkpoint_module.write_checkpoint(tmp_path / "b", 5, named_arrays(state), {"iteration": 1, "keys": {}})
    read = checkpoint_module.read_checkpoint(path)
    assert_same_state(checkpoint_module.restore_state(read.arrays, state, {}, path), state)


@pytest.mark.slow
def test_retention_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    rljax.fit(CONFIG, run_dir=tmp_path / "a", checkpoint_every=128, keep=2)
    steps = checkpoint_steps(tmp_path / "a" / "checkpoints")
    best = int((tmp_path / "a/checkpoints/best").resolve().name.removeprefix("step_"))
    assert sorted({1536, 1408, best}) == sorted(steps)
    rljax.fit(CONFIG, run_dir=tmp_path / "b", checkpoint_every=128, keep=None)
    assert set(range(0, 1537, 128)) <= set(checkpoint_steps(tmp_path / "b" / "checkpoints"))


@pytest.mark.slow
@pytest.mark.same_bits
def test_best_holds_the_weights_that_scored(tmp_path: Path) -> None:
    config = CONFIG.replace(total_timesteps=64 * 60, learning_rate=3e-3, eval_every=200)
    rljax.fit(config, run_dir=tmp_path / "a")
    evaluations = {r["step"]: r["eval/return"] for r in records(tmp_path / "a") if r.get("eval/return") is not None}
    assert len(set(evaluations.values())) > 3
    run = rljax.load_run(tmp_path / "a", checkpoint="best")
    assert evaluations[run.step] == max(evaluations.values())
    # The evaluation of that iteration, made again from the saved state: the same score.
    key = jax.random.fold_in(run.state.eval_key, run.state.iteration - 1)
    returns = rljax.evaluate(rljax.make_agent(run.config), run.state, key, config.eval_episodes)
    assert float(returns.mean()) == pytest.approx(max(evaluations.values()), rel=1e-6)
