"""Datasets of random numbers, in the spaces of an environment, for runs that learn from data."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

import numpy as np

import rljax
from rljax.collect.demos import DatasetInfo
from rljax.run.demos.writer import Episode, write_dataset

FOLDER = Path(tempfile.mkdtemp(prefix="rljax-tiny-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def dataset_path(env_id: str) -> str:
    """Path of the dataset that `tiny_dataset` makes: spaces ask JAX for devices, which nothing may at import."""
    return str(FOLDER / env_id)


def tiny_dataset(env_id: str, episodes: int = 6, length: int = 20) -> str:
    """A dataset of an environment with flat observations and a Discrete or Box of actions: made once in a process, and removed
    at its end."""
    path = Path(dataset_path(env_id))
    if path.exists():
        return str(path)
    env, params = rljax.make_env(env_id)
    seen, acts, rng = env.observation_space(params), env.action_space(params), np.random.default_rng(0)

    def action() -> np.ndarray:
        if hasattr(acts, "n"):
            return rng.integers(0, acts.n, length).astype(np.int32)
        return rng.uniform(acts.low, acts.high, (length, *acts.shape)).astype(np.float32)

    def episode(number: int) -> Episode:
        last = np.arange(length) == length - 1
        return Episode(
            obs=rng.normal(size=(length + 1, *seen.shape)).astype(np.float32),
            action=action(),
            mask=None,
            reward=rng.normal(size=length).astype(np.float32),
            terminated=last & (number % 2 == 0),
            truncated=last & (number % 2 == 1),
            game=number,
        )

    write_dataset(path, DatasetInfo(env_id, {}, seen, acts, False), [episode(number) for number in range(episodes)])
    return str(path)
