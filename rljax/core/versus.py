"""A game as an environment of one agent: the others are played by a policy that does not learn."""

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
"""Who plays a game: `(key, state, obs [P, ...], mask bool [P, A]) -> action i32 [P]`, of one game. It says what it would do on
every seat; only what it does on its own is used. Policies look at `obs`, searches at `state`."""


def random_player(key: jax.Array, _state: Any, _obs: Any, mask: jax.Array) -> jax.Array:
    """Every legal action as likely as the others."""
    return jnp.argmax(jnp.where(mask, jax.random.uniform(key, mask.shape), -1.0), axis=-1).astype(jnp.int32)


class VersusState(NamedTuple):
    """`team` i32 [] is the agent's; `obs [P, ...]` what all players see; `reward` f32 [P] not yet paid."""

    game: Any
    obs: Any
    team: jax.Array
    reward: jax.Array
    over: jax.Array


class Versus(Wrapper):
    """One team of a game, drawn anew for each episode, against a fixed opponent.

    A step is a move of the agent and those of the others up to its next one; the reward is what all of these brought it. In
    games of teams with K players each, observations are `[K, ...]` and actions `[K]`, of the team's players in order.

    Args:
        game: the game.
        opponent: who plays the others; random legal moves by default.
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

    def _own(self, team: jax.Array, x: Any) -> Any:
        """The part of the team's players of leaves `[P, ...]`: `[...]`, or `[K, ...]`."""
        members = jnp.asarray(self._members)[team]
        return jax.tree.map(lambda leaf: leaf[members[0]] if self.team_size == 1 else leaf[members], x)

    def action_mask(self, state: VersusState, params: Any) -> jax.Array:
        # What those do who are not to move is ignored, and anything is legal where the game is over.
        waiting = ~self.env.to_move(state.game) | state.over
        return self._own(state.team, self.env.action_mask(state.game, params) | waiting[:, None]).reshape(-1)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, VersusState]:
        game_key, team_key, key = jax.random.split(key, 3)
        obs, game = strong(self.env.reset_env(game_key, params))
        team = jax.random.randint(team_key, (), 0, len(self._members))
        state = VersusState(game, obs, team, jnp.zeros(self.env.num_players), jnp.zeros((), bool))
        state = self._until_own_turn(key, state, params)
        return self._own(team, state.obs), state

    def step_env(
        self, key: jax.Array, state: VersusState, action: jax.Array, params: Any
    ) -> tuple[Any, VersusState, jax.Array, jax.Array, dict[str, Any]]:
        own = jnp.zeros(self.env.num_players, jnp.int32).at[jnp.asarray(self._members)[state.team]].set(action)
        key, rest_key = jax.random.split(key)
        # A game may be over before the agent's first move: the step then only says so.
        played = self._until_own_turn(rest_key, self._played(key, state, params, own), params)
        state = tree_where(state.over, state, played)
        reward = self._first_reward(state)
        return self._own(state.team, state.obs), state._replace(reward=jnp.zeros_like(state.reward)), reward, state.over, {}

    def _first_reward(self, state: VersusState) -> jax.Array:
        return state.reward[jnp.asarray(self._members)[state.team][0]]

    def _played(self, key: jax.Array, state: VersusState, params: Any, own: jax.Array | None) -> VersusState:
        """After one step of the game, in which the team does `own`, i32 [P], where it is not None."""
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
            return key, self._played(now, loop[1], params, None)

        return jax.lax.while_loop(waits, step, (key, state))[1]

    def is_truncated(self, state: VersusState, params: Any) -> jax.Array:
        # A limit of the game ends it for good: it is part of its rules.
        return jnp.asarray(False)


class OnePlayer(Wrapper):
    """What one player of a game sees and may do: the shapes that a policy needs. It is not stepped."""

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        obs, state = self.env.reset_env(key, params)
        return jax.tree.map(lambda x: x[0], obs), state

    def action_mask(self, state: Any, params: Any) -> jax.Array:
        mask: jax.Array = self.env.action_mask(state, params)[0]
        return mask
