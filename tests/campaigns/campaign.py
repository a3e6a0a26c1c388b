"""What the campaigns share: a record of what they found, and how they are begun."""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from rljax.core.errors import did_you_mean
from rljax.run.reproduce.report import hardware_table, source_commit, versions, write_record

RECORD = Path(__file__).parents[2] / "results" / "campaigns.json"


class Hangs(BaseException):
    """Not an Exception: nobody may catch it on the way."""


@contextlib.contextmanager
def hangs_after(seconds: float, waiting: float = 600) -> Iterator[None]:
    """Raise `Hangs` after as many seconds of the processor's time, so that a busy machine makes no failures, or of waiting."""

    def give_up(*_: Any) -> None:
        raise Hangs

    before = [(name, signal.signal(name, give_up)) for name in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, waiting)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for name, handler in before:
            signal.signal(name, handler)


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for runs, in memory where there is room for it: most of a small save would wait for the disk.

    A killed process loses nothing that it has written to either.
    """
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**30
    return tempfile.TemporaryDirectory(dir=memory if roomy and "TMPDIR" not in os.environ else None)


def keep_compiled() -> None:
    """Every process compiles the same programs: those of the first serve all, and need not be fast."""
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", os.path.join(tempfile.gettempdir(), "rljax-campaign-xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_disable_most_optimizations", True)


class Campaign:
    """Counts what came of each try; what may not happen is a failure, kept with its seed.

    Attributes:
        name: of the campaign, a key of the record's facts: its module, and after a colon the kinds where it is of some only.
        seed: of the first try; try i has seed + i, unless many are drawn from each seed.
        drawn: from how many seeds tries were drawn, if not each from one of its own.
        full_size: how many tries the whole campaign has, or kills.
        options: those of its command beside the seed and the number of tries.
        more: facts that other campaigns do not have.
        earlier: facts of the same campaign at the same commit that the record had when this one was first recorded.
    """

    def __init__(self, name: str, seed: int, full_size: int, options: Sequence[str] = ()):
        self.name, self.seed, self.full_size, self.options, self.tries = name, seed, full_size, options, 0
        self.counts: collections.Counter[str] = collections.Counter()
        self.failures: list[str] = []
        self.more: dict[str, Any] = {}
        self.earlier: dict[str, Any] | None = None
        self.recorded = False
        self.drawn: int | None = None
        self.slowest = 0.0
        self.began, self.load, self.commit = datetime.datetime.now(datetime.UTC), os.getloadavg(), source_commit()

    def run(self, attempt: Callable[[int], list[str]], tries: int, max_seconds: float | None) -> None:
        """`attempt(seed)` returns what it saw; what it raises is a failure. Ends early after `max_seconds`."""
        started = told = time.monotonic()
        for seed in range(self.seed, self.seed + tries):
            before = time.monotonic()
            try:
                self.counts.update(attempt(seed))
            except Exception as error:
                self.failures.append(f"{self.name} {seed}: {type(error).__name__}: {error}")
                print(self.failures[-1], flush=True)
            now = time.monotonic()
            self.tries, self.slowest = self.tries + 1, max(self.slowest, now - before)
            if now - told > 30:
                told = now
                print(f"{self.name}: {self.tries} of {tries}, {len(self.failures)} failures, {dict(self.counts)}", flush=True)
            if max_seconds is not None and now - started > max_seconds:
                break

    def facts(self) -> dict[str, Any]:
        module = self.name.partition(":")[0]
        command = [
            "python",
            "-m",
            f"tests.campaigns.{module}",
            "--tries",
            str(self.tries),
            "--seed",
            str(self.seed),
            *self.options,
        ]
        return {
            "command": shlex.join(command),
            "date": self.began.isoformat(timespec="seconds"),
            "commit": self.commit,
            "load": [round(x, 2) for x in (*self.load, *os.getloadavg())],
            "seeds": [[self.seed, self.tries if self.drawn is None else self.drawn]],
            "tries": self.tries,
            "full_size": self.full_size,
            **self.more,
            "outcomes": dict(sorted(self.counts.items())),
            "failures": self.failures,
            "slowest_seconds": round(self.slowest, 1),
        }


def record(campaign: Campaign, path: Path, configs: Mapping[str, Any]) -> None:
    """Put a campaign's facts into the record, beside those of the others; date, commit, load and machine are the last one's.

    They add up with those of other seeds at the same commit, and replace any others of the same campaign.
    """
    table: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if not campaign.recorded:  # a campaign may be recorded again and again as it goes on
        campaign.recorded, campaign.earlier = True, table.get("facts", {}).get(campaign.name)
    last = campaign.facts()
    if campaign.earlier is not None and adds_up(campaign.earlier, last):
        last = added(campaign.earlier, last)
    facts: dict[str, Any] = {**table.get("facts", {}), campaign.name: last}
    table = {
        "name": "campaigns",
        "measures": "runs, sweeps and studies that were killed or damaged, and random input: what was lost, and what was told",
        "command": "; ".join(one["command"] for one in facts.values()),
        "note": note(facts),
        "date": last["date"],
        "commit": last["commit"],
        "versions": versions(),
        "hardware": hardware_table(),
        "load": last["load"],
        "seconds": {},
        "seeds": [],
        "budget": 1.0,
        "configs": {**table.get("configs", {}), **configs},
        "raw": {},
        "thresholds": {},
        "summary": {},
        "facts": facts,
    }
    write_record(path, table)


def adds_up(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether two parts of a campaign ran at one clean commit with different seeds."""
    apart = all(a + n <= b or b + m <= a for a, n in earlier["seeds"] for b, m in now["seeds"])
    return apart and earlier["commit"] == now["commit"] and now["commit"] is not None and not now["commit"].endswith("-dirty")


def added(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of two parts of a campaign."""
    both = dict(now)
    for name in ("outcomes", "kills", "causes"):
        if name in earlier or name in now:
            counts = collections.Counter(earlier.get(name, {}))
            counts.update(now.get(name, {}))
            both[name] = dict(sorted(counts.items()))
    for name in ("tries", "seeds", "failures"):
        both[name] = earlier[name] + now[name]
    for name in ("slowest_seconds", "most_memory_bytes"):
        if name in earlier and name in now:
            both[name] = max(earlier[name], now[name])
    both["command"] = f"{earlier['command']}; {now['command']}"
    return both


def note(facts: Mapping[str, Any]) -> str:
    """Which campaigns were smaller than they are meant to be; "" where none was. The parts of one add up at the same commit."""
    campaigns: dict[tuple[str, str | None], dict[str, Any]] = {}
    for name, fact in facts.items():
        campaigns.setdefault((name.partition(":")[0], fact["commit"]), {})[name] = fact
    parts = []
    for of_one in campaigns.values():
        done, meant = sum(map(size, of_one.values())), max(fact["full_size"] for fact in of_one.values())
        if done < meant:
            what = "kills" if any("kills" in fact for fact in of_one.values()) else "tries"
            parts.append(f"{' and '.join(of_one)} ({done:,} of {meant:,} {what})")
    return f"not of the full size: {'; '.join(parts)}" if parts else ""


def size(fact: Mapping[str, Any]) -> int:
    """How many tries a campaign had; of kills, those that were in time."""
    return sum(fact["kills"].values()) if "kills" in fact else int(fact["tries"])


def main(
    run: Callable[..., tuple[Campaign, dict[str, Any]]],
    full_size: int,
    kinds: Sequence[str] = (),
    arguments: Sequence[str] | None = None,
) -> None:
    """`run(tries, seed, max_seconds)` from the command line; it gets the chosen kinds as well where there are any."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=full_size)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-minutes", type=float)
    parser.add_argument("--record", type=Path, default=RECORD)
    if kinds:
        parser.add_argument("--kinds", nargs="+", metavar="KIND", default=kinds, help=f"all unless given: {', '.join(kinds)}")
    options = parser.parse_args(arguments)
    for kind in options.kinds if kinds else ():
        if kind not in kinds:
            sys.exit(f"--kinds: unknown kind {kind!r}: {did_you_mean(kind, kinds)}")
    chosen = [tuple(options.kinds)] if kinds else []
    campaign, configs = run(options.tries, options.seed, options.max_minutes and 60 * options.max_minutes, *chosen)
    record(campaign, options.record, configs)
    print(json.dumps(campaign.facts(), indent=1))
    sys.exit(1 if campaign.failures else 0)
