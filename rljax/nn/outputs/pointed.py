"""Auto-regressive actions whose first head points at an entity, and whose other heads see which (Vinyals et al., 2019, methods:
the selected units, from which the order's target follows).

    logits_0 = pointer(tanh(context), entities), and a dense layer for what is no entity, to end a turn say
    hidden_k = tanh(context + embedding of the entity + sum of embedding_j[a_j] over 0 < j < k)

The heads after the first are those of `rljax.nn.outputs.composite`. In shapes, E is the number of entities, D the length of an
entity's vector, C that of the context, K the number of heads and A the number of actions of all heads together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.environments.spaces import as_space
from rljax.core.keys import draw
from rljax.nn.modules.attention import PointerNetwork
from rljax.nn.modules.classes import argmax_of, mask_logits
from rljax.nn.modules.layers import Dense, together
from rljax.nn.outputs.actions import ActionHead, several_heads
from rljax.nn.outputs.choices import Choices, padded
from rljax.nn.outputs.composite import CompositeDistribution, CompositeHead, CompositeOutputs, composite_distribution
from rljax.nn.outputs.heads import OnlyIf, read_so_far


class Pointed(NamedTuple):
    """Output of a network for heads that point at entities.

    Attributes:
        context: f32 `[..., C]`, before the activation.
        entities: f32 `[..., E, D]`.
        mask: which entities are present, bool `[..., E]`; None: all.
    """

    context: jax.Array
    entities: jax.Array
    mask: jax.Array | None


class PointedOutputs(NamedTuple):
    """Parameters of a distribution: those of the first head, N actions, and those of the others.

    Attributes:
        logits: f32 `[..., N]`, the entities first.
        embedding: of the actions of the first head, f32 `[..., N, C]`.
        others: context, and parameters of the other heads.
    """

    logits: jax.Array
    embedding: jax.Array
    others: CompositeOutputs


class PointedHead(nn.Module):
    """`Pointed -> PointedOutputs`. The first policy is nearly uniform over the entities that are present and the actions
    that are no entity.

    Attributes:
        nvec: number of actions of each head; the first N >= E.
    """

    nvec: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Pointed) -> PointedOutputs:
        size, width = x.context.shape[-1], x.entities.shape[-1]
        more = self.nvec[0] - x.entities.shape[-2]
        layers = {"embed": ((width, size), 1.0), "rest": ((size, more), 0.01), "rest_embedding": ((more, size), 1.0)}
        inits = together(self, layers if more else {"embed": layers["embed"]})
        query = jnp.tanh(x.context)
        logits = PointerNetwork(width, name="pointer")(query, x.entities, x.mask)
        embedding = Dense(size, kernel_init=inits["embed"], name="embed")(x.entities)
        if more:
            if x.mask is not None:
                # Where no entity is present the pointer masks none of them; here the other actions remain to choose from.
                logits = jnp.where(x.mask, logits, jnp.finfo(logits.dtype).min)
            rest = self.param("rest_embedding", inits["rest_embedding"], (more, size), jnp.float32)
            embedding = jnp.concatenate([embedding, jnp.broadcast_to(rest, (*embedding.shape[:-2], more, size))], axis=-2)
            logits = jnp.concatenate([logits, Dense(more, kernel_init=inits["rest"], name="rest")(query)], axis=-1)
        return PointedOutputs(logits, embedding, CompositeHead(self.nvec[1:], name="others")(x.context))


class PointedDistribution(struct.PyTreeNode):
    """A distribution over actions i32 `[..., K]`, as `rljax.nn.outputs.composite.CompositeDistribution`; `mask` is one of its
    masks, and `only_if` is of all heads.
    """

    outputs: PointedOutputs
    mask: jax.Array | None
    nvec: tuple[int, ...] = struct.field(pytree_node=False)
    only_if: OnlyIf | None = struct.field(pytree_node=False, default=None)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-probability f32 `[...]` of actions i32 `[..., K]`: the least finite number, or about it, where one is illegal."""
        first = jnp.take_along_axis(self._first(), action[..., :1], axis=-1)[..., 0]
        total = first + self._others(action[..., 0]).log_prob(action[..., 1:])
        return jnp.maximum(total, jnp.finfo(total.dtype).min)

    def entropy_along(self, action: jax.Array) -> jax.Array:
        """As that of `CompositeDistribution`: an unbiased estimate of the entropy f32 `[...]` for actions drawn from this."""
        first = self._first()
        entropy = -jnp.sum(jnp.exp(first) * first, axis=-1)
        return entropy + self._others(action[..., 0]).entropy_along(action[..., 1:])

    def choices(self, action: jax.Array) -> Choices:
        """As those of `CompositeDistribution`."""
        rest, width = self._others(action[..., 0]).log_probs(action[..., 1:]), max(self.nvec)
        each = jnp.concatenate([padded(self._first()[..., None, :], width), padded(rest, width)], axis=-2)
        return Choices(each, action, jnp.broadcast_to(read_so_far(self.only_if, action), action.shape))

    def sample(self, noise: jax.Array) -> jax.Array:
        """Actions i32 `[..., K]`, head by head, each the argmax of logits plus Gumbel noise f32 `[..., K, W]`."""
        return self._head_by_head(noise)

    def mode(self) -> jax.Array:
        """Each head's likeliest action given those of the heads before it, i32 `[..., K]`."""
        return self._head_by_head(None)

    def _head_by_head(self, noise: jax.Array | None) -> jax.Array:
        first = self._first() if noise is None else self._first() + noise[..., 0, : self.nvec[0]]
        action = argmax_of(first)
        others = self._others(action)
        rest = others.mode() if noise is None else others.sample(noise[..., 1:, :])
        return jnp.concatenate([action[..., None], rest], axis=-1)

    def _first(self) -> jax.Array:
        """Return the log-probabilities of the first head's actions, f32 `[..., N]`."""
        logits, legal = self.outputs.logits, self.mask
        if legal is not None and legal.ndim > logits.ndim:
            legal = jnp.diagonal(legal, axis1=-2, axis2=-1)
        return jax.nn.log_softmax(mask_logits(logits, None if legal is None else legal[..., : self.nvec[0]]))

    def _others(self, first: jax.Array) -> CompositeDistribution:
        """Return the distribution of the other heads after a choice of the first, i32 `[...]`."""
        chosen = (first[..., None] == np.arange(self.nvec[0])).astype(jnp.float32)
        others, start = self.outputs.others, self.nvec[0]
        context = others.context + jnp.einsum("...n,...nc->...c", chosen, self.outputs.embedding)
        mask = self.mask
        if mask is not None and mask.ndim > others.context.ndim:
            allowed = jnp.any((chosen > 0)[..., None] & mask[..., :start, start:], axis=-2)
            mask = mask[..., start:, start:]
            legal = allowed & jnp.diagonal(mask, axis1=-2, axis2=-1)
            mask = jnp.where(np.eye(mask.shape[-1], dtype=bool), legal[..., None], mask) if len(self.nvec) > 2 else legal
        elif mask is not None:
            mask = mask[..., start:]
        return composite_distribution(others._replace(context=context), mask, self.nvec[1:], self.only_if, first[..., None])


def pointed_head(space: Any, context: int = 64) -> ActionHead:
    """The head of an auto-regressive policy whose first head points at entities; its network puts out `Pointed`.

    Args:
        space: MultiDiscrete, or a Dict of Discrete (named heads, in the order of the dictionary), of at least two heads.
        context: C, the length of the context.

    Raises:
        ConfigError: the space has no heads that could depend on each other.
    """
    nvec, to_env = several_heads(space)
    only_if = getattr(as_space(space), "only_if", None)

    def entropy(distribution: PointedDistribution, action: jax.Array) -> jax.Array:
        return distribution.entropy_along(action)

    return ActionHead(
        num_outputs=context,
        action=jax.ShapeDtypeStruct((len(nvec),), jnp.int32),
        distribution=lambda outputs, mask: PointedDistribution(outputs, mask, nvec, only_if),
        noise=lambda key, shape: draw(jax.random.gumbel, key, (*shape, len(nvec), max(nvec))),
        to_env=to_env,
        entropy=entropy,
        choices=lambda d, action: d.choices(action),
        module=PointedHead(nvec),
        policy_gain=2.0**0.5,
    )
