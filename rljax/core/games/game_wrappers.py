"""Wrappers of games. Those of observations are functions of what the players see (`GameView`), or also of what they saw
(`GameFrameStack`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.environments.environment import tree_where
from rljax.core.environments.observation_wrappers import FrameStack
from rljax.core.environments.spaces import Box, Dict, as_space
from rljax.core.environments.wrappers import (
    PRIVILEGED,
    FlattenObservation,
    TimeLimitState,
    Wrapper,
    flatten_observation,
    join_privileged,
    split_privileged,
    split_privileged_space,
)
from rljax.core.games.game import Game, RememberingScript, ScriptedPlayer

OBS, GROUP = "obs", "group"
"""Keys of an observation that says which group of players its player belongs to."""


Step = tuple[Any, Any, jax.Array, jax.Array, dict[str, Any]]
"""Result of `step_env`."""


class WrappedGame(Wrapper, Game):
    """A game around another one, which it delegates everything to."""

    def __init__(self, game: Game):
        super().__init__(game)
        self.num_players = game.num_players
        self.hides_state = game.hides_state
        self.announces_actions = game.announces_actions
        self.step_is_random = game.step_is_random
        # A user's own wrapper may change rewards.
        self.zero_sum = game.zero_sum if type(self).__module__.startswith("rljax.") else None
        self.opening_moves = game.opening_moves

    @property
    def teams(self) -> tuple[int, ...]:
        teams: tuple[int, ...] = self.env.teams
        return teams

    @property
    def roles(self) -> tuple[int, ...]:
        roles: tuple[int, ...] = self.env.roles
        return roles

    @property
    def all_move(self) -> bool:
        all_move: bool = self.env.all_move
        return all_move

    @property
    def gives_outcomes(self) -> bool:
        given: bool = self.env.gives_outcomes
        return given

    @property
    def turn_gap(self) -> int:
        gap: int = self.env.turn_gap
        return gap

    @property
    def scripted(self) -> dict[str, ScriptedPlayer]:
        def inside(play: ScriptedPlayer) -> ScriptedPlayer:
            def seen(state: Any, params: Any) -> tuple[Any, Any]:
                return self.inner(state), self.inner_params(state, params)

            if isinstance(play, RememberingScript):
                return play._replace(act=lambda key, state, params, carry: play.act(key, *seen(state, params), carry))
            return lambda key, state, params: play(key, *seen(state, params))

        return {name: inside(play) for name, play in self.env.scripted.items()}

    def to_move(self, state: Any) -> jax.Array:
        moves: jax.Array = self.env.to_move(self.inner(state))
        return moves

    def action_mask(self, state: Any, params: Any) -> Any:
        return self.env.action_mask(self.inner(state), self.inner_params(state, params))

    def chance(self, state: Any, action: Any, params: Any) -> jax.Array:
        probabilities: jax.Array = self.env.chance(self.inner(state), action, self.inner_params(state, params))
        return probabilities

    def observe(self, state: Any, params: Any) -> Any:
        return self.view(self.env.observe(self.inner(state), self.inner_params(state, params)))

    def initial_states(self, params: Any) -> tuple[Any, jax.Array]:
        states: tuple[Any, jax.Array] = self.env.initial_states(params)
        return states

    def text(self, state: Any, params: Any, player: int) -> str:
        text: str = self.env.text(self.inner(state), self.inner_params(state, params), player)
        return text

    def head_names(self, params: Any) -> tuple[str, ...]:
        names: tuple[str, ...] = self.env.head_names(params)
        return names

    def action_names(self, params: Any) -> tuple[str, ...]:
        names: tuple[str, ...] = self.env.action_names(params)
        return names

    def view(self, obs: Any) -> Any:
        """Return the players' observations `[P, ...]` as this game gives them, from those of the wrapped game."""
        return obs

    def look(self, obs: Any, frames: Any) -> tuple[Any, Any]:
        """Do `view`, with the frames of `GameFrameStack`: return the observations, and the frames as if all players had moved."""
        return self.view(obs), frames


class GameTimeLimit(WrappedGame):
    """End a game after `max_steps` steps, as its rules would."""

    def __init__(self, game: Game, max_steps: int):
        super().__init__(game)
        self.max_steps = max_steps

    def inner(self, state: TimeLimitState) -> Any:
        return state.env_state

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, TimeLimitState]:
        obs, state = self.env.reset_env(key, params)
        return obs, TimeLimitState(state, jnp.zeros((), jnp.int32))

    def step_env(self, key: jax.Array, state: TimeLimitState, action: Any, params: Any) -> Step:
        return self._counted(state, self.env.step_env(key, state.env_state, action, params))

    def step_outcome(self, state: TimeLimitState, action: Any, outcome: jax.Array, params: Any) -> Step:
        return self._counted(state, self.env.step_outcome(state.env_state, action, outcome, params))

    def _counted(self, before: TimeLimitState, step: Step) -> Step:
        obs, state, reward, terminated, info = step
        return obs, TimeLimitState(state, before.elapsed + 1), reward, terminated, info

    def is_truncated(self, state: TimeLimitState, params: Any) -> jax.Array:
        return super().is_truncated(state, params) | (state.elapsed >= self.max_steps)

    def initial_states(self, params: Any) -> tuple[Any, jax.Array]:
        states, probabilities = self.env.initial_states(params)
        return TimeLimitState(states, jnp.zeros(probabilities.shape, jnp.int32)), probabilities


class GameView(WrappedGame):
    """Base class of wrappers that change the players' observations; subclasses define `view` and `observation_space`."""

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        obs, state = self.env.reset_env(key, params)
        return self.view(obs), state

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Step:
        obs, *after = self.env.step_env(key, state, action, params)
        return self.view(obs), *after

    def step_outcome(self, state: Any, action: Any, outcome: jax.Array, params: Any) -> Step:
        obs, *after = self.env.step_outcome(state, action, outcome, params)
        return self.view(obs), *after


class FlattenPlayers(GameView):
    """Flatten the observation of each player into one f32 vector, `[P, D]`."""

    def view(self, obs: Any) -> jax.Array:
        return jax.vmap(flatten_observation)(obs)

    def observation_space(self, params: Any) -> Box:
        return FlattenObservation(self.env).observation_space(params)


class CentralCritic(GameView):
    """Add what all other players see to what the critic of a player sees, as in MAPPO (Yu et al., 2022).

    Observations become dictionaries, whose part `privileged`, f32 `[P, D]`, has the player's own privileged part, if there is
    one, and the observations of the players after it, in turn.
    """

    def view(self, obs: Any) -> Any:
        public, own = split_privileged(obs)
        flat = jax.vmap(flatten_observation)(public)
        players = self.num_players
        others = [(np.arange(players) + shift) % players for shift in range(1, players)]
        parts = [flat[order] for order in others] + ([] if own is None else [jax.vmap(flatten_observation)(own)])
        named = public if isinstance(public, dict) else {OBS: public}
        return join_privileged(named, jnp.concatenate(parts, axis=-1))

    def observation_space(self, params: Any) -> Dict:
        public, own = split_privileged_space(as_space(self.env.observation_space(params)))
        parts = dict(public.spaces) if isinstance(public, Dict) else {OBS: public}
        length = (self.num_players - 1) * FlattenObservation(_Of(Dict(parts))).observation_space(params).shape[0]
        if own is not None:
            length += FlattenObservation(_Of(own)).observation_space(params).shape[0]
        return Dict({**parts, PRIVILEGED: Box(-jnp.inf, jnp.inf, (length,))})


class Frames(NamedTuple):
    """Observations of players at their own last moves; zeros when a game begins.

    Attributes:
        past: the last `count - 1` observations, the oldest first, joined along their last axis: `[P, ..., (count - 1) * C]`.
        moved: whether the player has moved in this game, bool `[P]`; where it has not, `past` means nothing.
    """

    past: jax.Array
    moved: jax.Array


class StackedState(NamedTuple):
    """State of `GameFrameStack`: that of the wrapped game, what its players see `[P, ...]`, and what they saw."""

    env_state: Any
    obs: jax.Array
    frames: Frames


class GameFrameStack(WrappedGame):
    """`FrameStack` for games: a player observes what it saw at its own last `count - 1` moves, and what it sees now.

    Up to its first move of a game it observes copies of what it sees. Frames advance as memories do, only for those who move.
    """

    def __init__(self, game: Game, count: int):
        super().__init__(game)
        self.count = count

    def inner(self, state: StackedState) -> Any:
        return state.env_state

    def observation_space(self, params: Any) -> Box:
        return FrameStack(self.env, self.count).observation_space(params)

    def look(self, obs: jax.Array, frames: Frames | None) -> tuple[jax.Array, Frames]:
        """Return what players observe `[P, ..., count * C]`, and the frames as if all had moved.

        Args:
            obs: what they see, `[P, ..., C]`.
            frames: what they saw; None at the start of a game.
        """
        stack = jnp.concatenate([obs] * self.count, axis=-1)
        if frames is not None:
            stack = jax.vmap(tree_where)(frames.moved, jnp.concatenate([frames.past, obs], axis=-1), stack)
        return stack, Frames(stack[..., obs.shape[-1] :], jnp.ones(self.num_players, bool))

    def first_frames(self, obs: jax.Array) -> Frames:
        """Return the frames at the start of a game in which players see `obs`."""
        frames: Frames = jax.tree.map(jnp.zeros_like, self.look(obs, None)[1])
        return frames

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, StackedState]:
        self.observation_space(params)  # refuses observations that cannot be stacked
        obs, env_state = self.env.reset_env(key, params)
        state = StackedState(env_state, obs, self.first_frames(obs))
        return self.observe(state, params), state

    def step_env(self, key: jax.Array, state: StackedState, action: Any, params: Any) -> Step:
        return self._stacked(state, self.env.step_env(key, state.env_state, action, params), params)

    def step_outcome(self, state: StackedState, action: Any, outcome: jax.Array, params: Any) -> Step:
        return self._stacked(state, self.env.step_outcome(state.env_state, action, outcome, params), params)

    def _stacked(self, before: StackedState, step: Step, params: Any) -> Step:
        obs, env_state, reward, terminated, info = step
        _, after = self.look(before.obs, before.frames)
        frames = jax.vmap(tree_where)(self.to_move(before), after, before.frames)
        state = StackedState(env_state, obs, frames)
        return self.observe(state, params), state, reward, terminated, info

    def observe(self, state: StackedState, params: Any) -> jax.Array:
        return self.look(state.obs, state.frames)[0]

    def initial_states(self, params: Any) -> tuple[StackedState, jax.Array]:
        states, probabilities = self.env.initial_states(params)
        obs = jax.vmap(lambda state: self.env.observe(state, params))(states)
        return StackedState(states, obs, jax.vmap(self.first_frames)(obs)), probabilities


class _Of(Wrapper):
    """Something with an observation space, for `FlattenObservation`."""

    def __init__(self, space: Any):
        super().__init__(None)
        self.space = space

    def observation_space(self, params: Any) -> Any:
        return self.space


class PlayerGroups(GameView):
    """Tell the policy which group a player belongs to: observations become `{"obs": ..., "group": bool [P, G]}`.

    Args:
        game: the game.
        groups: group of each player, numbered from 0.
    """

    def __init__(self, game: Game, groups: tuple[int, ...]):
        super().__init__(game)
        self.groups = groups

    @property
    def num_groups(self) -> int:
        return max(self.groups) + 1

    def view(self, obs: Any) -> Any:
        return {OBS: obs, GROUP: jnp.asarray(np.eye(self.num_groups, dtype=bool)[list(self.groups)])}

    def observation_space(self, params: Any) -> Dict:
        return Dict({OBS: self.env.observation_space(params), GROUP: Box(0, 1, (self.num_groups,), jnp.bool_)})


class FreeForAll(WrappedGame):
    """Make each player a team of its own, so that a `Versus` around it has somebody else play its mates."""

    @property
    def teams(self) -> tuple[int, ...]:
        return tuple(range(self.num_players))


OWN_VIEWS = (FlattenPlayers, GameFrameStack, CentralCritic, PlayerGroups, FreeForAll)
"""Wrappers that change how one player sees the game, as fields of its configuration say: each player has its own. Others are a
part of the game."""


def player_view(game: Game, obs: Any, frames: Frames | None = None) -> tuple[Any, Frames | None]:
    """Return observations `[P, ...]` as `game` gives them, from those of the game inside of its outer `OWN_VIEWS`, and the frames
    as if all players had moved.

    Args:
        game: the game.
        obs: the observations.
        frames: what the players saw at their last moves, of the last result; None at the start of a game.
    """
    return split_views(game)[1](obs, frames)


def split_views(game: Game) -> tuple[Game, Callable[[Any, Any], tuple[Any, Any]]]:
    """Return the game inside of the outer `OWN_VIEWS`, and the function by which these change what its players see,
    `(obs, frames) -> (obs, frames)` as in `player_view`.
    """
    views = []
    while isinstance(game, OWN_VIEWS):
        views.append(game.look)
        game = game.env

    def look(obs: Any, frames: Any) -> tuple[Any, Any]:
        for change in reversed(views):
            obs, frames = change(obs, frames)
        return obs, frames

    return game, look


def stack_of(game: Game) -> GameFrameStack | None:
    """Return the wrapper that stacks frames among those that `split_views` takes off; None without one."""
    while isinstance(game, OWN_VIEWS) and not isinstance(game, GameFrameStack):
        game = game.env
    return game if isinstance(game, GameFrameStack) else None


def with_frames(game: Game, state: Any, obs: Any, frames: Frames | None) -> Any:
    """Return the state of a game from that of the game of its `split_views`.

    Args:
        game: the game.
        state: the state.
        obs: what the players see of it, `[P, ...]`, without these views.
        frames: what they saw at their last moves; None at the start of a game.
    """
    stack = stack_of(game)
    if stack is None:
        return state
    seen, _ = split_views(stack.env)[1](obs, None)
    return StackedState(state, seen, stack.first_frames(seen) if frames is None else frames)


def public_part(game: Game, obs: Any) -> Any:
    """Return what the actor sees of a player's observation in `game`, without the group that `PlayerGroups` adds."""
    return split_privileged(obs[OBS] if isinstance(game, PlayerGroups) else obs)[0]


def without_added(game: Game, params: Any, obs: Any) -> Any:
    """Return a player's observation in `game`, or several `[...]`, without what `CentralCritic` and `PlayerGroups` add."""
    if isinstance(game, PlayerGroups):
        return without_added(game.env, params, obs[OBS])
    if isinstance(game, CentralCritic):
        public, _ = split_privileged(obs)
        return public if isinstance(as_space(game.env.observation_space(params)), Dict) else public[OBS]
    return obs
