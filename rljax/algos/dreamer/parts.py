"""The types that all parts of Dreamer share: the parts built from a configuration, the state of a run, and its random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from rljax.algos.dreamer.config import DreamerConfig
from rljax.algos.dreamer.networks import TARGETS, Networks
from rljax.collect.normalizers import ReturnNormalizer, RunningStatistics
from rljax.collect.replay import OnlineQueue, Replay
from rljax.collect.resets import EnvironmentNoise
from rljax.core.state import State, buffer, buffer_cursor, copy_of_params, per_environment, statistics
from rljax.nn.latent.rssm import Latent
from rljax.nn.outputs.actions import ActionHead


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


class DreamerState(State, kw_only=True):
    """State of a Dreamer run.

    Attributes:
        slow_critic: moving average of the critic's parameters.
        target: moving average that DreamerPro predicts; None for other representation losses.
        updates: number of gradient steps so far, i32 [].
        returns: scale of the returns.
        replay: the buffer.
        queue: sequences that have not been trained on yet.
        obs_statistics: running statistics of observations; None unless the configuration asks for them.
        arrival: reward and flags on arriving at `obs`, which the buffer does not hold yet.
        carry: memory of the policy in the episodes under way.
    """

    slow_critic: Any = copy_of_params(lambda params, _: params["critic"])
    target: Any = copy_of_params(lambda params, _: target_of(params))
    updates: jax.Array
    returns: ReturnNormalizer = statistics()
    replay: Replay = buffer()
    queue: OnlineQueue = buffer_cursor(depends_on=("batch_length",))
    obs_statistics: RunningStatistics | None = statistics()
    arrival: Arrival = per_environment()
    carry: PolicyCarry = per_environment()


class CollectNoise(NamedTuple):
    """Random numbers of K steps: `[K, N, ...]` for latents and actions, and for the environments."""

    latent: jax.Array
    action: jax.Array
    env: EnvironmentNoise


class UpdateNoise(NamedTuple):
    """Random numbers of U updates: bits u32 `[U, batch_size]` that choose the sequences, and a key for each update, `[U]`."""

    sample: jax.Array
    key: jax.Array


class DreamerNoise(NamedTuple):
    """Random numbers of one turn, or with a leading axis of many turns."""

    collect: CollectNoise
    update: UpdateNoise


def target_of(params: Any) -> Any:
    """The parameters whose moving average DreamerPro predicts; None for the others."""
    return {name: params[name] for name in TARGETS} if "obs_projection" in params else None
