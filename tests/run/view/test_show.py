"""`rljax show`: what it says of a run, on paper and in a terminal."""

from __future__ import annotations

import fcntl
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import rljax
from rljax.core.config_files import dump_config
from rljax.run.view.show import show, sparkline

CONFIG = rljax.PPOConfig(env="GridWorld-v0", env_params={"size": 5}, learning_rate=1e-3, total_timesteps=100_000)
BUDGET = 99_840  # whole iterations of 4 * 128 steps


def write_run(folder: Path, records: list[dict[str, Any]], config: rljax.PPOConfig = CONFIG, **info: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(dump_config(config))
    table = {"format": 1, "rljax": rljax.__version__, "jax": "0", "seeds": None, "key_impl": "threefry2x32"}
    table |= {"forked_from": None, "first_step": 0, "step_offset": 0, **info}
    (folder / "run.json").write_text(json.dumps(table))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return folder


def write_checkpoint(run: Path, step: int, score: float | None, *links: str, size: int = 1000) -> Path:
    path = run / "checkpoints" / f"step_{step}"
    (path / "state").mkdir(parents=True)
    meta = {"format": 1, "step": step, "iteration": 1, "arrays": {"x": [[], "float32"]}, "files": {"state/x": [size, 0]}}
    meta |= {"score_name": "eval/return", "scores": [score], "time": "2025-01-02T03:04:05+00:00"}
    (path / "meta.json").write_text(json.dumps(meta))
    (path / "state" / "x").write_bytes(b"x" * (size - len((path / "meta.json").read_bytes())))
    for name in links:
        (run / "checkpoints" / name).symlink_to(path.name)
    return path


def printed(run: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines, with runs of spaces made one."""
    show(run)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 100
    return [" ".join(line.split()) for line in out.splitlines()]


def returns(*values: float | None) -> list[dict[str, Any]]:
    return [
        {"step": 1024 * (i + 1), "episode/return": value, "eval/return": None, "perf/steps_per_second": 1000.0 * i + 1000}
        for i, value in enumerate(values)
    ]


def test_a_complete_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [{"step": 0, "hyperparameters": {}}, *returns(1.5, 12.25, None, 9.0)]
    records.append({"step": BUDGET, "episode/return": None, "eval/return": 3.25, "perf/steps_per_second": 9000.0})
    run = write_run(tmp_path / "a", records)
    write_checkpoint(run, 1024, None)
    write_checkpoint(run, 4096, 7.5, "best", size=1_500_000)
    write_checkpoint(run, BUDGET, 3.25, "latest")
    lines = printed(run, capsys)
    assert "".join(lines[:3]).replace(" ", "").startswith(str(run) + "ppoonGridWorld-v0:completeat99,840steps")
    assert not any("--resume" in line for line in lines)
    assert "episode/return 9 4,096 12.2 2,048" in lines
    assert "eval/return 3.25 99,840 3.25 99,840" in lines
    assert "speed: 3,000 steps/s (median)" in lines
    assert "1,024 1.0 kB - 2025-01-02 03:04:05" in lines
    assert "4,096 1.5 MB 7.5 best 2025-01-02 03:04:05" in lines
    assert "99,840 1.0 kB 3.25 latest 2025-01-02 03:04:05" in lines


@pytest.mark.parametrize(
    ("best_step", "told"),
    [
        (2000, "2,000"),  # in the record of 1024 to 2048 steps
        (2048, "2,048"),
        (1024, "2,048"),  # the best of an earlier time: the record of it is another one
        (2100, "2,048"),
        (None, "2,048"),
    ],
)
def test_the_best_evaluation_has_the_step_that_its_checkpoint_has(
    best_step: int | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record of several iterations has the step of the last, and the evaluation may have come before."""
    records = [{**record, "eval/return": x} for record, x in zip(returns(1.0, 12.25, 9.0), (1.0, 8.5, 8.0), strict=True)]
    run = write_run(tmp_path / "a", records)
    write_checkpoint(run, 3072, 8.0)
    file = run / "checkpoints" / "step_3072" / "meta.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "best_step": best_step}))
    lines = printed(run, capsys)
    assert f"eval/return 8 3,072 8.5 {told}" in lines
    assert "episode/return 9 3,072 12.2 2,048" in lines


def test_tables_fit_a_terminal_of_40_columns(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", [{**record, "eval/return": 500.0} for record in returns(450.0, 500.0)])
    write_checkpoint(run, 12_032, 500.0, "best", size=150_000)
    write_checkpoint(run, 19_968, 500.0, "latest", size=150_000)
    file = io.StringIO()
    show(run, console=Console(file=file, width=40))
    lines = file.getvalue().splitlines()
    assert max(len(line) for line in lines if str(run) not in line and "rljax train" not in line) <= 40
    words = [line.split() for line in lines]
    assert ["eval/return", "500.0", "500.0", "1,024"] in words
    assert ["19,968", "500.0", "latest"] in words


def test_a_copy_without_links_has_its_marks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "a", returns(1.0))
    write_checkpoint(run, 4096, 7.5)
    meta = json.loads((write_checkpoint(run, 8192, 3.25) / "meta.json").read_text())
    (run / "checkpoints" / "step_8192" / "meta.json").write_text(json.dumps(meta | {"best_step": 4096}))
    lines = printed(run, capsys)
    assert "4,096 1.0 kB 7.5 best 2025-01-02 03:04:05" in lines
    assert "8,192 1.0 kB 3.25 latest 2025-01-02 03:04:05" in lines


def test_a_run_that_reads_data_says_how_long_it_waited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [{**record, "perf/data_wait": wait} for record, wait in zip(returns(1.0, 2.0, 3.0), (0.9, 0.021, 0.0), strict=True)]
    lines = printed(write_run(tmp_path / "a", records), capsys)
    assert "speed: 2,000 steps/s, 2.1 % of the time waiting for data (median)" in lines


def test_changed_fields_come_first_beside_their_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(write_run(tmp_path / "a", []), capsys)
    start = lines.index("configuration value default")
    assert lines[start + 2 : start + 6] == [
        "env GridWorld-v0 CartPole-v1",
        "env_params {size = 5} {}",
        "total_timesteps 100,000 500,000",
        "learning_rate 0.001 0.00025",
    ]
    rest = " ".join(lines[start + 6 :])
    assert "num_envs=4 gamma=0.99 num_devices=1 time_limit=none" in rest
    assert "learning_rate=" not in rest


def test_a_stopped_run_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "a b", returns(1.0, 2.0))
    lines = printed_unbounded(run, capsys)
    assert "ppo on GridWorld-v0: stopped at step 2,048 of 99,840; to go on:" in lines
    assert f"  rljax train --resume '{run}'" in lines


def printed_unbounded(run: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    show(run)
    return capsys.readouterr().out.splitlines()


def test_a_run_that_failed_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    run = write_run(tmp_path / "a", returns(1.0), CONFIG.replace(total_timesteps=1024))
    own = {"step": 1024, "episode/return": 1.0, "failure": 0.25}  # a metric of the user's own
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(own) + "\n")
    assert "complete at" in printed_unbounded(run, capsys)[1]
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 1025, "failure": "disk gone; call the admin"}) + "\n")
    assert ": disk gone; call the admin; to go on:" in printed_unbounded(run, capsys)[1]


def test_a_sweep_is_named_as_what_it_is(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", returns(1.0))
    (run / "run.json").rename(run / "sweep.toml")
    with pytest.raises(rljax.ConfigError, match=r"a: a sweep or a study, no run; it has no best.toml yet"):
        show(run)
    (run / "best.toml").touch()
    with pytest.raises(rljax.ConfigError, match=r"a: a sweep or a study, no run; rljax train \S+/a/best.toml trains its best"):
        rljax.plot([run], tmp_path / "a.png")
    with pytest.raises(rljax.ConfigError, match=r"a: a sweep or a study, no run; rljax train \S+/a/best.toml trains its best"):
        show(run)


def test_a_run_that_a_process_holds_is_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "a", returns(1.0))
    with (run / ".lock").open("w") as lock:
        assert "stopped at step 1,024 of 99,840" in "\n".join(printed_unbounded(run, capsys))
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "training, at step 1,024 of 99,840" in "\n".join(printed_unbounded(run, capsys))


def test_nothing_recorded_and_nothing_saved_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "a", [])
    (run / "metrics.jsonl").unlink()
    lines = printed(run, capsys)
    assert "no records yet" in lines
    assert "no checkpoints yet" in lines
    assert "no returns yet" in printed(write_run(tmp_path / "b", returns(None, None)), capsys)


def test_a_fork_and_a_change_of_budget_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hyperparameters = [
        {"step": 500, "hyperparameters": {"total_timesteps": 50_000, "seed": 0}},
        *returns(1.0),
        {"step": 1024, "hyperparameters": {"total_timesteps": 100_000, "seed": 0}},
    ]
    origin = {"checkpoint": "runs/[bold]x/checkpoints/step_500", "step": 500}
    run = write_run(tmp_path / "a", hyperparameters, forked_from=origin, first_step=500, step_offset=160)
    lines = printed(run, capsys)
    assert "forked from runs/[bold]x/checkpoints/step_500 at step 500" in lines
    assert "changed at step 1,024: total_timesteps 50,000 -> 100,000" in lines
    assert any("of 100,000;" in line for line in lines)


def test_seeds_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [
        {"step": 1024, "episode/return": 20.0, "seeds": {"episode/return": [10.0, 30.0, None]}},
        {"step": 2048, "episode/return": 25.0, "seeds": {"episode/return": [25.0, None, None]}},
    ]
    lines = printed(write_run(tmp_path / "a", records, seeds=3), capsys)
    start = lines.index("seed_index latest episode/return best")
    assert lines[start + 2 : start + 5] == ["0 25.0 25.0", "1 30.0 30.0", "2 - -"]
    values = list(np.arange(100.0))
    many = [{"step": 1024, "episode/return": 49.5, "seeds": {"episode/return": values}}]
    text = " ".join(printed(write_run(tmp_path / "b", many, seeds=100), capsys))
    assert "latest episode/return of 100 seeds: min 0, 25 % 24.8, median 49.5, 75 % 74.2, max 99.0" in text
    assert "the highest is seed_index 99" in text


def test_a_damaged_checkpoint_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "a", returns(1.0))
    (write_checkpoint(run, 1024, 1.0, "latest") / "meta.json").write_text("{")
    (line,) = (line for line in printed(run, capsys) if line.startswith("1,024 "))
    assert line.endswith("- damaged -")


def test_sparkline_spans_least_to_greatest() -> None:
    assert sparkline(np.array([0.0, np.nan, 7.0, 3.5, 1.0])) == "▁ █▅▂"
    assert sparkline(np.array([2.0, 2.0])) == "▁▁"


def test_the_sparkline_is_of_averages_and_60_wide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "a", returns(*np.arange(600.0)))
    lines = printed(run, capsys)
    (line,) = (line for line in lines if "▁" in line)
    bars = line.removeprefix("episode/return ")
    assert len(bars) == 60
    assert list(bars) == sorted(bars)
    # The first and the last bin of ten values each; the ends are 0 and 599.
    assert "min 4.5, max 594.5, steps 1,024 to 614,400" in lines


def test_a_terminal_without_unicode_gets_ascii(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", returns(*np.arange(100.0)))
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    show(run, console=Console(file=file, width=100))
    file.flush()
    assert b"episode/return ...." in raw.getvalue()


def test_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(rljax.ConfigError, match="no run there") as error:
        show(tmp_path)
    assert "\n" not in str(error.value)
