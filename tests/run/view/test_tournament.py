"""Tournaments and play in the terminal: agents whose strength is known, wrong input, both seats."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import rljax
from rljax.cli.main import main
from rljax.collect.environments import make_game
from rljax.collect.games.matches import Games, play_match
from rljax.collect.randomize import GameRandomizeParams, randomized
from rljax.core.config_files import dump_config
from rljax.core.environments.spaces import Box, Discrete
from rljax.core.games.game import Game, RememberingScript
from rljax.core.games.game_step_wrappers import GameStickyActions
from rljax.core.games.game_wrappers import GameTimeLimit
from rljax.core.games.versus import random_player
from rljax.envs import TicTacToe, make_env
from rljax.envs.microrts.java.engine import BOTS
from rljax.league.ratings import Ratings
from rljax.planning.mcts import make_mcts, searching
from rljax.run.files.folder import Run
from rljax.run.view.contests import _name_players
from rljax.run.view.pairings import all_tables, ranking_of, split_ties, swiss_tables
from rljax.run.view.play import _ask_choice, play
from rljax.run.view.tournament import Entry, Standings, _hides_state, draw_payoffs, league_standings, make_entries, tournament
from tests.collect.games.parade import Parade, counting, plain_choice, plain_parade
from tests.run.tiny_runs import assert_refused

GAME, PARAMS = make_env("BiasedRPS-v0")


def always(action: int) -> Entry:
    return Entry(f"always {action}", f"{action}", lambda _: lambda key, state, obs, mask: jnp.full(2, action), None)


@pytest.mark.slow
def test_a_round_robin_counts_what_happens_and_rates_it(tmp_path: Path) -> None:
    """Paper beats rock, scissors beat paper, rock beats scissors; a player of random moves has 1000. A game without chance counts
    once from each seat."""
    entries = [*map(always, range(3)), Entry("random", "random", lambda _: random_player, None, draws=True)]
    found = tournament(GAME, PARAMS, entries, key=jax.random.key(0), num_games=30)
    assert found.wins[:3, :3].tolist() == [[0, 0, 2], [2, 0, 0], [0, 2, 0]]
    assert (found.played + 30 * np.eye(4) == 30).all()
    assert found.games[:3, 3].tolist() == [30, 30, 30]
    few = "only 2 distinct games of 30 between always 0 and always 1, and few in 2 other pairings"
    assert (found.few() or "").startswith(few)
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


def test_pairs_that_never_met_are_explained_and_nothing_known_is_not_drawn(tmp_path: Path) -> None:
    def standings(games: np.ndarray) -> Standings:
        zero = jnp.zeros(len(games))
        return Standings(("a", "b", "c"), games / 2, 0 * games, games, games, Ratings(zero, zero, zero))

    def text(games: np.ndarray) -> str:
        return draw_payoffs(standings(games), tmp_path / "heat.svg").read_text()

    everyone = 4.0 * (1 - np.eye(3))  # nobody meets itself
    some = everyone.copy()
    some[0, 2] = some[2, 0] = 0.0
    note = "<!-- grey: never met -->"
    assert note not in text(everyone)
    assert note in text(some)
    out = tmp_path / "none.png"
    with pytest.raises(rljax.ConfigError, match=r"none\.png: nothing to draw: no game between two players counts so far"):
        draw_payoffs(standings(np.zeros((3, 3))), out)
    assert not out.exists()


class Own(nn.Module):
    """A network of one's own, which acts by its `gain`."""

    gain: float

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.gain * nn.Dense(3)(obs), nn.Dense(1)(obs)[..., 0]


@pytest.mark.slow
def test_only_players_that_act_alike_share_a_program(tmp_path: Path) -> None:
    config = rljax.SelfPlayConfig(env="BiasedRPS-v0", num_envs=8, num_steps=8, total_timesteps=64, network={"hidden": [4]})
    agent = rljax.make_agent(config)
    rljax.save(tmp_path / "run", agent, jax.jit(agent.init)(jax.random.key(0)))
    again = config.replace(seed=3, total_timesteps=128, learning_rate=1e-3)
    others = [
        config.replace(average_decay=0.9),
        config.replace(intrinsic={"type": "count"}),
        config.replace(dtype="bfloat16"),
        *(config.replace(network=Own(gain)) for gain in (1.0, -1.0)),
    ]
    runs = {str(i): Run(each, None, 0) for i, each in enumerate((config, again, *others))}
    players = runs | {"folder": tmp_path / "run", "pair": (agent, None), "another pair": (rljax.make_agent(config), None)}
    _, _, entries = make_entries(players)
    kinds = {entry.name: entry.kind for entry in entries}
    assert kinds["0"] == kinds["1"] == kinds["folder"]
    assert len(set(kinds.values())) == len(kinds) - 2


def leaning(side: int) -> Entry:
    """Drops every disc as far to one side as it can."""

    def play(key: Any, state: Any, obs: Any, mask: jax.Array) -> jax.Array:
        return (6 - jnp.argmax(mask[:, ::-1], axis=-1)) if side else jnp.argmax(mask, axis=-1)

    return Entry(f"leans {side}", f"leans {side}", lambda _: play, None)


@pytest.mark.slow
def test_two_games_again_and_again_say_little_and_openings_make_them_differ() -> None:
    """Of 100 games of two players that draw nothing all are one of two, and their intervals those of two games."""
    game, params = make_env("ConnectFour-v0")
    entries, key = [leaning(0), leaning(1)], jax.random.key(0)
    lines: list[str] = []
    found = tournament(game, params, entries, key=key, num_games=100, opening_moves=0, progress=lines.append)
    assert (found.games[0, 1], found.played[0, 1]) == (2, 100)
    assert lines[0].endswith("(2 distinct games of 100)")
    assert "only 2 distinct games of 100 between leans 0 and leans 1: " in (found.few() or "")
    assert float(found.ratings.high[1] - found.ratings.low[1]) > 800
    varied = tournament(game, params, entries, key=key, num_games=100)
    assert 90 < varied.games[0, 1] <= 100
    assert varied.few() is None
    assert float(varied.ratings.high[1] - varied.ratings.low[1]) < 200


class Tokens(NamedTuple):
    token: float = 0.5


class Naming(Game):
    """Two players name four numbers each, and in every step the higher one wins; nothing depends on the parameter."""

    default_params = Tokens()

    def observation_space(self, params: Any) -> Any:
        return Box(0.0, 4.0, (1,))

    def action_space(self, params: Any) -> Any:
        return Discrete(16)

    def to_move(self, state: Any) -> Any:
        return jnp.ones(2, bool)

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        return jnp.zeros((2, 1)), jnp.zeros((), jnp.int32)

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        lead = jnp.sign(action[0] - action[1]).astype(jnp.float32)
        return jnp.full((2, 1), state + 1.0), state + 1, jnp.stack([lead, -lead]), state >= 3, {}


@pytest.mark.slow
def test_drawn_parameters_do_not_replace_random_openings() -> None:
    """Whatever is drawn, players that draw nothing would repeat two games; of a game that also hides cards they would not."""
    game = GameTimeLimit(randomized(Naming(), Tokens(), {"token": [0.0, 1.0]}), 100)
    assert game.hides_state
    found = tournament(game, Tokens(), [always(0), always(1)], key=jax.random.key(0), num_games=40)
    assert found.games[0, 1] > 30
    kuhn, _ = make_game(rljax.SelfPlayConfig(env="KuhnPoker-v0", time_limit=9))
    assert _hides_state(kuhn)
    assert _hides_state(GameRandomizeParams(kuhn, {}))
    assert not _hides_state(make_env("TicTacToe-v0")[0])


@pytest.mark.slow
def test_a_known_difference_in_strength_is_found_with_the_interval_of_its_formula() -> None:
    """Paper in 70 %, else scissors, against rock: 400 log10(7 / 3) points, give or take 1.96 (400 / ln 10) / sqrt(n p q)."""

    def play(key: jax.Array, state: Any, obs: Any, mask: jax.Array) -> jax.Array:
        return jnp.full(2, jnp.where(jax.random.bernoulli(key, 0.7), 1, 2))

    games = 1000
    entries = [always(0), Entry("paper", "paper", lambda _: play, None, draws=True)]
    found = tournament(GAME, PARAMS, entries, key=jax.random.key(3), num_games=games)
    assert found.games[0, 1] == games
    assert found.few() is None
    # Half a game drawn is taken to have been played besides.
    n, won = games + 0.5, found.wins[1, 0] + 0.25
    rating, low, high = (float(x[1]) for x in found.ratings)
    assert rating == pytest.approx(1000 + 400 * np.log10(won / (n - won)), abs=0.1)
    half = 1.96 * 400 / np.log(10) / np.sqrt(n * (won / n) * (1 - won / n))
    assert (high - rating, rating - low) == pytest.approx((half, half), rel=1e-3)
    assert low < 1000 + 400 * np.log10(7 / 3) < high


@pytest.mark.slow
def test_swiss_rounds_pair_equals_who_have_not_met() -> None:
    share, played, met = np.array([0.8, 0.5, 0.8, 0.5, 0.1]), np.array([4, 4, 4, 4, 2]), np.zeros((5, 5), bool)
    assert swiss_tables(share, played, met) == [(0, 2), (1, 4)]  # 3 sits out: 4 has played less
    met[0, 2] = met[2, 0] = True
    assert swiss_tables(share, np.full(5, 4), met) == [(0, 1), (2, 3)]
    entries = [always(i % 3)._replace(name=str(i)) for i in range(12)]
    found = tournament(GAME, PARAMS, entries, key=jax.random.key(0), num_games=2)
    assert swiss_tables(share, played, np.zeros((5, 5), bool), 3) == [(0, 2, 4)]  # the two last with most games sit out
    # 66 pairings would be many: eight rounds of six.
    assert found.played.sum() / 2 == 8 * 6 * 2


@pytest.mark.parametrize(("others", "bots"), [(1, 9), (1, 14), (2, 9), (3, 8), (10, 2)])
def test_in_swiss_rounds_those_who_stay_apart_do_not_meet_and_everybody_plays(others: int, bots: int) -> None:
    count = others + bots
    apart, games, wins = range(others, count), np.zeros((count, count)), np.zeros(count)
    for _ in range(-(-bots // others)):
        tables = swiss_tables(wins / np.maximum(games.sum(1), 1), games.sum(1), games > 0, apart=apart)
        seated = [player for table in tables for player in table]
        assert len(seated) == len(set(seated)) == 2 * min(others, count // 2)
        for first, second in tables:
            assert min(first, second) < others
            games[[first, second], [second, first]] += 4
            wins[min(first, second)] += 4
    assert (games.sum(1) > 0).all()
    assert games.max() == 4


def test_tables_of_java_bots_alone_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one run and 10 bots 55 pairs are more than a round robin has, but only 10 of them can play."""

    def play_in_java(*arguments: Any) -> Games:
        num_games = arguments[6]
        seat = np.arange(num_games) % 2
        result: Any = np.tile([1.0, -1.0], (num_games, 1))
        fields: Any = (np.tile([1, 2], (num_games, 1)), np.stack([seat, 1 - seat], -1), seat, np.ones(num_games, bool))
        return Games(result, *fields)

    monkeypatch.setattr("rljax.run.view.tournament.play_java_match", play_in_java)
    monkeypatch.setattr("rljax.run.view.tournament.java_program", lambda *_: None)
    monkeypatch.setattr("rljax.run.view.tournament.elo", lambda *_: None)
    run = Entry("run", "run", lambda _: random_player, None, draws=True)
    entries = [run, *(run._replace(name=name, java=name) for name in sorted(BOTS)[:10])]
    for system in ("auto", "swiss"):
        lines: list[str] = []
        options: Any = {"num_games": 4, "opening_moves": 0, "system": system, "progress": lines.append}
        found = tournament(GAME, make_env("MicroRTS-v0")[1], entries, key=jax.random.key(0), **options)
        assert len(lines) == 10
        assert found.played[0].tolist() == [0, *[4] * 10]
        assert not found.played[1:, 1:].any()


@pytest.mark.slow
def test_searches_play_games_that_go_on_after_their_end_too() -> None:
    """Kuhn poker's rules say nothing of a state that is over; games end at different times. Here its cards lie open."""
    game, params = make_env("KuhnPoker-v0")
    game.hides_state = False
    search = searching(make_mcts(game, params, num_simulations=4), game)
    match = jax.jit(lambda key: play_match(game, params, search, random_player, key, 16))(jax.random.key(0))
    assert bool(jnp.isfinite(match.result).all())
    assert set(match.length.tolist()) == {2, 3}


class Race(rljax.Game):
    """Three name a number each, and get it: the highest wins."""

    num_players = 3
    best_is_random = True

    def observation_space(self, params: Any) -> Any:
        return Box(0.0, 1.0, (1,))

    def action_space(self, params: Any) -> Any:
        return Box(-1e6, 0.0)

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        return jnp.zeros((3, 1)), jnp.zeros(())

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        return jnp.zeros((3, 1)), state, action, jnp.ones((), bool), {}


class Long(Race):
    """Two players, of whom neither wins, after 12,000 steps or, in about half of the games, never."""

    num_players = 2

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        return jnp.zeros((2, 1)), jnp.where(jax.random.bernoulli(key), 0, -1_000_000)

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        return jnp.zeros((2, 1)), state + 1, jnp.zeros(2), state == 11_999, {}


def test_games_of_many_steps_count_and_those_that_were_given_up_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljax.run.view.tournament.MAX_STEPS", 12_500)
    monkeypatch.setattr("rljax.run.view.tournament.elo", lambda *_: None)
    lines: list[str] = []
    entries = [Entry(name, "zero", lambda _: lambda *_: jnp.zeros(2), None, draws=True) for name in "ab"]
    found = tournament(Long(), None, entries, key=jax.random.key(0), num_games=8, opening_moves=0, progress=lines.append)
    drawn = int(found.draws[0, 1])
    assert 0 < drawn < 8
    assert lines == [f"a - b: 0 won, 0 lost, {drawn} drawn ({8 - drawn} of 8 games given up after 12,500 steps)"]
    assert found.played[0, 1] == drawn


def running(speed: float) -> Entry:
    """A player who arrives after an exponential time; the order of several follows Plackett's model with their speeds."""
    return Entry(f"{speed}", f"{speed}", lambda _: lambda key, *_: -jax.random.exponential(key, (3,)) / speed, None, draws=True)


@pytest.mark.slow
def test_plackett_luce_finds_the_strengths_of_racers() -> None:
    speeds = (1.0, 2.0, 5.0, 0.5)
    lines: list[str] = []
    found = tournament(Race(), None, [running(x) for x in speeds], key=jax.random.key(0), num_games=600, progress=lines.append)
    assert [line.split(":")[0] for line in lines] == ["1.0 - 2.0 - 5.0", "1.0 - 2.0 - 0.5", "1.0 - 5.0 - 0.5", "2.0 - 5.0 - 0.5"]
    rating, low, high = map(np.asarray, found.ratings)
    true = 1000 + 400 * np.log10(speeds)
    half = (high - low)[1:] / 2
    assert ((half > 10) & (half < 30)).all()
    assert (np.abs(rating - true)[1:] < 1.5 * half).all()
    assert rating[0] == 1000
    # Of two racers one is ahead in proportion to the speeds, whoever else runs; they meet at two tables.
    assert found.games[0, 1] == found.played[0, 1] == 1200
    assert found.wins[2, 3] / 1200 == pytest.approx(5 / 5.5, abs=5 * np.sqrt(0.09 * 0.91 / 1200))
    np.testing.assert_array_equal(found.wins + found.wins.T + found.draws, found.games)


class Scripts(TicTacToe):
    """Tic-tac-toe with three scripted players, of which one draws."""

    @property
    def scripted(self) -> dict[str, Any]:
        def first(key: jax.Array, state: Any, params: Any) -> jax.Array:
            return jnp.argmax(self.action_mask(state, params), axis=-1).astype(jnp.int32)

        def drawn(key: jax.Array, state: Any, params: Any) -> jax.Array:
            return random_player(key, state, None, self.action_mask(state, params))

        remembers = RememberingScript(lambda key, state, params, carry: (first(key, state, params), jnp.zeros(2)))
        return {"first": first, "drawn": drawn, "remembers": remembers}


def test_scripted_players_that_draw_nothing_repeat_their_games() -> None:
    small: dict[str, Any] = {"num_envs": 2, "num_steps": 8, "num_minibatches": 1, "network": {"hidden": [4]}}
    agent = rljax.make_agent(rljax.SelfPlayConfig(env=Scripts(), **small))
    _, _, entries = make_entries({"a": (agent, None)}, ["random", "first", "drawn", "remembers"])
    assert {entry.name: entry.draws for entry in entries} == {
        "a": False,
        "random": True,
        "first": False,
        "drawn": True,
        "remembers": False,
    }


class Coin(Game):
    """The player who says 1 wins with a probability of .9: by chance in the step, or in the deal."""

    num_players = 2

    def __init__(self, dealt: bool) -> None:
        self.dealt, self.step_is_random = dealt, not dealt

    def observation_space(self, params: Any) -> Box:
        return Box(0.0, 1.0, (1,))

    def action_space(self, params: Any) -> Discrete:
        return Discrete(2)

    def action_mask(self, state: jax.Array, params: Any) -> jax.Array:
        return jnp.ones((2, 2), bool)

    def observe(self, state: jax.Array, params: Any) -> jax.Array:
        return jnp.full((2, 1), state if self.dealt else 0.0)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, jax.Array]:
        state = jax.random.randint(key, (), 0, 10) / 10
        return self.observe(state, params), state

    def step_env(self, key: jax.Array, state: jax.Array, action: jax.Array, params: Any) -> tuple[Any, ...]:
        luck = state if self.dealt else jax.random.randint(key, (), 0, 10) / 10
        reward = jnp.where(jnp.arange(2) == jnp.argmax(action), 1.0, -1.0) * jnp.where(luck < 0.85, 1.0, -1.0)
        return self.observe(state, params), state, reward, jnp.asarray(True), {}

    def is_truncated(self, state: jax.Array, params: Any) -> jax.Array:
        return jnp.asarray(False)


@pytest.mark.parametrize("dealt", [False, True])
def test_all_games_of_chance_count(dealt: bool) -> None:
    """Players who draw nothing play few different games then, which are as likely as they are frequent."""
    game: Any = Coin(dealt)
    found = tournament(game, None, [always(1), always(0)], key=jax.random.key(0), num_games=200)
    assert found.games[0, 1] == found.played[0, 1] == 200
    assert found.wins[0, 1] == pytest.approx(180, abs=5 * np.sqrt(200 * 0.09))


@pytest.mark.slow
def test_two_players_fill_three_seats_and_repeated_games_count_once() -> None:
    def naming(number: float) -> Entry:
        return Entry(f"{number}", f"{number}", lambda _: lambda *_: jnp.full(3, number), None)

    found = tournament(Race(), None, [naming(-1.0), naming(-2.0)], key=jax.random.key(0), num_games=12)
    # At each of two tables three seatings differ, and the one of the two names the higher number twice or is beaten by it twice.
    assert found.wins.tolist() == [[0, 12], [0, 0]]
    assert found.played[0, 1] == 2 * 2 * 12
    assert "only 12 distinct games of 48 between -1.0 and -2.0" in (found.few() or "")
    level = tournament(Race(), None, [naming(-1.0), naming(-1.0)._replace(name="b")], key=jax.random.key(0), num_games=12)
    assert level.draws.tolist() == [[0, 12], [12, 0]]
    np.testing.assert_allclose(level.ratings.rating, 1000.0, atol=0.1)


def test_tables_and_ties_in_plain_python() -> None:
    assert all_tables(4, 2) == list(itertools.combinations(range(4), 2))
    assert all_tables(5, 3) == list(itertools.combinations(range(5), 3))
    assert all_tables(2, 3) == [(0, 0, 1), (0, 1, 1)]
    ranking = ranking_of((4, 2, 7, 5), np.array([3, 1, 1, 3]))
    assert ranking == ((2, 7), (4, 5))
    orders, weights = split_ties(Counter({ranking: 8, ((2,), (4,), (5,), (7,)): 3}))
    split = dict(zip(map(tuple, orders.tolist()), weights.tolist(), strict=True))
    assert split == {(2, 7, 4, 5): 2, (2, 7, 5, 4): 2, (7, 2, 4, 5): 2, (7, 2, 5, 4): 2, (2, 4, 5, 7): 3}
    orders, weights = split_ties(Counter({(tuple(range(7)),): 1}))
    np.testing.assert_array_equal(np.sort(orders, axis=0), np.tile(np.arange(7)[:, None], 7))
    np.testing.assert_allclose(weights, 1 / 7)


def test_players_are_called_by_their_folders_or_by_their_addresses() -> None:
    zoo = "zoo:tictactoe_selfplay"
    assert [*_name_players([zoo, "runs/a", "runs/b/checkpoints/step_64"])] == ["tictactoe_selfplay", "a", "b/64"]
    # A run of the same name: the whole path, and the address instead of where it leads to.
    assert [*_name_players([zoo, "runs/tictactoe_selfplay"])] == [zoo, "runs/tictactoe_selfplay"]


def test_players_that_are_none_and_a_number_for_a_key_are_one_line() -> None:
    with pytest.raises(rljax.ConfigError, match=r"^players = None: expected run folders, or a dictionary of players by name$"):
        rljax.tournament(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^expected a random key such as jax.random.key\(0\), got 0$"):
        rljax.tournament(["zoo:tictactoe_selfplay"], include=["random"], num_games=2, key=0)  # type: ignore[arg-type]


def test_a_picture_that_cannot_be_written_is_refused_before_any_game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = rljax.make_agent(rljax.SelfPlayConfig(env="BiasedRPS-v0"))
    (tmp_path / "file").touch()
    said: list[str] = []
    players = {"agent": (agent, None)}
    with pytest.raises(rljax.ConfigError, match=r"x\.png: cannot be written: there is no folder at \S+/file$"):
        rljax.tournament(players, include=["random"], num_games=2, out=tmp_path / "file" / "a" / "x.png", progress=said.append)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(rljax.ConfigError, match=r"x\.png: cannot be written: there is no permission to write at \S+$"):
        rljax.tournament(players, include=["random"], num_games=2, out=tmp_path / "new" / "x.png", progress=said.append)
    assert not said
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_tournament_of_one_team_is_refused() -> None:
    run = Run(rljax.SelfPlayConfig(env=Parade((0, 0, 0))), None, 0)
    with pytest.raises(rljax.ConfigError, match="Parade: all players are one team, so there is nobody to beat; rljax eval gives"):
        rljax.tournament({"a": run}, include=["random"])


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
    assert ("not a move" in text) == (seat == 0)
    assert ("not legal here" in text) == (seat == 1)
    assert "the agent chooses" in text
    assert " X | " in text or " O | " in text
    assert ("you win" in text) == (result > 0)


class Named(TicTacToe):
    def action_names(self, params: Any) -> tuple[str, ...]:
        return ("UP", "q", "Q", "Up", "e", "F", "G", "H", "I")


def test_actions_are_typed_by_their_names_in_any_case() -> None:
    """Case counts only where names differ in nothing else, and what is a legal action does not leave the game."""
    game, said = Named(), list[str]()

    def play_named(*typed: str) -> float | None:
        return play(game, game.default_params, first_empty, seat=0, key=jax.random.key(0), ask=replies(*typed), say=said.append)

    assert play_named("Q", "E", "g") == 1.0  # the agent takes the first ones that are left
    assert play_named("up", "quit") is None  # two are like it
    assert said[-2].startswith("'up' is not a move")
    assert play_named("e", "q", "QUIT") is None
    assert said[-3] == "the agent chooses Q"
    assert play_named("e", "E", "Quit") is None
    assert said[-2].startswith("'E' is not legal here")
    # The exact name of an action that is not legal stands for no other.
    assert _ask_choice("your move", ("A", "a", "b"), np.array([True, False, True]), replies("a", "B"), said.append) == 2
    assert said[-1].startswith("'a' is not legal here")


class Misere(TicTacToe):
    """Tic-tac-toe that rewards three in a row, and in which who has them has lost."""

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        obs, state, reward, terminated, info = super().step_env(key, state, action, params)
        return obs, state, reward, terminated, {**info, "result": -reward}


def first_empty(key: Any, state: Any, obs: Any, mask: jax.Array) -> jax.Array:
    return jnp.argmax(mask, axis=-1)


def test_a_person_is_told_the_result_of_the_game_and_its_return() -> None:
    said: list[str] = []
    game = Misere()
    play(game, game.default_params, first_empty, seat=0, key=jax.random.key(0), ask=replies("7", "5", "3"), say=said.append)
    assert said[-1] == "you lose: +1"


class Ahead(TicTacToe):
    """Tic-tac-toe in which both have a good result; who has more is ahead."""

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        obs, state, reward, terminated, info = super().step_env(key, state, action, params)
        return obs, state, reward, terminated, {**info, "result": 5 + reward}


def test_who_is_ahead_has_won() -> None:
    for moves, words in ((("7", "5", "3"), "you win: +1"), (("9", "8", "5"), "you lose: -1")):
        said: list[str] = []
        game = Ahead()
        play(game, game.default_params, first_empty, seat=0, key=jax.random.key(0), ask=replies(*moves), say=said.append)
        assert said[-1] == words


def test_quitting_and_the_end_of_input_leave_the_game() -> None:
    game, params = make_env("KuhnPoker-v0")
    for typed in (("quit",), ()):
        said: list[str] = []
        assert play(game, params, random_player, seat=0, key=jax.random.key(1), ask=replies(*typed), say=said.append) is None
        assert "your card: " in said[0]
        assert said[-1] == "you left the game"


class Scored(Parade):
    def text(self, state: Any, params: Any, player: int) -> str:
        return "totals " + " ".join(f"{x:g}" for x in np.asarray(state.total))


def test_a_person_is_told_what_is_done_where_actions_are_sticky() -> None:
    """What each player is said to have done adds up to its total, though it chose other numbers."""
    game = GameTimeLimit(GameStickyActions(Scored((0, 1), "box"), 0.5), 6)
    typed, said = [f"{i % 4} {(i * 3 + 1) % 4}" for i in range(6)], list[str]()
    ask = replies(*typed)

    def asked(prompt: str) -> str:
        said.append(f"typed {(line := ask(prompt))}")
        return line

    play(game, game.default_params, counting("box", 1), seat=0, key=jax.random.key(1), ask=asked, say=said.append)
    steps = "\n".join(said[:-2]).split("totals ")[1:]  # without the last view and the result
    done: list[list[str]] = []
    for step in steps:
        _, first, *others = step.strip().split("\n")
        own = next((line.removeprefix("you repeat ") for line in others if line.startswith("you")), first.removeprefix("typed "))
        agent = next(line for line in others if line.startswith("the agent")).removesuffix(" (at the same time)")
        done.append([own, agent.removeprefix("the agent chooses ").removeprefix("the agent repeats ")])
    worth = [[2 * int(a) + int(b) for a, b in (line.split() for line in lines)] for lines in done]
    assert said[-2] == "totals " + " ".join(str(sum(of_player)) for of_player in zip(*worth, strict=True))
    repeated = [i for i in range(6) if done[i][0] != typed[i]]
    assert len(repeated) >= 2
    assert all(done[i][0] == done[i - 1][0] for i in repeated)
    assert any(line.startswith("the agent repeats ") for line in said)
    assert any(line.startswith("the agent chooses ") for line in said)


@pytest.mark.slow
def test_games_of_more_than_two_can_be_played_from_every_seat() -> None:
    game, params = make_env("Territory-v0")
    names = game.action_names(params)
    said: list[str] = []

    def ask(prompt: str) -> str:
        return prompt.partition("(")[2].split()[0].strip(",")

    assert play(game, params, random_player, seat=3, key=jax.random.key(2), ask=ask, say=said.append) is not None
    others = [line for line in said if " chooses " in line]
    assert {line.split(" chooses ")[0] for line in others} == {"player 0", "player 1", "player 2"}
    assert all(line.split(" chooses ")[1].split(" (")[0] in names for line in others)
    with pytest.raises(rljax.ConfigError, match="seat = 4: expected 0 to 3"):
        play(game, params, random_player, seat=4, key=jax.random.key(2), ask=ask, say=said.append)


@pytest.mark.parametrize(("space", "typed"), [("heads", 2), ("multi", 2), ("box", 1)])
def test_a_person_types_the_heads_and_numbers_of_composite_actions(space: str, typed: int) -> None:
    """Three players in turns; the agent has a memory for each seat, and the person gets what plain Python says."""
    game = Parade((0, 1, 2), space, turns=True)
    said: list[str] = []
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        if space == "box":
            return ["1 9", "a", "2, 1.0"][(len(asked) - 1) % 3]
        return prompt.partition("(")[2].split()[0].strip(",")  # the first legal one

    result = play(game, game.default_params, counting(space, 1), seat=1, key=jax.random.key(0), ask=ask, say=said.append)
    # The person moves at steps 1 and 4. A second head may not choose what the first has chosen; at odd times it is not 0.
    own = {"box": [[2, 1], [2, 1]]}.get(space, [[1, 0], [0, 1]])
    plain, moved, _ = plain_parade(game, lambda s, n: own[n] if s == 1 else plain_choice(space, 1, s, n))
    assert moved[1] == 2
    assert result == pytest.approx(plain[1])
    assert len(asked) == (6 if space == "box" else 2 * typed)
    labels = {"heads": ("word (1 2,", "number (0 2 3,"), "multi": ("part 1 of 2 (1 2,", "part 2 of 2 (0 2 3,")}
    for label, prompt in zip(labels.get(space, ("2 numbers from 0 to 3",)), asked, strict=False):
        assert label in prompt
    heads = plain_choice(space, 1, 2, 0)
    wanted = {"heads": f"word {heads[0]}, number {heads[1]}", "multi": f"{heads[0]}, {heads[1]}", "box": f"{heads[0]} {heads[1]}"}
    assert f"player 2 chooses {wanted[space]}" in said
    place = 1 + sum(other > plain[1] for other in plain)
    assert said[-1].startswith(f"you have place {place} of 3")
    assert play(game, game.default_params, random_player, seat=0, key=jax.random.key(0), ask=replies(), say=said.append) is None


def test_a_person_is_not_shown_what_only_critics_may_see() -> None:
    game, params = make_env("race:HiddenBit-v0")
    obs, state = game.reset_env(jax.random.key(0), params)
    assert "privileged" in obs
    text = game.text(state, params, 0)
    assert "privileged" not in text
    assert "Array" not in text
    assert text.count("\n") == len(obs) - 2


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


@pytest.mark.long
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
    rljax.fit(config.replace(eval_every=256), run_dir="runs/a", checkpoint_every=256)
    # Whom evaluations are against, and how many of their games differ, is in the records and said.
    header, *records = [json.loads(line) for line in Path("runs/a/metrics.jsonl").read_text().splitlines()]
    assert header["eval_opponent"] == "random play"
    assert 1 < records[-1]["eval/distinct"] <= 32
    main(["eval", "runs/a", "--episodes", "20"])
    main(["show", "runs/a"])
    said = capsys.readouterr().out
    assert "greedy return over 20 games against random play (" in said
    assert "evaluated against random play" in said
    Path("b.toml").write_text(dump_config(config.replace(env="KuhnPoker-v0")))
    main(["train", "b.toml"])
    said = capsys.readouterr().out
    assert "  rljax play runs/b\n  rljax tournament runs/b --include random\n" in said
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
        (["tournament", "runs/a", "--include", "random", "--openings", "-1"], "openings = -1"),
        (["tournament", "runs/c", "--include", "random"], "is no agent of a game"),
        (["tournament", "runs/b", "--include", "random,mcts"], "hides a part of its state"),
        (["play", "runs/b", "--simulations", "4"], "hides a part of its state"),
        (["play", "runs/a", "--simulations", "-1"], "simulations = -1: expected"),
        (["play", "runs/c"], "is no agent of a game"),
        (["plot", "--kind", "payoffs", "runs/a"], "has no pool of past players"),
        (["plot", "--kind", "payoffs", "runs/c"], "has no pool of past players"),
        (["play", "runs/a", "--seat", "2"], "seat = 2: expected 0 or 1"),
        (["train", "tictactoe_selfplay", "--env", "CartPole-v1"], "is not a game"),
    ):
        assert_refused(arguments, message, capsys)
    with pytest.raises(SystemExit):
        main(["play", "runs/b", "--simulations", "4"])
    assert capsys.readouterr().out == ""  # nothing is said of a game that is not played


class Unequal(Parade):
    """A team of two, of whom player 0 gets 3 in each of the 7 steps and player 1 gets 1."""

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> tuple[Any, ...]:
        obs, state, _, terminated, info = super().step_env(key, state, action, params)
        return obs, state, jnp.array([3.0, 1.0]), terminated, info


@pytest.mark.slow
@pytest.mark.parametrize("seat", [0, 1])
def test_a_team_gets_the_mean_of_its_players_returns(seat: int) -> None:
    game, said = Unequal((0, 0)), list[str]()

    def ask(prompt: str) -> str:
        return prompt.partition("(")[2].split()[0].strip(",")

    own = play(game, game.default_params, random_player, seat=seat, key=jax.random.key(0), ask=ask, say=said.append)
    assert own == (21.0, 7.0)[seat]
    assert said[-1] == "your team gets: +14"
