"""Errors for users: one clear line each."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

VALUE_LENGTH = 80
"""Largest number of characters of a value in a message."""

WORD_LENGTH = 300
"""Largest number of characters of a word in a message (a path, say); longer ones are shortened."""

MESSAGE_LENGTH = 2000
"""Largest number of characters of a whole message."""


class RljaxError(Exception):
    """Base of the errors that rljax raises on purpose; the message is one line that says what to do."""

    def __init__(self, message: object):
        words = printable(" ".join(str(message).split()))
        # Our messages shorten the values that they show; this is for texts of other libraries and for file names.
        words = re.sub(rf"\S{{{WORD_LENGTH + 1},}}", lambda word: shortened(word[0]), words)
        super().__init__(shortened(words, MESSAGE_LENGTH))


class ConfigError(RljaxError, ValueError):
    """A value given by the user cannot be used; the message names the field, the value and what is allowed."""


class TrainingError(RljaxError, RuntimeError):
    """A run cannot continue (NaN in a loss, say); the message names the step, the problem and what was saved."""


class ProcessLostError(RljaxError, RuntimeError):
    """Another process of the run has ended too early; JAX can do nothing more in this one."""


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C or a signal to terminate reached `fit`, which finished its chunk and saved it; or a command that searches.

    Attributes:
        result: the `FitResult` so far; None of a sweep or study.
        signum: the signal.
    """

    def __init__(self, message: str, result: Any, signum: int):
        super().__init__(message)
        self.result = result
        self.signum = signum


class RljaxWarning(UserWarning):
    """Something was not done as asked, or was repaired; the run continues."""

    def __str__(self) -> str:
        return printable(super().__str__())


def printable(text: str) -> str:
    """Return a text with its control characters escaped (`\\x1b`), so that a file or a name cannot control the terminal."""
    # Cc: control characters; Cf: invisible ones and changes of the writing direction; Cs: halves of characters.
    return "".join(ascii(c)[1:-1] if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs") else c for c in text)


def first_line(error: BaseException) -> str:
    """Return the type and first line of an error raised by other code, for a message of one line.

    If it quotes the traceback of a call of the host that failed, this is the line that ends the traceback.
    """
    lines = str(error).strip().splitlines() or [""]
    if "Traceback (most recent call last)" in lines[0]:
        # The frames are indented, and what they end with is not.
        return next((line for line in lines[1:] if line and not line[0].isspace()), lines[0])
    return f"{type(error).__name__}: {lines[0]}"


def reason_of(error: BaseException) -> str:
    """Return all that an error raised by other code says, as one line; its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


DISTRIBUTION = "rljax-jit"
"""Name of the distribution to install. The package index has an unrelated `rljax`, so only the import has that name."""


def how_to_install(extra: str) -> str:
    """Return the command that installs an optional part of rljax, quoted for a shell."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def shortened(text: str, length: int = VALUE_LENGTH) -> str:
    """Return a text, without its middle if it is longer than `length` characters."""
    if len(text) <= length:
        return text
    end = length // 4
    return f"{text[: length - end - 3]}...{text[-end:]}"


def shown(value: object) -> str:
    """Return a value for a message: its repr on one line, with at most `VALUE_LENGTH` characters."""
    try:
        text = repr(_thawed(value))
    except Exception as error:  # a number of more digits than Python prints, endlessly nested tables, or a faulty __repr__
        text = f"<{type(value).__name__}: {type(error).__name__} while it is printed>"
    return shortened(" ".join(text.split()))


def _thawed(value: object) -> object:
    """Return a value with its tables as they were written: configurations hold them, and lists in them, frozen."""
    if isinstance(value, Mapping):
        thawed = {name: _thawed(entry) for name, entry in value.items()}
        return {name: [*entry] if type(entry) is tuple else entry for name, entry in thawed.items()}
    return tuple(map(_thawed, value)) if type(value) is tuple else value


def check_int(subject: str, least: int, **numbers: object) -> None:
    """Check that arguments are integers of at least `least`: `check_int("GridWorld-v0", 2, size=size)`.

    Raises:
        ConfigError: one is not; the message names the subject, the first such argument, its value and what is allowed.
    """
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{subject}: {name} = {shown(value)}, expected an integer of at least {least}")


def check_whole(least: int, **numbers: object) -> None:
    """Check that arguments are whole numbers of at least `least`: `check_whole(1, num_games=num_games)`.

    Raises:
        ConfigError: one is not; the message names the first such argument, its value and what is allowed.
    """
    for name, value in numbers.items():
        if not is_whole(value, least):
            raise ConfigError(f"{name} = {shown(value)}: expected a whole number > {least - 1}")


def check_bool_or_none(**flags: object) -> None:
    """Check that arguments are True, False or None, as any text would count as True: `check_bool_or_none(sample=sample)`.

    Raises:
        ConfigError: one is not; the message names the first such argument, its value and what is allowed.
    """
    for name, value in flags.items():
        if value is not None and not isinstance(value, bool) and str(getattr(value, "dtype", "")) != "bool":
            raise ConfigError(f"{name} = {shown(value)}: expected True, False or None")


def is_whole(value: object, least: int, most: float = float("inf")) -> bool:
    """Return whether a value is a whole number from `least` to `most`."""
    return isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= most


def did_you_mean(name: str, known: Iterable[str], listed_by: str | None = None, prefix: str = "") -> str:
    """Return the end of a message about an unknown name: the closest match, or all names if none is close.

    Where they are many, a command lists them (`listed_by`), and the message names it instead. `prefix` is what the user writes
    before each name.
    """
    known = sorted(known)
    close = _closest(name.lower(), [k.lower() for k in known])
    if close is not None:
        return f"did you mean '{prefix}{known[close]}'?"
    return "expected one of: " + ", ".join(prefix + k for k in known) if listed_by is None else f"{listed_by} lists what there is"


def _closest(word: str, known: list[str]) -> int | None:
    """Return the index of the name that a word was likely meant to be, None if there is none.

    Three letters or more that begin a name or a word in it (`size` in `batch_size`) mean that name. Otherwise, two fifths of a
    word may differ from the name, of a word of up to five letters about one letter, as words so short are easily alike by chance,
    and of up to three letters the first one only by changing places or being left out: `a2c` is no misspelt `sac`.
    """
    holders = [
        name for name in known if len(word) > 2 and any(part.startswith(word) for part in [name, *re.split(r"\W|_", name)])
    ]
    if holders:
        return known.index(min(holders, key=len))
    short = len(word) <= 5
    likely = [name for name in known if not short or abs(len(name) - len(word)) <= 1]
    likely = [n for n in likely if len(word) > 3 or n[:1] == word[:1] or n[1:] == word or sorted(n) == sorted(word)]
    cutoff = max(len(word) - 1, 1) / max(len(word), 2) if short else 0.6
    close = difflib.get_close_matches(word, likely, n=1, cutoff=cutoff)
    return known.index(close[0]) if close else None
