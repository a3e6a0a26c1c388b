"""Programs of nothing but the matrix products of another program; in small networks, products take most of the time."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr

from rljax.core.operations import programs_of, trace_needed
from rljax.run.bench.timing import Program


class Product(NamedTuple):
    """A product of two arrays: their shapes and dtypes, and XLA's numbers of the axes that are summed over and batched."""

    left: jax.ShapeDtypeStruct
    right: jax.ShapeDtypeStruct
    axes: Any


def products_alone(program: Program) -> Program:
    """Return a program that computes the matrix products of another, each as often, on numbers of its own.

    It shows how far a program is from what its products take one after the other; activations, optimiser and environments come
    on top. A product of a loop whose number of trips is known only at run time counts once. Of the branches of a condition the
    one with more counts, so also the gradient steps that DQN leaves out before `learning_starts`.
    """

    def alone(key: jax.Array) -> list[jax.Array]:
        found = products_of(trace_needed(program, key)[0])
        return [_repeated(product, times, key) for product, times in found.items()]

    return alone


def products_of(jaxpr: Jaxpr) -> Counter[Product]:
    """Return how often one run of a traced program computes each product."""
    found: Counter[Product] = Counter()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            left, right = map(_shape, equation.invars)
            found[Product(left, right, equation.params["dimension_numbers"])] += 1
            continue
        inner = [products_of(x) for x in programs_of(equation.params)]
        if inner and equation.primitive.name == "cond":
            inner = [max(inner, key=lambda counts: counts.total())]
        for counts in inner:
            for product, times in counts.items():
                found[product] += times * equation.params.get("length", 1)
    return found


def _shape(operand: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(operand.aval.shape, operand.aval.dtype)


def _repeated(product: Product, times: int, key: jax.Array) -> jax.Array:
    """Compute a product `times` times, and return the last operand."""
    left, right = (jax.random.normal(key, x.shape, x.dtype) for x in (product.left, product.right))
    small, large, swapped = (left, right, True) if left.size < right.size else (right, left, False)

    def once(small: jax.Array, _: None) -> tuple[jax.Array, None]:
        operands = (small, large) if swapped else (large, small)
        result = jax.lax.dot_general(*operands, dimension_numbers=product.axes)
        # The next product depends on this one; else XLA would compute it once. The smaller operand changes, which costs least.
        return small + jnp.asarray(1e-30, small.dtype) * result.ravel()[0].astype(small.dtype), None

    return jax.lax.scan(once, small, length=times)[0]
