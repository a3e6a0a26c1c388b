"""Random keys. rljax uses typed keys (`jax.random.key`) throughout."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp


def draw(sampler: Callable[[jax.Array, tuple[int]], jax.Array], key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return `sampler(key, shape)`, drawn as one flat array: XLA compiles the counters of a flat draw several times faster."""
    return sampler(key, (math.prod(shape),)).reshape(shape)


def as_key(key: jax.Array) -> jax.Array:
    """Return a typed key from a typed or an old-style one (`jax.random.PRNGKey`, u32 `[..., 2]`).

    Raises:
        TypeError: `key` is neither.
    """
    if hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    if hasattr(key, "dtype") and key.dtype == jnp.uint32 and key.shape[-1:] == (2,):
        return jax.random.wrap_key_data(key)
    raise TypeError(f"expected a random key such as jax.random.key(0), got {key!r}")
