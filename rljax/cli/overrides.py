"""Fields of a configuration that the command line changes."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rljax.core.config import preset_names
from rljax.core.errors import ConfigError, shown
from rljax.run.search.space import parse_range


class WholeTable(dict[str, Any]):
    """A table given at once, `--network "{ hidden = [32] }"`: it takes the place of the file's, where single keys join it."""


def overrides_of(fields: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """`learning-rate 1e-3`, `anneal-lr false`, `network.hidden [64,64]` as a (nested) table."""
    table: dict[str, Any] = {}
    for name, text in fields:
        *tables, leaf = name.replace("-", "_").split(".")
        target = table
        for part in tables:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise ConfigError(f"--{name}: {part} was given a value of its own before")
        value = _value(text)
        target[leaf] = WholeTable(value) if isinstance(value, dict) else value
    return table


def axes_of(fields: Sequence[tuple[str, Sequence[str]]]) -> dict[str, Any]:
    """`learning-rate 1e-4 1e-3` and `gamma 0.9:0.999` as lists of values and ranges by name; keys of tables stay dotted."""
    axes: dict[str, Any] = {}
    for flag, texts in fields:
        name = flag.replace("-", "_")
        found = parse_range(texts[0], name) if len(texts) == 1 else None
        if name in axes:
            raise ConfigError(f"--{flag}: comes twice; give all of its values at once")
        axes[name] = found or [_value(text) for text in texts]
    return axes


def merged(load: Callable[[], Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Overrides of single keys of a table (`--network.hidden`) leave the table's other keys as the file has them."""
    tables = {key: value for key, value in overrides.items() if isinstance(value, dict) and not isinstance(value, WholeTable)}
    if not tables:
        return overrides
    base = load()
    joined = {
        key: {**getattr(base, key), **value} for key, value in tables.items() if isinstance(getattr(base, key, None), Mapping)
    }
    return {**overrides, **joined}


def swallowed(values: Mapping[str, Iterable[Any]]) -> str:
    """A hint where an option before the preset may have taken it for one of its values."""
    for name, given in values.items():
        for value in given:
            if isinstance(value, str) and (value.endswith(".toml") or value in preset_names()):
                return f" (did --{name.replace('_', '-')} take {shown(value)} as its value?)"
    return ""


def _value(text: str) -> Any:
    """A TOML value, or else the text itself: `64`, `1e-3`, `true`, `[64, 64]`, `{ size = 5 }`, `CartPole-v1`."""
    try:
        return tomllib.loads(f"x = {text}")["x"] if "\n" not in text else text
    except (ValueError, RecursionError):  # no TOML, or more digits or brackets than Python reads
        return text
