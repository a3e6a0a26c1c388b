"""Prints the requirements of rljax and of the named extras, each pinned to its lower bound in pyproject.toml."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = [requirement for name in sys.argv[1:] for requirement in project["optional-dependencies"][name]]
print("\n".join(requirement.partition(",")[0].replace(">=", "==") for requirement in [*project["dependencies"], *extras]))
