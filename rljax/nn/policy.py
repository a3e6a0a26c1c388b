"""The policy module: an actor-critic network, with or without memory, and the parameters of the action head."""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.core.environments.wrappers import join_privileged, split_privileged
from rljax.nn.modules.recurrent import IN_PARTS, CellMemory
from rljax.nn.networks import one_batch_axis


class Embedded(NamedTuple):
    """Embedded observations (the output of the network's part that does not depend on time), and the privileged ones, None
    without.
    """

    x: Any
    privileged: Any


class Policy(nn.Module):
    """Actor-critic `network` with the free parameters of the action head.

    `(obs [..., *obs_shape], carry) -> (outputs [..., head outputs], value f32 [...], carry)`; the outputs are those that
    `ActionHead.distribution` takes.

    A network without memory is a module `obs [B, *obs_shape] -> (outputs [B, num_outputs], value [B])`. One with memory has
    methods instead:

    - `initial_carry(batch) -> carry`: the carry at the start of an episode, a tree of zeros `[*batch, ...]`; None without memory.
    - `embed(obs [B, *obs_shape]) -> x`: the part that does not depend on time, for many steps at once.
    - `advance(carry, x) -> carry`: one step.
    - `heads(carry, x, privileged) -> (outputs [..., num_outputs], value [...])`: for many steps at once, any leading axes.

    If observations are dictionaries with a key `privileged`, the network is called as `network(obs, privileged)`, where `obs` is
    the rest; only the value may depend on `privileged`. With several value heads, `value` is `[..., num_values]`.

    Attributes:
        network: the network, as above.
        obs_ndims: number of axes of one observation, for each leaf in tree order.
        num_log_std: number of free log standard deviations, which follow the means.
        head: module with parameters of its own, from the network's outputs to those of the action distribution; None: no module.
    """

    network: nn.Module
    obs_ndims: tuple[int, ...] = (1,)
    num_log_std: int = 0
    head: nn.Module | None = None

    def setup(self) -> None:
        if self.num_log_std:
            self.log_std = self.param("log_std", nn.initializers.zeros, (self.num_log_std,))

    @property
    def cell(self) -> Any:
        """The cell that is all that the network remembers by, and that advances in two parts (see `CellMemory`, `IN_PARTS`); None
        if there is no such cell, or if `advance` may be another one, of a class of the user's own."""
        network = self.network
        if not isinstance(network, CellMemory) or type(network).advance is not CellMemory.advance:
            return None
        return network.cell if type(network.cell) in IN_PARTS else None

    @property
    def in_parts(self) -> bool:
        """True if the network has the methods of one with memory."""
        return hasattr(self.network, "initial_carry")

    def initial_carry(self, batch: tuple[int, ...]) -> Any:
        """Return the carry at the start of an episode: zeros `[*batch, ...]`, or None without memory. Needs no parameters."""
        network: Any = self.network
        return network.initial_carry(batch) if self.in_parts else None

    def __call__(self, obs: Any, carry: Any = None) -> tuple[Any, jax.Array, Any]:
        """Take one step; pass None as `carry` at the start of an episode."""
        carry, embedded = self._look(obs, carry)
        return (*self.policy_and_value(carry, embedded), carry)

    def _look(self, obs: Any, carry: Any) -> tuple[Any, Embedded]:
        """Return the carry after one more step, and the embedded observation."""
        embedded = self.embed(obs)
        if carry is None:
            leaf = jax.tree.leaves(obs)[0]
            carry = self.initial_carry(leaf.shape[: leaf.ndim - self.obs_ndims[0]])
        return (carry if carry is None else self.advance(carry, embedded.x)), embedded

    def embed(self, obs: Any) -> Embedded:
        """Apply the part of the network that does not depend on time, `[..., *obs_shape] -> Embedded` with leaves `[..., *]`."""
        if not self.in_parts:
            return Embedded(*split_privileged(obs))
        obs, batch = one_batch_axis(obs, self.obs_ndims)
        public, privileged = split_privileged(obs)
        network: Any = self.network
        embedded = Embedded(network.embed(public), privileged)
        return jax.tree.map(lambda x: x.reshape((*batch, *x.shape[1:])), embedded)

    def advance(self, carry: Any, x: Any) -> Any:
        """Return the carry `[..., *]` after one more step; `x` is the result of `embed`."""
        network: Any = self.network
        return network.advance(carry, x)

    def of_cell(self, name: str, *arguments: Any) -> Any:
        """Call the cell's method of this name."""
        return getattr(self.cell, name)(*arguments)

    def policy_and_value(self, carry: Any, embedded: Embedded) -> tuple[Any, jax.Array]:
        """Return `(outputs, value)` from embedded observations and, with memory, the carry after them."""
        outputs, value = self.raw(carry, embedded)
        if self.num_log_std:
            outputs = jnp.concatenate([outputs, jnp.broadcast_to(self.log_std, (*outputs.shape[:-1], self.num_log_std))], axis=-1)
        return (outputs if self.head is None else self.head(outputs)), value

    def bare(self, obs: Any) -> tuple[jax.Array, jax.Array]:
        """Return `(outputs, value)` of the network alone at the start of an episode, to check a user's network."""
        return self.raw(*self._look(obs, None))

    def raw(self, carry: Any, embedded: Embedded) -> tuple[jax.Array, jax.Array]:
        """Return `(outputs, value)` of the network. A network without memory is called with one batch axis, whatever the leading
        axes.
        """
        network: Any = self.network
        if self.in_parts:
            outputs, value = network.heads(carry, *embedded)
            return outputs, value
        obs, batch = one_batch_axis(join_privileged(*embedded), self.obs_ndims)
        public, privileged = split_privileged(obs)
        outputs, value = network(public) if privileged is None else network(public, privileged)
        return jax.tree.map(lambda x: jnp.asarray(x).reshape((*batch, *x.shape[1:])), (outputs, value))
