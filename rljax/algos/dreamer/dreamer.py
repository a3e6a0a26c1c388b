"""DreamerV3 (Hafner et al., "Mastering diverse control tasks through world models", Nature 2025): a world model is learned from
replayed steps, actor and critic from what it imagines. R2-Dreamer (Morihira et al., 2026) is `representation = "r2dreamer"`.

One turn is `dreamer_collect` then `dreamer_update`; both are public, so a user can own the loop:

    parts = dreamer_parts(config)
    state = dreamer_init(parts, key)
    state, noise = dreamer_noise(parts, state)
    state, episodes = dreamer_collect(parts, state, noise.collect)
    state, metrics = dreamer_update(parts, state, noise.update)
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rljax.algos.common.off_policy import can_learn, polyak_update, run_turns, update_loop
from rljax.algos.common.optimizer import annealed
from rljax.algos.common.state import initial_fields, normalize_obs
from rljax.algos.dreamer.config import DreamerConfig
from rljax.algos.dreamer.laprop import adaptive_grad_clip, laprop, warmed_up
from rljax.algos.dreamer.losses import dreamer_loss, loss_noise
from rljax.algos.dreamer.memory import check_dreamer_memory, memory_line
from rljax.algos.dreamer.networks import encode, init_networks, make_networks
from rljax.algos.dreamer.openloop import openloop_metrics
from rljax.algos.dreamer.parts import (
    Arrival,
    CollectNoise,
    DreamerNoise,
    DreamerParts,
    DreamerState,
    PolicyCarry,
    UpdateNoise,
    target_of,
)
from rljax.algos.dreamer.replay import DreamerRow, replayed_normalized, row_example, stored_classes, write_latents
from rljax.algos.dreamer.representation import normalized_prototypes
from rljax.collect.environments import make_training_env
from rljax.collect.normalizers import init_return_normalizer, update_statistics
from rljax.collect.replay import add_rows, init_online_queue, init_replay, sample_online
from rljax.collect.resets import environment_noise, fresh_episodes, fresh_pool
from rljax.collect.rollout import EpisodeSums, episode_totals, metrics_of, steps_without_action
from rljax.core.agent import Agent, Metrics, register_agent
from rljax.core.devices import over_devices
from rljax.core.environments.environment import action_mask_of, following_episode, strong, tree_where
from rljax.core.environments.spaces import action_heads
from rljax.core.errors import ConfigError
from rljax.core.keys import draw
from rljax.nn.latent.rssm import Latent
from rljax.nn.modules.layers import product_dtype
from rljax.nn.outputs.actions import dreamer_head

TARGET_FRACTION = 0.05
"""How far DreamerPro's target moves in an update."""


def dreamer_parts(config: DreamerConfig) -> DreamerParts:
    """Build environment and networks.

    Raises:
        ConfigError: the environment's spaces do not fit, or the device cannot hold buffer and activations.
    """
    env, env_params = make_training_env(config)
    with jax.ensure_compile_time_eval():  # bounds that an environment computes are numbers under jit too
        head = dreamer_head(env.action_space(env_params))
    obs, env_state = jax.eval_shape(env.reset_env, jax.eval_shape(lambda: jax.random.key(0)), env_params)
    mask = jax.eval_shape(lambda s: action_mask_of(env, s, env_params), env_state)
    if mask is not None and mask.ndim > 1:
        raise ConfigError(f"what is legal in {env.name} depends on the actions of earlier heads; Dreamer's do not see each other")
    dtype, standardized = product_dtype(config.dtype), config.normalize_observations
    networks = make_networks(config.size, config.representation, obs, head, dtype, config.unroll, standardized)
    memory = check_dreamer_memory(config, networks, row_example(networks.rssm, obs, head.action))
    return DreamerParts(config, env, env_params, head, networks, obs, memory)


def _optimizer(config: DreamerConfig) -> optax.GradientTransformation:
    return optax.chain(adaptive_grad_clip(config.agc), laprop())


def dreamer_init(parts: DreamerParts, key: jax.Array) -> DreamerState:
    """The state before the first iteration."""
    config, count = parts.config, parts.config.num_envs
    params_key, fields = initial_fields(config, parts.env, parts.env_params, key)
    fields.pop("reward_statistics")
    params = init_networks(parts.networks, params_key, parts.obs)
    no = jnp.zeros(count, bool)
    return DreamerState(
        params=params,
        # Copies, as a donated state must not hold a buffer two times.
        slow_critic=jax.tree.map(jnp.copy, params["critic"]),
        target=jax.tree.map(jnp.copy, target_of(params)),
        opt_state=_optimizer(config).init(params),
        updates=jnp.zeros((), jnp.int32),
        returns=init_return_normalizer(),
        replay=init_replay(row_example(parts.networks.rssm, parts.obs, parts.head.action), config.buffer_rows, count),
        queue=init_online_queue(),
        arrival=Arrival(jnp.zeros(count), jnp.ones(count, bool), no, no.copy()),
        carry=PolicyCarry(parts.networks.rssm.initial((count,)), jnp.zeros((count, *parts.head.action.shape))),
        **fields,
    )


def dreamer_noise(parts: DreamerParts, state: DreamerState, turns: int | None = None) -> tuple[DreamerState, DreamerNoise]:
    """Draw what is random in the next turn, or in the next `turns` ones (with a leading axis), in as few calls as can be."""
    config, networks = parts.config, parts.networks
    every, updates, _ = config.schedule
    key, latent_key, action_key, env_key, sample_key, update_key = jax.random.split(state.key, 6)
    count = turns or 1
    shape = (count, every, config.num_envs)
    noise = DreamerNoise(
        CollectNoise(
            latent=draw(jax.random.uniform, latent_key, (*shape, networks.rssm.groups)),
            action=parts.head.noise(action_key, shape),
            env=environment_noise(parts.env, parts.env_params, env_key, every, config.num_envs, config, count),
        ),
        UpdateNoise(
            draw(jax.random.bits, sample_key, (count, updates, config.batch_size)),
            draw(jax.random.split, update_key, (count, updates)),
        ),
    )
    return state.replace(key=key), jax.tree.map(lambda x: x[0], noise) if turns is None else noise


def infer(parts: DreamerParts, params: Any, carry: PolicyCarry, obs: Any, is_first: jax.Array, uniform: jax.Array) -> Latent:
    """The state at observations `[..., *obs_shape]`, from what is remembered of the step before."""
    inputs = (encode(parts.networks, params, obs, is_first.ndim), carry.action, is_first, uniform)
    latents, _ = parts.networks.apply_rssm("observe", params, carry.latent, *(x[None] for x in inputs))
    return jax.tree.map(lambda x: x[0].astype(jnp.float32), latents)


def dreamer_collect(parts: DreamerParts, state: DreamerState, noise: CollectNoise) -> tuple[DreamerState, EpisodeSums]:
    """Step the environments K times and add the rows to the buffer.

    The last observation of an episode has a row of its own; the environment's next step is then its reset, which counts as a
    step.

    Returns:
        The state, and sums over the episodes that ended.
    """
    env, env_params, params = parts.env, parts.env_params, state.params
    nvec = action_heads(env, env_params)
    pool = fresh_pool(env, env_params, noise.env)

    def step(loop: Any, noise: CollectNoise) -> tuple[Any, tuple[DreamerRow, EpisodeSums]]:
        env_state, obs, arrival, carry = loop
        latent = infer(parts, params, carry, normalize_obs(state, obs), arrival.is_first, noise.latent)
        mask = jax.vmap(lambda s: action_mask_of(env, s, env_params))(env_state)
        distribution = parts.head.distribution(parts.networks.apply("actor", params, latent.feature), mask)
        action = parts.head.sample(distribution, noise.action)
        action = jnp.where(arrival.is_last[:, None], 0.0, action)
        row = DreamerRow(obs, action, **arrival._asdict(), deter=latent.deter, stoch=stored_classes(latent))
        fresh = fresh_episodes(env, env_params, noise.env, pool)
        next_obs, next_state, reward, terminated, info = jax.vmap(env.step_env, (0, 0, 0, None))(
            noise.env.step_key, env_state, parts.head.to_env(action), env_params
        )
        over = terminated | jax.vmap(env.is_truncated, (0, None))(next_state, env_params)
        # The raw step, and the reset one step later: the other way round would lose the last observation.
        resets, no = arrival.is_last, jnp.zeros_like(over)
        if fresh is None:
            fresh = jax.vmap(partial(following_episode, env))(noise.env.step_key, next_state, resets)
        obs, env_state = jax.vmap(tree_where)(resets, fresh, strong((next_obs, next_state)))
        stepped = Arrival(reward.astype(jnp.float32), no, over, terminated)
        arrival = jax.vmap(tree_where)(resets, Arrival(jnp.zeros_like(stepped.reward), ~no, no, no), stepped)
        without = None if mask is None else steps_without_action(mask, nvec=nvec, relevant=~resets)
        sums = episode_totals(over & ~resets, info["episode_return"], info["episode_length"], metrics_of(info), without)
        return (env_state, obs, arrival, PolicyCarry(latent, action)), (row, sums)

    (env_state, obs, arrival, carry), (rows, sums) = jax.lax.scan(
        step, (state.env_state, state.obs, state.arrival, state.carry), noise
    )
    queue = state.queue.replace(written=state.queue.written + rows.reward.shape[0])
    statistics = state.obs_statistics
    if statistics is not None:
        statistics = update_statistics(statistics, rows.obs)
    state = state.replace(
        env_state=env_state,
        obs=obs,
        arrival=arrival,
        carry=carry,
        replay=add_rows(state.replay, rows),
        queue=queue,
        obs_statistics=statistics,
    )
    return state, jax.tree.map(lambda x: jnp.sum(x, axis=0), sums)


def dreamer_update(parts: DreamerParts, state: DreamerState, noise: UpdateNoise) -> tuple[DreamerState, Metrics]:
    """U updates, each on sequences of the buffer; while it holds fewer than `learning_starts` steps nothing changes.

    Returns:
        The next state, and metrics `train/...`: means over the updates, 0 where none was made.
    """
    config, optimizer = parts.config, _optimizer(parts.config)

    def update(i: jax.Array, state: DreamerState, _: None) -> tuple[DreamerState, Metrics]:
        return _one_update(parts, optimizer, state, noise.sample[i], noise.key[i])

    return update_loop(can_learn(config, state.replay), noise.key.shape[0], update, state)


def _one_update(
    parts: DreamerParts, optimizer: optax.GradientTransformation, state: DreamerState, bits: jax.Array, key: jax.Array
) -> tuple[DreamerState, Metrics]:
    config = parts.config
    places, queue = sample_online(state.replay, state.queue, bits, config.batch_length)
    batch = over_devices(replayed_normalized(parts.networks.rssm, state, places, config.batch_length), 1)
    noise = loss_noise(parts, key)

    def loss_fn(params: Any) -> Any:
        return dreamer_loss(parts, params, state, batch, noise)

    (_, aux), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    directions, opt_state = optimizer.update(grads, state.opt_state, state.params)
    rate = warmed_up(annealed(config, state.iteration), state.updates, config.warmup)
    params = jax.tree.map(lambda p, d: p - rate * d, state.params, directions)
    if state.target is not None:
        params["prototypes"] = {"kernel": normalized_prototypes(params["prototypes"]["kernel"].T).T}
    state = state.replace(
        params=params,
        slow_critic=polyak_update(state.slow_critic, params["critic"], config.slow_fraction),
        target=None if state.target is None else polyak_update(state.target, target_of(params), TARGET_FRACTION),
        opt_state=opt_state,
        updates=state.updates + 1,
        returns=aux.returns,
        replay=write_latents(state.replay, places, aux.latents),
        queue=queue,
    )
    return state, aux.metrics | {"train/grad_norm": optax.tree.norm(grads), "train/learning_rate": rate}


def make_dreamer(config: DreamerConfig) -> Agent:
    """The Dreamer agent of a configuration."""
    parts = dreamer_parts(config)
    every, _, _ = config.schedule

    def init(key: jax.Array) -> DreamerState:
        return dreamer_init(parts, key)

    def step(state: DreamerState) -> tuple[DreamerState, Metrics]:
        before, noise = dreamer_noise(parts, state, config.num_steps // every)
        after, metrics = run_turns(
            before,
            noise,
            lambda state, noise: dreamer_collect(parts, state, noise.collect),
            lambda state, noise: dreamer_update(parts, state, noise.update),
        )
        return after, metrics | openloop_metrics(parts, after, can_learn(config, after.replay))

    def act(
        state: DreamerState, obs: Any, carry: Any, key: jax.Array, deterministic: bool = False, mask: jax.Array | None = None
    ) -> tuple[Any, PolicyCarry]:
        leaf = jax.tree.leaves(obs)[0]
        batch = leaf.shape[: leaf.ndim - jax.tree.leaves(parts.obs)[0].ndim]
        if carry is None:
            carry = PolicyCarry(parts.networks.rssm.initial(batch), jnp.zeros((*batch, *parts.head.action.shape)))
        latent_key, action_key = jax.random.split(key)
        # Latent states are always sampled, as in training; a greedy policy takes the most likely action only.
        uniform = draw(jax.random.uniform, latent_key, (*batch, parts.networks.rssm.groups))
        latent = infer(parts, state.params, carry, normalize_obs(state, obs), jnp.zeros(batch, bool), uniform)
        distribution = parts.head.distribution(parts.networks.apply("actor", state.params, latent.feature), mask)
        action = parts.head.choose(distribution, action_key, batch, deterministic)
        return parts.head.to_env(action), PolicyCarry(latent, action)

    return Agent(init, step, act, config, memory_line(parts.memory))


register_agent(DreamerConfig, make_dreamer)
