"""Output that fits the terminal: lines are broken between words, tables and commands never inside them."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH = 100
"""Columns of what is no terminal and has no COLUMNS."""


LEAST = 30
"""Columns that a text beside others needs."""


def columns() -> int | None:
    """Columns of the terminal, or COLUMNS where that is set; None where the output goes to a file."""
    return shutil.get_terminal_size(fallback=(0, 0)).columns or None


def wrapped(text: str, width: int | None, indent: str = "", following: str = "  ") -> str:
    """A text in lines of `width` columns, broken between words only, below `indent` where that leaves no room beside it; one
    line where `width` is None."""
    if width is None:
        return indent + text
    start = ""
    if len(following) > 2 and width - len(following) < LEAST:
        start, indent, following = f"{indent.rstrip()}\n", " " * 6, " " * 6
    return start + textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=following, break_long_words=False, break_on_hyphens=False
    )


def say(line: str, command: str = "") -> None:
    """Print a sentence, and behind it, or below where it does not fit, a command, which is never broken: it is to be copied."""
    width, whole = columns(), f"{line} {command}".rstrip()
    if command and width is not None and len(whole) > width:
        print(f"{wrapped(line, width)}\n  {command}", flush=True)
    else:
        print(wrapped(whole, width), flush=True)


def make_console() -> Console:
    """Standard output, as plain text where that is no terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=columns() or WIDTH, color_system=None)


def make_table(*titles: str, text: tuple[str, ...] = ()) -> Table:
    """A table whose columns hold numbers, to the right, or words, to the left (`text`), which may take several lines."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for title in titles:
        table.add_column(title, justify="left" if title in text else "right", no_wrap=title not in text, overflow="fold")
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table; where the terminal is too narrow for its longest words it is as wide as they are."""
    texts = [[str(text) for text in (column.header, *column.cells)] for column in table.columns]
    natural = [max(map(len, column)) for column in texts]
    least = [
        most if column.no_wrap else max(len(word) for text in words for word in text.split() or [""])
        for column, words, most in zip(table.columns, texts, natural, strict=True)
    ]
    gaps = 2 * (len(texts) - 1)  # of `make_table`; rich would break words to make room
    left = max(0, console.width - gaps - sum(least))
    for column, low, high in zip(table.columns, least, natural, strict=True):
        column.width = min(high, low + left)
        left -= column.width - low
    width = console.width
    console.width = max(width, gaps + sum(least))
    try:
        console.print(table)
    finally:
        console.width = width
