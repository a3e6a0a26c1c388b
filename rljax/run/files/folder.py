"""Run folders: what a training run leaves behind, and reading it back.

runs/NAME/config.toml  run.json  metrics.jsonl  checkpoints/{step_N, latest, best}
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rljax.core.agent import Agent, make_agent
from rljax.core.config import Config, dump_config, load_config
from rljax.core.errors import ConfigError, RljaxWarning, shown
from rljax.run.files.checkpoint import (
    CHECKPOINTS,
    Checkpoint,
    CheckpointError,
    as_step,
    checkpoint_steps,
    key_impls,
    link,
    named_arrays,
    read_checkpoint,
    state_from,
    write_checkpoint,
)
from rljax.run.files.places import made_aside
from rljax.run.files.records import JsonLines
from rljax.run.files.scores import best_seed
from rljax.run.files.sealed import FORMAT, INFO_FIELDS, DamagedError, OtherFormatError, read_sealed, seal
from rljax.version import __version__

CONFIG_FILE = "config.toml"
INFO_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
CHECKSUM_LINE = "# checksum of what follows (CRC-32): "


class Run(NamedTuple):
    """A run read back from its folder: its configuration, the agent's whole state and the environment steps taken."""

    config: Any
    state: Any
    step: int


class RunInfo(NamedTuple):
    """What run.json says, beside the configuration.

    Attributes:
        seeds: how many seeds the run trains in one program; None for one, whose state has no axis for it.
        key_impl: implementation of its random keys.
        first_step: environment steps at which the run starts: 0, or those of the checkpoint it was forked from.
        step_offset: environment steps = step_offset + iterations * steps per iteration; 0 unless a fork changed the latter.
        forked_from: `{"checkpoint": path, "step": n}`, or None.
        own: what is the user's own in the agent that trains (see `own_in`).
    """

    seeds: int | None = None
    key_impl: str = "threefry2x32"
    first_step: int = 0
    step_offset: int = 0
    forked_from: dict[str, Any] | None = None
    own: str = ""


def last_iteration(config: Config, info: RunInfo) -> int:
    """Iterations behind a run at the end of its budget, counted from its own beginning; the budget is never exceeded."""
    return int((config.total_timesteps - info.step_offset) // config.steps_per_iteration)


def check_free(path: Path) -> None:
    """Raise a ConfigError where there is something at `path` that a new run would write into."""
    try:
        taken = os.path.lexists(path) and (not path.is_dir() or any(path.iterdir()))
    except OSError as error:
        raise ConfigError(f"run folder {path}: cannot be made: {error.strerror}") from None
    if taken:
        raise ConfigError(f"run folder {path} exists already: choose another with --run-dir, resume it, or delete it first")


def create_run_dir(
    path: Path, config: Config, info: RunInfo, state: Any, meta: dict[str, Any], records: Sequence[dict[str, Any]] = ()
) -> None:
    """Make the folder of a new run, its first checkpoint and its records in it: whatever is there can resume.

    Raises:
        ConfigError: there is something at `path` already (nothing is touched), or it cannot be made.
    """
    check_free(path)
    try:
        with made_aside(path) as aside:
            (aside / CHECKPOINTS).mkdir()
            (aside / CONFIG_FILE).write_text(_with_checksum(dump_config(config)), encoding="utf-8")
            _write_info(aside, info)
            meta = {**meta, "keys": key_impls(state)}
            write_checkpoint(aside / CHECKPOINTS, info.first_step, named_arrays(state), meta)
            link(aside / CHECKPOINTS, "latest", info.first_step)
            if meta["best_step"] == info.first_step:
                link(aside / CHECKPOINTS, "best", info.first_step)
            if records:
                with contextlib.closing(JsonLines(aside / METRICS_FILE)) as file:
                    for record in records:
                        file.write(record)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            check_free(path)
        raise ConfigError(f"run folder {path}: cannot be made: {error.strerror}") from None


def replace_config(folder: Path, config: Config) -> None:
    """Write another configuration into a run folder; a reader sees the old one or the new one."""
    aside = folder / f".{CONFIG_FILE}"
    try:
        aside.write_text(_with_checksum(dump_config(config)), encoding="utf-8")
        aside.rename(folder / CONFIG_FILE)
    except OSError as error:
        raise ConfigError(f"run folder {folder} cannot be written: {error.strerror}") from None


def check_run(folder: Path) -> None:
    """Raise a ConfigError where there is no run at `folder`."""
    if not os.path.isfile(folder / CONFIG_FILE):
        raise ConfigError(f"{folder}: no run there (no {CONFIG_FILE}); a run folder is what `rljax train` makes")


def read_config(folder: Path, /, **overrides: Any) -> Any:
    """The frozen configuration of a run, with fields of it replaced.

    Raises:
        ConfigError: no run there, its configuration is not as it was written, or not one that this version reads.
    """
    check_run(folder)
    file = folder / CONFIG_FILE
    try:
        first, _, text = file.read_bytes().partition(b"\n")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    if first.startswith(CHECKSUM_LINE.encode()) and first != _checksum_line(text).encode():
        raise ConfigError(
            f"{file}: is not as it was written (its checksum does not match); to use it as it is, remove its first line"
        )
    try:
        return load_config(file, **overrides)
    except ConfigError as error:
        made_by = _made_by(folder)
        raise ConfigError(f"{error}{'' if made_by is None else f' (the run was made by rljax {made_by})'}") from None


def _with_checksum(text: str) -> str:
    """A configuration as a run keeps it. The checksum comes first, so that a file that was cut off has it, too."""
    return f"{_checksum_line(text.encode())}\n{text}"


def _checksum_line(text: bytes) -> str:
    return f"{CHECKSUM_LINE}{zlib.crc32(text):08x}"


def read_info(folder: Path) -> RunInfo:
    """What run.json says.

    Raises:
        ConfigError: it is missing, damaged or of a format that this version does not read.
    """
    file = folder / INFO_FILE
    try:
        table = read_sealed(file, INFO_FIELDS)
    except FileNotFoundError:
        raise ConfigError(f"{folder}: no run that this version of rljax can read (no {INFO_FILE})") from None
    except DamagedError as error:
        raise ConfigError(f"{file} is damaged: {error}") from None
    except OtherFormatError as error:
        raise ConfigError(
            f"{file} has format {error.format} (rljax {error.version}): this version of rljax reads format 1"
        ) from None
    table["own"] = table["own"] or ""  # which runs before it was noted do not have
    return RunInfo(**{name: table[name] for name in RunInfo._fields})


def load_run(
    path: str | os.PathLike[str], *, checkpoint: str | int = "latest", seed_index: int | str | None = None, **overrides: Any
) -> Run:
    """Read a run folder: `Run(config, state, step)` of one of its checkpoints.

    Args:
        path: the run's folder, or one of its checkpoints (`runs/a/checkpoints/best`).
        checkpoint: "latest", "best" or a number of steps. A damaged latest one is passed over, with a warning, for the one
            before it.
        seed_index: for a run of several seeds, whose state has a leading axis `[seeds]`: the number of the one to return
            without that axis, or "best", the one with the highest score; None returns all.
        overrides: fields of the configuration to replace: an environment or network that was given as an object is written
            to the folder by name only, so give it again here (`env=MyEnv()`).

    Raises:
        ConfigError: no run or no checkpoint there, it is damaged, or it does not fit the configuration.
    """
    folder, checkpoint = split_path(path, checkpoint)
    config = read_config(folder, **overrides)
    info = read_info(folder)
    saved = load_checkpoint(folder, checkpoint)
    # What lies on how many devices matters to those who train on: the run may be looked at anywhere.
    state = state_of(make_agent(config.replace(num_devices=1)), info, saved, folder)
    if isinstance(seed_index, int) and info.seeds is None:
        raise ConfigError(f"seed_index = {seed_index}: run {folder} has a single seed")
    if seed_index is not None and info.seeds is not None:
        index = _seed_index(seed_index, info.seeds, saved.meta)
        state = jax.tree.map(lambda x: x[index], state)
    return Run(config, state, saved.meta["step"])


def state_of(agent: Agent, info: RunInfo, saved: Checkpoint, source: object) -> Any:
    """The state in a checkpoint of a run of `agent`.

    Raises:
        CheckpointError: it is of another number of seeds, or does not fit the configuration.
    """
    check_seeds(info, saved, agent.config, source)
    return state_from(saved.arrays, example_state(agent, info.seeds, info.key_impl), saved.meta["keys"] or {}, source)


def check_seeds(info: RunInfo, saved: Checkpoint, config: Config, source: object) -> None:
    """Raise a CheckpointError where a checkpoint is not of as many seeds as run.json says: before keys of so many are made."""
    has = saved.arrays["iteration"].shape if "iteration" in saved.arrays else None
    if has != (() if info.seeds is None else (info.seeds,)) or config.seed + (info.seeds or 0) > 2**32:
        raise CheckpointError(f"{source}: {INFO_FILE} says seeds = {info.seeds}, and its checkpoint is not of so many")
    known = [scores for scores in [saved.meta["scores"], *(saved.meta["returns"] or {}).values()] if scores is not None]
    if any(len(scores) != (info.seeds or 1) for scores in known):
        raise CheckpointError(f"{source}: a checkpoint of {info.seeds or 1} seeds has scores of another number")


def example_state(agent: Agent, seeds: int | None, key_impl: str) -> Any:
    """Shapes and dtypes of a state, with a leading axis `[seeds]` unless that is None."""
    return jax.eval_shape(lambda: initial_state(agent, initial_keys(agent.config.seed, seeds, key_impl), seeds))


def initial_state(agent: Agent, keys: jax.Array, seeds: int | None) -> Any:
    """`agent.init` of one key, or of `[seeds]` keys."""
    return agent.init(keys) if seeds is None else jax.vmap(agent.init)(keys)


def initial_keys(seed: int, seeds: int | None, key_impl: str | None = None) -> jax.Array:
    """The key of `seed`, or those of `seed, seed + 1, ...`: seed i of many is the run that `seed + i` alone would be."""
    if seeds is None:
        return jax.random.key(seed, impl=key_impl)
    return jax.vmap(lambda s: jax.random.key(s, impl=key_impl))(np.arange(seed, seed + seeds, dtype=np.uint32))


def load_checkpoint(folder: Path, checkpoint: str | int = "latest") -> Checkpoint:
    """One checkpoint of a run; a damaged latest one is passed over, with a warning, for the newest before it that is whole.

    Raises:
        ConfigError: there is none, or none that is whole.
    """
    checkpoints = folder / CHECKPOINTS
    steps = checkpoint_steps(checkpoints)
    if checkpoint == "latest":
        if not steps:
            raise ConfigError(f"{folder}: no checkpoint there (no {CHECKPOINTS}/step_N)")
        damaged: list[str] = []
        for step in steps:
            try:
                saved = read_checkpoint(checkpoints / f"step_{step}")
            except CheckpointError as error:
                damaged.append(str(error))
                continue
            if damaged:
                warnings.warn(f"{'; '.join(damaged)}; falling back to step {step}", RljaxWarning, stacklevel=2)
            return saved
        raise ConfigError(f"{folder}: no checkpoint of it is whole: {'; '.join(damaged)}")
    if checkpoint == "best" and not os.path.lexists(checkpoints / "best"):
        raise ConfigError(
            f"{folder}: no best checkpoint, since no evaluation was made: train with eval_every, or use the latest checkpoint"
        )
    path = checkpoints / ("best" if checkpoint == "best" else f"step_{checkpoint}")
    known_steps = ", ".join(str(step) for step in sorted(steps)) or "none"
    if checkpoint == "best" and path.is_symlink():
        target = os.readlink(path)
        path = checkpoints / target
        if target not in {f"step_{step}" for step in steps}:
            raise ConfigError(
                f"checkpoint = {shown(checkpoint)}: points to {target}, which {folder} does not have, only {known_steps}"
            )
    elif not path.exists():
        raise ConfigError(
            f"checkpoint = {shown(checkpoint)}: expected latest, best or one of the steps that {folder} has: {known_steps}"
        )
    return read_checkpoint(path.resolve())


def split_path(path: str | os.PathLike[str], checkpoint: str | int = "latest") -> tuple[Path, str | int]:
    """The run's folder and the checkpoint meant by a path to either."""
    folder = Path(path)
    if folder.parent.name != CHECKPOINTS and Path(os.path.abspath(path)).parent.name == CHECKPOINTS:
        folder = Path(os.path.abspath(path))  # `.` in a checkpoint, `latest` in their folder
    if folder.parent.name == CHECKPOINTS and not (folder / CONFIG_FILE).exists():
        name = folder.name.removeprefix("step_")
        step = as_step(name)
        return folder.parent.parent, name if step is None else step
    if isinstance(checkpoint, str):
        step = as_step(checkpoint.removeprefix("step_"))
        checkpoint = checkpoint if step is None else step
    return folder, checkpoint


def _seed_index(seed_index: int | str, seeds: int, meta: dict[str, Any]) -> int:
    if seed_index == "best":
        return best_seed(meta)
    if isinstance(seed_index, bool) or not isinstance(seed_index, int) or not 0 <= seed_index < seeds:
        raise ConfigError(f'seed_index = {shown(seed_index)}: expected "best" or a whole number from 0 to {seeds - 1}')
    return seed_index


def _write_info(folder: Path, info: RunInfo) -> None:
    table = {FORMAT: 1, "rljax": __version__, "jax": jax.__version__, **info._asdict()}
    (folder / INFO_FILE).write_text(seal(table, indent=2), encoding="utf-8")


def _made_by(folder: Path) -> str | None:
    """The version of rljax that made a run, where that is known and another one."""
    try:
        version = json.loads((folder / INFO_FILE).read_text(encoding="utf-8")).get("rljax")
    except (OSError, ValueError, AttributeError):
        return None
    return None if version == __version__ else str(version)
