"""Gradient steps on minibatches: several in a trip, as on GPUs, are the same steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax.collect import minibatches


@pytest.mark.parametrize("num_minibatches", [3, 12])
def test_steps_in_one_trip_are_those_of_a_loop(num_minibatches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    key = jax.random.key(0)
    batch = jax.random.normal(key, (24, 3))
    optimizer = optax.scale_by_adam()
    params = {"a": jnp.ones(3), "b": jnp.zeros(())}

    def loss(params: Any, x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        value = jnp.mean((x @ params["a"] + params["b"] - x[:, 0]) ** 2)
        return value, {"loss": value}

    def steps(key: jax.Array) -> Any:
        opt_state = minibatches.init_optimizer(optimizer, params)
        options: Any = {"num_epochs": 2, "num_minibatches": num_minibatches, "learning_rate": jnp.float32(0.1)}
        return minibatches.minibatch_steps(loss, optimizer, params, opt_state, batch, key, **options)

    found = {}
    for platform, unroll in (("cpu", 1), ("gpu", min(num_minibatches, minibatches.STEPS_PER_TRIP))):
        monkeypatch.setattr(minibatches, "platform", lambda platform=platform: platform)
        assert minibatches.steps_per_trip(num_minibatches) == unroll
        found[platform] = jax.jit(steps)(key)
        jax.clear_caches()
    for one, other in zip(*map(jax.tree.leaves, found.values()), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
