"""Priorities of the steps in a replay buffer (Schaul et al., "Prioritized Experience Replay", 2016)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax.collect.replay.buffer import Places, Replay


class Priorities(struct.PyTreeNode):
    """Sampling weights of the steps of a buffer (Schaul et al., 2016), to the power alpha already.

    Two levels of sums instead of a binary tree, for n steps in blocks of about sqrt(n): a draw is two cumulative sums and not a
    chain of log2(n) gathers that wait for each other, which is what costs under vmap and on a GPU. The sum of a block is made
    anew from its leaves where one of these changes, so rounding never builds up as it does in trees that add differences.

    Attributes:
        leaves: f32 `[blocks, rows per block, num_envs]`; 0 for steps that may not be drawn.
        sums: f32 `[blocks]`.
        largest: f32 [], the largest weight so far: that of steps which no learner has looked at yet.
    """

    leaves: jax.Array
    sums: jax.Array
    largest: jax.Array


def init_priorities(capacity: int, num_envs: int) -> Priorities:
    """Weights of an empty buffer."""
    rows = max(1, min(capacity, round((capacity / num_envs) ** 0.5)))
    blocks = -(-capacity // rows)
    return Priorities(jnp.zeros((blocks, rows, num_envs)), jnp.zeros(blocks), jnp.ones(()))


def add_priorities(priorities: Priorities, replay: Replay, count: int, n: int = 1) -> Priorities:
    """Make what `add_rows` wrote drawable, with the largest weight; call it after that, with its result.

    Of windows of n rows the last n - 1 are not whole yet: their turn comes with the rows that complete them.

    Args:
        priorities: of `replay`.
        replay: the buffer after `count` rows were added.
        count: K.
        n: rows in a window.
    """
    per_block = priorities.leaves.shape[1]

    def set_row(age: jax.Array, priorities: Priorities) -> Priorities:
        row = (replay.position - 1 - age) % replay.capacity
        weight = jnp.where((age >= n - 1) & (age < replay.size), priorities.largest, 0.0)
        # Read, changed and written as a block: a sum read from the leaves after the write would have them copied (`read_apart`).
        block = priorities.leaves[row // per_block].at[row % per_block].set(weight)
        return priorities.replace(
            leaves=jax.lax.dynamic_update_index_in_dim(priorities.leaves, block, row // per_block, 0),
            sums=priorities.sums.at[row // per_block].set(jnp.sum(block)),
        )

    # From the newest row (age 0) to the oldest that is now whole; those that were whole before keep their weights.
    return jax.lax.fori_loop(0, min(count + n - 1, replay.capacity), set_row, priorities)


def sample_priorities(priorities: Priorities, uniform: jax.Array) -> tuple[Places, jax.Array]:
    """Draw B steps in proportion to their weights, one from each of B equal parts of the total (Schaul et al., 2016, app. B.2.1).

    Args:
        priorities: with at least one weight above 0.
        uniform: f32 `[B]` in [0, 1).

    Returns:
        `(places, probability f32 [B])`.
    """
    count = uniform.shape[0]
    _, per_block, num_envs = priorities.leaves.shape
    cumulative = jnp.cumsum(priorities.sums)
    total = cumulative[-1]
    target = _below((jnp.arange(count) + uniform) / count * total, total)
    block = jnp.minimum(jnp.searchsorted(cumulative, target, side="right"), cumulative.shape[0] - 1)
    leaves = priorities.leaves[block].reshape(count, -1)
    within = jnp.cumsum(leaves, 1)
    target = _below(target - (cumulative[block] - priorities.sums[block]), within[:, -1])
    leaf = jnp.minimum(jnp.sum(within <= target[:, None], 1), leaves.shape[1] - 1)
    probability = jnp.take_along_axis(leaves, leaf[:, None], 1)[:, 0] / jnp.maximum(total, jnp.finfo(jnp.float32).tiny)
    return Places(block * per_block + leaf // num_envs, leaf % num_envs), probability


def _below(x: jax.Array, limit: jax.Array) -> jax.Array:
    """`x` within [0, limit): rounding must not point past the last weight, nor at one that is 0."""
    return jnp.clip(x, 0.0, limit * (1.0 - 2.0**-22))


def update_priorities(priorities: Priorities, places: Places, weight: jax.Array) -> Priorities:
    """Set the weights of sampled steps: `weight` f32 `[B]`, to the power alpha already."""
    per_block = priorities.leaves.shape[1]
    block = places.row // per_block
    leaves = priorities.leaves.at[block, places.row % per_block, places.env].set(weight)
    sums = priorities.sums.at[block].set(jnp.sum(leaves[block], (1, 2)))
    return Priorities(leaves, sums, jnp.maximum(priorities.largest, jnp.max(weight)))


def importance_weights(probability: jax.Array, num_steps: jax.Array, beta: float | jax.Array) -> jax.Array:
    """Return weights that undo the bias of a prioritised sample: `(num_steps * probability)^-beta` over their maximum (eq. 3.4).

    Args:
        probability: f32 `[B]`, from `sample_priorities`.
        num_steps: how many steps could have been drawn, from `num_windows`.
        beta: 1 undoes all of it.
    """
    weight = (jnp.maximum(probability, jnp.finfo(jnp.float32).tiny) * num_steps) ** -jnp.asarray(beta, jnp.float32)
    return weight / jnp.max(weight)
