"""Record demonstrations of the bots of microRTS' Java engine: they play there, and what they see and do is as in MicroRTS-v0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rljax.collect.demos.schema import DatasetInfo
from rljax.core.errors import ConfigError, shown
from rljax.envs import resolve_env
from rljax.envs.microrts.game import MicroRTS
from rljax.envs.microrts.java.engine import Java, JavaBot, parse_bot, start_java
from rljax.envs.microrts.java.players import JAVA, is_java
from rljax.envs.microrts.java.positions import NONE, Position
from rljax.envs.microrts.java.states import orders_of, state_of
from rljax.envs.microrts.rules.state import Orders, RTSState
from rljax.envs.microrts.scripted.players import actions_of
from rljax.run.demos.sources import Play, check_seat, plain_table
from rljax.run.demos.writer import Episode
from rljax.run.microrts.games import ATTEMPTS, random_orders, stacked, wait_function
from rljax.run.players import SELF

NUM_GAMES = 16
"""Largest number of games that are played side by side by default."""


class JavaCast(NamedTuple):
    """Everybody in a recording.

    Attributes:
        info: what the dataset is to say.
        game: the game, which gives observations, masks and actions.
        params: its parameters.
        bot: name of the recorded bot.
        against: names of its opponents, which take turns; None: the bot itself, of which then both seats are recorded.
        seat: the seat that is recorded; None: each in turn.
    """

    info: DatasetInfo
    game: MicroRTS
    params: Any
    bot: str
    against: list[str | None]
    seat: int | None


class Step(NamedTuple):
    """A step of G games.

    Attributes:
        obs: what both players see, `[G, 2, ...]`.
        mask: their legal actions, bool `[G, 2, A]`.
        action: what they do, i32 `[G, 2, ...]`.
        components: the components of their rewards by name, f32 `[G, 2]`.
    """

    obs: Any
    mask: np.ndarray
    action: np.ndarray
    components: dict[str, np.ndarray]


Look = Callable[[RTSState, Orders], Step]


def find_java_cast(
    source: str, env: Any, env_params: Mapping[str, Any] | None, against: Sequence[Any], seat: int | None
) -> JavaCast:
    """Find the bots of a recording and their game; the arguments are those of `rljax.demonstrations`.

    Raises:
        ConfigError: there is no such bot, the game is not MicroRTS, or an argument is not allowed.
    """
    if env is None:
        raise ConfigError(f"{source}: a bot of MicroRTS: give the game: env = 'MicroRTS-v0' (--env)")
    for name in against:
        if name != SELF and not is_java(name):
            raise ConfigError(f"against {shown(name)}: expected self or another bot of the Java engine, such as java:workerrush")
    game, params = resolve_env(env, env_params)
    if not isinstance(game, MicroRTS) or game.actions == "units":
        raise ConfigError(
            f"{source}: plays MicroRTS-v0 with actions = 'cells' or 'gridnet', not {shown(env)} with these parameters"
        )
    names = [source, *(name for name in against if name != SELF)]
    for name in names:
        parse_bot(name.removeprefix(JAVA))
    check_seat(game, seat, opposed=len(names) > 1)
    recorded = {"player": source, "against": ["itself" if name == SELF else name for name in against]}
    name = env if isinstance(env, str) else game.name
    spaces = game.observation_space(params), game.action_space(params)
    info = DatasetInfo(name, plain_table(env_params or {}), *spaces, True, recorded)
    opponents = [None if name == SELF else name.removeprefix(JAVA) for name in against]
    return JavaCast(info, game, params, source.removeprefix(JAVA), opponents, seat)


def java_rounds(cast: JavaCast, progress: Callable[[str], None]) -> Play:
    """Return the function that plays rounds in Java."""
    java, look, wait = start_java(progress), look_at(cast.game, cast.params), wait_function(cast.game.waits)

    def play(whom: int, count: int, first: int, earlier: int) -> Iterator[Episode]:
        seats = [(earlier + i) % 2 if cast.seat is None else cast.seat for i in range(count)]
        games = [_JavaGame(java, cast, wait, cast.against[whom], first + i, seat) for i, seat in enumerate(seats)]
        return _play_round(look, cast, games)

    return play


def look_at(game: MicroRTS, params: Any) -> Look:
    """Return the compiled function from states and both players' orders, leaves `[G, H, W]`, to what the players see and do."""

    def look(state: RTSState, orders: Orders) -> tuple[Any, ...]:
        _, components, _ = game.play(state, game.with_waits(state, orders), params)
        return game.observe(state, params), game.action_mask(state, params), actions_of(game, state, orders), components

    compiled = jax.jit(jax.vmap(look))
    return lambda state, orders: Step(*jax.tree.map(np.asarray, compiled(state, orders)))


class _JavaGame:
    """A game under way, after its opening: the bots at its seats, its position, and what was recorded."""

    def __init__(
        self,
        java: Java,
        cast: JavaCast,
        wait: Callable[[RTSState, Position, Callable[[], np.ndarray]], int],
        opponent: str | None,
        number: int,
        seat: int,
    ):
        how, self.number, self._wait_after = cast.info.recorded, number, wait
        self._limit = int(cast.params.max_cycles)
        self.seats = (0, 1) if opponent is None else (seat,)
        names = [cast.bot if player in self.seats else str(opponent) for player in range(2)]
        seeds = np.random.default_rng([how["seed"], number]).integers(2**31, size=2)
        self.bots: list[JavaBot] = [java.bot(name).as_new(int(x)) for name, x in zip(names, seeds, strict=True)]
        self.steps: list[Step] = []
        for attempt in range(ATTEMPTS):
            self.game, self.over = java.game(cast.game.map_name), False
            self._look()
            self._open(how["openings"], np.random.default_rng([how["seed"], number, attempt]))
            if not self.over:
                return
        raise ConfigError(f"openings = {how['openings']}: random moves ended {ATTEMPTS} games in a row, expected fewer of them")

    def _open(self, moves: int, rng: np.random.Generator) -> None:
        """Play steps in which both players' orders are random."""
        for _ in range(moves):
            self._give([random_orders(self.game, player, rng) for player in range(2)])
            self._pass_time()

    def give_orders(self) -> Orders:
        """Give both bots' orders to the engine, and return them."""
        return self._give([bot.orders(self.game, player) for player, bot in enumerate(self.bots)])

    def _give(self, wanted: list[np.ndarray]) -> Orders:
        """Give orders of both players, i32 `[K, 6]` each, to the engine; return those that could be given, and the waits."""
        wanted = [rows[rows[:, 1] != NONE] for rows in wanted]
        # How long the other units wait may depend on what can be given.
        wait = self._wait_after(self.state, self.position, lambda: self._planned(wanted, 1)[0])
        given, plans = self._planned(wanted, wait)
        for plan in plans:
            self.game.state.issueSafe(plan)
        return orders_of(self.position, given)

    def _planned(self, wanted: list[np.ndarray], wait: int) -> tuple[np.ndarray, list[Any]]:
        """Return what `JavaGame.plan` makes of orders of both players, as orders i32 `[K, 6]` and as the plans themselves."""
        plans = [self.game.plan(player, rows, wait) for player, rows in enumerate(wanted)]
        return np.concatenate([self.game.orders_in(plan) for plan in plans]), plans

    def step(self, seen: Step) -> None:
        """Note what the players saw and did, and play until a unit has no order under way."""
        self._pass_time()
        winner = self.game.winner()
        win = np.array([0.0 if winner < 0 else 1.0 if winner == player else -1.0 for player in range(2)], np.float32)
        self.steps.append(seen._replace(components=seen.components | {"win": win}))

    def _pass_time(self) -> None:
        while not self.over:
            self.over = self.game.cycle() or int(self.game.state.getTime()) >= self._limit
            if any(self.game.state.canExecuteAnyAction(player) for player in range(2)):
                break
        self._look()

    def _look(self) -> None:
        self.position = self.game.position()
        self.state = state_of(self.position)


def _play_round(look: Look, cast: JavaCast, going: list[_JavaGame]) -> Iterator[Episode]:
    """Play games side by side from beginning to end, and yield the episodes of their recorded players."""
    how = cast.info.recorded
    nothing = orders_of(going[0].position, going[0].position.orders[:0])

    def seen(states: list[RTSState], orders: list[Orders]) -> list[Step]:
        # Always as many games: another number would be compiled again. Copies, as a slice would keep the whole array.
        steps = look(*(_filled(trees, how["num_envs"]) for trees in (states, orders)))
        return [jax.tree.map(lambda x, i=i: x[i].copy(), steps) for i in range(len(states))]

    while going:
        states = [game.state for game in going]
        orders = [game.give_orders() for game in going]
        for game, step in zip(going, seen(states, orders), strict=True):
            game.step(step)
        for game in [game for game in going if game.over or len(game.steps) >= how["max_steps"]]:
            going.remove(game)
            yield from _episodes(cast, game, *seen([game.state], [nothing]))


def _filled(trees: Sequence[Any], size: int) -> Any:
    return stacked([*trees, *[trees[0]] * (size - len(trees))])


def _episodes(cast: JavaCast, game: _JavaGame, after: Step) -> Iterator[Episode]:
    steps: Step = stacked(game.steps)
    reward = sum(getattr(cast.params, f"{name}_weight") * value for name, value in steps.components.items())
    last = np.arange(len(reward)) == len(reward) - 1
    for seat in game.seats:
        seen = jax.tree.map(
            lambda x, y, s=seat: np.concatenate([x[:, s], y[None, s]]), (steps.obs, steps.mask), (after.obs, after.mask)
        )
        yield Episode(
            obs=seen[0],
            action=steps.action[:, seat],
            mask=seen[1],
            reward=reward[:, seat].astype(np.float32),
            # A game at its limit of cycles is a draw by its rules.
            terminated=last & game.over,
            truncated=last & (not game.over),
            seat=seat,
            game=game.number,
        )
