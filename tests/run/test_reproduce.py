"""Records of published figures: what they hold, and that a failure keeps the one before."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import rljax
from rljax.cli.main import main
from rljax.run.demos.recording import demonstrations
from rljax.run.reproduce import EXPERIMENTS, Experiment, Report, merge_records, reproduce
from rljax.run.reproduce.playing.microrts import begin_with
from rljax.run.reproduce.presets import returns_at_random
from rljax.run.reproduce.report import Trained, recorded_metrics, summarize, write_record
from tests.run.tiny_runs import assert_refused

TINY = rljax.PPOConfig(
    env="MaskedBandit-v0", total_timesteps=64, num_envs=4, num_steps=8, num_minibatches=1, network={"hidden": [4]}
)


def tiny(report: Report) -> None:
    run = report.train(TINY, "tiny")
    report.measure("return", report.returns(run, 5), 1.0)
    report.measure("losses", run.metrics["train/value_loss"])
    report.facts["limit"] = np.float32(0.1)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXPERIMENTS, "tiny", Experiment("a bandit", 0.1, 2, tiny))


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 2])
def test_a_record_says_what_was_run_and_holds_what_training_by_hand_gives(
    at_once: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljax.run.reproduce.report.SEEDS_AT_ONCE", at_once)
    record = reproduce("tiny", tmp_path)
    assert "64/64" in capsys.readouterr().out
    assert record == json.loads((tmp_path / "tiny.json").read_text())
    assert record["seeds"] == [5000, 5001]
    assert record["command"] == "rljax reproduce tiny"
    assert record["configs"]["tiny"]["num_envs"] == 4
    assert record["versions"]["jax"] == jax.__version__
    assert record["hardware"]["cores"] >= 1
    assert len(record["load"]) == 6
    assert min(record["seconds"].values()) >= 0
    assert record["facts"] == {"limit": 0.1}
    agent = rljax.make_agent(TINY)
    for seed, found, losses in zip(record["seeds"], record["raw"]["return"], record["raw"]["losses"], strict=True):
        key = jax.random.key(seed)
        result = jax.jit(rljax.make_train(TINY))(key)
        returns = rljax.evaluate(agent, result.state, jax.random.fold_in(key, 1), 5)
        assert found == pytest.approx(float(returns.mean()), rel=1e-4)
        np.testing.assert_allclose(losses, result.metrics["train/value_loss"], rtol=1e-4)
    known = record["summary"]["return"]
    assert known["min"] == min(record["raw"]["return"])
    assert known["solved"] == sum(x >= 1.0 for x in record["raw"]["return"])


def test_a_record_says_of_each_arm_what_was_changed_of_which_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljax.run.reproduce.report.fit", lambda *_, **__: SimpleNamespace(state=None, metrics={}))
    report = Report("tried", "presets", 5000, 2, quiet=True)
    usual = rljax.load_config("cartpole_ppo")
    report.train("cartpole_ppo")
    report.train("cartpole_ppo", "as it is by name", gamma=usual.gamma)
    report.train(usual.replace(gamma=0.5), "made by hand", preset="cartpole_ppo", num_envs=2)
    report.train(TINY, "of no preset")
    found = report.record("a command")
    assert list(found["presets"]) == list(found["configs"])
    assert [(arm["preset"], sorted(arm["changed"])) for arm in found["presets"].values()] == [
        ("cartpole_ppo", ["seed"]),
        ("cartpole_ppo", ["gamma", "seed"]),
        ("cartpole_ppo", ["gamma", "num_envs", "seed"]),
        (None, []),
    ]


@pytest.mark.slow
def test_random_play_takes_legal_actions_uniformly() -> None:
    report = Report("tried", "random play", 5000, 2, quiet=True)
    agent = rljax.make_agent(TINY)
    run = Trained(agent, jax.vmap(agent.init)(report.keys), {}, report.keys)
    # A third of 4 steps, by enumeration; an illegal arm would cost 1.
    assert returns_at_random(report, run) == pytest.approx([4 / 3, 4 / 3], abs=0.3)


def test_a_seed_without_a_value_is_left_out_and_not_solved() -> None:
    assert summarize(np.array([1.0, np.nan, 3.0, 8.0]), 2.0) == {
        "mean": 4.0, "median": 3.0, "min": 1.0, "max": 8.0, "known": 3, "solved": 2,
    }  # fmt: skip
    assert summarize(np.array([np.nan])) == {"known": 0}


@pytest.mark.slow
def test_a_command_that_differs_from_the_published_one_is_written_as_it_was(tmp_path: Path) -> None:
    record = reproduce("tiny", tmp_path, seeds=1, first_seed=7, budget=0.5, quiet=True)
    assert record["command"] == "rljax reproduce tiny --seeds 1 --first-seed 7 --budget 0.5"
    assert record["configs"]["tiny"]["total_timesteps"] == 32


def test_a_failure_keeps_the_record_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(report: Report) -> None:
        raise RuntimeError

    (tmp_path / "tiny.json").write_text("before")
    monkeypatch.setitem(EXPERIMENTS, "tiny", Experiment("", 0, 1, broken))
    with pytest.raises(RuntimeError):
        reproduce("tiny", tmp_path, quiet=True)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("tiny.json", "before")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cartpole_ppp"], "unknown experiment 'cartpole_ppp': did you mean 'cartpole_ppo'"),
        (["tiny", "--seeds", "0"], "seeds = 0: expected a whole number"),
        (["tiny", "--budget", "2"], "budget = 2: expected a share"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", *arguments, "--out", str(tmp_path)])
    assert stop.value.code == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_a_name_the_command_lists_every_experiment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # a line for each
    main(["reproduce"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(EXPERIMENTS)
    assert any("a bandit" in line for line in lines)


def interrupted(*arguments: Any, **options: Any) -> Any:
    """`fit`, in which someone presses Ctrl-C after the first record."""
    return rljax.fit(*arguments, **options, callback=lambda *_: signal.raise_signal(signal.SIGINT))


def test_kept_runs_go_on_where_they_were_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def losses(report: Report) -> None:
        report.measure("losses", report.train(TINY, "a tiny run").metrics["train/value_loss"])

    monkeypatch.setitem(EXPERIMENTS, "tiny", Experiment("a bandit", 0.1, 2, losses))
    whole = reproduce("tiny", tmp_path / "whole", quiet=True)
    again = ["reproduce", "tiny", "--run-dir", str(tmp_path / "runs"), "--out", str(tmp_path / "parts")]
    with monkeypatch.context() as patch:
        patch.setattr("rljax.run.reproduce.report.fit", interrupted)
        with pytest.raises(SystemExit) as stop:
            main(again)
    assert stop.value.code == 130
    assert (
        f"interrupted at step 32, saved in {tmp_path / 'runs' / 'tiny' / 'from_5000' / 'a_tiny_run_5000_5001'}"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "parts").exists()
    main(again)
    found = json.loads((tmp_path / "parts" / "tiny.json").read_text())
    assert found["raw"] == whole["raw"]
    assert found["configs"] == whole["configs"]
    assert found["note"].startswith("Begun in earlier calls: a_tiny_run_5000_5001. Date, commit, versions,")
    # What is complete is not trained again.
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("rljax.run.driver.Driver._train", None)
        assert reproduce("tiny", Path("there"), quiet=True, run_dir="runs")["raw"] == whole["raw"]
    assert reproduce("tiny", tmp_path, quiet=True, budget=0.5, run_dir="runs")["configs"]["a tiny run"]["total_timesteps"] == 32


@pytest.mark.slow
def test_a_run_that_begins_with_a_clone_of_recorded_play_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data, the clone and its successor are kept, each group of seeds in a run of its own."""
    monkeypatch.setattr("rljax.run.reproduce.report.SEEDS_AT_ONCE", 1)

    def cloned(report: Report) -> None:
        with report.workplace():
            demonstrations("random", "games", num_episodes=8, env="MaskedBandit-v0", seed=report.seeds[0], resume=True)
            config = rljax.BCConfig(
                env="MaskedBandit-v0", dataset="games", total_timesteps=64, num_envs=4, num_steps=8, num_minibatches=1,
                network={"hidden": [4]}, vf_coef=0.0,
            )  # fmt: skip
            clone = report.train(config, "clone")
        run = report.train(TINY, "from the clone", begin=partial(begin_with, clone))
        report.measure("losses", run.metrics["train/value_loss"])

    monkeypatch.setitem(EXPERIMENTS, "tiny", Experiment("a bandit", 0.1, 2, cloned))
    whole = reproduce("tiny", tmp_path / "whole", quiet=True)
    kept = {"quiet": True, "run_dir": tmp_path / "kept"}
    with monkeypatch.context() as patch:
        patch.setattr("rljax.run.reproduce.report.fit", interrupted)
        for stopped in ("clone_5000", "clone_5001", "from_the_clone_5000"):
            with pytest.raises(rljax.TrainingInterrupted, match=f"{stopped}$"):
                reproduce("tiny", tmp_path, **kept)
    assert reproduce("tiny", tmp_path, **kept)["raw"] == whole["raw"]
    assert sorted(path.name for path in (tmp_path / "kept" / "tiny" / "from_5000").iterdir()) == [
        "clone_5000", "clone_5001", "data", "from_the_clone_5000", "from_the_clone_5001",
    ]  # fmt: skip
    # Other seeds record for themselves.
    assert reproduce("tiny", tmp_path, first_seed=5001, seeds=1, **kept)["seeds"] == [5001]
    assert (tmp_path / "kept" / "tiny" / "from_5001" / "data").exists()


def test_arms_do_not_share_a_folder(tmp_path: Path) -> None:
    report = Report("tried", "names", 5000, 1, quiet=True, run_dir=tmp_path)
    assert report._run_dir("T-maze, GRU", [5000]) == tmp_path / "tried" / "from_5000" / "t_maze_gru_5000"
    with pytest.raises(ValueError, match="t-maze GRU: another arm of the experiment is kept in"):
        report._run_dir("t-maze GRU", [5000])
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "config.toml").touch()
    with pytest.raises(rljax.ConfigError, match="taken is a run;"):
        Report("taken", "", 5000, 1, run_dir=tmp_path)
    with pytest.raises(rljax.ConfigError, match="from_5000 cannot be made: Not a directory"):
        Report("tried", "", 5000, 1, run_dir=tmp_path / "taken" / "config.toml")


@pytest.mark.slow
def test_recorded_metrics_of_a_long_run_are_means_over_the_iterations_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TINY.replace(total_timesteps=5 * 32, eval_every=96, eval_episodes=4)
    agent = rljax.make_agent(config)
    exact = rljax.fit(agent, seeds=2, run_dir=tmp_path / "each").metrics
    found = recorded_metrics(tmp_path / "each", config)
    assert sorted(found) == sorted(exact)
    for name, values in exact.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    monkeypatch.setattr("rljax.run.files.records.MAX_RECORDS", 3)
    monkeypatch.setattr("rljax.run.files.records.MIN_RECORDS", 3)
    rljax.fit(agent, seeds=2, run_dir=tmp_path / "pairs")
    found = recorded_metrics(tmp_path / "pairs", config)
    windows = [slice(0, 2), slice(2, 4), slice(4, 5)]
    for window in windows:
        for name in ("train/value_loss", "episode/count"):
            mean = exact[name][:, window].mean(1, keepdims=True)
            np.testing.assert_allclose(found[name][:, window], np.repeat(mean, mean.shape[1] * (window.stop - window.start), 1))
    np.testing.assert_array_equal(np.isfinite(found["eval/return"]), [[False, False, True, False, True]] * 2)
    for name in ("eval/return", "eval/count"):
        np.testing.assert_allclose(found[name], exact[name])
    metrics = tmp_path / "pairs" / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    for lost in (1, 2, 3):
        metrics.write_text("\n".join(lines[:lost] + lines[lost + 1 :]) + "\n")
        with pytest.raises(rljax.ConfigError, match=r"pairs: records are missing in metrics.jsonl"):
            recorded_metrics(tmp_path / "pairs", config)


def part(folder: Path, seeds: list[int], /, config: rljax.Config = TINY, **changes: object) -> Path:
    """A folder with a record of these seeds, as one machine measures it."""
    report = Report("tiny", "a bandit", seeds[0], len(seeds), quiet=True)
    report.seeds = seeds
    report.configure(config, "tiny")
    report.measure("return", [seed / 2 for seed in seeds], 4.0)
    report.measure("won and lost", [[seed, 1] for seed in seeds])
    report.facts = {"limit": 0.1, "recorded": seeds[0]}
    report.compiling, report.running = 1.0, 10.0
    record = report.record(f"rljax reproduce tiny --first-seed {seeds[0]}") | {"commit": f"c{seeds[0]}"} | changes
    folder.mkdir()
    write_record(folder / "tiny.json", record)
    return folder


def test_records_of_other_seeds_are_merged_into_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = part(tmp_path / "a", [9, 12])
    first = part(tmp_path / "b", [7, 11], note="On a train.", date="2026-01-01T00:00:00+00:00")
    main(["reproduce", "tiny", "--merge", str(last), str(first), "--out", str(tmp_path / "b")])  # in place of one of them
    assert f"{tmp_path / 'b' / 'tiny.json'}: seeds 7, 9, 11, 12" in " ".join(capsys.readouterr().out.split())
    merged = json.loads((first / "tiny.json").read_text())
    assert merged["seeds"] == [7, 9, 11, 12]
    assert merged["raw"] == {"return": [3.5, 4.5, 5.5, 6.0], "won and lost": [[7, 1], [9, 1], [11, 1], [12, 1]]}
    assert merged["summary"] == {"return": {"mean": 4.875, "median": 5.0, "min": 3.5, "max": 6.0, "solved": 3}}
    assert merged["seconds"] == {"compile": 2.0, "run": 20.0}
    assert (merged["commit"], merged["date"]) == ("c7", "2026-01-01T00:00:00+00:00")
    assert merged["configs"]["tiny"]["seed"] == 7
    assert merged["note"] == "Seeds 7, 11: On a train."
    assert merged["command"] == "rljax reproduce tiny --first-seed 7 && rljax reproduce tiny --first-seed 9"
    assert merged["facts"] == {"limit": 0.1, "recorded": 7}
    assert [(p["seeds"], p["commit"], p["facts"]) for p in merged["parts"]] == [
        ([7, 11], "c7", {"limit": 0.1, "recorded": 7}),
        ([9, 12], "c9", {"limit": 0.1, "recorded": 9}),
    ]
    again = merge_records("tiny", [part(tmp_path / "c", [8]), first], tmp_path)
    assert again["seeds"] == [7, 8, 9, 11, 12]
    assert [p["commit"] for p in again["parts"]] == ["c7", "c8", "c9"]


def test_a_field_that_came_after_a_record_had_its_default(tmp_path: Path) -> None:
    whole, older = part(tmp_path / "a", [7]), part(tmp_path / "b", [8])
    record = json.loads((older / "tiny.json").read_text())
    del record["configs"]["tiny"]["gamma"]
    write_record(older / "tiny.json", record)
    assert merge_records("tiny", [whole, older], tmp_path)["seeds"] == [7, 8]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"budget": 0.5}, "b/tiny.json: budget is 0.5, but 1.0 in"),
        ({"name": "tinier"}, "b/tiny.json: is a record of 'tinier', not of 'tiny'"),
        ({"raw": {}}, "b/tiny.json: measures nothing of single seeds"),
        ({"raw": {"won": [1]}}, "b/tiny.json: the list of raw is ['won'], but ['return', 'won and lost'] in"),
        ({"configs": {}}, "b/tiny.json: the list of configs is [], but ['tiny'] in"),
        ({"thresholds": {}}, "b/tiny.json: thresholds is {}, but {'return': 4.0} in"),
        ({"seeds": [8, 9]}, "b/tiny.json: is no whole record"),
        ({"configs": {"tiny": {}}}, "b/tiny.json: is no whole record"),
        ({"configs": [1]}, "b/tiny.json: is no whole record"),
        ({"configs": {"tiny": {"algorithm": "ppoo"}}}, "b/tiny.json: is no whole record"),
        ({"facts": None}, "b/tiny.json: is no whole record"),
        ({"seconds": {}}, "b/tiny.json: is no whole record"),
        ({"seconds": {"compile": "long", "run": 1.0}}, "b/tiny.json: is no whole record"),
        ({"seconds": {"compile": 1.0, "run": 1.0, "wait": 1.0}}, "b/tiny.json: is no whole record"),
        ({"thresholds": {"return": "high"}}, "b/tiny.json: is no whole record"),
        ({"seeds": ["8"]}, "b/tiny.json: is no whole record"),
        ({"parts": []}, "b/tiny.json: is no whole record"),
        (
            {"raw": {"return": [[1.0]], "won and lost": [[8, 1]]}},
            "'return': the shape for each seed is [1], but [] in",
        ),
        (
            {"raw": {"return": ["much"], "won and lost": [[8, 1]]}},
            "'return': the shape for each seed is 'values that",
        ),
    ],
)
def test_records_that_differ_are_not_merged(
    changes: dict[str, object], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [part(tmp_path / "a", [7]), part(tmp_path / "b", [8], **changes)]
    assert_refused(["reproduce", "tiny", "--merge", *map(str, folders), "--out", str(tmp_path / "c")], said, capsys)
    assert not (tmp_path / "c").exists()


def test_records_of_other_settings_are_not_merged(tmp_path: Path) -> None:
    folders = [part(tmp_path / "a", [7]), part(tmp_path / "b", [8], config=TINY.replace(gamma=0.5))]
    with pytest.raises(rljax.ConfigError, match=r"b/tiny.json: gamma of 'tiny' is 0.5, but 0.99 in .*; such records are not"):
        merge_records("tiny", folders, tmp_path / "c")


def test_bad_merges_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = part(tmp_path / "a", [7]), part(tmp_path / "b", [8])
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "tiny.json").write_text("[1, 2")
    for arguments, said in (
        (["tinier", "--merge", str(one), str(two)], "unknown experiment 'tinier': did you mean 'tiny'?"),
        (["tiny", "--merge"], "merge = []: expected the folders of two records or more"),
        (["tiny", "--merge", str(one)], "expected the folders of two records or more"),
        (["tiny", "--merge", str(one), str(one)], "seeds = [7]: are in several of the records"),
        (["tiny", "--merge", str(one), str(tmp_path / "none")], "none/tiny.json: cannot be read: No such file or directory"),
        (["tiny", "--merge", str(one), str(tmp_path / "c")], "c/tiny.json: is no whole record of `rljax reproduce`"),
        (["--merge", str(one), str(two)], "merge: expected the name of an experiment"),
        (["tiny", "--merge", str(one), str(two), "--seeds", "2"], "seeds = 2: is not for --merge"),
        (["tiny", "--merge", str(one), str(two), "--budget", "0.5"], "budget = 0.5: is not for --merge"),
        (["tiny", "--merge", str(one), str(two), "--run-dir", "runs"], "run_dir = runs: is not for --merge"),
    ):
        assert_refused(["reproduce", *arguments, "--out", str(tmp_path / "out")], said, capsys)
    assert not (tmp_path / "out").exists()
