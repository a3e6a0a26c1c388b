"""Games made of environments: each player has an environment of its own, by id: `race:TMaze-v0` and so on."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.core.environments.environment import BELIEF, METRICS, action_mask_of, strong, tree_where
from rljax.core.errors import ConfigError
from rljax.core.games.chance import step_shapes, uses_key
from rljax.core.games.game import RESULT, Game


class RaceState(NamedTuple):
    """State of a race.

    Attributes:
        envs: states of the players' environments, `[P, ...]`.
        obs: the players' observations, `[P, ...]`.
        over: whose episode is over, bool `[P]`.
        mover: player to move, where players take turns, i32 [].
        belief: entropy of each player's belief after its last step, where the environment offers it, f32 `[P]`; 0 before.
        metrics: the metrics of each player's last step, by name, `[P]`; 0 before.
    """

    envs: Any
    obs: Any
    over: jax.Array
    mover: jax.Array
    belief: jax.Array
    metrics: dict[str, jax.Array]


class Race(Game):
    """Players who each play an environment of their own. Who is done waits for the others; the game ends with the last episode.

    What an environment offers comes across: dictionaries, goals, privileged parts, masks, several action heads, reward
    components, beliefs. So it is the plainest game for whatever a policy can do, and known scores of the environment hold for
    each player.

    Args:
        env: the environment.
        num_players: number of players P.
        turns: whether players take turns, in which each steps its own environment; otherwise all move at once.
        relative: whether rewards are those of the player minus the mean of the others': a game whose sum is zero. Components of
            the reward stay the player's own.
    """

    opening_moves = 0

    def __init__(self, env: Any, num_players: int = 2, turns: bool = False, relative: bool = False) -> None:
        if isinstance(env, Game):
            raise ConfigError(f"race: {env.name} is a game already, expected an environment of one agent")
        if isinstance(num_players, bool) or not isinstance(num_players, int) or num_players < 2:
            raise ConfigError(f"race: num_players = {num_players}: expected at least 2")
        self.env, self.num_players, self.turns, self.relative = env, num_players, turns, relative
        self.best_is_random = getattr(env, "best_is_random", False)
        params = env.default_params
        self.step_is_random = uses_key(env, params)
        self.zero_sum = relative
        state, action, key = step_shapes(env, params)
        info = jax.eval_shape(lambda k, s, a: strong(env.step_env(k, s, a, params)[-1]), key, state, action)
        self._metrics = {name: x.dtype for name, x in info.get(METRICS, {}).items()}

    @property
    def name(self) -> str:
        return f"race:{self.env.name}"

    @property
    def default_params(self) -> Any:
        return self.env.default_params

    @property
    def turn_gap(self) -> int:
        return self.num_players - 1 if self.turns else 0

    def observation_space(self, params: Any) -> Any:
        return self.env.observation_space(params)

    def action_space(self, params: Any) -> Any:
        return self.env.action_space(params)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, RaceState]:
        players = self.num_players
        obs, envs = strong(jax.vmap(self.env.reset_env, (0, None))(jax.random.split(key, players), params))
        metrics = {name: jnp.zeros(players, dtype) for name, dtype in self._metrics.items()}
        return obs, RaceState(envs, obs, jnp.zeros(players, bool), jnp.zeros((), jnp.int32), jnp.zeros(players), metrics)

    def to_move(self, state: RaceState) -> jax.Array:
        return jnp.arange(self.num_players) == state.mover if self.turns else ~state.over

    def action_mask(self, state: RaceState, params: Any) -> Any:
        mask = jax.vmap(lambda s: action_mask_of(self.env, s, params))(state.envs)
        if mask is None:
            return super().action_mask(state, params)
        waits = ~self.to_move(state)
        return mask | waits.reshape(-1, *(1,) * (mask.ndim - 1))

    def step_env(
        self, key: jax.Array, state: RaceState, action: Any, params: Any
    ) -> tuple[Any, RaceState, jax.Array, jax.Array, dict[str, Any]]:
        moves, players = self.to_move(state), self.num_players

        def play(
            key: jax.Array, moves: jax.Array, env: Any, obs: Any, action: Any
        ) -> tuple[Any, Any, jax.Array, jax.Array, dict[str, Any]]:
            after, next_env, reward, terminated, info = strong(self.env.step_env(key, env, action, params))
            done = terminated | self.env.is_truncated(next_env, params)
            obs, env = tree_where(moves, (after, next_env), (obs, env))
            info = tree_where(moves, info, jax.tree.map(jnp.zeros_like, info))
            return obs, env, jnp.where(moves, reward, 0.0).astype(jnp.float32), done & moves, info

        keys = jax.random.split(key, players)
        obs, envs, reward, done, info = jax.vmap(play)(keys, moves, state.envs, state.obs, action)
        if self.relative:
            reward = (players * reward - jnp.sum(reward)) / (players - 1)
        over, belief = state.over | done, state.belief
        info = dict(info)
        if BELIEF in info:  # of who waits it stays as it was
            info[BELIEF] = belief = jnp.where(moves, info[BELIEF], belief)
        info.pop(RESULT, None)  # an environment's own entry is no result of the race
        metrics = {name: jnp.where(moves, x, state.metrics[name]) for name, x in info.pop(METRICS, {}).items()}
        if metrics:
            info[METRICS] = {name: jnp.mean(x) for name, x in metrics.items()}
        return obs, RaceState(envs, obs, over, self._next(state.mover, over), belief, metrics), reward, jnp.all(over), info

    def _next(self, mover: jax.Array, over: jax.Array) -> jax.Array:
        """Return the next player, in the order of seats, whose episode is not over; any if all are."""
        order = (mover + 1 + jnp.arange(self.num_players)) % self.num_players
        return order[jnp.argmax(~over[order])].astype(jnp.int32)

    def is_truncated(self, state: RaceState, params: Any) -> jax.Array:
        return jnp.asarray(False)

    def observe(self, state: RaceState, params: Any) -> Any:
        return state.obs

    def render(self, state: RaceState, params: Any) -> jax.Array:
        return jnp.concatenate(list(jax.vmap(lambda env: self.env.render(env, params))(state.envs)), axis=1)
