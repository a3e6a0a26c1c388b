"""What the subcommands do."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import rljax
from rljax.cli.listing import print_all, print_env
from rljax.cli.overrides import merged
from rljax.collect.environments import EVALUATION_OPPONENT, make_evaluation_env
from rljax.collect.evaluation import play_episodes
from rljax.core.agent import Agent
from rljax.core.config import ALGORITHMS, Config, dump_config, env_name, load_config, preset_names
from rljax.core.devices import device_summary
from rljax.core.errors import ConfigError, RljaxError, TrainingInterrupted, did_you_mean, shortened, shown
from rljax.envs import env_ids, game_ids, gymnax_env_ids
from rljax.run.checkpoint import CHECKPOINTS, read_meta
from rljax.run.folder import Run, check_free, last_iteration, read_config, read_info, split_path
from rljax.run.layout import columns, make_console, make_table, print_table, say, wrapped
from rljax.run.processes import is_first, join_processes
from rljax.run.progress import default_progress
from rljax.run.scores import best_seed
from rljax.run.space import changed
from rljax.run.start import BUDGET, refuse_changes

if TYPE_CHECKING:
    from rljax.cli.main import Eval, Export, Play, Plot, Record, Reproduce, Saved, Sweep, Tournament, Train, Tune
    from rljax.run.sweep import SweepResult


def train(options: Train, overrides: dict[str, Any]) -> None:
    """`rljax train`: train into a run folder, evaluate greedily, say whether it solved the task and what to do next."""
    for name in ("resume", "fork"):
        if getattr(options, name) is not None and options.config is not None:
            raise ConfigError(f"{options.config}: --{name} takes the configuration from the run, give no other")
    if options.coordinator is not None:
        join_processes(options.coordinator, options.num_processes, options.process_id)
    elif options.num_processes != 1 or options.process_id:
        raise ConfigError("num_processes and process_id: belong to --coordinator, the address of process 0")
    agent, folder, title, how = _resumed(options, overrides) if options.resume is not None else _new(options, overrides)
    config, quoted = agent.config, shlex.quote(str(folder))
    title += f"\ndevice: {device_summary()}"
    if agent.memory:
        title += f"\nmemory{'' if options.seeds is None else ' of each seed'}: {agent.memory}"
    limits = {name: getattr(options, name) for name in ("checkpoint_every", "checkpoint_seconds", "keep", "max_minutes")}
    started = time.perf_counter()
    try:
        result = rljax.fit(agent, progress=default_progress(title), loggers=options.log, **limits, **how)
    except TrainingInterrupted as stop:
        raise TrainingInterrupted(f"{stop}; to go on: rljax train --resume {quoted}", stop.result, stop.signum) from None
    if not is_first():
        return
    info = read_info(folder)
    iterations = int(np.ravel(result.state.iteration)[0])
    step = info.step_offset + iterations * config.steps_per_iteration
    if iterations < last_iteration(config, info):
        after = "" if options.max_minutes is None else f" after {options.max_minutes:g} minutes"
        say(f"stopped at step {step:,}{after}; to go on:", f"rljax train --resume {quoted}")
        return
    if not result.metrics["episode/return"].size:
        say(f"{folder} is complete at step {step:,}; to train on:", f"rljax train --resume {quoted} --total-timesteps {2 * step}")
        return
    seconds = time.perf_counter() - started
    say(f"trained to step {step:,} in {seconds:.1f} s, compiling included; evaluating ...")
    if info.seeds is None:
        _report(agent, result.state, jax.random.key(config.seed + 1), 100)
    else:
        _report_seeds(agent, result.state, jax.random.key(config.seed + info.seeds), 100)
    print("next:")
    print(f"  rljax eval {quoted} --sample")
    print(f"  rljax show {quoted}")
    print(f"  rljax plot {quoted}")
    print(f"  rljax record {quoted} --out agent.gif")
    if config.of_games:
        print(f"  rljax play {quoted}")
        print(f"  rljax tournament {quoted} --include random")
    print(f"  rljax train --resume {quoted} --total-timesteps {2 * config.total_timesteps}")


_Training = tuple[Agent, Path, str, dict[str, Any]]
"""What to train, the run's folder, a line that says so, and the arguments of `fit`."""


def _new(options: Train, overrides: dict[str, Any]) -> _Training:
    """A run that starts anew or as a fork."""
    if options.fork is not None:
        parent, _ = split_path(options.fork)
        config = read_config(parent, **merged(lambda: read_config(parent), overrides))
        folder = Path(options.run_dir or _free_folder(_beside(parent)))
    elif options.config is not None:
        name = options.config
        config = load_config(name, **merged(lambda: load_config(name), overrides))
        folder = Path(options.run_dir or _free_folder(Path("runs") / Path(name).stem))
    else:
        raise ConfigError(
            f"nothing to train: give a preset or a TOML file (see rljax list), or --resume RUN, or --fork CHECKPOINT"
            f"{_swallowed({**{name: [value] for name, value in overrides.items()}, 'log': options.log})}"
        )
    agent = rljax.make_agent(config)
    if is_first():
        check_free(folder)
    seeds = "" if options.seeds is None else f", {options.seeds} seeds"
    source = "" if options.fork is None else f" from {options.fork}"
    title = f"training {config.algorithm} on {env_name(config)}{seeds}{source} into {folder}"
    return agent, folder, title, {"run_dir": folder, "fork": options.fork, "seeds": options.seeds}


def _swallowed(values: Mapping[str, Iterable[Any]]) -> str:
    """A hint where an option before the preset may have taken it for one of its values."""
    for name, given in values.items():
        for value in given:
            if isinstance(value, str) and (value.endswith(".toml") or value in preset_names()):
                return f" (did --{name.replace('_', '-')} take {shown(value)} as its value?)"
    return ""


def _resumed(options: Train, overrides: dict[str, Any]) -> _Training:
    """A run that goes on, with nothing changed but its budget."""
    if options.fork is not None or options.run_dir is not None:
        raise ConfigError("--resume goes on in the run's own folder: give neither --fork nor --run-dir with it")
    folder, _ = split_path(options.resume or "")
    config = read_config(folder, **overrides)  # an unknown field, or a bad value, is told first
    refuse_changes([name for name in overrides if name != BUDGET], folder)
    title = f"resuming {folder}: {config.algorithm} on {env_name(config)}"
    # The budget apart: one that the run has passed is an error where the user asks for it.
    how = {"resume": options.resume, "seeds": options.seeds, BUDGET: config.total_timesteps if overrides else None}
    return rljax.make_agent(config), folder, title, how


def sweep_of(options: Sweep, axes: dict[str, Any]) -> None:
    """`rljax sweep`: a table of what each combination of values came to, and files of all runs."""
    from rljax.run import sweep as sweeps

    if options.parquet:
        sweeps.check_parquet()
    if options.resume is not None:
        _check_resumed(options, axes, ("run_dir", "seeds", "search", "samples", "episodes"))
        folder = Path(options.resume)
        plan, episodes = sweeps.read_sweep(folder)
        say(f"resuming the sweep in {folder}")
    else:
        name = _source(options.config, axes, "sweep")
        config, space = _fixed_and_varied(load_config(name), axes)
        how: dict[str, Any] = {name: getattr(options, name) for name in ("seeds", "search", "samples", "max_runs")}
        plan, episodes = sweeps.plan_sweep(config, space, **how), options.episodes
        sweeps.check_numbers(options.batch_size, episodes)
        folder = Path(options.run_dir or _free_folder(Path("sweeps") / Path(name).stem))
        sweeps.create_sweep_dir(folder, plan, episodes)
        cells = f"{len(plan.cells)} cell{'s' * (len(plan.cells) > 1)} x {plan.seeds} seed{'s' * (plan.seeds > 1)}"
        say(f"sweep of {config.algorithm} on {env_name(config)}: {cells} = {plan.runs} runs into {folder}")
    with _interruptible("sweep", folder):
        result = sweeps.run_sweep(plan, folder, batch_size=options.batch_size, episodes=episodes, progress=say)
    _print_cells(result)
    if options.parquet:
        sweeps.write_parquet(result, folder / "results.parquet")
    best = shlex.quote(str(folder / sweeps.BEST_FILE))
    _print_files(folder)
    say("next:", f"rljax train {best}")


def tune_of(options: Tune, axes: dict[str, Any]) -> None:
    """`rljax tune`: the best trial, and files of the study."""
    from rljax.run import tune as tuning

    tuning.check_optuna()
    same: dict[str, Any] = {name: getattr(options, name) for name in ("seeds", "episodes", "pruner")}
    how: dict[str, Any] = {"trials": options.trials, "batch_size": options.batch_size, "progress": say}
    if options.resume is not None:
        _check_resumed(options, axes, ("run_dir", *same))
        folder = Path(options.resume)
        tuning.read_tune(folder)
        say(f"going on with the study in {folder}")
        with _interruptible("tune", folder):
            result = tuning.resume_tune(folder, storage=options.storage, **how)
    else:
        name = _source(options.config, axes, "tune")
        config, space = _fixed_and_varied(load_config(name), axes)
        folder = Path(options.run_dir or _free_folder(Path("tunes") / Path(name).stem))
        check_free(folder)
        tried = space or tuning.default_space(config)
        what = f"{', '.join(tried)} of {config.algorithm} on {env_name(config)}"
        say(f"tuning {what}, {options.batch_size} trials at once, into {folder}")
        with _interruptible("tune", folder):
            result = tuning.tune(config, space or None, storage=options.storage, run_dir=folder, **same, **how)
    trial = result.study.best_trial
    say(f"best: trial {trial.number}, return {result.value:.1f}: " + ", ".join(f"{k} = {v:.6g}" for k, v in trial.params.items()))
    weights = tuning.importances(result.study)
    if weights:
        say("importance: " + ", ".join(f"{name} {weight:.2f}" for name, weight in weights.items()))
    _print_files(folder)
    say("next:", f"rljax train {shlex.quote(str(folder / tuning.BEST_FILE))}")


def _print_files(folder: Path) -> None:
    say(f"{folder}: {', '.join(sorted(file.name for file in folder.iterdir() if not file.name.startswith('.')))}")


def _source(name: str | None, axes: dict[str, Any], command: str) -> str:
    """The preset or file of a sweep or of tuning."""
    if name is None:
        raise ConfigError(
            f"nothing to {command}: give a preset or a TOML file (see rljax list), or --resume FOLDER{_swallowed(axes)}"
        )
    return name


def _check_resumed(options: Sweep | Tune, axes: dict[str, Any], names: tuple[str, ...]) -> None:
    """What is resumed goes on as it was begun."""
    defaults = type(options)()
    given = [name for name in ("config", *names) if getattr(options, name) != getattr(defaults, name)]
    if given or axes:
        raise ConfigError(
            f"--resume goes on as it was begun: give no configuration and no fields (here: {', '.join([*given, *axes])})"
        )


@contextlib.contextmanager
def _interruptible(command: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise RljaxError(f"interrupted; to go on: rljax {command} --resume {shlex.quote(str(folder))}") from None


def _fixed_and_varied(config: Any, axes: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """One value is a change of all runs, as in `rljax train`; several, or a range, are tried."""
    single = {name: values[0] for name, values in axes.items() if isinstance(values, list) and len(values) == 1}
    return changed(config, single), {name: values for name, values in axes.items() if name not in single}


TABLE_ROWS = 20
"""Cells of a sweep that are printed: the best ones."""


def _print_cells(result: SweepResult) -> None:
    from rljax.run.lines import shown

    table = make_table("rank", *result.cells[0], "mean return", "std", "worst", "best", "diverged", text=tuple(result.cells[0]))
    order = np.argsort(np.where(np.isnan(result.means), np.inf, -result.means), kind="stable")
    for rank, i in enumerate(order[:TABLE_ROWS]):
        returns = result.returns[i]
        known = returns[np.isfinite(returns)]
        figures = [known.mean(), known.std(), known.min(), known.max()] if len(known) else [np.nan] * 4
        failed = int(np.isneginf(returns).sum())
        table.add_row(str(rank + 1), *map(shown, result.cells[i].values()), *(f"{x:.1f}" for x in figures), str(failed))
    print_table(make_console(), table)
    if len(order) > TABLE_ROWS:
        print(f"... and {len(order) - TABLE_ROWS} more in results.csv")


def evaluate_run(options: Eval) -> None:
    """`rljax eval`: whole episodes of a trained agent."""
    run, seed = _load(options)
    say(f"{options.run}: {run.config.algorithm}{seed} after {run.step:,} steps")
    _report(rljax.make_agent(run.config), run.state, jax.random.key(options.seed), options.episodes, options.sample)


def record_run(options: Record) -> None:
    """`rljax record`: a GIF or an MP4 of whole episodes."""
    run, seed = _load(options)
    recorded = rljax.record(
        rljax.make_agent(run.config),
        run.state,
        options.out,
        episodes=options.episodes,
        max_steps=options.max_steps,
        key=jax.random.key(options.seed),
        deterministic=False if options.sample else None,
        fps=options.fps,
    )
    say(f"{options.out}: {run.config.algorithm}{seed} after {run.step:,} steps; {recorded}")


def tournament_of(options: Tournament) -> None:
    """`rljax tournament`: a table of ratings and a heat map."""
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
    print(f"\n{'':{width}}  rating      95 %         won   lost  drawn")
    for i in np.argsort(-rating, kind="stable"):
        counts = (standings.wins[i].sum(), standings.wins[:, i].sum(), standings.draws[i].sum())
        interval = f"[{low[i]:5.0f}, {high[i]:5.0f}]"
        print(f"{standings.names[i]:{width}}  {rating[i]:6.0f}  {interval}  " + " ".join(f"{n:6.0f}" for n in counts))
    few = standings.few()
    if few is not None:
        say(few)
    print(options.out)


def play_run(options: Play) -> None:
    """`rljax play`: a person against the agent."""
    from rljax.run.play import check_seat
    from rljax.run.tournament import game_of

    run, seed = _load(options)
    game, _ = game_of(run.config)
    check_seat(game, options.seat)
    print(f"{game.name} against {run.config.algorithm}{seed} after {run.step:,} steps; you are player {options.seat}")
    key = jax.random.key(options.seed)
    rljax.play(run, seat=options.seat, sample=options.sample, simulations=options.simulations, key=key, ask=input)


def export_run(options: Export) -> None:
    """`rljax export`: the policy as files that run without rljax."""
    from rljax.run.export import export_policy

    run, seed = _load(options)
    report = export_policy(rljax.make_agent(run.config), run.state, options.out, step=run.step)
    say(f"{options.out}: policy of {run.config.algorithm}{seed} on {env_name(run.config)} after {run.step:,} steps")
    for name, size in report.files.items():
        print(f"  {name:15} {size:>9,} bytes")
    if report.no_onnx is not None:
        say(f"  no greedy.onnx: {report.no_onnx}")
    say(f"next: rljax.load_policy({options.out!r}).greedy(obs), or with JAX alone as {options.out}/metadata.json shows")


def plot_runs(options: Plot) -> None:
    """`rljax plot`: learning curves, open-loop predictions, or the results of a league."""
    out = options.out or f"{options.kind}.png"
    if options.kind == "curves":
        rljax.plot([split_path(run)[0] for run in options.runs], out, metric=options.metric)
    else:
        if len(options.runs) != 1:
            raise ConfigError(f"--kind {options.kind} draws one run: expected a single folder, got {len(options.runs)}")
        if options.metric is not None:
            raise ConfigError(f"--metric {options.metric}: belongs to --kind curves")
        if options.kind == "openloop":
            from rljax.run.openloop import plot_openloop

            plot_openloop(options.runs[0], out)
        else:
            from rljax.run.tournament import draw_payoffs, league_standings

            draw_payoffs(league_standings(rljax.load_run(options.runs[0], seed_index="best")), out)
    print(out)


def show_run(path: str) -> None:
    """`rljax show`: a run in the terminal."""
    from rljax.run.show import show

    show(split_path(path)[0])


def _load(options: Saved) -> tuple[Run, str]:
    """The run that a command means, one seed of it, and how to call that seed."""
    folder, _ = split_path(options.run)
    text = options.seed_index
    seed_index: int | str = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text
    run = rljax.load_run(options.run, checkpoint=options.checkpoint, seed_index=seed_index)
    if read_info(folder).seeds is None:
        return run, ""
    if seed_index == "best":
        seed_index = best_seed(read_meta(folder / CHECKPOINTS / f"step_{run.step}"))
    return run, f" (seed {seed_index})"


def _report_seeds(agent: Agent, states: Any, key: jax.Array, episodes: int) -> None:
    """Returns of every seed, and how many reach the threshold; greedy, unless the best policy of the task is random."""
    env = make_evaluation_env(agent.config)[0]
    results = jax.jit(jax.vmap(lambda state: play_episodes(agent, state, key, episodes)))(states)
    means, played = np.asarray(results.returns).mean(1), _played(episodes, results.distinct)
    say(
        f"{_mode(env.best_is_random)} return over {played}, {len(means)} seeds: mean {means.mean():.1f}, "
        f"worst {means.min():.1f}, "
        f"best {means.max():.1f}"
    )
    say("  by seed: " + " ".join(f"{mean:.1f}" for mean in means))
    if env.reward_threshold is not None:
        solved = (means >= env.reward_threshold).sum()
        say(f"solved by {solved} of {len(means)} seeds: a mean of at least {env.reward_threshold:g}")


def _played(episodes: int, distinct: Any) -> str:
    """Say how many episodes a return is the mean of; for games also the opponent, and how many games are distinct."""
    if distinct is None:
        return f"{episodes} episodes"
    return f"{episodes} games against {EVALUATION_OPPONENT} ({np.min(distinct)} distinct)"


def _mode(sample: bool) -> str:
    return "sampled" if sample else "greedy"


def _report(agent: Agent, state: Any, key: jax.Array, episodes: int, sample: bool = False) -> None:
    env = make_evaluation_env(agent.config)[0]
    sample = sample or env.best_is_random
    play = jax.jit(lambda state, key: play_episodes(agent, state, key, episodes, deterministic=not sample))
    results = play(state, key)
    returns, lengths, ended = map(np.asarray, results[:3])
    mean, deviation = returns.mean(), returns.std()
    say(
        f"{_mode(sample)} return over {_played(episodes, results.distinct)}: mean {mean:.1f}, std {deviation:.1f}, "
        f"min {returns.min():.1f}, max {returns.max():.1f}; mean length {lengths.mean():.1f}"
    )
    if not ended.all():
        say(f"{(~ended).sum()} of {episodes} episodes were cut after {lengths.max():,} steps and count with their return so far")
    threshold = env.reward_threshold
    if threshold is not None and sample == env.best_is_random:
        say(
            f"solved: the mean is at least {threshold:g}" if mean >= threshold else f"not solved: the mean is below {threshold:g}"
        )


def _print_fields(config_class: type[Config]) -> None:
    """A field a line: its flag, its default and what it is."""
    fields = dataclasses.fields(config_class)
    flags = [f"--{field.name.replace('_', '-')}" for field in fields]
    defaults: list[Any] = [{} if field.name in ("env_params", "network") else field.default for field in fields]
    texts = ["none" if default is None else str(default) for default in defaults]
    first, second = (max(map(len, column)) + 2 for column in (flags, texts))
    for flag, text, field in zip(flags, texts, fields, strict=True):
        print(wrapped(field.metadata["doc"], columns(), flag.ljust(first) + text.ljust(second), " " * (first + second)))


def list_names(name: str | None) -> None:
    """`rljax list`: everything that has a name, or the details of one."""
    if name in ALGORITHMS:
        _print_fields(ALGORITHMS[name])
        return
    if name in preset_names():
        print(dump_config(load_config(name)), end="")
        return
    if name is None:
        print_all()
        return
    try:
        print_env(name)
    except ConfigError as error:
        if not str(error).startswith("unknown environment"):
            raise
        known = [*ALGORITHMS, *preset_names(), *env_ids(), *game_ids(), *gymnax_env_ids()]
        raise ConfigError(f"unknown name '{shortened(name)}': {did_you_mean(name, known)}") from None


def bench(suite: str, repeats: int, json_file: str | None) -> None:
    """`rljax bench`: measure and print tables in Markdown, and write them as JSON."""
    from rljax.run.bench import SUITES
    from rljax.run.outputs import output_path, written_aside
    from rljax.run.timing import printed_tables

    if suite not in SUITES:
        raise ConfigError(f"unknown benchmark '{suite}': {did_you_mean(suite, SUITES)}")
    path = None if json_file is None else output_path(json_file, (".json",))
    said = io.StringIO()
    with contextlib.redirect_stdout(_Tee(sys.stdout, said)):
        SUITES[suite](repeats)
    if path is not None:
        with written_aside(path) as aside:
            aside.write_text(json.dumps({"suite": suite, "repeats": repeats, **printed_tables(said.getvalue())}, indent=1) + "\n")
        print(path)


def reproduce_figure(options: Reproduce) -> None:
    """`rljax reproduce`: run an experiment and write its record, or list the experiments."""
    from rljax.run.reproduce import EXPERIMENTS, reproduce

    if options.name is None:
        width = max(map(len, EXPERIMENTS))
        start = f"{'name':{width}}  seeds  minutes  "
        print(wrapped("what is measured (minutes on one core, about)", columns(), start, " " * len(start)))
        for name, experiment in EXPERIMENTS.items():
            start = f"{name:{width}}  {experiment.seeds:5}  {experiment.minutes:7g}  "
            print(wrapped(experiment.measures, columns(), start, " " * len(start)))
        return
    folder = Path(options.out)
    record = reproduce(options.name, folder, seeds=options.seeds, first_seed=options.first_seed, budget=options.budget)
    seconds = record["seconds"]
    say(f"{folder / options.name}.json: compiled in {seconds['compile']} s, ran for {seconds['run']} s")


class _Tee(io.TextIOBase):
    """Writes to several streams."""

    def __init__(self, *streams: Any):
        self.streams = streams

    def write(self, text: str) -> int:
        for stream in self.streams:
            stream.write(text)
        return len(text)

    def flush(self) -> None:
        for stream in self.streams:
            stream.flush()


def _beside(run: Path) -> Path:
    """Where a fork of a run goes: next to it, also where the run is the working directory."""
    name = f"{run.resolve().name}-fork"
    return run.with_name(name) if run.name not in ("", "..") else run.resolve().with_name(name)


def _free_folder(path: Path) -> Path:
    """`path`, or `path-2`, `path-3`, ... where that is taken: training a preset again never touches an earlier run."""
    candidate, number = path, 1
    while os.path.lexists(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
