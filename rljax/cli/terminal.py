"""Printing on terminals that know only ASCII, and reading what is typed in another encoding."""

from __future__ import annotations

import codecs
import io
import os
import sys

ASCII = str.maketrans({"─": "-", "━": "-", "═": "=", "│": "|", "┃": "|", "•": "*", "·": ".", "…": "...", "→": "->", "±": "+-"})
"""Replacements for characters that a terminal may not have."""


def open_streams() -> None:
    """Open the null device for standard streams that are closed (by a service, `pythonw` or `>&-`), as if it had been given."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


def print_anywhere() -> None:
    """Print similar ASCII characters for those that standard output or standard error cannot encode, instead of failing.

    Bytes of standard input that are no text are read as replacement characters.
    """
    codecs.register_error("rljax", _to_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="rljax")
    if isinstance(sys.stdin, io.TextIOWrapper) and sys.stdin.errors == "strict":
        sys.stdin.reconfigure(errors="replace")


def _to_ascii(error: UnicodeError) -> tuple[str, int]:
    """Replace lines of boxes by `-` and `|`, their corners by `+`, blocks by `#`, and all else by `?`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(ASCII)
    return "".join(_character(c) for c in text), error.end


def _character(c: str) -> str:
    if c.isascii():
        return c
    return "+" if "\u2500" <= c <= "\u257f" else "#" if "\u2580" <= c <= "\u259f" else "?"
