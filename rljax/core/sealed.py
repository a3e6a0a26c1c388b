"""JSON tables of a folder (of a run, a dataset): written with a checksum, and validated field by field when read."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rljax.core.errors import shown

CHECKSUM = "checksum"
FORMAT = "format"
MAX_WHOLE = 2**62
"""Largest whole number: no count in a run comes near it, and sums of such numbers still fit in 64 bits."""


class DamagedError(ValueError):
    """A table has changed since it was written; the message names the field, its value and what is allowed."""


class OtherFormatError(ValueError):
    """A table is undamaged, but its format is one that this version cannot read."""

    def __init__(self, table: dict[str, Any]):
        self.format, self.version = table.get(FORMAT), table.get("rljax")


class Field(NamedTuple):
    """Rule for the values of a field.

    Attributes:
        allowed: allowed values in words, for a message.
        test: function that returns whether a value is allowed.
        required: whether a table without the field is damaged.
    """

    allowed: str
    test: Callable[[Any], bool]
    required: bool = True

    @property
    def optional(self) -> Field:
        """The same rule, but the field may also be null or missing."""
        return Field(f"{self.allowed} or null", lambda x: x is None or self.test(x), required=False)


def whole(low: int = 0, high: int = MAX_WHOLE) -> Field:
    """Allow a whole number from `low` to `high`."""
    upper = "" if high == MAX_WHOLE else f" to {high}"
    return Field(f"a whole number from {low}{upper}", lambda x: _is_whole(x, low, high))


def matching(pattern: str, words: str) -> Field:
    """Allow a string that a pattern matches as a whole."""
    return Field(words, lambda x: isinstance(x, str) and re.fullmatch(pattern, x) is not None)


def number() -> Field:
    """Allow any number, including NaN and infinities."""
    return Field("a number", is_number)


def is_number(x: Any) -> bool:
    return isinstance(x, float) or _is_whole(x, -MAX_WHOLE, MAX_WHOLE)


def list_of(test: Callable[[Any], bool], words: str) -> Field:
    """Allow a list whose entries pass a test."""
    return Field(f"a list of {words}", lambda x: isinstance(x, list) and all(map(test, x)))


def table_of(test: Callable[[Any], bool], words: str) -> Field:
    """Allow a table whose values pass a test."""
    return Field(f"a table of {words}", lambda x: isinstance(x, dict) and all(map(test, x.values())))


def _is_whole(x: Any, low: int, high: int) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and low <= x <= high


def seal(table: Mapping[str, Any], indent: int | None = None) -> str:
    """Return a table as JSON, with its checksum as the last field."""
    return json.dumps({**table, CHECKSUM: _checksum(table)}, indent=indent) + "\n"


def read_sealed(file: Path, fields: Mapping[str, Field]) -> dict[str, Any]:
    """Read a table of format 1 that `seal` wrote, with None for missing fields.

    Tables of early versions have no checksum: they are accepted if every field is known and has an allowed value.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedError: the file cannot be read, a field is missing or of a wrong type or range, or the checksum does not match.
        OtherFormatError: the table is undamaged, but of another format.
    """
    try:
        table = json.loads(file.read_bytes())
        sealed = isinstance(table, dict) and CHECKSUM in table
        whole_table = sealed and table.pop(CHECKSUM) == _checksum(table)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError):
        raise DamagedError("cannot be read") from None
    if not isinstance(table, dict):
        raise DamagedError("is not a table")
    if whole_table and table.get(FORMAT) != 1:
        raise OtherFormatError(table)
    problem = _problem(table, fields, known_only=not sealed)
    if problem is None and sealed and not whole_table:
        problem = "differs from what was written (its checksum does not match)"
    if problem is not None:
        raise DamagedError(problem)
    # In the order of the file: digests are those of its bytes, also where it is written again.
    return table | {name: None for name in fields if name not in table}


def _problem(table: dict[str, Any], fields: Mapping[str, Field], known_only: bool) -> str | None:
    """Return the first fault of a sealed table, or None."""
    fault = first_fault(table, {FORMAT: Field("1", lambda x: _is_whole(x, 1, 1)), **fields})
    if fault is not None:
        return fault
    unknown = next((name for name in table if name not in fields and name != FORMAT), None)
    return f"unknown field {shown(unknown)}" if known_only and unknown is not None else None


def first_fault(table: Mapping[str, Any], fields: Mapping[str, Field]) -> str | None:
    """Return what is wrong with the first field of a table that is missing or has a value that is not allowed, or None."""
    for name, field in fields.items():
        if name not in table:
            if field.required:
                return f"has no {name}"
        elif not field.test(table[name]):
            return f"{name} = {shown(table[name])}: expected {field.allowed}"
    return None


def _checksum(table: Mapping[str, Any]) -> str:
    """Return the CRC-32 of a table as JSON, which is the same after writing and reading it."""
    return f"{zlib.crc32(json.dumps(table).encode()):08x}"
