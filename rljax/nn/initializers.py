"""Orthogonal initialisation without LAPACK.

`jax.nn.initializers.orthogonal` calls LAPACK's QR, and two of those at once (a vmap over seeds) deadlock jaxlib's thread pool on
machines with few cores. Gram-Schmidt needs sums of products only, so it batches like everything else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rljax.core.keys import draw

Initializer = Callable[[jax.Array, Sequence[int], Any], jax.Array]


def orthonormal_columns(matrix: jax.Array) -> jax.Array:
    """Gram-Schmidt with re-orthogonalisation of matrices `[..., rows, cols]`, rows >= cols; zero columns stay zero.

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
        # Columns from j on are still zero in q, so projecting on all of q is projecting on those before j.
        column = jax.lax.fori_loop(0, 2, lambda _, c: project_and_scale(c, q), matrix[..., j])
        return q.at[..., j].set(column)

    return jax.lax.fori_loop(0, matrix.shape[-1], add_column, jnp.zeros_like(matrix))


def orthogonal_kernels(key: jax.Array, shapes: Sequence[tuple[int, int]], gains: Sequence[float]) -> list[jax.Array]:
    """(Semi-)orthogonal kernels `[fan_in, fan_out]` f32, each times its gain (Saxe et al., 2013).

    The shorter side's vectors are orthonormal: the columns where there are at least as many inputs as outputs, else the
    rows. All kernels come from one draw and one loop, padded to one shape: a random draw costs as much compile time as a
    layer's gradient, so one per layer would dominate that of a small agent.
    """
    tall = [(max(shape), min(shape)) for shape in shapes]
    rows, cols = max(r for r, _ in tall), max(c for _, c in tall)
    inside = jnp.stack([(jnp.arange(rows) < r)[:, None] & (jnp.arange(cols) < c) for r, c in tall])
    frames = orthonormal_columns(jnp.where(inside, draw(jax.random.normal, key, inside.shape), 0.0))
    kernels = []
    for frame, (r, c), shape, gain in zip(frames, tall, shapes, gains, strict=True):
        q = gain * frame[:r, :c]
        kernels.append(q if shape[0] >= shape[1] else q.T)
    return kernels


def orthogonal(gain: float = 1.0) -> Initializer:
    """Initialiser of one (semi-)orthogonal kernel `[..., fan_in, fan_out]`; leading axes (of convolutions) count as inputs."""

    def init(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        (kernel,) = orthogonal_kernels(key, [(math.prod(shape[:-1]), shape[-1])], [gain])
        return kernel.reshape(shape).astype(dtype)

    return init
