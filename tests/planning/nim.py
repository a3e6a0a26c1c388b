"""Nim with one heap, whose parameters change the rules, for tests of levels."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environments.spaces import Box, Discrete
from rljax.core.games.game import Game


@struct.dataclass
class NimParams:
    """The heap at the beginning, at most 12, and whether who takes the last stone loses."""

    heap: int = 7
    misere: bool = False


class NimState(NamedTuple):
    heap: jax.Array
    player: jax.Array


class Nim(Game):
    """The players take one or two stones in turns (actions 0 and 1); who takes the last one wins 1, or loses it (`misere`).

    Observation f32 `[13]`: the heap, one-hot; not the rule. The metric `taken` is the number of stones that a move took.
    """

    @property
    def name(self) -> str:
        return "Nim"

    @property
    def default_params(self) -> NimParams:
        return NimParams()

    @property
    def turn_gap(self) -> int:
        return 1

    def observation_space(self, params: Any) -> Box:
        return Box(0.0, 1.0, (13,))

    def action_space(self, params: Any) -> Discrete:
        return Discrete(2)

    def to_move(self, state: NimState) -> jax.Array:
        return jnp.arange(2) == state.player

    def action_mask(self, state: NimState, params: Any) -> jax.Array:
        return jnp.stack([state.heap >= 1, state.heap >= 2]) & self.to_move(state)[:, None]

    def observe(self, state: NimState, params: Any) -> jax.Array:
        return jnp.broadcast_to(jax.nn.one_hot(state.heap, 13), (2, 13))

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, NimState]:
        state = NimState(jnp.asarray(params.heap, jnp.int32), jnp.zeros((), jnp.int32))
        return self.observe(state, params), state

    def step_env(
        self, key: jax.Array, state: NimState, action: jax.Array, params: Any
    ) -> tuple[jax.Array, NimState, jax.Array, jax.Array, dict[str, Any]]:
        taken = action[state.player] + 1
        after = NimState(state.heap - taken, 1 - state.player)
        over = after.heap <= 0
        winner = jnp.where(params.misere, 1 - state.player, state.player)
        reward = jnp.where(over, jnp.where(jnp.arange(2) == winner, 1.0, -1.0), 0.0)
        info = {"metrics": {"taken": taken.astype(jnp.float32)}}
        return self.observe(after, params), after, reward, over, info


def winning_move(heap: int, misere: bool) -> int | None:
    """Return the action that wins, or None if there is none or both do."""
    lost = 1 if misere else 0
    wins = [action for action in (0, 1) if heap > action and (heap - action - 1) % 3 == lost]
    return wins[0] if len(wins) == 1 else None
