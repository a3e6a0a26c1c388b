"""A scan over time whose gradient of weights takes one product for all steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Step = Callable[[Any, Any], tuple[Any, Any]]


def carries_before(first: Any, after: Any) -> Any:
    """Return the carry before each step, `[T, ...]`, from that before the first, `[...]`, and those after each: a step starts
    where the one before it ended.
    """
    return jax.tree.map(lambda x, y: jnp.concatenate([x[None], y[:-1]]), first, after)


def scan_carries(prepare: Callable[[Any], Step], weights: Any, carry: Any, xs: Any, unroll: int = 1) -> tuple[Any, Any]:
    """Scan a step over time, with a gradient that is the scan's and takes less: that of the weights is taken for all steps at
    once, and a step keeps its carry alone, while the gradient of a scan adds up the weights' gradients of each step. There is no
    forward-mode derivative (`jax.jvp`).

    Args:
        prepare: `weights -> step`, with `step(carry, x) -> (carry, y)`, which must also take arrays `[T, B, ...]` of all steps.
            What is done to weights once, such as rounding, belongs in `prepare`. Neither may close over arrays with gradients.
        weights: tree of arrays.
        carry: before the first step, arrays `[B, ...]`.
        xs: inputs of each step, arrays `[T, B, ...]`.
        unroll: number of steps that are compiled as one iteration of a loop.

    Returns:
        The carry after each step and y, arrays `[T, B, ...]`.
    """

    @jax.custom_vjp
    def run(weights: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
        step = prepare(weights)

        def advance(carry: Any, x: Any) -> tuple[Any, tuple[Any, Any]]:
            carry, y = step(carry, x)
            return carry, (carry, y)

        results: tuple[Any, Any] = jax.lax.scan(advance, carry, xs, unroll=unroll)[1]
        return results

    def forward(weights: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
        carries, ys = run(weights, carry, xs)
        return (carries, ys), (weights, carries_before(carry, carries), xs)

    def backward(residuals: Any, d: Any) -> Any:
        weights, before, xs = residuals
        d_carries, d_ys = d
        step = prepare(weights)

        def back(d_carry: Any, inputs: Any) -> tuple[Any, Any]:
            d_after, d_y, before, x = inputs
            d_after = jax.tree.map(jnp.add, d_after, d_carry)
            (d_before,) = jax.vjp(lambda carry: step(carry, x), before)[1]((d_after, d_y))
            return d_before, d_after

        nothing = jax.tree.map(lambda x: jnp.zeros_like(x[0]), before)
        d_carry, d_after = jax.lax.scan(back, nothing, (d_carries, d_ys, before, xs), reverse=True, unroll=unroll)
        d_weights, d_xs = jax.vjp(lambda weights, xs: prepare(weights)(before, xs), weights, xs)[1]((d_after, d_ys))
        return d_weights, d_carry, d_xs

    run.defvjp(forward, backward)
    result: tuple[Any, Any] = run(weights, carry, xs)
    return result
