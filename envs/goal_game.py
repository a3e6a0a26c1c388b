"""GoalGame: a game in which each player is given a goal z of its own, and a reward component for following it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.core.environments.environment import COMPONENTS
from rljax.core.environments.spaces import Box, Dict, Discrete, as_space
from rljax.core.environments.wrappers import join_privileged, split_privileged, split_privileged_space
from rljax.core.errors import ConfigError, check_int
from rljax.core.games.game import Game
from rljax.core.games.game_wrappers import Step, WrappedGame
from rljax.core.keys import draw

WIN, FOLLOW = "win", "follow"
"""Reward components: the game's own reward, and the reward for following the goal."""

GOAL = "goal"
"""Key of an observation whose entry is the goal."""

Follow = Callable[[Any, Any, jax.Array], jax.Array]
"""`follow(state, action, goal) -> f32 [P]`: rewards for following the goals i32 `[P]`, of the actions `[P, ...]` in a state."""


class GoalState(NamedTuple):
    """State: that of the game, and the goal of each player, i32 `[P]`."""

    game: Any
    goal: jax.Array


class GoalGame(WrappedGame):
    """A game in which each player gets a goal z that it alone sees, drawn uniformly when a game begins.

    Observations are dictionaries: "goal" f32 `[P, num_goals]` is the goal, one-hot. Beside it are the keys of the game's
    observation, or "observation" if that is no dictionary. Rewards are those of the game. `info["reward_components"]` has the
    components of the game, f32 `[P]` each, and "follow", the reward for following the goal. "win" is the game's reward, unless
    the game has a component of that name.
    With value heads for both, `exploiter_head_weights` lets the exploiters of a league follow their goals while main agents play
    to win (statistics z: Vinyals et al., "Grandmaster level in StarCraft II", 2019).

    Args:
        game: the game.
        num_goals: number of goals.
        follow: `(state, action, goal i32 [P]) -> f32 [P]`, the rewards for following the goals. By default a player who moves
            gets 1 if it takes the action of its goal's number.

    Raises:
        ConfigError: `num_goals` is not a whole number above 0, or without `follow` above the number of actions; `follow` is
            missing, or the game has goals already.
    """

    def __init__(self, game: Game, num_goals: int, follow: Follow | None = None):
        super().__init__(game)
        check_int(f"GoalGame({game.name})", 1, num_goals=num_goals)
        if follow is None:
            actions = as_space(game.action_space(game.default_params))
            if not isinstance(actions, Discrete):
                raise ConfigError(f"GoalGame({game.name}): its actions are not Discrete, so say what follows a goal: follow=...")
            if num_goals > actions.n:
                raise ConfigError(
                    f"GoalGame({game.name}): num_goals = {num_goals}: expected at most {actions.n}, the number of actions, or "
                    "say what follows a goal: follow=..."
                )
        if GOAL in _named(split_privileged_space(as_space(game.observation_space(game.default_params)))[0]):
            raise ConfigError(f"GoalGame({game.name}): its observations have a '{GOAL}' already, expected a game without")
        self.num_goals = num_goals
        # Goals are a part of the state that others do not see.
        self.hides_state = True
        self._follow = follow or self._takes_its_action

    @property
    def name(self) -> str:
        return f"{self.env.name} with goals"

    def inner(self, state: GoalState) -> Any:
        return state.game

    def observation_space(self, params: Any) -> Dict:
        public, privileged = split_privileged_space(as_space(self.env.observation_space(params)))
        named = {**_named(public), GOAL: Box(0.0, 1.0, (self.num_goals,))}
        return Dict(join_privileged(named, privileged))

    def observe(self, state: GoalState, params: Any) -> dict[str, Any]:
        return self._with_goal(self.env.observe(state.game, params), state.goal)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[dict[str, Any], GoalState]:
        goal = (draw(jax.random.uniform, jax.random.fold_in(key, 1), (self.num_players,)) * self.num_goals).astype(jnp.int32)
        obs, game = self.env.reset_env(key, params)
        return self._with_goal(obs, goal), GoalState(game, goal)

    def step_env(self, key: jax.Array, state: GoalState, action: Any, params: Any) -> Step:
        return self._rewarded(state, action, self.env.step_env(key, state.game, action, params))

    def step_outcome(self, state: GoalState, action: Any, outcome: jax.Array, params: Any) -> Step:
        return self._rewarded(state, action, self.env.step_outcome(state.game, action, outcome, params))

    def _rewarded(self, before: GoalState, action: Any, step: Step) -> Step:
        obs, game, reward, terminated, info = step
        own = info.get(COMPONENTS, {})
        if FOLLOW in own:
            raise ConfigError(f"{self.name}: the game has a reward component '{FOLLOW}' already, expected another name for it")
        components = {WIN: reward, **own, FOLLOW: self._follow(before.game, action, before.goal)}
        obs, state = self._with_goal(obs, before.goal), GoalState(game, before.goal)
        return obs, state, reward, terminated, {**info, COMPONENTS: components}

    def text(self, state: GoalState, params: Any, player: int) -> str:
        return f"{super().text(state, params, player)}\nyour goal: {int(state.goal[player])}"

    def initial_states(self, params: Any) -> tuple[GoalState, jax.Array]:
        """Return every state of the game with every combination of goals."""
        states, probabilities = self.env.initial_states(params)
        goals = jnp.stack(jnp.meshgrid(*[jnp.arange(self.num_goals)] * self.num_players, indexing="ij"), -1)
        goals = goals.reshape(-1, self.num_players)
        each, count = len(goals), len(probabilities)
        repeated = jax.tree.map(lambda x: jnp.repeat(x, each, axis=0), states)
        return GoalState(repeated, jnp.tile(goals, (count, 1))), jnp.repeat(probabilities / each, each)

    def _with_goal(self, obs: Any, goal: jax.Array) -> dict[str, Any]:
        public, privileged = split_privileged(obs)
        named = {**_named(public), GOAL: jax.nn.one_hot(goal, self.num_goals)}
        joined: dict[str, Any] = join_privileged(named, privileged)
        return joined

    def _takes_its_action(self, state: Any, action: Any, goal: jax.Array) -> jax.Array:
        return (self.env.to_move(state) & (action == goal)).astype(jnp.float32)


def _named(obs: Any) -> dict[str, Any]:
    """Return the entries of an observation or a space by their keys; one that is no dictionary as "observation"."""
    entries = obs.spaces if isinstance(obs, Dict) else obs
    return dict(entries) if isinstance(entries, Mapping) else {"observation": obs}
