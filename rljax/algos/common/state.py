"""Parts of the states of all algorithms: initial fields, normalised observations and rewards, and updates of the statistics."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp

from rljax.collect.normalizers import (
    RewardStatistics,
    RunningStatistics,
    init_reward_statistics,
    init_statistics,
    normalize,
    normalize_rewards,
    update_statistics,
)
from rljax.collect.resets import initial_environments
from rljax.collect.rollout import Steps
from rljax.core.config import Config
from rljax.core.keys import as_single_key
from rljax.core.state import REWARD_CONFIG, State, statistics

S = TypeVar("S")


class HasObs(Protocol):
    """Steps with the observations before them, `[T, N, ...]`."""

    @property
    def obs(self) -> Any: ...


class NormalizedState(State, kw_only=True):
    """State with running statistics, each None unless the configuration asks for it."""

    obs_statistics: RunningStatistics | None = statistics()
    reward_statistics: RewardStatistics | None = statistics(depends_on=REWARD_CONFIG)


def initial_fields(config: Config, env: Any, env_params: Any, key: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
    """`(params_key, fields)`: the key that draws the parameters, and the fields that every state has, before the first iteration.

    N fresh episodes; statistics are None where the config does not ask for them.
    """
    params_key, env_key, eval_key, key = jax.random.split(as_single_key(key), 4)
    env_state, obs = initial_environments(env, env_params, env_key, config.num_envs)
    first_obs = jax.tree.map(lambda x: x[0], obs)
    return params_key, {
        "obs_statistics": init_statistics(first_obs) if config.normalize_observations else None,
        "reward_statistics": init_reward_statistics(config.num_envs) if config.normalize_rewards else None,
        "env_state": env_state,
        "obs": obs,
        "key": key,
        "eval_key": eval_key,
        "iteration": jnp.zeros((), jnp.int32),
    }


def normalize_obs(state: Any, obs: Any) -> Any:
    """Observations as the networks see them: standardised where the config asks for it."""
    return obs if state.obs_statistics is None else normalize(state.obs_statistics, obs)


def scaled_rewards(state: Any, steps: Steps, gamma: float | jax.Array) -> tuple[RewardStatistics | None, jax.Array]:
    """`(statistics, reward [T, N])`, divided by the deviation of the return where the config asks for it."""
    if state.reward_statistics is None:
        return None, steps.reward
    return normalize_rewards(state.reward_statistics, steps.reward, steps.terminated | steps.truncated, gamma)


def after_update(state: S, steps: HasObs, **changes: Any) -> S:
    """The state after an iteration on `steps`, with its own `changes`.

    The statistics of observations are updated only here. If they changed between rollout and update, the ratio of a policy to
    itself would not be 1, and targets and predictions would use different statistics.
    """
    before: Any = state
    statistics = before.obs_statistics
    if statistics is not None:
        statistics = update_statistics(statistics, steps.obs)
    result: S = before.replace(obs_statistics=statistics, iteration=before.iteration + 1, **changes)
    return result
