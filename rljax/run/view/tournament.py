"""Tournaments between trained agents and players that need no training."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.collect.environments import RULES
from rljax.collect.games.matches import Games, play_games, seatings_of
from rljax.collect.randomize import GameRandomizeParams
from rljax.core.config import Config, env_name
from rljax.core.config_files import config_table
from rljax.core.contract import layers
from rljax.core.errors import ConfigError, did_you_mean, shown
from rljax.core.games.chance import deals, draws_in_step, is_random, script_draws
from rljax.core.games.game import Game
from rljax.core.games.versus import Player, random_player
from rljax.envs.microrts.java.engine import BOTS, check_java, parse_bot, start_java
from rljax.envs.microrts.java.players import JAVA
from rljax.league.league import League
from rljax.league.ratings import Ratings, elo, plackett_luce
from rljax.league.rules import ROLES
from rljax.run.files.folder import Run
from rljax.run.files.outputs import atomic_file, output_path
from rljax.run.microrts.games import check_openings
from rljax.run.microrts.matches import java_program, microrts_of, play_java_match
from rljax.run.players import (
    UNTRAINED,
    Actor,
    Contestant,
    actor_player,
    agent_player,
    check_one_game,
    game_giver,
    game_of,
    is_pair,
    played_game,
    trained_agent,
)
from rljax.run.view.pairings import Ranking, all_tables, ranking_of, split_ties, swiss_tables
from rljax.run.view.plot import METADATA, STYLE, SUFFIXES

NOT_ACTING = (
    "seed", "total_timesteps", "learning_rate", "anneal_lr", "adam_eps", "max_grad_norm", "num_envs", "num_steps", "num_epochs",
    "num_minibatches", "eval_every", "eval_episodes", "clip_eps", "ent_coef", "vf_coef", "gae_lambda",
)  # fmt: skip
"""Fields in which agents may differ and still act by one compiled program."""

MANY = 20
"""Largest number of players of a heat map with numbers."""

ROUND_ROBIN = 50
"""Largest number of pairings (tables) of a round-robin tournament by default; with more there are Swiss rounds."""

MAX_STEPS = 100_000
"""Number of steps after which a game is given up. Games of MicroRTS with actions = "units" take tens of thousands."""


class Entry(NamedTuple):
    """Player in a tournament.

    Attributes:
        name: name of the player.
        kind: text that is equal for players that share a compiled program.
        make: function from the state to the player.
        state: state of the agent.
        draws: whether the player is random, so that it may act differently in the same position.
        java: name of a bot of the Java engine of microRTS, which plays there; such bots do not meet each other.
    """

    name: str
    kind: str
    make: Callable[[Any], Player]
    state: Any
    draws: bool = False
    java: str | None = None


class Standings(NamedTuple):
    """Result of a tournament of K players.

    A game that deterministic players repeat gives no new information and counts once. In games of more than two teams, every two
    players at a table are compared: the one with the better place has won against the other.

    Attributes:
        names: names of the players.
        wins: number of games that i won against j, f32 `[K, K]`.
        draws: number of drawn games, `[K, K]`, symmetric.
        games: number of games that count, `[K, K]`, symmetric.
        played: number of games played, `[K, K]`, symmetric.
        ratings: Elo ratings, or Plackett-Luce ratings of whole rankings where there are more than two teams, with 95 %
            intervals; `random` has 1000, or if it does not take part, the first player.
        teams: number of teams of the game.
    """

    names: tuple[str, ...]
    wins: np.ndarray
    draws: np.ndarray
    games: np.ndarray
    played: np.ndarray
    ratings: Ratings
    teams: int = 2

    def score(self) -> np.ndarray:
        """Return the share of points of i against j, with half a point for a draw, `[K, K]`; NaN if they did not play."""
        with np.errstate(invalid="ignore"):
            return np.where(self.games > 0, (self.wins + 0.5 * self.draws) / self.games, np.nan)

    def any_game(self) -> bool:
        """Return whether a game counts at all: not if all were given up, or before the first of a league."""
        return bool((self.games > 0).any())

    def few(self) -> str | None:
        """Return a line about pairings in which fewer than half of the games count, or None; it names the worst one."""
        pairs = [
            (i, j) for i, j in zip(*np.triu_indices(len(self.names), 1), strict=True) if 2 * self.games[i, j] < self.played[i, j]
        ]
        if not pairs:
            return None
        i, j = min(pairs, key=lambda pair: self.games[pair] / self.played[pair])
        others = f", and few in {len(pairs) - 1} other pairings" if len(pairs) > 1 else ""
        return (
            f"only {self.games[i, j]:.0f} distinct games of {self.played[i, j]:.0f} between {self.names[i]} and {self.names[j]}"
            f"{others}: a repeated game counts once; longer random openings make more games distinct (--openings)"
        )


def make_entries(
    players: Mapping[str, Contestant], include: Sequence[str] = (), sample: bool = False, simulations: int = 0
) -> tuple[Game, Any, list[Entry]]:
    """Return the game of all agents, its parameters, and the players.

    Args:
        players: trained agents by name.
        include: names in `UNTRAINED` and of the game's scripted players; in MicroRTS also of its Java bots, as in
            `rljax.envs.microrts.java.engine.parse_bot`, which play in Java. Games of a player that draws all count; of others,
            repeated games count once.
        sample: sample actions from policies, also if the best policy of the game is not random.
        simulations: number of positions that the runs' agents search before each move; 0 plays their policies without search.

    Raises:
        ConfigError: there is no run, the runs are of different games, the game has one team, a name is unknown, or the game
            cannot be searched.
    """
    agents = {name: trained_agent(player) for name, player in players.items()}
    if not agents:
        raise ConfigError("a tournament needs at least one run")
    for name, (agent, _) in agents.items():
        if not agent.config.of_games:
            _named(name, game_of, agent.config)
    first = game_giver([Actor(name, *agent) for name, agent in agents.items()]).name
    expected = played_game(agents[first][0].config)
    for name, (agent, _) in agents.items():
        check_one_game(name, agent.config, first, expected)
    _, game, params = expected
    if game.num_teams == 1:
        raise ConfigError(f"{game.name}: all players are one team, so there is nobody to beat; rljax eval gives its return")
    entries = []
    for name, (agent, state) in agents.items():
        kind = _kind_of(agent.config)
        if is_pair(players[name]):
            kind += f" {id(agent)}"  # it need not be made of its configuration
        draws = simulations == 0 and (sample or game.best_is_random)
        entries.append(Entry(name, kind, _named(name, agent_player, agent, sample, simulations), state, draws))
    java_bots = tuple(BOTS) if microrts_of(game) is not None else ()
    for given in include:
        name = given.removeprefix(JAVA) if java_bots else given
        if name.partition(":")[0] in java_bots or name != given:
            parse_bot(name)
            for rule, usual in RULES.items():
                value = expected.table[rule]
                if value not in (None, usual):
                    raise ConfigError(f"include: '{given}': Java does not know {rule} = {value}; expected agents without one")
            check_java()
            entries.append(Entry(name, name, partial(_ignore_state, random_player), None, java=name))
            continue
        if name not in (*UNTRAINED, *game.scripted):
            raise ConfigError(f"include: '{name}': {did_you_mean(name, (*UNTRAINED, *(java_bots or game.scripted)))}")
        draws = name in UNTRAINED or script_draws(game, params, game.scripted[name])
        entries.append(Entry(name, name, actor_player(Actor(name), game, params), None, draws))
    names = [entry.name for entry in entries]
    if len(entries) < 2 or len(set(names)) < len(names):
        raise ConfigError(f"a tournament of {', '.join(names)}: expected at least two different players (see --include)")
    return game, params, entries


def _named(name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a function; if it refuses a player, the message begins with the player's name."""
    try:
        return function(*args)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def _kind_of(config: Config) -> str:
    """Return a text that is equal for configurations whose agents share a compiled program.

    What acting depends on is up to each algorithm, so nearly every field counts: too many programs only take time.
    """
    table = {name: value for name, value in config_table(config).items() if name not in NOT_ACTING}
    # A table names only the class of a network of one's own, not its attributes.
    return f"{table} {getattr(config, 'network', None)!r}"


def _ignore_state(player: Player, _state: Any) -> Player:
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
    """Play a tournament: a round robin, or Swiss rounds, in which players with similar scores meet.

    As many players meet at a table as the game has teams; if there are fewer players, some of them take several teams. Games
    begin with random moves, and each such opening is played from every seat: deterministic players would repeat the same game
    from one position. If all players at a table are deterministic, a repeated game counts once. A game that takes more than
    100,000 steps is given up and does not count; the line of its pairing says how many these are.

    Args:
        game: the game.
        params: its parameters.
        entries: the players.
        key: random key.
        num_games: number of games per pairing (table), taking turns at the seats.
        opening_moves: number of random moves at the start of each game; if None, the game's `opening_moves`, or none if chance or
            random best play makes games differ.
        system: "round-robin", "swiss", or "auto": Swiss with more than 50 pairings; bots of Java are not paired with each other.
        progress: function that is called with a line of text for every pairing.
    """
    count, teams = len(entries), game.num_teams
    java_bots = [i for i, entry in enumerate(entries) if entry.java]
    tables = [table for table in all_tables(count, teams) if not set(table) <= set(java_bots)]
    if system not in ("auto", "round-robin", "swiss"):
        raise ConfigError(f"system = {shown(system)}: expected auto, round-robin or swiss")
    swiss = count > teams and (system == "swiss" or (system == "auto" and len(tables) > ROUND_ROBIN))
    if opening_moves is None:
        varied = game.best_is_random or _hides_state(game) or is_random(game, params)
        opening_moves = 0 if varied else game.opening_moves
    if java_bots:
        check_openings(opening_moves, int(params.max_cycles))
        in_java = microrts_of(game)
        if in_java is not None and in_java.fog:  # before any game is played
            for i in java_bots:
                start_java(progress).check_plays_with_fog(in_java.map_name, str(entries[i].java))
    programs: dict[tuple[Any, ...], Any] = {}
    wins, draws, games, all_games = np.zeros((4, count, count))
    rankings: Counter[Ranking] = Counter()

    @functools.cache
    def chance() -> bool:
        """Return whether games differ by chance: equal ones are then as likely as they are frequent, and count."""
        return draws_in_step(game, params) or deals(game, params)

    def meet(table: tuple[int, ...]) -> None:
        nonlocal key
        key, match_key = jax.random.split(key)
        bots = [i for i in table if i in java_bots]
        if bots:
            table = (*(i for i in table if i not in bots), *bots)
        different = tuple(dict.fromkeys(table))
        who = [entries[i] for i in different]
        pattern = tuple(different.index(i) for i in table)
        kinds = (*(entry.kind for entry in who), pattern)
        if kinds not in programs and not bots:
            # One seating of several that are the same but for who of one player's copies sits where.
            seatings = list({tuple(pattern[i] for i in seating): seating for seating in seatings_of(teams)}.values())

            def match(states: tuple[Any, ...], key: jax.Array) -> Games:
                players = [entry.make(state) for entry, state in zip(who, states, strict=True)]
                entrants = [players[i] for i in pattern]
                return play_games(game, params, entrants, key, num_games, MAX_STEPS, opening_moves, seatings)

            programs[kinds] = jax.jit(match)
        if bots:
            rules: Any = microrts_of(game)
            player, bot = who[0], str(who[1].java)
            kinds = ("java", player.kind)
            program = programs.setdefault(kinds, java_program(rules, params, player.make))
            found = play_java_match(rules, params, program, player.state, bot, match_key, num_games, opening_moves, progress)
        else:
            found = jax.tree.map(np.asarray, programs[kinds](tuple(entry.state for entry in who), match_key))
        over = np.isfinite(found.result[:, 0])
        varied = any(entry.draws for entry in who) or (not found.new.all() and chance())
        counts = over & (found.new | varied)
        place = found.place[counts]
        for a, b in itertools.permutations(range(teams), 2):
            i, j = table[a], table[b]
            if i != j:
                wins[i, j] += (place[:, a] < place[:, b]).sum()
                draws[i, j] += (place[:, a] == place[:, b]).sum()
                games[i, j] += counts.sum()
                all_games[i, j] += over.sum()
        rankings.update(ranking_of(table, places) for places in place)
        again = f" ({counts.sum()} distinct games of {over.sum()})" if counts.sum() < over.sum() else ""
        if not over.all():
            again += f" ({(~over).sum()} of {over.size} games given up after {MAX_STEPS:,} steps)"
        names = " - ".join(entries[i].name for i in table)
        if teams == 2:
            i, j = table
            seats = "".join(f"; as player {seat}: {_shares(found, seat)}" for seat in range(2)) if bots else ""
            progress(f"{names}: {wins[i, j]:.0f} won, {wins[j, i]:.0f} lost, {draws[i, j]:.0f} drawn{again}{seats}")
        else:
            places = ", ".join(f"{x:.2f}" for x in place.mean(0)) if len(place) else "none"
            progress(f"{names}: mean places {places}{again}")

    if swiss:
        # Each round has a bot of Java for each other player at most.
        enough = max(2 * math.ceil(math.log2(count)), math.ceil(len(java_bots) / max(count - len(java_bots), 1)))
        for _ in range(min(count - 1, enough)):
            played = games.sum(1)
            share = np.where(played > 0, (wins + 0.5 * draws).sum(1) / np.maximum(played, 1), 0.5)
            for table in swiss_tables(share, played, games > 0, teams, java_bots):
                meet(table)
    else:
        for table in tables:
            meet(table)
    names = tuple(entry.name for entry in entries)
    anchor = names.index("random") if "random" in names else 0
    if teams == 2:
        ratings = elo(jnp.asarray(wins + 0.5 * draws, jnp.float32), anchor)
    else:
        orders, weights = split_ties(rankings)
        ratings = plackett_luce(jnp.asarray(orders.reshape(-1, teams)), count, anchor, weights=jnp.asarray(weights))
    return Standings(names, wins, draws, games, all_games, ratings, teams)


def _hides_state(game: Game) -> bool:
    """Return whether a game hides a part of its state besides parameters drawn for each game: deterministic players, who do not
    see these, may play the same moves whatever is drawn.
    """
    drawn = next((layer for layer in layers(game) if isinstance(layer, GameRandomizeParams)), None)
    hides: bool = game.hides_state if drawn is None else drawn.env.hides_state
    return hides


def _shares(games: Games, seat: int) -> str:
    """Return how many games the first entrant won, lost and drew as one of two players, such as "50-0-0"."""
    won, drawn, lost = games.counts(seat)
    return f"{won}-{lost}-{drawn}"


def league_standings(run: Run) -> Standings:
    """Return the standings of a league's learners and its pool, by the league's own record, in which old games count less.

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
    # List past players from the first to the last, named by their learner and the step of the run. A fork with other steps per
    # iteration has rounded those of before down to its own iterations, and what is older than its iteration 0 is negative.
    there.sort(key=lambda i: (pool.age[i], pool.parent[i]))
    who = [ROLES[role].replace("_", " ") for role in run.config.roles]
    who = [f"{name} {who[: i + 1].count(name)}" if who.count(name) > 1 else name for i, name in enumerate(who)]
    steps = run.config.steps_per_iteration
    offset = run.step % steps
    names = [*who, *(f"{who[pool.parent[i]]} @ {max(offset + int(pool.age[i]) * steps, 0):,}" for i in there)]
    players = [*range(learners), *(learners + i for i in there)]
    order = np.ix_(players, players)
    wins, draws, games = record.wins[order], record.draws[order], record.games[order]
    return Standings(tuple(names), wins, draws, games, games, elo(jnp.asarray(wins + 0.5 * draws), anchor=learners))


def draw_payoffs(standings: Standings, out: str | os.PathLike[str]) -> Path:
    """Draw a heat map of the shares of points, the strongest player first: `.png`, `.svg` or `.pdf`. Grey: never met.

    Raises:
        ConfigError: no two players have met, or `out` is not allowed.
    """
    import matplotlib
    from matplotlib.figure import Figure

    path = output_path(out, SUFFIXES)
    order = np.argsort(-np.asarray(standings.ratings.rating), kind="stable")
    score = 100.0 * standings.score()[np.ix_(order, order)]
    if not standings.any_game():
        raise ConfigError(f"{path}: nothing to draw: no game between two players counts so far")
    names = [standings.names[i] for i in order]
    many = len(names) > MANY
    side = max(3.2, (0.2 if many else 0.6) * len(names) + 1.6)
    with matplotlib.rc_context(STYLE), atomic_file(path) as aside:
        figure = Figure(figsize=(side + 0.8, side), layout="constrained")
        ax = figure.subplots()
        ax.set_facecolor("0.8")  # for pairs that never met; white is an even score
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
        if not np.isfinite(score[~np.eye(len(names), dtype=bool)]).all():
            figure.supxlabel("grey: never met", fontsize=7, color="0.35")
        suffix = path.suffix.lower()
        figure.savefig(aside, format=suffix[1:], dpi=150, metadata=METADATA[suffix])
    return path
