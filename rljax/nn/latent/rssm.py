"""The recurrent state-space model of DreamerV3 (Hafner et al., 2025), which infers latent states and predicts future ones.

A latent state has a deterministic part, the state of a block-diagonal GRU, and a stochastic part, samples of categoricals. If the
observation is known, these are drawn from the posterior (`RSSM.observe`), else from the prior (`RSSM.imagine`).

Shapes: `T` steps, `B` sequences, `D` = deter, `G` groups of `C` classes, `A` numbers in an action, `E` numbers in a token (an
encoded observation), `H` = hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.core.devices import platform
from rljax.nn.latent.scan import scan_carries
from rljax.nn.modules.classes import unimix_logits
from rljax.nn.modules.initializers import truncated_normal_params
from rljax.nn.modules.layers import biased, by_block, rms_normalize, sigmoid, swish
from rljax.nn.outputs.distributions import draw_index


class Latent(NamedTuple):
    """A latent state; at the start of an episode it is zero.

    Attributes:
        deter: `[..., D]`.
        stoch: one-hot samples `[..., G, C]`.
    """

    deter: jax.Array
    stoch: jax.Array

    @property
    def feature(self) -> jax.Array:
        """Input of the heads, `[..., D + G C]`."""
        return jnp.concatenate([self.deter, self.stoch.reshape(*self.stoch.shape[:-2], -1).astype(self.deter.dtype)], axis=-1)


class RSSM(nn.Module):
    """Recurrent state-space model. Linear layers, RMSNorm and SiLU; categoricals mixed with 1 % of the uniform distribution.

    Everything that does not depend on the previous state is computed for all steps at once, outside the scans over time.

    Attributes:
        actions: length A of an action.
        tokens: length E of a token.
        deter: length D of the deterministic state, a multiple of `blocks`.
        hidden: size H of hidden layers.
        classes: number C of classes in a group.
        groups: number G of categoricals.
        blocks: number of blocks of the deterministic state; each depends on itself and on the whole sample and action.
        unimix: share of the uniform distribution in every categorical.
        dtype: dtype of products and of the deterministic state; None: f32. Parameters, norms and distributions are f32.
        unroll: number of steps of the scans over time that are compiled as one iteration of a loop.
    """

    actions: int
    tokens: int
    deter: int = 512
    hidden: int = 64
    classes: int = 4
    groups: int = 32
    blocks: int = 8
    unimix: float = 0.01
    dtype: Any = None
    unroll: int = 1

    def setup(self) -> None:
        stoch, block = self.groups * self.classes, self.deter // self.blocks
        hidden = self.hidden
        self.deter_in = self.param("deter_in", normed_layer, (self.deter, hidden))
        self.stoch_in = self.param("stoch_in", normed_layer, (stoch, hidden))
        self.action_in = self.param("action_in", normed_layer, (self.actions, hidden))
        self.core_in = self.param("core_in", normed_layer, (self.blocks, block + 3 * hidden, block))
        self.core_gates = self.param("core_gates", layer, (self.blocks, block, 3 * block))
        self.posterior_in = self.param("posterior_in", normed_layer, (self.deter + self.tokens, hidden))
        self.posterior_out = self.param("posterior_out", layer, (hidden, stoch))
        self.prior_in = self.param("prior_in", normed_layer, (self.deter, hidden))
        self.prior_hidden = self.param("prior_hidden", normed_layer, (hidden, hidden))
        self.prior_out = self.param("prior_out", layer, (hidden, stoch))

    @nn.nowrap
    def initial(self, batch: tuple[int, ...]) -> Latent:
        """Return the latent state at the start of an episode: zeros, f32 `[*batch, ...]`."""
        return Latent(jnp.zeros((*batch, self.deter)), jnp.zeros((*batch, self.groups, self.classes)))

    def observe(
        self, latent: Latent, tokens: jax.Array, actions: jax.Array, is_first: jax.Array, uniform: jax.Array
    ) -> tuple[Latent, jax.Array]:
        """Infer the latent states of T steps whose observations are known.

        Args:
            latent: latent state before the first step, `[B, ...]`, of any dtype.
            tokens: encoded observations, `[T, B, E]`.
            actions: action taken before each observation, f32 `[T, B, A]`.
            is_first: where an episode begins, bool `[T, B]`; the latent state and the action before are zeroed there.
            uniform: random numbers in [0, 1) for the samples, f32 `[T, B, G]`.

        Returns:
            `(latents [T, B, ...], logits f32 [T, B, G, C])`: latent states drawn from the posterior, and its log probabilities.
            Gradients pass straight through the samples to the probabilities (Bengio et al., 2013).
        """
        going_on = 1.0 - is_first.astype(jnp.float32)[..., None]
        action = self._action(actions * going_on)
        kernel = self.posterior_in["kernel"]
        tokens = biased(self._cast(tokens) @ self._cast(kernel[self.deter :]), self.posterior_in["bias"])
        of_deter = {"kernel": kernel[: self.deter], "scale": self.posterior_in["scale"]}
        weights = {**self._core(), "posterior_in": of_deter, "posterior_out": self.posterior_out}

        def prepare(weights: Any) -> Callable[[Latent, Any], tuple[Latent, jax.Array]]:
            step = self._step(weights)
            of_deter, out = (self._rounded(weights[name]) for name in ("posterior_in", "posterior_out"))

            def advance(latent: Latent, inputs: Any) -> tuple[Latent, jax.Array]:
                token, action, going_on, uniform = inputs
                latent = Latent(latent.deter * going_on.astype(latent.deter.dtype), latent.stoch * going_on[..., None])
                deter = step(latent, action)
                x = swish(rms_normalize(deter @ of_deter["kernel"] + token, of_deter["scale"]))
                logits = self._logits(out, x)
                return Latent(deter, draw_one_hot(logits, uniform)), logits

            return advance

        latent = latent._replace(deter=self._cast(latent.deter))
        inputs = (tokens, action, going_on, uniform)
        # A plain scan would add up the gradients of rounded weights in the dtype of products, in each step.
        if platform() != "cpu" or self.dtype is not None:
            return scan_carries(prepare, weights, latent, inputs, self.unroll)
        advance = prepare(weights)

        def keep(latent: Latent, inputs: Any) -> tuple[Latent, tuple[Latent, jax.Array]]:
            latent, logits = advance(latent, inputs)
            return latent, (latent, logits)

        return jax.lax.scan(keep, latent, inputs, unroll=self.unroll)[1]

    def imagine(
        self, latent: Latent, policy: Callable[[jax.Array, Any], jax.Array], noise: Any, uniform: jax.Array
    ) -> tuple[Latent, jax.Array]:
        """Imagine T steps without observations.

        Args:
            latent: latent state to start from, `[B, ...]`.
            policy: `(feature [B, D + G C], one step's noise) -> action f32 [B, A]`.
            noise: tree of arrays `[T, ...]` for the policy: random numbers, or actions that are known beforehand.
            uniform: random numbers in [0, 1) for the samples, f32 `[T, B, G]`.

        Returns:
            `(latents [T, B, ...], actions [T, B, A])`: each action, and the latent state after it, drawn from the prior.
        """
        step = self._step(self._core())

        def advance(latent: Latent, inputs: Any) -> tuple[Latent, tuple[Latent, jax.Array]]:
            noise, uniform = inputs
            action = policy(latent.feature, noise)
            deter = step(latent, self._action(action))
            latent = Latent(deter, draw_one_hot(self.prior(deter), uniform))
            return latent, (latent, action)

        latent = latent._replace(deter=self._cast(latent.deter))
        _, (latents, actions) = jax.lax.scan(advance, latent, (noise, uniform), unroll=self.unroll)
        return latents, actions

    def prior(self, deter: jax.Array) -> jax.Array:
        """Return the prior's log probabilities f32 `[..., G, C]` of the sample, from the deterministic state `[..., D]` alone."""
        x = normed_activation(self.prior_in, deter)
        return self._logits(self.prior_out, normed_activation(self.prior_hidden, x))

    def _action(self, action: jax.Array) -> jax.Array:
        """Apply the action's branch of the transition, `[..., A] -> [..., H]`."""
        # Scale actions into the unit box, since continuous actions have no bounds.
        action = action / jax.lax.stop_gradient(jnp.maximum(1.0, jnp.abs(action)))
        return normed_activation(self.action_in, self._cast(action))

    def _core(self) -> dict[str, Any]:
        """Return the transition's weights in f32, split by what they multiply.

        Every block depends on all branches: one dense product for those, and a block-diagonal product for the state itself.
        """
        block, kernel = self.deter // self.blocks, self.core_in["kernel"]
        return {
            "deter_in": self.deter_in,
            "stoch_in": self.stoch_in,
            "of_block": kernel[:, :block],
            "of_input": kernel[:, block:].transpose(1, 0, 2).reshape(-1, self.deter),
            "bias": self.core_in["bias"],
            "scale": self.core_in["scale"],
            "gates": {"kernel": self.core_gates["kernel"], "bias": self.core_gates["bias"].reshape(self.blocks, -1)},
        }

    def _step(self, weights: Mapping[str, Any]) -> Callable[[Latent, jax.Array], jax.Array]:
        """Return `(latent [..., B, ...], the action's branch [..., B, H]) -> deter [..., B, D]`, with weights of `_core` prepared
        outside the scan."""
        deter_in, stoch_in = (self._rounded(weights[name]) for name in ("deter_in", "stoch_in"))
        of_block, gates, of_input = weights["of_block"], weights["gates"], self._cast(weights["of_input"])
        bias, scale = weights["bias"], weights["scale"]
        if platform() != "cpu":  # A CPU cuts the blocks out of the weights, and the gradient joins them again: in f32.
            of_block, gates = self._cast(of_block), self._rounded(gates)

        def recur(x: jax.Array, hidden: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
            # The gates of a block are adjacent: reset, candidate, update.
            return gru_gates(hidden, *jnp.split(biased(x @ self._cast(kernel), bias), 3, axis=-1))

        # Split the weights by block before any scan: the gradient of a slice inside would be padded in every step.
        into_block = by_block(lambda x, kernel: x @ self._cast(kernel), (of_block,))
        into_gates = by_block(recur, (gates["kernel"], gates["bias"]))

        def step(latent: Latent, action: jax.Array) -> jax.Array:
            deter, stoch = latent.deter, self._cast(latent.stoch.reshape(*latent.stoch.shape[:-2], -1))
            branches = [normed_activation(deter_in, deter), normed_activation(stoch_in, stoch), action]
            x = biased(jnp.concatenate(branches, axis=-1) @ of_input + into_block(deter), bias)
            return into_gates(swish(rms_normalize(x, scale)), deter)

        return step

    def _logits(self, weights: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
        logits = linear(weights, x).astype(jnp.float32)
        return unimix_logits(logits.reshape(*logits.shape[:-1], self.groups, self.classes), self.unimix)

    def _rounded(self, weights: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Return a layer with its kernel in the dtype of products."""
        return {**weights, "kernel": self._cast(weights["kernel"])}

    def _cast(self, x: jax.Array) -> jax.Array:
        return x.astype(self.dtype or jnp.float32)


def gru_gates(hidden: jax.Array, reset: jax.Array, candidate: jax.Array, update: jax.Array) -> jax.Array:
    """Return `u c + (1 - u) h`, c = tanh(sigmoid(reset) candidate), u = sigmoid(update - 1); the -1 gives a long memory at
    first.
    """
    reset, update = sigmoid(reset), sigmoid(update - 1.0)
    return update * jnp.tanh(reset * candidate) + (1.0 - update) * hidden


def draw_one_hot(log_probs: jax.Array, uniform: jax.Array) -> jax.Array:
    """Draw one-hot samples `[..., C]` (see `draw_index`), whose gradient is that of the probabilities (straight through)."""
    index = draw_index(jax.lax.stop_gradient(log_probs), uniform)
    sample = (index[..., None] == jnp.arange(log_probs.shape[-1])).astype(log_probs.dtype)
    probs = jnp.exp(log_probs)
    # Compute the difference first: it is exactly 0, so the sample stays exactly one-hot.
    return sample + (probs - jax.lax.stop_gradient(probs))


class KL(NamedTuple):
    """KL divergences of posterior and prior, f32 `[...]`: the losses `dyn` and `rep`, and the `value` without free nats."""

    dyn: jax.Array
    rep: jax.Array
    value: jax.Array


def kl_loss(posterior: jax.Array, prior: jax.Array, free_nats: float = 1.0) -> KL:
    """Return the two losses on KL(posterior || prior), from log probabilities `[..., G, C]` (Hafner et al., 2025, eq. 3).

    `dyn` moves the prior towards the posterior, `rep` the posterior towards the prior. The divergences of all groups of a step
    are added up; below `free_nats` there is no gradient.
    """

    def divergence(p: jax.Array, q: jax.Array) -> jax.Array:
        return jnp.sum(jnp.exp(p) * (p - q), axis=(-2, -1))

    dyn = divergence(jax.lax.stop_gradient(posterior), prior)
    rep = divergence(posterior, jax.lax.stop_gradient(prior))
    return KL(jnp.maximum(dyn, free_nats), jnp.maximum(rep, free_nats), jax.lax.stop_gradient(dyn))


# Layers are dictionaries of arrays, which may be used inside any JAX transformation.


def layer(key: jax.Array, shape: tuple[int, ...]) -> dict[str, jax.Array]:
    """Make a linear layer `[..., inputs, outputs]`; a leading axis is that of diagonal blocks."""
    outputs = shape[-1] if len(shape) == 2 else shape[0] * shape[-1]
    shapes = {"kernel": jax.ShapeDtypeStruct(shape, jnp.float32), "bias": jax.ShapeDtypeStruct((outputs,), jnp.float32)}
    return truncated_normal_params(key, shapes)


def normed_layer(key: jax.Array, shape: tuple[int, ...]) -> dict[str, jax.Array]:
    """Make a linear layer with the scale of an RMSNorm."""
    weights = layer(key, shape)
    return {**weights, "scale": jnp.ones_like(weights["bias"])}


def linear(weights: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    """Apply a linear layer, `x [..., inputs] -> [..., outputs]`, in the dtype of x."""
    return biased(x @ weights["kernel"].astype(x.dtype), weights["bias"])


def normed_activation(weights: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    """Apply a linear layer, RMSNorm and SiLU."""
    return swish(rms_normalize(linear(weights, x), weights["scale"]))
