"""Two-player games of pgx (Koyamada et al., 2023), by id: `pgx:connect_four`, `pgx:go_9x9`, `pgx:chess` and so on."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.errors import ConfigError, did_you_mean, how_to_install
from rljax.core.game import Game
from rljax.core.spaces import Box, Discrete

TURN_GAPS = {"backgammon": 4, "leduc_holdem": 2}
"""Largest number of moves in a row, for games of pgx in which one side may make several."""

HIDDEN = ("kuhn_poker", "leduc_holdem")
"""Two-player games in which a part of the state is hidden from a player, and the best policy is random."""

RANDOM = ("backgammon",)
"""Two-player games whose steps are random, because of dice."""


@struct.dataclass
class PgxParams:
    pass


class PgxGame(Game):
    """A game of pgx as a `Game`, with both players' observations, rewards and legal actions at every step.

    The seats are those of pgx, which draws the first player at the reset. The observation is that of pgx, as f32. An illegal
    action loses the game.

    Args:
        game_id: id of the game in pgx, such as "connect_four".

    Raises:
        ConfigError: pgx is not installed or has no such game, or the game is not for two players.
    """

    def __init__(self, game_id: str) -> None:
        try:
            import pgx
        except ImportError as error:
            raise ConfigError(f"env = 'pgx:{game_id}': pgx is not installed: {how_to_install('games')}") from error
        known = tuple(pgx.available_envs())
        if game_id not in known:
            raise ConfigError(f"env = 'pgx:{game_id}': {did_you_mean(game_id, known)}")
        self.game = pgx.make(game_id)
        if self.game.num_players != 2:
            raise ConfigError(f"env = 'pgx:{game_id}': has {self.game.num_players} players, expected a game of 2")
        self.game_id = game_id
        self.hides_state = self.best_is_random = game_id in HIDDEN
        self.step_is_random = game_id in RANDOM
        self.opening_moves = 2 if game_id == "tic_tac_toe" else 4

    @property
    def name(self) -> str:
        return f"pgx:{self.game_id}"

    @property
    def turn_gap(self) -> int:
        return TURN_GAPS.get(self.game_id, 1)

    @property
    def default_params(self) -> PgxParams:
        return PgxParams()

    def observation_space(self, params: PgxParams) -> Box:
        return Box(-jnp.inf, jnp.inf, tuple(self.game.observation_shape))

    def action_space(self, params: PgxParams) -> Discrete:
        return Discrete(self.game.num_actions)

    def to_move(self, state: Any) -> jax.Array:
        return jnp.arange(2) == state.current_player

    def action_mask(self, state: Any, params: PgxParams) -> jax.Array:
        return state.legal_action_mask | ~self.to_move(state)[:, None]

    def observe(self, state: Any, params: PgxParams) -> jax.Array:
        with warnings.catch_warnings():
            # A later pgx will return the observation of one player only, the player to move.
            warnings.simplefilter("ignore", DeprecationWarning)
            views = [self.game.observe(state, jnp.int32(player)) for player in range(2)]
        return jnp.stack(views).astype(jnp.float32)

    def reset_env(self, key: jax.Array, params: PgxParams) -> tuple[jax.Array, Any]:
        state = self.game.init(key)
        return self.observe(state, params), state

    def is_truncated(self, state: Any, params: PgxParams) -> jax.Array:
        return jnp.asarray(state.truncated)

    def step_env(
        self, key: jax.Array, state: Any, action: jax.Array, params: PgxParams
    ) -> tuple[jax.Array, Any, jax.Array, jax.Array, dict[str, Any]]:
        state = self.game.step(state, action[state.current_player], key)
        return self.observe(state, params), state, state.rewards.astype(jnp.float32), jnp.asarray(state.terminated), {}
