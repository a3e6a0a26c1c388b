"""A game whose parameters say how much there is to win, for tests."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environments.spaces import Box, Discrete
from rljax.core.games.game import Game


@struct.dataclass
class StakesParams:
    stake: float = 1.0
    bonus: float = 0.0
    length: int = 4


class StakesState(NamedTuple):
    coin: jax.Array
    time: jax.Array


class Stakes(Game):
    """Each move guesses a coin that nobody sees: the player gets the stake from the other one, or pays it, and keeps a bonus.

    Players observe the step, the stake and who they are. Nothing can be learned but that values are as uncertain as the stake is
    high. The metric `played` is 1.

    Args:
        turns: whether the players move one after the other.
    """

    step_is_random = True

    def __init__(self, turns: bool = True) -> None:
        self.turns = turns

    @property
    def name(self) -> str:
        return "Stakes"

    @property
    def default_params(self) -> StakesParams:
        return StakesParams()

    @property
    def all_move(self) -> bool:
        return not self.turns

    @property
    def turn_gap(self) -> int:
        return int(self.turns)

    def observation_space(self, params: Any) -> Box:
        return Box(-jnp.inf, jnp.inf, (3,))

    def action_space(self, params: Any) -> Discrete:
        return Discrete(2)

    def to_move(self, state: StakesState) -> jax.Array:
        return (jnp.arange(2) == state.time % 2) if self.turns else jnp.ones(2, bool)

    def observe(self, state: StakesState, params: Any) -> jax.Array:
        seen = jnp.stack([state.time, params.stake]).astype(jnp.float32)
        return jnp.stack([jnp.append(seen, 0.0), jnp.append(seen, 1.0)])

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, StakesState]:
        state = StakesState(jax.random.randint(key, (), 0, 2), jnp.zeros((), jnp.int32))
        return self.observe(state, params), state

    def step_env(
        self, key: jax.Array, state: StakesState, action: jax.Array, params: Any
    ) -> tuple[jax.Array, StakesState, jax.Array, jax.Array, dict[str, Any]]:
        moves = self.to_move(state)
        won = jnp.where(moves, jnp.where(action == state.coin, 1.0, -1.0), 0.0)
        reward = params.stake * (won - won[::-1]) + params.bonus * moves
        state = StakesState(jax.random.randint(key, (), 0, 2), state.time + 1)
        info = {"metrics": {"played": jnp.ones(())}}
        return self.observe(state, params), state, reward, state.time >= params.length, info
