"""The optimiser that the algorithms share: Adam after a clip of the global norm, with a learning rate annealed by iterations."""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp
import optax


class RateFields(Protocol):
    """Fields of a configuration that decide its learning rate; properties, since configurations are frozen."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def anneal_lr(self) -> bool: ...
    @property
    def num_iterations(self) -> int: ...


class OptimizerFields(RateFields, Protocol):
    """And how its parameters are optimised."""

    @property
    def adam_eps(self) -> float: ...
    @property
    def max_grad_norm(self) -> float | None: ...
    @property
    def num_iterations(self) -> int: ...


def adam(config: OptimizerFields) -> optax.GradientTransformation:
    """Everything but the learning rate, which is annealed by iterations and not by gradient steps."""
    clip = optax.identity() if config.max_grad_norm is None else optax.clip_by_global_norm(config.max_grad_norm)
    return optax.chain(clip, optax.scale_by_adam(eps=config.adam_eps))


def annealed(config: RateFields, iteration: jax.Array) -> jax.Array:
    """The learning rate of an iteration: the whole rate in the first, exactly 0 from the last on."""
    rate = jnp.asarray(config.learning_rate, jnp.float32)
    # The difference first: compiled, 1 - n / n may be 1e-8. Not below 0, for who goes on after the last iteration.
    left = jnp.maximum(config.num_iterations - iteration, 0)
    return rate * left / config.num_iterations if config.anneal_lr else rate
