"""Kinds of resets: fresh states are distributed as those of `reset_env`, and are made as rarely as is said."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import rljax
from rljax.algos.common.policy import policy_rollout
from rljax.algos.ppo import ppo_parts
from rljax.collect.environments import make_training_env
from rljax.collect.evaluation import play_episodes
from rljax.collect.resets import choose_resets, describe_resets, environment_noise, fresh_episodes, fresh_pool, reset_cost
from rljax.core.environments.environment import Environment
from rljax.core.environments.spaces import Box, Discrete
from rljax.core.operations import count_operations
from rljax.envs import env_ids, game_ids, make_env
from tests.run.tiny_runs import TINY
from tests.run.tiny_teacher import ready

SIZE, WORK = 1024, 20


@struct.dataclass
class World:
    place: jax.Array
    map: jax.Array
    time: jax.Array


class Dear(Environment):
    """Each episode has a map that takes a hundred times a step to make, and ends after one to four steps."""

    def observation_space(self, params: Any) -> Box:
        return Box(0.0, 1.0, (2,))

    def action_space(self, params: Any) -> Discrete:
        return Discrete(2)

    def _obs(self, state: World) -> jax.Array:
        return jnp.stack([state.place, state.map[0]])

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, World]:
        place_key, map_key = jax.random.split(key)
        drawn = jax.random.uniform(map_key, (SIZE,))
        drawn = jax.lax.fori_loop(0, WORK, lambda _, x: x * 3.7 * (1.0 - x) / (1.0 + 1e-6), drawn)
        state = World(jax.random.uniform(place_key), jnp.clip(drawn, 0.0, 1.0), jnp.zeros((), jnp.int32))
        return self._obs(state), state

    def step_env(self, key: jax.Array, state: World, action: jax.Array, params: Any) -> Any:
        state = state.replace(time=state.time + 1, map=state.map * 1.0)
        return self._obs(state), state, state.place, jax.random.bernoulli(key, 0.4), {}

    def is_truncated(self, state: World, params: Any) -> jax.Array:
        return state.time >= 4


def begun(kind: str, num_steps: int, num_envs: int, seed: int, count: int | None = None) -> np.ndarray:
    """Return the place of the fresh state of each step and environment, `[T, N]`. No two fresh states have the same place."""
    env = Dear()
    config = rljax.PPOConfig(env=env, num_envs=num_envs, num_steps=num_steps, reset=kind, reset_states=count)
    noise = environment_noise(env, None, jax.random.key(seed), num_steps, num_envs, config)
    pool = fresh_pool(env, None, noise)
    return np.asarray(jax.lax.scan(lambda _, n: (None, fresh_episodes(env, None, n, pool)[1].place), None, noise)[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "count", "in_all", "in_a_step"),
    [
        ("each", None, 32 * 64, 64),
        ("pool", None, 64, 64),
        ("pool", 9, 9, 9),
        ("optimistic", None, 32 * 4, 4),
        ("optimistic", 7, 32 * 7, 7),
    ],
)
def test_as_many_states_are_fresh_as_is_said(kind: str, count: int | None, in_all: int, in_a_step: int) -> None:
    places = begun(kind, 32, 64, 0, count)
    assert len(np.unique(places)) == in_all
    assert max(len(np.unique(row)) for row in places) <= in_a_step


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pool", "optimistic"])
def test_every_rollout_has_states_of_its_own(kind: str) -> None:
    first, second = begun(kind, 8, 32, 0), begun(kind, 8, 32, 1)
    assert not np.intersect1d(first, second).size


@pytest.mark.parametrize("kind", ["pool", "optimistic"])
def test_no_episode_begins_with_the_key_that_says_which_state_is_shared(kind: str) -> None:
    config = rljax.PPOConfig(env=Dear(), num_envs=4, num_steps=4, reset=kind, reset_states=2)
    noise = environment_noise(Dear(), None, jax.random.key(3), 4, 4, config)
    assert noise.reset_key is not None
    drawn = jax.vmap(lambda key: jax.random.randint(key, (4, 4), 0, 2))(noise.reset_key.reshape(-1))
    assert not (drawn == noise.which).all((1, 2)).any()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["each", "pool", "optimistic"])
def test_starts_are_distributed_as_those_of_reset_env(kind: str) -> None:
    """The places of the episodes that training begins are uniform, and one environment's do not depend on when it ended."""
    config = rljax.PPOConfig(
        env=Dear(), num_envs=64, num_steps=16, num_minibatches=1, num_epochs=1, reset=kind, total_timesteps=64 * 16
    )
    agent = rljax.make_agent(config)

    def starts(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        parts = ppo_parts(config)
        state = agent.init(key)
        _, steps = policy_rollout(parts, state, state.params)
        done = steps.terminated | steps.truncated
        return jnp.where(done[:-1], steps.obs[1:, :, 0], jnp.nan), steps.episode_length[:-1]

    places, lengths = map(np.asarray, jax.jit(jax.vmap(starts))(jax.random.split(jax.random.key(0), 40)))
    # Shared states are no independent draws: one place for each distinct state.
    found = np.unique(places[~np.isnan(places)])
    assert len(found) > (2_000 if kind != "pool" else 1_500)
    counts = np.histogram(found, 10, (0.0, 1.0))[0]
    assert ((counts - len(found) / 10) ** 2 / (len(found) / 10)).sum() < 33.7, "chi-square of 9 degrees, 1e-4"
    # All starts, shared ones weighted as often as they were used: their mean is that of the uniform distribution.
    every = places[~np.isnan(places)]
    assert abs(every.mean() - 0.5) < 6 * np.sqrt(1 / 12 / len(found))
    after = lengths[~np.isnan(places)]
    assert abs(np.corrcoef(every, after)[0, 1]) < 6 / np.sqrt(len(found))


def operations(**changes: Any) -> int:
    config = rljax.PPOConfig(
        env=Dear(), num_envs=32, num_steps=16, num_minibatches=1, num_epochs=1, total_timesteps=32 * 16, **changes
    )
    agent = rljax.make_agent(config)
    return count_operations(agent.step, jax.eval_shape(agent.init, jax.random.key(0)))


def test_shared_resets_save_the_work() -> None:
    """In operations of a whole iteration: a reset is about a hundred times a step."""
    reset, step = reset_cost(Dear(), None)
    assert 20 < reset / step < 400
    each, pool, optimistic = (operations(reset=kind) for kind in ("each", "pool", "optimistic"))
    assert each - pool == pytest.approx((32 * 16 - 32) * reset, rel=0.05)
    assert each - optimistic == pytest.approx((32 * 16 - 2 * 16) * reset, rel=0.05)
    assert operations() == optimistic, "that is what is chosen where a reset is dear"


def test_evaluation_resets_nothing_but_the_start() -> None:
    agent = rljax.make_agent(rljax.PPOConfig(env=Dear()))
    state = jax.eval_shape(agent.init, jax.random.key(0))
    total = count_operations(lambda s, k: play_episodes(agent, s, k, 50).returns, state, jax.random.key(0))
    assert total < 1.2 * 50 * reset_cost(Dear(), None).reset


@pytest.mark.slow
def test_one_episode_of_each_is_evaluated() -> None:
    agent = rljax.make_agent(rljax.PPOConfig(env=Dear()))
    state = agent.init(jax.random.key(0))
    results = jax.jit(lambda k: play_episodes(agent, state, k, 50))(jax.random.key(1))
    assert results.ended.all()
    assert (np.asarray(results.lengths) >= 1).all()
    assert (np.asarray(results.lengths) <= 4).all()
    # The reward is the place, which stays the same within an episode.
    places = np.asarray(results.returns) / np.asarray(results.lengths)
    assert len(np.unique(np.round(places, 5))) == 50


@pytest.mark.slow
def test_own_environments_and_games_are_cheap_to_begin() -> None:
    """So their runs are what they were before shared resets; MicroRTS's map is read and not made. Only a maze is drawn anew."""
    dear = [env_id for env_id in [*env_ids(), *game_ids()] if reset_cost(*make_env(env_id)).matters]
    assert dear == ["Maze-v0"]


@pytest.mark.parametrize("kind", ["pool", "optimistic"])
@pytest.mark.parametrize(
    "name",
    [
        "ppo",
        "dqn",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("sac", "pqn", "impala", "iql", "self_play", "league", "alphazero")
        ),
    ],
)
def test_every_learner_takes_them(name: str, kind: str) -> None:
    config = ready(TINY[name]).replace(reset=kind)
    agent = rljax.make_agent(config)
    before = jax.eval_shape(agent.init, jax.random.key(0))
    after, _ = jax.eval_shape(agent.step, before)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), before)


def test_dear_resets_are_optimistic_and_cheap_ones_have_no_line() -> None:
    env = Dear()
    few, many = (rljax.PPOConfig(env=env, num_envs=n, num_steps=128) for n in (4, 64))
    assert choose_resets(few, env, None, 128, 4)[:2] == ("optimistic", 1)
    assert choose_resets(many, env, None, 128, 64)[:2] == ("optimistic", 4)
    line = describe_resets(many, *make_training_env(many))
    assert line is not None
    assert line.startswith("resets: optimistic, 4 a step; a reset costs as many operations as ")
    assert describe_resets(rljax.PPOConfig(), *make_training_env(rljax.PPOConfig())) is None
    said = rljax.PPOConfig(reset="pool")
    assert str(describe_resets(said, *make_training_env(said))).startswith("resets: pool of 4 for a rollout; ")
    for every, pool in ((1, "pool of 1 for each turn of 1 step; "), (16, "pool of 8 for each turn of 16 steps; ")):
        replayed = rljax.DQNConfig(reset="pool", num_envs=8, num_steps=32, train_every=every)
        noise = environment_noise(*make_training_env(replayed), jax.random.key(0), every, 8, replayed, 32 // every)
        assert str(describe_resets(replayed, *make_training_env(replayed))).startswith(f"resets: {pool}")
        assert f"pool of {noise.pool} " in pool


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reset": "pool", "reset_states": 5}, "reset_states = 5: expected at most num_envs = 4"),
        ({"reset": "optimistic", "reset_states": 5}, "reset_states = 5: expected at most num_envs = 4"),
        ({"reset": "each", "reset_states": 2}, "reset_states = 2: expected none with reset = 'each'"),
    ],
)
def test_numbers_of_states_that_would_be_cut_or_ignored_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(rljax.ConfigError, match=message):
        rljax.PPOConfig(num_envs=4, **changes)
    assert rljax.PPOConfig(num_envs=4, reset="pool", reset_states=4).reset_states == 4


class Uneven(Dear):
    """Half of the episodes last one step, the others sixteen."""

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, World]:
        state = World(jax.random.bernoulli(key).astype(jnp.float32), jnp.zeros(1), jnp.zeros((), jnp.int32))
        return self._obs(state), state

    def step_env(self, key: jax.Array, state: World, action: jax.Array, params: Any) -> Any:
        state = state.replace(time=state.time + 1)
        return self._obs(state), state, 1.0, state.time >= jnp.where(state.place > 0, 16, 1), {}

    def is_truncated(self, state: World, params: Any) -> jax.Array:
        return jnp.asarray(False)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("each", None), ("optimistic", 1), ("optimistic", 4)])
def test_starts_are_as_likely_whatever_the_length_of_their_episodes(kind: str, count: int | None) -> None:
    """A pool cannot say so: its states begin again, those of short episodes more often."""
    config = rljax.PPOConfig(
        env=Uneven(), num_envs=8, num_steps=128, num_minibatches=1, num_epochs=1, total_timesteps=64 * 1024, reset=kind,
        reset_states=count, network={"hidden": [4]},
    )  # fmt: skip
    metrics = jax.jit(rljax.make_train(config))(jax.random.key(0)).metrics
    episodes = float(metrics["episode/count"].sum())
    long = float(np.nansum((metrics["episode/length"] - 1) / 15 * metrics["episode/count"])) / episodes
    assert episodes > 5_000
    assert abs(long - 0.5) < 0.04


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(rljax.ConfigError, match="reset = 'never': expected one of 'auto', 'each', 'pool', 'optimistic'"):
        rljax.PPOConfig(reset="never")
    with pytest.raises(rljax.ConfigError, match="reset_states = 0: expected a whole number > 0"):
        rljax.PPOConfig(reset_states=0)
