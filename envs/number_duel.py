"""NumberDuel-v0: two players each name a number at the same time, in several rounds."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environments.spaces import Box, Discrete
from rljax.core.games.game import Game

NUMBERS, ROUNDS = 5, 5


@struct.dataclass
class NumberDuelState:
    """State: `history` i32 `[2, 5]`, the numbers of both players by round, -1 for future rounds; `time` counts the rounds."""

    history: jax.Array
    time: jax.Array


@struct.dataclass
class NumberDuelParams:
    pass


class NumberDuel(Game):
    """Both players name a number from 0 to 4 at the same time, five times.

    In a ring, a number beats the first and the second number below it (0 beats 4 and 3), and wins `(number + 1) / 5` from the
    other player; equal numbers win nothing.

    Observation of each player, f32 `[55]`: the player's numbers of all rounds (one-hot 5 each, zeros for future rounds), the
    other's, and the round (one-hot 5). The reward is the amount won or lost in a round.

    This is rock, paper, scissors with five signs and unequal stakes: no number is safe, and uniform play is not an equilibrium.
    Players see all earlier numbers, so a predictable player can be exploited. The value of the game is 0.
    """

    best_is_random = True

    @property
    def name(self) -> str:
        return "NumberDuel-v0"

    @property
    def default_params(self) -> NumberDuelParams:
        return NumberDuelParams()

    def observation_space(self, params: NumberDuelParams) -> Box:
        return Box(0.0, 1.0, (2 * ROUNDS * NUMBERS + ROUNDS,))

    def action_space(self, params: NumberDuelParams) -> Discrete:
        return Discrete(NUMBERS)

    def observe(self, state: NumberDuelState, params: NumberDuelParams) -> jax.Array:
        named = jax.nn.one_hot(state.history, NUMBERS).reshape(2, -1)
        clock = jnp.tile(jax.nn.one_hot(state.time, ROUNDS), (2, 1))
        return jnp.concatenate([named, named[::-1], clock], axis=-1)

    def text(self, state: NumberDuelState, params: NumberDuelParams, player: int) -> str:
        named = [[str(int(x)) for x in state.history[i] if x >= 0] for i in (player, 1 - player)]
        return f"you named {' '.join(named[0]) or 'nothing yet'}; the other {' '.join(named[1]) or 'nothing yet'}"

    def initial_states(self, params: NumberDuelParams) -> tuple[NumberDuelState, jax.Array]:
        return NumberDuelState(jnp.full((1, 2, ROUNDS), -1), jnp.zeros(1, jnp.int32)), jnp.ones(1)

    def reset_env(self, key: jax.Array, params: NumberDuelParams) -> tuple[jax.Array, NumberDuelState]:
        state = NumberDuelState(jnp.full((2, ROUNDS), -1), jnp.zeros((), jnp.int32))
        return self.observe(state, params), state

    def step_env(
        self, key: jax.Array, state: NumberDuelState, action: jax.Array, params: NumberDuelParams
    ) -> tuple[jax.Array, NumberDuelState, jax.Array, jax.Array, dict[str, Any]]:
        history = jnp.where(jnp.arange(ROUNDS) == state.time, action[:, None], state.history)
        ahead = (action[0] - action[1]) % NUMBERS
        wins = jnp.where((ahead == 1) | (ahead == 2), 1.0, jnp.where(ahead == 0, 0.0, -1.0))
        stake = (jnp.where(wins > 0, action[0], action[1]) + 1) / NUMBERS
        state = NumberDuelState(history, state.time + 1)
        reward = wins * stake * jnp.array([1.0, -1.0])
        return self.observe(state, params), state, reward, state.time == ROUNDS, {}
