"""Mean and variance of the observations of a dataset."""

from __future__ import annotations

from typing import Any

import numpy as np

from rljax.collect.demos.dataset import Dataset
from rljax.collect.demos.reading import frames_taken
from rljax.collect.demos.schema import tree_of
from rljax.collect.normalizers import RunningStatistics

BLOCK_ROWS = 2**14
"""Number of observations that are read at a time."""


def observation_statistics(dataset: Dataset) -> RunningStatistics:
    """Return mean and population variance of all observations, those after last steps included, for `normalize`.

    All observations are read once.
    """
    store, start, length = dataset.store, dataset.episodes.start, dataset.episodes.length
    first_rows = np.repeat(start + np.arange(len(start)), length + 1)
    leaves = [leaf for leaf in store.names if leaf == "obs" or leaf.startswith("obs.")]
    rows = dataset.num_steps + dataset.num_episodes
    means, variances = {}, {}
    for leaf in leaves:
        total, squares = np.zeros(()), np.zeros(())
        for first in range(0, rows, BLOCK_ROWS):
            block_rows = np.arange(first, min(first + BLOCK_ROWS, rows))
            block = frames_taken(store, leaf, block_rows, first_rows[block_rows], dataset.info.frames).astype(np.float64)
            total, squares = total + block.sum(0), squares + np.square(block).sum(0)
        means[leaf] = np.float32(total / rows)
        # The difference may be below 0 by rounding.
        variances[leaf] = np.float32(np.maximum(squares / rows - np.square(total / rows), 0.0))
    mean, var = (tree_of("obs", dataset.info.observation_space, of) for of in (means, variances))
    # All in NumPy: the first to ask may be a trace, whose arrays end with it, and what it finds is kept.
    count: Any = np.float32(rows)
    return RunningStatistics(mean, var, count)
