"""Loss functions against numbers worked out by hand, and against plain NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.common.losses import choices_kl, choices_loss
from rljax.core.environments.spaces import MultiDiscrete
from rljax.nn.outputs.actions import action_head

THREE_QUARTERS = jnp.log(jnp.array([0.75, 0.25]))
HALF = jnp.log(jnp.array([0.5, 0.5]))


def test_the_huber_loss_is_square_near_the_target_and_linear_beyond() -> None:
    value, target = jnp.array([1.0, 1.0, -4.0]), jnp.array([1.5, 3.0, 1.0])
    np.testing.assert_allclose(rljax.huber_value_loss(value, target, 1.0), [0.125, 1.5, 4.5])
    np.testing.assert_allclose(rljax.huber_value_loss(value, target), [0.125, 2.0, 12.5])
    slopes = jax.vmap(jax.grad(lambda v, t: rljax.huber_value_loss(v, t, 1.0)))(value, target)
    np.testing.assert_allclose(slopes, [-0.5, -1.0, -1.0])


def test_reinforce_weighs_own_steps_by_constant_advantages() -> None:
    log_prob, advantage = jnp.array([-1.0, -2.0, -3.0]), jnp.array([2.0, -1.0, 100.0])
    own = jnp.array([True, True, False])
    assert float(rljax.masked_reinforce(log_prob, advantage, own)) == pytest.approx(-(2.0 * -1.0 + -1.0 * -2.0) / 2)
    assert float(rljax.masked_reinforce(log_prob, advantage)) == pytest.approx((2.0 - 2.0 + 300.0) / 3)
    by_log_prob, by_advantage = jax.grad(rljax.masked_reinforce, (0, 1))(log_prob, advantage, own)
    np.testing.assert_allclose(by_log_prob, [-1.0, 0.5, 0.0])
    np.testing.assert_array_equal(by_advantage, 0.0)


def test_regression_on_positive_advantages_leaves_worse_actions_alone() -> None:
    log_prob, advantage = jnp.array([-1.0, -2.0, -3.0]), jnp.array([2.0, -1.0, 0.5])
    assert float(rljax.positive_advantage_regression(log_prob, advantage)) == pytest.approx((2.0 + 0.0 + 1.5) / 3)
    slope = jax.grad(rljax.positive_advantage_regression)(log_prob, advantage)
    np.testing.assert_allclose(slope, [-2 / 3, 0.0, -0.5 / 3], rtol=1e-6)


def test_label_smoothing_spreads_its_share_over_legal_actions() -> None:
    plain = rljax.label_smoothed_cross_entropy(THREE_QUARTERS, jnp.array(0))
    assert float(plain) == pytest.approx(-np.log(0.75))
    smoothed = rljax.label_smoothed_cross_entropy(THREE_QUARTERS, jnp.array(0), 0.1)
    assert float(smoothed) == pytest.approx(-(0.95 * np.log(0.75) + 0.05 * np.log(0.25)))
    # A third action that is not legal changes nothing, and as a label it gives no gradient and no infinite loss.
    three, legal = jnp.append(THREE_QUARTERS, 5.0), jnp.array([True, True, False])
    assert float(rljax.label_smoothed_cross_entropy(three, jnp.array(0), 0.1, legal)) == pytest.approx(float(smoothed))
    loss, slope = jax.value_and_grad(rljax.label_smoothed_cross_entropy)(three, jnp.array(2), 0.0, legal)
    assert float(loss) == 0.0
    np.testing.assert_array_equal(slope, 0.0)


def test_distillation_softens_both_by_the_temperature_and_keeps_the_size_of_gradients() -> None:
    """At T = 2 the distribution (3/4, 1/4) becomes that of odds sqrt(3) to 1."""
    high = np.sqrt(3.0) / (1.0 + np.sqrt(3.0))
    cross = -(high * np.log(0.5) + (1 - high) * np.log(0.5))
    entropy = -(high * np.log(high) + (1 - high) * np.log(1 - high))
    assert float(rljax.soft_cross_entropy(HALF, THREE_QUARTERS, 2.0)) == pytest.approx(4.0 * cross, rel=1e-5)
    assert float(rljax.distillation_kl(HALF, THREE_QUARTERS, 2.0)) == pytest.approx(4.0 * (cross - entropy), rel=1e-5)
    assert float(rljax.distillation_kl(HALF, THREE_QUARTERS)) == pytest.approx(0.75 * np.log(1.5) + 0.25 * np.log(0.5), rel=1e-5)
    assert float(rljax.distillation_kl(THREE_QUARTERS + 3.0, THREE_QUARTERS, 2.0)) == pytest.approx(0.0, abs=1e-6)
    # Both have the gradient T (softmax(student / T) - softmax(teacher / T)), and none for the teacher.
    for loss in (rljax.soft_cross_entropy, rljax.distillation_kl):
        student, teacher = jax.grad(loss, (0, 1))(HALF, THREE_QUARTERS, 2.0)
        np.testing.assert_allclose(student, 2.0 * np.array([0.5 - high, high - 0.5]), rtol=1e-5)
        np.testing.assert_array_equal(teacher, 0.0)


@pytest.mark.parametrize("loss", [rljax.soft_cross_entropy, rljax.distillation_kl])
def test_illegal_actions_have_no_part_at_any_temperature(loss: object) -> None:
    assert callable(loss)
    legal = jnp.array([True, False, True])
    least = jnp.finfo(jnp.float32).min
    student, teacher = (jnp.array([x[0], least, x[1]]) for x in (HALF, THREE_QUARTERS))
    for temperature in (0.01, 1.0, 4.0):
        found, slope = jax.value_and_grad(loss)(student, teacher, temperature, legal)
        assert float(found) == pytest.approx(float(loss(HALF, THREE_QUARTERS, temperature)), rel=1e-5)
        assert np.isfinite(slope).all()
        assert float(slope[1]) == 0.0


def test_heads_that_are_not_read_have_no_part() -> None:
    head = action_head(MultiDiscrete((2, 3), only_if=(None, (0, (1,)))))
    first, second = (head.distribution(x, None) for x in jax.random.normal(jax.random.key(0), (2, 1, 5)))
    assert head.choices is not None

    def by_hand(a: int, b: int) -> tuple[float, float]:
        p, q = ([np.asarray(jax.nn.log_softmax(d.each.logits[0, k, :n])) for k, n in enumerate((2, 3))] for d in (first, second))
        read = [0, 1] if a == 1 else [0]
        label = -sum(p[k][(a, b)[k]] for k in read)
        return label, sum((np.exp(q[k]) * (q[k] - p[k])).sum() for k in read)

    for a, b in ((0, 2), (1, 1)):
        action = jnp.array([[a, b]])
        student, teacher = head.choices(first, action), head.choices(second, action)
        label, divergence = by_hand(a, b)
        np.testing.assert_allclose(choices_loss(student), label, rtol=1e-5)
        np.testing.assert_allclose(choices_loss(student), -first.log_prob(action), rtol=1e-5)
        np.testing.assert_allclose(choices_kl(student, teacher), divergence, rtol=1e-4)
