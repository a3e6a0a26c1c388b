"""Distributions over actions: a categorical, several of them at once, and a diagonal Gaussian.

They are plain records of arrays, and each quantity is computed once: a loss asks for the log-probability and the entropy of the
same policy in every gradient step, whose small operations are what an accelerator waits for.
"""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
from flax import struct

from rljax.nn.modules.classes import argmax_of, entry_of, log_softmax, sum_of

_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


class Categorical(struct.PyTreeNode):
    """A categorical over C classes for each place of a batch.

    Attributes:
        logits: normalised logits, that is log-probabilities, f32 `[..., C]`; `categorical` makes them of any logits.
        scores: the logits before they were normalised, f32 `[..., C]`. Draws and the mode need no more, so a rollout, which only
            draws, does without the operations that normalise.
    """

    logits: jax.Array
    scores: jax.Array

    @property
    def probs(self) -> jax.Array:
        """The probabilities, f32 `[..., C]`."""
        return jnp.exp(self.logits)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Return the log-probabilities f32 `[...]` of classes, integers `[...]`; -inf of numbers that are no class."""
        value = value.astype(jnp.int32)  # in 8 bits, the number of classes may not fit
        return jnp.where((value < 0) | (value >= self.logits.shape[-1]), -jnp.inf, entry_of(self.logits, value))

    def entropy(self) -> jax.Array:
        """Return the entropies in nats, f32 `[...]`."""
        return -_expectation(self.probs, self.logits)

    def kl_divergence(self, other: Categorical) -> jax.Array:
        """Return the divergences in nats from this distribution to another, f32 `[...]`."""
        return _expectation(self.probs, self.logits - other.logits)

    def mode(self) -> jax.Array:
        """Return the most likely classes, i32 `[...]`."""
        return argmax_of(self.scores)


def categorical(logits: jax.Array) -> Categorical:
    """Return the categorical of logits f32 `[..., C]`."""
    return Categorical(log_softmax(logits), logits)


def _expectation(probs: jax.Array, values: jax.Array) -> jax.Array:
    # Where the probability is 0 a value counts nothing. It may be infinite, and would spoil the gradient of the product.
    return sum_of(probs * jnp.where(probs > 0.0, values, 0.0))


def draw_index(logits: jax.Array, uniform: jax.Array) -> jax.Array:
    """Draw classes i32 `[...]` with one random number in [0, 1) for each, `[...]`, from logits `[..., C]`.

    The logits may be log-probabilities, or differ from them by a number; their exponentials must be finite.
    """
    # The inverse distribution function takes one random number per draw, where the Gumbel trick takes C and their logarithms.
    weights = jnp.exp(logits)
    totals = list(itertools.accumulate(weights[..., i] for i in range(weights.shape[-1])))
    # Scaled by the sum as it was computed: an impossible last class gets nothing from rounding.
    uniform, index = uniform * totals[-1], jnp.zeros(uniform.shape, jnp.int32)
    for total in totals[:-1]:
        index = index + (uniform >= total)
    return index


class Normal(struct.PyTreeNode):
    """A Gaussian with independent components.

    Attributes:
        mean: f32 `[..., *event]`.
        std: standard deviations, f32 of the same shape.
        event_ndims: number of axes of one sample; densities are of whole samples.
    """

    mean: jax.Array
    std: jax.Array
    event_ndims: int = struct.field(pytree_node=False, default=1)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Return the log-densities f32 `[...]` of samples `[..., *event]`."""
        return self._sum(-0.5 * jnp.square((value - self.mean) / self.std) - (_HALF_LOG_TAU + jnp.log(self.std)))

    def entropy(self) -> jax.Array:
        """Return the differential entropies in nats, f32 `[...]`."""
        return self._sum(0.5 + _HALF_LOG_TAU + jnp.log(self.std))

    def kl_divergence(self, other: Normal) -> jax.Array:
        """Return the divergences in nats from this distribution to another, f32 `[...]`."""
        difference = jnp.log(self.std) - jnp.log(other.std)
        distance = jnp.square((self.mean - other.mean) / other.std)
        return self._sum(0.5 * (distance + jnp.expm1(2.0 * difference)) - difference)

    def mode(self) -> jax.Array:
        """Return the means, f32 `[..., *event]`."""
        return self.mean

    def _sum(self, x: jax.Array) -> jax.Array:
        return jnp.sum(x, axis=tuple(range(-self.event_ndims, 0)))


__all__ = ["Categorical", "Normal", "categorical", "draw_index"]
