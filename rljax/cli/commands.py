"""What the subcommands do."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

import rljax
from rljax.collect.environments import make_evaluation_env
from rljax.collect.evaluation import play_episodes
from rljax.core.agent import Agent
from rljax.core.config import ALGORITHMS, dump_config, load_config, preset_names
from rljax.core.errors import ConfigError, did_you_mean
from rljax.envs import env_ids, gymnax_env_ids
from rljax.run.progress import default_progress


def train(name: str, run_dir: str | None, overrides: dict[str, Any]) -> None:
    """`rljax train`: train into a run folder, evaluate greedily, say whether it solved the task and what to do next."""
    config = load_config(name, **_merged(name, overrides))
    agent = rljax.make_agent(config)
    folder = run_dir or _free_folder(Path("runs") / Path(name).stem)
    print(f"training {config.algorithm} on {config.env} into {folder}", flush=True)
    started = time.perf_counter()
    result = rljax.fit(agent, run_dir=folder, progress=default_progress())
    steps = config.num_iterations * config.steps_per_iteration
    print(f"trained {steps:,} steps in {time.perf_counter() - started:.1f} s, compiling included; evaluating ...", flush=True)
    _report(agent, result.state, jax.random.key(config.seed + 1), 100)
    print("next:")
    print(f"  rljax eval {folder} --sample")
    print(f"  rljax train {folder}/config.toml --seed {config.seed + 1} --run-dir {folder}-seed{config.seed + 1}")
    print("  rljax list")


def evaluate_run(path: str, episodes: int, seed: int, sample: bool) -> None:
    """`rljax eval`: whole episodes of a trained agent."""
    if episodes < 1:
        raise ConfigError(f"episodes = {episodes}: expected a whole number > 0")
    run = rljax.load_run(path)
    print(f"{path}: {run.config.algorithm} after {run.step:,} steps")
    _report(rljax.make_agent(run.config), run.state, jax.random.key(seed), episodes, sample)


def _report(agent: Agent, state: Any, key: jax.Array, episodes: int, sample: bool = False) -> None:
    play = jax.jit(lambda state, key: play_episodes(agent, state, key, episodes, deterministic=not sample))
    results = play(state, key)
    returns, lengths = np.asarray(results.returns), np.asarray(results.lengths)
    ended = np.isfinite(returns)
    if not ended.any():
        print(f"none of {episodes} episodes ended within {lengths.max():,} steps")
        return
    mode = "sampled" if sample else "greedy"
    mean, deviation = returns[ended].mean(), returns[ended].std()
    print(
        f"{mode} return over {ended.sum()} episodes: mean {mean:.1f}, std {deviation:.1f}, "
        f"min {returns[ended].min():.1f}, max {returns[ended].max():.1f}; mean length {lengths[ended].mean():.1f}"
    )
    if not ended.all():
        print(f"{(~ended).sum()} of {episodes} episodes did not end and are left out")
    threshold = make_evaluation_env(agent.config)[0].reward_threshold
    if threshold is not None and not sample:
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


def _merged(name: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """Overrides of single keys of a table (`--network.hidden`) leave the table's other keys as the file has them."""
    tables = {key: value for key, value in overrides.items() if isinstance(value, dict)}
    if not tables:
        return overrides
    base = load_config(name)
    merged = {
        key: {**getattr(base, key), **value} for key, value in tables.items() if isinstance(getattr(base, key, None), Mapping)
    }
    return {**overrides, **merged}


def _free_folder(path: Path) -> Path:
    """`path`, or `path-2`, `path-3`, ... where that is taken: training a preset again never touches an earlier run."""
    candidate, number = path, 1
    while os.path.lexists(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
