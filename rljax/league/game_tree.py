"""Trees of small games: exact values, best responses and exploitability, in JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.environments.spaces import Discrete, as_space
from rljax.core.errors import ConfigError
from rljax.core.games.chance import draws_from_state, draws_in_step, fault_of, num_outcomes
from rljax.core.games.game_wrappers import public_part

Policies = Sequence[jax.Array]
"""Probabilities of each player's actions, f32 `[I_p, A]`, in the order of `GameTree.observations[p]`."""


NO_MOVE, UNKNOWN = -1, -2
"""A player's last move before a state: none, and different ones where several paths lead to the state."""


class GameTree(NamedTuple):
    """The whole tree of a game of two players: N states in L levels (states after the same number of steps), at most J joint
    actions.

    In a game that defines `chance`, each step takes two levels: in every second level chance moves, and its outcomes stand for
    the joint actions.

    Attributes:
        start: index of each level's first state, i32 `[L]`.
        size: number of states in each level, i32 `[L]`.
        action: action of each player in each joint action of a level, i32 `[L, J, 2]`.
        moves: whether a player is to move, bool `[N, 2]`.
        info: index of each player's information set, i32 `[N, 2]`; 0 where the player is not to move.
        legal: whether a joint action is legal, bool `[N, J]`.
        reward: reward of each player, f32 `[N, J, 2]`, 0 where illegal.
        child: index of the state that follows, i32 `[N, J]`; -1 where the game is over or the action illegal.
        probability: probability of the outcome where chance moves, f32 `[N, J]`; 1 elsewhere.
        chance: probabilities of the first level's states, `[size[0]]`.
        observations: for each player, its observation in each of its information sets, f32 `[I_p, ...]`; the part that
            only a critic sees is taken from one of the set's states.
        masks: for each player, the legal actions in each of its information sets, bool `[I_p, A]`.
        merged: whether a state that several paths reach was stored once: its probability is the sum over the paths, and a
            player's earlier actions are unknown.
    """

    start: np.ndarray
    size: np.ndarray
    action: np.ndarray
    moves: np.ndarray
    info: np.ndarray
    legal: np.ndarray
    reward: np.ndarray
    child: np.ndarray
    probability: np.ndarray
    chance: np.ndarray
    observations: tuple[np.ndarray, np.ndarray]
    masks: tuple[np.ndarray, np.ndarray]
    merged: bool


def game_tree(game: Any, params: Any = None, max_states: int = 1_000_000) -> GameTree:
    """Build the tree of a game of two players from its `initial_states`, on the host.

    An information set holds the states in which a player to move has the same observation, without what only a critic sees
    (`privileged`). So observations must have perfect recall: two states that a player could tell apart earlier, by what it saw
    or did, must have different observations, unless the rest of the game is the same in both. This is checked but for states
    that several paths with different moves of the player lead to.

    Raises:
        ConfigError: the game has more than `max_states` states or random steps whose outcomes it does not give, or an observation
            occurs after different numbers of steps, with different legal actions, or after different last moves of its player
            on which the rest of the game depends.
    """
    if game.num_players != 2:
        raise ConfigError(f"{game.name}: has {game.num_players} players, expected 2 for an exact tree")
    if len(set(game.teams)) != 2:
        raise ConfigError(f"{game.name}: its players are one team, expected two for an exact tree")
    params = game.default_params if params is None else params
    if not isinstance(as_space(game.action_space(params)), Discrete):
        raise ConfigError(f"{game.name}: its actions are not Discrete, as an exact tree needs them")
    try:
        jax.eval_shape(lambda: game.initial_states(params))
    except NotImplementedError as error:
        raise ConfigError(f"{error}, which an exact tree needs") from error
    if draws_from_state(game, params):
        raise ConfigError(
            f"{game.name}: its state holds a random key: an exact tree needs all chance in initial_states, or in chance and "
            "step_outcome"
        )
    if num_outcomes(game, params) == 1 and draws_in_step(game, params):
        raise ConfigError(
            f"{game.name}: its steps are random, and it does not say how: an exact tree needs all chance in initial_states, "
            "or the probabilities of outcomes (define chance and step_outcome instead of step_env)"
        )
    # Compute values even inside a trace: the tree does not depend on traced values.
    with jax.ensure_compile_time_eval():
        return _written_out(game, params, max_states)


def _check_chance(game: Any, source: str, probability: np.ndarray) -> None:
    """Refuse probabilities `[..., J]` that are below 0 or do not add up to 1: all values would be wrong."""
    fault = fault_of(source, probability.min(initial=0.0), np.abs(probability.sum(-1) - 1.0).max(initial=0.0))
    if fault is not None:
        raise ConfigError(f"{game.name}: {fault}")


def _written_out(game: Any, params: Any, max_states: int) -> GameTree:
    actions, outcomes = game.action_space(params).n, num_outcomes(game, params)
    states, chance = game.initial_states(params)
    states = jax.tree.map(np.asarray, states)
    _check_chance(game, "initial_states", np.asarray(chance))
    look = _in_batches(lambda s: (game.observe(s, params), game.action_mask(s, params), game.to_move(s)))

    def after(state: Any, action: jax.Array, outcome: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        given = outcomes > 1
        stepped = game.step_outcome(state, action, outcome, params) if given else game.step_env(unused, state, action, params)
        return stepped[1], stepped[2], stepped[3] | game.is_truncated(stepped[1], params)

    unused = jax.random.key(0)
    step, probabilities = _in_batches(after), _in_batches(lambda s, a: game.chance(s, a, params))
    known: tuple[dict[bytes, tuple[int, int]], ...] = ({}, {})
    seen: tuple[list[Any], ...] = ([], [])
    legal_there: tuple[list[np.ndarray], ...] = ([], [])
    last_before: tuple[list[int], ...] = ([], [])
    forgotten: tuple[set[int], ...] = (set(), set())
    # Each player's last move before a state, its information set times the number of actions plus its action.
    last = np.full((len(chance), 2), NO_MOVE)
    levels: list[dict[str, np.ndarray]] = []
    joints: list[np.ndarray] = []
    total, merged = 0, False
    while jax.tree.leaves(states)[0].shape[0]:
        obs, mask, moves = look(states)
        count = len(moves)
        total = _counted(game, total + count, max_states)
        both = bool(moves.all(1).any())
        joint = np.stack(np.divmod(np.arange(actions**2), actions), 1) if both else np.repeat(np.arange(actions)[:, None], 2, 1)
        info = np.zeros((count, 2), np.int32)
        for player in range(2):
            for n in np.flatnonzero(moves[:, player]):
                own = jax.tree.map(lambda x, n=n, player=player: x[n, player], obs)
                key = b"".join(_one_zero(leaf).tobytes() for leaf in jax.tree.leaves(public_part(game, own)))
                place, depth = known[player].setdefault(key, (len(seen[player]), len(levels)))
                if place == len(seen[player]):
                    seen[player].append(own)
                    legal_there[player].append(mask[n, player])
                    last_before[player].append(UNKNOWN)
                if last_before[player][place] == UNKNOWN:
                    last_before[player][place] = last[n, player]
                if last[n, player] not in (UNKNOWN, last_before[player][place]):
                    forgotten[player].add(place)
                if depth != len(levels) or (legal_there[player][place] != mask[n, player]).any():
                    raise _forgets(game, player)
                info[n, player] = place
        legal = np.ones((count, len(joint)), bool)
        for player in range(2):
            # A player who is not to move has the single action 0 in a joint action.
            allowed = np.where(moves[:, player, None], mask[:, player], np.arange(actions) == 0 if both else True)
            legal &= allowed[:, joint[:, player]]
        legal[~moves.any(1), 1:] = False  # Where nobody is to move, all joint actions are one.
        places, chosen = np.nonzero(legal)
        states, taken = _rows(states, places), joint[chosen]
        last = np.where(moves[places], info[places] * np.int64(actions) + taken, last[places])
        outcome = np.zeros_like(places)
        probability = np.ones(legal.shape, np.float32)
        if outcomes > 1:
            child = np.full(legal.shape, -1, np.int32)
            child[places, chosen] = total + np.arange(len(places))
            nothing = np.zeros((*legal.shape, 2), np.float32)
            decided = {"moves": moves, "info": info, "legal": legal, "reward": nothing, "child": child}
            levels.append(decided | {"probability": probability})
            joints.append(joint)
            count = len(places)
            total = _counted(game, total + count, max_states)
            moves, info, joint = np.zeros((count, 2), bool), np.zeros((count, 2), np.int32), np.zeros((outcomes, 2), np.int32)
            probability = probabilities(states, taken)
            _check_chance(game, "chance", probability)
            legal = probability > 0
            places, chosen = np.nonzero(legal)
            outcome, states, taken, last = chosen, _rows(states, places), taken[places], last[places]
        following, reward, over = step(states, taken, outcome.astype(np.int32))
        rewards = np.zeros((*legal.shape, 2), np.float32)
        rewards[places, chosen] = reward
        going = np.flatnonzero(~over)
        rows = _bytes(_rows(following, going), len(going))
        _, first, index = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        merged |= len(first) < len(going)
        last = _last_of_merged(last[going], index.reshape(-1), len(first))
        child = np.full(legal.shape, -1, np.int32)
        child[places[going], chosen[going]] = total + index.reshape(-1)
        level = {"moves": moves, "info": info, "legal": legal, "reward": rewards, "child": child, "probability": probability}
        levels.append(level)
        joints.append(joint)
        states = _rows(following, going[first])
    size = np.array([len(level["moves"]) for level in levels], np.int32)
    widest = max(len(joint) for joint in joints)
    joined: dict[str, Any] = {"action": np.stack([_wider(joint, widest, 0, axis=0) for joint in joints]).astype(np.int32)}
    for name, fill in (("moves", None), ("info", None), ("legal", False), ("reward", 0.0), ("child", -1), ("probability", 1.0)):
        parts = [level[name] for level in levels]
        joined[name] = np.concatenate(parts if fill is None else [_wider(part, widest, fill) for part in parts])
    if any(forgotten):
        _check_forgotten(game, forgotten, size, joined)
    for player, of_player in enumerate(seen):
        if not of_player:
            raise ConfigError(f"{game.name}: player {player} never moves, so it has no policy; expected a game of two who move")
    observations = tuple(jax.tree.map(lambda *rows: np.stack(rows), *of_player) for of_player in seen)
    masks = tuple(map(np.stack, legal_there))
    return GameTree(
        start=(np.cumsum(size) - size).astype(np.int32),
        size=size,
        chance=np.asarray(chance),
        observations=observations,
        masks=masks,  # type: ignore[arg-type]
        merged=merged,
        **joined,
    )


def _forgets(game: Any, player: int) -> ConfigError:
    return ConfigError(
        f"{game.name}: player {player} has the same observation in states that it could tell apart earlier; an exact tree needs "
        "observations that show what their player saw and did, or states that do not keep what no longer matters"
    )


def _check_forgotten(game: Any, forgotten: tuple[set[int], ...], size: np.ndarray, tree: dict[str, np.ndarray]) -> None:
    """Refuse information sets that different last moves of their player lead to, unless all of their states go on alike."""
    future = np.full(len(tree["moves"]) + 1, -1)  # the last entry is that of `child` = -1, where the game is over
    for start, count in reversed(list(zip(np.cumsum(size) - size, size, strict=True))):
        rows = slice(start, start + count)
        parts = [tree[name][rows] for name in ("moves", "info", "legal", "reward", "probability")]
        alike = _bytes([*parts, future[tree["child"][rows]]], count)
        future[rows] = np.unique(alike, axis=0, return_inverse=True)[1].reshape(-1)
    for player, sets in enumerate(forgotten):
        there = tree["moves"][:, player]
        info, futures = tree["info"][there, player], future[:-1][there]
        one = np.zeros(info.max(initial=0) + 1, np.int64)
        one[info] = futures
        if sets.intersection(info[futures != one[info]].tolist()):
            raise _forgets(game, player)


def _last_of_merged(last: np.ndarray, index: np.ndarray, count: int) -> np.ndarray:
    """Return the last moves `[count, 2]` before merged states, of those `[N, 2]` before the states that become number `index`."""
    least, most = np.full((count, 2), np.iinfo(np.int64).max), np.full((count, 2), np.iinfo(np.int64).min)
    np.minimum.at(least, index, last)
    np.maximum.at(most, index, last)
    return np.where(least == most, least, UNKNOWN)


def _counted(game: Any, total: int, max_states: int) -> int:
    """Return the number of states up to here, unless they are too many."""
    if total > max_states:
        raise ConfigError(f"{game.name}: has more than max_states = {max_states} states, too many for an exact tree")
    return total


def _in_batches(function: Callable[..., Any]) -> Callable[..., Any]:
    """Map `function` over a leading axis, compiled for a few sizes only; the result takes and returns NumPy arrays."""
    compiled = jax.jit(jax.vmap(function))

    def of(*arguments: Any) -> Any:
        count = jax.tree.leaves(arguments)[0].shape[0]
        if not count:
            shapes = jax.eval_shape(compiled, *arguments)
            return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
        padded = np.minimum(np.arange(max(64, 1 << (count - 1).bit_length())), count - 1)
        return jax.tree.map(lambda x: np.asarray(x)[:count], compiled(*_rows(arguments, padded)))

    return of


def _wider(x: np.ndarray, width: int, fill: Any, axis: int = 1) -> np.ndarray:
    """Pad `x` along an axis with `fill` to length `width`."""
    return np.pad(x, [(0, width - x.shape[axis] if i == axis else 0) for i in range(x.ndim)], constant_values=fill)


def _rows(states: Any, index: np.ndarray) -> Any:
    return jax.tree.map(lambda x: x[index], states)


def _bytes(states: Any, count: int) -> np.ndarray:
    """Return `count` states as rows of bytes; rows are equal where the states are."""
    flat = [np.ascontiguousarray(_one_zero(x)).reshape(count, -1 if count else 1) for x in jax.tree.leaves(states) if count]
    return np.concatenate([x.view(np.uint8) for x in flat], axis=1) if flat else np.zeros((count, 1), np.uint8)


def _one_zero(x: np.ndarray) -> np.ndarray:
    """Return the same numbers, 0.0 in place of -0.0, which is as large and has other bytes."""
    return x + x.dtype.type(0) if jnp.issubdtype(x.dtype, jnp.floating) else x


def uniform_policies(tree: GameTree) -> tuple[jax.Array, jax.Array]:
    """Return the policies that play each legal action with the same probability."""
    first, second = (jnp.asarray(mask / mask.sum(-1, keepdims=True)) for mask in tree.masks)
    return first, second


class _Level(NamedTuple):
    """One level of the tree, padded to the width W of the widest level: `there` bool `[W]` says which rows are states of the
    level.
    """

    start: jax.Array
    there: jax.Array
    action: jax.Array
    moves: jax.Array
    info: jax.Array
    legal: jax.Array
    reward: jax.Array
    child: jax.Array
    probability: jax.Array


def _over_levels(tree: GameTree, visit: Callable[[Any, _Level], Any], carry: Any, backwards: bool = False) -> Any:
    """Apply `carry = visit(carry, level)` to all levels in a loop, so that the traced program does not grow with their number.

    In `level.child`, the end of a game is the last entry of `_per_state`, which always stays 0.
    """
    width = int(tree.size.max())
    extra = width - int(tree.size[-1])
    last = len(tree.moves) + extra
    tables = (tree.moves, tree.info, tree.legal, tree.reward, np.where(tree.child < 0, last, tree.child), tree.probability)
    padded = [jnp.asarray(np.pad(x, [(0, extra)] + [(0, 0)] * (x.ndim - 1))) for x in tables]

    def body(carry: Any, here: tuple[jax.Array, ...]) -> tuple[Any, None]:
        start, size, action = here
        moves, info, legal, reward, child, probability = (jax.lax.dynamic_slice_in_dim(x, start, width) for x in padded)
        there = jnp.arange(width) < size
        moves, legal = moves & there[:, None], legal & there[:, None]
        return visit(carry, _Level(start, there, action, moves, info, legal, reward, child, probability)), None

    levels = tuple(jnp.asarray(x) for x in (tree.start, tree.size, tree.action))
    return jax.lax.scan(body, carry, levels, reverse=backwards)[0]


def _per_state(tree: GameTree) -> jax.Array:
    """Return zeros for all states, for the padding of the last level, and for the end of a game."""
    return jnp.zeros(len(tree.moves) + int(tree.size.max() - tree.size[-1]) + 1)


def _of(level: _Level, x: jax.Array) -> jax.Array:
    """Return the level's entries of an array from `_per_state`, `[W]`; 0 in rows that are padding."""
    return jnp.where(level.there, jax.lax.dynamic_slice_in_dim(x, level.start, len(level.there)), 0.0)


def _put(level: _Level, x: jax.Array, here: jax.Array) -> jax.Array:
    """Return `x` with the level's entries replaced by `here`, `[W]`."""
    before = jax.lax.dynamic_slice_in_dim(x, level.start, len(level.there))
    return jax.lax.dynamic_update_slice_in_dim(x, jnp.where(level.there, here, before), level.start, 0)


def _taken(level: _Level, policies: Policies, player: int) -> jax.Array:
    """Return the probability of a player's part in each joint action, `[W, J]`; 1 where it is not to move."""
    probability = policies[player][level.info[:, player]][:, level.action[:, player]]
    return jnp.where(level.moves[:, player, None], probability, 1.0) * level.legal


def _after(level: _Level, values: jax.Array, player: int) -> jax.Array:
    """Return a player's reward plus the value of the next state, for each joint action `[W, J]`."""
    return level.reward[..., player] + values[level.child]


def game_values(tree: GameTree, policies: Policies) -> jax.Array:
    """Return the expected return of both players, `[2]`."""

    def visit(values: jax.Array, level: _Level) -> jax.Array:
        chosen = _taken(level, policies, 0) * _taken(level, policies, 1) * level.probability
        return jnp.stack([_put(level, x, jnp.sum(chosen * _after(level, x, p), -1)) for p, x in enumerate(values)])

    values = _over_levels(tree, visit, jnp.stack([_per_state(tree)] * 2), backwards=True)
    return jnp.sum(tree.chance * values[:, : len(tree.chance)], -1)


def best_response(tree: GameTree, policies: Policies, player: int) -> tuple[jax.Array, jax.Array]:
    """Return a player's best response to the other's policy.

    Returns:
        The expected return [] of the best response, and its policy `[I_p, A]`, one-hot.
    """
    other = 1 - player

    def down(reach: jax.Array, level: _Level) -> jax.Array:
        return reach.at[level.child].add(_of(level, reach)[:, None] * _taken(level, policies, other) * level.probability)

    reach = _over_levels(tree, down, _per_state(tree).at[: len(tree.chance)].set(tree.chance))
    count, actions = tree.masks[player].shape

    def up(carry: tuple[jax.Array, jax.Array], level: _Level) -> tuple[jax.Array, jax.Array]:
        best, values = carry
        weighted = _taken(level, policies, other) * level.probability * _after(level, values, player)
        # The value of each action of the player, averaged over the other player's actions: [W, A]. Chance states are not read.
        outcome = jnp.zeros((len(weighted), actions), weighted.dtype).at[:, level.action[:, player]].add(weighted)
        moves, info = level.moves[:, player], level.info[:, player]
        reached = jnp.where(moves, _of(level, reach), 0.0)[:, None]
        gains = jnp.zeros((count, actions), outcome.dtype).at[info].add(reached * outcome)
        choice = jnp.argmax(jnp.where(tree.masks[player], gains, -jnp.inf), -1)
        here = jnp.zeros(count, bool).at[info].max(moves)
        best = jnp.where(here[:, None], jax.nn.one_hot(choice, actions), best)
        chosen = jnp.where(moves, outcome[jnp.arange(len(outcome)), choice[info]], jnp.sum(weighted, -1))
        return best, _put(level, values, chosen)

    best, values = _over_levels(tree, up, (jnp.zeros((count, actions)), _per_state(tree)), backwards=True)
    return jnp.sum(tree.chance * values[: len(tree.chance)]), best


def nash_conv(tree: GameTree, policies: Policies) -> jax.Array:
    """Return the sum of what each player would gain by a best response to the other's policy, []; 0 in an equilibrium."""
    responses = [best_response(tree, policies, player)[0] for player in range(2)]
    return sum(responses, jnp.zeros(())) - jnp.sum(game_values(tree, policies))


def exploitability(tree: GameTree, policies: Policies) -> jax.Array:
    """Return the gain of a best response, averaged over both players, []: half of `nash_conv`."""
    return 0.5 * nash_conv(tree, policies)


def mixed_policies(tree: GameTree, policies: Policies, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return, for each player, the one policy that plays like a mixture, of which a member is drawn before each game.

    In an information set, a member counts by its weight times the probability that its own actions lead there (Kuhn, 1953).

    Args:
        tree: the tree of a game.
        policies: for each player, the policies of the K members, `[K, I_p, A]`.
        weights: weights of the members, `[K]`, which add up to 1.

    Raises:
        ConfigError: states were merged, so that a player's earlier actions are unknown.
    """
    if tree.merged:
        raise ConfigError("a mixture needs the path to each state, but several paths lead to some states of this tree")

    def own_reach(player: int, policy: jax.Array) -> jax.Array:
        def down(carry: tuple[jax.Array, jax.Array], level: _Level) -> tuple[jax.Array, jax.Array]:
            there, reach = carry
            here = _of(level, reach)
            there = there.at[level.info[:, player]].max(jnp.where(level.moves[:, player], here, 0.0))
            return there, reach.at[level.child].max(here[:, None] * _taken(level, [policy, policy], player))

        start = (jnp.zeros(len(tree.masks[player])), _per_state(tree).at[: len(tree.chance)].set(1.0))
        return _over_levels(tree, down, start)[0]

    mixed = []
    for player in range(2):
        reach = jax.vmap(lambda policy, player=player: own_reach(player, policy))(policies[player]) * weights[:, None]
        total = jnp.sum(reach, 0)
        average = jnp.einsum("ki,kia->ia", reach, policies[player]) / jnp.maximum(total, 1e-30)[:, None]
        legal = tree.masks[player] / tree.masks[player].sum(-1, keepdims=True)
        mixed.append(jnp.where(total[:, None] > 0, average, legal))
    return mixed[0], mixed[1]
