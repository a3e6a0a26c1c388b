"""Encoders of observations other than one vector: images, dictionaries of vectors and images, and sets of entities. Every leaf
has one batch axis, `[B, ...]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.core.errors import ConfigError
from rljax.nn.modules.attention import AttentionPooling, TransformerEncoder
from rljax.nn.modules.images import Convolution, ImageEncoder, check_kernel, scaled_image
from rljax.nn.modules.layers import ACTIVATIONS, MLP, Dense, biased, together
from rljax.nn.modules.transforms import symlog
from rljax.nn.observations import ravel_observation
from rljax.nn.spec import CONVOLUTIONS, NetworkSpec


class ConvolutionEncoder(nn.Module):
    """Convolutions without padding, for small images and boards: `[B, height, width, channels] -> [B, D]`, flattened.

    uint8 images are scaled to [0, 1]; other images are used as they are. Kernels are orthogonal with gain sqrt(2), biases 0.

    Attributes:
        channels: number of channels of each convolution.
        kernels: width of each kernel.
        strides: stride of each convolution.
        activation: a name in `ACTIVATIONS`.
        dtype: dtype of the products and of the output, such as `jnp.bfloat16`; None: f32.

    Raises:
        ConfigError: the observation is not an image, or is smaller than a kernel.
    """

    channels: tuple[int, ...] = (16,)
    kernels: tuple[int, ...] = (3,)
    strides: tuple[int, ...] = (1,)
    activation: str = "relu"
    dtype: Any = None

    @nn.compact
    def __call__(self, image: Any) -> jax.Array:
        x = scaled_image(image)
        inputs = (x.shape[-1], *self.channels)
        layers = [(k, k, *inputs[i : i + 2]) for i, k in enumerate(self.kernels)]
        inits = together(self, {f"conv_{i}": (shape, math.sqrt(2.0)) for i, shape in enumerate(layers)})
        for i, (name, init) in enumerate(inits.items()):
            check_kernel(self.kernels, i, x.shape[1:3])
            x = Convolution(self.channels[i], self.kernels[i], self.strides[i], init, self.dtype, name=name)(x)
            x = ACTIVATIONS[self.activation](x)
        return x.reshape(x.shape[0], -1)


class DictEncoder(nn.Module):
    """Encode an observation of vectors and images (a dictionary, another tree or a single array) into one vector: `obs [B, ...]
    -> [B, D]`.

    Leaves `[B, height, width, channels]` of uint8 or floats are images, each with its own convolutions (see `ImageEncoder`). All
    other leaves are flattened, concatenated in tree order and passed through one perceptron. The results are concatenated, with
    the perceptron's first.

    Attributes:
        hidden: sizes of the perceptron's layers; `()` for no perceptron.
        depth: channels of the images' convolutions, to be multiplied by the multipliers.
        multipliers: one for each convolution; each convolution halves the sides.
        kernel: width of the convolutions.
        activation: a name in `ACTIVATIONS`.
        norm: normalisation before each activation, one of `NORMS`.
        symlog: whether to squash the vector by `symlog` first, for numbers of unknown size.
        dtype: dtype of the products and of the output, such as `jnp.bfloat16`; None: f32.
    """

    hidden: tuple[int, ...] = (64,)
    depth: int = 16
    multipliers: tuple[int, ...] = (1, 2)
    kernel: int = 3
    activation: str = "silu"
    norm: str = "none"
    symlog: bool = False
    dtype: Any = None

    @nn.compact
    def __call__(self, obs: Any) -> jax.Array:
        leaves = jax.tree_util.tree_leaves_with_path(obs)
        features = []
        if vectors := [x for _, x in leaves if not _is_image(x)]:
            x = ravel_observation(vectors)
            mlp = MLP(self.hidden, activation=self.activation, norm=self.norm, dtype=self.dtype, name="vector")
            features.append(mlp(symlog(x) if self.symlog else x))
        for path, image in ((path, x) for path, x in leaves if _is_image(x)):
            name = jax.tree_util.keystr(path, simple=True, separator="_")
            features.append(
                ImageEncoder(
                    depth=self.depth,
                    multipliers=self.multipliers,
                    kernel=self.kernel,
                    activation=self.activation,
                    norm=self.norm,
                    dtype=self.dtype,
                    name=f"image_{name}" if name else "image",
                )(image)
            )
        return jnp.concatenate(features, axis=-1)


class EntityEncoder(nn.Module):
    """Encode a set of entities and the other entries of an observation: `obs -> (x [B, D], entities [B, E, size])`.

    `obs` is a dictionary with "entities" `[B, E, F]` and, unless all E places are always filled, "entity_mask" bool `[B, E]`
    (True where an entity is present). All other leaves are flattened into one vector, the rest. Each entity is embedded together
    with the rest, then a `TransformerEncoder` relates the entities. Its outputs are returned as `entities`, 0 where none is
    present, for example for a `PointerNetwork`. x is their `AttentionPooling`, concatenated with the embedded rest: D is
    `2 size`, or `size` without a rest.

    The parameters do not depend on E, so a trained network takes any number of entities. x depends neither on their order nor on
    the values at empty places.

    Attributes:
        size: length of an entity's vector; a multiple of `num_heads`.
        num_layers: number of layers of the transformer.
        num_heads: number of heads of its attention and of the pooling.
        activation: a name in `ACTIVATIONS`.
        dtype: dtype of the products, such as `jnp.bfloat16`; None: f32.

    Raises:
        ConfigError: the observation is not such a dictionary.
    """

    size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    activation: str = "silu"
    dtype: Any = None

    @nn.compact
    def __call__(self, obs: Any) -> tuple[jax.Array, jax.Array]:
        entities, mask, rest = split_entities(obs)
        layers = {"entity": ((entities.shape[-1], self.size), 1.0)}
        if rest is not None:
            # The rest has a product of its own, which is then computed once for all E entities.
            layers |= dict.fromkeys(("context", "rest"), ((rest.shape[-1], self.size), 1.0))
        inits = together(self, layers)
        activation = ACTIVATIONS[self.activation]
        dense = partial(Dense, self.size, dtype=self.dtype)
        embedded = dense(kernel_init=inits["entity"], name="entity")(entities)
        if rest is not None:
            context = nn.Dense(self.size, use_bias=False, dtype=self.dtype, kernel_init=inits["context"], name="context")(rest)
            embedded = biased(embedded, context[:, None])
        sizes = (self.num_layers, self.num_heads, self.size, 2 * self.size)
        encoded = TransformerEncoder(*sizes, dtype=self.dtype, name="transformer")(activation(embedded), mask)
        x = AttentionPooling(self.num_heads, self.size, self.dtype, name="pooling")(encoded, mask)
        if rest is not None:
            rest = activation(dense(kernel_init=inits["rest"], name="rest")(rest))
            x = jnp.concatenate([x, rest], axis=-1)
        return x, encoded


def make_encoder(spec: NetworkSpec, dtype: Any = None) -> nn.Module | None:
    """Return the encoder that a `network` table describes, with products in `dtype`; None if observations are only flattened."""
    if spec.encoder == "cnn":
        return ConvolutionEncoder(**spec.given(*CONVOLUTIONS), dtype=dtype)
    if spec.encoder == "dict":
        return DictEncoder(depth=spec.depth, dtype=dtype)
    return EntityEncoder(spec.width, spec.layers, spec.heads, dtype=dtype) if spec.encoder == "entities" else None


def split_entities(obs: Any) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
    """Return `(entities f32 [B, E, F], mask bool [B, E] or None, rest f32 [B, R] or None)` of an observation of an
    `EntityEncoder`, with absent entities set to 0.

    Raises:
        ConfigError: "entities" is missing or of another rank, or the mask has another shape.
    """
    wanted = 'expected a dictionary with "entities" [E, F] for a network that attends to them'
    if not isinstance(obs, Mapping) or "entities" not in obs:
        got = sorted(obs) if isinstance(obs, Mapping) else f"one of {jax.tree.map(lambda x: x.shape[1:], obs)}"
        raise ConfigError(f"observation: {wanted}, got {got}")
    entities = obs["entities"]
    if not hasattr(entities, "ndim") or entities.ndim != 3:
        shapes = jax.tree.map(lambda x: x.shape[1:], entities)
        raise ConfigError(f'observation["entities"] of shape {shapes}: {wanted}')
    entities, mask = entities.astype(jnp.float32), obs.get("entity_mask")
    if mask is not None:
        if mask.shape != entities.shape[:2]:
            want = entities.shape[1:2]
            raise ConfigError(f'observation["entity_mask"] of shape {mask.shape[1:]}: expected {want}, one for each entity')
        mask = mask.astype(bool)
        entities = jnp.where(mask[..., None], entities, 0.0)
    others = {key: leaf for key, leaf in obs.items() if key not in ("entities", "entity_mask")}
    return entities, mask, ravel_observation(others) if jax.tree.leaves(others) else None


def _is_image(x: jax.Array) -> bool:
    return x.ndim == 4 and (x.dtype == jnp.uint8 or jnp.issubdtype(x.dtype, jnp.floating))
