"""Losses that train a world model's representation without reconstruction, and the random shift that DreamerPro needs.

All are pure functions of flattened batches of N = B T steps, and compute in f32 whatever the dtype of their inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp


def r2dreamer_loss(x1: jax.Array, x2: jax.Array, off_diagonal: float = 5e-4) -> jax.Array:
    """Redundancy reduction between two views of each step: R2-Dreamer (Morihira et al., 2026), after Barlow Twins (Zbontar et
    al., 2021).

    With `z` the columns of `x` less their mean over N, over their (unbiased) standard deviation + 1e-8, and `c = z1' z2 / N`:

        sum_i (c_ii - 1)^2 + off_diagonal * sum_(i != j) c_ij^2

    A column without variance correlates with nothing and gets no gradient. As `c` divides by N and the deviation
    by N - 1, equal views give `c_ii = (N - 1) / N`.

    Args:
        x1: predictions of the embeddings from the model's features, `[N, D]`.
        x2: the embeddings, `[N, D]`; both views have gradients, so the caller stops those of the target: `stop_gradient(x2)`.
        off_diagonal: weight of the correlations between different dimensions.

    Returns:
        f32 [].
    """
    chex.assert_rank([x1, x2], 2)
    chex.assert_equal_shape([x1, x2])
    c = _standardized(x1).T @ _standardized(x2) / x1.shape[0]
    diagonal = jnp.eye(c.shape[0], dtype=bool)
    return jnp.sum(jnp.where(diagonal, jnp.square(c - 1.0), off_diagonal * jnp.square(c)))


def _standardized(x: jax.Array) -> jax.Array:
    x = x.astype(jnp.float32)
    centered = x - jnp.mean(x, 0)
    variance = jnp.sum(jnp.square(centered), 0) / (x.shape[0] - 1)
    # The square root's derivative at 0 is infinite.
    varies = variance > 0
    deviation = jnp.where(varies, jnp.sqrt(jnp.where(varies, variance, 1.0)), 0.0)
    return jnp.where(varies, centered / (deviation + 1e-8), 0.0)


def infonce_loss(x1: jax.Array, x2: jax.Array) -> jax.Array:
    """Which of the batch's `x2` belongs to each `x1`: the mean cross-entropy of the rows of `x1 x2'` against their own number.

    InfoNCE (van den Oord et al., 2018), as R2-Dreamer compares with it (Morihira et al., 2026): neither temperature nor
    normalisation.

    Args:
        x1: `[N, D]`.
        x2: `[N, D]`; the caller stops the gradient of the target: `stop_gradient(x2)`.

    Returns:
        f32 [].
    """
    chex.assert_rank([x1, x2], 2)
    chex.assert_equal_shape([x1, x2])
    x1, x2 = x1.astype(jnp.float32), x2.astype(jnp.float32)
    own = jnp.sum(x1 * x2, 1)
    return jnp.mean(jax.nn.logsumexp(x1 @ x2.T, axis=1) - own)


def sinkhorn(scores: jax.Array, eps: float = 0.05, iterations: int = 3) -> jax.Array:
    """Soft assignments of N samples to K prototypes that use all prototypes equally (Sinkhorn-Knopp; SwAV: Caron et al., 2020).

    `exp(scores / eps)`, whose columns are scaled to the sum N / K and then rows to 1, `iterations` times, in log space.

    Args:
        scores: similarities `[N, K]`.
        eps: temperature; the smaller, the harder the assignments.
        iterations: number of iterations of both scalings.

    Returns:
        f32 `[N, K]`, each row a distribution; each column sums to N / K in the limit.
    """
    chex.assert_rank(scores, 2)
    log_q = scores.astype(jnp.float32) / eps
    for _ in range(iterations):
        # The constants N / K and 1 are left out: rows are scaled last, and what all entries share cancels there.
        log_q = jax.nn.log_softmax(jax.nn.log_softmax(log_q, axis=0), axis=1)
    return jnp.exp(log_q)


class DreamerProLoss(NamedTuple):
    """The three terms of `dreamerpro_loss`, f32 [] each."""

    swav: jax.Array
    temporal: jax.Array
    norm: jax.Array


def dreamerpro_loss(
    prototypes: jax.Array,
    obs_projection: jax.Array,
    feat_projection: jax.Array,
    target_projection: jax.Array,
    temperature: float = 0.1,
    eps: float = 0.05,
    iterations: int = 3,
) -> DreamerProLoss:
    """Prototypes that two shifted views of an observation, and the model's features, agree on: DreamerPro (Deng et al., 2022).

    With unit prototypes and projections, `log p = log_softmax(projection @ prototypes' / temperature)` and the targets `q` the
    `sinkhorn` of those of the slow encoder, for each view by itself:

        swav     = -1/2 (mean_n sum_k q_2 log p_obs_1 + mean_n sum_k q_1 log p_obs_2)
        temporal = -1/2 (mean_n sum_k q_1 log p_feat_1 + mean_n sum_k q_2 log p_feat_2)
        norm     = mean (|obs_projection| - 1)^2 + mean (|feat_projection| - 1)^2

    Args:
        prototypes: `[K, P]`, of any length.
        obs_projection: projections of the encoder's embeddings of both views, `[2, N, P]`, not normalised.
        feat_projection: projections of the model's features on both views, `[2, N, P]`, not normalised.
        target_projection: projections of the slow encoder's embeddings of both views, `[2, N, P]`. It and the prototypes get no
            gradient through the targets.
        temperature: temperature of the predictions.
        eps: temperature of the targets.
        iterations: number of iterations of `sinkhorn`.

    Returns:
        The terms, each of scale 1.
    """
    chex.assert_shape([obs_projection, feat_projection, target_projection], (2, None, prototypes.shape[1]))
    chex.assert_equal_shape([obs_projection, feat_projection, target_projection])
    prototypes = normalized_prototypes(prototypes)
    obs, obs_length = _unit(obs_projection)
    feat, feat_length = _unit(feat_projection)
    scores = jax.lax.stop_gradient(_unit(target_projection)[0] @ prototypes.T)
    target = jnp.stack([sinkhorn(view, eps, iterations) for view in scores])
    swav = _cross_entropy(target[::-1], obs @ prototypes.T / temperature)
    temporal = _cross_entropy(target, feat @ prototypes.T / temperature)
    norm = jnp.mean(jnp.square(obs_length - 1.0)) + jnp.mean(jnp.square(feat_length - 1.0))
    return DreamerProLoss(swav, temporal, norm)


def _cross_entropy(target: jax.Array, logits: jax.Array) -> jax.Array:
    return -jnp.mean(jnp.sum(target * jax.nn.log_softmax(logits), -1))


def _unit(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`x [..., P]` scaled to length 1 along the last axis, and its length `[...]`; finite gradients at 0, too."""
    x = x.astype(jnp.float32)
    length = jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(x), -1), 1e-12))
    return x / length[..., None], length


def normalized_prototypes(prototypes: jax.Array) -> jax.Array:
    """Each prototype at length 1, f32 `[K, P]`: in the loss, and stored so before each update (Deng et al., 2022)."""
    return _unit(prototypes)[0]


def random_shift(images: jax.Array, offsets: jax.Array, pad: int = 4) -> jax.Array:
    """Move each image by up to `pad` pixels, its edge pixels repeated: the augmentation of DrQ (Kostrikov et al., 2021).

    The image is padded by `pad` on each side and cut out at its offset, so `pad` leaves it where it is.

    Args:
        images: `[..., H, W, C]` of any dtype, which stays.
        offsets: i32 `[..., 2]` in `0 .. 2 pad`: the row and the column where the cut begins.
        pad: pixels.
    """
    chex.assert_shape(offsets, (*images.shape[:-3], 2))
    height, width, channels = images.shape[-3:]
    flat, offsets = images.reshape(-1, height, width, channels), offsets.reshape(-1, 2)
    # Padding is an index that stays within the image: one gather, no larger copy of the images.
    rows = jnp.clip(offsets[:, :1] - pad + jnp.arange(height), 0, height - 1)
    columns = jnp.clip(offsets[:, 1:] - pad + jnp.arange(width), 0, width - 1)
    shifted = flat[jnp.arange(flat.shape[0])[:, None, None], rows[:, :, None], columns[:, None, :]]
    return shifted.reshape(images.shape)
