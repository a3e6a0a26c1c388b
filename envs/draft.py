"""Draft-v0: two sides pick heroes in the order A, B, B, A."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.environments.spaces import Box, Discrete
from rljax.core.games.game import Game

HEROES = 8
ORDER = np.array([0, 1, 1, 0])
"""Player to pick at each step; the turns do not alternate."""


@struct.dataclass
class DraftState:
    """State: `owner` i32 `[8]` of each hero, 0 for nobody, else 1 + the player; `time` counts the picks."""

    owner: jax.Array
    time: jax.Array


@struct.dataclass
class DraftParams:
    """Matrices f32 `[8, 8]`: `synergy[i, j]`, joint gain of i and j, symmetric; `counter[i, j]`, i's gain on j, antisymmetric."""

    synergy: jax.Array
    counter: jax.Array


def random_draft(key: jax.Array) -> DraftParams:
    """Draw matrices whose entries have standard deviation 1/4; `synergy` is symmetric and `counter` antisymmetric."""
    first, second = 0.25 * jax.random.normal(key, (2, HEROES, HEROES))
    return DraftParams(jnp.triu(first, 1) + jnp.triu(first, 1).T, jnp.triu(second, 1) - jnp.triu(second, 1).T)


class Draft(Game):
    """Each side picks two of eight heroes, in the order A, B, B, A.

    Action: a hero. Observation of each player, f32 `[20]`: its own heroes, the other's heroes, and the number of picks (one-hot
    4). The reward of player 0, at the end, is the synergy of its two heroes, minus that of the other's, plus the gain of each of
    its heroes on each of the other's. Player 1 gets the negative.

    Args:
        seed: seed of the matrices in `default_params`.
    """

    opening_moves = 1

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    @property
    def name(self) -> str:
        return "Draft-v0"

    @property
    def default_params(self) -> DraftParams:
        return random_draft(jax.random.key(self.seed))

    @property
    def turn_gap(self) -> int:
        return 2

    def observation_space(self, params: DraftParams) -> Box:
        return Box(0.0, 1.0, (2 * HEROES + len(ORDER),))

    def action_space(self, params: DraftParams) -> Discrete:
        return Discrete(HEROES)

    def to_move(self, state: DraftState) -> jax.Array:
        return jnp.arange(2) == jnp.asarray(ORDER)[state.time % len(ORDER)]

    def action_mask(self, state: DraftState, params: DraftParams) -> jax.Array:
        return (state.owner == 0) | ~self.to_move(state)[:, None]

    def observe(self, state: DraftState, params: DraftParams) -> jax.Array:
        picked = (state.owner == jnp.array([[1], [2]])).astype(jnp.float32)
        clock = jnp.tile(jax.nn.one_hot(state.time, len(ORDER)), (2, 1))
        return jnp.concatenate([picked, picked[::-1], clock], axis=-1)

    def text(self, state: DraftState, params: DraftParams, player: int) -> str:
        picked = [[str(i) for i, owner in enumerate(state.owner) if owner == side + 1] for side in (player, 1 - player)]
        return f"you have heroes {' '.join(picked[0]) or '-'}, the other {' '.join(picked[1]) or '-'}"

    def initial_states(self, params: DraftParams) -> tuple[DraftState, jax.Array]:
        return DraftState(jnp.zeros((1, HEROES), jnp.int32), jnp.zeros(1, jnp.int32)), jnp.ones(1)

    def reset_env(self, key: jax.Array, params: DraftParams) -> tuple[jax.Array, DraftState]:
        state = DraftState(jnp.zeros(HEROES, jnp.int32), jnp.zeros((), jnp.int32))
        return self.observe(state, params), state

    def step_env(
        self, key: jax.Array, state: DraftState, action: jax.Array, params: DraftParams
    ) -> tuple[jax.Array, DraftState, jax.Array, jax.Array, dict[str, Any]]:
        mover = jnp.asarray(ORDER)[state.time % len(ORDER)]
        owner = jnp.where(jnp.arange(HEROES) == action[mover], mover + 1, state.owner)
        state = DraftState(owner, state.time + 1)
        over = state.time == len(ORDER)
        reward = jnp.where(over, draft_score(owner, params), 0.0) * jnp.array([1.0, -1.0])
        return self.observe(state, params), state, reward, over, {}


def draft_score(owner: jax.Array, params: DraftParams) -> jax.Array:
    """Return the reward of player 0 for a finished draft, f32 []; `owner` is i32 `[8]`."""
    first, second = ((owner == side).astype(jnp.float32) for side in (1, 2))
    together = first @ params.synergy @ first - second @ params.synergy @ second
    return 0.5 * together + first @ params.counter @ second


def greedy_completion(params: DraftParams) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Return an evaluation for searches: the result if the rest is picked greedily, each hero by its immediate gain."""
    order = jnp.asarray(ORDER)

    def pick(_: int, draft: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        owner, time = draft
        side = order[time % len(ORDER)]
        picked = jnp.where(jnp.eye(HEROES, dtype=bool), side + 1, owner)
        score = jax.vmap(lambda o: draft_score(o, params))(picked) * jnp.where(side == 0, 1.0, -1.0)
        best = jnp.argmax(jnp.where(owner == 0, score, -jnp.inf))
        going = time < len(ORDER)
        return jnp.where(going, picked[best], owner), time + going

    def evaluate(_key: jax.Array, state: DraftState, _obs: Any, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        owner, _ = jax.lax.fori_loop(0, len(ORDER), pick, (state.owner, state.time))
        side = order[state.time % len(ORDER)]
        return jnp.zeros(mask.shape), draft_score(owner, params) * jnp.where(side == 0, 1.0, -1.0)

    return evaluate
