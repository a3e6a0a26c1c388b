"""Convolutional encoder and decoder of images, general enough for those of DreamerV3 (Hafner et al., 2025).

Images are `[..., height, width, channels]`. Each stage halves the sides (the decoder's doubles them) and has
`depth * multiplier` channels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype

from rljax.core.devices import is_split, platform
from rljax.core.errors import ConfigError
from rljax.nn.modules.initializers import Initializer
from rljax.nn.modules.layers import ACTIVATIONS, Dense, biased, by_block, normalized, together

BLOCK_BYTES = 1 << 19
"""Most memory that the patches of a block of images take: about what a core's cache holds."""


def in_blocks(function: Callable[[jax.Array], jax.Array], x: jax.Array, size: int) -> jax.Array:
    """Return `function(x)`, on CPUs computed for `size` rows of `x` at a time, also in the gradient.

    What a block needs in between stays in the cache of a core, instead of being written to memory and read again.
    """
    if not isinstance(x.shape[0], int):  # an exported program is for any number of rows
        return function(x)
    blocks = x.shape[0] // size
    if platform() != "cpu" or blocks < 2 or is_split():  # Each device has rows of its own.
        return function(x)
    whole = x[: blocks * size].reshape(blocks, size, *x.shape[1:])
    # The gradient computes the blocks again, so that nothing of them is kept.
    result = jax.lax.map(jax.checkpoint(function), whole)
    result = result.reshape(blocks * size, *result.shape[2:])
    return result if blocks * size == x.shape[0] else jnp.concatenate([result, function(x[blocks * size :])])


MAX_CHANNELS, MIN_SIDE = 4, 32
"""An image of pixels is no lower than four, with 32 channels or more: its channels come first."""


def scaled_image(image: Any) -> jax.Array:
    """Return an image as f32 `[B, height, width, channels]`, uint8 scaled to [0, 1].

    Raises:
        ConfigError: the observation is not an image.
    """
    if not hasattr(image, "ndim") or image.ndim != 4:
        shapes = jax.tree.map(lambda x: x.shape[1:], image)
        raise ConfigError(f"observation of shape {shapes}: expected an image [height, width, channels] for encoder = 'cnn'")
    _, height, *others = image.shape
    if image.dtype == jnp.uint8 and height <= MAX_CHANNELS and min(others) >= MIN_SIDE:
        raise ConfigError(
            f"observation of shape {image.shape[1:]}: expected an image [height, width, channels] for encoder = 'cnn', "
            "and this looks like [channels, height, width]; to stack frames of an environment that shows one, set frame_stack"
        )
    return image.astype(jnp.float32) / 255.0 if image.dtype == jnp.uint8 else image.astype(jnp.float32)


def check_kernel(kernels: tuple[int, ...], number: int, sides: tuple[int, ...]) -> None:
    """Refuse a convolution without padding whose kernel is wider than its input, so that it would have no output.

    Raises:
        ConfigError: kernel `number`, from 0, is wider than the smaller of the `sides`.
    """
    if kernels[number] > min(sides):
        raise ConfigError(f"network.kernels = {kernels}: number {number + 1} is wider than its image of {sides}")


class Convolution(nn.Module):
    """Square convolution without padding, `[B, height, width, channels] -> [B, height', width', features]`, with the parameters
    and the result of `nn.Conv`.

    It is computed as one matrix product of all patches, which is fast on the CPU: a scan of gradient steps (the update of the
    preset `breakout_pqn`) takes 2.5 times as long with XLA's convolution, and 11 times as long for 4 seeds under vmap, where
    different kernels make it a grouped convolution. The forward pass alone is faster with XLA's convolution.

    Attributes:
        features: number of output channels.
        kernel: number of inputs along a side of the window.
        stride: distance between windows.
        kernel_init: `(key, shape, dtype) -> kernel`.
        dtype: dtype of the products and of the output; None: that of the input and the parameters, which are f32.
        dilation: distance between the inputs of a window.
    """

    features: int
    kernel: int
    stride: int
    kernel_init: Callable[..., Any]
    dtype: Any = None
    dilation: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width, stride = self.kernel, self.stride
        kernel = self.param("kernel", self.kernel_init, (width, width, x.shape[-1], self.features), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        x, kernel = promote_dtype(x, kernel, dtype=self.dtype)
        starts = range(0, width * self.dilation, self.dilation)
        rows, columns = (side - starts[-1] for side in x.shape[1:3])

        def convolved(x: jax.Array) -> jax.Array:
            # Slices, because lax.conv_general_dilated_patches is a convolution itself.
            offsets = itertools.product(starts, starts)
            patches = jnp.concatenate([x[:, i : i + rows : stride, j : j + columns : stride] for i, j in offsets], axis=-1)
            return biased(patches @ kernel.reshape(-1, self.features), bias)

        size = (rows // stride + 1) * (columns // stride + 1) * kernel[..., 0].size * x.dtype.itemsize
        return in_blocks(convolved, x, max(BLOCK_BYTES // max(size, 1), 1))


class ImageEncoder(nn.Module):
    """Convolutional encoder: `[..., H, W, C] -> [..., D]`. Each stage is a convolution that keeps the sides, 2x2 max-pooling,
    norm and activation.

    uint8 images are scaled to [-0.5, 0.5]; other images are used as they are. Pooling drops an odd last row or column. D is the
    size of the flattened last stage, `(H >> n) (W >> n) depth multipliers[-1]` for n stages. Kernels are orthogonal with gain
    sqrt(2), biases 0. DreamerV3 uses `ImageEncoder(depth=16)` or larger depths, with its own `kernel_init`.

    Attributes:
        depth: number of channels of a stage with multiplier 1.
        multipliers: one for each stage.
        kernel: width of the convolutions.
        norm: one of `NORMS`, over the channels.
        activation: a name in `ACTIVATIONS`.
        kernel_init: another initialiser of all kernels.
        dtype: dtype of the products and of the output, such as `jnp.bfloat16`; None: f32.

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
            x = max_pool(SameConvolution(depths[i + 1], self.kernel, init, self.dtype, name=name)(x))
            x = ACTIVATIONS[self.activation](normalized(x, self.norm, f"norm_{i}"))
        return x.reshape(*batch, -1)


class ImageDecoder(nn.Module):
    """Convolutional decoder, the reverse of `ImageEncoder`: `[..., D] -> images [..., H, W, C]` in (0, 1).

    A linear layer makes the smallest image. Each stage applies norm and activation, doubles the sides (nearest neighbour) and
    convolves; a sigmoid follows the last one. The numbers of channels are those of the encoder's stages in reverse, then that of
    the image. Targets are images divided by 255, without the encoder's shift by -0.5. Kernels are orthogonal with gain sqrt(2),
    biases 0.

    DreamerV3's decoder takes the deterministic part of a latent state apart (`deter`): it makes the smallest image by a
    block-diagonal layer, each block some of the channels, and the sample adds to it through a hidden layer.

    Attributes:
        shape: (H, W, C) of the images; H and W must be multiples of 2 to the number of stages.
        depth: number of channels of a stage with multiplier 1.
        multipliers: multipliers of the encoder.
        kernel: width of the convolutions.
        norm: one of `NORMS`, over the channels.
        activation: a name in `ACTIVATIONS`.
        kernel_init: another initialiser of all kernels.
        dtype: dtype of the products and of the output, such as `jnp.bfloat16`; None: f32.
        deter: number of the first inputs that are the deterministic part of a latent state, a multiple of `blocks`; 0: none.
        blocks: number of blocks of its layer, which must divide the channels of the smallest image.
        hidden: size of the hidden layer of the other inputs.

    Raises:
        ConfigError: the sides cannot be halved as often as there are stages, or `blocks` does not divide `deter` and the
            channels of the smallest image.
    """

    shape: tuple[int, int, int]
    depth: int = 16
    multipliers: tuple[int, ...] = (2, 3, 4, 4)
    kernel: int = 5
    norm: str = "rms"
    activation: str = "silu"
    kernel_init: Initializer | None = None
    dtype: Any = None
    deter: int = 0
    blocks: int = 8
    hidden: int = 128

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        (height, width, channels), stages = self.shape, len(self.multipliers)
        if height % 2**stages or width % 2**stages:
            raise ConfigError(
                f"an image of {height} x {width} does not fit {stages} stages that halve it: expected multiples of {2**stages}"
            )
        *batch, inputs = x.shape
        depths = (*(self.depth * multiplier for multiplier in reversed(self.multipliers)), channels)
        smallest = (height >> stages, width >> stages, depths[0])
        if self.deter % self.blocks or (self.deter and depths[0] % self.blocks):
            raise ConfigError(f"blocks = {self.blocks}: expected a divisor of deter = {self.deter} and of {depths[0]} channels")
        x = (self._from_latent if self.deter else self._from_all)(x.reshape(-1, inputs), smallest)
        inits = _convolution_inits(self, depths, math.sqrt(2.0))
        for i, (name, init) in enumerate(inits.items()):
            x = ACTIVATIONS[self.activation](normalized(x, self.norm, f"norm_{i}"))
            x = SameConvolution(depths[i + 1], self.kernel, init, self.dtype, name=name)(upsample(x))
        return jax.nn.sigmoid(x).reshape(*batch, *self.shape)

    def _from_all(self, x: jax.Array, shape: tuple[int, int, int]) -> jax.Array:
        """Return the smallest image, `[B, D] -> [B, *shape]`."""
        return self._dense({"space": (x.shape[-1], math.prod(shape))})["space"](x).reshape(-1, *shape)

    def _from_latent(self, x: jax.Array, shape: tuple[int, int, int]) -> jax.Array:
        """Return the smallest image of a latent state, `[B, deter + S] -> [B, *shape]`."""
        size, (height, width, channels) = math.prod(shape), shape
        sample = x[:, self.deter :]
        layers = {"sample_in": (sample.shape[-1], self.hidden), "sample_out": (self.hidden, size)}
        into_block = self.deter // self.blocks, size // self.blocks
        space = together(self, {"space": ((self.blocks, *into_block), math.sqrt(2.0))}, self.kernel_init)["space"]
        dense = self._dense(layers)
        deter = _BlockDense(self.blocks, size, space, self.dtype, name="space")(x[:, : self.deter])
        deter = deter.reshape(-1, self.blocks, height, width, channels // self.blocks)
        hidden = ACTIVATIONS[self.activation](normalized(dense["sample_in"](sample), self.norm, "sample_norm"))
        return jnp.moveaxis(deter, 1, 3).reshape(-1, *shape) + dense["sample_out"](hidden).reshape(-1, *shape)

    def _dense(self, layers: dict[str, tuple[int, int]]) -> dict[str, Dense]:
        """Return linear layers with these numbers of inputs and outputs."""
        # A draw of their own: in one draw with the convolutions, small kernels would be padded to the shape of large ones.
        inits = together(self, {name: (shape, math.sqrt(2.0)) for name, shape in layers.items()}, self.kernel_init)
        return {n: Dense(shape[1], dtype=self.dtype, kernel_init=inits[n], name=n) for n, shape in layers.items()}


class _BlockDense(nn.Module):
    """Block-diagonal linear layer, `[..., inputs] -> [..., features]`: each of the blocks has its share of both."""

    blocks: int
    features: int
    kernel_init: Callable[..., Any]
    dtype: Any = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = self.blocks, x.shape[-1] // self.blocks, self.features // self.blocks
        kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        x = x.astype(self.dtype or jnp.float32)
        return biased(by_block(lambda x, kernel: x @ kernel.astype(x.dtype), (kernel,))(x), bias)


class SameConvolution(nn.Module):
    """Square convolution with zero padding, `[B, H, W, C] -> [B, H, W, features]`, with the parameters and the result of
    `nn.Conv`.

    It is computed as one matrix product over blocks of b x b pixels, b = kernel - 1: the outputs of a block depend on the block
    and its neighbours to the right and below, 2b x 2b pixels. Patches of single pixels would hold kernel^2 copies of the input,
    blocks hold four, but take 2.6 times the multiplications (kernel 5), in matrices of a size that is fast on the CPU. 4 gradient
    steps on 64 images of 64 x 64 through DreamerV3's encoder of depth 2 take 0.45 s on a core (36 MB of temporaries), and 1.3 s
    (154 MB) with patches; with depth 8 and 32 images, 1.3 s and 1.4 s. XLA's own convolution took 4 times as long as patches.

    Attributes:
        features: number of output channels.
        kernel: width of the window.
        kernel_init: `(key, shape, dtype) -> kernel`.
        dtype: dtype of the products and of the output; None: that of the input and the parameters, which are f32.
    """

    features: int
    kernel: int
    kernel_init: Callable[..., Any]
    dtype: Any = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width, block = self.kernel, max(self.kernel - 1, 1)
        kernel = self.param("kernel", self.kernel_init, (width, width, x.shape[-1], self.features), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        x = x.astype(self.dtype or jnp.float32)
        batch, height, columns, channels = x.shape
        rows, across = -(-height // block), -(-columns // block)
        before = block // 2
        after = ((rows + 1) * block - before - height, (across + 1) * block - before - columns)
        x = jnp.pad(x, ((0, 0), (before, after[0]), (before, after[1]), (0, 0)))
        x = x.reshape(batch, rows + 1, block, across + 1, block, channels).swapaxes(2, 3)
        x = x.reshape(batch, rows + 1, across + 1, -1)
        windows = jnp.concatenate([x[:, i : i + rows, j : j + across] for i, j in itertools.product((0, 1), (0, 1))], axis=-1)
        # The kernel's copies are rounded, not the kernel: their gradients are added up in f32.
        out = biased(windows @ _block_kernel(kernel, block).astype(x.dtype), jnp.tile(bias, block * block))
        out = out.reshape(batch, rows, across, block, block, self.features).swapaxes(2, 3)
        return out.reshape(batch, rows * block, across * block, self.features)[:, :height, :columns]


def _block_kernel(kernel: jax.Array, block: int) -> jax.Array:
    """Return a kernel `[K, K, C, F]` as a matrix from four blocks of pixels to the first's outputs, `[4 b^2 C, b^2 F]`."""
    width, _, channels, features = kernel.shape
    rest = 2 * block - width
    places = itertools.product(range(block), range(block))
    shifted = [jnp.pad(kernel, ((i, rest - i), (j, rest - j), (0, 0), (0, 0))) for i, j in places]
    matrix = jnp.stack(shifted, axis=-2).reshape(2, block, 2, block, channels, -1)
    return matrix.swapaxes(1, 2).reshape(4 * block * block * channels, block * block * features)


def max_pool(x: jax.Array) -> jax.Array:
    """Return the maximum of each 2 x 2 window, `[B, H, W, C] -> [B, H // 2, W // 2, C]`."""
    # By reshape, because the gradient of lax.reduce_window is a select-and-scatter, which is slow, and serial on the CPU.
    batch, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    return jnp.max(x.reshape(batch, height // 2, 2, width // 2, 2, channels), axis=(2, 4))


def upsample(x: jax.Array) -> jax.Array:
    """Repeat each pixel 2 x 2 times, `[B, H, W, C] -> [B, 2 H, 2 W, C]`."""
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)


def _convolution_inits(module: ImageEncoder | ImageDecoder, depths: tuple[int, ...], gain: float) -> dict[str, Initializer]:
    """Return the initialiser of each convolution ("conv_0" and so on), from each of the depths to the next."""
    shapes = [(module.kernel, module.kernel, *pair) for pair in itertools.pairwise(depths)]
    return together(module, {f"conv_{i}": (shape, gain) for i, shape in enumerate(shapes)}, module.kernel_init)
