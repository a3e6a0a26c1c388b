"""DreamerV3's optimiser (Hafner et al., 2025): LaProp after a clip of each tensor's gradient, with a warmed-up learning rate."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class LaPropState(NamedTuple):
    """Updates so far, i32 [], and the running means of normalised gradients and of squares, f32 trees like the parameters."""

    count: jax.Array  # type: ignore[assignment]  # the name optax gives it, over the method of tuples
    mu: Any
    nu: Any


def laprop(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-20) -> optax.GradientTransformation:
    """LaProp (Ziyin et al., 2020): the momentum of gradients that are normalised first, where Adam normalises the
    momentum. A gradient's part of it is thus never scaled by what came later.

    nu_t = b2 nu_{t-1} + (1 - b2) g_t^2,  n_t = g_t / (sqrt(nu_t / (1 - b2^t)) + eps)
    mu_t = b1 mu_{t-1} + (1 - b1) n_t,  direction = mu_t / (1 - b1^t)

    There is no learning rate in it: a step is `param - learning_rate * direction`.

    Args:
        b1: decay of the momentum, in [0, 1).
        b2: decay of the mean square, in [0, 1).
        eps: keeps a gradient that was always 0 at a direction of 0. DreamerV3's value is far below any other.

    Returns:
        A transformation of gradients into directions, per number, of any tree of parameters. Its state is a `LaPropState`.
    """

    def init(params: Any) -> LaPropState:
        def zeros() -> Any:
            return jax.tree.map(lambda p: jnp.zeros(jnp.shape(p), jnp.float32), params)

        return LaPropState(jnp.zeros((), jnp.int32), zeros(), zeros())

    def update(grads: Any, state: LaPropState, params: Any = None) -> tuple[Any, LaPropState]:
        del params
        count = state.count + 1
        nu = optax.tree.update_moment_per_elem_norm(grads, state.nu, b2, 2)
        mean_square = optax.tree.bias_correction(nu, b2, count)
        normalized = jax.tree.map(lambda g, n: g / (jnp.sqrt(n) + eps), grads, mean_square)
        mu = optax.tree.update_moment(normalized, state.mu, b1, 1)
        return optax.tree.bias_correction(mu, b1, count), LaPropState(count, mu, nu)

    return optax.GradientTransformation(init, update)


def adaptive_grad_clip(clip: float = 0.3, pmin: float = 1e-3) -> optax.GradientTransformation:
    """Scales each tensor's gradient down to a norm of at most `clip * max(pmin, |param|)` (Brock et al., 2021, section 4).

    Norms are those of whole tensors, as in DreamerV3; the paper's (`optax.adaptive_grad_clip`) are those of each output unit.

    Args:
        clip: the largest ratio of a gradient's norm to its parameter's.
        pmin: the norm that a parameter counts as where its own is less, so that zeros can move.

    Returns:
        A transformation without state, of any tree of parameters; its update needs them.

    Raises:
        ValueError: the update was not given the parameters.
    """

    def update(grads: Any, state: optax.EmptyState, params: Any = None) -> tuple[Any, optax.EmptyState]:
        if params is None:
            raise ValueError("adaptive_grad_clip compares gradients with parameters: call update(grads, state, params)")
        norms, limits = norms_of(grads), jax.tree.map(lambda norm: clip * jnp.maximum(pmin, norm), norms_of(params))
        return jax.tree.map(lambda g, norm, limit: g / jnp.maximum(1.0, norm / limit), grads, norms, limits), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def norms_of(tree: Any) -> Any:
    """Return the Euclidean norm of each tensor. Those of as many numbers have theirs taken together, in one kernel and not in one
    each."""
    leaves, structure = jax.tree.flatten(tree)
    norms: dict[int, jax.Array] = {}
    for size in sorted({leaf.size for leaf in leaves}):
        same = [i for i, leaf in enumerate(leaves) if leaf.size == size]
        rows = jnp.stack([jnp.ravel(leaves[i]) for i in same])
        norms |= dict(zip(same, jnp.sqrt(jnp.sum(jnp.square(rows), axis=1)), strict=True))
    return jax.tree.unflatten(structure, [norms[i] for i in range(len(leaves))])


def warmed_up(learning_rate: float | jax.Array, updates: jax.Array, warmup: int) -> jax.Array:
    """The learning rate after so many updates (i32 []): from 0 in the first, in a line, to the whole rate after `warmup` updates.

    A warm-up of 0 is none: the whole rate from the first update on.
    """
    rate = jnp.asarray(learning_rate, jnp.float32)
    return rate * jnp.minimum(1.0, updates / warmup) if warmup else rate
