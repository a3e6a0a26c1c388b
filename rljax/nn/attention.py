"""Attention over sets of entities. Masks are True where a query may attend to a key, and where an entity is there.

Nothing here depends on how many entities there are or on their order: E is the number of places for entities, D and C are lengths
of vectors, Q and K numbers of queries and keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.nn.actions import mask_logits
from rljax.nn.initializers import Initializer
from rljax.nn.layers import ACTIVATIONS, together


def dot_product_attention(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """softmax(query key' / sqrt(D)) value, head by head (Vaswani et al., 2017, eq. 1).

    Leading axes broadcast. A query that may attend to nothing gets 0, and passes no gradient.

    Args:
        query: f32 `[..., Q, heads, D]`.
        key: f32 `[..., K, heads, D]`.
        value: f32 `[..., K, heads, D]`.
        mask: bool `[..., Q, K]`, or `[..., 1, K]` for all queries; None: attend to everything.

    Returns:
        f32 `[..., Q, heads, D]`.
    """
    logits = jnp.einsum("...qhd,...khd->...hqk", query / math.sqrt(query.shape[-1]), key)
    if mask is None:
        weights = jax.nn.softmax(logits)
    else:
        mask = mask[..., None, :, :]
        # Where all is masked the softmax is uniform over finite logits; the second mask makes it 0 and its gradient, too.
        weights = jnp.where(mask, jax.nn.softmax(mask_logits(logits, mask)), 0.0)
    return jnp.einsum("...hqk,...khd->...qhd", weights, value)


class MultiHeadAttention(nn.Module):
    """Each query attends to the values by their keys, in several subspaces (Vaswani et al., 2017, section 3.2.2).

    `(query [..., Q, C], key [..., K, D], value [..., K, D'], mask bool [..., Q, K] or None) -> [..., Q, size]`. A query whose
    keys are all masked gives 0. Kernels are orthogonal, biases 0.

    Attributes:
        num_heads: heads, which share `size`.
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
            return _split_heads(nn.Dense(self.size, kernel_init=inits[name], name=name)(inputs[name]), self.num_heads)

        attended = dot_product_attention(heads("query"), heads("key"), heads("value"), mask)
        out = nn.Dense(self.size, kernel_init=inits["out"], name="out")(attended.reshape(*attended.shape[:-2], -1))
        # Without this the bias of the last layer would speak for the entities that are not there.
        return out if mask is None else jnp.where(jnp.any(mask, axis=-1, keepdims=True), out, 0.0)


class TransformerEncoder(nn.Module):
    """Layers of self-attention and a perceptron of one hidden layer, each on normalised inputs and added to them ("pre-norm";
    Xiong et al., 2020), and a last norm: `(x [..., E, size], mask bool [..., E] or None) -> [..., E, size]`.

    There is no encoding of positions, so that the outputs permute as the inputs do. An entity that is not there (mask False)
    changes nothing for the others, and its output is 0. There is no dropout. The kernels that add to the stream start with gain
    1 / sqrt(2 num_layers), which keeps its variance (Radford et al., 2019), biases with 0.

    Attributes:
        num_layers: of attention and perceptron.
        num_heads: heads of each attention.
        size: length of an entity's vector; a multiple of `num_heads`.
        mlp_size: of each perceptron's hidden layer.
        activation: of that layer, a name in `ACTIVATIONS`.
    """

    num_layers: int
    num_heads: int
    size: int
    mlp_size: int
    activation: str = "gelu"

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        # All kernels from one draw. Those of query, key and value are one product, but orthogonal each.
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
            return nn.Dense(size, kernel_init=inits[name], name=name)(x)

        pairs = None if mask is None else mask[..., None, :]
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
    """One query attends over the entities, as a recommender's candidate does over a history (Zhou et al., 2018).

    `(query [..., C], entities [..., E, D], mask bool [..., E] or None) -> [..., size]`; 0 where no entity is there.

    Attributes:
        num_heads: heads of the attention.
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
    """Entities as one vector, by a learned query (pooling with one seed; Lee et al., 2019, eq. 11).

    `(entities [..., E, D], mask bool [..., E] or None) -> [..., size]`; 0 where no entity is there. The query starts so short
    that all entities count nearly alike.

    Attributes:
        num_heads: heads of the attention.
        size: length of the output; a multiple of `num_heads`.
    """

    num_heads: int
    size: int

    @nn.compact
    def __call__(self, entities: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        shape = (entities.shape[-1], self.size)
        inits = together(
            self,
            {"query": ((self.size, 1), 1.0), "key": (shape, 1.0), "value": (shape, 1.0), "out": ((self.size, self.size), 1.0)},
        )
        query = self.param("query", inits["query"], (self.size, 1), jnp.float32).reshape(1, self.num_heads, -1)
        key, value = (
            _split_heads(nn.Dense(self.size, kernel_init=inits[name], name=name)(entities), self.num_heads)
            for name in ("key", "value")
        )
        pooled = dot_product_attention(query, key, value, None if mask is None else mask[..., None, :])
        out = nn.Dense(self.size, kernel_init=inits["out"], name="out")(pooled.reshape(*pooled.shape[:-3], self.size))
        return out if mask is None else jnp.where(jnp.any(mask, axis=-1, keepdims=True), out, 0.0)


class PointerNetwork(nn.Module):
    """Logits of choosing each of the entities, for a policy whose actions are entities (Vinyals et al., 2015; additive attention
    there, a scaled product as in attention here, which is one product and no network per entity).

    `(query [..., C], entities [..., E, D], mask bool [..., E] or None) -> logits f32 [..., E]`, as `mask_logits` where masked.
    Kernels are orthogonal, that of the query with gain `gain`.

    Attributes:
        size: length of the vectors that are compared.
        gain: of the query's kernel; small, the first choice is nearly uniform.
    """

    size: int
    gain: float = 0.01

    @nn.compact
    def __call__(self, query: jax.Array, entities: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        layers = {"query": ((query.shape[-1], self.size), self.gain), "key": ((entities.shape[-1], self.size), 1.0)}
        inits = together(self, layers)
        query = nn.Dense(self.size, kernel_init=inits["query"], name="query")(query)
        key = nn.Dense(self.size, kernel_init=inits["key"], name="key")(entities)
        logits = jnp.einsum("...d,...ed->...e", query / math.sqrt(self.size), key)
        # All alike, and without a gradient, where no entity is there: `mask_logits` then masks none.
        return mask_logits(logits if mask is None else jnp.where(mask, logits, 0.0), mask)


def _split_heads(x: jax.Array, num_heads: int) -> jax.Array:
    """`[..., size] -> [..., num_heads, size / num_heads]`."""
    return x.reshape(*x.shape[:-1], num_heads, -1)


def _side_by_side(inits: list[Initializer]) -> Initializer:
    """The initialiser of kernels beside each other, `[fan_in, len(inits) fan_out]`, from those of each."""

    def init(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        each = (*shape[:-1], shape[-1] // len(inits))
        return jnp.concatenate([part(key, each, dtype) for part in inits], axis=-1)

    return init
