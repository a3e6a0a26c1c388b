"""Ctrl-C, SIGTERM and the time budget: the chunk is finished, the state saved, the run resumable."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import rljax
from rljax.run.files.checkpoint import checkpoint_steps
from rljax.run.progress import Silent
from tests.run.tiny_runs import CONFIG, assert_same_run

COMMAND = [sys.executable, "-m", "rljax.cli.main"]


class SignalAt(Silent):
    def __init__(self, step: int, signum: int = signal.SIGINT):
        self.step, self.signum, self.sent = step, signum, 0

    def update(self, step: int, steps_per_second: float, episode_return: float, seconds_left: float) -> None:
        if step >= self.step:
            self.sent += 1
            signal.raise_signal(self.signum)


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_run_goes_on_exactly(signum: int, tmp_path: Path) -> None:
    rljax.fit(CONFIG, run_dir=tmp_path / "whole")
    usual = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(rljax.TrainingInterrupted, match=r"interrupted at step [\d,]+, saved in") as stop:
        rljax.fit(CONFIG, run_dir=tmp_path / "a", progress=SignalAt(500, signum), checkpoint_seconds=None)
    assert stop.value.signum == signum
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == usual
    saved = rljax.load_run(tmp_path / "a").step
    assert 500 <= saved < 1536
    assert int(stop.value.result.state.iteration) * 64 == saved
    assert len(stop.value.result.metrics["train/value"]) * 64 == saved
    rljax.fit(resume=tmp_path / "a")
    assert_same_run(tmp_path / "a", tmp_path / "whole")


@pytest.mark.slow
def test_without_a_folder_the_result_so_far_is_in_the_error() -> None:
    with pytest.raises(KeyboardInterrupt) as stop:
        rljax.fit(CONFIG, progress=SignalAt(500))
    assert isinstance(stop.value, rljax.TrainingInterrupted)
    assert int(stop.value.result.state.iteration) >= 8


@pytest.mark.slow
def test_the_second_signal_has_its_usual_effect() -> None:
    def mine(*_: object) -> None:
        raise RuntimeError("at once")

    class Twice(SignalAt):
        def update(self, step: int, steps_per_second: float, episode_return: float, seconds_left: float) -> None:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    usual = signal.signal(signal.SIGINT, mine)
    try:
        with pytest.raises(RuntimeError, match="at once"):
            rljax.fit(CONFIG, progress=Twice(0))
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, usual)


@pytest.mark.slow
def test_a_handler_of_the_users_own_is_called_the_second_time() -> None:
    called: list[int] = []

    class Twice(SignalAt):
        def update(self, step: int, steps_per_second: float, episode_return: float, seconds_left: float) -> None:
            if not called:
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGTERM)

    usual = signal.signal(signal.SIGTERM, lambda signum, _: called.append(signum))
    try:
        with pytest.raises(rljax.TrainingInterrupted):
            rljax.fit(CONFIG, progress=Twice(0))
    finally:
        signal.signal(signal.SIGTERM, usual)
    assert called == [signal.SIGTERM]


@pytest.mark.slow
def test_a_run_within_a_callback_passes_the_signal_on(tmp_path: Path) -> None:
    rljax.fit(CONFIG, run_dir=tmp_path / "whole")

    def train_another(step: int, _: dict[str, float]) -> None:
        if step == 640:
            rljax.fit(CONFIG, progress=SignalAt(0))

    with pytest.raises(rljax.TrainingInterrupted, match="saved in") as stop:
        rljax.fit(CONFIG, run_dir=tmp_path / "a", callback=train_another, checkpoint_seconds=None)
    assert 640 <= rljax.load_run(tmp_path / "a").step == int(stop.value.result.state.iteration) * 64 < 1536
    rljax.fit(resume=tmp_path / "a")
    assert_same_run(tmp_path / "a", tmp_path / "whole")


FORKING = """
import multiprocessing, os, signal, sys, time
import rljax
import rljax.run.fit
rljax.run.driver.MAX_CHUNK = 2  # so that the run is not over with the chunk that the signal comes in
context = multiprocessing.get_context("fork")
def callback(step, _):
    if step == 640:
        children = [context.Process(target=time.sleep, args=(60,)) for _ in range(3)]
        for child in children: child.start()
        for child in children: child.terminate()
        for child in children: child.join()
        print([child.exitcode for child in children], flush=True)
    if step == 768 and sys.argv[2] == "group":
        child = context.Process(target=time.sleep, args=(60,))
        child.start()
        time.sleep(0.5)
        os.killpg(os.getpgid(0), signal.SIGINT)  # what Ctrl-C in a terminal does
        child.join()
config = rljax.PPOConfig(num_envs=4, num_steps=16, total_timesteps=64 * 24, network={"hidden": [8]})
try:
    result = rljax.fit(config, run_dir=sys.argv[1], callback=callback)
    print("done", flush=True)
except rljax.TrainingInterrupted as stop:
    print("saved", rljax.load_run(sys.argv[1]).step >= 768, flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize(("how", "expected"), [("children", "done"), ("group", "saved True")])
def test_signals_to_forked_children_are_not_those_of_the_run(how: str, expected: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKING, str(tmp_path / "a"), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, start_new_session=True, check=False)
    assert done.stdout.splitlines() == ["[-15, -15, -15]", expected], done
    assert done.returncode == 0


@pytest.mark.slow
def test_a_thread_leaves_signals_alone() -> None:
    results: list[rljax.TrainResult] = []
    thread = threading.Thread(target=lambda: results.append(rljax.fit(CONFIG.replace(total_timesteps=128))))
    thread.start()
    thread.join(timeout=120)
    assert int(results[0].state.iteration) == 2


@pytest.mark.slow
def test_the_time_budget_stops_and_saves(tmp_path: Path) -> None:
    rljax.fit(CONFIG, run_dir=tmp_path / "whole")
    result = rljax.fit(CONFIG, run_dir=tmp_path / "a", max_minutes=1e-9)
    assert len(result.metrics["train/value"]) == 1  # one chunk, of one iteration
    assert rljax.load_run(tmp_path / "a").step == 64
    rljax.fit(resume=tmp_path / "a", max_minutes=60.0)
    assert_same_run(tmp_path / "a", tmp_path / "whole")
    with pytest.raises(rljax.ConfigError, match="max_minutes = -1"):
        rljax.fit(CONFIG, max_minutes=-1)


def started(tmp_path: Path, *arguments: str, until: Callable[[], bool]) -> subprocess.Popen[str]:
    command = [*COMMAND, "train", "cartpole_ppo", *arguments]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not until():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


@pytest.mark.slow
def test_ctrl_c_exits_130_and_says_how_to_resume(tmp_path: Path) -> None:
    checkpoints = tmp_path / "runs/cartpole_ppo/checkpoints"
    arguments = ("--total-timesteps", "1_000_000_000", "--checkpoint-every", "2e4")
    process = started(tmp_path, *arguments, until=lambda: checkpoint_steps(checkpoints)[:1] not in ([], [0]))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    first, last = err.strip().splitlines()
    assert first == "stopping: finishing the chunk and saving; a second signal stops at once"
    assert re.fullmatch(
        r"rljax: interrupted at step [\d,]+, saved in \S+; to go on: rljax train --resume runs/cartpole_ppo", last
    )
    step = int(re.findall(r"step ([\d,]+)", last)[0].replace(",", ""))
    assert rljax.load_run(tmp_path / "runs/cartpole_ppo").step == step
    command = [*COMMAND, "train", "--resume", "runs/cartpole_ppo", "--max-minutes", "0.001"]
    resumed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert "after 0.001 minutes; to go on: rljax train --resume runs/cartpole_ppo" in " ".join(resumed.stdout.split())
    assert rljax.load_run(tmp_path / "runs/cartpole_ppo").step > step


@pytest.mark.slow
def test_a_second_ctrl_c_stops_at_once_with_the_last_checkpoint_intact(tmp_path: Path) -> None:
    """One iteration takes hours, so that nothing but the second signal can end this process before the test's timeout."""
    folder = tmp_path / "runs/cartpole_ppo"
    arguments = ("--num-envs", "4096", "--num-steps", "1024", "--num-epochs", "10_000", "--total-timesteps", "10_000_000")
    process = started(tmp_path, *arguments, until=lambda: (folder / "metrics.jsonl").exists())
    time.sleep(5.0)  # into the compilation or the iteration; either will do
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == "stopping: finishing the chunk and saving; a second signal stops at once\n"
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert rljax.load_run(folder).step == 0
