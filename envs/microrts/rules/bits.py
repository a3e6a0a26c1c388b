"""Planes of bits over the cells, packed into bytes: eight of them are computed, moved and counted at once.

Bit `i % 8` of byte `i // 8` belongs to plane `i`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from rljax.envs.microrts.rules.layout import once

_BITS = (1 << np.arange(8)).astype(np.uint8)


def pack(planes: Sequence[jax.Array]) -> list[jax.Array]:
    """Return n planes, bool `[...]` each, as `ceil(n / 8)` arrays of bytes, u8 `[...]`."""
    packed = []
    for start in range(0, len(planes), 8):
        byte = jnp.zeros(planes[0].shape, jnp.uint8)
        for bit, plane in zip(_BITS, planes[start : start + 8], strict=False):
            byte |= jnp.where(plane, bit, np.uint8(0))
        packed.append(byte)
    return packed


def words(packed: Sequence[jax.Array]) -> list[jax.Array]:
    """Return packed bytes in fewer arrays, u32 `[...]`: four bytes in each, the first in the lowest bits."""
    return [_word(packed[start : start + 4]) for start in range(0, len(packed), 4)]


def _word(packed: Sequence[jax.Array]) -> jax.Array:
    word = packed[0].astype(jnp.uint32)
    for number, byte in enumerate(packed[1:], start=1):
        word |= byte.astype(jnp.uint32) << 8 * number
    return once(word)


def unpack(words: Sequence[jax.Array], size: int) -> jax.Array:
    """Return the planes of words as the last axis, bool `[..., size]`."""
    word, bit = np.divmod(np.arange(size), 32)
    # Each plane is a constant bit of one word: to choose the word and to shift its bit down takes twice as long.
    found = [x[..., None] & np.where(word == i, 1 << bit, 0).astype(np.uint32) for i, x in enumerate(words)]
    return functools.reduce(jnp.bitwise_or, found) != 0


def is_set(packed: Sequence[jax.Array], number: jax.Array) -> jax.Array:
    """Return whether the bit of plane `number`, i8 `[...]`, is set, bool `[...]`; False where there is no such plane."""
    byte = jnp.zeros_like(packed[0])
    for index, other in enumerate(packed):
        byte = jnp.where(number >> 3 == index, other, byte)
    return byte >> (number & 7).astype(jnp.uint8) & 1 > 0


def count(packed: Sequence[jax.Array]) -> jax.Array:
    """Return how many bits are set, u8 `[...]`."""
    return sum((jax.lax.population_count(byte) for byte in packed[1:]), jax.lax.population_count(packed[0]))


def nth(packed: Sequence[jax.Array], n: jax.Array) -> jax.Array:
    """Return the number of the plane of the n-th bit that is set, u8 `[...]`.

    `n`, u8 `[...]`, counts from 0 and is less than `count`.
    """
    before = jnp.zeros_like(n)
    byte, first, skipped = packed[0], before, before
    for number, later in enumerate(packed[1:], start=1):
        before += jax.lax.population_count(packed[number - 1])
        beyond = n >= before
        byte, first = jnp.where(beyond, later, byte), jnp.where(beyond, np.uint8(8 * number), first)
        skipped = jnp.where(beyond, before, skipped)
    n, seen = n - skipped, jnp.zeros_like(n)
    for bit in _BITS:
        seen += (byte & bit > 0).astype(jnp.uint8)
        first += (seen <= n).astype(jnp.uint8)
    return first
