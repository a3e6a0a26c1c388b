"""Records: windows of iterations summed up, and JSON that any reader accepts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from rljax.run.progress import Lines
from rljax.run.records import JsonLines, summarize


def test_episode_means_are_weighted_by_their_counts() -> None:
    rows = {
        "episode/count": np.array([1.0, 0.0, 3.0]),
        "episode/return": np.array([10.0, np.nan, 2.0]),
        "train/loss": np.array([1.0, 2.0, 6.0]),
        "eval/return": np.array([5.0, np.nan, np.nan]),
    }
    assert summarize(rows) == {"episode/count": 4.0, "episode/return": 4.0, "train/loss": 3.0, "eval/return": 5.0}


def test_no_episode_and_no_evaluation_are_nan() -> None:
    nothing = np.full(2, np.nan)
    summary = summarize({"episode/count": np.zeros(2), "episode/return": nothing, "eval/return": nothing})
    assert summary["episode/count"] == 0.0
    assert math.isnan(summary["episode/return"])
    assert math.isnan(summary["eval/return"])


def test_nan_loss_is_not_averaged_away() -> None:
    assert math.isnan(summarize({"train/loss": np.array([1.0, np.nan])})["train/loss"])


def test_each_record_is_one_flushed_line_with_null_for_what_json_lacks(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "m.jsonl")
    log.write({"step": 1, "a": math.nan, "b": math.inf, "c": 0.5})
    text = (tmp_path / "m.jsonl").read_text()  # read before close: flushed
    assert text.count("\n") == 1
    assert json.loads(text) == {"step": 1, "a": None, "b": None, "c": 0.5}
    log.close()


def test_plain_progress_prints_a_line_per_tenth(capsys: object) -> None:
    lines = Lines()
    lines.start(1000)
    for step in range(10, 1001, 10):
        lines.update(step, 500.0, math.nan)
    out = capsys.readouterr().out.splitlines()  # type: ignore[attr-defined]
    assert len(out) == 11
    assert out[-1].startswith("step 1,000/1,000")
