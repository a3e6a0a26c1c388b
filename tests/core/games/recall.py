"""A game in which what a player saw at its move before says what to do, for tests."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.environments.spaces import Box, Discrete
from rljax.core.games.game import Game


class RecallState(NamedTuple):
    bits: jax.Array
    right: jax.Array
    time: jax.Array


class Recall(Game):
    """Each of two players is shown a bit at its first move, and names it at its second: the players win by who was right.

    At its first move a player observes its bit as -1 or 1, at its second 0, and in between, in the other's turn, 9. So the
    player knows the bit only if it remembers what it observed at its own move before.

    Args:
        turns: whether the players move one after the other.
    """

    hides_state = True

    def __init__(self, turns: bool = True) -> None:
        self.turns = turns

    @property
    def name(self) -> str:
        return "Recall"

    @property
    def default_params(self) -> tuple[()]:
        return ()

    @property
    def turn_gap(self) -> int:
        return int(self.turns)

    @property
    def all_move(self) -> bool:
        return not self.turns

    def observation_space(self, params: Any) -> Box:
        return Box(-1.0, 9.0, (1,))

    def action_space(self, params: Any) -> Discrete:
        return Discrete(2)

    def to_move(self, state: RecallState) -> jax.Array:
        return (jnp.arange(2) == state.time % 2) if self.turns else jnp.ones(2, bool)

    def observe(self, state: RecallState, params: Any) -> jax.Array:
        shown = jnp.where(state.time < (2 if self.turns else 1), 2.0 * state.bits - 1.0, 0.0)
        return jnp.where(self.to_move(state), shown, 9.0)[:, None]

    def initial_states(self, params: Any) -> tuple[RecallState, jax.Array]:
        bits = jnp.asarray(np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.int32))
        return RecallState(bits, jnp.zeros((4, 2)), jnp.zeros(4, jnp.int32)), jnp.full(4, 0.25)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, RecallState]:
        bits = jax.random.bernoulli(key, shape=(2,)).astype(jnp.int32)
        state = RecallState(bits, jnp.zeros(2), jnp.zeros((), jnp.int32))
        return self.observe(state, params), state

    def step_env(self, key: jax.Array, state: RecallState, action: jax.Array, params: Any) -> Any:
        names = self.to_move(state) & (state.time >= (2 if self.turns else 1))
        right = jnp.where(names, (action == state.bits).astype(jnp.float32), state.right)
        after = RecallState(state.bits, right, state.time + 1)
        over = after.time >= (4 if self.turns else 2)
        reward = jnp.where(over, right - right[::-1], 0.0)
        return self.observe(after, params), after, reward, over, {"metrics": {"right": jnp.mean(right)}}
