"""Agents on the Hugging Face Hub: what is pushed comes back as it was, whole or not at all, and what is wrong is one line."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

import rljax
from rljax.cli.main import main
from rljax.core.errors import how_to_install
from rljax.run.files.cards import read_card
from rljax.run.files.zoo import find_agent
from tests.run.files.hub_server import TOKEN, Hub, is_large, running_hub
from tests.run.tiny_runs import assert_refused

huggingface_hub = pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.timeout(120)
REPO = "me/cart"


def use(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what HF_ENDPOINT does, which the client reads only when it is imported."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with running_hub() as server:
        use(server.address, monkeypatch)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # a store of chunks, with a protocol of its own
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
        monkeypatch.chdir(tmp_path)
        yield server


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """A packed agent."""
    folder = find_agent("zoo:cartpole_ppo")
    assert folder is not None
    return Path(shutil.copytree(folder, tmp_path / "agent"))


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_pushed_comes_back_as_it_was(hub: Hub, agent: Path) -> None:
    assert rljax.push(agent, REPO) == f"{hub.address}/{REPO}"
    there = hub.repos[REPO]
    assert {name: x for name, x in there.items() if name not in ("README.md", ".gitattributes")} == files_of(agent)
    assert hub.commits == [f"ppo on CartPole-v1, {read_card(agent).step:,} steps"]
    assert len(hub.uploads) == len({x for x in there.values() if is_large(x)}) > 0, "by both ways of the protocol"
    there["large.bin"] = b"not the agent's"
    assert rljax.pull(REPO, "pulled") == read_card(agent)
    assert files_of(Path("pulled")) == files_of(agent)
    assert set(hub.fetched) == set(files_of(agent))
    assert hub.revisions == {hub.sha(REPO)}, "all of one commit"
    assert rljax.load_run("pulled").step == read_card(agent).step


def test_an_agent_that_is_pushed_again_takes_the_place_of_the_old_one(hub: Hub, agent: Path) -> None:
    rljax.push(agent, REPO)
    hub.repos[REPO]["mine.txt"] = b"keep"
    other = find_agent("zoo:gridworld_ppo")
    assert other is not None
    rljax.push(other, REPO)
    assert set(hub.repos[REPO]) == {*files_of(other), "README.md", ".gitattributes", "mine.txt"}
    assert len(hub.commits) == 2


def test_an_address_of_the_hub_is_fetched_once(hub: Hub, agent: Path) -> None:
    rljax.push(agent, REPO)
    for _ in range(2):
        loaded, state = rljax.load(f"hub:{REPO}")
    assert loaded.config.env == "CartPole-v1"
    assert len(hub.fetched) == len(files_of(agent))
    expected = rljax.load_run(agent).state.params
    np.testing.assert_array_equal(*(x["params"]["network"]["actor_0"]["kernel"] for x in (state.params, expected)))


def test_an_agent_that_another_process_fetched_meanwhile_is_taken(
    hub: Hub, agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rljax.push(agent, REPO)
    cache = tmp_path / "cache" / "rljax" / "hub" / REPO
    usual = Path.rename

    def late(self: Path, target: Path) -> Path:
        if target == cache:
            shutil.copytree(self, target)
        return usual(self, target)

    monkeypatch.setattr(Path, "rename", late)
    assert rljax.load_run(f"hub:{REPO}").step == read_card(agent).step
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]


def test_the_page_says_what_the_agent_is_and_how_to_use_it(hub: Hub, agent: Path) -> None:
    rljax.push(agent, REPO)
    _, header, text = hub.repos[REPO]["README.md"].decode().split("---\n", 2)
    table = yaml.safe_load(header)
    assert table["library_name"] == "rljax"
    assert {"reinforcement-learning", "ppo", "CartPole-v1"} <= set(table["tags"])
    (result,) = table["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == "500.00 +/- 0.00"
    for words in (
        "| preset | cartpole_ppo |",
        f"rljax pull {REPO}",
        f'rljax.load("hub:{REPO}")',
        "--seed 1000000007 --episodes 1000",
    ):
        assert words in text


@pytest.mark.slow
def test_the_commands_push_a_run_and_pull_it(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    config = rljax.load_config("gridworld_ppo", total_timesteps=512)
    agent = rljax.make_agent(config)
    rljax.save("run", agent, rljax.begin_from(config, "zoo:gridworld_ppo").init(rljax.run.files.folder.initial_keys(0, None)))
    main(["push", "run", REPO, "--episodes", "2"])
    out = capsys.readouterr().out
    assert out.startswith(f"{hub.address}/{REPO}\n")
    assert "over 2 episodes" in out
    main(["pull", REPO])
    assert capsys.readouterr().out.startswith("agents/cart\n")
    assert rljax.load_run("agents/cart").config.seed == config.seed
    assert_refused(["pull", REPO], "agents/cart: exists already", capsys)
    assert files_of(Path("agents/cart"))["run.json"] == hub.repos[REPO]["run.json"]


def assert_fails(command: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command ends with status 1 and one line, and leaves nothing."""
    before = files_of(Path())
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(command)
    error = capsys.readouterr().err
    assert stop.value.code == 1
    assert message in error, error
    assert error.count("\n") == 1, error
    assert files_of(Path()) == before


def test_a_download_that_is_not_the_cards_leaves_nothing(hub: Hub, agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rljax.push(agent, REPO)
    pull, good = ["pull", REPO, "--out", "pulled"], dict(hub.repos[REPO])
    hub.repos[REPO]["config.toml"] += b"gamma = 0.5\n"
    assert_fails(pull, f"{REPO}: config.toml: refused, it is not the file that card.json names", capsys)
    assert_fails(["eval", f"hub:{REPO}"], f"{REPO}: config.toml: refused", capsys)
    del hub.repos[REPO]["config.toml"]
    assert_fails(pull, f"{REPO}: no packed agent: no config.toml there", capsys)
    hub.repos[REPO]["card.json"] = b"{"
    assert_fails(pull, f"{REPO}: card.json is damaged", capsys)
    del hub.repos[REPO]["card.json"]
    assert_fails(pull, f"{REPO}: no packed agent: no card.json there", capsys)
    hub.repos[REPO] = good
    main(pull)


@pytest.mark.slow
def test_a_download_that_breaks_off_leaves_nothing(hub: Hub, agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rljax.push(agent, REPO)
    hub.cut = "config.toml"
    assert_fails(["pull", REPO], f"{REPO}: the Hub cannot be reached", capsys)


def test_a_hub_that_refuses_or_is_not_there_is_one_line(
    hub: Hub, agent: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    push = ["push", str(agent), REPO]
    for command in (["pull", REPO], ["eval", f"hub:{REPO}"]):
        assert_fails(command, f"{REPO}: the Hub has no such repository, or none that you may see", capsys)
    monkeypatch.setenv("HF_TOKEN", "hf_reads")
    assert_fails(push, f"{REPO}: the Hub refuses your token", capsys)
    assert hub.repos == {}
    monkeypatch.delenv("HF_TOKEN")
    assert_refused(push, f"{REPO}: the Hub wants to know who you are: hf auth login", capsys)
    assert_refused(["push", "no/run", REPO], f"{REPO}: the Hub wants to know who you are", capsys)  # before anything is packed
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    use("http://127.0.0.1:9", monkeypatch)  # where nobody listens
    for command in (push, ["pull", REPO]):
        assert_fails(command, f"{REPO}: the Hub cannot be reached", capsys)


def test_names_that_are_no_repository_and_a_missing_client_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("cart", "me/cart/more", "../cart", "me/..", "me/ca rt", "https://hub/me"):
        for command in (["pull", name], ["push", "zoo:cartpole_ppo", name], ["eval", f"hub:{name}"]):
            assert_refused(command, "expected USER/REPO", capsys)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for command in (["pull", REPO], ["push", "zoo:cartpole_ppo", REPO]):
        assert_refused(command, how_to_install("hub"), capsys)


def test_a_changed_agent_is_not_pushed(hub: Hub, agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (agent / "config.toml").write_text("gamma = 0.5\n")
    assert_refused(["push", str(agent), REPO], "config.toml: refused", capsys)
    with pytest.raises(rljax.ConfigError, match="rljax pack makes one of a run"):
        rljax.push("nowhere", REPO)
    assert hub.repos == {}
