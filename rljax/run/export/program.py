"""A policy's step as a flat list of JAX's primitives, to be written in another language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from rljax.core.agent import Agent
from rljax.core.errors import ConfigError
from rljax.core.operations import scan_sizes
from rljax.run.export.signature import Signature, leaf_names
from rljax.run.export.steps import PolicyStep
from rljax.run.files.checkpoint import named_leaves

CALLS = (
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "remat",
    "checkpoint",
)
"""Primitives whose inner program takes their place."""

IDENTITIES = ("copy", "stop_gradient", "copy_p", "optimization_barrier", "reduce_precision", "sharding_constraint")


class Program(NamedTuple):
    """Equations whose inputs are weights and arguments.

    Attributes:
        equations: equations of `jax.extend.core`, each needed for a result.
        weights: variable and value of each weight, by its name in the state (`params/params/network/actor_0/kernel`).
        constants: values of all other variables that depend on nothing.
        arguments: variables of the arguments' arrays, by name (`obs`, `carry.hidden`, `noise.0`, `mask`).
        results: variables or literals of the results, by name (`action`, `next_carry.hidden`).
        structure: tree of the results: an action, or `(action, carry)`, with names as leaves.
    """

    equations: list[Any]
    weights: dict[str, tuple[Any, np.ndarray]]
    constants: list[tuple[Any, np.ndarray]]
    arguments: dict[str, Any]
    results: dict[str, Any]
    structure: Any

    def __call__(self, *arguments: Any) -> list[Any]:
        """Evaluate the program with JAX."""
        values = dict([*self.weights.values(), *self.constants])
        values |= dict(zip(self.arguments.values(), arguments, strict=True))
        return evaluate(self.equations, values, list(self.results.values()))


def read_program(step: PolicyStep, state: Any) -> Program:
    """Trace a policy's step.

    Raises:
        ConfigError: it draws random numbers by itself, which would be the same ones in every step.
    """
    shapes, structure = jax.tree.flatten(list(step.inputs(key=False).values()))
    named = named_leaves(state)
    tree: Any = jax.tree.structure(state)
    state_shapes = [jax.ShapeDtypeStruct(jnp.shape(x), x.dtype) for _, x in named]
    found: list[Any] = []

    def call(weights: list[Any], arguments: list[Any], bits: Any) -> Any:
        key = jax.random.wrap_key_data(bits, impl="threefry2x32")
        result = step.noised(jax.tree.unflatten(tree, weights), key, jax.tree.unflatten(structure, arguments))
        found[:] = [jax.tree.structure(result), _result_names(step, result)]
        return jax.tree.leaves(result)

    bits = jax.ShapeDtypeStruct((2,), jnp.uint32)
    flat, needed = _flat(call, [state_shapes, shapes, bits])
    equations = flat.jaxpr.eqns
    variables = flat.jaxpr.invars
    if variables[-1] in needed:
        raise ConfigError("it draws random numbers with jax.random: expected rljax.core.keys.draw, whose numbers are arguments")
    result_structure, names = found
    weights = {name: (v, np.asarray(x)) for (name, x), v in zip(named, variables, strict=False) if v in needed}
    return Program(
        [equation for equation in equations if any(x in needed for x in equation.outvars)],
        weights,
        [(v, np.asarray(x)) for v, x in zip(flat.jaxpr.constvars, flat.consts, strict=True) if v in needed],
        dict(zip(step.input_names(), variables[len(named) : -1], strict=True)),
        dict(zip(names, flat.jaxpr.outvars, strict=True)),
        jax.tree.unflatten(result_structure, names),
    )


def _result_names(step: PolicyStep, result: Any) -> list[str]:
    names = step.result_names
    trees = (result,) if len(names) == 1 else result
    return [leaf for name, tree in zip(names, trees, strict=True) for leaf in leaf_names(name, tree)]


def leaves_read(agent: Agent, state: Any, signature: Signature) -> list[str]:
    """Return the names of the state's leaves that the policy reads."""
    named = named_leaves(state)
    tree: Any = jax.tree.structure(state)

    def call(leaves: list[Any]) -> Any:
        inputs = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (signature.obs, signature.mask))
        result = agent.act(jax.tree.unflatten(tree, leaves), inputs[0], None, jax.random.key(0), True, inputs[1])
        return jax.tree.leaves(result)

    flat, needed = _flat(call, [[jax.ShapeDtypeStruct(jnp.shape(x), x.dtype) for _, x in named]])
    return [name for (name, _), variable in zip(named, flat.jaxpr.invars, strict=True) if variable in needed]


def _flat(function: Any, arguments: list[Any]) -> tuple[Any, set[Any]]:
    """Trace a function of trees of shapes; return its program without calls, and the variables that its results depend on."""
    closed = jax.make_jaxpr(function)(*arguments)
    flat = jax.make_jaxpr(lambda *xs: _evaluate_closed(closed, xs))(*jax.tree.leaves(arguments))
    needed = {x for x in flat.jaxpr.outvars if not isinstance(x, Literal)}
    for equation in reversed(flat.jaxpr.eqns):
        if any(x in needed for x in equation.outvars):
            needed |= {x for x in equation.invars if not isinstance(x, Literal)}
    return flat, needed


def _evaluate_closed(closed: Any, arguments: Sequence[Any]) -> list[Any]:
    values = dict(zip([*closed.jaxpr.constvars, *closed.jaxpr.invars], [*closed.consts, *arguments], strict=True))
    return evaluate(closed.jaxpr.eqns, values, closed.jaxpr.outvars)


def evaluate(equations: Sequence[Any], values: dict[Any, Any], results: Sequence[Any]) -> list[Any]:
    """Evaluate equations with what they call inlined: no converter knows the calls of every version of JAX."""
    for equation in equations:
        inputs = [x.val if isinstance(x, Literal) else values[x] for x in equation.invars]
        values |= dict(zip(equation.outvars, _outputs(equation, inputs), strict=True))
    return [x.val if isinstance(x, Literal) else values[x] for x in results]


def _outputs(equation: Any, inputs: list[Any]) -> Sequence[Any]:
    name, params = equation.primitive.name, equation.params
    if name in CALLS:
        inner = params.get("jaxpr", params.get("call_jaxpr", params.get("fun_jaxpr")))
        if not hasattr(inner, "consts"):
            return evaluate(inner.eqns, dict(zip(inner.invars, inputs, strict=True)), inner.outvars)
        return _evaluate_closed(inner, inputs)
    if name in IDENTITIES:
        return inputs
    if name == "scan" and params["length"] == 1:
        constants, carried = scan_sizes(equation)
        whole, sliced = inputs[: constants + carried], inputs[constants + carried :]
        found = _evaluate_closed(params["jaxpr"], [*whole, *(jax.lax.squeeze(x, (0,)) for x in sliced)])
        return [*found[:carried], *(jax.lax.expand_dims(x, (0,)) for x in found[carried:])]
    if name == "stack":
        axis = params["axis"]
        return [jax.lax.concatenate([jax.lax.expand_dims(x, (axis,)) for x in inputs], axis)]
    if name == "pad" and not all(isinstance(n, int) for n in jnp.shape(inputs[0])):
        return [_padded(inputs[0], inputs[1], params["padding_config"])]
    bound = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(params))
    return bound if equation.primitive.multiple_results else [bound]


def _padded(x: Any, value: Any, widths: Sequence[tuple[int, int, int]]) -> Any:
    """Pad by concatenation, since jax2onnx pads no arrays of any batch size; leave cropping and gaps to `jax.lax.pad`."""
    if any(low < 0 or high < 0 or inside for low, high, inside in widths):
        return jax.lax.pad(x, value, widths)
    for axis, (low, high, _) in enumerate(widths):
        blocks = [jnp.broadcast_to(value, (*x.shape[:axis], n, *x.shape[axis + 1 :])) for n in (low, high)]
        x = jax.lax.concatenate([part for part, n in zip((blocks[0], x, blocks[1]), (low, 1, high), strict=True) if n], axis)
    return x
