"""Base classes of configurations: fields that several algorithms share, with their checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
from flax.core import FrozenDict

from rljax.core.config import (
    MAX_COUNT,
    MIN_DIVISOR,
    Config,
    leaf,
    static,
)
from rljax.core.errors import ConfigError
from rljax.core.plain import freeze
from rljax.nn.opponents import SEEN, described

WIDE: FrozenDict[str, Any] = FrozenDict({"hidden": (256, 256)})
"""The default `network` table of actor-critics that learn from replay or datasets."""


def widened(network: Any) -> Any:
    """Return a `network` table with the keys of `WIDE` that it does not name; return anything else as it is.

    The configuration has them, and not only the network: the command line completes a table from the default's keys, too.
    """
    return FrozenDict({**WIDE, **network}) if isinstance(network, Mapping) else network


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerConfig(Config):
    """Fields of every algorithm. An iteration is `num_steps` steps of each environment, then gradient steps."""

    num_steps: int = static(default=128, doc="number of steps per environment in a rollout", gt=0)
    learning_rate: float = leaf(default=2.5e-4, doc="step size of Adam", ge=0)
    anneal_lr: bool = static(default=True, doc="anneal the learning rate linearly, to 0 after the last iteration")
    dtype: str = static(
        default="float32",
        doc="dtype of the networks' products before their last layers; bfloat16 pays for wide networks on accelerators",
        choices=("float32", "bfloat16"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        batch = self.steps_per_iteration
        if batch > MAX_COUNT:
            raise ConfigError(f"num_steps = {self.num_steps}: expected at most 2**31 - 1 = num_envs * num_steps, got {batch}")
        if self.total_timesteps < batch:
            raise ConfigError(
                f"total_timesteps = {self.total_timesteps}: expected at least num_envs * num_steps = {batch}, one iteration"
            )
        if self.num_iterations > MAX_COUNT:
            raise ConfigError(f"total_timesteps = {self.total_timesteps}: expected fewer than 2**31 iterations of {batch} steps")

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.num_steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamConfig(LearnerConfig):
    """Fields of the algorithms that use Adam."""

    adam_eps: float = leaf(default=1e-5, doc="epsilon of Adam", ge=MIN_DIVISOR)
    max_grad_norm: float | None = leaf(
        default=0.5, doc="largest global gradient norm; larger gradients are scaled down to it", gt=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayConfig(LearnerConfig):
    """Fields of the algorithms that learn from a replay buffer, whose rows have a step of every environment each."""

    window_fields: ClassVar[str] = "n_step"

    buffer_size: int = static(default=10_000, doc="transitions in the replay buffer, floored to whole rows of num_envs", gt=0)
    learning_starts: int = static(default=1_000, doc="transitions in the buffer before the first gradient step", ge=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.has_buffer:
            self.check_buffer()

    def check_buffer(self) -> None:
        """Refuse a buffer that does not fit the other fields.

        Raises:
            ConfigError: names the field, its value and what is allowed.
        """
        rows = max(self.window, self.rows_per_turn)
        if self.buffer_rows < rows:
            raise ConfigError(
                f"buffer_size = {self.buffer_size}: expected at least {rows * self.num_envs}, {rows} rows of num_envs "
                f"= {self.num_envs} steps: a sample takes {self.window_fields} = {self.window}, a turn adds {self.rows_per_turn}"
            )
        held = self.buffer_rows * self.num_envs
        if self.learning_starts > held:
            raise ConfigError(f"learning_starts = {self.learning_starts}: expected at most the {held} steps of the buffer")
        taken, needed = self.num_iterations * self.steps_per_iteration, self.rows_before_learning * self.num_envs
        if taken < needed:
            raise ConfigError(
                f"total_timesteps = {self.total_timesteps}: expected at least {needed} in whole iterations of "
                f"{self.steps_per_iteration}, which the first update needs (learning_starts = {self.learning_starts}, and "
                f"{self.window_fields} = {self.window} of each environment)"
            )

    @property
    def has_buffer(self) -> bool:
        """Return whether the algorithm has a replay buffer; offline algorithms have one only with `online`."""
        return True

    @property
    def window(self) -> int:
        """Rows that follow each other in one sample, which the fields `window_fields` set."""
        return 1

    @property
    def rows_per_turn(self) -> int:
        """Rows that are added before each update, or several in a row."""
        return 1

    @property
    def steps_per_rollout(self) -> int:
        return self.rows_per_turn

    @property
    def buffer_rows(self) -> int:
        """Capacity of the buffer."""
        return self.buffer_size // self.num_envs

    @property
    def rows_before_learning(self) -> int:
        """Rows in the buffer before the first update: `learning_starts` steps, and at least those of one sample."""
        return max(-(-self.learning_starts // self.num_envs), self.window)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(AdamConfig):
    """Fields of the on-policy algorithms, which learn from each rollout in minibatches and then discard it."""

    num_epochs: int = static(default=4, doc="number of passes over each rollout", gt=0, le=10_000)
    num_minibatches: int = static(default=4, doc="number of minibatches per pass; must divide num_envs * num_steps", gt=0)
    network: Any = static(
        default=FrozenDict(), doc="{ type = 'mlp', hidden = [64, 64], ... }, see rljax.nn.actor_critic, or a flax.linen Module"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_minibatches()
        if isinstance(self.network, Mapping) and SEEN in self.network:
            self._describe_opponent_model(self.network)

    def _describe_opponent_model(self, network: Mapping[str, Any]) -> None:
        """Write what a run needs to know of its opponent model into the configuration, so that it acts without the file."""
        if self.normalize_observations:
            raise ConfigError(
                "normalize_observations = true: the opponent model was trained on observations as they are, expected false"
            )
        if isinstance(network[SEEN], str):
            object.__setattr__(self, "network", freeze("network", {**network, SEEN: described(network[SEEN])}))

    def check_minibatches(self) -> None:
        """Refuse minibatches of unequal sizes.

        Raises:
            ConfigError: names the field, its value and what is allowed.
        """
        batch = self.steps_per_iteration
        if batch % self.num_minibatches:
            raise ConfigError(
                f"num_minibatches = {self.num_minibatches}: must divide num_envs * num_steps = "
                f"{self.num_envs} * {self.num_steps} = {batch}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionConfig(OnPolicyConfig):
    """Fields of the algorithms with a policy for any action space."""

    privileged_critic: ClassVar[bool] = True

    action_heads: str = static(
        default="independent",
        doc="how several action heads are related: 'autoregressive' lets each head see the actions of earlier heads",
        choices=("independent", "autoregressive"),
    )
    log_std: str = static(
        default="parameter",
        doc="source of a Gaussian policy's log_std: a free parameter, or an output of the network (continuous actions)",
        choices=("parameter", "network"),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyConfig(ActionConfig):
    """Fields of the policy gradient algorithms."""

    vf_coef: float = leaf(default=0.5, doc="weight of the value loss", ge=0)
    ent_coef: float = leaf(default=0.01, doc="weight of the entropy bonus", ge=0)
    upgo_coef: float | None = leaf(
        default=None, doc="weight of the upgoing policy gradient (Vinyals et al., 2019); none: without", ge=0
    )
    teacher_kl_coef: float | None = leaf(
        default=None,
        doc="weight of the KL divergence from the policy that the run (or its fork) began with, a clone, say; none: without",
        ge=0,
    )
    teacher_kl_final: float = leaf(default=0.0, doc="final weight of that divergence, to which it changes linearly", ge=0)
    teacher_kl_share: float = leaf(
        default=1.0,
        doc="share of the run (of what is left of it, where a fork takes its teacher) after which that weight is the final one",
        ge=MIN_DIVISOR,
        le=1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpsilonConfig(LearnerConfig):
    """Fields of the algorithms that explore by random actions."""

    epsilon_start: float = leaf(default=1.0, doc="probability of a random action at the first step", ge=0, le=1)
    epsilon_end: float = leaf(default=0.05, doc="probability of a random action after epsilon_steps", ge=0, le=1)
    epsilon_steps: float = leaf(default=50_000.0, doc="environment steps over which epsilon decreases linearly", ge=MIN_DIVISOR)


def learns_values(config: Config) -> bool:
    """Return whether a configuration trains its value head, if it has a weight for that; a traced `vf_coef` counts as one."""
    vf_coef = getattr(config, "vf_coef", None)
    return isinstance(vf_coef, jax.core.Tracer) or vf_coef != 0
