"""Read the changes of configuration fields from the command line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rljax.core.errors import ConfigError, shown

BARE_POINT = re.compile(r"[+-]?([0-9]+\.|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
"""Numbers without a digit before or after the point."""


class WholeTable(dict[str, Any]):
    """Table given as a whole, `--network "{ hidden = [32] }"`: it replaces the file's table, while single keys are merged."""


def overrides_of(fields: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return flags such as `learning-rate 1e-3`, `anneal-lr false`, `network.hidden [64,64]` as a (nested) table."""
    table: dict[str, Any] = {}
    for name, text in fields:
        *tables, leaf = name.replace("-", "_").split(".")
        target = table
        for part in tables:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise ConfigError(f"--{name}: {part} already has a value of its own; give its keys or the whole table, not both")
        value = _value(text)
        keys = target.get(leaf)
        if isinstance(keys, dict) and not isinstance(keys, WholeTable):  # single keys that came before the table
            if not isinstance(value, dict):
                raise ConfigError(f"--{name}: {leaf} already has keys of its own; give its keys or the whole table, not both")
            value = _with_keys(value, keys)
        target[leaf] = WholeTable(value) if isinstance(value, dict) else value
    return table


def _with_keys(table: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with some of its keys replaced, at any depth."""
    joined = [key for key, value in keys.items() if isinstance(value, dict) and isinstance(table.get(key), dict)]
    tables = {key: _with_keys(table[key], keys[key]) for key in joined if not isinstance(keys[key], WholeTable)}
    return {**table, **keys, **tables}


def axes_of(fields: Sequence[tuple[str, Sequence[str]]]) -> dict[str, Any]:
    """Return flags such as `learning-rate 1e-4 1e-3` and `gamma 0.9:0.999` as value lists and ranges by name.

    Keys of tables stay dotted.
    """
    from rljax.run.search.space import parse_range  # It imports JAX, which `rljax --help` does without.

    axes: dict[str, Any] = {}
    for flag, texts in fields:
        name = flag.replace("-", "_")
        found = parse_range(texts[0], name) if len(texts) == 1 else None
        if name in axes:
            raise ConfigError(f"--{flag}: is given twice; give all of its values at once")
        axes[name] = found or [_value(text) for text in texts]
    return axes


def merge_tables(load: Callable[[], Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Complete overrides of single keys of a table (`--network.hidden`) with the table's other keys from the file."""
    tables = {key: value for key, value in overrides.items() if isinstance(value, dict) and not isinstance(value, WholeTable)}
    if not tables:
        return overrides
    base = load()
    joined = {
        key: {**getattr(base, key), **value} for key, value in tables.items() if isinstance(getattr(base, key, None), Mapping)
    }
    return {**overrides, **joined}


def swallowed_hint(values: Mapping[str, Iterable[Any]]) -> str:
    """Return a hint if an option may have taken the preset after it as one of its values, else ""."""
    from rljax.core.config_files import preset_names

    for name, given in values.items():
        for value in given:
            if isinstance(value, str) and (value.endswith(".toml") or value in preset_names()):
                return f" (did --{name.replace('_', '-')} take {shown(value)} as its value?)"
    return ""


def _value(text: str) -> Any:
    """Read a TOML value (`64`, `1e-3`, `true`, `[64, 64]`, `{ size = 5 }`), or `.9` or `5.`, which TOML does not take.

    Any other text is returned as it is (`CartPole-v1`).
    """
    try:
        return tomllib.loads(f"x = {text}")["x"] if "\n" not in text else text
    except (ValueError, RecursionError):  # not TOML, or more digits or brackets than Python reads
        return float(text) if BARE_POINT.fullmatch(text) else text
