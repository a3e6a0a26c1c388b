"""Reductions over an axis that counts classes: actions, most often, or players. It is the last one where nothing else is said.

A reduction is an operation of its own on an accelerator, and small networks wait for those. Over few classes it is written as
operations on one class each, which XLA joins with what comes before and after them.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

FEW = 4
"""The largest number of classes that are taken one by one. Larger numbers make programs longer and gain less."""


def sum_of(x: jax.Array, axis: int = -1) -> jax.Array:
    """Return the sums over the classes of `x`, of its dtype; of bool whether any is True."""
    return jnp.sum(x, axis=axis, dtype=x.dtype) if x.shape[axis] > FEW else functools.reduce(jnp.add, _each(x, axis))


def entry_of(x: jax.Array, index: jax.Array) -> jax.Array:
    """Return the entries `[...]` of `x [..., C]` at integers `[...]`, 0 at a number that is no class.

    It is a sum, because the gradient of a gather is a scatter, which is a loop on the CPU.
    """
    return sum_of(jnp.where(jnp.arange(x.shape[-1]) == index[..., None], x, 0.0))


def argmax_of(x: jax.Array) -> jax.Array:
    """Return the class of the largest entry of `x [..., C]`, the first of several, i32 `[...]`."""
    if x.shape[-1] > FEW:
        return jnp.argmax(x, axis=-1).astype(jnp.int32)
    first, *others = _each(x)
    best, index = first, jnp.zeros(first.shape, jnp.int32)
    for i, value in enumerate(others, start=1):
        better = value > best
        best, index = jnp.where(better, value, best), jnp.where(better, i, index)
    return index


def log_softmax(logits: jax.Array) -> jax.Array:
    """Return log-probabilities f32 `[..., C]` of logits."""
    if logits.shape[-1] > FEW:
        return jax.nn.log_softmax(logits)
    shifted = logits - jax.lax.stop_gradient(functools.reduce(jnp.maximum, _each(logits)))[..., None]
    return shifted - jnp.log(sum_of(jnp.exp(shifted)))[..., None]


def mask_logits(logits: jax.Array, mask: jax.Array | None, exists: np.ndarray | bool = True) -> jax.Array:
    """Return logits whose masked entries (False) have probability exactly 0 and no gradient; if all are masked, none is.

    Args:
        logits: f32 `[..., A]`.
        mask: bool `[..., A]`; None: nothing is masked.
        exists: False for padding, bool of a shape that broadcasts; padding is masked in any case.
    """
    if mask is None:
        return logits
    mask = mask & exists
    legal = mask | (~sum_of(mask)[..., None] & exists)
    # The least finite number instead of -inf: in the entropy, 0 log 0 and its gradient are then 0.
    return jnp.where(legal, logits, jnp.finfo(logits.dtype).min)


def unimix_logits(logits: jax.Array, unimix: float = 0.01) -> jax.Array:
    """Return log probabilities `[..., C]` of a categorical mixed with a share `unimix` of the uniform one. Every class then has a
    positive probability, so KL divergences stay finite and policies keep exploring.
    """
    return jnp.log((1.0 - unimix) * jax.nn.softmax(logits) + unimix / logits.shape[-1])


def _each(x: jax.Array, axis: int = -1) -> list[jax.Array]:
    return [jax.lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis])]
