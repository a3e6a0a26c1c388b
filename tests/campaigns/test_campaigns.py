"""A short slice of each campaign, with fixed seeds; the campaigns themselves run for hours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaigns import corrupt

KILL = """
import sys
from tests.campaigns.kill import run
campaign, _ = run(int(sys.argv[1]), int(sys.argv[2]), None, tuple(sys.argv[3:]))
print(campaign.facts())
sys.exit(1 if campaign.failures else 0)
"""


def killed(tries: int, seed: int, *names: str) -> str:
    """A slice of the kill campaign, in a process that may fork: this one has asked JAX for devices."""
    command = [sys.executable, "-c", KILL, str(tries), str(seed), *names]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_damaged_files_are_told_or_passed_over() -> None:
    campaign, _ = corrupt.run(40, 0, None)
    assert campaign.failures == []
    assert campaign.tries == 40
    assert {"latest: right", "latest: the one before", "latest: one line"} <= set(campaign.counts)


def test_writes_that_are_killed_lose_nothing() -> None:
    out = killed(8, 0, "saves")
    assert "killed" in out


@pytest.mark.slow
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("name", ["ppo", "sweep", "study"])
def test_what_is_killed_comes_to_what_it_would_have_come_to(name: str) -> None:
    assert f"compared: {name}" in killed(8, 0, name)


@pytest.mark.long
@pytest.mark.timeout(24 * 3600)
def test_campaigns() -> None:
    """The full size."""
    for campaign in ("kill", "corrupt"):
        subprocess.run([sys.executable, "-m", f"tests.campaigns.{campaign}"], cwd=Path(__file__).parents[2], check=True)
