"""Runs with `dtype = "bfloat16"`: they learn, resume bit for bit, and are exported in f32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.run.export import export_numpy
from rljax.run.files.folder import CONFIG_FILE, add_checksum
from tests.run.tiny_runs import TINY, VARIANTS, assert_same_run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cartpole_is_solved_in_bfloat16() -> None:
    config = rljax.load_config("cartpole_ppo", dtype="bfloat16", total_timesteps=60_000, eval_every=None)
    agent = rljax.make_agent(config)

    def trained(key: jax.Array) -> jax.Array:
        state = rljax.make_train(agent)(key).state
        return jnp.mean(rljax.evaluate(agent, state, jax.random.fold_in(key, 1), num_episodes=50))

    returns = jax.jit(jax.vmap(trained))(jax.random.split(jax.random.key(0), 3))
    assert (returns >= 475.0).all(), returns


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "ppo with memory"])
def test_a_resumed_run_is_the_whole_one_bit_for_bit(name: str, tmp_path: Path) -> None:
    config = (TINY | VARIANTS)[name].replace(dtype="bfloat16", eval_every=None)
    config = config.replace(total_timesteps=8 * config.steps_per_iteration)
    rljax.fit(config, run_dir=tmp_path / "whole")
    half = rljax.fit(config, run_dir=tmp_path / "cut", callback=lambda step, metrics: step >= config.total_timesteps / 2)
    assert not half.complete
    rljax.fit(config, resume=tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.slow
def test_a_run_from_before_there_was_the_field_goes_on_in_float32(tmp_path: Path) -> None:
    config = TINY["ppo"].replace(total_timesteps=64, eval_every=None)
    rljax.fit(config, run_dir=tmp_path / "a")
    file = tmp_path / "a" / CONFIG_FILE
    lines = file.read_text().splitlines(keepends=True)[1:]  # without the checksum
    older = [line for line in lines if not line.startswith("dtype")]
    assert len(older) == len(lines) - 1
    file.write_text(add_checksum("".join(older)))
    assert rljax.load_run(tmp_path / "a").config.dtype == "float32"
    assert rljax.fit(config.replace(total_timesteps=128), resume=tmp_path / "a").complete


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_the_policy_is_exported_in_f32(name: str, tmp_path: Path) -> None:
    config = TINY[name].replace(dtype="bfloat16")
    agent = rljax.make_agent(config)
    state = jax.jit(agent.init)(jax.random.key(0))
    exact = rljax.make_agent(config.replace(dtype="float32"))
    obs = np.random.default_rng(0).normal(size=(5, *state.obs.shape[1:])).astype(np.float32)
    expected, _ = exact.act(state, jnp.asarray(obs), None, jax.random.key(0), deterministic=True)
    export_numpy(agent, state, tmp_path / "numpy")
    namespace: dict[str, Any] = {"__file__": str(tmp_path / "numpy" / "policy.py"), "__name__": "policy"}
    exec(compile((tmp_path / "numpy" / "policy.py").read_text(), "policy.py", "exec"), namespace)
    np.testing.assert_allclose(namespace["Policy"]().step(obs)[0], expected, rtol=1e-4, atol=1e-5)
    rljax.export_policy(agent, state, tmp_path / "jax", onnx=False)
    np.testing.assert_allclose(rljax.load_policy(tmp_path / "jax").step(obs)[0], expected, rtol=1e-4, atol=1e-5)
