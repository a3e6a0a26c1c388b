"""Records: windows of iterations summed up, and JSON that any reader accepts."""

from __future__ import annotations

import json
import math
import os
import warnings
from pathlib import Path

import numpy as np

from rljax.run.files.records import JsonLines, aggregate_seeds, summarize, truncate_after, window_length


def column(*values: float) -> np.ndarray:
    """The rows of one seed, `[window, 1]`."""
    return np.array(values)[:, None]


def test_episode_means_are_weighted_by_their_counts() -> None:
    rows = {
        "episode/count": column(1.0, 0.0, 3.0),
        "episode/return": column(10.0, np.nan, 2.0),
        "train/loss": column(1.0, 2.0, 6.0),
        "eval/return": column(5.0, np.nan, np.nan),
    }
    assert summarize(rows) == {"episode/count": [4.0], "episode/return": [4.0], "train/loss": [3.0], "eval/return": [5.0]}


def test_each_seed_is_summed_up_on_its_own() -> None:
    nan = np.nan
    rows = {
        "episode/count": np.array([[1.0, 0.0], [3.0, 0.0]]),
        "episode/return": np.array([[10.0, nan], [2.0, nan]]),
        "eval/return": np.array([[5.0, 1.0], [7.0, nan]]),
    }
    summary = summarize(rows)
    np.testing.assert_array_equal(summary["episode/return"], [4.0, nan])
    np.testing.assert_array_equal(summary["eval/return"], [7.0, 1.0])
    assert aggregate_seeds("episode/return", summary["episode/return"]) == 4.0
    assert aggregate_seeds("eval/return", summary["eval/return"]) == 4.0
    assert aggregate_seeds("episode/count", np.array([4.0, 2.0])) == 6.0


def test_no_episode_and_no_evaluation_are_nan() -> None:
    nothing = column(np.nan, np.nan)
    summary = summarize({"episode/count": column(0.0, 0.0), "episode/return": nothing, "eval/return": nothing})
    assert summary["episode/count"] == [0.0]
    assert math.isnan(summary["episode/return"][0])
    assert math.isnan(summary["eval/return"][0])


def test_metrics_are_averaged_over_the_iterations_in_which_they_are_known() -> None:
    nan = np.nan
    names = ["league/exploitability", "league/win_rate_scripted", "curriculum/level", "curriculum/success_rate_3"]
    rows = {"episode/count": column(1.0, 0.0, 3.0)} | {name: np.array([[nan, 1.0], [nan, 2.0], [0.5, 6.0]]) for name in names}
    rows |= {"curriculum/score": column(nan, nan, nan)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summary = summarize(rows)
    for name in names:
        np.testing.assert_array_equal(summary[name], [0.5, 3.0], name)
    np.testing.assert_array_equal(summary["curriculum/score"], [nan])


def test_open_loop_errors_are_averaged_over_the_iterations_in_which_they_are_known() -> None:
    nan = np.nan
    rows = {"train/updates": column(0.0, 2.0, 2.0, 2.0), "train/loss": column(nan, 1.0, 2.0, 6.0)}
    errors = {"train/openloop_error_5": column(nan, 0.5, nan, 1.5), "train/copy_last_error_15": column(nan, nan, nan, nan)}
    summary = summarize(rows | errors)
    assert summary["train/loss"] == [3.0]
    assert summary["train/openloop_error_5"] == [1.0]
    np.testing.assert_array_equal(summary["train/copy_last_error_15"], [nan])


def test_numbers_of_what_happened_are_summed() -> None:
    names = ("league/snapshots", "league/resets", "league/branches", "train/no_legal_action")
    summary = summarize({name: column(0.0, 2.0, 1.0) for name in names})
    assert {name: float(values[0]) for name, values in summary.items()} == dict.fromkeys(names, 3.0)
    assert aggregate_seeds("league/snapshots", np.array([1.0, 2.0])) == 3.0


def test_nan_loss_is_not_averaged_away() -> None:
    assert math.isnan(summarize({"train/loss": column(1.0, np.nan)})["train/loss"][0])
    assert math.isnan(summarize({"train/loss": column(1.0, np.nan), "train/updates": column(2.0, 2.0)})["train/loss"][0])


def test_a_line_that_cannot_be_read_costs_no_other(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    kept = '{"step": 64}\ngarbage\n{"step": 128}\n'
    file.write_text(kept + '{"step": 192}\n')
    assert truncate_after(file, 128) == 128
    assert file.read_text() == kept


def test_the_number_of_values_in_a_file_is_bounded() -> None:
    for iterations, seeds, metrics in ((23, 1, 12), (100_000, 1, 12), (976, 8, 15), (976, 2048, 15), (10**6, 2048, 15)):
        records = -(-iterations // window_length(iterations, seeds, metrics))
        assert records <= 1000
        assert records * seeds * metrics <= 4_000_000
    assert window_length(23, 1, 12) == 1


def test_later_records_and_a_line_cut_off_are_taken_back(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    kept = '{"step": 0, "hyperparameters": {}}\n{"step": 64, "a": 1}\n{"step": 128, "a": null}\n'
    for rest in (
        "",
        '{"step": 192, "a": 2}\n',
        '{"step": 192, "a": 2}\n{"step": 256, "a"',
        '{"step": 1',
        '{"step": 128, "a": 1}',
    ):
        file.write_text(kept + rest)
        assert truncate_after(file, 128) == 128
        assert file.read_text() == kept
    os.utime(file, (1, 1))
    assert truncate_after(file, 128) == 128
    assert file.stat().st_mtime == 1  # nothing was removed
    assert truncate_after(tmp_path / "missing.jsonl", 5) == -1
    assert not (tmp_path / "missing.jsonl").exists()


def test_each_record_is_one_flushed_line_with_null_for_what_json_lacks(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "m.jsonl")
    log.write({"step": 1, "a": math.nan, "b": math.inf, "c": 0.5, "seeds": {"a": [1.5, math.nan]}})
    text = (tmp_path / "m.jsonl").read_text()  # read before close: flushed
    assert text.count("\n") == 1
    assert json.loads(text) == {"step": 1, "a": None, "b": None, "c": 0.5, "seeds": {"a": [1.5, None]}}
    log.close()
