"""JAX's random numbers, computed faster on CPUs: the same bits.

For CPUs JAX compiles its generator, Threefry-2x32, as a loop of five trips, each of which starts a dozen small kernels. Most of
the time of a small draw goes there. Written out, as JAX compiles it for accelerators, the generator is one kernel, together with
what reads its numbers.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p
from jax.interpreters import mlir

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def threefry2x32(key0: jax.Array, key1: jax.Array, count0: jax.Array, count1: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return 64 random bits for each counter, as two words. All arrays are u32, of shapes that broadcast.

    Salmon et al. (2011), "Parallel random numbers: as easy as 1, 2, 3": 20 rounds, a part of the key added after every four.
    """
    keys = (key0, key1, key0 ^ key1 ^ jnp.uint32(PARITY))
    x, y = count0 + key0, count1 + key1
    for group in range(5):
        for bits in ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << bits) | (y >> (32 - bits)))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y


def write_out_threefry() -> None:
    """Compile JAX's generator for CPUs without its loop from now on, in this process."""
    mlir.register_lowering(threefry2x32_p, mlir.lower_fun(threefry2x32, multiple_results=True), platform="cpu", inline=False)
