"""Open a dataset of demonstrations: check its files, set episodes apart, and read its steps."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.collect.demos.draws import shuffled
from rljax.collect.demos.reading import Batches, Windows
from rljax.collect.demos.schema import (
    DATASET_FILE,
    EPISODE_LEAVES,
    FIELDS,
    STEP_LEAVES,
    WRAPPERS,
    DatasetInfo,
    leaf_path,
    read_space,
    rows_per_episode,
    stored_row,
)
from rljax.collect.demos.store import MEMORY_BUDGET, Store, npy_header
from rljax.core.environments.spaces import space_text
from rljax.core.errors import WORD_LENGTH, ConfigError, shortened, shown
from rljax.core.memory import readable_bytes
from rljax.core.places import as_path
from rljax.core.sealed import DamagedError, OtherFormatError, read_sealed

BLOCK = 2**22
"""Number of bytes that are hashed at a time."""

MAX_HELD_OUT = 64
"""Largest number of windows of held-out episodes that are measured, unless one episode has more."""


class Episodes(NamedTuple):
    """Episodes of a dataset, arrays `[E]`.

    Attributes:
        length: number of steps.
        returns: undiscounted return.
        seat: player that the episode is of; 0 in environments of one agent.
        game: number of the game, the same for all its seats.
        start: number of the first step, counted over the whole dataset.
    """

    length: np.ndarray
    returns: np.ndarray
    seat: np.ndarray
    game: np.ndarray
    start: np.ndarray


class Dataset(NamedTuple):
    """Demonstrations: whole episodes on disk, from `open_dataset`.

    Attributes:
        path: the folder.
        info: the environment, its spaces, and who acted.
        episodes: all episodes.
        held_out: numbers of the episodes that are set apart, in no training window or batch.
        digest: SHA-256 of dataset.json, which has those of all files: it changes when any of the data does.
        episodes_begun: number of episodes that the recording had begun when it last wrote.
        store: the arrays.
    """

    path: Path
    info: DatasetInfo
    episodes: Episodes
    held_out: np.ndarray
    digest: str
    episodes_begun: int
    store: Store

    @property
    def num_steps(self) -> int:
        """Number of steps of all episodes."""
        return int(self.episodes.length.sum())

    @property
    def num_episodes(self) -> int:
        return len(self.episodes.length)

    def part(self, held_out: bool = False) -> np.ndarray:
        """Return the numbers of the training episodes, or of those that are held out."""
        return self.held_out if held_out else np.setdiff1d(np.arange(self.num_episodes), self.held_out)

    def windows(self, streams: int, steps: int, *, seed: int = 0, held_out: bool = False, once: bool = False) -> Windows:
        """Return windows of S streams of T steps: `windows.read(number)` is a pure function of the seed and the number.

        Args:
            streams: number of streams S.
            steps: number of steps T.
            seed: seed of the order of episodes.
            held_out: read the episodes that are held out.
            once: read each step once, see `Windows`.

        Raises:
            ConfigError: there is no episode in this part, or a number is not allowed.
        """
        return Windows(self.store, self.info, self.episodes, self._some(held_out), streams, steps, seed, once)

    def held_out_windows(self, streams: int, steps: int, *, seed: int = 0) -> tuple[Windows, int]:
        """Return windows that read each held-out step once, and the number of them to measure: those of an epoch, but at most
        `MAX_HELD_OUT`, or as many as the longest episode has.

        Args:
            streams: number of streams S of a window.
            steps: number of steps T of a window.
            seed: seed of the order of episodes.

        Raises:
            ConfigError: no episode is held out, or a number is not allowed.
        """
        windows = self.windows(streams, steps, seed=seed, held_out=True, once=True)
        longest = int(self.episodes.length[self.held_out].max())
        return windows, min(windows.epoch_windows, max(MAX_HELD_OUT, -(-longest // steps)))

    def batches(
        self, size: int, *, count: int | None = None, seed: int = 0, gamma: float | None = None, held_out: bool = False
    ) -> Batches:
        """Return batches of random transitions: `batches.read(number)` is a pure function of the seed and the number.

        Args:
            size: number of transitions B of a batch.
            count: read so many batches at once, `[count, B, ...]`; None: one, `[B, ...]`.
            seed: seed of the draws.
            gamma: discount of `return_to_go`; None: without it.
            held_out: draw from the episodes that are held out.

        Raises:
            ConfigError: there is no episode in this part, or a number is not allowed.
        """
        return Batches(self.store, self.info, self.episodes, self._some(held_out), size, count, seed, gamma)

    def _some(self, held_out: bool) -> np.ndarray:
        episodes = self.part(held_out)
        if not len(episodes):
            raise ConfigError(f"{self.path}: no episode is {'held out' if held_out else 'left for training'}")
        return episodes

    def episode(self, number: int) -> dict[str, np.ndarray]:
        """Return one whole episode as arrays by name; those of `obs` and `mask` have a row more, that after the last step."""
        start, length = int(self.episodes.start[number]), int(self.episodes.length[number])
        found = {}
        for leaf in [leaf for leaf in self.store.names if leaf not in EPISODE_LEAVES]:
            extra = rows_per_episode(leaf)
            found[leaf] = self.store.take(leaf, np.arange(start + extra * number, start + extra * number + length + extra))
        return found

    def describe(self) -> list[str]:
        """Return lines that say what the dataset holds."""
        return list(_lines(self))


def open_dataset(
    path: str | os.PathLike[str], *, held_out: float = 0.0, verify: bool = True, budget: int = MEMORY_BUDGET
) -> Dataset:
    """Open a folder of demonstrations after checking that all of its files are as they were written.

    Args:
        path: the folder.
        held_out: share of the games (or episodes) to set apart, at least one of them if it is not 0; always the same ones.
        verify: compare the SHA-256 of every file, which reads all of them once; otherwise compare sizes only.
        budget: keep the whole dataset in memory if it has at most so many bytes; read from a larger one what is needed.

    Raises:
        ConfigError: there is no dataset, it has another format, or a file is missing, cut short, altered or foreign.
    """
    folder = as_path(path, "path")
    table = read_table(folder)
    shards, leaves = table["shards"], table["leaves"]
    if not shards:
        raise ConfigError(f"{folder}: this dataset has no episode yet")
    for number, shard in enumerate(shards):
        _check_shard(folder, number, shard, leaves, verify)
    rows = {leaf: [_rows_of(leaf, shard) for shard in shards] for leaf in leaves}
    store = Store(folder, leaves, rows, budget)
    length, returns, seat, game = (store.whole(leaf) for leaf in EPISODE_LEAVES)
    per_shard = np.split(length, np.cumsum([shard["episodes"] for shard in shards])[:-1])
    if (length < 1).any() or any(part.sum() != shard["steps"] for part, shard in zip(per_shard, shards, strict=True)):
        raise ConfigError(f"{folder} is damaged: the lengths of its episodes are not those of its shards")
    episodes = Episodes(length, returns, seat, game, np.cumsum(length) - length)
    digest = hashlib.sha256((folder / DATASET_FILE).read_bytes()).hexdigest()
    return Dataset(folder, info_of(table), episodes, _set_apart(folder, game, held_out), digest, table["episodes_begun"], store)


def info_of(table: dict[str, Any]) -> DatasetInfo:
    """Return what a dataset.json says about the steps."""
    observation, action = read_space(table["observation_space"]), read_space(table["action_space"])
    return DatasetInfo(table["env"], table["env_params"], observation, action, table["masks"], table["recorded"])


def read_table(folder: Path) -> dict[str, Any]:
    """Read the dataset.json of a folder.

    Raises:
        ConfigError: there is none, it is damaged, or it has another format.
    """
    file = folder / DATASET_FILE
    try:
        table = read_sealed(file, FIELDS)
    except FileNotFoundError:
        raise ConfigError(f"{folder}: no dataset there (no {DATASET_FILE})") from None
    except NotADirectoryError:
        raise ConfigError(f"{folder}: is a file, expected the folder of a dataset") from None
    except DamagedError as error:
        raise ConfigError(f"{file} is damaged, or not of a dataset: {error}") from None
    except OtherFormatError as error:
        raise ConfigError(
            f"{file} has format {shown(error.format)} (rljax {error.version}): this version of rljax reads format 1"
        ) from None
    missing = {*EPISODE_LEAVES, *STEP_LEAVES} - set(table["leaves"])
    if missing and table["shards"]:
        raise ConfigError(f"{file} is damaged, or not of a dataset: it has no array {min(missing)}")
    return table


def _rows_of(leaf: str, shard: dict[str, Any]) -> int:
    if leaf in EPISODE_LEAVES:
        return int(shard["episodes"])
    return int(shard["steps"] + rows_per_episode(leaf) * shard["episodes"])


def _check_shard(folder: Path, number: int, shard: dict[str, Any], leaves: dict[str, Any], verify: bool) -> None:
    """Check the files of a shard: their sizes, their headers, and their SHA-256 if `verify`."""
    if set(shard["files"]) != set(leaves):
        raise ConfigError(f"{folder / DATASET_FILE} is damaged: shard {number} has other arrays than the dataset")
    for leaf, (size, digest) in shard["files"].items():
        path = leaf_path(folder, number, leaf)
        try:
            found = path.stat().st_size
            if found != size:
                raise ConfigError(f"{path} is damaged: it has {found} bytes, expected {size}")
            with path.open("rb") as file:
                if verify and hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    raise ConfigError(f"{path} is damaged: its SHA-256 is not that in {DATASET_FILE}")
                file.seek(0)
                shape, dtype, _ = npy_header(file)
        except FileNotFoundError:
            raise ConfigError(f"{path} is missing") from None
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{path} is no array of NumPy: {error}") from None
        row, wanted_dtype = stored_row(*leaves[leaf])
        wanted = (_rows_of(leaf, shard), *row)
        if shape != wanted or dtype != wanted_dtype:
            raise ConfigError(f"{path}: has {dtype}{list(shape)}, expected {wanted_dtype}{list(wanted)}")


def _set_apart(folder: Path, game: np.ndarray, held_out: float) -> np.ndarray:
    """Return the episodes of a share of the games, drawn once and for all: those of one game stay together."""
    if isinstance(held_out, bool) or not isinstance(held_out, (int, float)) or not 0.0 <= held_out < 1.0:
        raise ConfigError(f"held_out = {shown(held_out)}: expected a share from 0 (none) to less than 1")
    if not held_out:
        return np.zeros(0, np.int64)
    games = np.unique(game)
    count = max(1, round(held_out * len(games)))
    if count >= len(games):
        raise ConfigError(f"held_out = {held_out}: sets all {len(games)} games of {folder} apart, so none is left for training")
    return np.flatnonzero(np.isin(game, games[shuffled(len(games), "held out")[:count]]))


def _lines(dataset: Dataset) -> Iterator[str]:
    info, episodes = dataset.info, dataset.episodes
    params = "".join(f", {name} = {value}" for name, value in {**info.env_params, **info.wrappers}.items())
    yield f"environment  {info.env}{params}"
    how = {name: value for name, value in info.recorded.items() if name != WRAPPERS and value not in (None, False, 0)}
    yield f"recorded     {', '.join(f'{name} {value}' for name, value in how.items())}"
    yield f"episodes     {dataset.num_episodes:,}, of {dataset.num_steps:,} steps, {readable_bytes(dataset.store.total_bytes)}"
    if dataset.episodes_begun < (wanted := info.recorded.get("num_episodes", 0)):
        yield f"incomplete   {dataset.episodes_begun:,} of {wanted:,} episodes were recorded; --resume records the others"
    for seat in np.unique(episodes.seat):
        own = episodes.seat == seat
        name = f"seat {seat}" if len(np.unique(episodes.seat)) > 1 else "return"
        returns, lengths = episodes.returns[own], episodes.length[own]
        spread = f"{returns.min():.6g} to {returns.max():.6g}"
        yield f"{name:12} {returns.mean():.6g} on average ({spread}), in {lengths.mean():.1f} steps"
    yield f"observation  {shortened(space_text(info.observation_space), WORD_LENGTH)}"
    yield f"action       {shortened(space_text(info.action_space))}{', with masks' if info.masks else ''}"
