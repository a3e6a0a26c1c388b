"""Representation losses against slow plain NumPy, and which of their arguments get gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algos.dreamer.representation import (
    dreamerpro_loss,
    infonce_loss,
    normalized_prototypes,
    r2dreamer_loss,
    random_shift,
    sinkhorn,
)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def plain_r2dreamer(x1: np.ndarray, x2: np.ndarray, off_diagonal: float) -> float:
    z1, z2 = ((x - x.mean(0)) / (x.std(0, ddof=1) + 1e-8) for x in (x1.astype(np.float64), x2.astype(np.float64)))
    total = 0.0
    for i in range(x1.shape[1]):
        for j in range(x1.shape[1]):
            c = sum(z1[n, i] * z2[n, j] for n in range(len(x1))) / len(x1)
            total += (c - 1.0) ** 2 if i == j else off_diagonal * c**2
    return total


@pytest.mark.parametrize("off_diagonal", [5e-4, 0.3])
def test_r2dreamer_is_that_of_a_loop(off_diagonal: float) -> None:
    x1, x2 = 3.0 + 2.0 * normal(13, 5), normal(13, 5, seed=1)
    loss = r2dreamer_loss(jnp.asarray(x1), jnp.asarray(x2), off_diagonal)
    assert loss.shape == ()
    np.testing.assert_allclose(loss, plain_r2dreamer(x1, x2, off_diagonal), rtol=1e-5)


def test_r2dreamer_is_least_where_the_views_agree_and_ignores_scale_and_offset() -> None:
    x = jnp.asarray(normal(200, 6))
    loss = float(r2dreamer_loss(x, x, 0.0))
    np.testing.assert_allclose(loss, 6 * (1 / 200) ** 2, rtol=1e-2)  # c_ii = (N - 1) / N
    np.testing.assert_allclose(r2dreamer_loss(5.0 * x - 2.0, x), r2dreamer_loss(x, x), rtol=1e-3)
    for other in (-x, x[::-1], x[:, ::-1], x + 0.3 * normal(200, 6, seed=1)):
        assert float(r2dreamer_loss(other, x)) > float(r2dreamer_loss(x, x)) + 0.005
    # What two dimensions share costs, so one dimension repeated is worse than several.
    repeated = jnp.repeat(x[:, :1], 6, 1)
    assert float(r2dreamer_loss(repeated, repeated)) > float(r2dreamer_loss(x, x)) + 0.01


@pytest.mark.slow
def test_a_dimension_that_never_varies_leaves_gradients_finite() -> None:
    x1 = jnp.asarray(normal(16, 3)).at[:, 1].set(0.0)
    x2 = jnp.asarray(normal(16, 3, seed=1)).at[:, 2].set(0.0)
    loss, gradient = jax.value_and_grad(r2dreamer_loss)(x1, x2)
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[:, 1], 0.0)
    np.testing.assert_allclose(loss, plain_r2dreamer(np.asarray(x1), np.asarray(x2), 5e-4), rtol=1e-5)


def plain_softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.slow
def test_infonce_is_the_cross_entropy_of_finding_ones_own() -> None:
    x1, x2 = normal(9, 4), normal(9, 4, seed=1)
    p = plain_softmax((x1 @ x2.T).astype(np.float64))
    np.testing.assert_allclose(infonce_loss(x1, x2), -np.mean([np.log(p[i, i]) for i in range(9)]), rtol=1e-5)
    np.testing.assert_allclose(infonce_loss(jnp.zeros((9, 4)), x2), np.log(9), rtol=1e-6)
    # Rows that differ and are long enough find their own with certainty; the scores are far outside what exp can hold.
    apart = 30.0 * jnp.eye(9)
    np.testing.assert_allclose(infonce_loss(apart, apart), 0.0, atol=1e-6)
    assert float(infonce_loss(apart, jnp.roll(apart, 1, 0))) == pytest.approx(900.0)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [r2dreamer_loss, infonce_loss])
def test_the_caller_stops_the_gradient_of_the_target(loss: object) -> None:
    x1, x2 = jnp.asarray(normal(9, 4)), jnp.asarray(normal(9, 4, seed=1))
    free = jax.grad(loss, argnums=(0, 1))(x1, x2)
    stopped = jax.grad(lambda a, b: loss(a, jax.lax.stop_gradient(b)), argnums=(0, 1))(x1, x2)
    assert np.abs(free[1]).max() > 0
    np.testing.assert_array_equal(stopped[1], 0.0)
    np.testing.assert_array_equal(stopped[0], free[0])


@pytest.mark.parametrize("loss", [r2dreamer_loss, infonce_loss])
def test_losses_are_computed_in_f32(loss: object) -> None:
    x1, x2 = (jnp.asarray(normal(64, 4, seed=seed), jnp.bfloat16) for seed in range(2))
    assert loss(x1, x2).dtype == jnp.float32
    np.testing.assert_allclose(loss(x1, x2), loss(x1.astype(jnp.float32), x2.astype(jnp.float32)), rtol=1e-6)


def plain_sinkhorn(scores: np.ndarray, eps: float, iterations: int) -> np.ndarray:
    """As SwAV's listing: prototypes to 1/K each, then samples to 1/N each, and samples to 1 at last."""
    q = np.exp(scores.astype(np.float64) / eps)
    q /= q.sum()
    for _ in range(iterations):
        q = q / q.sum(0, keepdims=True) / q.shape[1]
        q = q / q.sum(1, keepdims=True) / q.shape[0]
    return q * q.shape[0]


@pytest.mark.parametrize("iterations", [1, 3])
def test_sinkhorn_is_that_of_the_listing(iterations: int) -> None:
    scores = np.tanh(normal(8, 5))
    q = sinkhorn(jnp.asarray(scores), 0.1, iterations)
    np.testing.assert_allclose(q, plain_sinkhorn(scores, 0.1, iterations), rtol=1e-5, atol=1e-6)


def test_sinkhorn_uses_all_prototypes_equally_and_is_stable() -> None:
    scores = jnp.asarray(np.tanh(normal(12, 4)))
    np.testing.assert_allclose(jnp.sum(sinkhorn(scores), 1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(jnp.sum(sinkhorn(scores, 0.5, 100), 0), 12 / 4, rtol=1e-4)
    assert float(jnp.std(jnp.sum(sinkhorn(scores, 0.05, 3), 0))) < float(jnp.std(jnp.sum(sinkhorn(scores, 0.05, 1), 0)))
    extreme = sinkhorn(1e4 * scores)
    assert np.isfinite(extreme).all()
    np.testing.assert_allclose(jnp.sum(extreme, 1), 1.0, rtol=1e-5)
    # All samples nearest to the same prototype: it is shared out all the same.
    crowded = jnp.asarray(0.1 * normal(8, 4)).at[:, 0].add(0.8)
    assert float(jnp.sum(sinkhorn(crowded, 0.05, 20), 0).max()) < 2.5


def projections(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Prototypes `[7, 4]` and the three projections `[2, 5, 4]`."""
    return (normal(7, 4, seed=seed), *(normal(2, 5, 4, seed=seed + k) for k in (1, 2, 3)))


@pytest.mark.slow
def test_dreamerpro_is_that_of_a_loop() -> None:
    prototypes, obs, feat, target = projections()

    def unit(x: np.ndarray) -> np.ndarray:
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    swav, temporal, norm = 0.0, 0.0, 0.0
    targets = [plain_sinkhorn(unit(target[view]) @ unit(prototypes).T, 0.05, 3) for view in range(2)]
    for view in range(2):
        for n in range(5):
            log_obs = np.log(plain_softmax(unit(obs[view, n]) @ unit(prototypes).T / 0.1))
            log_feat = np.log(plain_softmax(unit(feat[view, n]) @ unit(prototypes).T / 0.1))
            swav -= 0.5 * np.sum(targets[1 - view][n] * log_obs) / 5
            temporal -= 0.5 * np.sum(targets[view][n] * log_feat) / 5
            norm += sum((np.linalg.norm(x[view, n]) - 1.0) ** 2 for x in (obs, feat)) / 10
    loss = dreamerpro_loss(*map(jnp.asarray, (prototypes, obs, feat, target)))
    np.testing.assert_allclose(loss, (swav, temporal, norm), rtol=1e-5)
    assert loss.swav.shape == loss.temporal.shape == loss.norm.shape == ()


@pytest.mark.slow
def test_dreamerpro_targets_get_no_gradient_and_each_term_trains_its_own() -> None:
    arguments = tuple(map(jnp.asarray, projections()))
    reaches = {
        term: [bool(np.abs(g).max() > 1e-6) for g in jax.grad(lambda a, t=term: getattr(dreamerpro_loss(*a), t))(arguments)]
        for term in ("swav", "temporal", "norm")
    }
    # Prototypes, projections of observations, of features and of the slow encoder.
    assert reaches == {
        "swav": [True, True, False, False],
        "temporal": [True, False, True, False],
        "norm": [False, True, True, False],
    }
    # The prototypes' gradient is that of the predictions alone: with the targets held fixed it is the same.
    prototypes, obs, feat, target = arguments
    unit = normalized_prototypes(prototypes)
    scores = target / jnp.linalg.norm(target, axis=-1, keepdims=True) @ unit.T
    fixed = jnp.stack([sinkhorn(view) for view in scores])

    def predictions_only(prototypes: jax.Array) -> jax.Array:
        directions = feat / jnp.linalg.norm(feat, axis=-1, keepdims=True)
        logits = jax.nn.log_softmax(directions @ normalized_prototypes(prototypes).T / 0.1)
        return -jnp.mean(jnp.sum(fixed * logits, -1))

    got = jax.grad(lambda p: dreamerpro_loss(p, obs, feat, target).temporal)(prototypes)
    np.testing.assert_allclose(got, jax.grad(predictions_only)(prototypes), rtol=1e-4, atol=1e-6)


def test_projections_of_zero_leave_dreamerpro_finite() -> None:
    prototypes, obs, feat, target = (jnp.asarray(x) for x in projections())
    arguments = (prototypes, obs.at[0, 0].set(0.0), feat.at[1, 2].set(0.0), target.at[0, 1].set(0.0))
    loss, gradients = jax.value_and_grad(lambda a: sum(dreamerpro_loss(*a)))(arguments)
    assert np.isfinite(loss)
    assert all(np.isfinite(g).all() for g in gradients)


def test_prototypes_are_normalised_to_length_1() -> None:
    prototypes = 3.0 * normal(6, 4)
    unit = normalized_prototypes(jnp.asarray(prototypes))
    np.testing.assert_allclose(unit, prototypes / np.linalg.norm(prototypes, axis=1, keepdims=True), rtol=1e-5)
    obs, feat, target = (jnp.asarray(x) for x in projections()[1:])
    np.testing.assert_allclose(
        dreamerpro_loss(jnp.asarray(prototypes), obs, feat, target), dreamerpro_loss(unit, obs, feat, target), rtol=1e-5
    )


@pytest.mark.parametrize(("batch", "pad", "dtype"), [((6,), 4, np.uint8), ((2, 3), 2, np.float32), ((), 1, np.uint8)])
def test_a_shift_is_edge_padding_and_a_cut(batch: tuple[int, ...], pad: int, dtype: type) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (*batch, 7, 9, 3)).astype(dtype)
    offsets = rng.integers(0, 2 * pad + 1, (*batch, 2))
    shifted = jax.jit(random_shift, static_argnames="pad")(images, offsets.astype(np.int32), pad=pad)
    assert shifted.dtype == dtype
    assert shifted.shape == images.shape
    for index in np.ndindex(batch):
        padded = np.pad(images[index], ((pad, pad), (pad, pad), (0, 0)), mode="edge")
        row, column = offsets[index]
        np.testing.assert_array_equal(shifted[index], padded[row : row + 7, column : column + 9])


@pytest.mark.slow
def test_the_middle_offset_leaves_an_image_where_it_is_and_the_ends_move_it_by_pad() -> None:
    image = jnp.asarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3)), jnp.uint8)
    np.testing.assert_array_equal(random_shift(image, jnp.array([4, 4])), image)
    np.testing.assert_array_equal(random_shift(image, jnp.array([0, 4]))[4:], image[:4])
    np.testing.assert_array_equal(random_shift(image, jnp.array([4, 8]))[:, :4], image[:, 4:])
