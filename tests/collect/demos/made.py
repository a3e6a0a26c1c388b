"""Episodes made of numbers that say which they are, and a dataset of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rljax.collect.demos import DatasetInfo
from rljax.core.environments.spaces import Box, Dict, Discrete
from rljax.run.demos.writer import Episode, write_dataset

INFO = DatasetInfo(
    env="Made-v0",
    env_params={"size": 3},
    observation_space=Dict({"place": Box(-np.inf, np.inf, (2,)), "picture": Box(0, 255, (2, 2, 1), np.uint8)}),
    action_space=Discrete(5),
    masks=True,
    recorded={"player": "counting"},
)


def episodes(count: int, seed: int = 0, longest: int = 9, seats: int = 1) -> list[Episode]:
    """Return episodes of random lengths. Observation `place` is (number of the episode, number of the step)."""
    rng = np.random.default_rng(seed)
    return [episode(number, int(rng.integers(1, longest + 1)), rng, number % seats, number // seats) for number in range(count)]


def episode(number: int, length: int, rng: np.random.Generator, seat: int = 0, game: int = 0) -> Episode:
    last = np.arange(length) == length - 1
    return Episode(
        obs={
            "place": np.stack([np.full(length + 1, number), np.arange(length + 1)], -1).astype(np.float32),
            "picture": rng.integers(0, 255, (length + 1, 2, 2, 1)).astype(np.uint8),
        },
        action=rng.integers(0, 5, length).astype(np.int32),
        mask=rng.random((length + 1, 5)) < 0.5,
        reward=rng.normal(size=length).astype(np.float32),
        terminated=last & (number % 3 > 0),
        truncated=last & (number % 3 == 0),
        seat=seat,
        game=game,
    )


def made(path: Path, count: int = 20, shard_bytes: int = 600, **changes: int) -> list[Episode]:
    """Write a dataset of several shards; return its episodes."""
    found = episodes(count, **changes)
    write_dataset(path, INFO, found, shard_bytes)
    return found
