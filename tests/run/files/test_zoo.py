"""The agents that come with rljax: small, whole, as good as their cards say, and taken wherever a run's folder is read."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

import rljax
from rljax.cli.main import main
from rljax.run.files.cards import check_card, size_of
from rljax.run.files.folder import read_info, split_path
from rljax.run.files.zoo import find_agent
from tests.run.tiny_runs import assert_refused

CARDS = rljax.zoo_cards()
LEAST = {
    "cartpole_ppo": 475,
    "gridworld_ppo": 0.9,
    "pendulum_sac": -200,
    "tictactoe_selfplay": 0.8,
    "connect_four_selfplay": 0.95,
    "microrts_8x8_coac": 12,
}
"""Returns that no untrained agent reaches."""

pytestmark = pytest.mark.timeout(120)


def folder_of(name: str) -> Path:
    folder = find_agent(f"zoo:{name}")
    assert folder is not None
    return folder


def test_the_zoo_is_small_and_whole() -> None:
    assert set(CARDS) == set(LEAST)
    for name, card in CARDS.items():
        check_card(folder_of(name))
        # The league of MicroRTS began with a clone, and met other players than the preset.
        assert card.preset == (None if name == "microrts_8x8_coac" else name)
        assert card.episodes == 1000
        assert card.mean >= LEAST[name]
        assert card.commit is not None
        assert "dirty" not in card.commit
        listed = {"card.json", *card.files}
        assert {path.relative_to(folder_of(name)).as_posix() for path in folder_of(name).rglob("*") if path.is_file()} == listed
    assert max(size_of(folder_of(name), card) for name, card in CARDS.items()) < 500_000
    assert sum(size_of(folder_of(name), card) for name, card in CARDS.items()) < 1_500_000


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * ("microrts" in name)) for name in CARDS])
def test_an_agent_plays_as_well_as_its_card_says(name: str) -> None:
    (agent, state), card = rljax.load(f"zoo:{name}"), CARDS[name]
    play = jax.jit(lambda state, key: rljax.evaluate(agent, state, key, card.episodes))
    returns = np.asarray(play(state, jax.random.key(card.eval_seed)))
    # The same episodes on every machine, but for rounding, which tells apart moves that are equally good.
    assert returns.mean() == pytest.approx(card.mean, abs=3.0 * card.std / np.sqrt(card.episodes) + 1e-6)


def test_every_function_that_reads_a_run_takes_an_agent_of_the_zoo() -> None:
    assert split_path("zoo:cartpole_ppo") == (folder_of("cartpole_ppo"), "latest")
    assert split_path(Path("zoo:cartpole_ppo")) == (folder_of("cartpole_ppo"), "latest")
    run = rljax.load_run("zoo:gridworld_ppo", checkpoint="best")
    assert (run.config.env, run.step) == ("GridWorld-v0", CARDS["gridworld_ppo"].step)


def test_the_zoo_is_listed_and_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    main(["zoo"])
    out = capsys.readouterr().out
    for name, card in CARDS.items():
        (line,) = (line for line in out.splitlines() if line.startswith(f"zoo:{name}"))
        assert card.result in line
        assert f"{card.step:,}" in line
    for given in ("pendulum_sac", "zoo:pendulum_sac"):
        main(["zoo", given])
        out = capsys.readouterr().out
        assert out.startswith("zoo:pendulum_sac\n")
        assert CARDS["pendulum_sac"].score in out
    main(["show", "zoo:pendulum_sac"])
    assert CARDS["pendulum_sac"].score in capsys.readouterr().out


def test_unknown_agents_are_refused_with_the_closest_name(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["zoo", "cartpole"], ["eval", "zoo:cartpole"], ["play", "zoo:cartpole"], ["tournament", "zoo:cartpole"]):
        assert_refused(command, "no agent 'cartpole' in the zoo: did you mean 'cartpole_ppo'?", capsys)
    for name in ("", "..", "cartpole_ppo/checkpoints", "__pycache__"):
        assert_refused(["eval", f"zoo:{name}"], f"no agent '{name}' in the zoo", capsys)


def test_nothing_trains_into_the_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for how in (["--resume", "zoo:cartpole_ppo"], ["--fork", "zoo:cartpole_ppo"]):
        assert_refused(["train", *how], "a packed agent, which cannot be trained on", capsys)
    for folder in ("zoo:mine", "zoo:cartpole_ppo", "hub:me/mine"):
        assert_refused(["train", "cartpole_ppo", "--run-dir", folder], "are for agents to read", capsys)
    with pytest.raises(rljax.ConfigError, match="are for agents to read"):
        rljax.fit(rljax.load_config("cartpole_ppo"), run_dir="zoo:mine", resume=True)
    assert list(tmp_path.iterdir()) == []
    assert not (folder_of("cartpole_ppo") / ".lock").exists()


@pytest.mark.slow
def test_commands_take_agents_of_the_zoo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda _: "quit")
    main(["play", "zoo:tictactoe_selfplay"])
    assert "TicTacToe" in capsys.readouterr().out
    main(["eval", "zoo:gridworld_ppo", "--episodes", "5"])
    assert "greedy return over 5 episodes: mean 0.9" in capsys.readouterr().out
    main(["record", "zoo:gridworld_ppo", "--max-steps", "5"])
    assert Path("agent.gif").exists()
    main(["export", "zoo:cartpole_ppo", "--numpy", "policy"])
    assert Path("policy/policy.py").exists()
    main(["tournament", "zoo:tictactoe_selfplay", "--include", "random", "--games", "4"])
    assert "tictactoe_selfplay" in capsys.readouterr().out
    main(["demo", "zoo:gridworld_ppo", "--episodes", "2", "--out", "data"])
    assert "zoo:gridworld_ppo" in capsys.readouterr().out or Path("data/dataset.json").exists()


def test_a_changed_file_in_the_zoo_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("rljax.run.files.cards._sha256", lambda file: "0" * 64)
    assert_refused(["eval", "zoo:cartpole_ppo"], "refused, it is not the file that card.json names", capsys)
    assert_refused(["zoo", "cartpole_ppo"], "refused, it is not the file that card.json names", capsys)


@pytest.mark.slow
def test_runs_begin_with_the_policy_of_an_address_and_note_it_as_it_is(tmp_path: Path) -> None:
    config = rljax.load_config("gridworld_ppo", total_timesteps=32, num_envs=4, num_steps=8, eval_every=None, learning_rate=0.0)
    rljax.fit(config, run_dir=tmp_path / "run", init_from="zoo:gridworld_ppo")
    assert read_info(tmp_path / "run").init_from == "zoo:gridworld_ppo"
    params = [rljax.load_run(path).state.params for path in (tmp_path / "run", "zoo:gridworld_ppo")]
    for a, b in zip(*map(jax.tree.leaves, params), strict=True):
        np.testing.assert_array_equal(a, b)
