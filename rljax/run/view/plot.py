"""Learning curves: the interquartile mean over seeds with a bootstrap interval, ready to print.

The statistics are those of Agarwal et al., "Deep RL at the edge of the statistical precipice" (2021), computed with SciPy's
`trim_mean` and `bootstrap`. rliable computes the same numbers (a test compares them) one resample at a time, over 100 times
slower, ignores its random state, and its version 1.2.0 cannot be imported beside pandas 3.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.core.errors import ConfigError, RljaxWarning, check_whole, printable
from rljax.run.files.outputs import atomic_file, output_path
from rljax.run.view.curves import Curves, common_grid, on_grid
from rljax.run.view.lines import Group, Source, group_sources, leave_out, read_sources

SUFFIXES = (".png", ".svg", ".pdf")
POINTS = 100
"""Largest number of points of a curve: fewer than the records of a long run, so that noisy returns are averaged."""

ABREAST = 3
"""Largest number of panels beside each other."""

MOST_IN_A_COLUMN = 18
"""Largest number of labels in one column of a legend."""

LEGEND_WIDTH = 30
"""Largest number of characters of a label in one line of a legend; longer labels take several lines."""

DIGITS = 8
"""Number of significant digits of a number at a tick, unless its neighbours are equal in so many."""

CONFIDENCE = 0.95
RESAMPLES = 2000

TITLES = {
    "eval/rating": "Elo rating in the pool",
    "eval/return": "return (evaluation)",
    "eval/length": "episode length (evaluation)",
    "episode/return": "return (training episodes)",
    "episode/length": "episode length (training episodes)",
    "episode/count": "episodes ended",
    "perf/steps_per_second": "environment steps per second",
}

# Okabe and Ito's colours, which colour-blind readers can distinguish, also in grey, without the yellow, which is too pale for a
# line; then a brown, a violet and a dark green, no nearer to any of these than two of these are to each other.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#662C0F", "#7B2FFF", "#005A46")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
MARKERS = (None, "s", "^", "D", "v", "P", "X", "*")

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
    "svg.hashsalt": "rljax",  # so that the same plot gives the same file
    "text.parse_math": False,  # a `$` in a label is a character like any other
}

# No date, so that the same plot gives the same file.
METADATA: Any = {".png": None, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


class Curve(NamedTuple):
    """Line of a plot: G points over the seeds of equal configurations.

    Attributes:
        label: text that distinguishes the line from the others.
        num_seeds: number of seeds n.
        steps: environment steps, f64 `[G]`.
        center: interquartile mean over seeds, f64 `[G]`.
        low: lower bound of its 95 % bootstrap interval, f64 `[G]`; equal to `center` with one seed.
        high: upper bound of the interval, likewise.
        panel: the environment, which has a panel of its own; None if unknown.
    """

    label: str
    num_seeds: int
    steps: np.ndarray
    center: np.ndarray
    low: np.ndarray
    high: np.ndarray
    panel: str | None = None


class Plot(NamedTuple):
    """A plot that was written: its file, metric and lines. Notebooks show it."""

    path: Path
    metric: str
    curves: list[Curve]

    def _repr_png_(self) -> bytes | None:
        return self.path.read_bytes() if self.path.suffix.lower() == ".png" and self.path.exists() else None


def plot(
    runs: Any,
    out: str | os.PathLike[str] = "curves.png",
    *,
    metric: str | None = None,
    points: int = POINTS,
    steps_per_iteration: int | Mapping[str, int] | None = None,
) -> Plot:
    """Draw learning curves of runs, or of metrics, into a PNG, SVG or PDF file. An existing file is replaced.

    Runs whose configurations differ only in `seed` are one line: the interquartile mean over all their seeds, with its 95 %
    bootstrap interval. It is drawn where all of these seeds are known, on a grid common to all lines of a panel. Each environment
    has a panel. A folder that is not a run, or a run without a value of the metric so far, is left out with a warning.

    Args:
        runs: one or more run folders; or the metrics of `make_train` or `fit`, a dictionary of arrays `[iterations]` or
            `[seeds, iterations]`; or `{label: ...}` with run folders or metrics for each line.
        out: file to write; its suffix gives the format.
        metric: name of the metric, such as "episode/return"; if None, "eval/return" if every line has it, else "episode/return".
        points: largest number of points of the grid.
        steps_per_iteration: `config.steps_per_iteration` for metrics (or a dictionary with that of each label); without it the
            axis counts iterations.

    Raises:
        ConfigError: there is nothing to plot or nothing recorded yet, there is no such metric, two runs have the same seed, or
            `out` is not allowed.
    """
    path = output_path(out, SUFFIXES)
    check_whole(2, points=points)
    sources = read_sources(runs, steps_per_iteration)
    if metric is None:
        metric = "eval/return" if all("eval/return" in source.metrics for source in sources) else "episode/return"
    sources = _with_values(sources, metric)
    _warn_of_ends(sources, metric)
    groups = group_sources(sources)
    panels = list(dict.fromkeys(group.panel for group in groups))
    lines = [line for panel in panels for line in _lines([g for g in groups if g.panel == panel], metric, points)]
    titles = [panel or "" for panel in panels]
    algorithms = {s.config.algorithm.upper() for s in sources if s.config is not None}
    if len(panels) == 1:
        # A single algorithm is named in the title; several are named in the legend.
        titles = [f"{algorithms.pop()} on {titles[0]}" if len(algorithms) == 1 and titles[0] else titles[0]]
    iterations = not steps_per_iteration and any(source.config is None for source in sources)
    _draw(path, lines, metric, titles, "iterations" if iterations else "environment steps")
    return Plot(path, metric, lines)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half of `values` `[S, G]` over seeds, f64 `[G]`."""
    from scipy import stats

    return stats.trim_mean(values, 0.25, axis=0)


def bootstrap_interval(
    values: np.ndarray, confidence: float = CONFIDENCE, resamples: int = RESAMPLES
) -> tuple[np.ndarray, np.ndarray]:
    """Return the percentile bootstrap interval of the interquartile mean over seeds of `values` `[S, G]`: two f64 `[G]`.

    Seeds are resampled with replacement, whole curves at a time; the random numbers are the same in each call.
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


def _lines(groups: list[Group], metric: str, points: int) -> list[Curve]:
    """Return the curves of one panel."""
    lines = []
    for group in groups:
        known = [_known_curves(source, metric) for source in group.sources]
        # Each line has a grid of its own: on that of another, it would have points where nothing was measured.
        grid = common_grid(np.concatenate([c.steps for c in known]), points)
        values = np.concatenate([on_grid(c, grid) for c in known])
        everywhere = np.isfinite(values).all(axis=0)
        if not everywhere.any():
            names = ", ".join(source.name for source in group.sources)
            raise ConfigError(f"{names}: no steps at which '{metric}' is known for all seeds; plot fewer of them together")
        values = values[:, everywhere]
        low, high = bootstrap_interval(values)
        lines.append(Curve(group.label, len(values), grid[everywhere], interquartile_mean(values), low, high, group.panel))
    return lines


def _with_values(sources: list[Source], metric: str) -> list[Source]:
    """Return the sources that know a value of the metric; warn of the others."""
    found: list[Source] = []
    left_out: list[str] = []
    for source in sources:
        if np.isfinite(source.curves(metric).values).any():
            found.append(source)
        else:
            left_out.append(f"{source.name}: no value of '{metric}' is known yet")
    leave_out(left_out, found)
    return found


def _warn_of_ends(sources: list[Source], metric: str) -> None:
    """Warn of seeds without any value, and of those whose values end long before those of the other seeds of their run, such as
    diverged ones.

    A tenth of the run is no reason: the last episode of a seed may be a long one.
    """
    for source in sources:
        steps, values = source.curves(metric)
        known = np.isfinite(values)
        for seed in np.flatnonzero(~known.any(axis=1)):
            missing = f"{source.name}: seed_index {seed} has no value of '{metric}'"
            warnings.warn(f"{missing}, and the line is that of the other seeds", RljaxWarning, stacklevel=3)
        last = np.where(known, steps, 0).max(axis=1)
        for seed in np.flatnonzero(known.any(axis=1) & (last < 0.9 * last.max())):
            ends = f"{source.name}: seed_index {seed} has no value of '{metric}' after step {last[seed]:,}"
            warnings.warn(f"{ends}, and a curve is drawn only where all of its seeds have values", RljaxWarning, stacklevel=3)


def _known_curves(source: Source, metric: str) -> Curves:
    """Return the curves of the seeds with any known value, at the steps where at least one of them is known."""
    steps, values = source.curves(metric)
    known = np.isfinite(values)
    return Curves(steps[known.any(axis=0)], values[known.any(axis=1)][:, known.any(axis=0)])


def line_style(index: int) -> dict[str, Any]:
    """Return colour, dashes and marker of a line; the first 320 lines differ, the first ten in colour."""
    colors, dashes = len(COLORS), len(DASHES)
    return {
        "color": COLORS[index % colors],
        "linestyle": DASHES[index // colors % dashes],
        "marker": MARKERS[index // (colors * dashes) % len(MARKERS)],
    }


def _draw(path: Path, lines: list[Curve], metric: str, titles: list[str], unit: str) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(line.panel for line in lines))
    labels = list(dict.fromkeys(line.label for line in lines))
    texts = {label: _legend_label(label, lines) for label in labels}
    rows = [text.count("\n") + 1 for text in texts.values()]
    # Beside the panels, as inside it would cover the lines.
    beside = len(labels) > 3 or (len(labels) > 1 and (len(panels) > 1 or max(rows) > 1))
    high = -(-len(panels) // ABREAST)
    wide = -(-len(panels) // high)
    size = (5.0, 3.4) if len(panels) == 1 else (3.4 * wide, 2.6 * high + 0.4)
    columns = -(-len(labels) // MOST_IN_A_COLUMN)
    each = -(-len(labels) // columns)  # matplotlib fills columns evenly
    tallest = max(0.13 * sum(rows[i : i + each]) + 0.11 * each for i in range(0, len(labels), each))
    with matplotlib.rc_context(STYLE):
        # Use the object interface: pyplot would keep the figure in memory and choose a backend for a screen.
        figure = Figure(figsize=(size[0] + 2.5 * columns * beside, max(size[1], tallest * beside)), layout="constrained")
        every = figure.subplots(high, wide, squeeze=False).ravel()
        handles: dict[str, Any] = {}  # by label: those that matplotlib keeps lack labels that begin with an underscore
        for axes, panel, title in zip(every, panels, titles, strict=False):
            here = [line for line in lines if line.panel == panel]
            for line in here:
                handles[line.label] = _draw_line(axes, line, line_style(labels.index(line.label)), len(labels))
            _decorate(axes, max(line.steps[-1] for line in here), title, unit)
            if not beside and len(here) > 1:
                # Its background keeps the text readable where every place has a line.
                axes.legend(list(handles.values()), [texts[label] for label in handles], edgecolor="none", framealpha=0.8)
        for axes in every[len(panels) :]:
            axes.set_axis_off()
        if len(panels) == 1:
            every[0].set_ylabel(TITLES.get(metric, printable(metric)))
        else:
            figure.supylabel(TITLES.get(metric, printable(metric)), fontsize=10)
        if beside:
            shown = [handles[label] for label in labels]
            figure.legend(shown, list(texts.values()), loc="outside right center", frameon=False, ncols=columns)
        figure.supxlabel(_caption(lines), fontsize=7, color="0.35")
        with atomic_file(path) as aside:
            figure.savefig(aside, format=path.suffix.lower()[1:], dpi=300, metadata=METADATA[path.suffix.lower()])


def _draw_line(axes: Any, line: Curve, style: dict[str, Any], count: int) -> Any:
    """Draw a line and its band; return the line for the legend."""
    few = len(line.steps) <= 20
    if line.num_seeds > 1:
        # Many bands on top of each other would hide the lines.
        alpha = 0.2 if count <= 6 else 0.1
        axes.fill_between(line.steps, line.low, line.high, color=style["color"], alpha=alpha, linewidth=0)
        if len(line.steps) == 1:  # a band of no width
            axes.vlines(line.steps, line.low, line.high, color=style["color"], alpha=0.5)
    marker = style["marker"] or ("o" if few else None)
    every = 1 if few else max(1, len(line.steps) // 8)
    (drawn,) = axes.plot(
        line.steps,
        line.center,
        **(style | {"marker": marker}),
        markevery=every,
        markersize=3,
        linewidth=1.5,
        zorder=3,
    )
    return drawn


def _legend_label(label: str, lines: list[Curve]) -> str:
    """Return a label with the number of seeds, which may differ between panels; a long one has several lines."""
    counts = sorted({line.num_seeds for line in lines if line.label == label})
    text = _wrap(label)
    return f"{text} (n = {counts[0]})" if len(counts) == 1 else f"{text} (n = {counts[0]} to {counts[-1]})"


def _wrap(label: str) -> str:
    """Break a long label into lines: at spaces, and in names of folders also after `_` and `/`."""
    if len(label) <= LEGEND_WIDTH:
        return label
    lines = [""]
    for word in re.findall(r"\S+\s*|\s+", label):
        parts = [word] if len(word.rstrip()) <= LEGEND_WIDTH else re.findall(r"[^_/]+[_/]*|[_/]+", word)
        for piece in (part[i : i + LEGEND_WIDTH] for part in parts for i in range(0, len(part), LEGEND_WIDTH)):
            if len((lines[-1] + piece).rstrip()) <= LEGEND_WIDTH:
                lines[-1] += piece
            else:
                lines.append(piece)
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _decorate(axes: Any, last_step: float, title: str, what: str) -> None:
    """Add axis labels with units, readable ticks and a light grid."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    unit, word = next(((u, w) for u, w in ((1e9, " (billions)"), (1e6, " (millions)")) if last_step >= u), (1.0, ""))
    axes.set_xlabel(f"{what}{word}")
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _tick(x / unit)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _tick(y, _digits(axes.yaxis.get_majorticklocs()))))
    axes.margins(x=0.02)
    axes.grid(color="0.9", linewidth=0.6)
    if title:
        axes.set_title(title, loc="left")


def _tick(value: float, digits: int = DIGITS) -> str:
    """Format a number for an axis, `12,000` or `0.25`, with a real minus sign."""
    return f"{value:,.{digits}g}".replace("-", "\N{MINUS SIGN}")


def _digits(ticks: Sequence[float]) -> int:
    """Return the number of significant digits by which neighbouring ticks differ, at least `DIGITS`."""
    step = min(np.diff(ticks), default=0.0)
    if not (step > 0 and np.isfinite(step)):
        return DIGITS
    # Two more: steps such as 2.5 have a digit after their first, and 10 has a digit more than its logarithm.
    needed = math.ceil(math.log10(max(map(abs, ticks)) / step)) + 2
    return min(max(DIGITS, needed), np.finfo(np.float64).precision)


def _caption(lines: list[Curve]) -> str:
    counts = {line.num_seeds for line in lines}
    if counts == {1}:
        return "one seed" if len(lines) == 1 else "one seed each"
    seeds = f"n = {next(iter(counts))} seeds" if len(counts) == 1 else "n seeds"
    one = "; n = 1: no interval" if 1 in counts else ""
    return f"line: interquartile mean over {seeds}; band: its 95 % bootstrap confidence interval{one}"
