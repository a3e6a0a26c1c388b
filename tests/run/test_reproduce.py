"""Records of published figures: what they hold, and that a failure keeps the one before."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import rljax
from rljax.cli.main import main
from rljax.run.reproduce import EXPERIMENTS, Experiment, Report, reproduce
from rljax.run.reproduce.presets import returns_at_random
from rljax.run.reproduce.report import Trained, summarize

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
