"""Wrappers of games that change what a step does."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rljax.core.environments.step_wrappers import EndOnNaN, EndOnNaNState, finite
from rljax.core.games.game import RESULT
from rljax.core.games.game_wrappers import Step, WrappedGame


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
