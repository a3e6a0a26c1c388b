"""Parts that all loggers share: their protocol, the description of a run, groups of metrics, a run's identity with a service."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rljax.core.errors import ConfigError
from rljax.run.files.outputs import atomic_file
from rljax.run.files.scores import SCORES

MAX_LOGGED_SEEDS = 64
"""Largest number of seeds whose own metrics loggers get; with more they get only aggregates. metrics.jsonl has every seed."""

GROUPS = {"episode": "return", "eval": "evaluation", "perf": "speed"}
"""Groups of metrics by the prefix of their names; any other prefix is a group of its own."""

ORDER = ("return", "evaluation", "losses", "diagnostics")
"""Groups that come first; the others follow in the order of their names, the speed last."""


class RunStart(NamedTuple):
    """Description of a run that a logger gets when the run starts or is resumed.

    Attributes:
        name: name of the run: its folder's, or the algorithm and the environment.
        folder: the run's folder; None if nothing is saved.
        hyperparameters: fields of the configuration, as plain values.
        step: number of environment steps taken; more than 0 for a resumed run. Records of later steps that were logged before a
            kill are logged again.
        resumed: whether the run is resumed.
    """

    name: str
    folder: Path | None
    hyperparameters: dict[str, Any]
    step: int
    resumed: bool


class Logger(Protocol):
    """Methods of a logger. To use your own: `fit(config, loggers=[MyLogger()])`.

    A logger may also have these methods:

    - `histograms(step, trees)` is called about 50 times in a run with `{"parameters": tree of arrays, "gradients": tree of
      arrays}`. These gradients are Adam's first moment: the mean of the clipped gradients over about the last ten steps.
    - `flush()` is called before a checkpoint is saved, and writes what the logger holds back. A run that is killed is resumed at
      its last checkpoint, and does not log again what came before.
    - `failed()` is called before `close` if the run ended with an error.
    - `media(step, name, path)` is called by `log_run` for each picture (.png) and video (.gif, .mp4) of a run.
    - `unlogged(run, steps)` is called by `log_run` before `start`, and returns those of the steps to log, all but those that are
      logged already. Without it, all records are logged.
    """

    def start(self, run: RunStart) -> None: ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log a record; `step` is in environment steps, and values may be NaN (if no episode ended, say)."""
        ...

    def close(self) -> None: ...


def with_seeds(metrics: Mapping[str, float], by_seed: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics with the scores of each seed, arrays or lists `[S]` with None for NaN, added as `seed_N/...`.

    With too many seeds, none are added.
    """
    scores = {name: by_seed[name] for name in SCORES if name in by_seed and len(by_seed[name]) <= MAX_LOGGED_SEEDS}
    each = {f"seed_{i}/{name}": math.nan if x is None else float(x) for name, xs in scores.items() for i, x in enumerate(xs)}
    return {**metrics, **each}


def split_seed(name: str) -> tuple[int | None, str]:
    """Return the seed and the metric of a name: `(3, "eval/return")` for `seed_3/eval/return`, `(None, name)` for others."""
    match = re.fullmatch(r"seed_(\d+)/(.+)", name)
    return (None, name) if match is None else (int(match[1]), match[2])


def layout(names: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the charts in which to draw metrics: group -> title -> regular expression of the names drawn in that chart.

    The values of all seeds are drawn in the chart of their metric, and metrics that differ only in a number at their end in one.
    A chart depends on its title alone, so that runs of one and of many seeds, or with other metrics beside it, share it.
    """
    groups: dict[str, dict[str, str]] = {}
    for title in sorted({re.sub(r"_\d+$", "", split_seed(name)[1]) for name in names}):
        prefix = title.partition("/")[0]
        group = ("losses" if "loss" in title else "diagnostics") if prefix == "train" else GROUPS.get(prefix, prefix)
        groups.setdefault(group, {})[title] = rf"(seed_\d+/)?{re.escape(title)}(_\d+)?$"
    rank = {group: i for i, group in enumerate(ORDER)}
    return dict(sorted(groups.items(), key=lambda item: (item[0] == "speed", rank.get(item[0], len(rank)), item[0])))


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that are known."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def folder_of(run: RunStart) -> Path:
    """Return the run's folder; if the run saves nothing, create one for the logger under `runs/`."""
    folder = run.folder or Path("runs") / run.name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def forgotten(run: RunStart, service: str, identity: str, place: str) -> ConfigError:
    """Return the error of a service that has no run of this identity any more."""
    file = "" if run.folder is None else f"; to send it as a new run, delete {run.folder / f'.{service}_id'}"
    return ConfigError(f"log = {service!r}: {place} has no run {identity} any more{file}")


def recall_identity(run: RunStart, service: str, make: Callable[[], str], place: str = "") -> str:
    """Return the run's identity with a service, made anew the first time.

    It is kept in the run's folder, one for each place (a server, say), so that a run that is resumed or sent again keeps it.
    """
    if run.folder is None:
        return make()
    file = run.folder / f".{service}_id"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    known = {at: identity for identity, _, at in (line.partition(" ") for line in lines)}
    if place not in known:
        known[place] = make()
        with atomic_file(file) as aside:  # a full disk leaves the identities known so far
            aside.write_text("".join(f"{identity} {at}".rstrip() + "\n" for at, identity in known.items()), encoding="utf-8")
    return known[place]
