"""The load of the machine while a benchmark runs, and a warning if other programs were busy."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rljax.core.devices import load_averages

PROC = Path("/proc")

BUSY = 0.1
"""Share of a core from which on another process counts as busy."""

LOADED = 0.5
"""Load average before a benchmark from which on the machine counts as busy."""


class Process(NamedTuple):
    """A process as `/proc` shows it: its name, its parent and the seconds of processor time that it has used."""

    name: str
    parent: int
    seconds: float


@contextlib.contextmanager
def noted_load() -> Iterator[dict[str, Any]]:
    """Print the load average before and after a benchmark, and a warning if another process was busy.

    Gives a dictionary that has at the end `start` and `end`, load averages of a minute (not on Windows), and `busy`, the share of
    a core that each busy process used, by its name. Where there is no `/proc`, only the load average before tells of other
    programs.
    """
    before, started = read_processes(), time.perf_counter()
    noted: dict[str, Any] = {} if (load := _load_average()) is None else {"start": load}
    loaded = noted.get("start", 0.0) >= LOADED
    if loaded:
        print(f"warning: load average {noted['start']:.2f} before the benchmark begins", file=sys.stderr)
    yield noted
    if (load := _load_average()) is not None:
        noted["end"] = load
    noted["busy"] = busy_shares(before, read_processes(), os.getpid(), time.perf_counter() - started)
    if load is not None:
        print(f"\nload average {noted['start']:.2f} at the start, {noted['end']:.2f} at the end")
    if noted["busy"] or loaded:
        shares = ", ".join(f"{name} {share:.2f} of a core" for name, share in noted["busy"].items())
        print(f"warning: other processes were busy ({shares or 'before the start'}): trust ratios of interleaved runs, not times")


def _load_average() -> float | None:
    averages = load_averages()
    return round(averages[0], 2) if averages else None


def read_processes(proc: Path = PROC) -> dict[int, Process]:
    """Return all processes by their number; none where there is no `/proc`."""
    found = {}
    for path in proc.glob("[0-9]*/stat"):
        try:
            head, _, rest = path.read_text().rpartition(")")
        except OSError:  # it has ended
            continue
        fields = rest.split()
        ticks = int(fields[11]) + int(fields[12])
        found[int(path.parent.name)] = Process(head.partition("(")[2], int(fields[1]), ticks / os.sysconf("SC_CLK_TCK"))
    return found


def busy_shares(before: dict[int, Process], after: dict[int, Process], own: int, seconds: float) -> dict[str, float]:
    """Return the shares of a core of the processes that were busy, by name: not of process `own` and those that it began."""
    shares: dict[str, float] = {}
    for number, process in after.items():
        earlier = before.get(number)
        share = (process.seconds - (earlier.seconds if earlier else 0.0)) / seconds
        if share >= BUSY and not _descends(number, own, after):
            shares[process.name] = round(shares.get(process.name, 0.0) + share, 2)
    return shares


def _descends(number: int, ancestor: int, processes: dict[int, Process]) -> bool:
    """Return whether a process is `ancestor` or was begun by it."""
    while number in processes and number != ancestor:
        number = processes[number].parent
    return number == ancestor
