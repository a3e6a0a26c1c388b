"""Random keys."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import rljax
from rljax.algos import impala
from rljax.core.keys import apart


def data(key: jax.Array) -> list[tuple[int, ...]]:
    return [tuple(x) for x in np.asarray(jax.random.key_data(key)).reshape(-1, 2).tolist()]


def test_a_key_apart_is_none_of_those_that_a_split_gives() -> None:
    key = jax.random.key(3)
    split = jax.random.split(key, 4096)
    assert data(jax.random.fold_in(key, 5)) == data(split[5])  # why a small number does not do
    assert not set(data(apart(key))) & set(data(split))


@pytest.mark.parametrize("make", [rljax.make_train, lambda config: rljax.make_agent(config).init], ids=["make_train", "init"])
@pytest.mark.parametrize("key", [jax.random.key, jax.random.PRNGKey], ids=["typed", "old"])
def test_several_keys_of_one_agent_are_one_line_and_under_vmap_each_has_its_own(make: Any, key: Any) -> None:
    config = rljax.PPOConfig(num_envs=2, num_steps=4, num_minibatches=1, total_timesteps=8, network={"hidden": [4]})
    start, keys = make(config), jax.random.split(key(0), 3)
    with pytest.raises(rljax.ConfigError, match=r"^key: expected one, got \(3,\); jax\.vmap takes several$"):
        start(keys)
    assert {x.shape[0] for x in jax.tree.leaves(jax.eval_shape(jax.vmap(start), keys))} == {3}


def test_an_evaluation_takes_one_key() -> None:
    agent = rljax.make_agent(rljax.PPOConfig(num_envs=2, num_steps=4, network={"hidden": [4]}))
    state, keys = agent.init(jax.random.key(0)), jax.random.split(jax.random.key(1), 3)
    with pytest.raises(rljax.ConfigError, match=r"^key: expected one, got \(3,\)"):
        rljax.evaluate(agent, state, keys)


def test_a_rollout_beside_an_update_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[jax.Array] = []

    def collect(parts: Any, state: Any) -> Any:
        used.append(state.key)
        return state, None

    monkeypatch.setattr(impala, "impala_collect", collect)
    monkeypatch.setattr(impala, "is_outside_jax", lambda _: True)  # only simulators are overlapped
    config = rljax.ImpalaConfig(env="CartPole-v1", num_envs=2, num_steps=4, network={"hidden": [4]}, overlap=True)
    halves = rljax.make_agent(config).halves
    assert halves is not None
    state = halves.init(jax.random.key(0))
    halves.collect(state)
    assert not set(data(used[0])) & set(data(jax.random.split(state.key, 8)))
