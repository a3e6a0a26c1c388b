"""Tournaments: trained agents, and players that need no training, against each other."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.collect.environments import make_game
from rljax.collect.games.matches import Match, play_match, policy_player
from rljax.core.agent import make_agent
from rljax.core.config import Config, config_table, env_name
from rljax.core.errors import ConfigError, did_you_mean, shown
from rljax.core.game import Game
from rljax.core.versus import Player, random_player
from rljax.league.league import League
from rljax.league.ratings import Ratings, elo
from rljax.league.rules import ROLES
from rljax.planning.mcts import MAX_SIMULATIONS, check_searchable, make_mcts, search_player, searching
from rljax.run.files.folder import Run
from rljax.run.files.outputs import atomic_file, output_path
from rljax.run.view.plot import METADATA, STYLE, SUFFIXES

UNTRAINED = ("random", "mcts")
"""Names of players that need no training: random legal moves, and UCT with 100 simulations."""

MCTS_SIMULATIONS = 100
MANY = 20
"""Players above which a heat map has no numbers."""

ROUND_ROBIN = 50
"""Pairings up to which everybody plays everybody; with more, Swiss rounds."""


class Entry(NamedTuple):
    """Who takes part: `make(state)` is the player. Entries of one `kind` are compiled once; `draws` says whether a player may do
    different things in the same position."""

    name: str
    kind: str
    make: Callable[[Any], Player]
    state: Any
    draws: bool = False


class Standings(NamedTuple):
    """What came of a tournament of K players.

    A game that two players that draw nothing play again says nothing new, and counts once.

    Attributes:
        names: of the players.
        wins: how often i beat j, f32 `[K, K]`.
        draws: `[K, K]`, symmetric.
        games: that count, `[K, K]`, symmetric.
        played: games, `[K, K]`, symmetric.
        ratings: Elo with 95 % intervals; `random` has 1000, or the first player where it does not take part.
    """

    names: tuple[str, ...]
    wins: np.ndarray
    draws: np.ndarray
    games: np.ndarray
    played: np.ndarray
    ratings: Ratings

    def score(self) -> np.ndarray:
        """The share of points of i against j, a draw as half a win, `[K, K]`; NaN where they did not play."""
        with np.errstate(invalid="ignore"):
            return np.where(self.games > 0, (self.wins + 0.5 * self.draws) / self.games, np.nan)

    def few(self) -> str | None:
        """A line about pairings in which fewer than half of the games count, the worst of them by name; None: there are none."""
        pairs = [
            (i, j) for i, j in zip(*np.triu_indices(len(self.names), 1), strict=True) if 2 * self.games[i, j] < self.played[i, j]
        ]
        if not pairs:
            return None
        i, j = min(pairs, key=lambda pair: self.games[pair] / self.played[pair])
        others = f", and few in {len(pairs) - 1} other pairings" if len(pairs) > 1 else ""
        return (
            f"only {self.games[i, j]:.0f} distinct games of {self.played[i, j]:.0f} between {self.names[i]} and {self.names[j]}"
            f"{others}: the same game counts once; longer random openings make more of them (--openings)"
        )


def game_of(config: Config) -> tuple[Game, Any]:
    """The game of a configuration, and its parameters.

    Raises:
        ConfigError: it is of an environment of one agent.
    """
    if not config.of_games:
        raise ConfigError(
            f"{config.algorithm} on {env_name(config)}: is no agent of a game, expected a run of self_play, league or alphazero"
        )
    return make_game(config)


def entries_of(
    runs: Sequence[tuple[str, Run]], include: Sequence[str] = (), sample: bool = False, simulations: int = 0
) -> tuple[Game, Any, list[Entry]]:
    """The game that all runs are of, its parameters, and who takes part.

    Args:
        runs: names and runs.
        include: of `UNTRAINED`.
        sample: draw actions of policies, also where the best policy of the game is not random.
        simulations: positions that the runs' agents look at before each move; 0: they take what their policies say.

    Raises:
        ConfigError: no run, runs of different games, an unknown name, or a game that cannot be searched.
    """
    if not runs:
        raise ConfigError("a tournament needs at least one run")
    tables = [config_table(run.config) for _, run in runs]
    for (name, _), table in zip(runs, tables, strict=True):
        if (table["env"], table["env_params"]) != (tables[0]["env"], tables[0]["env_params"]):
            raise ConfigError(f"{name}: plays {table['env']}, but {runs[0][0]} plays {tables[0]['env']}: expected one game")
    game, params = game_of(runs[0][1].config)
    entries = []
    for (name, run), table in zip(runs, tables, strict=True):
        kind = str([table[field] for field in ("algorithm", "env", "env_params", "network")])
        draws = simulations == 0 and (sample or game.best_is_random)
        entries.append(Entry(name, kind, player_of(run, sample, simulations), run.state, draws))
    for name in include:
        if name not in UNTRAINED:
            raise ConfigError(f"include: '{name}': {did_you_mean(name, UNTRAINED)}")
        search = None if name == "random" else make_mcts(game, params, num_simulations=MCTS_SIMULATIONS)
        entries.append(
            Entry(name, name, partial(_always, random_player if search is None else searching(search, game)), None, True)
        )
    names = [entry.name for entry in entries]
    if len(entries) < 2 or len(set(names)) < len(names):
        raise ConfigError(f"a tournament of {', '.join(names)}: expected at least two different players (see --include)")
    return game, params, entries


def player_of(run: Run, sample: bool = False, simulations: int = 0) -> Callable[[Any], Player]:
    """What makes a player of a run's state: its greedy policy, its sampled one, or one that searches.

    Raises:
        ConfigError: `simulations` is not allowed, or with `sample`.
    """
    if not 0 <= simulations <= MAX_SIMULATIONS:
        raise ConfigError(f"simulations = {simulations}: expected 0 (the policy alone) to {MAX_SIMULATIONS}")
    if simulations and sample:
        raise ConfigError(f"simulations = {simulations}: a search does not sample; expected 0, or no --sample")
    agent = make_agent(run.config)
    if simulations:
        check_searchable(*game_of(run.config))
        return partial(search_player, agent, num_simulations=simulations)
    return partial(policy_player, agent, deterministic=False if sample else None)


def _always(player: Player, _state: Any) -> Player:
    return player


def tournament(
    game: Game,
    params: Any,
    entries: Sequence[Entry],
    *,
    key: jax.Array,
    num_games: int = 100,
    opening_moves: int | None = None,
    system: str = "auto",
    progress: Callable[[str], None] = lambda _: None,
) -> Standings:
    """Everybody against everybody, or Swiss rounds: those of like scores meet.

    Games begin with random moves, each such opening played from every seat, and go on as the players play: best moves from one
    position would give the same game again and again. Where both players draw nothing, a game that is repeated counts once.

    Args:
        game: the game.
        params: of it.
        entries: who takes part.
        key: random key.
        num_games: of each pairing, seats taken in turn.
        opening_moves: steps of random play that games begin with; the game's `opening_moves` unless given, and none where chance,
            or best play that is random, makes games differ.
        system: "round-robin", "swiss", or "auto": Swiss from more than 50 pairings on.
        progress: is told of every pairing.
    """
    count = len(entries)
    pairings = count * (count - 1) // 2
    if system not in ("auto", "round-robin", "swiss"):
        raise ConfigError(f"system = {shown(system)}: expected auto, round-robin or swiss")
    swiss = system == "swiss" or (system == "auto" and pairings > ROUND_ROBIN)
    if opening_moves is None:
        varied = game.best_is_random or game.hides_state or game.step_is_random
        opening_moves = 0 if varied else game.opening_moves
    programs: dict[tuple[str, str], Any] = {}
    wins, draws, games, all_games = np.zeros((4, count, count))

    def meet(i: int, j: int) -> None:
        nonlocal key
        key, match_key = jax.random.split(key)
        first, second = entries[i], entries[j]
        kinds = (first.kind, second.kind)
        if kinds not in programs:

            def match(a: Any, b: Any, key: jax.Array) -> Match:
                return play_match(game, params, first.make(a), second.make(b), key, num_games, opening_moves=opening_moves)

            programs[kinds] = jax.jit(match)
        match_ = programs[kinds](first.state, second.state, match_key)
        result = np.asarray(match_.result)
        played = int(np.isfinite(result).sum())
        if not (first.draws or second.draws):
            result = result[np.asarray(match_.new)]
        wins[i, j] += (result > 0).sum()
        wins[j, i] += (result < 0).sum()
        counted = int(np.isfinite(result).sum())
        for table, number in ((draws, (result == 0).sum()), (games, counted), (all_games, played)):
            table[i, j] += number
            table[j, i] += number
        again = f" ({counted} distinct games of {played})" if counted < played else ""
        progress(f"{first.name} - {second.name}: {wins[i, j]:.0f} won, {wins[j, i]:.0f} lost, {draws[i, j]:.0f} drawn{again}")

    if swiss:
        for _ in range(min(count - 1, 2 * math.ceil(math.log2(count)))):
            played = games.sum(1)
            share = np.where(played > 0, (wins + 0.5 * draws).sum(1) / np.maximum(played, 1), 0.5)
            for i, j in swiss_pairs(share, played, games > 0):
                meet(i, j)
    else:
        for i, j in itertools.combinations(range(count), 2):
            meet(i, j)
    names = tuple(entry.name for entry in entries)
    anchor = names.index("random") if "random" in names else 0
    return Standings(names, wins, draws, games, all_games, elo(jnp.asarray(wins + 0.5 * draws, jnp.float32), anchor))


def swiss_pairs(share: np.ndarray, played: np.ndarray, met: np.ndarray) -> list[tuple[int, int]]:
    """Who meets in the next round: from the top, each the next one it did not meet yet, or the next one. Of an odd number the
    last of those who played most sits out.

    Args:
        share: of points won, `[K]`.
        played: games of each so far, `[K]`.
        met: who has met whom, bool `[K, K]`.
    """
    left = [int(i) for i in np.argsort(-share, kind="stable")]
    if len(left) % 2:
        left.remove([i for i in left if played[i] == played.max()][-1])
    pairs = []
    while len(left) > 1:
        first = left.pop(0)
        second = next((other for other in left if not met[first, other]), left[0])
        left.remove(second)
        pairs.append((first, second))
    return pairs


def league_standings(run: Run) -> Standings:
    """What a league's learners and its pool have got against each other, by its own record, in which old games count less.

    Raises:
        ConfigError: the run has no pool.
    """
    league: League | None = getattr(run.state, "league", None)
    if league is None:
        raise ConfigError(
            f"{run.config.algorithm} on {env_name(run.config)}: has no pool of past players, so no record of results"
        )
    record, pool = jax.tree.map(np.asarray, (league.payoff.record, league.pool))
    learners = len(run.config.roles)
    there = [i for i in range(pool.capacity) if pool.filled[i]]
    # Past players from the first to the last, as the learners' snapshots at what step of the run.
    there.sort(key=lambda i: (pool.age[i], pool.parent[i]))
    who = [ROLES[role].replace("_", " ") for role in run.config.roles]
    who = [f"{name} {who[: i + 1].count(name)}" if who.count(name) > 1 else name for i, name in enumerate(who)]
    steps = run.config.steps_per_iteration
    names = [*who, *(f"{who[pool.parent[i]]} @ {pool.age[i] * steps:,}" for i in there)]
    players = [*range(learners), *(learners + i for i in there)]
    order = np.ix_(players, players)
    wins, draws, games = record.wins[order], record.draws[order], record.games[order]
    return Standings(tuple(names), wins, draws, games, games, elo(jnp.asarray(wins + 0.5 * draws), anchor=learners))


def draw_payoffs(standings: Standings, out: str | os.PathLike[str]) -> Path:
    """A heat map of the shares of points, the strongest player first: `.png`, `.svg` or `.pdf`. Grey where two never met."""
    import matplotlib
    from matplotlib.figure import Figure

    path = output_path(out, SUFFIXES)
    order = np.argsort(-np.asarray(standings.ratings.rating), kind="stable")
    score = 100.0 * standings.score()[np.ix_(order, order)]
    names = [standings.names[i] for i in order]
    many = len(names) > MANY
    side = max(3.2, (0.2 if many else 0.6) * len(names) + 1.6)
    with matplotlib.rc_context(STYLE), atomic_file(path) as aside:
        figure = Figure(figsize=(side + 0.8, side), layout="constrained")
        ax = figure.subplots()
        ax.set_facecolor("0.8")  # where two never met; white is even
        image = ax.imshow(score, vmin=0, vmax=100, cmap="RdBu")
        for i, j in itertools.product(range(len(names)), repeat=2):
            if np.isfinite(score[i, j]) and not many:
                dark = abs(score[i, j] - 50) > 30
                ax.text(j, i, f"{score[i, j]:.0f}", ha="center", va="center", fontsize=8, color="white" if dark else "black")
        small: Any = {"fontsize": 6} if many else {}
        ax.set_xticks(range(len(names)), names, rotation=90 if many else 45, ha="center" if many else "right", **small)
        ax.set_yticks(range(len(names)), names, **small)
        ax.set_xlabel("against")
        ax.spines[:].set_visible(False)
        figure.colorbar(image, label="points won, %", shrink=0.8)
        suffix = path.suffix.lower()
        figure.savefig(aside, format=suffix[1:], dpi=150, metadata=METADATA[suffix])
    return path
