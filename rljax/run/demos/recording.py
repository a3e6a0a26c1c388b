"""Record demonstrations of agents, scripted players and searches to a folder."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax

from rljax.collect.demos.dataset import Dataset, open_dataset
from rljax.collect.evaluation import MAX_EVALUATION_STEPS
from rljax.core.errors import ConfigError, TrainingInterrupted, check_int
from rljax.core.places import as_path
from rljax.envs.microrts.java.players import is_java
from rljax.run.demos.java import NUM_GAMES, JavaCast, find_java_cast, java_rounds
from rljax.run.demos.playing import compile_table, play_round
from rljax.run.demos.sources import Cast, Play, find_cast
from rljax.run.demos.writer import SHARD_BYTES, DatasetWriter, Episode, continued_dataset, new_dataset
from rljax.run.players import SELF, Source

NUM_ENVS = 256
"""Largest number of games that are played at once by default."""

PARTS = 8
"""Number of parts of a recording after each of which its episodes are written: a kill loses at most one."""


def demonstrations(
    source: Source,
    path: str | os.PathLike[str],
    *,
    num_episodes: int,
    env: Any = None,
    env_params: Mapping[str, Any] | None = None,
    against: Source | list[Source] = SELF,
    seat: int | None = None,
    sample: bool = False,
    simulations: int = 0,
    openings: int = 0,
    seed: int = 0,
    num_envs: int | None = None,
    max_steps: int = MAX_EVALUATION_STEPS,
    shard_bytes: int = SHARD_BYTES,
    resume: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Dataset:
    """Record whole episodes of a player to a folder, which `open_dataset` reads.

    Episodes are played in compiled rounds of `num_envs` at once, each from its beginning to its end, so short episodes are not
    favoured and only a round's unfinished episodes are in memory. Ctrl-C loses only the round under way, and a kill at most an
    eighth of the recording (or a shard); `resume` records the rest, with the same result as without a kill. Only Java bots that
    draw at random, or search for some time, play other games after a `resume`.

    Args:
        source: run folder or checkpoint (whose best seed acts), a `Run`, `(agent, state)`, or the name of a player that needs no
            training: "random", "mcts" (a search), one of the game's scripted players, or a bot of MicroRTS' Java engine
            ("java:coac", with the extra `microrts`), whose opponents must be such bots.
        path: folder to create.
        num_episodes: number of episodes, or of games of several players.
        env: environment id or object, for players that need no training. A run is recorded in its own environment,
            with the fields that wrap it, such as `frame_stack` and `action_repeat`; a game, as it gives observations itself.
        env_params: changes of its parameters.
        against: opponent in games, like `source`, or a list of those that take turns; "self" is the player itself, of which then
            all seats are recorded.
        seat: team that the player takes against opponents; None: each in turn.
        sample: sample actions from policies; otherwise they are greedy, unless the best policy of the environment is random.
        simulations: number of positions that agents (and "mcts") search before each move; 0: agents play without search.
        openings: number of random moves before each game, which are not recorded: deterministic players repeat one game else.
        seed: seed of the episodes' random numbers.
        num_envs: number of episodes that are played at once; None: 256 (16 of Java bots), or fewer if there are fewer.
        max_steps: cut an episode after so many steps; it is then truncated.
        shard_bytes: write a shard when there are so many bytes.
        resume: continue a recording that was stopped, with the same arguments, if the folder exists.
        progress: function that is called with a line of text after each round.

    Returns:
        The dataset.

    Raises:
        ConfigError: the folder exists (and not `resume`), or an argument is not allowed.
        TrainingInterrupted: Ctrl-C stopped the recording; the message says how many episodes are there.
    """
    folder = as_path(path, "path")
    check_int("demonstrations", 1, num_episodes=num_episodes, max_steps=max_steps, shard_bytes=shard_bytes)
    check_int("demonstrations", 1, num_envs=1 if num_envs is None else num_envs)
    check_int("demonstrations", 0, seed=seed, openings=openings, simulations=simulations)
    whom = against if isinstance(against, list) else [against]
    if not whom:
        raise ConfigError("against = []: expected at least one opponent, or 'self'")
    cast: Cast | JavaCast
    if is_java(source):
        if sample or simulations:
            raise ConfigError(
                f"{source}: a bot of the Java engine has no policy to sample from (sample) or to search with (simulations)"
            )
        cast, most = find_java_cast(source, env, env_params, whom, seat), NUM_GAMES
    else:
        cast, most = find_cast(source, env, env_params, whom, seat, sample, simulations), NUM_ENVS
        cast = cast._replace(tables=[table._replace(openings=openings, max_steps=max_steps) for table in cast.tables])
    count = num_envs or max(1, min(most, -(-num_episodes // len(whom))))
    how = {
        "num_episodes": num_episodes, "seat": seat, "sample": sample, "simulations": simulations, "openings": openings,
        "seed": seed, "num_envs": count, "max_steps": max_steps,
    }  # fmt: skip
    cast = cast._replace(info=cast.info._replace(recorded=cast.info.recorded | how))
    with _writer(folder, cast, shard_bytes, resume) as writer:
        try:
            play = java_rounds(cast, progress) if isinstance(cast, JavaCast) else _compiled_rounds(cast)
            _record(writer, cast.info.recorded, len(whom), play, progress)
        except KeyboardInterrupt:
            writer.keep()
            done = writer.table["episodes_begun"]
            there = f"{done:,} of {num_episodes:,} episodes are in {path}, and resume (--resume) records the rest"
            raise TrainingInterrupted(f"interrupted: {there if done else 'nothing was recorded'}", None, signal.SIGINT) from None
    return open_dataset(path, verify=False)


def _writer(path: Path, cast: Cast | JavaCast, shard_bytes: int, resume: bool) -> AbstractContextManager[DatasetWriter]:
    """Return the writer of a new dataset, or of one to continue."""
    if resume and os.path.lexists(path):
        return continued_dataset(path, cast.info, shard_bytes)
    return new_dataset(path, cast.info, shard_bytes)


def _record(writer: DatasetWriter, how: Mapping[str, Any], opponents: int, play: Play, progress: Callable[[str], None]) -> None:
    """Play round after round, with the opponents in turn, until all episodes are written."""
    total, at_once = how["num_episodes"], how["num_envs"]
    done, steps = writer.table["episodes_begun"], 0
    while done < total:
        count = min(at_once, total - done)
        rounds, whom = divmod(done // at_once, opponents)
        for episode in play(whom, count, done, rounds * at_once):
            writer.add(episode)
            steps += len(episode.reward)
        done += count
        kept = writer.table["episodes_begun"]
        writer.commit(done, last=done * PARTS // total > kept * PARTS // total)
        progress(f"{done:,} of {total:,} episodes, {steps:,} steps")


def _compiled_rounds(cast: Cast) -> Play:
    """Return the function that plays rounds of compiled games."""
    how = cast.info.recorded
    at_once, key = how["num_envs"], jax.random.key(how["seed"])
    programs: dict[int, Any] = {}

    def play(whom: int, count: int, first: int, earlier: int) -> Iterator[Episode]:
        table, states = cast.tables[whom], cast.states[whom]
        if whom not in programs:
            programs[whom] = compile_table(table, at_once, states)
        return play_round(table, programs[whom], states, jax.random.fold_in(key, first // at_once), count, first, earlier)

    return play
