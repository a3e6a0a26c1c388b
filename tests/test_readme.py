"""The README and the pages of docs/ are true: every block of code in them runs, pasted as it stands."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rljax.cli.main import main
from rljax.core.config_files import holds_phases, load_config
from rljax.run.export.web.runtime import is_there, runtime_folder
from rljax.run.phases.plan import load_phases

ROOT = Path(__file__).parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): re.findall(r"```(\w*)\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
"""The blocks of each page: language, text."""
NEEDED = {"v5e-": "libtpu", "h200": "jax_cuda13_plugin"}
"""Packages that the test environment lacks, by the targets that need them: their blocks run where they are installed."""


def can_run(text: str) -> bool:
    """Return whether all that this block or command needs is here: packages, and onnxruntime-web for a page."""
    if "--web" in text and not is_there(runtime_folder()):
        return False
    if "launch" in text and "--dry-run" not in text:  # would rent a machine
        return False
    return all(importlib.util.find_spec(package) for target, package in NEEDED.items() if target in text)


PYTHON = [
    pytest.param(block, marks=() if (page, i) == ("README.md", 0) else pytest.mark.slow, id=f"{page}:{i}")
    for page, blocks in PAGES.items()
    for i, block in enumerate(text for language, text in blocks if language == "python" and can_run(text))
]
COMMANDS = {
    page: [line.split("#")[0].strip() for language, block in blocks if language == "bash" for line in block.splitlines()]
    for page, blocks in PAGES.items()
}
MADE = {
    "README.md": ["runs/cartpole_ppo", "runs/cartpole_ppo-2/config.toml"],
    "docs/guides/demonstrations.md": ["data/cartpole/dataset.json", "data/tictactoe/shards/00000/mask.npy"],
    "docs/guides/exporting.md": ["policy/greedy.jax", "policy_in_numpy/policy.py", "cartpole.safetensors"]
    + ["page/index.html"] * can_run("--web"),
    "docs/guides/games.md": ["runs/tictactoe_selfplay", "runs/biased_rps_league", "tournament.png", "model.json"],
    "docs/guides/imitation.md": ["runs/clone", "runs/improved", "runs/small"],
    "docs/guides/offline.md": ["runs/half", "data/half/dataset.json", "runs/offline", "runs/online"],
    "docs/guides/launching.md": ["launches/cartpole_ppo/task.yaml", "copies/mine/config.toml"],
    "docs/guides/looking.md": ["runs/cartpole_ppo/tensorboard", "runs/mine/tensorboard", "runs/mine/agent.gif", "curves.png"],
    "docs/guides/phases.md": ["runs/cspl/phases.toml", "runs/cspl/all/config.toml"],
    "docs/guides/own_loop.md": ["runs/reinforce/config.toml", "sweeps/reinforce/results.csv", "policy/policy.py"],
    "docs/guides/runs.md": ["runs/mine", "runs/mine-fork", "runs/cartpole_ppo"],
    "docs/guides/scaling.md": ["runs/cartpole_ppo", "sweeps/rates/results.csv"],
    "docs/guides/sweeps.md": ["sweeps/cartpole_ppo-2/sweep.png", "tunes/cartpole_ppo/tune.png"],
    "docs/guides/simulators.md": ["runs/outside/config.toml"],
    "docs/guides/zoo.md": ["agent.gif", "runs/gridworld_ppo", "agents/mine/card.json"],
    "docs/guides/training.md": ["runs/mine", "runs/cartpole_ppo-2", "runs/ppo"],
}
"""Files and folders that the commands of a page must leave."""


def runnable(page: str) -> list[str]:
    """The commands of a page that need neither a network nor minutes, nor a package or devices that are not here."""
    commands = [command.split("&&")[-1].strip() for command in COMMANDS[page]]
    left_out = ("rljax bench", "rljax push", "rljax pull", "rljax reproduce ")
    return [
        command
        for command in commands
        if command.startswith("rljax ")
        and not command.startswith(left_out)
        and "--num-devices" not in command
        and can_run(command)
    ]


def test_every_block_is_run_in_some_way() -> None:
    blocks = [(language, text) for page in PAGES.values() for language, text in page]
    assert {language for language, _ in blocks} == {"python", "bash", "toml"}
    assert len(PYTHON) >= 18
    assert sum(len(runnable(page)) for page in PAGES) >= 35


@pytest.mark.parametrize("block", PYTHON)
def test_python_block_can_be_pasted_into_the_interpreter(block: str, tmp_path: Path) -> None:
    for page in PAGES:
        for name, text in named_files(page, "python").items():
            (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-i", "-q"], input=block + "\n", cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert "Error" not in done.stderr, done.stderr
    if "greedy return" in block:
        assert float(done.stdout.split()[-1]) >= 475
    if "return at the end" in block:
        assert float(done.stdout.split()[-1]) > -0.8  # 3 to 8 steps away, 0.1 each
    if "REINFORCE, mean return" in block:
        assert float(done.stdout.split()[-1]) > 150  # 20 at random, 500 at best
    if "class Recall" in block:
        assert float(done.stdout.split()[-1]) > 0.8  # 0.9 at best, a third of the answers right by chance


@pytest.mark.slow
def test_the_class_of_the_readme_is_trained_by_the_command_below_it(tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Your own environment")[1]
    (tmp_path / "walk.py").write_text(re.findall(r"```python\n(.*?)config = ", section, re.DOTALL)[0])
    (command,) = re.findall(r"`rljax (train [^`]*walk:Walk[^`]*)`", section)
    short = ["--total-timesteps", "4096", "--run-dir", "run"]
    subprocess.run([sys.executable, "-m", "rljax", *command.split(), *short], cwd=tmp_path, check=True, timeout=300)
    config = load_config(tmp_path / "run" / "config.toml")
    assert (config.env, config.time_limit) == ("walk:Walk", 50)


def test_figures_that_blocks_print_are_looked_at() -> None:
    text = "".join(str(blocks) for blocks in PAGES.values())
    printed = ("greedy return, mean", "return at the end", "class Recall", "REINFORCE, mean return")
    assert [text.count(words) for words in printed] == [1, 1, 1, 1]


def test_the_two_main_commands_come_first() -> None:
    assert COMMANDS["README.md"][:2] == ["pip install -e . && rljax train cartpole_ppo", 'pip install -e ".[test]" && pytest']


def named_files(page: str, kind: str = "toml") -> dict[str, str]:
    """The blocks of a page that are files, by the name in their first line, `# NAME`: those of TOML, or modules of Python."""
    ending = f".{kind.replace('python', 'py')}"
    first = [(block.split("\n", 1)[0], block) for language, block in PAGES[page] if language == kind]
    return {line.removeprefix("# "): block for line, block in first if line.startswith("# ") and line.endswith(ending)}


@pytest.mark.parametrize("page", [page for page in PAGES if named_files(page)])
def test_files_that_a_page_shows_are_configurations(page: str, tmp_path: Path) -> None:
    for name, text in named_files(page).items():
        (tmp_path / name).write_text(text)
        (load_phases if holds_phases(str(tmp_path / name)) else load_config)(tmp_path / name)


@pytest.mark.slow
@pytest.mark.usefixtures("forget_algorithms")
@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)])
def test_command_lines_of_a_page_run_one_after_the_other(
    page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda _: "quit")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")  # as in a job of an array; only commands of such jobs read it
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, text in (named_files(page) | named_files(page, "python")).items():
        Path(name).write_text(text)
    for command in runnable(page):
        arguments = shlex.split(os.path.expandvars(command))[1:]
        if arguments[0] == "train":
            if "--total-timesteps" in arguments:
                at = arguments.index("--total-timesteps") + 1
                arguments[at] = {"300_000": "2048"}.get(arguments[at], "1024")
            elif "--resume" not in arguments:
                steps = "4096" if "selfplay" in arguments[1] else "512"
                arguments += ["--total-timesteps", steps, "--eval-every", "256"]
        if arguments[0] == "sweep" and not {"--resume", "--merge"} & {*arguments}:
            arguments += ["--total-timesteps", "512", "--episodes", "2"]
        if arguments[0] == "tune":
            arguments[arguments.index("--trials") + 1] = "4"
            arguments += ["--batch-size", "4"]
            arguments += [] if "--resume" in arguments else ["--total-timesteps", "512", "--episodes", "2"]
        if arguments[0] == "tournament":
            arguments += ["--games", "2"]
        main(arguments)
        assert capsys.readouterr().out, command
    assert [made for made in MADE.get(page, []) if not Path(made).exists()] == []


WRITES = re.compile(
    r"rljax\.demonstrations\([^\n]*?, \"([^\"]+)\", num|rljax\.save\(\"([^\"]+)\"|rljax\.export_\w+\([^\n]*, \"([^\"]+)\""
    r"|^rljax demo [^\n]*--out (\S+)|^rljax export [^\n]*--(?:out|numpy|web|safetensors) (\S+)"
    r"|^rljax train [^\n]*--run-dir (\S+)",
    re.MULTILINE,
)
"""Calls and commands that refuse to write where something is already. One of the groups is the path."""


def test_the_blocks_of_a_page_can_all_be_run_in_one_folder() -> None:
    """No block creates what another has created, or something around or within it."""
    found = 0
    for page, blocks in PAGES.items():
        text = "\n".join(text for _, text in blocks)
        paths = [Path(next(filter(None, match.groups()))) for match in WRITES.finditer(text)]
        found += len(paths)
        for i, path in enumerate(paths):
            assert not [other for other in paths[:i] if path in (other, *other.parents) or other in path.parents], (page, path)
    assert found >= 30


def test_pages_whose_commands_leave_something_are_pages() -> None:
    assert set(MADE) <= set(PAGES)
