"""Checkpoints: whole states as named arrays, written atomically, verified by checksums, with `latest` and `best` links.

checkpoints/step_N/{meta.json, state/}   checkpoints/latest -> step_N   checkpoints/best -> step_M

A folder called step_N is complete: it is renamed to that after everything in it has been written.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.collect.replay.buffer import HOST, in_host_memory
from rljax.core.devices import check_platform
from rljax.core.errors import ConfigError, RljaxError, RljaxWarning, shown
from rljax.core.places import WatchedFolder
from rljax.run.files.sealed import META_FIELDS, DamagedError, OtherFormatError, read_sealed, seal

META_FILE = "meta.json"
STATE_FOLDER = "state"
CHECKPOINTS = "checkpoints"


class CheckpointError(ConfigError):
    """A checkpoint is damaged or does not have the expected structure; the message says which and how."""


class Checkpoint(NamedTuple):
    """A checkpoint read from disk.

    Attributes:
        arrays: leaves of the state, by name.
        pending: rows of metrics not yet summarized in a record, or None.
        meta: contents of meta.json.
    """

    arrays: dict[str, np.ndarray]
    pending: np.ndarray | None
    meta: dict[str, Any]


def named_arrays(state: Any) -> dict[str, np.ndarray]:
    """Copy a state's leaves to the host, by name (`params/params/network/actor_0/kernel`); random keys become integers."""
    # Copy the arrays instead of viewing them: their buffers are donated to the next chunk while these are being written.
    return {name: np.array(jax.random.key_data(x) if _is_key(x) else x) for name, x in named_leaves(state)}


def zero_arrays(example: Any) -> dict[str, np.ndarray]:
    """Return zeros in place of `named_arrays`, for a state or its shapes."""
    shapes = jax.eval_shape(lambda state: jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, state), example)
    return {name: np.zeros(x.shape, x.dtype) for name, x in named_leaves(shapes)}


def key_impls(state: Any) -> dict[str, str]:
    """Return the implementation of each leaf that is a random key, by name."""
    return {name: _key_impl(x) for name, x in named_leaves(state) if _is_key(x)}


def _key_impl(key: Any) -> str:
    """Return the implementation of a random key or of its shape; JAX gives it only for arrays."""
    found: list[str] = []
    jax.eval_shape(lambda x: found.append(str(jax.random.key_impl(x))), key)
    return found[0]


def restore_state(arrays: Mapping[str, np.ndarray], example: Any, keys: Mapping[str, str], source: object) -> Any:
    """Restore a state with the structure of `example` (arrays or their shapes) from named arrays.

    Args:
        arrays: named arrays, from `named_arrays`.
        example: state with the expected structure, shapes, dtypes and implementations of keys.
        keys: implementations of the saved keys, from `key_impls`; empty for old checkpoints.
        source: origin of the arrays, for messages.

    Raises:
        CheckpointError: the arrays do not fit; the message names the first leaf that differs.
    """
    leaves = []
    for (name, expected), host in zip(named_leaves(example), jax.tree.leaves(in_host_memory(example)), strict=True):
        if name not in arrays:
            raise CheckpointError(f"{source}: does not fit this configuration: {name} is not in it")
        x = arrays[name]
        is_key = _is_key(expected)
        here = jax.eval_shape(jax.random.key_data, expected) if is_key else expected
        if is_key and keys.get(name, _key_impl(expected)) != _key_impl(expected):
            raise CheckpointError(
                f"{source}: does not fit this configuration: {name} is a key of {keys[name]} there and of "
                f"{_key_impl(expected)} here"
            )
        if x.shape != here.shape or x.dtype != here.dtype:
            raise CheckpointError(
                f"{source}: does not fit this configuration: {name} is {describe(x)} there and {describe(here)} here"
            )
        placed = jax.device_put(x, HOST) if host else jnp.asarray(x)
        leaves.append(jax.random.wrap_key_data(placed, impl=_key_impl(expected)) if is_key else placed)
    names = [name for name, _ in named_leaves(example)]
    unknown = next((name for name in arrays if name not in set(names)), None)
    if unknown is not None:
        raise CheckpointError(f"{source}: does not fit this configuration: it has {unknown}, which is not in the state here")
    return jax.tree.unflatten(jax.tree.structure(example), leaves)


def write_checkpoint(
    folder: Path,
    step: int,
    arrays: Mapping[str, np.ndarray],
    meta: Mapping[str, Any],
    pending: np.ndarray | None = None,
    check: Callable[[], None] = lambda: None,
) -> Path:
    """Write `folder/step_<step>` under another name and rename it at the end, so that it is there whole or not at all.

    `check` is called before anything is created and before the renaming; an error in it ends the write.

    Raises:
        RljaxError: the checkpoint cannot be written (a full disk, say); earlier ones are untouched.
    """
    target = folder / f"step_{step}"
    aside = folder / f".writing_step_{step}"
    tree: dict[str, Any] = {"arrays": {name: x for name, x in arrays.items() if x.size}}
    if pending is not None and pending.size:
        tree["pending"] = pending
    try:
        check()
        folder.mkdir(exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        with _checkpointer() as checkpointer:
            checkpointer.save((aside / STATE_FOLDER).resolve(), tree)
        text = seal({
            "format": 1,
            "step": step,
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            **meta,
            "arrays": {name: [list(x.shape), str(x.dtype)] for name, x in arrays.items()},
            "files": _checksums(aside),
        })  # fmt: skip
        (aside / META_FILE).write_text(text, encoding="utf-8")
        check()
        if target.exists():
            _remove(target)
        aside.rename(target)
    except Exception as error:  # orbax reports a full disk with several types of errors
        shutil.rmtree(aside, ignore_errors=True)
        raise RljaxError(f"checkpoint {target}: cannot be written: {_reason(error)}; the ones before it are untouched") from error
    return target


def check_path(path: Path, what: str, written: bool = True) -> None:
    """Check that checkpoints below a path can be read and, if `written`, be written.

    Raises:
        ConfigError: they cannot; the message begins with `what` and names the character.
    """
    whole = os.path.realpath(path)
    try:
        whole.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{what}: no checkpoint can be in {shown(whole)}, which is not valid UTF-8; use another path") from None
    # Orbax takes the whole path for a pattern when it writes; TensorStore takes a backslash for a slash. On Windows it is one.
    refused = ("[" if written else "") + ("\\" if os.sep == "/" else "")
    character = next((character for character in refused if character in whole), None)
    if character is not None:
        raise ConfigError(f"{what}: no checkpoint can be {'written to' if written else 'read from'} a path that has {character} "
                          f"in it, {whole}; use another path")  # fmt: skip


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint, after comparing each of its files with the size and CRC-32 noted when it was written.

    Raises:
        CheckpointError: it is damaged; the message names the file.
        ConfigError: JAX does not find the platform that it was told to use, or no checkpoint can be read from such a path.
    """
    check_path(path, f"checkpoint {path}", written=False)
    meta = check_checkpoint(path)
    check_platform()  # Without a device nothing can be read, and the checkpoint is not to blame.
    try:
        with _checkpointer() as checkpointer:
            tree = checkpointer.restore((path / STATE_FOLDER).resolve())
    except Exception as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {_reason(error)}") from error
    arrays: dict[str, np.ndarray] = {}
    for name, (shape, dtype) in meta["arrays"].items():
        try:
            # Arrays without elements are not written; meta.json has their shapes.
            x = np.zeros(shape, dtype) if 0 in shape else np.asarray(tree["arrays"][name])
        except (KeyError, TypeError, ValueError):
            raise CheckpointError(f"checkpoint {path} is damaged: {name} is missing") from None
        if list(x.shape) != shape or str(x.dtype) != dtype:
            raise CheckpointError(f"checkpoint {path} is damaged: {name} is not {dtype}{shape}")
        arrays[name] = x
    return Checkpoint(arrays, tree.get("pending"), meta)


def check_checkpoint(path: Path) -> dict[str, Any]:
    """Return a checkpoint's meta.json (see `read_meta`) after comparing its files with it.

    Raises:
        CheckpointError: it is damaged; the message names the file.
    """
    meta = read_meta(path)
    _check_files(path, meta["files"])
    return meta


def _check_files(path: Path, sums: Mapping[str, tuple[int, int]]) -> None:
    """Compare the files of a checkpoint's state with their sizes and checksums; no other file may be there.

    Raises:
        CheckpointError: they differ; the message names the first file.
    """
    there = _files(path)
    # Hidden files of a file manager do no harm.
    unknown = next((name for name in there if name not in sums and not Path(name).name.startswith(".")), None)
    if unknown is not None:
        raise CheckpointError(f"checkpoint {path} is damaged: {unknown} is none of the files that were written")
    for name, (size, crc) in sums.items():
        if name not in there:
            raise CheckpointError(f"checkpoint {path} is damaged: {name} is missing")
        try:
            same = there[name].stat().st_size == size and _crc(there[name]) == crc
        except OSError as error:
            raise CheckpointError(f"checkpoint {path}: {name} cannot be read: {error.strerror}") from None
        if not same:
            raise CheckpointError(f"checkpoint {path} is damaged: {name} differs from what was written")


def read_meta(path: Path) -> dict[str, Any]:
    """Read a checkpoint's meta.json: the fields of `META_FIELDS`, with None for missing ones.

    Raises:
        CheckpointError: the file is missing or damaged.
        ConfigError: it was written by a version of rljax whose format this one cannot read.
    """
    try:
        meta = read_sealed(path / META_FILE, META_FIELDS)
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {path} is damaged: {META_FILE} is missing") from None
    except DamagedError as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {META_FILE}: {error}") from None
    except OtherFormatError as error:
        raise ConfigError(f"checkpoint {path} has format {error.format}: this version of rljax reads format 1") from None
    name = path.resolve().name
    if name.startswith("step_") and name != f"step_{meta['step']}":  # in a copy that followed links, `best` is a folder
        raise CheckpointError(f"checkpoint {path} is damaged: {META_FILE} says step {meta['step']}")
    return meta


def checkpoint_steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder, whole or damaged, the newest first."""
    steps = [parse_step(p.name.removeprefix("step_")) for p in folder.glob("step_*")]
    return sorted((step for step in steps if step is not None), reverse=True)


def parse_step(text: str) -> int | None:
    """Parse a number of steps as rljax writes it; return None for any other text (`007`, `²`)."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
    return number if str(number) == text else None


def noted_best(folder: Path) -> int | None:
    """Return the step of the best checkpoint, as the newest one whose meta.json can be read says; None if it says none."""
    for step in checkpoint_steps(folder):
        with contextlib.suppress(CheckpointError):
            noted: int | None = read_meta(folder / f"step_{step}")["best_step"]
            return noted
    return None


def link(folder: Path, name: str, step: int) -> None:
    """Point the link `folder/<name>` at `step_<step>`; a reader sees the old link or the new one.

    Where no symbolic link can be made (Google Drive, Windows without the privilege), there is none afterwards: readers find the
    checkpoints by their steps.
    """
    aside, target = folder / f".{name}", folder / name
    if target.is_symlink() and os.readlink(target) == f"step_{step}":
        return
    aside.unlink(missing_ok=True)
    try:
        aside.symlink_to(f"step_{step}")
    except OSError:
        if target.is_symlink():  # an older link would be wrong
            target.unlink()
        return
    if target.is_dir() and not target.is_symlink():
        _remove(target)  # in a copy of the run that followed links, it is a folder
    try:
        aside.replace(target)
    except PermissionError:  # Windows replaces files, but no links to folders
        target.unlink()
        aside.replace(target)


class CheckpointWriter:
    """Writer of a run's checkpoints, in a thread, one at a time: it keeps the newest few and the best, and moves the links.

    After each one it calls `send`, which copies the run elsewhere. If that fails, the run goes on, and the next one tries again.
    """

    def __init__(self, folder: Path, keep: int | None, best_step: int | None, send: Callable[[], None] = lambda: None):
        self.folder, self.keep, self.best_step, self.send = folder, keep, best_step, send
        self.unsent: RljaxError | None = None
        self.run = WatchedFolder(folder.parent)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="rljax-checkpoint")
        self.writing: Future[None] | None = None
        for junk in [*folder.glob(".writing_*"), *folder.glob(".removing_*")]:
            shutil.rmtree(junk, ignore_errors=True)

    @property
    def busy(self) -> bool:
        return self.writing is not None and not self.writing.done()

    def save(self, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], pending: np.ndarray, best: bool) -> None:
        """Start writing a state's leaves (see `named_arrays`). An error in the previous write is raised here.

        Raises:
            RljaxError: the run's folder was moved or removed, or the previous checkpoint could not be written.
        """
        self.wait()
        self.run.check()
        self.writing = self.thread.submit(self._write, step, dict(arrays), dict(meta), pending.copy(), best)

    def wait(self) -> None:
        """Wait until nothing is being written.

        Raises:
            RljaxError: the last checkpoint could not be written.
        """
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self.thread.shutdown()
            self.run.close()
        if self.unsent is not None:
            raise self.unsent

    def _write(self, step: int, arrays: dict[str, np.ndarray], meta: dict[str, Any], pending: np.ndarray, best: bool) -> None:
        try:
            write_checkpoint(self.folder, step, arrays, meta, pending, self.run.check)
            self.run.check()
            link(self.folder, "latest", step)
            if best:
                self.best_step = step
                link(self.folder, "best", step)
            if self.keep is not None:
                # Remove only older ones: those of later steps are left from before a fall-back and will be overwritten.
                older = [s for s in checkpoint_steps(self.folder) if s < step and s != self.best_step]
                for old in older[self.keep - 1 :]:
                    _remove(self.folder / f"step_{old}")
            self._send()
        except (RljaxError, OSError) as error:
            self.run.check()  # raises the true reason if the folder was moved or removed meanwhile
            raise (
                error if isinstance(error, RljaxError) else RljaxError(f"checkpoints in {self.folder}: {_reason(error)}")
            ) from error

    def _send(self) -> None:
        try:
            self.send()
            self.unsent = None
        except RljaxError as error:
            known, self.unsent = self.unsent, RljaxError(f"the newest checkpoint is only in {self.folder}: {error}")
            if str(known) != str(self.unsent):  # not once for each checkpoint while the reason is the same
                warnings.warn(str(self.unsent), RljaxWarning, stacklevel=2)


def _remove(path: Path) -> None:
    """Remove a folder; rename it first, so that a kill leaves no half of it under its name."""
    doomed = path.with_name(f".removing_{path.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


@contextlib.contextmanager
def _checkpointer() -> Iterator[Any]:
    import orbax.checkpoint as ocp

    # Besides raising an error, Orbax logs it with its traceback. rljax turns the raised error into one line.
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        # Otherwise, in a run of several processes, Orbax would let them all wait for each other.
        this = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(
            primary_host=this, active_processes={this}, barrier_sync_key_prefix=f"process{this}"
        )
        handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
        with ocp.Checkpointer(handler, multiprocessing_options=alone) as checkpointer:
            yield checkpointer
    finally:
        logger.setLevel(level)


def _checksums(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and CRC-32 of every file of a checkpoint's state, by its name relative to the checkpoint."""
    return {name: (file.stat().st_size, _crc(file)) for name, file in _files(folder).items()}


def _files(folder: Path) -> dict[str, Path]:
    """Return the files of a checkpoint's state, without links, by their names relative to the checkpoint."""
    files = sorted(p for p in (folder / STATE_FOLDER).rglob("*") if p.is_file() and not p.is_symlink())
    return {p.relative_to(folder).as_posix(): p for p in files}


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Return `(name, leaf)` for each leaf in tree order; names join the keys of the path to it by slashes."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def describe(x: Any) -> str:
    """Return the dtype and shape of an array as text: `float32[4, 64]`."""
    return f"{x.dtype}{list(x.shape)}"


def _reason(error: BaseException) -> str:
    """Return the shortest true description of an error: the operating system's words if it has some."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        seen = seen.__cause__ or seen.__context__
    text = str(error).strip() or type(error).__name__
    full_disk = os.strerror(28)
    return full_disk if full_disk in text else text.splitlines()[0]
