"""symlog, symexp and two-hot: golden values, exact zeros and round trips."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rljax.nn.modules.transforms import TwoHot, symexp, symlog

NUMBERS = st.floats(-3e8, 3e8, width=32)
encode, decode = jax.jit(TwoHot().encode), jax.jit(TwoHot().decode)


@given(NUMBERS)
@example(0.0)
@settings(max_examples=50, deadline=None)
def test_symexp_undoes_symlog(x: float) -> None:
    squashed = float(symlog(jnp.float32(x)))
    assert squashed == pytest.approx(math.copysign(math.log1p(abs(x)), x), rel=1e-5, abs=1e-30)
    assert float(symexp(jnp.float32(squashed))) == pytest.approx(x, rel=1e-4, abs=1e-30)


def test_slopes_are_1_at_0_and_those_of_the_formula_elsewhere() -> None:
    x = jnp.array([-5.0, -0.5, 0.0, 2.0])
    np.testing.assert_allclose(jax.vmap(jax.grad(symlog))(x), 1.0 / (1.0 + np.abs(x)), rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(jax.grad(symexp))(x), np.exp(np.abs(x)), rtol=1e-5)


def test_the_bins_are_the_golden_ones() -> None:
    bins = TwoHot().bins
    assert bins.shape == (255,)
    np.testing.assert_allclose(bins[[0, 127, 128, 129]], [-485165194.41, 0.0, 0.1705577, 0.3702054], rtol=1e-6)
    np.testing.assert_array_equal(bins, -bins[::-1])
    assert np.all(np.diff(bins) > 0)


def test_one_lies_between_two_bins_in_raw_space() -> None:
    probs = np.asarray(encode(jnp.float32(1.0)))
    assert np.nonzero(probs)[0].tolist() == [131, 132]
    np.testing.assert_allclose(probs[131:133], [0.617329, 0.382671], atol=1e-6)


@pytest.mark.slow
def test_uniform_logits_decode_to_exactly_0_and_cost_ln_255() -> None:
    for logits in (jnp.zeros((4, 255)), jnp.full((255,), 3.7)):
        np.testing.assert_array_equal(TwoHot().decode(logits), 0.0)
        # Compiled, the products of a bin and its mirror may be rounded differently.
        np.testing.assert_array_equal(decode(logits), 0.0)
    np.testing.assert_allclose(TwoHot().loss(jnp.zeros((3, 255)), jnp.array([0.0, -7.3, 1e5])), 5.541264, rtol=1e-6)


@given(st.floats(-4.8e8, 4.8e8, width=32))
@example(0.0)
@example(1e-30)
@settings(max_examples=100, deadline=None)
def test_decoding_what_was_encoded_gives_the_number(x: float) -> None:
    probs = np.asarray(encode(jnp.float32(x)))
    assert probs.sum() == pytest.approx(1.0, abs=1e-5)
    assert np.all(probs >= 0)
    places = np.nonzero(probs)[0]
    assert len(places) <= 2
    assert np.ptp(places) <= 1
    assert float(np.dot(probs.astype(np.float64), TwoHot().bins)) == pytest.approx(x, rel=1e-5, abs=1e-6)
    # Logits of least probability, but finite, as a network has them.
    assert float(decode(jnp.log(jnp.maximum(probs, 1e-37)))) == pytest.approx(x, rel=1e-4, abs=1e-5)


def test_decoding_is_the_mean_and_symmetric_logits_have_mean_0() -> None:
    two_hot, rng = TwoHot(num_bins=41, limit=3.0), np.random.default_rng(2)
    logits = rng.normal(size=(5, 41)).astype(np.float32)
    probs = np.exp(logits.astype(np.float64))
    want = (probs / probs.sum(-1, keepdims=True)) @ two_hot.bins
    np.testing.assert_allclose(jax.jit(two_hot.decode)(logits), want, rtol=1e-4, atol=1e-5)
    symmetric = rng.normal(size=(64, 255)).astype(np.float32)
    np.testing.assert_array_equal(decode(jnp.asarray(symmetric + symmetric[:, ::-1])), 0.0)


def test_a_bin_is_one_hot_and_beyond_the_last_bin_is_the_last() -> None:
    two_hot = TwoHot()
    for place in (0, 1, 127, 200, 254):
        np.testing.assert_array_equal(np.asarray(two_hot.encode(jnp.float32(two_hot.bins[place]))), np.eye(255)[place])
    for x, place in ((-1e30, 0), (-jnp.inf, 0), (1e30, 254), (jnp.inf, 254)):
        np.testing.assert_array_equal(np.asarray(two_hot.encode(jnp.float32(x))), np.eye(255)[place])


def test_encoding_is_the_slow_plain_one() -> None:
    two_hot = TwoHot(num_bins=9, limit=3.0)
    xs = np.random.default_rng(0).uniform(-25, 25, size=(4, 10)).astype(np.float32)
    want = np.zeros((4, 10, 9))
    for index, x in np.ndenumerate(np.clip(xs, two_hot.bins[0], two_hot.bins[-1])):
        above = next((i for i, b in enumerate(two_hot.bins) if b > x), 8)
        low, high = two_hot.bins[above - 1], two_hot.bins[above]
        want[(*index, above)] = (x - low) / (high - low)
        want[(*index, above - 1)] = (high - x) / (high - low)
    np.testing.assert_allclose(two_hot.encode(jnp.asarray(xs)), want, atol=1e-5)


@pytest.mark.slow
def test_the_loss_is_the_cross_entropy_whose_gradient_is_the_difference_of_probabilities() -> None:
    two_hot, rng = TwoHot(), np.random.default_rng(1)
    logits, target = jnp.asarray(rng.normal(size=(6, 255)), jnp.float32), jnp.asarray(rng.normal(size=6) * 20, jnp.float32)
    probs = np.asarray(two_hot.encode(target), np.float64)
    log_probs = np.asarray(logits, np.float64)
    log_probs = log_probs - np.log(np.exp(log_probs).sum(-1, keepdims=True))
    np.testing.assert_allclose(two_hot.loss(logits, target), -(probs * log_probs).sum(-1), rtol=1e-5)
    grads = jax.grad(lambda logits, target: jnp.sum(two_hot.loss(logits, target)), argnums=(0, 1))(logits, target)
    np.testing.assert_allclose(grads[0], np.exp(log_probs) - probs, atol=1e-5)
    np.testing.assert_array_equal(grads[1], 0.0)


@pytest.mark.parametrize("num_bins", [254, 1, 0])
def test_bins_without_a_middle_are_refused(num_bins: int) -> None:
    with pytest.raises(ValueError, match=f"num_bins = {num_bins}: expected an odd number"):
        TwoHot(num_bins)
