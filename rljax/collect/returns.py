"""Returns and advantages."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def gae(
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    gamma: float | jax.Array,
    gae_lambda: float | jax.Array,
) -> jax.Array:
    """Generalised advantage estimation (Schulman et al., 2016, eq. 16), with the two ends of an episode kept apart.

    delta_t = r_t + gamma (1 - terminated_t) next_value_t - value_t
    A_t = delta_t + gamma lambda (1 - (terminated_t or truncated_t)) A_{t+1}

    A terminated episode has no future, so its bootstrap is 0; a truncated one has, and its value is that of the final
    observation. The trace stops at both.

    Args:
        reward: f32 `[T, ...]`.
        value: V(obs_t), f32 `[T, ...]`.
        next_value: V of the observation that step t led to, before any reset (`info["final_observation"]`), f32 `[T, ...]`.
        terminated: bool `[T, ...]`.
        truncated: bool `[T, ...]`.
        gamma: discount.
        gae_lambda: trace decay.

    Returns:
        Advantages f32 `[T, ...]`; the value targets are `advantages + value`.
    """
    chex.assert_equal_shape([reward, value, next_value, terminated, truncated])
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    decay = gamma * gae_lambda * (1.0 - (terminated | truncated))

    def backward(advantage: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta_t, decay_t = step
        advantage = delta_t + decay_t * advantage
        return advantage, advantage

    return jax.lax.scan(backward, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)[1]
