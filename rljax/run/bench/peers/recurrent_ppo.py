"""A recurrent PPO as it is usually written in JAX, as a peer for `rljax bench recurrent`; not for use.

This folder has no `__init__.py` and is not in the wheel: an imitation of another library is not part of this one.

It follows PureJaxRL (Lu et al., 2022), which cannot be installed, and was written anew from what is known of it: actor and critic
inside the rollout's scan, keys split at every step, a flax cell in `nn.scan` with resets, one `done` that ends both trace and
bootstrap, Adam leaf by leaf, epochs and minibatches of environments as scans. Two things differ: kernels are LeCun-normal instead
of orthogonal, whose QR can hang on small machines (see `rljax.nn.modules.initializers`), and episodes are averaged in each
iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from rljax.algos.ppo import PPOConfig
from rljax.collect.environments import make_training_env

FLAX_CELLS: dict[str, Any] = {"gru": nn.GRUCell, "lstm": nn.OptimizedLSTMCell}


class Transition(NamedTuple):
    """One step of N environments; `reset` says whether the episode began here, `done` whether it ended here."""

    obs: jax.Array
    reset: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array
    info: Any


class _ResettingCell(nn.Module):
    cell: str
    size: int

    @nn.compact
    def __call__(self, carry: Any, inputs: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
        x, reset = inputs
        cell = FLAX_CELLS[self.cell](self.size, recurrent_kernel_init=nn.initializers.lecun_normal())
        fresh = cell.initialize_carry(jax.random.key(0), x.shape)
        return cell(jax.tree.map(lambda a, b: jnp.where(reset[:, None], a, b), fresh, carry), x)


class _Network(nn.Module):
    """Network `(carry, obs [T, N, D], reset [T, N]) -> (carry, policy, value [T, N])`."""

    cell: str
    size: int
    hidden: tuple[int, ...]
    head_hidden: tuple[int, ...]
    num_actions: int

    @nn.compact
    def __call__(self, carry: Any, obs: jax.Array, reset: jax.Array) -> tuple[Any, Any, jax.Array]:
        x = obs
        for width in self.hidden:
            x = nn.tanh(nn.Dense(width)(x))
        unrolled = nn.scan(_ResettingCell, variable_broadcast="params", split_rngs={"params": False})
        carry, x = unrolled(self.cell, self.size)(carry, (x, reset))
        logits = value = x
        for width in self.head_hidden:
            logits, value = nn.tanh(nn.Dense(width)(logits)), nn.tanh(nn.Dense(width)(value))
        logits = nn.Dense(self.num_actions, kernel_init=nn.initializers.normal(0.01))(logits)
        return carry, distrax.Categorical(logits=logits), nn.Dense(1)(value)[..., 0]


def make_recurrent_ppo(config: PPOConfig) -> Callable[[jax.Array], tuple[Any, jax.Array]]:
    """Return `key -> (parameters, mean return of the episodes that ended in each iteration, NaN if none did)`.

    The configuration is that of rljax's recurrent PPO: a GRU or an LSTM, vector observations, discrete actions. Features that it
    does not use (normalised observations, `target_kl`, ...) are not implemented here.
    """
    env, env_params = make_training_env(config)
    table = config.network
    size = table.get("size", 64)
    network: Any = _Network(
        table["type"], size, table.get("hidden", (64,)), table.get("head_hidden", (64,)), env.action_space(env_params).n
    )
    vf_clip_eps = jnp.inf if config.vf_clip_eps is None else config.vf_clip_eps
    num_envs, num_updates = config.num_envs, config.num_epochs * config.num_minibatches

    def schedule(count: jax.Array) -> jax.Array:
        return config.learning_rate * (1.0 - (count // num_updates) / config.num_iterations)

    def loss(params: Any, carry: Any, batch: tuple[Transition, jax.Array, jax.Array]) -> jax.Array:
        steps, advantage, target = batch
        _, policy, value = network.apply(params, carry, steps.obs, steps.reset)
        ratio = jnp.exp(policy.log_prob(steps.action) - steps.log_prob)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        clipped_ratio = jnp.clip(ratio, 1.0 - config.clip_eps, 1.0 + config.clip_eps)
        policy_loss = -jnp.minimum(ratio * advantage, clipped_ratio * advantage).mean()
        clipped = steps.value + jnp.clip(value - steps.value, -vf_clip_eps, vf_clip_eps)
        value_loss = 0.5 * jnp.maximum(jnp.square(value - target), jnp.square(clipped - target)).mean()
        return policy_loss + config.vf_coef * value_loss - config.ent_coef * policy.entropy().mean()

    def iteration(loop: Any, _: Any) -> tuple[Any, jax.Array]:
        def env_step(loop: Any, _: Any) -> tuple[Any, Transition]:
            state, env_state, obs, reset, carry, key = loop
            key, action_key, step_key = jax.random.split(key, 3)
            carry, policy, value = network.apply(state.params, carry, obs[None], reset[None])
            action, log_prob = policy.sample_and_log_prob(seed=action_key)
            stepped = jax.vmap(env.step, (0, 0, 0, None))(jax.random.split(step_key, num_envs), env_state, action[0], env_params)
            next_obs, env_state, reward, terminated, truncated, info = stepped
            done = terminated | truncated
            step = Transition(obs, reset, action[0], log_prob[0], value[0], reward, done, info["episode_return"])
            return (state, env_state, next_obs, done, carry, key), step

        carry_before = loop[4]
        loop, steps = jax.lax.scan(env_step, loop, None, config.num_steps)
        state, env_state, obs, reset, carry, key = loop
        last_value = network.apply(state.params, carry, obs[None], reset[None])[2][0]

        def trace(loop: Any, step: Any) -> tuple[Any, jax.Array]:
            advantage, next_value = loop
            delta = step.reward + config.gamma * next_value * (1 - step.done) - step.value
            advantage = delta + config.gamma * config.gae_lambda * (1 - step.done) * advantage
            return (advantage, step.value), advantage

        _, advantages = jax.lax.scan(trace, (jnp.zeros_like(last_value), last_value), steps, reverse=True, unroll=16)
        batch = (steps._replace(info=None), advantages, advantages + steps.value)

        def minibatch_step(state: Any, places: jax.Array) -> tuple[Any, jax.Array]:
            chosen = jax.tree.map(lambda x: x[places], carry_before)
            value, grads = jax.value_and_grad(loss)(state.params, chosen, jax.tree.map(lambda x: x[:, places], batch))
            return state.apply_gradients(grads=grads), value

        def epoch(loop: Any, _: Any) -> tuple[Any, jax.Array]:
            state, key = loop
            key, order_key = jax.random.split(key)
            order = jax.random.permutation(order_key, num_envs).reshape(config.num_minibatches, -1)
            state, losses = jax.lax.scan(minibatch_step, state, order)
            return (state, key), losses

        (state, key), _ = jax.lax.scan(epoch, (state, key), None, config.num_epochs)
        return (state, env_state, obs, reset, carry, key), jnp.mean(steps.info, where=steps.done)

    def train(key: jax.Array) -> tuple[Any, jax.Array]:
        key, params_key, reset_key = jax.random.split(key, 3)
        obs, env_state = jax.vmap(env.reset, (0, None))(jax.random.split(reset_key, num_envs), env_params)
        carry = FLAX_CELLS[table["type"]](size).initialize_carry(key, (num_envs, size))
        reset = jnp.zeros((num_envs,), bool)
        params = network.init(params_key, carry, obs[None], reset[None])
        optimizer = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adam(schedule, eps=config.adam_eps))
        state = TrainState.create(apply_fn=network.apply, params=params, tx=optimizer)
        loop, returns = jax.lax.scan(iteration, (state, env_state, obs, reset, carry, key), None, config.num_iterations)
        return loop[0].params, returns

    return train
