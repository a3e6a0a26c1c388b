"""Planes of bits over the cells, packed into bytes: eight of them are computed, moved and counted at once.

Bit `i % 8` of byte `i // 8` belongs to plane `i`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

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


def unpack(packed: Sequence[jax.Array], size: int) -> jax.Array:
    """Return the planes of packed bytes as the last axis, bool `[..., size]`."""
    index = np.arange(size)
    byte = packed[0][..., None]
    for number, later in enumerate(packed[1:], start=1):
        byte = jnp.where(index >= 8 * number, later[..., None], byte)
    return byte & _BITS[index % 8] > 0


def count(packed: Sequence[jax.Array]) -> jax.Array:
    """Return how many bits are set, u8 `[...]`."""
    return sum((jax.lax.population_count(byte) for byte in packed[1:]), jax.lax.population_count(packed[0]))


def nth(packed: Sequence[jax.Array], n: jax.Array) -> jax.Array:
    """Return the number of the plane of the n-th bit that is set, u8 `[...]`; `n` u8 `[...]` counts from 0 and is below `count`."""
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
