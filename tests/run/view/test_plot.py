"""Learning curves: what is read, averaged and drawn, against the same computed another way."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rljax
from rljax.core.config_files import dump_config
from rljax.run.view.curves import Curves, common_grid, curves, on_grid, read_metrics
from rljax.run.view.plot import COLORS, bootstrap_interval, interquartile_mean, line_style, plot

CONFIG = rljax.PPOConfig(total_timesteps=100_000)


def write_run(
    folder: Path,
    config: rljax.PPOConfig = CONFIG,
    *,
    returns: np.ndarray,
    every: int = 1000,
    seeds: int | None = None,
    metric: str = "episode/return",
    **info: Any,
) -> Path:
    """A run folder with `returns` [R], or [seeds, R], recorded `every` so many steps."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(dump_config(config))
    table = {"format": 1, "rljax": rljax.__version__, "jax": "0", "seeds": seeds, "key_impl": "threefry2x32"}
    table |= {"forked_from": None, "first_step": 0, "step_offset": 0, **info}
    (folder / "run.json").write_text(json.dumps(table))
    lines: list[dict[str, Any]] = [{"step": 0, "hyperparameters": {"seed": config.seed}}]
    for i, row in enumerate(np.atleast_2d(returns).T):
        known = [None if math.isnan(x) else float(x) for x in row]
        values = [x for x in known if x is not None]
        record: dict[str, Any] = {"step": (i + 1) * every, metric: float(np.mean(values)) if values else None}
        lines.append({**record, "seeds": {metric: known}} if seeds else record)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_curves_of_one_seed_and_of_many_have_nan_where_nothing_is_known(tmp_path: Path) -> None:
    one = np.array([1.0, np.nan, 3.0])
    many = np.array([[1.0, np.nan, 3.0], [4.0, 5.0, np.nan]])
    for name, returns, seeds in (("one", one, None), ("many", many, 2)):
        steps, values = curves(write_run(tmp_path / name, returns=returns, seeds=seeds), "episode/return")
        np.testing.assert_array_equal(steps, [1000, 2000, 3000])
        np.testing.assert_array_equal(values, np.atleast_2d(returns))


def test_a_last_line_cut_off_is_left_out_and_any_other_bad_line_is_named(tmp_path: Path) -> None:
    file = write_run(tmp_path / "a", returns=np.arange(3.0)) / "metrics.jsonl"
    whole = file.read_text()
    file.write_text(whole + '{"step": 4000, "episode/ret')
    assert [r["step"] for r in read_metrics(tmp_path / "a").records] == [1000, 2000, 3000]
    file.write_text(whole.replace('{"step": 2000', '{"stop": 2000'))
    with pytest.raises(rljax.ConfigError, match=r"metrics\.jsonl, line 3: not a record") as error:
        read_metrics(tmp_path / "a")
    assert "\n" not in str(error.value)


def test_steps_that_were_trained_twice_count_the_last_time(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", returns=np.array([1.0, 2.0, 3.0]))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2000, "hyperparameters": {}}\n{"step": 2000, "episode/return": 7.0}\n')
    steps, values = curves(folder, "episode/return")
    np.testing.assert_array_equal(steps, [1000, 2000])
    np.testing.assert_array_equal(values, [[1.0, 7.0]])


def test_bins_average_interpolate_gaps_and_never_extrapolate() -> None:
    steps = np.arange(1, 1001)
    grid = common_grid(steps, 10)
    values = np.stack([steps.astype(float), np.where((steps > 200) & (steps < 800), steps, np.nan), np.full(1000, np.nan)])
    values[0, 400:600] = np.nan
    binned = on_grid(Curves(steps, values), grid)
    np.testing.assert_allclose(grid, 1 + 99.9 * (np.arange(10) + 0.5))
    np.testing.assert_allclose(binned[0], grid, atol=1.0)
    np.testing.assert_array_equal(np.isfinite(binned[1]), (grid > 200) & (grid < 800))
    assert np.isnan(binned[2]).all()
    # One bin in full, the slow way.
    members = [s for s in steps if abs(s - grid[1]) < 99.9 / 2]
    assert binned[0, 1] == pytest.approx(np.mean(members))


def test_few_records_are_drawn_at_their_own_steps() -> None:
    steps = np.array([64, 200, 1000])
    grid = common_grid(steps, 10)
    np.testing.assert_array_equal(grid, steps)
    np.testing.assert_array_equal(on_grid(Curves(steps, np.array([[1.0, np.nan, 3.0]])), grid)[0, [0, 2]], [1.0, 3.0])


@pytest.mark.parametrize("num_seeds", [2, 3, 4, 8, 11])
def test_interquartile_mean_drops_a_quarter_at_each_end(rng: np.random.Generator, num_seeds: int) -> None:
    values = rng.normal(size=(num_seeds, 5))
    cut = num_seeds // 4
    slow = [np.mean(sorted(column)[cut : num_seeds - cut]) for column in values.T]
    np.testing.assert_allclose(interquartile_mean(values), slow)


def test_the_interval_is_that_of_resampled_seeds(rng: np.random.Generator) -> None:
    values = rng.normal(size=(8, 3)) * [1.0, 5.0, 0.1] + [0.0, 10.0, -3.0]
    low, high = bootstrap_interval(values, resamples=20_000)
    resampled = np.sort(values[rng.integers(0, 8, size=(20_000, 8))], axis=1)[:, 2:6].mean(axis=1)
    expected = np.percentile(resampled, [2.5, 97.5], axis=0)
    np.testing.assert_allclose(np.stack([low, high]), expected, atol=0.05 * np.ptp(expected, axis=0).max())
    np.testing.assert_array_equal(np.stack(bootstrap_interval(values)), np.stack(bootstrap_interval(values)))


def test_statistics_are_those_of_rliable(rng: np.random.Generator) -> None:
    metrics = pytest.importorskip("rliable.metrics")
    values = rng.normal(size=(8, 3))
    expected = [metrics.aggregate_iqm(column[:, None]) for column in values.T]
    np.testing.assert_allclose(interquartile_mean(values), expected)
    try:
        library = importlib.import_module("rliable.library")
    except Exception as error:
        pytest.skip(f"this version of rliable does not work beside the packages it needs: {error}")
    scores = {"x": values[:, :1]}
    interval = library.get_interval_estimates(scores, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=5000)[1]["x"]
    ours = np.stack(bootstrap_interval(values[:, :1], resamples=5000))
    np.testing.assert_allclose(ours, interval, atol=0.1 * np.ptp(interval))


def test_seeds_of_one_run_and_of_several_are_one_line(tmp_path: Path, rng: np.random.Generator) -> None:
    returns = rng.normal(size=(8, 30)).cumsum(axis=1)
    many = write_run(tmp_path / "many", returns=returns, seeds=8)
    singles = [write_run(tmp_path / f"s{i}", CONFIG.replace(seed=i), returns=returns[i]) for i in range(8)]
    drawn = [plot(runs, tmp_path / "a.png") for runs in ([many], singles)]
    for result in drawn:
        assert result.metric == "episode/return"
        (line,) = result.curves
        assert line.num_seeds == 8
        np.testing.assert_allclose(line.steps, 1000 * np.arange(1, 31))
        np.testing.assert_allclose(line.center, interquartile_mean(returns))
        assert ((line.low < line.center) & (line.center < line.high)).all()


def test_lines_are_labelled_by_the_fields_that_differ(tmp_path: Path) -> None:
    def run(name: str, **changes: Any) -> Path:
        return write_run(tmp_path / name, CONFIG.replace(**changes), returns=np.arange(5.0))

    runs = [run("a", learning_rate=1e-3), run("b", learning_rate=1e-3, seed=1), run("c", network={"hidden": [8]})]
    result = plot(runs, tmp_path / "a.png")
    assert [(line.label, line.num_seeds) for line in result.curves] == [
        ("learning_rate = 0.001, network.hidden = default", 2),
        ("learning_rate = 0.00025, network.hidden = [8]", 1),
    ]
    different = run("d", gamma=0.9, gae_lambda=0.9, clip_eps=0.1, ent_coef=0.0)
    assert [line.label for line in plot([runs[0], different], tmp_path / "a.png").curves] == ["a", "d"]


def test_a_fork_is_no_further_seed(tmp_path: Path) -> None:
    parent = write_run(tmp_path / "parent", returns=np.arange(5.0))
    origin = {"checkpoint": "parent/checkpoints/step_5000", "step": 5000}
    fork = write_run(tmp_path / "fork", returns=np.arange(5.0), forked_from=origin)
    assert [(line.label, line.num_seeds) for line in plot([parent, fork], tmp_path / "a.png").curves] == [
        ("parent", 1),
        ("fork", 1),
    ]


def test_a_line_ends_where_its_shortest_seed_ends(tmp_path: Path) -> None:
    long = write_run(tmp_path / "a", returns=np.arange(50.0))
    short = write_run(tmp_path / "b", CONFIG.replace(seed=1), returns=np.arange(20.0))
    (line,) = plot([long, short], tmp_path / "a.png").curves
    assert (line.steps[0], line.steps[-1]) == (1000, 20_000)


def test_lines_have_points_only_where_their_runs_have_values(tmp_path: Path) -> None:
    often = write_run(tmp_path / "often", returns=np.arange(4.0))
    seldom = write_run(tmp_path / "seldom", CONFIG.replace(gamma=0.5), returns=np.arange(2.0), every=2000)
    lines = plot([often, seldom], tmp_path / "a.png").curves
    assert [line.steps.tolist() for line in lines] == [[1000, 2000, 3000, 4000], [2000, 4000]]


def test_a_seed_that_diverged_cuts_its_curve_with_a_warning(tmp_path: Path) -> None:
    returns = np.arange(80.0).reshape(4, 20)
    returns[2, 10:] = np.nan
    returns[1, 19:] = np.nan  # no news: its last episode is still going on
    run = write_run(tmp_path / "a", returns=returns, seeds=4)
    with pytest.warns(rljax.RljaxWarning) as told:
        (line,) = plot([run], tmp_path / "a.png").curves
    assert line.steps[-1] == 10_000
    assert [str(x.message) for x in told] == [
        f"{run}: seed_index 2 has no value of 'episode/return' after step 10,000, and a curve is drawn only where all of its "
        "seeds have values"
    ]


def test_a_seed_without_any_value_is_left_out_with_a_warning(tmp_path: Path) -> None:
    returns = np.arange(80.0).reshape(4, 20)
    returns[2] = np.nan
    run = write_run(tmp_path / "a", returns=returns, seeds=4)
    with pytest.warns(rljax.RljaxWarning) as told:
        (line,) = plot([run], tmp_path / "a.png").curves
    assert (line.num_seeds, line.steps[-1]) == (3, 20_000)
    assert [str(x.message) for x in told] == [
        f"{run}: seed_index 2 has no value of 'episode/return', and the line is that of the other seeds"
    ]


@pytest.mark.parametrize("count", [2, 7])
def test_any_text_is_a_label(tmp_path: Path, count: int) -> None:
    labels = ["_hidden", "costs $5 or $x^2$", "$\\undefined{", "d", "e", "f", "g"][:count]
    svg = _svg_text({label: {"episode/return": np.arange(3.0)} for label in labels}, tmp_path)
    assert all(f"<!-- {label} (n = 1) -->" in svg for label in labels)


def _drawn_figure(runs: Any, tmp_path: Path) -> Any:
    """The figure as matplotlib has laid it out."""
    from matplotlib.figure import Figure

    figures = []

    def save(self: Any, *args: Any, **kwargs: Any) -> None:
        savefig(self, *args, **kwargs)
        self.draw_without_rendering()  # lays it out for the resolution in which the test measures
        figures.append(self)

    with pytest.MonkeyPatch.context() as patch:
        savefig = Figure.savefig
        patch.setattr(Figure, "savefig", save)
        plot(runs, tmp_path / "figure.svg")
    return figures[0]


@pytest.mark.parametrize("count", [2, 20])
def test_long_labels_stand_beside_the_lines_and_leave_them_their_room(tmp_path: Path, count: int) -> None:
    labels = [
        "a setting: learning_rate = 0.00025, ent_coef = 0.01, network.hidden = [256, 256, 256], num_envs = 1024",
        "cartpole_ppo_learning_rate_0.00025_ent_coef_0.01_hidden_256_256_batch_4096_seed_0",
        "x" * 120,
        *(f"{'word ' * 20}{i}" for i in range(17)),
    ][:count]
    figure = _drawn_figure({label: {"episode/return": np.arange(3.0)} for label in labels}, tmp_path)
    assert figure.axes[0].get_legend() is None
    (legend,) = figure.legends
    axes, names = figure.axes[0].get_window_extent(), legend.get_window_extent()
    assert axes.width / figure.dpi > 3.9
    assert axes.x1 < names.x0 < names.x1 <= figure.bbox.x1
    assert 0 <= names.y0 < names.y1 <= figure.bbox.y1
    for label, text in zip(labels, legend.get_texts(), strict=True):
        shown = text.get_text()
        assert "".join(shown.split()) == "".join(f"{label} (n = 1)".split()), "nothing is left out"
        assert max(map(len, shown.split("\n"))) <= 38
    assert "256_256_batch_4096_seed_0 (n = 1)" in legend.get_texts()[1].get_text().split("\n"), "numbers and words stay whole"


@pytest.mark.parametrize("count", [3, 4])
def test_a_legend_covers_no_lines(tmp_path: Path, count: int) -> None:
    """Where every place has a line, few labels have a background to be read on, and more stand beside the axes."""
    figure = _drawn_figure({str(i): {"episode/return": i + np.arange(3.0) % 2} for i in range(count)}, tmp_path)
    inside = figure.axes[0].get_legend()
    if count == 3:
        assert inside.get_frame_on()
        assert inside.get_frame().get_alpha() > 0.7
    else:
        assert inside is None
        assert figure.legends[0].get_window_extent().x0 > figure.axes[0].get_window_extent().x1


@pytest.mark.parametrize(("offset", "step"), [(1e6, 1e-3), (-1e6, 1e-3), (1e12, 0.5), (0.0, 1e-9), (0.0, 25.0), (1e300, 1e290)])
def test_ticks_are_told_apart(tmp_path: Path, offset: float, step: float) -> None:
    figure = _drawn_figure({"episode/return": offset + step * np.arange(40.0)}, tmp_path)
    axis = figure.axes[0].yaxis
    texts = [label.get_text() for label in axis.get_ticklabels()]
    assert len(texts) > 3
    read = [float(text.replace(",", "").replace("\N{MINUS SIGN}", "-")) for text in texts]
    ticks = axis.get_ticklocs()
    np.testing.assert_allclose(np.subtract(read, ticks), 0, atol=0.01 * np.diff(ticks).min())


def test_evaluations_are_the_default_where_every_run_has_them(tmp_path: Path) -> None:
    evaluated = write_run(tmp_path / "a", returns=np.array([np.nan, 5.0]), metric="eval/return")
    other = write_run(tmp_path / "b", CONFIG.replace(gamma=0.9), returns=np.arange(3.0))
    assert plot([evaluated], tmp_path / "a.png").metric == "eval/return"
    assert plot([other], tmp_path / "a.png").metric == "episode/return"
    with pytest.raises(rljax.ConfigError, match=r"no metric 'episode/return': did you mean 'eval/return'\?"):
        plot([evaluated, other], tmp_path / "a.png")


@pytest.mark.slow
def test_files_are_of_the_format_that_their_suffix_says(tmp_path: Path) -> None:
    from PIL import Image

    run = write_run(tmp_path / "a", returns=np.arange(12.0).reshape(4, 3), seeds=4)
    for name, magic in (("new/x.png", b"\x89PNG"), ("x.svg", b"<?xml"), ("x.PDF", b"%PDF")):
        out = tmp_path / name
        plot([run], out)
        first = out.read_bytes()
        assert first.startswith(magic)
        before = out.stat().st_ino
        with out.open("rb"):  # so that its number is not given anew
            plot([run], out)
        assert out.stat().st_ino != before, "written in place: a reader could see half of it"
        assert out.read_bytes() == first
    with Image.open(tmp_path / "new" / "x.png") as picture:
        assert picture.info["dpi"] == pytest.approx((300, 300), abs=0.1)
    words = "interquartile mean over n = 4 seeds"
    assert words in _svg_text([run], tmp_path)
    assert "one seed" in _svg_text([write_run(tmp_path / "b", returns=np.arange(3.0))], tmp_path)
    assert not list(tmp_path.glob(".writing*"))


def _svg_text(run: Any, tmp_path: Path, **how: Any) -> str:
    """Matplotlib leaves the text of each drawn string in a comment."""
    plot(run, tmp_path / "text.svg", **how)
    return (tmp_path / "text.svg").read_text()


def test_a_band_is_drawn_only_for_several_seeds(tmp_path: Path) -> None:
    returns = np.random.default_rng(1).normal(size=(4, 40))
    one, many = (write_run(tmp_path / str(n), returns=returns[:n], seeds=n) for n in (1, 4))
    assert "PolyCollection" not in _svg_text([one], tmp_path)
    assert "PolyCollection" in _svg_text([many], tmp_path)
    assert "LineCollection" not in _svg_text([many], tmp_path)
    early = write_run(tmp_path / "early", returns=returns[:, :1], seeds=4)
    assert "LineCollection" in _svg_text([early], tmp_path), "a single point has an interval, too"


@pytest.mark.slow
def test_pyplot_is_not_used(tmp_path: Path) -> None:
    import subprocess
    import sys

    run = write_run(tmp_path / "a", returns=np.arange(3.0))
    code = "import sys, rljax\nbefore = [m for m in ('matplotlib', 'scipy.stats', 'PIL', 'imageio') if m in sys.modules]\n"
    code += f"from rljax.run.view.plot import plot\nplot([{str(run)!r}], {str(tmp_path / 'a.png')!r})\n"
    code += "print(before, 'matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] False"


def test_a_run_without_a_value_so_far_is_left_out_with_a_warning(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", returns=np.arange(3.0))
    unknown = write_run(tmp_path / "unknown", CONFIG.replace(gamma=0.8), returns=np.full(3, np.nan))
    with pytest.warns(rljax.RljaxWarning, match="left out: .*unknown: no value of 'episode/return' is known yet"):
        drawn = plot([run, unknown], tmp_path / "x.png")
    assert [curve.num_seeds for curve in drawn.curves] == [1]


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", returns=np.arange(3.0))
    copy = write_run(tmp_path / "copy", returns=np.arange(3.0))
    empty = write_run(tmp_path / "empty", CONFIG.replace(gamma=0.9), returns=np.zeros((1, 0)))
    unknown = write_run(tmp_path / "unknown", CONFIG.replace(gamma=0.8), returns=np.full(3, np.nan))
    overlap = write_run(tmp_path / "overlap", CONFIG.replace(seed=0), returns=np.zeros((3, 3)), seeds=3)
    (tmp_path / "folder.png").mkdir()
    out = tmp_path / "x.png"
    cases: list[tuple[list[Path], Path, dict[str, Any], str]] = [
        ([run], tmp_path / "x.jpg", {}, r"ends in \.png or \.svg or \.pdf"),
        ([run], tmp_path / "folder.png", {}, "this is a folder"),
        ([run], run / "run.json" / "x.png", {}, "cannot be written"),
        ([tmp_path / "nowhere"], out, {}, "no run there"),
        ([], out, {}, "at least one run"),
        ([empty], out, {}, "nothing recorded yet"),
        ([unknown], out, {}, "no value of 'episode/return' is known yet"),
        ([run], out, {"metric": "episode/retrun"}, "did you mean 'episode/return'"),
        ([run, copy], out, {}, "the same seed 0"),
        ([write_run(tmp_path / "two", CONFIG.replace(seed=2), returns=np.zeros(3)), overlap], out, {}, "the same seed 2"),
    ]
    for runs, path, options, message in cases:
        with pytest.raises(rljax.ConfigError, match=message) as error:
            plot(runs, path, **options)
        assert "\n" not in str(error.value)
    assert not out.exists()


ACROBOT = rljax.DQNConfig(env="Acrobot-v1", total_timesteps=50_000, learning_starts=100)


@pytest.mark.slow
def test_each_environment_has_a_panel_and_like_lines_have_like_looks(tmp_path: Path) -> None:
    returns = np.arange(24.0).reshape(4, 6)
    runs = [
        write_run(tmp_path / f"{config.algorithm}-{config.env}", config, returns=returns * scale, seeds=4)
        for config, scale in (
            (CONFIG, 1.0),
            (rljax.DQNConfig(env="CartPole-v1"), 2.0),
            (ACROBOT, -1.0),
            (CONFIG.replace(env="Acrobot-v1"), -2.0),
        )
    ]
    drawn = plot(runs, tmp_path / "a.png")
    assert [(line.panel, line.label) for line in drawn.curves] == [
        ("CartPole-v1", "PPO"),
        ("CartPole-v1", "DQN"),
        ("Acrobot-v1", "DQN"),
        ("Acrobot-v1", "PPO"),
    ]
    for line, scale in zip(drawn.curves, (1.0, 2.0, -1.0, -2.0), strict=True):
        np.testing.assert_allclose(line.center, interquartile_mean(returns * scale))
    svg = _svg_text(runs, tmp_path)
    for text, count in (("CartPole-v1", 1), ("Acrobot-v1", 1), ("PPO (n = 4)", 1), ("DQN (n = 4)", 1), ("environment steps", 2)):
        assert svg.count(f"<!-- {text} -->") == count, text
    # Two lines of each colour, and the one in the legend.
    assert [len(re.findall(f"stroke: {color.lower()}; stroke-width: 1.5", svg)) for color in COLORS[:3]] == [3, 3, 0]


def test_the_title_names_the_environment_and_a_single_algorithm(tmp_path: Path) -> None:
    ppo = write_run(tmp_path / "ppo", returns=np.arange(5.0))
    dqn = write_run(tmp_path / "dqn", rljax.DQNConfig(env="CartPole-v1"), returns=np.arange(5.0))
    assert "<!-- PPO on CartPole-v1 -->" in _svg_text([ppo], tmp_path)
    several = _svg_text([ppo, dqn], tmp_path)
    assert "<!-- CartPole-v1 -->" in several
    assert " on CartPole-v1" not in several


def test_a_field_that_differs_names_the_lines_of_all_panels(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / f"{env}-{rate}", CONFIG.replace(env=env, learning_rate=rate), returns=np.arange(5.0))
        for env in ("CartPole-v1", "Acrobot-v1")
        for rate in (1e-3, 1e-2)
    ]
    assert [line.label for line in plot(runs, tmp_path / "a.png").curves] == 2 * ["learning_rate = 0.001", "learning_rate = 0.01"]


def test_many_lines_are_told_apart() -> None:
    """In Lab, where 2 can just be told apart side by side; also to those who lack a kind of cones (Machado et al., 2009)."""
    looks = [tuple(line_style(i).values()) for i in range(320)]
    assert len(set(map(repr, looks))) == 320
    assert len({color for color, *_ in looks[:10]}) == len(COLORS) == 10
    assert len({dashes for _, dashes, _ in looks[:40:10]}) == 4

    sight = {
        "all cones": (np.eye(3), 25.0),
        "no green cones": (np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]), 15.0),
        "no red cones": (np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]), 15.0),
    }

    def lab(color: str, seen: np.ndarray) -> np.ndarray:
        srgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
        to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
        xyz = to_xyz @ np.clip(seen @ linear, 0, 1) / [0.9505, 1.0, 1.089]
        f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
        return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])

    for name, (seen, least) in sight.items():
        for first, second in itertools.combinations([*COLORS, "#FFFFFF"], 2):
            assert np.linalg.norm(lab(first, seen) - lab(second, seen)) > least, (name, first, second)


def test_what_is_no_run_is_left_out_with_a_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", returns=np.arange(3.0))
    empty = write_run(tmp_path / "empty", CONFIG.replace(gamma=0.9), returns=np.zeros((1, 0)))
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "config.toml").write_text(dump_config(CONFIG))  # a sweep's folder has one, too
    (tmp_path / "b.txt").touch()
    with pytest.warns(rljax.RljaxWarning) as told:
        drawn = plot([tmp_path / "b.txt", run, empty, tmp_path / "sweep", tmp_path / "gone"], tmp_path / "a.png")
    assert len(drawn.curves) == 1
    assert [str(x.message).split("/")[-1] for x in told] == [
        "b.txt: no run there (no config.toml); expected a folder made by `rljax train`",
        "empty: nothing recorded yet",
        "sweep: no run there (no run.json)",
        "gone: no run there (no config.toml); expected a folder made by `rljax train`",
    ]
    assert all(str(x.message).startswith("left out: ") for x in told)
    with pytest.raises(rljax.ConfigError, match=r"b\.txt: no run there"):
        plot([tmp_path / "b.txt", tmp_path / "sweep"], tmp_path / "b.png")


@pytest.mark.slow
def test_metrics_are_drawn_as_the_run_that_they_are_of(tmp_path: Path, rng: np.random.Generator) -> None:
    returns = rng.normal(size=(8, 30)).cumsum(axis=1)
    metrics = {"episode/return": returns.astype(np.float32), "eval/return": np.full((8, 30), np.nan)}
    (of_run,) = plot([write_run(tmp_path / "run", returns=returns, seeds=8)], tmp_path / "a.png").curves
    result = rljax.TrainResult(None, metrics)
    for given in (metrics, result, {"mine": metrics}, {"mine": result}):
        drawn = plot(given, tmp_path / "b.png", steps_per_iteration=1000)
        (line,) = drawn.curves
        assert drawn.metric == "episode/return"
        assert (line.num_seeds, line.panel) == (8, None)
        for name in ("steps", "center", "low", "high"):
            np.testing.assert_allclose(getattr(line, name), getattr(of_run, name), rtol=1e-6)
    np.testing.assert_array_equal(plot(metrics, tmp_path / "b.png").curves[0].steps, np.arange(1, 31))
    assert "<!-- iterations -->" in _svg_text(metrics, tmp_path)
    (one,) = plot({"episode/return": returns[0]}, tmp_path / "b.png").curves
    assert one.num_seeds == 1
    assert plot(metrics, tmp_path / "b.png")._repr_png_() == (tmp_path / "b.png").read_bytes()


def test_metrics_and_runs_have_labels_and_share_a_panel(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", returns=np.arange(3.0))
    mine = {"episode/return": np.arange(12.0).reshape(4, 3)}
    drawn = plot(
        {"old": run, "new": mine, "both": [run, mine]}, tmp_path / "a.png", steps_per_iteration={"new": 500, "both": 1000}
    )
    assert [(line.label, line.num_seeds, line.panel, line.steps[-1]) for line in drawn.curves] == [
        ("old", 1, "CartPole-v1", 3000),
        ("new", 4, "CartPole-v1", 1500),
        ("both", 5, "CartPole-v1", 3000),
    ]
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ({"a": run, "b": mine}, {}, "b: metrics count iterations, and other lines environment steps"),
        ([mine, mine], {}, "a label for each of several"),
        ({"a": mine, "b": mine}, {"steps_per_iteration": {"a": 64}}, "b: metrics count iterations, and other lines environment"),
        ({"a": mine}, {"steps_per_iteration": {"A": 64}}, "steps_per_iteration: no line 'A': did you mean 'a'"),
        (mine, {"steps_per_iteration": {"a": 64}}, "expected a number, as these metrics have no label"),
        ({"a": mine}, {"steps_per_iteration": {"a": None}}, "steps_per_iteration = None: expected a whole number"),
        (mine, {"steps_per_iteration": 0}, "steps_per_iteration = 0: expected a whole number > 0"),
        ({"a": mine}, {"steps_per_iteration": {"a": "64"}}, "steps_per_iteration = '64'"),
        (
            {"a": {"episode/return": np.zeros((2, 3, 4))}},
            {},
            r"a: 'episode/return' has shape \[2, 3, 4\], expected \[iterations\]",
        ),
        ({"a": 5}, {}, "a: expected a run folder, or metrics"),
        ({"a": {}}, {}, "a: expected a run folder, or metrics"),
        ([7], {}, "metrics: expected a run folder, or metrics"),
        ({}, {}, "nothing to plot"),
        (mine, {"metric": "episode/retrun"}, "metrics: no metric 'episode/retrun': did you mean 'episode/return'"),
    ]
    for given, how, message in cases:
        with pytest.raises(rljax.ConfigError, match=message):
            plot(given, tmp_path / "b.png", **how)
