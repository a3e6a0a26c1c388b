"""`rljax export`: the forms that are asked for, and nothing where one of the paths is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rljax
from rljax.cli.main import main
from rljax.run.export.policy import ExportReport
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


def test_an_export_that_fails_does_not_say_that_it_is_there(
    run: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("rljax.run.export.policy.atomic_folder", refuse)
    with pytest.raises(SystemExit):
        main(["export", run, "--numpy", "new"])
    captured = capsys.readouterr()
    assert "new: policy in NumPy" not in captured.out
    assert "new: cannot be written: Permission denied" in captured.err


def test_the_next_command_can_be_copied_whatever_the_folder_is_called(
    run: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rljax.run.export.web.describe_page", lambda _: {})
    monkeypatch.setattr("rljax.run.export.web.export_web", lambda *_, **__: ExportReport(Path("my page"), {}, {}))
    main(["export", run, "--web", "my page"])
    assert "python -m http.server --directory 'my page'" in capsys.readouterr().out
