"""Environments of pgx (Koyamada et al., 2023) for one player, by id: `pgx:2048`, `pgx:minatar-breakout` and so on."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp

from rljax.core.environment import Environment
from rljax.core.spaces import Box, Discrete
from rljax.envs.pgx_game import PgxParams, load_pgx


class PgxEnv(Environment):
    """An environment of pgx for one player, as f32 observations and a mask of legal actions. An illegal action loses.

    Args:
        game_id: its id in pgx, such as "2048".

    Raises:
        ConfigError: pgx is not installed, or has no such environment.
    """

    def __init__(self, game_id: str):
        self.game, self.game_id = load_pgx(game_id), game_id

    @property
    def name(self) -> str:
        return f"pgx:{self.game_id}"

    @property
    def default_params(self) -> PgxParams:
        return PgxParams()

    def observation_space(self, params: PgxParams) -> Box:
        return Box(-jnp.inf, jnp.inf, tuple(self.game.observation_shape))

    def action_space(self, params: PgxParams) -> Discrete:
        return Discrete(self.game.num_actions)

    def action_mask(self, state: Any, params: PgxParams) -> jax.Array:
        return state.legal_action_mask

    def is_truncated(self, state: Any, params: PgxParams) -> jax.Array:
        return jnp.asarray(state.truncated)

    def reset_env(self, key: jax.Array, params: PgxParams) -> tuple[jax.Array, Any]:
        state = self.game.init(key)
        return self._observe(state), state

    def step_env(
        self, key: jax.Array, state: Any, action: jax.Array, params: PgxParams
    ) -> tuple[jax.Array, Any, jax.Array, jax.Array, dict[str, Any]]:
        state = self.game.step(state, action, key)
        return self._observe(state), state, jnp.float32(state.rewards[0]), jnp.asarray(state.terminated), {}

    def _observe(self, state: Any) -> jax.Array:
        with warnings.catch_warnings():
            # A later pgx will take no player.
            warnings.simplefilter("ignore", DeprecationWarning)
            return self.game.observe(state, jnp.int32(0)).astype(jnp.float32)
