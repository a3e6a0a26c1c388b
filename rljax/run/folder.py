"""Run folders: what a training run leaves behind, and reading it back.

runs/NAME/config.toml  run.json  metrics.jsonl  checkpoints/{step_N, latest, best}
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rljax.core.agent import Agent, make_agent
from rljax.core.config import Config, dump_config, load_config
from rljax.core.errors import ConfigError, RljaxWarning
from rljax.run.checkpoint import (
    CHECKPOINTS,
    Checkpoint,
    CheckpointError,
    checkpoint_steps,
    link,
    named_arrays,
    read_checkpoint,
    state_from,
    write_checkpoint,
)
from rljax.run.scores import best_seed

CONFIG_FILE = "config.toml"
INFO_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
LOCK_FILE = ".lock"


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
    """

    seeds: int | None = None
    key_impl: str = "threefry2x32"
    first_step: int = 0
    step_offset: int = 0
    forked_from: dict[str, Any] | None = None


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


def create_run_dir(path: Path, config: Config, info: RunInfo, state: Any, meta: dict[str, Any]) -> None:
    """Make the folder of a new run, its first checkpoint in it: made aside and renamed, so that whatever is there can resume.

    Raises:
        ConfigError: there is something at `path` already (nothing is touched), or it cannot be made.
    """
    check_free(path)
    aside = path.parent / f".{path.name}.new-{os.getpid()}"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        (aside / CHECKPOINTS).mkdir(parents=True)
        (aside / CONFIG_FILE).write_text(dump_config(config), encoding="utf-8")
        _write_info(aside, info)
        write_checkpoint(aside / CHECKPOINTS, info.first_step, named_arrays(state), meta)
        link(aside / CHECKPOINTS, "latest", info.first_step)
        aside.rename(path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            check_free(path)
        raise ConfigError(f"run folder {path}: cannot be made: {error.strerror}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def replace_config(folder: Path, config: Config) -> None:
    """Write another configuration into a run folder; a reader sees the old one or the new one."""
    aside = folder / f".{CONFIG_FILE}"
    try:
        aside.write_text(dump_config(config), encoding="utf-8")
        aside.rename(folder / CONFIG_FILE)
    except OSError as error:
        raise ConfigError(f"run folder {folder} cannot be written: {error.strerror}") from None


def check_run(folder: Path) -> None:
    """Raise a ConfigError where there is no run at `folder`."""
    if not (folder / CONFIG_FILE).is_file():
        raise ConfigError(f"{folder}: no run there (no {CONFIG_FILE}); a run folder is what `rljax train` makes")


def read_config(folder: Path, **overrides: Any) -> Any:
    """The frozen configuration of a run, with fields of it replaced.

    Raises:
        ConfigError: no run there, or its configuration is not one that this version reads.
    """
    check_run(folder)
    try:
        return load_config(folder / CONFIG_FILE, **overrides)
    except ConfigError as error:
        made_by = _made_by(folder)
        raise ConfigError(f"{error}{'' if made_by is None else f' (the run was made by rljax {made_by})'}") from None


def read_info(folder: Path) -> RunInfo:
    """What run.json says.

    Raises:
        ConfigError: it is missing, damaged or of a format that this version does not read.
    """
    file = folder / INFO_FILE
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        version = table["format"]
        if version == 1:
            return RunInfo(**{name: table[name] for name in RunInfo._fields})
    except FileNotFoundError:
        raise ConfigError(f"{folder}: no run that this version of rljax can read (no {INFO_FILE})") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"{file}: cannot be read, it is damaged") from None
    raise ConfigError(f"{file} has format {version} (rljax {table.get('rljax')}): this version of rljax reads format 1")


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
    """The state in a checkpoint of a run of `agent`."""
    return state_from(saved.arrays, example_state(agent, info.seeds, info.key_impl), info.key_impl, source)


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
    name = checkpoint if checkpoint == "best" else f"step_{checkpoint}"
    if not (checkpoints / name).exists():
        known = ", ".join(str(step) for step in sorted(steps)) or "none"
        raise ConfigError(f"checkpoint = {checkpoint!r}: expected latest, best or one of the steps that {folder} has: {known}")
    return read_checkpoint((checkpoints / name).resolve())


def split_path(path: str | os.PathLike[str], checkpoint: str | int = "latest") -> tuple[Path, str | int]:
    """The run's folder and the checkpoint meant by a path to either."""
    folder = Path(path)
    if folder.parent.name != CHECKPOINTS and Path(os.path.abspath(path)).parent.name == CHECKPOINTS:
        folder = Path(os.path.abspath(path))  # `.` in a checkpoint, `latest` in their folder
    if folder.parent.name == CHECKPOINTS and not (folder / CONFIG_FILE).exists():
        name = folder.name.removeprefix("step_")
        return folder.parent.parent, int(name) if name.isdigit() else name
    if isinstance(checkpoint, str):
        name = checkpoint.removeprefix("step_")
        checkpoint = int(name) if name.isdigit() else checkpoint
    return folder, checkpoint


def _seed_index(seed_index: int | str, seeds: int, meta: dict[str, Any]) -> int:
    if seed_index == "best":
        return best_seed(meta)
    if isinstance(seed_index, bool) or not isinstance(seed_index, int) or not 0 <= seed_index < seeds:
        raise ConfigError(f'seed_index = {seed_index!r}: expected "best" or a whole number from 0 to {seeds - 1}')
    return seed_index


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder for this process; the system lets go of it however the process ends.

    Raises:
        ConfigError: another process trains there.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    try:
        file = (folder / LOCK_FILE).open("w")
    except OSError as error:
        raise ConfigError(f"run folder {folder} cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"run folder {folder}: another process is training there") from None
        except OSError:
            pass  # a file system without locks
        yield


def _write_info(folder: Path, info: RunInfo) -> None:
    import rljax

    table = {"format": 1, "rljax": rljax.__version__, "jax": jax.__version__, **info._asdict()}
    (folder / INFO_FILE).write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


def _made_by(folder: Path) -> str | None:
    """The version of rljax that made a run, where that is known and another one."""
    import rljax

    try:
        version = json.loads((folder / INFO_FILE).read_text(encoding="utf-8")).get("rljax")
    except (OSError, ValueError, AttributeError):
        return None
    return None if version == rljax.__version__ else str(version)
