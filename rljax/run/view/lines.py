"""What a plot of learning curves draws: runs and metrics, grouped into lines of equal configurations, in a panel for each
environment."""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.core.config import class_name
from rljax.core.contract import is_array
from rljax.core.errors import ConfigError, RljaxWarning, did_you_mean
from rljax.run.files.folder import INFO_FILE, RunInfo, check_run, read_config, read_info
from rljax.run.view.curves import Curves, History, curves, read_metrics

MAX_LABEL = 60
"""Characters of a label; where the fields that differ make longer ones, lines are called otherwise."""


class Source(NamedTuple):
    """What one run, or the metrics of one training, says.

    Attributes:
        name: for messages: the folder, or the label that was given.
        label: the line's, where the user gave it; None: what sets it apart from the others.
        config: of a run; None of metrics.
        info: of a run; None of metrics.
        metrics: the names of what is known.
        curves: of one of them.
    """

    name: str
    label: str | None
    config: Any
    info: RunInfo | None
    metrics: list[str]
    curves: Callable[[str], Curves]


class Group(NamedTuple):
    """Sources that are seeds of one line."""

    panel: str | None
    label: str
    sources: list[Source]


def sources_of(runs: Any, steps_per_iteration: int | Mapping[str, int] | None) -> list[Source]:
    """Everything that `plot` takes, read. A folder that is no run, and a run that has recorded nothing, are left out with a
    warning where something else is left.

    Raises:
        ConfigError: nothing is left, or something is neither a run nor metrics.
    """
    if isinstance(runs, Mapping) and not (runs and all(is_array(x) for x in runs.values())):
        given: list[tuple[str | None, Any]] = [(str(label), item) for label, item in runs.items()]
    elif isinstance(runs, (str, os.PathLike, Mapping)) or hasattr(runs, "metrics"):
        given = [(None, runs)]
    else:
        given = [(None, run) for run in runs]
    found: list[Source] = []
    left_out: list[str] = []
    for label, items in given:
        per_iteration = steps_per_iteration
        if isinstance(per_iteration, Mapping):
            per_iteration = per_iteration.get(label or "")
        for item in items if isinstance(items, (list, tuple)) and not hasattr(items, "metrics") else [items]:
            if isinstance(item, (str, os.PathLike)):
                source, reason = _of_run(item, label)
                found += [source] if source is not None else []
                left_out += [reason] if reason else []
            else:
                found.append(_of_metrics(getattr(item, "metrics", item), label, per_iteration))
    if len(found) > 1 and any(source.config is None and source.label is None for source in found):
        raise ConfigError("metrics: expected a label for each of several, {label: metrics}")
    if not found:
        raise ConfigError(left_out[0] if left_out else "nothing to plot: give at least one run folder, or metrics")
    for reason in left_out:
        warnings.warn(f"left out: {reason}", RljaxWarning, stacklevel=3)
    by_iteration = [source.name for source in found if source.config is None and steps_per_iteration is None]
    if by_iteration and len(by_iteration) < len(found):
        raise ConfigError(
            f"{by_iteration[0]}: metrics count iterations, and runs count environment steps: give "
            "steps_per_iteration=config.steps_per_iteration"
        )
    return found


def _of_run(run: str | os.PathLike[str], label: str | None) -> tuple[Source | None, str]:
    """A run's source, or why there is none."""
    folder = Path(run)
    try:
        check_run(folder)
        if not (folder / INFO_FILE).exists():
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


def _of_metrics(metrics: Any, label: str | None, steps_per_iteration: int | None) -> Source:
    """The source of what `make_train` or `fit` returned, arrays `[iterations]` or `[seeds, iterations]`."""
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


def grouped(sources: Sequence[Source]) -> list[Group]:
    """The lines: runs that are equal but for `seed`, and what was given one label, in the panel of their environment."""
    environments = list(dict.fromkeys(shown(s.config.env) for s in sources if s.config is not None))
    # Of metrics nobody knows the environment: they are beside the runs where these have one.
    panels: list[str | None] = [*environments]
    unknown = environments[0] if len(environments) == 1 else None
    groups: dict[tuple[str | None, str], list[Source]] = {}
    for source in sources:
        panel = unknown if source.config is None else shown(source.config.env)
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
    # A fork goes on from what another run learned, so it is no further seed of the same experiment.
    same = {name: value for name, value in _fields(source.config).items() if name != "seed"}
    assert source.info is not None
    return repr((sorted(same.items()), source.info.forked_from))


def _check_seeds(group: list[Source]) -> None:
    """The same seed twice is the same run twice: its copies would make the interval narrower than it is."""
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
    """All fields of a configuration, those of tables by dotted names (`network.hidden`)."""
    fields = {"algorithm": config.algorithm}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Mapping):
            fields |= {f"{field.name}.{key}": entry for key, entry in value.items()}
        else:
            fields[field.name] = value
    return fields


def _labels(panels: list[list[list[Source]]]) -> list[list[str]]:
    """What sets the groups of each panel apart, said in one way in all panels, so that like lines have like names: the fields
    that differ where they are few, else the algorithm where there is one line of each, else the names of their folders."""
    if any(source.label is not None or source.config is None for groups in panels for group in groups for source in group):
        return [[group[0].label or group[0].name for group in groups] for groups in panels]
    fields = [[_fields(group[0].config) for group in groups] for groups in panels]
    differing: dict[str, None] = {}
    for of_panel in fields:
        names = dict.fromkeys(name for f in of_panel for name in f if name != "seed")
        differing |= dict.fromkeys(n for n in names if len({repr(f.get(n, "default")) for f in of_panel}) > 1)
    by_field = [[", ".join(f"{name} = {shown(f.get(name, 'default'))}" for name in differing) for f in of] for of in fields]
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


def shown(value: Any) -> str:
    """A field's value, as a person reads it."""
    if isinstance(value, str):
        return class_name(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else json.dumps(value) if isinstance(value, (bool, int, tuple)) else str(value)
