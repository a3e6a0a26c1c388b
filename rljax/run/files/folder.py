"""Run folders: create them, and read back their configuration, information and checkpoints.

runs/NAME/config.toml  run.json  metrics.jsonl  checkpoints/{step_N, latest, best}
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rljax.collect.demos.schema import DATASET_FILE
from rljax.core.agent import Agent, make_agent
from rljax.core.config import Config
from rljax.core.config_files import dump_config, load_config
from rljax.core.contract import innermost
from rljax.core.environments.environment import attribute
from rljax.core.errors import ConfigError, RljaxWarning, shown
from rljax.core.own import ADDRESSES
from rljax.core.places import atomic_folder, refuse_working_directory
from rljax.core.plain import class_name, is_object, to_plain
from rljax.core.state import Role, roles_of
from rljax.envs import resolve_env
from rljax.run.files.cards import CARD_FILE, check_card
from rljax.run.files.checkpoint import (
    CHECKPOINTS,
    Checkpoint,
    CheckpointError,
    check_path,
    checkpoint_steps,
    key_impls,
    link,
    named_arrays,
    noted_best,
    parse_step,
    read_checkpoint,
    restore_state,
    write_checkpoint,
    zero_arrays,
)
from rljax.run.files.records import JsonLines
from rljax.run.files.scores import best_seed
from rljax.run.files.sealed import FORMAT, INFO_FIELDS, MAX_SEEDS, DamagedError, OtherFormatError, read_sealed, seal
from rljax.run.files.zoo import find_agent
from rljax.version import __version__

CONFIG_FILE = "config.toml"
INFO_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
PHASES_FILE = "phases.toml"
"""Configuration of a run of several phases; each phase is a run in a folder beside it."""
SWEEP_FILE, TUNE_FILE, TRIALS_FILE = "sweep.toml", "tune.toml", "trials.csv"
"""The file that makes a folder that of a sweep; the one that makes it that of a study, and its trials once some have ended."""
BEST_FILE = "best.toml"
"""Configuration of the best runs of a sweep or a study."""
CHECKSUM_LINE = "# checksum of what follows (CRC-32): "


class Run(NamedTuple):
    """A run read back from its folder: its configuration, the agent's whole state and the number of environment steps taken."""

    config: Any
    state: Any
    step: int


class RunInfo(NamedTuple):
    """Contents of run.json: facts about a run beside its configuration.

    Attributes:
        seeds: number of seeds that the run trains in one program; None for a single one, whose state has no axis of seeds.
        key_impl: implementation of the run's random keys.
        first_step: number of environment steps at the start of the run: 0, or that of the checkpoint it was forked from.
        step_offset: constant in environment steps = step_offset + iterations * steps per iteration; 0 unless a fork changed the
            steps per iteration.
        forked_from: `{"checkpoint": path, "step": n}`, or None.
        own: names of the user's own parts in the agent (see `own_in`).
        data: digest of the dataset that the run learns from; "" without one.
        env_files: digest of the files that the environment was read from (see `Environment.files_digest`); "" without any.
        init_from: path of the run or checkpoint with whose policy the run began; "" without one.
        left_out: fields of the state that the checkpoint of a packed agent does not have; empty for a run.
    """

    seeds: int | None = None
    key_impl: str = "threefry2x32"
    first_step: int = 0
    step_offset: int = 0
    forked_from: dict[str, Any] | None = None
    own: str = ""
    data: str = ""
    env_files: str = ""
    init_from: str = ""
    left_out: tuple[str, ...] = ()


def env_files_of(config: Config) -> str:
    """Return the digest of the files that the environment of a configuration is read from, "" without any."""
    digest: str = attribute(innermost(resolve_env(config.env, config.env_params)[0]), "files_digest", "")
    return digest


def last_iteration(config: Config, info: RunInfo) -> int:
    """Return a run's number of iterations at the end of its budget, counted from its start; the budget is never exceeded."""
    return int((config.total_timesteps - info.step_offset) // config.steps_per_iteration)


def check_free(path: Path) -> None:
    """Raise a ConfigError if `path` is a file, a folder that is not empty (a new run would write into it), or cannot be made."""
    if any(part.startswith(ADDRESSES) for part in path.parts):
        raise ConfigError(f"run folder {path}: {' and '.join(ADDRESSES)} are for agents to read; give the folder another name")
    refuse_working_directory(path)
    try:
        path.lstat()
        taken = not path.is_dir() or any(path.iterdir())
    except FileNotFoundError:
        taken = False
        parent = next(parent for parent in path.absolute().parents if parent.exists())
        if not os.access(parent, os.W_OK | os.X_OK):
            raise ConfigError(f"run folder {path}: cannot be made: no permission to write in {parent}") from None
    except OSError as error:
        raise ConfigError(f"run folder {path}: cannot be made: {error.strerror}") from None
    if taken:
        # Only of a run is it said that it may be deleted: the folder may hold many, or something else.
        run = any(os.path.isfile(path / name) for name in (CONFIG_FILE, PHASES_FILE))
        others = ", resume it, or delete it first" if run else ""
        raise ConfigError(f"run folder {path} exists already: choose another with --run-dir{others}")


def create_run_dir(
    path: Path,
    config: Config,
    info: RunInfo,
    state: Any,
    meta: dict[str, Any],
    records: Sequence[dict[str, Any]] = (),
    finish: Callable[[Path], None] = lambda _: None,
) -> None:
    """Create the folder of a new run with its first checkpoint and its records, all at once, so that it can be resumed.

    `finish` is called with the folder before it gets its name.

    Raises:
        ConfigError: there is something at `path` already (nothing is touched), the folder cannot be created, or no checkpoint can
            be written there.
    """
    check_path(path, f"run folder {path}")
    check_free(path)
    try:
        with atomic_folder(path) as aside:
            (aside / CHECKPOINTS).mkdir()
            (aside / CONFIG_FILE).write_text(add_checksum(dump_config(config)), encoding="utf-8")
            _write_info(aside, info)
            meta = {**meta, "keys": key_impls(state)}
            arrays = {name: x for name, x in named_arrays(state).items() if _field(name) not in info.left_out}
            write_checkpoint(aside / CHECKPOINTS, info.first_step, arrays, meta)
            if not info.left_out:  # wheels and the Hub have no links
                link(aside / CHECKPOINTS, "latest", info.first_step)
            if meta.get("best_step") == info.first_step:
                link(aside / CHECKPOINTS, "best", info.first_step)
            if records:
                with contextlib.closing(JsonLines(aside / METRICS_FILE)) as file:
                    for record in records:
                        file.write(record)
            finish(aside)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            check_free(path)
        raise ConfigError(f"run folder {path}: cannot be made: {error.strerror}") from None


def replace_config(folder: Path, config: Config) -> None:
    """Replace the configuration in a run folder; a reader sees the old one or the new one."""
    aside = folder / f".{CONFIG_FILE}"
    try:
        aside.write_text(add_checksum(dump_config(config)), encoding="utf-8")
        aside.replace(folder / CONFIG_FILE)
    except OSError as error:
        raise ConfigError(f"run folder {folder} cannot be written: {error.strerror}") from None


def check_run(folder: Path) -> None:
    """Raise a ConfigError if there is no run at `folder`, or a packed agent that is not as its card says."""
    if os.path.isfile(folder / PHASES_FILE):
        raise ConfigError(f"{folder}: a run of several phases (rljax show lists them); give the folder of one, {folder}/PHASE")
    if not os.path.isfile(folder / CONFIG_FILE):
        if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
            raise ConfigError(f"{folder}: cannot be read: no permission")
        refuse_dataset(folder)
        raise ConfigError(f"{folder}: no run there (no {CONFIG_FILE}); expected a folder made by `rljax train`")
    check_card(folder)


def refuse_dataset(folder: Path) -> None:
    """Raise a ConfigError if a folder is that of a dataset."""
    if os.path.isfile(folder / DATASET_FILE):
        quoted = shlex.quote(str(folder))
        raise ConfigError(
            f"{folder}: a dataset, no run; rljax demo {quoted} describes it, and rljax train bc --dataset {quoted} learns from it"
        )


def refuse_search(folder: Path) -> None:
    """Raise a ConfigError if a folder is that of a sweep or a study."""
    if any(os.path.isfile(folder / name) for name in (SWEEP_FILE, TUNE_FILE, TRIALS_FILE)):
        best = folder / BEST_FILE
        hint = f"rljax train {shlex.quote(str(best))} trains its best" if best.exists() else f"it has no {BEST_FILE} yet"
        raise ConfigError(f"{folder}: a sweep or a study, no run; {hint}") from None


def refuse_packed(folder: Path, name: str | None = None) -> None:
    """Raise a ConfigError if there is a packed agent in a folder: it can act, but not train. `name` is what the user calls it."""
    if read_info(folder).left_out:
        name = name or str(folder)
        raise ConfigError(
            f"{name}: a packed agent, which cannot be trained on; to begin a new run with its policy: rljax train PRESET "
            f"--init-from {name}"
        )


def read_config(folder: Path, /, **overrides: Any) -> Any:
    """Read the frozen configuration of a run, with some fields replaced.

    Raises:
        ConfigError: there is no run, its configuration has been changed, or this version cannot read it.
    """
    check_run(folder)
    file = folder / CONFIG_FILE
    check_frozen(file)
    try:
        return load_config(file, **overrides)
    except ConfigError as error:
        version = _other_version(folder)
        raise ConfigError(f"{error}{'' if version is None else f' (the run was made by rljax {version})'}") from None


def check_frozen(file: Path) -> None:
    """Raise a ConfigError if a configuration is not what was written with `add_checksum`."""
    try:
        first, _, text = file.read_bytes().partition(b"\n")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    if first.startswith(CHECKSUM_LINE.encode()) and first != _checksum_line(text).encode():
        raise ConfigError(
            f"{file}: differs from what was written (its checksum does not match); to use it anyway, remove its first line"
        )


def add_checksum(text: str) -> str:
    """Return a configuration with its checksum in the first line, where a truncated file has it, too."""
    return f"{_checksum_line(text.encode())}\n{text}"


def without_checksum(text: str) -> str:
    """Return a configuration without the line that `add_checksum` put before it, if there is one."""
    return text.partition("\n")[2] if text.startswith(CHECKSUM_LINE) else text


def _checksum_line(text: bytes) -> str:
    return f"{CHECKSUM_LINE}{zlib.crc32(text):08x}"


def read_info(folder: Path) -> RunInfo:
    """Read run.json.

    Raises:
        ConfigError: the file is missing, damaged, or of a format that this version cannot read.
    """
    file = folder / INFO_FILE
    try:
        table = read_sealed(file, INFO_FIELDS)
    except FileNotFoundError:
        refuse_search(folder)
        raise ConfigError(f"{folder}: no run that this version of rljax can read (no {INFO_FILE})") from None
    except DamagedError as error:
        raise ConfigError(f"{file} is damaged: {error}") from None
    except OtherFormatError as error:
        raise ConfigError(
            f"{file} has format {error.format} (rljax {error.version}): this version of rljax reads format 1"
        ) from None
    # Runs of earlier versions do not have all of these.
    table |= {name: table[name] or "" for name in ("own", "data", "env_files", "init_from")}
    table["left_out"] = tuple(table["left_out"] or ())
    return RunInfo(**{name: table[name] for name in RunInfo._fields})


def load_run(
    path: str | os.PathLike[str],
    *,
    checkpoint: str | int = "latest",
    seed_index: int | str | None = None,
    objects: Config | None = None,
    **overrides: Any,
) -> Run:
    """Read a run folder; return `Run(config, state, step)` at one of its checkpoints.

    Args:
        path: the run's folder, or one of its checkpoints (`runs/a/checkpoints/best`); `zoo:NAME` for an agent that comes with
            rljax, `hub:USER/REPO` for one of the Hugging Face Hub.
        checkpoint: "latest", "best" or a number of steps. If the latest one is damaged, the one before it is read instead, with
            a warning.
        seed_index: index of the seed to return from a run of several seeds, whose state has a leading axis `[seeds]`; it is
            returned without that axis. "best" is the seed with the highest score; None returns all.
        objects: a configuration to take the environment and the network from, where the run's were objects of the same class.
        overrides: fields of the configuration to replace. An environment or network given as an object is saved only by name,
            so give it again here (`env=MyEnv()`).

    Raises:
        ConfigError: there is no run or checkpoint, it is damaged, or it does not fit the configuration.
    """
    folder, checkpoint = split_path(path, checkpoint)
    if objects is not None:
        overrides = _objects_again(read_config(folder), objects) | overrides
    config = read_config(folder, **overrides)
    info = read_info(folder)
    saved = load_checkpoint(folder, checkpoint)
    # The number of devices only matters for further training: a run can be viewed on any machine.
    alone = config.replace(num_devices=1)
    try:
        state = checkpoint_state(make_agent(alone), info, saved, folder)
    except ConfigError:
        if not getattr(config, "teachers", ()):
            raise
        # A student can act, but not train, whatever has become of its teachers.
        config = config.replace(teachers=())
        state = checkpoint_state(make_agent(alone.replace(teachers=())), info, saved, folder)
    if info.seeds is None and seed_index not in (None, "best"):
        raise ConfigError(f'seed_index = {shown(seed_index)}: expected "best", since run {folder} has a single seed')
    if seed_index is not None and info.seeds is not None:
        index = _seed_index(seed_index, info.seeds, saved.meta)
        state = jax.tree.map(lambda x: x[index], state)
    return Run(config, state, saved.meta["step"])


def _objects_again(there: Config, config: Config) -> dict[str, Any]:
    """Return the fields that were objects in a saved configuration, and are objects of the same class in another one, with the
    values of that.
    """
    given = {name: getattr(config, name, None) for name in ("env", "network") if is_object(getattr(there, name, None))}
    return {name: x for name, x in given.items() if class_name(getattr(there, name)) == class_name(str(to_plain(x)))}


def checkpoint_state(agent: Agent, info: RunInfo, saved: Checkpoint, source: object) -> Any:
    """Return the state in a checkpoint of a run of `agent`.

    Raises:
        CheckpointError: the checkpoint has another number of seeds, or does not fit the configuration.
    """
    check_seeds(info, saved, agent.config, source)
    example, arrays = example_state(agent, info.seeds, info.key_impl), saved.arrays
    if getattr(agent.config, "teachers", None) == ():
        # A student whose teachers are gone has no episodes under way.
        episodes = {name for name, role in roles_of(example).items() if role.role is Role.PER_ENVIRONMENT}
        arrays = {name: x for name, x in arrays.items() if _field(name) not in episodes}
    # A policy reads none of the fields that a packed agent lacks, and a search takes zeros for what is unknown.
    if info.left_out:
        arrays = {name: x for name, x in zero_arrays(example).items() if _field(name) in info.left_out} | arrays
    return restore_state(arrays, example, saved.meta["keys"] or {}, source)


def _field(name: str) -> str:
    """Return the field of a state to which a named array belongs."""
    return name.partition("/")[0]


def check_num_seeds(seeds: Any, config: Config) -> None:
    """Check the number of seeds of a run or a sweep that begins.

    Raises:
        ConfigError: it is not a whole number from 1 to `MAX_SEEDS`, or a seed would be above 2**32 - 1.
    """
    most = min(MAX_SEEDS, 2**32 - config.seed)
    if isinstance(seeds, bool) or not isinstance(seeds, int) or not 1 <= seeds <= most:
        raise ConfigError(f"seeds = {shown(seeds)}: expected a whole number from 1 to {most:,}")


def check_seeds(info: RunInfo, saved: Checkpoint, config: Config, source: object) -> None:
    """Check that a checkpoint has as many seeds as run.json says, before keys for them are created.

    Raises:
        CheckpointError: it has another number of seeds, or its scores have.
    """
    has = saved.arrays["iteration"].shape if "iteration" in saved.arrays else None
    if has != (() if info.seeds is None else (info.seeds,)) or config.seed + (info.seeds or 0) > 2**32:
        raise CheckpointError(f"{source}: {INFO_FILE} says seeds = {info.seeds}, but its checkpoint has another number")
    known = [scores for scores in [saved.meta["scores"], *(saved.meta["returns"] or {}).values()] if scores is not None]
    if any(len(scores) != (info.seeds or 1) for scores in known):
        raise CheckpointError(f"{source}: a checkpoint of {info.seeds or 1} seeds has scores of another number")


def example_state(agent: Agent, seeds: int | None, key_impl: str) -> Any:
    """Return the shapes and dtypes of a state, with a leading axis `[seeds]` unless `seeds` is None."""
    return jax.eval_shape(lambda: initial_state(agent, initial_keys(agent.config.seed, seeds, key_impl), seeds))


def initial_state(agent: Agent, keys: jax.Array, seeds: int | None) -> Any:
    """Return `agent.init` of one key, or of `[seeds]` keys."""
    return agent.init(keys) if seeds is None else jax.vmap(agent.init)(keys)


def initial_keys(seed: int, seeds: int | None, key_impl: str | None = None) -> jax.Array:
    """Return the key of `seed`, or those of `seed, seed + 1, ...`: seed i of many trains like a single run of `seed + i`."""
    if seeds is None:
        return jax.random.key(seed, impl=key_impl)
    return jax.vmap(lambda s: jax.random.key(s, impl=key_impl))(np.arange(seed, seed + seeds, dtype=np.uint32))


def load_checkpoint(folder: Path, checkpoint: str | int = "latest") -> Checkpoint:
    """Read a checkpoint of a run; if the latest one is damaged, the newest whole one before it, with a warning.

    Raises:
        ConfigError: there is no checkpoint, or none that is whole.
    """
    checkpoints = folder / CHECKPOINTS
    steps = checkpoint_steps(checkpoints)
    if checkpoint == "best" and os.path.isfile(folder / CARD_FILE):
        checkpoint = "latest"  # a packed agent has one checkpoint
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
        raise ConfigError(f"{folder}: all its checkpoints are damaged: {'; '.join(damaged)}")
    path = _best_checkpoint(folder, steps) if checkpoint == "best" else checkpoints / f"step_{checkpoint}"
    if not path.exists():
        raise ConfigError(
            f"checkpoint = {shown(checkpoint)}: expected latest, best or one of the steps that {folder} has: {_listed(steps)}"
        )
    return read_checkpoint(path.resolve())


def _best_checkpoint(folder: Path, steps: Sequence[int]) -> Path:
    """Return the path of the best checkpoint: the link's, or in a copy without links that of the step noted in the newest one.

    Raises:
        ConfigError: there is none, or the folder does not have it.
    """
    link = folder / CHECKPOINTS / "best"
    linked = link.is_symlink()
    step = None if linked else noted_best(folder / CHECKPOINTS)
    target = os.readlink(link) if linked else f"step_{step}"
    if target in {f"step_{step}" for step in steps}:
        return folder / CHECKPOINTS / target
    if not linked and link.is_dir():
        return link  # in a copy that followed links
    if not linked and step is None:
        raise ConfigError(
            f"{folder}: no best checkpoint, since no evaluation was made: train with eval_every, or use the latest checkpoint"
        )
    raise ConfigError(f"checkpoint = 'best': points to {target}, which {folder} does not have, only {_listed(steps)}")


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(str(step) for step in sorted(steps)) or "none"


def split_path(path: str | os.PathLike[str], checkpoint: str | int = "latest") -> tuple[Path, str | int]:
    """Return the run's folder and the checkpoint that a path to either of them means, or an address such as `zoo:NAME`.

    Raises:
        ConfigError: it is no path, the zoo has no such agent, or the path is a checkpoint and `checkpoint` another one.
        RljaxError: the Hub's agent could not be fetched.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"{shown(path)}: expected the path of a run")
    if isinstance(checkpoint, str):
        step = parse_step(checkpoint.removeprefix("step_"))
        checkpoint = checkpoint if step is None else step
    folder = Path(path) if (found := find_agent(path)) is None else found
    if folder.parent.name != CHECKPOINTS and Path(os.path.abspath(folder)).parent.name == CHECKPOINTS:
        folder = Path(os.path.abspath(folder))  # for `.` within a checkpoint, or `latest` within the folder of checkpoints
    if folder.parent.name == CHECKPOINTS and not (folder / CONFIG_FILE).exists():
        name = folder.name.removeprefix("step_")
        step = parse_step(name)
        run, here = folder.parent.parent, name if step is None else step
        if checkpoint not in ("latest", here):
            raise ConfigError(f"checkpoint = {shown(checkpoint)}: {path} is a checkpoint itself; give the run's folder, {run}")
        return run, here
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


def _other_version(folder: Path) -> str | None:
    """Return the version of rljax that made a run; None if it is unknown or the same as this one."""
    try:
        version = json.loads((folder / INFO_FILE).read_text(encoding="utf-8")).get("rljax")
    except (OSError, ValueError, AttributeError):
        return None
    return None if version == __version__ else str(version)
