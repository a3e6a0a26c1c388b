"""Actor-critics of a table: encoders, cells and heads in every combination, and what each may and may not depend on."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import ConfigError, PPOConfig
from rljax.nn.actor_critic import TrunkActorCritic, make_network
from rljax.nn.policy import Policy

VECTOR = {"a": jax.ShapeDtypeStruct((3,), jnp.float32), "b": jax.ShapeDtypeStruct((2, 2), jnp.float32)}
IMAGES = {"picture": jax.ShapeDtypeStruct((8, 8, 3), jnp.uint8), "speed": jax.ShapeDtypeStruct((), jnp.float32)}
ENTITIES = {
    "entities": jax.ShapeDtypeStruct((5, 3), jnp.float32),
    "entity_mask": jax.ShapeDtypeStruct((5,), jnp.bool_),
    "query": jax.ShapeDtypeStruct((2,), jnp.float32),
}
ENCODERS: dict[str, tuple[dict[str, Any], Any]] = {
    "mlp": ({}, VECTOR),
    "cnn": ({"encoder": "cnn", "channels": [4, 6], "kernels": [3, 2], "strides": [2, 1]}, IMAGES["picture"]),
    "dict": ({"encoder": "dict", "depth": 4}, IMAGES),
    "entities": ({"encoder": "entities", "width": 8, "layers": 1, "heads": 2}, ENTITIES),
}


def drawn(shapes: Any, batch: tuple[int, ...], seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)

    def draw(x: Any) -> jax.Array:
        if x.dtype == jnp.bool_:
            return jnp.broadcast_to(jnp.arange(x.shape[-1]) < 3, (*batch, *x.shape))
        if x.dtype == jnp.uint8:
            return jnp.asarray(rng.integers(0, 255, (*batch, *x.shape)), jnp.uint8)
        return jnp.asarray(rng.normal(size=(*batch, *x.shape)), jnp.float32)

    return jax.tree.map(draw, shapes)


def policy_of(table: dict[str, Any], obs: Any, num_values: int = 1) -> tuple[Policy, Any]:
    """With weights from numpy, far from their small initial ones."""
    policy = Policy(make_network(table, 5, num_values), tuple(x.ndim for x in jax.tree.leaves(obs)))
    shapes = jax.eval_shape(policy.init, jax.random.key(0), drawn(obs, (2,)))
    rng = np.random.default_rng(1)
    return policy, jax.tree.map(lambda x: jnp.asarray(0.5 * rng.normal(size=x.shape), x.dtype), shapes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoder", "kind", "num_values"),
    [(e, k, v) for (e, k), v in zip(itertools.product(ENCODERS, ("mlp", "lstm", "gru", "block_gru")), itertools.cycle((1, 3)))],
)
def test_every_encoder_with_every_cell_takes_any_batch_axes(encoder: str, kind: str, num_values: int) -> None:
    keys, shapes = ENCODERS[encoder]
    table = {"type": kind, "hidden": [6], **keys} | ({} if kind == "mlp" else {"size": 8})
    policy, params = policy_of(table, shapes, num_values)
    apply = jax.jit(policy.apply)
    obs = drawn(shapes, (2, 3))
    outputs, value, carry = apply(params, obs)
    assert outputs.shape == (2, 3, 5)
    assert value.shape == ((2, 3) if num_values == 1 else (2, 3, num_values))
    assert jax.tree.map(jnp.shape, carry) == jax.tree.map(lambda x: (2, 3, *x.shape[2:]), jax.tree.map(jnp.asarray, carry))
    one = jax.tree.map(lambda x: x[1, 2], obs)
    single_outputs, single_value, _ = apply(params, one)
    np.testing.assert_allclose(single_outputs, outputs[1, 2], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(single_value, value[1, 2], rtol=1e-4, atol=1e-5)
    if kind == "mlp":
        assert carry is None
    else:
        later, _, _ = apply(params, obs, carry)
        assert float(jnp.abs(later - outputs).max()) > 1e-3, "a second look at the same observation is remembered as such"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp", "gru"])
def test_a_pointer_follows_the_entities_and_the_value_does_not_care_for_their_order(kind: str) -> None:
    policy, params = policy_of({"type": kind, "hidden": [6], **ENCODERS["entities"][0], "pointer": True}, ENTITIES)
    apply = jax.jit(policy.apply)
    obs = drawn(ENTITIES, (4,))
    outputs, value, _ = apply(params, obs)
    order = jnp.array([2, 0, 1, 4, 3])
    moved = {**obs, "entities": obs["entities"][:, order], "entity_mask": obs["entity_mask"][:, order]}
    moved_outputs, moved_value, _ = apply(params, moved)
    np.testing.assert_allclose(moved_outputs, outputs[:, order], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(moved_value, value, rtol=1e-4, atol=1e-5)
    assert (outputs[:, 3:] == jnp.finfo(jnp.float32).min).all()
    # What lies where no entity is changes nothing, and more such places do not either.
    padded = {
        **obs,
        "entities": jnp.concatenate([obs["entities"].at[:, 3:].set(9.0), jnp.full((4, 2, 3), 7.0)], axis=1),
        "entity_mask": jnp.concatenate([obs["entity_mask"], jnp.zeros((4, 2), bool)], axis=1),
    }
    padded_outputs, padded_value, _ = apply(params, padded)
    np.testing.assert_allclose(padded_outputs[:, :3], outputs[:, :3], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(padded_value, value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_first_policy_is_nearly_uniform_and_heads_begin_apart() -> None:
    for table in ({"type": "gru"}, {"encoder": "entities", "hidden": [8]}, {"encoder": "entities", "pointer": True}):
        keys = {"width": 8} if "encoder" in table else {}
        policy = Policy(make_network({**table, **keys}, 5), tuple(x.ndim for x in jax.tree.leaves(ENTITIES)))
        obs = drawn(ENTITIES, (64,))
        obs["entity_mask"] = jnp.ones((64, 5), bool)
        outputs, value, _ = jax.jit(lambda p=policy, o=obs: p.apply(p.init(jax.random.key(0), o), o))()
        assert float(jnp.abs(outputs - outputs.mean(-1, keepdims=True)).max()) < 0.2
        assert float(jnp.std(value)) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("encoder", [{"encoder": "dict", "depth": 4}, {"encoder": "cnn"}])
def test_images_train(encoder: dict[str, Any]) -> None:
    config = PPOConfig(
        env="Breakout-MinAtar",
        num_envs=4,
        num_steps=8,
        num_minibatches=1,
        num_epochs=1,
        total_timesteps=64,
        network={**encoder, "hidden": [16]},
    )
    result = jax.jit(rljax.make_train(config))(jax.random.key(0))
    kernels = [x for x in jax.tree.leaves(result.state.params) if x.ndim == 4]
    assert kernels
    assert all(np.isfinite(x).all() for name, x in result.metrics.items() if name.startswith("train/"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"encoder": "dict", "shared": True}, "network.shared: with encoder = 'dict', actor and critic always share the encoder"),
        ({"encoder": "dict", "heads": 2}, "network.heads: belongs to encoder = 'entities', but the encoder is 'dict'"),
        ({"channels": [4]}, "network.channels: belongs to encoder = 'cnn' and 'cells', but the encoder is 'mlp'"),
        ({"encoder": "cnn", "channels": [4]}, "expected channels, kernels and strides of one length"),
        ({"encoder": "cnn", "channels": [4], "kernels": [0], "strides": [1]}, "network.kernels = .0,.: expected a list"),
        ({"head_hidden": [4]}, "network.head_hidden: belongs to networks with memory or an encoder"),
        ({"encoder": "entities", "pointer": 1}, "network.pointer = 1: expected true or false"),
        ({"type": "gru", "head_hidden": [0]}, "network.head_hidden = .0,.: expected a list of layer sizes"),
        ({"goal": "film", "hidden": []}, "modulates the first hidden layer, but network.hidden is empty"),
        ({"goal": "add"}, "network.goal = 'add'"),
    ],
)
def test_keys_that_would_be_ignored_are_refused(table: dict[str, Any], message: str) -> None:
    config = PPOConfig(network=table)
    with pytest.raises(ConfigError, match=message) as error:
        make_network(config.network, 5)
    assert "\n" not in str(error.value)


def test_a_trunk_without_a_cell_has_no_memory() -> None:
    assert TrunkActorCritic(num_outputs=2).initial_carry((3,)) is None
    carry = make_network(PPOConfig(network={"type": "lstm", "size": 4}).network, 2).initial_carry((3,))
    assert [x.shape for x in jax.tree.leaves(carry)] == [(3, 4), (3, 4)]
    assert not any(x.any() for x in jax.tree.leaves(carry))
