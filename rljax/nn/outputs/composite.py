"""Auto-regressive composite actions (Vinyals et al., 2019, methods): several heads, each of which sees the actions of earlier
heads. Such heads can agree on a joint action, where independent heads can only each choose what is best on average.

    hidden_k = tanh(context + sum of embedding_j[a_j] over j < k)
    logits_k = kernel_k^T hidden_k + bias_k

The probability of all heads' actions is the product of each head's, given those before it. A head that the environment does not
read (`only_if` of `rljax.core.environments.spaces.MultiDiscrete`) is left out of the product and of the sums, if the head that
decides about it comes before it. In shapes, K is the number of heads, W the widest head's number of actions, A that of all heads
together, C the length of the context.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.environments.spaces import MultiDiscrete, as_space
from rljax.core.errors import ConfigError
from rljax.core.keys import draw
from rljax.nn.modules.classes import argmax_of, mask_logits
from rljax.nn.modules.initializers import orthogonal_kernels
from rljax.nn.outputs.actions import ActionHead, several_heads
from rljax.nn.outputs.choices import Choices
from rljax.nn.outputs.heads import OnlyIf, read_so_far


class CompositeOutputs(NamedTuple):
    """Parameters of a composite distribution: a context for each entry of the batch, and parameters shared by all entries.

    Attributes:
        context: f32 `[..., C]`, before the activation.
        embedding: embeddings of each head's actions, for the heads after it; f32 `[K, W, C]`. Nothing reads the last head's.
        kernel: from hidden units to each head's logits, f32 `[K, C, W]`.
        bias: f32 `[K, W]`.
    """

    context: jax.Array
    embedding: jax.Array
    kernel: jax.Array
    bias: jax.Array


class CompositeHead(nn.Module):
    """The parameters of a composite distribution, put beside a context: `context f32 [..., C] -> CompositeOutputs`.

    Kernels start orthogonal at gain .01, so that the first policy is nearly uniform. Embeddings start orthogonal, and so large
    that the sum of all that the last head sees has entries of about 1, as a context should have: the layer that makes it wants
    the gain of a hidden layer, not the .01 of logits.

    Attributes:
        nvec: number of actions of each head.
    """

    nvec: tuple[int, ...]

    @nn.compact
    def __call__(self, context: jax.Array) -> CompositeOutputs:
        heads, widest, size = len(self.nvec), max(self.nvec), context.shape[-1]
        embedding: Any = None
        kernel: Any = None
        if self.is_initializing():
            gain = math.sqrt(max(widest, size) / max(1, heads - 1))
            shapes = [(widest, size)] * heads + [(size, widest)] * heads
            drawn = orthogonal_kernels(self.make_rng("params"), shapes, [gain] * heads + [0.01] * heads)
            embedding, kernel = jnp.stack(drawn[:heads]), jnp.stack(drawn[heads:])
        return CompositeOutputs(
            context,
            self.param("embedding", lambda _: embedding),
            self.param("kernel", lambda _: kernel),
            self.param("bias", nn.initializers.zeros, (heads, widest)),
        )


class CompositeDistribution(struct.PyTreeNode):
    """A distribution over actions i32 `[..., K]`, head k's conditioned on those of the heads before it.

    Every head must have a legal action, whatever earlier heads chose; for a head without one, all its actions count as legal.

    Attributes:
        outputs: context `[..., C]` and parameters.
        mask: None; or bool `[..., A]`, the legal actions of all heads, concatenated; or bool `[..., A, A]`, where entry `[i, j]`
            says whether j is legal given that an earlier head chose i, and the diagonal what is legal at all. Entries whose i
            belongs to the same head as j or a later one are not read. Batch axes are those of the context.
        nvec: number of actions of each head.
        only_if: as in `rljax.core.environments.spaces.MultiDiscrete`, of the heads in `before` and of these; None: every head is
            read. A mask of pairs rules out actions by what a head chose, read or not.
        before: actions of heads before these, i32 `[..., B]`, for `only_if`; None: these are all heads.
    """

    outputs: CompositeOutputs
    mask: jax.Array | None
    nvec: tuple[int, ...] = struct.field(pytree_node=False)
    only_if: OnlyIf | None = struct.field(pytree_node=False, default=None)
    before: jax.Array | None = None

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-probability f32 `[...]` of actions i32 `[..., K]`: the least finite number, or about it, where one is illegal."""
        total = jnp.sum(jnp.where(self._taken(action), self.log_probs(action), 0.0), axis=(-2, -1))
        # Two illegal heads would make it infinite, and the ratio of two such probabilities NaN.
        return jnp.maximum(total, jnp.finfo(total.dtype).min)

    def entropy_along(self, action: jax.Array) -> jax.Array:
        """Sum over heads k of the entropy of head k given the actions of the heads before it, f32 `[...]`, for i32 `[..., K]`.

        For actions drawn from this distribution it is an unbiased estimate of the entropy of the joint distribution (the chain
        rule; the last head's action is not read). Its gradient leaves out that the earlier heads' probabilities decide which of
        the later heads' entropies count.
        """
        log_probs = self.log_probs(action)
        return -jnp.sum(jnp.where(self._read(action)[..., None], jnp.exp(log_probs) * log_probs, 0.0), axis=(-2, -1))

    def choices(self, action: jax.Array) -> Choices:
        """Choices of the heads along actions i32 `[..., K]`; a head counts as read where `log_prob` counts it."""
        return Choices(self.log_probs(action), action, jnp.broadcast_to(self._read(action), action.shape))

    def sample(self, noise: jax.Array) -> jax.Array:
        """Actions i32 `[..., K]`, head by head, each the argmax of logits plus Gumbel noise f32 `[..., K, W]`."""
        return self._head_by_head(noise)

    def mode(self) -> jax.Array:
        """Each head's likeliest action given those of the heads before it, i32 `[..., K]`.

        It need not be the most likely joint action, since the most likely action of a head may leave the next head undecided.
        """
        return self._head_by_head(None)

    def log_probs(self, action: jax.Array) -> jax.Array:
        """Log-probabilities of every head given the actions before it, f32 `[..., K, W]`, for i32 `[..., K]`."""
        context, embedding, kernel, bias = self.outputs
        heads, widest = bias.shape
        # What each head sees of all of them, [..., K, K W]: one product with all embeddings is their sum over the heads before.
        seen = self._taken(action)[..., None, :, :] & np.tri(heads, k=-1, dtype=bool)[..., None]
        before = seen.reshape(*action.shape, -1).astype(embedding.dtype) @ embedding.reshape(heads * widest, -1)
        logits = jnp.einsum("...kc,kcw->...kw", jnp.tanh(context[..., None, :] + before), kernel) + bias
        exists = _exists(self.nvec)
        legal = jnp.asarray(exists) if self.mask is None else legal_given(self.mask, action, self.nvec)
        return jax.nn.log_softmax(mask_logits(logits, legal, exists))

    def _head_by_head(self, noise: jax.Array | None) -> jax.Array:
        context, embedding, kernel, bias = self.outputs
        legal, pairs = self._masks()
        actions = []
        for k, (start, size) in enumerate(zip(_starts(self.nvec).tolist(), self.nvec, strict=True)):
            logits = jnp.tanh(context) @ kernel[k, :, :size] + bias[k, :size]
            logits = mask_logits(logits, None if legal is None else legal[..., start : start + size])
            if noise is not None:
                logits = logits + noise[..., k, :size]
            action = argmax_of(logits)
            actions.append(action)
            chosen = seen = action[..., None] == np.arange(size)
            if self.only_if is not None:
                later = [jnp.zeros_like(action)] * (len(self.nvec) - 1 - k)
                seen = chosen & self._read(jnp.stack([*actions, *later], axis=-1))[..., k, None]
            context = context + seen.astype(embedding.dtype) @ embedding[k, :size]
            if legal is not None and pairs is not None:
                allowed = pairs[..., start : start + size, :] | ~chosen[..., None]
                legal = legal & jnp.all(allowed, axis=-2)
        return jnp.stack(actions, axis=-1)

    def _read(self, action: jax.Array) -> Any:
        """Which heads count, bool `[..., K]`, for actions i32 `[..., K]`; each depends on the actions before it only."""
        every = action if self.before is None else jnp.concatenate([self.before, action], axis=-1)
        return read_so_far(self.only_if, every)[..., -len(self.nvec) :]

    def _taken(self, action: jax.Array) -> jax.Array:
        """Which actions were taken by heads that count, bool `[..., K, W]`."""
        return self._read(action)[..., None] & (action[..., None] == np.arange(max(self.nvec)))

    def _masks(self) -> tuple[jax.Array | None, jax.Array | None]:
        """Return which actions are legal, bool `[..., A]`, and which are after earlier choices, bool `[..., A, A]`; None: all."""
        if self.mask is None or self.mask.ndim == self.outputs.context.ndim:
            return self.mask, None
        return jnp.diagonal(self.mask, axis1=-2, axis2=-1), self.mask


def composite_head(space: Any, context: int = 64) -> ActionHead:
    """The head of an auto-regressive policy: its network puts out a context, and `CompositeHead` makes of it the
    `CompositeOutputs` that `distribution` takes.

    Args:
        space: MultiDiscrete, a Dict of Discrete (named heads, in the order of the dictionary), or the numbers of actions.
        context: C, the length of the context: so many hidden units each head has.

    Raises:
        ConfigError: the space has no heads that could depend on each other.
    """
    space = as_space(MultiDiscrete(tuple(space)) if isinstance(space, Sequence) else space)
    nvec, to_env = several_heads(space)
    heads, widest, only_if = len(nvec), max(nvec), getattr(space, "only_if", None)

    def distribution(outputs: Any, mask: jax.Array | None) -> CompositeDistribution:
        return composite_distribution(outputs, mask, nvec, only_if)

    return ActionHead(
        num_outputs=context,
        action=jax.ShapeDtypeStruct((heads,), jnp.int32),
        distribution=distribution,
        noise=lambda key, shape: draw(jax.random.gumbel, key, (*shape, heads, widest)),
        to_env=to_env,
        entropy=composite_entropy,
        choices=lambda d, action: d.choices(action),
        module=CompositeHead(nvec),
        policy_gain=math.sqrt(2.0),
    )


def composite_distribution(
    outputs: CompositeOutputs,
    mask: jax.Array | None,
    nvec: Sequence[int],
    only_if: OnlyIf | None = None,
    before: jax.Array | None = None,
) -> CompositeDistribution:
    """`CompositeDistribution` of these arguments, checked.

    Raises:
        ConfigError: the mask is neither bool `[..., A]` nor bool `[..., A, A]`, with the batch axes of the context.
    """
    total, batch = sum(nvec), outputs.context.shape[:-1]
    if mask is not None and mask.shape not in ((*batch, total), (*batch, total, total)):
        expected = f"{[*batch, total]}, or {[*batch, total, total]} for actions that rule out those of later heads"
        raise ConfigError(f"action mask of shape {list(mask.shape)}: expected {expected}")
    return CompositeDistribution(outputs, mask, tuple(nvec), only_if, before)


def composite_entropy(distribution: CompositeDistribution, action: jax.Array) -> jax.Array:
    """An estimate f32 `[...]` of the entropy from actions that the policy drew, i32 `[..., K]` (see `entropy_along`)."""
    return distribution.entropy_along(action)


def legal_given(mask: jax.Array, action: jax.Array, nvec: tuple[int, ...]) -> jax.Array:
    """Return the legal actions of each head given the actions of earlier heads, bool `[..., K, W]`; padding is not legal.

    Args:
        mask: bool `[..., A]` or `[..., A, A]`, as in `CompositeDistribution`.
        action: i32 `[..., K]`.
        nvec: number of actions of each head.
    """
    starts, exists, widest = _starts(nvec), _exists(nvec), max(nvec)
    legal = mask
    if mask.ndim > action.ndim:
        legal = jnp.diagonal(mask, axis1=-2, axis2=-1)
        head = np.repeat(np.arange(len(nvec)), nvec)
        chosen = action[..., head] == np.arange(len(head)) - starts[head]
        ruled_out = chosen[..., None] & (head[:, None] < head) & ~mask
        legal = legal & ~jnp.any(ruled_out, axis=-2)
    if exists.all():  # without a gather, which takes one element at a time on the CPU
        return legal.reshape(*legal.shape[:-1], len(nvec), widest)
    return legal[..., np.where(exists, starts[:, None] + np.arange(widest), 0)] & exists


def _exists(nvec: tuple[int, ...]) -> np.ndarray:
    """Which of the W actions of the widest head each head has, bool `[K, W]`."""
    return np.arange(max(nvec)) < np.asarray(nvec)[:, None]


def _starts(nvec: tuple[int, ...]) -> np.ndarray:
    """Return the index of each head's first action among those of all heads, `[K]`."""
    return np.cumsum((0, *nvec[:-1]))
