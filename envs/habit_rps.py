"""HabitRPS-v0: rock, paper, scissors over many rounds, against players with habits that their moves give away slowly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environments.environment import bounded
from rljax.core.environments.spaces import Box, Discrete
from rljax.core.games.game import Game, ScriptedPlayer

SIGNS = ("rock", "paper", "scissors")


@struct.dataclass
class HabitRPSState:
    """State: the `last` sign of each player, i32 `[2]`, -1 before the first round; `time` counts the rounds."""

    last: jax.Array
    time: jax.Array


@struct.dataclass
class HabitRPSParams:
    """Parameters: `habit` is the probability with which a scripted player shows its favourite sign; both others are alike."""

    habit: float = bounded(0.6, ge=0, le=1)
    num_rounds: int = bounded(20, ge=1)


class HabitRPS(Game):
    """Two players show a sign at the same time, in `num_rounds` rounds; paper beats rock, scissors paper, and rock scissors.

    Observation of each player, f32 `[7]`: its own last sign and the other's (one-hot each, zeros before the first round), and the
    fraction of the game that is left. The reward of a round is 1, 0 or -1.

    Scripted players are named by their favourite signs. A player who knows the favourite wins `(3 habit - 1) / 2` a round against
    it by the sign that beats it (0.4). Who remembers only the last sign knows the favourite with probability `habit` and wins
    `((3 habit - 1) / 2)^2` (0.16).
    """

    best_is_random = True
    hides_state = False
    opening_moves = 0

    @property
    def name(self) -> str:
        return "HabitRPS-v0"

    @property
    def default_params(self) -> HabitRPSParams:
        return HabitRPSParams()

    @property
    def scripted(self) -> Mapping[str, ScriptedPlayer]:
        return {name: _favours(sign) for sign, name in enumerate(SIGNS)}

    def observation_space(self, params: HabitRPSParams) -> Box:
        return Box(0.0, 1.0, (7,))

    def action_space(self, params: HabitRPSParams) -> Discrete:
        return Discrete(3)

    def observe(self, state: HabitRPSState, params: HabitRPSParams) -> jax.Array:
        shown = jax.nn.one_hot(state.last, 3)
        left = jnp.full((2, 1), 1.0 - state.time / params.num_rounds)
        return jnp.concatenate([shown, shown[::-1], left], axis=-1)

    def text(self, state: HabitRPSState, params: HabitRPSParams, player: int) -> str:
        if int(state.time) == 0:
            return "nothing was shown yet"
        return f"you showed {SIGNS[int(state.last[player])]}, the other {SIGNS[int(state.last[1 - player])]}"

    def action_names(self, params: HabitRPSParams) -> tuple[str, ...]:
        return SIGNS

    def initial_states(self, params: HabitRPSParams) -> tuple[HabitRPSState, jax.Array]:
        return HabitRPSState(jnp.full((1, 2), -1), jnp.zeros(1, jnp.int32)), jnp.ones(1)

    def reset_env(self, key: jax.Array, params: HabitRPSParams) -> tuple[jax.Array, HabitRPSState]:
        state = HabitRPSState(jnp.full(2, -1), jnp.zeros((), jnp.int32))
        return self.observe(state, params), state

    def step_env(
        self, key: jax.Array, state: HabitRPSState, action: jax.Array, params: HabitRPSParams
    ) -> tuple[jax.Array, HabitRPSState, jax.Array, jax.Array, dict[str, Any]]:
        ahead = (action[0] - action[1]) % 3
        won = jnp.where(ahead == 1, 1.0, jnp.where(ahead == 2, -1.0, 0.0))
        state = HabitRPSState(action.astype(jnp.int32), state.time + 1)
        return self.observe(state, params), state, won * jnp.array([1.0, -1.0]), state.time >= params.num_rounds, {}


def _favours(sign: int) -> ScriptedPlayer:
    def act(key: jax.Array, _state: HabitRPSState, params: HabitRPSParams) -> jax.Array:
        habit_key, other_key = jax.random.split(key)
        keeps = jax.random.uniform(habit_key, (2,)) < params.habit
        other = (sign + jax.random.randint(other_key, (2,), 1, 3)) % 3
        return jnp.where(keeps, sign, other).astype(jnp.int32)

    return act
