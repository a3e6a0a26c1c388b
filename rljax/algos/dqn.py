"""Deep Q-learning (Mnih et al., 2015) with the parts of Rainbow (Hessel et al., 2018) that pay most: double Q-learning
(van Hasselt et al., 2016), duelling heads, n-step targets and prioritised replay.

One turn is `dqn_collect` then `dqn_update`; both are public, so a user can own the loop:

    parts = dqn_parts(config)
    state = dqn_init(parts, key)
    state, noise = dqn_noise(parts, state)
    state, steps = dqn_collect(parts, state, noise)
    state, metrics = dqn_update(parts, state, noise)

After the `num_steps / train_every` turns of an iteration, it adds 1 to `state.iteration`, which all schedules follow.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import FrozenDict

from rljax.algos.common.config import EpsilonConfig
from rljax.algos.common.losses import huber_value_loss
from rljax.algos.common.off_policy import (
    FLAT,
    OffPolicyConfig,
    can_learn,
    check_replay_memory,
    collect_to_replay,
    normalized_n_step,
    run_turns,
    transition_example,
    update_loop,
    update_target,
    with_episode_sums,
)
from rljax.algos.common.optimizer import adam, annealed
from rljax.algos.common.q_learning import (
    QNetwork,
    check_discrete,
    dqn_target,
    epsilon_at,
    epsilon_greedy,
    exploring_noise,
    make_q_network,
    q_act,
    q_values,
)
from rljax.algos.common.state import NormalizedState, initial_fields, normalize_obs
from rljax.collect.environments import make_training_env
from rljax.collect.minibatches import gradient_step, init_optimizer
from rljax.collect.replay import (
    NStep,
    Places,
    Priorities,
    Replay,
    add_priorities,
    importance_weights,
    init_priorities,
    init_replay,
    num_windows,
    sample_priorities,
    sample_windows,
    update_priorities,
)
from rljax.collect.resets import EnvironmentNoise, environment_noise
from rljax.collect.rollout import Steps
from rljax.core.agent import Agent, Metrics, register_agent
from rljax.core.config import MIN_DIVISOR, algorithm, leaf, static
from rljax.core.devices import over_devices
from rljax.core.errors import ConfigError
from rljax.core.keys import draw
from rljax.core.state import buffer, copy_of_params
from rljax.nn.modules.classes import entry_of


@algorithm("dqn")
class DQNConfig(OffPolicyConfig, EpsilonConfig):
    """Deep Q-learning for discrete actions."""

    network: Any = static(
        default=FrozenDict(),
        doc="{ hidden = [64, 64], activation = 'relu', layer_norm = false }, with encoder = 'cnn' for images, or a Module",
    )
    epsilon_steps: float = leaf(default=10_000.0, doc="environment steps over which epsilon decreases linearly", ge=MIN_DIVISOR)
    double: bool = static(
        default=False, doc="double Q-learning: choose the next action by the online network and evaluate it by the target network"
    )
    dueling: bool = static(default=False, doc="duelling network: the last layer gives the value and the advantages")
    n_step: int = static(default=1, doc="number of rewards in a target before it bootstraps", gt=0)
    huber_delta: float | None = leaf(
        default=1.0, doc="the loss is linear for errors beyond this (Huber); none: squared loss", gt=0
    )
    prioritized: bool = static(default=False, doc="prioritised replay: sample transitions in proportion to their last error")
    priority_alpha: float = leaf(default=0.6, doc="exponent of the errors in the priorities; 0 samples uniformly", ge=0, le=4)
    priority_beta: float = leaf(default=0.4, doc="initial exponent of the importance weights; it rises to 1", ge=0, le=1)

    @property
    def window(self) -> int:
        return self.n_step


class DQNParts(NamedTuple):
    """Environment and network of a configuration, built once."""

    config: DQNConfig
    env: Any
    env_params: Any
    network: QNetwork


class DQNState(NormalizedState, kw_only=True):
    """State of a DQN run.

    Attributes:
        target_params: parameters of the target network.
        updates: number of gradient steps so far, i32 [].
        replay: the buffer.
        priorities: priorities of its rows; None without prioritised replay.
    """

    target_params: Any = copy_of_params(lambda params, _: params)
    updates: jax.Array
    replay: Replay = buffer()
    priorities: Priorities | None = buffer(depends_on=("priority_alpha", "n_step"))


class DQNNoise(NamedTuple):
    """Random numbers of one turn, or of several turns with a leading axis.

    Attributes:
        action: uniform numbers f32 `[train_every, N, 2]`, for `epsilon_greedy`.
        env: noise of the environments, `[train_every, N, ...]`.
        sample: bits u32 `[updates_per_step, batch_size]`.
        step: i32 [], steps per environment taken since the iteration began.
    """

    action: jax.Array
    env: EnvironmentNoise
    sample: jax.Array
    step: jax.Array


def dqn_parts(config: DQNConfig) -> DQNParts:
    """Build environment and network.

    Raises:
        ConfigError: environment or network do not fit the algorithm or each other, or the buffer cannot fit the device.
    """
    env, env_params = make_training_env(config)
    num_actions = check_discrete("DQN", env, env_params)
    example = transition_example(env, env_params, jax.ShapeDtypeStruct((), jnp.int32))
    check_replay_memory(config, example)
    if config.dueling and isinstance(config.network, nn.Module):
        raise ConfigError("dueling = true: needs a network given as a table; a Module is used as it is")
    network = make_q_network(config.network, num_actions, example.obs, config.dtype, dueling=config.dueling)
    return DQNParts(config, env, env_params, network)


def dqn_init(parts: DQNParts, key: jax.Array) -> DQNState:
    """The state before the first iteration."""
    config = parts.config
    params_key, fields = initial_fields(config, parts.env, parts.env_params, key)
    params = parts.network.module.init(params_key, fields["obs"])
    example = transition_example(parts.env, parts.env_params, jax.ShapeDtypeStruct((), jnp.int32))
    return DQNState(
        params=params,
        target_params=jax.tree.map(jnp.copy, params),
        opt_state=init_optimizer(adam(config), params),
        updates=jnp.zeros((), jnp.int32),
        replay=init_replay(example, config.buffer_rows, config.num_envs, config.replay_memory == "host"),
        priorities=init_priorities(config.buffer_rows, config.num_envs) if config.prioritized else None,
        **fields,
    )


def dqn_noise(parts: DQNParts, state: DQNState, turns: int | None = None) -> tuple[DQNState, DQNNoise]:
    """Draw what is random in the next turn, or in the next `turns` ones (with a leading axis), in as few calls as can be."""
    config = parts.config
    key, action_key, env_key, sample_key = jax.random.split(state.key, 4)
    count, every = turns or 1, config.train_every
    noise = DQNNoise(
        action=exploring_noise(action_key, (count, every, config.num_envs)),
        env=environment_noise(parts.env, parts.env_params, env_key, every, config.num_envs, config, count),
        sample=draw(jax.random.bits, sample_key, (count, config.updates_per_step, config.batch_size)),
        step=jnp.arange(count) * every,
    )
    return state.replace(key=key), jax.tree.map(lambda x: x[0], noise) if turns is None else noise


def dqn_collect(parts: DQNParts, state: DQNState, noise: DQNNoise) -> tuple[DQNState, Steps]:
    """Step the environments `train_every` times, epsilon-greedily, and add the steps to the buffer."""
    config = parts.config

    def act(obs: Any, _: None, mask: jax.Array | None, noise_t: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        numbers, epsilon = noise_t
        return epsilon_greedy(q_values(parts.network, state.params, normalize_obs(state, obs)), epsilon, numbers, mask), None

    step = noise.step + jnp.arange(config.train_every)
    epsilon = epsilon_at(config, state.iteration, step)
    state, steps = collect_to_replay(
        config, parts.env, parts.env_params, act, lambda action: action, state, (noise.action, epsilon), noise.env
    )
    if state.priorities is not None:
        priorities = add_priorities(state.priorities, state.replay, config.train_every, config.n_step)
        state = state.replace(priorities=priorities)
    return state, steps


def dqn_update(parts: DQNParts, state: DQNState, noise: DQNNoise) -> tuple[DQNState, Metrics]:
    """`updates_per_step` gradient steps on samples of the buffer, each followed by the target network's move.

    While the buffer holds fewer than `learning_starts` transitions nothing changes.

    Returns:
        The next state, and metrics `train/...`: means over the gradient steps, 0 where none was taken.
    """
    config, network, optimizer = parts.config, parts.network, adam(parts.config)
    replay, rate = state.replay, annealed(config, state.iteration)

    def sampled(places: Places) -> NStep:
        return normalized_n_step(config, state, places, config.n_step)

    # Where the target network moves at most once a turn, after its last update, one product gives its values for all of them. (A
    # fork with other numbers may have it move within the turn; updates then see the move from the next turn on.)
    still = config.updates_per_step > 1 and config.target_update_every % config.updates_per_step == 0

    def uniform(zero: jax.Array, state: DQNState) -> tuple[NStep, jax.Array | None] | None:
        # One gather for all gradient steps; with priorities, each sample depends on the errors of the previous step.
        if config.prioritized:
            return None
        batch = sampled(sample_windows(replay, noise.sample.reshape(-1) + zero, config.n_step))
        return batch, q_values(network, state.target_params, batch.next_obs) if still else None

    def update(i: jax.Array, state: DQNState, samples: tuple[NStep, jax.Array | None] | None) -> tuple[DQNState, Metrics]:
        priorities, updates = state.priorities, state.updates + 1
        if priorities is None:
            batch, next_q = jax.tree.map(lambda x: x.reshape(config.updates_per_step, -1, *x.shape[1:])[i], samples)
            weight = None
        else:
            places, probability = sample_priorities(priorities, (noise.sample[i] >> 8) * jnp.float32(2.0**-24))
            batch, next_q = sampled(places), None
            weight = importance_weights(probability, num_windows(replay, config.n_step), beta_at(config, state.iteration))
        batch, next_q = over_devices((batch, next_q))
        if next_q is None:
            next_q = q_values(network, state.target_params, batch.next_obs)
        target = dqn_target(batch, next_q, q_values(network, state.params, batch.next_obs) if config.double else next_q)

        def loss_fn(params: Any) -> tuple[jax.Array, Metrics]:
            loss, error, metrics = dqn_loss(parts, params, batch, target, weight)
            return loss, metrics | {"error": error}

        params, opt_state, metrics = gradient_step(loss_fn, optimizer, state.params, state.opt_state, rate)
        error = metrics.pop("error")
        if priorities is not None:
            priorities = update_priorities(priorities, places, (jnp.abs(error) + 1e-6) ** config.priority_alpha)
        target_params = update_target(config, state.target_params, params, updates)
        state = state.replace(
            params=params, target_params=target_params, opt_state=opt_state, updates=updates, priorities=priorities
        )
        return state, metrics

    return update_loop(can_learn(config, replay), config.updates_per_step, update, state, FLAT, uniform)


def dqn_loss(
    parts: DQNParts, params: Any, batch: NStep, target: jax.Array, weight: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, Metrics]:
    """The mean Huber (or half squared) loss of one sample, each transition times its importance weight.

    Returns:
        The loss f32 [], the errors `Q - target` f32 `[B]` and metrics.
    """
    q = entry_of(q_values(parts.network, params, batch.obs), batch.action)
    error = q - target
    losses = huber_value_loss(q, target, parts.config.huber_delta)
    # One reduction: on the CPU each costs a kernel or two.
    means = jnp.mean(jnp.stack([losses if weight is None else losses * weight, q, jnp.abs(error)]), axis=1)
    return means[0], error, {"train/value_loss": means[0], "train/value": means[1], "train/td_error": means[2]}


def beta_at(config: DQNConfig, iteration: jax.Array) -> jax.Array:
    """The exponent of the importance weights: rises linearly, to 1 in the last iteration."""
    progress = jnp.minimum((iteration + 1) / config.num_iterations, 1.0)
    return config.priority_beta + (1.0 - config.priority_beta) * progress


def make_dqn(config: DQNConfig) -> Agent:
    """The DQN agent of a configuration."""
    parts = dqn_parts(config)
    turns = config.num_steps // config.train_every

    def init(key: jax.Array) -> DQNState:
        return dqn_init(parts, key)

    def step(state: DQNState) -> tuple[DQNState, Metrics]:
        before, noise = dqn_noise(parts, state, turns)
        after, metrics = run_turns(
            before,
            noise,
            lambda state, noise: with_episode_sums(*dqn_collect(parts, state, noise)),
            lambda state, noise: dqn_update(parts, state, noise),
            FLAT,
        )
        metrics["train/learning_rate"] = annealed(config, state.iteration)
        metrics["train/epsilon"] = epsilon_at(config, state.iteration, jnp.int32(config.num_steps))
        return after, metrics

    return Agent(init, step, q_act(parts.network, config.epsilon_end), config)


register_agent(DQNConfig, make_dqn)
