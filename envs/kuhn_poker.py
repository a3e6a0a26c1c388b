"""KuhnPoker-v0: poker with one card for each player, one card more in the deck, and one bet."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.environments.spaces import Box, Discrete
from rljax.core.errors import ConfigError, check_int
from rljax.core.games.game import Game

PASS, BET = 0, 1
MAX_PLAYERS = 6
CARDS = ("jack", "queen", "king", "ace")


@struct.dataclass
class KuhnPokerState:
    """State: `cards` i32 `[P]`, 0 to P; `history` i32 `[2 P - 1]`, past moves, -1 for future ones; `time` counts moves."""

    cards: jax.Array
    history: jax.Array
    time: jax.Array


@struct.dataclass
class KuhnPokerParams:
    pass


class KuhnPoker(Game):
    """Kuhn's poker (1950), also for more players (Szafron, Gibson and Sturtevant, 2013).

    Each of P players antes 1 and gets one of P + 1 cards; player 0 moves first. The players pass or bet 1 in turns. Once there is
    a bet, each of the others passes (folds) or calls once, and then the best card of those who bet or called wins the pot; if
    all pass, the best card of all. Who folds is out and loses its ante at once.

    Actions: 0 passes (checks or folds), 1 bets 1 (or calls). Observation of each player, f32 `[6 P - 1]`: the seat (one-hot P),
    the card (one-hot P + 1), and for each of 2 P - 1 moves whether it was a pass or a bet (one-hot 2, zeros for future moves).
    Reward at the end, or when the player folds: the chips won.

    With best play of two the first player loses 1/18 per game on average. NashConv of the uniform policies is 11/12 for two
    players and 33/16 for three.

    Args:
        num_players: number of players P.

    Raises:
        ConfigError: the number of players is not in 2 to 6.
    """

    best_is_random = True
    hides_state = True

    def __init__(self, num_players: int = 2) -> None:
        check_int("KuhnPoker-v0", 2, num_players=num_players)
        if num_players > MAX_PLAYERS:
            raise ConfigError(f"KuhnPoker-v0: num_players = {num_players}, expected at most {MAX_PLAYERS}")
        self.num_players = num_players

    @property
    def name(self) -> str:
        return "KuhnPoker-v0"

    @property
    def default_params(self) -> KuhnPokerParams:
        return KuhnPokerParams()

    @property
    def deals(self) -> np.ndarray:
        """All deals of cards, i32 `[N, P]`."""
        return np.array(list(itertools.permutations(range(self.num_players + 1), self.num_players)), np.int32)

    def observation_space(self, params: KuhnPokerParams) -> Box:
        return Box(0.0, 1.0, (6 * self.num_players - 1,))

    def action_space(self, params: KuhnPokerParams) -> Discrete:
        return Discrete(2)

    def to_move(self, state: KuhnPokerState) -> jax.Array:
        return jnp.arange(self.num_players) == state.time % self.num_players

    def observe(self, state: KuhnPokerState, params: KuhnPokerParams) -> jax.Array:
        players = self.num_players
        history = jnp.tile(jax.nn.one_hot(state.history, 2).reshape(-1), (players, 1))
        return jnp.concatenate([jnp.eye(players), jax.nn.one_hot(state.cards, players + 1), history], axis=-1)

    def text(self, state: KuhnPokerState, params: KuhnPokerParams, player: int) -> str:
        moves = [
            f"player {i % self.num_players} {'bets' if move == BET else 'passes'}"
            for i, move in enumerate(state.history)
            if move >= 0
        ]
        card = int(state.cards[player])
        named = CARDS[card] if self.num_players < len(CARDS) else f"{card} of 0 to {self.num_players}"
        return f"your card: {named}; so far: {', '.join(moves) or 'nothing'}"

    def action_names(self, params: KuhnPokerParams) -> tuple[str, ...]:
        return ("pass", "bet")

    def initial_states(self, params: KuhnPokerParams) -> tuple[KuhnPokerState, jax.Array]:
        count = len(self.deals)
        return jax.vmap(self._deal_cards)(jnp.asarray(self.deals)), jnp.full(count, 1.0 / count)

    def reset_env(self, key: jax.Array, params: KuhnPokerParams) -> tuple[jax.Array, KuhnPokerState]:
        deals = jnp.asarray(self.deals)
        state = self._deal_cards(deals[(jax.random.uniform(key) * len(deals)).astype(jnp.int32)])
        return self.observe(state, params), state

    def step_env(
        self, key: jax.Array, state: KuhnPokerState, action: jax.Array, params: KuhnPokerParams
    ) -> tuple[jax.Array, KuhnPokerState, jax.Array, jax.Array, dict[str, Any]]:
        players, times = self.num_players, jnp.arange(2 * self.num_players - 1)
        mover = state.time % players
        history = jnp.where(times == state.time, action[mover], state.history)  # fuses where a scatter would not
        of_player = times % players == jnp.arange(players)[:, None]
        first_bet = jnp.min(jnp.where(history == BET, times, 2 * players))
        over = (state.time == first_bet + players - 1) | ((state.time == players - 1) & (first_bet > state.time))
        folded = jnp.any(of_player & (history == PASS) & (times > first_bet), axis=1)
        folds = folded & (jnp.arange(players) == mover) & (state.time < first_bet + players)
        # Chips of each player in the pot. Everybody has at most one bet in it.
        chips = 1 + jnp.any(of_player & (history == BET), axis=1)
        stays = jnp.where(first_bet < 2 * players, chips == 2, True)
        winner = jnp.argmax(jnp.where(stays, state.cards, -1))
        won = jnp.where(jnp.arange(players) == winner, jnp.sum(chips), 0) - chips
        reward = jnp.where(over, jnp.where(folded & ~folds, 0, won), jnp.where(folds, -1, 0))
        state = KuhnPokerState(state.cards, history, state.time + 1)
        return self.observe(state, params), state, reward.astype(jnp.float32), over, {}

    def _deal_cards(self, cards: jax.Array) -> KuhnPokerState:
        return KuhnPokerState(cards, jnp.full(2 * self.num_players - 1, -1), jnp.zeros((), jnp.int32))
