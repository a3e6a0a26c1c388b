"""Episodes of a scripted policy and random legal actions, for the tests of environments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.environments.environment import action_mask_of
from rljax.core.environments.spaces import Dict, Discrete, head_sizes

# Compiling takes most of the time here, so XLA need not optimise.
QUICK = {"xla_backend_optimization_level": 0}

# (noise f32 [16], uniform in [0, 1), obs, state) -> action; a policy of a test may look at the state.
Policy = Callable[[jax.Array, Any, Any], Any]


class Played(NamedTuple):
    """One episode of each of N environments, arrays `[N, T, ...]` unless noted; `alive` says which steps belong to it."""

    first_obs: Any  # [N, ...]
    first_state: Any  # [N, ...]
    obs: Any
    state: Any
    action: Any
    reward: np.ndarray
    ended: np.ndarray
    info: Any
    alive: np.ndarray

    @property
    def returns(self) -> np.ndarray:
        return np.sum(self.reward * self.alive, axis=1)

    @property
    def lengths(self) -> np.ndarray:
        return np.sum(self.alive, axis=1)


def play(env: Any, params: Any, policy: Policy, num_steps: int, num_envs: int = 1000, seed: int = 0) -> Played:
    """Play until each episode has ended, for at most `num_steps` steps."""

    def episode(keys: jax.Array, noise: jax.Array) -> Any:
        first = env.reset(keys[0], params)

        def step(carry: Any, random: tuple[jax.Array, jax.Array]) -> tuple[Any, Any]:
            obs, state, alive = carry
            key, noise = random
            action = policy(noise, obs, state)
            obs, state, reward, terminated, info = env.step_env(key, state, action, params)
            ended = terminated | env.is_truncated(state, params)
            return (obs, state, alive & ~ended), (obs, state, action, reward, ended, info, alive)

        return *first, *jax.lax.scan(step, (*first, jnp.asarray(True)), (keys[1:], noise))[1]

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run() -> Any:
        # All at once and before the scan, where each draw would have to be compiled again.
        key, noise_key = jax.random.split(jax.random.key(seed))
        noise = jax.random.uniform(noise_key, (num_envs, num_steps, 16))
        return jax.vmap(episode)(jax.random.split(key, (num_envs, num_steps + 1)), noise)

    return Played(*jax.tree.map(np.asarray, run()))


def uniform(num_actions: int) -> Policy:
    return lambda noise, _obs, _state: (noise[0] * num_actions).astype(jnp.int32)


def standard_error(returns: np.ndarray) -> float:
    return float(returns.std() / np.sqrt(len(returns)))


def legal_action(env: Any, key: jax.Array, state: Any, params: Any) -> Any:
    """A random action that the mask allows, head by head: with a mask of pairs, one that all earlier heads allow."""
    space, mask = env.action_space(params), action_mask_of(env, state, params)
    if mask is None:
        return space.sample(key)
    heads = head_sizes(space)
    assert heads is not None
    legal, picks = mask if mask.ndim == 1 else jnp.diagonal(mask), []
    for k, start, size in zip(jax.random.split(key, len(heads)), np.cumsum((0, *heads)), heads, strict=False):
        picks.append(jax.random.categorical(k, jnp.where(legal[start : start + size], 0.0, -jnp.inf)).astype(jnp.int32))
        legal = legal if mask.ndim == 1 else legal & mask[start + picks[-1]]
    if isinstance(space, Dict):
        return dict(zip(space.spaces, picks, strict=True))
    return picks[0] if isinstance(space, Discrete) else jnp.stack(picks)
