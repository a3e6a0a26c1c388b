"""Write datasets of demonstrations: whole shards, one after the other, so that a kill leaves a dataset that can be read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.collect.demos.dataset import open_dataset, read_table
from rljax.collect.demos.schema import (
    BITS,
    DATASET_FILE,
    DTYPES,
    EPISODE_LEAVES,
    SHARDS,
    DatasetInfo,
    named_leaves,
    space_table,
    tree_of,
)
from rljax.core.errors import ConfigError, shown
from rljax.core.places import LOCK_FILE, atomic_folder, lock_folder
from rljax.core.sealed import FORMAT, seal
from rljax.run.files.outputs import atomic_file
from rljax.version import __version__

SHARD_BYTES = 64 * 2**20
"""Size of a shard: one is written when the episodes at hand have so many bytes, or the recording pauses."""

_STORED_AS = {"float64": "float32", "bfloat16": "float32", "int64": "int32", "uint64": "uint32"}


class Episode(NamedTuple):
    """One whole episode, of one player.

    Attributes:
        obs: observations, leaves `[L + 1, ...]`: that after the last step is the last one.
        action: actions, leaves `[L, ...]`.
        mask: legal actions at the observations, bool `[L + 1, A]`; None without masks.
        reward: f32 `[L]`.
        terminated: whether the episode terminated with the step, bool `[L]`.
        truncated: whether it was cut with the step, bool `[L]`.
        seat: player of a game.
        game: number of the game, the same for all its seats.
    """

    obs: Any
    action: Any
    mask: Any
    reward: Any
    terminated: Any
    truncated: Any
    seat: int = 0
    game: int = 0


class DatasetWriter:
    """Dataset that is being written, from `new_dataset` or `continued_dataset`.

    Attributes:
        table: contents of dataset.json.
    """

    def __init__(self, path: Path, table: dict[str, Any], info: DatasetInfo, shard_bytes: int = SHARD_BYTES):
        self.path, self.table, self._info, self._shard_bytes = path, table, info, shard_bytes
        self._episodes: list[dict[str, np.ndarray]] = []
        self._bytes = 0
        self._shards: list[dict[str, Any]] = []
        self._waiting = (0, 0)

    @property
    def num_episodes(self) -> int:
        """Number of episodes in shards that dataset.json lists."""
        return sum(shard["episodes"] for shard in self.table["shards"])

    def add(self, episode: Episode) -> None:
        """Add an episode; a shard is written when there are enough of them.

        Raises:
            ConfigError: it does not have the arrays that the dataset's spaces and its first episode have, or one has a dtype
                that no dataset holds.
        """
        arrays = _arrays_of(episode, self._info)
        for name, x in arrays.items():
            if x.dtype.name not in DTYPES:
                raise ConfigError(f"{self.path}: {name} is {x.dtype.name}, expected one of {', '.join(DTYPES)}")
        leaves = {name: [list(x.shape[1:]), x.dtype.name] for name, x in arrays.items()}
        if self._info.masks:
            leaves["mask"][1] = BITS
            arrays["mask"] = np.packbits(arrays["mask"], axis=-1)
        self.table["leaves"] = self.table["leaves"] or leaves
        if leaves != self.table["leaves"]:
            different = next(n for n in {**leaves, **self.table["leaves"]} if leaves.get(n) != self.table["leaves"].get(n))
            was, now = self.table["leaves"].get(different), leaves.get(different)
            raise ConfigError(f"{self.path}: {different} is {now} in this episode, and {was} in those before")
        self._episodes.append(arrays)
        self._bytes += sum(x.nbytes for x in arrays.values())
        if self._bytes >= self._shard_bytes:
            self._write_shard()

    def commit(self, episodes_begun: int, *, last: bool = True) -> None:
        """List all episodes in dataset.json that belong to the first `episodes_begun` ones.

        Args:
            episodes_begun: number of episodes begun by now; a continued recording goes on after them.
            last: also write the episodes at hand if they do not fill a shard; otherwise wait for more if there are few.
        """
        if not last and not self._shards and self._bytes < self._shard_bytes // 16:
            self._waiting = (episodes_begun, len(self._episodes))
            return
        if self._episodes:
            self._write_shard()
        self.table["shards"] += self._shards
        self.table["episodes_begun"] = episodes_begun
        self._shards, self._waiting = [], (0, 0)
        write_table(self.path, self.table)

    def keep(self) -> None:
        """List the episodes that wait since a `commit` for more, and drop those that were added since: the recording stops."""
        begun, count = self._waiting
        if count and not self._shards:
            del self._episodes[count:]
            self.commit(begun)

    def _write_shard(self) -> None:
        number = len(self.table["shards"]) + len(self._shards)
        folder = self.path / SHARDS / f"{number:05}"
        if folder.exists():
            shutil.rmtree(folder)  # written, but not listed, before a kill
        arrays = {leaf: np.concatenate([episode[leaf] for episode in self._episodes]) for leaf in self._episodes[0]}
        files = {}
        try:
            with atomic_folder(folder) as aside:
                for leaf, array in arrays.items():
                    files[leaf] = _write_array(aside / f"{leaf}.npy", array)
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be written: {error.strerror or error}") from error
        (folder / LOCK_FILE).unlink(missing_ok=True)
        self._shards.append({"steps": len(arrays["reward"]), "episodes": len(self._episodes), "files": files})
        self._episodes, self._bytes = [], 0


def write_table(path: Path, table: dict[str, Any]) -> None:
    """Write dataset.json atomically."""
    with atomic_file(path / DATASET_FILE) as aside:
        aside.write_text(seal(table), encoding="utf-8")


def _write_array(path: Path, array: np.ndarray) -> list[Any]:
    """Write an array to the disk; return its size and SHA-256."""
    with path.open("w+b") as file:
        np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        return [os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def _arrays_of(episode: Episode, info: DatasetInfo) -> dict[str, np.ndarray]:
    """Return the rows of an episode for each leaf."""
    length = len(episode.reward)
    arrays = named_leaves("obs", episode.obs) | named_leaves("action", episode.action)
    for name, space in (("obs", info.observation_space), ("action", info.action_space)):
        try:
            tree_of(name, space, arrays)
        except KeyError as error:
            raise ConfigError(f"{info.env}: its {name} lacks {error.args[0]}, which its space has") from None
    if info.masks:
        arrays["mask"] = episode.mask
    arrays |= {"reward": episode.reward, "terminated": episode.terminated, "truncated": episode.truncated}
    arrays = {name: np.asarray(x) for name, x in arrays.items()}
    arrays = {name: x.astype(_STORED_AS.get(x.dtype.name, x.dtype), copy=False) for name, x in arrays.items()}
    of_episode = {
        "length": length, "return": arrays["reward"].sum(dtype=np.float64), "seat": episode.seat, "game": episode.game
    }  # fmt: skip
    return arrays | {name: np.array([of_episode[name]], dtype) for name, dtype in EPISODE_LEAVES.items()}


def _table(info: DatasetInfo) -> dict[str, Any]:
    """Return the dataset.json of a dataset without episodes."""
    return {
        FORMAT: 1,
        "rljax": __version__,
        "kind": "demonstrations",
        "env": info.env,
        "env_params": info.env_params,
        "observation_space": space_table(info.observation_space),
        "action_space": space_table(info.action_space),
        "masks": info.masks,
        "recorded": info.recorded,
        "episodes_begun": 0,
        "leaves": {},
        "shards": [],
    }


@contextlib.contextmanager
def new_dataset(path: str | os.PathLike[str], info: DatasetInfo, shard_bytes: int = SHARD_BYTES) -> Iterator[DatasetWriter]:
    """Create a dataset and yield its writer; no other process may write there meanwhile.

    Raises:
        ConfigError: there is something at the path already (nothing is touched), or it cannot be written.
    """
    folder, table = Path(path), _table(info)
    if os.path.lexists(folder):
        raise ConfigError(f"{folder} exists already: choose another folder, delete it, or continue its recording with --resume")
    try:
        with atomic_folder(folder) as aside:
            (aside / SHARDS).mkdir()
            write_table(aside, table)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made: {error.strerror or error}") from error
    try:
        with lock_folder(folder, f"dataset {folder}", "another process is recording there"):
            yield DatasetWriter(folder, table, info, shard_bytes)
    except BaseException:
        if not table["shards"]:
            shutil.rmtree(folder, ignore_errors=True)  # nothing is lost
        raise


@contextlib.contextmanager
def continued_dataset(path: str | os.PathLike[str], info: DatasetInfo, shard_bytes: int = SHARD_BYTES) -> Iterator[DatasetWriter]:
    """Yield the writer of a dataset whose recording was stopped; its shards are checked first.

    Raises:
        ConfigError: there is no dataset, it is damaged, it was begun in another way, or another process is recording there.
    """
    folder = Path(path)
    with lock_folder(folder, f"dataset {folder}", "another process is recording there"):
        table = read_table(folder)
        _check_same(folder, table, json.loads(json.dumps(_table(info))))
        if table["shards"]:
            open_dataset(folder)
        yield DatasetWriter(folder, table, info, shard_bytes)


def _check_same(folder: Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    """Refuse to continue a recording in another way than it was begun."""
    for table, other in ((there["recorded"], here["recorded"]), (there, here)):
        for name in table | other:
            was, now = table.get(name), other.get(name)
            if name not in ("rljax", "recorded", "episodes_begun", "leaves", "shards") and was != now:
                raise ConfigError(f"{folder}: was begun with {name} = {shown(was)}, and cannot go on with {shown(now)}")


def write_dataset(
    path: str | os.PathLike[str], info: DatasetInfo, episodes: Sequence[Episode], shard_bytes: int = SHARD_BYTES
) -> Path:
    """Write a dataset of given episodes; return its folder.

    Raises:
        ConfigError: as for `new_dataset`, or an episode does not fit the spaces.
    """
    with new_dataset(path, info, shard_bytes) as writer:
        for episode in episodes:
            writer.add(episode)
        writer.commit(len(episodes))
    return Path(path)
