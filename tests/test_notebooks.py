"""Every notebook runs from top to bottom in a fresh kernel, with a small budget; those that are committed show their outputs."""

from __future__ import annotations

import base64
import io
import os
import re
import textwrap
import tomllib
import types
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from PIL import Image

from notebooks.addresses import badge, install_cell, project

FOLDER = Path(__file__).parent.parent / "notebooks"
NAMES = [
    "01_quickstart",
    "02_your_own_environment",
    "03_own_the_loop",
    "04_dqn_and_sac",
    "05_seeds_and_sweeps",
    "06_memory_and_masks",
    "07_self_play_and_leagues",
    "08_dreamer",
]
EXTRAS = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
DISTRIBUTION, REPOSITORY = project()
SCALE = "0.05"
IN_CI = ("01_quickstart",)
"""The others take half a minute to two, most of it to compile."""

SMALL = 300_000


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def pictures(notebook: Any) -> list[bytes]:
    """All PNG and GIF files that are shown."""
    shown = [output.data for output in outputs(notebook) if "data" in output]
    return [base64.b64decode(data[kind]) for data in shown for kind in ("image/png", "image/gif") if kind in data]


def check_outputs(notebook: Any) -> None:
    """Nothing was raised or warned of; something was printed; pictures have something in them."""
    assert not [output for output in outputs(notebook) if output.output_type == "error"]
    assert not [output.text for output in outputs(notebook) if output.get("name") == "stderr"]
    printed = "".join(output.text for output in outputs(notebook) if output.get("name") == "stdout")
    assert len(printed.splitlines()) >= 3
    shown = pictures(notebook)
    assert len(shown) >= 2
    for file in shown:
        with Image.open(io.BytesIO(file)) as picture:
            assert min(picture.size) >= 100
            colors = set()
            for frame in {0, getattr(picture, "n_frames", 1) - 1}:
                picture.seek(frame)
                colors |= {color for _, color in picture.convert("RGB").getcolors(2**24) or []}
            assert len(colors) > 5


def test_every_notebook_is_here() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_notebook_begins_with_its_badge_and_installs_the_library(name: str) -> None:
    notebook = read(name)
    title = notebook.cells[0].source
    assert title.startswith("# ")
    assert badge(REPOSITORY, name) in title.splitlines()
    assert re.findall(r"notebooks/(\w+)\.ipynb", title) == [name]
    assert code_cells(notebook)[0].source == install_cell(DISTRIBUTION, REPOSITORY)
    links = re.findall(r"\]\((\w+)\.ipynb\)", notebook.cells[-1].source)
    assert links, "ends with links to others"
    assert set(links) <= set(NAMES) - {name}


@pytest.mark.parametrize(
    ("installed", "requirement"),
    [
        (["jax"], "rljax-jit @ git+"),
        (["jax", "jax-cuda12-plugin"], "rljax-jit[cuda12] @ git+"),
        (["libtpu", "jax-cuda13-plugin"], "rljax-jit[cuda13] @ git+"),
        (["libtpu"], "rljax-jit[tpu] @ git+"),
    ],
)
def test_installing_keeps_the_accelerator_that_a_machine_has(
    installed: list[str], requirement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The branch of a machine without rljax, up to pip: the extra of the plug-in that is there keeps its version."""
    branch = textwrap.dedent(
        install_cell(DISTRIBUTION, REPOSITORY).partition("except ModuleNotFoundError:\n")[2].partition("%pip")[0]
    )
    monkeypatch.setattr("importlib.metadata.distributions", lambda: [types.SimpleNamespace(name=name) for name in installed])
    found: dict[str, Any] = {}
    exec(branch, found)
    assert found["requirement"].startswith(requirement)
    assert set(found["plugins"].values()) <= {f"[{extra}]" for extra in EXTRAS}


@pytest.mark.parametrize("name", NAMES)
def test_notebook_is_committed_small_and_with_outputs(name: str) -> None:
    path = FOLDER / f"{name}.ipynb"
    assert path.stat().st_size < SMALL
    notebook = read(name)
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in code_cells(notebook)] == list(range(1, len(code_cells(notebook)) + 1))
    check_outputs(notebook)
    texts = [cell.source for cell in notebook.cells]
    texts += [str(output.get("text", "")) + str(output.get("data", {}).get("text/plain", "")) for output in outputs(notebook)]
    for text in texts:
        assert not re.search(r"/(home|root|tmp|usr|opt|work|Users|private|var)/|[A-Z]:\\\\", text), text
    assert not [cell.metadata for cell in notebook.cells if cell.metadata], "no times of execution"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name not in IN_CI)) for name in NAMES])
def test_notebook_runs_in_a_fresh_kernel(name: str, tmp_path: Path) -> None:
    """Each asserts something itself, and a cell that raises raises here."""
    notebook = read(name)
    assert any(re.search(r"^\s*assert ", cell.source, re.MULTILINE) for cell in code_cells(notebook))
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    client = NotebookClient(notebook, timeout=280, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env={**os.environ, "RLJAX_NOTEBOOK_SCALE": SCALE})
    assert all(cell.execution_count for cell in code_cells(notebook))
    check_outputs(notebook)
