"""The types that all parts of Dreamer share: what a configuration stands for, the state of a run, and its random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from flax import struct

from rljax.algos.dreamer.config import DreamerConfig
from rljax.algos.dreamer.networks import TARGETS, Networks
from rljax.collect.normalizers import ReturnNormalizer, RunningStatistics
from rljax.collect.replay import OnlineQueue, Replay
from rljax.collect.rollout import EnvironmentNoise
from rljax.core.state import buffer, buffer_cursor, copy_of_params, per_environment, random_key, statistics
from rljax.nn.actions import ActionHead
from rljax.nn.rssm import Latent


class Arrival(NamedTuple):
    """Arrival of the environments at their observations, arrays `[N]`: the reward, and whether an episode begins, ends, or
    terminates there."""

    reward: jax.Array
    is_first: jax.Array
    is_last: jax.Array
    is_terminal: jax.Array


class PolicyCarry(NamedTuple):
    """Memory of the policy: latent state and action `[..., A]` at the observation before; zeros begin an episode."""

    latent: Latent
    action: jax.Array


class DreamerParts(NamedTuple):
    """Environment and networks of a configuration, built once; `memory` is that of `dreamer_memory`."""

    config: DreamerConfig
    env: Any
    env_params: Any
    head: ActionHead
    networks: Networks
    obs: Any
    memory: Mapping[str, int]


class DreamerState(struct.PyTreeNode, kw_only=True):
    """The whole truth about a run; `target` is the moving average that DreamerPro predicts, None for the others."""

    params: Any
    slow_critic: Any = copy_of_params(lambda params, _: params["critic"])
    target: Any = copy_of_params(lambda params, _: target_of(params))
    opt_state: Any
    updates: jax.Array
    returns: ReturnNormalizer = statistics()
    replay: Replay = buffer()
    queue: OnlineQueue = buffer_cursor(depends_on=("batch_length",))
    obs_statistics: RunningStatistics | None = statistics()
    env_state: Any = per_environment()
    obs: Any = per_environment()
    arrival: Arrival = per_environment()
    carry: PolicyCarry = per_environment()
    key: jax.Array = random_key()
    eval_key: jax.Array = random_key()
    iteration: jax.Array


class CollectNoise(NamedTuple):
    """All that is random in K steps: `[K, N, ...]` for latents and actions, and for the environments."""

    latent: jax.Array
    action: jax.Array
    env: EnvironmentNoise


class UpdateNoise(NamedTuple):
    """All that is random in U updates: bits u32 `[U, batch_size]` of the sequences, and a key for each `[U]`."""

    sample: jax.Array
    key: jax.Array


class DreamerNoise(NamedTuple):
    """All that is random in one turn; with a leading axis those of many."""

    collect: CollectNoise
    update: UpdateNoise


def target_of(params: Any) -> Any:
    """The parameters whose moving average DreamerPro predicts; None for the others."""
    return {name: params[name] for name in TARGETS} if "obs_projection" in params else None
