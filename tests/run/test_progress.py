"""Progress: what is shown while compiling and while training, in a terminal, a notebook and a file; the time that is left."""

from __future__ import annotations

import io
import math
import os
import re
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from rich.console import Console

import rljax
from rljax.run import progress as shown
from rljax.run.progress import Bar, Lines, Pace, Silent
from tests.run.tiny_runs import TINY


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(shown.time, "monotonic", clock)
    return clock


def test_plain_progress_prints_a_line_per_tenth(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    lines = Lines("title")
    lines.prepare()
    clock.now += 75.0
    lines.tick()
    lines.start(1000)
    clock.now += 5.5
    lines.compiled()
    for step in range(10, 1001, 10):
        lines.update(step, 500.0, math.nan, math.nan if step <= 300 else (1000 - step) / 5)
    lines.stop()
    out = capsys.readouterr().out.splitlines()
    assert out[:4] == ["title", "compiling ...", "compiling ... 1:15", "compiled in 80.5 s"]
    assert len(out) == 14
    assert out[4] == "step 100/1,000  500 steps/s  return -  time left is known once learning starts"
    assert out[8] == "step 500/1,000  500 steps/s  return -  1:40 left"
    assert out[-1] == "step 1,000/1,000  500 steps/s  return -  0:00 left"


@pytest.mark.parametrize(
    ("value", "text"), [(math.nan, "-"), (1234.56, "1234.6"), (22.49, "22.5"), (0.2969, "0.297"), (-1.0, "-1"), (-0.0, "0")]
)
def test_small_returns_have_three_digits(capsys: pytest.CaptureFixture[str], clock: Clock, value: float, text: str) -> None:
    lines = Lines()
    lines.start(10)
    lines.update(10, 500.0, value, 0.0)
    assert f"  return {text}  " in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("width", [80, 120])
def test_the_bar_fits_its_line(width: int, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each moment of a long run no number is cut; the bar itself takes what is left."""
    monkeypatch.setattr(Bar, "_show", lambda self: None)
    monkeypatch.setattr("rich.progress.get_console", lambda: Console(width=width))
    bar = Bar()
    bar.prepare()

    def line() -> str:
        console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
        console.print(bar.bar.get_renderable())
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert text.count("\n") == 1
        return text

    clock.now += 61.0
    bar.tick()
    assert re.match("compiling .* 1:01 *$", line())
    bar.start(2_000_000)
    bar.compiled()
    assert re.match("training .* 0/2,000,000 steps *$", line())
    bar.update(123_456, 98_765.4, math.nan, math.nan)
    assert line().rstrip().endswith("123,456/2,000,000  98,765 steps/s  return -  left: once learning starts")
    bar.update(1_234_567, 98_765.4, -1234.5, 3_700.0)
    assert line().rstrip().endswith("1,234,567/2,000,000  98,765 steps/s  return -1234.5  1:01:40 left")


@pytest.mark.parametrize(
    ("width", "small", "early", "large"),
    [
        (
            60,
            "4,096/40,000  return 22.5  0:12 left",
            "4,096/40,000  return -  left: once learning starts",
            "1,234,567/2,000,000  return -1234.5  1:01:40 left",
        ),
        (
            50,
            "4,096/40,000  return 22.5  0:12 left",
            "return -  left: once learning starts",
            "1,234,567  return -1234.5  1:01:40 left",
        ),
        (40, "4,096  return 22.5  0:12 left", "return -", "return -1234.5  1:01:40 left"),
    ],
)
def test_a_narrow_bar_keeps_the_return_and_the_time_left(
    width: int, small: str, early: str, large: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bar, "_show", lambda self: None)
    monkeypatch.setattr("rich.progress.get_console", lambda: Console(width=width))
    for total, update, expected in (
        (40_000, (4_096, 98_765.4, 22.5, 12.0), small),
        (40_000, (4_096, 98_765.4, math.nan, math.nan), early),
        (2_000_000, (1_234_567, 98_765.4, -1234.5, 3_700.0), large),
    ):
        bar = Bar()
        bar.prepare()
        bar.start(total)
        bar.compiled()
        bar.update(*update)
        console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
        console.print(bar.bar.get_renderable())
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert text.count("\n") == 1
        assert text.rstrip().endswith(f" {expected}")
        assert text.startswith("training ")


def test_the_time_left_is_that_of_full_iterations() -> None:
    """A schedule whose first iterations cost a hundredth: nothing is said before, and the truth from there on."""
    costs = [0.01] * 40 + [1.0] * 60
    pace = Pace()
    for i, seconds in enumerate(costs):
        if i >= 40:
            pace.add(seconds, 1)
        left = pace.left(99 - i)
        assert math.isnan(left) if i < 40 else left == pytest.approx(sum(costs[i + 1 :]))


class Told(Silent):
    """Notes what it is told, and how."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.updates: list[tuple[int, float]] = []

    def prepare(self) -> None:
        self.calls.append("prepare")

    def start(self, total_steps: int) -> None:
        self.calls.append(f"start {total_steps}")

    def compiled(self) -> None:
        self.calls.append("compiled")

    def update(self, step: int, steps_per_second: float, episode_return: float, seconds_left: float) -> None:
        self.updates.append((step, seconds_left))

    def stop(self) -> None:
        self.calls.append("stop")


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [None, 2])
def test_the_time_left_is_known_from_the_first_whole_iteration_of_learning(seeds: int | None) -> None:
    """As `train/updates` tells, which counts gradient steps; the first iteration that learns is a chunk of its own."""
    config = TINY["dqn"].replace(learning_starts=300, eval_every=None, double=False, dueling=False, prioritized=False)
    told = Told()
    result = rljax.fit(config, seeds=seeds, progress=told)
    assert told.calls[:3] == ["prepare", f"start {config.total_timesteps}", "compiled"]
    assert set(told.calls[3:]) == {"stop"}
    updates = np.nan_to_num(np.atleast_2d(result.metrics["train/updates"])[0])
    per_iteration = updates.max()
    learned = int(np.argmax(updates > 0))
    whole = int(np.argmax(updates == per_iteration))
    assert (learned, whole) == (4, 5), "the fifth iteration learns for a part of its steps"
    steps = [step // config.steps_per_iteration for step, _ in told.updates]
    assert {4, 5} <= set(steps)
    for done, (_, left) in zip(steps, told.updates, strict=True):
        assert math.isnan(left) == (done <= whole)
    assert told.updates[-1][1] == 0.0


@pytest.mark.slow
def test_on_policy_runs_know_it_at_once_and_a_resumed_buffer_is_full_already(tmp_path: Path) -> None:
    told = Told()
    rljax.fit(TINY["ppo"].replace(eval_every=None), progress=told)
    assert all(math.isfinite(left) for _, left in told.updates)
    config = TINY["dqn"].replace(learning_starts=300, eval_every=None, double=False, dueling=False, prioritized=False)
    rljax.fit(config.replace(total_timesteps=64 * 12), run_dir=tmp_path / "a")
    told = Told()
    rljax.fit(resume=tmp_path / "a", total_timesteps=64 * 24, progress=told)
    assert told.updates
    assert all(math.isfinite(left) for _, left in told.updates)


@pytest.mark.slow
def test_true_is_the_progress_of_where_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    rljax.fit(TINY["ppo"].replace(eval_every=None), progress=True)
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["training ppo on CartPole-v1", "compiling ..."]
    assert out[-1].startswith("step 1,536/1,536")
    rljax.fit(TINY["ppo"].replace(eval_every=None), progress=False)
    assert not capsys.readouterr().out


@pytest.mark.long
def test_a_notebook_shows_one_bar_that_is_drawn_anew(tmp_path: Path) -> None:
    code = """
import rljax
from rljax.run import progress
progress.NotebookBar.SECONDS = 0.0
config = rljax.PPOConfig(num_envs=4, num_steps=16, num_minibatches=2, network={"hidden": [8]}, total_timesteps=64 * 50)
result = rljax.fit(config, progress=True)
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    drawn: list[str] = []

    class Client(NotebookClient):
        def process_message(self, message: Any, *args: Any) -> Any:
            if message["msg_type"] in ("display_data", "update_display_data"):
                drawn.append(re.sub(r"\x1b\[[\d;]*m", "", message["content"]["data"]["text/plain"]))
            return super().process_message(message, *args)

    client = Client(notebook, timeout=280, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=dict(os.environ))
    outputs = notebook.cells[0].outputs
    assert [output.output_type for output in outputs] == ["stream", "display_data"]
    assert outputs[0].text == "training ppo on CartPole-v1\n"
    assert drawn[0].startswith("compiling")
    assert len(drawn) >= 3
    assert re.match(r"training .*3,200/3,200  [\d,]+ steps/s  return [\d.]+  0:00 left", drawn[-1])
    assert "3,200/3,200" in outputs[1].data["text/html"], "the one that stays is the last"
