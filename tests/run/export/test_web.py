"""Web pages: their environments step as those in Python do, and what has no page is refused in one line."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.environments.environment import action_mask_of, tree_where
from rljax.core.environments.spaces import Box, as_space
from rljax.core.games.game import Game
from rljax.envs import resolve_env
from rljax.run.export.checks import random_inputs
from rljax.run.export.signature import read_signature
from rljax.run.export.steps import read_step
from rljax.run.export.web import describe_page, page, runtime
from rljax.run.export.web.page import MODULES, STATIC
from tests.run.export.kinds import KINDS, player, ppo

NUM_STEPS = 1000

ENVIRONMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "cartpole": ("CartPole-v1", {}),
    "cartpole of other parameters": ("CartPole-v1", {"gravity": 3.0, "half_length": 0.8, "x_limit": 0.3, "dt": 0.03}),
    "pendulum": ("Pendulum-v1", {}),
    "pendulum of other parameters": ("Pendulum-v1", {"length": 1.5, "mass": 0.7, "max_speed": 3.0}),
    "gridworld": ("GridWorld-v0", {}),
    "gridworld of another size": ("GridWorld-v0", {"size": 4, "goal_reward": 2.0}),
    "tic-tac-toe": ("TicTacToe-v0", {}),
    "connect four": ("ConnectFour-v0", {}),
}

RUNTIME = {runtime.SCRIPT_FILE: b"script", runtime.WASM_FILE: b"wasm"}


def config_of(env_id: str, **fields: Any) -> rljax.Config:
    if env_id in ("TicTacToe-v0", "ConnectFour-v0"):
        return KINDS["alphazero"].replace(env=env_id, **fields)
    return ppo(env_id, {"hidden": [8]}, time_limit=None, **fields)


def random_steps(env: Any, params: Any) -> dict[str, Any]:
    """`NUM_STEPS` steps of random actions, in a game illegal ones, too: `[T, ...]` of everything before and after each."""
    game, space = isinstance(env, Game), as_space(env.action_space(params))

    def step(carry: Any, key: jax.Array) -> Any:
        (obs, state), begins = carry
        action_key, step_key, reset_key = jax.random.split(key, 3)
        shape = (env.num_players,) if game else ()
        if isinstance(space, Box):  # beyond the bounds, too
            action = jax.random.uniform(action_key, space.shape, minval=1.5 * space.low, maxval=1.5 * space.high)
        else:
            action = jax.random.randint(action_key, shape, 0, space.n)
        after, next_state, reward, terminated, _ = env.step_env(step_key, state, action, params)
        done = terminated | env.is_truncated(next_state, params)
        taken = action[state.time % 2] if game else action.ravel()[0]
        steps = {"obs": obs, "state": state, "begins": begins, "action": taken, "next": next_state, "reward": reward}
        steps |= {"terminated": terminated, "mask": action_mask_of(env, state, params)}
        return (tree_where(done, env.reset_env(reset_key, params), (after, next_state)), done), steps

    first = env.reset_env(jax.random.key(1), params)
    scan = jax.jit(lambda carry, keys: jax.lax.scan(step, carry, keys)[1])
    steps = scan((first, jnp.bool_(True)), jax.random.split(jax.random.key(0), NUM_STEPS))
    steps["state"], steps["next"] = (vars(steps[name]) for name in ("state", "next"))
    return jax.tree.map(np.asarray, steps)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environment_of_a_page_takes_the_steps_of_the_one_in_python(name: str, run_node: Any) -> None:
    env_id, env_params = ENVIRONMENTS[name]
    env, params = resolve_env(env_id, env_params)
    steps, seats = random_steps(env, params), getattr(env, "num_players", 1)
    description = describe_page(config_of(env_id, env_params=env_params))
    table = [
        {
            "state": {field: x[t].ravel().tolist() if x.ndim > 1 else x[t].item() for field, x in steps["state"].items()},
            "action": steps["action"][t].item(),
            "begins": bool(steps["begins"][t]),
        }
        for t in range(NUM_STEPS)
    ]
    module = f"./{description['modules']['environment']}"
    given = {"module": module, "description": description, "seats": seats, "steps": table}
    found = run_node("mirror.mjs", given, 60)
    results = found["results"]
    # JavaScript computes in f64 and JAX in f32, whose numbers differ by up to 6e-8 of themselves.
    close = {"rtol": 2e-6, "atol": 2e-6}
    for part in ("obs", "reward", "terminated", *["mask"] * (seats > 1)):
        got = np.array([result[part] for result in results], np.float64)
        np.testing.assert_allclose(got.reshape(NUM_STEPS, -1), steps[part].reshape(NUM_STEPS, -1), **close, err_msg=part)
    # The drift is what the page comes to by its own steps from the beginning of each episode. Where a pendulum stands upright,
    # what rounding does to its angle grows by e in a quarter of a second, or five steps.
    drift = 0.05 if env_id == "Pendulum-v1" else 1e-4
    for part, tolerance in (("next", close), ("drift", {"rtol": 0.0, "atol": drift})):
        for field, expected in steps["next"].items():
            got = np.array([result[part][field] for result in results], np.float64).reshape(NUM_STEPS, -1)
            np.testing.assert_allclose(got, expected.reshape(NUM_STEPS, -1), **tolerance, err_msg=f"{part} {field}")
    assert steps["begins"].sum() > 4, "several episodes"
    assert steps["begins"].sum() == 1 + (steps["terminated"] | (steps["next"]["time"] == description["max_steps"]))[:-1].sum()
    # Episodes that the page begins itself are like those of Python.
    first = vars(env.reset_env(jax.random.key(5), params)[1])
    assert {field: np.size(x) for field, x in found["first"].items()} == {field: np.size(x) for field, x in first.items()}
    assert found["obs"] == steps["obs"][0].size / seats


@pytest.fixture(scope="module")
def tictactoe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("jax2onnx")
    folder = tmp_path_factory.mktemp("web") / "tictactoe"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "fetch_runtime", lambda say: RUNTIME)
        report = rljax.export_web(*player("alphazero"), folder, step=1536)
    assert report.path == folder
    assert report.files == {file.name: file.stat().st_size for file in folder.iterdir()}
    return folder


def test_page_has_the_modules_of_its_environment_and_nothing_from_elsewhere(tictactoe: Path) -> None:
    modules = {file for of_environment in MODULES.values() for file in of_environment.values() if (tictactoe / file).exists()}
    assert modules == {"tictactoe.js", "versus.js"}
    description = json.loads((tictactoe / "policy.json").read_text())
    assert description["environment"] == "TicTacToe-v0"
    assert description["step"] == 1536
    assert "search" in description["note"]
    assert list(description["inputs"]) == ["obs", "mask"]
    for file in STATIC.iterdir():
        assert "://" not in file.read_text(), file


def test_probabilities_are_those_of_the_network_and_0_where_illegal(tictactoe: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    agent, state = player("alphazero")
    obs, mask = random_inputs(read_step(agent, state, read_signature(agent), True), 50)
    action, probs = onnxruntime.InferenceSession(tictactoe / "policy.onnx").run(["action", "probs"], {"obs": obs, "mask": mask})
    assert agent.policy_and_value is not None
    exp = np.exp(np.asarray(agent.policy_and_value(state, obs)[0])) * mask
    np.testing.assert_allclose(probs, exp / exp.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-6)
    assert (probs[~mask] == 0).all()
    np.testing.assert_array_equal(action, probs.argmax(axis=1))
    np.testing.assert_array_equal(action, agent.act(state, obs, None, jax.random.key(0), True, mask)[0])


REFUSED: dict[str, tuple[rljax.Config, str]] = {
    "no page": (
        ppo("Acrobot-v1", {"hidden": [8]}),
        "environment Acrobot-v1: there is no page for it; there are pages for CartPole-v1, Pendulum-v1, GridWorld-v0, "
        "TicTacToe-v0, ConnectFour-v0, MicroRTS-v0, MicroRTSBots-v0",
    ),
    "pictures": (ppo("GridWorldPixels-v0", {"type": "cnn"}), "environment GridWorldPixels-v0: there is no page for it"),
    "another step": (
        ppo("CartPole-v1", {"hidden": [8]}, action_repeat=2),
        "action_repeat = 2: a page plays CartPole-v1 without it",
    ),
    "a parameter that JSON has no number for": (
        ppo("CartPole-v1", {"hidden": [8]}, env_params={"x_limit": math.inf}),
        "env_params.x_limit = inf: a page plays CartPole-v1 with finite numbers only",
    ),
    "another observation": (
        ppo("CartPole-v1", {"hidden": [8]}, frame_stack=2),
        "environment CartPole-v1: a page gives the policy its observation, and this policy sees something else",
    ),
    "frames of a game": (
        rljax.AlphaZeroConfig(env="TicTacToe-v0", frame_stack=2, network={"hidden": [8]}),
        "environment TicTacToe-v0: a page gives the policy its observation, and this policy sees something else",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_page_cannot_play_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    config, message = REFUSED[name]
    agent = rljax.make_agent(config)
    with pytest.raises(rljax.ConfigError) as refused:
        rljax.export_web(agent, jax.eval_shape(agent.init, jax.random.key(0)), tmp_path / "page")
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_an_action_that_is_taken_once_is_the_environments_own_step() -> None:
    assert describe_page(config_of("CartPole-v1", action_repeat=1)) == describe_page(config_of("CartPole-v1"))


def test_a_folder_with_something_in_it_is_left_alone(tictactoe: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(rljax.ConfigError, match="exists already: choose another folder for the policy, or delete it first"):
        rljax.export_web(*player("alphazero"), tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["keep"]


def test_a_policy_that_cannot_be_converted_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    with pytest.raises(rljax.ConfigError, match=r"cannot be exported as a page, which needs ONNX: jax2onnx cannot be imported"):
        rljax.export_web(*player("alphazero"), tmp_path / "page")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry with an archive in which only what a page needs is, for a machine without npm and with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("npm_config_registry", (tmp_path / "registry").as_uri() + "/")
    monkeypatch.setattr(runtime.shutil, "which", lambda _: None)
    archive = tmp_path / "registry" / runtime.PACKAGE / "-" / f"{runtime.PACKAGE}-{runtime.VERSION}.tgz"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz") as tar:
        for inside in runtime.INSIDE.values():
            member = tarfile.TarInfo(inside)
            member.size = len(inside)
            tar.addfile(member, io.BytesIO(inside.encode()))
    return archive


def test_runtime_is_fetched_once_and_its_checksum_is_looked_at(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(rljax.RljaxError, match="its checksum differs"):
        runtime.fetch_runtime()
    assert not runtime.runtime_folder().exists()
    digest = base64.b64encode(hashlib.sha512(registry.read_bytes()).digest()).decode()
    monkeypatch.setattr(runtime, "SHA512", digest)
    said: list[str] = []
    files = runtime.fetch_runtime(said.append)
    assert files["ort.js"] == b"package/dist/ort.wasm.bundle.min.mjs"
    (runtime.runtime_folder() / "ort.js").unlink()
    assert runtime.fetch_runtime() == files, "what was deleted comes again"
    registry.unlink()
    assert runtime.fetch_runtime(said.append) == files
    assert len(said) == 1


def test_two_processes_may_fetch_the_runtime_at_once(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "SHA512", base64.b64encode(hashlib.sha512(registry.read_bytes()).digest()).decode())
    unpack = runtime._unpack

    def later(archive: Path, folder: Path) -> None:
        unpack(archive, folder)
        shutil.copytree(folder, runtime.runtime_folder())  # the other process is done

    monkeypatch.setattr(runtime, "_unpack", later)
    assert runtime.fetch_runtime()["ort.js"] == b"package/dist/ort.wasm.bundle.min.mjs"


def test_a_runtime_that_cannot_be_fetched_is_said_in_one_line(
    registry: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    registry.unlink()
    with pytest.raises(rljax.RljaxError, match=r"onnxruntime-web .* could not be fetched: .*No such file") as failed:
        runtime.fetch_runtime()
    assert "\n" not in str(failed.value)
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho 'npm error code E404' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setattr(runtime.shutil, "which", lambda _: str(npm))
    with pytest.raises(rljax.RljaxError, match="npm could not fetch it: npm error code E404"):
        runtime.fetch_runtime()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not here")
def test_npm_says_why_it_cannot_fetch_the_runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in runtime.REGISTRY_VARIABLES:
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nothing listens
    with pytest.raises(
        rljax.RljaxError, match=r"npm could not fetch it: npm .*request to http://127\.0\.0\.1:9/.* failed"
    ) as failed:
        runtime.fetch_runtime()
    assert "\n" not in str(failed.value)
    assert not list(tmp_path.rglob("ort*"))
