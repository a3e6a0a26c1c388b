"""Whole games in the Java engine, many side by side: its bots against players that decide on states of the JAX engine."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from rljax.core.errors import ConfigError, RljaxWarning
from rljax.envs.microrts.java.engine import BotError, Java, JavaGame
from rljax.envs.microrts.java.positions import NONE, Position
from rljax.envs.microrts.java.states import orders_of, rows_of, state_of
from rljax.envs.microrts.rules.state import Orders, RTSState
from rljax.envs.microrts.rules.waits import Waits

Decide = Callable[[RTSState], tuple[Orders, Orders]]
"""Player of G games at once: states with leaves `[G, ...]` to its orders as player 0 and as player 1, leaves `[G, H, W]`. Games
that are over are among them, as they ended."""

ATTEMPTS = 20
"""Number of openings that are tried for a game: with many random moves, some end it."""


class JavaGames(NamedTuple):
    """Results of G games between a player and a Java bot.

    Attributes:
        seat: the player's number, i32 `[G]`.
        winner: number of the winner, -1 for a draw, i32 `[G]`.
        length: number of cycles, i32 `[G]`; up to the one in which the bot ended with an exception, and lost.
        new: False where an earlier game had the same seat and the same positions from the end of its opening on, bool `[G]`.
    """

    seat: np.ndarray
    winner: np.ndarray
    length: np.ndarray
    new: np.ndarray

    def counts(self, seat: int | None = None) -> tuple[int, int, int]:
        """Return how many games the player won, drew and lost, from one seat or from both."""
        of_seat = np.ones(len(self.seat), bool) if seat is None else self.seat == seat
        won, drawn = of_seat & (self.winner == self.seat), of_seat & (self.winner == -1)
        return int(won.sum()), int(drawn.sum()), int((of_seat & ~won & ~drawn).sum())


def play_java_games(
    java: Java,
    map_name: str,
    bot: str,
    decide: Decide,
    num_games: int,
    *,
    max_cycles: int = 2000,
    opening_cycles: int = 0,
    seed: int = 0,
    waits: Waits | None = None,
    fog: bool = False,
) -> JavaGames:
    """Play games against a Java bot, from both seats in turn. A bot that ends with an exception loses the game, as in the
    competitions of microRTS; a warning says how often.

    Args:
        java: the Java engine.
        map_name: name of the map.
        bot: name of the bot, as in `Java.bot`.
        decide: the player.
        num_games: number of games G.
        max_cycles: number of cycles after which a game is a draw.
        opening_cycles: number of cycles at the start in which both players' orders are random; each such opening is played from
            both seats. One that ends the game is drawn again.
        seed: seed of the openings, and of the bot's random numbers.
        waits: how long units of the player wait that it gives no order, as in the game in JAX, where those of the bot do, too;
            None: as long as `decide` says.
        fog: whether the bot sees only cells within the sight of its units.

    Raises:
        ConfigError: the openings take the whole game, or many in a row end it; or the bot cannot play with fog.
    """
    check_openings(opening_cycles, max_cycles)
    if fog:
        java.check_plays_with_fog(map_name, bot)
    wait_after = None if waits is None else wait_function(waits)
    games = [opened_game(java, map_name, opening_cycles, [seed, index // 2]) for index in range(num_games)]
    bots = [java.bot(bot).as_new(int(x)) for x in np.random.default_rng(seed).integers(2**31, size=num_games)]
    seat = np.arange(num_games, dtype=np.int32) % 2
    positions = [game.position() for game in games]
    over = np.zeros(num_games, bool)
    prints = [_fingerprint(position, 0) for position in positions]
    crashes: dict[int, BotError] = {}
    for _ in range(opening_cycles, max_cycles):
        states = [state_of(position) for position in positions]
        orders = decide(stacked(states))
        for index in np.flatnonzero(~over):
            game, position, own = games[index], positions[index], int(seat[index])
            # Neither sees what the other orders in this cycle: both plans are made before the engine gets the first.
            rows = rows_of(position, jax.tree.map(lambda x, index=index: x[index], orders[own]), own)
            try:
                theirs, wait = bots[index].play(game.seen_by(1 - own) if fog else game, 1 - own), 1
            except BotError as error:
                over[index], crashes[int(index)] = True, error
                continue
            if wait_after is not None:
                rows = rows[rows[:, 1] != NONE]
                wait = wait_after(states[index], position, partial(_of_both, game, rows, theirs))
            plans = {own: game.plan(own, rows, wait), 1 - own: theirs}
            for player in range(2):
                game.state.issueSafe(plans[player])
            over[index] = game.cycle()
            positions[index] = game.position()
            prints[index] = _fingerprint(positions[index], prints[index])
        if over.all():
            break
    played = list(zip(seat.tolist(), prints, strict=True))
    new = [game not in played[:index] for index, game in enumerate(played)]
    winner = np.array([game.winner() if ended else -1 for game, ended in zip(games, over, strict=True)], np.int32)
    if crashes:
        lost = list(crashes)
        winner[lost] = seat[lost]
        why = next(iter(crashes.values()))
        warnings.warn(f"{why}: it loses {len(lost)} of {num_games} games by an exception", RljaxWarning, stacklevel=2)
    length = np.array([position.time for position in positions], np.int32)
    return JavaGames(seat, winner, length, np.array(new))


def check_openings(opening_cycles: int, max_cycles: int) -> None:
    """Check that openings leave something of a game.

    Raises:
        ConfigError: they do not.
    """
    if opening_cycles >= max_cycles:
        raise ConfigError(f"openings = {opening_cycles}: a game has {max_cycles} cycles, expected fewer openings")


def opened_game(java: Java, map_name: str, cycles: int, seed: Sequence[int]) -> JavaGame:
    """Return a game after some cycles in which both players' orders are random; an opening that ends the game is drawn again.

    Raises:
        ConfigError: many openings in a row end the game.
    """
    for attempt in range(ATTEMPTS):
        game, chance, over = java.game(map_name), np.random.default_rng([*seed, attempt]), False
        for _ in range(cycles):
            for player in range(2):
                game.issue(player, random_orders(game, player, chance))
            over = game.cycle()
            if over:
                break
        if not over:
            return game
    raise ConfigError(f"openings = {cycles}: random moves ended {ATTEMPTS} games in a row, expected fewer of them")


def _of_both(game: JavaGame, rows: np.ndarray, plan: Any) -> np.ndarray:
    """Return the orders of one player, i32 `[K, 6]`, and those in the plan of the other, together."""
    return np.concatenate([rows, game.orders_in(plan)])


@cache
def wait_function(waits: Waits) -> Callable[[RTSState, Position, Callable[[], np.ndarray]], int]:
    """Return the function `(state, position, ordered) -> cycles`, for which units wait that are given no order.

    `ordered() -> i32 [K, 6]`, the orders of both players, is called only if the wait depends on them.
    """
    compiled = jax.jit(waits.of)

    def wait(state: RTSState, position: Position, ordered: Callable[[], np.ndarray]) -> int:
        if not waits.until_change:
            return waits.cycles
        given = ordered()
        return int(compiled(state, orders_of(position, given[given[:, 1] != NONE])))

    return wait


def random_orders(game: JavaGame, player: int, chance: np.random.Generator) -> np.ndarray:
    """Return a random legal order of each idle unit of a player, i32 `[K, 6]`."""
    legal = game.legal(player)
    return np.concatenate([legal[:0], *(chance.choice(legal[legal[:, 0] == unit])[None] for unit in np.unique(legal[:, 0]))])


def stacked(trees: Sequence[Any]) -> Any:
    """Return trees of arrays as one tree, each leaf with a new first axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _fingerprint(position: Position, after: int) -> int:
    # The ids of units, in the first column, go on counting from game to game.
    return zlib.crc32(position.units[:, 1:].tobytes() + position.resources.tobytes(), after)
