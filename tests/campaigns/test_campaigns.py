"""A short slice of each campaign, with fixed seeds; the campaigns themselves run for hours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns import corrupt, fuzz, kill, simulators
from tests.campaigns.campaign import RECORD, Campaign, main, note

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


@pytest.mark.slow
def test_damaged_files_are_told_or_passed_over() -> None:
    campaign, _ = corrupt.run(40, 0, None)
    assert campaign.failures == []
    assert campaign.tries == 40
    assert {"latest: right", "latest: the one before", "latest: one line"} <= set(campaign.counts)


@pytest.mark.slow
def test_killed_simulators_end_a_program_in_one_line_and_it_goes_on() -> None:
    campaign, _ = simulators.run(8, 0, None)
    assert campaign.failures == []
    assert sum(count for outcome, count in campaign.counts.items() if outcome.startswith("killed in a")) >= 4


@pytest.mark.slow
def test_writes_that_are_killed_lose_nothing() -> None:
    out = killed(8, 0, "saves")
    assert "killed" in out


@pytest.mark.long
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("name", ["ppo", "sweep", "study"])
def test_what_is_killed_comes_to_what_it_would_have_come_to(name: str) -> None:
    assert f"compared: {name}" in killed(8, 0, name)


def recorded(path: Path, *arguments: str) -> dict[str, Any]:
    """The record after a kill campaign from the command line."""
    with pytest.raises(SystemExit) as done:
        main(kill.run, kill.FULL_SIZE, kill.KINDS, [*arguments, "--record", str(path)])
    assert done.value.code == 0
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_record_says_which_kinds_were_killed_how_often_and_what_is_not_of_the_full_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempt(kinds: list[kill.Kind], seed: int) -> list[str]:
        kinds[seed % len(kinds)].kills += 1
        return ["killed: moment"]

    monkeypatch.setattr(kill, "attempt", attempt)
    monkeypatch.setattr(kill, "keep_compiled", lambda: None)
    path = tmp_path / "campaigns.json"
    found = recorded(path, "--tries", "5", "--seed", "2", "--kinds", "sweep", "saves")
    part = found["facts"]["kill: saves, sweep"]
    assert part["kills"] == {"sweep": 3, "saves": 2}
    assert part["outcomes"] == {"killed: moment": 5}
    assert part["command"] == "python -m tests.campaigns.kill --tries 5 --seed 2 --kinds saves sweep"
    assert list(found["configs"]) == ["kill: sweep"]
    assert found["note"] == "not of the full size: kill: saves, sweep (5 of 1,000 kills)"
    found = recorded(path)
    assert found["facts"]["kill: saves, sweep"] == part
    assert list(found["facts"]["kill"]["kills"]) == list(kill.KINDS)
    assert sum(found["facts"]["kill"]["kills"].values()) == 1000
    assert found["command"] == f"{part['command']}; python -m tests.campaigns.kill --tries 1000 --seed 0"
    assert found["note"] == ""
    assert {"kill: ppo", "kill: ppo with memory", "kill: study"} < set(found["configs"])
    assert note({"kill": found["facts"]["kill"]}) == ""
    small, other = {**part, "kills": {"saves": 600}}, {**part, "kills": {"dqn": 399}, "commit": "another"}
    assert note({"kill: saves": small, "kill: dqn": other}).endswith(
        ": kill: saves (600 of 1,000 kills); kill: dqn (399 of 1,000 kills)"
    )
    other["commit"] = small["commit"]
    assert note({"kill: saves": small, "kill: dqn": other}).endswith(": kill: saves and kill: dqn (999 of 1,000 kills)")


def test_parts_of_a_campaign_add_up_at_one_clean_commit_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def attempt(kinds: list[kill.Kind], seed: int) -> list[str]:
        kinds[0].kills += 1
        return ["killed: moment"]

    def part(seed: int, commit: str) -> dict[str, Any]:
        monkeypatch.setattr("tests.campaigns.campaign.source_commit", lambda: commit)
        found: dict[str, Any] = recorded(path, "--tries", "4", "--seed", str(seed), "--kinds", "saves")["facts"]["kill: saves"]
        return found

    monkeypatch.setattr(kill, "attempt", attempt)
    monkeypatch.setattr(kill, "keep_compiled", lambda: None)
    path = tmp_path / "campaigns.json"
    part(0, "abc")
    found = part(4, "abc")
    assert (found["tries"], found["kills"], found["outcomes"]) == (8, {"saves": 8}, {"killed: moment": 8})
    assert found["seeds"] == [[0, 4], [4, 4]]
    assert found["command"].count("--tries 4") == 2
    assert part(6, "abc")["tries"] == 4, "the same seeds again"
    assert part(20, "def")["tries"] == 4, "another commit"
    part(30, "def-dirty")
    assert part(40, "def-dirty")["tries"] == 4, "whatever was changed"


def test_an_unknown_kind_is_one_line_and_leaves_the_record(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as told:
        main(kill.run, kill.FULL_SIZE, kill.KINDS, ["--kinds", "saves", "sweeps", "--record", str(tmp_path / "a")])
    assert told.value.code == "--kinds: unknown kind 'sweeps': did you mean 'sweep'?"
    assert not list(tmp_path.iterdir())


def test_random_input_is_recorded_beside_the_other_campaigns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cases(seed: int, count: int, told: Any) -> None:
        for index in range(count):
            result = "failed" if (seed, index) == (4, 1) else "refused"
            told(index, fuzz.Outcome("toml", result, "ValueError: x", "a case", 0.5))

    monkeypatch.setattr(fuzz, "cases", cases)
    path = tmp_path / "campaigns.json"
    path.write_text(RECORD.read_text())
    fuzz.run(6, 3, 2, path)
    found, before = json.loads(path.read_text()), json.loads(RECORD.read_text())
    fact = found["facts"].pop("fuzz")
    assert found["facts"] == {name: one for name, one in before["facts"].items() if name != "fuzz"}
    assert fact["outcomes"] == {"toml: failed": 1, "toml: refused": 5}
    assert fact["failures"] == ["fuzz --seed 4 --only 1: toml: - ValueError: x"]
    assert fact["command"] == "python -m tests.campaigns.fuzz --tries 6 --seed 3 --seeds 2"
    assert fact["seeds"] == [[3, 2]]
    assert "fuzz (6 of 10,000 tries)" in found["note"]


def test_the_published_record_is_as_the_campaigns_write_it() -> None:
    found = json.loads(RECORD.read_text())
    facts = found["facts"]
    assert found["note"] == note(facts)
    assert found["command"] == "; ".join(fact["command"] for fact in facts.values())
    for name, fact in facts.items():
        module, _, kinds = name.partition(": ")
        assert set(Campaign(name, 0, 1).facts()) <= set(fact)
        assert module in ("kill", "corrupt", "fuzz", "simulators")
        if module == "kill":
            assert sorted(fact["kills"]) == (kinds.split(", ") if kinds else sorted(kill.KINDS))


@pytest.mark.long
@pytest.mark.timeout(24 * 3600)
def test_campaigns() -> None:
    """The full size."""
    for campaign in ("kill", "corrupt", "simulators"):
        subprocess.run([sys.executable, "-m", f"tests.campaigns.{campaign}"], cwd=Path(__file__).parents[2], check=True)
