"""LeducPoker-v0: two rounds of betting, with a card turned over between them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.environments.spaces import Box, Discrete
from rljax.core.games.game import Game

FOLD, CALL, RAISE = 0, 1, 2
MAX_RAISES, MAX_MOVES = 2, 4
"""Largest number of raises in a round, and of moves (check, raise, raise, call)."""

_COUNTS = {(a, b, c): 1.0 for a in range(6) for b in range(6) for c in range(6) if len({a, b, c}) == 3}
DEALS = np.unique(np.array([[card // 2 for card in deal] for deal in _COUNTS], np.int32), axis=0)
"""Ranks of both players' cards and of the card on the table, `[24, 3]`."""
CHANCES = np.array([sum(tuple(c // 2 for c in deal) == tuple(row) for deal in _COUNTS) for row in DEALS]) / len(_COUNTS)


@struct.dataclass
class LeducPokerState:
    """State of a game.

    Attributes:
        cards: ranks of player 0, player 1 and the table, i32 `[3]`, where 2 is the king.
        history: moves of both rounds, i32 `[2, 4]`, -1 for none.
        round: index of the round, 0 or 1, i32 [].
        moves: number of moves in this round, i32 [].
        raises: number of raises in this round, i32 [].
        chips: chips of each player in the pot, i32 `[2]`.
        time: number of moves in the game, i32 [].
    """

    cards: jax.Array
    history: jax.Array
    round: jax.Array
    moves: jax.Array
    raises: jax.Array
    chips: jax.Array
    time: jax.Array


@struct.dataclass
class LeducPokerParams:
    pass


class LeducPoker(Game):
    """Leduc hold'em (Southey et al., 2005), with the rules of OpenSpiel.

    There are six cards of three ranks and an ante of 1. Player 0 begins both rounds; raises are 2 in the first and 4 in the
    second, at most two in a round. Actions: 0 folds, 1 checks or calls, 2 raises. Folding is legal only against a raise. A pair
    with the card on the table wins, else the higher rank; equal ranks share the pot.

    Observation of each player, f32 `[32]`: the seat (one-hot 2), the ranks of the player's card (one-hot 3) and of the table's
    card (zeros in the first round), and each of the four moves of each round (one-hot 3, zeros for future moves). Reward at the
    end: the chips won.
    """

    best_is_random = True
    hides_state = True

    @property
    def name(self) -> str:
        return "LeducPoker-v0"

    @property
    def default_params(self) -> LeducPokerParams:
        return LeducPokerParams()

    @property
    def turn_gap(self) -> int:
        # The last to raise in the first round waits for the call and for the first move of the second round.
        return 2

    def observation_space(self, params: LeducPokerParams) -> Box:
        return Box(0.0, 1.0, (32,))

    def action_space(self, params: LeducPokerParams) -> Discrete:
        return Discrete(3)

    def to_move(self, state: LeducPokerState) -> jax.Array:
        return jnp.arange(2) == state.moves % 2

    def action_mask(self, state: LeducPokerState, params: LeducPokerParams) -> jax.Array:
        behind = state.chips[0] != state.chips[1]
        legal = jnp.stack([behind, jnp.ones((), bool), state.raises < MAX_RAISES])
        return legal | ~self.to_move(state)[:, None]

    def observe(self, state: LeducPokerState, params: LeducPokerParams) -> jax.Array:
        table = jax.nn.one_hot(state.cards[2], 3) * (state.round == 1)
        public = jnp.concatenate([table, jax.nn.one_hot(state.history, 3).reshape(-1)])
        return jnp.concatenate([jnp.eye(2), jax.nn.one_hot(state.cards[:2], 3), jnp.tile(public, (2, 1))], axis=-1)

    def text(self, state: LeducPokerState, params: LeducPokerParams, player: int) -> str:
        ranks = ("jack", "queen", "king")
        table = ranks[int(state.cards[2])] if state.round == 1 else "face down"
        rounds = [[("fold", "call", "raise")[int(m)] for m in row if m >= 0] for row in state.history]
        return (
            f"your card: {ranks[int(state.cards[player])]}; table: {table}; in the pot: you {int(state.chips[player])}, "
            f"the other {int(state.chips[1 - player])}\nso far: {'; '.join(', '.join(moves) or 'nothing' for moves in rounds)}"
        )

    def action_names(self, params: LeducPokerParams) -> tuple[str, ...]:
        return ("fold", "call", "raise")

    def initial_states(self, params: LeducPokerParams) -> tuple[LeducPokerState, jax.Array]:
        return jax.vmap(_deal_cards)(jnp.asarray(DEALS)), jnp.asarray(CHANCES, jnp.float32)

    def reset_env(self, key: jax.Array, params: LeducPokerParams) -> tuple[jax.Array, LeducPokerState]:
        below = jnp.sum(jax.random.uniform(key) >= jnp.asarray(np.cumsum(CHANCES)[:-1], jnp.float32))
        state = _deal_cards(jnp.asarray(DEALS)[below])
        return self.observe(state, params), state

    def step_env(
        self, key: jax.Array, state: LeducPokerState, action: jax.Array, params: LeducPokerParams
    ) -> tuple[jax.Array, LeducPokerState, jax.Array, jax.Array, dict[str, Any]]:
        mover = state.moves % 2
        move = action[mover]
        highest = jnp.max(state.chips)
        raised = highest + 2 * (state.round + 1)
        stake = jnp.where(move == RAISE, raised, jnp.where(move == CALL, highest, state.chips[mover]))
        chips = state.chips.at[mover].set(stake)
        history = state.history.at[state.round, state.moves].set(move)
        folds = move == FOLD
        # A call ends the round, unless it is the check that begins it.
        round_over = (move == CALL) & (state.moves > 0)
        over = folds | (round_over & (state.round == 1))
        strength = state.cards[:2] + 3 * (state.cards[:2] == state.cards[2])
        winner = jnp.where(folds, 1 - mover, jnp.argmax(strength))
        shared = ~folds & (strength[0] == strength[1])
        won = jnp.where(shared, 0, chips[1 - winner]) * jnp.where(jnp.arange(2) == winner, 1, -1)
        state = LeducPokerState(
            cards=state.cards,
            history=history,
            round=jnp.where(round_over, 1, state.round),
            moves=jnp.where(round_over, 0, state.moves + 1),
            raises=jnp.where(round_over, 0, state.raises + (move == RAISE)),
            chips=chips,
            time=state.time + 1,
        )
        return self.observe(state, params), state, jnp.where(over, won, 0).astype(jnp.float32), over, {}


def _deal_cards(cards: jax.Array) -> LeducPokerState:
    zero = jnp.zeros((), jnp.int32)
    return LeducPokerState(cards, jnp.full((2, MAX_MOVES), -1), zero, zero, zero, jnp.ones(2, jnp.int32), zero)
