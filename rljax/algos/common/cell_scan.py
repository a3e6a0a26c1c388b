"""A recurrent cell along trajectories, with a gradient that takes one product for all steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax.collect.rollout import reset_carry
from rljax.collect.streams import of_seat, with_seat
from rljax.core.devices import platform
from rljax.nn.latent.scan import carries_before


def scan_cell(
    cell: Any,
    apply: Callable[..., Any],
    params: Any,
    carry: Any,
    gates: jax.Array,
    begins: jax.Array,
    seat: jax.Array | None = None,
) -> tuple[Any, Any]:
    """Scan a cell over time, with a gradient that is the scan's and takes less: that of the hidden kernel is one product for all
    steps, while the gradient of a scan adds up one product of each step. There is no forward-mode derivative (`jax.jvp`).

    Args:
        cell: a cell of a class in `rljax.nn.modules.recurrent.IN_PARTS`.
        apply: `(params, name, *arguments)`: the method of this name, of the cell with its parameters.
        params: parameters of the policy.
        carry: before the first step, `[N, ...]`, or `[N, P, ...]` of P seats.
        gates: the input's part of the gates, `[T, N, G]`.
        begins: as in `policy_unroll`.
        seat: as in `policy_unroll`.

    Returns:
        The carry after the last step, as that before the first, and that of who took each step after it, `[T, N, ...]`.
    """
    on_cpu = platform() == "cpu"
    # An accelerator takes a kernel in each step to keep an array: what follows from the carries is computed for all steps later.
    kept = on_cpu or seat is not None

    def scanned(params: Any, carry: Any, gates: Any, begins: Any, seat: Any) -> tuple[Any, tuple[Any, Any, Any]]:
        def step(carry: Any, inputs: Any) -> tuple[Any, tuple[Any, Any, Any]]:
            gates, begins, seat = inputs
            carry = reset_carry(carry, begins)
            before = of_seat(carry, seat)
            after, saved = cell.step(before, gates, apply(params, "hidden", before))
            return with_seat(carry, seat, after), (after, before if kept else None, saved if on_cpu else None)

        return jax.lax.scan(step, carry, (cell.split(gates), begins, seat))

    @jax.custom_vjp
    def run(params: Any, carry: Any, gates: Any, begins: Any, seat: Any) -> tuple[Any, Any]:
        last, (carries, _, _) = scanned(params, carry, gates, begins, seat)
        return last, carries

    def forward(params: Any, carry: Any, gates: Any, begins: Any, seat: Any) -> tuple[Any, Any]:
        last, (carries, before, saved) = scanned(params, carry, gates, begins, seat)
        if not kept:
            before = reset_carry(carries_before(carry, carries), begins)
        if not on_cpu:
            _, saved = cell.step(before, cell.split(gates), apply(params, "hidden", before))
        return (last, carries), (params, begins, seat, before, saved)

    def backward(residuals: Any, d: Any) -> Any:
        params, begins, seat, before, saved = residuals
        d_last, d_carries = d
        kernel = apply(params, "transposed")

        def step(d_carry: Any, inputs: Any) -> tuple[Any, Any]:
            d_after, saved, begins, seat = inputs
            d_after = jax.tree.map(jnp.add, d_after, of_seat(d_carry, seat))
            d_before, _, d_hidden = cell.gradient(saved, d_after)
            d_carry = with_seat(d_carry, seat, jax.tree.map(jnp.add, d_before, cell.back(kernel, d_hidden)))
            return reset_carry(d_carry, begins), d_after

        d_carry, d_after = jax.lax.scan(step, d_last, (d_carries, saved, begins, seat), reverse=True)
        _, d_gates, d_hidden = cell.gradient(saved, d_after)
        (d_params,) = jax.vjp(lambda params: apply(params, "hidden", before), params)[1](d_hidden)
        return d_params, d_carry, d_gates, None, None

    run.defvjp(forward, backward)
    result: tuple[Any, Any] = run(params, carry, gates, begins, seat)
    return result
