"""The configuration of DreamerV3 and R2-Dreamer."""

from __future__ import annotations

import math
import warnings
from typing import ClassVar

from rljax.algos.common.config import ReplayConfig
from rljax.algos.dreamer.networks import REPRESENTATIONS, SIZES
from rljax.core.config import MAX_COUNT, MIN_DIVISOR, algorithm, leaf, static
from rljax.core.errors import ConfigError, RljaxWarning, did_you_mean, shown


@algorithm("dreamer")
class DreamerConfig(ReplayConfig):
    """DreamerV3 for vectors, images and dictionaries of them, discrete and continuous actions.

    Action masks apply in the environment but not in imagination, where illegal actions may be taken.
    """

    window_fields: ClassVar[str] = "batch_length + 1"

    num_envs: int = static(default=16, doc="number of environments stepped in parallel", gt=0)
    num_steps: int = static(
        default=4, doc="number of steps per environment in an iteration; each metric has one value per iteration", gt=0
    )
    gamma: float = leaf(
        default=1.0 - 1.0 / 333.0,
        doc="discount factor per step, included in the learned probability that an episode continues",
        ge=0,
        le=1,
    )
    size: str = static(default="1M", doc="size of the networks: debug, or 1M, 12M, 25M, 50M, 100M, 200M or 400M parameters")
    representation: str = static(
        default="decoder",
        doc="loss that trains latent states to represent observations: reconstruction, or a loss without a decoder",
        choices=REPRESENTATIONS,
    )
    train_ratio: float = static(default=512.0, doc="number of replayed steps trained on for each environment step", gt=0)
    batch_size: int = static(default=16, doc="number of sequences in an update", gt=0)
    batch_length: int = static(default=64, doc="number of steps in a sequence", gt=1)
    horizon: int = static(default=15, doc="number of steps imagined from every replayed step", gt=0)
    buffer_size: int = static(
        default=1_000_000, doc="capacity of the replay buffer in steps, rounded down to whole rows of num_envs", gt=0
    )
    learning_starts: int = static(
        default=1_024,
        doc="number of steps in the buffer before the first update, which also needs one sequence of each environment",
        ge=0,
    )
    learning_rate: float = leaf(default=4e-5, doc="step size of LaProp", ge=0)
    anneal_lr: bool = static(default=False, doc="lower the learning rate linearly, to 0 after the last iteration")
    warmup: int = static(default=1_000, doc="number of updates over which the learning rate rises from 0", ge=0)
    agc: float = leaf(default=0.3, doc="largest gradient norm of a tensor, relative to the norm of the tensor", ge=MIN_DIVISOR)
    return_lambda: float = leaf(default=0.95, doc="lambda of imagined and replayed returns", ge=0, le=1)
    return_decay: float = leaf(default=0.99, doc="decay of the running range of returns", ge=0, le=1)
    unroll: int = static(
        default=1, doc="number of steps of the scans over time that are compiled as one iteration of a loop", gt=0
    )
    ent_coef: float = leaf(default=3e-4, doc="weight of the policy's entropy", ge=0)
    free_nats: float = leaf(default=1.0, doc="KL divergence of posterior and prior below which there is no loss, in nats", ge=0)
    slow_fraction: float = leaf(default=0.02, doc="step of the slow critic towards the critic after each update", gt=0, le=1)
    dtype: str = static(
        default="auto",
        doc="dtype of products: bfloat16, float32, or auto (bfloat16 on accelerators, float32 on CPUs)",
        choices=("auto", "float32", "bfloat16"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size not in SIZES:
            raise ConfigError(f"size = {shown(self.size)}: {did_you_mean(self.size, SIZES)}")
        if self.normalize_rewards:
            raise ConfigError(
                "normalize_rewards = true: expected false, since Dreamer predicts rewards of any size by two-hot encoding"
            )
        _, updates, ratio = self.schedule
        if updates > MAX_COUNT:
            raise ConfigError(
                f"train_ratio = {self.train_ratio:g}: expected fewer than 2**31 updates in a row, this would take {updates:,}"
            )
        if not 0.5 <= ratio / self.train_ratio <= 2.0:
            raise ConfigError(
                f"train_ratio = {self.train_ratio:g}: expected at least {ratio:g}, one update in the {self.steps_per_iteration} "
                "steps of an iteration; take more num_steps, or smaller batches"
            )
        if not math.isclose(ratio, self.train_ratio, rel_tol=1e-6):
            warnings.warn(
                f"train_ratio = {self.train_ratio:g}: {self.num_envs} environments x {self.num_steps} steps with batches of "
                f"{self.batch_size} x {self.batch_length} have no whole number of updates for it; rounded to {ratio:g}",
                RljaxWarning,
                stacklevel=4,
            )

    @property
    def window(self) -> int:
        """Rows of a sequence: one before it has the state that it starts from."""
        return self.batch_length + 1

    @property
    def rows_per_turn(self) -> int:
        return self.schedule[0]

    @property
    def schedule(self) -> tuple[int, int, float]:
        """`(K, U, ratio)`: K steps of every environment, then U updates, which trains on `ratio` steps for each one taken.

        The smallest K that divides `num_steps` and has whole updates; none: one turn in an iteration, with U rounded.
        """
        per_step = self.num_envs * self.train_ratio / (self.batch_size * self.batch_length)
        for every in (k for k in range(1, self.num_steps + 1) if self.num_steps % k == 0):
            updates = round(every * per_step)
            if updates and math.isclose(updates, every * per_step, rel_tol=1e-6):
                break
        else:
            every, updates = self.num_steps, max(1, round(self.num_steps * per_step))
        return every, updates, updates * self.batch_size * self.batch_length / (every * self.num_envs)
