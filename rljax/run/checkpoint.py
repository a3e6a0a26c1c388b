"""Checkpoints: a whole state as named arrays, written aside, checked by sums when read, with `latest` and `best` links.

checkpoints/step_N/{meta.json, state/}   checkpoints/latest -> step_N   checkpoints/best -> step_M

A folder called step_N is whole: it got that name, by a rename, after all of it was written.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.errors import ConfigError, RljaxError

META_FILE = "meta.json"
STATE_FOLDER = "state"
CHECKPOINTS = "checkpoints"


class CheckpointError(ConfigError):
    """A checkpoint is damaged, or is of another structure than it should be; the message says which and how."""


class Checkpoint(NamedTuple):
    """The state's leaves by name, the rows not yet summed up in a record (or None), and what meta.json says."""

    arrays: dict[str, np.ndarray]
    pending: np.ndarray | None
    meta: dict[str, Any]


def named_arrays(state: Any) -> dict[str, np.ndarray]:
    """A copy of a state's leaves on the host, by name (`params/params/network/actor_0/kernel`); keys as integers."""
    # A copy and not a view: the buffers are donated to the next chunk while this one is being written.
    return {name: np.array(jax.random.key_data(x) if _is_key(x) else x) for name, x in _named_leaves(state)}


def state_from(arrays: Mapping[str, np.ndarray], example: Any, key_impl: str, source: object) -> Any:
    """The state with the structure of `example` (arrays or their shapes, keys of `key_impl`) from named arrays.

    Raises:
        CheckpointError: they do not fit; names the first leaf that differs.
    """
    leaves = []
    for name, expected in _named_leaves(example):
        if name not in arrays:
            raise CheckpointError(f"{source}: does not fit this configuration: {name} is not in it")
        x = arrays[name]
        here = jax.eval_shape(jax.random.key_data, expected) if _is_key(expected) else expected
        if x.shape != here.shape or x.dtype != here.dtype:
            raise CheckpointError(
                f"{source}: does not fit this configuration: {name} is {describe(x)} there and {describe(here)} here"
            )
        leaves.append(jax.random.wrap_key_data(jnp.asarray(x), impl=key_impl) if _is_key(expected) else jnp.asarray(x))
    names = [name for name, _ in _named_leaves(example)]
    unknown = next((name for name in arrays if name not in set(names)), None)
    if unknown is not None:
        raise CheckpointError(f"{source}: does not fit this configuration: it has {unknown}, which is not in the state here")
    return jax.tree.unflatten(jax.tree.structure(example), leaves)


def write_checkpoint(
    folder: Path, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], pending: np.ndarray | None = None
) -> Path:
    """Write `folder/step_<step>`: aside first, then renamed, so that it is there whole or not at all.

    Raises:
        RljaxError: it cannot be written (a full disk, say); what was there before is untouched.
    """
    target = folder / f"step_{step}"
    aside = folder / f".writing_step_{step}"
    tree: dict[str, Any] = {"arrays": {name: x for name, x in arrays.items() if x.size}}
    if pending is not None and pending.size:
        tree["pending"] = pending
    try:
        folder.mkdir(exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        with _checkpointer() as checkpointer:
            checkpointer.save((aside / STATE_FOLDER).resolve(), tree)
        text = json.dumps({
            "format": 1,
            "step": step,
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            **meta,
            "arrays": {name: [list(x.shape), str(x.dtype)] for name, x in arrays.items()},
            "files": _sums(aside),
        })  # fmt: skip
        (aside / META_FILE).write_text(text + "\n", encoding="utf-8")
        if target.exists():
            _remove(target)
        aside.rename(target)
    except Exception as error:  # orbax raises a full disk as several types
        shutil.rmtree(aside, ignore_errors=True)
        raise RljaxError(f"checkpoint {target}: cannot be written: {_reason(error)}; the ones before it are untouched") from error
    return target


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint after comparing every file of it with the size and the CRC-32 noted when it was written.

    Raises:
        CheckpointError: it is damaged; says which file.
    """
    meta = read_meta(path)
    if not all(name in meta for name in ("iteration", "arrays", "files")):
        raise CheckpointError(f"checkpoint {path} is damaged: {META_FILE} is not as it was written")
    for name, (size, crc) in meta["files"].items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"checkpoint {path} is damaged: {name} is missing")
        if file.stat().st_size != size or _crc(file) != crc:
            raise CheckpointError(f"checkpoint {path} is damaged: {name} is not as it was written")
    try:
        with _checkpointer() as checkpointer:
            tree = checkpointer.restore((path / STATE_FOLDER).resolve())
    except Exception as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {_reason(error)}") from error
    # Arrays without elements are not written; their shapes are noted.
    empty = {name: np.zeros(shape, dtype) for name, (shape, dtype) in meta["arrays"].items() if 0 in shape}
    arrays = {**tree["arrays"], **empty}
    return Checkpoint({name: np.asarray(arrays[name]) for name in meta["arrays"]}, tree.get("pending"), meta)


def read_meta(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself: step, time, scores and so on.

    Raises:
        CheckpointError: there is none, or it is damaged.
        ConfigError: it was written by a version of rljax whose format this one does not read.
    """
    try:
        meta = json.loads((path / META_FILE).read_text(encoding="utf-8"))
        step, version = meta["step"], meta["format"]
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {path} is damaged: {META_FILE} is missing") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(f"checkpoint {path} is damaged: {META_FILE} cannot be read") from None
    if version != 1:
        raise ConfigError(f"checkpoint {path} has format {version}: this version of rljax reads format 1")
    name = path.resolve().name
    if name.startswith("step_") and name != f"step_{step}":  # in a copy whose links were followed, `best` is a folder
        raise CheckpointError(f"checkpoint {path} is damaged: {META_FILE} says step {step}")
    return meta


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, whole or damaged, the newest first."""
    names = [p.name.removeprefix("step_") for p in folder.glob("step_*")]
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)


def link(folder: Path, name: str, step: int) -> None:
    """Point `folder/<name>` at `step_<step>`; a reader sees the old link or the new one."""
    aside, target = folder / f".{name}", folder / name
    if target.is_dir() and not target.is_symlink():
        _remove(target)  # a copy of the run whose links were followed
    aside.unlink(missing_ok=True)
    aside.symlink_to(f"step_{step}")
    aside.rename(target)


class CheckpointWriter:
    """Writes the checkpoints of a run in a thread, one at a time, keeps the newest few and the best, and moves the links."""

    def __init__(self, folder: Path, keep: int | None, best_step: int | None):
        self.folder, self.keep, self.best_step = folder, keep, best_step
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="rljax-checkpoint")
        self.writing: Future[None] | None = None
        for junk in [*folder.glob(".writing_*"), *folder.glob(".removing_*")]:
            shutil.rmtree(junk, ignore_errors=True)

    @property
    def busy(self) -> bool:
        return self.writing is not None and not self.writing.done()

    def save(self, step: int, state: Any, meta: Mapping[str, Any], pending: np.ndarray, best: bool) -> None:
        """Copy the state to the host and start writing it. An error of the write before this one is raised here."""
        self.wait()
        self.writing = self.thread.submit(self._write, step, named_arrays(state), dict(meta), pending.copy(), best)

    def wait(self) -> None:
        """Return when nothing is being written.

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

    def _write(self, step: int, arrays: dict[str, np.ndarray], meta: dict[str, Any], pending: np.ndarray, best: bool) -> None:
        write_checkpoint(self.folder, step, arrays, meta, pending)
        try:
            link(self.folder, "latest", step)
            if best:
                self.best_step = step
                link(self.folder, "best", step)
            if self.keep is not None:
                # Only older ones: what lies ahead of this step is left from before a fall-back, and is written anew in time.
                older = [s for s in checkpoint_steps(self.folder) if s < step and s != self.best_step]
                for old in older[self.keep - 1 :]:
                    _remove(self.folder / f"step_{old}")
        except OSError as error:
            raise RljaxError(f"checkpoints in {self.folder}: {_reason(error)}") from error


def _remove(path: Path) -> None:
    """Renamed first, so that a kill leaves no half of it under its name."""
    doomed = path.with_name(f".removing_{path.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


@contextlib.contextmanager
def _checkpointer() -> Iterator[Any]:
    import orbax.checkpoint as ocp

    # Orbax logs an error with its traceback besides raising it; what is raised becomes our one line.
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        # For itself: where a run has several processes Orbax would have them all wait for each other.
        this = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(
            primary_host=this, active_processes={this}, barrier_sync_key_prefix=f"process{this}"
        )
        handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
        with ocp.Checkpointer(handler, multiprocessing_options=alone) as checkpointer:
            yield checkpointer
    finally:
        logger.setLevel(level)


def _sums(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and CRC-32 of every file under a folder, by its relative name."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): (p.stat().st_size, _crc(p)) for p in files}


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def describe(x: Any) -> str:
    """Dtype and shape of an array: `float32[4, 64]`."""
    return f"{x.dtype}{list(x.shape)}"


def _reason(error: BaseException) -> str:
    """The shortest true account of an error: the system's words where it has some."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        seen = seen.__cause__ or seen.__context__
    text = str(error).strip() or type(error).__name__
    full_disk = os.strerror(28)
    return full_disk if full_disk in text else text.splitlines()[0]
