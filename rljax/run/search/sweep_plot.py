"""Picture of a sweep: heat maps of two or three fields, points of one, or returns against every field of a search."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from rljax.run.files.outputs import atomic_file
from rljax.run.search.plan import Plan, SweepResult
from rljax.run.search.space import Range
from rljax.run.view.lines import format_value
from rljax.run.view.plot import COLORS, METADATA, STYLE

NUMBERS = 100
"""Largest number of cells of a heat map with numbers."""

ABREAST = 4
"""Largest number of heat maps beside each other, unless that would make more rows than columns."""


def draw_sweep(result: SweepResult, path: Path, plan: Plan) -> None:
    """Write the picture of a sweep; an existing file is replaced."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE), atomic_file(path) as aside:
        varied = [name for name, values in plan.space.items() if isinstance(values, Range) or len(values) > 1]
        if plan.search == "grid" and len(varied) >= 2:
            figure = _heat_maps(result, plan, varied)
        else:
            names = varied or list(plan.space)
            figure = Figure(figsize=(min(4.0 * len(names), 14.0), 3.2), layout="constrained")
            axes = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
            for ax, name in zip(axes, names, strict=True):
                _points(ax, result, plan, name)
            axes[0].set_ylabel("return of the final policy")
        suffix = path.suffix.lower()
        figure.savefig(aside, format=suffix[1:], dpi=200, metadata=METADATA[suffix])


def _heat_maps(result: SweepResult, plan: Plan, varied: list[str]) -> Any:
    """Draw heat maps of two fields, one for each value of a third, on one scale.

    Over further fields, which matter least, the best value is taken.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    drawn = sort_by_effect(result, plan, varied)[:3]
    first, second, *third = sorted(drawn, key=lambda name: -len(plan.space[name]))
    tables = best_means(result, plan, [*third, first, second]).reshape(-1, len(plan.space[first]), len(plan.space[second]))
    high = -(-len(tables) // max(ABREAST, math.isqrt(len(tables))))
    wide = -(-len(tables) // high)
    side = 5.6 if len(tables) == 1 else 3.6
    figure = Figure(figsize=(side * wide, 0.75 * side * high), layout="constrained")
    axes = figure.subplots(high, wide, squeeze=False).ravel()
    finite = tables[np.isfinite(tables)]
    scale = Normalize(finite.min(), finite.max())
    for ax, table, value in zip(axes, tables, plan.space[third[0]] if third else [None], strict=False):
        _heat_map(ax, table, scale, plan, first, second)
        if third:
            ax.set_title(f"{third[0]} = {format_value(value)}")
    for ax in axes[len(tables) :]:
        ax.set_axis_off()
    others = [name for name in varied if name not in drawn]
    counted = ", ".join(f"{name} ({len(plan.space[name])} values)" for name in others)
    best = f", the best over the fields that matter least: {counted}" if others else ""
    title = f"mean return of {len(result.seeds)} seed{'s' * (len(result.seeds) > 1)}{best}"
    figure.suptitle(textwrap.fill(title, int(12 * side * wide)), fontsize=10)
    figure.colorbar(ScalarMappable(scale, "viridis"), ax=list(axes), label="return of the final policy", shrink=0.9)
    return figure


def sort_by_effect(result: SweepResult, plan: Plan, varied: list[str]) -> list[str]:
    """Sort the fields of a grid by effect, largest first: by the spread of the best results over their values."""
    effects = {}
    for name in varied:
        best = best_means(result, plan, [name])
        finite = best[np.isfinite(best)]
        # A value with which runs diverge has a larger effect than any finite difference.
        effects[name] = np.inf if np.isneginf(best).any() else np.ptp(finite) if len(finite) else 0.0
    return sorted(varied, key=lambda name: -effects[name])


def best_means(result: SweepResult, plan: Plan, names: list[str]) -> np.ndarray:
    """Return the highest mean return for each combination of values of some fields, with an axis for each field.

    An entry is minus infinity if a run of every cell has diverged, and NaN if no cell has all of its runs.
    """
    table = np.full([len(plan.space[name]) for name in names], np.nan)
    for cell, mean in zip(result.cells, result.means, strict=True):
        place = tuple(plan.space[name].index(cell[name]) for name in names)
        table[place] = np.fmax(table[place], mean)
    return table


def _heat_map(ax: Any, table: np.ndarray, scale: Any, plan: Plan, first: str, second: str) -> None:
    ax.imshow(np.where(np.isfinite(table), table, np.nan), cmap="viridis", norm=scale, aspect="auto")
    diverged = np.isneginf(table)
    ax.imshow(np.where(diverged, 0.8, np.nan), cmap="gray", vmin=0.0, vmax=1.0, aspect="auto")
    if table.size <= NUMBERS:
        for (i, j), value in np.ndenumerate(table):
            finite = np.isfinite(value)
            dark = finite and scale(value) < 0.6
            ax.text(
                j,
                i,
                f"{value:.4g}" if finite else "-" if diverged[i, j] else "",
                ha="center",
                va="center",
                fontsize=8,
                color="white" if dark else "black",
            )
    rows, columns = plan.space[first], plan.space[second]
    labels = [format_value(x) for x in columns]
    crowded = len(columns) > 6 or max(map(len, labels)) * len(columns) > 40
    ax.set_xticks(range(len(columns)), labels, rotation=45 if crowded else 0, ha="right" if crowded else "center")
    ax.set_yticks(range(len(rows)), [format_value(x) for x in rows])
    ax.set_xlabel(second)
    ax.set_ylabel(first)
    ax.spines[:].set_visible(False)


def _points(ax: Any, result: SweepResult, plan: Plan, name: str) -> None:
    """Draw every run as a point, the means of the cells, and a cross on the axis for each cell with a run that diverged."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    values = [cell[name] for cell in result.cells]
    numeric = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in values)
    labels = list(dict.fromkeys(format_value(x) for x in values))
    places = np.array(values, float) if numeric else np.array([labels.index(format_value(x)) for x in values], float)
    returns = np.where(np.isfinite(result.returns), result.returns, np.nan)
    if returns.shape[1] > 1:
        ax.plot(np.repeat(places, returns.shape[1]), returns.ravel(), ".", color="0.6", markersize=4, label="runs")
    order = np.argsort(places, kind="stable")
    style = "o-" if plan.search == "grid" else "o"
    # A cell with a run that diverged has no mean: that of the others would look better than it is.
    means = np.where(np.isfinite(result.means), result.means, np.nan)
    ax.plot(places[order], means[order], style, color=COLORS[0], markersize=4, label="mean")
    lost = places[np.isneginf(result.returns).any(1)]
    if len(lost):  # unclipped points that are none have no bounding box, and leave the axes no room
        below = ax.get_xaxis_transform()
        ax.plot(lost, np.zeros(len(lost)), "x", color=COLORS[1], transform=below, clip_on=False, label="diverged")
        ax.legend(fontsize=7)
    space = plan.space[name]
    if numeric and (space.log if isinstance(space, Range) else min(places) > 0 and max(places) / min(places) >= 30):
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
    if not numeric:
        ax.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
    ax.set_xlabel(name)
    ax.grid(alpha=0.3)
