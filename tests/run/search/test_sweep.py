"""Sweeps: each run is the run it would be alone, interrupted ones go on, and wrong ones are refused before anything is made."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import rljax
from rljax.cli.main import main
from rljax.cli.search import _print_cells, _split_axes
from rljax.core.errors import ConfigError
from rljax.run.search import plan as plans
from rljax.run.search import sweep as sweeps
from rljax.run.search.plan import SweepResult, begin_sweep, plan_sweep
from rljax.run.search.population import Programs
from rljax.run.search.space import apply_cell, cells_of, parse_range
from tests.run.tiny_runs import TINY_TOML, assert_refused

CONFIG = rljax.PPOConfig(
    env="CartPole-v1", num_envs=4, num_steps=16, num_minibatches=2, total_timesteps=640, network={"hidden": [8]}
)


def alone(config: Any) -> tuple[float, float]:
    """The last known return of training, and the mean greedy return of 5 episodes, of a single run."""
    result = rljax.fit(config)
    returns = result.metrics["episode/return"]
    key = jax.random.fold_in(jax.random.key(config.seed), 2**31 - 1)
    greedy = rljax.evaluate(rljax.make_agent(config), result.state, key, 5)
    return returns[np.isfinite(returns)][-1], float(jnp.mean(greedy))


@pytest.mark.slow
def test_every_run_is_what_it_would_be_alone() -> None:
    """Also across programs, and where a batch is filled up."""
    space = {"learning_rate": [1e-3, 1e-2, 3e-2], "num_steps": [16, 32]}
    found = rljax.sweep(CONFIG.replace(seed=3), space, seeds=2, episodes=5, batch_size=4)
    assert found.returns.shape == (6, 2)
    assert found.seeds.tolist() == [3, 4]
    for cell, seed in ((0, 0), (3, 1), (4, 1)):
        train, greedy = alone(CONFIG.replace(**found.cells[cell], seed=3 + seed))
        assert found.train_returns[cell, seed] == pytest.approx(train, rel=1e-5)
        assert found.returns[cell, seed] == pytest.approx(greedy, rel=1e-5)
    assert found.best == CONFIG.replace(seed=3, **found.cells[int(np.argmax(found.returns.mean(1)))])


@pytest.mark.slow
def test_cells_that_share_a_structure_share_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, tuple[str, ...]]] = []
    original = Programs.__init__

    def counted(self: Programs, config: Any, names: tuple[str, ...], *make: Any) -> None:
        made.append((config.max_grad_norm, names))
        original(self, config, names, *make)

    monkeypatch.setattr(Programs, "__init__", counted)
    rljax.sweep(CONFIG, {"learning_rate": [1e-3, 1e-2], "max_grad_norm": [0.5, 1.0, None]}, episodes=2)
    # A norm that is not clipped is another program.
    assert sorted(names for _, names in made) == [("learning_rate",), ("learning_rate", "max_grad_norm")]


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on_and_comes_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space, how = {"learning_rate": [1e-3, 1e-2, 3e-2], "gamma": [0.9, 0.99]}, {"seeds": 2, "episodes": 3, "batch_size": 4}
    whole = rljax.sweep(CONFIG, space, run_dir=tmp_path / "whole", **how)
    lines: list[str] = []

    def stop(line: str) -> None:
        lines.append(line)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rljax.sweep(CONFIG, space, run_dir=tmp_path / "half", progress=stop, **how)
    assert lines[0].startswith("4/12 runs done")
    told: list[str] = []
    half = rljax.resume_sweep(tmp_path / "half", batch_size=4, progress=told.append)
    assert told[0] == "4 of 12 runs were done before"
    assert len(told) == 3
    np.testing.assert_allclose(half.returns, whole.returns, rtol=1e-5)
    assert (tmp_path / "half/results.csv").read_text().count("\n") == 13
    assert rljax.load_config(tmp_path / "half/best.toml") == whole.best
    for folder in ("whole", "half"):
        with Image.open(tmp_path / folder / "sweep.png") as picture:
            assert len(picture.convert("RGB").getcolors(2**24) or []) > 20
    monkeypatch.setattr(sweeps, "Population", None)  # nothing is trained again
    np.testing.assert_array_equal(rljax.resume_sweep(tmp_path / "half").returns, half.returns)


def test_a_finished_sweep_says_so_and_its_files_stay_as_they_are(tmp_path: Path) -> None:
    plan = plan_sweep(CONFIG, {"learning_rate": [1e-3, 1e-2]})
    folder = begin_sweep(tmp_path / "sweep", plan, 3)

    def finish(*returns: float) -> list[str]:
        """Write these returns of all runs, and resume."""
        done = np.array(returns)[:, None]
        plans.write_results(folder, plan, done, done, np.isfinite(done))
        told: list[str] = []
        rljax.resume_sweep(folder, progress=told.append)
        return told

    def times() -> dict[str, int]:
        return {file.name: file.stat().st_mtime_ns for file in folder.iterdir() if file.suffix}

    assert finish(1.0, 2.0) == ["2 of 2 runs were done before", f"{folder} is complete: no run is left to train"]
    first = times()
    assert {"results.csv", "best.toml", "sweep.png"} < set(first)
    finish(1.0, 2.0)
    assert times() == first
    (folder / "sweep.png").unlink()  # as where it was stopped before the end
    finish(1.0, 2.0)
    again = times()
    assert again == first | {"sweep.png": again["sweep.png"]}
    finish(3.0, 2.0)
    assert rljax.load_config(folder / "best.toml").learning_rate == pytest.approx(1e-3)
    assert times()["sweep.png"] > again["sweep.png"]


def test_cells_of_which_runs_are_missing_have_no_rank(capsys: pytest.CaptureFixture[str]) -> None:
    returns = np.array([[500.0, np.nan], [10.0, 20.0], [np.nan, np.nan], [30.0, 40.0]])
    cells = [{"learning_rate": rate} for rate in (0.1, 0.2, 0.3, 0.4)]
    _print_cells(SweepResult(CONFIG, cells, np.arange(2), returns, returns))
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "0." in line]
    assert [row[:3] for row in rows] == [["1", "0.4", "35.0"], ["2", "0.2", "15.0"], ["-", "0.1", "500.0"], ["-", "0.3", "-"]]
    assert [row[-1] for row in rows] == ["0", "0", "1", "2"]


def test_small_returns_of_cells_can_be_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    returns = np.array([[0.9375, 0.9625], [0.875, 1.0]])
    cells = [{"learning_rate": rate} for rate in (0.1, 0.2)]
    _print_cells(SweepResult(CONFIG, cells, np.arange(2), returns, returns))
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "0." in line]
    assert [row[1:6] for row in rows] == [
        ["0.1", "0.95", "0.0125", "0.9375", "0.9625"],
        ["0.2", "0.9375", "0.0625", "0.875", "1"],
    ]


@pytest.mark.slow
def test_a_sweep_in_parts_comes_to_what_one_job_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = {"learning_rate": [1e-3, 1e-2, 3e-2], "num_steps": [16, 32]}
    how: dict[str, Any] = {"seeds": 2, "episodes": 5}
    whole, folder = rljax.sweep(CONFIG, space, run_dir=tmp_path / "whole", **how), tmp_path / "parts"
    trained = []
    for k in (1, 3):
        returns = rljax.sweep(CONFIG, space, run_dir=folder, part=(k, 3), **how).returns
        trained.append(np.isfinite(returns))
    assert [int(x.sum()) for x in trained] == [4, 4]
    # A part is of as few programs as possible.
    assert {whole.cells[cell]["num_steps"] for cell in np.flatnonzero(trained[0].any(1))} == {16}
    main(["sweep", "--merge", str(folder)])
    said = capsys.readouterr().out
    assert "2 parts: 8 of 12 runs" in said
    assert f"4 runs are missing; to train them here: rljax sweep --resume {folder}" in " ".join(said.split())
    lines: list[str] = []
    rljax.sweep(CONFIG, space, run_dir=folder, part=(1, 3), progress=lines.append, **how)
    assert "4 of 4 runs were done before" in lines, "a job that is started again goes on"
    rljax.sweep(CONFIG, space, run_dir=folder, part=(2, 3), **how)
    merged = rljax.merge_sweep(folder)
    np.testing.assert_allclose(merged.returns, whole.returns, rtol=1e-5)
    assert merged.best == whole.best == rljax.load_config(folder / "best.toml")
    assert (folder / "sweep.png").exists()
    for name in ("config.toml", "sweep.toml"):
        assert (folder / name).read_text() == (tmp_path / "whole" / name).read_text()
    np.testing.assert_array_equal(rljax.resume_sweep(folder).returns, merged.returns)
    with pytest.raises(rljax.ConfigError, match="there is another sweep"):
        rljax.sweep(CONFIG.replace(gamma=0.9), space, run_dir=folder, part=(1, 3), **how)
    rljax.sweep(CONFIG, space, run_dir=tmp_path / "other", part=(12, 12), **{**how, "episodes": 2})
    (tmp_path / "other" / "part_12_of_12").rename(folder / "part_12_of_12")
    with pytest.raises(rljax.ConfigError, match="is a part of another sweep"):
        rljax.merge_sweep(folder)


def test_results_of_other_values_are_not_taken_for_those_of_a_changed_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "check_teacher", lambda *_: None)  # no agent is made
    monkeypatch.setattr(plans, "own_of", lambda *_: "")
    folder, space = tmp_path / "a", {"max_grad_norm": [None, 0.5], "network.hidden": [(8,)]}
    plan = plan_sweep(CONFIG, space)
    begin_sweep(folder, plan, 5)
    returns = np.arange(2.0)[:, None]
    plans.write_results(folder, plan, returns, returns, np.ones((2, 1), bool))

    def read() -> np.ndarray:
        return plans.read_results(plans.read_sweep(folder)[0], folder)[0]

    np.testing.assert_array_equal(read(), returns)
    results = (folder / "results.csv").read_text()
    (folder / "results.csv").write_text(results.replace("none", "null"))  # as an earlier version wrote it
    np.testing.assert_array_equal(read(), returns)
    table, config = (folder / "sweep.toml").read_text(), (folder / "config.toml").read_text()
    (folder / "sweep.toml").write_text(table.replace('    "none",', '    0.1,\n    "none",'))
    with pytest.raises(rljax.RljaxError, match="is not the table of this sweep"):
        read()
    (folder / "sweep.toml").write_text(table)
    (folder / "config.toml").write_text(config.replace("total_timesteps = 640", "total_timesteps = 1280"))
    with pytest.raises(rljax.ConfigError, match=r"config\.toml: differs from what was written"):
        read()
    (folder / "config.toml").write_text(config.partition("\n")[2])  # as an earlier version wrote it
    np.testing.assert_array_equal(read(), returns)


def test_two_jobs_may_begin_a_part_at_the_same_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second finds no folder, and cannot create it any more: it is the same part, unless it is another sweep's."""
    plan, other = (plan_sweep(config, {"num_steps": [16, 32]}, part=(1, 2)) for config in (CONFIG, CONFIG.replace(gamma=0.9)))
    create = plans.create_sweep_dir

    def after(first: Any) -> None:
        def both(folder: Path, plan: Any, episodes: int) -> None:
            create(folder, first, episodes)
            create(folder, plan, episodes)

        monkeypatch.setattr(plans, "create_sweep_dir", both)

    after(plan)
    assert begin_sweep(tmp_path / "a", plan, 5) == tmp_path / "a" / "part_1_of_2"
    after(other)
    with pytest.raises(rljax.ConfigError, match="part_1_of_2: there is another sweep"):
        begin_sweep(tmp_path / "b", plan, 5)
    (tmp_path / "c").write_text("a file")
    with pytest.raises(rljax.ConfigError, match="cannot be made"):
        begin_sweep(tmp_path / "c", plan, 5)


def test_a_part_that_cannot_be_merged_with_the_others_is_refused_before_it_trains(tmp_path: Path) -> None:
    plan = plan_sweep(CONFIG, {"gamma": [0.9, 0.99]}, seeds=2)

    def begin(part: str, episodes: int = 5, **changes: Any) -> Path:
        return begin_sweep(tmp_path / "a", plan._replace(part=plans.parse_part(part), **changes), episodes)

    begin("1/2")
    for other in ({"seeds": 3}, {"config": CONFIG.replace(num_steps=32)}, {"episodes": 2}):
        with pytest.raises(rljax.ConfigError, match=r"part_1_of_2: is a part of another sweep than part 2/2 of this one"):
            begin("2/2", **other)
    for part in ("1/3", "1/1", "2/4"):
        with pytest.raises(rljax.ConfigError, match=rf"part = {part}: .*part_1_of_2 has some of its runs"):
            begin(part)
    assert [begin(part).name for part in ("1/2", "4/4", "3/4")] == ["part_1_of_2", "part_4_of_4", "part_3_of_4"]
    with pytest.raises(rljax.ConfigError, match=r"part = 2/2: .*part_3_of_4 has some of its runs"):
        begin("2/2")
    assert len([*(tmp_path / "a").iterdir()]) == 3


def test_a_part_that_an_earlier_version_wrote_in_other_words_is_of_the_same_sweep(tmp_path: Path) -> None:
    plans_of = [plan_sweep(CONFIG, {"num_steps": [16, 32]}, part=part) for part in ("1/2", "2/2")]
    config = begin_sweep(tmp_path, plans_of[0], 5) / "config.toml"
    config.write_text("# of an earlier version\n" + config.read_text().partition("\n")[2])
    assert begin_sweep(tmp_path, plans_of[1], 5).name == "part_2_of_2"


def test_parts_that_are_not_there_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY_TOML)
    given = ["sweep", "tiny.toml", "--seeds", "4", "--run-dir", "a", "--part"]
    assert_refused([*given, "3"], "part = '3': expected K/N, part K of N, such as 3/16", capsys)
    for part in ("0/2", "3/2", "1/5"):
        assert_refused([*given, part], f"part = {part}: expected K/N with 1 <= K <= N <= 4, the number of runs", capsys)
    assert_refused(["sweep", "tiny.toml", "--part", "1/2"], "--part: needs --run-dir, the folder of the whole sweep", capsys)
    assert_refused(["sweep", "--merge", "a"], "a: no parts of a sweep there", capsys)
    alone = "--merge joins the parts in one folder, as they were trained: give no configuration and no fields"
    assert_refused(["sweep", "tiny.toml", "--merge", "a"], f"{alone} (here: config)", capsys)
    assert_refused(["sweep", "--merge", "a", "b", "--gamma", "0.9"], f"{alone} (here: config, gamma)", capsys)
    assert not Path("a").exists()


def test_a_table_and_keys_of_it_may_be_given_in_any_order() -> None:
    whole, key = {"network": {"activation": "relu"}}, {"network.hidden": [32]}
    for cell in ({**whole, **key}, {**key, **whole}):
        assert dict(apply_cell(CONFIG, cell).network) == {"activation": "relu", "hidden": (32,)}


def test_merging_replaces_no_file_that_is_of_no_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "check_teacher", lambda *_: None)  # no agent is made
    monkeypatch.setattr(plans, "own_of", lambda *_: "")
    plan = plan_sweep(CONFIG, {"learning_rate": [1e-3, 1e-2]}, part="1/2")
    begin_sweep(tmp_path, plan, 5)
    rljax.merge_sweep(tmp_path)  # no run is trained yet
    (tmp_path / "config.toml").unlink()  # as if the merge had been stopped
    rljax.merge_sweep(tmp_path)
    for name in ("sweep.toml", "results.csv"):
        (tmp_path / name).unlink()
    (tmp_path / "config.toml").write_text("# mine")
    for attempt in (lambda: rljax.merge_sweep(tmp_path), lambda: begin_sweep(tmp_path, plan._replace(part=(2, 2)), 5)):
        with pytest.raises(rljax.ConfigError, match=r"config\.toml there is of no sweep, and the merged sweep would replace it"):
            attempt()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "config.toml", "part_1_of_2"]
    assert (tmp_path / "config.toml").read_text() == "# mine"


def test_a_batch_is_halved_as_its_runs_lie_on_the_devices() -> None:
    programs = Programs(CONFIG, ("learning_rate",))
    programs.devices = 4
    assert [programs.halve(size) for size in (2, 3, 5, 8, 12, 16)] == [1, 1, 4, 4, 4, 8]
    for alone in (1, 4):
        with pytest.raises(rljax.ConfigError, match="one run alone does not fit"):
            programs.halve(alone)


def test_out_of_memory_halves_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sweeps.Population
    sizes: list[int] = []

    def scarce(programs: Any, values: Any, seeds: np.ndarray) -> Any:
        sizes.append(len(seeds))
        if len(seeds) > 2:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes")
        return real(programs, values, seeds)

    monkeypatch.setattr(sweeps, "Population", scarce)
    told: list[str] = []
    found = rljax.sweep(CONFIG, {"learning_rate": [1e-3, 1e-2]}, seeds=2, episodes=2, progress=told.append)
    assert sizes == [4, 2, 2]
    assert told[0] == "out of memory: continuing with 2 runs at once"
    assert np.isfinite(found.returns).all()


@pytest.mark.slow
def test_batches_fit_in_the_memory_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = Programs(CONFIG, ("learning_rate",))
    analysis = programs.chunk(4)[0].memory_analysis()  # type: ignore[attr-defined]
    needed = analysis.argument_size_in_bytes + analysis.temp_size_in_bytes
    monkeypatch.setattr("rljax.run.search.population.device_memory", lambda: int(needed / 0.8 * 1.5))
    assert 1 <= programs.batch_size(16) <= 6
    monkeypatch.setattr("rljax.run.search.population.device_memory", lambda: 1000)
    with pytest.raises(rljax.ConfigError, match="one run alone does not fit"):
        programs.batch_size(16)


@pytest.mark.slow
@pytest.mark.filterwarnings("error::RuntimeWarning")  # of a mean of nothing
def test_a_run_that_diverges_is_the_worst_and_stops_nobody(tmp_path: Path) -> None:
    found = rljax.sweep(CONFIG, {"learning_rate": [1e30, 1e-3]}, episodes=2, run_dir=tmp_path / "a")
    assert (tmp_path / "a" / "sweep.png").exists()
    assert np.isneginf(found.returns[0]).all()
    assert np.isfinite(found.returns[1]).all()
    assert found.best.learning_rate == 1e-3
    with pytest.raises(rljax.RljaxError, match="no cell has a finite result"):
        rljax.sweep(CONFIG, {"learning_rate": [1e30]}, episodes=2)


def test_points_of_a_space_cover_it() -> None:
    space = {"learning_rate": rljax.Range(1e-5, 1e-1, log=True), "gamma": rljax.Range(0.9, 1.0), "ent_coef": (0.0, 0.01)}
    for search in ("random", "sobol"):
        cells = cells_of(space, search, 64, seed=1)
        rates = np.log10([cell["learning_rate"] for cell in cells])
        gammas = np.array([cell["gamma"] for cell in cells])
        assert rates.min() >= -5
        assert rates.max() <= -1
        counts = np.histogram(rates, 8, (-5, -1))[0]
        assert counts.min() >= (8 if search == "sobol" else 1)  # a power of two of a Sobol sequence is balanced
        assert abs(gammas.mean() - 0.95) < 0.02
        assert 16 <= sum(cell["ent_coef"] == 0.0 for cell in cells) <= 48
        assert cells == cells_of(space, search, 64, seed=1)
    narrow = rljax.Range(0.99, 0.9999999)
    assert parse_range(str(narrow), "x") == narrow
    assert parse_range("1e-5:1e-1:log", "x") == rljax.Range(1e-5, 1e-1, True)
    assert parse_range("pgx:tic_tac_toe", "env") is None


@pytest.mark.parametrize(
    ("space", "how", "message"),
    [
        ({"learning_rat": [1.0]}, {}, "did you mean 'learning_rate'"),
        ({"learning_rate": [1e-3, -1.0]}, {}, "learning_rate = -1.0: expected a number >= 0"),
        ({"learning_rate": [1e-3, 1e-3]}, {}, "a value is given twice"),
        ({"vf_coef": [1, 1.0]}, {}, "a value is given twice"),
        (["learning_rate"], {}, "space = ['learning_rate']: expected a table of values by field"),
        ({"learning_rate": [1e-3]}, {"search": None}, "search = None"),
        ({"learning_rate": [1e-3]}, {"search": "random", "samples": "5"}, "samples = '5': a random search needs a whole number"),
        ({"learning_rate": [1e-3]}, {"part": 2}, "part = 2: expected K/N, part K of N, such as 3/16"),
        ({"learning_rate": 1e-3}, {}, "expected a list of values"),
        ({"learning_rate": rljax.Range(1e-5, 1e-2)}, {}, "a range is for a random or sobol search"),
        ({"num_steps": rljax.Range(8, 32)}, {"search": "random", "samples": 4}, "fixes the structure of the program"),
        ({"learning_rate": rljax.Range(0.0, 1.0, True)}, {"search": "sobol", "samples": 4}, "expected low > 0"),
        ({"seed": [0, 1]}, {}, "seed: cannot be swept"),
        ({"learning_rate": [1e-3] * 1 + [1e-2]}, {"seeds": 3000}, "2 x 3000 (seeds) = 6000 runs: more than max_runs = 4096"),
        ({"num_minibatches": [2, 5]}, {}, "num_minibatches = 5"),
        ({"network.hidden": [[8], [-1]]}, {}, "hidden"),
        ({"gamma.x": [1, 2]}, {}, "gamma.x: gamma = 0.99 has no keys, as it is not a table"),
        ({"intrinsc.type": ["count", "rnd"]}, {}, "unknown field 'intrinsc' of PPOConfig: did you mean 'intrinsic'?"),
        ({"intrinsic.resolution": [0.5, 1.0]}, {}, "expected a table with a type"),
        ({"learning_rate": [1e-3]}, {"search": "bayes"}, "search = 'bayes'"),
        ({"learning_rate": [1e-3]}, {"samples": 3}, "samples = 3: is for a random or sobol search"),
        ({"learning_rate": [1e-3]}, {"search": "random", "samples": 2.5}, "samples = 2.5"),
        ({}, {"search": "random", "samples": 2}, "needs at least one field"),
        ({"num_devices": [1, 2]}, {}, "num_devices: cannot be swept"),
        ({"env": [rljax.make_env("CartPole-v1")[0]]}, {}, "objects cannot be written"),
        ({"learning_rate": [1e-3]}, {"seeds": 0}, "seeds = 0"),
        ({"learning_rate": [1e-3]}, {"batch_size": 0}, "batch_size = 0"),
    ],
)
def test_bad_input_is_one_line_and_makes_nothing(space: Any, how: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(rljax.ConfigError) as error:
        rljax.sweep(CONFIG, space, run_dir=tmp_path / "a", **how)
    assert message in str(error.value)
    assert not (tmp_path / "a").exists()


def test_keys_make_a_table_where_the_configuration_has_none() -> None:
    """As in `rljax train`, where `--intrinsic.type count` is enough."""
    assert CONFIG.intrinsic is None
    config, space = _split_axes(CONFIG, {"intrinsic.type": ["count"], "intrinsic.resolution": [0.5, 1.0]})
    tables = [apply_cell(config, cell).intrinsic for cell in plan_sweep(config, space).cells]
    assert tables == [{"type": "count", "resolution": 0.5}, {"type": "count", "resolution": 1.0}]


def test_a_sweep_says_how_many_programs_it_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise ConfigError("no training in this test")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rljax.run.search.sweep.run_sweep", stop)
    Path("tiny.toml").write_text(TINY_TOML)
    with pytest.raises(SystemExit):
        main(["sweep", "tiny.toml", "--learning-rate", "1e-3", "1e-2", "--num-epochs", "1", "2"])
    said = " ".join(capsys.readouterr().out.split())  # however wide the terminal is
    assert "4 cells x 1 seed = 4 runs in 2 programs into sweeps/tiny" in said


@pytest.mark.slow
def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY_TOML)
    fixed = ["tiny.toml", "--episodes", "2", "--seeds", "2", "--gamma", "0.9"]
    with monkeypatch.context() as patched:
        patched.setattr("rljax.core.devices._first_gpu", lambda: "NVIDIA H200")
        patched.setattr("rljax.core.devices._platforms", lambda: "")
        main(["sweep", *fixed, "--learning-rate", "1e-3", "1e-2", "--ent-coef", "0", "0.1", "--parquet"])
    said, warned = capsys.readouterr()
    assert "device: CPU" in said
    assert "has an NVIDIA H200, but JAX" in warned
    assert "4 cells x 2 seeds = 8 runs into sweeps/tiny" in said
    folder = Path("sweeps/tiny")
    with (folder / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["learning_rate"] for row in rows] == ["0.001"] * 4 + ["0.01"] * 4
    assert (folder / "results.parquet").exists()
    assert rljax.load_config(folder / "best.toml").gamma == 0.9
    means = [np.mean([float(row["return"]) for row in rows if row["cell"] == str(cell)]) for cell in range(4)]
    assert f"{max(means):.1f}" in said
    main(["sweep", *fixed, "--learning-rate", "1e-4:1e-2:log", "--search", "sobol", "--samples", "3"])
    assert Path("sweeps/tiny-2/sweep.png").exists()
    (folder / "results.csv").write_text("\n".join((folder / "results.csv").read_text().splitlines()[:5]) + "\n")
    main(["sweep", "--resume", "sweeps/tiny"])
    assert "4 of 8 runs were done before" in capsys.readouterr().out
    with (folder / "results.csv").open() as file:
        again = list(csv.DictReader(file))
    np.testing.assert_allclose([float(r["return"]) for r in again], [float(r["return"]) for r in rows], rtol=1e-5)
    for arguments, message in (
        (["sweep"], "nothing to sweep"),
        (["sweep", "tiny.toml", "--learning-rat", "1", "2"], "did you mean 'learning_rate'"),
        (["sweep", "tiny.toml", "--learning-rate", "1e-3", "1e-2", "--max-runs", "1"], "more than max_runs = 1"),
        (["sweep", "tiny.toml", "--resume", "sweeps/tiny"], "give no configuration and no fields"),
        (["sweep", "--resume", "sweeps/tiny", "--seeds", "3"], "give no configuration and no fields (here: seeds)"),
        (["sweep", "--learning-rate", "1e-3", "1e-2", "tiny.toml"], "did --learning-rate take 'tiny.toml' as its value?"),
        (["sweep", "--resume", "nowhere"], "no sweep there"),
        (["sweep", "tiny.toml", "--run-dir", "sweeps/tiny", "--gamma", "0.9", "0.99"], "exists already"),
    ):
        assert_refused(arguments, message, capsys)
