"""Fields of the JSON tables of a run (run.json, meta.json); see `rljax.core.sealed`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from rljax.core.sealed import (
    CHECKSUM,
    FORMAT,
    MAX_WHOLE,
    DamagedError,
    Field,
    OtherFormatError,
    is_number,
    list_of,
    matching,
    number,
    read_sealed,
    seal,
    table_of,
    whole,
)

__all__ = [
    "CHECKSUM",
    "FORMAT",
    "INFO_FIELDS",
    "MAX_SEEDS",
    "MAX_WHOLE",
    "META_FIELDS",
    "DamagedError",
    "Field",
    "OtherFormatError",
    "is_number",
    "list_of",
    "matching",
    "number",
    "read_sealed",
    "seal",
    "table_of",
    "whole",
]

_NUMBER_OR_NONE = "numbers or null"


def _known_or_none(x: Any) -> bool:
    return x is None or is_number(x)


def _is_array(x: Any) -> bool:
    """Return whether a value is `[shape, dtype]`."""
    if not (isinstance(x, list) and len(x) == 2 and isinstance(x[0], list) and all(map(whole().test, x[0]))):
        return False
    try:
        return isinstance(x[1], str) and np.dtype(x[1]).kind in "biufcV"  # V: bfloat16 and similar dtypes
    except (TypeError, ValueError, SyntaxError):
        return False


def _is_sum(x: Any) -> bool:
    """Return whether a value is `[size, CRC-32]`."""
    return isinstance(x, list) and len(x) == 2 and all(map(whole().test, x))


def _is_key_impl(x: Any) -> bool:
    if not isinstance(x, str):
        return False
    try:
        jax.eval_shape(lambda: jax.random.key(0, impl=x))
    except ValueError:
        return False
    return True


def _is_fork(x: Any) -> bool:
    return isinstance(x, dict) and isinstance(x.get("checkpoint"), str) and whole().test(x.get("step"))


MAX_SEEDS = 2**20
"""Largest number of seeds of a run or a sweep: what is done for each of them on the host stays quick, whatever a file says."""

META_FIELDS = {
    "step": whole(),
    "time": matching(r"\d{4}-\d\d-\d\dT[\d:.+-]+Z?", "a date and time").optional,
    "iteration": whole(),
    "score_name": matching(r"[\w/]+", "the name of a metric").optional,
    "scores": list_of(_known_or_none, _NUMBER_OR_NONE).optional,
    "returns": table_of(lambda x: isinstance(x, list) and all(map(_known_or_none, x)), f"lists of {_NUMBER_OR_NONE}").optional,
    "best_score": number().optional,
    "best_scores": list_of(_known_or_none, _NUMBER_OR_NONE).optional,
    "best_step": whole().optional,
    "diverged": list_of(lambda x: x is None or whole().test(x), "steps or null").optional,
    "keys": table_of(lambda x: isinstance(x, str), "implementations of random keys").optional,
    "arrays": table_of(_is_array, "[shape, dtype]"),
    "files": Field("a table of [size, CRC-32], not empty", lambda x: bool(x) and table_of(_is_sum, "").test(x)),
}
"""Fields of a checkpoint's meta.json; `arrays` are the leaves of its state, `keys` the implementations of its random keys."""

INFO_FIELDS = {
    "rljax": matching(r"\S{1,60}", "a version").optional,
    "jax": matching(r"\S{1,60}", "a version").optional,
    "seeds": whole(1, MAX_SEEDS).optional,
    "key_impl": Field("an implementation of random keys, such as threefry2x32", _is_key_impl),
    "first_step": whole(),
    "step_offset": Field("a whole number", lambda x: whole(-MAX_WHOLE).test(x)),
    "own": Field("a string", lambda x: isinstance(x, str)).optional,
    "data": matching(r"[0-9a-f]{64}|", "a SHA-256").optional,
    "env_files": matching(r"[0-9a-f]{64}|", "a SHA-256").optional,
    "init_from": Field("a path", lambda x: isinstance(x, str)).optional,
    "forked_from": Field("a table of a checkpoint's path and its step", _is_fork).optional,
    "left_out": list_of(lambda x: isinstance(x, str), "names of fields").optional,
}
"""Fields of a run's run.json; see `RunInfo`."""
