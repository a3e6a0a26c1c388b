"""Algorithms of a user's own in commands and files: by "module:Class", which a run folder keeps, and what is said of others."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rljax
from rljax.cli.main import DESCRIPTION, EXAMPLES, Command
from rljax.cli.parsing import _check_misspelt, parse
from rljax.core.config import ALGORITHMS, Config, algorithm
from rljax.core.config_files import config_table, dump_config, names_algorithm
from rljax.core.errors import ConfigError, RljaxWarning
from rljax.run.launch.task import check_local_files
from tests.cli.test_own_environments import cli

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "own_loop.md"
MODULE = (
    re.findall(r"```python\n(# reinforce.py\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    + '''
from collections.abc import Mapping
from typing import Any
from flax.core import FrozenDict

@algorithm("quiet")
class QuietConfig(ReinforceConfig):
    """Says nothing of episodes."""
    keep_prob: float = leaf(default=0.5, doc="a field much like an option of train", ge=0)

def make_quiet(config):
    agent = make_reinforce(config)
    return agent._replace(step=lambda state: (agent.step(state)[0], {"train/mine": 0.0}))

register_agent(QuietConfig, make_quiet)

@algorithm("unmade")
class UnmadeConfig(Config):
    """An algorithm without an agent."""
    tables: Mapping[str, Any] = static(default=FrozenDict(inner={"size": 2}, sizes=(1, 2)), doc="a table within a table")

class Plain(ReinforceConfig):
    """No algorithm of its own."""
'''
)
SMALL = ["--num-envs", "4", "--num-steps", "8"]

pytestmark = pytest.mark.usefixtures("forget_algorithms")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working directory, which is on the path, as it is for commands; a name of its own for each test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    return name


@pytest.mark.slow
def test_commands_find_an_algorithm_by_its_class_and_again_in_its_run(
    module: str, capsys: pytest.CaptureFixture[str], forget_algorithms: Callable[[], None]
) -> None:
    def run(*arguments: str) -> str:
        forget_algorithms()
        status, out, err = cli(capsys, *arguments)
        assert (status, err) == (0, "")
        return out

    run("train", f"{module}:ReinforceConfig", "--total-timesteps", "64", *SMALL)
    assert f'algorithm = "{module}:ReinforceConfig"' in Path("runs/reinforce/config.toml").read_text()
    assert "return over" in run("eval", "runs/reinforce", "--episodes", "4")
    assert "reinforce on CartPole-v1" in run("show", "runs/reinforce")
    assert "rljax plot runs/reinforce" in run("train", "--resume", "runs/reinforce", "--total-timesteps", "128")
    run("export", "runs/reinforce", "--numpy", "policy")
    assert Path("policy/policy.py").is_file()
    Path("mine.toml").write_text(f'algorithm = "{module}:ReinforceConfig"\nnum_envs = 4\nnum_steps = 8\ntotal_timesteps = 64\n')
    run("sweep", "mine.toml", "--learning-rate", "1e-3", "1e-2", "--episodes", "2")
    run("train", "sweeps/mine/best.toml", "--run-dir", "best")
    forget_algorithms()
    agent, state = rljax.load("runs/reinforce")
    assert type(agent.config) is importlib.import_module(module).ReinforceConfig
    assert int(state.iteration) == 4


@pytest.mark.slow
def test_a_run_without_returns_of_episodes_is_trained_and_shown(
    module: str, capsys: pytest.CaptureFixture[str], forget_algorithms: Callable[[], None]
) -> None:
    train = ["train", f"{module}:QuietConfig", "--total-timesteps", "64", "--keep-prob", "0.25", *SMALL]
    status, out, err = cli(capsys, *train)
    assert (status, err) == (0, "")
    assert "return - " in out
    assert "return over 100 episodes" in out
    assert "rljax show runs/quiet" in out
    assert "rljax plot" not in out  # there is no return to draw
    status, out, _ = cli(capsys, "train", "--resume", "runs/quiet")
    assert status == 0
    assert "is complete at step 64" in out
    status, out, _ = cli(capsys, "show", "runs/quiet")
    assert "no returns: the agent's step does not report episode/return" in out
    assert "keep_prob" in out
    forget_algorithms()
    status, _, err = cli(capsys, "train", "--fork", "runs/quiet", "--keep-prob", "0.75", "--total-timesteps", "96")
    assert (status, err) == (0, "")
    assert "keep_prob = 0.75" in Path("runs/quiet-fork/config.toml").read_text()


def test_its_fields_are_listed(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = cli(capsys, "list", f"{module}:QuietConfig")
    assert status == 0
    assert "--keep-prob" in out
    assert "a field much like an option of train" in out


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("{}:ReinforceConfi", "has no 'ReinforceConfi': did you mean 'ReinforceConfig'?"),
        ("{}:Network", 'is no algorithm: expected a class under @algorithm("name")'),
        ("{}:Plain", 'is no algorithm: expected a class under @algorithm("name")'),
        ("{}:jax.jit", "is no algorithm"),
        ("os:system", "is no algorithm"),
        ("nowhere_at_all:Mine", "there is no module 'nowhere_at_all', expected one that is installed, or lies in the working"),
        ("{}_broken:Mine", "raised RuntimeError: no"),
        ("mine", 'your own is found by algorithm = "module:Class", or in Python once its module is imported'),
    ],
)
def test_what_is_not_found_is_one_line(module: str, name: str, expected: str) -> None:
    Path(f"{module}_broken.py").write_text("raise RuntimeError('no\\nway')")
    name = name.format(module)
    Path("mine.toml").write_text(f'algorithm = "{name}"\n')
    with pytest.raises(ConfigError) as caught:
        rljax.load_config("mine.toml")
    assert str(caught.value).startswith(f"mine.toml: algorithm = '{name}': ")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a/../../b", "..", "", "a b", "-a", "m:A", 3])
def test_a_name_that_is_no_folder_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"@algorithm\(.*\): expected a name of letters, digits, _ and -"):
        algorithm(name)


def test_a_field_that_does_not_say_what_it_is_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Undeclared\.speed: expected a field declared by leaf or static, such as speed: int"):

        @algorithm("undeclared")
        class Undeclared(Config):
            speed: int = 3

    assert "undeclared" not in ALGORITHMS


def test_the_closest_algorithm_is_named_where_a_module_has_no_environments(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(f"{module}_bare.py").write_text("")
    status, _, err = cli(capsys, "list", f"{module}:QuietConfi")
    assert (status, err) == (
        2,
        f"rljax: algorithm = '{module}:QuietConfi': {module} has no 'QuietConfi': did you mean 'QuietConfig'?\n",
    )
    assert cli(capsys, "list", f"{module}_bare:Walk")[2].endswith("it has no environments\n")


def test_a_table_within_a_table_is_listed(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = cli(capsys, "list", f"{module}:UnmadeConfig")
    assert status == 0
    assert '{ inner = {"size": 2}, sizes = [1, 2] }' in out


@pytest.mark.parametrize("name", ["zoo:tictactoe_selfplay", "hub:mine"])
def test_the_address_of_an_agent_is_no_algorithm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljax.core.config_files.import_own", lambda *given: pytest.fail(f"{given} is imported"))
    assert not names_algorithm(name)
    with pytest.raises(ConfigError, match=f"^unknown preset '{name}': "):
        rljax.load_config(name)


def test_the_address_of_an_agent_lists_its_card(capsys: pytest.CaptureFixture[str]) -> None:
    listed = cli(capsys, "list", "zoo:tictactoe_selfplay")
    assert listed[0] == 0
    assert listed == cli(capsys, "zoo", "tictactoe_selfplay")
    assert cli(capsys, "list", "zoo:tictacto") == cli(capsys, "zoo", "tictacto")


@pytest.mark.parametrize("library", ["brax", "pgx", "playground", "gymnax", "race", "zoo"])
def test_the_id_of_a_library_is_not_sought_as_an_algorithm(
    library: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljax.cli.listing.find_algorithm", lambda name: pytest.fail(f"{name} is sought"))
    assert cli(capsys, "list", f"{library}:nothing")[0] == 2


def test_a_class_without_an_agent_is_said_to_have_none(module: str) -> None:
    with pytest.raises(ConfigError, match=r"UnmadeConfig has no agent: register_agent\(UnmadeConfig, make\) lets make_agent"):
        rljax.make_agent(rljax.load_config(f"{module}:UnmadeConfig"))


def test_toml_names_the_class_and_reads_it_back(module: str, forget_algorithms: Callable[[], None]) -> None:
    config = rljax.load_config(f"{module}:QuietConfig", keep_prob=0.25)
    Path("there.toml").write_text(dump_config(config))
    assert config_table(config)["algorithm"] == f"{module}:QuietConfig"
    assert rljax.load_config("there.toml") == config
    assert rljax.load_config("quiet", keep_prob=0.25) == config
    forget_algorithms()
    assert "quiet" not in ALGORITHMS
    assert rljax.load_config("there.toml").keep_prob == 0.25
    assert config_table(rljax.PPOConfig())["algorithm"] == "ppo"
    with pytest.raises(ConfigError, match="unknown field 'keep_pro' of QuietConfig: did you mean 'keep_prob'"):
        rljax.load_config("there.toml", keep_pro=1.0)


def test_a_flag_of_its_own_is_no_misspelt_option(module: str) -> None:
    Path("mine.toml").write_text(f'algorithm = "{module}:QuietConfig"\n')
    Path("phases.toml").write_text(f'[phases.only]\nalgorithm = "{module}:QuietConfig"\n')
    with pytest.raises(ConfigError, match="unknown option --keep-prob: did you mean --keep"):
        _check_misspelt(["keep-prob"], ["keep"], "ppo")
    for source in ("mine.toml", "phases.toml", f"{module}:QuietConfig"):
        _check_misspelt(["keep-prob"], ["keep"], source)


def test_a_flag_of_its_own_may_be_true_or_false_whatever_fields_of_that_name_are_elsewhere(module: str) -> None:
    with pytest.raises(ConfigError, match="--pool-size needs a value"):
        parse(["train", "league", "--pool-size"], Command, DESCRIPTION, EXAMPLES)
    _, fields = parse(["train", f"{module}:QuietConfig", "--pool-size"], Command, DESCRIPTION, EXAMPLES)
    assert fields == {"pool_size": True}


@pytest.mark.parametrize("file", ["config.toml", "phases.toml"])
def test_a_flag_of_its_own_is_no_misspelt_option_where_a_run_goes_on(module: str, file: str) -> None:
    table = f'algorithm = "{module}:QuietConfig"\n'
    Path("run").mkdir()
    Path("run", file).write_text(table if file == "config.toml" else f"[phases.only]\n{table}")
    for option in ("--fork", "--resume"):
        _, fields = parse(["train", option, "run", "--keep-prob", "0.75"], Command, DESCRIPTION, EXAMPLES)
        assert fields == {"keep_prob": 0.75}
    with pytest.raises(ConfigError, match="unknown option --keep-prob: did you mean --keep"):
        parse(["train", "--fork", "nowhere", "--keep-prob", "0.75"], Command, DESCRIPTION, EXAMPLES)


def test_phases_may_be_of_it(module: str) -> None:
    Path("phases.toml").write_text(f'[phases.only]\nalgorithm = "{module}:QuietConfig"\n')
    phases = rljax.load_phases("phases.toml", keep_prob=0.25)
    assert phases["only"].config.keep_prob == 0.25


def test_a_launch_needs_the_folder_of_its_module(module: str) -> None:
    config = rljax.load_config(f"{module}:ReinforceConfig")
    with pytest.raises(ConfigError, match=rf"algorithm: {module}.py is on this machine only; give --workdir"):
        check_local_files(config, None)
    check_local_files(config, ".")


def test_a_run_says_that_commands_will_not_find_a_class_of_a_script(module: str) -> None:
    own = importlib.import_module(module)

    @algorithm("local")
    class LocalConfig(own.ReinforceConfig):  # type: ignore[misc, name-defined]
        pass

    own.register_agent(LocalConfig, own.make_reinforce)
    config = LocalConfig(num_envs=2, num_steps=2, total_timesteps=4)
    with pytest.warns(RljaxWarning, match=r'algorithm is .local., registered in this process, .* algorithm = "module:Class"'):
        rljax.fit(config, run_dir="local")
    assert 'algorithm = "local"\n' in Path("local/config.toml").read_text()
    del ALGORITHMS["local"]
    with pytest.raises(ConfigError, match=r"algorithm = 'local': .*your own is found by"):
        rljax.load_run("local")


def test_the_returns_are_those_of_a_loop_and_go_on_with_the_value_where_they_are_cut(module: str) -> None:
    config = rljax.load_config(
        f"{module}:ReinforceConfig", num_envs=3, num_steps=40, gamma=0.9, total_timesteps=120, time_limit=7
    )
    agent = rljax.make_agent(config)
    state = agent.init(jax.random.key(0))
    # The policy is uniform, and the value 2 everywhere.
    params = jax.tree.map(np.zeros_like, state.params)
    params["params"]["Dense_3"]["bias"] += 2.0
    metrics: dict[str, Any] = jax.jit(agent.step)(state.replace(params=params))[1]
    # Every step pays 1, and no pole falls within seven steps: episodes are cut after seven, and after five at the rollout's end.
    lengths = [7, 7, 7, 7, 7, 5]
    returns = [sum(0.9**k for k in range(left)) + 0.9**left * 2.0 for length in lengths for left in range(1, length + 1)]
    advantages = np.array(returns) - 2.0
    assert np.isclose(metrics["train/policy_loss"], np.log(2.0) * np.mean(advantages), rtol=1e-5)
    assert np.isclose(metrics["train/value_loss"], np.mean(advantages**2), rtol=1e-5)
    assert np.isclose(metrics["episode/return"], 7.0)
