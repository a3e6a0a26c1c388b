"""Lines of a plot of learning curves: runs and metrics are grouped by equal configurations, with a panel per environment."""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.core.contract import is_array
from rljax.core.errors import ConfigError, RljaxWarning, check_whole, did_you_mean, shown
from rljax.core.plain import class_name
from rljax.run.files.folder import INFO_FILE, RunInfo, check_run, read_config, read_info, refuse_search
from rljax.run.view.curves import Curves, History, curves, read_metrics

MAX_LABEL = 60
"""Largest number of characters of a label made of the fields that differ; otherwise lines are named in another way."""


class Source(NamedTuple):
    """A run, or the metrics of one training.

    Attributes:
        name: name for messages: the folder, or the given label.
        label: label given by the user; None: the label is made of what distinguishes the line from others.
        config: configuration of a run; None for metrics.
        info: information of a run; None for metrics.
        metrics: names of the known metrics.
        curves: function that returns the curves of a metric.
    """

    name: str
    label: str | None
    config: Any
    info: RunInfo | None
    metrics: list[str]
    curves: Callable[[str], Curves]


class Group(NamedTuple):
    """Sources that are the seeds of one line."""

    panel: str | None
    label: str
    sources: list[Source]


def read_sources(runs: Any, steps_per_iteration: int | Mapping[str, int] | None) -> list[Source]:
    """Read the sources from the argument of `plot`.

    A folder that is not a run, or a run without records, is left out with a warning, if anything else remains.

    Raises:
        ConfigError: nothing remains, or something is neither a run nor metrics.
    """
    if isinstance(runs, Mapping) and not (runs and all(is_array(x) for x in runs.values())):
        given: list[tuple[str | None, Any]] = [(str(label), item) for label, item in runs.items()]
    elif isinstance(runs, (str, os.PathLike, Mapping)) or hasattr(runs, "metrics"):
        given = [(None, runs)]
    elif not isinstance(runs, Iterable):
        raise ConfigError(f"runs = {shown(runs)}: expected run folders, or metrics")
    else:
        given = [(None, run) for run in runs]
    per_iteration = _steps_of_lines([label for label, _ in given], steps_per_iteration)
    found: list[Source] = []
    left_out: list[str] = []
    by_iteration: list[str] = []
    for label, items in given:
        for item in items if isinstance(items, (list, tuple)) and not hasattr(items, "metrics") else [items]:
            if isinstance(item, (str, os.PathLike)):
                source, reason = _read_run(item, label)
                found += [source] if source is not None else []
                left_out += [reason] if reason else []
            else:
                found.append(_wrap_metrics(getattr(item, "metrics", item), label, per_iteration.get(label)))
                by_iteration += [] if label in per_iteration else [found[-1].name]
    if len(found) > 1 and any(source.config is None and source.label is None for source in found):
        raise ConfigError("metrics: expected a label for each of several, {label: metrics}")
    leave_out(left_out, found)
    if by_iteration and len(by_iteration) < len(found):
        raise ConfigError(
            f"{by_iteration[0]}: metrics count iterations, and other lines environment steps: give "
            "steps_per_iteration=config.steps_per_iteration"
        )
    return found


def _steps_of_lines(labels: Sequence[str | None], steps: int | Mapping[str, int] | None) -> dict[str | None, int]:
    """Return the environment steps of an iteration of the lines for which they are given, by label.

    Raises:
        ConfigError: a number is not allowed, or there is no line of a label.
    """
    if not isinstance(steps, Mapping):
        found: dict[str | None, int] = {} if steps is None else dict.fromkeys(labels, steps)
    else:
        found = {str(name): number for name, number in steps.items()}
    named = [label for label in labels if label is not None]
    for label in found:
        if label is not None and not named:
            raise ConfigError(f"steps_per_iteration = {shown(found)}: expected a number, as these metrics have no label")
        if label not in labels:
            raise ConfigError(f"steps_per_iteration: no line '{label}': {did_you_mean(str(label), named)}")
        check_whole(1, steps_per_iteration=found[label])
    return found


def leave_out(reasons: Sequence[str], rest: Sequence[Source]) -> None:
    """Warn of what a plot leaves out.

    Raises:
        ConfigError: nothing remains.
    """
    if not rest:
        raise ConfigError(reasons[0] if reasons else "nothing to plot: give at least one run folder, or metrics")
    for reason in reasons:
        warnings.warn(f"left out: {reason}", RljaxWarning, stacklevel=4)


def _read_run(run: str | os.PathLike[str], label: str | None) -> tuple[Source | None, str]:
    """Return a run's source and "", or None and the reason for leaving it out."""
    folder = Path(run)
    try:
        check_run(folder)
        if not (folder / INFO_FILE).exists():
            refuse_search(folder)
            raise ConfigError(f"{folder}: no run there (no {INFO_FILE})")
    except ConfigError as error:
        return None, str(error)
    history = read_metrics(folder)
    if not history.records:
        return None, f"{folder}: nothing recorded yet"

    def read(metric: str, history: History = history) -> Curves:
        return curves(folder, metric, history)

    known = [name for name in history.metrics if any(record.get(name) is not None for record in history.records)]
    return Source(str(run), label, read_config(folder), read_info(folder), known, read), ""


def _wrap_metrics(metrics: Any, label: str | None, steps_per_iteration: int | None) -> Source:
    """Return the source of metrics from `make_train` or `fit`, arrays `[iterations]` or `[seeds, iterations]`."""
    name = label or "metrics"
    if not isinstance(metrics, Mapping) or not metrics or not all(is_array(x) for x in metrics.values()):
        raise ConfigError(
            f"{name}: expected a run folder, or metrics: a dictionary of arrays [iterations] or [seeds, iterations]"
        )
    arrays = {metric: np.asarray(x, np.float64) for metric, x in metrics.items()}
    for metric, x in arrays.items():
        if x.ndim not in (1, 2) or not x.size:
            raise ConfigError(f"{name}: '{metric}' has shape {list(x.shape)}, expected [iterations] or [seeds, iterations]")

    def read(metric: str) -> Curves:
        if metric not in arrays:
            raise ConfigError(f"{name}: no metric '{metric}': {did_you_mean(metric, arrays)}")
        values = np.atleast_2d(arrays[metric])
        return Curves((1 + np.arange(values.shape[1])) * (steps_per_iteration or 1), values)

    return Source(name, label, None, None, [metric for metric, x in arrays.items() if np.isfinite(x).any()], read)


def group_sources(sources: Sequence[Source]) -> list[Group]:
    """Group sources into lines: runs that differ only in `seed`, and sources with the same label, by environment."""
    environments = list(dict.fromkeys(format_value(s.config.env) for s in sources if s.config is not None))
    # The environment of metrics is unknown: if all runs have the same one, the metrics go into its panel.
    panels: list[str | None] = [*environments]
    unknown = environments[0] if len(environments) == 1 else None
    groups: dict[tuple[str | None, str], list[Source]] = {}
    for source in sources:
        panel = unknown if source.config is None else format_value(source.config.env)
        groups.setdefault((panel, source.label if source.label is not None else _identity(source)), []).append(source)
    panels += [None] if any(panel is None for panel, _ in groups) else []
    ordered = [(panel, sources) for wanted in panels for (panel, _), sources in groups.items() if panel == wanted]
    by_panel = [[sources for panel, sources in ordered if panel == wanted] for wanted in panels]
    labels = [label for panel_labels in _labels(by_panel) for label in panel_labels]
    result = [Group(panel, label, sources) for (panel, sources), label in zip(ordered, labels, strict=True)]
    for group in result:
        _check_seeds(group.sources)
    return result


def _identity(source: Source) -> str:
    if source.config is None:
        return source.name
    # A fork continues from what another run learned, so it is not another seed of the same experiment.
    same = {name: value for name, value in _fields(source.config).items() if name != "seed"}
    assert source.info is not None
    return repr((sorted(same.items()), source.info.forked_from))


def _check_seeds(group: list[Source]) -> None:
    """Refuse a group with the same seed twice: copies of a run would make the interval too narrow."""
    owner: dict[tuple[str, int], str] = {}
    for source in group:
        if source.info is None:
            continue
        for seed in range(source.config.seed, source.config.seed + (source.info.seeds or 1)):
            same = (_identity(source), seed)
            if same in owner:
                raise ConfigError(
                    f"{owner[same]} and {source.name} are the same configuration with the same seed {seed}: plot one of them"
                )
            owner[same] = source.name


def _fields(config: Any) -> dict[str, Any]:
    """Return all fields of a configuration; keys of tables have dotted names (`network.hidden`)."""
    fields = {"algorithm": config.algorithm}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Mapping):
            fields |= {f"{field.name}.{key}": entry for key, entry in value.items()}
        else:
            fields[field.name] = value
    return fields


def _labels(panels: list[list[list[Source]]]) -> list[list[str]]:
    """Return labels that distinguish the groups of each panel, made in the same way in all panels.

    They are made of the fields that differ, if these are few; else of the algorithm, if each has one line; else of the names of
    the folders.
    """
    if any(source.label is not None or source.config is None for groups in panels for group in groups for source in group):
        return [[group[0].label or group[0].name for group in groups] for groups in panels]
    fields = [[_fields(group[0].config) for group in groups] for groups in panels]
    differing: dict[str, None] = {}
    for of_panel in fields:
        names = dict.fromkeys(name for f in of_panel for name in f if name != "seed")
        differing |= dict.fromkeys(n for n in names if len({repr(f.get(n, "default")) for f in of_panel}) > 1)
    by_field = [
        [", ".join(f"{name} = {format_value(f.get(name, 'default'))}" for name in differing) for f in of] for of in fields
    ]
    if len(differing) <= 3 and _distinct(by_field) and max(len(x) for labels in by_field for x in labels) <= MAX_LABEL:
        return by_field if differing or len(panels) == 1 else [[f["algorithm"].upper() for f in of] for of in fields]
    by_algorithm = [[f["algorithm"].upper() for f in of] for of in fields]
    if len(panels) > 1 and _distinct(by_algorithm):
        return by_algorithm
    by_folder = [[Path(group[0].name).resolve().name for group in groups] for groups in panels]
    every = [label for labels in by_folder for label in labels]
    return by_folder if len(set(every)) == len(every) else [[group[0].name for group in groups] for groups in panels]


def _distinct(labels: Iterable[Sequence[str]]) -> bool:
    return all(len(set(of_panel)) == len(of_panel) for of_panel in labels)


def format_value(value: Any) -> str:
    """Format a field's value for people."""
    if isinstance(value, str):
        return class_name(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else json.dumps(value) if isinstance(value, (bool, int, tuple)) else str(value)
