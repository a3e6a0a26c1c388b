"""Evaluation: whole episodes of a policy, inside jit."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.collect.environments import make_evaluation_env
from rljax.collect.rollout import initial_environments
from rljax.core.agent import Agent, initial_carry
from rljax.core.environment import action_mask_of, step_and_reset
from rljax.core.errors import ConfigError
from rljax.core.keys import as_key, draw

MAX_EVALUATION_STEPS = 27_000
"""Steps after which an evaluation gives up on episodes that do not end (the cap of Atari evaluations, in frames / 4)."""


class EpisodeResults(NamedTuple):
    """One episode per slot: f32 `[num_episodes]` returns (NaN where the episode did not end) and i32 `[num_episodes]` lengths."""

    returns: jax.Array
    lengths: jax.Array


def evaluate(
    agent: Agent,
    state: Any,
    key: jax.Array,
    num_episodes: int = 100,
    *,
    deterministic: bool = True,
    max_steps: int = MAX_EVALUATION_STEPS,
) -> jax.Array:
    """Returns of `num_episodes` complete episodes, f32 `[num_episodes]`, of the true rewards (never clipped or normalised).

    Each slot plays exactly one episode from its start to its end, so short episodes count no more than long ones.
    Normalisers are frozen. Pure: works under jit and vmap.

    Args:
        agent: from `make_agent`.
        state: the agent's state, unbatched.
        key: random key; the episodes depend on nothing else.
        num_episodes: how many.
        deterministic: the mode of the policy (greedy) rather than samples.
        max_steps: give up on an episode after this many steps; its return is NaN.
    """
    return play_episodes(agent, state, key, num_episodes, deterministic=deterministic, max_steps=max_steps).returns


def play_episodes(
    agent: Agent,
    state: Any,
    key: jax.Array,
    num_episodes: int,
    *,
    deterministic: bool = True,
    max_steps: int = MAX_EVALUATION_STEPS,
) -> EpisodeResults:
    """`evaluate` with lengths too."""
    if num_episodes < 1:
        raise ConfigError(f"num_episodes = {num_episodes}: expected a whole number > 0")
    env, env_params = make_evaluation_env(agent.config)
    reset_key, loop_key = jax.random.split(as_key(key))
    env_state, obs = initial_environments(env, env_params, reset_key, num_episodes)
    results = EpisodeResults(jnp.full(num_episodes, jnp.nan), jnp.zeros(num_episodes, jnp.int32))

    def running(loop: tuple[Any, ...]) -> jax.Array:
        time, _, _, _, finished, _ = loop
        return (time < max_steps) & ~jnp.all(finished)

    def step(loop: tuple[Any, ...]) -> tuple[Any, ...]:
        time, env_state, obs, carry, finished, results = loop
        act_key, env_key = jax.random.split(jax.random.fold_in(loop_key, time))
        mask = jax.vmap(lambda s: action_mask_of(env, s, env_params))(env_state)
        action, carry = agent.act(state, obs, carry, act_key, deterministic, mask)
        keys = draw(jax.random.split, env_key, (num_episodes, 2))
        obs, env_state, _, terminated, truncated, info = jax.vmap(
            lambda k, s, a: step_and_reset(env, k[0], k[1], s, a, env_params)
        )(keys, env_state, action)
        first_end = (terminated | truncated) & ~finished
        results = EpisodeResults(
            jnp.where(first_end, info["episode_return"], results.returns),
            jnp.where(finished, results.lengths, info["episode_length"]),
        )
        # What is remembered after a slot's episode is not used: the next one does not count.
        return time + 1, env_state, obs, carry, finished | first_end, results

    mask = jax.eval_shape(jax.vmap(lambda s: action_mask_of(env, s, env_params)), env_state)
    carry = initial_carry(agent, state, obs, mask)
    start = (jnp.zeros((), jnp.int32), env_state, obs, carry, jnp.zeros(num_episodes, bool), results)
    return jax.lax.while_loop(running, step, start)[-1]
