"""Convolutional encoder and decoder of images, general enough for those of DreamerV3 (Hafner et al., 2025).

Images are `[..., height, width, channels]`. Each stage halves the sides (the decoder's doubles them) and has
`depth * multiplier` channels.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax.core.errors import ConfigError
from rljax.nn.initializers import Initializer
from rljax.nn.layers import ACTIVATIONS, normalized, together
from rljax.nn.networks import Convolution


class ImageEncoder(nn.Module):
    """Stages of a convolution that keeps the sides, 2x2 max-pooling, norm and activation: `[..., H, W, C] -> [..., D]`.

    uint8 is scaled to [-.5, .5]; other images are taken as they are. An odd last row or column is left out of a pooling. D is
    the raveled last stage, `(H >> n) (W >> n) depth multipliers[-1]` for n stages. Kernels are orthogonal with gain sqrt(2),
    biases 0. DreamerV3's is `ImageEncoder(depth=16)` and larger depths, with its own `kernel_init`.

    Attributes:
        depth: channels of a stage with multiplier 1.
        multipliers: one for each stage.
        kernel: width of the convolutions.
        norm: one of `NORMS`, over the channels.
        activation: a name in `ACTIVATIONS`.
        kernel_init: another initialiser of all kernels.
        dtype: of the products and of the output, such as `jnp.bfloat16`; None: f32.

    Raises:
        ConfigError: the image is too small for so many stages.
    """

    depth: int = 16
    multipliers: tuple[int, ...] = (2, 3, 4, 4)
    kernel: int = 5
    norm: str = "rms"
    activation: str = "silu"
    kernel_init: Initializer | None = None
    dtype: Any = None

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        *batch, height, width, channels = image.shape
        if min(height, width) >> len(self.multipliers) == 0:
            stages = len(self.multipliers)
            raise ConfigError(
                f"an image of {height} x {width} is too small for {stages} stages that halve it: use fewer multipliers"
            )
        x = image.reshape(-1, height, width, channels).astype(jnp.float32)
        if image.dtype == jnp.uint8:
            x = x / 255.0 - 0.5
        depths = (channels, *(self.depth * multiplier for multiplier in self.multipliers))
        inits = _convolution_inits(self, depths, math.sqrt(2.0))
        for i, (name, init) in enumerate(inits.items()):
            x = max_pool(same_convolution(x, depths[i + 1], self.kernel, init, name, self.dtype))
            x = ACTIVATIONS[self.activation](normalized(x, self.norm, f"norm_{i}"))
        return x.reshape(*batch, -1)


class ImageDecoder(nn.Module):
    """The way back: `[..., D] -> images [..., H, W, C]` in (0, 1).

    A linear layer makes the smallest image; then each stage has norm and activation, doubles the sides (nearest neighbour) and
    convolves; a sigmoid ends it. The channels are those of the encoder's stages from the last to the first, then the image's.
    Targets are images over 255, without the encoder's -.5. Kernels are orthogonal with gain sqrt(2), biases 0.

    Attributes:
        shape: (H, W, C) of the images; H and W are multiples of 2 to the number of stages.
        depth: channels of a stage with multiplier 1.
        multipliers: those of the encoder.
        kernel: width of the convolutions.
        norm: one of `NORMS`, over the channels.
        activation: a name in `ACTIVATIONS`.
        kernel_init: another initialiser of all kernels.
        dtype: of the products and of the output, such as `jnp.bfloat16`; None: f32.

    Raises:
        ConfigError: the sides cannot be halved as often as there are stages.
    """

    shape: tuple[int, int, int]
    depth: int = 16
    multipliers: tuple[int, ...] = (2, 3, 4, 4)
    kernel: int = 5
    norm: str = "rms"
    activation: str = "silu"
    kernel_init: Initializer | None = None
    dtype: Any = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        (height, width, channels), stages = self.shape, len(self.multipliers)
        if height % 2**stages or width % 2**stages:
            raise ConfigError(
                f"an image of {height} x {width} cannot come out of {stages} stages: expected multiples of {2**stages}"
            )
        *batch, inputs = x.shape
        depths = (*(self.depth * multiplier for multiplier in reversed(self.multipliers)), channels)
        smallest = (height >> stages, width >> stages, depths[0])
        # Apart from the convolutions, whose small kernels would be padded to the shape of this one in the same draw.
        space = together(self, {"space": ((inputs, math.prod(smallest)), math.sqrt(2.0))}, self.kernel_init)["space"]
        x = nn.Dense(math.prod(smallest), dtype=self.dtype, kernel_init=space, name="space")(x).reshape(-1, *smallest)
        inits = _convolution_inits(self, depths, math.sqrt(2.0))
        for i, (name, init) in enumerate(inits.items()):
            x = ACTIVATIONS[self.activation](normalized(x, self.norm, f"norm_{i}"))
            x = same_convolution(upsample(x), depths[i + 1], self.kernel, init, name, self.dtype)
        return jax.nn.sigmoid(x).reshape(*batch, *self.shape)


def same_convolution(x: jax.Array, features: int, kernel: int, init: Initializer, name: str, dtype: Any = None) -> jax.Array:
    """`[B, H, W, C] -> [B, H, W, features]` by a new `Convolution`, with zeros around the image; for a compact method."""
    # By products of patches, which hold kernel^2 images of the input at a time, as XLA's convolution is slow where agents spend
    # their time: 4 gradient steps in a scan on 256 images 8 x 8 x 4 through two stages take 176 ms with it and 20 ms with
    # patches (2 CPU cores), for 2 seeds under vmap 508 and 54. Patches of one row at a time need half the memory, and 37 ms.
    before = (kernel - 1) // 2
    sides = (before, kernel - 1 - before)
    x = jnp.pad(x, ((0, 0), sides, sides, (0, 0)))
    return Convolution(features, kernel, 1, kernel_init=init, dtype=dtype, name=name)(x)


def max_pool(x: jax.Array) -> jax.Array:
    """The largest of each 2 x 2 window, `[B, H, W, C] -> [B, H // 2, W // 2, C]`."""
    # By reshape and not lax.reduce_window, whose gradient is a select-and-scatter: slow, and serial on the CPU.
    batch, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    return jnp.max(x.reshape(batch, height // 2, 2, width // 2, 2, channels), axis=(2, 4))


def upsample(x: jax.Array) -> jax.Array:
    """Each pixel as 2 x 2 of it, `[B, H, W, C] -> [B, 2 H, 2 W, C]`."""
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)


def _convolution_inits(module: ImageEncoder | ImageDecoder, depths: tuple[int, ...], gain: float) -> dict[str, Initializer]:
    """ "conv_0" and so on -> the initialiser of the convolution from each of the depths to the next."""
    shapes = [(module.kernel, module.kernel, *pair) for pair in itertools.pairwise(depths)]
    return together(module, {f"conv_{i}": (shape, gain) for i, shape in enumerate(shapes)}, module.kernel_init)
