"""Run a script where a CPU seems to be several devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def printed_on_devices(count: int, folder: Path, script: str | Path, *arguments: str) -> str:
    """Return what a script prints with so many devices, run in a folder; fail where it fails."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(Path(__file__).parents[2])},  # for imports of tests
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
