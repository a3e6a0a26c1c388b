"""Configurations in TOML: presets, files, and texts of a configuration."""

from __future__ import annotations

import dataclasses
import importlib.resources
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from rljax.core.config import ALGORITHMS, Config, algorithm_path
from rljax.core.errors import ConfigError, did_you_mean, shortened, shown
from rljax.core.own import ADDRESSES, import_own, is_path
from rljax.core.plain import OBJECT_PREFIX, class_name, is_object, to_plain

PHASES = "phases"
"""Table of a TOML file that has a table for each phase of a run."""

MAX_FILE_BYTES = 1_000_000
"""Largest size of a configuration file."""


def preset_names() -> list[str]:
    """Return the names of the presets that ship with rljax, sorted."""
    folder = importlib.resources.files("rljax.configs")
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))


def load_config(preset_or_path: str | Path, /, **overrides: Any) -> Any:
    """Load a configuration from a preset's name or a TOML file's path, with some fields changed.

    The file names its algorithm (`algorithm = "ppo"`); its other keys are the fields of that algorithm's configuration. The name
    of an algorithm loads its defaults: `load_config("ppo", env="Acrobot-v1")`. An algorithm of your own is "module:Class", whose
    module is imported.

    Raises:
        ConfigError: an unknown preset, algorithm or field (the closest match is named), a bad value, or a TOML syntax error
            (with file, line and column).
    """
    source = str(preset_or_path)
    if names_algorithm(source):
        return find_algorithm(source)(**overrides)
    table = read_table(source)
    if "phases" in table and "algorithm" not in table:
        raise ConfigError(f"{source}: a run of several phases, which only rljax train and rljax.fit_phases know")
    return config_of(table, source, **overrides)


def names_algorithm(source: str) -> bool:
    """Return whether a text names an algorithm, with its defaults, rather than a preset or a file."""
    own = is_path(source) and not source.startswith(ADDRESSES) and not _names_file(source)
    return own or (source in ALGORITHMS and source not in preset_names())


def find_algorithm(name: Any) -> type[Config]:
    """Return the configuration class of an algorithm: one by its name, or one of the user's own by "module:Class".

    Raises:
        ConfigError: there is none; the message names the closest.
    """
    if isinstance(name, str) and is_path(name):
        expected = 'a class under @algorithm("name")'
        found: type[Config] = import_own("algorithm", name, _is_algorithm, "algorithm", expected)
        return found
    if not isinstance(name, str) or name not in ALGORITHMS:
        own = 'your own is found by algorithm = "module:Class", or in Python once its module is imported'
        raise ConfigError(f"algorithm = {shown(name)}: {did_you_mean(str(name), ALGORITHMS)}; {own}")
    return ALGORITHMS[name]


def _is_algorithm(x: Any) -> bool:
    return isinstance(x, type) and issubclass(x, Config) and "algorithm" in vars(x)


def names_own(source: str) -> bool:
    """Return whether a text is "module:Class", or names a file with an algorithm of the user's own; nothing is imported."""
    if names_algorithm(source):
        return is_path(source)
    try:
        table = read_table(source)
    except ConfigError:  # reported by who reads it to train
        return False
    phases = table.get(PHASES, {})
    tables = [table, *(phases.values() if isinstance(phases, dict) else ())]
    return any(is_path(str(each.get("algorithm"))) for each in tables if isinstance(each, dict))


def holds_phases(source: str) -> bool:
    """Return whether a preset or a TOML file describes a run of phases."""
    return not names_algorithm(source) and PHASES in (table := read_table(source)) and "algorithm" not in table


def read_table(preset_or_path: str | Path) -> dict[str, Any]:
    """Read the TOML table of a preset or a file.

    Raises:
        ConfigError: an unknown preset, a file that cannot be read, or a syntax error.
    """
    source = str(preset_or_path)
    return parse_toml(_read_text(source), source)


def config_of(table: Mapping[str, Any], source: str, /, **overrides: Any) -> Any:
    """Return the configuration that a table describes: its `algorithm`, and fields of that, some of them changed.

    Raises:
        ConfigError: an unknown algorithm or field, or a bad value; the message begins with `source`.
    """
    if "algorithm" not in table:
        raise ConfigError(f"{source}: no 'algorithm' key, expected for example algorithm = \"ppo\"")
    fields = {key: value for key, value in table.items() if key != "algorithm"}
    try:
        return find_algorithm(table["algorithm"])(**{**fields, **overrides})
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Parse a TOML text into a table.

    Raises:
        ConfigError: a syntax error (with line and column), or values that Python's reader cannot read.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{source}: tables or lists are nested too deep") from None
    except ValueError as error:  # a TOMLDecodeError, or a whole number of thousands of digits
        raise ConfigError(f"{source}: {error}") from None


def _names_file(source: str) -> bool:
    return source.endswith(".toml") or os.path.isfile(source)


def _read_text(source: str) -> str:
    if _names_file(source):
        try:
            if os.path.getsize(source) <= MAX_FILE_BYTES:
                return Path(source).read_text(encoding="utf-8")
            reason: str | None = f"it has more than {MAX_FILE_BYTES:,} bytes"
        except OSError as error:
            reason = error.strerror
        except ValueError:
            reason = "not a UTF-8 text file"
        raise ConfigError(f"{source}: cannot read the configuration: {reason}")
    if source not in preset_names():
        if os.path.isdir(source):
            raise ConfigError(
                f"{shortened(source)}: a folder, expected a preset, an algorithm or a file; --resume RUN goes on with a run, and "
                "RUN/config.toml is its configuration"
            )
        known = [*preset_names(), *ALGORITHMS]
        others = 'a file\'s name ends in .toml; an algorithm of your own is "module:Class"'
        raise ConfigError(f"unknown preset '{shortened(source)}': {did_you_mean(source, known, 'rljax list')} ({others})")
    return preset_text(source)


def preset_text(name: str) -> str:
    """Return the text of a preset's TOML file."""
    return (importlib.resources.files("rljax.configs") / f"{name}.toml").read_text(encoding="utf-8")


def dump_config(config: Config) -> str:
    """Return the configuration as TOML with every field written out; `load_config` reads it back to an equal one.

    TOML has no null, so None is written as "none". Objects (an environment, a network module) are written by name.
    """
    return tomli_w.dumps(config_table(config))


def config_table(config: Config) -> dict[str, Any]:
    """Return the algorithm and every field of a configuration as plain values that TOML and JSON can hold."""
    fields = {f.name: to_plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    return {"algorithm": algorithm_path(type(config)), **fields}


def comparable_table(config: Config) -> dict[str, Any]:
    """Return `config_table` with values that are equal where they mean the same."""
    return {name: comparable(name, value) for name, value in config_table(config).items()}


def comparable(name: str, value: Any) -> Any:
    """Return a plain value of a field so that it equals others that mean the same: an object by the name of its class alone (a
    script may have been renamed since), and the encoder of a network in today's form, which was `type = "cnn"`.
    """
    if is_object(value):
        return OBJECT_PREFIX + class_name(value)
    if name == "network" and isinstance(value, Mapping) and value.get("type") == "cnn":
        return {key: x for key, x in value.items() if key != "type"} | {"encoder": "cnn"}
    return value
