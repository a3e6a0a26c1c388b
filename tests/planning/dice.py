"""Small games with dice whose values plain Python computes."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.environments.spaces import Box, Discrete
from rljax.core.games.game import Game


class BetState(NamedTuple):
    win: jax.Array


class Bet(Game):
    """One move of player 0: 0 for certain (action 0), or +1 with probability `win`, .4 or .6, and else -1 (action 1)."""

    @property
    def turn_gap(self) -> int:
        return 1

    def observation_space(self, params: Any) -> Box:
        return Box(0.0, 1.0, (1,))

    def action_space(self, params: Any) -> Discrete:
        return Discrete(2)

    def to_move(self, state: BetState) -> jax.Array:
        return jnp.array([True, False])

    def observe(self, state: BetState, params: Any) -> jax.Array:
        return jnp.zeros((2, 1))

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, BetState]:
        state = BetState(jax.random.choice(key, jnp.array([0.4, 0.6])))
        return self.observe(state, params), state

    def chance(self, state: BetState, action: jax.Array, params: Any) -> jax.Array:
        return jnp.where(action[0] == 1, jnp.stack([state.win, 1 - state.win]), jnp.array([1.0, 0.0]))

    def step_outcome(self, state: BetState, action: jax.Array, outcome: jax.Array, params: Any) -> tuple[Any, ...]:
        gain = jnp.where(action[0] == 1, jnp.where(outcome == 0, 1.0, -1.0), 0.0)
        return self.observe(state, params), state, gain * jnp.array([1.0, -1.0]), jnp.bool_(True), {}


TURNS = (0, 1, 1, 0, 0, 1)
"""Player who moves at each step of a race; turns do not alternate."""

SAFE = 2
BOLD = ((0, 0.5), (3, 0.3), (5, 0.2))
"""Gains of a safe and of a bold move; those of the bold one with their probabilities, 1.9 on average."""


class RaceState(NamedTuple):
    total: jax.Array
    time: jax.Array


class Race(Game):
    """Three moves each, in the order of `TURNS`: 2 points (action 0), or those of `BOLD` (1). The larger total wins 1, the other
    loses it; equal totals pay 0. The bold move gains less on average: it is for those who are behind."""

    @property
    def turn_gap(self) -> int:
        return 2

    def observation_space(self, params: Any) -> Box:
        return Box(0.0, 1.0, (31 + len(TURNS),))

    def action_space(self, params: Any) -> Discrete:
        return Discrete(2)

    def to_move(self, state: RaceState) -> jax.Array:
        return jnp.arange(2) == jnp.asarray(TURNS)[state.time % len(TURNS)]

    def observe(self, state: RaceState, params: Any) -> jax.Array:
        ahead = jax.nn.one_hot(15 + state.total - state.total[::-1], 31)
        clock = jax.nn.one_hot(state.time, len(TURNS))
        return jnp.concatenate([ahead, jnp.broadcast_to(clock, (2, len(TURNS)))], axis=1)

    def initial_states(self, params: Any) -> tuple[RaceState, jax.Array]:
        return RaceState(jnp.zeros((1, 2), jnp.int32), jnp.zeros(1, jnp.int32)), jnp.ones(1)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, RaceState]:
        state = RaceState(jnp.zeros(2, jnp.int32), jnp.int32(0))
        return self.observe(state, params), state

    def chance(self, state: RaceState, action: jax.Array, params: Any) -> jax.Array:
        bold = jnp.sum(jnp.where(self.to_move(state), action, 0)) == 1
        return jnp.where(bold, jnp.array([p for _, p in BOLD]), jnp.array([1.0, 0.0, 0.0]))

    def step_outcome(self, state: RaceState, action: jax.Array, outcome: jax.Array, params: Any) -> tuple[Any, ...]:
        gain = jnp.where(action == 1, jnp.array([gain for gain, _ in BOLD])[outcome], SAFE)
        total = state.total + jnp.where(self.to_move(state), gain, 0)
        after = RaceState(total, state.time + 1)
        over = after.time == len(TURNS)
        won = jnp.where(over, jnp.sign(total - total[::-1]), 0).astype(jnp.float32)
        return self.observe(after, params), after, won, over, {}


@functools.cache
def race_values(first: int, second: int, time: int) -> tuple[float, float]:
    """Expected return of player 0 after each of the two moves, if both players go on as well as they can."""
    player = TURNS[time]

    def after(gain: int) -> float:
        totals = (first + gain, second) if player == 0 else (first, second + gain)
        if time + 1 == len(TURNS):
            return float(np.sign(totals[0] - totals[1]))
        values = race_values(*totals, time + 1)
        return max(values) if TURNS[time + 1] == 0 else min(values)

    return after(SAFE), sum(p * after(gain) for gain, p in BOLD)


def race_positions() -> tuple[RaceState, np.ndarray, np.ndarray]:
    """All positions of a race; the values of both moves to the player to move, `[N, 2]`, and the step of each, `[N]`."""
    level, found = {(0, 0)}, []
    for time, player in enumerate(TURNS):
        found += [(*totals, time) for totals in sorted(level)]
        gains = (SAFE, *(gain for gain, _ in BOLD))
        level = {(a + g, b) if player == 0 else (a, b + g) for a, b in level for g in gains}
    first, second, time = np.array(found).T
    values = np.array([np.array(race_values(*key)) * (1 if TURNS[key[2]] == 0 else -1) for key in found])
    state = RaceState(jnp.asarray(np.stack([first, second], 1), jnp.int32), jnp.asarray(time, jnp.int32))
    return state, values, time
