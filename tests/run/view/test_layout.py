"""Output that fits the terminal, whatever its width."""

from __future__ import annotations

import contextlib
import io

import pytest
from rich.console import Console

from rljax.cli.main import main
from rljax.run.view.layout import make_console, make_table, print_table, say, wrap_text


def test_a_table_to_a_reader_that_has_gone_is_a_broken_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command then ends with 141, as `rljax list | head -1` does."""

    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Gone())
    with pytest.raises(BrokenPipeError):
        make_console().print("a")


def words(text: str) -> set[str]:
    return set(text.split())


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["train", "--help"],
        ["tune", "--help"],
        ["tournament", "--help"],
        ["record", "--help"],
        ["play", "--help"],
        ["list"],
        ["list", "ppo"],
        ["list", "league"],
        ["list", "CartPole-v1"],
        ["reproduce"],
    ],
    ids=" ".join,
)
def test_no_line_is_longer_than_the_terminal_and_no_word_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], width: int
) -> None:
    # Where this checkout lies may be long.
    monkeypatch.setattr("rljax.cli.listing.getsourcefile", lambda _: "/rljax/envs/cartpole.py")

    def printed(columns: int) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        with contextlib.suppress(SystemExit):  # --help
            main(arguments)
        return capsys.readouterr().out

    wide, narrow = printed(1000), printed(width)
    assert max(map(len, narrow.splitlines())) <= width
    decoration = "-─│╭╮╰╯ "
    assert {word.strip(decoration) for word in words(narrow)} == {word.strip(decoration) for word in words(wide)}


def test_a_sentence_is_broken_between_words_and_a_command_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    say("stopped here; to go on:", "rljax train --resume runs/a")
    assert capsys.readouterr().out == "stopped here; to go\n  on:\n  rljax train --resume runs/a\n"
    say("a-word-that-is-longer-than-the-terminal is whole")
    assert capsys.readouterr().out == "a-word-that-is-longer-than-the-terminal\n  is whole\n"
    monkeypatch.setenv("COLUMNS", "80")
    say("stopped here; to go on:", "rljax train --resume runs/a")
    assert capsys.readouterr().out == "stopped here; to go on: rljax train --resume runs/a\n"
    monkeypatch.delenv("COLUMNS")
    assert wrap_text("x " * 300, None) == "x " * 300


def test_what_is_said_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say("resuming a\x1b]0;owned\x07b", "rljax show 'c\x1b[2J'")
    out = capsys.readouterr().out
    assert "owned" in out
    assert not set(out) & set("\x1b\x07")


@pytest.mark.parametrize(
    ("width", "headers"),
    [
        (31, ["checkpoint", "size", "mark", "written"]),
        (30, ["checkpoint", "size", "mark"]),
        (22, ["checkpoint", "size", "mark"]),
        (21, ["checkpoint", "mark"]),
        (16, ["checkpoint", "mark"]),
        (5, ["checkpoint", "mark"]),
    ],
)
def test_a_narrow_terminal_leaves_out_columns_that_need_not_be_there(width: int, headers: list[str]) -> None:
    table = make_table("checkpoint", "size", "mark", "written", text=("mark",))
    table.add_row("1,024", "1 kB", "best", "10:00")
    out = io.StringIO()
    print_table(Console(file=out, width=width, color_system=None), table, optional=(3, 1))
    title, rule, row = out.getvalue().splitlines()
    assert title.split() == headers
    cells = {"checkpoint": ["1,024"], "size": ["1", "kB"], "mark": ["best"], "written": ["10:00"]}
    assert row.split() == [word for header in headers for word in cells[header]]
    assert len(rule) == len(title) <= max(width, len("checkpoint  mark"))


@pytest.mark.parametrize("width", [20, 40, 60])
def test_a_table_never_breaks_words(width: int) -> None:
    table = make_table("name", "value", "number", text=("name", "value"))
    table.add_row("normalize_observations", "a value of several words", "1,000,000,000")
    table.add_row("b", "{hidden = [64, 64], activation = tanh}", "1.5")
    out = io.StringIO()
    print_table(Console(file=out, width=width, color_system=None), table)
    for word in ("normalize_observations", "several", "activation", "1,000,000,000", "64],"):
        assert word in words(out.getvalue())
    if width == 60:
        assert max(map(len, out.getvalue().splitlines())) <= 60
