"""Gradient steps on shuffled minibatches of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from rljax.core.agent import Metrics, stack_metrics
from rljax.core.environment import tree_where
from rljax.core.keys import draw


class _Carry(NamedTuple):
    params: jax.Array
    opt_state: Any
    stopped: jax.Array


def init_optimizer(optimizer: optax.GradientTransformation, params: Any) -> Any:
    """The optimiser's state as `minibatch_steps` keeps it: for the parameters as one flat vector."""
    return optimizer.init(ravel_pytree(params)[0])


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
    stop: Callable[[Metrics], jax.Array] | None = None,
) -> tuple[Any, Any, Metrics]:
    """`num_epochs` passes over a batch of `num_minibatches` gradient steps each, shuffled anew for each pass.

    Parameters and optimiser state are one flat vector throughout: the optimiser is then a few kernels instead of a few per layer.

    Args:
        loss_fn: `(params, minibatch) -> (loss, metrics)`; metrics are f32 scalars.
        optimizer: all of the update but the learning rate.
        params: any tree of arrays.
        opt_state: from `init_optimizer`.
        batch: tree of arrays `[B, ...]`; `num_minibatches` divides B.
        key: random key of the orders.
        num_epochs: passes.
        num_minibatches: minibatches per pass.
        learning_rate: f32 [], the step along the optimiser's direction.
        stop: `metrics -> bool []`; where true, that step and all later ones are not taken.

    Returns:
        `(params, opt_state, metrics)`: metrics are means over the steps taken; `train/grad_norm` is added, and with `stop`
        the number of steps taken, `train/updates`.
    """
    size = jax.tree.leaves(batch)[0].shape[0]
    flat_params, unravel = ravel_pytree(params)
    names: list[str] = []

    def gradient_step(carry: _Carry, minibatch: Any) -> tuple[_Carry, tuple[jax.Array, jax.Array]]:
        (_, metrics), grads = jax.value_and_grad(lambda p: loss_fn(unravel(p), minibatch), has_aux=True)(carry.params)
        metrics = metrics | {"train/grad_norm": optax.tree.norm(grads)}
        names[:] = sorted(metrics)
        directions, opt_state = optimizer.update(grads, carry.opt_state, carry.params)
        params, stopped = carry.params - learning_rate * directions, carry.stopped
        if stop is not None:
            stopped = stopped | stop(metrics)
            params, opt_state = tree_where(stopped, (carry.params, carry.opt_state), (params, opt_state))
        return _Carry(params, opt_state, stopped), (stack_metrics(metrics), 1.0 - stopped)

    def epoch(carry: _Carry, order: jax.Array | None) -> tuple[_Carry, Any]:
        if order is None:
            carry, out = gradient_step(carry, batch)
            return carry, jax.tree.map(lambda x: x[None], out)
        shuffled = jax.tree.map(lambda x: x[order].reshape((num_minibatches, -1, *x.shape[1:])), batch)
        return jax.lax.scan(gradient_step, carry, shuffled)

    orders = None if num_minibatches == 1 else permutations(key, num_epochs, size)
    carry = _Carry(flat_params, opt_state, jnp.zeros((), bool))
    carry, (stacked, taken) = jax.lax.scan(epoch, carry, orders, num_epochs)
    # A step that was not taken may have had a loss that is not finite: 0 times it would still be NaN.
    sums = jnp.sum(jnp.where(taken[..., None] > 0, stacked, 0.0), (0, 1))
    means = dict(zip(names, sums / jnp.maximum(jnp.sum(taken), 1.0), strict=True))
    if stop is not None:
        means["train/updates"] = jnp.sum(taken)
    return unravel(carry.params), carry.opt_state, means


def permutations(key: jax.Array, count: int, size: int) -> jax.Array:
    """`count` independent random orders of `0 .. size - 1`, i32 `[count, size]`, from one draw."""
    return jnp.argsort(draw(jax.random.bits, key, (count, size)), axis=-1)
