"""Matrix games: all players choose at once, then the game is over."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.environments.spaces import Box, Discrete
from rljax.core.errors import ConfigError
from rljax.core.games.game import Game


@struct.dataclass
class MatrixGameState:
    """State: `time` is 1 once the players have chosen, i32 []."""

    time: jax.Array


@struct.dataclass
class MatrixGameParams:
    pass


class MatrixGame(Game):
    """Two players choose a row and a column of a payoff matrix at the same time.

    Observation f32 `[2]`: the player's seat (one-hot). An episode has one step.

    Args:
        payoff: rewards of the row player, `[rows, columns]`, whose negatives the column player gets; or rewards of both,
            `[2, rows, columns]`.

    Raises:
        ConfigError: the payoff has another shape, or numbers that are not finite.
    """

    best_is_random = True

    def __init__(self, payoff: Any, name: str = "MatrixGame") -> None:
        table = np.asarray(payoff, np.float32)
        if table.ndim == 2:
            table = np.stack([table, -table])
        if table.ndim != 3 or table.shape[0] != 2 or 0 in table.shape:
            raise ConfigError(f"{name}: payoff of shape {np.shape(payoff)}, expected [rows, columns] or [2, rows, columns]")
        if not np.isfinite(table).all():
            raise ConfigError(f"{name}: payoff has numbers that are not finite")
        self.payoff, self._name = table, name

    @property
    def name(self) -> str:
        return self._name

    @property
    def default_params(self) -> MatrixGameParams:
        return MatrixGameParams()

    def observation_space(self, params: MatrixGameParams) -> Box:
        return Box(0.0, 1.0, (2,))

    def action_space(self, params: MatrixGameParams) -> Discrete:
        return Discrete(max(self.payoff.shape[1:]))

    def action_mask(self, state: MatrixGameState, params: MatrixGameParams) -> jax.Array:
        count = jnp.array(self.payoff.shape[1:])
        return jnp.arange(max(self.payoff.shape[1:])) < count[:, None]

    def observe(self, state: MatrixGameState, params: MatrixGameParams) -> jax.Array:
        return jnp.eye(2)

    def text(self, state: MatrixGameState, params: MatrixGameParams, player: int) -> str:
        table = self.payoff[0] if player == 0 else self.payoff[1].T
        return "your reward, by your choice (rows) and the other's (columns):\n" + str(table)

    def initial_states(self, params: MatrixGameParams) -> tuple[MatrixGameState, jax.Array]:
        return MatrixGameState(jnp.zeros(1, jnp.int32)), jnp.ones(1)

    def reset_env(self, key: jax.Array, params: MatrixGameParams) -> tuple[jax.Array, MatrixGameState]:
        state = MatrixGameState(jnp.zeros((), jnp.int32))
        return self.observe(state, params), state

    def step_env(
        self, key: jax.Array, state: MatrixGameState, action: jax.Array, params: MatrixGameParams
    ) -> tuple[jax.Array, MatrixGameState, jax.Array, jax.Array, dict[str, Any]]:
        reward = jnp.asarray(self.payoff)[:, action[0], action[1]]
        state = MatrixGameState(state.time + 1)
        return self.observe(state, params), state, reward, jnp.ones((), bool), {}


BIASED_RPS = ((0.0, -0.5, 1.0), (0.5, 0.0, -0.1), (-1.0, 0.1, 0.0))
"""Rock, paper, scissors with unequal stakes, divided by 50: the equilibrium is (1, 10, 5) / 16, far from uniform play."""

RPS = ((0.0, -1.0, 1.0), (1.0, 0.0, -1.0), (-1.0, 1.0, 0.0))
