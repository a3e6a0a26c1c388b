"""The load of the machine is noted with every benchmark, and processes that others keep busy are named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rljax.cli.main import main
from rljax.core.devices import load_averages
from rljax.run.bench import load as bench_load
from rljax.run.bench import suites
from rljax.run.bench.load import GONE, Process, busy_shares, gone_share, read_processes, read_used

IDLE = {
    7: Process("python3", 1, 3.0),
    8: Process("python3", 7, 0.0),
    20: Process("compile (1)", 1, 50.0),
    30: Process("idle", 1, 9.0),
}


def test_busy_processes_are_named_but_for_the_benchmark_and_what_it_began() -> None:
    after = {
        **IDLE,
        7: IDLE[7]._replace(seconds=13.0),
        8: IDLE[8]._replace(seconds=9.0),  # a process of the benchmark's
        20: IDLE[20]._replace(seconds=55.0),
        30: IDLE[30]._replace(seconds=9.5),
        40: Process("compile (1)", 20, 2.0),  # began since
    }
    assert busy_shares(IDLE, after, own=7, seconds=10.0) == {"compile (1)": 0.7}
    assert busy_shares(IDLE, IDLE, own=7, seconds=10.0) == {}


def test_processes_that_end_before_the_benchmark_are_seen_in_the_time_of_the_machine() -> None:
    after = {
        7: IDLE[7]._replace(seconds=13.0),
        8: IDLE[8]._replace(seconds=4.0),  # a process of the benchmark's, which goes on
        30: IDLE[30]._replace(seconds=9.5),  # in place of 20, a compiler that ended
        40: Process("linker", 1, 2.0),  # began since
    }
    known = 12.0 + 4.0 + 0.5 + 2.0  # 2 seconds are of the benchmark's processes that ended
    assert gone_share(IDLE, after, own=7, seconds=10.0, used=known + 6.0, own_used=12.0) == {GONE: 0.6}
    assert gone_share(IDLE, after, own=7, seconds=10.0, used=known + 0.9, own_used=12.0) == {}
    # The kernel counts the time of many cores less exactly than one core's tenth.
    assert gone_share({}, {}, own=7, seconds=10.0, used=1000.0, own_used=960.0) == {}
    assert gone_share(IDLE, after, own=7, seconds=10.0, used=0.0, own_used=12.0) == {}  # no /proc/stat


def test_the_time_of_the_machine_is_read_from_the_kernels_count(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  300 200 100 9999 77 5 4 3 0 0\ncpu0 150 100 50 5000 7 1 1 1 0 0\n")
    assert read_used(tmp_path) == 600 / os.sysconf("SC_CLK_TCK")
    assert read_used(tmp_path / "none") == 0.0


def test_a_benchmark_warns_of_a_program_that_ended_before_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    used = iter([1000.0, 1e9])
    monkeypatch.setattr(bench_load, "read_used", lambda: next(used))
    with bench_load.noted_load() as noted:
        pass
    assert GONE in noted["busy"]
    assert f"{GONE} " in capsys.readouterr().out


def test_processes_are_read_from_the_kernels_table(tmp_path: Path) -> None:
    rest = "S 7 1 1 0 -1 4194304 100 0 0 0 {} {} 0 0 20 0 1 0 5 6 7"
    for number, name, ticks in ((20, "compile (1)", (300, 200)), (30, "idle", (0, 0))):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "stat").write_text(f"{number} ({name}) {rest.format(*ticks)}\n")
    (tmp_path / "self").mkdir()
    tick = os.sysconf("SC_CLK_TCK")
    assert read_processes(tmp_path) == {20: Process("compile (1)", 7, 500 / tick), 30: Process("idle", 7, 0.0)}
    assert read_processes(tmp_path / "none") == {}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_this_process_is_among_them() -> None:
    assert read_processes()[os.getpid()].parent == os.getppid()


def test_a_system_without_load_averages_is_measured_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(bench_load.os, "getloadavg")
    with bench_load.noted_load() as noted:
        pass
    assert set(noted) == {"busy"}
    assert "load average" not in capsys.readouterr().out
    assert load_averages() == ()


@pytest.mark.parametrize("busy", [False, True])
def test_the_load_of_programs_that_have_ended_is_no_warning(
    busy: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = iter([{20: Process("compile", 1, 0.0)}, {20: Process("compile", 1, 1e9 if busy else 0.0)}])
    monkeypatch.setattr(bench_load.os, "getloadavg", lambda: (2.0, 0.0, 0.0))
    monkeypatch.setattr(bench_load, "read_processes", lambda: next(seen))
    monkeypatch.setattr(bench_load, "read_used", lambda: 0.0)
    with bench_load.noted_load():
        pass
    said, warned = capsys.readouterr()
    assert "load average 2.00 at the start" in said
    assert ("warning" in said, "warning" in warned) == (busy, False)


@pytest.mark.parametrize(("start", "others"), [(0.1, False), (1.5, False), (0.1, True)])
def test_the_load_is_printed_and_recorded_with_a_warning_if_the_machine_was_busy(
    start: float, others: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loads = iter([start, 2.25])
    seen = iter([{}, {20: Process("compile", 1, 1e9)} if others else {}])
    monkeypatch.setattr(bench_load.os, "getloadavg", lambda: (next(loads), 0.0, 0.0))
    monkeypatch.setattr(bench_load, "read_processes", lambda: next(seen))
    monkeypatch.setattr(bench_load, "read_used", lambda: 0.0)
    monkeypatch.setitem(suites.SUITES, "tiny", lambda repeats: print("a machine"))
    main(["bench", "tiny", "--json", str(tmp_path / "a.json")])
    said, warned = capsys.readouterr()
    assert f"load average {start:.2f} at the start, 2.25 at the end" in said
    assert ("warning: load average 1.50 before the benchmark begins" in warned) == (start == 1.5)
    assert ("warning: other processes were busy" in said) == (start == 1.5 or others)
    assert ("compile" in said) == others
    record = json.loads((tmp_path / "a.json").read_text())
    assert (record["load"]["start"], record["load"]["end"], "compile" in record["load"]["busy"]) == (start, 2.25, others)
    assert record["hardware"] == "a machine"
