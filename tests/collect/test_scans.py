"""Scans with few launches give what `jax.lax.scan` gives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.collect import scans
from rljax.core.operations import scan_sizes

NUM_STEPS, NUM_ENVS = 5, 3


def step(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, Any]:
    carry = carry + x
    odd = jnp.asarray([jnp.nan, -0.0, 1e-40, jnp.inf], jnp.float32)  # bits that arithmetic would not keep
    outputs = {
        "f32": carry[:, None] * odd,
        "i32": -carry.astype(jnp.int32),
        "u32": carry.astype(jnp.uint32) << 31,
        "bool": carry[:, None] > jnp.arange(6.0),
        "matrix": jnp.reshape(carry[:, None] + jnp.arange(6.0), (-1, 2, 3)),
        "picture": jnp.broadcast_to(carry[:, None], (NUM_ENVS, scans.LARGEST + 1)),
        "u8": carry.astype(jnp.uint8),
        "bf16": carry.astype(jnp.bfloat16),
        "none": None,
        "no columns": jnp.zeros((NUM_ENVS, 0)),
    }
    return carry, outputs


def as_bits(tree: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


def arrays_of_loop(scan: Any, step: Any) -> int:
    """The number of arrays that the loop stacks."""
    jaxpr = jax.make_jaxpr(lambda: scan(step, jnp.zeros(NUM_ENVS), jnp.ones(NUM_STEPS)))()
    loop = next(equation for equation in jaxpr.eqns if equation.primitive.name == "scan")
    return len(loop.outvars) - scan_sizes(loop)[1]


def test_a_packed_scan_returns_the_same_bits_in_fewer_arrays() -> None:
    xs = jnp.arange(1.0, NUM_STEPS + 1)
    carry, outputs = jax.jit(lambda: scans.packed_scan(step, jnp.ones(NUM_ENVS), xs))()
    expected_carry, expected = jax.jit(lambda: jax.lax.scan(step, jnp.ones(NUM_ENVS), xs))()
    assert jax.tree.structure(outputs) == jax.tree.structure(expected)
    assert [(x.shape, x.dtype) for x in jax.tree.leaves(outputs)] == [(x.shape, x.dtype) for x in jax.tree.leaves(expected)]
    assert as_bits((carry, outputs)) == as_bits((expected_carry, expected))
    # f32, i32, u32, bool and matrix are one; larger ones and other types stay alone.
    assert arrays_of_loop(jax.lax.scan, step) - arrays_of_loop(scans.packed_scan, step) == 4


@pytest.mark.parametrize(
    ("platform", "length", "long", "steps"),
    [("gpu", 6, 1_000, 2), ("gpu", 5, 1_000, 1), ("gpu", 6, 10, 1), ("cpu", 6, 1_000, 1), ("tpu", 6, 1_000, 1)],
)
def test_a_packed_scan_takes_two_short_steps_a_trip_on_gpus(
    platform: str, length: int, long: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step of these tests has more than ten operations."""
    monkeypatch.setattr(scans, "platform", lambda: platform)
    monkeypatch.setattr(scans, "LONG_STEP", long)
    xs = jnp.arange(1.0, length + 1)
    jaxpr = jax.make_jaxpr(lambda: scans.packed_scan(step, jnp.ones(NUM_ENVS), xs))()
    loop = next(equation for equation in jaxpr.eqns if equation.primitive.name == "scan")
    assert (loop.params["length"], loop.params["unroll"]) == (length, steps)
    found = scans.packed_scan(step, jnp.ones(NUM_ENVS), xs)
    assert as_bits(found) == as_bits(jax.lax.scan(step, jnp.ones(NUM_ENVS), xs))


@pytest.mark.slow
def test_a_packed_scan_under_vmap() -> None:
    xs = jnp.arange(1.0, NUM_STEPS + 1)
    first = jnp.arange(2.0 * NUM_ENVS).reshape(2, NUM_ENVS)
    packed = jax.vmap(lambda x: scans.packed_scan(step, x, xs))(first)
    assert as_bits(packed) == as_bits(jax.vmap(lambda x: jax.lax.scan(step, x, xs))(first))


@pytest.mark.parametrize(
    "outputs",
    [
        lambda carry: carry,
        lambda carry: (carry, carry[:2]),
        lambda carry: (jnp.sum(carry), jnp.max(carry)),
        lambda carry: None,
    ],
    ids=["one array", "arrays of different sizes", "numbers", "nothing"],
)
def test_what_cannot_be_packed_is_left_as_it_is(outputs: Any) -> None:
    def counting(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, Any]:
        return carry + x, outputs(carry)

    xs = jnp.ones(NUM_STEPS)
    packed = scans.packed_scan(counting, jnp.zeros(NUM_ENVS), xs)
    expected = jax.lax.scan(counting, jnp.zeros(NUM_ENVS), xs)
    assert jax.tree.structure(packed) == jax.tree.structure(expected)
    assert as_bits(packed) == as_bits(expected)
    assert arrays_of_loop(scans.packed_scan, counting) == arrays_of_loop(jax.lax.scan, counting)


@pytest.mark.parametrize("platform", ["default", "tpu"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, scans.STEPS_PER_TRIP, 2 * scans.STEPS_PER_TRIP + 3])
def test_a_short_scan_takes_every_step_on_every_platform(
    reverse: bool, length: int, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decayed(total: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = 0.5 * total + x
        return total, total

    xs = jnp.arange(1.0, length + 1)
    expected = jax.lax.scan(decayed, jnp.float32(0), xs, reverse=reverse)
    np.testing.assert_array_equal(scans.short_scan(decayed, jnp.float32(0), xs, reverse=reverse)[1], expected[1])
    # As on an accelerator.
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, **branches: branches[platform](*args))
    last, found = jax.jit(lambda: scans.short_scan(decayed, jnp.float32(0), xs, reverse=reverse))()
    np.testing.assert_allclose(found, expected[1], rtol=1e-6)
    np.testing.assert_allclose(last, expected[0], rtol=1e-6)
