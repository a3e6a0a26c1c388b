"""Data of a dataset inside a compiled step: a callback to the host, with a thread that reads ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rljax.collect.demos import Dataset, Transitions, Window
from rljax.collect.rollout import episode_means, episode_totals
from rljax.core.agent import Metrics
from rljax.core.devices import on_all_devices
from rljax.core.errors import check_int
from rljax.core.host import WAITING

READ_AHEAD = 4
"""Number of windows or batches that are read before they are asked for: those of so many iterations are in memory."""


class Source(Protocol):
    """Data that is a pure function of a number, such as `Windows` and `Batches` of a dataset."""

    @property
    def example(self) -> Any:
        """Shapes and dtypes of what `read` returns."""

    def read(self, number: int) -> Any:
        """Return a tree of NumPy arrays."""


class ReadAhead:
    """Reads of a source, in order, by a thread that is a few of them ahead.

    Args:
        source: the data.
        ahead: number of reads that are kept ready.
    """

    def __init__(self, source: Source, ahead: int = READ_AHEAD):
        check_int("feed", 1, ahead=ahead)
        self.source, self.ahead = source, ahead
        self._pool: ThreadPoolExecutor | None = None
        self._ready: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()

    def read(self, number: int) -> Any:
        """Return the data of a number; that of the next ones is read meanwhile.

        Raises:
            RljaxError: a file has vanished or changed.
        """
        with WAITING.during("data"):
            with self._lock:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(1, "rljax-data")
                kept = range(number, number + self.ahead + 1)
                for dropped in self._ready.keys() - set(kept):
                    self._ready.pop(dropped).cancel()
                for wanted in kept:
                    if wanted not in self._ready:
                        self._ready[wanted] = self._pool.submit(self.source.read, wanted)
                found = self._ready.pop(number)
            return found.result()


def make_feed(source: Source, ahead: int = READ_AHEAD) -> Callable[[jax.Array], Any]:
    """Return a function from the number of an iteration to the data of a source, for use inside jit, scan and vmap.

    The data is a pure function of the number, so a resumed run reads the same, and nothing of it is in the state. A thread reads
    the next `ahead` pieces while the device computes. Under vmap all runs get the same data, without copies of it: their
    numbers are equal, but for runs that have stopped, whose numbers stay behind.

    Args:
        source: the data, such as `dataset.windows(...)`.
        ahead: number of pieces that are read ahead, and so held in memory.

    Returns:
        `feed(number i32 []) -> tree of arrays`, like `source.read(number)`.
    """
    reader = ReadAhead(source, ahead)
    leaves, structure = jax.tree.flatten(source.example)

    def read(number: Any) -> list[np.ndarray]:
        return [np.ascontiguousarray(x) for x in jax.tree.leaves(reader.read(int(number)))]

    @jax.custom_batching.custom_vmap
    def fetch(number: jax.Array) -> list[jax.Array]:
        found = jax.pure_callback(read, leaves, number)
        # The callback's results are on the first device; XLA copies them to all before it splits them, and warns if not told to.
        return on_all_devices(found)

    @fetch.def_vmap
    def fetch_once(_size: int, _batched: Any, number: jax.Array) -> tuple[list[jax.Array], list[bool]]:
        return fetch(jnp.max(number)), [False] * len(leaves)

    return lambda number: jax.tree.unflatten(structure, fetch(number))


def demonstrated(dataset: Dataset, steps: Window | Transitions) -> Metrics:
    """Return the mean return and length of the demonstrations that ended in steps of a dataset, and their number."""
    episodes = dataset.episodes
    returns, lengths = (jnp.asarray(x, jnp.float32)[steps.episode] for x in (episodes.returns, episodes.length))
    return episode_means(episode_totals(steps.terminated | steps.truncated, returns, lengths))
