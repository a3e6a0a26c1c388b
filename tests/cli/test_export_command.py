"""`rljax export`: the forms that are asked for, and nothing where one of the paths is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

import rljax
from rljax.cli.main import main
from tests.run.export.kinds import player
from tests.run.tiny_runs import assert_refused

pytest.importorskip("safetensors")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    rljax.save("run", *player("masked"))
    return "run"


@pytest.mark.slow
def test_the_forms_that_are_asked_for_are_written(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["export", run, "--numpy", "in_numpy", "--safetensors", "weights.safetensors"])
    out = capsys.readouterr().out
    assert "in_numpy: policy in NumPy of ppo on MaskedBandit-v0 after 0 steps" in out
    assert "next: in_numpy/policy.py" in out
    assert sorted(path.name for path in Path().iterdir()) == ["in_numpy", "run", "weights.safetensors"]
    assert sorted(path.name for path in Path("in_numpy").iterdir()) == ["policy.py", "weights.npz"]


def test_nothing_is_written_where_a_path_is_taken(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("taken.safetensors").write_text("keep")
    Path("taken").mkdir()
    Path("taken/mine").write_text("keep")
    assert_refused(["export", run, "--numpy", "new", "--safetensors", "taken.safetensors"], "exists already", capsys)
    assert_refused(["export", run, "--numpy", "taken", "--safetensors", "new.safetensors"], "exists already", capsys)
    assert_refused(["export", run, "--out", "taken", "--numpy", "new"], "exists already", capsys)
    assert_refused(["export", run, "--numpy", "new", "--web", "taken"], "exists already", capsys)
    assert_refused(["export", run, "--numpy", "new", "--web", "page"], "MaskedBandit-v0: there is no page for it", capsys)
    assert_refused(["export", run, "--numpy", "new", "--web", "./new"], "new: is asked for twice", capsys)
    assert_refused(["export", run, "--out", "new/inside", "--numpy", "new"], "new: is asked for twice", capsys)
    assert_refused(["export", run, "--safetensors", "new.bin"], "expected a file name that ends in .safetensors", capsys)
    assert sorted(path.name for path in Path().iterdir()) == ["run", "taken", "taken.safetensors"]
    assert Path("taken.safetensors").read_text() == Path("taken/mine").read_text() == "keep"
