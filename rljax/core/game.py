"""The contract of games: an environment with a leading axis of players."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rljax.core.environment import Environment


class Game(Environment):
    """Base class of games: an `Environment` whose observations, actions and rewards have a leading axis of players.

    `reset_env(key, params) -> (obs [P, ...], state)`; `step_env(key, state, action [P], params) -> (obs [P, ...], state,
    reward f32 [P], terminated bool [], info)`. Spaces are those of one player. All players act at every step, and the actions of
    those who are not to move are ignored, so `action` has one for each. What a player must not know is not in its observation.

    Attributes:
        num_players: P.
        teams: the team of each player, which share their rewards; each its own by default.
    """

    num_players: int = 2

    @property
    def teams(self) -> tuple[int, ...]:
        return tuple(range(self.num_players))

    def to_move(self, state: Any) -> jax.Array:
        """Whose actions the next step takes, bool `[P]`; all, where moves are simultaneous."""
        return jnp.ones(self.num_players, bool)

    def action_mask(self, state: Any, params: Any) -> jax.Array:
        """The legal actions of every player, bool `[P, A]`; all are, for those who are not to move."""
        return jnp.ones((self.num_players, self.action_space(params).n), bool)

    def initial_states(self, params: Any) -> tuple[Any, jax.Array]:
        """Every state that `reset_env` may return, stacked `[N, ...]`, and their probabilities f32 `[N]`.

        For games whose only chance is at the beginning (deals, with what is turned over later); exact values and
        exploitabilities are computed from it. A step's key then must not matter.
        """
        raise NotImplementedError(f"{self.name} does not enumerate its initial states")

    def observe(self, state: Any, params: Any) -> Any:
        """What the players see of a state, `[P, ...]`."""
        raise NotImplementedError(f"{self.name} must define observe(state, params) -> obs [P, ...]")
