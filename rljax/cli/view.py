"""Commands that show, play, rate or export a trained agent."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

import rljax
from rljax.cli.folders import load_saved
from rljax.cli.options import Export, Log, Play, Plot, Record, Show, Tournament
from rljax.cli.parsing import split_commas
from rljax.core.config import env_name
from rljax.core.errors import ConfigError, RljaxError
from rljax.core.places import lock_folder
from rljax.run.files.folder import CONFIG_FILE, PHASES_FILE, split_path
from rljax.run.loggers.several import LOGGERS, make_logger
from rljax.run.view.layout import say


def show(options: Show) -> None:
    """`rljax show`: print a run, or the phases of one, in the terminal."""
    from rljax.run.view.phases import show_phases
    from rljax.run.view.show import show as show_folder

    folder = split_path(options.run)[0]
    (show_phases if os.path.isfile(folder / PHASES_FILE) else show_folder)(folder)


def plot(options: Plot) -> None:
    """`rljax plot`: draw learning curves, open-loop predictions, or the results of a league."""
    out = options.out or f"{options.kind}.png"
    if options.kind == "curves":
        rljax.plot([split_path(run)[0] for run in options.runs], out, metric=options.metric)
    else:
        if len(options.runs) != 1:
            raise ConfigError(f"--kind {options.kind} draws one run: expected a single folder, got {len(options.runs)}")
        if options.metric is not None:
            raise ConfigError(f"--metric {options.metric}: only --kind curves takes a metric")
        if options.kind == "openloop":
            from rljax.run.view.openloop import plot_openloop

            plot_openloop(options.runs[0], out)
        else:
            from rljax.run.view.tournament import draw_payoffs, league_standings

            draw_payoffs(league_standings(rljax.load_run(options.runs[0], seed_index="best")), out)
    print(out)


def record(options: Record) -> None:
    """`rljax record`: write a GIF or an MP4 of whole episodes."""
    run, seed = load_saved(options)
    recorded = rljax.record(
        rljax.make_agent(run.config),
        run.state,
        options.out,
        episodes=options.episodes,
        max_steps=options.max_steps,
        key=jax.random.key(options.seed),
        deterministic=None if options.sample is None else not options.sample,
        fps=options.fps,
        against=options.against,
    )
    whom = "" if options.against is None else f" against {options.against}"
    say(f"{options.out}: {run.config.algorithm}{seed} after {run.step:,} steps{whom}; {recorded}")


def log(options: Log) -> None:
    """`rljax log`: send runs to loggers. One that fails gets no further run; the others get them all."""
    from rljax.run.view.log import read_run, send

    names = list(dict.fromkeys(split_commas(options.log)))
    if not names:
        raise ConfigError(f"--log: is missing, expected at least one of: {', '.join(LOGGERS)}")
    for name in names:
        make_logger(name)
    if not options.runs:
        raise ConfigError("RUNS: is missing, expected folders of runs before --log")
    folders = [folder for run in options.runs for folder in _runs_in(split_path(run)[0])]
    runs = [read_run(folder) for folder in folders]  # nothing is sent if one of them cannot be
    for folder in folders:
        with lock_folder(folder):  # refuses one that is being trained
            if options.record:
                saved = rljax.load_run(folder, seed_index="best")
                rljax.record(rljax.make_agent(saved.config), saved.state, folder / "agent.gif", key=jax.random.key(0))
    failures: dict[str, RljaxError] = {}
    for folder, run in zip(folders, runs, strict=True):
        for name in names:
            if name not in failures:
                try:
                    say(f"{folder} -> {name}: {send(run, make_logger(name), name)}")
                except RljaxError as error:
                    failures[name] = error
    if len(failures) == 1:
        raise next(iter(failures.values()))
    if failures:
        raise RljaxError("; ".join(map(str, failures.values())))


def _runs_in(folder: Path) -> list[Path]:
    """Return the run in a folder, or those of its phases that have begun."""
    from rljax.run.phases.train import read_phases

    if not os.path.isfile(folder / PHASES_FILE):
        return [folder]
    return [folder / name for name in read_phases(folder) if os.path.isfile(folder / name / CONFIG_FILE)]


def tournament(options: Tournament) -> None:
    """`rljax tournament`: print a table of ratings and draw a heat map."""
    standings = rljax.tournament(
        options.runs,
        include=[name.strip() for name in options.include.split(",") if name.strip()],
        num_games=options.games,
        opening_moves=options.openings,
        sample=options.sample,
        simulations=options.simulations,
        system=options.system,
        key=jax.random.key(options.seed),
        out=options.out,
        progress=print,
    )
    rating, low, high = (np.asarray(x) for x in standings.ratings)
    width = max(len(name) for name in standings.names)
    won = "won   lost  drawn" if standings.teams == 2 else "ahead behind equal"
    print(f"\n{'':{width}}  rating      95 %         {won}")
    for i in np.argsort(-rating, kind="stable"):
        counts = (standings.wins[i].sum(), standings.wins[:, i].sum(), standings.draws[i].sum())
        interval = f"[{low[i]:5.0f}, {high[i]:5.0f}]"
        print(f"{standings.names[i]:{width}}  {rating[i]:6.0f}  {interval}  " + " ".join(f"{n:6.0f}" for n in counts))
    few = standings.few()
    if few is not None:
        say(few)
    if standings.any_game():
        print(options.out)


def play(options: Play) -> None:
    """`rljax play`: let a person play against the agent."""
    from rljax.run.players import agent_player, game_of
    from rljax.run.view.play import check_seat

    run, seed = load_saved(options)
    game, _ = game_of(run.config)
    check_seat(game, options.seat)
    agent_player(rljax.make_agent(run.config), options.sample, options.simulations)  # refuses a search that cannot be
    print(f"{game.name} against {run.config.algorithm}{seed} after {run.step:,} steps; you are player {options.seat}")
    key = jax.random.key(options.seed)
    rljax.play(run, seat=options.seat, sample=options.sample, simulations=options.simulations, key=key, ask=input)


def export(options: Export) -> None:
    """`rljax export`: write the policy as files that run without rljax."""
    from rljax.run.export.numpy_policy import export_numpy
    from rljax.run.export.policy import check_free, export_policy
    from rljax.run.export.signature import search_note
    from rljax.run.export.web import describe_page, export_web
    from rljax.run.export.weights import export_weights, free_file

    out = options.out or ("policy" if options.numpy is options.web is options.safetensors is None else None)
    # Nothing is written if one of the paths is taken, or would be by another one.
    places = [Path(os.path.abspath(path)) for path in (out, options.numpy, options.web, options.safetensors) if path is not None]
    for i, path in enumerate(places):
        if any(path == other or path in other.parents for other in places[:i] + places[i + 1 :]):
            raise ConfigError(f"{path}: is asked for twice, expected another path for each form of the policy")
    for folder in (out, options.numpy, options.web):
        if folder is not None:
            check_free(Path(folder))
    if options.safetensors is not None:
        free_file(options.safetensors)
    run, seed = load_saved(options)
    if options.web is not None:
        describe_page(run.config)  # refuses what has no page, before anything is written
    agent = rljax.make_agent(run.config)
    of = f"of {run.config.algorithm}{seed} on {env_name(run.config)} after {run.step:,} steps"
    if out is not None:
        report = export_policy(agent, run.state, out, step=run.step)
        say(f"{out}: policy {of}")
        _print_sizes(report.files)
        for reason in dict.fromkeys(report.left_out.values()):
            names = " and ".join(name for name, why in report.left_out.items() if why == reason)
            say(f"  no {names}: {reason}")
    if options.numpy is not None:
        report = export_numpy(agent, run.state, options.numpy, step=run.step)
        say(f"{options.numpy}: policy in NumPy {of}")
        _print_sizes(report.files)
    if options.web is not None:
        report = export_web(agent, run.state, options.web, step=run.step, say=say)
        say(f"{options.web}: page of the policy {of}")
        _print_sizes(report.files)
    if options.safetensors is not None:
        path = export_weights(agent, run.state, options.safetensors, step=run.step)
        say(f"{path}: weights {of}")
        _print_sizes({path.name: path.stat().st_size})
    note = search_note(run.config)
    if note is not None:
        say(f"note: {note}")
    if out is not None:
        say(f"next: rljax.load_policy({out!r}).step(obs), or with JAX alone as {out}/metadata.json shows")
    elif options.numpy is not None:
        say(f"next: {options.numpy}/policy.py, whose first lines say how to use it")
    elif options.web is not None:
        say(f"next: python -m http.server --directory {shlex.quote(options.web)}, and open the address that it prints")
    else:
        say(f"next: rljax.load_weights({options.safetensors!r}, state)")


def _print_sizes(files: Mapping[str, int]) -> None:
    for name, size in files.items():
        print(f"  {name:15} {size:>9,} bytes")
