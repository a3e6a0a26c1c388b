"""Node, for the tests of pages: it runs their modules."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rljax.run.export.web.page import STATIC


@pytest.fixture(scope="session")
def run_node(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Any, float], Any]:
    """A function `(script beside this file, what it reads, seconds) -> what it writes`, both as JSON; it imports the modules."""
    if shutil.which("node") is None:
        pytest.skip("node is not here, to run the environments of the pages")
    folder = tmp_path_factory.mktemp("modules")
    shutil.copytree(STATIC, folder, dirs_exist_ok=True)
    for script in Path(__file__).parent.glob("*.mjs"):
        shutil.copy(script, folder)
    (folder / "package.json").write_text('{"type": "module"}')  # for node to take them for such

    def run(script: str, given: Any, limit: float) -> Any:
        done = subprocess.run(
            ["node", script], input=json.dumps(given), cwd=folder, capture_output=True, text=True, timeout=limit, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
