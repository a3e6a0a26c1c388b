"""The command line, run in the process: exit status, one clear line for bad input, nothing overwritten."""

from __future__ import annotations

import errno
import importlib
import io
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.cli.listing import LISTED
from rljax.cli.main import FUNCTIONS, main
from rljax.cli.options import Command
from rljax.cli.overrides import axes_of, overrides_of
from rljax.cli.parsing import by_name, parse
from rljax.cli.terminal import print_anywhere
from rljax.cli.train import _report, _report_seeds
from rljax.collect.evaluation import EpisodeResults
from rljax.core.places import atomic_folder, user_cache
from rljax.run.bench.suites import SUITES
from rljax.run.files.folder import split_path
from rljax.run.progress import Lines, default_progress

TINY = ["--total-timesteps", "256", "--network.hidden", "[8]"]


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        main(arguments)
        status = 0
    except SystemExit as stop:
        status = int(stop.code or 0)
    captured = capsys.readouterr()
    # What Python 3.12 says where its stack is full if a library that other tests import watches it (filelock does).
    return status, captured.out, captured.err.replace("Exception ignored in audit hook", "")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Status 2, one line on standard error, no run folder: that line."""
    before = sorted(Path().rglob("*"))
    status, _, err = run(capsys, *arguments)
    assert status == 2, err
    assert err.count("\n") == 1, err
    assert err.startswith("rljax: ")
    assert sorted(Path().rglob("*")) == before
    return err


def test_a_table_and_keys_of_it_may_be_given_in_any_order() -> None:
    key, whole = ("network.hidden", "[32]"), ("network", '{ activation = "relu", hidden = [64] }')
    for fields in ([key, whole], [whole, key]):
        assert overrides_of(fields) == {"network": {"activation": "relu", "hidden": [32]}}
    for fields in ([key, ("network", "mlp")], [("network", "mlp"), key]):
        with pytest.raises(rljax.ConfigError, match="give its keys or the whole table, not both"):
            overrides_of(fields)


@pytest.mark.parametrize(
    ("text", "value"),
    [(".9", 0.9), ("5.", 5.0), ("-.5", -0.5), ("+5.e-1", 0.5), (".9E2", 90.0), (".", "."), (".9.", ".9."), ("5.x", "5.x")],
)
def test_numbers_need_no_digit_on_both_sides_of_their_point(text: str, value: Any) -> None:
    assert overrides_of([("gamma", text)]) == {"gamma": value}
    assert axes_of([("gamma", [text, "0.5"])]) == {"gamma": [value, 0.5]}


def test_train_then_eval_the_whole_way(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "train", "cartpole_ppo", *TINY, "--seed", "3", "--learning-rate", "1e-3")
    assert (status, err) == (0, "")
    assert "not solved: the mean is below 475" in out
    assert "rljax eval runs/cartpole_ppo --sample" in out
    assert "step 256/256" in out
    config = rljax.load_config("runs/cartpole_ppo/config.toml")
    assert (config.total_timesteps, config.seed, config.learning_rate) == (256, 3, 1e-3)
    assert config.network["hidden"] == (8,)
    assert config.num_epochs == rljax.load_config("cartpole_ppo").num_epochs
    records = [json.loads(line) for line in Path("runs/cartpole_ppo/metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records] == [0, 64, 128, 192, 256]
    assert records[0]["hyperparameters"]["seed"] == 3
    status, out, _ = run(capsys, "eval", "runs/cartpole_ppo", "--episodes", "5", "--sample")
    assert status == 0
    assert "sampled return over 5 episodes" in out
    assert "after 256 steps" in out


@pytest.mark.slow
def test_where_the_best_policy_is_random_samples_are_the_rule(capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ["--total-timesteps", "1024", "--network.hidden", "[8]", "--eval-every", "none"]
    status, out, _ = run(capsys, "train", "composite_ppo", *tiny)
    assert status == 0
    assert "sampled return over 100 episodes" in out
    assert "  rljax eval runs/composite_ppo\n" in out
    assert "always on where the best policy is random" in " ".join(run(capsys, "eval", "--help")[1].replace("│", "").split())
    assert "sampled return over 3 episodes" in run(capsys, "eval", "runs/composite_ppo", "--episodes", "3")[1]
    assert "greedy return over 3 episodes" in run(capsys, "eval", "runs/composite_ppo", "--episodes", "3", "--no-sample")[1]


@pytest.mark.parametrize(
    ("flags", "sample"), [([], None), (["--sample"], True), (["--no-sample"], False), (["--no_sample"], False)]
)
@pytest.mark.parametrize("command", ["eval", "record"])
def test_samples_can_be_asked_for_or_refused_or_left_to_the_task(command: str, flags: list[str], sample: bool | None) -> None:
    options, _ = parse([command, *flags, "runs/a", "--seed", "3"], Command, "", [("rljax", "")])
    assert (options.run, options.seed, options.sample) == ("runs/a", 3, sample)


def test_a_switch_takes_no_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "eval", "runs/a", "--no-sample=true").endswith("--no-sample=true: --no-sample takes no value\n")


@pytest.mark.parametrize("command", ["play", "tournament", "demo"])
def test_a_flag_that_would_do_nothing_is_none(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown option --no-sample: did you mean '--sample'?" in refused(capsys, command, "runs/a", "--no-sample")


@pytest.mark.slow
def test_a_run_is_resumed_extended_and_forked(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "train", "cartpole_ppo", *TINY)
    status, out, err = run(capsys, "train", "--resume", "runs/cartpole_ppo")
    assert (status, err) == (0, "")
    said = " ".join(out.split())  # on one line or two, as wide as the terminal is
    assert "complete at step 256; to train on: rljax train --resume runs/cartpole_ppo --total-timesteps 512" in said
    assert "compiled in" not in out
    changed = refused(capsys, "train", "--resume", "runs/cartpole_ppo", "--total-timesteps", "512", "--num-envs", "8")
    assert "num_envs: a resumed run keeps its configuration, only total_timesteps may change" in changed
    assert "rljax train --fork runs/cartpole_ppo" in changed
    assert rljax.load_run("runs/cartpole_ppo").step == 256
    # Options that name what the run has change nothing.
    status, out, err = run(
        capsys, "train", "--resume", "runs/cartpole_ppo", "--total-timesteps", "512", "--num-devices", "1", *TINY[2:]
    )
    assert (status, err) == (0, "")
    assert "trained to step 512" in out
    assert rljax.load_config("runs/cartpole_ppo/config.toml").total_timesteps == 512
    status, out, err = run(capsys, "train", "--fork", "runs/cartpole_ppo/checkpoints/step_256", "--learning-rate", "1e-4")
    assert (status, err) == (0, "")
    assert "into runs/cartpole_ppo-fork" in out
    assert rljax.load_config("runs/cartpole_ppo-fork/config.toml").learning_rate == 1e-4
    assert rljax.load_run("runs/cartpole_ppo-fork").step == 512
    status, out, _ = run(capsys, "train", "--resume", "runs/cartpole_ppo-fork", "--total-timesteps", "576", "--max-minutes", "1")
    assert status == 0
    assert rljax.load_run("runs/cartpole_ppo-fork").step == 576


@pytest.mark.slow
def test_seeds_loggers_and_every_command_on_what_they_leave(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--seeds", "3", "--eval-every", "128", "--log", "tensorboard", "--checkpoint-every", "64", "--keep", "2")
    status, out, err = run(capsys, "train", "cartpole_ppo", *TINY, *arguments)
    assert (status, err) == (0, "")
    assert "greedy return over 100 episodes, 3 seeds: mean" in out
    assert "solved by 0 of 3 seeds" in out
    assert list(Path("runs/cartpole_ppo/tensorboard").glob("events*"))
    for arguments in (
        ("eval", "runs/cartpole_ppo", "--episodes", "3", "--seed-index", "1"),
        ("eval", "runs/cartpole_ppo/checkpoints/best", "--episodes", "3"),
        ("show", "runs/cartpole_ppo"),
        ("plot", "runs/cartpole_ppo", "--out", "curves.svg"),
        ("record", "runs/cartpole_ppo", "--out", "agent.gif", "--max-steps", "20"),
        ("export", "runs/cartpole_ppo", "--out", "policy", "--checkpoint", "best"),
    ):
        status, out, err = run(capsys, *arguments)
        assert (status, err) == (0, ""), arguments
        if arguments[0] in ("eval", "record", "export"):
            assert re.search(r"\(seed [012]\)", out)
    assert "ppo on CartPole-v1" in run(capsys, "show", "runs/cartpole_ppo")[1]
    assert Path("curves.svg").read_text().startswith("<?xml")
    assert Path("agent.gif").read_bytes()[:4] == b"GIF8"
    observation = np.zeros(4, np.float32)
    best = rljax.load_run("runs/cartpole_ppo", checkpoint="best", seed_index="best")
    expected, _ = rljax.make_agent(best.config).act(best.state, observation, None, jax.random.key(0), True)
    assert rljax.load_policy("policy").greedy(observation) == expected


@pytest.mark.slow
def test_a_field_may_come_before_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "train", *TINY, "--seed=5", "cartpole_ppo")
    assert (status, err) == (0, "")
    assert rljax.load_config("runs/cartpole_ppo/config.toml").seed == 5


@pytest.mark.slow
def test_a_key_joins_the_table_of_the_preset_and_a_table_replaces_it(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--total-timesteps", "256", "--num-steps", "16", "--num-minibatches", "2", "--eval-every", "none"]
    run(capsys, "train", "tmaze_ppo_gru", "--network.size", "8", "--run-dir", "joined", *few)
    run(capsys, "train", "tmaze_ppo_gru", "--network", "{ hidden = [8] }", "--run-dir", "replaced", *few)
    run(capsys, "train", "tmaze_ppo_gru", "--intrinsic.type", "count", "--network.size", "8", "--run-dir", "added", *few)
    preset = rljax.load_config("tmaze_ppo_gru").network
    assert rljax.load_config("joined/config.toml").network == {**preset, "size": 8}
    assert rljax.load_config("replaced/config.toml").network == {"hidden": (8,)}
    assert rljax.load_config("added/config.toml").intrinsic == {"type": "count"}


@pytest.mark.slow
def test_a_task_whose_best_policy_is_random_is_judged_by_sampled_actions(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--total-timesteps", "256", "--num-steps", "16", "--num-minibatches", "2"]
    _, out, _ = run(capsys, "train", "composite_ppo", *few)
    assert "sampled return over 100 episodes" in out
    assert "not solved: the mean is below 2.6" in out
    _, out, _ = run(capsys, "train", "composite_ppo", *few, "--seeds", "2")
    assert "sampled return over 100 episodes, 2 seeds" in out


def test_a_mean_is_told_with_the_digits_that_its_verdict_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    returns = jnp.tile(jnp.array([0.875, 1.0]), 2)
    played = EpisodeResults(returns, jnp.ones(4, jnp.int32), jnp.ones(4, bool), None)
    monkeypatch.setattr("rljax.cli.train.play_episodes", lambda *_, **__: played)
    agent = rljax.make_agent(rljax.load_config("gridworld_ppo"))
    _report(agent, jnp.zeros(2), jax.random.key(0), 4)
    _report_seeds(agent, jnp.zeros(2), jax.random.key(0), 4)
    assert capsys.readouterr().out.splitlines() == [
        "greedy return over 4 episodes: mean 0.9375, std 0.0625, min 0.875, max 1; mean length 1.0",
        "not solved: the mean is below 0.94",
        "greedy return over 4 episodes, 2 seeds: mean 0.9375, worst 0.9375, best 0.9375",
        "  by seed: 0.9375 0.9375",
        "solved by 0 of 2 seeds: a mean of at least 0.94",
    ]


def test_a_full_disk_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rljax.run.files.records.JsonLines.write", full)
    status, _, err = run(capsys, "train", "cartpole_ppo", *TINY)
    assert status == 1
    assert re.fullmatch(r"rljax: training stopped: \S+/runs/cartpole_ppo cannot be written: No space left on device\n", err)


@pytest.mark.slow
def test_a_second_run_of_a_preset_gets_a_folder_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "train", "cartpole_ppo", *TINY)
    before = Path("runs/cartpole_ppo/metrics.jsonl").read_bytes()
    status, out, _ = run(capsys, "train", "cartpole_ppo", *TINY)
    assert status == 0
    assert "runs/cartpole_ppo-2" in out
    assert Path("runs/cartpole_ppo/metrics.jsonl").read_bytes() == before


def test_an_existing_run_dir_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("keep")
    assert "run folder mine exists already" in refused(capsys, "train", "cartpole_ppo", "--run-dir", "mine")
    assert "delete" not in refused(capsys, "train", "cartpole_ppo", "--run-dir", "mine"), "it is no run, so nothing to throw away"
    assert "mine: a folder, expected a preset, an algorithm or a file; --resume RUN goes on" in refused(capsys, "train", "mine")
    for name in ("tune.toml", "sweep.toml"):
        Path("mine", name).touch()
        for command in (["train"], ["sweep"], ["tune"], ["launch"], ["compile", "--target", "h200"]):
            assert "mine: a sweep or a study, no run; it has no best.toml yet" in refused(capsys, *command, "mine")
        Path("mine", name).unlink()
    Path("mine/sweep.toml").touch()
    for name in ("cartpole_ppo", "ppo"):  # names first mean presets and algorithms
        Path("mine").rename(name)
        assert "unknown field 'gama'" in refused(capsys, "train", name, "--gama", "0.9")
        Path(name).rename("mine")
    Path("mine/config.toml").touch()
    assert "choose another with --run-dir, resume it, or delete" in refused(capsys, "train", "cartpole_ppo", "--run-dir", "mine")


def test_two_starts_at_once_do_not_choose_the_same_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one starts while the first one compiles; both fail there, and nothing of them stays."""
    chosen: list[str] = []

    def fit(*_: Any, run_dir: Path, **__: Any) -> None:
        chosen.append(str(run_dir))
        if len(chosen) == 1:
            assert run(capsys, "train", "cartpole_ppo")[0] == 1
        raise rljax.RljaxError("stop here")

    monkeypatch.setattr("rljax.fit", fit)
    assert run(capsys, "train", "cartpole_ppo")[0] == 1
    assert chosen == ["runs/cartpole_ppo", "runs/cartpole_ppo-2"]
    assert not Path("runs").exists()


@pytest.mark.parametrize("command", [["train", "cartpole_ppo", "--run-dir"], ["export", "zoo:cartpole_ppo", "--numpy"]])
@pytest.mark.parametrize("folder", [".", "../here", ".."])
def test_the_working_directory_is_not_replaced(capsys: pytest.CaptureFixture[str], command: list[str], folder: str) -> None:
    Path("here").mkdir()
    os.chdir("here")
    there = os.stat("../here")
    assert f"{folder}: is the working directory or one of its parents" in refused(capsys, *command, folder)
    assert os.path.samestat(os.stat("../here"), there)


def test_a_working_directory_that_is_gone_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    os.chdir("gone")
    (tmp_path / "gone").rmdir()
    assert run(capsys, "list") == (2, "", "rljax: the working directory is gone; go to another one (cd) and start again\n")
    with atomic_folder(tmp_path / "kept"):  # in Python, paths may be absolute
        pass
    assert (tmp_path / "kept").is_dir()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "cartpol_ppo"], "unknown preset 'cartpol_ppo': did you mean 'cartpole_ppo'?"),
        (["train", "missing.toml"], "missing.toml: cannot read the configuration: No such file"),
        (
            ["train", "cartpole_ppo", "--learning-rat", "1"],
            "unknown field 'learning_rat' of PPOConfig: did you mean 'learning_rate'?",
        ),
        (["train", "cartpole_ppo", "--learning-rate", "-1"], "learning_rate = -1: expected a number >= 0"),
        (["train", "cartpole_ppo", "--learning-rate", "fast"], "learning_rate = 'fast': expected a number"),
        (["train", "cartpole_ppo", "--learning-rate", "nan"], "learning_rate = nan: expected a number"),
        (["train", "cartpole_ppo", "--num-envs", "2.5"], "num_envs = 2.5: expected a whole number > 0"),
        (["train", "cartpole_ppo", "--anneal-lr", "1"], "anneal_lr = 1: expected true or false"),
        (
            ["train", "cartpole_ppo", "--seed"],
            "--seed needs a value: only fields that are true or false may be given without one",
        ),
        (["train", "cartpole_ppo", "--num-minibatches", "3"], "must divide num_envs * num_steps = 4 * 16 = 64"),
        (["train", "cartpole_ppo", "--total-timesteps", "10"], "total_timesteps = 10: expected at least"),
        (["train", "cartpole_ppo", "--env", "CartPol-v1"], "did you mean 'CartPole-v1'?"),
        (["train", "cartpole_ppo", "--env-params.gravty", "1"], "did you mean 'gravity'?"),
        (["train", "cartpole_ppo", "--network.hiden", "[8]"], "network.hiden"),
        (["train", "cartpole_ppo", "--network.activation", "tahn"], "did you mean 'tanh'?"),
        (["train", "cartpole_ppo", "--network.type", "grru"], "network.type = 'grru': did you mean 'gru'?"),
        (["train", "tmaze_ppo_gru", "--num-envs", "6"], "num_minibatches = 4: must divide num_envs = 6"),
        (["train", "cartpole_ppo", "--intrinsic.type", "cuont"], "intrinsic.type = 'cuont': did you mean 'count'?"),
        (["train", "tictactoe_selfplay", "--intrinsic.bins", "64"], "intrinsic = {'bins': 64}: expected a table with a type"),
        (["train", "cartpole_ppo", "--intrinsic.resolution.x", "1"], "intrinsic = {'resolution': {'x': 1}}: expected a table"),
        (["train", "cartpole_ppo", "--intrinsic.typ", "count"], "intrinsic = {'typ': 'count'}: expected a table with a type"),
        (["train", "cartpole_ppo", "--intrinsic", "count"], "intrinsic = 'count': expected a table of key = value"),
        (
            ["train", "hidden_bit_ppo", "--value-heads", "cue,bit"],
            'value_heads = \'cue,bit\': expected a list, such as ["a", "b"]',
        ),
        (["train", "hidden_bit_ppo", "--value-heads", '["cue", "bat"]'], "no reward component 'bat': did you mean 'bit'?"),
        (["train", "hidden_bit_ppo_heads", "--head-weights", "1"], "head_weights = 1: expected a list, such as [1.0, 0.5]"),
        (["train", "composite_ppo", "--action-heads", "auto"], "expected one of 'independent', 'autoregressive'"),
        (["train", "cartpole_ppo", "stray"], "unexpected argument 'stray'"),
        (["train"], "nothing to train: give a preset or a TOML file"),
        (["train", "--resume", "nowhere"], "nowhere: no run there"),
        (["train", "--fork", "nowhere"], "nowhere: no run there"),
        (["train", "cartpole_ppo", "--resume", "runs/a"], "--resume takes the configuration from the run"),
        (["train", "--resume", "runs/a", "--run-dir", "b"], "give neither --fork, --init-from nor --run-dir"),
        (["train", "cartpole_ppo", "--log", "tensorbord"], "log = 'tensorbord': did you mean 'tensorboard'?"),
        (["train", "cartpole_ppo", "--seeds", "0"], "seeds = 0: expected a whole number from 1"),
        (["train", "cartpole_ppo", "--seeds", "many"], "many"),
        (["train", "cartpole_ppo", "--max-minutes", "-1"], "max_minutes = -1.0: expected a number > 0 or none"),
        (["train", "cartpole_ppo", "--keep", "0"], "keep = 0: expected a whole number > 0 or none"),
        (["train", "cartpole_ppo", "--checkpoint-seconds", "-1"], "checkpoint_seconds = -1.0: expected a number >= 0 or none"),
        (["train", "cartpole_ppo", "--checkpoint-every", "2.5"], "checkpoint_every = 2.5: expected a whole number > 0 or none"),
        (["train", "--anneal-lr", "cartpole_ppo"], "(did --anneal-lr take 'cartpole_ppo' as its value?)"),
        (["train", "--log", "tensorboard", "mine.toml"], "(did --log take 'mine.toml' as its value?)"),
        (["show", "nowhere"], "nowhere: no run there"),
        (["plot", "nowhere"], "nowhere: no run there"),
        (["plot"], "give at least one run folder"),
        (["plot", "nowhere", "--out", "curves.txt"], "expected a file name that ends in"),
        (["record", "nowhere"], "nowhere: no run there"),
        (["export", "nowhere"], "nowhere: no run there"),
        (["trian", "cartpole_ppo"], "see rljax --help"),
        ([], "see rljax --help"),
        (["eval", "nowhere"], "nowhere: no run there"),
        (["eval", "nowhere", "--episodes", "many"], "--episodes = 'many': expected a whole number (see rljax --help)"),
        (["eval", "nowhere", "--episodes", "ma'ny"], '--episodes = "ma\'ny": expected a whole number (see rljax --help)'),
        (["eval", "nowhere", "--episodes"], "--episodes needs a value (see rljax --help)"),
        (["train", "cartpole_ppo", "--seeds", "2.5"], "--seeds = '2.5': expected a whole number or none (see rljax --help)"),
        (["train", "cartpole_ppo", "--max-minutes", "ten"], "--max-minutes = 'ten': expected a number or none (see rljax"),
        (["opponents", "games", "--out", "a.json", "--beta", "x"], "--beta = 'x': expected a number (see rljax --help)"),
        (["plot", "nowhere", "--kind", "curve"], "--kind = 'curve': expected one of: curves, openloop, payoffs (see rljax"),
        (["sweep", "cartpole_ppo", "--search", "bayes"], "--search = 'bayes': expected one of: grid, random, sobol (see rljax"),
        (
            ["train", "--resume", "zoo:cartpole_ppo"],
            "zoo:cartpole_ppo: a packed agent, which cannot be trained on; to begin a new run",
        ),
        (["eval", "nowhere", "--episodes", "0"], "episodes = 0"),
        (["eval", "nowhere", "--learning-rate", "1"], "unknown option --learning-rate"),
        (["list", "pppo"], "did you mean 'ppo'?"),
        (["list", "zzzzzzzz"], "unknown name 'zzzzzzzz': rljax list lists what there is"),
        (["bench", "pp"], "did you mean 'ppo'?"),
    ],
)
def test_bad_input_is_one_clear_line_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert expected in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "cartpole_ppo", "--seeds", "0"], "seeds = 0: expected a whole number from 1 to 1,048,576"),
        (
            ["train", "cartpole_ppo", "--learning-rate"],
            "--learning-rate needs a value: only fields that are true or false may be",
        ),
        (["sweep", "cartpole_ppo", "--ent-coef", "--gamma", "0.9"], "--ent-coef needs a value: only fields that are true or"),
        (["train", "cartpole_ppo", "--anneal-lr", "--num-envs", "0"], "cartpole_ppo: num_envs = 0: expected a whole number > 0"),
        (["train", "cartpole_ppo", "--network.pointer"], "network.pointer: "),
        (["compile", "cartpole_ppo"], "compile needs --target (see rljax compile --help)"),
        (["compile"], "compile needs CONFIG and --target (see rljax compile --help)"),
        (["train", "cartpole_ppo", "--run-dir", ""], "run_dir = '': expected at least one character"),
        (["plot", "runs/none", "--out="], "out = '': expected at least one character"),
        (["eval", "zoo:cartpole_ppo", "--seed-index", "worst"], "seed_index = 'worst': expected \"best\", since run "),
    ],
)
def test_bad_input_is_refused_before_anything_is_printed(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.removeprefix("rljax: ").startswith(expected)
    assert not Path("runs").exists()


def test_a_checkpoint_of_a_checkpoint_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/a/checkpoints/step_64").mkdir(parents=True)
    for name in ("best", "step_32"):
        shown = "'best'" if name == "best" else "32"
        message = f"checkpoint = {shown}: runs/a/checkpoints/step_64 is a checkpoint itself; give the run's folder, runs/a"
        assert message in refused(capsys, "eval", "runs/a/checkpoints/step_64", "--checkpoint", name)
    for name in ("latest", "step_64", "64"):
        assert split_path("runs/a/checkpoints/step_64", name) == (Path("runs/a"), 64)


def test_a_toml_syntax_error_names_file_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.toml").write_text('algorithm = "ppo"\nnum_envs = = 4\n')
    assert re.search(r"bad\.toml: .*line 2", refused(capsys, "train", "bad.toml"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('env = "CartPole-v1"\n', "no 'algorithm' key"),
        ('algorithm = "poo"\n', "did you mean 'ppo'?"),
        ('algorithm = "a2c"\n', "expected one of: alphazero, "),
        ('algorithm = "ppo"\nnum_env = 4\n', "did you mean 'num_envs'?"),
        ('algorithm = "ppo"\nnum_envs = "four"\n', "num_envs = 'four': expected a whole number > 0"),
    ],
)
def test_a_bad_file_is_named(capsys: pytest.CaptureFixture[str], text: str, expected: str) -> None:
    Path("bad.toml").write_text(text)
    line = refused(capsys, "train", "bad.toml")
    assert "bad.toml" in line
    assert expected in line


@pytest.mark.slow
def test_a_failed_run_has_status_1_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    # Rewards of Pendulum of up to 1e38 times a step: the value targets overflow in the first iteration.
    arguments = ("--env-params.gravity", "1e30", "--env-params.max_speed", "1e30", "--normalize-rewards", "false")
    status, _, err = run(capsys, "train", "pendulum_ppo", "--num-minibatches", "1", "--total-timesteps", "4096", *arguments)
    assert status == 1, err
    assert err.count("\n") == 1
    assert "training stopped: train/" in err
    assert "step 2,048" in err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_made_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("locked").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    assert "cannot be made" in refused(capsys, "train", "cartpole_ppo", "--run-dir", "locked/run")


@pytest.mark.slow
def test_a_run_dir_below_a_file_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("x")
    assert "file/run: cannot be made" in refused(capsys, "train", "cartpole_ppo", "--run-dir", "file/run")


def test_list_names_everything_and_details(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "list")
    assert status == 0
    for name in (
        "cartpole_ppo",
        "pendulum_ppo",
        "gridworld_ppo",
        "acrobot_ppo",
        "cartpole_ppo_cleanrl",
        "GridWorld-v0",
        *LISTED,
    ):
        assert re.search(rf"^  {name}( |$)", out, re.M)
    described = [line for line in out.splitlines() if re.match("  [^ ]", line)]
    assert all(len(line.split()) > 1 for line in described)
    assert out.index("Draft-v0") < out.index("probes:") < out.index("ConstantReward-v0")
    _, fields, _ = run(capsys, "list", "ppo")
    assert "--gae-lambda" in fields
    assert "trace decay" in fields
    assert re.search(r"^--randomize +\{\}\s", fields, re.M)
    _, fields, _ = run(capsys, "list", "sac")
    assert re.search(r"^--network +\{ hidden = \[256, 256\] \}\s", fields, re.M)
    _, preset, _ = run(capsys, "list", "pendulum_ppo")
    assert 'env = "Pendulum-v1"' in preset
    _, gymnax, _ = run(capsys, "list", "gymnax")
    assert "Breakout-MinAtar" in gymnax.split()


def test_list_of_all_imports_no_library_of_environments() -> None:
    # gymnax alone brings seaborn, pandas and SciPy: three times what the rest of the command takes.
    script = (
        "import sys; from rljax.cli.main import main; main(['list'])\n"
        "print('imported', *{'gymnax', 'pgx', 'brax', 'matplotlib', 'scipy.stats'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported"


@pytest.mark.slow
def test_training_one_configuration_imports_neither_phases_nor_leagues(tmp_path: Path) -> None:
    """To import them would make every start of `rljax train` longer."""
    script = (
        "import sys; from rljax.cli.main import main\n"
        f"main(['train', 'cartpole_ppo', '--total-timesteps', '64', '--run-dir', {str(tmp_path / 'run')!r}])\n"
        "print('imported', *[name for name in sys.modules if name.startswith(('rljax.league', 'rljax.run.phases.'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1] == "imported", done.stdout + done.stderr


def test_every_command_has_its_function() -> None:
    assert set(FUNCTIONS) == set(by_name(Command).values())
    for path in FUNCTIONS.values():
        module, _, name = path.partition(".")
        assert callable(getattr(importlib.import_module(f"rljax.cli.{module}"), name))


def test_help_imports_no_jax() -> None:
    # JAX and flax take over a second.
    script = (
        "import sys; from rljax.cli.main import main\n"
        "try: main(['--help'])\n"
        "finally: print('imported', *{'jax', 'flax', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported"


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--help")
    assert status == 0
    for text in ("rljax train cartpole_ppo", "rljax eval runs/cartpole_ppo", "rljax list", "--learning-rate"):
        assert text in out
    status, out, _ = run(capsys, "train", "--help")
    assert status == 0
    assert "--run-dir" in out


def test_help_of_bench_names_all_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "bench", "--help")
    named = re.findall(r"\w+", out.partition("Benchmark to run:")[2].partition("(default")[0])
    assert sorted(named) == sorted(SUITES)


@pytest.mark.parametrize("command", by_name(Command))
def test_help_names_positional_arguments_and_leaves_out_empty_defaults(capsys: pytest.CaptureFixture[str], command: str) -> None:
    status, out, _ = run(capsys, command, "--help")
    assert status == 0
    assert "STR" not in out.partition("positional arguments")[2].partition("options\n")[0]
    assert not re.search(r"\(default:\s*\)", out)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["trian", "cartpole_ppo"], "unknown command 'trian': did you mean 'train'?"),
        (["resume", "runs/a"], "unknown command 'resume': did you mean 'train --resume RUN'?"),
        (["eval", "nowhere", "--episode", "3"], "unknown option --episode: did you mean '--episodes'?"),
        (["eval", "nowhere", "--rum", "3"], "unknown option --rum: expected one of: --checkpoint, --episodes, --sample, --seed"),
        (["train", "--config", "cartpole_ppo"], "--config: is given without its name: rljax train CONFIG"),
        (["eval", "--run=runs/a"], "--run: is given without its name: rljax eval RUN"),
        (["tournament", "--runs", "a", "b"], "--runs: is given without its name: rljax tournament RUN ..."),
        (["train", "cartpole_ppo", "--run-dri", "a"], "unknown option --run-dri: did you mean --run-dir?"),
        (["tune", "cartpole_ppo", "--trails", "3"], "unknown option --trails: did you mean --trials?"),
        (["train", "cartpole_ppo", "--num-seeds", "3"], "unknown option --num-seeds: did you mean --seeds?"),
        (["sweep", "cartpole_ppo", "--evl-episodes", "5"], "did you mean 'eval_episodes'?"),
        (["train", "cartpole_ppo", "--log-sdt", "0.1"], "did you mean 'log_std'?"),
        (["train", "cartpole_ppo", "--ro-resume", "--run-dir", "x"], "did you mean --or-resume?"),
        (["train", "qdn", "--env", "CartPole-v1"], "unknown preset 'qdn': did you mean 'dqn'?"),
        (["how", "runs/a"], "unknown command 'how': did you mean 'show'?"),
        (["train", "a2c"], "unknown preset 'a2c': rljax list lists what there is (a file's"),
        (["train", "pp", "--env", "CartPole-v1"], "unknown preset 'pp': did you mean 'ppo'?"),
        (["train", "cartpole_ppo", "--self", "3"], "unknown field 'self' of PPOConfig"),
        (["train", "cartpole_ppo", "--preset-or-path", "3"], "unknown field 'preset_or_path' of PPOConfig"),
        (["train", "cartpole_ppo", "--num-envs", "1" * 5000], "num_envs = '1111"),
        (["train", "cartpole_ppo", "--network", "[" * 5000], "network = '[[[["),
        (["train", "x" * 300], "unknown preset 'xxxx"),
        (["x" * 5000], "unknown command 'xxxx"),
        (["show", "x" * 300], "no run there"),
        (
            ["train", "cartpole_ppo", "--time-limit", "1000000000000"],
            "time_limit = 1000000000000: expected a whole number > 0 and <=",
        ),
        (["train", "cartpole_ppo", "--seeds", "4294967296"], "seeds = 4294967296: expected a whole number from 1 to 1,048,576"),
        (["train", "cartpole_dqn", "--seeds", "1000000"], "the state of so many runs needs"),
        (["train", "cartpole_ppo", "--seeds", "1e18"], "1e18"),
        (["train", "cartpole_ppo", "--keep", "-1"], "keep = -1: expected a whole number > 0 or none"),
        (["train", "cartpole_ppo", "--max-minutes", "nan"], "max_minutes = nan: expected a number > 0 or none"),
        (["train", "cartpole_ppo", "--checkpoint-every", "nan"], "checkpoint_every = nan: expected a whole number > 0"),
        (
            ["train", "league", "--env", "BiasedRPS-v0", "--league-exploiters", "1e9"],
            "league_exploiters = 1000000002: expected at most 64 learners",
        ),
        (["eval", "nowhere", "--episodes", str(10**18)], f"episodes = {10**18}: expected a whole number from 1 to 1000000"),
        (["eval", "nowhere", "--seed", "-1"], "seed = -1: expected a whole number from 0"),
        (["record", "nowhere", "--max-steps", str(10**18)], f"max_steps = {10**18}: expected a whole number from 1"),
        (["record", "nowhere", "--fps", "0"], "fps = 0: expected a whole number from 1"),
        (["tournament", "nowhere", "--games", str(10**18)], f"games = {10**18}: expected a whole number from 1"),
        (["tournament", "nowhere", "--simulations", "-1"], "simulations = -1: expected a whole number from 0"),
        (["sweep", "cartpole_ppo", "--gamma", "0.9", "--seeds", str(10**6)], "more than max_runs = 4096"),
        (
            ["sweep", "cartpole_ppo", "--gamma", "0:1", "--search", "sobol", "--samples", str(10**18)],
            "samples = 1000000000000000000",
        ),
        (["tune", "cartpole_ppo", "--trials", str(10**18)], "trials = 1000000000000000000: expected a whole number from 1"),
        (["bench", "ppo", "--repeats", str(10**18)], "repeats = 1000000000000000000: expected a whole number from 1"),
    ],
)
def test_absurd_input_is_one_short_line(capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str) -> None:
    line = refused(capsys, *arguments)
    assert expected in line
    assert "1" * 81 not in line
    assert len(line) < 2200


@pytest.mark.slow
def test_no_text_for_a_number_of_a_run_is_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    rljax.fit(rljax.PPOConfig(total_timesteps=64, num_steps=16, network={"hidden": [8]}), run_dir="a", seeds=2)
    for text in ("9" * 5000, "²", "-1", "nan", "", "worst"):
        for option in ("--seed-index", "--checkpoint"):
            status, _, err = run(capsys, "eval", "a", option, text)
            assert status in (1, 2)
            assert err.startswith("rljax: ")
            assert err.count("\n") == 1
            assert len(err) < 1000


@pytest.mark.slow
def test_any_algorithm_trains_with_its_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "train", "ppo", "--env", "CartPole-v1", *TINY, "--num-steps", "16", "--run-dir", "a")
    assert (status, err) == (0, "")
    written = rljax.load_config("a/config.toml")
    assert written == rljax.PPOConfig(env="CartPole-v1", total_timesteps=256, num_steps=16, network={"hidden": [8]})
    line = refused(capsys, "sweep", "ppo", "--env", "CartPol-v1", "--gamma", "0.9", "0.99")
    assert "did you mean 'CartPole-v1'?" in line


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"rljax {rljax.__version__}\n", "")


def process(*arguments: str, out: Any = subprocess.PIPE, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The command as a process of its own, with a standard output and an environment of the test's choice."""
    return subprocess.run(
        [sys.executable, "-m", "rljax.cli.main", *arguments],
        stdout=out,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        timeout=300,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_device_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = process("list", out=full)
    assert (done.returncode, done.stderr) == (1, b"rljax: output cannot be written: No space left on device\n")


@pytest.mark.slow
def test_a_terminal_of_ascii_gets_something_like_it(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "--version")  # registers what follows
    done = process("--help", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"rljax train cartpole_ppo" in done.stdout
    assert b"    * train " in done.stdout
    assert b"?" not in done.stdout
    assert "╭──┬ │█▁ • é ±".encode("ascii", "rljax") == b"+--+ |## * ? +-"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a shell closes the streams")
def test_closed_streams_are_as_the_null_device() -> None:
    command = f"{sys.executable} -m rljax.cli.main"
    done = subprocess.run(f"{command} list ppo >&- 2>&-", shell=True, timeout=300)
    assert done.returncode == 0
    done = subprocess.run(f"{command} play zoo:tictactoe_selfplay <&-", shell=True, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert "you left the game" in done.stdout


def test_lines_of_progress_need_no_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert isinstance(default_progress("training"), Lines)


@pytest.mark.skipif(sys.platform == "win32", reason="it has home folders otherwise")
def test_a_user_without_a_home_folder_compiles_anew(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    for name in ("XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert run(capsys, "list", "ppo")[0] == 0
    with pytest.raises(rljax.ConfigError, match="set HOME, or XDG_CACHE_HOME to a folder"):
        user_cache()


def test_input_that_is_no_text_is_read_with_replacement_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n5\n"), encoding="utf-8"))
    print_anywhere()
    assert [input(), input()] == ["\N{REPLACEMENT CHARACTER}", "5"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    ["train cartpole_ppo", "eval zoo:cartpole_ppo", "tune cartpole_ppo --learning-rate 1e-4:1e-2 --trials 1", "bench ppo",
     "list CartPole-v1"],
)  # fmt: skip
def test_a_platform_that_is_not_there_is_one_line(command: str) -> None:
    done = process(*command.split(), JAX_PLATFORMS="rocm")
    assert done.returncode == 2
    line = rb"rljax: JAX_PLATFORMS = 'rocm': JAX finds no such device here.*; leave it unset.*\n"
    assert re.fullmatch(rb"(warning: load average .*\n)?" + line, done.stderr)
    assert not Path("runs").exists()


def test_a_folder_without_permission_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Any, *_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", denied)
        line = refused(capsys, "train", "cartpole_ppo", "--run-dir", "locked/run", *TINY)
        assert "locked/run: cannot be made: Permission denied" in line
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda *_: False)
        line = refused(capsys, "train", "cartpole_ppo", "--run-dir", "locked/run", *TINY)
        assert "locked/run: cannot be made: no permission to write in" in line
        Path("unreadable").mkdir()
        assert "unreadable: cannot be read: no permission" in refused(capsys, "show", "unreadable")
    Path("mine.toml").write_text('algorithm = "ppo"\n')
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", denied)
        assert "mine.toml: cannot read the configuration: Permission denied" in refused(capsys, "train", "mine.toml")
    with monkeypatch.context() as patched:
        # What no command expects is a line, too.
        patched.setattr("rljax.cli.listing.list_names", lambda options: denied(options.name))
        assert run(capsys, "list", "ppo") == (1, "", "rljax: ppo: Permission denied\n")
