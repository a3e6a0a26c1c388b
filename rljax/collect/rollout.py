"""Rollouts: N environments stepped T times by a policy, inside one scan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from flax.core import FrozenDict

from rljax.collect.resets import EnvironmentNoise, fresh_episodes, fresh_pool
from rljax.collect.scans import packed_scan
from rljax.core.agent import Metrics
from rljax.core.environments.environment import METRICS, action_mask_of, step_or_restart
from rljax.nn.outputs.composite import legal_given


class Steps(NamedTuple):
    """Steps of a rollout, arrays `[T, N, ...]`.

    `next_obs` is the observation that the step led to, before any reset. `mask` and `next_mask` are the legal actions at `obs`
    and at `next_obs`, None where the environment has no masks. `episode_return` and `episode_length` are running totals: those of
    a whole episode where it ended. `carry` is the policy's after it saw `obs`, before any reset; None without memory. `extras`
    has the entries of the environment's `info` that the rollout was asked to keep; `metrics` are those of `info["metrics"]`,
    f32.
    """

    obs: Any
    action: jax.Array
    mask: jax.Array | None
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_obs: Any
    next_mask: jax.Array | None
    episode_return: jax.Array
    episode_length: jax.Array
    carry: Any = None
    extras: Mapping[str, Any] = FrozenDict()
    metrics: Mapping[str, jax.Array] = FrozenDict()


def rollout_scan(
    env: Any,
    env_params: Any,
    act: Callable[[Any, Any, jax.Array | None, Any], tuple[jax.Array, Any]],
    to_env: Callable[[jax.Array], Any],
    env_state: Any,
    obs: Any,
    noise: Any,
    env_noise: EnvironmentNoise,
    carry: Any = None,
    keep: tuple[str, ...] = (),
) -> tuple[Any, Any, Any, Steps]:
    """Step N environments T times. `env` must carry `EpisodeStatistics`.

    Only the actor runs inside the scan, and all random numbers are drawn before it.

    Args:
        env: the environment, unbatched.
        env_params: its parameters, shared by all.
        act: `(obs [N, ...], carry, mask [N, A] or None, one step's noise) -> (action [N, ...], carry)`.
        to_env: `action -> action` as the environment takes it; the steps keep the one before.
        env_state: `[N, ...]`.
        obs: `[N, ...]`.
        noise: tree of arrays `[T, ...]`, what `act` needs to sample.
        env_noise: from `environment_noise`.
        carry: memory of the policy, a tree of arrays `[N, ...]`, zeros where an episode begins; None without memory.
        keep: entries of the environment's `info` that `Steps.extras` shall hold.

    Returns:
        `(env_state, obs, carry, steps)`: where the environments are now, what the policy remembers of the episodes under way,
        and what happened, `[T, N, ...]`.
    """

    pool = fresh_pool(env, env_params, env_noise)

    def step_env(key: jax.Array, fresh: tuple[Any, Any] | None, state: Any, action: Any) -> Any:
        return step_or_restart(env, key, fresh, state, action, env_params)

    def step(loop: tuple[Any, Any, Any], random: tuple[Any, EnvironmentNoise]) -> tuple[tuple[Any, Any, Any], Steps]:
        env_state, obs, carry = loop
        noise_t, env_noise_t = random
        fresh = fresh_episodes(env, env_params, env_noise_t, pool)
        mask = jax.vmap(lambda s: action_mask_of(env, s, env_params))(env_state)
        action, carry = act(obs, carry, mask, noise_t)
        stepped = jax.vmap(step_env)(env_noise_t.step_key, fresh, env_state, to_env(action))
        next_obs, env_state, reward, terminated, truncated, info = stepped
        happened = Steps(
            obs=obs,
            action=action,
            mask=mask,
            reward=reward.astype(jnp.float32),
            terminated=terminated,
            truncated=truncated,
            next_obs=info["final_observation"],
            next_mask=info.get("final_action_mask"),
            episode_return=info["episode_return"],
            episode_length=info["episode_length"],
            carry=carry,
            extras=FrozenDict({name: info[name] for name in keep}),
            metrics=metrics_of(info),
        )
        return (env_state, next_obs, reset_carry(carry, terminated | truncated)), happened

    (env_state, obs, carry), steps = packed_scan(step, (env_state, obs, carry), (noise, env_noise))
    return env_state, obs, carry, steps


def reset_carry(carry: Any, done: jax.Array) -> Any:
    """The carry, a tree of arrays `[N, ...]`, with zeros, which begin an episode, where `done` bool `[N]`."""
    return jax.tree.map(lambda x: jnp.where(done.reshape(done.shape + (1,) * (x.ndim - done.ndim)), 0, x).astype(x.dtype), carry)


def metrics_of(info: Mapping[str, Any]) -> FrozenDict[str, jax.Array]:
    """The numbers that an environment's `info` has for the logs, f32."""
    return FrozenDict({name: jnp.asarray(x, jnp.float32) for name, x in info.get(METRICS, {}).items()})


NO_ACTION = "train/no_legal_action"
"""Number of steps of an iteration in which a mask left no legal action; it is 0 unless the environment is wrong."""


class EpisodeSums(struct.PyTreeNode):
    """Sums over episodes that ended: `totals` f32 `[3 + M]` of returns, lengths, ones, and the M metrics of the environment. With
    masks also in how many steps there was nothing to do, `without_action` f32 []."""

    totals: jax.Array
    names: tuple[str, ...] = struct.field(pytree_node=False, default=())
    without_action: jax.Array | None = None


def steps_without_action(
    mask: jax.Array, action: Any = None, nvec: tuple[int, ...] = (), relevant: jax.Array | None = None
) -> jax.Array:
    """Return the number of steps in which some head had no legal action, f32 [].

    Args:
        mask: bool `[..., A]`, or `[..., A, A]` for pairs of heads.
        action: actions taken, i32 `[..., K]`; needed for pairs only.
        nvec: number of actions of each head; of one head if empty.
        relevant: steps to count, bool `[...]`; None: all.
    """
    if len(nvec) < 2:
        legal = jnp.any(mask, axis=-1)
    else:
        action = jnp.zeros((*mask.shape[:-1], len(nvec)), jnp.int32) if action is None else action
        legal = jnp.all(jnp.any(legal_given(mask, action, nvec), axis=-1), axis=-1)
    return jnp.sum(~legal if relevant is None else ~legal & relevant, dtype=jnp.float32)


def episode_metrics(steps: Steps, nvec: tuple[int, ...] = ()) -> Metrics:
    """Means over the episodes that ended in a rollout, and their count; NaN where none did. The environment's own metrics,
    `env/...`, are those of the last steps. With masks, of heads of `nvec` actions, also in how many steps nothing was legal."""
    return episode_means(episode_sums(steps, nvec))


def episode_sums(steps: Steps, nvec: tuple[int, ...] = ()) -> EpisodeSums:
    """Add up the returns, lengths and last metrics of the episodes that ended, and count them."""
    without = None if steps.mask is None else steps_without_action(steps.mask, steps.action, nvec)
    done = steps.terminated | steps.truncated
    return episode_totals(done, steps.episode_return, steps.episode_length, steps.metrics, without)


def episode_totals(
    done: jax.Array,
    returns: jax.Array,
    lengths: jax.Array,
    metrics: Mapping[str, jax.Array] = FrozenDict(),
    without_action: jax.Array | None = None,
) -> EpisodeSums:
    """`episode_sums` of arrays of one shape: where episodes ended, the returns and lengths up to there, and metrics there;
    `without_action` is handed on."""
    names = tuple(sorted(metrics))
    totals = (returns, lengths, jnp.ones_like(lengths), *(metrics[name] for name in names))
    sums = jnp.stack([jnp.sum(jnp.where(done, total, 0), dtype=jnp.float32) for total in totals])
    return EpisodeSums(sums, names, without_action)


def episode_means(sums: EpisodeSums) -> Metrics:
    """`episode_metrics` from the sums of a rollout, or added up over several."""
    count = sums.totals[2]
    means = jnp.where(count > 0, sums.totals / jnp.maximum(count, 1.0), jnp.nan)
    metrics = {f"env/{name}": means[3 + i] for i, name in enumerate(sums.names)}
    if sums.without_action is not None:
        metrics[NO_ACTION] = sums.without_action
    return {"episode/return": means[0], "episode/length": means[1], "episode/count": count} | metrics
