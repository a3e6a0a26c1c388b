"""Weights as safetensors: the names of a checkpoint, a round trip that acts the same, and one line for what does not fit."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rljax
from rljax.run.export import export_weights, load_weights
from tests.run.export.kinds import KINDS, player

pytest.importorskip("safetensors")


def zeros(kind: str) -> Any:
    """A state of the same shapes without weights."""
    state = player(kind)[1]
    floats = lambda x: np.zeros(x.shape, x.dtype) if x.dtype == np.float32 else x  # noqa: E731
    return jax.tree.map(floats, state)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_weights(*player("gru"), tmp_path_factory.mktemp("weights") / "gru.safetensors", step=320)


def test_a_state_that_reads_the_file_acts_the_same(weights: Path) -> None:
    agent, state = player("gru")
    before = zeros("gru")
    read = load_weights(weights, before)
    jax.tree.map(np.testing.assert_array_equal, read.params, state.params)
    jax.tree.map(np.testing.assert_array_equal, read.obs_statistics, state.obs_statistics)
    assert read.env_state is not None
    obs = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    act = jax.jit(agent.act, static_argnums=4)
    results = [act(s, obs, None, jax.random.key(0), True) for s in (state, read, before)]
    jax.tree.map(np.testing.assert_array_equal, results[0], results[1])
    assert np.abs(np.asarray(results[0][1]) - np.asarray(results[2][1])).max() > 0.1


def test_names_and_metadata_are_a_strangers(weights: Path) -> None:
    """Read by the format's definition: eight bytes of length, a JSON header, then the arrays."""
    data = weights.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__")
    assert (metadata["algorithm"], metadata["environment"], metadata["step"]) == ("ppo", "CartPole-v1", "320")
    assert json.loads(metadata["config"])["network"]["type"] == "gru"
    assert {"params/params/network/cell/hidden_kernel", "params/params/network/both_heads/value_head/kernel"} <= set(header)
    assert {name.split("/")[0] for name in header} == {"params", "obs_statistics"}
    kernel = header["params/params/network/cell/hidden_kernel"]
    assert kernel["dtype"] == "F32"
    start, end = kernel["data_offsets"]
    found = np.frombuffer(data[8 + length :][start:end], "<f4").reshape(kernel["shape"])
    np.testing.assert_array_equal(found, player("gru")[1].params["params"]["network"]["cell"]["hidden_kernel"])


@pytest.mark.slow
def test_an_average_that_acts_is_in_the_file(tmp_path: Path) -> None:
    import safetensors.numpy

    path = export_weights(*player("league"), tmp_path / "league.safetensors")
    fields = {name.split("/")[0] for name in safetensors.numpy.load_file(path)}
    assert fields == {"params", "average_params"}


def test_what_does_not_fit_is_one_line(weights: Path, tmp_path: Path) -> None:
    import safetensors.numpy

    state = player("gru")[1]
    tensors = safetensors.numpy.load_file(weights)
    name = "params/params/network/cell/bias"
    others = {
        "short": {key: x for key, x in tensors.items() if key != name},
        "wide": {**tensors, name: np.zeros(3, np.float32)},
        "unknown": {**tensors, "params/nobody": np.zeros(3, np.float32)},
        "nothing": {},
    }
    for stem, arrays in others.items():
        safetensors.numpy.save_file(arrays, tmp_path / f"{stem}.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(weights.read_bytes()[:500])
    (tmp_path / "text.safetensors").write_text("not weights")
    cases = {
        "short": f"does not fit the state: {name} is not in it",
        "wide": rf"{name} is float32\[3\], expected float32\[24\]",
        "unknown": "which has no params/nobody",
        "nothing": "does not fit the state",
        "cut": "damaged, or no safetensors file",
        "text": "damaged, or no safetensors file",
        "none": "cannot be read: No such file",
    }
    for stem, message in cases.items():
        with pytest.raises(rljax.ConfigError, match=message) as caught:
            load_weights(tmp_path / f"{stem}.safetensors", state)
        assert "\n" not in str(caught.value)


def test_bad_paths_and_a_missing_package_are_one_line(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = weights.read_bytes()
    with pytest.raises(rljax.ConfigError, match="exists already"):
        export_weights(*player("gru"), weights)
    assert weights.read_bytes() == before
    with pytest.raises(rljax.ConfigError, match=r"expected a file name that ends in \.safetensors"):
        export_weights(*player("gru"), tmp_path / "weights.npz")
    other = rljax.make_agent(KINDS["mlp"])
    with pytest.raises(rljax.ConfigError, match="the state does not fit the agent"):
        export_weights(other, player("gru")[1], tmp_path / "other.safetensors")
    monkeypatch.setitem(__import__("sys").modules, "safetensors.numpy", None)
    with pytest.raises(rljax.ConfigError, match=r"pip install 'rljax-jit\[safetensors\]'"):
        export_weights(*player("gru"), tmp_path / "gru.safetensors")
    assert not any(tmp_path.iterdir())
