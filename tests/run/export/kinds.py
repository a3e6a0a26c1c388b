"""Agents of every kind with random weights and normalisers, and the episodes that they play."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.collect.environments import make_evaluation_env
from rljax.core import keys
from rljax.core.environments.environment import action_mask_of, tree_where
from rljax.core.environments.wrappers import PublicObservation
from rljax.nn.outputs.actions import WIDEST_DRAW
from rljax.run.export.signature import leaf_names
from rljax.run.export.steps import to_plain
from tests.nn.outputs.test_pointed import PickAndSay
from tests.run.tiny_runs import TINY, VARIANTS
from tests.run.tiny_teacher import ready


def ppo(env: str, network: dict[str, Any], **fields: Any) -> rljax.PPOConfig:
    small: dict[str, Any] = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "total_timesteps": 320, "time_limit": 9}
    return rljax.PPOConfig(env=env, network=network, **{"normalize_observations": True, **small, **fields})


def gru(**keys: Any) -> dict[str, Any]:
    return {"type": "gru", "hidden": [6], "size": 8, **keys}


def entities(**keys: Any) -> dict[str, Any]:
    return {"encoder": "entities", "width": 8, "layers": 1, "heads": 2, "hidden": [8], "head_hidden": [8], **keys}


class Wide(rljax.Environment):
    """Heads with more actions than are drawn with one uniform number each, which take Gumbel noise."""

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, jax.Array]:
        return self.observe(jnp.int32(0)), jnp.int32(0)

    def step_env(self, key: jax.Array, state: jax.Array, action: jax.Array, params: Any) -> Any:
        return self.observe(state + 1), state + 1, action[1].astype(jnp.float32), state >= 7, {}

    def observe(self, time: jax.Array) -> jax.Array:
        return jnp.sin(time * jnp.arange(1.0, 4.0))

    def action_mask(self, state: jax.Array, params: Any) -> jax.Array:
        return (jnp.arange(WIDEST_DRAW + 47) + state) % 3 > 0

    def observation_space(self, params: Any) -> rljax.Box:
        return rljax.Box(-1.0, 1.0, (3,))

    def action_space(self, params: Any) -> rljax.MultiDiscrete:
        return rljax.MultiDiscrete((WIDEST_DRAW + 44, 3))


class Sights(Wide):
    """Observations in parts: numbers, an image and which of three things is seen."""

    def observe(self, time: jax.Array) -> Any:
        view = ((jnp.arange(768).reshape(16, 16, 3) * (time + 1)) % 256).astype(jnp.uint8)
        return {"near": super().observe(time), "view": view}

    def observation_space(self, params: Any) -> rljax.Dict:
        return rljax.Dict({"near": super().observation_space(params), "view": rljax.Box(0, 255, (16, 16, 3), jnp.uint8)})

    def action_space(self, params: Any) -> rljax.Dict:
        return rljax.Dict({"where": rljax.Discrete(3), "how": rljax.Discrete(2)})

    def step_env(self, key: jax.Array, state: jax.Array, action: Any, params: Any) -> Any:
        return super().step_env(key, state, jnp.stack([action["where"], action["how"]]), params)

    def action_mask(self, state: jax.Array, params: Any) -> jax.Array:
        return ((jnp.arange(5) + state) % 3 > 0) | jnp.array([True, False, False, True, False])


class Cells(Wide):
    """A grid whose cells have actions of their own, which are legal in some of them."""

    def observe(self, time: jax.Array) -> jax.Array:
        return jnp.sin((time + 1) * jnp.arange(60.0)).reshape(4, 5, 3)

    def observation_space(self, params: Any) -> rljax.Box:
        return rljax.Box(-1.0, 1.0, (4, 5, 3))

    def action_space(self, params: Any) -> rljax.MultiDiscrete:
        return rljax.MultiDiscrete((6,) * 20)

    def action_mask(self, state: jax.Array, params: Any) -> jax.Array:
        return ((jnp.arange(20)[:, None] + jnp.arange(6) + state) % 3 > 0).reshape(-1)


class PickAndSayPairs(PickAndSay):
    """The entity that is picked decides which words are legal."""

    def action_mask(self, state: Any, params: Any) -> jax.Array:
        legal = super().action_mask(state, params)
        says = jnp.arange(len(legal)) >= self.capacity + 1
        even = jnp.arange(len(legal)) % 2 == 0
        return legal & jnp.where(~says[:, None] & says, even[:, None] == even, True)


MODEL = {"file": "gone.json", "digest": "gone", "window": 3, "size": 12, "latent": 2, "hidden": [8], "observed": [3, 6]}
"""An opponent model whose file is not there: its parameters are the policy's."""

COMPOSITE = {"env_params": {"masked": True}, "action_heads": "autoregressive"}


def opponent_model(network: dict[str, Any]) -> rljax.Config:
    env: dict[str, Any] = {"env": "HabitRPS-v0", "env_params": {"num_rounds": 5}}
    return TINY["self_play"].replace(network={**network, "opponent_model": MODEL}, normalize_observations=False, **env)


KINDS: dict[str, rljax.Config] = {
    "mlp": ppo("CartPole-v1", {"hidden": [16], "layer_norm": True}),
    "masked": ppo("MaskedBandit-v0", {"hidden": [16], "shared": True}),
    "continuous": ppo("Pendulum-v1", {"hidden": [16], "activation": "elu"}, log_std="network"),
    "gru": ppo("CartPole-v1", gru(layer_norm=True, activation="gelu")),
    "lstm": VARIANTS["ppo with memory"].replace(time_limit=9),
    "block_gru": ppo("Pendulum-v1", {**gru(), "type": "block_gru", "blocks": 2}),
    "autoregressive": ppo("Composite-v0", gru(), **COMPOSITE),
    "heads": ppo("Composite-v0", {"hidden": [16]}),
    "dqn": TINY["dqn"].replace(time_limit=9, epsilon_end=0.5),
    "pqn": TINY["pqn"].replace(time_limit=9, epsilon_end=0.5),
    "impala": TINY["impala"].replace(time_limit=9),
    "sac": TINY["sac"].replace(time_limit=9),
    "td3_bc": TINY["td3_bc"].replace(time_limit=9),
    "iql": TINY["iql"].replace(time_limit=9),
    "cql": TINY["cql"].replace(time_limit=9, epsilon=0.5),
    "dreamer": TINY["dreamer"].replace(time_limit=9, normalize_observations=True),
    "self_play": TINY["self_play"],
    "league": TINY["league"],
    "alphazero": TINY["alphazero"],
    "images": TINY["alphazero"].replace(
        env="ConnectFour-v0", time_limit=9, network={"encoder": "cnn", "channels": [4, 4], "kernels": [3, 2], "strides": [1, 2]}
    ),
    "dqn_masked": TINY["dqn"].replace(env="MaskedBandit-v0", time_limit=9, epsilon_end=0.5),
    "dqn_images": TINY["dqn"].replace(
        env="Maze-v0", time_limit=9, network={"encoder": "cnn", "channels": [4], "kernels": [3], "strides": [2]}
    ),
    "sac_discrete": TINY["sac"].replace(env="CartPole-v1", time_limit=9),
    "impala_gru": TINY["impala"].replace(env="TMaze-v0", network=gru(), time_limit=9),
    "awac": TINY["awac"].replace(time_limit=9),
    "bc": TINY["bc"].replace(time_limit=9),
    "distill": TINY["distill"].replace(time_limit=9),
    "entities": ppo("TargetPick-v0", entities()),
    "pointer": ppo("TargetPick-v0", entities(pointer=True)),
    "pointer_gru": ppo("TargetPick-v0", entities(pointer=True, type="gru", size=8)),
    "pointed": ppo(PickAndSayPairs(capacity=8), entities(pointer=True), action_heads="autoregressive"),
    "dict": ppo(Sights(), {"encoder": "dict", "hidden": [8], "depth": 2}),
    "dict_autoregressive": ppo(Sights(), {"encoder": "dict", "hidden": [8], "depth": 2}, action_heads="autoregressive"),
    "cells": ppo(Cells(), {"encoder": "cells", "channels": [4, 4], "kernels": [3, 3], "hidden": [8]}),
    "wide": ppo(Wide(), {"hidden": [8]}),
    "wide_autoregressive": ppo(Wide(), {"hidden": [8]}, action_heads="autoregressive"),
    "goal": ppo("Command-v0", {"hidden": [8], "goal": "film"}),
    "opponent_model": opponent_model({"hidden": [6]}),
    "opponent_model_gru": opponent_model(gru()),
    "league_mains": TINY["league"].replace(main_agents=2, main_exploiters=0, average_decay=None, magnet_coef=None),
    "league_goals": TINY["league"].replace(
        env=rljax.envs.GoalGame(rljax.make_env("BiasedRPS-v0")[0], 3),
        exploitability_every=None,
        value_heads=("win", "follow"),
        head_weights=(1.0, 0.0),
        exploiter_head_weights=(1.0, 50.0),
        network={"hidden": [8], "goal": "film"},
    ),
    "dreamer_dict": TINY["dreamer"].replace(env=Sights(), time_limit=9),
    "dreamer_numbers": TINY["dreamer"].replace(env="Pendulum-v1", time_limit=9),
}


@functools.cache
def player(kind: str) -> tuple[rljax.Agent, Any]:
    """The agent of a kind and a state, as of `player_of`."""
    return player_of(ready(KINDS[kind]))


def player_of(config: rljax.Config) -> tuple[rljax.Agent, Any]:
    """The agent of a configuration and a state with random weights and statistics, which needs no compilation."""
    agent = rljax.make_agent(config)
    rng = np.random.default_rng(0)

    def filled(path: Any, shape: Any) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
            return jnp.broadcast_to(jax.random.key(0), shape.shape)
        if name.startswith("obs_statistics/var"):
            return jnp.asarray(rng.uniform(0.2, 2.0, shape.shape), shape.dtype)
        if name.startswith(("params/", "average_params/", "obs_statistics/mean")):
            scale = 1.0 / np.sqrt(shape.shape[-2]) if len(shape.shape) > 1 else 0.2
            return jnp.asarray(rng.normal(scale=scale, size=shape.shape) + name.endswith("/scale"), shape.dtype)
        return jnp.zeros(shape.shape, shape.dtype)

    shapes = jax.eval_shape(agent.init, jax.random.key(0))
    return agent, jax.tree_util.tree_map_with_path(filled, shapes)


class Episodes(NamedTuple):
    """Steps `[T, N, ...]` of a policy: what it was given, and what `agent.act` returned.

    Attributes:
        obs: observations.
        mask: legal actions; None without masks.
        begins: where an episode begins, bool `[T, N]`.
        keys: keys of the steps, u32 `[T, 2]`.
        noise: random numbers that the agent drew with them.
        action: its actions.
        carry: its carry after each step, in plain containers; None without memory.
    """

    obs: Any
    mask: Any
    begins: np.ndarray
    keys: np.ndarray
    noise: list[np.ndarray]
    action: Any
    carry: Any


@functools.cache
def played(kind: str, deterministic: bool, num_steps: int = 30, num_envs: int = 3) -> Episodes:
    """Several whole episodes of N environments; where one ends, the carry begins with zeros."""
    agent, state = player(kind)
    env, env_params = make_evaluation_env(agent.config)
    env = PublicObservation(env)
    first = jax.jit(jax.vmap(env.reset, (0, None)))(jax.random.split(jax.random.key(1), num_envs), env_params)

    def legal(env_state: Any) -> Any:
        return jax.vmap(lambda s: action_mask_of(env, s, env_params))(env_state)

    def act(obs: Any, carry: Any, key: jax.Array, mask: Any) -> tuple[Any, Any, list[jax.Array]]:
        drawn: list[jax.Array] = []

        def tee(sampler: Callable[..., jax.Array], key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
            drawn.append(draw_flat(sampler, key, shape))
            return drawn[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(keys, "draw_flat", tee)
            action, carry = agent.act(state, obs, carry, key, deterministic, mask)
        return action, carry, drawn

    draw_flat = keys.draw_flat

    def step(loop: Any, key: jax.Array) -> Any:
        obs, env_state, carry, begins = loop
        mask = legal(env_state)
        act_key, env_key = jax.random.split(key)
        action, after, noise = act(obs, carry, act_key, mask)
        env_keys = jax.random.split(env_key, num_envs)
        next_obs, env_state, _, terminated, truncated, _ = jax.vmap(env.step, (0, 0, 0, None))(
            env_keys, env_state, action, env_params
        )
        done = terminated | truncated
        carry = jax.vmap(tree_where)(done, jax.tree.map(jnp.zeros_like, after), after)
        given = (obs, mask, begins, jax.random.key_data(act_key), noise, action, after)
        return (next_obs, env_state, carry, done), given

    carry = jax.eval_shape(lambda obs, s: act(obs, None, jax.random.key(0), legal(s))[1], *first)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), carry)
    begins = jnp.ones(num_envs, bool)
    scan = jax.jit(lambda loop, keys: jax.lax.scan(step, loop, keys)[1])
    found = scan((*first, zeros, begins), jax.random.split(jax.random.key(2), num_steps))
    obs, mask, begins, keys_, noise, action, carry = jax.tree.map(np.asarray, found)
    episodes = Episodes(obs, mask, begins, keys_, noise, action, to_plain(carry) if jax.tree.leaves(carry) else None)
    assert episodes.begins[1:].any(axis=0).all(), "each environment begins a second episode"
    return episodes


def largest_difference(kind: str, deterministic: bool, step: Callable[..., tuple[Any, Any]]) -> float:
    """The largest difference of actions and carries over whole episodes, in which the policy has nothing but its own carry.

    Args:
        kind: a name in `KINDS`.
        deterministic: whether the policy takes its most likely action.
        step: `(obs, carry, mask, key, noise) -> (action, carry)`, of one step of N environments; a carry of None begins.
    """
    episodes = played(kind, deterministic)
    carry, largest = None, 0.0
    for t in range(len(episodes.begins)):
        obs, mask, key, noise, action, after = jax.tree.map(
            lambda x, t=t: x[t], (episodes.obs, episodes.mask, episodes.keys, episodes.noise, episodes.action, episodes.carry)
        )
        if carry is not None:
            going_on = ~episodes.begins[t]
            carry = jax.tree.map(
                lambda x, going_on=going_on: x * going_on.reshape(-1, *[1] * (x.ndim - 1)).astype(x.dtype), carry
            )
        found, carry = step(obs, carry, mask, key, noise)
        assert jax.tree.structure(found) == jax.tree.structure(action)
        assert (carry is None) == (after is None)
        for name, x, y in zip(
            leaf_names("", (action, after)), *map(jax.tree.leaves, ((action, after), (found, carry))), strict=True
        ):
            assert x.shape == y.shape, name
            assert x.dtype == y.dtype, name
            largest = max(largest, float(np.max(np.abs(np.asarray(x, np.float64) - np.asarray(y, np.float64)))))
    return largest
