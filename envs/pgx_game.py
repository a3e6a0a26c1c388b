"""Games of pgx (Koyamada et al., 2023), by id: `pgx:connect_four`, `pgx:go_9x9`, `pgx:chess` and so on."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.errors import ConfigError
from rljax.core.games.game import Game, outcome_at
from rljax.envs.pgx_api import FromPgx, PgxParams

TURN_GAPS = {"backgammon": 4, "leduc_holdem": 2}
"""Largest number of moves in a row, for games of pgx in which one side may make several."""

HIDDEN = ("kuhn_poker", "leduc_holdem")
"""Two-player games in which a part of the state is hidden from a player, and the best policy is random."""

DICE = tuple((i, j) for i in range(6) for j in range(i, 6))
"""Throws of two dice in backgammon; their order does not matter."""

THROWS = np.array([1.0 if i == j else 2.0 for i, j in DICE], np.float32) / 36
"""Probabilities of the throws."""


KEYS = "threefry2x32"
"""Kind of the random keys that stand for throws of dice."""


class PgxGame(FromPgx, Game):
    """A game of pgx as a `Game`, with all players' observations, rewards and legal actions at every step.

    The seats are those of pgx, which draws the first player at the reset. The observation is that of pgx, as f32. An illegal
    action loses the game. In backgammon, a step that ends a turn has 21 outcomes of chance, the throws of two dice.

    Args:
        game: id of the game in pgx, such as "connect_four", or a game that pgx has made.

    Raises:
        ConfigError: pgx is not installed or has no such game, or the game is for one player.
    """

    def __init__(self, game: Any) -> None:
        super().__init__(game)
        self.num_players = self.game.num_players
        if self.num_players < 2:
            raise ConfigError(f"env = '{self.name}': has one player, expected a game of several")
        self.hides_state = self.best_is_random = self.game_id in HIDDEN
        self.has_dice = self.game_id == "backgammon"
        self._throwing_keys = _find_throwing_keys() if self.has_dice else None
        self.opening_moves = 2 if self.game_id == "tic_tac_toe" else 4

    @property
    def turn_gap(self) -> int:
        return TURN_GAPS.get(self.game_id, self.num_players - 1)

    def to_move(self, state: Any) -> jax.Array:
        return jnp.arange(self.num_players) == state.current_player

    def action_mask(self, state: Any, params: PgxParams) -> jax.Array:
        return state.legal_action_mask | ~self.to_move(state)[:, None]

    def observe(self, state: Any, params: PgxParams) -> jax.Array:
        return jnp.stack([self.view(state, player) for player in range(self.num_players)])

    def reset_env(self, key: jax.Array, params: PgxParams) -> tuple[jax.Array, Any]:
        state = self.game.init(key)
        return self.observe(state, params), state

    def chance(self, state: Any, action: jax.Array, params: PgxParams) -> jax.Array:
        if not self.has_dice:
            return super().chance(state, action, params)
        # The turn ends, and the other side throws, after the last of the dice or without a legal move, but not if that wins.
        move = action[state.current_player]
        source, die = move // 6 - 2, move % 6 + 1
        wins = (state._board[26] == 14) & (source + die > 23)
        throws = (move // 6 == 0) | ((jnp.sum(state._playable_dice >= 0) == 1) & ~wins)
        return jnp.where(throws, jnp.asarray(THROWS), jnp.arange(len(DICE)) == 0)

    def step_outcome(
        self, state: Any, action: jax.Array, outcome: jax.Array, params: PgxParams
    ) -> tuple[jax.Array, Any, jax.Array, jax.Array, dict[str, Any]]:
        return self._stepped(self._throwing_key(outcome), state, action, params)

    def step_env(
        self, key: jax.Array, state: Any, action: jax.Array, params: PgxParams
    ) -> tuple[jax.Array, Any, jax.Array, jax.Array, dict[str, Any]]:
        if self.has_dice:
            # Throw in every step, as pgx does: a step that does not end the turn ignores it, and need not be told apart first.
            key = self._throwing_key(outcome_at(jnp.asarray(THROWS), jax.random.uniform(key)))
        return self._stepped(key, state, action, params)

    def _stepped(self, key: jax.Array, state: Any, action: jax.Array, params: PgxParams) -> tuple[Any, ...]:
        state = self.game.step(state, action[state.current_player], key)
        return self.observe(state, params), state, state.rewards.astype(jnp.float32), jnp.asarray(state.terminated), {}

    def _throwing_key(self, outcome: jax.Array) -> jax.Array:
        return jax.random.wrap_key_data(jnp.asarray(self._throwing_keys)[outcome], impl=KEYS)


def _find_throwing_keys() -> np.ndarray:
    """Return, for each throw of `DICE`, data of a key with which pgx throws it, u32 `[21, 2]`: a step of pgx takes no dice."""
    from pgx.backgammon import _roll_dice

    keys = jax.random.split(jax.random.key(0, impl=KEYS), 1024)
    thrown = np.sort(np.asarray(jax.vmap(_roll_dice)(keys)), axis=1)
    first = [int(np.flatnonzero((thrown == throw).all(1))[0]) for throw in DICE]
    return np.asarray(jax.random.key_data(keys))[first]
