"""Rollouts: N environments stepped T times by a policy, inside one scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.core.agent import Metrics
from rljax.core.environment import action_mask_of, step_and_reset, strong
from rljax.core.keys import draw
from rljax.nn.distributions import ActionHead


class Steps(NamedTuple):
    """What happened, arrays `[T, N, ...]`. `mask` is None where the environment has none.

    `episode_return` and `episode_length` are running totals: those of a whole episode where it ended.
    """

    obs: Any
    action: jax.Array
    mask: jax.Array | None
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    episode_return: jax.Array
    episode_length: jax.Array


def initial_environments(env: Any, env_params: Any, key: jax.Array, num_envs: int) -> tuple[Any, Any]:
    """`(env_state, obs)` of `num_envs` fresh episodes, `[N, ...]`."""
    obs, env_state = jax.vmap(env.reset_env, (0, None))(jax.random.split(key, num_envs), env_params)
    return strong(env_state), strong(obs)


def rollout_scan(
    env: Any,
    env_params: Any,
    head: ActionHead,
    policy_outputs: Callable[[Any], jax.Array],
    env_state: Any,
    obs: Any,
    noise_key: jax.Array,
    env_key: jax.Array,
    num_steps: int,
) -> tuple[Any, Any, Steps, Any]:
    """Step N environments `num_steps` times with sampled actions. `env` must carry `EpisodeStatistics`.

    Only the actor runs inside the scan, and all random numbers are drawn before it.

    Args:
        env: the environment, unbatched.
        env_params: its parameters, shared by all.
        head: turns outputs into actions.
        policy_outputs: `obs [N, ...] -> outputs [N, head.num_outputs]`.
        env_state: `[N, ...]`.
        obs: `[N, ...]`.
        noise_key: for the actions.
        env_key: for the environments.
        num_steps: T.

    Returns:
        `(env_state, obs, steps, final_obs)`: where the environments are now, what happened, and the observation that
        each step led to before any reset, `[T, N, ...]`.
    """
    num_envs = jax.tree.leaves(obs)[0].shape[0]
    noise = head.noise(noise_key, (num_steps, num_envs))
    env_keys = draw(jax.random.split, env_key, (num_steps, num_envs, 2))

    def step_env(keys: jax.Array, state: Any, action: jax.Array) -> Any:
        return step_and_reset(env, keys[0], keys[1], state, action, env_params)

    def step(carry: tuple[Any, Any], random: tuple[jax.Array, jax.Array]) -> tuple[tuple[Any, Any], tuple[Steps, Any]]:
        env_state, obs = carry
        noise_t, keys_t = random
        mask = jax.vmap(lambda s: action_mask_of(env, s, env_params))(env_state)
        action = head.sample(head.distribution(policy_outputs(obs), mask), noise_t)
        next_obs, env_state, reward, terminated, truncated, info = jax.vmap(step_env)(keys_t, env_state, head.to_env(action))
        happened = Steps(
            obs, action, mask, reward.astype(jnp.float32), terminated, truncated, info["episode_return"], info["episode_length"]
        )
        return (env_state, next_obs), (happened, info["final_observation"])

    (env_state, obs), (steps, final_obs) = jax.lax.scan(step, (env_state, obs), (noise, env_keys))
    return env_state, obs, steps, final_obs


def episode_metrics(steps: Steps) -> Metrics:
    """Means over the episodes that ended in a rollout, and their count; NaN where none did."""
    done = steps.terminated | steps.truncated
    count = jnp.sum(done, dtype=jnp.float32)

    def mean(total: jax.Array) -> jax.Array:
        return jnp.where(count > 0, jnp.sum(jnp.where(done, total, 0), dtype=jnp.float32) / jnp.maximum(count, 1.0), jnp.nan)

    return {
        "episode/return": mean(steps.episode_return),
        "episode/length": mean(steps.episode_length),
        "episode/count": count,
    }
