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
        turn_gap: how many steps of others may lie between two moves of a player in a game; 0 where all move at every step. Where
            it is not 0, exactly one player moves at each step. By default all others move once.
        hides_state: whether a player does not see all of the state, such as another's cards. Searches, which do, refuse it.
        step_is_random: whether `step_env` draws from its key (dice, cards that are turned over). Searches and exact trees, which
            take a step to have one result, refuse it.
        opening_moves: steps of random play with which a game of a tournament begins, so that players that draw nothing do not
            play one game again and again; not used where chance or best play makes games differ.
    """

    num_players: int = 2
    hides_state: bool = False
    step_is_random: bool = False
    opening_moves: int = 2

    @property
    def teams(self) -> tuple[int, ...]:
        return tuple(range(self.num_players))

    @property
    def turn_gap(self) -> int:
        return 0 if type(self).to_move is Game.to_move else self.num_players - 1

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

    def text(self, state: Any, params: Any, player: int) -> str:
        """The state in the terminal, as a player sees it; its observation, unless a game draws it."""
        return str(jax.tree.map(lambda x: x[player], self.observe(state, params)))

    def action_names(self, params: Any) -> tuple[str, ...]:
        """What a person types for each action; their numbers, unless a game has names."""
        return tuple(str(i) for i in range(self.action_space(params).n))


def batch_players(tree: Any) -> Any:
    """Players of all games as one batch, for a policy that all share: leaves `[E, P, ...]` become `[E * P, ...]`."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def unbatch_players(tree: Any, num_players: int) -> Any:
    """The other way round: leaves `[E * P, ...]` become `[E, P, ...]`."""
    return jax.tree.map(lambda x: x.reshape(-1, num_players, *x.shape[1:]), tree)


def team_reward(reward: jax.Array, teams: tuple[int, ...]) -> jax.Array:
    """Rewards `[..., P]` shared within teams: each player gets the mean of its team's."""
    together = jnp.asarray(teams)[:, None] == jnp.asarray(teams)
    return reward @ (together / together.sum(0)).astype(reward.dtype)
