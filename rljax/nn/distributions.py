"""Action distributions: from the outputs of a network to a distrax distribution over the actions of a space.

Noise is drawn apart from the distribution, so that a rollout draws that of all its steps in one call before its scan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.errors import ConfigError
from rljax.core.keys import draw
from rljax.core.spaces import Box, Dict, Discrete, MultiDiscrete, as_space, head_sizes

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


class ActionHead(NamedTuple):
    """Actions from a network's outputs.

    Attributes:
        num_outputs: the length of the network's policy output.
        num_log_std: how many free log standard deviations the policy keeps as parameters (0: none).
        distribution: `(outputs [..., num_outputs], mask [..., flat_dim] or None) -> distrax.Distribution` over `[...]` actions.
        noise: `(key, batch shape) -> noise`, what `sample` needs to draw one action for each place of the batch.
        sample: `(distribution, noise) -> action`.
        to_env: `action -> action` as the environment takes it: of named heads a dictionary. A Gaussian's is clipped to the bounds
            and not scaled to them: the first policy has mean 0 and standard deviation 1, so bounds far from [-1, 1] want an
            environment that scales.
        entropy: `(distribution, action) -> f32 [...]`: the entropy, or where that is a sum over too many actions an estimate
            from the action drawn.
        module: makes what `distribution` takes from the network's outputs, with parameters of its own; None: nothing.
        policy_gain: gain of the last layer of a network that puts out `num_outputs`.
    """

    num_outputs: int
    num_log_std: int
    distribution: Callable[[jax.Array, jax.Array | None], Any]
    noise: Callable[[jax.Array, tuple[int, ...]], jax.Array]
    sample: Callable[[Any, jax.Array], jax.Array]
    to_env: Callable[[jax.Array], Any]
    entropy: Callable[[Any, jax.Array], jax.Array] = lambda distribution, _: distribution.entropy()
    module: nn.Module | None = None
    policy_gain: float = 0.01


def action_head(space: Any, log_std: str = "parameter") -> ActionHead:
    """The head for an action space: categorical, one categorical per head, or a diagonal Gaussian.

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
    return _multi_categorical_head(nvec)._replace(to_env=to_env)


def several_heads(space: Any) -> tuple[tuple[int, ...], Callable[[jax.Array], Any]]:
    """`(numbers of actions, to_env)` of a space of several heads; the policy's actions are i32 `[..., heads]`.

    Raises:
        ConfigError: the space is neither MultiDiscrete nor a Dict of Discrete.
    """
    space = as_space(space)
    nvec = head_sizes(space)
    if nvec is None or isinstance(space, Discrete):
        raise ConfigError(f"action space {space}: expected several heads, a MultiDiscrete or a Dict of Discrete")
    return nvec, _named(tuple(space.spaces)) if isinstance(space, Dict) else _identity


def _named(names: tuple[str, ...]) -> Callable[[jax.Array], dict[str, jax.Array]]:
    """Return a function from actions i32 `[..., heads]` to a dictionary of i32 `[...]`, in the order of the heads."""
    return lambda action: {name: action[..., i] for i, name in enumerate(names)}


def mask_logits(logits: jax.Array, mask: jax.Array | None, exists: np.ndarray | bool = True) -> jax.Array:
    """Logits whose masked entries (False) get probability exactly 0 and no gradient; where all are masked none counts as that.

    Args:
        logits: f32 `[..., A]`.
        mask: bool `[..., A]`; None: nothing is masked.
        exists: what is no padding, bool of a shape that broadcasts; padding is masked in any case.
    """
    if mask is None:
        return logits
    mask = mask & exists
    legal = mask | (~jnp.any(mask, axis=-1, keepdims=True) & exists)
    # The least finite number and not -inf: 0 log 0 is then 0 in the entropy, and so is its gradient.
    return jnp.where(legal, logits, jnp.finfo(logits.dtype).min)


def _categorical_head(n: int) -> ActionHead:
    import distrax

    return ActionHead(
        num_outputs=n,
        num_log_std=0,
        distribution=lambda outputs, mask: distrax.Categorical(logits=mask_logits(outputs, mask)),
        noise=lambda key, shape: draw(jax.random.gumbel, key, (*shape, n)),
        sample=_gumbel_max,
        to_env=_identity,
    )


def _gumbel_max(distribution: Any, noise: jax.Array) -> jax.Array:
    """A sample of a categorical: argmax of the logits plus Gumbel noise (Gumbel, 1954)."""
    logits = getattr(distribution, "distribution", distribution).logits
    return jnp.argmax(logits + noise, axis=-1).astype(jnp.int32)


def _multi_categorical_head(nvec: tuple[int, ...]) -> ActionHead:
    import distrax

    heads, widest, total = len(nvec), max(nvec), sum(nvec)
    # Heads of different widths become rows of one padded matrix; `place` says where each entry lies in the flat output,
    # and padding is masked like an illegal action.
    exists = np.arange(widest) < np.asarray(nvec)[:, None]
    place = np.where(exists, np.cumsum((0, *nvec[:-1]))[:, None] + np.arange(widest), 0)

    def distribution(outputs: jax.Array, mask: jax.Array | None) -> Any:
        legal = jnp.asarray(exists) if mask is None else mask[..., place]
        logits = mask_logits(outputs[..., place], legal, exists)
        return distrax.Independent(distrax.Categorical(logits=logits), reinterpreted_batch_ndims=1)

    return ActionHead(
        num_outputs=total,
        num_log_std=0,
        distribution=distribution,
        noise=lambda key, shape: draw(jax.random.gumbel, key, (*shape, heads, widest)),
        sample=_gumbel_max,
        to_env=_identity,
    )


def _gaussian_head(space: Box, log_std: str) -> ActionHead:
    import distrax

    size = math.prod(space.shape)

    def distribution(outputs: jax.Array, _: jax.Array | None) -> Any:
        mean, log_deviation = jnp.split(outputs, 2, axis=-1)
        scale = jnp.exp(bounded_log_std(log_deviation))
        shape = mean.shape[:-1] + space.shape
        normal = distrax.Normal(mean.reshape(shape), scale.reshape(shape))
        return distrax.Independent(normal, reinterpreted_batch_ndims=len(space.shape))

    return ActionHead(
        num_outputs=size if log_std == "parameter" else 2 * size,
        num_log_std=size if log_std == "parameter" else 0,
        distribution=distribution,
        noise=lambda key, shape: draw(jax.random.normal, key, shape + space.shape),
        sample=lambda d, noise: d.distribution.loc + d.distribution.scale * noise,
        to_env=lambda action: jnp.clip(action, space.low, space.high).astype(space.dtype),
    )


@jax.custom_vjp
def bounded_log_std(x: jax.Array) -> jax.Array:
    """`x` clipped to `[LOG_STD_MIN, LOG_STD_MAX]`, f32 of any shape, whose gradient of a loss leads back from outside.

    The gradient of a plain clip is 0 outside, so what an optimiser pushes there stays for ever. Here it is that of the clipped
    value wherever descent leads inwards, and 0 where it would lead further out.
    """
    return jnp.clip(x, LOG_STD_MIN, LOG_STD_MAX)


def _bounded_log_std_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return bounded_log_std(x), x


def _bounded_log_std_backward(x: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    outwards = ((x > LOG_STD_MAX) & (gradient < 0)) | ((x < LOG_STD_MIN) & (gradient > 0))
    return (jnp.where(outwards, 0.0, gradient),)


bounded_log_std.defvjp(_bounded_log_std_forward, _bounded_log_std_backward)


def squashed_gaussian(outputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`(mean, log_std)`, each f32 `[..., A]`, of the Gaussian whose tanh is the action, from a network's outputs `[..., 2 A]`."""
    mean, log_std = jnp.split(outputs, 2, axis=-1)
    return mean, bounded_log_std(log_std)


def sample_squashed(mean: jax.Array, log_std: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`(action, log_prob)` of `action = tanh(u)`, `u = mean + std noise` (Haarnoja et al., 2018, appendix C).

    The density is that of u over the slope of tanh, `1 - tanh(u)^2`, whose logarithm is `2 (log 2 - u - softplus(-2 u))`
    without the difference, which is 0 in f32 from |u| = 9 on. It is that of the u that was drawn: tanh cannot be undone there.

    Args:
        mean: f32 `[..., A]`.
        log_std: f32 `[..., A]`.
        noise: standard normal, f32 `[..., A]`.

    Returns:
        The action f32 `[..., A]` in [-1, 1], and its log density f32 `[...]`.
    """
    u = mean + jnp.exp(log_std) * noise
    log_normal = -0.5 * jnp.square(noise) - log_std - 0.5 * math.log(2.0 * math.pi)
    log_slope = 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u))
    return jnp.tanh(u), jnp.sum(log_normal - log_slope, axis=-1)


def is_bounded(space: Box) -> bool:
    """Return whether every bound is finite; 1e30 stands for infinity too, as in `Box.sample`."""
    return bool(np.all(np.abs(np.asarray(space.low)) < 1e30) and np.all(np.abs(np.asarray(space.high)) < 1e30))


def scaled_to_box(space: Box, action: jax.Array) -> jax.Array:
    """An action f32 `[..., A]` in [-1, 1] as an element `[..., *shape]` of a bounded Box: -1 is its low, 1 its high."""
    action = action.reshape(*action.shape[:-1], *space.shape)
    low, high = jnp.asarray(space.low, jnp.float32), jnp.asarray(space.high, jnp.float32)
    # Clipped, because the sum may be rounded to beyond a bound.
    return jnp.clip(low + 0.5 * (action + 1.0) * (high - low), low, high).astype(space.dtype)


def _identity(action: jax.Array) -> jax.Array:
    return action
