"""Attention over sets of entities. Masks are True where a query may attend to a key, and where an entity is present.

Parameters depend neither on the number of entities nor on their order. E is the number of places for entities, D and C are
lengths of vectors, Q and K are numbers of queries and keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.nn.modules.classes import mask_logits
from rljax.nn.modules.initializers import Initializer
from rljax.nn.modules.layers import ACTIVATIONS, Dense, together


def dot_product_attention(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Return softmax(query key' / sqrt(D)) value for each head (Vaswani et al., 2017, eq. 1).

    Leading axes broadcast. A query that may attend to no key gives 0, with no gradient.

    Args:
        query: `[..., Q, heads, D]`, f32 or bfloat16.
        key: `[..., K, heads, D]`.
        value: `[..., K, heads, D]`.
        mask: bool `[..., Q, K]`, or `[..., 1, K]` for all queries; None: every query attends to all keys.

    Returns:
        `[..., Q, heads, D]` in the dtype of the values; the weights are computed in f32.
    """
    logits = jnp.einsum("...qhd,...khd->...hqk", query / math.sqrt(query.shape[-1]), key).astype(jnp.float32)
    if mask is None:
        weights = jax.nn.softmax(logits)
    else:
        mask = mask[..., None, :, :]
        # If all keys are masked, the softmax is uniform over finite logits; the second mask sets it and its gradient to 0.
        weights = jnp.where(mask, jax.nn.softmax(mask_logits(logits, mask)), 0.0)
    return jnp.einsum("...hqk,...khd->...qhd", weights.astype(value.dtype), value)


class MultiHeadAttention(nn.Module):
    """Multi-head attention: queries attend to keys and their values in several subspaces (Vaswani et al., 2017, section 3.2.2).

    `(query [..., Q, C], key [..., K, D], value [..., K, D'], mask bool [..., Q, K] or None) -> [..., Q, size]`. A query whose
    keys are all masked gives 0. Kernels are orthogonal, biases 0.

    Attributes:
        num_heads: number of heads, which share `size`.
        size: length of the output, and of all heads together; a multiple of `num_heads`.
    """

    num_heads: int
    size: int

    @nn.compact
    def __call__(self, query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        inputs = {"query": query, "key": key, "value": value}
        layers = {name: ((x.shape[-1], self.size), 1.0) for name, x in inputs.items()}
        inits = together(self, {**layers, "out": ((self.size, self.size), 1.0)})

        def heads(name: str) -> jax.Array:
            return _split_heads(Dense(self.size, kernel_init=inits[name], name=name)(inputs[name]), self.num_heads)

        attended = dot_product_attention(heads("query"), heads("key"), heads("value"), mask)
        out = Dense(self.size, kernel_init=inits["out"], name="out")(attended.reshape(*attended.shape[:-2], -1))
        # Without this, the output of a query without keys would be the bias of the last layer.
        return out if mask is None else jnp.where(jnp.any(mask, axis=-1, keepdims=True), out, 0.0)


class TransformerEncoder(nn.Module):
    """Transformer encoder with pre-norm residual layers (Xiong et al., 2020): `(x [..., E, size], mask bool [..., E] or None) ->
    [..., E, size]`.

    Each layer has self-attention and a perceptron with one hidden layer; a norm follows the last layer. There is no encoding of
    positions, so permuting the inputs permutes the outputs. An absent entity (mask False) does not affect the others, and its
    output is 0. There is no dropout. Kernels of residual outputs start with gain 1 / sqrt(2 num_layers), which keeps the variance
    of the residual stream (Radford et al., 2019); biases start with 0.

    Attributes:
        num_layers: number of layers.
        num_heads: number of heads of each attention.
        size: length of an entity's vector; a multiple of `num_heads`.
        mlp_size: size of each perceptron's hidden layer.
        activation: activation of that layer, a name in `ACTIVATIONS`.
        dtype: dtype of the products; None: f32, as sums and norms always are.
    """

    num_layers: int
    num_heads: int
    size: int
    mlp_size: int
    activation: str = "gelu"
    dtype: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        # All kernels come from one draw. Those of query, key and value are each orthogonal, though they make one product.
        square, out_gain = (self.size, self.size), 1.0 / math.sqrt(2.0 * self.num_layers)
        layers: dict[str, tuple[tuple[int, ...], float]] = {}
        for i in range(self.num_layers):
            layers |= {f"{part}_{i}": (square, 1.0) for part in ("query", "key", "value")}
            layers |= {f"out_{i}": (square, out_gain)}
            layers |= {f"mlp_in_{i}": ((self.size, self.mlp_size), math.sqrt(2.0))}
            layers |= {f"mlp_out_{i}": ((self.mlp_size, self.size), out_gain)}
        inits = together(self, layers)
        for i in range(self.num_layers):
            inits[f"qkv_{i}"] = _side_by_side([inits[f"{part}_{i}"] for part in ("query", "key", "value")])

        def dense(name: str, size: int, x: jax.Array) -> jax.Array:
            return Dense(size, dtype=self.dtype, kernel_init=inits[name], name=name)(x)

        pairs = None if mask is None else mask[..., None, :]
        x = x.astype(jnp.float32)
        for i in range(self.num_layers):
            y = nn.LayerNorm(name=f"attention_norm_{i}")(x)
            query, key, value = jnp.split(dense(f"qkv_{i}", 3 * self.size, y), 3, axis=-1)
            query, key, value = (_split_heads(x, self.num_heads) for x in (query, key, value))
            attended = dot_product_attention(query, key, value, pairs)
            x = x + dense(f"out_{i}", self.size, attended.reshape(x.shape))
            y = nn.LayerNorm(name=f"mlp_norm_{i}")(x)
            y = ACTIVATIONS[self.activation](dense(f"mlp_in_{i}", self.mlp_size, y))
            x = x + dense(f"mlp_out_{i}", self.size, y)
        x = nn.LayerNorm(name="norm")(x)
        return x if mask is None else jnp.where(mask[..., None], x, 0.0)


class TargetAttention(nn.Module):
    """Attention of one query over the entities, like that of a recommender's candidate over a history (Zhou et al., 2018).

    `(query [..., C], entities [..., E, D], mask bool [..., E] or None) -> [..., size]`; 0 if no entity is present.

    Attributes:
        num_heads: number of heads of the attention.
        size: length of the output; a multiple of `num_heads`.
    """

    num_heads: int
    size: int

    @nn.compact
    def __call__(self, query: jax.Array, entities: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        attention = MultiHeadAttention(self.num_heads, self.size, name="attention")
        mask = None if mask is None else mask[..., None, :]
        return attention(query[..., None, :], entities, entities, mask)[..., 0, :]


class AttentionPooling(nn.Module):
    """Pool entities into one vector by attention of a learned query (pooling with one seed; Lee et al., 2019, eq. 11).

    `(entities [..., E, D], mask bool [..., E] or None) -> [..., size]`; 0 if no entity is present. The query starts with a small
    norm, so that all entities get nearly equal weights.

    Attributes:
        num_heads: number of heads of the attention.
        size: length of the output; a multiple of `num_heads`.
        dtype: dtype of the products; None: f32.
    """

    num_heads: int
    size: int
    dtype: Any = None

    @nn.compact
    def __call__(self, entities: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        shape = (entities.shape[-1], self.size)
        inits = together(
            self,
            {"query": ((self.size, 1), 1.0), "key": (shape, 1.0), "value": (shape, 1.0), "out": ((self.size, self.size), 1.0)},
        )
        query = self.param("query", inits["query"], (self.size, 1), jnp.float32).reshape(1, self.num_heads, -1)
        key, value = (
            _split_heads(Dense(self.size, dtype=self.dtype, kernel_init=inits[name], name=name)(entities), self.num_heads)
            for name in ("key", "value")
        )
        pooled = dot_product_attention(query.astype(key.dtype), key, value, None if mask is None else mask[..., None, :])
        out = Dense(self.size, dtype=self.dtype, kernel_init=inits["out"], name="out")(
            pooled.reshape(*pooled.shape[:-3], self.size)
        )
        return out if mask is None else jnp.where(jnp.any(mask, axis=-1, keepdims=True), out, 0.0)


class PointerNetwork(nn.Module):
    """Pointer network: a logit for each entity, for policies whose actions are the entities (Vinyals et al., 2015).

    `(query [..., C], entities [..., E, D], mask bool [..., E] or None) -> logits f32 [..., E]`, masked by `mask_logits`. The
    scores are scaled dot products instead of the paper's additive attention, so they take one product instead of a network per
    entity. Kernels are orthogonal; the query's has gain `gain`.

    Attributes:
        size: length of the vectors that are compared.
        gain: gain of the query's kernel; if it is small, the first policy is nearly uniform.
    """

    size: int
    gain: float = 0.01

    @nn.compact
    def __call__(self, query: jax.Array, entities: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        layers = {"query": ((query.shape[-1], self.size), self.gain), "key": ((entities.shape[-1], self.size), 1.0)}
        inits = together(self, layers)
        query = Dense(self.size, kernel_init=inits["query"], name="query")(query)
        key = Dense(self.size, kernel_init=inits["key"], name="key")(entities)
        logits = jnp.einsum("...d,...ed->...e", query / math.sqrt(self.size), key)
        # If no entity is present, all logits are equal and without a gradient: `mask_logits` then masks none.
        return mask_logits(logits if mask is None else jnp.where(mask, logits, 0.0), mask)


def _split_heads(x: jax.Array, num_heads: int) -> jax.Array:
    """Split vectors into heads: `[..., size] -> [..., num_heads, size / num_heads]`."""
    return x.reshape(*x.shape[:-1], num_heads, -1)


def _side_by_side(inits: list[Initializer]) -> Initializer:
    """Return the initialiser of concatenated kernels, `[fan_in, len(inits) fan_out]`, from the initialiser of each."""

    def init(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        each = (*shape[:-1], shape[-1] // len(inits))
        return jnp.concatenate([part(key, each, dtype) for part in inits], axis=-1)

    return init
