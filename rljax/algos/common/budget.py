"""Checks of a configuration's budget: whole iterations of `num_envs * num_steps` steps, split into minibatches."""

from __future__ import annotations

from typing import Protocol

from rljax.core.config import MAX_COUNT
from rljax.core.errors import ConfigError


class BudgetFields(Protocol):
    """Fields of a configuration that say how large a rollout is, and how many there are."""

    @property
    def num_envs(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def total_timesteps(self) -> int: ...
    @property
    def num_iterations(self) -> int: ...


class BatchFields(BudgetFields, Protocol):
    """And how each is split."""

    @property
    def num_minibatches(self) -> int: ...


def check_batch(config: BatchFields) -> None:
    """Refuse minibatches of unequal sizes, and a budget that is no iteration or too many to count.

    Raises:
        ConfigError: names the field, its value and what is allowed.
    """
    batch = config.num_envs * config.num_steps
    if batch % config.num_minibatches:
        raise ConfigError(
            f"num_minibatches = {config.num_minibatches}: must divide num_envs * num_steps = "
            f"{config.num_envs} * {config.num_steps} = {batch}"
        )
    check_budget(config)


def check_budget(config: BudgetFields) -> None:
    """Refuse a budget that is no iteration or too many to count.

    Raises:
        ConfigError: names the field, its value and what is allowed.
    """
    batch = config.num_envs * config.num_steps
    if batch > MAX_COUNT:
        raise ConfigError(f"num_steps = {config.num_steps}: expected at most 2**31 - 1 = num_envs * num_steps, got {batch}")
    if config.total_timesteps < batch:
        raise ConfigError(
            f"total_timesteps = {config.total_timesteps}: expected at least num_envs * num_steps = {batch}, one iteration"
        )
    if config.num_iterations > MAX_COUNT:
        raise ConfigError(f"total_timesteps = {config.total_timesteps}: expected fewer than 2**31 iterations of {batch} steps")
