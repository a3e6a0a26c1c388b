"""Output that fits the terminal: lines are broken between words; words in tables, and commands, are never broken."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rljax.core.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH = 100
"""Number of columns if the output is not a terminal and COLUMNS is not set."""


LEAST = 30
"""Smallest number of columns for a text beside another one."""


def columns() -> int | None:
    """Return COLUMNS if it is set, else the number of columns of the terminal; None if the output goes to a file."""
    return shutil.get_terminal_size(fallback=(0, 0)).columns or None


def format_number(value: float) -> str:
    """Return a measured number with one decimal, or four digits if it is small: `1,234.5` and `0.9375`; `-` for NaN."""
    if math.isnan(value):
        return "-"
    return f"{value:,.1f}" if 10 <= abs(value) < 1e9 else f"{value + 0.0:.4g}"  # not -0


def wrap_text(text: str, width: int | None, indent: str = "", following: str = "  ") -> str:
    """Wrap a text to lines of `width` columns, broken only between words; if `width` is None, return one line.

    If there is too little room beside `indent`, the text begins below it.
    """
    if width is None:
        return indent + text
    start = ""
    if len(following) > 2 and width - len(following) < LEAST:
        start, indent, following = f"{indent.rstrip()}\n", " " * 6, " " * 6
    return start + textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=following, break_long_words=False, break_on_hyphens=False
    )


def say(line: str, command: str = "") -> None:
    """Print a sentence and a command after it, or below it if it does not fit. The command is never broken, to be copied."""
    line, command = printable(line), printable(command)
    width, whole = columns(), f"{line} {command}".rstrip()
    if command and width is not None and len(whole) > width:
        print(f"{wrap_text(line, width)}\n  {command}", flush=True)
    else:
        print(wrap_text(whole, width), flush=True)


def make_console() -> Console:
    """Return a console for standard output, with plain text if that is not a terminal."""
    from rich.console import Console

    class Pipe(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the process with status 1

    console = Pipe(highlight=False)
    return console if console.is_terminal else Pipe(highlight=False, width=columns() or WIDTH, color_system=None)


def make_table(*titles: str, text: tuple[str, ...] = ()) -> Table:
    """Make a table with columns of numbers, aligned right, and columns of words (`text`), aligned left, that may be wrapped."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for title in titles:
        table.add_column(title, justify="left" if title in text else "right", no_wrap=title not in text, overflow="fold")
    return table


def print_table(console: Console, table: Table, optional: Sequence[int] = ()) -> None:
    """Print a table, as wide as its longest words need if the terminal is too narrow for them.

    Args:
        console: console to print to.
        table: result of `make_table`, with its rows.
        optional: indices of columns that a terminal without room for all of them leaves out, the first of these first.
    """
    texts = [[str(text) for text in (column.header, *column.cells)] for column in table.columns]
    natural = [max(map(len, column)) for column in texts]
    least = [
        most if column.no_wrap else max(len(word) for text in words for word in text.split() or [""])
        for column, words, most in zip(table.columns, texts, natural, strict=True)
    ]
    kept = list(range(len(texts)))
    for i in optional:
        if 2 * (len(kept) - 1) + sum(least[k] for k in kept) > console.width:
            kept.remove(i)
    if len(kept) < len(texts):
        table, natural, least = _of_columns(table, kept), [natural[k] for k in kept], [least[k] for k in kept]
    gaps = 2 * (len(kept) - 1)  # as in `make_table`; without fixed widths rich would break words
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


def _of_columns(table: Table, kept: Sequence[int]) -> Table:
    """Return a table with some of the columns of another one."""
    narrow, columns = make_table(), [table.columns[k] for k in kept]
    for column in columns:
        narrow.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap, overflow=column.overflow)
    for row in zip(*(column.cells for column in columns), strict=True):
        narrow.add_row(*row)
    return narrow
