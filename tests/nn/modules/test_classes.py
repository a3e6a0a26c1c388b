"""Reductions over few classes, one by one, are those of `jax.numpy` over any number."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.nn.modules.classes import FEW, argmax_of, entry_of, log_softmax, sum_of

LEAST = float(np.finfo(np.float32).min)


@pytest.mark.parametrize("classes", [1, 2, FEW, FEW + 1])
def test_reductions_over_classes_are_those_of_numpy(classes: int) -> None:
    x = np.asarray(jax.random.normal(jax.random.key(classes), (7, 3, classes))) * 5
    x[0] = 1.0  # of equal entries the first is the largest
    x[1, :, 0] = LEAST  # masked
    x[2] = LEAST
    assert argmax_of(jnp.asarray(x)).dtype == jnp.int32
    np.testing.assert_array_equal(argmax_of(jnp.asarray(x)), np.argmax(x, axis=-1))
    np.testing.assert_allclose(sum_of(jnp.asarray(x[3:])), np.sum(x[3:], axis=-1), rtol=1e-5, atol=1e-5)
    exact = x.astype(np.float64) - x.max(-1, keepdims=True)
    exact -= np.log(np.sum(np.exp(exact), axis=-1, keepdims=True))
    np.testing.assert_allclose(log_softmax(jnp.asarray(x)), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("players", [2, FEW, FEW + 1])
def test_sums_over_another_axis_are_those_of_numpy_and_of_flags_whether_any_is_true(players: int) -> None:
    x = jax.random.normal(jax.random.key(players), (7, players, 3))
    np.testing.assert_allclose(sum_of(x, axis=1), np.sum(x, axis=1), rtol=1e-5, atol=1e-6)
    flags = x > 0.5
    assert sum_of(flags, axis=1).dtype == jnp.bool_
    np.testing.assert_array_equal(sum_of(flags, axis=1), np.any(flags, axis=1))


@pytest.mark.parametrize("classes", [2, FEW])
def test_the_gradient_of_few_logits_is_that_of_the_softmax(classes: int) -> None:
    x = jax.random.normal(jax.random.key(0), (6, classes)) * 3
    weights = jax.random.normal(jax.random.key(1), (6, classes))
    got = jax.grad(lambda x: jnp.sum(weights * log_softmax(x)))(x)
    p = np.exp(np.asarray(x, np.float64))
    p /= p.sum(-1, keepdims=True)
    w = np.asarray(weights, np.float64)
    np.testing.assert_allclose(got, w - p * w.sum(-1, keepdims=True), rtol=1e-4, atol=1e-5)


def test_a_masked_class_has_neither_probability_nor_gradient() -> None:
    x = jnp.asarray([[0.3, LEAST, -1.0]])
    assert float(jnp.exp(log_softmax(x))[0, 1]) == 0.0
    gradient = jax.grad(lambda x: -jnp.sum(jnp.where(x > LEAST, log_softmax(x), 0.0)))(x)
    assert np.isfinite(gradient).all()
    assert float(gradient[0, 1]) == 0.0


@pytest.mark.parametrize("classes", [2, FEW, FEW + 1])
def test_the_entry_of_a_class_is_that_of_a_gather_and_of_no_class_0(classes: int) -> None:
    x = jax.random.normal(jax.random.key(0), (9, classes))
    index = jax.random.randint(jax.random.key(1), (9,), 0, classes)
    np.testing.assert_array_equal(entry_of(x, index), np.asarray(x)[np.arange(9), np.asarray(index)])
    np.testing.assert_array_equal(entry_of(x, jnp.full(9, classes)), np.zeros(9))
    gradient = jax.grad(lambda x: jnp.sum(3.0 * entry_of(x, index)))(x)
    np.testing.assert_array_equal(gradient, 3.0 * np.eye(classes)[np.asarray(index)])
