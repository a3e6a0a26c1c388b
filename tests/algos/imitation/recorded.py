"""Datasets for tests of imitation: episodes of a policy given as a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rljax
from rljax.collect.demos import DatasetInfo
from rljax.core.environments.environment import action_mask_of
from rljax.run.demos.writer import Episode, write_dataset

Policy = Callable[[jax.Array, Any, Any], Any]
"""`(key, obs, state) -> action` of one environment."""


def record(
    path: Path,
    env_id: str,
    policy: Policy,
    episodes: int,
    max_steps: int,
    env_params: dict[str, Any] | None = None,
    seed: int = 0,
) -> list[Episode]:
    """Write a dataset of whole episodes; return them. Those that are longer than `max_steps` are cut there."""
    env, params = rljax.make_env(env_id)
    params = params.replace(**(env_params or {}))

    def one(key: jax.Array) -> Any:
        first_key, loop_key = jax.random.split(key)
        obs, state = env.reset_env(first_key, params)

        def step(loop: Any, key: jax.Array) -> Any:
            obs, state = loop
            act_key, step_key = jax.random.split(key)
            action = policy(act_key, obs, state)
            mask = action_mask_of(env, state, params)
            next_obs, next_state, reward, terminated, _ = env.step_env(step_key, state, action, params)
            truncated = env.is_truncated(next_state, params) & ~terminated
            return (next_obs, next_state), (
                obs,
                action,
                mask,
                reward,
                terminated,
                truncated,
                next_obs,
                action_mask_of(env, next_state, params),
            )

        return jax.lax.scan(step, (obs, state), jax.random.split(loop_key, max_steps))[1]

    rows = jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(seed), episodes)))
    found = [_episode(jax.tree.map(lambda x, i=i: x[i], rows))._replace(game=i) for i in range(episodes)]
    spaces = env.observation_space(params), env.action_space(params)
    info = DatasetInfo(env_id, env_params or {}, *spaces, masks=found[0].mask is not None)
    write_dataset(path, info, found)
    return found


def _episode(rows: Any) -> Episode:
    obs, action, mask, reward, terminated, truncated, next_obs, next_mask = rows
    done = terminated | truncated
    length = int(np.argmax(done)) + 1 if done.any() else len(done)
    if not done.any():
        truncated = truncated.copy()
        truncated[-1] = True
    cut: Any = lambda tree: jax.tree.map(lambda x: x[:length], tree)  # noqa: E731
    whole: Any = lambda tree, after: jax.tree.map(lambda x, y: np.concatenate([x[:length], y[length - 1 : length]]), tree, after)  # noqa: E731
    return Episode(
        obs=whole(obs, next_obs),
        action=cut(action),
        mask=None if mask is None else whole(mask, next_mask),
        reward=np.asarray(reward[:length], np.float32),
        terminated=terminated[:length],
        truncated=truncated[:length],
    )


def balances(key: jax.Array, obs: Any, state: Any) -> jax.Array:
    """Keep the pole of CartPole up: push towards where it falls."""
    return jnp.asarray(obs[2] + 0.3 * obs[3] + 0.05 * obs[0] + 0.1 * obs[1] > 0, jnp.int32)
