"""Open-loop predictions of a Dreamer world model: after a few observed steps, everything from the actions alone.

A model that is given the wrong step's action, or none, still has falling losses. Its open-loop predictions are then no better
than those from shuffled actions, or than repeating the last observation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax.algos.dreamer.networks import TWO_HOT, encode, observation_parts
from rljax.algos.dreamer.parts import DreamerParts, DreamerState
from rljax.algos.dreamer.replay import Replayed, replayed_normalized
from rljax.collect.replay import read_apart, sample_windows
from rljax.core.agent import Metrics
from rljax.core.errors import ConfigError
from rljax.core.keys import apart, draw
from rljax.nn.latent.decoders import Parts
from rljax.nn.modules.transforms import symlog

CONTEXT, STEPS = 5, (5, 15)
"""Rows that are observed for the metrics, and how many steps ahead these look, where `batch_length` has as many."""


class OpenLoop(NamedTuple):
    """Predictions for the H rows after the context, `[H, B, ...]`.

    Attributes:
        truth: observations: vectors in symlog space, images in [0, 1].
        prediction: observations decoded from the prior's states.
        error: squared errors, their mean over all numbers of an observation, f32 `[H, B]`.
        copy_last_error: the same of the context's last observation as the prediction for all H, f32 `[H, B]`.
        reward: predicted on arriving at each row, f32 `[H, B]`.
        cont: predicted probability of going on, times the discount, f32 `[H, B]`.
        valid: whether the row belongs to the episode of the context's last one, bool `[H, B]`: what comes after cannot be known.
    """

    truth: Parts
    prediction: Parts
    error: jax.Array
    copy_last_error: jax.Array
    reward: jax.Array
    cont: jax.Array
    valid: jax.Array


def open_loop(
    parts: DreamerParts, params: Any, batch: Replayed, context: int, key: jax.Array, actions: jax.Array | None = None
) -> OpenLoop:
    """Observe the first `context` rows of replayed sequences, then predict the rest from their actions alone.

    Args:
        parts: parts of the configuration.
        params: parameters of all networks.
        batch: rows `[T, B, ...]`; H = T - context are predicted.
        context: rows that are observed.
        key: to draw the states with.
        actions: other actions than those of the batch, f32 `[T, B, A]`: `[t]` is taken before row t. Those of the context are
            not looked at.

    Raises:
        ConfigError: the representation has no decoder, or no rows to observe or to predict are left.
    """
    networks, length = parts.networks, batch.reward.shape[0]
    if networks.decoder is None:
        raise ConfigError(
            f"representation = {parts.config.representation!r}: expected 'decoder', the others cannot predict observations"
        )
    if not 0 < context < length:
        raise ConfigError(
            f"context = {context}: expected a whole number from 1 to {length - 1}, as the sequences have {length} rows"
        )
    uniform = draw(jax.random.uniform, key, (*batch.reward.shape, networks.rssm.groups))
    taken = batch.action if actions is None else actions
    tokens = encode(networks, params, jax.tree.map(lambda x: x[:context], batch.obs), 2)
    inputs = (x[:context] for x in (batch.action, batch.is_first, uniform))
    observed, _ = networks.apply_rssm("observe", params, batch.latent, tokens, *inputs)
    start = jax.tree.map(lambda x: x[-1], observed)
    # The policy's noise of each step is the action that led to the row it predicts.
    ahead, _ = networks.apply_rssm("imagine", params, start, lambda _, action: action, taken[context:], uniform[context:])
    feature = ahead.feature
    prediction = networks.apply("decoder", params, feature)
    truth = squashed_parts(batch.obs)
    copied = jax.tree.map(lambda x: x[context - 1 : context], truth)
    truth = jax.tree.map(lambda x: x[context:], truth)
    return OpenLoop(
        truth=truth,
        prediction=prediction,
        error=mean_squared_error(prediction, truth),
        copy_last_error=mean_squared_error(copied, truth),
        reward=TWO_HOT.decode(networks.apply("reward", params, feature)),
        cont=jax.nn.sigmoid(networks.apply("cont", params, feature)[..., 0]),
        valid=valid_rows(batch, context),
    )


def squashed_parts(obs: Any) -> Parts:
    """Observations `[T, B, ...]` as decoders learn them: vectors in symlog space, images in [0, 1]."""
    parts = observation_parts(obs, 2)
    return parts if parts.vector is None else parts._replace(vector=symlog(parts.vector))


def mean_squared_error(prediction: Parts, truth: Parts) -> jax.Array:
    """Over all numbers of an observation, f32 `[T, B]`; arrays `[1, B, ...]` are those of every step."""
    errors = [jnp.square(a - b) for a, b in zip(jax.tree.leaves(prediction), jax.tree.leaves(truth), strict=True)]
    numbers = sum(x[0, 0].size for x in errors)
    return sum((jnp.sum(x, axis=tuple(range(2, x.ndim))) for x in errors), jnp.zeros(())) / numbers


def valid_rows(batch: Replayed, context: int) -> jax.Array:
    """Return which rows after the context come before the first that begins another episode, bool `[H, B]`."""
    return jnp.cumsum(batch.is_first[context:], axis=0) == 0


def shuffled_actions(batch: Replayed, context: int, key: jax.Array) -> jax.Array:
    """Return the control: actions f32 `[T, B, A]`, permuted among all valid rows after the context. Each action is as frequent as
    before, but says nothing about the row that follows it.
    """
    valid, actions = valid_rows(batch, context).reshape(-1), batch.action[context:]
    flat = actions.reshape(-1, actions.shape[-1])
    # Valid ones first, in random order; the k-th valid row gets the k-th of them.
    order = jnp.argsort(draw(jax.random.uniform, key, valid.shape) - valid)
    dealt = jnp.where(valid[:, None], flat[order[jnp.cumsum(valid) - 1]], flat)
    return jnp.concatenate([batch.action[:context], dealt.reshape(actions.shape)])


def openloop_metrics(parts: DreamerParts, state: DreamerState, learning: jax.Array) -> Metrics:
    """Open-loop errors of one uniformly drawn batch, 5 and 15 steps ahead: `train/openloop_error_5`, `train/copy_last_error_5`.

    The errors are means over the sequences whose episode lasts that long; NaN if none does, and before learning starts. With a
    shorter `batch_length`, there are fewer steps, and the names say how many. The state does not change.

    Args:
        parts: parts of the configuration; representations without a decoder have no such metrics.
        state: state of the run after an iteration.
        learning: bool [], whether the buffer holds enough to learn from.
    """
    if parts.networks.decoder is None:
        return {}
    config, networks = parts.config, parts.networks
    context = min(CONTEXT, config.batch_length // 2)
    ahead = sorted({min(step, config.batch_length - context) for step in STEPS})
    sample_key, key = jax.random.split(apart(state.key))
    length = context + ahead[-1]

    def errors(bits: jax.Array) -> jax.Array:
        places = sample_windows(state.replay, bits, length + 1)
        result = open_loop(parts, state.params, replayed_normalized(networks.rssm, state, places, length), context, key)
        rows = jnp.array(ahead) - 1
        both, valid = jnp.stack([result.error, result.copy_last_error])[:, rows], result.valid[rows]
        count = jnp.sum(valid, axis=-1)
        return jnp.where(count > 0, jnp.sum(jnp.where(valid, both, 0.0), axis=-1) / jnp.maximum(count, 1), jnp.nan)

    # Apart, since the buffer was written to just now; no work where nothing is learned.
    values = read_apart(errors, draw(jax.random.bits, sample_key, (config.batch_size,)), learning)
    values = jnp.where(learning, values, jnp.nan)
    kinds = ("openloop", "copy_last")
    return {f"train/{kind}_error_{step}": values[i, j] for i, kind in enumerate(kinds) for j, step in enumerate(ahead)}
