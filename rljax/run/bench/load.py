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
"""Load average before a benchmark from which on the machine counts as busy, where nothing else tells of other programs."""

UNCERTAIN = 0.05
"""Share of the machine's processor time by which the kernel's count of it may differ from the sum over its processes."""

GONE = "processes that have ended or cannot be seen"
"""Name of busy processes that are in no table at the end."""


class Process(NamedTuple):
    """A process as `/proc` shows it: its name, its parent and the seconds of processor time that it has used."""

    name: str
    parent: int
    seconds: float


@contextlib.contextmanager
def noted_load() -> Iterator[dict[str, Any]]:
    """Print the load average before and after a benchmark, and a warning if another process was busy.

    Gives a dictionary that has at the end `start` and `end`, load averages of a minute (not on Windows), and `busy`, the share of
    a core that each busy process used, by its name, and `GONE` for those that ended before the benchmark did. Where there is no
    `/proc`, only the load average before tells of other programs.
    """
    before, used, own_used, started = read_processes(), read_used(), _own_seconds(), time.perf_counter()
    noted: dict[str, Any] = {} if (load := _load_average()) is None else {"start": load}
    # A load average is of the last minute, so it also tells of programs that have ended, such as the benchmark before.
    loaded = not before and noted.get("start", 0.0) >= LOADED
    if loaded:
        print(f"warning: load average {noted['start']:.2f} before the benchmark begins", file=sys.stderr)
    yield noted
    if (load := _load_average()) is not None:
        noted["end"] = load
    after, used, own_used = read_processes(), read_used() - used, _own_seconds() - own_used
    own, seconds = os.getpid(), time.perf_counter() - started
    noted["busy"] = busy_shares(before, after, own, seconds) | gone_share(before, after, own, seconds, used, own_used)
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


def read_used(proc: Path = PROC) -> float:
    """Return the seconds that the processors of the machine have worked, all together; 0 where there is no `/proc`."""
    try:
        _, user, nice, system, *_ = (proc / "stat").read_text().splitlines()[0].split()
    except (OSError, IndexError, ValueError):
        return 0.0
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """Return the processor time of this process and of those that it began and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def busy_shares(before: dict[int, Process], after: dict[int, Process], own: int, seconds: float) -> dict[str, float]:
    """Return the shares of a core of the processes that were busy, by name: not of process `own` and those that it began."""
    shares: dict[str, float] = {}
    for number, process in after.items():
        share = _seconds_since(before, number, process) / seconds
        if share >= BUSY and not _descends(number, own, after):
            shares[process.name] = round(shares.get(process.name, 0.0) + share, 2)
    return shares


def gone_share(
    before: dict[int, Process], after: dict[int, Process], own: int, seconds: float, used: float, own_used: float
) -> dict[str, float]:
    """Return the share of a core of the processes that are in no table at the end, if they were busy.

    It is what is left of the processor time `used` on the machine without `own_used`, that of process `own` and of those that it
    began and that have ended, and without that of all other processes in the table.
    """
    there = sum(_seconds_since(before, number, process) for number, process in after.items() if number != own)
    gone = used - own_used - there
    return {GONE: round(gone / seconds, 2)} if gone >= max(BUSY * seconds, UNCERTAIN * used) else {}


def _seconds_since(before: dict[int, Process], number: int, process: Process) -> float:
    """Return the processor time of a process since a table."""
    earlier = before.get(number)
    return process.seconds - (earlier.seconds if earlier else 0.0)


def _descends(number: int, ancestor: int, processes: dict[int, Process]) -> bool:
    """Return whether a process is `ancestor` or was begun by it."""
    while number in processes and number != ancestor:
        number = processes[number].parent
    return number == ancestor
