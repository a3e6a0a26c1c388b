"""Count the arithmetic of a function, without compiling or running it: the same number on every machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jax.interpreters import partial_eval

FREE = ("broadcast_in_dim", "convert_element_type", "copy", "copy_p", "reshape", "squeeze", "stop_gradient", "transpose")
"""Operations that a compiler does beside others."""

RANDOM = ("random_bits", "random_fold_in", "random_split", "random_wrap", "threefry2x32")
PER_RANDOM_NUMBER = 60
"""Operations for 32 random bits by Threefry: 20 rounds of an addition, a rotation and a combination."""


def count_operations(function: Callable[..., Any], *arguments: Any) -> int:
    """Return about how many numbers a function computes; shapes (`jax.ShapeDtypeStruct`) are enough as arguments.

    A product of matrices counts its multiplications and additions. A loop whose number of trips is known only at run time counts
    as one trip, and of the branches of a condition the longest.
    """
    return _of_jaxpr(jax.make_jaxpr(function)(*arguments).jaxpr)


def count_equations(function: Callable[..., Any], *arguments: Any) -> int:
    """Return the number of operations in a function's program, however large their arrays are; those of a loop count once."""
    return _equations(jax.make_jaxpr(function)(*arguments).jaxpr)


def _equations(jaxpr: Jaxpr) -> int:
    inner = [[_equations(x) for x in programs_of(equation.params)] for equation in jaxpr.eqns]
    return sum(sum(counts) if counts else 1 for counts in inner)


def _of_jaxpr(jaxpr: Jaxpr) -> int:
    return sum(_of_equation(equation) for equation in jaxpr.eqns)


def _of_equation(equation: Any) -> int:
    name, inputs, outputs = equation.primitive.name, equation.invars, equation.outvars
    inner = [_of_jaxpr(x) for x in programs_of(equation.params)]
    if inner:
        return max(inner) if name == "cond" else sum(inner) * equation.params.get("length", 1)
    if name in FREE:
        return 0
    size = sum(math.prod(x.aval.shape) for x in outputs)
    if name in RANDOM:
        return PER_RANDOM_NUMBER * size
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return 2 * size * math.prod(inputs[0].aval.shape[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel, spec = inputs[1].aval.shape, equation.params["dimension_numbers"].rhs_spec
        return 2 * size * math.prod(kernel) // kernel[spec[0]]
    if name.startswith(("reduce_", "arg", "cum")):
        return sum(math.prod(x.aval.shape) for x in inputs)
    if name == "dynamic_update_slice":
        return math.prod(inputs[1].aval.shape)
    if name.startswith("scatter"):
        return math.prod(inputs[2].aval.shape)
    if name == "sort":
        length = max(inputs[0].aval.shape[equation.params["dimension"]], 2)
        return size * math.ceil(math.log2(length))
    return size


def trace_needed(function: Callable[..., Any], *arguments: Any) -> tuple[Jaxpr, list[bool]]:
    """Return the traced function without what its results do not need, and which of its inputs (leaves of the arguments) they
    need. Shapes are enough as arguments.
    """
    return _needed(jax.make_jaxpr(function)(*arguments).jaxpr)


def _needed(traced: Jaxpr) -> tuple[Jaxpr, list[bool]]:
    needed: tuple[Jaxpr, list[bool]] = partial_eval.dce_jaxpr(traced, [True] * len(traced.outvars))
    return needed


def constant_result(function: Callable[..., jax.Array], *arguments: Any) -> np.ndarray | None:
    """Return the array that a function returns whatever its arguments are, also under a trace; None if it depends on them, or may
    depend on other traced values. Shapes are enough as arguments.
    """
    traced = jax.make_jaxpr(function)(*arguments)
    program, needed = _needed(traced.jaxpr)
    if any(needed) or any(isinstance(x, jax.core.Tracer) for x in traced.consts):
        return None
    with jax.ensure_compile_time_eval():
        return np.asarray(jaxpr_as_fun(ClosedJaxpr(program, traced.consts))()[0])


CALLS = ("_callback", "debug_print")
"""How the names of operations end that call a function of the host."""


def asks_host(program: Jaxpr) -> bool:
    """Return whether a traced program calls a function of the host while it runs."""
    return any(
        equation.primitive.name.endswith(CALLS) or any(map(asks_host, programs_of(equation.params))) for equation in program.eqns
    )


def programs_of(params: dict[str, Any]) -> list[Jaxpr]:
    """Return the programs among the parameters of an operation, such as the body of a loop."""
    flat = [y for x in params.values() for y in (x if isinstance(x, (tuple, list)) else (x,))]
    return [x.jaxpr if isinstance(x, ClosedJaxpr) else x for x in flat if isinstance(x, (ClosedJaxpr, Jaxpr))]


def scan_sizes(equation: Any) -> tuple[int, int]:
    """Return how many of a scan's inputs are constants, and how many arrays it carries; slices and their stack come last.

    Told from the shapes, since JAX 0.11 renamed the parameters that say so: only what is sliced or stacked has an axis more
    outside of the scan than in its body.
    """
    body = equation.params["jaxpr"].jaxpr
    sliced, stacked = (
        sum(outer.aval.ndim > inner.aval.ndim for outer, inner in zip(there, here, strict=True))
        for there, here in ((equation.invars, body.invars), (equation.outvars, body.outvars))
    )
    carried = len(equation.outvars) - stacked
    return len(equation.invars) - sliced - carried, carried
