"""The optimiser that the algorithms share: Adam with clipping of the global norm; the learning rate is annealed by iterations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from rljax.algos.common.config import AdamConfig, LearnerConfig


def adam(config: AdamConfig) -> optax.GradientTransformation:
    """Return Adam with clipping, without the learning rate, which is annealed by iterations instead of gradient steps."""
    clip = optax.identity() if config.max_grad_norm is None else optax.clip_by_global_norm(config.max_grad_norm)
    return optax.chain(clip, optax.scale_by_adam(eps=config.adam_eps))


def annealed(config: LearnerConfig, iteration: jax.Array) -> jax.Array:
    """Return the learning rate of an iteration: the whole rate in the first, exactly 0 after the last."""
    rate = jnp.asarray(config.learning_rate, jnp.float32)
    # Compute the difference first: compiled, 1 - n / n may be 1e-8. The rate is never below 0, even after the last iteration.
    left = jnp.maximum(config.num_iterations - iteration, 0)
    return rate * left / config.num_iterations if config.anneal_lr else rate
