"""Squashing of numbers of unknown size, and their two-hot distribution (Hafner et al., 2025)."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np


def symlog(x: jax.Array) -> jax.Array:
    """sign(x) log(1 + |x|), with slope 1 at 0 (Webber, 2012)."""
    # jnp.sign and jnp.abs have slope 0 at 0, where many observations lie.
    sign = jnp.where(x < 0, -1.0, 1.0)
    return sign * jnp.log1p(sign * x)


def symexp(x: jax.Array) -> jax.Array:
    """sign(x) (exp(|x|) - 1), the inverse of `symlog`."""
    sign = jnp.where(x < 0, -1.0, 1.0)
    return sign * jnp.expm1(sign * x)


@dataclass(frozen=True)
class TwoHot:
    """A number as a distribution over fixed bins, of which at most two neighbours have weight (Bellemare et al., 2017); the bins
    are those of DreamerV3.

    The bins are `symexp` of evenly spaced places, but what lies between two of them is interpolated as it is, so that decoding an
    encoded number gives the number.

    Attributes:
        num_bins: an odd number, so that 0 is a bin.
        limit: the last bin is symexp(limit), the first -symexp(limit).
    """

    num_bins: int = 255
    limit: float = 20.0

    def __post_init__(self) -> None:
        if self.num_bins < 3 or self.num_bins % 2 == 0:
            raise ValueError(f"num_bins = {self.num_bins}: expected an odd number, at least 3")

    @property
    def bins(self) -> np.ndarray:
        """f32 `[num_bins]`, ascending and symmetric to the bit."""
        lower = -np.expm1(np.linspace(self.limit, 0.0, self.num_bins // 2 + 1)).astype(np.float32)
        return np.concatenate([lower[:-1], [np.float32(0.0)], -lower[-2::-1]])

    def encode(self, x: jax.Array) -> jax.Array:
        """The probabilities `[..., num_bins]` whose mean is x `[...]`; beyond the last bins x is theirs."""
        bins = jnp.asarray(self.bins)
        x = jnp.clip(x, bins[0], bins[-1])
        below = jnp.clip(jnp.searchsorted(bins, x, side="right", method="compare_all") - 1, 0, self.num_bins - 2)
        low, high = bins[below], bins[below + 1]
        above = (x - low) / (high - low)
        place = jnp.arange(self.num_bins)
        # Two comparisons and no scatter, which is slow on every device.
        lower = jnp.where(place == below[..., None], 1.0 - above[..., None], 0.0)
        return lower + jnp.where(place == below[..., None] + 1, above[..., None], 0.0)

    def decode(self, logits: jax.Array) -> jax.Array:
        """The mean `[...]` of the distribution with these logits `[..., num_bins]`; exactly 0 where they are symmetric."""
        half = self.num_bins // 2
        # Each bin against its mirror before anything else: the outer bins are 1e9 times the inner ones, so that a rounding
        # error of either product (a fused multiply-add rounds one of two) would drown the mean. Differences of exponentials and
        # not of probabilities, as those may be products too.
        weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
        above, below = weights[..., half + 1 :], weights[..., :half][..., ::-1]
        return jnp.sum((above - below) * self.bins[half + 1 :], axis=-1) / jnp.sum(weights, axis=-1)

    def loss(self, logits: jax.Array, target: jax.Array) -> jax.Array:
        """The cross-entropy `[...]` of the logits `[..., num_bins]` and the encoded target `[...]`, which passes no gradient."""
        probs = self.encode(jax.lax.stop_gradient(target))
        return -jnp.sum(probs * jax.nn.log_softmax(logits), axis=-1)
