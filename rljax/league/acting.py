"""Networks and scripted players choose the actions of a rollout of games.

The networks are the learner's, and those of the opponents on the lanes of its slots. Where all players move at once, a network
sees only the seats that it may play: the learner's those of its team, the opponents' the others. The lanes of slots whose games
are all against scripted players are not asked. Arrays of games have the axes `[L, S, B]` (learner, slot, game), flattened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.common.policy import policy_and_value
from rljax.collect.games.rollout import Decide
from rljax.collect.normalizers import normalize
from rljax.core.games.versus import Seated, where_players
from rljax.league.league import League
from rljax.league.parts import GameParts, of_learners, scripted_players, split_player


def make_decide(parts: GameParts, own_players: Any, league: League | None) -> Decide:
    """Return the function by which `game_rollout` chooses the actions of networks.

    Args:
        parts: from `game_parts`.
        own_players: the learners as players, leaves `[L, ...]`.
        league: the league, whose lanes are the opponents; None: the learner plays all seats.
    """
    learners, head, split = parts.learners, parts.ppo.head, parts.sides

    def decide(kept: Any, obs: Any, mask: Any, noise: jax.Array, carry: Any) -> tuple[Any, Any, Any]:
        params, statistics = split_player(kept)
        obs = obs if statistics is None else normalize(statistics, obs)
        outputs, _, carry = policy_and_value(parts.ppo, params, obs, carry)
        # Choose between the outputs of the players first, where they are arrays: then one action is drawn instead of three.
        if isinstance(outputs, jax.Array):
            return outputs, None, carry
        return None, head.sample(head.distribution(outputs, mask), noise), carry

    def drawn(chosen: tuple[Any, Any, Any], mask: Any, noise: jax.Array) -> tuple[Any, Any]:
        outputs, action, carry = chosen
        return head.sample(head.distribution(outputs, mask), noise) if action is None else action, carry

    def of_own(inputs: Any) -> Any:
        by_learner = jax.tree.map(lambda x: x.reshape(learners, -1, *x.shape[1:]), inputs)
        chosen = of_learners(decide, learners)(own_players, *by_learner)
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), chosen)

    opponents = None if league is None else _opponents(parts, league, decide, None if split is None else drawn)

    def act(
        obs: Any, mask: Any, mine: jax.Array, team: jax.Array, lane: jax.Array, noise: jax.Array, carry: Any
    ) -> tuple[Any, Any]:
        inputs = (obs, mask, noise, carry)
        if opponents is None:
            return drawn(of_own(inputs), mask, noise)
        pick = lambda own, other: jnp.where(mine.reshape(mine.shape + (1,) * (own.ndim - mine.ndim)), own, other)  # noqa: E731
        if split is None:
            return drawn(jax.tree.map(pick, of_own(inputs), opponents(lane, inputs)), mask, noise)
        ours, theirs = split
        of_us = ours.part(team, inputs)
        own = drawn(of_own(of_us), *of_us[1:3])
        others = opponents(lane, theirs.part(team, inputs))
        return jax.tree.map(pick, ours.whole(team, own), theirs.whole(team, others))

    return act


def _opponents(
    parts: GameParts, league: League, decide: Callable[..., Any], drawn: Callable[..., Any] | None
) -> Callable[[jax.Array, Any], Any]:
    """Return a function from the lane of each game, i32 `[E]`, and the inputs `[E, K, ...]` of `decide` to what the opponents
    decide, `[E, K, ...]`, after `drawn` if given; zeros in games of slots that are all against scripted players.
    """
    slots = league.newest.size
    asked = np.flatnonzero((parts.scripted.reshape(slots, -1) < 0).any(axis=1))
    lanes = jax.tree.map(lambda x: _rows(x.reshape(slots, *x.shape[2:]), asked), league.lanes)

    def of_lanes(lane: jax.Array, inputs: Any) -> Any:
        lane, inputs = jax.tree.map(lambda x: _rows(x.reshape(slots, -1, *x.shape[1:]), asked), (lane, inputs))
        both = jax.vmap(jax.vmap(decide, (0, None, None, None, None)))(lanes, *inputs)

        def of_game(x: jax.Array) -> jax.Array:
            return jnp.where(lane.reshape(lane.shape + (1,) * (x.ndim - 3)) == 1, x[:, 1], x[:, 0])

        chosen = jax.tree.map(of_game, both)
        if drawn is not None:
            chosen = drawn(chosen, *inputs[1:3])
        return jax.tree.map(spread, chosen)

    def spread(x: jax.Array) -> jax.Array:
        if len(asked) < slots:
            x = jnp.zeros((slots, *x.shape[1:]), x.dtype).at[asked].set(x)
        return x.reshape(-1, *x.shape[2:])

    return of_lanes


def _rows(x: jax.Array, rows: np.ndarray) -> jax.Array:
    return x if len(rows) == len(x) else x[rows]


def scripted_actions(parts: GameParts) -> Callable[[Any, jax.Array, jax.Array, Any, Any], tuple[Any, Any]]:
    """Return the function by which `game_rollout` lets scripted players act in the games that are against them."""
    players = scripted_players(parts)

    def replaced(states: Any, keys: jax.Array, own: jax.Array, action: Any, memories: Any) -> tuple[Any, Any]:
        memories = dict(memories)
        for name, (seated, games) in players.items():  # One computation for all games against a player.

            def chosen(
                key: jax.Array, state: Any, own: jax.Array, action: Any, memory: Any, seated: Seated = seated
            ) -> tuple[Any, Any]:
                given, memory = seated.act(key, state, None, None, memory)
                return where_players(~own, given, action), memory

            before = (action, memories[name])
            of_games = jax.tree.map(lambda x, games=games: x[games], (keys, states, own, *before))
            after = jax.vmap(chosen)(*of_games)
            action, memories[name] = jax.tree.map(lambda x, new, games=games: x.at[games].set(new), before, after)
        return action, memories

    return replaced
