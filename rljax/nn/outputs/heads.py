"""Heads, some of which an environment may read only if another head takes certain actions, as an attack's target.

Independent ones are `Heads`; those that see each other are in `rljax.nn.outputs.composite`. Heads that are not read have no
effect, so AlphaStar (Vinyals et al., 2019) and others leave them out of the probability of an action and of its entropy. In
policy gradients, their terms would only add noise.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.nn.outputs.distributions import Categorical

OnlyIf = tuple[tuple[int, tuple[int, ...]] | None, ...]
"""Under which actions of which head each head is read, as in `rljax.core.environments.spaces.MultiDiscrete`."""


class Heads(struct.PyTreeNode):
    """A distribution over the actions of those of K heads that are read.

    `log_prob`, `entropy` and `kl_divergence` are those of the action that the environment reads: by the chain rule, a head counts
    where it is read, or with the probability that it is.

    Attributes:
        each: the categorical of each head, batch `[..., K]`.
        only_if: as in `rljax.core.environments.spaces.MultiDiscrete`; None: every head is read.
    """

    each: Categorical
    only_if: OnlyIf | None = struct.field(pytree_node=False, default=None)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return the log-probability f32 `[...]` of actions i32 `[..., K]`."""
        log_prob = self.each.log_prob(action)
        if self.only_if is not None:
            log_prob = jnp.where(read_by_action(self.only_if, action), log_prob, 0.0)
        return jnp.sum(log_prob, axis=-1)

    def entropy(self) -> jax.Array:
        """Return the entropy f32 `[...]`."""
        return self._sum(self.each.entropy())

    def kl_divergence(self, other: Heads) -> jax.Array:
        """Return the divergence f32 `[...]` from this distribution to another."""
        return self._sum(self.each.kl_divergence(other.each))

    def mode(self) -> jax.Array:
        """Return each head's most likely action, i32 `[..., K]`."""
        return self.each.mode()

    @property
    def probs(self) -> jax.Array:
        """The probabilities of each head's actions, f32 `[..., K, W]`."""
        return self.each.probs

    def _sum(self, of_heads: jax.Array) -> jax.Array:
        """Return the sum over heads f32 `[..., K]`, each times the probability that it is read."""
        if self.only_if is None:
            return jnp.sum(of_heads, axis=-1)
        always, decider, actions = _conditions(self.only_if)
        heads, place = np.unique(decider, return_inverse=True)
        probs = jnp.exp(self.each.logits[..., heads, : actions.shape[1]])
        read = jnp.where(always, 1.0, jnp.sum(jnp.where(actions, probs[..., place, :], 0.0), axis=-1))
        return jnp.sum(read * of_heads, axis=-1)


def read_by_action(only_if: OnlyIf, action: jax.Array) -> jax.Array:
    """Return which heads the environment reads of actions i32 `[..., K]`, bool `[..., K]`."""
    always, decider, actions = _conditions(only_if)
    return jnp.any((action[..., decider, None] == np.arange(actions.shape[1])) & actions, axis=-1) | always


def read_so_far(only_if: OnlyIf | None, action: jax.Array) -> jax.Array:
    """As `read_by_action`, for heads that choose in turn: a head whose decider chooses after it counts as read. None: every head
    does, bool `[K]`.
    """
    if only_if is None:
        return jnp.ones(action.shape[-1], bool)
    undecided = np.array([condition is not None and condition[0] > head for head, condition in enumerate(only_if)])
    return read_by_action(only_if, action) | undecided


def _conditions(only_if: OnlyIf) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return which heads are always read, bool `[K]`; for the others the head that decides, `[K]`, and with which of its actions
    they are read, bool `[K, V]`.
    """
    conditions = [(0, (0,)) if condition is None else condition for condition in only_if]
    actions = np.zeros((len(only_if), 1 + max(max(named) for _, named in conditions)), bool)
    for head, (_, named) in enumerate(conditions):
        actions[head, list(named)] = True
    return np.array([condition is None for condition in only_if]), np.array([head for head, _ in conditions]), actions
