"""Find episodes that repeat an earlier one, by a fingerprint of each episode that is computed as it is played."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

LANES = (0x9E3779B9, 0x85EBCA6B)
"""Seeds of two fingerprints of 32 bits, which make one of 64: among a million episodes, two hardly ever share one by accident."""


def fingerprint(*values: Any, after: jax.Array | None = None) -> jax.Array:
    """Return a hash of arrays of numbers, uint32 `[2]`; it depends on the order of leaves and of elements.

    Args:
        values: pytrees of arrays; NaN and random keys are hashed by their bits.
        after: the fingerprint of everything earlier, which the new one then includes.
    """
    words = jnp.concatenate([_words(leaf) for leaf in jax.tree.leaves(values)])
    place = jnp.arange(words.shape[0], dtype=jnp.uint32)
    lanes = jnp.array(LANES, jnp.uint32)
    before = jnp.zeros(2, jnp.uint32) if after is None else after
    # Mix the bits before adding up: floats such as 0.0 and 1.0 differ in their high bits only.
    total = jnp.sum(_mixed(words[:, None] + _mixed(place[:, None] + lanes)), axis=0, dtype=jnp.uint32)
    return _mixed(total + _mixed(before + lanes))


def first_occurrences(prints: jax.Array) -> jax.Array:
    """Return which of the fingerprints, uint32 `[N, 2]`, equal none before them, bool `[N]`."""
    order = jnp.lexsort((prints[:, 0], prints[:, 1]))  # stable: equal ones stay in order
    ranked = prints[order]
    new = jnp.concatenate([jnp.ones(1, bool), jnp.any(ranked[1:] != ranked[:-1], axis=-1)])
    return jnp.zeros(len(prints), bool).at[order].set(new)


def _words(x: Any) -> jax.Array:
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = jax.lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x).astype(jnp.float32), jnp.uint32)  # -0.0 is 0.0
    return x.astype(jnp.uint32).reshape(-1)


def _mixed(x: jax.Array) -> jax.Array:
    """Apply the finalizer of MurmurHash3 (Appleby, 2011): each input bit changes half of the output bits on average."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
