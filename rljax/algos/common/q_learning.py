"""Parts of the algorithms that learn action values: the network, epsilon-greedy actions, and the schedule of epsilon."""

from __future__ import annotations

from typing import Any, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.algos.common.config import EpsilonConfig
from rljax.algos.common.state import normalize_obs
from rljax.collect.replay import NStep
from rljax.core.agent import Act
from rljax.core.environments.spaces import Discrete, as_space
from rljax.core.errors import ConfigError
from rljax.core.keys import draw
from rljax.nn.modules.classes import argmax_of, entry_of, mask_logits
from rljax.nn.modules.layers import product_dtype
from rljax.nn.networks import make_feed_forward, one_batch_axis
from rljax.nn.shapes import network_shapes


class QNetwork(NamedTuple):
    """A network of action values, without its parameters.

    Attributes:
        module: `obs [B, *obs_shape] -> q [B, A]`.
        num_actions: A.
        obs_ndims: number of axes of one observation, per leaf in tree order.
    """

    module: nn.Module
    num_actions: int
    obs_ndims: tuple[int, ...]


def check_discrete(algorithm: str, env: Any, env_params: Any) -> int:
    """Return the number of actions of an environment with a Discrete action space.

    Raises:
        ConfigError: it has another action space; the message names algorithms that take it.
    """
    space = as_space(env.action_space(env_params))
    if not isinstance(space, Discrete):
        kind = type(space).__name__
        raise ConfigError(f"env = {env.name}: {algorithm} needs a Discrete action space, not a {kind}; PPO takes every space")
    return space.n


def make_q_network(spec: Any, num_actions: int, obs: Any, dtype: str = "float32", **attributes: Any) -> QNetwork:
    """The network for observations of the shapes of `obs`, of a configuration's `network` and `dtype`; `attributes` are those of
    `make_feed_forward`.

    Raises:
        ConfigError: the table is wrong, or the network does not fit the observations or the number of actions.
    """
    module = make_feed_forward(spec, num_actions, dtype=product_dtype(dtype), **attributes)
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), obs)
    q, _ = network_shapes(module, module.init_with_output, module.apply, one)
    if jax.tree.map(lambda x: x.shape, q) != (1, num_actions):
        raise ConfigError(
            f"network = {type(module).__name__}: expected values [B, {num_actions}], one for each action, got {q} for B = 1"
        )
    return QNetwork(module, num_actions, tuple(x.ndim for x in jax.tree.leaves(obs)))


def q_values(network: QNetwork, params: Any, obs: Any) -> jax.Array:
    """Q of every action, f32 `[..., A]`, of normalised observations `[..., *obs_shape]`."""
    obs, batch = one_batch_axis(obs, network.obs_ndims)
    return jnp.asarray(network.module.apply(params, obs)).reshape(*batch, network.num_actions)


def legal_max(q: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Return the highest Q of a legal action, f32 `[...]`; if no action is legal (at the end of a game), that of any action."""
    return jnp.max(q, axis=-1) if mask is None else entry_of(q, argmax_of(mask_logits(q, mask)))


def dqn_target(batch: NStep, next_q: jax.Array, chooser_q: jax.Array) -> jax.Array:
    """`r + discount Q_target(s', argmax_a Q_chooser(s', a))` over legal actions a, f32 `[B]` (van Hasselt et al., 2016, eq. 4).

    Args:
        batch: from replay; `B` transitions of n steps.
        next_q: the target network's values of `batch.next_obs`, f32 `[B, A]`.
        chooser_q: values that choose the action: the online network's (double Q-learning), or `next_q` again (eq. 2).
    """
    best = argmax_of(mask_logits(chooser_q, batch.next_mask))
    return jax.lax.stop_gradient(batch.reward + batch.discount * entry_of(next_q, best))


def epsilon_at(config: EpsilonConfig, iteration: jax.Array, step: jax.Array) -> jax.Array:
    """Return epsilon after `step` steps per environment of an iteration: it decreases linearly, then is constant."""
    steps = (jnp.asarray(iteration, jnp.float32) * config.num_steps + step) * config.num_envs
    done = jnp.minimum(steps / config.epsilon_steps, 1.0)
    return config.epsilon_start + (config.epsilon_end - config.epsilon_start) * done


def exploring_noise(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw the random numbers of `epsilon_greedy`, f32 `[*shape, 2]`."""
    # No random bits: exported policies take these numbers as input, and ONNX runtimes do not compute with unsigned integers.
    return draw(jax.random.uniform, key, (*shape, 2))


def epsilon_greedy(q_values: jax.Array, epsilon: float | jax.Array, noise: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Return the best legal action or, with probability epsilon, a uniformly drawn legal action, i32 `[...]`.

    Args:
        q_values: f32 `[..., A]`.
        epsilon: probability, `[...]` or a scalar.
        noise: uniform numbers f32 `[..., 2]` in [0, 1): one for the choice to explore, one for the action.
        mask: legal actions bool `[..., A]`; None: all.
    """
    chex.assert_type(noise, float)
    explores, place = noise[..., 0] < epsilon, noise[..., 1]
    # The k-th legal action for numbers in [k, k + 1) / count. The bounds are for a 1, which a generator elsewhere may round to.
    if mask is None:
        last = q_values.shape[-1] - 1
        random = jnp.minimum((place * (last + 1)).astype(jnp.int32), last)
    else:
        legal = jnp.cumsum((mask | ~jnp.any(mask, axis=-1, keepdims=True)).astype(jnp.float32), axis=-1)
        count = legal[..., -1:]
        random = jnp.argmax(legal > jnp.minimum(place[..., None] * count, count - 1.0), axis=-1).astype(jnp.int32)
    greedy = argmax_of(mask_logits(q_values, mask))
    return jnp.where(explores, random, greedy)


def q_act(network: QNetwork, epsilon: float) -> Act:
    """`Agent.act` for states with `params` and `obs_statistics`: the best legal action, or epsilon-greedily."""

    def act(
        state: Any, obs: Any, carry: Any, key: jax.Array, deterministic: bool = False, mask: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        q = q_values(network, state.params, normalize_obs(state, obs))
        if deterministic:  # draws nothing: an exported greedy policy needs no random numbers
            return argmax_of(mask_logits(q, mask)), carry
        return epsilon_greedy(q, epsilon, exploring_noise(key, q.shape[:-1]), mask), carry

    return act
