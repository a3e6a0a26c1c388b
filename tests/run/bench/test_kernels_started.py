"""`rljax bench launches`: whole runs are counted, beside the peer where it is installed."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rljax.cli.main import main
from rljax.run.bench import launches
from rljax.run.bench.timing import parse_tables
from rljax.run.compile.costs import Kernel


@pytest.mark.parametrize("there", [True, False])
def test_the_kernels_of_a_whole_run_are_set_against_the_peers(
    there: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = [Kernel("fusion", 300), Kernel("while", 7, waits=True), Kernel("while", 20, launched=False)]
    kernels: dict[Callable[..., Any], list[Kernel]] = {}
    monkeypatch.setattr(launches, "PRESETS", ("cartpole_ppo_cleanrl", "pendulum_sac"))
    monkeypatch.setattr(launches, "target_of", lambda name: contextlib.nullcontext())
    monkeypatch.setattr(launches, "kernels_for", lambda program, target: kernels.get(program, ours))
    peer = lambda key: key  # noqa: E731
    kernels[peer] = [Kernel("fusion", 614)]
    launches.print_launches({"cartpole_ppo_cleanrl": lambda _: peer if there else None})
    said = parse_tables("machine\n" + capsys.readouterr().out)
    rows = {
        row["run"]: (row["kernels"], row["loops of unknown length"], row["of the peer's kernels"]) for row in said["tables"][0]
    }
    assert rows["cartpole_ppo_cleanrl"] == (307.0, 7.0, 0.5 if there else "")
    assert rows["pendulum_sac"] == (307.0, 7.0, "")
    assert rows.get("rejax, the same work") == ((614.0, 0.0, 1.0) if there else None)
    assert any("rejax is not installed" in note for note in said["notes"]) != there


@pytest.mark.skipif(importlib.util.find_spec("jax_cuda13_plugin") is not None, reason="the plug-in is there")
@pytest.mark.parametrize("command", [["bench", "launches", "--json", "a.json"], ["reproduce", "bench_launches", "--out", "."]])
def test_without_the_plug_in_one_line_says_what_to_install_and_nothing_is_written(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rljax.run.bench.load.LOADED", float("inf"))  # else a warning of a busy machine stands before it
    with pytest.raises(SystemExit) as stop:
        main(command)
    said = capsys.readouterr()
    assert (stop.value.code, said.out) == (2, "")
    assert said.err.startswith("rljax: target h200: compiling for NVIDIA GPUs needs JAX's plug-in for CUDA: pip install")
    assert said.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
