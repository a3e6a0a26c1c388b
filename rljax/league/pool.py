"""A pool of past players on the device: parameters stacked in slots, with who they were."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

NOBODY = -1


class Pool(struct.PyTreeNode):
    """C slots. One is written at a time, and never is the whole copied.

    Attributes:
        params: of each slot's player, leaves `[C, ...]`.
        filled: bool `[C]`.
        protected: never evicted, bool `[C]`.
        age: when it was added, in the caller's steps, i32 `[C]`.
        parent: which player it was a snapshot of, i32 `[C]`, `NOBODY` where none.
        role: the caller's number for what it was, i32 `[C]`.
        offered: how many were offered that were not protected, i32 [].
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
        """No players yet, slots for parameters like `params`."""
        return cls(
            params=jax.tree.map(lambda x: jnp.zeros((capacity, *jnp.shape(x)), jnp.result_type(x)), params),
            filled=jnp.zeros(capacity, bool),
            protected=jnp.zeros(capacity, bool),
            age=jnp.zeros(capacity, jnp.int32),
            parent=jnp.full(capacity, NOBODY),
            role=jnp.zeros(capacity, jnp.int32),
            offered=jnp.zeros((), jnp.int32),
        )

    @property
    def capacity(self) -> int:
        return self.filled.shape[0]

    def place(self, key: jax.Array, eviction: str = "reservoir") -> jax.Array:
        """The slot for the next player, i32 []; `NOBODY` where the pool is full and keeps those that it has.

        Empty slots come first. In a full pool "reservoir" (Vitter, 1985) keeps every player ever offered with the same chance:
        the n-th one takes the place of a random one of k with probability k / n. "fifo" evicts the oldest. Protected ones stay.
        """
        open_slots = ~self.filled
        evictable = self.filled & ~self.protected
        count = jnp.sum(evictable)
        if eviction == "fifo":
            oldest = jnp.argmin(jnp.where(evictable, self.age, jnp.iinfo(jnp.int32).max))
            evicted = jnp.where(count > 0, oldest, NOBODY)
        else:
            drawn = (jax.random.uniform(key) * (self.offered + 1)).astype(jnp.int32)
            # The drawn-th of the evictable slots.
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
        """Put a player into a slot that `place` chose, where `when`, bool [], and the slot is one.

        A payoff's row and column of the slot are of somebody else then: clear them (`Payoff.clear`).
        """
        goes = when & (slot >= 0)
        at = jnp.where(goes, slot, self.capacity)

        def put(old: jax.Array, new: Any) -> jax.Array:
            # Written to a slot that does not exist where nobody goes in: a choice between what is there and what is new would
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
        """Parameters of the players in `slots`, i32 `[...]`: leaves `[..., *leaf]`."""
        return jax.tree.map(lambda x: x[slots], self.params)
