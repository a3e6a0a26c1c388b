"""JAX's random numbers, computed faster on CPUs: the same bits.

For CPUs JAX compiles its generator, Threefry-2x32, as a loop of five trips that carries keys and rotations along and copies them,
each trip a dozen small kernels. Most of the time of a small draw goes there. Here two trips carry the two words alone.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p
from jax.interpreters import mlir

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA

Words = tuple[jax.Array, jax.Array]


def threefry2x32(key0: jax.Array, key1: jax.Array, count0: jax.Array, count1: jax.Array) -> Words:
    """Return 64 random bits for each counter, as two words. All arrays are u32, of shapes that broadcast.

    Salmon et al. (2011), "Parallel random numbers: as easy as 1, 2, 3": 20 rounds; a part of the key is added after every four.
    """
    parts = (key0, key1, key0 ^ key1 ^ jnp.uint32(PARITY))

    # The loop comes last. XLA would compute rounds after it, or rounds without a loop, once more for each array that reads the
    # numbers, and in a chain of keys once more for each later key.
    def eight_rounds(trip: jax.Array, words: Words) -> Words:
        first, second, third = (jnp.where(trip == 0, parts[(i + 2) % 3], parts[(i + 1) % 3]) for i in range(3))
        added = 2 * trip.astype(jnp.uint32)
        x, y = _four_rounds(words, ROTATIONS[1])
        x, y = _four_rounds((x + first, y + second + added + 2), ROTATIONS[0])
        return x + second, y + third + added + 3

    x, y = _four_rounds((count0 + key0, count1 + key1), ROTATIONS[0])
    x, y = jnp.broadcast_arrays(x + parts[1], y + parts[2] + 1)
    return jax.lax.fori_loop(0, 2, eight_rounds, (x, y))


def _four_rounds(words: Words, rotations: tuple[int, ...]) -> Words:
    x, y = words
    for bits in rotations:
        x = x + y
        y = x ^ ((y << bits) | (y >> (32 - bits)))
    return x, y


def use_short_threefry() -> None:
    """Compile JAX's generator for CPUs as `threefry2x32` from now on, in this process."""
    mlir.register_lowering(threefry2x32_p, mlir.lower_fun(threefry2x32, multiple_results=True), platform="cpu", inline=False)
