"""Encoders: which leaf goes where, sets whose order, padding and number do not matter, and clear lines for what is no set."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.core.errors import ConfigError
from rljax.nn.encoders import ConvolutionEncoder, DictEncoder, EntityEncoder
from rljax.nn.modules.images import ImageEncoder
from rljax.nn.modules.layers import MLP
from rljax.nn.modules.transforms import symlog
from rljax.nn.networks import FeedForward

BATCH = 3


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def random_variables(module: Any, *args: Any) -> Any:
    rng = np.random.default_rng(7)
    shapes = jax.eval_shape(module.init, jax.random.key(0), *args)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) * 0.4, x.dtype), shapes)


def apply(module: Any, *args: Any) -> Any:
    """`module.apply`, compiled: op by op each of them would be a program of its own."""
    return jax.jit(module.apply)(*args)


def observation() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "camera": jnp.asarray(rng.integers(0, 256, size=(BATCH, 8, 8, 3)), jnp.uint8),
        "grid": normal(BATCH, 4, 4, 2),
        "inner": {"count": jnp.asarray(rng.integers(0, 5, size=BATCH)), "matrix": normal(BATCH, 2, 3, seed=1)},
        "planes": jnp.asarray(rng.integers(0, 2, size=(BATCH, 2, 2, 2)), bool),
        "speed": 50.0 * normal(BATCH, 4, seed=2),
    }


def test_convolutions_of_boards_are_those_of_flax() -> None:
    encoder, board = ConvolutionEncoder((4, 6), (3, 2), (1, 2)), normal(BATCH, 6, 7, 2)
    variables = random_variables(encoder, board)
    x = board
    for i, (channels, kernel, stride) in enumerate(((4, 3, 1), (6, 2, 2))):
        layer = nn.Conv(channels, (kernel, kernel), (stride, stride), padding="VALID")
        x = nn.relu(apply(layer, {"params": variables["params"][f"conv_{i}"]}, x))
    np.testing.assert_allclose(apply(encoder, variables, board), x.reshape(BATCH, -1), atol=1e-5)
    picture = observation()["camera"]
    variables = random_variables(encoder, picture)
    np.testing.assert_allclose(apply(encoder, variables, picture), apply(encoder, variables, picture / 255.0), atol=1e-5)


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (jnp.zeros((2, 5)), "expected an image .height, width, channels. for encoder = 'cnn'"),
        ({"a": jnp.zeros((2, 5, 5, 1))}, "expected an image"),
        (
            jnp.zeros((2, 4, 84, 84), jnp.uint8),
            r"shape \(4, 84, 84\): .*, and this looks like \[channels, height, width\]; to stack frames",
        ),
        (jnp.zeros((2, 3, 9, 1)), "number 1 is wider than its image of .3, 9."),
        (jnp.zeros((2, 4, 9, 1)), "number 2 is wider than its image of .1, 6."),
    ],
)
def test_what_is_no_image_is_one_clear_line(obs: Any, message: str) -> None:
    windows: dict[str, Any] = {"channels": (2, 2), "kernels": (4, 2), "strides": (1, 1)}
    for network in (ConvolutionEncoder(**windows), FeedForward(num_outputs=2, **windows)):
        with pytest.raises(ConfigError, match=message):
            jax.eval_shape(network.init, jax.random.key(0), obs)


@pytest.mark.parametrize("squash", [False, True])
def test_images_go_through_convolutions_and_all_else_is_one_vector(squash: bool) -> None:
    obs = observation()
    encoder = DictEncoder(hidden=(6,), depth=2, multipliers=(1, 2), norm="rms", symlog=squash)
    variables = random_variables(encoder, obs)
    params = variables["params"]
    assert set(params) == {"vector", "image_camera", "image_grid"}
    vector = jnp.concatenate(
        [
            obs["inner"]["count"][:, None].astype(jnp.float32),
            obs["inner"]["matrix"].reshape(BATCH, 6),
            obs["planes"].reshape(BATCH, 8).astype(jnp.float32),
            obs["speed"],
        ],
        axis=-1,
    )
    parts = [apply(MLP((6,), norm="rms"), {"params": params["vector"]}, symlog(vector) if squash else vector)]
    images = ImageEncoder(depth=2, multipliers=(1, 2), kernel=3, norm="rms")
    parts += [apply(images, {"params": params[f"image_{name}"]}, obs[name]) for name in ("camera", "grid")]
    out = apply(encoder, variables, obs)
    np.testing.assert_allclose(out, jnp.concatenate(parts, axis=-1), atol=1e-4)
    assert out.shape == (BATCH, 6 + 2 * 2 * 4 + 4)


def test_a_single_array_works_as_vector_or_as_image() -> None:
    obs, encoder = observation(), DictEncoder(hidden=(6,), depth=2, multipliers=(1,), activation="relu")
    for leaf, size, name in ((obs["speed"], 6, "vector"), (obs["camera"], 4 * 4 * 2, "image"), (obs["planes"], 6, "vector")):
        variables = random_variables(encoder, leaf)
        assert list(variables["params"]) == [name]
        assert apply(encoder, variables, leaf).shape == (BATCH, size)


@pytest.mark.slow
def test_every_leaf_of_the_observation_counts() -> None:
    obs, encoder = observation(), DictEncoder(hidden=(16,), depth=2, multipliers=(1, 2), activation="tanh")
    variables = random_variables(encoder, obs)
    out = apply(encoder, variables, obs)
    leaves, tree = jax.tree.flatten(obs)
    for i, leaf in enumerate(leaves):
        changed = jnp.logical_not(leaf) if leaf.dtype == bool else (leaf + 1).astype(leaf.dtype)
        other = apply(encoder, variables, jax.tree.unflatten(tree, [*leaves[:i], changed, *leaves[i + 1 :]]))
        assert float(jnp.abs(other - out).max()) > 1e-3, i


MASK = np.array([[1, 1, 0, 1], [1, 1, 1, 1], [0, 0, 1, 0]], bool)
ENCODER = EntityEncoder(size=8, num_layers=2, num_heads=2)


def entities(mask: bool = True, rest: bool = True) -> dict[str, Any]:
    obs: dict[str, Any] = {"entities": normal(BATCH, 4, 5)}
    if mask:
        obs["entity_mask"] = jnp.asarray(MASK)
    if rest:
        obs |= {"me": normal(BATCH, 3, seed=1), "clock": jnp.arange(BATCH)}
    return obs


@pytest.mark.slow
@pytest.mark.parametrize("rest", [True, False])
def test_the_set_may_come_in_any_order_and_padding_does_not_count(rest: bool) -> None:
    obs = entities(rest=rest)
    variables = random_variables(ENCODER, obs)
    x, encoded = apply(ENCODER, variables, obs)
    assert x.shape == (BATCH, 16 if rest else 8)
    assert encoded.shape == (BATCH, 4, 8)
    np.testing.assert_array_equal(encoded[~MASK], 0.0)
    order = np.array([2, 0, 3, 1])
    permuted = {**obs, "entities": obs["entities"][:, order], "entity_mask": obs["entity_mask"][:, order]}
    x_permuted, encoded_permuted = apply(ENCODER, variables, permuted)
    np.testing.assert_allclose(x_permuted, x, atol=1e-4)
    np.testing.assert_allclose(encoded_permuted, encoded[:, order], atol=1e-4)
    # Not a number there, and more places: neither is seen.
    lost = jnp.where(MASK[..., None], obs["entities"], jnp.nan)
    wider = {
        **obs,
        "entities": jnp.concatenate([lost, lost + 7.0], axis=1),
        "entity_mask": jnp.concatenate([MASK, np.zeros_like(MASK)], axis=1),
    }
    x_wider, encoded_wider = apply(ENCODER, variables, wider)
    np.testing.assert_allclose(x_wider, x, atol=1e-5)
    np.testing.assert_allclose(encoded_wider[:, :4], encoded, atol=1e-5)


def test_parameters_do_not_depend_on_how_many_entities_there_are() -> None:
    few, many = entities(), {**entities(), "entities": normal(BATCH, 9, 5), "entity_mask": jnp.ones((BATCH, 9), bool)}
    shapes = [jax.tree.map(jnp.shape, jax.eval_shape(ENCODER.init, jax.random.key(0), obs)) for obs in (few, many)]
    assert shapes[0] == shapes[1]


def test_without_a_mask_all_entities_are_there_and_a_mask_may_be_numbers() -> None:
    obs = entities(mask=False)
    variables = random_variables(ENCODER, obs)
    want = apply(ENCODER, variables, obs)
    for ones in (jnp.ones((BATCH, 4), bool), jnp.ones((BATCH, 4), jnp.float32)):
        got = apply(ENCODER, variables, {**obs, "entity_mask": ones})
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), got, want)


@pytest.mark.slow
def test_entities_see_the_rest_and_each_other() -> None:
    obs = entities()
    variables = random_variables(ENCODER, obs)
    _, encoded = apply(ENCODER, variables, obs)
    _, other_rest = apply(ENCODER, variables, {**obs, "me": obs["me"] + 1.0})
    assert float(jnp.abs(other_rest - encoded)[MASK].min(axis=0).max()) > 1e-3
    _, other_first = apply(ENCODER, variables, {**obs, "entities": obs["entities"].at[:, 0].add(1.0)})
    assert float(jnp.abs(other_first - encoded)[1, 1:].max()) > 1e-3
    np.testing.assert_array_equal(other_first[2], encoded[2])


@pytest.mark.slow
def test_an_observation_without_any_entity_has_finite_gradients() -> None:
    obs = {**entities(), "entity_mask": jnp.zeros((BATCH, 4), bool)}
    variables = random_variables(ENCODER, obs)

    def loss(variables: Any) -> Any:
        x, encoded = ENCODER.apply(variables, obs)
        return jnp.sum(x) + jnp.sum(encoded), x

    grads, x = jax.jit(jax.grad(loss, has_aux=True))(variables)
    np.testing.assert_array_equal(x[:, :8], 0.0)
    assert float(jnp.abs(x[:, 8:]).max()) > 0.1
    assert all(bool(jnp.all(jnp.isfinite(g))) for g in jax.tree.leaves(grads))


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ({"entitis": jnp.zeros((1, 2, 3))}, r"expected a dictionary with \"entities\" \[E, F\] .* got \['entitis'\]"),
        (jnp.zeros((1, 7)), r"expected a dictionary with \"entities\" \[E, F\] .* got one of \(7,\)"),
        ({"entities": jnp.zeros((1, 6))}, r"\[\"entities\"\] of shape \(6,\): expected a dictionary with"),
        ({"entities": {"a": jnp.zeros((1, 6, 2))}}, r"\[\"entities\"\] of shape {'a': \(6, 2\)}: expected"),
        (
            {"entities": jnp.zeros((1, 6, 2)), "entity_mask": jnp.ones((1, 5), bool)},
            r"\[\"entity_mask\"\] of shape \(5,\): expected \(6,\), one for each entity",
        ),
    ],
)
def test_what_is_no_set_of_entities_is_one_clear_line(obs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        ENCODER.init(jax.random.key(0), obs)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_initialisation_under_vmap_is_that_of_each_seed() -> None:
    def init(key: jax.Array) -> Any:
        return ENCODER.init(key, entities()), DictEncoder((6,), depth=2).init(key, observation())

    keys = jax.random.split(jax.random.key(0), 2)
    both = jax.jit(jax.vmap(init))(keys)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b, atol=1e-5), both, jax.jit(init)(keys[1]))
