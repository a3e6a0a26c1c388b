"""Timing of programs for `rljax bench`: compile time and run time apart, with interleaved runs."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax

from rljax.core.config import Config


class Timing(NamedTuple):
    """Seconds to trace and compile (the median of several times; 0 for what is not compiled), and of each run."""

    compile: float
    runs: list[float]


Program = Callable[[jax.Array], Any]
Run = Callable[[int], Any]


def cpu_model() -> str:
    """Return the processor's name."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def hardware() -> str:
    """Return one line with processor, cores, accelerator and versions."""
    model = cpu_model()
    device = jax.devices()[0]
    accelerator = "" if device.platform == "cpu" else f", {jax.device_count()} x {device.device_kind}"
    versions = f"Python {platform.python_version()}, JAX {jax.__version__}"
    return f"{model}, {os.cpu_count()} cores{accelerator}; {versions}; {time.strftime('%Y-%m-%d')}"


def steps_of(config: Config) -> int:
    """Return the number of environment steps that training takes: the budget rounded down to whole iterations."""
    return config.num_iterations * config.steps_per_iteration


def time_interleaved(
    programs: dict[str, Program], repeats: int, compiles: int = 1, beside: Mapping[str, Run] | None = None
) -> dict[str, Timing]:
    """Compile each program `compiles` times, then run them in turn `repeats` times with the same keys.

    `beside` are peers that are not compiled here, and take turns with the programs.
    """
    compiled = {}
    compiling: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(compiles):
        for name, program in programs.items():
            if compiles > 1:
                jax.clear_caches()  # a program that was traced before would seem to need no time for it
            started = time.perf_counter()
            compiled[name] = jax.jit(program).lower(jax.random.key(0)).compile()
            compiling[name].append(time.perf_counter() - started)
    runs = {name: lambda i, run=run: run(jax.random.key(i)) for name, run in compiled.items()}
    seconds = run_in_turn({**runs, **(beside or {})}, repeats)
    return {name: Timing(median(compiling.get(name, [0.0])), each) for name, each in seconds.items()}


def run_in_turn(runs: Mapping[str, Run], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of `repeats` calls of each function, which take turns; they are given the number of the repeat.

    So a slow spell of the machine is spread over all of them, and their ratios mean something.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(repeats):
        for name, run in runs.items():
            started = time.perf_counter()
            jax.block_until_ready(run(i))
            seconds[name].append(time.perf_counter() - started)
    return seconds


def parse_tables(text: str) -> dict[str, Any]:
    """Parse a benchmark's output for JSON: `hardware`, `notes` (lines of prose) and `tables` (lists of rows by column)."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found: dict[str, Any] = {"hardware": lines[0] if lines else "", "notes": [], "tables": []}
    columns: list[str] | None = None
    for line in lines[1:]:
        if not line.startswith("|"):
            columns = None
            found["notes"].append(line)
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if columns is None:
            columns = cells
            found["tables"].append([])
        elif not set(line) <= set("|- :"):
            found["tables"][-1].append(dict(zip(columns, map(_number, cells), strict=False)))
    return found


def _number(cell: str) -> float | str:
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return cell
