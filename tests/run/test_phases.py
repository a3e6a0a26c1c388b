"""Runs of several phases: names, what is checked before training, and kills within and between phases."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rljax
from rljax.cli.main import main
from rljax.core.places import lock_folder
from rljax.run.phases.plan import check_phases, dump_phases, phases_table
from rljax.run.progress import Progress, Silent
from tests.run.tiny_runs import assert_refused, assert_same_state, records

TEXT = """
env = "MaskedBandit-v0"
num_envs = 4
num_steps = 8
num_minibatches = 1
network = { hidden = [4] }
total_timesteps = 256
anneal_lr = false

[phases.expert]
algorithm = "ppo"

[phases.student]
algorithm = "distill"
teachers = ["expert"]

[phases.final]
algorithm = "ppo"
init_from = "student/checkpoints/step_256"
teacher_kl_coef = 0.5
"""
PPO = rljax.PPOConfig(env="MaskedBandit-v0", num_envs=4, num_steps=8, num_minibatches=1, network={"hidden": [4]}, seed=3)
STUDENT = rljax.DistillConfig(env="MaskedBandit-v0", num_envs=4, network={"hidden": [4]}, teachers=("expert",))
CLONE = rljax.BCConfig(env="MaskedBandit-v0", network={"hidden": [4]}, dataset="nowhere")


class Killed(BaseException):
    """Stands for kill -9: no handler of the library catches it."""


class KillIn(Silent):
    """Ends training before a phase, or at its first chunk that reaches a step."""

    def __init__(self, title: str, phase: str, step: int):
        self.here, self.step = phase in title, step
        if self.here and step == 0:
            raise Killed

    def update(self, step: int, steps_per_second: float, episode_return: float, seconds_left: float) -> None:
        if self.here and step >= self.step:
            raise Killed


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "phases.toml"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phases")
    (folder / "phases.toml").write_text(TEXT)
    end = rljax.fit_phases(folder / "phases.toml", run_dir=folder / "whole")
    assert (end.phase, end.complete, end.result.step) == ("final", True, 256)
    return folder / "whole"


def assert_same_phases(a: Path, b: Path) -> None:
    for name in ("expert", "student", "final"):
        assert_same_state(rljax.load_run(a / name).state, rljax.load_run(b / name).state)
        first, *lines = records(a / name)
        assert lines == records(b / name)[1:]  # the first one has the configuration, whose paths differ
        assert "hyperparameters" in first


@pytest.mark.slow
def test_each_phase_learns_from_the_runs_that_it_names(whole: Path) -> None:
    runs = {name: rljax.load_run(whole / name) for name in ("expert", "student", "final")}
    assert runs["student"].config.teachers == (str(whole / "expert"),)
    assert [run.step for run in runs.values()] == [256] * 3
    assert_same_state(runs["final"].state.teacher.params, runs["student"].state.params)
    by_hand = rljax.fit(runs["student"].config)
    assert_same_state(by_hand.state, runs["student"].state)


@pytest.mark.long
def test_a_run_killed_in_phases_and_between_them_goes_on_bit_for_bit(whole: Path, file: Path) -> None:
    folder = file.parent / "killed"
    for phase, step in (("expert", 0), ("expert", 96), ("student", 0), ("student", 32), ("final", 0), ("final", 96)):

        def progress(title: str, phase: str = phase, step: int = step) -> Progress:
            return KillIn(title, phase, step)

        with pytest.raises(Killed):
            rljax.fit_phases(file, run_dir=folder, resume=True, progress=progress, checkpoint_every=32)
    moved = folder.rename(file.parent / "moved")
    end = rljax.fit_phases(resume=moved)
    assert (end.phase, end.complete) == ("final", True)
    assert_same_phases(whole, moved)
    again = rljax.fit_phases(file, run_dir=moved, resume=True)
    assert again.complete
    assert_same_state(again.result.state, end.result.state)
    assert again.result.metrics["train/value"].size == 0


@pytest.mark.slow
def test_a_second_phase_begins_with_the_first_and_survives_kills(tmp_path: Path) -> None:
    config = PPO.replace(total_timesteps=128)
    phases = {"first": rljax.Phase(config), "second": rljax.Phase(config, init_from="first")}
    for phase, step in (("second", 0), ("second", 64)):
        with pytest.raises(Killed):
            rljax.fit_phases(phases, run_dir=tmp_path / "run", resume=True, checkpoint_every=32,
                             progress=lambda title, phase=phase, step=step: KillIn(title, phase, step))  # fmt: skip
    end = rljax.fit_phases(resume=tmp_path / "run")
    by_hand = rljax.fit(config, init_from=tmp_path / "run" / "first")
    assert_same_state(end.result.state, by_hand.state)


@pytest.mark.slow
@pytest.mark.parametrize("older", [None, "step_64"])
def test_a_kill_before_the_last_link_to_the_best_checkpoint_is_mended(older: str | None, tmp_path: Path) -> None:
    """Without the link the next phase would not begin, and with an older one it would begin from that."""
    first = PPO.replace(total_timesteps=128, eval_every=128, eval_episodes=2)
    phases = {"first": first, "second": rljax.Phase(PPO.replace(total_timesteps=64), init_from="first/checkpoints/best")}
    end = rljax.fit_phases(phases, run_dir=tmp_path, resume=True, checkpoint_every=64)
    shutil.rmtree(tmp_path / "second")
    best = tmp_path / "first" / "checkpoints" / "best"
    best.unlink()
    if older is not None:
        best.symlink_to(older)
    again = rljax.fit_phases(phases, run_dir=tmp_path, resume=True)
    assert best.readlink() == Path("step_128")
    assert_same_state(again.result.state, end.result.state)


@pytest.mark.long
def test_what_stops_a_phase_names_it(whole: Path, file: Path) -> None:
    """The callback, the time budget, a signal, and a loss that is not finite."""
    folder = shutil.copytree(whole, file.parent / "stopped")
    shutil.rmtree(folder / "final")
    seen: list[str] = []
    end = rljax.fit_phases(resume=folder, callback=lambda phase, step, _: seen.append(phase) or True)
    assert (end.phase, end.complete, set(seen)) == ("final", False, {"final"})
    before = end.result.step
    end = rljax.fit_phases(resume=folder, max_minutes=1e-6)
    assert (end.phase, end.complete) == ("final", False)
    assert before < end.result.step < 256

    class Signal(Silent):
        def update(self, step: int, *_: float) -> None:  # type: ignore[override]
            signal.raise_signal(signal.SIGINT)

    shutil.rmtree(folder / "student")
    with pytest.raises(rljax.TrainingInterrupted, match="phase student: interrupted at step"):
        rljax.fit_phases(resume=folder, progress=lambda _: Signal())
    with pytest.raises(rljax.TrainingError, match=r"phase diverges: .* nan"):
        rljax.fit_phases({"diverges": PPO.replace(learning_rate=1e38, total_timesteps=640)}, run_dir=file.parent / "nan")


def test_fields_come_from_the_file_its_head_and_the_call(file: Path) -> None:
    phases = rljax.load_phases(file, seed=5, student={"num_envs": 8})
    assert list(phases) == ["expert", "student", "final"]
    assert [phase.config.seed for phase in phases.values()] == [5] * 3
    assert [phase.config.num_envs for phase in phases.values()] == [4, 8, 4]
    assert phases["final"].init_from == "student/checkpoints/step_256"
    file.write_text(dump_phases(phases))
    assert phases_table(rljax.load_phases(file)) == phases_table(phases)


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        ({}, "expected at least one"),
        ({"a b": PPO}, "phases.a b: expected a name of letters"),
        ({"seed": PPO}, "phases.seed: expected a name of letters"),
        ({"expert": PPO, "student": STUDENT.replace(teachers=())}, "phases.student: teachers = []"),
        ({"student": STUDENT, "expert": PPO}, "phases.student: teachers = 'expert': that phase does not come before this one"),
        (
            {"a": rljax.Phase(PPO, init_from="a")},
            "phases.a: init_from = 'a': that phase does not come before this one (before it: none)",
        ),
        (
            {"expart": PPO, "student": STUDENT},
            "teachers = 'expert': neither one of the earlier phases (expart) nor the folder of a run",
        ),
        ({"a": PPO.replace(teacher_kl_coef=1.0)}, "phases.a: teacher_kl_coef = 1.0: the teacher is the policy"),
        ({"a": rljax.Phase(PPO, seeds=0)}, "phases.a: seeds = 0: expected a whole number >= 1"),
        ({"a": PPO, "b": rljax.Phase(PPO.replace(network={"hidden": [5]}), init_from="a")}, "phases.b: the network of this"),
        ({"expert": PPO.replace(env="CartPole-v1"), "student": STUDENT}, "phases.student: teachers: expert is trained in CartP"),
        ({"expert": rljax.DQNConfig(env="MaskedBandit-v0"), "student": STUDENT}, "teachers: expert is of dqn, expected ppo"),
        ({"a": rljax.Phase("ppo")}, "phases.a: expected a configuration"),
        ({"a": PPO, "b": rljax.Phase(PPO, init_from="a/best")}, "phases.b: init_from = 'a/best': expected 'a' alone, or a/check"),
        ({"a": PPO, "b": rljax.Phase(PPO, init_from="a/checkpoints/best")}, "phase a makes no evaluation, so it has no best"),
        (
            {"a": PPO.replace(total_timesteps=70), "b": rljax.Phase(PPO, init_from="a/checkpoints/step_65")},
            "phase a ends at step 64",
        ),
        ({"a": CLONE}, "phases.a: nowhere: no dataset there"),
    ],
)
def test_all_phases_are_checked_before_the_first_is_trained(phases: Any, said: str) -> None:
    named = {name: phase if isinstance(phase, rljax.Phase) else rljax.Phase(phase) for name, phase in phases.items()}
    with pytest.raises(rljax.ConfigError) as error:
        check_phases(named)
    assert said in str(error.value)


def test_phases_have_names() -> None:
    with pytest.raises(rljax.ConfigError, match=r"^phases = \[.*: expected a dictionary of phases by name, or a TOML file$"):
        rljax.fit_phases([PPO], run_dir="run")  # type: ignore[arg-type]


def test_a_callback_ends_the_run_at_the_last_record_of_a_phase_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []

    def fit(config: Any, callback: Any, **_: Any) -> Any:
        """Calls back once, with the budget spent."""
        trained.append(config.total_timesteps)
        callback(config.total_timesteps, {})
        return SimpleNamespace(complete=True, step=config.total_timesteps)

    monkeypatch.setattr("rljax.run.phases.train.fit", fit)
    monkeypatch.setattr("rljax.run.phases.train.check_phases", lambda *_, **__: None)
    first = rljax.PPOConfig(env="MaskedBandit-v0", total_timesteps=2048)
    phases = {"first": first, "second": first.replace(total_timesteps=4096)}
    end = rljax.fit_phases(phases, run_dir=tmp_path / "run", callback=lambda name, *_: name == "first")
    assert (end.phase, end.complete, trained) == ("first", False, [2048])
    end = rljax.fit_phases(phases, run_dir=tmp_path / "other", callback=lambda name, *_: name == "second")
    assert (end.phase, end.complete, trained) == ("second", True, [2048, 2048, 4096])


@pytest.mark.slow
def test_a_changed_run_is_refused_and_kept(whole: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(whole, file.parent / "run")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    refused = [
        (["--resume", str(folder), "--seed", "4"], "--seed: a run of phases is resumed as it is"),
        ([str(file), "--run-dir", str(folder)], "exists already"),
        ([str(file), "--seeds", "3"], "--seeds: is not for a run of phases"),
        ([str(file), "--student.num-env", "3"], "phases.student: unknown field 'num_env'"),
        ([str(file), "--studend.num-envs", "3"], "unknown field or phase 'studend': did you mean 'student'"),
        ([str(file), "--student", "3"], "--student: is a phase"),
    ]
    for arguments, said in refused:
        assert_refused(["train", *arguments], said, capsys)
    assert_refused(["eval", str(folder)], "a run of several phases", capsys)
    assert_refused(["sweep", str(file), "--gamma", "0.9"], "a run of several phases", capsys)
    given = rljax.load_phases(file)
    with pytest.raises(rljax.ConfigError, match="gamma of phase final changed"):
        rljax.fit_phases(rljax.load_phases(file, final={"gamma": 0.5}), run_dir=folder, resume=True)
    with pytest.raises(rljax.ConfigError, match="has the phases expert, student, final, not expert: "):
        rljax.fit_phases({"expert": given["expert"]}, run_dir=folder, resume=True)
    frozen = folder / "phases.toml"
    frozen.write_text(frozen.read_text().replace("gamma = 0.99", "gamma = 0.9"))
    assert_refused(["train", "--resume", str(folder)], "checksum does not match", capsys)
    frozen.write_bytes(before[frozen])
    locks = set(folder.rglob(".lock"))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path not in locks} == {
        path: text for path, text in before.items() if path not in locks
    }


@pytest.mark.slow
def test_show_says_how_far_each_phase_is(
    whole: Path, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")  # nothing is wrapped, however long the folder's name
    folder = shutil.copytree(whole, file.parent / "run")
    main(["show", str(folder)])
    said = capsys.readouterr().out
    assert "to go on" not in said
    rows = [" ".join(line.split()) for line in said.splitlines()]
    assert "student distill MaskedBandit-v0 expert complete at 256 steps" in rows
    shutil.rmtree(folder / "final")
    main(["show", str(folder)])
    said = capsys.readouterr().out
    assert "not begun" in said
    assert f"to go on: rljax train --resume {folder}" in said
    with lock_folder(folder):  # as a process that trains the phases does
        main(["show", str(folder)])
    assert "to go on" not in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_trains_phases_with_flags_for_all_and_for_one(
    whole: Path, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    folder = file.parent / "command"
    main(["train", str(file), "--run-dir", str(folder), "--max-minutes", "1e-6", "--final.network.hidden", "[4]"])
    assert f"rljax train --resume {folder}" in capsys.readouterr().out
    main(["train", "--resume", str(folder)])
    said = capsys.readouterr().out
    assert f"all phases of {folder} are complete" in said
    assert f"rljax eval {folder / 'final'}" in said
    assert_same_phases(whole, folder)
