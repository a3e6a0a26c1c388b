"""Export: the files act as the agent does, without rljax, on any batch size, and appear whole or not at all."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jax import export as jax_export

import rljax
from rljax.core.environments.spaces import Dict
from rljax.envs.composite import Composite, CompositeState
from rljax.run.export import ExportReport, export_policy, load_policy
from rljax.run.export.policy import write_whole
from tests.run.export.test_numpy import loaded

CARTPOLE = rljax.PPOConfig(
    env="CartPole-v1",
    num_envs=4,
    num_steps=8,
    num_minibatches=2,
    total_timesteps=320,
    learning_rate=1e-2,
    network={"hidden": [16]},
    normalize_observations=True,
)


@struct.dataclass
class Place:
    position: jax.Array
    time: jax.Array


class DictObservations(rljax.Environment):
    """An observation in parts of different shapes and dtypes."""

    def observation_space(self, params: Any) -> Dict:
        return Dict({"speed": rljax.Box(-1.0, 1.0, (2, 3)), "goal": rljax.Discrete(5)})

    def action_space(self, params: Any) -> rljax.MultiDiscrete:
        return rljax.MultiDiscrete((3, 2))

    def observe(self, position: jax.Array) -> dict[str, jax.Array]:
        return {"speed": jnp.full((2, 3), position), "goal": jnp.int32(3)}

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Place]:
        position = jax.random.uniform(key)
        return self.observe(position), Place(position, jnp.int32(0))

    def step_env(self, key: jax.Array, state: Place, action: jax.Array, params: Any) -> Any:
        position = jax.random.uniform(key)
        return self.observe(position), Place(position, state.time + 1), position, state.time > 3, {}


class Exported:
    """An agent after an iteration of training, and the folder of its policy."""

    def __init__(self, folder: Path, config: rljax.PPOConfig, **options: Any):
        self.agent = rljax.make_agent(config)
        self.state, _ = jax.jit(self.agent.step)(jax.jit(self.agent.init)(jax.random.key(config.seed)))
        self.report: ExportReport = export_policy(self.agent, self.state, folder / "policy", step=32, **options)
        self.path = folder / "policy"

    def act(self, obs: Any, key: jax.Array | None = None, mask: Any = None) -> np.ndarray:
        """What the agent itself does: greedy without a key."""
        act = jax.jit(self.agent.act, static_argnums=4)
        return np.asarray(act(self.state, obs, None, jax.random.key(9) if key is None else key, key is None, mask)[0])


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(tmp_path_factory.mktemp("cartpole"), CARTPOLE, run_info={"seed": np.int64(0), "score": float("nan")})


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(tmp_path_factory.mktemp("pendulum"), CARTPOLE.replace(env="Pendulum-v1"))


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(tmp_path_factory.mktemp("masked"), CARTPOLE.replace(env="MaskedBandit-v0"))


@pytest.fixture(scope="module")
def dictionary(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(tmp_path_factory.mktemp("dictionary"), CARTPOLE.replace(env=DictObservations()))


def normals(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def masks(count: int) -> np.ndarray:
    """Of five actions one or two are legal."""
    order = np.argsort(np.random.default_rng(1).random((count, 5)), axis=1)
    return order < 1 + np.arange(count)[:, None] % 2


def dictionaries(count: int) -> dict[str, np.ndarray]:
    return {"speed": normals(count, 2, 3), "goal": np.arange(count, dtype=np.int32) % 5}


@pytest.mark.slow
def test_a_process_without_rljax_acts_the_same(cartpole: Exported, masked: Exported, tmp_path: Path) -> None:
    obs, bandit_obs, mask = normals(50, 4), normals(50, 9), masks(50)
    np.savez(tmp_path / "in.npz", obs=obs, bandit_obs=bandit_obs, mask=mask)
    program = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("rljax", "flax", "distrax"):
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Refuse())
try:
    import rljax
except ImportError:
    pass
else:
    raise SystemExit("rljax can be imported here")

import jax, numpy as np
from jax import export

def read(folder, name):
    with open(folder + "/" + name, "rb") as file:
        return export.deserialize(bytearray(file.read())).call

given = np.load({str(tmp_path / "in.npz")!r})
key = jax.random.PRNGKey(5)
cartpole, masked = {str(cartpole.path)!r}, {str(masked.path)!r}
np.savez(
    {str(tmp_path / "out.npz")!r},
    greedy=read(cartpole, "greedy.jax")(given["obs"]),
    sampling=read(cartpole, "sampling.jax")(given["obs"], key),
    masked_greedy=read(masked, "greedy.jax")(given["bandit_obs"], given["mask"]),
    masked_sampling=read(masked, "sampling.jax")(given["bandit_obs"], key, given["mask"]),
)
assert not [name for name in sys.modules if name.startswith("rljax")]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    acted = np.load(tmp_path / "out.npz")
    key = jax.random.key(5)
    np.testing.assert_array_equal(acted["greedy"], cartpole.act(obs))
    np.testing.assert_array_equal(acted["sampling"], cartpole.act(obs, key))
    np.testing.assert_array_equal(acted["masked_greedy"], masked.act(bandit_obs, mask=mask))
    np.testing.assert_array_equal(acted["masked_sampling"], masked.act(bandit_obs, key, mask))
    assert (acted["sampling"] != acted["greedy"]).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cartpole", "masked", "dictionary"])
def test_example_of_the_metadata_runs(name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    exported: Exported = request.getfixturevalue(name)
    monkeypatch.chdir(exported.path)
    names: dict[str, Any] = {}
    exec("\n".join(json.loads(Path("metadata.json").read_text())["example"]), names)
    assert names["action"].shape == (1, *exported.agent.act(exported.state, names["obs"], None, jax.random.key(0))[0].shape[1:])


@pytest.mark.slow
def test_observation_normaliser_is_in_the_artifacts(tmp_path: Path) -> None:
    exported = Exported(tmp_path, CARTPOLE, onnx=False)
    # Statistics that turn the policy round: without them at least half of the actions would differ.
    statistics = exported.state.obs_statistics
    weight = jax.tree.map(jnp.zeros_like, exported.state.params)
    network = weight["params"]["network"]
    network["actor_0"]["kernel"] = jnp.zeros((4, 16)).at[0, 0].set(1.0)
    network["policy_head"]["kernel"] = jnp.zeros((16, 2)).at[0, 1].set(1.0)
    state = exported.state.replace(params=weight, obs_statistics=statistics.replace(mean=jnp.full(4, 3.0), var=jnp.ones(4)))
    export_policy(exported.agent, state, tmp_path / "shifted", onnx=False)
    obs = np.linspace(0.0, 6.0, 101, dtype=np.float32)[:, None] * np.ones(4, np.float32)
    np.testing.assert_array_equal(load_policy(tmp_path / "shifted").greedy(obs), (obs[:, 0] > 3.0).astype(np.int32))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 7])
def test_any_batch_size_and_unbatched(cartpole: Exported, count: int) -> None:
    policy, obs, key = load_policy(cartpole.path), normals(count, 4), jax.random.key(3)
    np.testing.assert_array_equal(policy.greedy(obs), cartpole.act(obs))
    np.testing.assert_array_equal(policy.sample(obs, key), cartpole.act(obs, key))
    np.testing.assert_array_equal(policy.sample(obs, jax.random.PRNGKey(3)), cartpole.act(obs, key))
    one = obs[-1]
    assert policy.greedy(jnp.asarray(one)).shape == policy.sample(jnp.asarray(one), key).shape == ()
    assert policy.greedy(one) == policy.greedy(one.tolist()) == cartpole.act(one)
    assert policy.sample(one, key) == cartpole.act(one, key)


@pytest.mark.slow
def test_actions_are_what_gymnasium_takes(cartpole: Exported, pendulum: Exported, dictionary: Exported) -> None:
    """Of NumPy observations an `int` or arrays of NumPy, that the spaces of Gymnasium contain; of JAX arrays JAX arrays."""
    spaces = pytest.importorskip("gymnasium").spaces
    key = jax.random.key(0)
    for exported, obs, space in (
        (cartpole, normals(4), spaces.Discrete(2)),
        (pendulum, normals(3), spaces.Box(-2.0, 2.0, (1,))),
        (dictionary, {"speed": normals(2, 3), "goal": np.int64(3)}, spaces.MultiDiscrete((3, 2), dtype=np.int32)),
    ):
        policy = load_policy(exported.path)
        batch = jax.tree.map(lambda x: np.stack([x, x]), obs)
        for action, many in ((policy.greedy(obs), policy.greedy(batch)), (policy.sample(obs, key), policy.sample(batch, key))):
            assert space.contains(action)
            assert type(action) is (int if isinstance(space, spaces.Discrete) else np.ndarray)
            assert type(many) is np.ndarray
            assert many.flags.writeable
            assert all(space.contains(x) for x in (many if many.ndim > 1 else many.tolist()))
        traced = jax.tree.map(jnp.asarray, obs)
        action = policy.greedy(traced)
        assert isinstance(action, jax.Array)
        np.testing.assert_array_equal(action, policy.greedy(obs))
        np.testing.assert_array_equal(jax.jit(policy.greedy)(traced), action)
    assert type(load_policy(cartpole.path).greedy([0.0, 0.1, 0.2, 0.3])) is int


@pytest.mark.slow
def test_continuous_actions(pendulum: Exported) -> None:
    policy, obs, key = load_policy(pendulum.path), 100 * normals(200, 3), jax.random.key(3)
    action = policy.greedy(obs)
    assert action.shape == (200, 1)
    assert action.dtype == jnp.float32
    np.testing.assert_allclose(action, pendulum.act(obs), rtol=1e-5, atol=1e-6)
    sampled = policy.sample(obs, key)
    np.testing.assert_allclose(sampled, pendulum.act(obs, key), rtol=1e-5, atol=1e-6)
    assert np.std(sampled) > 0.5
    assert np.abs(sampled).max() <= 2.0
    assert policy.greedy(obs[0]).shape == (1,)


@pytest.mark.slow
def test_masked_actions_are_legal(masked: Exported) -> None:
    policy, obs, mask = load_policy(masked.path), normals(200, 9), masks(200)
    rows = np.arange(200)
    assert mask[rows, policy.greedy(obs, mask)].all()
    assert mask[rows, policy.sample(obs, jax.random.key(0), mask)].all()
    assert policy.greedy(obs[0], mask[0]) == masked.act(obs[0], mask=mask[0])
    np.testing.assert_array_equal(policy.greedy(obs), masked.act(obs))  # without a mask every action is legal
    np.testing.assert_array_equal(policy.sample(obs, jax.random.key(1)), masked.act(obs, jax.random.key(1)))


@pytest.mark.slow
def test_observations_of_several_parts(dictionary: Exported) -> None:
    policy, obs, key = load_policy(dictionary.path), dictionaries(30), jax.random.key(0)
    np.testing.assert_array_equal(policy.greedy(obs), dictionary.act(obs))
    np.testing.assert_array_equal(policy.sample(obs, key), dictionary.act(obs, key))
    one = {name: part[4] for name, part in obs.items()}
    np.testing.assert_array_equal(policy.sample(one, key), dictionary.act(one, key))
    with pytest.raises(rljax.ConfigError, match=r"obs\.speed: expected shape \[2, 3\], or \[b, 2, 3\] for b of them, got \[3\]"):
        policy.greedy({**one, "speed": np.zeros(3, np.float32)})
    with pytest.raises(rljax.ConfigError, match=r"batches of different sizes: .*'obs.goal': 30, 'obs.speed': None"):
        policy.greedy({**obs, "speed": one["speed"]})
    with pytest.raises(rljax.ConfigError, match=r'obs: expected \{"type": "dict"'):
        policy.greedy({"speed": one["speed"]})


@pytest.mark.slow
def test_named_heads_are_a_dictionary_of_actions(tmp_path: Path) -> None:
    """With a mask in which what is legal depends on the heads before."""
    config = CARTPOLE.replace(
        env="Composite-v0", env_params={"masked": True}, action_heads="autoregressive", normalize_observations=False
    )
    exported = Exported(tmp_path, config)
    policy, key = load_policy(exported.path), jax.random.key(3)
    obs = np.eye(4, dtype=np.float32)[np.arange(40) % 4]
    states = CompositeState(jnp.arange(40) % 4, jnp.zeros((40, 4), bool), jnp.zeros(40, jnp.int32))
    mask = np.array(jax.vmap(lambda state: Composite(masked=True).action_mask(state, None))(states))
    act = jax.jit(exported.agent.act, static_argnums=4)
    for legal in (None, mask):
        wanted = act(exported.state, obs, None, key, True, legal)[0], act(exported.state, obs, None, key, False, legal)[0]
        for action, expected in zip((policy.greedy(obs, legal), policy.sample(obs, key, legal)), wanted, strict=True):
            assert set(action) == {"verb", "target", "amount"}
            jax.tree.map(np.testing.assert_array_equal, action, expected)
    place = action["verb"] + np.arange(40) % 4
    np.testing.assert_array_equal(action["target"], place % 4)  # all that the mask allows
    np.testing.assert_array_equal(action["amount"], place % 2)
    assert {name: type(x) for name, x in policy.greedy(obs[0], mask[0]).items()} == dict.fromkeys(
        ("verb", "target", "amount"), int
    )
    metadata = policy.metadata
    assert [head["name"] for head in metadata["action_space"]["heads"]] == ["verb", "target", "amount"]
    assert set(metadata["artifacts"]["greedy.jax"]["result"]["parts"]) == {"verb", "target", "amount"}
    names: dict[str, Any] = {}
    with contextlib.chdir(exported.path):
        exec("\n".join(metadata["example"]), names)
    assert names["action"]["verb"].shape == (1,)
    if exported.report.no_onnx is None:
        session = pytest.importorskip("onnxruntime").InferenceSession(exported.path / "greedy.onnx")
        outputs = [x.name for x in session.get_outputs()]
        assert (
            outputs == list(metadata["artifacts"]["greedy.onnx"]["result"]) == ["action.amount", "action.target", "action.verb"]
        )
        for output, action in zip(outputs, session.run(outputs, {"obs": obs, "mask": mask}), strict=True):
            np.testing.assert_array_equal(action, policy.greedy(obs, mask)[output.removeprefix("action.")])
    else:
        assert not importlib.util.find_spec("jax2onnx"), exported.report.no_onnx


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "changes"),
    [
        ("HeavyBox-v0", {}),  # two players in a team
        ("KuhnPoker-v0", {"central_critic": True}),
        ("TicTacToe-v0", {"weights": "player", "central_critic": True}),
        ("KuhnPoker-v0", {"frame_stack": 3}),
    ],
)
def test_policies_of_games_are_those_of_one_seat(env: str, changes: dict[str, Any], tmp_path: Path) -> None:
    config = rljax.SelfPlayConfig(env=env, num_envs=2, num_steps=16, num_minibatches=1, network={"hidden": [8]}, **changes)
    agent = rljax.make_agent(config)
    state = agent.init(jax.random.key(0))
    rljax.export_policy(agent, state, tmp_path / "policy", onnx=False)
    rljax.export_numpy(agent, state, tmp_path / "numpy")
    policy, in_numpy = load_policy(tmp_path / "policy"), loaded(tmp_path / "numpy")
    game, params = rljax.make_env(env)
    observed, start = game.reset_env(jax.random.key(1), params)
    legal = game.action_mask(start, params)
    for seat in range(game.num_players):
        obs, mask = jax.tree.map(lambda x, seat=seat: np.asarray(x)[seat], (observed, legal))
        if "frame_stack" in changes:
            obs = np.concatenate([obs] * changes["frame_stack"], axis=-1)
        if "weights" in changes:
            with pytest.raises(
                rljax.ConfigError,
                match=r'players have weights of 2 groups here, so expected \{"obs".*collect.games.policy_player add',
            ):
                agent.act(state, obs, None, jax.random.key(0), True, mask)
            obs = {"obs": obs, "group": np.eye(2, dtype=bool)[seat]}
        expected, _ = agent.act(state, obs, None, jax.random.key(0), True, mask)
        assert policy.step(obs, mask=mask)[0] == int(expected)
        assert int(in_numpy.step(obs, mask=mask)[0]) == int(expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cartpole", "pendulum", "masked", "dictionary"])
def test_artifacts_are_for_every_platform_and_hold_the_actor_only(name: str, request: pytest.FixtureRequest) -> None:
    exported: Exported = request.getfixturevalue(name)
    network = exported.state.params["params"]["network"]
    actor = sum(x.nbytes for part in ("actor_0", "policy_head") for x in jax.tree.leaves(network[part]))
    for file in ("greedy.jax", "sampling.jax"):
        data = (exported.path / file).read_bytes()
        assert jax_export.deserialize(bytearray(data)).platforms == ("cpu", "cuda", "tpu")
        assert len(data) < actor + 20_000
        assert b".py" not in data, "file names of whoever exported it"
        kernel = np.asarray(network["critic_0"]["kernel"]).ravel()
        assert np.asarray(network["actor_0"]["kernel"]).tobytes()[:64] in data
        assert kernel.tobytes()[:64] not in data


@pytest.mark.slow
def test_size_of_the_files_does_not_depend_on_what_act_leaves_alone(tmp_path: Path, cartpole: Exported) -> None:
    """A thousand environments, their optimiser and a critic: none of them is in the files."""
    exported = Exported(tmp_path, CARTPOLE.replace(num_envs=1000, total_timesteps=8000), onnx=False)
    for file in ("greedy.jax", "sampling.jax"):
        assert abs(exported.report.files[file] - cartpole.report.files[file]) < 200


@pytest.mark.slow
def test_metadata_says_what_the_policy_takes(cartpole: Exported, masked: Exported, pendulum: Exported) -> None:
    metadata = load_policy(cartpole.path).metadata
    assert metadata["algorithm"] == "ppo"
    assert metadata["environment"] == "CartPole-v1"
    assert metadata["step"] == 32
    assert metadata["run"] == {"seed": 0, "score": None}
    assert metadata["observation"] == {"type": "array", "shape": [4], "dtype": "float32"}
    assert metadata["action_space"] == {"type": "Discrete", "shape": [], "dtype": "int32", "n": 2}
    assert metadata["mask"] is None
    assert metadata["versions"]["jax"] == jax.__version__
    assert list(metadata["artifacts"]["sampling.jax"]["arguments"]) == ["obs", "key"]
    assert metadata["artifacts"]["greedy.jax"]["result"] == {"type": "array", "shape": ["b"], "dtype": "int32"}
    assert {*metadata["files"], "metadata.json"} == set(cartpole.report.files) == {p.name for p in cartpole.path.iterdir()}
    assert {name: len((cartpole.path / name).read_bytes()) for name in cartpole.report.files} == cartpole.report.files
    assert load_policy(masked.path).metadata["mask"] == {"type": "array", "shape": [5], "dtype": "bool"}
    assert list(load_policy(masked.path).metadata["artifacts"]["sampling.jax"]["arguments"]) == ["obs", "key", "mask"]
    assert load_policy(pendulum.path).metadata["action_space"]["high"] == 2.0


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.zeros(3), r"obs: expected shape \[4\], or \[b, 4\] for b of them, got \[3\]"),
        (np.zeros((2, 2, 4)), r"got \[2, 2, 4\]"),
        (np.zeros((0, 4)), r"got \[0, 4\]"),
        (np.zeros(4, complex), "obs: expected dtype float32, got complex128"),
        ([[1.0], [1.0, 2.0]], "obs: expected an array"),
    ],
)
def test_wrong_observations_are_one_line(cartpole: Exported, obs: Any, message: str) -> None:
    with pytest.raises(rljax.ConfigError, match=message) as caught:
        load_policy(cartpole.path).greedy(obs)
    assert "\n" not in str(caught.value)


def test_wrong_masks_and_keys_are_one_line(cartpole: Exported, masked: Exported) -> None:
    with pytest.raises(rljax.ConfigError, match="mask: this policy takes none"):
        load_policy(cartpole.path).greedy(np.zeros(4), np.ones(2, bool))
    with pytest.raises(rljax.ConfigError, match="mask: expected the batch of obs, 3, got 2"):
        load_policy(masked.path).greedy(np.zeros((3, 9)), np.ones((2, 5), bool))
    with pytest.raises(rljax.ConfigError, match=r"key: expected jax\.random\.key"):
        load_policy(cartpole.path).sample(np.zeros(4), 0)


def test_nothing_is_written_over(cartpole: Exported, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    for out in (tmp_path, tmp_path / "mine"):
        with pytest.raises(rljax.ConfigError, match="exists already"):
            export_policy(cartpole.agent, cartpole.state, out, onnx=False)
    with pytest.raises(rljax.ConfigError, match="cannot be"):
        export_policy(cartpole.agent, cartpole.state, tmp_path / "mine" / "policy", onnx=False)
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]
    assert (tmp_path / "mine").read_text() == "keep"


def test_folder_appears_whole_or_not_at_all(cartpole: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    write_bytes = Path.write_bytes

    def disk_full(path: Path, data: bytes) -> int:
        if path.name == "metadata.json":
            raise OSError(28, "No space left on device")
        return write_bytes(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", disk_full)
        with pytest.raises(rljax.ConfigError, match="cannot be written: No space left on device"):
            export_policy(cartpole.agent, cartpole.state, tmp_path / "empty", onnx=False)
    assert [p.name for p in tmp_path.rglob("*")] == ["empty"]
    export_policy(cartpole.agent, cartpole.state, tmp_path / "empty", onnx=False)
    assert isinstance(load_policy(tmp_path / "empty").greedy(np.zeros(4)), int)


def test_what_a_killed_export_left_is_removed_by_the_next_one_and_only_the_files_are_there(tmp_path: Path) -> None:
    """A process that is killed while it writes, as by `kill -9`, cleans up nothing."""
    killed = "import os; from pathlib import Path; from rljax.run.export.policy import write_whole; "
    killed += "Path.write_bytes = lambda *_: os._exit(9); write_whole(Path('policy'), {'a': b'1'})"
    assert subprocess.run([sys.executable, "-c", killed], cwd=tmp_path, check=False).returncode == 9
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.warns(rljax.RljaxWarning, match="left by a process that was killed"):
        write_whole(tmp_path / "policy", {"a": b"1"})
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["policy", "policy/a"]


def test_states_of_another_shape_are_refused(cartpole: Exported, pendulum: Exported, tmp_path: Path) -> None:
    batch = jax.tree.map(lambda x: x[None], cartpole.state)
    for state in (batch, pendulum.state, cartpole.state.params):
        with pytest.raises(rljax.ConfigError, match="the state does not fit the agent"):
            export_policy(cartpole.agent, state, tmp_path / "policy")
    assert not any(tmp_path.iterdir())


def copied(source: Path, target: Path, **changed: bytes | None) -> Path:
    """The folder with the contents of some files changed (None: gone), by their names with `_` for `.`."""
    target.mkdir()
    for path in source.iterdir():
        data = changed.get(path.name.replace(".", "_"), path.read_bytes())
        if data is not None:
            (target / path.name).write_bytes(data)
    return target


def test_folders_of_the_format_before_are_read(masked: Exported, tmp_path: Path) -> None:
    metadata = json.loads((masked.path / "metadata.json").read_text())
    older = {name: x for name, x in metadata.items() if name not in ("carry", "note")} | {"format": 1}
    folder = copied(masked.path, tmp_path / "older", metadata_json=json.dumps(older).encode())
    obs, mask = normals(20, 9), masks(20)
    np.testing.assert_array_equal(load_policy(folder).greedy(obs, mask), masked.act(obs, mask=mask))
    action, carry = load_policy(folder).step(obs, mask=mask, key=jax.random.key(3), deterministic=False)
    np.testing.assert_array_equal(action, masked.act(obs, jax.random.key(3), mask))
    assert carry is None


def test_damaged_folders_are_one_line(cartpole: Exported, tmp_path: Path) -> None:
    whole = (cartpole.path / "greedy.jax").read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    metadata = (cartpole.path / "metadata.json").read_bytes()
    cases: list[tuple[str, dict[str, bytes | None]]] = [
        ("no exported policy there", {"metadata_json": None}),
        ("metadata.json: damaged", {"metadata_json": b"{"}),
        ("metadata.json: damaged", {"metadata_json": b'{"format": 2}'}),
        ("of format 3, but this rljax reads 2", {"metadata_json": metadata.replace(b'"format": 2', b'"format": 3')}),
        ("greedy.jax: cannot be read", {"greedy_jax": None}),
        ("greedy.jax: damaged", {"greedy_jax": whole[:1000]}),
        ("greedy.jax: damaged", {"greedy_jax": bytes(flipped)}),
        ("sampling.jax: damaged", {"sampling_jax": whole}),
    ]
    if cartpole.report.no_onnx is None:
        cases.append(("greedy.onnx: damaged", {"greedy_onnx": b"altered"}))
        load_policy(copied(cartpole.path, tmp_path / "without", greedy_onnx=None, sampling_onnx=None))
    for i, (message, changed) in enumerate(cases):
        with pytest.raises(rljax.ConfigError, match=message) as caught:
            load_policy(copied(cartpole.path, tmp_path / str(i), **changed))
        assert "\n" not in str(caught.value)
    with pytest.raises(rljax.ConfigError, match="no exported policy there"):
        load_policy(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["cartpole", "pendulum", "masked", "dictionary"])
def test_onnx_acts_the_same_on_a_thousand_observations(name: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("jax2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    exported: Exported = request.getfixturevalue(name)
    assert exported.report.no_onnx is None
    session = onnxruntime.InferenceSession(exported.path / "greedy.onnx")
    critic = np.asarray(exported.state.params["params"]["network"]["critic_0"]["kernel"]).tobytes()
    assert critic[:64] not in (exported.path / "greedy.onnx").read_bytes()
    inputs: dict[str, np.ndarray] = {
        "cartpole": {"obs": 3 * normals(1000, 4)},
        "pendulum": {"obs": 3 * normals(1000, 3)},
        "masked": {"obs": normals(1000, 9), "mask": masks(1000)},
        "dictionary": {f"obs.{part}": x for part, x in sorted(dictionaries(1000).items())},
    }[name]
    assert sorted(i.name for i in session.get_inputs()) == sorted(inputs)
    assert list(load_policy(exported.path).metadata["artifacts"]["greedy.onnx"]["arguments"]) == list(inputs)
    obs = dictionaries(1000) if name == "dictionary" else inputs["obs"]
    expected = exported.act(obs, mask=inputs.get("mask"))
    (action,) = session.run(["action"], inputs)
    assert action.dtype == expected.dtype
    if name == "pendulum":
        np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(action, expected)
        assert len(np.unique(action, axis=0)) > 1
    (one,) = session.run(["action"], {part: x[:1] for part, x in inputs.items()})
    np.testing.assert_allclose(one, action[:1], rtol=1e-5, atol=1e-5)


def test_onnx_file_that_disagrees_is_not_kept(cartpole: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jax2onnx = pytest.importorskip("jax2onnx")
    to_onnx = jax2onnx.to_onnx
    monkeypatch.setattr(jax2onnx, "to_onnx", lambda policy, *args, **names: to_onnx(lambda x: 1 - policy(x), *args, **names))
    report = export_policy(cartpole.agent, cartpole.state, tmp_path / "policy")
    assert report.no_onnx == "the converted policy acted differently on 1000 of 1000 observations"
    assert sorted(p.name for p in report.path.iterdir()) == ["greedy.jax", "metadata.json", "sampling.jax"]
    assert "greedy.onnx" not in load_policy(report.path).metadata["artifacts"]


def test_export_succeeds_without_onnx_and_says_why(cartpole: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    report = export_policy(cartpole.agent, cartpole.state, tmp_path / "missing")
    assert report.no_onnx is not None
    assert "pip install 'rljax-jit[onnx]'" in report.no_onnx
    assert "\n" not in report.no_onnx
    assert load_policy(report.path).greedy(np.zeros(4)) == cartpole.act(np.zeros(4, np.float32))


def test_onnx_conversion_leaves_jax_as_it_was(cartpole: Exported, tmp_path: Path) -> None:
    pytest.importorskip("jax2onnx")
    import flax.linen as nn

    modules = [jnp, jax.lax, jax.nn, jax.random, nn]
    before = [dict(vars(module)) for module in modules]
    option = "jax_traceback_in_locations_limit"
    limit = getattr(jax.config, option)
    export_policy(cartpole.agent, cartpole.state, tmp_path / "policy")
    for module, attributes in zip(modules, before, strict=True):
        assert [name for name, value in attributes.items() if getattr(module, name) is not value] == []
    assert getattr(jax.config, option) == limit
    assert "jax2onnx" not in jnp.cumsum.__module__
    # Programs traced before and after it are of JAX's own primitives.
    names = {eqn.primitive.name for eqn in jax.make_jaxpr(lambda x: jnp.argmax(jnp.cumsum(jax.nn.relu(x))))(jnp.ones(3)).eqns}
    assert not {name for name in names if name.startswith("jax.")}


@pytest.mark.slow
def test_importing_rljax_imports_no_exporter() -> None:
    program = "import sys, rljax; raise SystemExit([m for m in ('jax2onnx', 'onnx', 'onnxruntime') if m in sys.modules] or 0)"
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0


@pytest.mark.parametrize("export", [rljax.export_policy, rljax.export_numpy, rljax.export_weights, rljax.export_web])
def test_what_is_no_agent_is_told_so(export: Any, tmp_path: Path) -> None:
    with pytest.raises(rljax.ConfigError, match=r"agent: expected an agent, as make_agent\(config\) returns it, got PPOConfig"):
        export(rljax.PPOConfig(), None, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())
