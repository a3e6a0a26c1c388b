"""`dtype = "bfloat16"`: products before the last layers take numbers of 16 bits; all that is kept, summed or compared has 32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

import rljax
from rljax.core.devices import Target, compiling_for
from rljax.nn.actor_critic import make_network
from rljax.nn.modules.layers import product_dtype
from rljax.nn.networks import make_feed_forward
from rljax.nn.policy import Policy
from tests.nn.test_actor_critic import ENCODERS, drawn
from tests.run.tiny_runs import TINY, VARIANTS
from tests.run.tiny_teacher import ready

BF16, F32 = jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)
GRID = jax.ShapeDtypeStruct((4, 4, 3), jnp.float32)
GOAL = {"observation": jax.ShapeDtypeStruct((3,), jnp.float32), "goal": jax.ShapeDtypeStruct((2,), jnp.float32)}

NETWORKS: dict[str, tuple[dict[str, Any], Any]] = {
    **{name: (keys | {"hidden": [8]}, shapes) for name, (keys, shapes) in ENCODERS.items()},
    "shared, layer norm": ({"hidden": [8, 8], "shared": True, "layer_norm": True}, ENCODERS["mlp"][1]),
    "film": ({"hidden": [8], "goal": "film"}, GOAL),
    "pointer": ({**ENCODERS["entities"][0], "hidden": [8], "pointer": True}, ENCODERS["entities"][1]),
    "cells": ({"encoder": "cells", "channels": [4], "kernels": [3], "hidden": [8]}, GRID),
    **{kind: ({"type": kind, "hidden": [8], "size": 8}, ENCODERS["mlp"][1]) for kind in ("lstm", "gru", "block_gru")},
}


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a program, those of the programs inside included."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def products(function: Any, *arguments: Any) -> list[frozenset[Any]]:
    """The types of the factors of each product of matrices in a function."""
    found = equations(jax.make_jaxpr(function)(*arguments).jaxpr)
    return [frozenset(x.aval.dtype for x in each.invars) for each in found if each.primitive.name == "dot_general"]


def types(tree: Any) -> set[Any]:
    return {x.dtype for x in jax.tree.leaves(tree)}


@pytest.mark.parametrize("name", NETWORKS)
def test_only_products_before_the_last_layers_are_in_bfloat16(name: str) -> None:
    table, shapes = NETWORKS[name]
    outputs = 16 if name == "cells" else 5
    rounded, exact = (
        Policy(make_network(table, outputs, dtype=dtype), tuple(x.ndim for x in jax.tree.leaves(shapes)))
        for dtype in (jnp.bfloat16, None)
    )
    obs = drawn(shapes, (6,))
    params = exact.init(jax.random.key(0), obs)
    made = rounded.init(jax.random.key(0), obs)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), made) == jax.tree.map(lambda x: (x.shape, x.dtype), params)

    def loss(policy: Policy, params: Any) -> Any:
        logits, value, carry = policy.apply(params, obs)
        return jnp.sum(jnp.square(logits)) + jnp.sum(value), (logits, value, carry)

    grads, (logits, value, carry) = jax.grad(lambda p: loss(rounded, p), has_aux=True)(params)
    assert types((grads, logits, value, carry)) == {F32}
    found = products(lambda p: loss(rounded, p)[0], params)
    # Last layers: the policy's and the value's. A pointer's are its two layers and their product.
    assert [kinds for kinds in found if kinds != {BF16}] == [{F32}] * (4 if name == "pointer" else 2)
    assert len(found) > 2
    assert set(products(lambda p: loss(exact, p)[0], params)) == {frozenset({F32})}
    # Gradients of biases and scales are sums over the batch, the first axis.
    gradient = equations(jax.make_jaxpr(jax.grad(lambda p: loss(rounded, p)[0]))(params).jaxpr)
    sums = [each for each in gradient if each.primitive.name == "reduce_sum" and 0 in each.params["axes"]]
    assert {each.invars[0].aval.dtype for each in sums} == {F32}
    expected = exact.apply(params, obs)[:2]
    for got, wanted in zip((logits, value), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0.05, atol=0.05 * float(jnp.abs(wanted).max()) + 1e-4)
    assert any((got != wanted).any() for got, wanted in zip((logits, value), expected, strict=True))


@pytest.mark.parametrize("name", ["mlp", "cnn", "entities", "film"])
def test_networks_of_action_values_keep_their_last_layer(name: str) -> None:
    table, shapes = NETWORKS[name]
    network = make_feed_forward(table, 3, dtype=jnp.bfloat16)
    obs = drawn(shapes, (6,))
    params = network.init(jax.random.key(0), obs)
    assert types((params, network.apply(params, obs))) == {F32}
    found = products(network.apply, params, obs)
    assert found.count(frozenset({F32})) == 1
    assert found.count(frozenset({BF16})) == len(found) - 1 > 0


LEARNERS = ("ppo", "impala", "pqn", "dqn", "sac", "league", "self_play", "bc", "iql", "cql", "alphazero")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LEARNERS, "ppo with memory"])
def test_states_and_metrics_are_those_of_float32(name: str) -> None:
    """Parameters, optimiser, targets, normalisers, buffers and metrics; and the default has no number of 16 bits anywhere."""
    config = ready((TINY | VARIANTS)[name])
    assert config.dtype == "float32"
    shapes = {}
    for dtype in ("float32", "bfloat16"):
        agent = rljax.make_agent(config.replace(dtype=dtype))
        state = jax.eval_shape(agent.init, jax.random.key(0))
        program = jax.make_jaxpr(agent.step, return_shape=True)
        jaxpr, (after, metrics) = program(state)
        kinds = {x.aval.dtype for each in equations(jaxpr.jaxpr) for x in each.outvars}
        assert (BF16 in kinds) == (dtype == "bfloat16")
        factors = {frozenset(x.aval.dtype for x in e.invars) for e in equations(jaxpr.jaxpr) if e.primitive.name == "dot_general"}
        assert factors <= {frozenset({F32}), frozenset({BF16})}
        assert (frozenset({BF16}) in factors) == (dtype == "bfloat16")
        assert types(metrics) == {F32}
        sums = [e for e in equations(jaxpr.jaxpr) if e.primitive.name == "reduce_sum" and 0 in e.params["axes"]]
        assert BF16 not in {e.invars[0].aval.dtype for e in sums}
        shapes[dtype] = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (state, after, metrics)]
    assert shapes["float32"] == shapes["bfloat16"]


@pytest.mark.slow
def test_gradients_of_a_world_model_are_added_up_in_f32() -> None:
    """Over the batch, over the steps of a sequence, and over the pixels that share a kernel."""
    config = rljax.load_config("gridworld_pixels_dreamer", dtype="bfloat16")
    agent = rljax.make_agent(config)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    program = list(equations(jax.make_jaxpr(agent.step)(state).jaxpr))
    sums = [each for each in program if each.primitive.name == "reduce_sum" and 0 in each.params["axes"]]
    assert BF16 not in {each.invars[0].aval.dtype for each in sums}
    added = [x.aval for each in program if each.primitive.name == "add_any" for x in each.outvars]
    # A scan carries the gradients of what all of its steps are given.
    carried = [x.aval for each in program if each.primitive.name == "scan" for x in each.params["jaxpr"].jaxpr.outvars]
    rounded = {x.shape for x in added + carried if x.dtype == BF16}
    batch, length = config.batch_size, config.batch_length
    # What is rounded are outputs of layers for a batch, and no weights.
    assert {shape[0] for shape in rounded} == {batch, length, batch * length, batch * length * length}


def test_log_probabilities_and_values_of_a_rollout_are_f32() -> None:
    parts = rljax.ppo_parts(TINY["ppo"].replace(dtype="bfloat16"))
    state = jax.eval_shape(lambda key: rljax.ppo_init(parts, key), jax.random.key(0))
    _, rollout = jax.eval_shape(lambda state: rljax.ppo_collect(parts, state), state)
    assert types((rollout.log_prob, rollout.value, rollout.next_value)) == {F32}


def test_auto_is_bfloat16_on_accelerators() -> None:
    target = Target("h200", "gpu", tuple(jax.devices()[:1]), 10**9)
    assert [product_dtype(name) for name in ("float32", "bfloat16")] == [None, jnp.bfloat16]
    assert product_dtype("auto") is None  # on a CPU
    with compiling_for(target):
        assert product_dtype("auto") == jnp.bfloat16


class Own(nn.Module):
    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        return nn.Dense(2)(obs), nn.Dense(1)(obs)[:, 0]


@pytest.mark.parametrize("config", [TINY["ppo"].replace(network=Own()), TINY["pqn"].replace(network=Own())])
def test_a_network_given_as_a_module_is_not_changed(config: Any) -> None:
    with pytest.raises(rljax.ConfigError, match="dtype: network = Own is used as it is, expected 'float32'"):
        rljax.make_agent(config.replace(dtype="bfloat16"))


@pytest.mark.parametrize("dtype", ["float16", "auto"])
def test_other_dtypes_are_refused(dtype: str) -> None:
    """Nor is bfloat16 chosen for anybody: small networks are slower with it."""
    with pytest.raises(rljax.ConfigError, match=f"dtype = '{dtype}': expected"):
        TINY["ppo"].replace(dtype=dtype)
