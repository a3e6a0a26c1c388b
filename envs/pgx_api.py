"""What games of several players and environments for one player of pgx (Koyamada et al., 2023) share."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.environments.environment import Environment
from rljax.core.environments.spaces import Box, Discrete
from rljax.core.errors import ConfigError, did_you_mean, how_to_install


@struct.dataclass
class PgxParams:
    pass


@functools.cache
def load_pgx(game_id: str) -> Any:
    """Return a game of pgx, which has no state of its own; each is made once.

    Raises:
        ConfigError: pgx is not installed, or has no such game.
    """
    known = pgx_ids(f"env = 'pgx:{game_id}'")
    if game_id not in known:
        raise ConfigError(f"env = 'pgx:{game_id}': {did_you_mean(game_id, known, 'rljax list pgx', 'pgx:')}")
    import pgx

    return pgx.make(game_id)


def pgx_ids(what: str = "pgx") -> tuple[str, ...]:
    """Return the ids of pgx, without a prefix.

    Raises:
        ConfigError: pgx is not installed; `what` says what needs it.
    """
    try:
        import pgx
    except ImportError as error:
        raise ConfigError(f"{what}: pgx is not installed: {how_to_install('games')}") from error
    return tuple(pgx.available_envs())


class FromPgx(Environment):
    """Base class of what is made from pgx: its name, spaces and time limit.

    Args:
        game: its id in pgx, or a game that pgx has made, with arguments of its own: `Go(size=9, komi=0.5)`.
    """

    def __init__(self, game: Any):
        self.game = load_pgx(game) if isinstance(game, str) else game
        self.game_id: str = game if isinstance(game, str) else game.id

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

    def is_truncated(self, state: Any, params: PgxParams) -> jax.Array:
        return jnp.asarray(state.truncated)

    def view(self, state: Any, player: int) -> jax.Array:
        """Return what a player sees, f32."""
        with warnings.catch_warnings():
            # A later pgx will return the observation of one player only, the player to move.
            warnings.simplefilter("ignore", DeprecationWarning)
            return self.game.observe(state, jnp.int32(player)).astype(jnp.float32)
