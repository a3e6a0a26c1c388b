"""Small games written out: exact values, best responses and exploitability, in JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.errors import ConfigError

Policies = Sequence[jax.Array]
"""Of each player the probabilities of its actions f32 `[I_p, A]`, in the order of `GameTree.observations[p]`."""


class Level(NamedTuple):
    """All states after the same number of steps, `[N, ...]`; J are the joint actions.

    Attributes:
        moves: whether a player is to move, bool `[N, P]`.
        info: the player's information set, i32 `[N, P]`; 0 where it is not to move.
        action: of each player in a joint action, i32 `[J, P]`.
        legal: bool `[N, J]`.
        reward: f32 `[N, J, P]`, 0 where illegal.
        child: the next level's state, i32 `[N, J]`; the number of its states where the game is over or the action illegal.
    """

    moves: np.ndarray
    info: np.ndarray
    action: np.ndarray
    legal: np.ndarray
    reward: np.ndarray
    child: np.ndarray


class GameTree(NamedTuple):
    """A game of two players written out.

    Attributes:
        levels: from the first move on.
        chance: probabilities of the first level's states, `[N]`.
        observations: of each player, what it sees in each of its information sets, f32 `[I_p, ...]`.
        masks: the legal actions there, bool `[I_p, A]`.
        merged: whether states that are reached in several ways were made one: chances to get there add up, and what a player
            did on the way is not known.
    """

    levels: tuple[Level, ...]
    chance: np.ndarray
    observations: tuple[np.ndarray, np.ndarray]
    masks: tuple[np.ndarray, np.ndarray]
    merged: bool


def game_tree(game: Any, params: Any = None, max_states: int = 1_000_000) -> GameTree:
    """Write a game of two players out, from its `initial_states` on, on the host.

    An information set is what a player that is to move sees: its observation must tell apart what it could tell apart before.

    Raises:
        ConfigError: the game has more states, or an observation that is the same after different numbers of steps, or with
            different legal actions.
    """
    if game.num_players != 2:
        raise ConfigError(f"{game.name}: has {game.num_players} players, expected 2 for an exact tree")
    params = game.default_params if params is None else params
    # Also inside a trace: the tree is the same whatever is traced.
    with jax.ensure_compile_time_eval():
        return _written_out(game, params, max_states)


def _written_out(game: Any, params: Any, max_states: int) -> GameTree:
    actions = game.action_space(params).n
    states, chance = game.initial_states(params)
    states = jax.tree.map(jnp.asarray, states)
    look = jax.jit(jax.vmap(lambda s: (game.observe(s, params), game.action_mask(s, params), game.to_move(s))))
    step = jax.jit(jax.vmap(lambda s, a: game.step_env(jax.random.key(0), s, a, params)[1:4]))
    known: tuple[dict[bytes, tuple[int, int]], ...] = ({}, {})
    seen: tuple[list[np.ndarray], ...] = ([], [])
    legal_there: tuple[list[np.ndarray], ...] = ([], [])
    levels: list[Level] = []
    total, merged = 0, False
    while jax.tree.leaves(states)[0].shape[0]:
        obs, mask, moves = (np.asarray(x) for x in look(states))
        count = len(moves)
        total += count
        if total > max_states:
            raise ConfigError(f"{game.name}: has more than max_states = {max_states} states, too many to write out")
        both = bool(moves.all(1).any())
        joint = np.stack(np.divmod(np.arange(actions**2), actions), 1) if both else np.repeat(np.arange(actions)[:, None], 2, 1)
        info = np.zeros((count, 2), np.int32)
        for player in range(2):
            for n in np.flatnonzero(moves[:, player]):
                key = obs[n, player].tobytes()
                place, depth = known[player].setdefault(key, (len(seen[player]), len(levels)))
                if place == len(seen[player]):
                    seen[player].append(obs[n, player])
                    legal_there[player].append(mask[n, player])
                if depth != len(levels) or (legal_there[player][place] != mask[n, player]).any():
                    raise ConfigError(f"{game.name}: player {player} sees the same in states that it could tell apart")
                info[n, player] = place
        legal = np.ones((count, len(joint)), bool)
        for player in range(2):
            # Who is not to move has one action, 0, where others choose together with it.
            allowed = np.where(moves[:, player, None], mask[:, player], np.arange(actions) == 0 if both else True)
            legal &= allowed[:, joint[:, player]]
        places, chosen = np.nonzero(legal)
        following, reward, over = step(_rows(states, places), jnp.asarray(joint)[chosen])
        rewards = np.zeros((count, len(joint), 2), np.float32)
        rewards[places, chosen] = np.asarray(reward)
        going = np.flatnonzero(~np.asarray(over))
        rows = _bytes(_rows(following, going), len(going))
        _, first, index = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        merged |= len(first) < len(going)
        child = np.full((count, len(joint)), len(first), np.int32)
        child[places[going], chosen[going]] = index.reshape(-1)
        levels.append(Level(moves, info, joint, legal, rewards, child))
        states = _rows(following, going[first])
    observations, masks = (tuple(map(np.stack, x)) for x in (seen, legal_there))
    return GameTree(tuple(levels), np.asarray(chance), observations, masks, merged)  # type: ignore[arg-type]


def _rows(states: Any, index: np.ndarray) -> Any:
    return jax.tree.map(lambda x: x[index], states)


def _bytes(states: Any, count: int) -> np.ndarray:
    """Each of `count` states as a row of bytes, equal where the states are."""
    flat = [np.ascontiguousarray(x).reshape(count, -1 if count else 1) for x in jax.tree.leaves(states) if count]
    return np.concatenate([x.view(np.uint8) for x in flat], axis=1) if flat else np.zeros((count, 1), np.uint8)


def uniform_policies(tree: GameTree) -> tuple[jax.Array, jax.Array]:
    """Every legal action as likely as the others."""
    first, second = (jnp.asarray(mask / mask.sum(-1, keepdims=True)) for mask in tree.masks)
    return first, second


def _taken(level: Level, policies: Policies, player: int) -> jax.Array:
    """How likely a player does its part of each joint action, `[N, J]`; 1 where it is not to move."""
    probability = policies[player][level.info[:, player]][:, level.action[:, player]]
    return jnp.where(level.moves[:, player, None], probability, 1.0) * level.legal


def _after(level: Level, values: jax.Array, player: int) -> jax.Array:
    """Reward and what follows it, for each joint action `[N, J]`, from the next level's values `[N']`."""
    return jnp.asarray(level.reward[..., player]) + jnp.append(values, 0.0)[level.child]


def game_values(tree: GameTree, policies: Policies) -> jax.Array:
    """The mean return of both players, `[2]`."""
    values = [jnp.zeros(0), jnp.zeros(0)]
    for level in reversed(tree.levels):
        chosen = _taken(level, policies, 0) * _taken(level, policies, 1)
        values = [jnp.sum(chosen * _after(level, values[player], player), -1) for player in range(2)]
    return jnp.stack([jnp.sum(tree.chance * value) for value in values])


def best_response(tree: GameTree, policies: Policies, player: int) -> tuple[jax.Array, jax.Array]:
    """The most that a player can get against the other's policy.

    Returns:
        The value [], and a policy `[I_p, A]` that has it, one-hot.
    """
    other = 1 - player
    reach, reaches = jnp.asarray(tree.chance), []
    for level, following in zip(tree.levels, (*tree.levels[1:], None), strict=True):
        reaches.append(reach)
        size = 0 if following is None else len(following.moves)
        onward = reach[:, None] * _taken(level, policies, other)
        reach = jnp.zeros(size + 1, onward.dtype).at[level.child].add(onward)[:size]
    count, actions = tree.masks[player].shape
    best = jnp.zeros((count, actions))
    values = jnp.zeros(0)
    for level, reach in zip(reversed(tree.levels), reversed(reaches), strict=True):
        weighted = _taken(level, policies, other) * _after(level, values, player)
        own = level.action[:, player]
        # What the player's own action leads to, with the other's part averaged out: [N, A].
        outcome = jnp.zeros((len(weighted), actions), weighted.dtype).at[:, own].add(weighted)
        moves, info = level.moves[:, player], level.info[:, player]
        gains = jnp.zeros((count, actions), outcome.dtype).at[info].add(jnp.where(moves[:, None], reach[:, None] * outcome, 0.0))
        choice = jnp.argmax(jnp.where(tree.masks[player], gains, -jnp.inf), -1)
        here = jnp.zeros(count, bool).at[info].max(moves)
        best = jnp.where(here[:, None], jax.nn.one_hot(choice, actions), best)
        values = jnp.where(moves, outcome[jnp.arange(len(outcome)), choice[info]], jnp.sum(weighted, -1))
    return jnp.sum(tree.chance * values), best


def nash_conv(tree: GameTree, policies: Policies) -> jax.Array:
    """How much both players together would gain by a best response to the other's policy, []; 0 in an equilibrium."""
    responses = [best_response(tree, policies, player)[0] for player in range(2)]
    return sum(responses, jnp.zeros(())) - jnp.sum(game_values(tree, policies))


def exploitability(tree: GameTree, policies: Policies) -> jax.Array:
    """The mean over the players of what a best response gains, []: half of `nash_conv`."""
    return 0.5 * nash_conv(tree, policies)


def mixed_policies(tree: GameTree, policies: Policies, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One policy for each player that plays like a mixture, whose member is drawn before the game and kept to its end.

    An information set is reached by members that play towards it: their policies count there by the chance that their own
    actions lead there (Kuhn, 1953).

    Args:
        tree: of a game.
        policies: of the members, `[K, I_p, A]` of each player.
        weights: of the members `[K]`, which add up to 1.

    Raises:
        ConfigError: states were merged, so that what a player did before is not known.
    """
    if tree.merged:
        raise ConfigError("a mixture needs the way to each state, and the tree has states that are reached in several ways")

    def own_reach(player: int, policy: jax.Array) -> jax.Array:
        reach, there = jnp.ones(len(tree.chance)), jnp.zeros(len(tree.masks[player]))
        for level, following in zip(tree.levels, (*tree.levels[1:], None), strict=True):
            there = there.at[level.info[:, player]].max(jnp.where(level.moves[:, player], reach, 0.0))
            size = 0 if following is None else len(following.moves)
            both = [policy, policy]
            onward = reach[:, None] * _taken(level, both, player)
            reach = jnp.zeros(size + 1).at[level.child].max(onward)[:size]
        return there

    mixed = []
    for player in range(2):
        reach = jax.vmap(lambda policy, player=player: own_reach(player, policy))(policies[player]) * weights[:, None]
        total = jnp.sum(reach, 0)
        average = jnp.einsum("ki,kia->ia", reach, policies[player]) / jnp.maximum(total, 1e-30)[:, None]
        legal = tree.masks[player] / tree.masks[player].sum(-1, keepdims=True)
        mixed.append(jnp.where(total[:, None] > 0, average, legal))
    return mixed[0], mixed[1]
