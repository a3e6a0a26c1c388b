"""A game as an environment of one agent: a policy that does not learn plays the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.environment import strong, tree_where
from rljax.core.spaces import Box, Discrete, MultiDiscrete, as_space
from rljax.core.wrappers import Wrapper

Player = Callable[[jax.Array, Any, Any, jax.Array], jax.Array]
"""Player of one game: `(key, state, obs [P, ...], mask bool [P, A]) -> action i32 [P]`. It returns an action for every seat, but
only that of its own seat is used. Policies use `obs`, searches use `state`."""


def random_player(key: jax.Array, _state: Any, _obs: Any, mask: jax.Array) -> jax.Array:
    """Draw a legal action uniformly for every player."""
    return jnp.argmax(jnp.where(mask, jax.random.uniform(key, mask.shape), -1.0), axis=-1).astype(jnp.int32)


class VersusState(NamedTuple):
    """State of `Versus`.

    Attributes:
        game: state of the game.
        obs: observations of all players, `[P, ...]`.
        team: the agent's team, i32 [].
        reward: rewards not yet paid out, f32 `[P]`.
        over: whether the game is over, bool [].
    """

    game: Any
    obs: Any
    team: jax.Array
    reward: jax.Array
    over: jax.Array


class Versus(Wrapper):
    """Environment in which the agent plays one team of a game, drawn anew for each episode, against a fixed opponent.

    A step is a move of the agent and the moves of the others until its next turn; the reward is the agent's sum over them. In
    games of teams with K players each, observations are `[K, ...]` and actions `[K]`, in the order of the team's players.

    Args:
        game: the game.
        opponent: the player of all others; random legal moves by default.
    """

    def __init__(self, game: Any, opponent: Player = random_player) -> None:
        super().__init__(game)
        self.opponent = opponent
        teams = np.array(game.teams)
        self._members = np.stack([np.flatnonzero(teams == team) for team in range(teams.max() + 1)])

    def inner(self, state: VersusState) -> Any:
        return state.game

    @property
    def team_size(self) -> int:
        return int(self._members.shape[1])

    def observation_space(self, params: Any) -> Any:
        space: Any = as_space(self.env.observation_space(params))
        if self.team_size == 1:
            return space
        low, high = (jnp.broadcast_to(x, space.shape)[None].repeat(self.team_size, 0) for x in (space.low, space.high))
        return Box(low, high, (self.team_size, *space.shape), space.dtype)

    def action_space(self, params: Any) -> Any:
        actions = self.env.action_space(params).n
        return Discrete(actions) if self.team_size == 1 else MultiDiscrete((actions,) * self.team_size)

    def _team_part(self, team: jax.Array, x: Any) -> Any:
        """Return the entries of the team's players in leaves `[P, ...]`: `[...]`, or `[K, ...]` for K players."""
        members = jnp.asarray(self._members)[team]
        return jax.tree.map(lambda leaf: leaf[members[0]] if self.team_size == 1 else leaf[members], x)

    def action_mask(self, state: VersusState, params: Any) -> jax.Array:
        # Actions of players who are not to move are ignored, so all are legal, as when the game is over.
        waiting = ~self.env.to_move(state.game) | state.over
        return self._team_part(state.team, self.env.action_mask(state.game, params) | waiting[:, None]).reshape(-1)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, VersusState]:
        game_key, team_key, key = jax.random.split(key, 3)
        obs, game = strong(self.env.reset_env(game_key, params))
        team = jax.random.randint(team_key, (), 0, len(self._members))
        state = VersusState(game, obs, team, jnp.zeros(self.env.num_players), jnp.zeros((), bool))
        state = self._until_own_turn(key, state, params)
        return self._team_part(team, state.obs), state

    def step_env(
        self, key: jax.Array, state: VersusState, action: jax.Array, params: Any
    ) -> tuple[Any, VersusState, jax.Array, jax.Array, dict[str, Any]]:
        own = jnp.zeros(self.env.num_players, jnp.int32).at[jnp.asarray(self._members)[state.team]].set(action)
        key, rest_key = jax.random.split(key)
        # A game may be over before the agent's first move: the step then changes nothing and reports the end.
        played = self._until_own_turn(rest_key, self._play_step(key, state, params, own), params)
        state = tree_where(state.over, state, played)
        reward = self._first_reward(state)
        return self._team_part(state.team, state.obs), state._replace(reward=jnp.zeros_like(state.reward)), reward, state.over, {}

    def _first_reward(self, state: VersusState) -> jax.Array:
        return state.reward[jnp.asarray(self._members)[state.team][0]]

    def _play_step(self, key: jax.Array, state: VersusState, params: Any, own: jax.Array | None) -> VersusState:
        """Play one step of the game, in which the agent's team takes the actions `own`, i32 `[P]`, unless None."""
        act_key, step_key = jax.random.split(key)
        action = self.opponent(act_key, state.game, state.obs, self.env.action_mask(state.game, params))
        if own is not None:
            action = jnp.where(jnp.asarray(self.env.teams) == state.team, own, action)
        obs, game, reward, over, _ = strong(self.env.step_env(step_key, state.game, action, params))
        return VersusState(game, obs, state.team, state.reward + reward, over | self.env.is_truncated(game, params))

    def _until_own_turn(self, key: jax.Array, state: VersusState, params: Any) -> VersusState:
        if self.env.turn_gap == 0:
            return state

        def waits(loop: tuple[jax.Array, VersusState]) -> jax.Array:
            moves = self.env.to_move(loop[1].game) & (jnp.asarray(self.env.teams) == loop[1].team)
            return ~jnp.any(moves) & ~loop[1].over

        def step(loop: tuple[jax.Array, VersusState]) -> tuple[jax.Array, VersusState]:
            key, now = jax.random.split(loop[0])
            return key, self._play_step(now, loop[1], params, None)

        return jax.lax.while_loop(waits, step, (key, state))[1]

    def is_truncated(self, state: VersusState, params: Any) -> jax.Array:
        # A time limit of the game is part of its rules: it terminates the game.
        return jnp.asarray(False)


class OnePlayer(Wrapper):
    """Observations and legal actions of one player of a game, for the shapes that a policy needs. It is never stepped."""

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        obs, state = self.env.reset_env(key, params)
        return jax.tree.map(lambda x: x[0], obs), state

    def action_mask(self, state: Any, params: Any) -> jax.Array:
        mask: jax.Array = self.env.action_mask(state, params)[0]
        return mask
