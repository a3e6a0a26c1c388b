"""Evaluate a policy on whole episodes, inside jit."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.collect.distinct import fingerprint, first_occurrences
from rljax.collect.environments import make_evaluation_env
from rljax.collect.own_agent import check_own_act
from rljax.collect.resets import initial_environments
from rljax.core.agent import Agent, check_agent, initial_carry, state_explained
from rljax.core.environments.environment import action_mask_of, is_outside_jax, plays_greedily, step_or_stay
from rljax.core.errors import check_bool_or_none, check_whole
from rljax.core.games.versus import advance_carry
from rljax.core.host import failures_explained
from rljax.core.keys import as_single_key, draw
from rljax.core.memory import check_memory, tree_bytes

MAX_EVALUATION_STEPS = 27_000
"""Largest number of steps of an evaluated episode; a longer one is cut and counts with its return so far. This is Atari's limit
of frames, divided by 4 (Machado et al., "Revisiting the Arcade Learning Environment", 2018).
"""


class EpisodeResults(NamedTuple):
    """Evaluated episodes: returns f32 and lengths i32 up to the end or the cut, and whether each ended, bool, each
    `[num_episodes]`.

    Episodes that were cut count, because where a good policy plays long they are the best ones. `distinct`, i32 [], is the number
    of games that differ from all before them in the agent's observations and actions; None for environments of one agent.
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
    """Play whole episodes and return their undiscounted returns, f32 `[num_episodes]`, of true rewards (not clipped or
    normalised).

    Each environment plays exactly one episode from start to end, so short episodes count no more than long ones. Running
    statistics of normalisers do not change. Pure: works under jit and vmap.

    Args:
        agent: an agent from `make_agent`.
        state: the agent's state, unbatched.
        key: random key; with the same agent, state and key, the episodes are the same.
        num_episodes: number of episodes.
        deterministic: whether to take the policy's most likely action (greedy) instead of a sample; if None, greedy unless the
            environment declares `best_is_random`.
        max_steps: cut an episode after this many steps; it counts with its return so far.

    Raises:
        ConfigError: `num_episodes` or `max_steps` is not a whole number above 0, `deterministic` is no bool, or the state is not
            one of the agent's.
        RljaxError: a simulator outside JAX failed.
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
    """Do `evaluate`, and return lengths, which episodes ended, and the number of distinct games, too."""
    check_agent(agent)
    check_whole(1, num_episodes=num_episodes, max_steps=max_steps)
    check_bool_or_none(deterministic=deterministic)
    env, env_params = make_evaluation_env(agent.config)
    with failures_explained(), state_explained(agent, state):
        check_own_act(agent, state)
        results = _play(agent, env, env_params, state, key, num_episodes, plays_greedily(env, deterministic), max_steps)
        if is_outside_jax(env) and not isinstance(results.returns, jax.core.Tracer):
            jax.block_until_ready(results)  # what fails outside JAX fails here
        return results


def _play(
    agent: Agent, env: Any, env_params: Any, state: Any, key: jax.Array, num_episodes: int, greedy: bool, max_steps: int
) -> EpisodeResults:
    """Do `play_episodes` in an environment of `make_evaluation_env`."""
    one = jax.eval_shape(lambda: initial_environments(env, env_params, jax.random.key(0), 1))
    check_memory(num_episodes * tree_bytes(one), f"num_episodes = {num_episodes}: playing so many at once", "play fewer")
    reset_key, loop_key = jax.random.split(as_single_key(key))
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
        action, after = agent.act(state, obs, carry, act_key, greedy, mask)
        carry = advance_carry(jax.vmap(env.env.own_moves)(env_state.env_state), carry, after) if games else after
        keys = draw(jax.random.split, env_key, (num_episodes, 2))
        obs, env_state, reward, terminated, truncated, info = jax.vmap(
            lambda k, o, s, a: step_or_stay(env, k, o, s, a, env_params)
        )(keys[:, 0], obs, env_state, action)
        if games:
            longer = jax.vmap(lambda *x: fingerprint(*x[1:], after=x[0]))(prints, action, reward, info["final_observation"])
            prints = jnp.where(results.ended[:, None], prints, longer)
        results = EpisodeResults(
            jnp.where(results.ended, results.returns, info["episode_return"]),
            jnp.where(results.ended, results.lengths, info["episode_length"]),
            results.ended | terminated | truncated,
            None,
        )
        # The carry after a slot's episode is not used, because what follows does not count.
        return time + 1, env_state, obs, carry, prints, results

    mask = jax.eval_shape(jax.vmap(lambda s: action_mask_of(env, s, env_params)), env_state)
    carry = initial_carry(agent, state, obs, mask)
    prints = jax.vmap(fingerprint)(obs) if games else None
    start = (jnp.zeros((), jnp.int32), env_state, obs, carry, prints, results)
    *_, prints, results = jax.lax.while_loop(running, step, start)
    if prints is None:
        return results
    return results._replace(distinct=jnp.sum(first_occurrences(prints), dtype=jnp.int32))
