"""Tournaments between runs, and games of a person against a run, for `rljax tournament` and `rljax play`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax

from rljax.core.errors import ConfigError, check_whole, shown
from rljax.core.keys import as_key
from rljax.run.files.folder import split_path
from rljax.run.files.zoo import is_address
from rljax.run.players import Contestant, agent_player, game_of, trained_agent
from rljax.run.view import play as terminal
from rljax.run.view import tournament as matches
from rljax.run.view.tournament import Standings


def tournament(
    players: Sequence[str | os.PathLike[str]] | Mapping[str, Contestant],
    *,
    include: Sequence[str] = (),
    num_games: int = 100,
    opening_moves: int | None = None,
    sample: bool = False,
    simulations: int = 0,
    system: str = "auto",
    key: jax.Array | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Standings:
    """Let trained agents of one game play each other, and rate them.

    Args:
        players: run folders or checkpoints (whose best seeds play), or `{name: ...}` with folders, `Run`s or `(agent, state)`.
        include: players that need no training: "random", "mcts", scripted players of the game; for MicroRTS the bots of its Java
            engine ("coac", say).
        num_games: number of games per pairing (of as many players as the game has teams), taking turns at the seats.
        opening_moves: number of random moves at the start of each game, so that games differ; if None, the game's own number, or
            none with `sample`.
        sample: sample actions from policies, also if the best policy of the game is not random.
        simulations: number of positions that the agents search before each move; 0 plays their policies without search.
        system: "round-robin", "swiss", or "auto": Swiss with more than 50 pairings.
        key: random key; if None, `jax.random.key(0)`.
        out: file for a heat map of the shares of points, `.png`, `.svg` or `.pdf`; not written if no game counts.
        progress: function that is called with a line of text for every pairing (`print`, say).

    Returns:
        `Standings`: wins, draws and games of every pair, and ratings with 95 % intervals: Elo, or Plackett-Luce in
        games of more than two teams.

    Raises:
        ConfigError: agents of different games or of a game with one team, fewer than two players, or an argument that is not
            allowed.
    """
    check_whole(1, num_games=num_games)
    if opening_moves is not None:
        check_whole(0, opening_moves=opening_moves)
    if out is not None:
        matches.output_path(out, matches.SUFFIXES)
    game, params, entries = matches.make_entries(_name_players(players), include, sample, simulations)
    if opening_moves is None and sample:
        opening_moves = 0  # games of players that sample differ anyway
    standings = matches.tournament(
        game,
        params,
        entries,
        key=jax.random.key(0) if key is None else as_key(key),
        num_games=num_games,
        opening_moves=opening_moves,
        system=system,
        progress=progress,
    )
    if out is not None and standings.any_game():
        matches.draw_payoffs(standings, out)
    return standings


def play(
    opponent: Contestant,
    *,
    seat: int = 0,
    sample: bool = False,
    simulations: int = 0,
    key: jax.Array | None = None,
    ask: Callable[[str], str] = input,
    say: Callable[[str], None] = print,
) -> float | None:
    """Play a game against a trained agent, in the terminal or in a notebook.

    Args:
        opponent: a run folder or checkpoint (whose best seed plays), a `Run`, or `(agent, state)`.
        seat: your seat, from 0; the opponent takes all others.
        sample: let the opponent sample its actions, also if the best policy of the game is not random.
        simulations: number of positions that the opponent searches before each move; 0 plays its policy without search.
        key: random key; if None, `jax.random.key(0)`.
        ask: function that shows a prompt and returns the answer.
        say: function that shows a line.

    Returns:
        Your return; None if you quit.

    Raises:
        ConfigError: the opponent is not an agent of a game that can be played, or an argument is not allowed.
    """
    agent, state = trained_agent(opponent)
    game, params = game_of(agent.config)
    terminal.check_seat(game, seat)
    player = agent_player(agent, sample, simulations)(state)
    return terminal.play(game, params, player, seat=seat, key=jax.random.key(0) if key is None else key, ask=ask, say=say)


def _name_players(players: Sequence[str | os.PathLike[str]] | Mapping[str, Contestant]) -> Mapping[str, Contestant]:
    if isinstance(players, Mapping):
        return players
    if isinstance(players, (str, os.PathLike)):
        players = [players]
    if not isinstance(players, Iterable):
        raise ConfigError(f"players = {shown(players)}: expected run folders, or a dictionary of players by name")
    if not all(isinstance(player, (str, os.PathLike)) for player in players):
        raise ConfigError("a tournament of agents that are not run folders needs a name for each: {name: (agent, state)}")
    parts = [split_path(player) for player in players]
    # Runs of one preset in different folders have the same name.
    short = len({folder.name for folder, _ in parts}) == len({folder for folder, _ in parts})
    called = [
        folder.name if short else str(player if is_address(player) else folder)
        for player, (folder, _) in zip(players, parts, strict=True)
    ]
    names = [name if step == "latest" else f"{name}/{step}" for name, (_, step) in zip(called, parts, strict=True)]
    if len(set(names)) < len(names):
        raise ConfigError(f"a tournament of {', '.join(names)}: expected different players")
    return dict(zip(names, players, strict=True))
