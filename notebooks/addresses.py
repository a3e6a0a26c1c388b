"""Writes the repository's address and the distribution's name, as pyproject.toml has them, into every notebook's first cells."""

from __future__ import annotations

import tomllib
from pathlib import Path

import nbformat

FOLDER = Path(__file__).parent

INSTALL = """\
try:
    import rljax
except ModuleNotFoundError:
    # A JAX without a plug-in of its own version computes on the CPU: the extra keeps the accelerator that this machine has.
    from importlib.metadata import distributions

    installed = {{distribution.name for distribution in distributions()}}
    plugins = {{"jax-cuda13-plugin": "[cuda13]", "jax-cuda12-plugin": "[cuda12]", "libtpu": "[tpu]"}}
    extra = next((plugins[name] for name in plugins if name in installed), "")
    requirement = f"{name}{{extra}} @ git+{repository}"
    %pip install -q "$requirement"
    import rljax

import jax

print("JAX", jax.__version__, "on", jax.devices())"""


def project() -> tuple[str, str]:
    """The distribution's name and the repository's address."""
    table = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table["name"], table["urls"]["Repository"]


def badge(repository: str, notebook: str) -> str:
    """The line that opens a notebook in Colab."""
    path = repository.removeprefix("https://github.com/")
    link = f"https://colab.research.google.com/github/{path}/blob/main/notebooks/{notebook}.ipynb"
    return f"[![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)]({link})"


def install_cell(name: str, repository: str) -> str:
    """The code of the first cell, which installs rljax where it is not there."""
    return INSTALL.format(name=name, repository=repository)


def main() -> None:
    name, repository = project()
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        lines = notebook.cells[0].source.splitlines()
        lines = [badge(repository, path.stem) if line.startswith("[![Open In Colab]") else line for line in lines]
        notebook.cells[0].source = "\n".join(lines)
        install = next(cell for cell in notebook.cells if cell.cell_type == "code")
        install.source = install_cell(name, repository)
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
