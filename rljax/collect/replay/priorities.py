"""Priorities of the steps in a replay buffer (Schaul et al., "Prioritized Experience Replay", 2016)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax.collect.replay.buffer import Places, Replay


class Priorities(struct.PyTreeNode):
    """Sampling weights of the steps in a buffer: priorities to the power alpha (Schaul et al., 2016).

    Instead of a binary tree there are two levels of sums, over blocks of about sqrt(n) of the n steps. A draw then takes two
    cumulative sums instead of a chain of log2(n) dependent gathers, which are slow under vmap and on a GPU. The sum of a block is
    recomputed from its leaves when one of them changes, so rounding errors do not accumulate, as they do in trees that add
    differences.

    Attributes:
        leaves: f32 `[blocks, rows per block, num_envs]`; 0 for steps that may not be drawn.
        sums: f32 `[blocks]`.
        largest: largest weight so far, f32 []; new steps get this weight.
    """

    leaves: jax.Array
    sums: jax.Array
    largest: jax.Array


def init_priorities(capacity: int, num_envs: int) -> Priorities:
    """Return the weights of an empty buffer."""
    rows = max(1, min(capacity, round((capacity / num_envs) ** 0.5)))
    blocks = -(-capacity // rows)
    return Priorities(jnp.zeros((blocks, rows, num_envs)), jnp.zeros(blocks), jnp.ones(()))


def add_priorities(priorities: Priorities, replay: Replay, count: int, n: int = 1) -> Priorities:
    """Give new rows the largest weight, so that they can be drawn; call it after `add_rows`, with its result.

    With windows of n rows, the windows that start in the last n - 1 rows are incomplete; they get a weight with the rows that
    complete them.

    Args:
        priorities: weights of `replay`.
        replay: the buffer after `count` rows were added.
        count: number of added rows.
        n: number of rows in a window.
    """
    per_block = priorities.leaves.shape[1]

    def set_row(age: jax.Array, priorities: Priorities) -> Priorities:
        row = (replay.position - 1 - age) % replay.capacity
        weight = jnp.where((age >= n - 1) & (age < replay.size), priorities.largest, 0.0)
        # Read, change and write whole blocks: reading the leaves after the write, for their sum, would copy them (see
        # `read_apart`).
        block = priorities.leaves[row // per_block].at[row % per_block].set(weight)
        return priorities.replace(
            leaves=jax.lax.dynamic_update_index_in_dim(priorities.leaves, block, row // per_block, 0),
            sums=priorities.sums.at[row // per_block].set(jnp.sum(block)),
        )

    # From the newest row (age 0) to the oldest window that is now complete; windows that were complete keep their weights.
    return jax.lax.fori_loop(0, min(count + n - 1, replay.capacity), set_row, priorities)


def sample_priorities(priorities: Priorities, uniform: jax.Array) -> tuple[Places, jax.Array]:
    """Draw B steps in proportion to their weights, one from each of B equal parts of the total (Schaul et al., 2016, app. B.2.1).

    A step without a weight is drawn only if all of B draws fall on such steps by rounding errors.

    Args:
        priorities: weights, of which at least one is above 0.
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
    # Sums that are computed in parallel rise or fall by rounding errors where there is no weight. A draw that fell there becomes
    # the likeliest one of the others, which takes no second pass over the sums.
    drawn = jnp.where(probability > 0, jnp.arange(count), jnp.argmax(probability))
    block, leaf, probability = block[drawn], leaf[drawn], probability[drawn]
    return Places(block * per_block + leaf // num_envs, leaf % num_envs), probability


def _below(x: jax.Array, limit: jax.Array) -> jax.Array:
    """Clip `x` to [0, limit), so that rounding neither points past the last weight nor at a weight of 0."""
    return jnp.clip(x, 0.0, limit * (1.0 - 2.0**-22))


def update_priorities(priorities: Priorities, places: Places, weight: jax.Array) -> Priorities:
    """Set the weights of sampled steps: `weight` f32 `[B]` is the priority to the power alpha."""
    per_block = priorities.leaves.shape[1]
    block = places.row // per_block
    leaves = priorities.leaves.at[block, places.row % per_block, places.env].set(weight)
    sums = priorities.sums.at[block].set(jnp.sum(leaves[block], (1, 2)))
    return Priorities(leaves, sums, jnp.maximum(priorities.largest, jnp.max(weight)))


def importance_weights(probability: jax.Array, num_steps: jax.Array, beta: float | jax.Array) -> jax.Array:
    """Return the weights that correct the bias of prioritised sampling: `(num_steps * probability)^-beta`, divided by their
    maximum (eq. 3.4).

    Args:
        probability: f32 `[B]`, from `sample_priorities`.
        num_steps: number of steps that could have been drawn, from `num_windows`.
        beta: exponent; 1 corrects the bias fully.
    """
    weight = (jnp.maximum(probability, jnp.finfo(jnp.float32).tiny) * num_steps) ** -jnp.asarray(beta, jnp.float32)
    return weight / jnp.max(weight)
