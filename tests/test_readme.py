"""The README is true: every block of code in it runs, pasted as it stands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rljax.cli.main import main

TEXT = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL)
PYTHON = [block for language, block in BLOCKS if language == "python"]
COMMANDS = [line.split("#")[0].strip() for language, block in BLOCKS if language == "bash" for line in block.splitlines()]


def test_every_block_is_python_or_bash() -> None:
    assert {language for language, _ in BLOCKS} == {"python", "bash"}
    assert len(PYTHON) >= 4


@pytest.mark.parametrize("block", [pytest.param(x, marks=pytest.mark.slow if i else (), id=str(i)) for i, x in enumerate(PYTHON)])
def test_python_block_can_be_pasted_into_the_interpreter(block: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-i", "-q"], input=block + "\n", cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert "Error" not in done.stderr, done.stderr
    if "greedy return" in block:
        assert float(done.stdout.split()[-1]) >= 475
    if "class Walk" in block:
        assert float(done.stdout.split()[-1]) > -0.8  # 3 to 8 steps away, 0.1 each
    if "class Recall" in block:
        assert float(done.stdout.split()[-1]) > 0.8  # 0.9 at best, a third of the answers right by chance


def test_the_two_main_commands_come_first() -> None:
    assert COMMANDS[:2] == ["pip install -e . && rljax train cartpole_ppo", 'pip install -e ".[test]" && pytest']


@pytest.mark.slow
def test_command_lines_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda _: "quit")
    Path("my_config.toml").write_text('algorithm = "ppo"\nnum_envs = 2\nnum_steps = 32\n')
    commands = [command.split("&&")[-1].strip() for command in COMMANDS]
    commands = [command for command in commands if command.startswith("rljax ") and "bench" not in command]
    assert len(commands) >= 14
    for command in commands:
        arguments = shlex.split(command)[1:]
        if arguments[0] == "train":
            if "--total-timesteps" in arguments:
                at = arguments.index("--total-timesteps") + 1
                arguments[at] = {"50_000": "1024", "100_000": "2048"}[arguments[at]]
            elif "--resume" not in arguments:
                steps = "4096" if "selfplay" in arguments[1] else "512"
                arguments += ["--total-timesteps", steps, "--eval-every", "256"]
        if arguments[0] == "sweep" and "--resume" not in arguments:
            arguments += ["--total-timesteps", "512", "--episodes", "2"]
        if arguments[0] == "tune":
            arguments[arguments.index("--trials") + 1] = "4"
            arguments += ["--batch-size", "4"]
            arguments += [] if "--resume" in arguments else ["--total-timesteps", "512", "--episodes", "2"]
        if arguments[0] == "tournament":
            arguments += ["--games", "2"]
        main(arguments)
        assert capsys.readouterr().out, command
    assert sorted(p.name for p in Path("runs").iterdir()) == [
        "biased_rps_league",
        "cartpole_ppo",
        "cartpole_ppo-2",
        "cartpole_ppo-3",
        "mine",
        "mine-fork",
        "ppo",
        "tictactoe_selfplay",
    ]
    for made in (
        "tournament.png",
        "curves.png",
        "agent.gif",
        "policy/greedy.jax",
        "runs/cartpole_ppo-3/tensorboard",
        "sweeps/cartpole_ppo-2/sweep.png",
        "tunes/cartpole_ppo/tune.png",
    ):
        assert Path(made).exists(), made
