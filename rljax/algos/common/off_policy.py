"""Parts of the off-policy algorithms: the schedule of steps and updates, and the replay buffer.

An iteration is `num_steps` steps of every environment, in turns: `train_every` steps, then `updates_per_step` gradient steps,
each followed by an update of the target network. The schedule is static, and no buffer passes through a `cond`, which would copy
it: until the buffer holds `learning_starts` steps, the loop over gradient steps, which only reads the buffer, has no iterations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from rljax.algos.common.config import AdamConfig, ReplayConfig
from rljax.algos.common.state import normalize_obs
from rljax.collect.minibatches import flatten, ravel, steps_per_trip, unflatten, unraveler
from rljax.collect.normalizers import scale_rewards, update_reward_statistics, update_statistics
from rljax.collect.replay import HOST_GATHERS, NStep, Places, Replay, Transition, add_rows, take_n_step, to_host_memory
from rljax.collect.resets import EnvironmentNoise
from rljax.collect.rollout import EpisodeSums, Steps, episode_means, episode_sums, rollout_scan
from rljax.core.agent import Metrics, stack_metrics
from rljax.core.config import MAX_COUNT, MIN_DIVISOR, leaf, static
from rljax.core.devices import platform
from rljax.core.environments.environment import action_mask_of
from rljax.core.errors import ConfigError
from rljax.core.memory import check_memory, tree_bytes

T = TypeVar("T")

FLAT = ("params", "target_params")
"""Fields of a state that the loops over turns and updates carry as flat vectors, where the optimiser takes these."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(ReplayConfig, AdamConfig):
    """Fields of the algorithms that learn from single transitions of a replay buffer."""

    num_steps: int = static(
        default=32, doc="number of steps per environment in an iteration; each metric has one value per iteration", gt=0
    )
    train_every: int = static(default=1, doc="number of steps per environment between updates; must divide num_steps", gt=0)
    updates_per_step: int = static(default=1, doc="number of gradient steps after every train_every steps", gt=0)
    batch_size: int = static(default=32, doc="number of transitions in a gradient step", gt=0)
    learning_rate: float = leaf(default=1e-4, doc="Adam step size", ge=0)
    anneal_lr: bool = static(default=False, doc="lower the learning rate linearly, to 0 after the last iteration")
    adam_eps: float = leaf(default=1e-8, doc="Adam epsilon", ge=MIN_DIVISOR)
    max_grad_norm: float | None = leaf(default=None, doc="clip the global gradient norm", gt=0)
    tau: float = leaf(
        default=0.005, doc="step of the target network towards the parameters (Polyak averaging); 1 copies them", gt=0, le=1
    )
    target_update_every: int = static(default=1, doc="number of gradient steps between updates of the target network", gt=0)
    replay_memory: str = static(
        default="device",
        doc="memory that holds the buffer's observations: the device's, or the host's, which is larger and slower",
        choices=("device", "host"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_steps % self.train_every:
            raise ConfigError(f"train_every = {self.train_every}: must divide num_steps = {self.num_steps}")
        if self.target_update_every * self.updates_per_step > MAX_COUNT:
            raise ConfigError(
                f"target_update_every = {self.target_update_every}: expected at most {MAX_COUNT // self.updates_per_step} turns "
                f"of updates_per_step = {self.updates_per_step}"
            )

    def check_buffer(self) -> None:
        super().check_buffer()
        if self.replay_memory == "host" and self.num_devices > 1:
            raise ConfigError(f"replay_memory = 'host': expected 'device' with num_devices = {self.num_devices}")
        held = self.buffer_rows * self.num_envs
        if self.batch_size > held:
            raise ConfigError(f"batch_size = {self.batch_size}: expected at most the {held} transitions of the buffer")

    @property
    def rows_per_turn(self) -> int:
        return self.train_every


def check_replay_memory(config: OffPolicyConfig, example: Any) -> None:
    """Refuse a buffer of steps like `example` that the device cannot hold, or one on the host of a TPU or with an old JAX.

    Raises:
        ConfigError: says how much it needs, what there is, and what one transition takes.
    """
    if config.replay_memory == "host" and platform() == "tpu":
        # Seen in the program for a v5e: tiles of the host's arrays differ, and all of them go over the bus in each turn.
        raise ConfigError(
            "replay_memory = 'host': expected 'device' on a TPU, where XLA would copy the whole buffer in each turn"
        )
    if config.replay_memory == "host" and not HOST_GATHERS:
        raise ConfigError(f"replay_memory = 'host': expected 'device' with JAX {jax.__version__}, or a newer JAX")
    per_step = tree_bytes(example)
    needed = per_step * config.buffer_rows * config.num_envs
    what = f"buffer_size = {config.buffer_size}: a replay buffer of {config.buffer_rows} x {config.num_envs} transitions"
    check_memory(needed, what, f"a transition takes {per_step:,} bytes", host=config.replay_memory == "host")


def transition_example(env: Any, env_params: Any, action: Any) -> Transition:
    """Return the shapes of one `Transition` of an environment, for `init_replay`; `action` is the shape of a stored action."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    obs, state = jax.eval_shape(env.reset_env, key, env_params)
    mask = jax.eval_shape(lambda s: action_mask_of(env, s, env_params), state)
    flag: Any = jax.ShapeDtypeStruct((), jnp.bool_)
    reward: Any = jax.ShapeDtypeStruct((), jnp.float32)
    return Transition(obs, action, reward, flag, flag, obs, mask)


def collect_to_replay(
    config: OffPolicyConfig,
    env: Any,
    env_params: Any,
    act: Callable[[Any, Any, jax.Array | None, Any], tuple[jax.Array, Any]],
    to_env: Callable[[jax.Array], jax.Array],
    state: Any,
    noise: Any,
    env_noise: EnvironmentNoise,
) -> tuple[Any, Steps]:
    """Step the environments of `state` with `act` (see `rollout_scan`), and add what happened to its buffer and statistics."""
    env_state, obs, _, steps = rollout_scan(env, env_params, act, to_env, state.env_state, state.obs, noise, env_noise)
    obs_statistics, reward_statistics = state.obs_statistics, state.reward_statistics
    if obs_statistics is not None:
        obs_statistics = update_statistics(obs_statistics, steps.obs)
    if reward_statistics is not None:
        done = steps.terminated | steps.truncated
        reward_statistics = update_reward_statistics(reward_statistics, steps.reward, done, config.gamma)
    rows = Transition(steps.obs, steps.action, steps.reward, steps.terminated, steps.truncated, steps.next_obs, steps.next_mask)
    state = state.replace(
        env_state=env_state,
        obs=obs,
        replay=add_rows(state.replay, rows),
        obs_statistics=obs_statistics,
        reward_statistics=reward_statistics,
    )
    return state, steps


def normalized_n_step(config: OffPolicyConfig, state: Any, places: Places, n: int) -> NStep:
    """Return n-step transitions with normalised observations and rewards; the buffer holds them unnormalised."""
    statistics = state.reward_statistics
    scale = None if statistics is None else lambda reward: scale_rewards(statistics, reward)
    batch = take_n_step(state.replay, places, n, config.gamma, scale)
    return batch._replace(obs=normalize_obs(state, batch.obs), next_obs=normalize_obs(state, batch.next_obs))


def can_learn(config: ReplayConfig, replay: Replay) -> jax.Array:
    """Return whether the buffer holds enough to learn from, bool []."""
    return replay.size >= config.rows_before_learning


def polyak_update(target: T, params: T, tau: float | jax.Array) -> T:
    """Return `target + tau (params - target)` for every leaf (Lillicrap et al., 2016); tau = 1 copies `params`."""
    # As a choice for tau = 1 too: target + (params - target) is params only to rounding.
    return jax.tree.map(lambda t, p: jnp.where(tau >= 1.0, p, t + tau * (p - t)), target, params)


def update_target(config: OffPolicyConfig, target: T, params: T, updates: jax.Array) -> T:
    """Return the target network after gradient step number `updates` (i32 [], counted from 1), which led to `params`: every
    `target_update_every`-th step updates it.
    """
    before = ravel(target)
    moved = polyak_update(before, ravel(params), config.tau)
    if config.target_update_every > 1:
        moved = jnp.where(updates % config.target_update_every == 0, moved, before)
    result: T = unraveler(target)(moved)
    return result


def with_episode_sums(state: Any, steps: Steps) -> tuple[Any, EpisodeSums]:
    """Return the state with the sums over the episodes that ended, as `run_turns` expects."""
    return state, episode_sums(steps)


def run_turns(
    state: Any,
    noise: Any,
    collect: Callable[[Any, Any], tuple[Any, EpisodeSums]],
    update: Callable[[Any, Any], tuple[Any, Metrics]],
    flat: Sequence[str] = (),
) -> tuple[Any, Metrics]:
    """Take one iteration: `collect`, which returns sums over episodes too (see `episode_sums`), then `update`, in each turn of
    `noise` (its leading axis).

    `flat` names fields of the state that hold parameters, of which the loop carries a vector: a tree that became one in each turn
    would cost more kernels than a gradient. `collect` and `update` have trees.
    """
    names: list[str] = []
    state = to_host_memory(state)  # shapes of a state do not say where its buffer is

    def turn(carry: Any, noise: Any) -> tuple[Any, tuple[EpisodeSums, jax.Array]]:
        after, episodes = collect(unflatten(carry, state, flat), noise)
        after, metrics = update(after, noise)
        names[:] = sorted(metrics)
        return flatten(after, flat), (episodes, stack_metrics(metrics))

    carry, (episodes, stacked) = jax.lax.scan(turn, flatten(state, flat), noise)
    state = unflatten(carry, state, flat)
    metrics = episode_means(jax.tree.map(lambda x: jnp.sum(x, 0), episodes)) | means_over_updates(names, stacked)
    return state.replace(iteration=state.iteration + 1), metrics


def update_loop(
    learns: jax.Array | None,
    num_updates: int,
    update: Callable[[jax.Array, Any, Any], tuple[Any, Metrics]],
    state: Any,
    flat: Sequence[str] = (),
    read: Callable[[jax.Array, Any], Any] | None = None,
) -> tuple[Any, Metrics]:
    """Take `num_updates` updates if `learns`, bool [], else none; None: always.

    A buffer may be part of `state`: it is not copied. Only whether there are updates is decided at run time, since on an
    accelerator each trip of a loop whose end is not known before waits for the host.

    Args:
        learns: bool []; None: True.
        num_updates: number of updates.
        update: `(i, state, samples) -> (state, metrics)`.
        state: before the first update.
        flat: as in `run_turns`.
        read: `(zero, state) -> samples`, what all updates share, with the state before the first; it must add `zero`, u32 [], to
            the random bits with which it reads a buffer (see `read_apart`).

    Returns:
        The last state, and the means of the metrics over the updates, 0 where none was taken, with their number, `train/updates`.
    """
    # Under jit, so that what is traced to know the names of its metrics is not traced again in the loop.
    one = jax.jit(update)
    first = jnp.zeros((), jnp.int32)

    def samples_of(zero: jax.Array, state: Any) -> Any:
        return None if read is None else read(zero.astype(jnp.uint32), state)

    _, metrics = jax.eval_shape(one, first, state, jax.eval_shape(samples_of, first, state))

    def turn(zero: jax.Array, loop: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        # Parameters from the vector that the loop carries: as trees from outside, each bias would cost a kernel.
        samples = samples_of(zero, unflatten(loop[0], state, flat))

        def body(i: jax.Array, loop: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
            carry, sums = loop
            after, metrics = one(i, unflatten(carry, state, flat), samples)
            return flatten(after, flat), sums + stack_metrics(metrics)

        if num_updates == 1:
            return body(zero, loop)
        return jax.lax.fori_loop(0, num_updates, body, loop, unroll=1 if samples is None else steps_per_trip(num_updates))

    start = (flatten(state, flat), jnp.zeros(len(metrics)))
    count = jnp.float32(num_updates) * (1.0 if learns is None else learns)
    carry, sums = turn(first, start) if learns is None else jax.lax.fori_loop(0, learns.astype(jnp.int32), turn, start)
    means = dict(zip(sorted(metrics), sums / jnp.maximum(count, 1.0), strict=True))
    return unflatten(carry, state, flat), means | {"train/updates": count}


def means_over_updates(names: list[str], stacked: jax.Array) -> Metrics:
    """Metrics of turns f32 `[turns, metrics]` as one: `train/updates` added up, the others means over the gradient steps,
    NaN where there was none."""
    updates = stacked[:, names.index("train/updates")]
    # Turns without gradient steps have none of what is averaged here; nothing is known without any.
    total = jnp.where(jnp.any(updates > 0), jnp.sum(updates), jnp.nan)
    means = jnp.sum(stacked * updates[:, None], 0) / total
    return dict(zip(names, means, strict=True)) | {"train/updates": jnp.sum(updates)}
