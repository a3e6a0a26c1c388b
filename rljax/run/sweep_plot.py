"""The picture of a sweep: a heat map of two fields, points of one, or returns against every field of a search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rljax.run.outputs import written_aside
from rljax.run.plot import COLORS, METADATA, STYLE, shown
from rljax.run.space import Range
from rljax.run.sweep import Plan, SweepResult

NUMBERS = 100
"""Cells up to which a heat map has numbers."""


def draw_sweep(result: SweepResult, path: Path, plan: Plan) -> None:
    """Write the picture of a sweep; a file of that name is replaced."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE), written_aside(path) as aside:
        varied = [name for name, values in plan.space.items() if isinstance(values, Range) or len(values) > 1]
        if plan.search == "grid" and len(varied) >= 2:
            figure = Figure(figsize=(5.6, 4.2), layout="constrained")
            _heat_map(figure, result, plan, varied)
        else:
            names = varied or list(plan.space)
            figure = Figure(figsize=(min(4.0 * len(names), 14.0), 3.2), layout="constrained")
            axes = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
            for ax, name in zip(axes, names, strict=True):
                _points(ax, result, plan, name)
            axes[0].set_ylabel("return of the last policy")
        suffix = path.suffix.lower()
        figure.savefig(aside, format=suffix[1:], dpi=200, metadata=METADATA[suffix])


def _heat_map(figure: Any, result: SweepResult, plan: Plan, varied: list[str]) -> None:
    """Of the two fields with most values; of the others the best."""
    ax = figure.subplots()
    first, second = sorted(varied, key=lambda name: -len(plan.space[name]))[:2]
    rows, columns = plan.space[first], plan.space[second]
    table = np.full((len(rows), len(columns)), -np.inf)
    for cell, mean in zip(result.cells, result.means, strict=True):
        i, j = rows.index(cell[first]), columns.index(cell[second])
        table[i, j] = max(table[i, j], mean)
    image = ax.imshow(np.where(np.isfinite(table), table, np.nan), cmap="viridis", aspect="auto")
    ax.set_facecolor("0.8")  # where no run is finite
    if table.size <= NUMBERS:
        low, high = np.nanmin(np.where(np.isfinite(table), table, np.nan)), np.max(table)
        for (i, j), value in np.ndenumerate(table):
            bright = np.isfinite(value) and value > low + 0.6 * (high - low)
            text = f"{value:.4g}" if np.isfinite(value) else "-"
            ax.text(j, i, text, ha="center", va="center", fontsize=8, color="black" if bright else "white")
    ax.set_xticks(range(len(columns)), [shown(x) for x in columns], rotation=45 if len(columns) > 6 else 0)
    ax.set_yticks(range(len(rows)), [shown(x) for x in rows])
    ax.set_xlabel(second)
    ax.set_ylabel(first)
    ax.spines[:].set_visible(False)
    others = [name for name in varied if name not in (first, second)]
    best = f"; the best of {', '.join(others)}" if others else ""
    ax.set_title(f"mean return of {len(result.seeds)} seed{'s' * (len(result.seeds) > 1)}{best}")
    figure.colorbar(image, label="return of the last policy", shrink=0.9)


def _points(ax: Any, result: SweepResult, plan: Plan, name: str) -> None:
    """Every run as a point, and the cells' means."""
    from matplotlib.ticker import NullFormatter

    values = [cell[name] for cell in result.cells]
    numeric = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in values)
    labels = list(dict.fromkeys(shown(x) for x in values))
    places = np.array(values, float) if numeric else np.array([labels.index(shown(x)) for x in values], float)
    returns = np.where(np.isfinite(result.returns), result.returns, np.nan)
    if returns.shape[1] > 1:
        ax.plot(np.repeat(places, returns.shape[1]), returns.ravel(), ".", color="0.6", markersize=4, label="runs")
    order = np.argsort(places, kind="stable")
    style = "o-" if plan.search == "grid" else "o"
    ax.plot(places[order], np.nanmean(returns, 1)[order], style, color=COLORS[0], markersize=4, label="mean")
    space = plan.space[name]
    if numeric and (space.log if isinstance(space, Range) else min(places) > 0 and max(places) / min(places) >= 30):
        ax.set_xscale("log")
        ax.xaxis.set_minor_formatter(NullFormatter())
    if not numeric:
        ax.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
    ax.set_xlabel(name)
    ax.grid(alpha=0.3)
