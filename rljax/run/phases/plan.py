"""Phases of a run: what they train, which earlier phases they name, and whether all of them can be trained."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from rljax.algos.common.teacher import check_teacher
from rljax.algos.imitation.distill import DistillConfig, teacher_parts
from rljax.algos.imitation.parts import imitation_parts
from rljax.core.agent import Agent, data_of, make_agent
from rljax.core.config import ALGORITHMS, Config
from rljax.core.config_files import (
    PHASES,
    config_of,
    config_table,
    find_algorithm,
    read_table,
)
from rljax.core.errors import ConfigError, did_you_mean, shown
from rljax.core.own import is_path
from rljax.run.files.checkpoint import CHECKPOINTS
from rljax.run.files.folder import CONFIG_FILE, split_path
from rljax.run.initial import check_begins

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
"""A phase's name: it is a folder, a key of TOML and a flag."""


class Phase(NamedTuple):
    """One phase of a run.

    Attributes:
        config: configuration, of any algorithm. Where it names runs (`teachers`), the names of earlier phases stand for theirs.
        init_from: name of an earlier phase, or path of a run, with whose policy this one begins; see `fit`.
        seeds: number of agents to train in one program; phases that name this one learn from the best of them.
    """

    config: Any
    init_from: str | None = None
    seeds: int | None = None


def load_phases(path: str | os.PathLike[str], /, **overrides: Any) -> dict[str, Phase]:
    """Load the phases of a TOML file, with some fields changed.

    Each table `[phases.NAME]` has the fields of a configuration, and may have `init_from` and `seeds` of `Phase`. Fields above
    the tables are those of every phase that does not say otherwise.

    Args:
        path: the file, or a preset's name.
        overrides: fields to change in all phases (`seed=3`), or in one of them (`student={"num_envs": 8}`).

    Returns:
        Phases by name, in the order of the file.

    Raises:
        ConfigError: the file cannot be read, or a phase has an unknown field or a bad value.
    """
    source = str(path)
    shared = read_table(source)
    tables = shared.pop(PHASES, None)
    if not isinstance(tables, Mapping) or not tables:
        raise ConfigError(f"{source}: no phases, expected tables such as [{PHASES}.student]")
    one = {name: change for name, change in overrides.items() if name in tables}
    all_phases = {name: change for name, change in overrides.items() if name not in tables}
    for table in (shared, *tables.values()):
        if isinstance(table, Mapping) and is_path(str(table.get("algorithm"))):
            find_algorithm(table["algorithm"])  # an import, so that its fields are known
    check_names(all_phases, tables)
    phases = {}
    for name, own in tables.items():
        where = f"{source}: {PHASES}.{name}"
        changes = one.get(name, {})
        if not isinstance(own, Mapping) or not isinstance(changes, Mapping):
            raise ConfigError(f"{where} = {shown(changes if isinstance(own, Mapping) else own)}: expected a table")
        table = {**shared, **own, **all_phases, **changes}
        how = {key: table.pop(key, None) for key in ("init_from", "seeds")}
        phases[name] = Phase(config_of(table, where), **how)
    return phases


def check_names(fields: Iterable[str], phases: Iterable[str]) -> None:
    """Raise a ConfigError if one of these fields is of no algorithm."""
    known = {field.name for config in ALGORITHMS.values() for field in dataclasses.fields(config)}
    for name in fields:
        if name not in known:
            raise ConfigError(f"unknown field or phase '{name}': {did_you_mean(name, [*phases, *known])}")


def as_phases(phases: Mapping[str, Phase | Config]) -> dict[str, Phase]:
    """Return phases by name; a configuration alone is a phase.

    Raises:
        ConfigError: they have no names.
    """
    if not isinstance(phases, Mapping):
        raise ConfigError(f"phases = {shown(phases)}: expected a dictionary of phases by name, or a TOML file")
    return {name: phase if isinstance(phase, Phase) else Phase(phase) for name, phase in phases.items()}


def check_phases(phases: Mapping[str, Phase], data: bool = True) -> None:
    """Check before any training whether every phase can be trained: names, and networks and spaces that must fit.

    Args:
        phases: phases by name.
        data: also open the datasets that phases learn from; a run that is resumed may need them no more.

    Raises:
        ConfigError: one cannot; the message names it.
    """
    if not phases:
        raise ConfigError("phases: expected at least one")
    agents: dict[str, Agent] = {}
    fields = {field.name for config in ALGORITHMS.values() for field in dataclasses.fields(config)}
    for name, phase in phases.items():
        if not isinstance(name, str) or not NAME.fullmatch(name) or name in fields or name == CHECKPOINTS:
            raise ConfigError(
                f"{PHASES}.{name}: expected a name of letters, digits and _ that begins with a letter and is no field's"
            )
        try:
            agents[name] = _check_phase(phase, agents, list(phases), data)
        except ConfigError as error:
            raise ConfigError(f"{PHASES}.{name}: {error}") from None


def _check_phase(phase: Phase, earlier: Mapping[str, Agent], names: list[str], data: bool) -> Agent:
    config, seeds = phase.config, phase.seeds
    if not isinstance(config, Config):
        raise ConfigError(f"expected a configuration or a Phase, got {shown(config)}")
    if seeds is not None and (isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1):
        raise ConfigError(f"seeds = {shown(seeds)}: expected a whole number >= 1")
    for field, value in _named_runs(phase):
        _check_reference(field, value, earlier, names)
    # What needs the runs of earlier phases is left out: they are not there yet.
    agent = make_agent(config.replace(**{field.name: field.default for field in _run_fields(config)}))
    if data and hasattr(config, "dataset"):
        data_of(agent)
    if phase.init_from is None:
        check_teacher(agent, "init_from")
    other = _earlier_phase(phase.init_from, earlier)
    if other is not None:
        check_begins(agent, earlier[other], other)
    if isinstance(config, DistillConfig):
        if not config.teachers:
            raise ConfigError("teachers = []: expected the names of earlier phases, or folders of runs")
        for teacher in filter(None, (_earlier_phase(text, earlier) for text in config.teachers)):
            teacher_parts(imitation_parts(config), earlier[teacher].config, teacher)
    return agent


def _run_fields(config: Config) -> list[dataclasses.Field[Any]]:
    """Return the fields of a configuration that name runs."""
    return [field for field in dataclasses.fields(config) if field.metadata.get("runs")]


def _named_runs(phase: Phase) -> list[tuple[str, Any]]:
    """Return `(field, name)` for each run or phase that a phase names."""
    found: list[tuple[str, Any]] = [] if phase.init_from is None else [("init_from", phase.init_from)]
    for field in _run_fields(phase.config):
        value = getattr(phase.config, field.name)
        found += [(field.name, text) for text in (value if isinstance(value, tuple) else (value,)) if text is not None]
    return found


def _earlier_phase(text: str | None, earlier: Iterable[str]) -> str | None:
    """Return the phase that a text names: alone, or before a checkpoint (`student/checkpoints/best`); None for another run."""
    first = "" if text is None else Path(text).parts[0] if Path(text).parts else ""
    return first if first in earlier else None


def _check_reference(field: str, value: Any, earlier: Mapping[str, Agent], names: list[str]) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{field} = {shown(value)}: expected the name of an earlier phase, or the folder of a run")
    other = _earlier_phase(value, earlier)
    if other is not None:
        _check_checkpoint(field, value, other, earlier[other].config)
        return
    if _earlier_phase(value, names) is not None:
        raise ConfigError(f"{field} = {shown(value)}: that phase does not come before this one (before it: {_named(earlier)})")
    if not os.path.isfile(split_path(value)[0] / CONFIG_FILE):
        raise ConfigError(
            f"{field} = {shown(value)}: neither one of the earlier phases ({_named(earlier)}) nor the folder of a run"
        )


def _check_checkpoint(field: str, value: str, phase: str, config: Config) -> None:
    """Refuse a checkpoint that the run of an earlier phase will not have."""
    inside = "/".join(Path(value).parts[1:])
    found = re.fullmatch(rf"{CHECKPOINTS}/(latest|best|(?:step_)?(\d+))", inside)
    last = config.num_iterations * config.steps_per_iteration
    if inside and found is None:
        why = f"expected {shown(phase)} alone, or {phase}/{CHECKPOINTS}/best, or {phase}/{CHECKPOINTS}/step_N"
    elif found and found[1] == "best" and config.eval_every is None:
        why = f"phase {phase} makes no evaluation, so it has no best checkpoint: give it eval_every"
    elif found and found[2] and int(found[2]) > last:
        why = f"phase {phase} ends at step {last}"
    else:
        return
    raise ConfigError(f"{field} = {shown(value)}: {why}")


def _named(earlier: Iterable[str]) -> str:
    return ", ".join(earlier) or "none"


def resolve(phase: Phase, phases: Iterable[str], folder: Path) -> Phase:
    """Return a phase with paths in place of the names of other phases, whose runs are in `folder`."""

    def path(text: str | None) -> str | None:
        return text if _earlier_phase(text, phases) is None else str(folder / str(text))

    changes = {}
    for field in _run_fields(phase.config):
        value = getattr(phase.config, field.name)
        changes[field.name] = tuple(map(path, value)) if isinstance(value, tuple) else path(value)
    return phase._replace(config=phase.config.replace(**changes), init_from=path(phase.init_from))


def phases_table(phases: Mapping[str, Phase]) -> dict[str, dict[str, Any]]:
    """Return every field of every phase as plain values, by phase."""
    return {
        name: {
            **config_table(phase.config),
            **{key: value for key, value in (("init_from", phase.init_from), ("seeds", phase.seeds)) if value is not None},
        }
        for name, phase in phases.items()
    }


def dump_phases(phases: Mapping[str, Phase]) -> str:
    """Return phases as TOML with every field written out; `load_phases` reads them back."""
    return tomli_w.dumps({PHASES: phases_table(phases)})


def same_but_runs(config: Config, other: Config) -> bool:
    """Return whether two configurations differ only in where the runs are that they name."""
    fields = {field.name for field in _run_fields(config)}
    tables = [{name: x for name, x in config_table(each).items() if name not in fields} for each in (config, other)]
    return tables[0] == tables[1]
