"""Image encoder and decoder against flax's convolution and pooling with the same weights."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.core.devices import on_mesh
from rljax.core.errors import ConfigError
from rljax.nn.modules.images import BLOCK_BYTES, Convolution, ImageDecoder, ImageEncoder, in_blocks, max_pool, upsample
from rljax.nn.modules.layers import NORMS


def random_variables(module: Any, *args: Any) -> Any:
    rng = np.random.default_rng(7)
    shapes = jax.eval_shape(module.init, jax.random.key(0), *args)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) * 0.3, x.dtype), shapes)


def apply(module: Any, *args: Any) -> jax.Array:
    """`module.apply`, compiled: op by op each of them would be a program of its own."""
    return jax.jit(module.apply)(*args)


def flax_conv(params: Any, x: jax.Array) -> jax.Array:
    width, _, _, features = params["kernel"].shape
    return nn.Conv(features, (width, width), padding="SAME").apply({"params": params}, x)


def flax_norm(norm: str, params: Any, i: int, x: jax.Array) -> jax.Array:
    layers: Any = {"rms": nn.RMSNorm(epsilon=1e-4), "layer": nn.LayerNorm()}
    return x if norm == "none" else layers[norm].apply({"params": params[f"norm_{i}"]}, x)


def image(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(0, 256, size=shape), jnp.uint8)


@pytest.mark.parametrize(("norm", "kernel", "sides"), [("rms", 5, (8, 12)), ("none", 3, (10, 6)), ("layer", 4, (9, 7))])
def test_encoder_is_convolution_max_pool_norm_activation_of_flax(norm: str, kernel: int, sides: tuple[int, int]) -> None:
    x = image(3, *sides, 2)
    encoder = ImageEncoder(depth=4, multipliers=(1, 2), kernel=kernel, norm=norm, activation="relu")
    variables = random_variables(encoder, x)

    @jax.jit
    def reference(params: Any) -> jax.Array:
        y = x.astype(jnp.float32) / 255.0 - 0.5
        for i in range(2):
            y = nn.max_pool(flax_conv(params[f"conv_{i}"], y), (2, 2), (2, 2))
            y = nn.relu(flax_norm(norm, params, i, y))
        return y.reshape(3, -1)

    out = apply(encoder, variables, x)
    assert out.shape == (3, (sides[0] // 4) * (sides[1] // 4) * 8)
    np.testing.assert_allclose(out, reference(variables["params"]), atol=1e-4)


@pytest.mark.parametrize("norm", NORMS)
def test_decoder_is_linear_then_nearest_upsampling_and_convolution_of_flax_then_sigmoid(norm: str) -> None:
    x = jnp.asarray(np.random.default_rng(1).normal(size=(3, 5)), jnp.float32)
    decoder = ImageDecoder((8, 12, 2), depth=4, multipliers=(1, 2), norm=norm, activation="relu", kernel=3)
    variables = random_variables(decoder, x)

    @jax.jit
    def reference(params: Any) -> jax.Array:
        y = (x @ params["space"]["kernel"] + params["space"]["bias"]).reshape(3, 2, 3, 8)
        for i in range(2):
            y = nn.relu(flax_norm(norm, params, i, y))
            y = jax.image.resize(y, (3, 2 * y.shape[1], 2 * y.shape[2], y.shape[3]), "nearest")
            y = flax_conv(params[f"conv_{i}"], y)
        return nn.sigmoid(y)

    out = apply(decoder, variables, x)
    assert out.shape == (3, 8, 12, 2)
    np.testing.assert_allclose(out, reference(variables["params"]), atol=1e-4)
    assert {name: p["kernel"].shape for name, p in variables["params"].items() if name.startswith("conv")} == {
        "conv_0": (3, 3, 8, 4),
        "conv_1": (3, 3, 4, 2),
    }


def test_the_parts_of_a_latent_state_make_the_smallest_image_by_layers_of_their_own() -> None:
    """The deterministic part block by block, each of them some of the channels; the sample through a hidden layer."""
    x = jnp.asarray(np.random.default_rng(1).normal(size=(3, 6 + 5)), jnp.float32)
    decoder = ImageDecoder((4, 6, 1), depth=4, multipliers=(1,), norm="rms", kernel=3, deter=6, blocks=2, hidden=7)
    variables = random_variables(decoder, x)
    params = variables["params"]
    assert {name: p["kernel"].shape for name, p in params.items() if "kernel" in p} == {
        "space": (2, 3, 12),
        "sample_in": (5, 7),
        "sample_out": (7, 24),
        "conv_0": (3, 3, 4, 1),
    }
    smallest = np.zeros((3, 2, 3, 4))
    for block in range(2):
        part = x[:, 3 * block : 3 * block + 3] @ params["space"]["kernel"][block]
        part += params["space"]["bias"][12 * block : 12 * block + 12]
        smallest[..., 2 * block : 2 * block + 2] = part.reshape(3, 2, 3, 2)
    hidden = x[:, 6:] @ params["sample_in"]["kernel"] + params["sample_in"]["bias"]
    hidden *= jax.lax.rsqrt(jnp.mean(hidden**2, axis=-1, keepdims=True) + 1e-4) * params["sample_norm"]["scale"]
    smallest += (nn.silu(hidden) @ params["sample_out"]["kernel"] + params["sample_out"]["bias"]).reshape(3, 2, 3, 4)
    y = nn.silu(flax_norm("rms", params, 0, jnp.asarray(smallest, jnp.float32)))
    expected = nn.sigmoid(flax_conv(params["conv_0"], upsample(y)))
    np.testing.assert_allclose(apply(decoder, variables, x), expected, atol=1e-5)


def test_the_attributes_give_the_shapes_of_dreamer_v3() -> None:
    encoder, decoder = ImageEncoder(depth=16), ImageDecoder((64, 64, 3), depth=16)
    shapes = jax.eval_shape(encoder.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.uint8))["params"]
    kernels = [shapes[f"conv_{i}"]["kernel"].shape for i in range(4)]
    assert kernels == [(5, 5, 3, 32), (5, 5, 32, 48), (5, 5, 48, 64), (5, 5, 64, 64)]
    assert [shapes[f"norm_{i}"]["scale"].shape for i in range(4)] == [(32,), (48,), (64,), (64,)]
    features = jax.ShapeDtypeStruct((2, 7, 4 * 4 * 64), jnp.float32)
    back = jax.eval_shape(decoder.init, jax.random.key(0), features)["params"]
    assert [back[f"conv_{i}"]["kernel"].shape for i in range(4)] == [
        (5, 5, 64, 64),
        (5, 5, 64, 48),
        (5, 5, 48, 32),
        (5, 5, 32, 3),
    ]
    assert jax.eval_shape(decoder.apply, {"params": back}, features).shape == (2, 7, 64, 64, 3)


def test_uint8_is_scaled_and_floats_are_taken_as_they_are_with_any_leading_axes() -> None:
    x, encoder = image(2, 3, 4, 4, 1), ImageEncoder(depth=2, multipliers=(1,), kernel=3)
    variables = random_variables(encoder, x)
    out = apply(encoder, variables, x)
    assert out.shape == (2, 3, 8)
    np.testing.assert_allclose(apply(encoder, variables, x.astype(jnp.float32) / 255.0 - 0.5), out, atol=1e-6)
    np.testing.assert_allclose(apply(encoder, variables, x[1, 2]), out[1, 2], atol=1e-6)
    assert not np.allclose(apply(encoder, variables, x.astype(jnp.float32)), out, atol=1e-2)


def test_pooling_takes_the_largest_and_its_gradient_goes_there() -> None:
    x = jnp.asarray(np.random.default_rng(0).permutation(2 * 5 * 4 * 3).reshape(2, 5, 4, 3), jnp.float32)
    np.testing.assert_array_equal(max_pool(x), nn.max_pool(x, (2, 2), (2, 2)))
    want = jax.grad(lambda x: jnp.sum(jnp.sin(nn.max_pool(x, (2, 2), (2, 2)))))(x)
    np.testing.assert_allclose(jax.grad(lambda x: jnp.sum(jnp.sin(max_pool(x))))(x), want, atol=1e-6)


def test_upsampling_repeats_each_pixel() -> None:
    out = upsample(jnp.arange(4.0).reshape(1, 2, 2, 1))[0, ..., 0]
    np.testing.assert_array_equal(out, [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]])


def test_images_that_do_not_fit_the_stages_are_one_clear_line() -> None:
    with pytest.raises(ConfigError, match="an image of 10 x 12 is too small for 4 stages that halve it: use fewer multipliers"):
        ImageEncoder().init(jax.random.key(0), image(1, 10, 12, 3))
    with pytest.raises(ConfigError, match="an image of 64 x 60 does not fit 4 stages that halve it: expected multiples of 16"):
        ImageDecoder((64, 60, 3)).init(jax.random.key(0), jnp.zeros((1, 4)))
    for deter, depth in ((12, 4), (16, 1)):
        with pytest.raises(ConfigError, match=f"blocks = 8: expected a divisor of deter = {deter} and of {4 * depth} channels"):
            ImageDecoder((64, 64, 3), depth=depth, deter=deter).init(jax.random.key(0), jnp.zeros((1, 20)))


@pytest.mark.slow
def test_kernels_start_orthogonal_or_as_asked_and_initialise_under_vmap() -> None:
    def init(key: jax.Array, **attributes: Any) -> Any:
        return ImageEncoder(depth=4, multipliers=(1, 2), kernel=3, **attributes).init(key, image(1, 8, 8, 3))["params"]

    keys = jax.random.split(jax.random.key(0), 2)
    both, one = jax.jit(jax.vmap(init))(keys), jax.jit(init)(keys[1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b, atol=1e-5), both, one)
    kernel = np.asarray(both["conv_1"]["kernel"][0]).reshape(-1, 8)
    np.testing.assert_allclose(kernel.T @ kernel, 2.0 * np.eye(8), atol=1e-5)
    asked = init(keys[0], kernel_init=nn.initializers.constant(0.5))
    np.testing.assert_array_equal(asked["conv_0"]["kernel"], 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_images_are_encoded_and_decoded_in_the_dtype_given_with_parameters_in_f32(norm: str) -> None:
    attributes: dict[str, Any] = {"depth": 4, "multipliers": (1, 2), "kernel": 3, "norm": norm}
    features = jnp.asarray(np.random.default_rng(1).normal(size=(3, 5)), jnp.float32)
    cases: list[tuple[Any, Any, jax.Array]] = [
        (ImageEncoder(**attributes), ImageEncoder(**attributes, dtype=jnp.bfloat16), image(3, 8, 8, 2)),
        (ImageDecoder((8, 8, 2), **attributes), ImageDecoder((8, 8, 2), **attributes, dtype=jnp.bfloat16), features),
    ]
    for f32, bf16, x in cases:
        variables = jax.jit(bf16.init)(jax.random.key(0), x)
        assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype(jnp.float32)}
        out, want = apply(bf16, variables, x), apply(f32, variables, x)
        assert out.dtype == jnp.bfloat16
        assert want.dtype == jnp.float32
        np.testing.assert_allclose(out.astype(jnp.float32), want, rtol=3e-2, atol=3e-2)
        program = str(jax.make_jaxpr(bf16.apply)(variables, x))
        assert "dot_general" in program
        assert not [line for line in program.splitlines() if "dot_general" in line and ":bf16" not in line]


@pytest.mark.parametrize(("rows", "loops"), [(0, 0), (7, 0), (8, 1), (11, 1)])
def test_blocks_of_rows_give_what_all_rows_give_also_in_the_gradient(rows: int, loops: int) -> None:
    """In blocks of 4 rows; fewer than two blocks are computed at once."""
    weight = jnp.asarray(np.random.default_rng(1).normal(size=(3, 5)), jnp.float32)
    x = jnp.asarray(np.random.default_rng(2).normal(size=(rows, 3)), jnp.float32)

    def loss(weight: jax.Array, x: jax.Array, size: int) -> jax.Array:
        return jnp.sum(in_blocks(lambda rows: jnp.tanh(rows @ weight), x, size) ** 2)

    whole, blocks = (jax.value_and_grad(loss, (0, 1))(weight, x, size) for size in (1000, 4))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), whole, blocks)
    assert str(jax.make_jaxpr(lambda x: in_blocks(jnp.tanh, x, 4))(x)).count("scan[") == loops


def test_rows_that_are_split_over_devices_are_not_computed_in_blocks() -> None:
    x = jnp.zeros((64, 3))
    with on_mesh(jax.make_mesh((1,), ("devices",))):
        assert "scan[" not in str(jax.make_jaxpr(lambda x: in_blocks(jnp.tanh, x, 4))(x))


@pytest.mark.slow
def test_convolutions_are_those_of_flax_for_any_number_of_rows() -> None:
    layer = Convolution(4, 3, 2, nn.initializers.lecun_normal())
    patches = 4 * 3 * 9 * 2 * 4  # bytes of the largest number of patches of an image
    for rows in (0, 1, 2 * (BLOCK_BYTES // patches) + 5):
        x = jnp.asarray(np.random.default_rng(rows).normal(size=(rows, 8, 7, 2)), jnp.float32)
        variables = layer.init(jax.random.key(0), x)
        expected = nn.Conv(4, (3, 3), 2, padding="VALID").apply(variables, x)
        np.testing.assert_allclose(apply(layer, variables, x), expected, atol=1e-5)
    nothing = jnp.zeros((2, 8, 7, 0))
    layer = Convolution(4, 3, 2, nn.initializers.zeros)
    assert apply(layer, layer.init(jax.random.key(0), nothing), nothing).shape == (2, 3, 3, 4)
