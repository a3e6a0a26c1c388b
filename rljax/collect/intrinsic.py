"""Intrinsic rewards: bonuses for what a policy has not seen before, in the form of an optax transformation.

The bonus of a step belongs to the observation that the step led to, before any reset: going there is what earned it.
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
from rljax.core.agent import Metrics
from rljax.core.environment import strong
from rljax.core.errors import ConfigError, did_you_mean, shown
from rljax.core.wrappers import flatten_observation
from rljax.nn.networks import FeedForward
from rljax.nn.spec import MAX_SIZE, SIZES_ALLOWED, are_sizes, is_size


class IntrinsicUpdate(Protocol):
    """`update(state, key, next_obs, done, entropy=None) -> (state, bonus, metrics)`: take in a rollout and reward its steps.

    Args of T steps of N environments: `next_obs`, a tree of arrays `[T, N, *obs_shape]`, what each step led to before any reset;
    `done` bool `[T, N]`, whether the step ended its episode, in either way; `entropy` f32 `[T, N]`, that of a belief held at
    `next_obs`, for those that ask for one.

    The bonus is f32 `[T, N]`, without a coefficient. Metrics are f32 scalars; `train/intrinsic_reward` is the mean bonus.
    """

    def __call__(
        self, state: Any, key: jax.Array, next_obs: Any, done: jax.Array, entropy: jax.Array | None = None
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
    """1 / sqrt(N(s)), N the visits of a state so far, this rollout's all included (Tang et al., 2017, eq. 1).

    A state is an observation divided by the resolution and rounded, hashed to one of the counters. Of M states each shares its
    counter with another, and so gets too small a bonus, with a probability of about M / bins (2500 states, 2^16 counters: 4%).

    Args:
        resolution: the width of a state, in the observation's units.
        bins: how many counters, a power of two; each takes 4 bytes per seed.
    """
    if bins < 1 or bins & (bins - 1):
        raise ConfigError(f"intrinsic.bins = {shown(bins)}: expected a power of two, such as 65536")

    def init(key: jax.Array, obs_example: Any, num_envs: int) -> CountState:
        del key, obs_example, num_envs
        return CountState(jnp.zeros(bins))

    def update(
        state: CountState, key: jax.Array, next_obs: Any, done: jax.Array, entropy: jax.Array | None = None
    ) -> tuple[CountState, jax.Array, Metrics]:
        del key, entropy
        # Half up and not to even, which would make every other state wider than the next.
        cells = jnp.floor(_flat(next_obs, done.shape) / resolution + 0.5)
        # What a number beyond i32 is cast to depends on the device.
        index = hash_cells(jnp.clip(cells, -(2.0**30), 2.0**30).astype(jnp.int32)) & np.uint32(bins - 1)
        counts = state.counts.at[index].add(1.0)
        bonus = jax.lax.rsqrt(counts[index]).reshape(done.shape)
        return CountState(counts), bonus, {"train/intrinsic_reward": jnp.mean(bonus)}

    return Intrinsic(init, update)


def hash_cells(cells: jax.Array) -> jax.Array:
    """A fixed hash u32 `[...]` of integers i32 `[..., D]`: the sum of each number's and its place's hash, hashed again.

    A sum and not a chain, so that it is as parallel as a mean. Of M different vectors two or more have the same hash with a
    probability of about M^2 / 2^33.
    """
    # Multiples of 2^32 over the golden ratio: far apart, so that no small number in one place is like another in the next.
    places = (np.arange(1, cells.shape[-1] + 1, dtype=np.uint64) * 0x9E3779B9 % 2**32).astype(np.uint32)
    return _mixed(jnp.sum(_mixed(cells.astype(jnp.uint32) + places), axis=-1, dtype=jnp.uint32))


def _mixed(x: jax.Array) -> jax.Array:
    """The last step of MurmurHash3 (Appleby, 2011): one to one, and each bit depends on all."""
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
    """Bonus: the error of a network that predicts the outputs of a random one (Burda et al., 2018).

    The bonus is the mean squared error of the features, over the running deviation of its discounted return, which goes on where
    episodes end (sections 2.3 and 2.4). Observations are raveled, standardised by running statistics that take in the rollout
    first, and clipped to [-5, 5]. The predictor learns after the bonus is given: one pass over the rollout, by Adam.

    Args:
        hidden: layer sizes of both networks.
        features: how many numbers the predictor must guess.
        num_minibatches: gradient steps per rollout; must divide T N.
        learning_rate: of Adam; may be traced.
        gamma: discount of the return that scales the bonus; may be traced.
    """
    network = FeedForward(num_outputs=features, hidden=hidden)
    optimizer = optax.scale_by_adam()

    def init(key: jax.Array, obs_example: Any, num_envs: int) -> DistillationState:
        flat = flatten_observation(obs_example)
        # Under vmap, as one initialisation is compiled for both.
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
        state: DistillationState, key: jax.Array, next_obs: Any, done: jax.Array, entropy: jax.Array | None = None
    ) -> tuple[DistillationState, jax.Array, Metrics]:
        del entropy
        flat = _flat(next_obs, done.shape)
        if len(flat) % num_minibatches:
            raise ConfigError(f"intrinsic.num_minibatches = {num_minibatches}: must divide the {len(flat)} steps of a rollout")
        obs_statistics = update_statistics(state.obs_statistics, flat)
        x = normalize(obs_statistics, flat, clip=5.0)
        target = _features(network, state.target, x)
        error = jnp.mean(jnp.square(_features(network, state.params, x) - target), axis=-1).reshape(done.shape)
        # Not cut where episodes end: a new one is no reason to forget that places were new (section 2.3).
        reward_statistics, bonus = normalize_rewards(state.reward_statistics, error, jnp.zeros_like(done), gamma)

        def loss_fn(params: Any, batch: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, Metrics]:
            x, target = batch
            return jnp.mean(jnp.square(_features(network, params, x) - target)), {}

        params, opt_state, metrics = minibatch_steps(
            loss_fn,
            optimizer,
            state.params,
            state.opt_state,
            (x, target),
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
                "train/intrinsic_reward": jnp.mean(bonus),
                "train/intrinsic_error": jnp.mean(error),
                "train/intrinsic_grad_norm": metrics["train/grad_norm"],
            },
        )

    return Intrinsic(init, update)


def _features(network: FeedForward, params: Any, x: jax.Array) -> jax.Array:
    return jnp.asarray(network.apply(params, x))


NO_ENTROPY = float(np.finfo(np.float32).min)
"""In the place of the entropy before the first step of an episode: less than any, so nothing is a reduction of it; finite, for
whoever checks a state."""


def entropy_reduction(entropy: jax.Array, done: jax.Array, previous: jax.Array) -> tuple[jax.Array, jax.Array]:
    """max(H_{t-1} - H_t, 0): what a step told about the unknown, of a belief's entropy H (ROA-Star, Huang et al., 2023).

    The first step of an episode has none before it and earns exactly 0.

    Args:
        entropy: of the belief after each step, f32 `[T, N]`.
        done: whether the step ended its episode, bool `[T, N]`.
        previous: the entropy after the step before the first, f32 `[N]`; `NO_ENTROPY` where an episode begins.

    Returns:
        The bonus f32 `[T, N]`, and `previous` of the rollout after this one, f32 `[N]`.
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
    """`entropy_reduction` over rollouts; `update` wants `entropy`."""

    def init(key: jax.Array, obs_example: Any, num_envs: int) -> EntropyState:
        del key, obs_example
        return EntropyState(jnp.full(num_envs, NO_ENTROPY, jnp.float32))

    def update(
        state: EntropyState, key: jax.Array, next_obs: Any, done: jax.Array, entropy: jax.Array | None = None
    ) -> tuple[EntropyState, jax.Array, Metrics]:
        del key, next_obs
        if entropy is None:
            raise ConfigError(
                "intrinsic.type = 'entropy_reduction': needs the entropy of a belief at each step, and there is none"
            )
        bonus, last = entropy_reduction(entropy, done, state.previous)
        return EntropyState(last), bonus, {"train/intrinsic_reward": jnp.mean(bonus)}

    return Intrinsic(init, update)


def make_intrinsic(
    spec: Any, rollout_size: int, *, learning_rate: float | jax.Array = 1e-3, gamma: float | jax.Array = 0.99
) -> Intrinsic:
    """The bonus that a config's `intrinsic` field describes.

    Tables are `{ type = "count", resolution = 1.0, bins = 65536 }`, `{ type = "rnd", hidden = [64], features = 32,
    num_minibatches = 4 }` with `learning_rate` and `gamma`, and `{ type = "entropy_reduction" }`.

    Args:
        spec: the table.
        rollout_size: T N, the steps that an update is given.
        learning_rate: that of "rnd" where the table does not say.
        gamma: as `learning_rate`.

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
    "resolution": ("a number > 0", lambda x: _is_number(x) and x > 0),
    "bins": ("a power of two up to 2**30, such as 65536", lambda x: is_size(x) and not x & (x - 1) and x <= 2**30),
    "hidden": (
        f"a list of layer sizes, {SIZES_ALLOWED}",
        are_sizes,
    ),
    "features": (f"a whole number > 0 and <= {MAX_SIZE}", lambda x: is_size(x) and x <= MAX_SIZE),
    "num_minibatches": ("a whole number > 0", lambda x: is_size(x)),
    "learning_rate": ("a number >= 0", lambda x: _is_number(x) and x >= 0),
    "gamma": ("a number >= 0 and <= 1", lambda x: _is_number(x) and 0 <= x <= 1),
}

_KEYS = {
    "count": ("resolution", "bins"),
    "rnd": ("hidden", "features", "num_minibatches", "learning_rate", "gamma"),
    "entropy_reduction": (),
}


def _intrinsic_table(spec: Any) -> tuple[str, dict[str, Any]]:
    """The type and the attributes that an `intrinsic` table gives, checked."""
    if not isinstance(spec, Mapping) or "type" not in spec:
        given = dict(spec) if isinstance(spec, Mapping) else spec
        raise ConfigError(
            f"intrinsic = {shown(given)}: expected a table with a type, such as {{ type = 'count', resolution = 1.0 }}"
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
    return isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)


def _flat(next_obs: Any, batch: tuple[int, ...]) -> jax.Array:
    """One f32 vector for each of the observations of a rollout, `[T N, D]`."""
    ndim = len(batch)
    chex.assert_tree_shape_prefix(next_obs, batch)
    rows = jax.tree.map(lambda x: x.reshape((-1, *x.shape[ndim:])), next_obs)
    return jax.vmap(flatten_observation)(rows)
