"""Choices of policies with discrete actions: the log-probabilities of each head, whatever kind of distribution has them.

Imitation needs more than the probability of an action: how each head is distributed, which of its actions are legal, and whether
the environment reads it. In shapes, K is the number of heads and W the widest head's number of actions.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.nn.modules.classes import argmax_of
from rljax.nn.outputs.heads import OnlyIf, read_by_action


class Choices(NamedTuple):
    """What each head chooses from, given the actions of the heads before it.

    Attributes:
        log_prob: log-probabilities f32 `[..., K, W]`, the least finite number or about it for illegal actions and padding.
        action: the action of each head, i32 `[..., K]`.
        read: whether the environment reads the head, bool `[..., K]`.
    """

    log_prob: jax.Array
    action: jax.Array
    read: jax.Array

    @property
    def legal(self) -> jax.Array:
        """Which actions are legal, bool `[..., K, W]`."""
        return self.log_prob > 0.5 * jnp.finfo(self.log_prob.dtype).min

    @property
    def valid(self) -> jax.Array:
        """Whether the action of each head is legal, bool `[..., K]`."""
        return jnp.take_along_axis(self.legal, self.action[..., None], axis=-1)[..., 0]

    @property
    def decides(self) -> jax.Array:
        """Whether the head is read and has more than one legal action, bool `[..., K]`."""
        return self.read & (jnp.sum(self.legal, axis=-1) > 1)

    @property
    def likeliest(self) -> jax.Array:
        """The most likely action of each head, i32 `[..., K]`."""
        return argmax_of(self.log_prob)


def choices_of(logits: jax.Array, action: jax.Array, only_if: OnlyIf | None) -> Choices:
    """Return the choices of heads.

    Args:
        logits: masked, f32 `[..., K, W]`.
        action: i32 `[..., K]`.
        only_if: as in `rljax.core.environments.spaces.MultiDiscrete`; None: every head is read.
    """
    read = jnp.ones(action.shape, bool) if only_if is None else read_by_action(only_if, action)
    return Choices(jax.nn.log_softmax(logits), action, read)


def padded(log_prob: jax.Array, width: int) -> jax.Array:
    """Return log-probabilities f32 `[..., W]` of `width` actions, the further ones impossible."""
    missing = [(0, 0)] * (log_prob.ndim - 1) + [(0, width - log_prob.shape[-1])]
    return jnp.pad(log_prob, missing, constant_values=np.finfo(np.float32).min)
