"""The picture of a sweep shows every number that it says it shows."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import rljax
from rljax.run.search.sweep import SweepResult, plan_sweep
from rljax.run.search.sweep_plot import _points, best_means, draw_sweep, sort_by_effect

CONFIG = rljax.PPOConfig(total_timesteps=20_000)
SPACE: dict[str, Any] = {
    "gamma": [0.9, 0.99],
    "learning_rate": [1e-4, 1e-3, 1e-2],
    "ent_coef": [0.0, 0.01],
    "clip_eps": [0.1, 0.2, 0.3],
    "vf_coef": [0.25, 0.5],
}
WEIGHTS = {"gamma": 1.0, "learning_rate": 10.0, "ent_coef": 100.0, "clip_eps": 1000.0, "vf_coef": 0.01}


def found(names: list[str], returns: Callable[[dict[str, Any]], float] | None = None, **how: Any) -> tuple[SweepResult, Any]:
    """A sweep of these fields. Unless given, a run's return says the places of its values: the digits of WEIGHTS."""
    plan = plan_sweep(CONFIG, {name: SPACE[name] for name in names}, seeds=2, **how)
    places = returns or (lambda cell: sum(WEIGHTS[n] * (1 + SPACE[n].index(x)) for n, x in cell.items()))
    values = np.array([[places(cell), places(cell)] for cell in plan.cells])
    return SweepResult(CONFIG, plan.cells, np.arange(2), values, values), plan


def texts(result: SweepResult, plan: Any, folder: Path) -> list[str]:
    """What is written in the picture: Matplotlib leaves each text of an SVG in a comment."""
    draw_sweep(result, folder / "a.svg", plan)
    return [x.strip() for x in re.findall(r"<!-- (.*?) -->", (folder / "a.svg").read_text(), re.DOTALL)]


def test_two_fields_are_one_heat_map(tmp_path: Path) -> None:
    written = texts(*found(["learning_rate", "gamma"]), tmp_path)
    assert {"11", "12", "21", "22", "31", "32"} <= set(written)
    assert "mean return of 2 seeds" in written


def test_three_fields_are_a_panel_for_each_value_of_the_third(tmp_path: Path) -> None:
    """Every cell of the sweep is there, where only the best of the third field were."""
    written = texts(*found(["gamma", "clip_eps", "learning_rate"]), tmp_path)
    cells = [f"{1000 * c + 10 * r + g}" for c, r, g in itertools.product((1, 2, 3), (1, 2, 3), (1, 2))]
    assert all(written.count(cell) == 1 for cell in cells)
    assert {"gamma = 0.9", "gamma = 0.99", "mean return of 2 seeds"} <= set(written)
    assert written.count("clip_eps") == written.count("learning_rate") == 2


def test_of_more_fields_those_that_matter_least_are_reduced_and_named(tmp_path: Path) -> None:
    result, plan = found(list(SPACE))
    assert sort_by_effect(result, plan, list(SPACE)) == ["clip_eps", "ent_coef", "learning_rate", "gamma", "vf_coef"]
    written = texts(result, plan, tmp_path)
    title = "mean return of 2 seeds, the best over the fields that matter least: gamma (2 values), vf_coef (2 values)"
    assert title in " ".join(written)  # each line is a text of its own
    # The best of gamma is its second value, and of vf_coef too (0.02, beyond the four digits that are drawn).
    cells = [f"{1000 * c + 100 * e + 10 * r + 2}" for c, e, r in itertools.product((1, 2, 3), (1, 2), (1, 2, 3))]
    assert all(written.count(cell) == 1 for cell in cells)
    assert {"ent_coef = 0", "ent_coef = 0.01"} <= set(written)


def test_the_best_of_cells_is_that_of_a_plain_loop() -> None:
    random = np.random.default_rng(0)
    result, plan = found(["gamma", "clip_eps", "learning_rate"], lambda cell: float(random.normal()))
    slow = {
        (i, j): max(
            mean
            for cell, mean in zip(result.cells, result.means, strict=True)
            if (cell["learning_rate"], cell["gamma"]) == (rate, gamma)
        )
        for (i, rate), (j, gamma) in itertools.product(enumerate(SPACE["learning_rate"]), enumerate(SPACE["gamma"]))
    }
    table = best_means(result, plan, ["learning_rate", "gamma"])
    assert {place: table[place] for place in slow} == slow


@pytest.mark.parametrize("names", [["gamma"], ["gamma", "clip_eps"], ["gamma", "clip_eps", "ent_coef", "vf_coef"]])
def test_runs_that_diverged_have_no_number(names: list[str], tmp_path: Path) -> None:
    def returns(cell: dict[str, Any]) -> float:
        return -np.inf if cell["gamma"] == 0.99 else 1.0

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result, plan = found(names, returns)
        written = texts(result, plan, tmp_path)
    if len(names) > 1:
        assert "-" in written
        assert sort_by_effect(result, plan, names)[0] == "gamma"


@pytest.mark.parametrize("names", [["gamma", "learning_rate"], ["gamma", "learning_rate", "clip_eps"]])
def test_points_of_several_fields_have_axes_that_fill_the_picture(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **how: (drawn.append(figure), save(figure, *args, **how)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result, plan = found(names, search="random", samples=8)
        draw_sweep(result, tmp_path / "a.png", plan)
    boxes = [ax.get_position() for ax in drawn[0].axes]
    assert len(boxes) == len(names)
    assert sum(box.width for box in boxes) > 0.7
    assert min(box.height for box in boxes) > 0.6


def test_a_cell_with_a_run_that_diverged_has_no_mean(tmp_path: Path) -> None:
    result, plan = found(["gamma"], lambda cell: 1.0)
    assert "diverged" not in texts(result, plan, tmp_path)
    returns = result.returns.copy()
    returns[0, 0] = -np.inf
    figure = Figure()
    ax = figure.subplots()
    _points(ax, result._replace(returns=returns), plan, "gamma")
    lines = {line.get_label(): line for line in ax.lines}
    assert np.isnan(lines["mean"].get_ydata()).sum() == 1
    assert lines["diverged"].get_xdata().tolist() == [result.cells[0]["gamma"]]


def test_cells_that_are_not_trained_yet_have_not_diverged(tmp_path: Path) -> None:
    """A part of a sweep, or a merged one of which a part is missing."""
    result, plan = found(["gamma"], lambda cell: np.nan if cell["gamma"] == 0.99 else 1.0)
    assert "diverged" not in texts(result, plan, tmp_path)
    names = ["gamma", "clip_eps"]
    result, plan = found(names, lambda cell: np.nan if cell["gamma"] == 0.99 else cell["clip_eps"])
    assert "-" not in texts(result, plan, tmp_path)
    assert sort_by_effect(result, plan, names)[0] == "clip_eps"
    table = best_means(result, plan, ["gamma"])
    assert np.isnan(table[SPACE["gamma"].index(0.99)])
    assert np.isfinite(table).sum() == len(table) - 1


def test_ticks_of_a_log_axis_are_plain_numbers(tmp_path: Path) -> None:
    """Mathematical text is off in pictures, where a `$` is a character like any other."""
    assert {"0.0001", "0.001", "0.01"} <= set(texts(*found(["learning_rate"]), tmp_path))
