"""Policies in plain NumPy: they run where neither JAX nor rljax can be imported, and mistakes are one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.envs.cartpole import CartPole
from rljax.run.export import export_numpy
from tests.run.export.kinds import KINDS, Wide, played, player, player_of, ppo

PROGRAM = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("rljax", "jax", "jaxlib", "flax", "distrax"):
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Refuse())
for name in ("jax", "rljax"):
    try:
        __import__(name)
    except ImportError:
        pass
    else:
        raise SystemExit(name + " can be imported here")

import numpy as np
from policy import Policy

policy = Policy()
given = np.load("given.npz")
actions, carries, carry = [], [], None
for t in range(len(given["begins"])):
    obs = {name[4:]: given[name][t] for name in given.files if name.startswith("obs.")} or given["obs"][t]
    mask = given["mask"][t] if "mask" in given.files else None
    if carry is not None:
        carry = carry * ~given["begins"][t][:, None]
    action, carry = policy.step(obs, carry, mask=mask)
    actions.append(action)
    carries.append(carry)
np.savez("found.npz", actions=actions, carries=carries)
assert not {"jax", "rljax"} & set(sys.modules)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GRU policy with normalised observations."""
    return export_numpy(*player("gru"), tmp_path_factory.mktemp("numpy") / "policy", step=7, run_info={"seed": 3}).path


def loaded(folder: Path, **options: Any) -> Any:
    """A policy from its file, as an import would make it."""
    names: dict[str, Any] = {"__file__": str(folder / "policy.py")}
    exec((folder / "policy.py").read_text(), names)
    return names["Policy"](**options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gru", pytest.param("self_play", marks=pytest.mark.slow)])
def test_a_process_without_jax_and_rljax_plays_whole_episodes(kind: str, folder: Path, tmp_path: Path) -> None:
    if kind == "gru":
        for file in folder.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    else:
        export_numpy(*player(kind), tmp_path)
    episodes = played(kind, True)
    obs = {f"obs.{name}": x for name, x in episodes.obs.items()} if isinstance(episodes.obs, dict) else {"obs": episodes.obs}
    mask = {} if episodes.mask is None else {"mask": episodes.mask}
    np.savez(tmp_path / "given.npz", begins=episodes.begins, **obs, **mask)
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "found.npz")
    np.testing.assert_array_equal(found["actions"], episodes.action)
    np.testing.assert_allclose(found["carries"], episodes.carry, rtol=0, atol=1e-5)


def test_a_step_is_of_one_observation_or_a_batch(folder: Path) -> None:
    policy = loaded(folder)
    obs = np.random.default_rng(0).normal(size=(5, 4))
    action, carry = policy.step(obs)
    assert action.dtype == np.int32
    for i in range(5):
        one, memory = policy.step(obs[i].tolist())
        assert type(one) is int
        assert one == action[i]
        np.testing.assert_allclose(memory, carry[i], rtol=1e-5, atol=1e-6)
    assert policy.initial_carry().shape == (8,)
    assert policy.initial_carry(3).shape == (3, 8)


@pytest.mark.slow
def test_samples_have_the_policys_probabilities(tmp_path: Path) -> None:
    """A masked policy never draws illegal actions, and draws the others as often as the agent does."""
    agent, state = player("masked")
    policy = loaded(export_numpy(agent, state, tmp_path / "policy").path)
    obs = np.broadcast_to(np.linspace(-1.0, 1.0, 9, dtype=np.float32), (20_000, 9))
    mask = np.broadcast_to(np.array([True, False, True, True, False]), (20_000, 5))
    drawn, _ = policy.step(obs, mask=mask, rng=np.random.default_rng(0), deterministic=False)
    expected, _ = agent.act(state, jnp.asarray(obs), None, jax.random.key(0), False, jnp.asarray(mask))
    shares = [np.bincount(x, minlength=5) / len(obs) for x in (drawn, np.asarray(expected))]
    assert shares[0][1] == shares[0][4] == 0.0
    np.testing.assert_allclose(shares[0], shares[1], atol=0.02)
    assert np.count_nonzero(shares[0] > 0.05) > 1


def test_the_file_describes_the_policy(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["policy.py", "weights.npz"]
    metadata = loaded(folder).metadata
    assert metadata["algorithm"] == "ppo"
    assert metadata["environment"] == "CartPole-v1"
    assert (metadata["step"], metadata["run"]) == (7, {"seed": 3})
    assert metadata["observation"] == {"type": "array", "shape": [4], "dtype": "float32"}
    assert metadata["carry"] == {"type": "array", "shape": [8], "dtype": "float32"}
    assert metadata["noise"]["greedy"] == []
    assert metadata["noise"]["sampling"][0]["distribution"] == "gumbel"
    json.dumps(metadata)
    with np.load(folder / "weights.npz") as weights:
        kernel = player("gru")[1].params["params"]["network"]["cell"]["hidden_kernel"]
        np.testing.assert_array_equal(weights["params/params/network/cell/hidden_kernel"], kernel)
    assert "jax" not in {line.split()[1] for line in (folder / "policy.py").read_text().splitlines() if line.startswith("import")}


def test_wrong_arguments_are_one_line(folder: Path) -> None:
    policy, obs = loaded(folder), np.zeros(4)
    rng = np.random.default_rng(0)
    cases: list[tuple[str, Any]] = [
        (r"obs: expected shape \[4\], or \[b, \.\.\.\] of these for b of them, got \[5\]", lambda: policy.step(np.zeros(5))),
        (r"obs: expected shape \[4\].*, got \[0, 4\]", lambda: policy.step(np.zeros((0, 4)))),
        ("obs: expected dtype float32, got complex128", lambda: policy.step(np.zeros(4, complex))),
        ("obs: expected an array", lambda: policy.step([[1.0], [1.0, 2.0]])),
        (r"carry: expected shape \[8\]", lambda: policy.step(obs, np.zeros(7))),
        ("carry: expected a batch of None", lambda: policy.step(obs, np.zeros((2, 8)))),
        ("mask: this policy takes none", lambda: policy.step(obs, mask=np.ones(2, bool))),
        (r"rng: expected numpy\.random\.default_rng\(0\)", lambda: policy.step(obs, deterministic=False)),
        ("noise: expected arrays of shapes", lambda: policy.step(obs, noise=[np.zeros(3)], deterministic=False)),
    ]
    for message, call in cases:
        with pytest.raises(ValueError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert type(policy.step(obs, rng=rng, deterministic=False)[0]) is int


def test_weights_that_are_not_the_policys_are_refused(folder: Path, tmp_path: Path) -> None:
    data = bytearray((folder / "weights.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "weights.npz").write_bytes(data)
    with pytest.raises(ValueError, match=r"weights\.npz: damaged, or the weights of another policy"):
        loaded(folder, weights=tmp_path / "weights.npz")
    with pytest.raises(ValueError, match="the weights cannot be read: No such file"):
        loaded(folder, weights=tmp_path / "none.npz")


class Sorting(nn.Module):
    """A network of one's own that does what the runner has no code for."""

    num_outputs: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = jnp.sort(obs, axis=-1)
        return nn.Dense(self.num_outputs)(x), x[..., 0]


def test_what_numpy_has_no_code_for_is_one_line(tmp_path: Path) -> None:
    agent = rljax.make_agent(KINDS["mlp"].replace(network=Sorting(2)))
    state = jax.jit(agent.init)(jax.random.key(0))
    with pytest.raises(rljax.ConfigError, match="for NumPy: it uses sort, for which there is no code in NumPy") as caught:
        export_numpy(agent, state, tmp_path / "policy")
    assert "\n" not in str(caught.value)
    assert not any(tmp_path.iterdir())


class Ranking(nn.Module):
    """A network whose operation without code in NumPy has two results."""

    num_outputs: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, _ = jax.lax.top_k(obs, 2)
        return nn.Dense(self.num_outputs)(x), x[..., 0]


class Windowed(nn.Module):
    """A network with an operation without code in NumPy that has no inputs: JAX asks for the size of the batch."""

    num_outputs: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = jax.lax.dynamic_slice_in_dim(obs, jnp.argmax(obs.reshape(-1, 4)[0]), 2, -1)
        return nn.Dense(self.num_outputs)(x), x[..., 0]


@pytest.mark.parametrize(("network", "primitive"), [(Ranking, "top_k"), (Windowed, r"\w+")])
def test_operations_with_several_results_or_without_inputs_are_one_line(
    network: type[nn.Module], primitive: str, tmp_path: Path
) -> None:
    agent = rljax.make_agent(KINDS["mlp"].replace(network=network(2)))
    state = jax.jit(agent.init)(jax.random.key(0))
    with pytest.raises(
        rljax.ConfigError, match=f"for NumPy: it uses {primitive}, for which there is no code in NumPy$"
    ) as caught:
        export_numpy(agent, state, tmp_path / "policy")
    assert "\n" not in str(caught.value)
    assert not any(tmp_path.iterdir())


class Quoted(CartPole):
    """An environment whose name would end a text in the file, or be no text of Python's."""

    @property
    def name(self) -> str:
        return 'a"""\nraise SystemExit\n"""\\x'


def test_any_text_can_be_the_name_of_the_environment(tmp_path: Path) -> None:
    agent = rljax.make_agent(rljax.PPOConfig(env=Quoted(), total_timesteps=2048, network={"hidden": [4]}))
    state = jax.jit(agent.init)(jax.random.key(0))
    policy = loaded(export_numpy(agent, state, tmp_path / "policy").path)
    assert policy.step(np.zeros(4))[0] in (0, 1)


class Dotted(Wide):
    """Parts of observations whose names have dots."""

    names: tuple[str, ...] = ("joint.pos", "joint.speed")

    def observe(self, time: jax.Array) -> Any:
        x = super().observe(time)
        return {name: {"pos": x} if name == "joint" else x + i for i, name in enumerate(self.names)}

    def observation_space(self, params: Any) -> rljax.Dict:
        box = super().observation_space(params)
        return rljax.Dict({name: rljax.Dict({"pos": box}) if name == "joint" else box for name in self.names})


class Ambiguous(Dotted):
    names = ("joint.pos", "joint")


def test_parts_may_have_any_names_that_differ(tmp_path: Path) -> None:
    network: Any = {"encoder": "dict", "hidden": [4], "depth": 2}
    agent, state = player_of(ppo(Dotted(), network, normalize_observations=False))
    policy = loaded(export_numpy(agent, state, tmp_path / "policy").path)
    obs = jax.tree.map(np.asarray, Dotted().observe(jnp.int32(3)))
    mask = np.asarray(Dotted().action_mask(jnp.int32(3), None))
    expected, _ = agent.act(state, obs, None, jax.random.key(0), deterministic=True, mask=mask)
    np.testing.assert_array_equal(policy.step(obs, mask=mask)[0], expected)
    with pytest.raises(ValueError, match=r"obs\.joint\.pos: expected shape \[3\]"):
        policy.step({**obs, "joint.pos": np.zeros(2)})
    agent, state = player_of(ppo(Ambiguous(), network, normalize_observations=False))
    with pytest.raises(rljax.ConfigError, match=r"for NumPy: obs\.joint\.pos: two parts have this name"):
        export_numpy(agent, state, tmp_path / "two")
    assert not (tmp_path / "two").exists()


def test_a_policy_of_several_devices_is_exported_on_one(tmp_path: Path) -> None:
    agent, state = player("gru")
    several = rljax.make_agent(agent.config.replace(num_devices=2))
    obs = np.zeros(4, np.float32)
    steps = [loaded(export_numpy(each, state, tmp_path / str(i)).path).step(obs) for i, each in enumerate((agent, several))]
    jax.tree.map(np.testing.assert_array_equal, *steps)


def test_nothing_is_written_over(folder: Path) -> None:
    before = (folder / "policy.py").read_bytes()
    with pytest.raises(rljax.ConfigError, match="exists already"):
        export_numpy(*player("gru"), folder)
    assert (folder / "policy.py").read_bytes() == before


@pytest.mark.slow
def test_a_conversion_that_disagrees_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rljax.run.export import translate

    monkeypatch.setitem(translate.FUNCTIONS, "tanh", "sin")
    with pytest.raises(rljax.ConfigError, match="the converted policy acted differently on"):
        export_numpy(*player("gru"), tmp_path / "policy")
    assert not any(tmp_path.iterdir())
