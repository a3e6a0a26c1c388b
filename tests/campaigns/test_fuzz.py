"""A slice of the campaign of random input, and the whole of it on demand."""

from __future__ import annotations

import collections
from collections.abc import Callable

import pytest

from tests.campaigns.fuzz import MAKERS, Outcome, case, cases, fingerprint, outcome


def failures(outcomes: list[Outcome]) -> dict[str, list[str]]:
    found = collections.defaultdict(list)
    for one in outcomes:
        if one.result == "failed":
            found[fingerprint(one.detail)].append(one.case[:300])
    return dict(found)


@pytest.mark.slow
def test_random_input_works_or_is_one_line() -> None:
    outcomes = cases(seed=1000, count=120, trained=False)
    assert failures(outcomes) == {}
    counts = collections.Counter((one.kind, one.result) for one in outcomes)
    assert counts["configuration", "works"] >= 1
    assert min(counts["configuration", "refused"], counts["toml", "refused"], counts["command", "refused"]) >= 15


def test_a_case_depends_on_its_seed_and_number_only() -> None:
    assert case(3, 17)[:2] == case(3, 17)[:2]
    assert len({case(3, i)[1] for i in range(20)}) == 20


def test_a_traceback_a_hang_and_two_lines_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(run: Callable[[], object]) -> Outcome:
        monkeypatch.setitem(MAKERS, "command", lambda rng: ("made", run))
        monkeypatch.setattr("tests.campaigns.fuzz.SHARES", (0, 0, 1))
        return outcome(0, 0)

    def endless() -> None:
        while True:
            pass

    assert found(lambda: None).result == "works"
    assert "ZeroDivisionError" in found(lambda: 1 // 0).detail
    monkeypatch.setattr("tests.campaigns.fuzz.SECONDS", 0.1)
    assert found(endless).detail.startswith("longer than")


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_of_each_seed_work_or_are_one_line(seed: int) -> None:
    assert failures(cases(seed, 1000)) == {}
