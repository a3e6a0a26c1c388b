"""Tuning: a batch of trials is one program, pruned trials stop, studies go on and are shared."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optuna
import pytest
from PIL import Image

import rljax
from rljax.cli.main import main
from rljax.run.search import study as studies
from rljax.run.search import tune as tuning
from rljax.run.search.population import Population, Programs
from rljax.run.signals import sigterm_interrupts
from tests.run.tiny_runs import TINY_TOML, assert_refused

CONFIG = rljax.PPOConfig(
    env="CartPole-v1", num_envs=4, num_steps=16, num_minibatches=2, total_timesteps=1280, network={"hidden": [8]}
)
SPACE = {"learning_rate": rljax.Range(1e-5, 1e-1, log=True), "gamma": rljax.Range(0.9, 0.999)}


@pytest.mark.slow
def test_a_trial_is_the_run_it_says_and_a_batch_is_one_program() -> None:
    found = rljax.tune(CONFIG, SPACE, trials=6, batch_size=4, episodes=5, pruner="none")
    assert [t.state.name for t in found.trials] == ["COMPLETE"] * 6
    best = found.study.best_trial
    assert found.value == max(t.value for t in found.trials)
    assert found.best == CONFIG.replace(**best.params)
    # The trial's value is that of the sweep's run of the same numbers.
    alone = rljax.sweep(CONFIG, {name: [x] for name, x in best.params.items()}, episodes=5)
    assert alone.returns[0, 0] == pytest.approx(best.value, rel=1e-4)


@pytest.mark.slow
def test_pruned_trials_stop_and_a_smaller_program_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Half(optuna.pruners.BasePruner):
        """Odd trials, after the third chunk."""

        def prune(self, study: Any, trial: Any) -> bool:
            return trial.number % 2 == 1 and trial.last_step >= 3

    real = studies.open_study

    def with_half(*arguments: Any) -> Any:
        study = real(*arguments)
        study.pruner = Half()
        return study

    sizes: list[int] = []
    advance = Population.advance

    def counted(self: Population, iterations: int) -> None:
        sizes.append(len(self.failed))
        advance(self, iterations)

    monkeypatch.setattr(tuning, "open_study", with_half)
    monkeypatch.setattr(Population, "advance", counted)
    found = rljax.tune(CONFIG, SPACE, trials=4, batch_size=4, episodes=2)
    assert [t.state.name for t in found.trials] == ["COMPLETE", "PRUNED"] * 2
    assert len(sizes) == tuning.RUNGS
    assert set(sizes[:2]) == {4}
    assert sizes[-1] == 2
    assert sorted(sizes, reverse=True) == sizes


@pytest.mark.slow
def test_a_folder_has_the_study_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = rljax.tune(CONFIG, SPACE, trials=4, batch_size=4, episodes=2, run_dir=tmp_path / "a")
    more = rljax.resume_tune(tmp_path / "a", trials=8, batch_size=4)
    assert len(first.trials) == 4
    assert len(more.trials) == 8
    assert [t.params for t in more.trials[:4]] == [t.params for t in first.trials]
    assert rljax.load_config(tmp_path / "a/best.toml") == more.best
    assert (tmp_path / "a/trials.csv").read_text().count("\n") == 9
    with Image.open(tmp_path / "a/tune.png") as picture:
        assert len(picture.convert("RGB").getcolors(2**24) or []) > 20
    # A study that has all its trials says so and writes nothing.
    written = {file: file.stat().st_mtime_ns for file in (tmp_path / "a").glob("*.*") if file.name != "study.journal"}
    told: list[str] = []
    rljax.resume_tune(tmp_path / "a", trials=8, progress=told.append)
    assert told == ["trials done before: 8; none is left to train, a larger number of trials goes on"]
    assert {file: file.stat().st_mtime_ns for file in written} == written


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("storage", [None, "sqlite"])
def test_two_processes_work_on_one_study(storage: str | None, tmp_path: Path) -> None:
    where = None if storage is None else f"sqlite:///{tmp_path / 'study.db'}"
    rljax.tune(CONFIG, SPACE, trials=1, batch_size=4, episodes=2, run_dir=tmp_path / "a", storage=where)
    code = f"import rljax; rljax.resume_tune({str(tmp_path / 'a')!r}, trials=21, batch_size=4, storage={where!r})"
    both = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        _, error = process.communicate(timeout=250)
        assert process.returncode == 0, error
    trials = rljax.resume_tune(tmp_path / "a", trials=1, batch_size=4, storage=where).trials
    # Both may ask at once for the last ones.
    assert 21 <= len(trials) <= 25
    assert sum(t.state.name == "COMPLETE" for t in trials) >= 5
    rates = [t.params["learning_rate"] for t in trials]
    assert len(set(rates)) == len(rates), "they asked for the same trials"


@pytest.mark.slow
def test_whoever_asks_tells_also_when_something_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Population, iterations: int) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(Population, "advance", broken)
    study = studies.open_study(None, "none")
    batch = [study.ask(studies.distributions(SPACE)) for _ in range(2)]
    with pytest.raises(RuntimeError, match="no"):
        tuning._run_batch(study, batch, Programs(CONFIG, tuple(SPACE)), 2, 1, 2)
    assert [t.state.name for t in study.get_trials()] == ["FAIL"] * 2
    assert studies.valid_trials(study) == []


@pytest.mark.slow
def test_a_folder_that_moves_is_noticed_and_nothing_written_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advance, folder = Population.advance, tmp_path / "a"

    def advance_and_move(self: Population, iterations: int) -> None:
        advance(self, iterations)
        if not (tmp_path / "b").exists():
            folder.rename(tmp_path / "b")
            folder.mkdir()

    monkeypatch.setattr(Population, "advance", advance_and_move)
    with pytest.raises(rljax.RljaxError, match=r"training stopped: .*/a was moved or removed meanwhile"):
        rljax.tune(CONFIG, SPACE, trials=2, batch_size=2, episodes=2, run_dir=folder)
    assert list(folder.iterdir()) == []
    assert (tmp_path / "b/study.journal").exists()


@pytest.mark.slow
def test_trials_of_a_process_that_is_gone_are_tried_again(tmp_path: Path) -> None:
    how: dict[str, Any] = {"batch_size": 2, "episodes": 2, "run_dir": tmp_path / "a"}
    rljax.tune(CONFIG, SPACE, trials=2, **how)
    study = studies.open_study(str(tmp_path / "a/study.journal"), "none")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for owner in (f"{socket.gethostname()}:{gone.pid}", "elsewhere:1"):
        study.ask(studies.distributions(SPACE)).set_user_attr(studies.PROCESS, owner)
    told: list[str] = []
    found = rljax.resume_tune(tmp_path / "a", trials=4, batch_size=2, progress=told.append)
    assert [t.state.name for t in found.trials] == ["COMPLETE", "COMPLETE", "FAIL", "RUNNING", "COMPLETE"]
    assert told[-1] == "1 trials are still running in other processes"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"pruner": 5}, "pruner = 5: "),
        ({"seeds": 2, "config": CONFIG.replace(seed=2**32 - 1)}, "seeds = 2: expected a whole number from 1 to 1"),
    ],
)
def test_what_no_study_can_have_is_one_line(how: Any, message: str) -> None:
    with pytest.raises(rljax.ConfigError) as error:
        rljax.tune(**{"config": CONFIG, "space": SPACE, **how})
    assert message in str(error.value)


def test_trials_of_an_earlier_life_of_the_same_container_are_tried_again() -> None:
    """There a process has the host name and number that it had before it was killed."""
    study = studies.open_study(None, "none")
    host, pid, _ = studies.process_name().split(":")
    for owner in (f"{host}:{pid}:1", f"{host}:{pid}", studies.process_name(), "elsewhere:1:1"):
        study.ask(studies.distributions(SPACE)).set_user_attr(studies.PROCESS, owner)
    studies.free_abandoned(study)
    assert [t.state.name for t in study.get_trials()] == ["FAIL", "FAIL", "RUNNING", "RUNNING"]


@pytest.mark.slow
def test_a_study_of_something_else_is_refused(tmp_path: Path) -> None:
    where = f"sqlite:///{tmp_path / 'study.db'}"
    given: dict[str, Any] = {"config": CONFIG, "space": SPACE, "trials": 2, "batch_size": 1, "episodes": 2, "storage": where}
    rljax.tune(**{**given, "trials": 1})
    for changes in ({"config": CONFIG.replace(gamma=0.5)}, {"space": {"gamma": SPACE["gamma"]}}, {"seeds": 2}):
        with pytest.raises(rljax.ConfigError, match="this storage has a study of another configuration"):
            rljax.tune(**{**given, **changes})


@pytest.mark.slow
def test_a_batch_is_halved_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real, sizes = tuning.Population, []

    def scarce(programs: Any, values: Any, seeds: np.ndarray) -> Any:
        sizes.append(len(seeds))
        if len(seeds) > 2:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes")
        return real(programs, values, seeds)

    monkeypatch.setattr(tuning, "Population", scarce)
    found = rljax.tune(CONFIG, SPACE, trials=4, batch_size=4, episodes=2, pruner="none")
    assert sizes == [4, 2, 2]
    assert sum(t.state.name == "COMPLETE" for t in found.trials) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("space", "how", "message"),
    [
        ({"learning_rat": rljax.Range(0, 1)}, {}, "did you mean 'learning_rate'"),
        ({"num_steps": [8, 16]}, {}, "num_steps: fixes the structure"),
        ({"learning_rate": rljax.Range(1, 0)}, {}, "expected low < high"),
        ({}, {}, "nothing to tune"),
        (None, {"trials": 0}, "trials = 0"),
        (None, {"pruner": "medain"}, "did you mean 'median'"),
        (None, {"storage": "foo://x"}, "storage = 'foo://x': cannot be opened"),
        (None, {"storage": "no/such/folder/study.journal"}, "cannot be opened"),
    ],
)
def test_bad_input_is_one_line_and_makes_nothing(space: Any, how: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(rljax.ConfigError) as error:
        rljax.tune(CONFIG, space, run_dir=tmp_path / "a", **how)
    assert message in str(error.value)
    assert not (tmp_path / "a").exists()


def test_what_the_user_fixed_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def searched(_: Any, space: Any, **__: Any) -> None:
        raise rljax.ConfigError(f"searched {', '.join(space)}.")

    monkeypatch.setattr(tuning, "tune", searched)
    monkeypatch.setattr(tuning, "PRIORS", {name: tuning.PRIORS[name] for name in ("learning_rate", "gamma", "ent_coef", "tau")})
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY_TOML)
    command = ["tune", "tiny.toml", "--gamma", "0.5"]
    assert_refused([*command, "--ent-coef", "0.1"], "searched learning_rate.", capsys)
    assert_refused([*command, "--ent-coef", "0", "0.1"], "searched ent_coef.", capsys)
    every = [*command, "--ent-coef", "0", "--learning-rate", "1e-3"]
    assert_refused(every, "nothing to tune: no field but gamma, ent_coef, learning_rate is searched by default", capsys)


@pytest.mark.filterwarnings("error")
def test_where_all_trials_reached_the_same_no_field_is_important() -> None:
    for values, names in (([9.0] * 8, set()), ([1.0, 2.0, 3.0, 9.0, 9.0, 9.0], {"gamma"})):
        study = optuna.create_study(direction="maximize")
        for i, value in enumerate(values):
            gamma = {"gamma": 0.5 + 0.05 * i}
            space = {"gamma": optuna.distributions.FloatDistribution(0.1, 0.99)}
            study.add_trial(optuna.trial.create_trial(params=gamma, distributions=space, value=value))
        assert set(studies.importances(study)) == names


def test_an_interrupted_command_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number of trials and of those at once are not the study's: without the flags it would go on to 64."""
    monkeypatch.chdir(tmp_path)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "_exit", sys.exit)  # which it would do at once
    monkeypatch.setattr("rljax.cli.search.tuning.tune", interrupted)
    for flags, said in (([], ""), (["--trials", "5", "--batch-size", "4"], " --trials 5 --batch-size 4")):
        with pytest.raises(SystemExit, match="130"):
            main(["tune", "cartpole_ppo", "--run-dir", "here", *flags])
        assert capsys.readouterr().err == f"rljax: interrupted; to go on: rljax tune --resume here{said}\n"

    def terminated(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("rljax.cli.search.tuning.tune", terminated)
    with pytest.raises(SystemExit, match="143"):
        main(["tune", "cartpole_ppo", "--run-dir", "here"])
    assert capsys.readouterr().err == "rljax: interrupted; to go on: rljax tune --resume here\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    # In other threads, and where somebody else handles the signal, nothing changes.
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with sigterm_interrupts():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(lambda: sigterm_interrupts().__enter__()).result() == []
    monkeypatch.setattr("rljax.cli.search.sweeps.run_sweep", interrupted)
    with pytest.raises(SystemExit, match="130"):
        main(["sweep", "cartpole_ppo", "--gamma", "0.9", "0.99", "--run-dir", "there", "--batch-size", "2"])
    assert capsys.readouterr().err == "rljax: interrupted; to go on: rljax sweep --resume there --batch-size 2\n"


@pytest.mark.slow
def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY_TOML)
    how = ["--batch-size", "4", "--episodes", "2"]
    with monkeypatch.context() as patched:
        patched.setattr("rljax.core.devices._first_gpu", lambda: "NVIDIA H200")
        patched.setattr("rljax.core.devices._platforms", lambda: "")
        main(["tune", "tiny.toml", "--trials", "4", "--learning-rate", "1e-4:1e-1:log", "--ent-coef", "0", "0.01", *how])
    said, warned = capsys.readouterr()
    assert "device: CPU" in said
    assert "has an NVIDIA H200, but JAX" in warned
    assert "tuning learning_rate, ent_coef of ppo on CartPole-v1" in said
    assert "best: trial" in said
    main(["tune", "--resume", "tunes/tiny", "--trials", "5", "--batch-size", "4"])
    assert "5/5 trials done" in capsys.readouterr().out
    for arguments, message in (
        (["tune"], "nothing to tune"),
        (["tune", "tiny.toml", "--num-steps", "8", "16"], "fixes the structure"),
        (["tune", "--resume", "nowhere"], "no study there"),
        (["tune", "--resume", "tunes/tiny", "--seeds", "2"], "give no configuration and no fields (here: seeds)"),
    ):
        assert_refused(arguments, message, capsys)
    assert np.isfinite(rljax.load_config("tunes/tiny/best.toml").learning_rate)
