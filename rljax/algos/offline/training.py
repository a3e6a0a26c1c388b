"""The loop of the offline algorithms: gradient steps on a dataset, and online also on steps of the environment.

An iteration reads all its batches from the dataset at once. Online, each turn steps the environments first. A batch then has a
share of the dataset's transitions and the rest from the replay buffer; the share falls as the buffer fills, as if it held the
dataset from the beginning (Nair et al., 2020; Kostrikov et al., 2021), or is fixed (Ball et al., "Efficient online reinforcement
learning with offline data", 2023).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.algos.common.feed import demonstrated, make_feed
from rljax.algos.common.off_policy import (
    FLAT,
    can_learn,
    collect_to_replay,
    normalized_n_step,
    run_turns,
    transition_example,
    update_loop,
    with_episode_sums,
)
from rljax.algos.common.optimizer import annealed
from rljax.algos.common.soft_policy import Choice
from rljax.algos.common.state import normalize_obs
from rljax.algos.offline.parts import OfflineParts, dataset_batch
from rljax.collect.demos import Dataset, observation_statistics, open_fitting
from rljax.collect.replay import NStep, read_apart, sample_windows
from rljax.collect.resets import environment_noise
from rljax.collect.rollout import EpisodeSums
from rljax.core.agent import Act, Agent, Metrics
from rljax.core.config import env_name
from rljax.core.devices import over_devices
from rljax.core.environments.environment import tree_where
from rljax.core.errors import ConfigError
from rljax.core.keys import draw


class Learner(NamedTuple):
    """Functions of one algorithm, which the shared loop calls.

    Attributes:
        init: `key -> state`.
        update: `(state, batch, noise) -> (state, metrics)`, a gradient step on a batch `[B, ...]`.
        explore: `(params, obs, mask, noise) -> action` as the buffer keeps it, for normalised observations.
        to_env: from such an action to one that the environment takes.
        act_noise: `(key, shape) -> noise` of `explore`, with these leading axes.
        update_noise: `(key, shape) -> noise` of `update`, with these leading axes; None without.
        act: the policy.
    """

    init: Callable[[jax.Array], Any]
    update: Callable[[Any, NStep, Any], tuple[Any, Metrics]]
    explore: Callable[[Any, Any, jax.Array | None, Any], jax.Array]
    to_env: Callable[[jax.Array], Any]
    act_noise: Callable[[jax.Array, tuple[int, ...]], Any]
    update_noise: Callable[[jax.Array, tuple[int, ...]], Any]
    act: Act


def no_noise(_key: jax.Array, _shape: tuple[int, ...]) -> None:
    """Return the `update_noise` of an algorithm that needs none."""


class _Turns(NamedTuple):
    """Random numbers and data of turns, arrays `[turns, ...]`.

    Attributes:
        data: batches of the dataset, `[turns, updates_per_step, batch_size, ...]`; None without a dataset.
        update: noise of `Learner.update`.
        act: noise of `Learner.explore`; None offline, like all below.
        env: noise of the environments.
        sample: bits u32 `[turns, updates_per_step, 2, batch_size]`: which step of the buffer, and whether the dataset's instead.
    """

    data: Any
    update: Any
    act: Any = None
    env: Any = None
    sample: Any = None


def offline_agent(parts: OfflineParts, learner: Learner) -> Agent:
    """Return the agent of an offline algorithm. Its dataset is opened when it first trains: to act, it needs none."""
    config = parts.config

    @functools.cache
    def dataset() -> Dataset | None:
        if config.online and config.dataset is None:
            return None
        found = open_fitting(config, parts.env, parts.env_params)
        _check_masks(parts, found)
        return found

    @functools.cache
    def feed() -> Callable[[jax.Array], Any]:
        found, count = dataset(), config.turns * config.updates_per_step
        assert found is not None
        return make_feed(found.batches(config.batch_size, count=count, seed=config.seed))

    @functools.cache
    def statistics() -> Any:
        found = dataset()
        return None if found is None else observation_statistics(found)

    def step(state: Any) -> tuple[Any, Metrics]:
        found = dataset()
        steps: Any = None if found is None else feed()(state.iteration)
        if state.obs_statistics is not None and found is not None:
            # A run that begins with another one's policy keeps what that normalises by.
            known = state.obs_statistics.count > 0
            state = state.replace(obs_statistics=tree_where(known, state.obs_statistics, statistics()))
        before, turns = _turns(parts, learner, state, steps)
        size = 0 if found is None else found.num_steps
        after, metrics = run_turns(
            before,
            turns,
            lambda state, turn: _collect(parts, learner, state, turn),
            lambda state, turn: _update(parts, learner, state, turn, size),
            FLAT,
        )
        if found is not None and not config.online:
            metrics |= demonstrated(found, steps)
        return after, metrics | {"train/learning_rate": annealed(config, state.iteration)}

    return Agent(learner.init, step, learner.act, config, data=lambda: "" if (found := dataset()) is None else found.digest)


def _check_masks(parts: OfflineParts, dataset: Dataset) -> None:
    """Refuse a dataset that has legal actions where the environment has none, or the other way round."""
    masks = transition_example(parts.env, parts.env_params, None).next_mask is not None
    if masks != dataset.info.masks:
        which = ("without", "with") if masks else ("with", "without")
        raise ConfigError(
            f"dataset = {str(dataset.path)!r}: was recorded {which[0]} legal actions, but env = {env_name(parts.config)!r} is "
            f"{which[1]} them"
        )


def _turns(parts: OfflineParts, learner: Learner, state: Any, steps: Any) -> tuple[Any, _Turns]:
    """Draw what is random in the turns of an iteration, and give each its batches of the dataset."""
    config = parts.config
    key, act_key, env_key, sample_key, update_key = jax.random.split(state.key, 5)
    shape = (config.turns, config.updates_per_step)
    data = None if steps is None else jax.tree.map(lambda x: jnp.reshape(x, (*shape, *x.shape[1:])), steps)
    turns = _Turns(data, learner.update_noise(update_key, shape))
    if config.online:
        every = config.train_every
        turns = turns._replace(
            act=learner.act_noise(act_key, (config.turns, every, config.num_envs)),
            env=environment_noise(parts.env, parts.env_params, env_key, every, config.num_envs, config, config.turns),
            sample=draw(jax.random.bits, sample_key, (*shape, 2, config.batch_size)),
        )
    return state.replace(key=key), turns


def _collect(parts: OfflineParts, learner: Learner, state: Any, turn: _Turns) -> tuple[Any, EpisodeSums]:
    """Step the environments `train_every` times and add the steps to the buffer; offline do nothing."""
    if not parts.config.online:
        return state, EpisodeSums(jnp.zeros(3))

    def act(obs: Any, _: None, mask: jax.Array | None, noise: Any) -> tuple[Any, None]:
        return Choice(learner.explore(state.params, normalize_obs(state, obs), mask, noise), mask), None

    def to_env(choice: Any) -> Any:
        return learner.to_env(choice.action)

    after, steps = collect_to_replay(parts.config, parts.env, parts.env_params, act, to_env, state, turn.act, turn.env)
    if turn.data is not None:
        # Observations stay normalised as they were while the critics learned from the dataset.
        after = after.replace(obs_statistics=state.obs_statistics)
    return with_episode_sums(after, steps)


def _update(parts: OfflineParts, learner: Learner, state: Any, turn: _Turns, size: int) -> tuple[Any, Metrics]:
    """Take `updates_per_step` gradient steps; `size` is the number of steps of the dataset, 0 without one."""
    config = parts.config
    learns, own = None, None
    if config.online:
        replay, ready = state.replay, can_learn(config, state.replay)
        learns = None if size else ready
        share = dataset_share(config, state, size)

        def sampled(bits: jax.Array) -> NStep:
            batch = normalized_n_step(config, state, sample_windows(replay, bits.reshape(-1)), 1)
            return batch._replace(reward=config.reward_scale * batch.reward)

        own = read_apart(sampled, turn.sample[:, 0], ready)

    def batch_of(i: jax.Array) -> NStep:
        ours = None if own is None else jax.tree.map(lambda x: x.reshape(config.updates_per_step, -1, *x.shape[1:])[i], own)
        if turn.data is None:
            assert ours is not None
            return ours
        batch = dataset_batch(parts, state, jax.tree.map(lambda x: x[i], turn.data))
        if ours is None:
            return batch
        recorded = (turn.sample[i, 1] >> 8) * jnp.float32(2.0**-24) < share
        return jax.tree.map(lambda x, y: jnp.where(recorded.reshape(-1, *(1,) * (x.ndim - 1)), x, y), batch, ours)

    def update(i: jax.Array, state: Any, _: None) -> tuple[Any, Metrics]:
        return learner.update(state, over_devices(batch_of(i)), jax.tree.map(lambda x: x[i], turn.update))

    after, metrics = update_loop(learns, config.updates_per_step, update, state, FLAT)
    return after, metrics | ({"train/dataset_share": share} if config.online else {})


def dataset_share(config: Any, state: Any, size: int) -> jax.Array:
    """Return the share of a batch that comes from a dataset of `size` steps, f32 []: all of it until the buffer holds
    `learning_starts` steps, then `config.dataset_share`, or that of the dataset in both together."""
    if not size:
        return jnp.zeros(())
    held = jnp.asarray(state.replay.size * config.num_envs, jnp.float32)
    share = size / (size + held) if config.dataset_share is None else jnp.asarray(config.dataset_share, jnp.float32)
    return jnp.where(can_learn(config, state.replay), share, 1.0)
