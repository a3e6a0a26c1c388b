"""KuhnPoker-v0: poker with a deck of three cards and one bet."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.game import Game
from rljax.core.spaces import Box, Discrete

PASS, BET = 0, 1
DEALS = np.array([(a, b) for a in range(3) for b in range(3) if a != b], np.int32)


@struct.dataclass
class KuhnPokerState:
    """State: `cards` i32 `[2]`, where 2 is the king; `history` i32 `[3]`, past moves, -1 for future ones; `time` counts moves."""

    cards: jax.Array
    history: jax.Array
    time: jax.Array


@struct.dataclass
class KuhnPokerParams:
    pass


class KuhnPoker(Game):
    """Kuhn's poker (1950). Each player antes 1 and gets one of three cards; player 0 moves first.

    Actions: 0 passes (checks or folds), 1 bets 1 (or calls). Observation of each player, f32 `[11]`: the seat (one-hot 2), the
    card (one-hot 3), and for each of three moves whether it was a pass or a bet (one-hot 2, zeros for future moves). Reward at
    the end: the chips won, 1 or 2.

    With best play the first player loses 1/18 per game on average. NashConv of the uniform policies is 11/12.
    """

    best_is_random = True
    hides_state = True

    @property
    def name(self) -> str:
        return "KuhnPoker-v0"

    @property
    def default_params(self) -> KuhnPokerParams:
        return KuhnPokerParams()

    def observation_space(self, params: KuhnPokerParams) -> Box:
        return Box(0.0, 1.0, (11,))

    def action_space(self, params: KuhnPokerParams) -> Discrete:
        return Discrete(2)

    def to_move(self, state: KuhnPokerState) -> jax.Array:
        return jnp.arange(2) == state.time % 2

    def observe(self, state: KuhnPokerState, params: KuhnPokerParams) -> jax.Array:
        history = jax.nn.one_hot(state.history, 2).reshape(-1)
        return jnp.concatenate([jnp.eye(2), jax.nn.one_hot(state.cards, 3), jnp.tile(history, (2, 1))], axis=-1)

    def text(self, state: KuhnPokerState, params: KuhnPokerParams, player: int) -> str:
        moves = [f"player {i % 2} {'bets' if move == BET else 'passes'}" for i, move in enumerate(state.history) if move >= 0]
        return f"your card: {('jack', 'queen', 'king')[int(state.cards[player])]}; so far: {', '.join(moves) or 'nothing'}"

    def action_names(self, params: KuhnPokerParams) -> tuple[str, ...]:
        return ("pass", "bet")

    def initial_states(self, params: KuhnPokerParams) -> tuple[KuhnPokerState, jax.Array]:
        return jax.vmap(_deal_cards)(jnp.asarray(DEALS)), jnp.full(len(DEALS), 1.0 / len(DEALS))

    def reset_env(self, key: jax.Array, params: KuhnPokerParams) -> tuple[jax.Array, KuhnPokerState]:
        state = _deal_cards(jnp.asarray(DEALS)[(jax.random.uniform(key) * len(DEALS)).astype(jnp.int32)])
        return self.observe(state, params), state

    def step_env(
        self, key: jax.Array, state: KuhnPokerState, action: jax.Array, params: KuhnPokerParams
    ) -> tuple[jax.Array, KuhnPokerState, jax.Array, jax.Array, dict[str, Any]]:
        mover = state.time % 2
        move = action[mover]
        before = state.history[jnp.maximum(state.time - 1, 0)]
        answered = (state.time > 0) & (before == BET)
        over = answered | ((state.time == 1) & (move == PASS))
        history = state.history.at[state.time].set(move)
        # Chips of each player in the pot: a bet adds one. A pass after a bet folds, else the better card wins the other's chips.
        chips = 1 + jnp.array([jnp.sum(history[0::2] == BET), jnp.sum(history[1::2] == BET)])
        folds = answered & (move == PASS)
        winner = jnp.where(folds, 1 - mover, jnp.argmax(state.cards))
        won = chips[1 - winner] * jnp.where(jnp.arange(2) == winner, 1, -1)
        state = KuhnPokerState(state.cards, history, state.time + 1)
        return self.observe(state, params), state, jnp.where(over, won, 0).astype(jnp.float32), over, {}


def _deal_cards(cards: jax.Array) -> KuhnPokerState:
    return KuhnPokerState(cards, jnp.full(3, -1), jnp.zeros((), jnp.int32))
