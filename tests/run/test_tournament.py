"""Tournaments and play in the terminal: agents whose strength is known, wrong input, both seats."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import rljax
from rljax.cli.main import main
from rljax.collect.matches import play_match
from rljax.core.versus import random_player
from rljax.envs import make_env
from rljax.planning.mcts import make_mcts, searching
from rljax.run.play import play
from rljax.run.tournament import Entry, draw_payoffs, league_standings, swiss_pairs, tournament
from tests.run.tiny_runs import assert_refused

GAME, PARAMS = make_env("BiasedRPS-v0")


def always(action: int) -> Entry:
    return Entry(f"always {action}", f"{action}", lambda _: lambda key, state, obs, mask: jnp.full(2, action), None)


def test_a_round_robin_counts_what_happens_and_rates_it(tmp_path: Path) -> None:
    """Paper beats rock, scissors beat paper, rock beats scissors; a player of random moves has 1000."""
    entries = [*map(always, range(3)), Entry("random", "random", lambda _: random_player, None)]
    found = tournament(GAME, PARAMS, entries, key=jax.random.key(0), num_games=30)
    assert found.wins[:3, :3].tolist() == [[0, 0, 30], [30, 0, 0], [0, 30, 0]]
    assert (found.games + 30 * np.eye(4) == 30).all()
    np.testing.assert_array_equal(found.wins + found.wins.T + found.draws, found.games)
    np.testing.assert_allclose(found.ratings.rating[3], 1000.0)
    # Each wins and loses as much as the others: ratings that differ by less than their intervals.
    spread = np.asarray(found.ratings.high - found.ratings.low)[:3]
    assert np.ptp(np.asarray(found.ratings.rating)[:3]) < spread.max()
    score = found.score()
    assert score[1, 0] == 1.0
    assert np.isnan(score[0, 0])
    with Image.open(draw_payoffs(found, tmp_path / "heat.png")) as picture:
        assert picture.width > 300
        assert len(picture.convert("RGB").getcolors(2**24) or []) > 50


def test_swiss_rounds_pair_equals_who_have_not_met() -> None:
    share, played, met = np.array([0.8, 0.5, 0.8, 0.5, 0.1]), np.array([4, 4, 4, 4, 2]), np.zeros((5, 5), bool)
    assert swiss_pairs(share, played, met) == [(0, 2), (1, 4)]  # 3 sits out: 4 has played less
    met[0, 2] = met[2, 0] = True
    assert swiss_pairs(share, np.full(5, 4), met) == [(0, 1), (2, 3)]
    entries = [always(i % 3)._replace(name=str(i)) for i in range(12)]
    found = tournament(GAME, PARAMS, entries, key=jax.random.key(0), num_games=2)
    # 66 pairings would be many: eight rounds of six.
    assert found.games.sum() / 2 == 8 * 6 * 2


def test_searches_play_games_that_go_on_after_their_end_too() -> None:
    """Kuhn poker's rules say nothing of a state that is over; games end at different times. Here its cards lie open."""
    game, params = make_env("KuhnPoker-v0")
    game.hides_state = False
    search = searching(make_mcts(game, params, num_simulations=4), game)
    match = jax.jit(lambda key: play_match(game, params, search, random_player, key, 16))(jax.random.key(0))
    assert bool(jnp.isfinite(match.result).all())
    assert set(match.length.tolist()) == {2, 3}


def replies(*lines: str) -> Any:
    waiting = list(lines)

    def ask(prompt: str) -> str:
        if not waiting:
            raise EOFError
        return waiting.pop(0)

    return ask


@pytest.mark.parametrize("seat", [0, 1])
def test_a_person_plays_either_seat_and_illegal_input_is_asked_again(seat: int) -> None:
    game, params = make_env("TicTacToe-v0")
    said: list[str] = []

    def first_empty(key: Any, state: Any, obs: Any, mask: jax.Array) -> jax.Array:
        return jnp.argmax(mask, axis=-1)

    # The agent fills 1, 2, 3, ... in order; the person takes the middle column or a diagonal.
    typed = ("x", "10", "1", "7", "5", "9") if seat == 0 else ("1", "5", "9", "4", "6", "7")
    result = play(game, params, first_empty, seat=seat, key=jax.random.key(0), ask=replies(*typed), say=said.append)
    text = "\n".join(said)
    assert result is not None
    assert ("no move" in text) == (seat == 0)
    assert ("not legal here" in text) == (seat == 1)
    assert "the agent chooses" in text
    assert " X | " in text or " O | " in text
    assert ("you win" in text) == (result > 0)


def test_quitting_and_the_end_of_input_leave_the_game() -> None:
    game, params = make_env("KuhnPoker-v0")
    for typed in (("quit",), ()):
        said: list[str] = []
        assert play(game, params, random_player, seat=0, key=jax.random.key(1), ask=replies(*typed), say=said.append) is None
        assert "your card: " in said[0]
        assert said[-1] == "you left the game"


@pytest.mark.parametrize("name", ["NumberDuel-v0", "LeducPoker-v0", "BiasedRPS-v0", "Draft-v0", "ConnectFour-v0"])
def test_every_game_of_two_can_be_played(name: str) -> None:
    game, params = make_env(name)
    names = game.action_names(params)
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return prompt.partition("(")[2].split()[0].strip(",")  # the first legal one

    said: list[str] = []
    result = play(game, params, random_player, seat=1, key=jax.random.key(2), ask=ask, say=said.append)
    assert result is not None
    assert asked or name == "LeducPoker-v0"
    assert len(names) == game.action_space(params).n
    assert len(set(names)) == len(names)


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Train, let two checkpoints and random play meet, play, evaluate; bad input is one line."""
    monkeypatch.chdir(tmp_path)
    tiny: Any = {
        "env": "TicTacToe-v0",
        "num_envs": 8,
        "num_steps": 8,
        "num_minibatches": 2,
        "total_timesteps": 512,
        "network": {"hidden": [8]},
    }
    config = rljax.SelfPlayConfig(**tiny)
    rljax.fit(config, run_dir="runs/a", checkpoint_every=256)
    rljax.fit(config.replace(env="KuhnPoker-v0"), run_dir="runs/b")
    rljax.fit(rljax.PPOConfig(total_timesteps=512), run_dir="runs/c")
    main(["tournament", "runs/a", "runs/a/checkpoints/step_256", "--include", "random", "--games", "10"])
    table = capsys.readouterr().out
    for name in ("a ", "a/256 ", "random "):
        assert sum(line.startswith(name) and "[" in line for line in table.splitlines()) == 1
    assert Path("tournament.png").exists()
    shutil.copytree("runs/a", "elsewhere/a", symlinks=True)
    main(["tournament", "runs/a", "elsewhere/a", "--include", " random", "--games", "2"])
    lines = capsys.readouterr().out.splitlines()
    for name in ("runs/a ", "elsewhere/a ", "random "):
        assert sum(line.startswith(name) and "[" in line for line in lines) == 1
    league = rljax.LeagueConfig(**tiny, num_slots=1, pool_size=8, snapshot_every=64, snapshot_timeout=64, league_reset=0.0)
    rljax.fit(league, run_dir="runs/d")
    main(["plot", "--kind", "payoffs", "runs/d", "--out", "payoffs.png"])
    standings = league_standings(rljax.load_run("runs/d"))
    assert standings.names[:5] == ("main", "main exploiter", "league exploiter 1", "league exploiter 2", "main @ 0")
    assert len(standings.names) == 4 + 8
    np.testing.assert_allclose(standings.wins + standings.wins.T + standings.draws, standings.games, rtol=1e-5)
    assert standings.games[0].sum() > 0
    assert standings.ratings.rating[4] == 1000.0
    with Image.open("payoffs.png") as picture:
        assert picture.width > 500
    capsys.readouterr()
    monkeypatch.setattr("builtins.input", replies("5", "quit"))
    main(["play", "runs/a", "--seat", "0"])
    assert "you left the game" in capsys.readouterr().out
    for arguments, message in (
        (["tournament", "runs/a", "runs/b"], "expected one game"),
        (["tournament", "runs/a"], "at least two different players"),
        (["tournament", "runs/a", "--include", "randm"], "did you mean 'random'"),
        (["tournament", "runs/a", "--include", "random", "--out", "x.txt"], "expected a file name that ends in"),
        (["tournament", "runs/a", "--include", "random", "--games", "0"], "games = 0"),
        (["tournament", "runs/c", "--include", "random"], "is no agent of a game"),
        (["tournament", "runs/b", "--include", "random,mcts"], "hides a part of its state"),
        (["play", "runs/b", "--simulations", "4"], "hides a part of its state"),
        (["play", "runs/a", "--simulations", "-1"], "simulations = -1: expected 0"),
        (["play", "runs/c"], "is no agent of a game"),
        (["plot", "--kind", "payoffs", "runs/a"], "has no pool of past players"),
        (["plot", "--kind", "payoffs", "runs/c"], "has no pool of past players"),
        (["play", "runs/a", "--seat", "2"], "seat = 2: expected 0 or 1"),
        (["train", "tictactoe_selfplay", "--env", "CartPole-v1"], "is no game"),
    ):
        assert_refused(arguments, message, capsys)
