"""Initialisers: orthogonal without LAPACK, and truncated normals for all parameters of a module at once.

`jax.nn.initializers.orthogonal` calls LAPACK's QR, and two of those at once (a vmap over seeds) deadlock jaxlib's thread pool on
machines with few cores. Gram-Schmidt takes only sums of products, so it can be batched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rljax.core.keys import draw_flat

Initializer = Callable[[jax.Array, Sequence[int], Any], jax.Array]


def orthonormal_columns(matrix: jax.Array) -> jax.Array:
    """Orthonormalise the columns of matrices `[..., rows, cols]`, rows >= cols, by Gram-Schmidt, twice; zero columns stay zero.

    For a matrix of standard normals the result is uniform over the orthonormal frames (it is the Q of the QR
    decomposition whose R has a positive diagonal; Mezzadri, "How to generate random matrices", 2007). The second pass
    brings the error from the matrix's condition number down to rounding (Giraud et al., "twice is enough", 2005).
    """

    def project_and_scale(column: jax.Array, q: jax.Array) -> jax.Array:
        along = jnp.sum(q * column[..., None], axis=-2, keepdims=True)
        column = column - jnp.sum(q * along, axis=-1)
        norm = jnp.sqrt(jnp.sum(jnp.square(column), axis=-1, keepdims=True))
        return column / jnp.where(norm > 0, norm, 1.0)

    def add_column(j: jax.Array, q: jax.Array) -> jax.Array:
        # Columns from j on are still zero in q, so projecting on all of q projects on the columns before j.
        column = jax.lax.fori_loop(0, 2, lambda _, c: project_and_scale(c, q), matrix[..., j])
        return q.at[..., j].set(column)

    return jax.lax.fori_loop(0, matrix.shape[-1], add_column, jnp.zeros_like(matrix))


def orthogonal_kernels(key: jax.Array, shapes: Sequence[tuple[int, int]], gains: Sequence[float]) -> list[jax.Array]:
    """Return (semi-)orthogonal kernels `[fan_in, fan_out]`, f32, each times its gain (Saxe et al., 2013).

    The columns are orthonormal if there are at least as many inputs as outputs, else the rows. All kernels come from one draw and
    one loop, padded to one shape: a random draw costs as much compile time as a layer's gradient, so one per layer would dominate
    that of a small agent.
    """
    tall = [(max(shape), min(shape)) for shape in shapes]
    rows, cols = max(r for r, _ in tall), max(c for _, c in tall)
    inside = jnp.stack([(jnp.arange(rows) < r)[:, None] & (jnp.arange(cols) < c) for r, c in tall])
    frames = orthonormal_columns(jnp.where(inside, draw_flat(jax.random.normal, key, inside.shape), 0.0))
    kernels = []
    for frame, (r, c), shape, gain in zip(frames, tall, shapes, gains, strict=True):
        q = gain * frame[:r, :c]
        kernels.append(q if shape[0] >= shape[1] else q.T)
    return kernels


def orthogonal(gain: float = 1.0) -> Initializer:
    """Return the initialiser of one (semi-)orthogonal kernel `[..., fan_in, fan_out]`; leading axes (of convolutions) count as
    inputs.
    """

    def init(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        (kernel,) = orthogonal_kernels(key, [(math.prod(shape[:-1]), shape[-1])], [gain])
        return kernel.reshape(shape).astype(dtype)

    return init


def truncated_normal_params(key: jax.Array, shapes: Any, gains: Mapping[str, float] | None = None) -> Any:
    """Return initial parameters as in DreamerV3 (Hafner et al., 2025): truncated normal kernels, biases 0, scales of norms 1.

    A kernel is gain / sqrt(fan_in) times a normal that is truncated at +-2 and rescaled to standard deviation 1. Its fan_in is
    the product of all axes except the last: for a convolution `[height, width, in, out]` the number of inputs of one output, for
    a block-diagonal kernel `[blocks, in, out]` the inputs of all blocks. All kernels come from one draw, as in
    `orthogonal_kernels`.

    Args:
        key: a typed key.
        shapes: tree of arrays or shapes, whose paths end with "kernel", "bias" or "scale" (as in "norm/scale", "gate_kernel").
            For a module, pass `jax.eval_shape(module.init, key, *inputs)["params"]`, which runs none of its own initialisers.
        gains: gain of kernels by path or by the beginning of a path ("policy/head/kernel" or "policy/head"); the longest match
            counts, and the default is 1. With gain 0 a kernel is 0.

    Returns:
        f32 arrays of these shapes, in the same structure.

    Raises:
        ValueError: a path has another end, or a gain matches no kernel.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    gains = gains or {}
    kernel_gains = {path: _gain_of(path, gains) for path in paths if path.endswith("kernel")}
    for prefix in gains:
        if not any(_is_under(path, prefix) for path in kernel_gains):
            raise ValueError(f"gains[{prefix!r}]: there is no such kernel, the kernels are {sorted(kernel_gains)}")
    drawn = [math.prod(leaf.shape) if kernel_gains.get(path) else 0 for path, (_, leaf) in zip(paths, leaves, strict=True)]
    numbers = draw_flat(lambda key, shape: jax.random.truncated_normal(key, -2.0, 2.0, shape), key, (sum(drawn),))
    params, start = [], 0
    for path, (_, leaf), size in zip(paths, leaves, drawn, strict=True):
        if size:
            # 1.1368 is one over the standard deviation of a normal truncated at +-2.
            factor = 1.1368 * kernel_gains[path] / math.sqrt(math.prod(leaf.shape[:-1]))
            params.append(factor * numbers[start : start + size].reshape(leaf.shape))
        elif path.endswith("scale"):
            params.append(jnp.ones(leaf.shape, jnp.float32))
        elif path.endswith(("kernel", "bias")):
            params.append(jnp.zeros(leaf.shape, jnp.float32))
        else:
            raise ValueError(f"{path}: expected a parameter whose name ends with kernel, bias or scale")
        start += size
    return jax.tree.unflatten(structure, params)


def _is_under(path: str, prefix: str) -> bool:
    return f"{path}/".startswith(f"{prefix}/")


def _gain_of(path: str, gains: Mapping[str, float]) -> float:
    """Return the gain of the longest prefix of the path, 1 without any."""
    return gains[max(found, key=len)] if (found := [p for p in gains if _is_under(path, p)]) else 1.0
