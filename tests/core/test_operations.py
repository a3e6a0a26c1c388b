"""Counts of a function's arithmetic, against those worked out by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.core.operations import PER_RANDOM_NUMBER, constant_result, count_equations, count_operations, scan_sizes

A, B = jnp.zeros((3, 4)), jnp.zeros((4, 5))


def looped(x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda x, _: (x * 2.0 + 1.0, None), x, None, length=7)[0]


def chosen(x: jax.Array) -> jax.Array:
    return jax.lax.cond(x.sum() > 0, lambda x: x * 2.0, lambda x: x * 2.0 + 1.0 - x, x)


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        (lambda a, b: a @ b, (A, B), 2 * 3 * 4 * 5),
        (lambda a: a.sum(), (A,), 12),
        (lambda a: a.reshape(4, 3).T.astype(jnp.int32), (A,), 0),
        (looped, (A,), 7 * 2 * 12),
        (jax.jit(looped), (A,), 7 * 2 * 12),
        (chosen, (A,), 12 + 1 + 3 * 12),
        (jax.vmap(lambda a: jnp.where(a[0] > 0, a, 1.0)), (A,), 3 * 1 + 3 * 4),
        (lambda a: a.at[0].set(1.0), (A,), 4),
        (
            lambda x, k: jax.lax.conv_general_dilated(x, k, (1, 1), "VALID"),
            (jnp.zeros((1, 2, 6, 6)), jnp.zeros((7, 2, 3, 3))),
            2 * (7 * 4 * 4) * (2 * 3 * 3),
        ),
    ],
)  # fmt: skip
def test_operations_are_those_of_a_count_by_hand(function: Any, arguments: tuple[Any, ...], expected: int) -> None:
    assert count_operations(function, *arguments) == pytest.approx(expected, abs=8)  # comparisons and indices


def test_random_numbers_and_unknown_trips_are_counted_once() -> None:
    key = jax.random.key(0)
    assert count_operations(lambda k: jax.random.bits(k, (1000,)), key) == pytest.approx(1000 * PER_RANDOM_NUMBER, rel=0.05)
    trips = lambda n: jax.lax.while_loop(lambda x: x[0, 0] < n, lambda x: x + 1.0, A)  # noqa: E731
    assert count_operations(trips, 10.0) == pytest.approx(12, abs=4)
    shape = jax.ShapeDtypeStruct((3, 4), jnp.float32)
    assert count_operations(lambda a: a + 1.0, shape) == 12


@pytest.mark.parametrize("length", [1, 7])
def test_a_scan_has_constants_what_is_carried_and_slices(length: int) -> None:
    def scanned(factor: jax.Array, other: jax.Array, carry: Any, rows: jax.Array) -> Any:
        def step(carry: Any, row: jax.Array) -> Any:
            number, matrix = carry
            return (number + row.sum() * factor, matrix * other), (number, row)

        return jax.lax.scan(step, carry, rows)

    program = jax.make_jaxpr(scanned)(2.0, A, (0.0, A), jnp.ones((length, 3)))
    (equation,) = (x for x in program.eqns if x.primitive.name == "scan")
    assert scan_sizes(equation) == (2, 2)
    without = jax.make_jaxpr(lambda x: jax.lax.scan(lambda x, _: (x + 1.0, None), x, None, length=length))(A)
    assert scan_sizes(without.eqns[0]) == (0, 1)


def test_a_constant_result_is_known_under_a_trace() -> None:
    given, found = jnp.array([1.0, 2.0]), []

    @jax.jit
    def traced(x: jax.Array) -> jax.Array:
        functions = (lambda y: given * jnp.arange(y.size), lambda y: given + y, lambda _: given + x)
        found.extend(constant_result(f, x) for f in functions)
        return x

    traced(jnp.zeros(2))
    constant, of_argument, of_closure = found
    np.testing.assert_array_equal(constant, [0.0, 2.0])
    assert of_argument is of_closure is None


def test_equations_count_once_whatever_their_size_and_however_often_a_loop_runs() -> None:
    def function(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda total, row: (total + 2.0 * row, None), jnp.zeros(3), x)[0] + 1.0

    counts = {count_equations(function, jnp.ones((length, 3))) for length in (2, 50)}
    assert len(counts) == 1
    assert 3 <= counts.pop() <= 5  # with the zeros
