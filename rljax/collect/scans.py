"""Scans with few launches, by which small networks on an accelerator are bound.

Each array that a scan stacks is a launch in every step, and each trip of its loop is one more. Both functions return what
`jax.lax.scan` returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax.core.devices import platform
from rljax.core.operations import count_equations

LARGEST = 64
"""Numbers that one environment may have in a packed array: larger ones are worth a launch, and not worth a copy."""

STEPS_PER_TRIP = 16
"""Steps that `short_scan` takes in a trip on accelerators: more would save little, and take longer to compile."""

TPU_STEPS_PER_TRIP = 4
"""The same on TPUs, whose compiler fuses a step into each of the next one's operations that read it. In games two do (who moves
reads the player's own sum, and all others keep theirs), so its time and memory double with each step of a trip.
"""

ROLLOUT_STEPS_PER_TRIP = 2
"""Steps that `packed_scan` takes in a trip on GPUs: two share the kernels of the loop itself, and the one that writes what steps
return. Four would save little more, and take longer to compile.
"""

LONG_STEP = 1_000
"""Number of operations from which `packed_scan` takes one step in a trip on GPUs, too. CartPole and card games have 100 to 500.
Among the 14,000 of MicroRTS those of the loop do not count, and a second copy would take as long to compile.
"""


def short_scan(step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: Any, reverse: bool = False) -> tuple[Any, Any]:
    """Scan with steps of a few operations on small arrays, such as those of returns: on accelerators, several in each trip.

    On a CPU a trip costs little, and a loop of many steps takes long to compile.
    """

    def scan(unroll: int) -> Callable[[Any, Any], tuple[Any, Any]]:
        return lambda carry, xs: jax.lax.scan(step, carry, xs, reverse=reverse, unroll=unroll)

    result: tuple[Any, Any] = jax.lax.platform_dependent(
        carry, xs, cpu=scan(1), tpu=scan(TPU_STEPS_PER_TRIP), default=scan(STEPS_PER_TRIP)
    )
    return result


def packed_scan(step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: Any) -> tuple[Any, Any]:
    """Scan with the small outputs of a step in one array inside the loop, on GPUs `ROLLOUT_STEPS_PER_TRIP` short steps in a trip.

    Args:
        step: `(carry, x) -> (carry, outputs)`; what is packed are outputs `[N, ...]` of 32 bits or bool, of at most `LARGEST`
            numbers for each of the same first dimension N.
        carry: before the first step.
        xs: tree of arrays `[T, ...]`.
    """
    packed: list[_Packed] = []

    def packing(carry: Any, x: Any) -> tuple[Any, Any]:
        carry, outputs = step(carry, x)
        leaves, structure = jax.tree.flatten(outputs)
        packed[:] = [_Packed(leaves, structure)]
        return carry, packed[0].pack(leaves)

    carry, stacked = jax.lax.scan(packing, carry, xs, unroll=_steps_per_trip(step, carry, xs))
    return carry, packed[0].unpack(*stacked)


def _steps_per_trip(step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: Any) -> int:
    """Return how many steps of a rollout a trip takes: several if they are short and none is left over, which would be compiled
    once more.
    """
    if platform() != "gpu" or len(jax.tree.leaves(xs)[0]) % ROLLOUT_STEPS_PER_TRIP:
        return 1
    first = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), xs)
    return ROLLOUT_STEPS_PER_TRIP if count_equations(step, carry, first) < LONG_STEP else 1


class _Packed:
    """Which leaves `[N, ...]` of a tree are columns of one array `[N, C]`, and their places in it."""

    def __init__(self, leaves: list[jax.Array], structure: Any):
        self.structure = structure
        self.shapes = [x.shape for x in leaves]
        self.dtypes = [x.dtype for x in leaves]
        small = [x for x in leaves if _is_small(x)]
        rows = {x.shape[0] for x in small}
        together = len(small) > 1 and len(rows) == 1
        self.inside = [together and _is_small(x) for x in leaves]

    def pack(self, leaves: list[jax.Array]) -> tuple[jax.Array | None, list[jax.Array]]:
        """Return the packed array, i32 `[N, C]` or None, and the other leaves."""
        columns = [_as_int(x).reshape(x.shape[0], -1) for x, inside in zip(leaves, self.inside, strict=True) if inside]
        others = [x for x, inside in zip(leaves, self.inside, strict=True) if not inside]
        return jnp.concatenate(columns, axis=1) if columns else None, others

    def unpack(self, packed: jax.Array | None, others: list[jax.Array]) -> Any:
        """Undo `pack` of arrays with a leading axis of time."""
        rest, leaves, start = iter(others), [], 0
        for shape, dtype, inside in zip(self.shapes, self.dtypes, self.inside, strict=True):
            if not inside or packed is None:
                leaves.append(next(rest))
                continue
            end = start + math.prod(shape[1:])
            leaves.append(_from_int(packed[:, :, start:end], dtype).reshape(packed.shape[0], *shape))
            start = end
        return jax.tree.unflatten(self.structure, leaves)


def _is_small(x: jax.Array) -> bool:
    of_bits = x.dtype == jnp.bool_ or x.dtype in (jnp.float32, jnp.int32, jnp.uint32)
    return of_bits and x.ndim > 0 and 0 < math.prod(x.shape[1:]) <= LARGEST


def _as_int(x: jax.Array) -> jax.Array:
    return x.astype(jnp.int32) if x.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(x, jnp.int32)


def _from_int(x: jax.Array, dtype: Any) -> jax.Array:
    return x.astype(bool) if dtype == jnp.bool_ else jax.lax.bitcast_convert_type(x, dtype)
