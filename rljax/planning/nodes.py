"""Nodes of a search tree: positions of a game and, where chance decides a step, chance nodes between them.

Where chance has a part in a step (`Game.chance`), the tree has a chance node between the position before and those after it. Its
children are the outcomes, and its value is the mean over its visits, which follow the probabilities: an action is valued by its
expectation. A step with a certain outcome leads straight to the next position, so games without chance have none of this.

These nodes are made for `mctx.search` and `mctx.gumbel_muzero_policy` (Danihelka et al., 2022). Stochastic MuZero (Antonoglou et
al., 2022; `mctx.stochastic_muzero_policy`) puts a chance node after every action and needs a value of it from a network. Here
a new chance node is valued by one of its outcomes, so each simulation evaluates one position of the game, and steps without
chance cost no node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mctx

from rljax.core.environments.environment import tree_where
from rljax.core.games.chance import num_outcomes
from rljax.core.games.game import Game, outcome_at, side_rewards

ILLEGAL = -1e9
"""Logit of an illegal action."""

GOLDEN = 2654435769
"""2^32 divided by the golden ratio: its multiples, modulo 2^32, are spread evenly."""

Evaluation = Callable[[jax.Array, Any, Any, jax.Array], tuple[jax.Array, jax.Array]]
"""Evaluation of one state in which the game is not over: `(key, state, obs [...], mask bool [A]) -> (logits f32 [A], value f32
[])`. `obs` and `mask` are those of the player to move; the logits are its prior policy, and the value its expected return from
here on.
"""


class OpenStep(NamedTuple):
    """Chance at a node of the search.

    Attributes:
        open: whether the node is a chance node, bool [].
        action: action whose outcome is open, i32 [].
        start: start of the sequence in which the node's outcomes are visited, u32 [].
    """

    open: jax.Array
    action: jax.Array
    start: jax.Array


class Node(NamedTuple):
    """A node of the tree.

    Attributes:
        state: state of the game; of a chance node, the state before the step.
        over: whether the game was over before it, bool [].
        player: the player to move, i32 []; of a chance node, the player who moved.
        step: the step whose outcome is open; None if the game has no chance.
    """

    state: Any
    over: jax.Array
    player: jax.Array
    step: OpenStep | None


class Nodes(NamedTuple):
    """Functions with which mctx searches a game of A actions and C outcomes; C is 0 if the game has no chance.

    A node has A + C edges: a position uses the first A, a chance node the others.

    Attributes:
        root: `(key, state [B, ...]) -> RootFnOutput`.
        recurrent: the recurrent function of mctx.
        choose: `(select, tree, node) -> edge`: what `select(tree, node)` returns in a position; an outcome in a chance node.
        num_actions: A.
    """

    root: Callable[[jax.Array, Any], mctx.RootFnOutput]
    recurrent: Callable[..., tuple[mctx.RecurrentFnOutput, Node]]
    choose: Callable[[Callable[[Any, jax.Array], jax.Array], Any, jax.Array], jax.Array]
    num_actions: int


def search_nodes(game: Game, params: Any, evaluate: Evaluation) -> Nodes:
    """Return the functions with which mctx searches a game.

    A value is that of the player to move, and rewards are those of its side, the mean of its players. The sign flips from one
    state to the next unless the same player (or its team) moves again, since turns do not alternate in all games. The value after
    the end of a game is 0.

    The t-th visit of a chance node takes the outcome at the quantile `start + t / golden ratio`, modulo 1. As `start` is uniform,
    each visit is a draw of the distribution, and together they follow it more closely than independent draws.
    """
    teams = jnp.asarray(game.teams)
    num_actions, outcomes = game.action_space(params).n, num_outcomes(game, params)
    outcomes = 0 if outcomes == 1 else outcomes

    def evaluate_state(key: jax.Array, state: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        moves = game.to_move(state)
        player = jnp.argmax(moves)
        mask = game.action_mask(state, params)[player]
        obs = jax.tree.map(lambda x: x[player], game.observe(state, params))
        logits, value = evaluate(key, state, obs, mask)
        return jnp.pad(jnp.where(mask, logits, ILLEGAL), (0, outcomes), constant_values=ILLEGAL), value, player

    def root(key: jax.Array, state: Any) -> mctx.RootFnOutput:
        batch = jax.tree.leaves(state)[0].shape[0]
        logits, value, player = jax.vmap(evaluate_state)(jax.random.split(key, batch), state)
        false, zero = jnp.zeros(batch, bool), jnp.zeros(batch, jnp.int32)
        step = OpenStep(false, zero, zero.astype(jnp.uint32)) if outcomes else None
        return mctx.RootFnOutput(prior_logits=logits, value=value, embedding=Node(state, false, player, step))

    def follow(key: jax.Array, edge: jax.Array, node: Node) -> tuple[mctx.RecurrentFnOutput, Node]:
        step_key, evaluate_key = jax.random.split(key)
        if node.step is None:
            _, state, reward, ends, _ = game.step_env(step_key, node.state, jnp.full(game.num_players, edge), params)
        else:
            action = jnp.where(node.step.open, node.step.action, edge)
            joint = jnp.full(game.num_players, action)
            probabilities = game.chance(node.state, joint, params)
            start = jax.random.bits(step_key, dtype=jnp.uint32)
            outcome = jnp.where(node.step.open, edge - num_actions, _visited_outcome(probabilities, start, jnp.uint32(0)))
            _, state, reward, ends, _ = game.step_outcome(node.state, joint, outcome, params)
        over = node.over | ends | game.is_truncated(state, params)
        # At the end of a game, evaluate the state before it, since an evaluation needs a player to move; the value is not used.
        state = tree_where(over, node.state, state)
        logits, value, player = evaluate_state(evaluate_key, state)
        same = teams[player] == teams[node.player]
        output = mctx.RecurrentFnOutput(
            reward=jnp.where(node.over, 0.0, side_rewards(game, reward)[node.player]),
            discount=jnp.where(over, 0.0, jnp.where(same, 1.0, -1.0)),
            prior_logits=logits,
            value=jnp.where(over, 0.0, value),
        )
        if node.step is None:
            return output, Node(state, over, player, None)
        closed = OpenStep(jnp.zeros((), bool), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.uint32))
        opens = ~node.step.open & ~node.over & (jnp.max(probabilities) < 1.0)
        undecided = mctx.RecurrentFnOutput(
            reward=jnp.zeros_like(output.reward),
            discount=jnp.ones_like(output.discount),
            prior_logits=jnp.pad(jnp.log(jnp.maximum(probabilities, 1e-30)), (num_actions, 0), constant_values=ILLEGAL),
            value=output.reward + output.discount * output.value,
        )
        chance_node = Node(node.state, node.over, node.player, OpenStep(opens, action, start))
        after = Node(state, over, player, closed)
        return tree_where(opens, (undecided, chance_node), (output, after))

    def recurrent(_: Any, key: jax.Array, edge: jax.Array, node: Node) -> tuple[mctx.RecurrentFnOutput, Node]:
        return jax.vmap(follow)(jax.random.split(key, edge.shape[0]), edge, node)

    def choose(select: Callable[[Any, jax.Array], jax.Array], tree: Any, node: jax.Array) -> jax.Array:
        step = tree.embeddings.step
        if step is None:
            return select(tree, node)
        probabilities = jnp.exp(tree.children_prior_logits[node, num_actions:])
        # The first visit of the sequence was that which made the node.
        visit = 1 + jnp.sum(tree.children_visits[node]).astype(jnp.uint32)
        outcome = num_actions + _visited_outcome(probabilities, step.start[node], visit)
        return jnp.where(step.open[node], outcome, select(tree, node))

    return Nodes(root, recurrent, choose, num_actions)


def _visited_outcome(probabilities: jax.Array, start: jax.Array, visit: jax.Array) -> jax.Array:
    """Return the outcome that a visit of a chance node takes, i32 []."""
    place = start + visit * jnp.uint32(GOLDEN)
    return outcome_at(probabilities, (place >> 8).astype(jnp.float32) * 2.0**-24)


def completed_qvalues(nodes: Nodes) -> Callable[[Any, jax.Array], jax.Array]:
    """Return the `qtransform` for `mctx.gumbel_muzero_policy`: its own in a position; in a chance node the outcome to visit has
    so large a value that the policy takes it."""

    def transform(tree: Any, node: jax.Array) -> jax.Array:
        qvalues = mctx.qtransform_completed_by_mix_value(tree, node)
        step = tree.embeddings.step
        if step is None:
            return qvalues
        edge = nodes.choose(lambda *_: jnp.int32(-1), tree, node)
        forced = jnp.where(jnp.arange(tree.num_actions) == edge, -ILLEGAL, 0.0)
        return jnp.where(step.open[node], forced, qvalues)

    return transform
