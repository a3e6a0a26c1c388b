"""Games for tiny runs, which a configuration names by their path, and networks of one's own that play them."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.envs import GoalGame, HabitRPS


def flat(obs: Any) -> jax.Array:
    """All that a player sees, f32 `[B, O]`."""
    parts = [x.reshape(x.shape[0], -1) for x in jax.tree.leaves(obs)]
    return jnp.concatenate(parts, axis=-1).astype(jnp.float32)


class Plain(nn.Module):
    """A network without memory."""

    outputs: int

    @nn.compact
    def __call__(self, obs: Any) -> tuple[jax.Array, jax.Array]:
        x = nn.tanh(nn.Dense(8)(flat(obs)))
        return nn.Dense(self.outputs)(x), nn.Dense(1)(x)[..., 0]


class Elman(nn.Module):
    """A recurrent network with a value for each component of the reward."""

    outputs: int
    values: int

    def setup(self) -> None:
        self.encoder, self.recurrent = nn.Dense(4), nn.Dense(4)
        self.policy, self.value = nn.Dense(self.outputs), nn.Dense(self.values)

    def initial_carry(self, batch: tuple[int, ...]) -> jax.Array:
        return jnp.zeros((*batch, 4))

    def embed(self, obs: Any) -> jax.Array:
        return self.encoder(flat(obs))

    def advance(self, carry: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(x + self.recurrent(carry))

    def heads(self, carry: jax.Array, x: jax.Array, privileged: Any) -> tuple[jax.Array, jax.Array]:
        return self.policy(carry), self.value(carry)


class HabitGoals(GoalGame):
    """Rock, paper, scissors against players with habits, where the goal of a player is one of the three signs."""

    def __init__(self) -> None:
        super().__init__(HabitRPS(), 3)
