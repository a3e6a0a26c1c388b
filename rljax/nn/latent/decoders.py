"""Decoders from features to observations, which world models are trained to predict."""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.nn.modules.images import ImageDecoder
from rljax.nn.modules.layers import MLP


class Parts(NamedTuple):
    """An observation in parts: all its vectors concatenated, f32 `[..., V]` (or None), and its images `[..., H, W, C]`."""

    vector: jax.Array | None
    images: tuple[jax.Array, ...]


class DictDecoder(nn.Module):
    """`feature [B, D] -> Parts`: a perceptron for all vectors together, and convolutions for each image (see `ImageDecoder`).

    Attributes:
        vector_size: length V of the concatenated vectors; 0 for no vectors.
        image_shapes: (H, W, C) of each image.
        hidden: sizes of the perceptron's layers.
        depth: channels of the images' convolutions, times the multipliers.
        multipliers: one for each convolution; each doubles the sides.
        dtype: dtype of the matrix products; None: f32. Outputs are f32.
        deter: number of the first features that are the deterministic part of a latent state, for images.
    """

    vector_size: int
    image_shapes: tuple[tuple[int, int, int], ...] = ()
    hidden: tuple[int, ...] = (64, 64, 64)
    depth: int = 4
    multipliers: tuple[int, ...] = (2, 3, 4, 4)
    dtype: Any = None
    deter: int = 0

    @nn.compact
    def __call__(self, feature: jax.Array) -> Parts:
        vector = None
        if self.vector_size:
            mlp = MLP(self.hidden, self.vector_size, norm="rms", dtype=self.dtype, name="vector")
            vector = mlp(feature).astype(jnp.float32)
        images = []
        for i, shape in enumerate(self.image_shapes):
            of_latent: Any = {"deter": self.deter, "hidden": 2 * self.hidden[-1]} if self.deter else {}
            decoder = ImageDecoder(shape, self.depth, self.multipliers, dtype=self.dtype, name=f"image_{i}", **of_latent)
            images.append(decoder(feature).astype(jnp.float32))
        return Parts(vector, tuple(images))
