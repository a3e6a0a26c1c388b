"""Evaluation: whole episodes of a policy, inside jit."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.collect.distinct import fingerprint, first_occurrences
from rljax.collect.environments import make_evaluation_env
from rljax.collect.rollout import initial_environments
from rljax.core.agent import Agent, initial_carry
from rljax.core.environment import action_mask_of, plays_greedily, step_and_reset
from rljax.core.errors import ConfigError
from rljax.core.keys import as_key, draw
from rljax.core.memory import check_memory, tree_bytes

MAX_EVALUATION_STEPS = 27_000
"""Steps after which an evaluation cuts an episode, which counts with its return so far (Atari's cap, in frames / 4; Machado et
al., "Revisiting the Arcade Learning Environment", 2018)."""


class EpisodeResults(NamedTuple):
    """One episode per slot, `[num_episodes]`: returns f32 and lengths i32 up to its end or to the cut, and whether it ended.

    Episodes that were cut count: left out, they would be the best ones where a good policy plays for long. `distinct`, i32 [],
    is how many games differ from all before them in what the agent saw and did; None of environments of one agent.
    """

    returns: jax.Array
    lengths: jax.Array
    ended: jax.Array
    distinct: jax.Array | None


def evaluate(
    agent: Agent,
    state: Any,
    key: jax.Array,
    num_episodes: int = 100,
    *,
    deterministic: bool | None = None,
    max_steps: int = MAX_EVALUATION_STEPS,
) -> jax.Array:
    """Returns of `num_episodes` episodes, f32 `[num_episodes]`, of the true rewards (never clipped or normalised).

    Each slot plays exactly one episode from its start to its end, so short episodes count no more than long ones.
    Normalisers are frozen. Pure: works under jit and vmap.

    Args:
        agent: from `make_agent`.
        state: the agent's state, unbatched.
        key: random key; the episodes depend on nothing else.
        num_episodes: how many.
        deterministic: the mode of the policy (greedy), or its samples; greedy, but where the environment says `best_is_random`,
            unless given.
        max_steps: cut an episode after this many steps; it counts with its return so far.
    """
    return play_episodes(agent, state, key, num_episodes, deterministic=deterministic, max_steps=max_steps).returns


def play_episodes(
    agent: Agent,
    state: Any,
    key: jax.Array,
    num_episodes: int,
    *,
    deterministic: bool | None = None,
    max_steps: int = MAX_EVALUATION_STEPS,
) -> EpisodeResults:
    """`evaluate` with lengths too, which episodes ended, and how many games are distinct."""
    if num_episodes < 1:
        raise ConfigError(f"num_episodes = {num_episodes}: expected a whole number > 0")
    env, env_params = make_evaluation_env(agent.config)
    greedy = plays_greedily(env, deterministic)
    one = jax.eval_shape(lambda: initial_environments(env, env_params, jax.random.key(0), 1))
    check_memory(num_episodes * tree_bytes(one), f"num_episodes = {num_episodes}: playing so many at once", "play fewer")
    reset_key, loop_key = jax.random.split(as_key(key))
    env_state, obs = initial_environments(env, env_params, reset_key, num_episodes)
    zeros = jnp.zeros(num_episodes)
    results = EpisodeResults(zeros, zeros.astype(jnp.int32), zeros.astype(bool), None)
    games = agent.config.of_games

    def running(loop: tuple[Any, ...]) -> jax.Array:
        time, _, _, _, _, results = loop
        return (time < max_steps) & ~jnp.all(results.ended)

    def step(loop: tuple[Any, ...]) -> tuple[Any, ...]:
        time, env_state, obs, carry, prints, results = loop
        act_key, env_key = jax.random.split(jax.random.fold_in(loop_key, time))
        mask = jax.vmap(lambda s: action_mask_of(env, s, env_params))(env_state)
        action, carry = agent.act(state, obs, carry, act_key, greedy, mask)
        keys = draw(jax.random.split, env_key, (num_episodes, 2))
        obs, env_state, reward, terminated, truncated, info = jax.vmap(
            lambda k, s, a: step_and_reset(env, k[0], k[1], s, a, env_params)
        )(keys, env_state, action)
        if games:
            after = jax.vmap(lambda *x: fingerprint(*x[1:], after=x[0]))(prints, action, reward, info["final_observation"])
            prints = jnp.where(results.ended[:, None], prints, after)
        results = EpisodeResults(
            jnp.where(results.ended, results.returns, info["episode_return"]),
            jnp.where(results.ended, results.lengths, info["episode_length"]),
            results.ended | terminated | truncated,
            None,
        )
        # What is remembered after a slot's episode is not used: the next one does not count.
        return time + 1, env_state, obs, carry, prints, results

    mask = jax.eval_shape(jax.vmap(lambda s: action_mask_of(env, s, env_params)), env_state)
    carry = initial_carry(agent, state, obs, mask)
    prints = jax.vmap(fingerprint)(obs) if games else None
    start = (jnp.zeros((), jnp.int32), env_state, obs, carry, prints, results)
    *_, prints, results = jax.lax.while_loop(running, step, start)
    if prints is None:
        return results
    return results._replace(distinct=jnp.sum(first_occurrences(prints), dtype=jnp.int32))
