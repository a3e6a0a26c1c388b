"""`rljax train` and `rljax eval`."""

from __future__ import annotations

import contextlib
import shlex
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import rljax
from rljax.cli.folders import check_or_resume, folder_name, fork_folder, free_folder, load_saved, reserved_folder, wants_phases
from rljax.cli.options import Eval, Train
from rljax.cli.overrides import merge_tables, swallowed_hint
from rljax.cli.parsing import split_commas
from rljax.collect.environments import evaluation_opponent, make_evaluation_env, make_game, make_training_env
from rljax.collect.evaluation import play_episodes
from rljax.collect.resets import describe_resets
from rljax.core.agent import Agent
from rljax.core.config import Config, env_name
from rljax.core.config_files import load_config
from rljax.core.devices import device_summary
from rljax.core.errors import ConfigError, TrainingInterrupted, printable
from rljax.run.files.folder import CONFIG_FILE, check_free, check_num_seeds, check_run, read_config, refuse_packed, split_path
from rljax.run.processes import is_first, join_processes
from rljax.run.progress import default_progress
from rljax.run.start import BUDGET, refuse_changes
from rljax.run.view.layout import format_number, say


def train(options: Train, overrides: dict[str, Any]) -> None:
    """`rljax train`: train into a run folder, evaluate greedily, and print whether the task is solved and what to do next."""
    for name in ("resume", "fork"):
        if getattr(options, name) is not None and options.config is not None:
            raise ConfigError(f"{options.config}: --{name} takes the configuration from the run; give no other")
    if wants_phases(options):
        from rljax.cli.phases import train_phases  # Takes a while to import.

        train_phases(options, overrides)
        return
    if options.coordinator is not None:
        join_processes(options.coordinator, options.num_processes, options.process_id)
    elif options.num_processes is not None or options.process_id is not None:
        raise ConfigError("num_processes and process_id: need --coordinator, the address of process 0")
    with contextlib.ExitStack() as reserved:
        prepared = _prepare_new(options, overrides, reserved) if options.resume is None else _prepare_resumed(options, overrides)
        _train(options, *prepared)


def _train(options: Train, agent: Agent, folder: Path, title: str, how: dict[str, Any]) -> None:
    config, quoted = agent.config, printable(shlex.quote(str(folder)))
    title += f"\ndevice: {device_summary()}"
    world = make_game(config) if config.of_games else make_training_env(config)
    resets = describe_resets(config, *world)
    title += "" if resets is None else f"\n{resets}"
    if agent.memory:
        title += f"\nmemory{'' if options.seeds is None else ' of each seed'}: {agent.memory}"
    limits = {name: getattr(options, name) for name in ("checkpoint_every", "checkpoint_seconds", "keep", "max_minutes")}
    started = time.perf_counter()
    try:
        result = rljax.fit(
            agent, progress=default_progress(title), loggers=split_commas(options.log), sync=options.sync, **limits, **how
        )
    except TrainingInterrupted as stop:
        raise TrainingInterrupted(f"{stop}; to go on: rljax train --resume {quoted}", stop.result, stop.signum) from None
    if not is_first():
        return
    step = result.step
    if not result.complete:
        after = "" if options.max_minutes is None else f" after {options.max_minutes:g} minutes"
        say(f"stopped at step {step:,}{after}; to go on:", f"rljax train --resume {quoted}")
        return
    if not any(values.size for values in result.metrics.values()):
        say(f"{folder} is complete at step {step:,}; to train on:", f"rljax train --resume {quoted} --total-timesteps {2 * step}")
        return
    seconds = time.perf_counter() - started
    say(f"trained to step {step:,} in {seconds:.1f} s, compiling included; evaluating ...")
    if result.seeds is None:
        _report(agent, result.state, jax.random.key(config.seed + 1), 100)
    else:
        _report_seeds(agent, result.state, jax.random.key(config.seed + result.seeds), 100)
    print("next:")
    # Where the best policy is random, --sample is always on.
    print(f"  rljax eval {quoted}{'' if make_evaluation_env(config)[0].best_is_random else ' --sample'}")
    print(f"  rljax show {quoted}")
    if config.eval_every is not None or np.isfinite(result.metrics.get("episode/return", np.nan)).any():
        print(f"  rljax plot {quoted}")
    print(f"  rljax record {quoted} --out agent.gif")
    if config.of_games:
        print(f"  rljax play {quoted}")
        if evaluation_opponent(config) is not None:
            print(f"  rljax tournament {quoted} --include random")
    print(f"  rljax train --resume {quoted} --total-timesteps {2 * config.total_timesteps}")


_Training = tuple[Agent, Path, str, dict[str, Any]]
"""Agent to train, folder of the run, title line, and arguments of `fit`."""


def _prepare_new(options: Train, overrides: dict[str, Any], reserved: contextlib.ExitStack) -> _Training:
    """Prepare a run that starts anew or as a fork; its folder is `reserved` unless it was given."""
    if options.fork is not None:
        parent, _ = split_path(options.fork)
        check_run(parent)
        refuse_packed(parent, options.fork)
        config = read_config(parent, **merge_tables(lambda: read_config(parent), overrides))
        name = fork_folder(parent)
    elif options.config is not None:
        source = options.config
        config = load_config(source, **merge_tables(lambda: load_config(source), overrides))
        name = Path("runs") / folder_name(source)
    else:
        raise ConfigError(
            f"nothing to train: give a preset or a TOML file (see rljax list), or --resume RUN, or --fork CHECKPOINT"
            f"{swallowed_hint({**{name: [value] for name, value in overrides.items()}, 'log': options.log})}"
        )
    if options.seeds is not None:  # before anything is printed
        check_num_seeds(options.seeds, config)
    agent = rljax.make_agent(config)
    check_or_resume(options)
    if options.run_dir is not None:
        folder = Path(options.run_dir)
    elif options.coordinator is None:
        folder = reserved.enter_context(reserved_folder(name))
    else:
        folder = free_folder(name)  # the same in all processes of the run
    there = options.or_resume and (folder / CONFIG_FILE).is_file()
    if is_first() and not there:
        check_free(folder)
    seeds = "" if options.seeds is None else f", {options.seeds} seeds"
    start = next((f" from {path}" for path in (options.fork, options.init_from) if path is not None), "")
    title = f"{'resuming' if there else 'training'} {config.algorithm} on {env_name(config)}{seeds}{start} into {folder}"
    how = {
        "run_dir": folder,
        "resume": options.or_resume,
        "fork": options.fork,
        "init_from": options.init_from,
        "seeds": options.seeds,
    }
    return agent, folder, title, how


def _prepare_resumed(options: Train, overrides: dict[str, Any]) -> _Training:
    """Prepare a resumed run, with nothing changed but its budget."""
    if options.fork is not None or options.run_dir is not None or options.init_from is not None or options.or_resume:
        raise ConfigError(
            "--resume continues in the run's own folder: give neither --fork, --init-from nor --run-dir with it, nor --or-resume"
        )
    folder, _ = split_path(options.resume or "")
    frozen = read_config(folder)
    # First, so that an unknown field or a bad value is reported before all else.
    config = read_config(folder, **merge_tables(lambda: frozen, overrides))
    refuse_packed(folder, options.resume)
    refuse_changes(frozen, config, folder)
    title = f"resuming {folder}: {config.algorithm} on {env_name(config)}"
    # The budget is an argument of its own: one that the run has already passed is an error only if the user asks for it.
    how = {"resume": options.resume, "seeds": options.seeds, BUDGET: config.total_timesteps if BUDGET in overrides else None}
    return rljax.make_agent(config), folder, title, how


def evaluate(options: Eval) -> None:
    """`rljax eval`: play whole episodes with a trained agent and print its returns."""
    run, seed = load_saved(options)
    say(f"{options.run}: {run.config.algorithm}{seed} after {run.step:,} steps")
    _report(rljax.make_agent(run.config), run.state, jax.random.key(options.seed), options.episodes, options.sample)


def _report(agent: Agent, state: Any, key: jax.Array, episodes: int, sample: bool | None = None) -> None:
    env = make_evaluation_env(agent.config)[0]
    sample = env.best_is_random if sample is None else sample
    play = jax.jit(lambda state, key: play_episodes(agent, state, key, episodes, deterministic=not sample))
    results = play(state, key)
    returns, lengths, ended = map(np.asarray, results[:3])
    mean = returns.mean()
    figures = {"mean": mean, "std": returns.std(), "min": returns.min(), "max": returns.max()}
    say(
        f"{_mode(sample)} return over {_describe_episodes(agent.config, episodes, results.distinct)}: {_listed(figures)}; "
        f"mean length {lengths.mean():.1f}"
    )
    if not ended.all():
        say(f"{(~ended).sum()} of {episodes} episodes were cut after {lengths.max():,} steps and count with their return so far")
    threshold = env.reward_threshold
    if threshold is not None and sample == env.best_is_random:
        say(
            f"solved: the mean is at least {threshold:g}" if mean >= threshold else f"not solved: the mean is below {threshold:g}"
        )


def _report_seeds(agent: Agent, states: Any, key: jax.Array, episodes: int) -> None:
    """Print the return of every seed and how many reach the threshold; greedy, unless the best policy of the task is random."""
    env = make_evaluation_env(agent.config)[0]
    results = jax.jit(jax.vmap(lambda state: play_episodes(agent, state, key, episodes)))(states)
    means, played = np.asarray(results.returns).mean(1), _describe_episodes(agent.config, episodes, results.distinct)
    figures = {"mean": means.mean(), "worst": means.min(), "best": means.max()}
    say(f"{_mode(env.best_is_random)} return over {played}, {len(means)} seeds: {_listed(figures)}")
    say("  by seed: " + " ".join(map(format_number, means)))
    if env.reward_threshold is not None:
        solved = (means >= env.reward_threshold).sum()
        say(f"solved by {solved} of {len(means)} seeds: a mean of at least {env.reward_threshold:g}")


def _listed(figures: dict[str, Any]) -> str:
    return ", ".join(f"{name} {format_number(value)}" for name, value in figures.items())


def _describe_episodes(config: Config, episodes: int, distinct: Any) -> str:
    """Return the number of episodes in words; for games also the opponent, if there is one, and how many games are distinct."""
    if distinct is None:
        return f"{episodes} episodes"
    opponent = evaluation_opponent(config)
    whom = "" if opponent is None else f" against {opponent}"
    return f"{episodes} games{whom} ({np.min(distinct)} distinct)"


def _mode(sample: bool) -> str:
    return "sampled" if sample else "greedy"
