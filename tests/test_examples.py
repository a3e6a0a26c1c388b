"""Every example runs, prints its table and draws its picture; with a tiny budget, so what it learns is not looked at."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from rljax.run.export.web.runtime import is_there, runtime_folder

FOLDER = Path(__file__).parent.parent / "examples"
ROWS = {
    "cluster": ["without the last", "all parts"],
    "command": ["told its command", "told another's", "told nothing"],
    "composite": ["autoregressive", "independent"],
    "curriculum": ["by success", "uniform", "no levels"],
    "diagnostics": ["as the preset", "step too large", "step too small"],
    "draft": ["at random", "10 simulations", "800 simulations"],
    "entities": ["transformer", "perceptron"],
    "exploration": ["counts", "RND", "no bonus"],
    "gymnasium_play": ["trained", "at random"],
    "imagination": ["imagined", "shuffled actions", "last one again"],
    "memory": ["GRU", "LSTM", "no memory"],
    "numpy_policy": ["NumPy", "JAX"],
    "own_game": ["self-play, likeliest", "self-play, drawn", "at random"],
    "own_network": ["minimal gated unit", "without memory"],
    "ppo_in_one_file": ["one file", "rljax"],
    "privileged": ["sees the bit", "does not"],
    "replay_parts": ["DQN", "double DQN"],
    "value_heads": ["two heads", "one head"],
    "web_page": ["game 1", "game 2"],
    "wrappers": ["all of CartPole", "velocities hidden", "two frames of it", "MountainCar", "with its energy"],
}
LONG = ("composite", "draft", "entities", "exploration", "imagination", "memory", "own_network", "value_heads", "wrappers")
BUDGETS = {"imagination": "1024"}
"""Environment steps of the examples for which 4,096 take too long, by name."""


def test_every_example_is_tested_and_in_the_cookbook() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == sorted(ROWS)
    cookbook = (FOLDER.parent / "docs" / "cookbook.md").read_text(encoding="utf-8")
    pages = [*FOLDER.glob("*.py"), *(FOLDER.parent / "notebooks").glob("*.ipynb")]
    assert [path.name for path in pages if f"../{path.parent.name}/{path.name})" not in cookbook] == []


@pytest.mark.parametrize("name", ROWS)
def test_example_is_a_notebook_in_percent_format(name: str) -> None:
    """It begins with a title, and its cells parse one by one."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    kinds, cells = [], []
    for cell in text.split("# %%")[1:]:
        kind, _, body = cell.partition("\n")
        kinds.append(kind.strip())
        cells.append(body)
        ast.parse(body)
        if kind.strip() == "[markdown]":
            assert all(line.startswith("#") for line in body.strip().splitlines())
    assert text.startswith("# %% [markdown]\n# # ")
    assert set(kinds) == {"", "[markdown]"}
    assert kinds[-1] == "", "ends with the picture"
    assert text.count("\n# Next: ") == 1, "says what to try next"


def printed(name: str, folder: Path, *arguments: str) -> list[str]:
    """The lines that an example prints, run in a folder."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), *arguments, "--out", "picture.png"],
        cwd=folder,
        env={**os.environ, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in ROWS])
def test_example_runs(name: str, tmp_path: Path) -> None:
    if name == "web_page":
        pytest.importorskip("jax2onnx")
        if not is_there(runtime_folder()):
            pytest.skip("onnxruntime-web is not here: rljax.run.export.web.runtime.fetch_runtime fetches it")
    lines = printed(name, tmp_path, "--total-timesteps", BUDGETS.get(name, "4096"))
    for row in ROWS[name]:
        (line,) = [line for line in lines if line.startswith(f"{row}  ")]
        numbers = [word for word in line.removeprefix(row).split() if word != "of"]
        assert len(numbers) >= 2
        assert all(float(number.replace(",", "")) is not None for number in numbers)
    with Image.open(tmp_path / "picture.png") as picture:
        assert picture.width >= 800
        assert len(picture.convert("RGB").getcolors(2**24) or []) > 50


@pytest.mark.slow
def test_the_healthy_run_of_diagnostics_is_as_its_text_says(tmp_path: Path) -> None:
    """KL small but not vanishing, a few percent of the steps clipped; in the run with the large step nothing moves."""
    lines = printed("diagnostics", tmp_path)
    healthy, large = (
        [float(word) for line in lines if line.startswith(f"{name}  ") for word in line.removeprefix(name).split()]
        for name in ("as the preset", "step too large")
    )
    _, kl, entropy, clipped = healthy
    assert 1e-3 < kl < 0.05
    assert 0.05 < entropy < 0.6
    assert 0.02 < clipped < 0.15
    assert max(large[1:]) < 1e-6
