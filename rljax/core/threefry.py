"""JAX's random numbers, computed faster on CPUs: the same bits.

For CPUs JAX compiles its generator, Threefry-2x32, as a loop of five trips that carries keys and rotations along and copies them,
each trip a dozen small kernels. Most of the time of a small draw goes there, and a fifth of the time in which a small agent's
program is compiled. Here a draw is one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core.primitives import random_bits_p, random_fold_in_p, random_split_p
from jax.extend.random import threefry2x32_p
from jax.interpreters import mlir

try:
    from jax.experimental.xla_metadata import xla_metadata_call  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # JAX before 0.11
    from jax.experimental.scheduling_groups import xla_metadata_call

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def threefry2x32(key0: jax.Array, key1: jax.Array, count0: jax.Array, count1: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return 64 random bits for each counter, as two words. All arrays are u32, of shapes that broadcast.

    Salmon et al. (2011), "Parallel random numbers: as easy as 1, 2, 3": 20 rounds; a part of the key is added after every four.
    """
    parts = (key0, key1, key0 ^ key1 ^ jnp.uint32(PARITY))
    x, y = count0 + key0, count1 + key1
    for i in range(5):
        for bits in ROTATIONS[i % 2]:
            x = x + y
            y = x ^ ((y << bits) | (y >> (32 - bits)))
        x, y = x + parts[(i + 1) % 3], y + parts[(i + 2) % 3] + jnp.uint32(i + 1)
    x, y = jnp.broadcast_arrays(x, y)
    return x, y


def use_short_threefry() -> None:
    """Compile JAX's draws for CPUs with `threefry2x32` from now on, in this process."""
    for primitive, rule in ((random_bits_p, _bits), (random_split_p, _split), (random_fold_in_p, _fold_in)):
        mlir.register_lowering(primitive, mlir.lower_fun(rule, multiple_results=False), platform="cpu")
    mlir.register_lowering(threefry2x32_p, mlir.lower_fun(threefry2x32, multiple_results=True), platform="cpu")


def _bits(keys: jax.Array, *, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    draw = partial(_generator(keys).random_bits, bit_width=bit_width, shape=shape)
    return _drawn_once(_for_each(keys.ndim, draw))(jax.random.key_data(keys))


def _split(keys: jax.Array, *, shape: tuple[int, ...]) -> jax.Array:
    split = partial(_generator(keys).split, shape=shape)
    words = _drawn_once(_for_each(keys.ndim, split))(jax.random.key_data(keys))
    return jax.random.wrap_key_data(words, impl=jax.random.key_impl(keys))


def _fold_in(keys: jax.Array, numbers: jax.Array) -> jax.Array:
    fold_in, shape = _generator(keys).fold_in, jnp.broadcast_shapes(keys.shape, numbers.shape)
    # What only one of the two has is not broadcast: some generators would draw other numbers.
    own = [[axis for axis in range(x.ndim) if x.shape[axis] == shape[axis]] for x in (keys, numbers)]
    for axis in reversed(range(len(shape))):
        fold_in = jax.vmap(fold_in, [0 if axis in axes else None for axes in own])
    of_keys, of_numbers = ([shape[axis] for axis in axes] for axes in own)
    data = jax.random.key_data(keys)
    words = _drawn_once(fold_in)(data.reshape(*of_keys, *data.shape[keys.ndim :]), numbers.reshape(of_numbers))
    return jax.random.wrap_key_data(words, impl=jax.random.key_impl(keys))


def _generator(keys: jax.Array) -> Any:
    """Return JAX's functions `split`, `fold_in` and `random_bits` of one key, as they are for this type of keys."""
    return keys.dtype._impl  # type: ignore[attr-defined]


def _for_each(ndim: int, function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    for _ in range(ndim):
        function = jax.vmap(function)
    return function


def _drawn_once(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Keep XLA from moving a draw into the kernels that read it: it would compute the draw once more in each of them, and in a
    chain of keys once more for each later key.
    """
    drawn: Callable[..., jax.Array] = xla_metadata_call(function, inlineable="false")
    return drawn
