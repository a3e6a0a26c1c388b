"""What the subcommands do."""

from __future__ import annotations

import dataclasses
import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import rljax
from rljax.cli.overrides import merged
from rljax.collect.environments import make_evaluation_env
from rljax.collect.evaluation import play_episodes
from rljax.core.agent import Agent
from rljax.core.config import ALGORITHMS, dump_config, load_config, preset_names
from rljax.core.errors import ConfigError, TrainingInterrupted, did_you_mean
from rljax.envs import env_ids, gymnax_env_ids
from rljax.run.checkpoint import CHECKPOINTS, read_meta
from rljax.run.folder import Run, check_free, last_iteration, read_config, read_info, split_path
from rljax.run.progress import default_progress
from rljax.run.scores import best_seed
from rljax.run.start import BUDGET, warn_refused

if TYPE_CHECKING:
    from rljax.cli.main import Eval, Export, Plot, Record, Saved, Train


def train(options: Train, overrides: dict[str, Any]) -> None:
    """`rljax train`: train into a run folder, evaluate greedily, say whether it solved the task and what to do next."""
    for name in ("resume", "fork"):
        if getattr(options, name) is not None and options.config is not None:
            raise ConfigError(f"{options.config}: --{name} takes the configuration from the run, give no other")
    agent, folder, title, how = _resumed(options, overrides) if options.resume is not None else _new(options, overrides)
    config, quoted = agent.config, shlex.quote(str(folder))
    if agent.memory:
        title += f"\nmemory{'' if options.seeds is None else ' of each seed'}: {agent.memory}"
    limits = {name: getattr(options, name) for name in ("checkpoint_every", "checkpoint_seconds", "keep", "max_minutes")}
    started = time.perf_counter()
    try:
        result = rljax.fit(agent, progress=default_progress(title), loggers=options.log, **limits, **how)
    except TrainingInterrupted as stop:
        raise TrainingInterrupted(f"{stop}; to go on: rljax train --resume {quoted}", stop.result, stop.signum) from None
    info = read_info(folder)
    iterations = int(np.ravel(result.state.iteration)[0])
    step = info.step_offset + iterations * config.steps_per_iteration
    if iterations < last_iteration(config, info):
        print(f"stopped at step {step:,} after {options.max_minutes:g} minutes; to go on: rljax train --resume {quoted}")
        return
    if not result.metrics["episode/return"].size:
        print(f"{folder} is complete at step {step:,}; to train on: rljax train --resume {quoted} --total-timesteps {2 * step}")
        return
    seconds = time.perf_counter() - started
    print(f"trained to step {step:,} in {seconds:.1f} s, compiling included; evaluating ...", flush=True)
    if info.seeds is None:
        _report(agent, result.state, jax.random.key(config.seed + 1), 100)
    else:
        _report_seeds(agent, result.state, jax.random.key(config.seed + info.seeds), 100)
    print("next:")
    print(f"  rljax eval {quoted} --sample")
    print(f"  rljax show {quoted}")
    print(f"  rljax plot {quoted}")
    print(f"  rljax record {quoted} --out agent.gif")
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
            f"{_swallowed(options, overrides)}"
        )
    agent = rljax.make_agent(config)
    check_free(folder)
    seeds = "" if options.seeds is None else f", {options.seeds} seeds"
    source = "" if options.fork is None else f" from {options.fork}"
    title = f"training {config.algorithm} on {config.env}{seeds}{source} into {folder}"
    return agent, folder, title, {"run_dir": folder, "fork": options.fork, "seeds": options.seeds}


def _swallowed(options: Train, overrides: dict[str, Any]) -> str:
    """A hint where an option before the preset may have taken it for its value."""
    values = {**{name: [value] for name, value in overrides.items()}, "log": options.log}
    for name, given in values.items():
        for value in given:
            if isinstance(value, str) and (value.endswith(".toml") or value in preset_names()):
                return f" (did --{name.replace('_', '-')} take {value!r} as its value?)"
    return ""


def _resumed(options: Train, overrides: dict[str, Any]) -> _Training:
    """A run that goes on. Changes other than of its budget are refused with a warning."""
    if options.fork is not None or options.run_dir is not None:
        raise ConfigError("--resume goes on in the run's own folder: give neither --fork nor --run-dir with it")
    folder, _ = split_path(options.resume or "")
    warn_refused([name for name in overrides if name != BUDGET])
    budget = {name: value for name, value in overrides.items() if name == BUDGET}
    config = read_config(folder, **budget)
    title = f"resuming {folder}: {config.algorithm} on {config.env}"
    # The budget apart: one that the run has passed is an error where the user asks for it.
    how = {"resume": options.resume, "seeds": options.seeds, BUDGET: config.total_timesteps if budget else None}
    return rljax.make_agent(config), folder, title, how


def evaluate_run(options: Eval) -> None:
    """`rljax eval`: whole episodes of a trained agent."""
    if options.episodes < 1:
        raise ConfigError(f"episodes = {options.episodes}: expected a whole number > 0")
    run, seed = _load(options)
    print(f"{options.run}: {run.config.algorithm}{seed} after {run.step:,} steps")
    _report(rljax.make_agent(run.config), run.state, jax.random.key(options.seed), options.episodes, options.sample)


def record_run(options: Record) -> None:
    """`rljax record`: a GIF or an MP4 of whole episodes."""
    from rljax.run.record import record

    run, seed = _load(options)
    recorded = record(
        rljax.make_agent(run.config),
        run.state,
        options.out,
        episodes=options.episodes,
        max_steps=options.max_steps,
        key=jax.random.key(options.seed),
        deterministic=not options.sample,
        fps=options.fps,
    )
    print(f"{options.out}: {run.config.algorithm}{seed} after {run.step:,} steps; {recorded}")


def export_run(options: Export) -> None:
    """`rljax export`: the policy as files that run without rljax."""
    from rljax.run.export import export_policy

    run, seed = _load(options)
    report = export_policy(rljax.make_agent(run.config), run.state, options.out, step=run.step)
    print(f"{options.out}: policy of {run.config.algorithm}{seed} on {run.config.env} after {run.step:,} steps")
    for name, size in report.files.items():
        print(f"  {name:15} {size:>9,} bytes")
    if report.no_onnx is not None:
        print(f"  no greedy.onnx: {report.no_onnx}")
    print(f"next: rljax.load_policy({options.out!r}).greedy(obs), or with JAX alone as {options.out}/metadata.json shows")


def plot_runs(options: Plot) -> None:
    """`rljax plot`: learning curves, or open-loop predictions."""
    out = options.out or f"{options.kind}.png"
    if options.kind == "curves":
        from rljax.run.plot import plot

        plot([split_path(run)[0] for run in options.runs], out, metric=options.metric)
    else:
        from rljax.run.openloop import plot_openloop

        if len(options.runs) != 1:
            raise ConfigError(f"--kind openloop draws one run: expected a single folder, got {len(options.runs)}")
        if options.metric is not None:
            raise ConfigError(f"--metric {options.metric}: belongs to --kind curves")
        plot_openloop(options.runs[0], out)
    print(out)


def show_run(path: str) -> None:
    """`rljax show`: a run in the terminal."""
    from rljax.run.show import show

    show(split_path(path)[0])


def _load(options: Saved) -> tuple[Run, str]:
    """The run that a command means, one seed of it, and how to call that seed."""
    folder, _ = split_path(options.run)
    text = options.seed_index
    seed_index: int | str = int(text) if text.isdigit() else text
    run = rljax.load_run(options.run, checkpoint=options.checkpoint, seed_index=seed_index)
    if read_info(folder).seeds is None:
        return run, ""
    if seed_index == "best":
        seed_index = best_seed(read_meta(folder / CHECKPOINTS / f"step_{run.step}"))
    return run, f" (seed {seed_index})"


def _report_seeds(agent: Agent, states: Any, key: jax.Array, episodes: int) -> None:
    """Returns of every seed, and how many reach the threshold; greedy, unless the best policy of the task is random."""
    env = make_evaluation_env(agent.config)[0]
    sample = env.best_is_random
    play = jax.jit(jax.vmap(lambda state: play_episodes(agent, state, key, episodes, deterministic=not sample).returns))
    returns = np.asarray(play(states))
    if not np.isfinite(returns).any(1).all():
        print(f"some seeds ended none of {episodes} episodes")
        return
    means = np.nanmean(returns, 1)
    print(
        f"{_mode(sample)} return over {episodes} episodes, {len(means)} seeds: mean {means.mean():.1f}, worst {means.min():.1f}, "
        f"best {means.max():.1f}"
    )
    print("  by seed: " + " ".join(f"{mean:.1f}" for mean in means))
    if env.reward_threshold is not None:
        solved = (means >= env.reward_threshold).sum()
        print(f"solved by {solved} of {len(means)} seeds: a mean of at least {env.reward_threshold:g}")


def _mode(sample: bool) -> str:
    return "sampled" if sample else "greedy"


def _report(agent: Agent, state: Any, key: jax.Array, episodes: int, sample: bool = False) -> None:
    env = make_evaluation_env(agent.config)[0]
    sample = sample or env.best_is_random
    play = jax.jit(lambda state, key: play_episodes(agent, state, key, episodes, deterministic=not sample))
    results = play(state, key)
    returns, lengths = np.asarray(results.returns), np.asarray(results.lengths)
    ended = np.isfinite(returns)
    if not ended.any():
        print(f"none of {episodes} episodes ended within {lengths.max():,} steps")
        return
    mean, deviation = returns[ended].mean(), returns[ended].std()
    print(
        f"{_mode(sample)} return over {ended.sum()} episodes: mean {mean:.1f}, std {deviation:.1f}, "
        f"min {returns[ended].min():.1f}, max {returns[ended].max():.1f}; mean length {lengths[ended].mean():.1f}"
    )
    if not ended.all():
        print(f"{(~ended).sum()} of {episodes} episodes did not end and are left out")
    threshold = env.reward_threshold
    if threshold is not None and sample == env.best_is_random:
        print(
            f"solved: the mean is at least {threshold:g}" if mean >= threshold else f"not solved: the mean is below {threshold:g}"
        )


def list_names(name: str | None) -> None:
    """`rljax list`: everything that has a name, or the details of one."""
    if name in ALGORITHMS:
        for field in dataclasses.fields(ALGORITHMS[name]):
            default = {} if field.name in ("env_params", "network") else field.default
            print(f"--{field.name.replace('_', '-'):24} {'none' if default is None else default!s:12}  {field.metadata['doc']}")
        return
    if name in preset_names():
        print(dump_config(load_config(name)), end="")
        return
    if name is not None:
        raise ConfigError(f"unknown name '{name}': {did_you_mean(name, [*ALGORITHMS, *preset_names()])}")
    for title, names in (
        ("presets (rljax train PRESET)", preset_names()),
        ("algorithms (rljax list ALGORITHM shows its fields)", sorted(ALGORITHMS)),
        ("environments", env_ids()),
        ("environments of gymnax", [name for name in gymnax_env_ids() if name not in env_ids()]),
    ):
        print(title)
        for entry in names:
            print(f"  {entry}")


def bench(suite: str, repeats: int) -> None:
    """`rljax bench`: measure and print a table."""
    from rljax.run.bench import SUITES

    if suite not in SUITES:
        raise ConfigError(f"unknown benchmark '{suite}': {did_you_mean(suite, SUITES)}")
    SUITES[suite](repeats)


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
