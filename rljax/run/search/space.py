"""Search spaces: the values of fields that sweeps and tuning try."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rljax.core.config import Config, check_known
from rljax.core.errors import ConfigError, did_you_mean, shown

SEARCHES = ("grid", "random", "sobol")

Cell = dict[str, Any]
"""Values of fields by name; keys of tables have dotted names (`network.hidden`)."""


class Range(NamedTuple):
    """Range of numbers from `low` to `high`, written `low:high`; with `log` (`low:high:log`) they are spaced logarithmically."""

    low: float
    high: float
    log: bool = False

    def __str__(self) -> str:
        return f"{float(self.low)!r}:{float(self.high)!r}" + (":log" if self.log else "")

    def at(self, share: float) -> float:
        """Return the number at a fraction, in [0, 1], of the way from `low` to `high`."""
        if self.log:
            return float(math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low))))
        return float(self.low + share * (self.high - self.low))


def parse_range(text: str, name: str) -> Range | None:
    """Parse a range, `1e-5:1e-2:log` or `0:1`; return None if the text is not a range.

    Raises:
        ConfigError: the text looks like a range but is not valid.
    """
    parts = text.split(":")
    try:
        low, high = float(parts[0]), float(parts[1])
    except (IndexError, ValueError):
        return None
    if len(parts) > 3 or (len(parts) == 3 and parts[2] != "log"):
        raise ConfigError(f"{name} = {text}: expected low:high or low:high:log")
    found = Range(low, high, len(parts) == 3)
    _check_range(name, found)
    return found


def _check_range(name: str, found: Range) -> None:
    if not (math.isfinite(found.low) and math.isfinite(found.high) and found.low < found.high):
        raise ConfigError(f"{name} = {found}: expected low < high")
    if found.log and found.low <= 0:
        raise ConfigError(f"{name} = {found}: expected low > 0 for a log range")


def apply_cell(config: Config, cell: Mapping[str, Any]) -> Config:
    """Return the configuration with a cell's values.

    Raises:
        ConfigError: an unknown field, or a value that is not allowed.
    """
    changes: dict[str, Any] = {}
    # A table as a whole comes before single keys of it, in whatever order they are given.
    for name, value in sorted(cell.items(), key=lambda item: "." in item[0]):
        table, dot, key = name.partition(".")
        if not dot:
            changes[name] = value
            continue
        check_known([table], type(config))
        base = changes.get(table, getattr(config, table))
        if base is not None and not isinstance(base, Mapping):
            raise ConfigError(f"{name}: {table} = {shown(base)} has no keys, as it is not a table")
        changes[table] = {**(base or {}), key: value}  # keys alone make a table, as in `rljax train`
    return config.replace(**changes)


def is_leaf(config: Config, name: str) -> bool:
    """Return whether a field is a number that may differ between runs of one program."""
    return any(f.name == name and f.metadata.get("leaf") for f in dataclasses.fields(config))


def check_space(config: Config, space: Mapping[str, Any], search: str = "grid") -> dict[str, tuple[Any, ...] | Range]:
    """Check a space and return it with tuples of values, or ranges.

    Raises:
        ConfigError: a field is unknown or cannot be swept, a value is not allowed or given twice, or a range is given where
            values are needed.
    """
    if search not in SEARCHES:
        raise ConfigError(f"search = {shown(search)}: {did_you_mean(str(search), SEARCHES)}")
    if not isinstance(space, Mapping) or not all(isinstance(name, str) for name in space):
        raise ConfigError(
            f"space = {shown(space)}: expected a table of values by field, such as {{'learning_rate': [1e-4, 1e-3]}}"
        )
    checked: dict[str, tuple[Any, ...] | Range] = {}
    for name, values in space.items():
        field = name.partition(".")[0]
        check_known([field], type(config))
        if field == "seed":
            raise ConfigError("seed: cannot be swept; seeds = N trains seed, seed + 1, ... of every cell")
        if field == "num_devices":
            raise ConfigError("num_devices: cannot be swept; the runs of a batch are split over all devices")
        if isinstance(values, Range):
            _check_range(name, values)
            if search == "grid":
                raise ConfigError(f"{name} = {values}: a range is for a random or sobol search; a grid needs values")
            if not is_leaf(config, name):
                raise ConfigError(
                    f"{name} = {values}: fixes the structure of the program, expected a list of values instead of a range"
                )
            ends: tuple[Any, ...] = (values.low, values.high)
        else:
            if isinstance(values, str) or not isinstance(values, (Sequence, np.ndarray)) or not len(values):
                raise ConfigError(f"{name} = {shown(values)}: expected a list of values")
            ends = tuple(x.item() if isinstance(x, np.generic) else x for x in values)
            if len({_identity(value) for value in ends}) < len(ends):
                raise ConfigError(f"{name} = {', '.join(map(str, ends))}: a value is given twice")
        for value in ends if is_leaf(config, name) else ():
            apply_cell(config, {name: value})  # other fields may be allowed only together, so each cell is checked later
        checked[name] = values if isinstance(values, Range) else ends
    return checked


def _identity(value: Any) -> Any:
    """Return what is equal for equal values: 1 and 1.0, but not True."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else repr(value)


def space_table(space: Mapping[str, tuple[Any, ...] | Range]) -> dict[str, Any]:
    """Return a space as a table for TOML."""

    def plain(value: Any) -> Any:
        return "none" if value is None else list(value) if isinstance(value, tuple) else value

    return {name: str(x) if isinstance(x, Range) else [plain(value) for value in x] for name, x in space.items()}


def parse_space(table: Mapping[str, Any]) -> dict[str, Any]:
    """Read a space from a table that `space_table` returned."""
    return {name: parse_range(x, name) if isinstance(x, str) else x for name, x in table.items()}


def check_counts(**counts: Any) -> None:
    """Check that counts are positive: `check_counts(seeds=0)` raises an error.

    Raises:
        ConfigError: one is not a whole number > 0.
    """
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigError(f"{name} = {shown(count)}: expected a whole number > 0")


def cells_of(
    space: Mapping[str, tuple[Any, ...] | Range], search: str = "grid", samples: int | None = None, seed: int = 0
) -> list[Cell]:
    """Return the points of a space to try: all points of a grid, or `samples` points of a search.

    A Sobol sequence covers the space more evenly than random points (Bergstra and Bengio, 2012).
    """
    if search == "grid":
        if samples is not None:
            raise ConfigError(f"samples = {samples}: is for a random or sobol search; a grid tries all of its cells")
        lists = [values for values in space.values() if not isinstance(values, Range)]
        return [dict(zip(space, point, strict=True)) for point in itertools.product(*lists)]
    samples = check_samples(search, samples)
    if not space:
        raise ConfigError(f"search = {shown(search)}: needs at least one field")
    shares = _points(search, len(space), samples, seed)

    def value(values: tuple[Any, ...] | Range, share: float) -> Any:
        return values.at(share) if isinstance(values, Range) else values[min(int(share * len(values)), len(values) - 1)]

    return [{name: value(values, share) for (name, values), share in zip(space.items(), row, strict=True)} for row in shares]


def check_samples(search: str, samples: Any) -> int:
    """Check and return the number of samples of a random or Sobol search.

    Raises:
        ConfigError: it is not a whole number > 0.
    """
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ConfigError(f"samples = {shown(samples)}: a {search} search needs a whole number > 0")
    return samples


def _points(search: str, dimensions: int, samples: int, seed: int) -> np.ndarray:
    if dimensions == 0:
        return np.zeros((samples, 0))
    if search == "random":
        return np.random.default_rng(seed).random((samples, dimensions))
    from scipy.stats import qmc

    # Sobol points are balanced in powers of two, and SciPy warns of other numbers: draw the next power and take the first ones.
    return qmc.Sobol(dimensions, rng=np.random.default_rng(seed)).random_base2(math.ceil(math.log2(samples)))[:samples]
