"""Our categorical and Gaussian against distrax's: values and gradients, also where probabilities are 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.nn.outputs.distributions import Normal, categorical

LOGITS = jax.random.normal(jax.random.key(0), (2, 5, 7)) * 3.0
MASKED = jnp.where(jnp.arange(7) % 3 == 1, jnp.finfo(jnp.float32).min, LOGITS)
"""Logits of two categoricals for each of five places; of the masked ones, classes 1 and 4 are impossible."""

CLASSES = jnp.array([0, 3, 6, 2, 5])
GAUSSIANS = jnp.stack([LOGITS[..., :3], jnp.exp(0.3 * LOGITS[..., 3:6])])
"""Means and standard deviations of two Gaussians of three numbers for each of five places, `[2, 2, 5, 3]`."""

QUANTITIES: dict[str, Callable[[Any, Any, Any], jax.Array]] = {
    "log_prob": lambda one, other, value: one.log_prob(value),
    "entropy": lambda one, other, value: one.entropy(),
    "kl_divergence": lambda one, other, value: one.kl_divergence(other),
}


def same(ours: Callable[[jax.Array], jax.Array], theirs: Callable[[jax.Array], jax.Array], parameters: jax.Array) -> None:
    np.testing.assert_allclose(ours(parameters), theirs(parameters), rtol=1e-5, atol=1e-5)
    found, expected = (jax.jit(jax.grad(lambda p, f=f: jnp.sum(f(p) ** 2)))(parameters) for f in (ours, theirs))
    assert np.isfinite(found).all()
    assert np.abs(found).max() > 0.01
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", QUANTITIES)
@pytest.mark.parametrize("logits", [LOGITS, MASKED], ids=["all", "masked"])
def test_categoricals(logits: jax.Array, name: str) -> None:
    def quantity(make: Callable[[jax.Array], Any]) -> Callable[[jax.Array], jax.Array]:
        return lambda x: QUANTITIES[name](make(x[0]), make(x[1]), CLASSES)

    same(quantity(categorical), quantity(lambda x: distrax.Categorical(logits=x)), logits)


@pytest.mark.parametrize("name", QUANTITIES)
def test_gaussians(name: str) -> None:
    def quantity(make: Callable[[jax.Array, jax.Array], Any]) -> Callable[[jax.Array], jax.Array]:
        return lambda x: QUANTITIES[name](make(x[0, 0], x[1, 0]), make(x[0, 1], x[1, 1]), LOGITS[0, :, :3])

    same(quantity(Normal), quantity(lambda m, s: distrax.Independent(distrax.Normal(m, s), 1)), GAUSSIANS)


def test_modes_and_probabilities() -> None:
    found, expected = categorical(MASKED), distrax.Categorical(logits=MASKED)
    np.testing.assert_array_equal(found.mode(), expected.mode())
    np.testing.assert_allclose(found.probs, expected.probs, rtol=1e-5)
    assert np.all(np.asarray(found.probs)[..., [1, 4]] == 0.0)
    np.testing.assert_array_equal(Normal(*GAUSSIANS[:, 0]).mode(), GAUSSIANS[0, 0])


def test_infinite_logits_leave_the_entropy_and_its_gradient_finite() -> None:
    logits = jnp.where(jnp.arange(7) == 2, -jnp.inf, LOGITS[0])
    entropy, gradient = jax.value_and_grad(lambda x: jnp.sum(categorical(x).entropy()))(logits)
    np.testing.assert_allclose(entropy, jnp.sum(distrax.Categorical(logits=logits).entropy()), rtol=1e-5)
    assert np.isfinite(np.delete(np.asarray(gradient), 2, axis=-1)).all()


def test_numbers_that_are_no_class_have_no_probability() -> None:
    found = categorical(LOGITS[0]).log_prob(jnp.array([0, 7, -1, 3, 100]))
    assert np.isinf(found).tolist() == [False, True, True, False, True]


def test_classes_in_few_bits_are_classes() -> None:
    found = categorical(jnp.zeros(256)).log_prob(jnp.array([0, 255], jnp.uint8))
    np.testing.assert_allclose(found, -np.log(256.0), rtol=1e-6)
