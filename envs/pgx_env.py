"""Environments of pgx (Koyamada et al., 2023) for one player, by id: `pgx:2048`, `pgx:minatar-breakout` and so on."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rljax.envs.pgx_api import FromPgx, PgxParams


class PgxEnv(FromPgx):
    """An environment of pgx for one player, as f32 observations and a mask of legal actions. An illegal action loses.

    Args:
        game: its id in pgx, such as "2048", or an environment that pgx has made.

    Raises:
        ConfigError: pgx is not installed, or has no such environment.
    """

    def action_mask(self, state: Any, params: PgxParams) -> jax.Array:
        return state.legal_action_mask

    def reset_env(self, key: jax.Array, params: PgxParams) -> tuple[jax.Array, Any]:
        state = self.game.init(key)
        return self.view(state, 0), state

    def step_env(
        self, key: jax.Array, state: Any, action: jax.Array, params: PgxParams
    ) -> tuple[jax.Array, Any, jax.Array, jax.Array, dict[str, Any]]:
        state = self.game.step(state, action, key)
        return self.view(state, 0), state, jnp.float32(state.rewards[0]), jnp.asarray(state.terminated), {}
