"""Learning curves: the interquartile mean over seeds with a bootstrap interval, ready to print.

Statistics of Agarwal et al., "Deep RL at the edge of the statistical precipice" (2021). They are SciPy's `trim_mean` and
`bootstrap` and not rliable's, which computes the same numbers (a test compares them) one resample at a time, over 100 times
slower, ignores the random state it is given, and whose version 1.2.0 cannot be imported beside pandas 3.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.core.config import OBJECT_PREFIX
from rljax.core.errors import ConfigError
from rljax.run.curves import Curves, History, common_grid, curves, on_grid, read_metrics
from rljax.run.folder import RunInfo, read_config, read_info
from rljax.run.outputs import output_path, written_aside

SUFFIXES = (".png", ".svg", ".pdf")
POINTS = 100
"""Points of a curve: fewer than the records of a long run, so that noisy returns are averaged into something readable."""

CONFIDENCE = 0.95
RESAMPLES = 2000

TITLES = {
    "eval/rating": "Elo rating in the pool",
    "eval/return": "return (greedy evaluation)",
    "eval/length": "episode length (greedy evaluation)",
    "episode/return": "return (training episodes)",
    "episode/length": "episode length (training episodes)",
    "episode/count": "episodes ended",
    "perf/steps_per_second": "environment steps per second",
}

# Okabe and Ito's colours, told apart by colour-blind readers and in grey, without the yellow, which is too pale for a line.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", ":", "-.")

STYLE: Any = {
    "font.size": 9,
    "axes.labelsize": 10,
    "axes.titlesize": 10,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "pdf.fonttype": 42,  # publishers refuse the default, Type 3
    "svg.fonttype": "path",
    "svg.hashsalt": "rljax",  # the same plot is the same file
}

# A date would make each file differ.
METADATA: Any = {".png": None, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


class Curve(NamedTuple):
    """One line of a plot: G points over the seeds of equal configurations.

    Attributes:
        label: what sets it apart from the other lines.
        num_seeds: n.
        steps: f64 [G] environment steps.
        center: f64 [G] interquartile mean over seeds.
        low, high: f64 [G] bounds of its 95 % bootstrap interval; equal to `center` with one seed.
    """

    label: str
    num_seeds: int
    steps: np.ndarray
    center: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Plot(NamedTuple):
    """A plot that was written: its file, the metric and the lines."""

    path: Path
    metric: str
    curves: list[Curve]


class _Source(NamedTuple):
    """A run to plot."""

    folder: str
    config: Any
    info: RunInfo
    history: History


def plot(
    runs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    metric: str | None = None,
    points: int = POINTS,
) -> Plot:
    """Draw learning curves of runs into a PNG, SVG or PDF file. A file of that name is replaced.

    Runs whose configurations are equal but for `seed` are one line: the interquartile mean over all their seeds, with its
    95 % bootstrap interval. It is drawn where all of these seeds are known, on a grid common to all lines.

    Args:
        runs: run folders.
        out: the file; its suffix says the format.
        metric: such as "episode/return"; the default is "eval/return" where every run has it, else "episode/return".
        points: of the grid, at most.

    Raises:
        ConfigError: no run there, no such metric, nothing recorded yet, two runs of the same seed, or a bad `out`.
    """
    path = output_path(out, SUFFIXES)
    if not runs:
        raise ConfigError("nothing to plot: give at least one run folder")
    if points < 2:
        raise ConfigError(f"points = {points}: expected a whole number > 1")
    sources = [_read(run) for run in runs]
    if metric is None:
        evaluated = all(any(record.get("eval/return") is not None for record in s.history.records) for s in sources)
        metric = "eval/return" if evaluated else "episode/return"
    lines = _lines(sources, metric, points)
    titles = {f"{s.config.algorithm.upper()} on {shown(s.config.env)}" for s in sources}
    _draw(path, lines, metric, titles.pop() if len(titles) == 1 else None)
    return Plot(path, metric, lines)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """The mean of the middle half of `values` [S, G] over seeds: f64 [G]."""
    from scipy import stats

    return stats.trim_mean(values, 0.25, axis=0)


def bootstrap_interval(
    values: np.ndarray, confidence: float = CONFIDENCE, resamples: int = RESAMPLES
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap interval of the interquartile mean over seeds: two f64 [G] for `values` [S, G].

    Seeds are drawn anew with replacement, whole curves at a time; the random numbers are the same in each call.
    """
    if len(values) == 1:
        return values[0], values[0]
    from scipy import stats

    result = stats.bootstrap(
        (values,),
        lambda sample, axis: stats.trim_mean(sample, 0.25, axis=axis),
        axis=0,
        confidence_level=confidence,
        n_resamples=resamples,
        batch=max(1, 4_000_000 // values.size),  # values in memory at once
        method="percentile",
        rng=np.random.default_rng(0),
    )
    return result.confidence_interval.low, result.confidence_interval.high


def _read(run: str | os.PathLike[str]) -> _Source:
    folder = Path(run)
    return _Source(str(run), read_config(folder), read_info(folder), read_metrics(folder))


def _lines(sources: list[_Source], metric: str, points: int) -> list[Curve]:
    groups: dict[str, list[_Source]] = {}
    for source in sources:
        # A fork goes on from what another run learned, so it is no further seed of the same experiment.
        same = {name: value for name, value in _fields(source.config).items() if name != "seed"}
        groups.setdefault(repr((sorted(same.items()), source.info.forked_from)), []).append(source)
    known = [[_known(source, metric) for source in group] for group in groups.values()]
    grid = common_grid(np.concatenate([c.steps for group in known for c in group]), points)
    lines = []
    for label, group, group_known in zip(_labels(list(groups.values())), groups.values(), known, strict=True):
        _check_seeds(group)
        values = np.concatenate([on_grid(c, grid) for c in group_known])
        everywhere = np.isfinite(values).all(axis=0)
        if not everywhere.any():
            names = ", ".join(source.folder for source in group)
            raise ConfigError(f"{names}: no steps at which '{metric}' is known for all seeds; plot fewer of them together")
        values = values[:, everywhere]
        low, high = bootstrap_interval(values)
        lines.append(Curve(label, len(values), grid[everywhere], interquartile_mean(values), low, high))
    return lines


def _known(source: _Source, metric: str) -> Curves:
    """The curves of the seeds that have any value, at the steps where one of them has."""
    steps, values = curves(source.folder, metric, source.history)
    known = np.isfinite(values)
    if not known.any():
        raise ConfigError(f"{source.folder}: no value of '{metric}' is known yet")
    return Curves(steps[known.any(axis=0)], values[known.any(axis=1)][:, known.any(axis=0)])


def _check_seeds(group: list[_Source]) -> None:
    """The same seed twice is the same run twice: its copies would make the interval narrower than it is."""
    owner: dict[int, str] = {}
    for source in group:
        for seed in range(source.config.seed, source.config.seed + (source.info.seeds or 1)):
            if seed in owner:
                raise ConfigError(
                    f"{owner[seed]} and {source.folder} are the same configuration with the same seed {seed}: plot one of them"
                )
            owner[seed] = source.folder


def _fields(config: Any) -> dict[str, Any]:
    """All fields of a configuration, those of tables by dotted names (`network.hidden`)."""
    fields = {"algorithm": config.algorithm}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Mapping):
            fields |= {f"{field.name}.{key}": entry for key, entry in value.items()}
        else:
            fields[field.name] = value
    return fields


def _labels(groups: list[list[_Source]]) -> list[str]:
    """What sets the groups apart: the fields that differ where they are few, else the names of their folders."""
    fields = [_fields(group[0].config) for group in groups]
    names = [name for name in dict.fromkeys(n for f in fields for n in f) if name != "seed"]
    differing = [name for name in names if len({repr(f.get(name, "default")) for f in fields}) > 1]
    labels = [", ".join(f"{name} = {shown(f.get(name, 'default'))}" for name in differing) for f in fields]
    if len(differing) <= 3 and len(set(labels)) == len(labels) and max(map(len, labels)) <= 60:
        return labels
    folders = [Path(group[0].folder).resolve().name for group in groups]
    return folders if len(set(folders)) == len(folders) else [group[0].folder for group in groups]


def shown(value: Any) -> str:
    """A field's value, as a person reads it."""
    if isinstance(value, str):
        return value.removeprefix(OBJECT_PREFIX)
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else json.dumps(value) if isinstance(value, (bool, int, tuple)) else str(value)


def _draw(path: Path, lines: list[Curve], metric: str, title: str | None) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        beside = len(lines) > 6  # the legend: inside it would cover the lines
        # The object interface: pyplot would keep the figure, and choose a backend for a screen.
        figure = Figure(figsize=(7.5 if beside else 5.0, 3.4), layout="constrained")
        axes = figure.add_subplot()
        for i, line in enumerate(lines):
            color, dashes = COLORS[i % len(COLORS)], DASHES[i // len(COLORS) % len(DASHES)]
            label = f"{line.label} (n = {line.num_seeds})"
            marker = "o" if len(line.steps) <= 20 else None
            if line.num_seeds > 1:
                axes.fill_between(line.steps, line.low, line.high, color=color, alpha=0.2, linewidth=0)
            axes.plot(
                line.steps, line.center, dashes, color=color, marker=marker, markersize=3, linewidth=1.5, label=label, zorder=3
            )
        _decorate(axes, max(line.steps[-1] for line in lines), metric, title)
        if beside:
            figure.legend(loc="outside right center", frameon=False)
        elif len(lines) > 1:
            axes.legend(frameon=False)
        figure.supxlabel(_caption(lines), fontsize=7, color="0.35")
        with written_aside(path) as aside:
            figure.savefig(aside, format=path.suffix.lower()[1:], dpi=300, metadata=METADATA[path.suffix.lower()])


def _decorate(axes: Any, last_step: float, metric: str, title: str | None) -> None:
    """Axis labels with units, ticks that are easy to read, a light grid."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    unit, word = next(((u, w) for u, w in ((1e9, " (billions)"), (1e6, " (millions)")) if last_step >= u), (1.0, ""))
    axes.set_xlabel(f"environment steps{word}")
    axes.set_ylabel(TITLES.get(metric, metric))
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _tick(x / unit)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _tick(y)))
    axes.margins(x=0.02)
    axes.grid(color="0.9", linewidth=0.6)
    if title is not None:
        axes.set_title(title, loc="left")


def _tick(value: float) -> str:
    """`12,000`, `0.25`, with a real minus sign."""
    return f"{value:,.8g}".replace("-", "\N{MINUS SIGN}")


def _caption(lines: list[Curve]) -> str:
    counts = {line.num_seeds for line in lines}
    if counts == {1}:
        return "one seed" if len(lines) == 1 else "one seed each"
    seeds = f"n = {next(iter(counts))} seeds" if len(counts) == 1 else "n seeds"
    one = "; n = 1: no interval" if 1 in counts else ""
    return f"line: interquartile mean over {seeds}; band: its 95 % bootstrap confidence interval{one}"
