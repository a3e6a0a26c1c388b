"""Actions from the outputs of a network: one record, `ActionHead`, and a constructor for each kind of policy.

`action_head` is for policy gradients (a categorical, several, a Gaussian), `soft_head` and `dreamer_head` are those of soft
actor-critic and of Dreamer; `composite_head`, whose heads see those before them, is in `rljax.nn.outputs.composite`. Noise is
drawn apart from the distribution, so that a rollout draws that of all its steps in one call before its scan.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.environments.spaces import Box, Dict, Discrete, MultiDiscrete, as_space, head_sizes
from rljax.core.errors import ConfigError
from rljax.core.keys import draw
from rljax.nn.modules.classes import argmax_of, mask_logits, unimix_logits
from rljax.nn.modules.layers import sigmoid
from rljax.nn.outputs.choices import Choices, choices_of
from rljax.nn.outputs.distributions import Normal, categorical, draw_index
from rljax.nn.outputs.heads import Heads

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0

WIDEST_DRAW = 256
"""Largest number of actions of a head to be drawn with one uniform number: compiling takes time that grows with its square."""

_NOTED: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar("distributions chosen from", default=None)


class ActionHead(NamedTuple):
    """From a network's outputs to a distribution, from that to actions, and from these to what the environment takes.

    Attributes:
        num_outputs: the length of the network's policy output.
        action: shape and dtype of one action as `sample` draws it and buffers keep it.
        distribution: `(outputs [..., num_outputs], mask [..., flat_dim] or None) -> distribution` over `[...]` actions, which has
            `log_prob(action)`, `mode()` and `entropy()` (of `soft_head` see `SquashedGaussian`).
        noise: `(key, batch shape) -> noise`, what `sample` needs to draw one action for each place of the batch.
        sample: `(distribution, noise) -> action`.
        to_env: `action -> action` as the environment takes it: of named heads a dictionary.
        entropy: `(distribution, action) -> f32 [...]`: the entropy, or where that is a sum over too many actions an estimate
            from the action drawn.
        num_log_std: how many free log standard deviations the policy keeps as parameters (0: none).
        module: module with parameters that turns the network's outputs into the input of `distribution`; None: they are it.
        policy_gain: gain of the last layer of a network that puts out `num_outputs`.
        choices: `(distribution, action) -> Choices`, the heads of discrete actions; None: the actions are numbers.
    """

    num_outputs: int
    action: jax.ShapeDtypeStruct
    distribution: Callable[[Any, jax.Array | None], Any]
    noise: Callable[[jax.Array, tuple[int, ...]], jax.Array]
    sample: Callable[[Any, jax.Array], jax.Array] = lambda distribution, noise: distribution.sample(noise)
    to_env: Callable[[jax.Array], Any] = lambda action: action
    entropy: Callable[[Any, jax.Array], jax.Array] = lambda distribution, _: distribution.entropy()
    num_log_std: int = 0
    module: nn.Module | None = None
    policy_gain: float = 0.01
    choices: Callable[[Any, jax.Array], Choices] | None = None

    def choose(self, distribution: Any, key: jax.Array, batch: tuple[int, ...], deterministic: bool) -> jax.Array:
        """The most likely action for each place of the batch, or one drawn with `key`."""
        noted = _NOTED.get()
        if noted is not None:
            noted.append(distribution)
        return distribution.mode() if deterministic else self.sample(distribution, self.noise(key, batch))


@contextlib.contextmanager
def distributions_noted() -> Iterator[list[Any]]:
    """Yield a list of the distributions that `ActionHead.choose` chooses from while this context is open.

    `Agent.act` returns an action alone; an exported policy can show this way how likely the others were.
    """
    noted: list[Any] = []
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)


def action_head(space: Any, log_std: str = "parameter") -> ActionHead:
    """Return the head for an action space: a categorical, one categorical per head, or a diagonal Gaussian.

    Actions of a Gaussian are clipped to the bounds and not scaled to them: the first policy has mean 0 and standard deviation 1,
    so bounds far from [-1, 1] want an environment that scales.

    Args:
        space: Discrete, MultiDiscrete, a Dict of Discrete (named heads, in the order of the dictionary) or Box.
        log_std: for a Box, "parameter" (one free value per dimension, independent of the observation) or "network"
            (the network puts them out, after the means).

    Raises:
        ConfigError: the space has no such policy.
    """
    space = as_space(space)
    if isinstance(space, Discrete):
        return _categorical_head(space.n)
    if isinstance(space, Box):
        return _gaussian_head(space, log_std)
    if not isinstance(space, (MultiDiscrete, Dict)):
        raise ConfigError(f"action space {space}: expected Discrete, MultiDiscrete, a Dict of Discrete, or Box")
    nvec, to_env = several_heads(space)
    return _multi_categorical_head(nvec, getattr(space, "only_if", None))._replace(to_env=to_env)


def several_heads(space: Any) -> tuple[tuple[int, ...], Callable[[jax.Array], Any]]:
    """`(numbers of actions, to_env)` of a space of several heads; the policy's actions are i32 `[..., heads]`.

    Raises:
        ConfigError: the space is neither MultiDiscrete nor a Dict of Discrete.
    """
    space = as_space(space)
    nvec = head_sizes(space)
    if nvec is None or isinstance(space, Discrete):
        raise ConfigError(f"action space {space}: expected several heads, a MultiDiscrete or a Dict of Discrete")
    return nvec, _named(tuple(space.spaces)) if isinstance(space, Dict) else lambda action: action


def _named(names: tuple[str, ...]) -> Callable[[jax.Array], dict[str, jax.Array]]:
    """Return a function from actions i32 `[..., heads]` to a dictionary of i32 `[...]`, in the order of the heads."""
    return lambda action: {name: action[..., i] for i, name in enumerate(names)}


def _categorical_head(n: int) -> ActionHead:
    return ActionHead(
        num_outputs=n,
        action=jax.ShapeDtypeStruct((), jnp.int32),
        distribution=lambda outputs, mask: categorical(mask_logits(outputs, mask)),
        noise=lambda key, shape: draw(jax.random.gumbel, key, (*shape, n)),
        sample=lambda d, noise: _gumbel_max(d.scores, noise),
        choices=lambda d, action: choices_of(d.logits[..., None, :], action[..., None], None),
    )


def _gumbel_max(logits: jax.Array, noise: jax.Array) -> jax.Array:
    """Draw classes i32 `[...]`: the argmax of logits plus Gumbel noise, both `[..., C]` (Gumbel, 1954)."""
    return argmax_of(logits + noise)


def _from_uniform(logits: jax.Array, noise: jax.Array) -> jax.Array:
    """Draw classes i32 `[...]` from any logits `[..., C]` with one number in [0, 1) for each."""
    return draw_index(logits - jnp.max(logits, axis=-1, keepdims=True), noise)


def _multi_categorical_head(nvec: tuple[int, ...], only_if: Any) -> ActionHead:
    heads, widest, total = len(nvec), max(nvec), sum(nvec)
    # Heads of different widths become rows of one padded matrix; `place` says where each entry lies in the flat output,
    # and padding is masked like an illegal action.
    exists = np.arange(widest) < np.asarray(nvec)[:, None]
    place = np.where(exists, np.cumsum((0, *nvec[:-1]))[:, None] + np.arange(widest), 0)

    def rows(flat: jax.Array) -> jax.Array:
        # Without padding there is nothing to gather, which takes long where heads are many.
        return flat.reshape(*flat.shape[:-1], heads, widest) if exists.all() else flat[..., place]

    def distribution(outputs: jax.Array, mask: jax.Array | None) -> Heads:
        legal = jnp.asarray(exists) if mask is None else rows(mask)
        return Heads(categorical(mask_logits(rows(outputs), legal, exists)), only_if)

    # One number for each head. Gumbel noise takes one for each action: thousands, where each cell of a grid is a head.
    uniform = widest <= WIDEST_DRAW

    def noise(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        if uniform:
            return draw(jax.random.uniform, key, (*shape, heads))
        return draw(jax.random.gumbel, key, (*shape, heads, widest))

    return ActionHead(
        num_outputs=total,
        action=jax.ShapeDtypeStruct((heads,), jnp.int32),
        distribution=distribution,
        noise=noise,
        sample=lambda d, noise: (_from_uniform if uniform else _gumbel_max)(d.each.scores, noise),
        choices=lambda d, action: choices_of(d.each.logits, action, only_if),
    )


def _gaussian_head(space: Box, log_std: str) -> ActionHead:
    size = math.prod(space.shape)

    def distribution(outputs: jax.Array, _: jax.Array | None) -> Normal:
        mean, log_deviation = jnp.split(outputs, 2, axis=-1)
        scale = jnp.exp(bounded_log_std(log_deviation))
        shape = mean.shape[:-1] + space.shape
        return Normal(mean.reshape(shape), scale.reshape(shape), len(space.shape))

    return ActionHead(
        num_outputs=size if log_std == "parameter" else 2 * size,
        action=jax.ShapeDtypeStruct(space.shape, jnp.float32),
        distribution=distribution,
        noise=lambda key, shape: draw(jax.random.normal, key, shape + space.shape),
        sample=lambda d, noise: d.mean + d.std * noise,
        to_env=lambda action: jnp.clip(action, space.low, space.high).astype(space.dtype),
        num_log_std=size if log_std == "parameter" else 0,
    )


@jax.custom_vjp
def bounded_log_std(x: jax.Array) -> jax.Array:
    """Clip `x`, f32 of any shape, to `[LOG_STD_MIN, LOG_STD_MAX]`, with a gradient that leads back inside.

    The gradient of a plain clip is 0 outside, so a value that an optimiser pushes outside stays there. Here the gradient is
    passed on wherever descent leads inwards, and is 0 where it would lead further out.
    """
    return jnp.clip(x, LOG_STD_MIN, LOG_STD_MAX)


def _bounded_log_std_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return bounded_log_std(x), x


def _bounded_log_std_backward(x: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    outwards = ((x > LOG_STD_MAX) & (gradient < 0)) | ((x < LOG_STD_MIN) & (gradient > 0))
    return (jnp.where(outwards, 0.0, gradient),)


bounded_log_std.defvjp(_bounded_log_std_forward, _bounded_log_std_backward)


def soft_head(space: Box | Discrete) -> ActionHead:
    """Return the head of soft actor-critic: a categorical, or a Gaussian's tanh, scaled from [-1, 1] to the bounds of a Box."""
    if isinstance(space, Discrete):
        return _categorical_head(space.n)
    size = space.flat_dim

    def distribution(outputs: jax.Array, _: jax.Array | None) -> SquashedGaussian:
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return SquashedGaussian(mean, bounded_log_std(log_std))

    return ActionHead(
        num_outputs=2 * size,
        action=jax.ShapeDtypeStruct((size,), jnp.float32),
        distribution=distribution,
        noise=lambda key, shape: draw(jax.random.normal, key, (*shape, size)),
        to_env=lambda action: scaled_to_box(space, action),
    )


class SquashedGaussian(NamedTuple):
    """The tanh of a Gaussian with `mean` and `log_std`, each f32 `[..., A]` (Haarnoja et al., 2018, appendix C).

    Only the density of a sample is known, by the number before the tanh, which cannot be undone in f32 near -1 and 1.
    """

    mean: jax.Array
    log_std: jax.Array

    def mode(self) -> jax.Array:
        """The tanh of the mean, f32 `[..., A]`."""
        return jnp.tanh(self.mean)

    def sample(self, noise: jax.Array) -> jax.Array:
        return self.sample_and_log_prob(noise)[0]

    def sample_and_log_prob(self, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """`(action f32 [..., A], log density f32 [...])` of `action = tanh(u)`, `u = mean + std noise`; both have gradients.

        The density is that of u over the slope of tanh, `1 - tanh(u)^2`, whose logarithm is `2 (log 2 - u - softplus(-2 u))`
        without the difference, which is 0 in f32 from |u| = 9 on.

        Args:
            noise: standard normal, f32 `[..., A]`.
        """
        u = self.mean + jnp.exp(self.log_std) * noise
        log_normal = -0.5 * jnp.square(noise) - self.log_std - 0.5 * math.log(2.0 * math.pi)
        log_slope = 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u))
        return jnp.tanh(u), jnp.sum(log_normal - log_slope, axis=-1)


def dreamer_head(space: Any) -> ActionHead:
    """The head of Dreamer, whose world model takes actions as f32 vectors `[..., A]`: one-hot for each head, or numbers.

    Actions of a Box with finite bounds are scaled from [-1, 1] to them. Without such bounds they are numbers near [-1, 1]: scale
    the environment's actions.

    Raises:
        ConfigError: the space is neither a Box nor one of heads.
    """
    space = as_space(space)
    if isinstance(space, Box):
        return _bounded_normal_head(space)
    sizes = head_sizes(space)
    if sizes is None:
        raise ConfigError(f"action space {space}: Dreamer expects Discrete, MultiDiscrete, a Dict of Discrete, or Box")
    return _one_hot_head(sizes, (lambda index: index[..., 0]) if isinstance(space, Discrete) else several_heads(space)[1])


def _one_hot_head(sizes: tuple[int, ...], named: Callable[[jax.Array], Any]) -> ActionHead:
    total = sum(sizes)

    def to_env(action: jax.Array) -> Any:
        return named(jnp.stack([jnp.argmax(x, axis=-1) for x in _split(action, sizes)], axis=-1).astype(jnp.int32))

    return ActionHead(
        num_outputs=total,
        action=jax.ShapeDtypeStruct((total,), jnp.float32),
        distribution=lambda outputs, mask: OneHotHeads(outputs, mask, sizes),
        noise=lambda key, shape: draw(jax.random.uniform, key, (*shape, len(sizes))),
        to_env=to_env,
    )


class OneHotHeads(struct.PyTreeNode):
    """Independent categoricals of `sizes` actions each, mixed with the uniform one, over f32 `[..., A]`, one-hot for each head.

    Attributes:
        outputs: logits f32 `[..., A]`.
        mask: legal actions bool `[..., A]`; None: all.
        sizes: number of actions of each head.
    """

    outputs: jax.Array
    mask: jax.Array | None
    sizes: tuple[int, ...] = struct.field(pytree_node=False)

    def log_probs(self) -> list[jax.Array]:
        """Log probabilities f32 `[..., n]` of each head."""
        # Mixed with the uniform distribution, without which the entropy collapses; illegal actions stay impossible.
        mixed = [unimix_logits(logits) for logits in _split(self.outputs, self.sizes)]
        if self.mask is None:
            return mixed
        return [jax.nn.log_softmax(mask_logits(p, m)) for p, m in zip(mixed, _split(self.mask, self.sizes), strict=True)]

    @property
    def probs(self) -> jax.Array:
        """Probabilities f32 `[..., A]` of the actions of all heads, 0 for illegal ones."""
        return jnp.exp(jnp.concatenate(self.log_probs(), axis=-1))

    def log_prob(self, action: jax.Array) -> jax.Array:
        return jnp.sum(jnp.concatenate(self.log_probs(), axis=-1) * action, axis=-1)

    def entropy(self) -> jax.Array:
        p = jnp.concatenate(self.log_probs(), axis=-1)
        return -jnp.sum(jnp.exp(p) * p, axis=-1)

    def mode(self) -> jax.Array:
        return self._one_hot([jnp.argmax(p, axis=-1) for p in self.log_probs()])

    def sample(self, noise: jax.Array) -> jax.Array:
        """An action of numbers in [0, 1), f32 `[..., heads]`."""
        return self._one_hot([draw_index(p, noise[..., i]) for i, p in enumerate(self.log_probs())])

    def _one_hot(self, indices: list[jax.Array]) -> jax.Array:
        return jnp.concatenate([jax.nn.one_hot(i, n) for i, n in zip(indices, self.sizes, strict=True)], axis=-1)


def _split(x: jax.Array, sizes: tuple[int, ...]) -> list[jax.Array]:
    return jnp.split(x, list(itertools.accumulate(sizes[:-1])), axis=-1)


def _bounded_normal_head(space: Box) -> ActionHead:
    size = space.flat_dim

    def to_env(action: jax.Array) -> jax.Array:
        if is_bounded(space):
            return scaled_to_box(space, jnp.clip(action, -1.0, 1.0))
        return action.reshape(*action.shape[:-1], *space.shape).astype(space.dtype)

    return ActionHead(
        num_outputs=2 * size,
        action=jax.ShapeDtypeStruct((size,), jnp.float32),
        distribution=lambda outputs, _: BoundedNormal(outputs),
        noise=lambda key, shape: draw(jax.random.normal, key, (*shape, size)),
        to_env=to_env,
    )


MIN_STD, MAX_STD = 0.1, 1.0


class BoundedNormal(NamedTuple):
    """A Gaussian over f32 `[..., A]`, of outputs `[..., 2 A]`: its mean is in [-1, 1], its standard deviation in [.1, 1]."""

    outputs: jax.Array

    def parameters(self) -> tuple[jax.Array, jax.Array]:
        """`(mean, std)`, each `[..., A]`: tanh, and .9 sigmoid(s + 2) + .1, of the two halves of the outputs."""
        mean, std = jnp.split(self.outputs, 2, axis=-1)
        return jnp.tanh(mean), (MAX_STD - MIN_STD) * sigmoid(std + 2.0) + MIN_STD

    def log_prob(self, action: jax.Array) -> jax.Array:
        mean, std = self.parameters()
        per_number = -0.5 * jnp.square((action - mean) / std) - jnp.log(std) - 0.5 * math.log(2.0 * math.pi)
        return jnp.sum(per_number, axis=-1)

    def entropy(self) -> jax.Array:
        _, std = self.parameters()
        return jnp.sum(jnp.log(std) + 0.5 * math.log(2.0 * math.pi * math.e), axis=-1)

    def mode(self) -> jax.Array:
        return self.parameters()[0]

    def sample(self, noise: jax.Array) -> jax.Array:
        mean, std = self.parameters()
        return mean + std * noise


def is_bounded(space: Box) -> bool:
    """Return whether every bound is finite; 1e30 stands for infinity too, as in `Box.sample`."""
    return bool(np.all(np.abs(np.asarray(space.low)) < 1e30) and np.all(np.abs(np.asarray(space.high)) < 1e30))


def scaled_to_box(space: Box, action: jax.Array) -> jax.Array:
    """Scale an action f32 `[..., A]` in [-1, 1] to an element `[..., *shape]` of a bounded Box: -1 becomes its low, 1 its
    high.
    """
    action = action.reshape(*action.shape[:-1], *space.shape)
    low, high = jnp.asarray(space.low, jnp.float32), jnp.asarray(space.high, jnp.float32)
    # Clipped, because the sum may be rounded to beyond a bound.
    return jnp.clip(low + 0.5 * (action + 1.0) * (high - low), low, high).astype(space.dtype)
