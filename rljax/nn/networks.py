"""Feed-forward networks as flax.linen modules, and the `network` table of a configuration that describes one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype

from rljax.core.config import OBJECT_PREFIX, class_name
from rljax.core.errors import ConfigError, did_you_mean, shown
from rljax.core.wrappers import flatten_observation
from rljax.nn.initializers import orthogonal_kernels
from rljax.nn.layers import ACTIVATIONS

CONVOLUTIONS = ("channels", "kernels", "strides")
"""Keys of a `network` table with convolutions: lists, one number for each."""


class Convolution(nn.Module):
    """A square convolution without padding, `[B, height, width, channels] -> [B, height', width', features]`, with the parameters
    and the result of `nn.Conv`.

    It is one matrix product of all patches, since that is what the CPU is quick at: a scan of gradient steps (the update of the
    preset `breakout_pqn`) takes 2.5 times as long with XLA's convolution, and 11 times for 4 seeds under vmap, where kernels that
    differ make it a grouped one. Forwards alone XLA's is the quicker.

    Attributes:
        features: channels that come out.
        kernel: width of the window.
        stride: how far it moves.
        kernel_init: `(key, shape, dtype) -> kernel`.
        dtype: of the products and of the output; None: that of input and parameters, which are f32.
    """

    features: int
    kernel: int
    stride: int
    kernel_init: Callable[..., Any]
    dtype: Any = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width, stride = self.kernel, self.stride
        kernel = self.param("kernel", self.kernel_init, (width, width, x.shape[-1], self.features), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        x, kernel, bias = promote_dtype(x, kernel, bias, dtype=self.dtype)
        rows, columns = (side - width + 1 for side in x.shape[1:3])
        # Slices and not lax.conv_general_dilated_patches, which is a convolution itself.
        offsets = itertools.product(range(width), range(width))
        patches = jnp.concatenate([x[:, i : i + rows : stride, j : j + columns : stride] for i, j in offsets], axis=-1)
        return patches @ kernel.reshape(-1, self.features) + bias


class FeedForward(nn.Module):
    """Convolutions where there are any, then a multilayer perceptron: `obs [B, *obs_shape] -> outputs [B, num_outputs]`.

    A critic of continuous actions is given them too, `(obs, action [B, A])`: they join the input of the first dense layer.
    Without convolutions observations of any shape (or dictionaries of arrays) are raveled; with them they are one image
    `[height, width, channels]`, and uint8 is scaled to [0, 1]. Kernels are orthogonal with gain sqrt(2), biases 0.

    Attributes:
        num_outputs: length of the output.
        hidden: sizes of the dense hidden layers.
        activation: a name in `ACTIVATIONS`.
        layer_norm: normalise before each activation (Ba et al., 2016).
        channels: of each convolution, without padding.
        kernels: their widths.
        strides: their strides.
        dueling: outputs are the value of the observation plus each action's advantage, less the mean advantage (Wang et al.,
            2016, eq. 9); both are linear in the last hidden layer.
        head_gain: gain of the last layer's kernel.
    """

    num_outputs: int
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "relu"
    layer_norm: bool = False
    channels: tuple[int, ...] = ()
    kernels: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dueling: bool = False
    head_gain: float = 1.0

    @nn.compact
    def __call__(self, obs: Any, action: jax.Array | None = None) -> jax.Array:
        if not self.channels:
            x = ravel_observation(obs)
        else:
            x = obs.astype(jnp.float32) / 255.0 if obs.dtype == jnp.uint8 else obs.astype(jnp.float32)
        shapes = self._kernel_shapes(x.shape[1:], 0 if action is None else action.shape[-1])
        flat = [(math.prod(shape[:-1]), shape[-1]) for shape in shapes]
        gains = [math.sqrt(2.0)] * (len(shapes) - 1) + [self.head_gain]
        kernels: list[Any] = [None] * len(shapes)
        if self.is_initializing():
            drawn = orthogonal_kernels(self.make_rng("params"), flat, gains)
            kernels = [kernel.reshape(shape) for kernel, shape in zip(drawn, shapes, strict=True)]

        def init(layer: int) -> Callable[..., Any]:
            return lambda *_: kernels[layer]

        def activated(x: jax.Array) -> jax.Array:
            return ACTIVATIONS[self.activation](nn.LayerNorm()(x) if self.layer_norm else x)

        convolutions = len(self.channels)
        for i, (channels, kernel, stride) in enumerate(zip(self.channels, self.kernels, self.strides, strict=True)):
            x = activated(Convolution(channels, kernel, stride, kernel_init=init(i), name=f"conv_{i}")(x))
        x = x.reshape(x.shape[0], -1)
        if action is not None:
            x = jnp.concatenate([x, action], axis=-1)
        for i, size in enumerate(self.hidden):
            x = activated(nn.Dense(size, kernel_init=init(convolutions + i), name=f"dense_{i}")(x))
        x = nn.Dense(shapes[-1][-1], kernel_init=init(-1), name="head")(x)
        if self.dueling:
            value, advantage = x[..., :1], x[..., 1:]
            x = value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)
        return x

    def _kernel_shapes(self, shape: tuple[int, ...], num_actions: int) -> list[tuple[int, ...]]:
        """Of every layer, for inputs of this shape and so many numbers of an action."""
        shapes: list[tuple[int, ...]] = []
        for channels, kernel, stride in zip(self.channels, self.kernels, self.strides, strict=True):
            shapes.append((kernel, kernel, shape[-1], channels))
            shape = (*((side - kernel) // stride + 1 for side in shape[:2]), channels)
        sizes = (math.prod(shape) + num_actions, *self.hidden, self.num_outputs + self.dueling)
        return shapes + list(itertools.pairwise(sizes))


def one_batch_axis(obs: Any, obs_ndims: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
    """`(obs [B, *obs_shape], batch)` of `obs [*batch, *obs_shape]`: networks see one batch axis, whatever axes come first.

    `obs_ndims` is the number of axes of one observation, per leaf in tree order.
    """
    leaves, structure = jax.tree.flatten(obs)
    batch = leaves[0].shape[: leaves[0].ndim - obs_ndims[0]]
    leaves = [x.reshape((-1, *x.shape[x.ndim - ndim :])) for x, ndim in zip(leaves, obs_ndims, strict=True)]
    return jax.tree.unflatten(structure, leaves), batch


def ravel_observation(obs: Any) -> jax.Array:
    """One f32 vector per observation: leaves `[B, ...]` raveled and concatenated in order, `[B, D]`."""
    return jax.vmap(flatten_observation)(obs)


def make_feed_forward(spec: Any, num_outputs: int, **attributes: Any) -> nn.Module:
    """The network of Q values or of a policy alone that a `network` field describes: a table, or a flax module as it is.

    Tables are `{ hidden = [64, 64], activation = "relu", layer_norm = false }`, and for images
    `{ type = "cnn", channels = [16], kernels = [3], strides = [1], hidden = [128] }`. `attributes` are other than their defaults
    where the table does not say.

    Raises:
        ConfigError: an unknown key, activation or type, or a value that is not allowed.
    """
    if isinstance(spec, nn.Module):
        return spec
    dense = ("hidden", "activation", "layer_norm")
    table = network_table(spec, {"mlp": dense, "cnn": (*dense, *CONVOLUTIONS)})
    if spec.get("type") == "cnn":
        check_convolutions(table)
    return FeedForward(num_outputs=num_outputs, **{**attributes, **table})


def check_convolutions(table: Mapping[str, Any]) -> None:
    """Refuse convolutions that are not described in full."""
    lengths = {key: len(table.get(key, ())) for key in CONVOLUTIONS}
    if len(set(lengths.values())) != 1 or not lengths["channels"]:
        raise ConfigError(f"network: expected channels, kernels and strides of one length, at least 1, got {lengths}")


MAX_LAYERS = 256
"""Layers of a network: a program with thousands is never traced to its end."""

MAX_SIZE = 2**20
"""Units of a layer."""

SIZES_ALLOWED = f"whole numbers > 0, such as [64, 64] (at most {MAX_LAYERS}, each at most {MAX_SIZE})"


def network_table(spec: Any, types: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """The attributes that a `network` table gives, checked; `types` are the known types and their keys."""
    if isinstance(spec, str) and spec.startswith(OBJECT_PREFIX):
        name = class_name(spec)
        again = "give it again, load_run(path, network=...) or fit(config, resume=...)"
        raise ConfigError(f"the network was given as an object of class {name}: {again}")
    if not isinstance(spec, Mapping):
        raise ConfigError(f"network = {shown(spec)}: expected a table such as {{ hidden = [64, 64] }}, or a flax.linen Module")
    table = {"type": "mlp", **spec}
    kind = table.pop("type")
    if kind not in types:
        raise ConfigError(f"network.type = {shown(kind)}: {did_you_mean(str(kind), types)}")
    for key in table:
        if key not in types[kind]:
            raise ConfigError(f"network.{key}: unknown key, {did_you_mean(key, ['type', *types[kind]])}")
    for key in ("hidden", "head_hidden", *CONVOLUTIONS):
        sizes = table.get(key, ())
        if isinstance(sizes, list):
            sizes = table[key] = tuple(sizes)
        if not are_sizes(sizes):
            what = "a list of layer sizes" if "hidden" in key else "a list, one for each convolution"
            raise ConfigError(f"network.{key} = {shown(sizes)}: expected {what}, {SIZES_ALLOWED}")
    for key in ("size", "blocks", "depth", "layers", "heads", "width"):
        most = MAX_SIZE if key in ("size", "width") else MAX_LAYERS
        if not is_size(table.get(key, 1)):
            raise ConfigError(f"network.{key} = {shown(table[key])}: expected a whole number > 0")
        if table.get(key, 1) > most:
            raise ConfigError(f"network.{key} = {shown(table[key])}: expected a whole number > 0 and <= {most}")
    if table.get("activation", "tanh") not in ACTIVATIONS:
        name = str(table["activation"])
        raise ConfigError(f"network.activation = {shown(name)}: {did_you_mean(name, ACTIVATIONS)}")
    for key in ("shared", "layer_norm", "pointer"):
        if not isinstance(table.get(key, False), bool):
            raise ConfigError(f"network.{key} = {shown(table[key])}: expected true or false")
    return table


def are_sizes(sizes: Any) -> bool:
    """Whether a list is one of layers' sizes, as `SIZES_ALLOWED` says."""
    return isinstance(sizes, (list, tuple)) and len(sizes) <= MAX_LAYERS and all(is_size(n) and n <= MAX_SIZE for n in sizes)


def is_size(n: Any) -> bool:
    """Whether `n` is a whole number above 0."""
    return isinstance(n, int) and not isinstance(n, bool) and n > 0
