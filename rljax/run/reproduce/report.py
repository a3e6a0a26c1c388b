"""What an experiment measured, and the record that is kept of it.

A record is `results/NAME.json`, one JSON object:

| key | value |
| --- | --- |
| `name`, `measures`, `command` | of the experiment; the command that measures it again |
| `note` | what a reader must know: "not repeated: ..." where old values stand in for a run; "" otherwise |
| `date` | when it began, ISO 8601 in UTC |
| `commit` | of the source, with `-dirty` where `rljax`, `envs` or `configs` differ from it; null outside a git checkout |
| `versions` | of Python and the packages that compute |
| `hardware` | `cpu`, `cores` (that this process may use), `cores_of_machine`, `devices` |
| `load` | `os.getloadavg()` before and after: 6 numbers |
| `seconds` | `compile` (tracing too) and `run`, summed over the programs |
| `seeds`, `budget` | the keys; the share of each configuration's budget of steps that was trained: 1 in whatever is published |
| `configs` | every field of each configuration, by arm |
| `presets` | by arm: `preset`, the name of what it was made from, or null; `changed`, the fields not meant to be as there |
| `raw` | by name: a value for each seed, or a list of values for each seed |
| `thresholds` | by name of `raw`: the least value that counts as solved |
| `summary` | by name of `raw` with one value a seed: `mean`, `median`, `min`, `max`, and `solved` with a threshold |
| `facts` | by name: single numbers and texts that belong to no seed (a game's exact value, the rows of a benchmark's table) |

Numbers that are not finite are written as null.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.collect.environments import make_evaluation_env
from rljax.collect.evaluation import evaluate
from rljax.core.agent import Agent, make_agent
from rljax.core.config import Config, config_table, load_config
from rljax.run.bench.timing import cpu_model
from rljax.run.files.outputs import atomic_file
from rljax.run.fit import fit
from rljax.run.progress import Lines, Progress, Silent
from rljax.version import __version__

PACKAGES = ("jax", "jaxlib", "flax", "optax", "chex", "distrax", "gymnax", "mctx", "numpy")
PEERS = ("rejax", "pgx", "optuna", "bitbully")
"""Installed for some experiments only."""


class Trained(NamedTuple):
    """`states`, `metrics` (NumPy arrays `[seeds, iterations]`) and `keys` have a leading axis of seeds."""

    agent: Agent
    states: Any
    metrics: Mapping[str, np.ndarray]
    keys: jax.Array

    @property
    def curve(self) -> np.ndarray:
        """The evaluations during training, `[seeds, evaluations]`."""
        values = self.metrics["eval/return"]
        return values[:, np.isfinite(values).any(0)]

    @property
    def evaluated_at(self) -> list[int]:
        """Environment steps of these evaluations."""
        found = np.flatnonzero(np.isfinite(self.metrics["eval/return"]).any(0))
        return [int(i + 1) * self.agent.config.steps_per_iteration for i in found]

    @property
    def threshold(self) -> float | None:
        """The return from which the environment counts as solved; None where it has none."""
        return make_evaluation_env(self.agent.config)[0].reward_threshold


def first_step(values: np.ndarray, steps: Sequence[int], threshold: float | None) -> np.ndarray:
    """The first of `steps` at which `values` `[seeds, len(steps)]` reach a threshold, f64 `[seeds]`; NaN: never."""
    reached = np.nan_to_num(values, nan=-np.inf) >= (np.inf if threshold is None else threshold)
    return np.where(reached.any(1), np.array(steps, np.float64)[reached.argmax(1)], np.nan)


class Report:
    """Collects what an experiment measures; trains, evaluates and times for it."""

    def __init__(self, name: str, measures: str, first_seed: int, seeds: int, budget: float = 1.0, quiet: bool = False):
        self.name, self.measures, self.budget, self.quiet = name, measures, budget, quiet
        self.seeds = list(range(first_seed, first_seed + seeds))
        self.keys = jnp.stack([jax.random.key(seed) for seed in self.seeds])
        self.configs: dict[str, Any] = {}
        self.presets: dict[str, dict[str, Any]] = {}
        self.raw: dict[str, Any] = {}
        self.thresholds: dict[str, float] = {}
        self.facts: dict[str, Any] = {}
        self.note = ""
        self.compiling = self.running = 0.0
        self.began = datetime.datetime.now(datetime.UTC)
        self.load = os.getloadavg()
        self.commit = source_commit()  # before anybody changes it

    def say(self, line: str) -> None:
        if not self.quiet:
            print(line, flush=True)

    def trained(
        self, config_or_preset: Config | str, arm: str | None = None, *, preset: str | None = None, **changes: Any
    ) -> Trained:
        """Train all seeds in one program, as `rljax train --seed FIRST --seeds N` does.

        `arm` names the configuration, and `preset` the preset that a configuration was made from.
        """
        preset = config_or_preset if isinstance(config_or_preset, str) else preset
        config = load_config(config_or_preset) if isinstance(config_or_preset, str) else config_or_preset
        config = config.replace(**{"seed": self.seeds[0], **changes})
        steps = max(round(config.total_timesteps * self.budget), config.steps_per_iteration)
        config = config.replace(total_timesteps=steps)
        arm = arm or preset or config.algorithm
        self.configs[arm] = config_table(config)
        self.presets[arm] = {"preset": preset, "changed": _changed(config, preset, {"seed", *changes})}
        agent = make_agent(config)
        clock = _Clock(Silent() if self.quiet else Lines(f"{self.name}: {arm}, {len(self.seeds)} seeds"))
        result = fit(agent, seeds=len(self.seeds), progress=clock)
        jax.block_until_ready(result.state)
        self.compiling += clock.compiling
        self.running += time.perf_counter() - clock.since
        metrics = {name: np.asarray(values) for name, values in result.metrics.items()}
        return Trained(agent, result.state, metrics, self.keys)

    def timed(self, program: Callable[..., Any], *arguments: Any) -> Any:
        """Compile a program and run it once."""
        started = time.perf_counter()
        compiled = jax.jit(program).lower(*arguments).compile()
        between = time.perf_counter()
        result = jax.block_until_ready(compiled(*arguments))
        self.compiling += between - started
        self.running += time.perf_counter() - between
        return result

    def returns(self, run: Trained, episodes: int = 100, sample: bool = False, config: Config | None = None) -> np.ndarray:
        """Mean returns f32 `[seeds]`, with keys that training did not use; greedy, unless `sample`. `config`: played there."""
        agent = run.agent if config is None else make_agent(config)
        play = lambda state, key: jnp.mean(  # noqa: E731
            evaluate(agent, state, jax.random.fold_in(key, 1), episodes, deterministic=not sample)
        )
        return np.asarray(self.timed(jax.vmap(play), run.states, run.keys))

    def measured(self, name: str, values: Any, threshold: float | None = None) -> np.ndarray:
        """Keep a value, or a row of values, for each seed."""
        found = np.asarray(values)
        if len(found) != len(self.seeds):
            raise ValueError(f"{name}: expected a value for each of {len(self.seeds)} seeds, got {list(found.shape)}")
        self.raw[name] = _plain(found)
        if threshold is not None:
            self.thresholds[name] = threshold
        if found.ndim == 1:
            self.say(f"{self.name}: {name}: {json.dumps(_rounded(summarized(found, threshold)))}")
        return found

    def record(self, command: str) -> dict[str, Any]:
        """The record of what was measured so far."""
        return {
            "name": self.name,
            "measures": self.measures,
            "command": command,
            "note": self.note,
            "date": self.began.isoformat(timespec="seconds"),
            "commit": self.commit,
            "versions": versions(),
            "hardware": hardware_table(),
            "load": [round(x, 2) for x in (*self.load, *os.getloadavg())],
            "seconds": {"compile": round(self.compiling, 1), "run": round(self.running, 1)},
            "seeds": self.seeds,
            "budget": self.budget,
            "configs": self.configs,
            "presets": self.presets,
            "raw": self.raw,
            "thresholds": self.thresholds,
            "summary": {
                name: summarized(np.array(values, np.float64), self.thresholds.get(name))
                for name, values in self.raw.items()
                if np.ndim(values) == 1
            },
            "facts": _plain(self.facts),
        }


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """There whole or as it was."""
    with atomic_file(path) as aside:
        aside.write_text(json.dumps(_plain(record), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def summarized(values: np.ndarray, threshold: float | None = None) -> dict[str, float]:
    """Of the seeds `[seeds]`; a seed without a value (NaN) is left out, and counts as not solved."""
    known = values[np.isfinite(values)]
    if not len(known):
        return {"known": 0}
    summary: dict[str, float] = {
        "mean": float(known.mean()),
        "median": float(np.median(known)),
        "min": float(known.min()),
        "max": float(known.max()),
    }
    if len(known) < len(values):
        summary["known"] = len(known)
    if threshold is not None:
        summary["solved"] = int((known >= threshold).sum())
    return summary


def versions() -> dict[str, str]:
    """Of Python and the packages that compute."""
    found = {"python": platform.python_version(), "rljax": __version__}
    for name in (*PACKAGES, *PEERS):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if name in PACKAGES:
                found[name] = "not installed"
    return found


def hardware_table() -> dict[str, Any]:
    """Processor, cores and JAX's devices."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    devices = [device.device_kind for device in jax.devices()]
    return {"cpu": cpu_model(), "cores": usable, "cores_of_machine": os.cpu_count(), "devices": devices}


def source_commit() -> str | None:
    """The commit of the source that runs, `-dirty` where it was changed since; None where it is no git checkout."""
    here = Path(__file__).parents[2]

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != here.parent.resolve():
            return None  # installed into some other project's folder
        changed = git("status", "--porcelain", "--", ".", "../envs", "../configs")
        return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _changed(config: Config, preset: str | None, by_name: Set[str]) -> list[str]:
    """Fields that differ from the preset's, and those changed by name: a preset may come to have the same value later."""
    if preset is None:
        return []
    table, usual = config_table(config), config_table(load_config(preset))
    return [name for name in table if name in by_name or (name in usual and table[name] != usual[name])]


class _Clock:
    """Notes when a program is compiled, and passes on what it is told to whoever shows progress."""

    def __init__(self, shown: Progress):
        self.shown = shown
        self.since = time.perf_counter()
        self.compiling = 0.0

    def prepare(self) -> None:
        self.shown.prepare()

    def start(self, total_steps: int) -> None:
        self.shown.start(total_steps)

    def compiled(self) -> None:
        now = time.perf_counter()
        self.compiling, self.since = now - self.since, now
        self.shown.compiled()

    def update(self, step: int, steps_per_second: float, episode_return: float, seconds_left: float) -> None:
        self.shown.update(step, steps_per_second, episode_return, seconds_left)

    def stop(self) -> None:
        self.shown.stop()


def _rounded(summary: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.5g}") for name, value in summary.items()}


def _plain(value: Any) -> Any:
    """As JSON holds it: seven digits, as many as f32 has; null for what is not finite."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (np.ndarray, jax.Array)):
        return _plain(np.asarray(value).tolist())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(inner) for inner in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
