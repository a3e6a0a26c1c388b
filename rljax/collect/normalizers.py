"""Running statistics of observations and returns, merged over all environments of a batch; the running range of returns."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from rljax.collect.scans import short_scan

MAX_BATCHES = 2**16
"""A batch has a weight of at least 1 / 65,536 in running statistics. With smaller weights the increments would be lost to the
rounding of f32, and the statistics would stop or drift. In longer runs, the statistics are those of about the last 65,536
batches, with exponentially decreasing weights; of fewer where the mean is large beside the deviations from it (`LEAST_MOVE`).
"""

LEAST_MOVE = 32 * 2.0**-24
"""A single number that is a standard deviation away moves the mean by at least this share of it, 32 times the rounding error of
f32. Smaller moves are rounded away and larger ones are not, so that the mean of skewed data would drift. Means of n numbers are
less skewed: an n-th of this is enough. The price is that statistics of data far from 0 are noisier.
"""

MOST_SHARE = 0.1
"""Largest weight that `LEAST_MOVE` gives a batch; with a larger one, statistics would be of fewer than ten batches."""


class RunningStatistics(struct.PyTreeNode):
    """Running mean and variance, each with the structure of one observation.

    `count` f32 [] is the number of observations, at most `MAX_BATCHES` times those of one batch.
    """

    mean: Any
    var: Any
    count: jax.Array


def init_statistics(example: Any) -> RunningStatistics:
    """Return the statistics before any observation (mean 0, variance 1), in f32, with the structure of `example`."""
    zeros = jax.tree.map(lambda x: jnp.zeros(jnp.shape(x), jnp.float32), example)
    return RunningStatistics(zeros, jax.tree.map(jnp.ones_like, zeros), jnp.zeros(()))


def update_statistics(statistics: RunningStatistics, batch: Any) -> RunningStatistics:
    """Merge a batch `[*batch axes, *shape]` into the statistics (Chan, Golub and LeVeque, 1983, eq. 2.1), population variance.

    The statistics are updated by increments, because sums over all observations would lose a small batch to rounding. A batch
    with numbers so large that their squares overflow leaves the statistics of these entries as they were.
    """
    shape = jax.tree.leaves(statistics.mean)[0].shape
    leaf = jax.tree.leaves(batch)[0]
    axes = tuple(range(leaf.ndim - len(shape)))
    n = float(leaf.size // max(1, jax.tree.leaves(statistics.mean)[0].size))
    total = jnp.minimum(statistics.count + n, n * MAX_BATCHES)
    weight = n / total

    def update(mean: jax.Array, var: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        batch_mean = jnp.mean(x, axes, dtype=jnp.float32)
        batch_var = jnp.mean(jnp.square(jnp.asarray(x, jnp.float32) - batch_mean), axes)
        known = var
        # The initial variance, 1, has no weight; an increment from it would round a small variance.
        var = jnp.where(statistics.count > 0, var, batch_var)
        apart = batch_mean - mean

        def merged_var(share: jax.Array) -> jax.Array:
            return var + share * (batch_var - var + (1.0 - share) * jnp.square(apart))

        # The variance includes this batch, because that of the first ones may be 0 by chance.
        deviation = jnp.sqrt(jax.lax.stop_gradient(merged_var(weight)))  # a square root has no derivative at 0
        least = LEAST_MOVE / n * jnp.abs(jax.lax.stop_gradient(mean)) / jnp.maximum(deviation, 1e-30)
        share = jnp.maximum(weight, jnp.minimum(least, MOST_SHARE))
        # Squares of finite numbers have overflowed (an infinite one gives NaN): the variance would be infinite for good.
        merged = merged_var(share)
        overflows = jnp.isinf(batch_var) | jnp.isinf(merged)
        return jnp.where(overflows, mean, mean + share * apart), jnp.where(overflows, known, merged)

    both = jax.tree.map(update, statistics.mean, statistics.var, batch)
    mean, var = jax.tree.transpose(jax.tree.structure(statistics.mean), jax.tree.structure((0, 0)), both)
    return RunningStatistics(mean, var, total)


def normalize(statistics: RunningStatistics, x: Any, clip: float = 10.0) -> Any:
    """Standardise `x [..., *shape]` and clip it to `[-clip, clip]`; bool arrays (masks) are returned as they are."""

    def standardized(mean: jax.Array, var: jax.Array, y: jax.Array) -> jax.Array:
        return y if y.dtype == jnp.bool_ else jnp.clip((y - mean) / jnp.sqrt(var + 1e-8), -clip, clip)

    return jax.tree.map(standardized, statistics.mean, statistics.var, x)


class RewardStatistics(NamedTuple):
    """Running variance of the discounted return, and each environment's return so far, f32 `[N]`."""

    statistics: RunningStatistics
    discounted_return: jax.Array


def init_reward_statistics(num_envs: int) -> RewardStatistics:
    return RewardStatistics(init_statistics(jnp.zeros(())), jnp.zeros(num_envs))


def normalize_rewards(
    rewards: RewardStatistics, reward: jax.Array, done: jax.Array, gamma: float | jax.Array
) -> tuple[RewardStatistics, jax.Array]:
    """Divide rewards `[T, N]` by the standard deviation of the discounted return.

    The statistics include this batch, so that even the first rewards are scaled. `done` bool `[T, N]` restarts an environment's
    return (Engstrom et al., "Implementation matters in deep policy gradients", 2020).
    """
    rewards = update_reward_statistics(rewards, reward, done, gamma)
    return rewards, scale_rewards(rewards, reward)


def update_reward_statistics(
    rewards: RewardStatistics, reward: jax.Array, done: jax.Array, gamma: float | jax.Array
) -> RewardStatistics:
    """Update the statistics with rewards `[T, N]`; `done` bool `[T, N]` restarts an environment's return."""

    def accumulate(total: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        reward_t, done_t = step
        total = gamma * total + reward_t
        return jnp.where(done_t, 0.0, total), total

    last, returns = short_scan(accumulate, rewards.discounted_return, (reward, done))
    return RewardStatistics(update_statistics(rewards.statistics, returns), last)


def scale_rewards(rewards: RewardStatistics, reward: jax.Array, clip: float = 10.0) -> jax.Array:
    """Divide rewards of any shape by the standard deviation of the discounted return.

    Rewards are not centred, which would change the task. They are clipped to `[-clip, clip]`, in case returns hardly vary.
    """
    return jnp.clip(reward / return_deviation(rewards), -clip, clip)


def return_deviation(rewards: RewardStatistics) -> jax.Array:
    """Return the standard deviation of the discounted return, by which rewards are divided and values are to be multiplied."""
    return jnp.sqrt(rewards.statistics.var + 1e-8)


class ReturnNormalizer(struct.PyTreeNode):
    """Running 5th and 95th percentile of returns, f32 [], whose distance scales advantages (DreamerV3, Hafner et al., 2025).

    A range depends less on outliers than a standard deviation. It starts at 0 (`init_return_normalizer`) and is not debiased.
    """

    low: jax.Array
    high: jax.Array

    def update(self, returns: jax.Array, decay: float = 0.99) -> ReturnNormalizer:
        """Move the percentiles towards those of returns of any shape, f32 `[...]`, by `1 - decay`; gradients are stopped."""
        ordered = jnp.sort(jax.lax.stop_gradient(returns).astype(jnp.float32), axis=None)
        low, high = (
            decay * old + (1.0 - decay) * _sorted_quantile(ordered, q) for old, q in ((self.low, 0.05), (self.high, 0.95))
        )
        return ReturnNormalizer(low, high)

    def scale(self, limit: float = 1.0) -> jax.Array:
        """Return the divisor of advantages, f32 []: the range, but at least `limit`, so that small returns are not scaled up."""
        return jnp.maximum(limit, self.high - self.low)


def init_return_normalizer() -> ReturnNormalizer:
    return ReturnNormalizer(jnp.zeros(()), jnp.zeros(()))


def _sorted_quantile(ordered: jax.Array, q: float) -> jax.Array:
    """Return the quantile q of sorted numbers `[n]`, interpolated linearly as in `numpy.quantile`; its indices are static."""
    position = q * (ordered.size - 1)
    below = math.floor(position)
    above = min(below + 1, ordered.size - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
