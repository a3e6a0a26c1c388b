"""Feed-forward networks as flax.linen modules, and the `network` table of a configuration that describes one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.nn.encoders import make_encoder
from rljax.nn.modules.images import Convolution, check_kernel, scaled_image
from rljax.nn.modules.initializers import orthogonal_kernels
from rljax.nn.modules.layers import Dense, FiLM, as_it_is, layer_norm, perceptron
from rljax.nn.observations import one_batch_axis, ravel_observation, split_goal
from rljax.nn.spec import CONVOLUTIONS, read_network


class FeedForward(nn.Module):
    """Feed-forward network of optional convolutions and a multilayer perceptron: `obs [B, *obs_shape] -> outputs [B,
    num_outputs]`.

    A critic of continuous actions is called with `(obs, action [B, A])`: actions join the input of the first dense layer. Without
    convolutions, observations of any shape (or dictionaries of arrays) are flattened. With convolutions, an observation is one
    image `[height, width, channels]`, and uint8 is scaled to [0, 1]. Kernels are orthogonal with gain sqrt(2), biases 0.

    Attributes:
        num_outputs: length of the output.
        hidden: sizes of the dense hidden layers.
        activation: a name in `ACTIVATIONS`.
        layer_norm: normalise before each activation (Ba et al., 2016).
        channels: number of channels of each convolution, without padding.
        kernels: width of each kernel.
        strides: stride of each convolution.
        dueling: whether outputs are the value of the observation plus each action's advantage, minus the mean advantage (Wang et
            al., 2016, eq. 9); both are linear in the last hidden layer.
        head_gain: gain of the last layer's kernel.
        encoder: `obs [B, ...] -> x [B, D]`, or `(x, entities)`, instead of flattening and of convolutions.
        film: the observation's `goal` modulates the first dense layer (see `FiLM`) instead of joining the input.
        dtype: dtype of the products before the last layer, such as `jnp.bfloat16`; None: f32.

    Raises:
        ConfigError: with convolutions, the observation is not an image, or is smaller than a kernel.
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
    encoder: nn.Module | None = None
    film: bool = False
    dtype: Any = None

    @nn.compact
    def __call__(self, obs: Any, action: jax.Array | None = None) -> jax.Array:
        obs, goal = split_goal(obs, self.film)
        if self.encoder is not None:
            encoded = self.encoder(obs)
            x = encoded[0] if isinstance(encoded, tuple) else encoded
        elif not self.channels:
            x = ravel_observation(obs)
        else:
            x = scaled_image(obs)
        shapes = self._kernel_shapes(x.shape[1:], 0 if action is None else action.shape[-1])
        flat = [(math.prod(shape[:-1]), shape[-1]) for shape in shapes]
        gains = [math.sqrt(2.0)] * (len(shapes) - 1) + [self.head_gain]
        kernels: list[Any] = [None] * len(shapes)
        if self.is_initializing():
            drawn = orthogonal_kernels(self.make_rng("params"), flat, gains)
            kernels = [kernel.reshape(shape) for kernel, shape in zip(drawn, shapes, strict=True)]

        def init(layer: int) -> Callable[..., Any]:
            return lambda *_: kernels[layer]

        norm, count = layer_norm if self.layer_norm else None, len(self.channels)
        windows = enumerate(zip(self.channels, self.kernels, self.strides, strict=True))
        convolutions = (Convolution(*window, init(i), self.dtype, name=f"conv_{i}") for i, window in windows)
        x = perceptron(x, convolutions, self.activation, norm).reshape(x.shape[0], -1)
        if action is not None:
            x = jnp.concatenate([x, action], axis=-1)
        sizes = enumerate(self.hidden)
        dense = (Dense(size, dtype=self.dtype, kernel_init=init(count + i), name=f"dense_{i}") for i, size in sizes)
        film = None if goal is None else lambda x: FiLM(self.hidden[0], self.dtype, name="film")(x, goal)
        x = perceptron(x, dense, self.activation, norm, film)
        x = Dense(shapes[-1][-1], kernel_init=init(-1), name="head")(x)
        if self.dueling:
            value, advantage = x[..., :1], x[..., 1:]
            x = value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)
        return x

    def _kernel_shapes(self, shape: tuple[int, ...], num_actions: int) -> list[tuple[int, ...]]:
        """Return the shape of every kernel, for inputs of this shape and a number of action dimensions."""
        shapes: list[tuple[int, ...]] = []
        for i, (channels, kernel, stride) in enumerate(zip(self.channels, self.kernels, self.strides, strict=True)):
            check_kernel(self.kernels, i, shape[:2])
            shapes.append((kernel, kernel, shape[-1], channels))
            shape = (*((side - kernel) // stride + 1 for side in shape[:2]), channels)
        sizes = (math.prod(shape) + num_actions, *self.hidden, self.num_outputs + self.dueling)
        return shapes + list(itertools.pairwise(sizes))


def make_feed_forward(spec: Any, num_outputs: int, **attributes: Any) -> nn.Module:
    """Return the network of action values, or of a policy alone, that a `network` field describes; return a flax module as it is.

    Tables have the keys of `rljax.nn.actor_critic.make_network` except those for memory and heads: `{ hidden = [64, 64],
    activation = "relu", layer_norm = false, goal = "concat" }`, for images `{ encoder = "cnn", channels = [16], kernels = [3],
    strides = [1] }`, for dictionaries `encoder = "dict"`, for sets `encoder = "entities"`. `attributes` are attributes of
    `FeedForward`, used where the table says nothing.

    Raises:
        ConfigError: an unknown key, activation or type, or a value that is not allowed.
    """
    if isinstance(spec, nn.Module):
        return as_it_is(spec, attributes.get("dtype"))
    table = read_network(spec, heads=False)
    attributes |= table.given("hidden", "activation", "layer_norm") | {"film": table.goal == "film"}
    if table.encoder == "cnn":
        attributes |= table.given(*CONVOLUTIONS)
    # The convolutions are part of the network, not an encoder, because checkpoints have their parameters there.
    encoder = None if table.encoder == "cnn" else make_encoder(table, attributes.get("dtype"))
    return FeedForward(num_outputs=num_outputs, encoder=encoder, **attributes)


__all__ = ["Convolution", "FeedForward", "make_feed_forward", "one_batch_axis", "ravel_observation"]
