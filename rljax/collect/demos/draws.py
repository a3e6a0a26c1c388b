"""Random draws of the reader: from raw bits, so that they are the same in all versions of NumPy."""

from __future__ import annotations

import zlib

import numpy as np


def raw_bits(count: int, *key: int | str) -> np.ndarray:
    """Return `count` random numbers, u64, that are a function of the key."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in key]
    bits: np.ndarray = np.random.Philox(np.random.SeedSequence(words)).random_raw(count)
    return bits


def shuffled(count: int, *key: int | str) -> np.ndarray:
    """Return the numbers `0 .. count - 1` in a random order that is a function of the key, i64 `[count]`."""
    return np.argsort(raw_bits(count, *key), kind="stable")
