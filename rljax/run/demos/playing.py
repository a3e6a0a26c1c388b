"""Play whole games in compiled chunks of steps, and cut what the recorded players saw and did into episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.collect.evaluation import MAX_EVALUATION_STEPS
from rljax.collect.games.matches import joint_action
from rljax.collect.resets import initial_environments
from rljax.core.environments.environment import action_mask_of, strong, tree_where
from rljax.core.environments.wrappers import Wrapper
from rljax.core.games.game import Game
from rljax.core.games.versus import Player, random_player, seat_player
from rljax.core.memory import check_memory, tree_bytes
from rljax.run.demos.writer import Episode

CHUNK_BYTES = 32 * 2**20
"""Size of the steps that are copied from the device at a time."""

CHUNK_STEPS = 128
"""Largest number of steps in a chunk: games that are over wait for its end."""

OPENING = 2**31 - 1
"""Number that the keys of random openings are made with, in place of that of a step."""


class Solo(Wrapper, Game):
    """An environment of one agent as a game of one player, so that both are recorded in the same way."""

    num_players = 1

    @property
    def teams(self) -> tuple[int, ...]:
        return (0,)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        obs, state = self.env.reset_env(key, params)
        return jax.tree.map(lambda x: x[None], obs), state

    def step_env(
        self, key: jax.Array, state: Any, action: Any, params: Any
    ) -> tuple[Any, Any, jax.Array, jax.Array, dict[str, Any]]:
        own = jax.tree.map(lambda x: x[0], action)
        obs, state, reward, terminated, info = self.env.step_env(key, state, own, params)
        return jax.tree.map(lambda x: x[None], obs), state, jnp.asarray(reward, jnp.float32)[None], terminated, info

    def action_mask(self, state: Any, params: Any) -> jax.Array | None:
        mask = action_mask_of(self.env, state, params)
        return None if mask is None else mask[None]


class Under(NamedTuple):
    """E games under way, arrays `[E, ...]`.

    Attributes:
        state: state of the game.
        obs: observations of all players, `[E, P, ...]`; where a game is over, those after its last step.
        mask: their legal actions; None without masks.
        over: whether the game is over, or cut.
        terminated: whether its rules ended it, and not a limit of the environment's steps.
        carries: memory of each entrant.
    """

    state: Any
    obs: Any
    mask: Any
    over: jax.Array
    terminated: jax.Array
    carries: tuple[Any, ...]


class Rows(NamedTuple):
    """Steps of games, arrays `[T, E, ...]`: before each step whether the game was going on, and what its players saw and did."""

    going: Any
    obs: Any
    mask: Any
    action: Any
    reward: Any
    moves: Any


class Table(NamedTuple):
    """What is played.

    Attributes:
        game: the game.
        params: its parameters.
        makes: functions from a state to the player, of the recorded player and of its opponent; only the first one if it plays
            against itself.
        seat: team that the recorded player takes in all games; None: each in turn.
        openings: number of random moves before the recording begins.
        max_steps: cut a game after so many steps.
    """

    game: Game
    params: Any
    makes: tuple[Callable[[Any], Player], ...]
    seat: int | None = None
    openings: int = 0
    max_steps: int = MAX_EVALUATION_STEPS

    def recorded(self, number: int) -> np.ndarray:
        """Return which players are recorded in the game of this number against an opponent, bool `[P]`."""
        if len(self.makes) == 1:
            return np.ones(self.game.num_players, bool)
        team = number % self.game.num_teams if self.seat is None else self.seat
        return np.array(self.game.teams) == team


class Program(NamedTuple):
    """Compiled functions of a table.

    Attributes:
        begin: `(states, key) -> Under`, of `num_games` games.
        advance: `(states, key, time, recorded bool [E, P], Under) -> (Under, Rows)`, of `steps` steps.
        num_games: number of games E that are played at once.
        steps: number of steps T of a chunk.
    """

    begin: Callable[..., Under]
    advance: Callable[..., tuple[Under, Rows]]
    num_games: int
    steps: int


def compile_table(table: Table, num_games: int, states: Sequence[Any]) -> Program:
    """Return the compiled functions by which `num_games` games at a time are played; `states` are those of the players.

    Raises:
        ConfigError: so many games do not fit into memory, or a player's actions do not fit the game.
    """
    game, params = table.game, table.params

    def seated(states: Sequence[Any]) -> list[Any]:
        return [seat_player(make(state), game, params) for make, state in zip(table.makes, states, strict=True)]

    def begin(states: Sequence[Any], key: jax.Array) -> Under:
        players = seated(states)
        state, obs = initial_environments(game, params, key, num_games)

        def begun(state: Any, obs: Any) -> Under:
            carries = tuple(player.initial(state, obs) for player in players)
            no = jnp.zeros((), bool)
            return Under(state, obs, game.action_mask(state, params), no, no, carries)

        now = jax.vmap(begun)(state, obs)
        if not table.openings:
            return now
        keys = jax.random.split(jax.random.fold_in(key, OPENING), (table.openings, num_games))
        return jax.lax.scan(lambda now, keys: (jax.vmap(opened)(keys, now), None), now, keys)[0]

    def moved(key: jax.Array, now: Under, action: Any, carries: tuple[Any, ...]) -> tuple[Under, jax.Array]:
        obs, state, reward, terminated, _ = strong(game.step_env(key, now.state, action, params))
        over = terminated | game.is_truncated(state, params)
        terminated = terminated if isinstance(game, Solo) else over  # a time limit is one of the rules of a game
        return Under(state, obs, game.action_mask(state, params), over, terminated, carries), reward

    def opened(key: jax.Array, now: Under) -> Under:
        act_key, step_key = jax.random.split(key)
        action, _ = seat_player(random_player, game, params).act(act_key, now.state, now.obs, now.mask, None)
        after, _ = moved(step_key, now, action, now.carries)
        return tree_where(after.over, now, after)  # a move that would end the game is left out

    def played(players: list[Any], last: jax.Array, key: jax.Array, now: Under, choosing: jax.Array) -> tuple[Under, Rows]:
        *keys, step_key = jax.random.split(key, len(players) + 1)
        action, carries = joint_action(players, choosing, keys, now.state, now.obs, now.mask, now.carries)
        after, reward = moved(step_key, now, action, carries)
        after = after._replace(over=after.over | last)
        row = Rows(~now.over, now.obs, now.mask, action, reward, game.to_move(now.state))
        return tree_where(now.over, now, after), row

    def advance(
        states: Sequence[Any], key: jax.Array, time: jax.Array, recorded: jax.Array, now: Under, steps: int
    ) -> tuple[Under, Rows]:
        players, choosing = seated(states), (~recorded).astype(jnp.int32)

        def step(now: Under, time: jax.Array) -> tuple[Under, Rows]:
            keys = jax.random.split(jax.random.fold_in(key, time), num_games)
            return jax.vmap(partial(played, players, time + 1 >= table.max_steps))(keys, now, choosing)

        return jax.lax.scan(step, now, time + jnp.arange(steps, dtype=jnp.int32))

    key = jax.eval_shape(lambda: jax.random.key(0))
    now = jax.eval_shape(begin, states, key)
    time = jax.ShapeDtypeStruct((), jnp.int32)
    recorded = jax.ShapeDtypeStruct((num_games, game.num_players), jnp.bool_)
    one = tree_bytes(jax.eval_shape(partial(advance, steps=1), states, key, time, recorded, now)[1])
    check_memory(tree_bytes(now) + one, f"num_envs = {num_games}: playing so many at once", "play fewer")
    steps = max(1, min(CHUNK_STEPS, CHUNK_BYTES // one))
    return Program(jax.jit(begin), jax.jit(partial(advance, steps=steps), donate_argnums=4), num_games, steps)


def play_round(
    table: Table, program: Program, states: Sequence[Any], key: jax.Array, count: int, first: int, earlier: int
) -> Iterator[Episode]:
    """Play the games of one round from beginning to end, and yield the episodes of their recorded players.

    All games are played to their ends, so short ones are not favoured; one that takes `table.max_steps` steps is cut, and its
    episodes are truncated there.

    Args:
        table: what is played.
        program: its compiled functions.
        states: states of the players.
        key: random key of the round.
        count: number of games to yield, at most those that are played at once: the first ones.
        first: number of the first game in the dataset.
        earlier: number of games played against this opponent before, on which depends the recorded player's seat in the first.
    """
    recorded = np.stack([table.recorded(earlier + number) for number in range(program.num_games)])
    begin_key, key = jax.random.split(key)
    now, time = program.begin(states, begin_key), 0
    parts: list[list[Rows]] = [[] for _ in range(count)]
    open_games = list(range(count))
    while open_games:
        now, chunk = program.advance(states, key, np.int32(time), recorded, now)
        rows = jax.tree.map(np.asarray, chunk)
        time += program.steps
        over, terminated = np.asarray(now.over), np.asarray(now.terminated)
        last = None
        for number in open_games:
            steps = int(rows.going[:, number].sum())
            parts[number].append(jax.tree.map(lambda x, n=number, k=steps: x[:k, n].copy(), rows))
        for number in [number for number in open_games if over[number]]:
            last = jax.tree.map(np.asarray, (now.obs, now.mask)) if last is None else last
            open_games.remove(number)
            after = jax.tree.map(lambda x, n=number: x[n], last)
            yield from _episodes(recorded[number], parts[number], after, bool(terminated[number]), first + number)
            parts[number] = []


def _episodes(recorded: np.ndarray, parts: list[Rows], after: tuple[Any, Any], terminated: bool, game: int) -> Iterator[Episode]:
    """Yield the episodes of the recorded players of a game; what others' moves bring belongs to a player's move before them."""
    rows: Rows = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    for seat in np.flatnonzero(recorded):
        moves = np.flatnonzero(rows.moves[:, seat])
        if not len(moves):
            continue
        own = lambda tree, moves=moves, seat=seat: jax.tree.map(lambda x: x[moves, seat], tree)  # noqa: E731
        seen = jax.tree.map(
            lambda x, y, moves=moves, seat=seat: np.concatenate([x[moves, seat], y[None, seat]]), (rows.obs, rows.mask), after
        )
        last = np.arange(len(moves)) == len(moves) - 1
        yield Episode(
            obs=seen[0],
            action=own(rows.action),
            mask=seen[1],
            reward=np.add.reduceat(rows.reward[:, seat], [0, *moves[1:]]).astype(np.float32),
            terminated=last & terminated,
            truncated=last & (not terminated),
            seat=int(seat),
            game=game,
        )
