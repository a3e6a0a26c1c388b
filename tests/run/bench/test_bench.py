"""`rljax bench recurrent`: what it prints, and that its peer is a recurrent PPO that learns."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rljax
from rljax.cli.main import main
from rljax.run.bench import devices as bench_devices
from rljax.run.bench import processes as bench_processes
from rljax.run.bench import suites as bench
from rljax.run.bench import sweep as bench_sweep
from rljax.run.bench.peers.recurrent_ppo import make_recurrent_ppo
from rljax.run.bench.timing import Timing, parse_tables, time_interleaved


@pytest.mark.slow
def test_the_suite_prints_a_row_for_each_program(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program is traced, which tells what it computes; compiling five would take longer than all else here."""
    parameters = {}

    def traced(programs: dict[str, Any], repeats: int, compiles: int) -> dict[str, Timing]:
        assert compiles <= repeats
        for name, program in programs.items():
            trained = jax.eval_shape(program, jax.random.key(0))
            if name.startswith("products"):
                continue
            params = trained.state.params if hasattr(trained, "state") else trained[0]
            parameters[name] = sum(x.size for x in jax.tree.leaves(params))
        seconds = {name: 3.0 if name.startswith("peer") else 2.0 for name in programs}
        return {name: Timing(1.0, [run] * repeats) for name, run in seconds.items()}

    monkeypatch.setattr(bench, "time_interleaved", traced)
    config = rljax.PPOConfig(env="CartPole-v1", total_timesteps=64, num_envs=4, num_steps=8)
    bench._print_recurrent(config, make_recurrent_ppo, 2)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines() if "|" in line]
    cells = [f"{whose}, {cell}" for cell in ("gru", "lstm") for whose in ("rljax", "peer", "products alone")]
    assert [row[0] for row in rows[2:]] == ["rljax, feed-forward", *cells]
    # The peer's cells have as many weights as ours: the same work.
    assert [row[1] for row in rows[2:]] == [f"{parameters[row[0]]:,}" if row[0] in parameters else "" for row in rows[2:]]
    assert abs(parameters["rljax, feed-forward"] / parameters["rljax, gru"] - 1) < 0.1
    assert [row[4:] for row in rows[2:]] == [["32", ""], *[["32", "1.50"], ["21", "1.00"], ["32", "1.50"]] * 2]


@pytest.mark.slow
def test_programs_are_compiled_as_often_as_asked_and_run_in_turn() -> None:
    traced = []

    def program(name: str) -> Any:
        return lambda key: traced.append(name) or jax.random.uniform(key)

    timings = time_interleaved({"a": program("a"), "b": program("b")}, 3, compiles=2)
    assert traced == ["a", "b", "a", "b"]
    assert all(timing.compile > 0 and len(timing.runs) == 3 for timing in timings.values())


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_the_peer_remembers_the_sign_of_the_t_maze(cell: str) -> None:
    """Without memory, or one that is not reset where an episode begins or kept across rollouts, the return is near 0."""
    config = rljax.load_config(f"tmaze_ppo_{cell}", env_params={"length": 3}, total_timesteps=40_960, eval_every=None)
    params, returns = jax.jit(make_recurrent_ppo(config))(jax.random.key(0))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))
    assert np.abs(returns[:5]).max() < 0.5
    assert returns[-5:].mean() > 0.8


def test_what_is_printed_is_written_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def suite(repeats: int) -> None:
        print("a machine")
        print("\nsteps, of 5\n")
        print("| agents | run, s | |\n| --- | --- | --- |\n| 1,024 | 0.50 | fast |\n| 2 | - | slow |")

    monkeypatch.setitem(bench.SUITES, "tiny", suite)
    main(["bench", "tiny", "--repeats", "2", "--json", str(tmp_path / "a.json")])
    assert "| 1,024 | 0.50 | fast |" in capsys.readouterr().out
    written = json.loads((tmp_path / "a.json").read_text())
    load, notes = written.pop("load"), written.pop("notes")
    assert notes[:2] == ["steps, of 5", f"load average {load['start']:.2f} at the start, {load['end']:.2f} at the end"]
    assert written == {
        "suite": "tiny",
        "repeats": 2,
        "hardware": "a machine",
        "tables": [[{"agents": 1024.0, "run, s": 0.5, "": "fast"}, {"agents": 2.0, "run, s": "-", "": "slow"}]],
    }
    with pytest.raises(SystemExit):
        main(["bench", "tiny", "--json", "a.txt"])
    assert "expected a file name that ends in .json" in capsys.readouterr().err


@pytest.mark.long
def test_a_sweep_is_measured_beside_the_bare_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    config = rljax.PPOConfig(env="CartPole-v1", total_timesteps=64, num_envs=4, num_steps=8, network={"hidden": [8]})
    bench_sweep.print_agents(config, (1, 2), 2)
    monkeypatch.setattr(bench_sweep, "SEEDS", 2)
    bench_sweep.print_overhead(config, 1)
    said = parse_tables("machine\n" + capsys.readouterr().out)
    assert [row["agents"] for row in said["tables"][0]] == [1.0, 2.0]
    assert all(row["run, s"] >= 0 and row["environment steps/s"] > 0 for row in said["tables"][0])
    assert said["notes"][-1].startswith("sweep of 3 learning rates x 2 seeds")


@pytest.mark.long
def test_devices_are_measured_in_processes_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("COUNTS", (1, 2)), ("ENVS", 4), ("ITERATIONS", 2)):
        monkeypatch.setattr(bench_devices, name, value)
    monkeypatch.setattr(bench_devices, "usable_cores", lambda: 1)
    bench_devices.print_devices(2)
    said = parse_tables(capsys.readouterr().out)
    alone, both = said["tables"][0]
    assert [row["environments"] for row in (alone, both)] == [4.0, 8.0]
    # One has the core for itself; two share it, and time is work.
    assert (alone["efficiency"], alone["work, of one alone"], both["efficiency"]) == (1.0, "", "")
    assert both["work, of one alone"] > 0
    assert "a CPU with 1 core for this process" in said["notes"][1]


def test_work_and_efficiency_are_told_apart(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = {1: 2.0, 2: 2.5, 4: 4.0, 8: 12.0}
    monkeypatch.setattr(bench_devices, "_time_simulated", lambda _, n: {k: Timing(1.0, [x] * n) for k, x in seconds.items()})
    monkeypatch.setattr(bench_devices, "usable_cores", lambda: 2)
    bench_devices.print_devices(3)
    rows = parse_tables(capsys.readouterr().out)["tables"][0]
    assert [row["efficiency"] for row in rows] == [1.0, 0.8, "", ""]
    assert [row["work, of one alone"] for row in rows] == ["", "", 1.0, 1.5]


@pytest.mark.long
def test_processes_are_measured_on_a_core_each(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("COUNTS", (1, 2)), ("ENVS", 4), ("ITERATIONS", 2)):
        monkeypatch.setattr(bench_processes, name, value)
    # Two processes may share the only core that a test has.
    core = min(os.sched_getaffinity(0))
    monkeypatch.setattr(bench_processes.os, "sched_getaffinity", lambda _: [core, core])
    bench_processes.print_processes(2)
    alone, both = parse_tables(capsys.readouterr().out)["tables"][0]
    assert [row["environments"] for row in (alone, both)] == [4.0, 8.0]
    assert alone["efficiency"] == 1.0
    assert both["efficiency"] > 0


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_the_efficiency_of_processes_is_that_of_pairs_of_runs(
    cores: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = {1: [2.0, 4.0, 2.0], 2: [2.5, 5.0, 9.0], 4: [4.0, 8.0, 4.0]}
    monkeypatch.setattr(bench_processes.os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(bench_processes, "_time", lambda counts, *_: {n: Timing(1.0, seconds[n]) for n in counts})
    bench_processes.print_processes(3)
    said = parse_tables(capsys.readouterr().out)
    assert [row["efficiency"] for row in said["tables"][0]] == {1: [""], 2: [1.0, 0.8], 8: [1.0, 0.8, 0.5]}[cores]
    assert any("there is one core only" in note for note in said["notes"]) == (cores == 1)
