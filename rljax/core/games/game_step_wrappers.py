"""Wrappers of games that change what a step does."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rljax.core.environments.step_wrappers import ActionRepeat, EndOnNaN, EndOnNaNState, StickyActions, StickyState, finite
from rljax.core.environments.wrappers import TimeLimitState
from rljax.core.errors import ConfigError
from rljax.core.games.game import RESULT, Game
from rljax.core.games.game_wrappers import Step, WrappedGame
from rljax.core.games.versus import where_players


class GameEndOnNaN(EndOnNaN, WrappedGame):
    """`EndOnNaN` for games: all players get a reward of 0 in such a step, and results of 0, a draw, if the game gives results."""

    def step_outcome(self, state: EndOnNaNState, action: Any, outcome: jax.Array, params: Any) -> Step:
        return self._checked(state, self.env.step_outcome(state.env_state, action, outcome, params))

    def _checked(self, state: EndOnNaNState, stepped: Step, failed: Any = False) -> Step:
        *_, terminated, info = stepped
        if RESULT not in info:
            return super()._checked(state, stepped, failed)
        # A result counts where the game ends; before that it may be anything.
        failed |= terminated & ~jnp.all(jnp.isfinite(info[RESULT]))
        obs, after, reward, terminated, info = super()._checked(state, stepped, failed)
        result = jnp.where(after.spoilt, jnp.zeros_like(info[RESULT]), info[RESULT])
        return obs, after, reward, terminated, {**info, RESULT: result}

    def initial_states(self, params: Any) -> tuple[Any, jax.Array]:
        states, probabilities = self.env.initial_states(params)
        return EndOnNaNState(states, jnp.zeros(probabilities.shape, bool)), probabilities

    def view(self, obs: Any) -> Any:
        return jax.tree.map(finite, obs)


class _OwnSteps(WrappedGame):
    """A game whose steps are other ones than those of the game inside, whose chance says nothing about them."""

    @property
    def gives_outcomes(self) -> bool:
        return False

    def chance(self, state: Any, action: Any, params: Any) -> jax.Array:
        return Game.chance(self, state, action, params)


class GameStickyActions(StickyActions, _OwnSteps):
    """`StickyActions` for games: each player who moves takes the action of its own last move again, by a draw of its own."""

    def __init__(self, game: Game, probability: float):
        super().__init__(game, probability)
        self.step_is_random = True

    def _begun(self, env_state: Any, params: Any) -> StickyState:
        _, *of_player = super()._begun(env_state, params)
        return StickyState(env_state, *jax.tree.map(lambda x: jnp.stack([x] * self.num_players), of_player))

    def step_env(self, key: jax.Array, state: StickyState, action: Any, params: Any) -> Step:
        moves = self.to_move(state)
        obs, after, *rest = super().step_env(key, state, action, params)
        # The actions of players who are not to move are ignored, so they are not their last moves.
        own = where_players(moves, after.action, state.action)
        return obs, StickyState(after.env_state, own, state.begun | moves), *rest

    def _taken(self, key: jax.Array, begun: jax.Array, before: Any, chosen: Any) -> Any:
        return jax.vmap(super()._taken)(jax.random.split(key, self.num_players), begun, before, chosen)

    def initial_states(self, params: Any) -> tuple[Any, jax.Array]:
        states, probabilities = self.env.initial_states(params)
        return jax.vmap(lambda state: self._begun(state, params))(states), probabilities


def taken_actions(state: Any, chosen: Any) -> Any:
    """Return the actions of all players `[P, ...]` that the step to `state` took, of those who moved: those that were chosen,
    but with `GameStickyActions` some are repeated. If the step took its actions several times, the last ones."""
    while hasattr(state, "env_state"):
        if isinstance(state, StickyState):
            return state.action
        state = state.env_state
    return chosen


class GameActionRepeat(ActionRepeat, _OwnSteps):
    """`ActionRepeat` for games in which several players move at a step: the actions of all are taken again, until the game ends
    or a player is to move who was not at first.

    Raises:
        ConfigError: `times` is not a whole number above 0, or players take turns.
    """

    def __init__(self, game: Game, times: int):
        super().__init__(game, times)
        if times > 1 and game.turn_gap:
            raise ConfigError(
                f"action_repeat = {times}: players of {game.name} take turns, so the next step is another player's; expected "
                "none, or a game in which several move at once"
            )
        self.step_is_random = game.step_is_random or game.gives_outcomes

    def _stops(self, first: Any, state: Any, params: Any) -> jax.Array:
        asked = self.to_move(state) & ~self.to_move(first)
        return super()._stops(first, state, params) | jnp.any(asked)


def in_steps_of(game: Game, state: Any) -> Any:
    """Return a state for `game` of the same game with or without `GameEndOnNaN`, which is no rule: players with and without it
    meet."""
    if isinstance(state, TimeLimitState):
        return state._replace(env_state=in_steps_of(game, state.env_state))
    ends = isinstance(state, EndOnNaNState)
    while isinstance(game, WrappedGame) and not isinstance(game, GameEndOnNaN):
        game = game.env
    if ends == isinstance(game, GameEndOnNaN):
        return state
    return state.env_state if ends else EndOnNaNState(state, jnp.zeros((), bool))
