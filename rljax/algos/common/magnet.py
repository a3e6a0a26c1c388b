"""The magnet: a policy that follows the learner's slowly, its averaged parameters, and that the loss pulls the learner's towards.

"A unified approach to reinforcement learning, quantal response equilibria, and two-player zero-sum games" (Sokota et al., 2023):
magnetic mirror descent with a moving magnet lets the last iterate of self-play approach an equilibrium.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax

from rljax.algos.common.losses import choices_kl_to
from rljax.algos.common.policy import policy_unroll
from rljax.algos.common.teacher import TeacherParts, policy_view
from rljax.collect.streams import Streams
from rljax.core.errors import ConfigError


class PulledBatch(Protocol):
    """Fields of a batch that the divergence needs."""

    @property
    def action(self) -> jax.Array: ...
    @property
    def mask(self) -> jax.Array | None: ...
    @property
    def magnet(self) -> Any: ...


def magnet_view(parts: TeacherParts, magnet: Any, streams: Streams) -> Any:
    """Return what the divergence needs of the magnet's policy `[T, S, ...]`, from the learner's memory on; None without one.

    Args:
        parts: parts of the algorithm.
        magnet: parameters of the magnet.
        streams: the steps.

    Raises:
        ConfigError: there is `magnet_coef` and no magnet.
    """
    if parts.config.magnet_coef is None:
        return None
    if magnet is None:
        raise ConfigError("magnet_coef: a loop of your own must keep state.average_params (rljax.core.agent.with_average)")
    outputs = policy_unroll(parts, magnet, streams.obs, streams.carry, streams.begins, streams.seat)[0]
    return outputs if _is_exact(parts) else policy_view(parts.head, outputs, streams.mask, streams.action)


def divergence_from_magnet(parts: TeacherParts, distribution: Any, batch: PulledBatch) -> jax.Array:
    """Return KL(policy || magnet), f32 `[...]`; of heads that depend on each other that along the actions taken."""
    if _is_exact(parts):
        divergence: jax.Array = distribution.kl_divergence(parts.head.distribution(batch.magnet, batch.mask))
        return divergence
    assert parts.head.choices is not None
    return choices_kl_to(parts.head.choices(distribution, batch.action), batch.magnet)


def _is_exact(parts: TeacherParts) -> bool:
    return bool(parts.config.action_heads == "independent")
