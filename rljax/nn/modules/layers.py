"""Building blocks of networks: activations, kernels from one draw, normalisation, perceptrons and FiLM."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype

from rljax.core.devices import platform
from rljax.core.errors import ConfigError
from rljax.nn.modules.classes import FEW
from rljax.nn.modules.initializers import Initializer, orthogonal_kernels


def sigmoid(x: jax.Array) -> jax.Array:
    """Return the sigmoid, computed by tanh: on the CPU, XLA's tanh is one polynomial, while an exponential and a division cost a
    fifth of a small network's time.
    """
    return 0.5 * jnp.tanh(0.5 * x) + 0.5


def swish(x: jax.Array) -> jax.Array:
    """Return x sigmoid(x) (Elfwing et al., 2018), with `sigmoid` of this module."""
    half = 0.5 * x
    return half * jnp.tanh(half) + half


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": nn.tanh,
    "relu": nn.relu,
    "elu": nn.elu,
    "gelu": nn.gelu,
    "silu": swish,
    "swish": swish,
    "leaky_relu": nn.leaky_relu,
}


def product_dtype(name: str) -> Any:
    """Return the dtype of products that a configuration's `dtype` names: `jnp.bfloat16`, or None for f32; "auto" (Dreamer's) is
    bfloat16 on accelerators.
    """
    return jnp.bfloat16 if name == "bfloat16" or (name == "auto" and platform() != "cpu") else None


def as_it_is(network: nn.Module, dtype: Any) -> nn.Module:
    """Return a network that was given as a Module, whose layers have dtypes of their own.

    Raises:
        ConfigError: the configuration asks for products in `dtype`, which is not None.
    """
    if dtype is not None:
        name = type(network).__name__
        raise ConfigError(f"dtype: network = {name} is used as it is, expected 'float32'; its layers have dtypes of their own")
    return network


def matmul(x: jax.Array, kernel: jax.Array, dtype: Any, product: Callable[..., jax.Array] = jnp.matmul) -> jax.Array:
    """Return a product of matrices in f32, of factors that are rounded to `dtype` first; None: of the factors as they are."""
    if dtype is None:
        return product(x, kernel)
    return product(x.astype(dtype), kernel.astype(dtype)).astype(jnp.float32)


def biased(x: jax.Array, bias: jax.Array) -> jax.Array:
    """Add a bias in f32, so that its gradient is summed in f32, and return the dtype of x."""
    return (x.astype(jnp.float32) + bias).astype(x.dtype)


class Dense(nn.Module):
    """Dense layer, `x [..., D] -> [..., features]`, with the parameters of `nn.Dense`, and in f32 its result.

    Attributes:
        features: number of outputs.
        kernel_init: `(key, shape, dtype) -> kernel`.
        dtype: dtype of the product and of the output, such as `jnp.bfloat16`; None: that of the input and the parameters, which
            are f32. Biases are added in f32: see `biased`.
    """

    features: int
    kernel_init: Callable[..., Any]
    dtype: Any = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        x, kernel = promote_dtype(x, kernel, dtype=self.dtype)
        narrow = platform() == "cpu" and kernel.dtype == jnp.float32 and 1 < self.features <= FEW
        return biased((_narrow_product if narrow else _product)(x, kernel), bias)


def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return the product `[..., F]` of `x [..., D]` and a kernel `[D, F]`."""
    return jax.lax.dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ())))


@jax.custom_jvp
def _narrow_product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return `_product(x, kernel)`, whose gradient is faster on CPUs if F is small.

    There XLA's product for the gradient of a kernel takes as long for a few outputs as for dozens; one product each is less.
    """
    return _product(x, kernel)


@_narrow_product.defjvp
def _narrow_product_jvp(
    factors: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (x, kernel), (dx, d_kernel) = factors, tangents
    of_kernel = jnp.stack([x @ d_kernel[:, i] for i in range(kernel.shape[1])], axis=-1)
    return _narrow_product(x, kernel), _product(dx, kernel) + of_kernel


# Normalisation of a hidden layer's outputs, before the activation.
NORMS = ("none", "rms", "layer")


def together(
    module: nn.Module, layers: Mapping[str, tuple[tuple[int, ...], float]], init: Initializer | None = None
) -> dict[str, Initializer]:
    """Return an initialiser for each kernel of a module; all are orthogonal and come from one draw (see `orthogonal_kernels`).

    Call it where the module makes its parameters; nothing is drawn unless the module is initialising.

    Args:
        module: module whose random stream "params" gives the key of the draw.
        layers: name -> (shape `[..., fan_in, fan_out]` of its kernel, gain); leading axes (of convolutions) count as inputs.
        init: initialiser of every kernel instead of the orthogonal ones; gains are then not used.

    Returns:
        name -> `(key, shape, dtype) -> kernel`, for `Dense(kernel_init=...)` or `module.param`.
    """
    if init is not None:
        return dict.fromkeys(layers, init)
    if not module.is_initializing():
        # flax then only compares shapes with those of the given parameters.
        return dict.fromkeys(layers, nn.initializers.zeros)
    shapes, gains = zip(*layers.values(), strict=True)
    flat = orthogonal_kernels(module.make_rng("params"), [(math.prod(s[:-1]), s[-1]) for s in shapes], gains)
    kernels = [kernel.reshape(shape) for kernel, shape in zip(flat, shapes, strict=True)]
    return {name: lambda *_, kernel=kernel: kernel for name, kernel in zip(layers, kernels, strict=True)}


class RMSNorm(nn.Module):
    """`x [..., D] -> x / sqrt(mean(x^2) + eps) * scale`, computed in f32 (Zhang and Sennrich, 2019).

    Attributes:
        eps: number added to the mean square; the default is DreamerV3's (Hafner et al., 2025).
    """

    eps: float = 1e-4

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32)
        return rms_normalize(x, scale, self.eps)


def rms_normalize(x: jax.Array, scale: jax.Array, eps: float = 1e-4) -> jax.Array:
    """Apply `RMSNorm` with a given scale `[D]`."""
    x32 = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
    return (x32 * jax.lax.rsqrt(mean_square + eps) * scale).astype(x.dtype)


def normalized(x: jax.Array, norm: str, name: str | None = None) -> jax.Array:
    """Normalise x by a new layer of one of the `NORMS`, computed in f32 and returned in the dtype of x; for use inside a compact
    method.
    """
    if norm == "rms":
        return RMSNorm(name=name)(x)
    return nn.LayerNorm(dtype=x.dtype, name=name)(x) if norm == "layer" else x


def perceptron(
    x: jax.Array,
    layers: Iterable[Callable[[jax.Array], jax.Array]],
    activation: str,
    norm: Callable[[jax.Array, int], jax.Array] | None = None,
    film: Callable[[jax.Array], jax.Array] | None = None,
) -> jax.Array:
    """Apply hidden layers, each followed by its normalisation and activation.

    Args:
        x: f32 `[..., D]`.
        layers: dense layers, or convolutions.
        activation: a name in `ACTIVATIONS`.
        norm: `(x, layer) -> x` before each activation.
        film: function that modulates the first layer's activations.
    """
    for i, layer in enumerate(layers):
        x = layer(x)
        x = ACTIVATIONS[activation](x if norm is None else norm(x, i))
        if i == 0 and film is not None:
            x = film(x)
    return x


def layer_norm(x: jax.Array, layer: int) -> jax.Array:
    """Normalise the outputs of a layer (Ba et al., 2016); for use inside a compact method."""
    del layer
    return nn.LayerNorm(dtype=x.dtype)(x)


class MLP(nn.Module):
    """Multilayer perceptron: `x [..., D] -> [..., hidden[-1]]`, or `[..., num_outputs]` with a last linear layer. Each hidden
    layer has a norm and an activation.

    Kernels are orthogonal with gain sqrt(2), biases 0.

    Attributes:
        hidden: sizes of the hidden layers.
        num_outputs: length of the output of a last layer without norm and activation; None: no such layer.
        activation: a name in `ACTIVATIONS`.
        norm: norm before each activation: "none", "rms" (`RMSNorm`) or "layer" (Ba et al., 2016).
        head_gain: gain of the last layer's kernel; with 0 the first outputs are 0.
        kernel_init: another initialiser of all kernels except that of a last layer with gain 0.
        dtype: dtype of the products and of the output, such as `jnp.bfloat16`; None: that of the input and the parameters, which
            are f32.
    """

    hidden: tuple[int, ...] = (64, 64)
    num_outputs: int | None = None
    activation: str = "silu"
    norm: str = "none"
    head_gain: float = 1.0
    kernel_init: Initializer | None = None
    dtype: Any = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        sizes = (x.shape[-1], *self.hidden)
        layers = {f"dense_{i}": (shape, math.sqrt(2.0)) for i, shape in enumerate(itertools.pairwise(sizes))}
        if self.num_outputs is not None:
            layers["head"] = ((sizes[-1], self.num_outputs), self.head_gain)
        inits = together(self, layers, self.kernel_init)
        named = zip((f"dense_{i}" for i in range(len(self.hidden))), self.hidden, strict=True)
        dense = (Dense(size, dtype=self.dtype, kernel_init=inits[name], name=name) for name, size in named)
        x = perceptron(x, dense, self.activation, lambda x, i: normalized(x, self.norm, f"norm_{i}"))
        if self.num_outputs is None:
            return x
        init = inits["head"] if self.head_gain else nn.initializers.zeros
        return Dense(self.num_outputs, dtype=self.dtype, kernel_init=init, name="head")(x)


class FiLM(nn.Module):
    """Feature-wise linear modulation, `(x [..., D], context [..., C]) -> (1 + gamma(context)) x + beta(context)` (Perez et al.,
    2018, eq. 2; the 1 is their advice in section 7.2).

    gamma and beta are linear and start at 0, so that a new layer is the identity. If the features have axes that the context
    lacks (images, entities), give the context axes of length 1.

    Attributes:
        size: length D of the features.
        dtype: dtype of the product; None: f32.
    """

    size: int
    dtype: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, context: jax.Array) -> jax.Array:
        layer = Dense(2 * self.size, dtype=self.dtype, kernel_init=nn.initializers.zeros, name="modulation")
        modulation = layer(context)
        gamma, beta = jnp.split(modulation, 2, axis=-1)
        return (1.0 + gamma) * x + beta


def hidden_layers(name: str, sizes: tuple[int, ...]) -> dict[str, tuple[tuple[int, int], float]]:
    """Describe the hidden layers NAME_0, NAME_1 and so on for `dense_layers`; `sizes` begins with the size of the input."""
    return {f"{name}_{i}": (shape, math.sqrt(2.0)) for i, shape in enumerate(itertools.pairwise(sizes))}


def dense_layers(
    module: nn.Module, layers: dict[str, tuple[tuple[int, int], float]], dtype: Any = None, last: Sequence[str] = ()
) -> dict[str, Dense]:
    """Return dense layers by name, from `((inputs, outputs), gain)` for each; their kernels come from one draw (see
    `together`). Those named in `last` compute in f32, the others in `dtype`; None: f32.
    """
    inits = together(module, layers) if layers else {}
    return {
        name: Dense(shape[1], dtype=None if name in last else dtype, kernel_init=inits[name], name=name)
        for name, (shape, _) in layers.items()
    }


def values(outputs: jax.Array) -> jax.Array:
    """Return a critic's outputs `[..., K]` as values: `[...]` for one head."""
    return outputs[..., 0] if outputs.shape[-1] == 1 else outputs


def by_block(function: Callable[..., jax.Array], weights: tuple[jax.Array, ...]) -> Callable[..., jax.Array]:
    """Return `(state [..., blocks * i], ...) -> [..., blocks * o]`, which applies a function to each block and joins the results.

    `function` takes a block of each state, `[..., i]`, then the entries of `weights` (`[blocks, ...]`) for that block.
    """
    blocks = weights[0].shape[0]

    def batched(*states: jax.Array) -> jax.Array:
        axes = (-2,) * len(states) + (0,) * len(weights)
        out: jax.Array = jax.vmap(function, axes, -2)(*(x.reshape(*x.shape[:-1], blocks, -1) for x in states), *weights)
        return out.reshape(*out.shape[:-2], -1)

    def one_by_one(*states: jax.Array) -> jax.Array:
        parts = zip(*(jnp.split(x, blocks, axis=-1) for x in states), strict=True)
        return jnp.concatenate([function(*part, *own) for part, own in zip(parts, split, strict=True)], axis=-1)

    split = [tuple(w[i] for w in weights) for i in range(blocks)]
    # XLA transposes batched products on the CPU, which makes them, and whatever reads their results, slower.
    return one_by_one if platform() == "cpu" else batched
