"""A buffer in the host's memory holds and returns the numbers of one on the device; on CPUs both are the same memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.algos.common.off_policy import transition_example
from rljax.collect.environments import make_training_env
from rljax.collect.replay import Places, Replay, add_rows, in_host_memory, init_replay, take_n_step, take_windows
from rljax.core.devices import Target, compiling_for
from tests.run.tiny_runs import TINY

EXAMPLE = transition_example(*make_training_env(TINY["dqn"]), jax.ShapeDtypeStruct((), jnp.int32))
CAPACITY, ENVS = 7, 3


def rows(count: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.random((count, ENVS, *x.shape)) * 2, x.dtype), EXAMPLE)


def filled(host: bool, count: int) -> Replay:
    write = jax.jit(add_rows, donate_argnums=0)
    replay = jax.jit(lambda: init_replay(EXAMPLE, CAPACITY, ENVS, host))()
    for i in range(9):
        replay = write(replay, rows(count, i))
    return replay


def kinds(replay: Replay) -> set[tuple[int, str]]:
    return {(x.ndim, x.sharding.memory_kind) for x in jax.tree.leaves(replay)}


@pytest.mark.parametrize("count", [1, 3])
def test_rows_and_samples_are_those_of_the_device(count: int) -> None:
    device, host = filled(False, count), filled(True, count)
    assert kinds(device) == {(0, "device"), (2, "device"), (3, "device")}
    assert kinds(host) == {(0, "device"), (2, "device"), (3, "pinned_host")}
    assert [x.ndim > 2 for x in jax.tree.leaves(host)] == jax.tree.leaves(in_host_memory(host))
    assert not any(jax.tree.leaves(in_host_memory(device)))
    places = Places(jnp.array([6, 0, 5, 2, 2]), jnp.array([0, 2, 1, 1, 1]))
    reads = {
        "n steps": lambda replay: take_n_step(replay, places, 3, 0.9),
        "one step": lambda replay: take_n_step(replay, places, 1, 0.9),
        "windows": lambda replay: take_windows(replay, places, 4),
    }
    for read in reads.values():
        found, expected = jax.jit(read)(host), jax.jit(read)(device)
        assert {x.sharding.memory_kind for x in jax.tree.leaves(found)} == {"device"}
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    jax.tree.map(np.testing.assert_array_equal, host.data, device.data)


def test_several_devices_sweeps_and_seeds_are_refused() -> None:
    with pytest.raises(rljax.ConfigError, match="replay_memory = 'host': expected 'device' with num_devices = 2"):
        TINY["dqn"].replace(replay_memory="host", num_devices=2)
    config = TINY["dqn"].replace(replay_memory="host")
    with pytest.raises(rljax.ConfigError, match="expected replay_memory = 'device', as one program has one buffer"):
        rljax.sweep(config, {"learning_rate": [1e-3, 1e-2]})
    with pytest.raises(rljax.ConfigError, match="seeds = 2: expected replay_memory = 'device'"):
        rljax.fit(config, seeds=2)
    several = jax.vmap(rljax.make_train(config.replace(train_every=2)))
    with pytest.raises(rljax.ConfigError, match="expected 'device' under vmap, as one program has one buffer"):
        jax.jit(several).lower(jax.random.split(jax.random.key(0), 2))


def test_an_old_jax_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljax.algos.common.off_policy.HOST_GATHERS", False)
    with pytest.raises(rljax.ConfigError, match=f"replay_memory = 'host': expected 'device' with JAX {jax.__version__}"):
        rljax.make_agent(TINY["dqn"].replace(replay_memory="host"))


def test_a_tpu_is_refused() -> None:
    target = Target("v5e-1", "tpu", tuple(jax.devices()[:1]), 10**9)
    with compiling_for(target), pytest.raises(rljax.ConfigError, match="replay_memory = 'host': expected 'device' on a TPU"):
        rljax.make_agent(TINY["dqn"].replace(replay_memory="host"))


def test_a_buffer_is_compared_with_the_memory_that_it_is_to_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is too large for the device may fit into the machine."""
    config = TINY["dqn"].replace(buffer_size=100_000)
    monkeypatch.setattr("rljax.core.memory.device_memory", lambda: 1_000_000)
    monkeypatch.setattr("rljax.core.memory.host_memory", lambda: 1_000_000_000)
    with pytest.raises(rljax.ConfigError, match=r"this device has 0\.0 GB"):
        rljax.make_agent(config)
    rljax.make_agent(config.replace(replay_memory="host"))
    monkeypatch.setattr("rljax.core.memory.host_memory", lambda: 1_000_000)
    with pytest.raises(rljax.ConfigError, match=r"this machine has 0\.0 GB"):
        rljax.make_agent(config.replace(replay_memory="host"))
