"""Steps of exported policies: over whole episodes they do what `agent.act` does, with memory, masks and normalisers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.keys import draw
from rljax.run.export import ExportReport, export_numpy, export_policy, load_policy
from rljax.run.export.onnx import onnx_or_reason
from rljax.run.export.signature import read_signature
from rljax.run.export.steps import Draw, read_step
from tests.run.export.kinds import KINDS, largest_difference, played, player

QUICK = ("gru", "masked")
"""Kinds of the default tests; the others are slow."""

ALIKE = ("distill", "dqn_images", "impala_gru", "league_mains", "pointer", "sac_discrete", "wide_autoregressive")
"""Kinds whose parts others have, too; they are tested on demand."""


def marks(kind: str) -> Any:
    return () if kind in QUICK else pytest.mark.long if kind in ALIKE else pytest.mark.slow


EVERY = [pytest.param(kind, marks=marks(kind)) for kind in KINDS]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ExportReport]:
    return {}


@pytest.fixture
def report(kind: str, folders: dict[str, ExportReport], tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    if kind not in folders:
        folders[kind] = export_policy(*player(kind), tmp_path_factory.mktemp(kind) / "policy")
    return folders[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", EVERY)
def test_artifacts_play_whole_episodes_as_the_agent_does(report: ExportReport, kind: str) -> None:
    policy = load_policy(report.path)
    for deterministic in (True, False):

        def step(obs: Any, carry: Any, mask: Any, key: Any, _: Any, deterministic: bool = deterministic) -> Any:
            return policy.step(obs, carry, mask=mask, key=key, deterministic=deterministic)

        assert largest_difference(kind, deterministic, step) <= 1e-5


@pytest.mark.parametrize("kind", EVERY)
def test_onnx_plays_whole_episodes_as_the_agent_does(report: ExportReport, kind: str) -> None:
    pytest.importorskip("jax2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    metadata = load_policy(report.path).metadata
    assert report.left_out == {}
    for name, deterministic in (("greedy.onnx", True), ("sampling.onnx", False)):
        session = onnxruntime.InferenceSession(report.path / name)
        read = {given.name for given in session.get_inputs()}
        described = metadata["artifacts"][name]
        assert read <= set(described["arguments"])
        assert [x.name for x in session.get_outputs()] == list(described["result"])

        def step(obs: Any, carry: Any, mask: Any, _: Any, noise: Any, session: Any = session, described: Any = described) -> Any:
            likes = metadata["carry"]
            if carry is None and likes is not None:
                carry = load_policy(report.path).initial_carry(len(jax.tree.leaves(obs)[0]))
            arrays = jax.tree.leaves([obs, carry, noise, mask])
            given = dict(zip(described["arguments"], arrays, strict=True))
            results = session.run(None, {k: x for k, x in given.items() if k in {i.name for i in session.get_inputs()}})
            episodes = played(kind, described is metadata["artifacts"]["greedy.onnx"])
            return jax.tree.unflatten(jax.tree.structure((episodes.action, episodes.carry)), results)

        assert largest_difference(kind, deterministic, step) <= 1e-5


@pytest.mark.parametrize("kind", EVERY)
def test_numpy_plays_whole_episodes_as_the_agent_does(kind: str, tmp_path: Path) -> None:
    export_numpy(*player(kind), tmp_path / "policy")
    names: dict[str, Any] = {"__file__": str(tmp_path / "policy" / "policy.py")}
    exec((tmp_path / "policy" / "policy.py").read_text(), names)
    policy = names["Policy"]()
    for deterministic in (True, False):

        def step(obs: Any, carry: Any, mask: Any, _: Any, noise: Any, deterministic: bool = deterministic) -> Any:
            return policy.step(obs, carry, mask=mask, noise=noise, deterministic=deterministic)

        assert largest_difference(kind, deterministic, step) <= 1e-5


@pytest.mark.parametrize("kind", ["gru"])
def test_a_step_is_of_one_observation_or_a_batch(report: ExportReport) -> None:
    policy = load_policy(report.path)
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    action, carry = policy.step(obs)
    again, _ = policy.step(obs, carry)
    for i in range(5):
        one, memory = policy.step(obs[i])
        assert type(one) is int
        assert one == action[i]
        np.testing.assert_allclose(memory, carry[i], rtol=1e-5, atol=1e-6)
        assert policy.step(obs[i], memory)[0] == again[i]
    np.testing.assert_array_equal(policy.initial_carry(), np.zeros(8, np.float32))
    assert policy.initial_carry(3).shape == (3, 8)
    in_jax, memory = jax.jit(lambda obs: policy.step(obs))(jnp.asarray(obs))
    np.testing.assert_array_equal(in_jax, action)
    assert isinstance(memory, jax.Array)


@pytest.mark.parametrize("kind", ["gru"])
def test_wrong_arguments_of_a_step_are_one_line(report: ExportReport) -> None:
    policy, obs = load_policy(report.path), np.zeros(4)
    cases: list[tuple[str, Any]] = [
        (r"carry: expected shape \[8\], or \[b, 8\] for b of them, got \[7\]", lambda: policy.step(obs, np.zeros(7))),
        ("carry: expected the batch of obs, None, got 2", lambda: policy.step(obs, np.zeros((2, 8)))),
        ("carry: expected dtype float32", lambda: policy.step(obs, np.zeros(8, complex))),
        (r"carry: .*expected an array|carry: expected shape", lambda: policy.step(obs, {"hidden": np.zeros(8)})),
        (r"obs: expected shape \[4\]", lambda: policy.step(np.zeros(5))),
        ("mask: this policy takes none", lambda: policy.step(obs, mask=np.ones(2, bool))),
        (r"key: expected jax\.random\.key\(0\) .* got None", lambda: policy.step(obs, deterministic=False)),
        (r"this policy has a memory; call step\(obs, carry\)", lambda: policy.greedy(obs)),
        ("this policy has a memory; call step", lambda: policy.sample(obs, jax.random.key(0))),
    ]
    for message, call in cases:
        with pytest.raises(rljax.ConfigError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lstm", "dreamer", "self_play", "opponent_model"])
def test_metadata_describes_memory_and_its_example_runs(report: ExportReport, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = json.loads((report.path / "metadata.json").read_text())
    carry = played(kind, True).carry
    assert set(metadata["carry"].get("parts", {})) == (set(carry) if isinstance(carry, dict) else set())
    takes_key = kind == "dreamer"  # whose latent states are drawn in every step
    assert ("key" in metadata["artifacts"]["greedy.jax"]["arguments"]) == takes_key
    noise = metadata["artifacts"]["sampling.onnx"]["arguments"]["noise.0"]
    assert noise["distribution"] == ("uniform" if kind == "dreamer" else "gumbel")
    monkeypatch.chdir(report.path)
    names: dict[str, Any] = {}
    exec("\n".join(metadata["example"]), names)
    assert jax.tree.structure(names["carry"]) == jax.tree.structure(carry)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alphazero"])
def test_a_searching_agent_says_that_its_policy_is_exported_alone(report: ExportReport) -> None:
    assert "search" in load_policy(report.path).metadata["note"]


def test_q_learners_take_uniform_numbers_to_explore() -> None:
    agent, state = player("pqn")
    greedy, exploring = (read_step(agent, state, read_signature(agent), deterministic) for deterministic in (True, False))
    assert greedy.draws == ()
    assert exploring.draws == (Draw("uniform", (2,), jnp.float32),)
    pytest.importorskip("jax2onnx")
    model, reason = onnx_or_reason(exploring, state)
    assert reason is None
    session = pytest.importorskip("onnxruntime").InferenceSession(model)
    # Half of the steps explore, and take one of the two actions.
    noise = np.array([[0.49, 0.49], [0.49, 0.5], [0.5, 0.0], [0.5, 0.99]], np.float32)
    action = session.run(None, {"obs": np.ones((4, 4), np.float32), "noise.0": noise})[0]
    best, _ = agent.act(state, jnp.ones((1, 4)), None, jax.random.key(0), True)
    np.testing.assert_array_equal(action, [0, 1, best[0], best[0]])


def test_random_bits_are_not_for_onnx() -> None:
    agent, state = player("masked")

    def act(state: Any, obs: Any, carry: Any, key: jax.Array, deterministic: bool = False, mask: Any = None) -> Any:
        return (draw(jax.random.bits, key, obs.shape[:-1]) % 2).astype(jnp.int32), carry

    model, reason = onnx_or_reason(read_step(agent._replace(act=act), state, read_signature(agent), False), state)
    assert model is None
    assert reason is not None
    assert "ONNX runtimes do not compute with unsigned integers" in reason
    assert "\n" not in reason


def test_random_numbers_without_a_source_cannot_be_converted(tmp_path: Path) -> None:
    agent, state = player("masked")

    def act(state: Any, obs: Any, carry: Any, key: jax.Array, deterministic: bool = False, mask: Any = None) -> Any:
        return jax.random.randint(key, (), 0, 2), carry

    with pytest.raises(rljax.ConfigError, match=r"it draws random numbers with jax\.random: expected rljax"):
        export_numpy(agent._replace(act=act), state, tmp_path / "policy")
    assert not (tmp_path / "policy").exists()
