"""Random keys. rljax uses typed keys (`jax.random.key`) throughout."""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from rljax.core.errors import ConfigError
from rljax.core.threefry import use_short_threefry

# Every program of rljax draws, and all of them import this module.
use_short_threefry()

Source = Callable[[Callable[..., jax.Array], tuple[int, ...]], jax.Array]
"""Random numbers from elsewhere: `(sampler, shape) -> array`."""

_SOURCE: contextvars.ContextVar[Source | None] = contextvars.ContextVar("source of random numbers", default=None)


def draw(sampler: Callable[[jax.Array, tuple[int]], jax.Array], key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return `sampler(key, shape)` as `draw_flat` does, or numbers from elsewhere (see `draws_from`)."""
    source = _SOURCE.get()
    return draw_flat(sampler, key, shape) if source is None else source(sampler, shape)


def draw_flat(sampler: Callable[[jax.Array, tuple[int]], jax.Array], key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return `sampler(key, shape)`, drawn as one flat array: XLA compiles the counters of a flat draw several times faster."""
    return sampler(key, (math.prod(shape),)).reshape(shape)


def apart(key: jax.Array) -> jax.Array:
    """Return a random key other than any that `jax.random.split(key, n)` gives, where n < 2^31.

    A small number folded in would not do: `fold_in(key, i)` is `split(key, n)[i]` in JAX's default generator.
    """
    return jax.random.fold_in(key, 2**31 - 1)


@contextlib.contextmanager
def draws_from(source: Source) -> Iterator[None]:
    """Take the numbers of every `draw` from `source` while this context is open.

    An exported policy takes its random numbers as arguments this way, since ONNX and NumPy do not have JAX's generator.
    """
    token = _SOURCE.set(source)
    try:
        yield
    finally:
        _SOURCE.reset(token)


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


def as_single_key(key: jax.Array) -> jax.Array:
    """Return one typed key; under vmap each lane has one.

    Raises:
        TypeError: `key` is no random key.
        ConfigError: it is several.
    """
    key = as_key(key)
    if key.ndim:
        raise ConfigError(f"key: expected one, got {key.shape}; jax.vmap takes several")
    return key
