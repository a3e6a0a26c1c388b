"""Reductions over the last axis, which counts classes: actions, most often.

A reduction is an operation of its own on an accelerator, and small networks wait for those. Over few classes it is written as
operations on one class each, which XLA joins with what comes before and after them.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

FEW = 4
"""The largest number of classes that are taken one by one. Larger numbers make programs longer and gain less."""


def sum_of(x: jax.Array) -> jax.Array:
    """Return the sums `[...]` over the classes of `x [..., C]`."""
    return jnp.sum(x, axis=-1) if x.shape[-1] > FEW else functools.reduce(jnp.add, _each(x))


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


def _each(x: jax.Array) -> list[jax.Array]:
    return [x[..., i] for i in range(x.shape[-1])]
