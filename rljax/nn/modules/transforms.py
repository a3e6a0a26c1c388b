"""Transforms of numbers of unknown size: symlog, symexp and two-hot encoding (Hafner et al., 2025)."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np


def symlog(x: jax.Array) -> jax.Array:
    """Return sign(x) log(1 + |x|), with slope 1 at 0 (Webber, 2012)."""
    # jnp.sign and jnp.abs have slope 0 at 0, where many observations lie.
    sign = jnp.where(x < 0, -1.0, 1.0)
    return sign * jnp.log1p(sign * x)


def symexp(x: jax.Array) -> jax.Array:
    """Return sign(x) (exp(|x|) - 1), the inverse of `symlog`."""
    sign = jnp.where(x < 0, -1.0, 1.0)
    return sign * jnp.expm1(sign * x)


@dataclass(frozen=True)
class TwoHot:
    """Two-hot encoding of a number: a distribution over fixed bins with weight on at most two neighbours (Bellemare et al.,
    2017).

    The bins are DreamerV3's: `symexp` of evenly spaced points. Numbers between two bins are interpolated linearly, so that
    decoding an encoded number returns it.

    Attributes:
        num_bins: number of bins, odd so that 0 is a bin.
        limit: symexp(limit) is the last bin, -symexp(limit) the first.
    """

    num_bins: int = 255
    limit: float = 20.0

    def __post_init__(self) -> None:
        if self.num_bins < 3 or self.num_bins % 2 == 0:
            raise ValueError(f"num_bins = {self.num_bins}: expected an odd number, at least 3")

    @property
    def bins(self) -> np.ndarray:
        """Bins f32 `[num_bins]`, ascending and exactly symmetric."""
        lower = -np.expm1(np.linspace(self.limit, 0.0, self.num_bins // 2 + 1)).astype(np.float32)
        return np.concatenate([lower[:-1], [np.float32(0.0)], -lower[-2::-1]])

    def encode(self, x: jax.Array) -> jax.Array:
        """Return the probabilities `[..., num_bins]` whose mean is x `[...]`, after clipping x to the range of the bins."""
        bins = jnp.asarray(self.bins)
        x = jnp.clip(x, bins[0], bins[-1])
        below = jnp.clip(jnp.searchsorted(bins, x, side="right", method="compare_all") - 1, 0, self.num_bins - 2)
        low, high = bins[below], bins[below + 1]
        above = (x - low) / (high - low)
        place = jnp.arange(self.num_bins)
        # Two comparisons instead of a scatter, which is slow on every device.
        lower = jnp.where(place == below[..., None], 1.0 - above[..., None], 0.0)
        return lower + jnp.where(place == below[..., None] + 1, above[..., None], 0.0)

    def decode(self, logits: jax.Array) -> jax.Array:
        """Return the mean `[...]` of the distribution with logits `[..., num_bins]`; it is exactly 0 for symmetric logits."""
        half = self.num_bins // 2
        # Subtract each bin's mirror first: the outer bins are 1e9 times the inner ones, so a rounding error of one product (a
        # fused multiply-add rounds one of two) would exceed the mean. Subtract exponentials instead of probabilities, since those
        # may be products too.
        weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
        above, below = weights[..., half + 1 :], weights[..., :half][..., ::-1]
        return jnp.sum((above - below) * self.bins[half + 1 :], axis=-1) / jnp.sum(weights, axis=-1)

    def loss(self, logits: jax.Array, target: jax.Array) -> jax.Array:
        """Return the cross-entropy `[...]` of logits `[..., num_bins]` with the encoded target `[...]`, whose gradient is
        stopped.
        """
        probs = self.encode(jax.lax.stop_gradient(target))
        return -jnp.sum(probs * jax.nn.log_softmax(logits), axis=-1)
