"""Rows of a dataset's arrays: from memory if all of it fits into the budget, else read from the files where they are needed.

Files are read, not mapped: a mapped file that is cut short kills the process that reads it.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.collect.demos.schema import BITS, leaf_path, stored_row
from rljax.core.errors import RljaxError

MEMORY_BUDGET = 2**30
"""Largest size in bytes of a dataset that is kept in memory as a whole."""

MAX_OPEN = 128
"""Largest number of files that are open at a time."""


class Store:
    """Arrays of all shards, each as if it were one.

    Args:
        folder: the dataset.
        leaves: shape of a row and dtype of each array.
        rows: number of rows of each array in each shard.
        budget: keep the whole dataset in memory if it has at most so many bytes.
    """

    def __init__(
        self, folder: Path, leaves: Mapping[str, tuple[tuple[int, ...], str]], rows: Mapping[str, Sequence[int]], budget: int
    ):
        self.folder = folder
        self._leaves = {name: stored_row(shape, dtype) for name, (shape, dtype) in leaves.items()}
        self._bits = {name: shape[-1] for name, (shape, dtype) in leaves.items() if dtype == BITS}
        self._starts = {name: np.cumsum([0, *counts]) for name, counts in rows.items()}
        sizes = [int(self._starts[name][-1]) * self.row_bytes(name) for name in leaves]
        self.total_bytes = sum(sizes)
        self.in_memory = self.total_bytes <= budget
        self._lock = threading.Lock()  # training and held-out episodes may be read by two threads
        self._whole: dict[str, np.ndarray] = {}
        self._open: dict[tuple[str, int], tuple[Any, int]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays."""
        return tuple(self._leaves)

    def row_bytes(self, leaf: str) -> int:
        shape, dtype = self._leaves[leaf]
        return math.prod(shape) * dtype.itemsize

    def whole(self, leaf: str) -> np.ndarray:
        """Return the whole array as it is stored, `[rows, ...]`, and keep it if the dataset is kept in memory.

        Raises:
            RljaxError: a file has vanished or changed since the dataset was opened.
        """
        if leaf in self._whole:
            return self._whole[leaf]
        counts = np.diff(self._starts[leaf])
        shape, dtype = self._leaves[leaf]
        array = np.empty((int(counts.sum()), *shape), dtype)
        for shard, (start, count) in enumerate(zip(self._starts[leaf], counts, strict=False)):
            self._read(leaf, shard, 0, array[start : start + count])
        if self.in_memory:
            self._whole[leaf] = array
        return array

    def take(self, leaf: str, rows: np.ndarray) -> np.ndarray:
        """Return rows of an array, `[*rows.shape, ...]`."""
        found = self.whole(leaf)[rows] if self.in_memory else self._gather(leaf, rows)
        return np.unpackbits(found, axis=-1, count=self._bits[leaf]).view(bool) if leaf in self._bits else found

    def _gather(self, leaf: str, rows: np.ndarray) -> np.ndarray:
        """Read rows from the files, each of them once, and those that follow each other together."""
        wanted, places = np.unique(rows, return_inverse=True)
        shape, dtype = self._leaves[leaf]
        found, starts = np.empty((len(wanted), *shape), dtype), self._starts[leaf]
        shards = np.searchsorted(starts, wanted, side="right") - 1
        cuts = np.flatnonzero((np.diff(wanted) != 1) | (np.diff(shards) != 0)) + 1
        for first, end in itertools.pairwise([0, *cuts.tolist(), len(wanted)]):
            shard = int(shards[first])
            self._read(
                leaf, shard, int(wanted[first] - starts[shard]), found[first:end], first == 0 or shard != shards[first - 1]
            )
        return found[places.reshape(rows.shape)]

    def _read(self, leaf: str, shard: int, row: int, into: np.ndarray, check: bool = True) -> None:
        """Fill a contiguous array with rows of a shard, from `row` on; `check` first that an open file is still there."""
        got, left = 0, into.data.cast("B") if into.nbytes else memoryview(b"")
        try:
            with self._lock:
                file, offset = self._file(leaf, shard, check)
                file.seek(offset + row * self.row_bytes(leaf))
                while len(left) and (got := file.readinto(left)):
                    left = left[got:]
        except (OSError, ValueError) as error:
            raise self._lost(leaf, shard, getattr(error, "strerror", None) or error) from None
        if len(left):
            raise self._lost(leaf, shard, "it has become shorter")

    def _lost(self, leaf: str, shard: int, why: object) -> RljaxError:
        return RljaxError(f"{leaf_path(self.folder, shard, leaf)}: cannot be read any more: {why}")

    def _file(self, leaf: str, shard: int, check: bool) -> tuple[Any, int]:
        """Return an open file, and where its rows begin; the file that was opened first is closed if there are too many."""
        place = (leaf, shard)
        if place in self._open:
            file, offset = self._open[place]
            if not check or os.fstat(file.fileno()).st_nlink:
                return file, offset
            del self._open[place]
        while len(self._open) >= MAX_OPEN:
            self._open.pop(next(iter(self._open)))[0].close()
        file = leaf_path(self.folder, shard, leaf).open("rb", buffering=0)
        self._open[place] = (file, npy_header(file)[2])
        return self._open[place]

    def close(self) -> None:
        for file, _ in self._open.values():
            file.close()
        self._open.clear()


def npy_header(file: Any) -> tuple[tuple[int, ...], np.dtype, int]:
    """Return the shape and dtype of an open .npy file, and where its data begins.

    Raises:
        ValueError: it is not such a file, or not in C order.
    """
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if fortran:
        raise ValueError("it is not in C order")
    return shape, dtype, file.tell()
