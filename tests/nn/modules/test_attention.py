"""Attention against jax.nn, a transformer against plain numpy, and what masks promise: nothing that is not there counts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.nn.modules.attention import (
    AttentionPooling,
    MultiHeadAttention,
    PointerNetwork,
    TargetAttention,
    TransformerEncoder,
    dot_product_attention,
)

BATCH, ENTITIES, SIZE, HEADS = 3, 5, 8, 2
MASK = np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1], [0, 0, 1, 0, 0]], bool)


def apply(module: Any, *args: Any) -> jax.Array:
    """`module.apply`, compiled: op by op each of them would be a program of its own."""
    return jax.jit(module.apply)(*args)


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def random_variables(module: Any, *args: Any) -> Any:
    """Variables drawn by numpy, biases too, which start at 0."""
    rng = np.random.default_rng(7)
    shapes = jax.eval_shape(module.init, jax.random.key(0), *args)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) * 0.5, x.dtype), shapes)


def test_the_product_is_that_of_jax() -> None:
    query, key, value = (
        normal(BATCH, 4, HEADS, 6),
        normal(BATCH, ENTITIES, HEADS, 6, seed=1),
        normal(BATCH, ENTITIES, HEADS, 6, seed=2),
    )
    mask = np.random.default_rng(3).random((BATCH, 4, ENTITIES)) < 0.6
    mask[..., 0] = True
    for m in (None, jnp.asarray(mask)):
        want = jax.nn.dot_product_attention(query, key, value, mask=None if m is None else m[:, None])
        np.testing.assert_allclose(dot_product_attention(query, key, value, m), want, atol=1e-5)


def test_the_product_of_a_query_without_keys_is_0_and_has_no_gradient() -> None:
    query, key = normal(BATCH, 4, HEADS, 6), normal(BATCH, ENTITIES, HEADS, 6, seed=1)
    mask = jnp.ones((BATCH, 4, ENTITIES), bool).at[1, 2].set(False)

    def lost_row(query: jax.Array, key: jax.Array, value: jax.Array) -> Any:
        out = dot_product_attention(query, key, value, mask)
        return jnp.sum(out[1, 2]), out

    grads, out = jax.jit(jax.grad(lost_row, argnums=(0, 1, 2), has_aux=True))(query, key, key)
    np.testing.assert_array_equal(out[1, 2], 0.0)
    assert bool(jnp.all(out[1, :2] != 0))
    for grad in grads:
        np.testing.assert_array_equal(grad, 0.0)


def test_multi_head_attention_projects_attends_and_projects() -> None:
    query, key, value = normal(BATCH, 4, 3), normal(BATCH, ENTITIES, 6, seed=1), normal(BATCH, ENTITIES, 7, seed=2)
    mask = jnp.asarray(np.random.default_rng(3).random((BATCH, 4, ENTITIES)) < 0.6).at[..., 0].set(True)
    attention = MultiHeadAttention(HEADS, SIZE)
    variables = random_variables(attention, query, key, value, mask)
    params = variables["params"]

    def project(name: str, x: jax.Array) -> jax.Array:
        return x @ params[name]["kernel"] + params[name]["bias"]

    q, k, v = (project(name, x) for name, x in (("query", query), ("key", key), ("value", value)))
    q, k, v = (x.reshape(*x.shape[:-1], HEADS, SIZE // HEADS) for x in (q, k, v))
    want = project("out", jax.nn.dot_product_attention(q, k, v, mask=mask[:, None]).reshape(BATCH, 4, SIZE))
    np.testing.assert_allclose(apply(attention, variables, query, key, value, mask), want, atol=1e-4)


def test_a_query_that_may_attend_to_nothing_gives_0_and_no_nan_in_any_gradient() -> None:
    query, key = normal(BATCH, 4, SIZE), normal(BATCH, ENTITIES, SIZE, seed=1)
    mask = jnp.ones((BATCH, 4, ENTITIES), bool).at[1, 2].set(False)
    attention = MultiHeadAttention(HEADS, SIZE)
    variables = random_variables(attention, query, key, key, mask)
    out = apply(attention, variables, query, key, key, mask)
    np.testing.assert_array_equal(out[1, 2], 0.0)
    assert bool(jnp.all(jnp.any(out != 0, axis=-1) == jnp.any(mask, axis=-1)))

    def lost_row(variables: Any, query: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.sum(apply(attention, variables, query, key, key, mask)[1, 2])

    for grad in jax.tree.leaves(jax.jit(jax.grad(lost_row, argnums=(0, 1, 2)))(variables, query, key)):
        np.testing.assert_array_equal(grad, 0.0)


def layer_norm(params: Any, x: np.ndarray) -> np.ndarray:
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return scaled * np.asarray(params["scale"]) + np.asarray(params["bias"])


def plain_transformer(params: Any, x: np.ndarray) -> np.ndarray:
    """One set `[E, SIZE]`, entity by entity and head by head."""

    def dense(name: str, x: np.ndarray) -> np.ndarray:
        return x @ np.asarray(params[name]["kernel"], np.float64) + np.asarray(params[name]["bias"], np.float64)

    width = SIZE // HEADS
    for i in range(2):
        y = layer_norm(params[f"attention_norm_{i}"], x)
        q, k, v = np.split(dense(f"qkv_{i}", y), 3, axis=-1)
        attended = np.zeros_like(x)
        for head in range(HEADS):
            places = slice(head * width, (head + 1) * width)
            for e in range(len(x)):
                logits = k[:, places] @ q[e, places] / np.sqrt(width)
                weights = np.exp(logits - logits.max())
                attended[e, places] = weights @ v[:, places] / weights.sum()
        x = x + dense(f"out_{i}", attended)
        y = layer_norm(params[f"mlp_norm_{i}"], x)
        x = x + dense(f"mlp_out_{i}", np.maximum(dense(f"mlp_in_{i}", y), 0.0))
    return layer_norm(params["norm"], x)


def test_transformer_is_the_slow_one_over_the_entities_that_are_there() -> None:
    x = normal(BATCH, ENTITIES, SIZE)
    encoder = TransformerEncoder(2, HEADS, SIZE, 12, activation="relu")
    variables = random_variables(encoder, x, MASK)
    out = np.asarray(apply(encoder, variables, x, jnp.asarray(MASK)))
    for row in range(BATCH):
        want = plain_transformer(variables["params"], np.asarray(x, np.float64)[row, MASK[row]])
        np.testing.assert_allclose(out[row, MASK[row]], want, atol=2e-4)
    np.testing.assert_array_equal(out[~MASK], 0.0)


def test_a_fresh_transformer_is_orthogonal_kernel_by_kernel() -> None:
    encoder = TransformerEncoder(2, HEADS, SIZE, 12)
    params = jax.jit(encoder.init)(jax.random.key(0), normal(BATCH, ENTITIES, SIZE))["params"]
    kernels = {name: np.asarray(layer["kernel"]) for name, layer in params.items() if "kernel" in layer}
    assert len(kernels) == 8
    for name, kernel in kernels.items():
        gain = 1.0 if name.startswith("qkv") else np.sqrt(2.0) if name.startswith("mlp_in") else 0.5
        for part in np.split(kernel, 3, axis=-1) if name.startswith("qkv") else [kernel]:
            gram = part @ part.T if part.shape[0] <= part.shape[1] else part.T @ part
            np.testing.assert_allclose(gram, gain**2 * np.eye(len(gram)), atol=1e-5)
    query, key, _ = np.split(kernels["qkv_0"], 3, axis=-1)
    assert not np.allclose(query, key)


SETS = {
    "transformer": (TransformerEncoder(2, HEADS, SIZE, 12), ()),
    "target": (TargetAttention(HEADS, SIZE), (normal(BATCH, 4, seed=5),)),
    "pooling": (AttentionPooling(HEADS, SIZE), ()),
    "pointer": (PointerNetwork(SIZE), (normal(BATCH, 4, seed=5),)),
}
PER_ENTITY = ("transformer", "pointer")


@pytest.mark.parametrize("name", SETS)
def test_entities_may_come_in_any_order(name: str) -> None:
    module, first = SETS[name]
    x, order = normal(BATCH, ENTITIES, SIZE), np.array([3, 0, 4, 2, 1])
    variables = random_variables(module, *first, x, MASK)
    out = apply(module, variables, *first, x, jnp.asarray(MASK))
    permuted = apply(module, variables, *first, x[:, order], jnp.asarray(MASK[:, order]))
    np.testing.assert_allclose(permuted, out[:, order] if name in PER_ENTITY else out, atol=1e-4)
    assert float(jnp.std(jnp.where(out > -1e30, out, 0.0))) > 0.01


@pytest.mark.parametrize("name", SETS)
def test_padding_changes_nothing_neither_its_values_nor_how_much_there_is(name: str) -> None:
    module, first = SETS[name]
    x, mask = normal(BATCH, ENTITIES, SIZE), jnp.asarray(MASK)
    variables = random_variables(module, *first, x, mask)
    out = apply(module, variables, *first, x, mask)
    other = jnp.where(mask[..., None], x, 100.0 * normal(BATCH, ENTITIES, SIZE, seed=9))
    np.testing.assert_allclose(apply(module, variables, *first, other, mask), out, atol=1e-5)
    wider, wider_mask = jnp.concatenate([x, 7.0 * x], axis=1), jnp.concatenate([mask, jnp.zeros_like(mask)], axis=1)
    padded = apply(module, variables, *first, wider, wider_mask)
    np.testing.assert_allclose(padded[:, :ENTITIES] if name in PER_ENTITY else padded, out, atol=1e-5)


@pytest.mark.parametrize("name", SETS)
def test_no_mask_is_a_mask_of_true(name: str) -> None:
    module, first = SETS[name]
    x = normal(BATCH, ENTITIES, SIZE)
    variables = random_variables(module, *first, x)
    everything = apply(module, variables, *first, x, jnp.ones((BATCH, ENTITIES), bool))
    np.testing.assert_allclose(apply(module, variables, *first, x), everything, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_gradients_are_finite_and_padding_gets_none(name: str) -> None:
    module, first = SETS[name]
    x, mask = normal(BATCH, ENTITIES, SIZE), jnp.asarray(MASK).at[1].set(False)
    variables = random_variables(module, *first, x, mask)

    def loss(variables: Any, x: jax.Array) -> jax.Array:
        out = apply(module, variables, *first, x, mask)
        return jnp.sum(jnp.sin(jnp.where(out > -1e30, out, 0.0)))

    grads, dx = jax.jit(jax.grad(loss, argnums=(0, 1)))(variables, x)
    assert all(bool(jnp.all(jnp.isfinite(g))) for g in jax.tree.leaves(grads))
    np.testing.assert_array_equal(dx[~np.asarray(mask)], 0.0)
    assert bool(jnp.any(dx[np.asarray(mask)] != 0))


@pytest.mark.parametrize("name", ["target", "pooling"])
def test_a_set_without_entities_is_0(name: str) -> None:
    module, first = SETS[name]
    x = normal(BATCH, ENTITIES, SIZE)
    variables = random_variables(module, *first, x)
    out = apply(module, variables, *first, x, jnp.asarray(MASK).at[1].set(False))
    np.testing.assert_array_equal(out[1], 0.0)
    assert bool(jnp.any(out[0] != 0))


def test_target_attention_is_multi_head_attention_with_one_query() -> None:
    query, x, mask = normal(BATCH, 4, seed=5), normal(BATCH, ENTITIES, SIZE), jnp.asarray(MASK)
    module = TargetAttention(HEADS, SIZE)
    variables = random_variables(module, query, x, mask)
    inner = {"params": variables["params"]["attention"]}
    out = apply(module, variables, query, x, mask)
    for row in range(BATCH):
        there = x[row, MASK[row]]
        want = apply(MultiHeadAttention(HEADS, SIZE), inner, query[row, None], there, there)[0]
        np.testing.assert_allclose(out[row], want, atol=1e-5)


def test_pooling_is_the_weighted_mean_of_the_values() -> None:
    x, width = normal(BATCH, ENTITIES, SIZE), SIZE // HEADS
    module = AttentionPooling(HEADS, SIZE)
    variables = random_variables(module, x)
    params = jax.tree.map(lambda p: np.asarray(p, np.float64), variables["params"])
    key, value = (np.asarray(x) @ params[name]["kernel"] + params[name]["bias"] for name in ("key", "value"))
    pooled = np.zeros((BATCH, SIZE))
    for head in range(HEADS):
        places = slice(head * width, (head + 1) * width)
        weights = np.exp(key[..., places] @ params["query"][places, 0] / np.sqrt(width))
        pooled[:, places] = np.einsum("be,bed->bd", weights / weights.sum(-1, keepdims=True), value[..., places])
    np.testing.assert_allclose(apply(module, variables, x), pooled @ params["out"]["kernel"] + params["out"]["bias"], atol=1e-4)


def test_pointer_logits_are_scaled_products_and_the_least_number_where_masked() -> None:
    query, x = normal(BATCH, 4, seed=5), normal(BATCH, ENTITIES, SIZE)
    module = PointerNetwork(6)
    variables = random_variables(module, query, x)
    params = jax.tree.map(np.asarray, variables["params"])
    q, k = (v @ params[name]["kernel"] + params[name]["bias"] for name, v in (("query", query), ("key", x)))
    logits = np.asarray(apply(module, variables, query, x, jnp.asarray(MASK)))
    np.testing.assert_allclose(logits[MASK], (np.einsum("bd,bed->be", q, k) / np.sqrt(6))[MASK], atol=1e-4)
    np.testing.assert_array_equal(logits[~MASK], np.finfo(np.float32).min)


def test_a_fresh_pointer_chooses_nearly_uniformly() -> None:
    query, x = normal(BATCH, 4, seed=5), normal(BATCH, ENTITIES, SIZE)
    variables = jax.jit(PointerNetwork(16).init)(jax.random.key(0), query, x)
    probs = jax.nn.softmax(apply(PointerNetwork(16), variables, query, x))
    np.testing.assert_allclose(probs, 1 / ENTITIES, atol=0.02)
    assert float(jnp.std(probs)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_initialisation_under_vmap_is_that_of_each_seed(name: str) -> None:
    module, first = SETS[name]
    x = normal(BATCH, ENTITIES, SIZE)
    keys = jax.random.split(jax.random.key(0), 2)
    both = jax.jit(jax.vmap(lambda key: module.init(key, *first, x)))(keys)
    one = jax.jit(lambda key: module.init(key, *first, x))(keys[1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b, atol=1e-5), both, one)
    kernels = [k for k in jax.tree.leaves(both) if k.ndim == 3]
    assert kernels
    assert all(float(jnp.abs(k[0] - k[1]).max()) > 0 for k in kernels)
