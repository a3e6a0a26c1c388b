"""LaProp and the clip of each tensor against plain Python and golden numbers."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax.algos.dreamer.laprop import LaPropState, adaptive_grad_clip, laprop, norms_of, warmed_up


def directions_in_plain_python(grads: list[float], b1: float = 0.9, b2: float = 0.999) -> list[float]:
    """As weighted means over all gradients so far, in doubles: no recursion, no correction of a bias."""

    def mean(values: list[float], decay: float) -> float:
        weights = [decay ** (len(values) - 1 - i) for i in range(len(values))]
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    normalized: list[float] = []
    directions = []
    for t, grad in enumerate(grads):
        root = math.sqrt(mean([g * g for g in grads[: t + 1]], b2))
        normalized.append(grad / root if root else 0.0)
        directions.append(mean(normalized, b1))
    return directions


def run(optimizer: optax.GradientTransformation, grads: Any, params: Any) -> tuple[Any, Any]:
    """`(directions, state)` of gradients with a leading axis of time."""

    def step(state: Any, grad: Any) -> tuple[Any, Any]:
        direction, state = optimizer.update(grad, state, params)
        return state, direction

    state, directions = jax.lax.scan(step, optimizer.init(params), grads)
    return directions, state


def test_laprop_of_the_specification() -> None:
    golden = [1.0, 0.140763, 0.228341]
    np.testing.assert_allclose(directions_in_plain_python([2.0, -1.0, 0.5]), golden, atol=1e-6)
    directions, state = run(laprop(), jnp.array([2.0, -1.0, 0.5]), jnp.zeros(()))
    np.testing.assert_allclose(directions, golden, atol=1e-5)
    assert isinstance(state, LaPropState)
    assert state.count.dtype == jnp.int32
    assert state.count == 3


@pytest.mark.parametrize(("b1", "b2"), [(0.9, 0.999), (0.5, 0.9), (0.0, 0.99)])
def test_laprop_averages_gradients_that_were_normalised_first(b1: float, b2: float) -> None:
    rng = np.random.default_rng(0)
    # Gradients of very different sizes in one tree: a direction does not depend on the size.
    grads = {"a": rng.normal(size=(30, 3)) * [1e-6, 1.0, 1e6], "b": {"c": rng.normal(size=(30, 2, 1))}}
    grads = jax.tree.map(lambda x: x.astype(np.float32), grads)
    directions, _ = jax.jit(lambda g: run(laprop(b1, b2), g, jax.tree.map(lambda x: jnp.ones(x.shape[1:]), g)))(grads)
    for direction, grad in zip(jax.tree.leaves(directions), jax.tree.leaves(grads), strict=True):
        for ours, numbers in zip(direction.reshape(30, -1).T, grad.reshape(30, -1).T, strict=True):
            np.testing.assert_allclose(ours, directions_in_plain_python(numbers.tolist(), b1, b2), rtol=1e-4, atol=2e-5)


def test_laprop_is_not_adam_and_both_are_signs_at_first() -> None:
    grads, params = jnp.array([[3.0, -0.1], [0.1, -2.0]]), jnp.zeros(2)
    ours, adam = run(laprop(), grads, params)[0], run(optax.scale_by_adam(eps=1e-20), grads, params)[0]
    np.testing.assert_allclose(ours[0], [1.0, -1.0], atol=1e-5)
    np.testing.assert_allclose(adam[0], [1.0, -1.0], atol=1e-5)
    assert (np.abs(ours[1] - adam[1]) > 0.05).all()


def test_a_gradient_that_was_always_zero_moves_nothing() -> None:
    directions, _ = jax.jit(lambda: run(laprop(), jnp.zeros((5, 3)), jnp.ones(3)))()
    np.testing.assert_array_equal(directions, 0.0)


def test_laprop_holds_its_means_in_f32_and_is_found_by_the_name_mu() -> None:
    state = laprop().init({"w": jnp.zeros((2, 3), jnp.bfloat16)})
    assert {x.dtype for x in jax.tree.leaves((state.mu, state.nu))} == {jnp.dtype(jnp.float32)}
    chain = optax.chain(adaptive_grad_clip(), laprop())
    assert optax.tree.get(chain.init({"w": jnp.zeros(3)}), "mu")["w"].shape == (3,)


@pytest.mark.parametrize(("size", "want"), [(0.0, 3e-4), (1e-3, 3e-4), (1.0, 0.3), (10.0, 3.0)])
def test_a_gradient_is_capped_in_proportion_to_its_tensor(size: float, want: float) -> None:
    rng = np.random.default_rng(1)
    param, grad = rng.normal(size=(2, 4, 5)).astype(np.float32)
    param *= size / np.linalg.norm(param)
    grad *= 50.0 / np.linalg.norm(grad)
    clip = adaptive_grad_clip()
    clipped, _ = clip.update(grad, clip.init(param), param)
    np.testing.assert_allclose(np.linalg.norm(clipped), want, rtol=1e-5)
    np.testing.assert_allclose(clipped / np.linalg.norm(clipped), grad / np.linalg.norm(grad), rtol=1e-4)
    small = grad * 0.5 * want / 50.0
    np.testing.assert_array_equal(clip.update(small, clip.init(param), param)[0], small)


def test_each_tensor_is_clipped_by_its_own_norms() -> None:
    params = {"large": jnp.full(4, 100.0), "small": jnp.full((2, 2), 1e-2)}
    grads = {"large": jnp.full(4, 1.0), "small": jnp.full((2, 2), 1.0)}
    clipped, _ = adaptive_grad_clip(clip=0.5).update(grads, optax.EmptyState(), params)
    np.testing.assert_array_equal(clipped["large"], grads["large"])
    np.testing.assert_allclose(clipped["small"], 0.5e-2, rtol=1e-6)


def test_norms_of_tensors_of_one_size_are_taken_together() -> None:
    tree = {"kernel": jnp.ones((3, 4)), **{f"bias_{i}": jnp.full(5, 1.0 + i) for i in range(6)}}
    norms = norms_of(tree)
    np.testing.assert_allclose(norms["kernel"], math.sqrt(12.0), rtol=1e-6)
    np.testing.assert_allclose([norms[f"bias_{i}"] for i in range(6)], [(1 + i) * math.sqrt(5.0) for i in range(6)], rtol=1e-6)
    sums = [equation for equation in jax.make_jaxpr(norms_of)(tree).jaxpr.eqns if equation.primitive.name == "reduce_sum"]
    assert len(sums) == 2


def test_no_gradient_stays_none_and_parameters_are_asked_for() -> None:
    clip = adaptive_grad_clip()
    for param in (jnp.zeros(3), jnp.ones(3)):
        np.testing.assert_array_equal(clip.update(jnp.zeros(3), clip.init(param), param)[0], 0.0)
    with pytest.raises(ValueError, match="call update"):
        clip.update(jnp.zeros(3), clip.init(param))


def test_clip_and_laprop_are_the_same_under_vmap() -> None:
    rng = np.random.default_rng(2)
    optimizer = optax.chain(adaptive_grad_clip(), laprop())
    params, grads = rng.normal(size=(2, 3)).astype(np.float32), rng.normal(size=(2, 4, 3)).astype(np.float32)
    both = jax.vmap(lambda p, g: run(optimizer, g, p)[0])(params, grads)
    for seed in range(2):
        np.testing.assert_allclose(both[seed], run(optimizer, grads[seed], params[seed])[0], rtol=1e-5, atol=1e-6)


def test_the_learning_rate_rises_from_zero_in_a_line() -> None:
    rates = [float(warmed_up(4e-5, jnp.asarray(n), 1000)) for n in (0, 1, 500, 1000, 5000)]
    np.testing.assert_allclose(rates, [0.0, 4e-8, 2e-5, 4e-5, 4e-5], rtol=1e-6)
    assert warmed_up(4e-5, jnp.asarray(0), 0) == np.float32(4e-5)
    assert warmed_up(4e-5, jnp.asarray(7), 10).dtype == warmed_up(4e-5, jnp.asarray(7), 0).dtype == jnp.float32
