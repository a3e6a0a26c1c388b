"""Errors that users see: one clear line each."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

VALUE_LENGTH = 80
"""Characters of a value in a message."""

WORD_LENGTH = 300
"""Characters of a word of a message (a path, say) that is not shortened."""

MESSAGE_LENGTH = 2000
"""Characters of a whole message."""


class RljaxError(Exception):
    """Base of the errors that rljax raises on purpose; the message is one line that says what to do."""

    def __init__(self, message: object):
        words = printable(" ".join(str(message).split()))
        # Messages shorten the values that they show; this is for what other libraries say, and for names of files.
        words = re.sub(rf"\S{{{WORD_LENGTH + 1},}}", lambda word: shortened(word[0]), words)
        super().__init__(shortened(words, MESSAGE_LENGTH))


class ConfigError(RljaxError, ValueError):
    """A value that the user gave cannot be used: the message names the field, the value and what is allowed."""


class TrainingError(RljaxError, RuntimeError):
    """A run cannot go on (NaN in a loss, say): the message names the step, what went wrong and what was kept."""


class ProcessLostError(RljaxError, RuntimeError):
    """Another process of the run has ended before its time; JAX can do nothing more in this one."""


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C, or a signal to terminate, reached `fit`: it finished its chunk and saved it.

    Attributes:
        result: the `FitResult` so far.
        signum: the signal.
    """

    def __init__(self, message: str, result: Any, signum: int):
        super().__init__(message)
        self.result = result
        self.signum = signum


class RljaxWarning(UserWarning):
    """Something was not done as asked, or was mended, and the run goes on."""

    def __str__(self) -> str:
        return printable(super().__str__())


def printable(text: str) -> str:
    """A text with its control characters written out (`\\x1b`): what a file or a name says must not steer the terminal."""
    # Cc: control characters; Cf: those that turn the direction of writing, or cannot be seen; Cs: halves of characters.
    return "".join(ascii(c)[1:-1] if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs") else c for c in text)


def first_line(error: BaseException) -> str:
    """Type and first line of an error of somebody else's code, for a message of one line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


DISTRIBUTION = "rljax-jit"
"""The name to install by; the package index has an unrelated `rljax`, so only the import has that name."""


def how_to_install(extra: str) -> str:
    """The command that installs an optional part of rljax, in quotes that a shell needs."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def shortened(text: str, length: int = VALUE_LENGTH) -> str:
    """A text without its middle where it is longer than `length` characters."""
    if len(text) <= length:
        return text
    end = length // 4
    return f"{text[: length - end - 3]}...{text[-end:]}"


def shown(value: object) -> str:
    """A value as a message shows it: its repr on one line, of `VALUE_LENGTH` characters at most."""
    try:
        text = repr(value)
    except Exception as error:  # a number of more digits than Python prints, tables in tables without end, somebody's __repr__
        text = f"<{type(value).__name__}: {type(error).__name__} while it is printed>"
    return shortened(" ".join(text.split()))


def check_int(subject: str, least: int, **numbers: object) -> None:
    """Refuse what is no integer of at least `least`: `check_int("GridWorld-v0", 2, size=size)`.

    Raises:
        ConfigError: names the subject, the first such argument, its value and what is allowed.
    """
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{subject}: {name} = {shown(value)}, expected an integer of at least {least}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The tail of a message about an unknown name: the closest match, or all names where none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(name.lower(), [k.lower() for k in known], n=1, cutoff=0.5)
    if close:
        return "did you mean '" + next(k for k in known if k.lower() == close[0]) + "'?"
    return "expected one of: " + ", ".join(known)
