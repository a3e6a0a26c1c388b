"""Records of one experiment that were measured apart, each with seeds of its own, as one record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.core.config import ALGORITHMS
from rljax.core.config_files import config_table, load_config
from rljax.core.errors import ConfigError, shown
from rljax.core.sealed import Field, first_fault, is_number, list_of, number, table_of, whole
from rljax.run.reproduce.experiments import find_experiment
from rljax.run.reproduce.report import summaries, to_plain, write_record

Record = dict[str, Any]

_TEXT = Field("a string", lambda x: isinstance(x, str))
_TABLE = table_of(lambda _: True, "entries")
_NUMBERS = table_of(is_number, "numbers")
_LIST = list_of(lambda _: True, "entries")

OF_PART = {
    "seeds": Field("seeds, at least one", lambda x: bool(x) and list_of(whole().test, "").test(x)),
    "command": _TEXT,
    "note": _TEXT,
    "date": _TEXT,
    "commit": _TEXT.optional,
    "versions": _TABLE,
    "hardware": _TABLE,
    "load": _LIST,
    "seconds": Field("seconds to compile and to run", lambda x: _NUMBERS.test(x) and set(x) == {"compile", "run"}),
    "facts": _TABLE,
}
"""Entries that a merged record keeps of each of its parts, in `parts`."""

FIELDS = {
    "name": _TEXT,
    "measures": _TEXT,
    "budget": number(),
    "configs": table_of(
        lambda x: isinstance(x, dict) and x.get("algorithm") in ALGORITHMS, f"configurations of {', '.join(sorted(ALGORITHMS))}"
    ),
    "raw": table_of(lambda x: isinstance(x, list), "lists"),
    "thresholds": _NUMBERS,
    "summary": _TABLE,
    **OF_PART,
    "parts": Field(
        "a list of parts", lambda x: bool(x) and list_of(lambda part: _fault_of_part(part) is None, "").test(x), False
    ),
}
"""Entries of a record; see `rljax.run.reproduce.report`."""


def merge_records(name: str, sources: Sequence[str | Path], folder: str | Path = "results") -> Record:
    """Merge the records of one experiment, and write `folder/NAME.json`.

    So an experiment that takes hours can be measured a seed at a time, or on several machines. What an experiment makes once for
    all of its seeds, such as recorded games and a clone of their player, each part has made for itself. The merged record has
    the values of all seeds, and a summary of them. `date` is the first one, `seconds` are sums, and `command` has all commands;
    `commit`, `versions`, `hardware`, `load` and `facts` are those of the part with the first seed. `parts` has these entries of
    each part. A merged record can be merged with others.

    Args:
        name: name of the experiment.
        sources: folders that have a record `NAME.json`; `folder` may be one of them.
        folder: folder for the merged record; one that is there is replaced.

    Returns:
        The merged record.

    Raises:
        ConfigError: there is no such experiment, a record is missing or damaged, or two have a seed in common, or settings or
            measurements that differ; nothing was written.
    """
    find_experiment(name)
    if len(sources) < 2:
        raise ConfigError(f"merge = {list(map(str, sources))}: expected the folders of two records or more")
    paths = [Path(source) / f"{name}.json" for source in sources]
    records = [_read(path, name) for path in paths]
    for path, record in zip(paths[1:], records[1:], strict=True):
        for what, first, other in _differences(records[0], record):
            raise ConfigError(f"{path}: {what} is {shown(other)}, but {shown(first)} in {paths[0]}; such records are not merged")
    seeds = [seed for record in records for seed in record["seeds"]]
    if common := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
        raise ConfigError(f"seeds = {common}: are in several of the records; expected each seed once")
    merged = _merged(sorted(records, key=lambda record: min(record["seeds"])))
    write_record(Path(folder) / f"{name}.json", merged)
    return merged


def _read(path: Path, name: str) -> Record:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}; expected a record of `rljax reproduce`") from None
    except ValueError:
        record = None
    fault = _fault(record)
    if fault is not None:
        raise ConfigError(f"{path}: is no whole record of `rljax reproduce`: {fault}")
    if record["name"] != name:
        raise ConfigError(f"{path}: is a record of {shown(record['name'])}, not of {shown(name)}")
    if not record["raw"]:
        raise ConfigError(f"{path}: measures nothing of single seeds, so there is nothing to merge")
    return record


def _fault(record: Any) -> str | None:
    """Return what is wrong with a record, or None."""
    if not isinstance(record, dict):
        return "it is not a table"
    fault = first_fault(record, FIELDS)
    if fault is not None:
        return fault
    seeds = record["seeds"]
    if sorted(seed for part in record.get("parts", [record]) for seed in part["seeds"]) != sorted(seeds):
        return f"seeds = {shown(seeds)}: its parts have others"
    short = next((name for name, rows in record["raw"].items() if len(rows) != len(seeds)), None)
    return None if short is None else f"{shown(short)} has no value for each of {len(seeds)} seeds"


def _fault_of_part(part: Any) -> str | None:
    return first_fault(part, OF_PART) if isinstance(part, dict) else "it is not a table"


def _shape(rows: Any) -> list[int] | str:
    """Return the shape of a measure for each seed, or what is wrong with it."""
    try:
        return list(np.array(rows, np.float64).shape[1:])
    except (ValueError, TypeError):
        return "values that are no numbers, or rows of several lengths"


def _differences(first: Record, other: Record) -> Iterator[tuple[str, Any, Any]]:
    """Yield what must be the same in two records and is not, with both values."""
    if first["budget"] != other["budget"]:
        yield "budget", first["budget"], other["budget"]
    for what in ("configs", "raw"):
        if sorted(first[what]) != sorted(other[what]):
            yield f"the list of {what}", sorted(first[what]), sorted(other[what])
    for arm, config in first["configs"].items():
        usual = _defaults(config)
        one, two = usual | config, usual | other["configs"][arm]
        for field in sorted((set(one) | set(two)) - {"seed"}):
            if one.get(field) != two.get(field):
                yield f"{field} of {shown(arm)}", one.get(field), two.get(field)
    for measure, rows in first["raw"].items():
        one, two = _shape(rows), _shape(other["raw"][measure])
        if one != two or isinstance(one, str):
            yield f"{shown(measure)}: the shape for each seed", one, two
    if first["thresholds"] != other["thresholds"]:
        yield "thresholds", first["thresholds"], other["thresholds"]


def _defaults(config: Mapping[str, Any]) -> Record:
    """Return the defaults of a recorded configuration: fields that came after a record had these."""
    return to_plain(config_table(load_config(config["algorithm"])))


def _merged(records: Sequence[Record]) -> Record:
    """Return one record of several, the one with the first seed first."""
    parts: list[Record] = [part for record in records for part in record.get("parts", [{name: record[name] for name in OF_PART}])]
    parts.sort(key=lambda part: min(part["seeds"]))
    order = np.argsort([seed for record in records for seed in record["seeds"]])

    def rows(values: Sequence[Sequence[Any]]) -> list[Any]:
        together = [row for of_record in values for row in of_record]
        return [together[i] for i in order]

    first, raw = records[0], {name: rows([record["raw"][name] for record in records]) for name in records[0]["raw"]}
    return {
        **{name: value for name, value in first.items() if name != "kept"},  # the notes of the parts say so
        "command": " && ".join(part["command"] for part in parts),
        "note": " ".join(f"Seeds {', '.join(map(str, part['seeds']))}: {part['note']}" for part in parts if part["note"]),
        "date": min(part["date"] for part in parts),
        "seconds": {name: round(sum(part["seconds"][name] for part in parts), 1) for name in first["seconds"]},
        "seeds": rows([record["seeds"] for record in records]),
        "raw": raw,
        "summary": summaries(raw, first["thresholds"]),
        "parts": parts,
    }
