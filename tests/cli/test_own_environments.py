"""Environments and games of a user's own in commands: by "module:Class", listed, and what a run says that was named otherwise."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import rljax
from rljax.cli.main import main
from rljax.core.errors import ConfigError, RljaxWarning
from rljax.envs import registry

WALK = '''
import jax, jax.numpy as jnp, rljax

class Walk(rljax.Environment):
    """Walk to the end of a line.

    Then it is over.
    """
    def __init__(self, length=3):
        self.length = length
    def reset_env(self, key, params):
        return jnp.zeros(1), jnp.int32(0)
    def step_env(self, key, state, action, params):
        state = state + action
        return jnp.full(1, state / self.length), state, -0.1, state >= self.length, {}
    def observation_space(self, params):
        return rljax.Box(0.0, jnp.inf, (1,))
    def action_space(self, params):
        return rljax.Discrete(2)

class Needs(Walk):
    def __init__(self, size):
        super().__init__(size)

class Duel(rljax.envs.NumberDuel):
    """A duel of one's own."""

made = Walk(length=2)
number = 3
'''

SMALL = ["--total-timesteps", "64", "--num-envs", "4", "--num-steps", "8", "--time-limit", "8", "--network.hidden", "[8]"]


def cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command."""
    status = 0
    try:
        main(arguments)
    except SystemExit as stop:
        status = int(stop.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working directory, which commands find there; a new name for each test, as modules stay imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"walks_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(WALK)
    return name


@pytest.mark.slow
def test_train_eval_and_list_find_a_class_by_its_module(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text(f'algorithm = "ppo"\nenv = "{module}:Walk"\nenv_params = {{ length = 2 }}\n')
    status, _, err = cli(capsys, "train", "mine.toml", *SMALL)
    assert (status, err) == (0, "")
    assert f'env = "{module}:Walk"' in Path("runs/mine/config.toml").read_text()
    status, out, _ = cli(capsys, "eval", "runs/mine", "--episodes", "4", "--sample")
    assert status == 0
    assert "return over" in out
    status, out, _ = cli(capsys, "list", f"{module}:Walk")
    assert status == 0
    assert "Walk to the end of a line." in out
    assert f"{module}.py" in out
    assert [line.split() for line in out.splitlines() if "length" in line] == [["length", "3"]]
    # Its state counts no steps, so nothing ends its episodes by time.
    assert re.search(r"time limit +none, as the state has no time: set time_limit", out)
    # Games as well, and as a flag.
    status, out, err = cli(capsys, "list", f"{module}:Duel")
    assert "A duel of one's own." in out
    assert rljax.make_agent(rljax.SelfPlayConfig(env=f"{module}:Duel")).config.env == f"{module}:Duel"
    agent = rljax.make_agent(rljax.PPOConfig(env=f"{module}:made"))
    assert agent.config.env == f"{module}:made"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ("{}:Walks", "has no 'Walks': did you mean 'Walk'?"),
        ("{}:number", "is no environment: expected a class with reset_env and step_env"),
        ("{}:jax.jit", "is no environment: expected a class with reset_env and step_env"),
        ("{}:Needs", "cannot be built: Needs.__init__() missing 1 required positional argument: 'size'"),
        ("nowhere_at_all:Walk", "there is no module 'nowhere_at_all', expected one that is installed, or lies in the working"),
        ("{}_broken:Walk", "raised RuntimeError: no"),
        ("{}_missing:Walk", "raised ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("{}_exits:Walk", "raised SystemExit: 3"),
        ("subprocess:Popen", "is no environment"),
        ("os:system", "is no environment"),
    ],
)
def test_what_is_not_found_is_one_line(module: str, env: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path.cwd())
    Path(f"{module}_broken.py").write_text("raise RuntimeError('no\\nway')")
    Path(f"{module}_missing.py").write_text("import nowhere_at_all")
    Path(f"{module}_exits.py").write_text("import sys; sys.exit(3)")
    with pytest.raises(ConfigError) as caught:
        rljax.make_agent(rljax.PPOConfig(env=env.format(module), env_params={} if ":" in env else {"args": "ls"}))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_runs_of_objects_and_registered_classes_say_how_commands_find_them(
    module: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    monkeypatch.syspath_prepend(Path.cwd())
    walk = __import__(module).Walk
    config = rljax.PPOConfig(total_timesteps=64, num_envs=4, num_steps=8, time_limit=8, network={"hidden": [8]})
    name = rf'name it by its class for commands to find it: env = "{module}:Walk"'
    with pytest.warns(RljaxWarning, match=rf"an object of class Walk .* {name}"):
        rljax.fit(config.replace(env=walk()), run_dir="object")
    rljax.register_env("Mine-v0", walk)
    with pytest.warns(RljaxWarning, match=rf"'Mine-v0', registered in this process, .* {name}"):
        rljax.fit(config.replace(env="Mine-v0"), run_dir="registered")
    status, _, err = cli(capsys, "eval", "object")
    assert status == 2
    assert "given as an object of class Walk: in Python give it again" in err
    assert f'env = "{module}:Walk"' in err

    class Local(walk):  # type: ignore[misc, valid-type]
        pass

    assert registry.unknown_to_commands(Local()) == (
        'put its class in a module of its own for commands to find it: env = "module:Class"'
    )
    assert registry.unknown_to_commands("CartPole-v1") is None
    assert registry.unknown_to_commands(f"{module}:Walk") is None


def test_runs_of_objects_resume_with_the_object_also_from_a_renamed_script(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also runs from before the module was written: "object:Walk"."""
    monkeypatch.syspath_prepend(Path.cwd())
    walk = __import__(module).Walk
    config = rljax.PPOConfig(env=walk(), total_timesteps=64, num_envs=4, num_steps=8, time_limit=8, network={"hidden": [8]})
    with pytest.warns(RljaxWarning, match="name it by its class"):
        rljax.fit(config, run_dir="run")
    file = Path("run/config.toml")
    for written in ("object:Walk", "object:elsewhere:Walk"):
        fields = [line for line in file.read_text().splitlines() if not line.startswith("#")]  # without the checksum
        file.write_text("\n".join(f'env = "{written}"' if line.startswith("env = ") else line for line in fields))
        assert f'"{written}"' in file.read_text()
        result = rljax.fit(config, run_dir="run", resume=True)
        assert int(result.state.iteration) == 2


def test_list_of_an_unfinished_environment_is_one_line(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Path(f"{module}.py").open("a") as file:
        file.write("\n\nclass Unfinished(rljax.Environment):\n    pass\n")
    status, out, err = cli(capsys, "list", f"{module}:Unfinished")
    assert (status, out) == (2, "")
    assert err == "rljax: environment Unfinished: Unfinished must define reset_env(key, params) -> (obs, state)\n"


def test_list_explains_an_environment(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    status, out, _ = cli(capsys, "list", "CartPole-v1")
    lines = dict(" ".join(line.split()).split(maxsplit=1) for line in out.splitlines()[1:])
    assert status == 0
    assert out.startswith("CartPole-v1:  Balance a pole on a cart")
    assert lines["observation"].startswith("Box float32[4], -4.8 to 4.8, -inf to inf, -0.418")
    assert lines["action"] == "Discrete(2): 0 to 1"
    assert lines["gravity"] == "9.8"
    assert lines["time"] == "limit 500 steps (max_steps_in_episode)"
    assert lines["reward"] == "threshold 475; a mean return of at least this solves it"
    assert "cartpole_ppo" in lines["presets"]
    assert lines["source"].endswith("cartpole.py")
    status, out, _ = cli(capsys, "list", "Territory-v0")
    assert "4, teams [0, 0, 1, 1], all move at every step" in out
    status, out, _ = cli(capsys, "list", "gymnax:FourRooms-misc")
    assert "Four Rooms" in out
