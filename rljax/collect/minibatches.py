"""Gradient steps, and those on shuffled minibatches of a batch.

Callers have trees of parameters. Inside, parameters and the optimiser's state are one flat vector each: an optimiser is then a
few kernels and not a few per layer. Loops over gradient steps carry vectors too (`flatten`); where one is made into a tree and
that into a vector again, XLA drops both.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from rljax.core.agent import Metrics, stack_metrics
from rljax.core.devices import over_devices, platform
from rljax.core.environments.environment import tree_where
from rljax.core.keys import draw

S = TypeVar("S", bound=Any)

STEPS_PER_TRIP = 8
"""Gradient steps in a trip of a loop on GPUs, where each trip takes kernels to count itself, cut out its samples and write its
metrics: more steps would save little, and take longer to compile.
"""


class _Carry(NamedTuple):
    params: jax.Array
    opt_state: Any
    stopped: jax.Array


def init_optimizer(optimizer: optax.GradientTransformation, params: Any) -> Any:
    """Return the optimiser's initial state as gradient steps keep it: for the parameters as one flat vector."""
    return optimizer.init(ravel(params))


def ravel(tree: Any) -> jax.Array:
    """Return all leaves of a tree as one flat vector; return a flat vector as it is."""
    return ravel_pytree(tree)[0]


def unraveler(shapes: Any) -> Callable[[jax.Array], Any]:
    """Return the function that turns a raveled tree back into a tree of these shapes."""
    leaves, structure = jax.tree.flatten(shapes)
    ends = list(itertools.accumulate(math.prod(x.shape) for x in leaves))

    def unravel(flat: jax.Array) -> Any:
        # One split instead of a slice for each leaf: its gradient is a concatenation, while that of slices is a sum of padded
        # vectors.
        parts = jnp.split(flat, ends[:-1])
        return jax.tree.unflatten(
            structure, [part.reshape(x.shape).astype(x.dtype) for part, x in zip(parts, leaves, strict=True)]
        )

    return unravel


def flatten(state: S, fields: Sequence[str]) -> S:
    """Replace the trees in these fields of a state by a flat vector each, for a loop to carry."""
    return state.replace(**{name: ravel(getattr(state, name)) for name in fields})


def unflatten(flat: S, like: S, fields: Sequence[str]) -> S:
    """Undo `flatten`; `like` has the trees."""
    return flat.replace(**{name: unraveler(getattr(like, name))(getattr(flat, name)) for name in fields})


def steps_per_trip(count: int) -> int:
    """Return how many of `count` gradient steps a trip of their loop takes."""
    return min(count, STEPS_PER_TRIP) if platform() == "gpu" else 1


def gradient_step(
    loss_fn: Callable[[Any], tuple[jax.Array, Metrics]],
    optimizer: optax.GradientTransformation,
    params: Any,
    opt_state: Any,
    learning_rate: Any,
) -> tuple[Any, Any, Metrics]:
    """Take one step along the optimiser's direction.

    Args:
        loss_fn: `params -> (loss, metrics)`; metrics are f32 scalars.
        optimizer: all of the update but the learning rate.
        params: any tree of arrays.
        opt_state: from `init_optimizer`.
        learning_rate: f32 [], or a tree of these that begins as `params` does.

    Returns:
        `(params, opt_state, metrics)`, the metrics with `train/grad_norm` added.
    """
    flat, unravel = ravel(params), unraveler(params)
    if not isinstance(learning_rate, jax.Array):
        rates = jax.tree.broadcast(learning_rate, params)
        learning_rate = ravel(jax.tree.map(lambda rate, p: jnp.full(p.shape, rate), rates, params))
    (_, metrics), grads = jax.value_and_grad(lambda flat: loss_fn(unravel(flat)), has_aux=True)(flat)
    metrics = metrics | {"train/grad_norm": optax.tree.norm(grads)}
    directions, opt_state = optimizer.update(grads, opt_state, flat)
    return unravel(flat - learning_rate * directions), opt_state, metrics


def minibatch_steps(
    loss_fn: Callable[[Any, Any], tuple[jax.Array, Metrics]],
    optimizer: optax.GradientTransformation,
    params: Any,
    opt_state: Any,
    batch: Any,
    key: jax.Array,
    *,
    num_epochs: int,
    num_minibatches: int,
    learning_rate: jax.Array,
    prepare: Callable[[Any], Any] | None = None,
    stop: Callable[[Metrics], jax.Array] | None = None,
    with_stopped: Collection[str] = (),
) -> tuple[Any, Any, Metrics]:
    """Take `num_epochs` passes of `num_minibatches` gradient steps each over a batch, shuffled anew for each pass.

    Args:
        loss_fn: `(params, minibatch) -> (loss, metrics)`; metrics are f32 scalars.
        optimizer: optax transformation without the learning rate.
        params: any tree of arrays.
        opt_state: from `init_optimizer`.
        batch: tree of arrays `[B, ...]`; `num_minibatches` must divide B.
        key: random key of the shuffles.
        num_epochs: number of passes.
        num_minibatches: number of minibatches per pass.
        learning_rate: step size, f32 [].
        prepare: `minibatch -> minibatch`, applied to all minibatches of a pass at once before its first step. What does not
            depend on the parameters is cheaper here than in the loss, above all sums over several devices.
        stop: `metrics -> bool []`; where true, that step and all later ones are not taken.
        with_stopped: names of metrics that say how far the steps before have moved the parameters. Their means include the first
            step that was not taken, the only one that sees how far the last one moved them.

    Returns:
        `(params, opt_state, metrics)`: metrics are means over the steps taken; `train/grad_norm` is added, and with `stop`
        the number of steps taken, `train/updates`.
    """
    batch = jax.tree.map(jnp.asarray, batch)  # steps of a dataset are NumPy's, which no traced number can index
    size = jax.tree.leaves(batch)[0].shape[0]
    unravel = unraveler(params)
    names: list[str] = []

    def minibatch_step(carry: _Carry, minibatch: Any) -> tuple[_Carry, tuple[jax.Array, jax.Array | None]]:
        params, opt_state, metrics = gradient_step(
            lambda params: loss_fn(params, minibatch), optimizer, unravel(carry.params), carry.opt_state, learning_rate
        )
        params = ravel(params)
        names[:] = sorted(metrics)
        if stop is None:
            return _Carry(params, opt_state, carry.stopped), (stack_metrics(metrics), None)
        stopped = carry.stopped | stop(metrics)
        params, opt_state = tree_where(stopped, (carry.params, carry.opt_state), (params, opt_state))
        return _Carry(params, opt_state, stopped), (stack_metrics(metrics), 1.0 - stopped)

    def epoch(carry: _Carry, order: jax.Array | None) -> tuple[_Carry, Any]:
        if order is None:
            carry, out = minibatch_step(carry, over_devices(batch if prepare is None else prepare(batch)))
            return carry, jax.tree.map(lambda x: x[None], out)
        shuffled = jax.tree.map(lambda x: x[order].reshape((num_minibatches, -1, *x.shape[1:])), batch)
        shuffled = over_devices(shuffled, 1)
        minibatches = shuffled if prepare is None else jax.vmap(prepare)(shuffled)
        return jax.lax.scan(minibatch_step, carry, minibatches, unroll=steps_per_trip(num_minibatches))

    orders = None if num_minibatches == 1 else permutations(key, num_epochs, size)
    carry = _Carry(ravel(params), opt_state, jnp.zeros((), bool))
    carry, (stacked, taken) = jax.lax.scan(epoch, carry, orders, num_epochs)
    params, opt_state = unravel(carry.params), carry.opt_state
    if taken is None:
        return params, opt_state, dict(zip(names, jnp.mean(stacked, (0, 1)), strict=True))
    updates = jnp.sum(taken)
    stopped = jnp.arange(taken.size).reshape(taken.shape) == updates
    of_policy = np.array([name in with_stopped for name in names])
    # The loss of a step that is not taken may not be finite, and 0 times it would be NaN.
    counted = (taken > 0)[..., None] | (stopped[..., None] & of_policy & jnp.isfinite(stacked))
    sums = jnp.sum(jnp.where(counted, stacked, 0.0), (0, 1))
    means = dict(zip(names, sums / jnp.maximum(jnp.sum(counted, (0, 1)), 1), strict=True))
    return params, opt_state, means | {"train/updates": updates}


def permutations(key: jax.Array, count: int, size: int) -> jax.Array:
    """Return `count` independent random permutations of `0 .. size - 1`, i32 `[count, size]`, from one draw."""
    return sorted_places(draw(jax.random.bits, key, (count, size)))


def sorted_places(numbers: jax.Array) -> jax.Array:
    """Return what `jnp.argsort` does for numbers u32 `[..., N]`: i32 `[..., N]`.

    On the CPU, XLA sorts pairs by a function that it calls for each comparison, and single numbers two to three times as fast. So
    there a number carries its place in its lowest bits, and two stable sorts take the lower and then the upper bits of the
    numbers, as a radix sort does.
    """
    size = numbers.shape[-1]
    bits = max((size - 1).bit_length(), 1)
    if platform() != "cpu" or bits > 16:
        return jnp.argsort(numbers, axis=-1)
    place, mask = jnp.arange(size, dtype=jnp.uint32), jnp.uint32((1 << bits) - 1)

    def places(digits: jax.Array) -> jax.Array:
        return jnp.sort(digits << bits | place, axis=-1) & mask

    def take(x: jax.Array, places: jax.Array) -> jax.Array:
        return jnp.take_along_axis(x, places.astype(jnp.int32), axis=-1)

    by_lower = places(numbers)  # the shift drops the upper bits
    return take(by_lower, places(take(numbers, by_lower) >> (32 - bits))).astype(jnp.int32)
