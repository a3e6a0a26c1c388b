"""Separate parameters for groups of players (teams, roles, single players) behind the interface of one policy.

G copies of a network are applied to every observation, and the group that the observation names chooses among their results. So
whatever takes a policy takes this one, too: the cost is G times that of shared parameters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.core.games.game_wrappers import GROUP, OBS
from rljax.nn.outputs.actions import ActionHead
from rljax.nn.outputs.choices import Choices
from rljax.nn.policy import Embedded, Policy


class PerGroup(NamedTuple):
    """Results of all groups' networks.

    Attributes:
        each: tree of arrays `[..., G]`.
        group: the group that counts, one-hot bool `[..., G]`, with the batch axes of an observation.
    """

    each: Any
    group: jax.Array

    def chosen(self, each: Any) -> Any:
        """Return the group's part of leaves `[*batch, *, G]`: `[*batch, *]`."""

        def of_group(x: jax.Array) -> jax.Array:
            extra = (1,) * (x.ndim - self.group.ndim)
            which = self.group.reshape(*self.group.shape[:-1], *extra, self.group.shape[-1])
            if x.dtype == jnp.bool_:
                return jnp.any(x & which, axis=-1)
            return jnp.sum(jnp.where(which, x, 0), axis=-1, dtype=x.dtype)

        return jax.tree.map(of_group, each)


class GroupedPolicy(NamedTuple):
    """A `Policy` with parameters of each of G groups, leaves `[G, ...]`; observations are those of `PlayerGroups`."""

    policy: Policy
    num_groups: int

    @property
    def cell(self) -> None:
        """None: each group has a cell of its own, all of which advance."""

    def init(self, key: jax.Array, obs: Any) -> Any:
        return jax.vmap(self.policy.init, (0, None))(jax.random.split(key, self.num_groups), obs[OBS])

    def initial_carry(self, batch: tuple[int, ...]) -> Any:
        return self.policy.initial_carry(batch)

    def apply(self, params: Any, *args: Any, method: str = "__call__") -> Any:
        """Apply a method of `Policy`; outputs are `PerGroup`, as `grouped_head` takes them."""
        result: Any = getattr(self, {"__call__": "step"}.get(method, method))(params, *args)
        return result

    def _each(self, method: str, axes: tuple[int | None, ...], params: Any, *args: Any) -> Any:
        # From JAX 0.11 on, vmap must not split NumPy arrays (a teacher's) for a function with a derivative of its own.
        params = jax.tree.map(jnp.asarray, params)
        return jax.vmap(lambda p, *a: self.policy.apply(p, *a, method=method), (0, *axes), -1)(params, *args)

    def step(self, params: Any, obs: Any, carry: Any = None) -> tuple[PerGroup, jax.Array, Any]:
        outputs, value, carry = self._each("__call__", (None, None), params, obs[OBS], carry)
        found = PerGroup(outputs, obs[GROUP])
        return found, found.chosen(value), found.chosen(carry)

    def embed(self, params: Any, obs: Any) -> Embedded:
        embedded = self._each("embed", (None,), params, obs[OBS])
        return Embedded(PerGroup(embedded, obs[GROUP]), None)

    def advance(self, params: Any, carry: Any, x: PerGroup) -> Any:
        after = self._each("advance", (None, -1), params, carry, x.each.x)
        return x.chosen(after)

    def policy_and_value(self, params: Any, carry: Any, embedded: Embedded) -> tuple[PerGroup, jax.Array]:
        x: PerGroup = embedded.x
        outputs, value = self._each("policy_and_value", (None, -1), params, carry, x.each)
        found = PerGroup(outputs, x.group)
        return found, found.chosen(value)


class GroupedDistribution(NamedTuple):
    """Distribution over actions by the network of one's group."""

    head: ActionHead
    outputs: PerGroup
    mask: jax.Array | None

    def _chosen(self, function: Any) -> Any:
        each = jax.vmap(lambda outputs: function(self.head.distribution(outputs, self.mask)), -1, -1)(self.outputs.each)
        return self.outputs.chosen(each)

    def log_prob(self, action: jax.Array) -> jax.Array:
        found: jax.Array = self._chosen(lambda d: d.log_prob(action))
        return found

    @property
    def probs(self) -> jax.Array:
        found: jax.Array = self._chosen(lambda d: d.probs)
        return found

    def mode(self) -> jax.Array:
        found: jax.Array = self._chosen(lambda d: d.mode())
        return found

    def sample(self, noise: jax.Array) -> jax.Array:
        found: jax.Array = self._chosen(lambda d: self.head.sample(d, noise))
        return found

    def entropy(self, action: jax.Array) -> jax.Array:
        found: jax.Array = self._chosen(lambda d: self.head.entropy(d, action))
        return found

    def choices(self, action: jax.Array) -> Choices:
        assert self.head.choices is not None
        of_head = self.head.choices
        found: Choices = self._chosen(lambda d: of_head(d, action))
        return found

    def kl_divergence(self, other: GroupedDistribution) -> jax.Array:
        def of_group(outputs: Any, others: Any) -> jax.Array:
            one, two = (self.head.distribution(x, self.mask) for x in (outputs, others))
            divergence: jax.Array = one.kl_divergence(two)
            return divergence

        found: jax.Array = self.outputs.chosen(jax.vmap(of_group, -1, -1)(self.outputs.each, other.outputs.each))
        return found


def grouped_head(head: ActionHead) -> ActionHead:
    """Return an action head for the outputs of a `GroupedPolicy`."""
    return head._replace(
        distribution=lambda outputs, mask: GroupedDistribution(head, outputs, mask),
        sample=lambda distribution, noise: distribution.sample(noise),
        entropy=lambda distribution, action: distribution.entropy(action),
        choices=None if head.choices is None else lambda distribution, action: distribution.choices(action),
    )
