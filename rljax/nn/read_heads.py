"""Independent heads of which an environment reads some only if another head takes certain actions, as the target of an attack.

Heads that are not read have no effect, so AlphaStar (Vinyals et al., 2019) and others leave them out of the probability of an
action and of its entropy. In policy gradients, their terms would only add noise.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

OnlyIf = tuple[tuple[int, tuple[int, ...]] | None, ...]
"""Under which actions of which head each head is read, as in `rljax.core.spaces.MultiDiscrete`."""


class ReadHeads(struct.PyTreeNode):
    """A distribution over the actions of those of K heads that are read.

    `log_prob`, `entropy` and `kl_divergence` are those of the action that the environment reads: by the chain rule, a head counts
    where it is read, or with the probability that it is.

    Attributes:
        distribution: categoricals of all heads, distrax's, batch `[..., K]`.
        only_if: as in `rljax.core.spaces.MultiDiscrete`.
    """

    distribution: Any
    only_if: OnlyIf = struct.field(pytree_node=False)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return the log-probability f32 `[...]` of actions i32 `[..., K]`."""
        read = read_by_action(self.only_if, action)
        return jnp.sum(jnp.where(read, self.distribution.log_prob(action), 0.0), axis=-1)

    def entropy(self) -> jax.Array:
        """Return the entropy f32 `[...]`."""
        return jnp.sum(self._is_read() * self.distribution.entropy(), axis=-1)

    def kl_divergence(self, other: ReadHeads) -> jax.Array:
        """Return the divergence f32 `[...]` from this distribution to another."""
        return jnp.sum(self._is_read() * self.distribution.kl_divergence(other.distribution), axis=-1)

    def mode(self) -> jax.Array:
        """Return each head's most likely action, i32 `[..., K]`."""
        mode: jax.Array = self.distribution.mode()
        return mode

    def _is_read(self) -> jax.Array:
        """Return the probability that each head is read, f32 `[..., K]`."""
        always, decider, actions = _conditions(self.only_if)
        heads, place = np.unique(decider, return_inverse=True)
        probs = jax.nn.softmax(self.distribution.logits[..., heads, :])[..., : actions.shape[1]]
        return jnp.where(always, 1.0, jnp.sum(jnp.where(actions, probs[..., place, :], 0.0), axis=-1))


def read_by_action(only_if: OnlyIf, action: jax.Array) -> jax.Array:
    """Return which heads the environment reads of actions i32 `[..., K]`, bool `[..., K]`."""
    always, decider, actions = _conditions(only_if)
    return jnp.any((action[..., decider, None] == np.arange(actions.shape[1])) & actions, axis=-1) | always


def _conditions(only_if: OnlyIf) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return which heads are always read, bool `[K]`; for the others the head that decides, `[K]`, and with which of its actions
    they are read, bool `[K, V]`.
    """
    conditions = [(0, (0,)) if condition is None else condition for condition in only_if]
    actions = np.zeros((len(only_if), 1 + max(max(named) for _, named in conditions)), bool)
    for head, (_, named) in enumerate(conditions):
        actions[head, list(named)] = True
    return np.array([condition is None for condition in only_if]), np.array([head for head, _ in conditions]), actions
