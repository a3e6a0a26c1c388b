"""A pool of past players on the device: their parameters, stacked in slots, and a description of each."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

NOBODY = -1


class Pool(struct.PyTreeNode):
    """A pool of C slots. Adding a player writes one slot, without a copy of the pool.

    Attributes:
        params: parameters of each slot's player, leaves `[C, ...]`; in a run with normalised observations a
            `rljax.league.parts.Player` of these and of the statistics that normalise the player's observations.
        filled: whether a slot has a player, bool `[C]`.
        protected: whether it is never evicted, bool `[C]`.
        age: when it was added, in the caller's steps, i32 `[C]`.
        parent: index of the learner that it is a snapshot of, i32 `[C]`; `NOBODY` without one.
        role: the caller's number for its role, i32 `[C]`.
        offered: number of unprotected players offered so far, i32 [].
    """

    params: Any
    filled: jax.Array
    protected: jax.Array
    age: jax.Array
    parent: jax.Array
    role: jax.Array
    offered: jax.Array

    @classmethod
    def empty(cls, params: Any, capacity: int) -> Pool:
        """Create an empty pool with slots for parameters like `params`."""
        return cls(
            params=jax.tree.map(lambda x: jnp.zeros((capacity, *jnp.shape(x)), jnp.result_type(x)), params),
            filled=jnp.zeros(capacity, bool),
            protected=jnp.zeros(capacity, bool),
            age=jnp.zeros(capacity, jnp.int32),
            parent=jnp.full(capacity, NOBODY, jnp.int32),
            role=jnp.zeros(capacity, jnp.int32),
            offered=jnp.zeros((), jnp.int32),
        )

    @property
    def capacity(self) -> int:
        return self.filled.shape[0]

    def place(self, key: jax.Array, eviction: str = "reservoir") -> jax.Array:
        """Choose the slot for the next player, i32 []; `NOBODY` if the pool is full and the player is not added.

        Empty slots come first. In a full pool, "reservoir" (Vitter, 1985) keeps every player ever offered with the same
        probability: the n-th player replaces a random one of the k unprotected players with probability k / n. "fifo" evicts the
        oldest. Protected players stay.
        """
        open_slots = ~self.filled
        evictable = self.filled & ~self.protected
        count = jnp.sum(evictable)
        if eviction == "fifo":
            oldest = jnp.argmin(jnp.where(evictable, self.age, jnp.iinfo(jnp.int32).max))
            evicted = jnp.where(count > 0, oldest, NOBODY)
        else:
            drawn = (jax.random.uniform(key) * (self.offered + 1)).astype(jnp.int32)
            # The evictable slot with the drawn number.
            chosen = jnp.argmax((jnp.cumsum(evictable) == drawn + 1) & evictable)
            evicted = jnp.where(drawn < count, chosen, NOBODY)
        return jnp.where(jnp.any(open_slots), jnp.argmax(open_slots), evicted).astype(jnp.int32)

    def add(
        self,
        slot: jax.Array,
        params: Any,
        when: jax.Array,
        age: jax.Array | int = 0,
        parent: jax.Array | int = NOBODY,
        role: jax.Array | int = 0,
        protect: jax.Array | bool = False,
    ) -> Pool:
        """Put a player into the slot that `place` chose, if `when`, bool [], and if that is not `NOBODY`.

        The slot's row and column of a payoff then belong to a new player: clear them (`Payoff.clear`).
        """
        goes = when & (slot >= 0)
        at = jnp.where(goes, slot, self.capacity)

        def put(old: jax.Array, new: Any) -> jax.Array:
            # If no player is added, write to a slot that does not exist: a choice between the old and the new parameters would
            # read the slot, and XLA then writes to a copy of the whole pool.
            return old.at[at].set(jnp.asarray(new, old.dtype), mode="drop")

        return self.replace(
            params=jax.tree.map(put, self.params, params),
            filled=put(self.filled, True),
            protected=put(self.protected, protect),
            age=put(self.age, age),
            parent=put(self.parent, parent),
            role=put(self.role, role),
            offered=self.offered + (when & ~jnp.asarray(protect)),
        )

    def gather(self, slots: jax.Array) -> Any:
        """Return the parameters of the players in `slots`, i32 `[...]`: leaves `[..., *leaf]`."""
        return jax.tree.map(lambda x: x[slots], self.params)
