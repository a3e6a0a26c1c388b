"""Errors that users see: one clear line each."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class RljaxError(Exception):
    """Base of the errors that rljax raises on purpose; the message is one line that says what to do."""

    def __init__(self, message: object):
        super().__init__(" ".join(str(message).split()))


class ConfigError(RljaxError, ValueError):
    """A value that the user gave cannot be used: the message names the field, the value and what is allowed."""


class TrainingError(RljaxError, RuntimeError):
    """A run cannot go on (NaN in a loss, say): the message names the step, what went wrong and what was kept."""


class ProcessLostError(RljaxError, RuntimeError):
    """Another process of the run has ended before its time; JAX can do nothing more in this one."""


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C, or a signal to terminate, reached `fit`: it finished its chunk and saved it.

    Attributes:
        result: the `TrainResult` so far.
        signum: the signal.
    """

    def __init__(self, message: str, result: Any, signum: int):
        super().__init__(message)
        self.result = result
        self.signum = signum


class RljaxWarning(UserWarning):
    """Something was not done as asked, or was mended, and the run goes on."""


def first_line(error: BaseException) -> str:
    """Type and first line of an error of somebody else's code, for a message of one line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The tail of a message about an unknown name: the closest match, or all names where none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(name.lower(), [k.lower() for k in known], n=1, cutoff=0.5)
    if close:
        return "did you mean '" + next(k for k in known if k.lower() == close[0]) + "'?"
    return "expected one of: " + ", ".join(known)
