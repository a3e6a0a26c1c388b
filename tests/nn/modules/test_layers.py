"""Layers: formulas, kernels from one draw, and FiLM, which starts as nothing."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.nn.modules.classes import FEW
from rljax.nn.modules.layers import ACTIVATIONS, MLP, NORMS, Dense, FiLM, RMSNorm, together


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def test_rms_norm_divides_by_the_root_of_the_mean_square() -> None:
    x = 3.0 * normal(4, 6) + 1.0
    scale = normal(6, seed=1)
    want = np.asarray(x) / np.sqrt(np.mean(np.square(np.asarray(x)), -1, keepdims=True) + 1e-4) * np.asarray(scale)
    np.testing.assert_allclose(RMSNorm().apply({"params": {"scale": scale}}, x), want, rtol=1e-5)
    reference = nn.RMSNorm(epsilon=0.5).apply({"params": {"scale": scale}}, x)
    np.testing.assert_allclose(RMSNorm(eps=0.5).apply({"params": {"scale": scale}}, x), reference, rtol=1e-5)


def test_rms_norm_has_a_scale_of_one_only_and_computes_in_f32() -> None:
    x = jnp.full((2, 256), 300.0, jnp.bfloat16)
    variables = RMSNorm().init(jax.random.key(0), x)
    assert list(variables["params"]) == ["scale"]
    np.testing.assert_array_equal(variables["params"]["scale"], jnp.ones(256, jnp.float32))
    # The square of 300 in f16 is infinite.
    out = RMSNorm().apply(variables, jnp.full((2, 256), 300.0, jnp.float16))
    assert out.dtype == jnp.float16
    np.testing.assert_allclose(out, 1.0, rtol=1e-3)
    np.testing.assert_allclose(RMSNorm().apply(variables, jnp.zeros((2, 256))), 0.0)


@pytest.mark.parametrize("norm", NORMS)
def test_mlp_is_dense_norm_activation_and_a_linear_head(norm: str) -> None:
    x, mlp = normal(5, 3), MLP((8, 6), num_outputs=2, activation="elu", norm=norm)
    shapes = jax.eval_shape(mlp.init, jax.random.key(0), x)
    rng = np.random.default_rng(3)
    variables = jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape), s.dtype), shapes)
    params, y = variables["params"], x
    norms: Any = {"rms": nn.RMSNorm(epsilon=1e-4), "layer": nn.LayerNorm()}
    for i in range(2):
        y = y @ params[f"dense_{i}"]["kernel"] + params[f"dense_{i}"]["bias"]
        y = nn.elu(y if norm == "none" else norms[norm].apply({"params": params[f"norm_{i}"]}, y))
    want = y @ params["head"]["kernel"] + params["head"]["bias"]
    np.testing.assert_allclose(mlp.apply(variables, x), want, rtol=1e-4, atol=1e-4)
    headless = {"params": {k: v for k, v in params.items() if k != "head"}}
    np.testing.assert_allclose(MLP((8, 6), activation="elu", norm=norm).apply(headless, x), y, rtol=1e-4, atol=1e-4)


def test_mlp_starts_orthogonal_with_the_gains_it_names() -> None:
    mlp = MLP((8, 8), num_outputs=4, head_gain=0.01)
    params = jax.jit(mlp.init)(jax.random.key(0), jnp.zeros((1, 8)))["params"]
    for name, gain in (("dense_0", math.sqrt(2.0)), ("dense_1", math.sqrt(2.0)), ("head", 0.01)):
        kernel = np.asarray(params[name]["kernel"])
        np.testing.assert_allclose(kernel.T @ kernel, gain**2 * np.eye(kernel.shape[1]), atol=1e-5)
        np.testing.assert_array_equal(params[name]["bias"], 0.0)
    assert not np.allclose(params["dense_0"]["kernel"], params["dense_1"]["kernel"])


def test_a_head_of_gain_0_puts_out_0_and_another_initialiser_is_used_for_the_rest() -> None:
    mlp = MLP((8,), num_outputs=3, head_gain=0.0, kernel_init=nn.initializers.constant(0.25))
    variables = mlp.init(jax.random.key(0), normal(2, 4))
    np.testing.assert_array_equal(variables["params"]["dense_0"]["kernel"], 0.25)
    np.testing.assert_array_equal(mlp.apply(variables, normal(2, 4)), 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_mlp_computes_in_the_dtype_it_is_given_with_parameters_and_gradients_in_f32(norm: str) -> None:
    x, f32 = normal(32, 12), MLP((16, 16), num_outputs=4, norm=norm)
    params = f32.init(jax.random.key(0), x)
    for num_outputs in (4, None):
        bf16 = MLP((16, 16), num_outputs=num_outputs, norm=norm, dtype=jnp.bfloat16)
        shapes = jax.eval_shape(bf16.init, jax.random.key(0), x)
        assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype(jnp.float32)}
        given = {"params": {name: params["params"][name] for name in shapes["params"]}}
        out, want = bf16.apply(given, x), MLP((16, 16), num_outputs=num_outputs, norm=norm).apply(given, x)
        assert out.dtype == jnp.bfloat16
        assert want.dtype == jnp.float32
        np.testing.assert_allclose(out.astype(jnp.float32), want, rtol=3e-2, atol=3e-2)
        assert not np.array_equal(out.astype(jnp.float32), want)
    gradients = jax.grad(lambda p: jnp.sum(bf16.apply(p, x).astype(jnp.float32)))(given)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {jnp.dtype(jnp.float32)}
    products = str(jax.make_jaxpr(bf16.apply)(given, x))
    assert products.count("dot_general") == 2
    assert not [line for line in products.splitlines() if "dot_general" in line and ":bf16" not in line]


def test_film_starts_as_the_identity_and_is_its_formula() -> None:
    x, context, film = normal(3, 6), normal(3, 4, seed=1), FiLM(6)
    variables = film.init(jax.random.key(0), x, context)
    np.testing.assert_array_equal(film.apply(variables, x, context), x)
    kernel, bias = normal(4, 12, seed=2), normal(12, seed=3)
    out = film.apply({"params": {"modulation": {"kernel": kernel, "bias": bias}}}, x, context)
    gamma, beta = np.split(np.asarray(context) @ np.asarray(kernel) + np.asarray(bias), 2, axis=-1)
    np.testing.assert_allclose(out, (1.0 + gamma) * np.asarray(x) + beta, rtol=1e-5, atol=1e-5)


def test_film_of_a_fresh_layer_learns_from_the_context() -> None:
    x, context, film = normal(3, 6), normal(3, 4, seed=1), FiLM(6)
    variables = film.init(jax.random.key(0), x, context)
    grad = jax.grad(lambda v: jnp.sum(jnp.square(film.apply(v, x, context))))(variables)["params"]["modulation"]["kernel"]
    assert bool(jnp.all(grad != 0))


class Pair(nn.Module):
    """Two kernels from one draw."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        inits = together(self, {"first": ((x.shape[-1], 4), 1.0), "second": ((2, 2, 3, 5), 2.0)})
        self.param("second", inits["second"], (2, 2, 3, 5), jnp.float32)
        return nn.Dense(4, kernel_init=inits["first"], name="first")(x)


def test_kernels_drawn_together_have_their_shapes_and_gains_and_differ_by_seed_under_vmap() -> None:
    keys = jax.random.split(jax.random.key(0), 2)
    both = jax.jit(jax.vmap(lambda key: Pair().init(key, jnp.zeros((1, 6)))))(keys)["params"]
    for seed in range(2):
        first, second = np.asarray(both["first"]["kernel"][seed]), np.asarray(both["second"][seed]).reshape(12, 5)
        np.testing.assert_allclose(first.T @ first, np.eye(4), atol=1e-5)
        np.testing.assert_allclose(second.T @ second, 4.0 * np.eye(5), atol=1e-5)
    assert float(jnp.abs(both["second"][0] - both["second"][1]).max()) > 0.1


def test_applying_draws_nothing_and_refuses_weights_of_another_shape() -> None:
    variables = {"params": {"first": {"kernel": jnp.zeros((6, 4)), "bias": jnp.zeros(4)}, "second": jnp.zeros((2, 2, 3, 5))}}
    assert "random_bits" not in str(jax.make_jaxpr(Pair().apply)(variables, jnp.zeros((1, 6))))
    variables["params"]["second"] = jnp.zeros((2, 2, 3, 6))
    with pytest.raises(Exception, match="second"):
        Pair().apply(variables, jnp.zeros((1, 6)))


def test_silu_is_x_times_its_sigmoid() -> None:
    x = jnp.linspace(-12.0, 12.0, 101)
    np.testing.assert_allclose(ACTIVATIONS["silu"](x), jax.nn.silu(x), atol=2e-6)


@pytest.mark.parametrize("on", ["cpu", "gpu"])
@pytest.mark.parametrize("outputs", [1, 2, FEW, FEW + 1])
def test_derivatives_of_a_dense_layer_are_those_of_its_product(outputs: int, on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPUs the gradient of a kernel with few outputs is computed for each output."""
    monkeypatch.setattr("rljax.nn.modules.layers.platform", lambda: on)
    layer = Dense(outputs, nn.initializers.normal())
    x = jax.random.normal(jax.random.key(0), (3, 5, 8))
    params = layer.init(jax.random.key(1), x)
    weights = jax.random.normal(jax.random.key(2), (3, 5, outputs))

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.sum(weights * jnp.tanh(layer.apply(params, x)))

    def plain(params: Any, x: jax.Array) -> jax.Array:
        return jnp.sum(weights * jnp.tanh(x @ params["params"]["kernel"] + params["params"]["bias"]))

    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    one, many = jax.grad(loss, argnums=(0, 1)), jax.tree.map(lambda p: jnp.stack([p, 2 * p]), params)
    jax.tree.map(close, one(params, x), jax.grad(plain, argnums=(0, 1))(params, x))
    jax.tree.map(close, jax.vmap(one, (0, None))(many, x), jax.vmap(jax.grad(plain, argnums=(0, 1)), (0, None))(many, x))
    # Forwards, and twice: a user's own loss may need them.
    along = (jax.tree.map(jnp.ones_like, params), jnp.ones_like(x))
    close(jax.jvp(loss, (params, x), along)[1], jax.jvp(plain, (params, x), along)[1])
    turned = [jax.jvp(jax.grad(f, argnums=(0, 1)), (params, x), along)[1] for f in (loss, plain)]
    jax.tree.map(close, *turned)

    products = str(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(params, x)).count("dot_general")
    assert products == (2 + outputs if on == "cpu" and 1 < outputs <= FEW else 3)
