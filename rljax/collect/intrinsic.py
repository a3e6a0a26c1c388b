"""Intrinsic rewards: bonuses for novel observations, in the form of an optax transformation.

The bonus of a step is that of the observation that the step led to, before any reset.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from rljax.collect.minibatches import init_optimizer, minibatch_steps
from rljax.collect.normalizers import (
    RewardStatistics,
    RunningStatistics,
    init_reward_statistics,
    init_statistics,
    normalize,
    normalize_rewards,
    update_statistics,
)
from rljax.collect.streams import own_mean
from rljax.core.agent import Metrics
from rljax.core.config import MAX_FLOAT, MIN_DIVISOR
from rljax.core.environments.environment import strong
from rljax.core.environments.wrappers import flatten_observation
from rljax.core.errors import ConfigError, did_you_mean, shown
from rljax.nn.networks import FeedForward
from rljax.nn.spec import MAX_SIZE, SIZES_ALLOWED, are_sizes, is_size


class IntrinsicUpdate(Protocol):
    """`update(state, key, next_obs, done, entropy=None, own=None) -> (state, bonus, metrics)`: update with a rollout and return
    its bonuses.

    For T steps of N environments, `next_obs` is the tree of observations `[T, N, *obs_shape]` that each step led to, before any
    reset; `done`, bool `[T, N]`, whether the step ended its episode (terminated or truncated); and `entropy`, f32 `[T, N]`, the
    entropy of a belief at `next_obs`, for bonuses that need it. `own`, bool `[T, N]`, says which steps count as visits and are
    learned from; None: all.

    The bonus is f32 `[T, N]`, without a coefficient. Metrics are f32 scalars; `train/intrinsic_reward` is the mean bonus.
    """

    def __call__(
        self,
        state: Any,
        key: jax.Array,
        next_obs: Any,
        done: jax.Array,
        entropy: jax.Array | None = None,
        own: jax.Array | None = None,
    ) -> tuple[Any, jax.Array, Metrics]: ...


class Intrinsic(NamedTuple):
    """A bonus as two pure functions.

    Attributes:
        init: `(key, obs_example, num_envs) -> state`; the example is one unbatched observation. A state is a tree of arrays.
        update: see `IntrinsicUpdate`.
    """

    init: Callable[[jax.Array, Any, int], Any]
    update: IntrinsicUpdate


class CountState(NamedTuple):
    """Visits per counter, f32 `[bins]`; exact up to 2^24, where they stay."""

    counts: jax.Array


def count_bonus(resolution: float | jax.Array = 1.0, bins: int = 2**16) -> Intrinsic:
    """Return the bonus 1 / sqrt(N(s)), where N(s) counts visits of the state, those of this rollout included (Tang et al., 2017,
    eq. 1).

    A state is an observation divided by the resolution and rounded, then hashed to one of the counters. With M states, a state
    shares its counter with another, and so gets too small a bonus, with a probability of about M / bins (2500 states, 2^16
    counters: 4%).

    Args:
        resolution: width of a state, in the observation's units.
        bins: number of counters, a power of two; each takes 4 bytes per seed.
    """
    if bins < 1 or bins & (bins - 1):
        raise ConfigError(f"intrinsic.bins = {shown(bins)}: expected a power of two, such as 65536")

    def init(key: jax.Array, obs_example: Any, num_envs: int) -> CountState:
        del key, obs_example, num_envs
        return CountState(jnp.zeros(bins))

    def update(
        state: CountState,
        key: jax.Array,
        next_obs: Any,
        done: jax.Array,
        entropy: jax.Array | None = None,
        own: jax.Array | None = None,
    ) -> tuple[CountState, jax.Array, Metrics]:
        del key, entropy
        # Round half up: rounding half to even would make every other state wider than the next.
        cells = jnp.floor(_flat(next_obs, done.shape) / jnp.asarray(resolution, jnp.float32) + 0.5)
        # The cast of a number beyond i32 depends on the device.
        index = hash_cells(jnp.clip(cells, -(2.0**30), 2.0**30).astype(jnp.int32)) & np.uint32(bins - 1)
        counts = state.counts.at[index].add(1.0 if own is None else own.reshape(-1).astype(jnp.float32))
        # A state that only others have visited has no count yet.
        bonus = jax.lax.rsqrt(counts[index] if own is None else jnp.maximum(counts[index], 1.0)).reshape(done.shape)
        return CountState(counts), bonus, {"train/intrinsic_reward": own_mean(bonus, own)}

    return Intrinsic(init, update)


def hash_cells(cells: jax.Array) -> jax.Array:
    """Return a fixed hash u32 `[...]` of integers i32 `[..., D]`: hash each number with its place, sum, and hash the sum.

    The sum is as parallel as a mean, where a chain of hashes would not be. Among M different vectors, at least two have the same
    hash with a probability of about M^2 / 2^33.
    """
    # Multiples of 2^32 over the golden ratio lie far apart, so that a small number in one place differs from one in the next
    # place.
    places = (np.arange(1, cells.shape[-1] + 1, dtype=np.uint64) * 0x9E3779B9 % 2**32).astype(np.uint32)
    return _mixed(jnp.sum(_mixed(cells.astype(jnp.uint32) + places), axis=-1, dtype=jnp.uint32))


def _mixed(x: jax.Array) -> jax.Array:
    """Apply the last step of MurmurHash3 (Appleby, 2011), a bijection in which each output bit depends on all input bits."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


class DistillationState(struct.PyTreeNode):
    """State of random network distillation; `target` never changes. Statistics are of raveled observations, and of bonuses."""

    target: Any
    params: Any
    opt_state: Any
    obs_statistics: RunningStatistics
    reward_statistics: RewardStatistics


def random_network_distillation(
    hidden: tuple[int, ...] = (64,),
    features: int = 32,
    num_minibatches: int = 4,
    learning_rate: float | jax.Array = 1e-3,
    gamma: float | jax.Array = 0.99,
) -> Intrinsic:
    """Return the bonus of random network distillation: the error in predicting a random network's outputs (Burda et al., 2018).

    The bonus is the mean squared error of the features, divided by the running standard deviation of its discounted return, which
    continues across the ends of episodes (sections 2.3 and 2.4). Observations are flattened, standardised by running statistics
    that include the rollout, and clipped to [-5, 5]. The predictor learns after the bonus is computed, in one pass over the
    rollout with Adam.

    Args:
        hidden: sizes of the hidden layers of both networks.
        features: number of outputs that the predictor must predict.
        num_minibatches: number of gradient steps per rollout; must divide T N.
        learning_rate: step size of Adam; may be traced.
        gamma: discount of the return that scales the bonus; may be traced.
    """
    network = FeedForward(num_outputs=features, hidden=hidden)
    optimizer = optax.scale_by_adam()

    def init(key: jax.Array, obs_example: Any, num_envs: int) -> DistillationState:
        flat = flatten_observation(obs_example)
        # By vmap, so that one initialisation is compiled for both networks.
        both = jax.vmap(lambda k: network.init(k, flat[None]))(jax.random.split(key))
        target, params = (jax.tree.map(lambda x, i=i: x[i], both) for i in range(2))
        return strong(
            DistillationState(
                target=target,
                params=params,
                opt_state=init_optimizer(optimizer, params),
                obs_statistics=init_statistics(flat),
                reward_statistics=init_reward_statistics(num_envs),
            )
        )

    def update(
        state: DistillationState,
        key: jax.Array,
        next_obs: Any,
        done: jax.Array,
        entropy: jax.Array | None = None,
        own: jax.Array | None = None,
    ) -> tuple[DistillationState, jax.Array, Metrics]:
        del entropy
        flat = _flat(next_obs, done.shape)
        if len(flat) % num_minibatches:
            raise ConfigError(f"intrinsic.num_minibatches = {num_minibatches}: must divide the {len(flat)} steps of a rollout")
        obs_statistics = update_statistics(state.obs_statistics, flat)
        x = normalize(obs_statistics, flat, clip=5.0)
        target = _features(network, state.target, x)
        error = jnp.mean(jnp.square(_features(network, state.params, x) - target), axis=-1).reshape(done.shape)
        # The return of bonuses continues across the ends of episodes (section 2.3).
        reward_statistics, bonus = normalize_rewards(state.reward_statistics, error, jnp.zeros_like(done), gamma)

        def loss_fn(params: Any, batch: tuple[Any, ...]) -> tuple[jax.Array, Metrics]:
            x, target, own = batch
            return own_mean(jnp.square(_features(network, params, x) - target), own), {}

        params, opt_state, metrics = minibatch_steps(
            loss_fn,
            optimizer,
            state.params,
            state.opt_state,
            (x, target, None if own is None else own.reshape(-1, 1)),
            key,
            num_epochs=1,
            num_minibatches=num_minibatches,
            learning_rate=jnp.asarray(learning_rate, jnp.float32),
        )
        state = state.replace(
            params=params, opt_state=opt_state, obs_statistics=obs_statistics, reward_statistics=reward_statistics
        )
        return (
            state,
            bonus,
            {
                "train/intrinsic_reward": own_mean(bonus, own),
                "train/intrinsic_error": own_mean(error, own),
                "train/intrinsic_grad_norm": metrics["train/grad_norm"],
            },
        )

    return Intrinsic(init, update)


def _features(network: FeedForward, params: Any, x: jax.Array) -> jax.Array:
    return jnp.asarray(network.apply(params, x))


NO_ENTROPY = float(np.finfo(np.float32).min)
"""Stands for the entropy before the first step of an episode. It is less than any entropy, so the first step is no reduction, and
finite, so that checks of a state for infinities pass."""


def entropy_reduction(entropy: jax.Array, done: jax.Array, previous: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the reduction of a belief's entropy H by each step, max(H_{t-1} - H_t, 0) (ROA-Star, Huang et al., 2023).

    The first step of an episode gets exactly 0.

    Args:
        entropy: entropy of the belief after each step, f32 `[T, N]`.
        done: whether the step ended its episode, bool `[T, N]`.
        previous: entropy before the first step, f32 `[N]`; `NO_ENTROPY` where an episode begins.

    Returns:
        The bonus f32 `[T, N]`, and `previous` for the next rollout, f32 `[N]`.
    """
    chex.assert_equal_shape([entropy, done])
    chex.assert_shape(previous, entropy.shape[1:])
    after = jnp.where(done, NO_ENTROPY, entropy)
    before = jnp.concatenate([previous[None], after[:-1]])
    return jnp.maximum(before - entropy, 0.0), after[-1]


class EntropyState(NamedTuple):
    """The entropy after the last step, f32 `[N]`; `NO_ENTROPY` where an episode begins."""

    previous: jax.Array


def entropy_reduction_bonus() -> Intrinsic:
    """Return `entropy_reduction` as a bonus; its `update` needs `entropy`."""

    def init(key: jax.Array, obs_example: Any, num_envs: int) -> EntropyState:
        del key, obs_example
        return EntropyState(jnp.full(num_envs, NO_ENTROPY, jnp.float32))

    def update(
        state: EntropyState,
        key: jax.Array,
        next_obs: Any,
        done: jax.Array,
        entropy: jax.Array | None = None,
        own: jax.Array | None = None,
    ) -> tuple[EntropyState, jax.Array, Metrics]:
        del key, next_obs
        if entropy is None:
            raise ConfigError(
                "intrinsic.type = 'entropy_reduction': needs info['belief_entropy'] at each step, and this environment has none"
            )
        bonus, last = entropy_reduction(entropy, done, state.previous)
        return EntropyState(last), bonus, {"train/intrinsic_reward": own_mean(bonus, own)}

    return Intrinsic(init, update)


def make_intrinsic(
    spec: Any, rollout_size: int, *, learning_rate: float | jax.Array = 1e-3, gamma: float | jax.Array = 0.99
) -> Intrinsic:
    """Return the bonus that a configuration's `intrinsic` field describes.

    Tables are `{ type = "count", resolution = 1.0, bins = 65536 }`, `{ type = "rnd", hidden = [64], features = 32,
    num_minibatches = 4 }` with `learning_rate` and `gamma`, and `{ type = "entropy_reduction" }`.

    Args:
        spec: the table.
        rollout_size: T N, the number of steps in a rollout.
        learning_rate: step size of "rnd" if the table has none.
        gamma: discount of "rnd" if the table has none.

    Raises:
        ConfigError: an unknown type or key, or a value that is not allowed.
    """
    kind, table = _intrinsic_table(spec)
    if kind == "count":
        return count_bonus(**table)
    if kind == "rnd":
        minibatches = table.setdefault("num_minibatches", math.gcd(4, rollout_size))
        if rollout_size % minibatches:
            raise ConfigError(f"intrinsic.num_minibatches = {minibatches}: must divide the {rollout_size} steps of a rollout")
        return random_network_distillation(**{"learning_rate": learning_rate, "gamma": gamma, **table})
    return entropy_reduction_bonus()


_RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "resolution": (f"a number > 0, at least {MIN_DIVISOR}", lambda x: _is_number(x) and x >= MIN_DIVISOR),
    "bins": ("a power of two up to 2**30, such as 65536", lambda x: is_size(x) and not x & (x - 1) and x <= 2**30),
    "hidden": (
        f"a list of layer sizes, {SIZES_ALLOWED}",
        are_sizes,
    ),
    "features": (f"a whole number > 0 and <= {MAX_SIZE}", lambda x: is_size(x) and x <= MAX_SIZE),
    "num_minibatches": ("a whole number > 0", lambda x: is_size(x)),
    "learning_rate": ("a number >= 0 within the range of float32", lambda x: _is_number(x) and x >= 0),
    "gamma": ("a number >= 0 and <= 1", lambda x: _is_number(x) and 0 <= x <= 1),
}

_KEYS = {
    "count": ("resolution", "bins"),
    "rnd": ("hidden", "features", "num_minibatches", "learning_rate", "gamma"),
    "entropy_reduction": (),
}


def _intrinsic_table(spec: Any) -> tuple[str, dict[str, Any]]:
    """Check an `intrinsic` table and return its type and its other entries."""
    if not isinstance(spec, Mapping) or "type" not in spec:
        raise ConfigError(
            f"intrinsic = {shown(spec)}: expected a table with a type, such as {{ type = 'count', resolution = 1.0 }}"
        )
    table = dict(spec)
    kind = table.pop("type")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise ConfigError(f"intrinsic.type = {shown(kind)}: {did_you_mean(str(kind), _KEYS)}")
    for key, value in table.items():
        if key not in _KEYS[kind]:
            raise ConfigError(f"intrinsic.{key}: unknown key of type '{kind}', {did_you_mean(key, ['type', *_KEYS[kind]])}")
        expected, allowed = _RANGES[key]
        if not allowed(value):
            raise ConfigError(f"intrinsic.{key} = {shown(value)}: expected {expected}")
    if "hidden" in table:
        table["hidden"] = tuple(table["hidden"])
    return kind, table


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) <= MAX_FLOAT


def _flat(next_obs: Any, batch: tuple[int, ...]) -> jax.Array:
    """Return the observations of a rollout as f32 vectors, `[T N, D]`."""
    ndim = len(batch)
    chex.assert_tree_shape_prefix(next_obs, batch)
    rows = jax.tree.map(lambda x: x.reshape((-1, *x.shape[ndim:])), next_obs)
    return jax.vmap(flatten_observation)(rows)
