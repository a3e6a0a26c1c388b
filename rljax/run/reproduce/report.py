"""Measurements of an experiment, and their record.

A record is `results/NAME.json`, one JSON object:

| key | value |
| --- | --- |
| `name`, `measures`, `command` | name and description of the experiment, and the command that repeats it |
| `note` | remark for readers, such as "not repeated: ..." if old values stand in for a run; else "" |
| `date` | start of the experiment, ISO 8601 in UTC |
| `commit` | commit of the source, with `-dirty` if `rljax`, `envs` or `configs` differ from it; null outside a git checkout |
| `versions` | versions of Python and of the packages that compute |
| `hardware` | `cpu`, `cores` (that this process may use), `cores_of_machine`, `devices` |
| `load` | `os.getloadavg()` before and after: 6 numbers (none on Windows) |
| `seconds` | `compile` (including tracing) and `run`, summed over the programs |
| `seeds`, `budget` | seeds of the keys; fraction of each configuration's budget that was trained, 1 in published records |
| `configs` | every field of each configuration, by arm |
| `presets` | by arm: `preset`, the name of the preset it was made from, or null; `changed`, the fields changed on purpose |
| `raw` | by name: a value for each seed, or a list of values for each seed |
| `thresholds` | by name of `raw`: the smallest value that counts as solved |
| `summary` | by name of `raw` with one value per seed: `mean`, `median`, `min`, `max`, and `solved` with a threshold |
| `facts` | by name: single numbers and texts that belong to no seed (a game's exact value, the rows of a benchmark's table) |
| `kept` | runs that were begun in earlier calls (`--run-dir`), if any; `note` says so, too |
| `parts` | only of records that were merged (`rljax.run.reproduce.merge`): what each of them said |

Numbers that are not finite are written as null.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import math
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algos.common.training import evaluation_due
from rljax.collect.environments import make_evaluation_env
from rljax.collect.evaluation import evaluate
from rljax.core.agent import Agent, make_agent
from rljax.core.config import Config
from rljax.core.config_files import config_table, load_config
from rljax.core.devices import load_averages, usable_cores
from rljax.core.errors import ConfigError
from rljax.run.bench.timing import cpu_model
from rljax.run.files.folder import CONFIG_FILE, METRICS_FILE
from rljax.run.files.outputs import atomic_file
from rljax.run.files.records import is_count, window_length
from rljax.run.fit import fit
from rljax.run.progress import Lines, Progress, Silent
from rljax.run.view.curves import read_metrics
from rljax.version import __version__, source_commit

PACKAGES = ("jax", "jaxlib", "flax", "optax", "chex", "gymnax", "mctx", "numpy")
PEERS = ("rejax", "pgx", "optuna", "bitbully")
"""Packages that only some experiments need."""

SEEDS_AT_ONCE = 20
"""Largest number of seeds in one program: a CPU's caches do not hold the states of 100, which then take twice the time."""


class Trained(NamedTuple):
    """Trained seeds of one configuration: `states`, `metrics` (NumPy `[seeds, iterations]`) and `keys` have an axis of seeds."""

    agent: Agent
    states: Any
    metrics: Mapping[str, np.ndarray]
    keys: jax.Array

    @property
    def curve(self) -> np.ndarray:
        """Evaluations during training, `[seeds, evaluations]`."""
        values = self.metrics["eval/return"]
        return values[:, np.isfinite(values).any(0)]

    @property
    def evaluated_at(self) -> list[int]:
        """Numbers of environment steps at these evaluations."""
        found = np.flatnonzero(np.isfinite(self.metrics["eval/return"]).any(0))
        return [int(i + 1) * self.agent.config.steps_per_iteration for i in found]

    @property
    def threshold(self) -> float | None:
        """Return at which the environment counts as solved; None if it has none."""
        return make_evaluation_env(self.agent.config)[0].reward_threshold


def fresh_keys(run: Trained) -> jax.Array:
    """Return keys `[seeds]` that training did not use."""
    return jax.vmap(lambda key: jax.random.fold_in(key, 1))(run.keys)


def first_step(values: np.ndarray, steps: Sequence[int], threshold: float | None) -> np.ndarray:
    """Return the first of `steps` at which `values` `[seeds, len(steps)]` reach a threshold, f64 `[seeds]`; NaN if never."""
    reached = np.nan_to_num(values, nan=-np.inf) >= (np.inf if threshold is None else threshold)
    return np.where(reached.any(1), np.array(steps, np.float64)[reached.argmax(1)], np.nan)


class Report:
    """Report of an experiment: it trains, evaluates and times for the experiment, and collects its measurements.

    With `run_dir`, what `train` trains and what is recorded in `workplace` are kept in the folder `run_dir/NAME/from_FIRST_SEED`.
    If the experiment is run again, complete runs are only read, and one that was stopped goes on from its last checkpoint.
    Metrics are then those that runs record, means of several iterations if there are more than 1,000.
    """

    def __init__(
        self,
        name: str,
        measures: str,
        first_seed: int,
        seeds: int,
        budget: float = 1.0,
        quiet: bool = False,
        run_dir: str | Path | None = None,
    ):
        self.name, self.measures, self.budget, self.quiet = name, measures, budget, quiet
        self.folder = None if run_dir is None else _kept_folder(Path(run_dir), name, first_seed, budget)
        self.run_dirs: set[Path] = set()
        self.kept: list[str] = []
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
        self.load = load_averages()
        self.commit = source_commit()  # at the start, before the source may change

    def say(self, line: str) -> None:
        if not self.quiet:
            print(line, flush=True)

    def configure(
        self, config_or_preset: Config | str, arm: str | None = None, *, preset: str | None = None, **changes: Any
    ) -> tuple[Any, str]:
        """Return the configuration that an arm trains, with its share of the budget, and the arm's name; record both.

        Args:
            config_or_preset: configuration, or a preset's name.
            arm: name of the configuration; by default that of the preset or the algorithm.
            preset: name of the preset that the configuration was made from.
            changes: fields to change.
        """
        preset = config_or_preset if isinstance(config_or_preset, str) else preset
        config = load_config(config_or_preset) if isinstance(config_or_preset, str) else config_or_preset
        config = config.replace(**{"seed": self.seeds[0], **changes})
        steps = max(round(config.total_timesteps * self.budget), config.steps_per_iteration)
        config = config.replace(total_timesteps=steps)
        arm = arm or preset or config.algorithm
        self.configs[arm] = config_table(config)
        self.presets[arm] = {"preset": preset, "changed": _changed_fields(config, preset, {"seed", *changes})}
        return config, arm

    def train(
        self,
        config_or_preset: Config | str,
        arm: str | None = None,
        *,
        preset: str | None = None,
        begin: Callable[[Agent], Agent] = lambda agent: agent,
        **changes: Any,
    ) -> Trained:
        """Train all seeds, up to `SEEDS_AT_ONCE` in one program, as `rljax train --seed FIRST --seeds N` does; arguments are as
        of `configure`.

        `begin` changes the agent, so that its runs begin with another policy, say.
        """
        config, arm = self.configure(config_or_preset, arm, preset=preset, **changes)
        agent = begin(make_agent(config))
        states, metrics = [], []
        for group in (self.seeds[i : i + SEEDS_AT_ONCE] for i in range(0, len(self.seeds), SEEDS_AT_ONCE)):
            clock = _Clock(Silent() if self.quiet else Lines(f"{self.name}: {arm}, seeds {group[0]} to {group[-1]}"))
            of_group = agent._replace(config=config.replace(seed=group[0]))
            run_dir = self._run_dir(arm, group)
            began_before = run_dir is not None and (run_dir / CONFIG_FILE).exists()
            try:
                result = fit(of_group, seeds=len(group), progress=clock, run_dir=run_dir, resume=run_dir is not None)
            except ConfigError as error:
                raise ConfigError(f"{error}; or choose another run_dir for the experiment") if began_before else error from None
            states.append(jax.block_until_ready(result.state))
            if run_dir is None:
                metrics.append({name: np.asarray(values) for name, values in result.metrics.items()})
            else:
                metrics.append(recorded_metrics(run_dir, config))  # whether it was stopped or not
                self.kept += [run_dir.name] * began_before
            self.compiling += clock.compiling
            self.running += time.perf_counter() - clock.since
        joined = {name: np.concatenate([of_group[name] for of_group in metrics]) for name in metrics[0]}
        return Trained(agent, jax.tree.map(lambda *x: jnp.concatenate(x), *states), joined, self.keys)

    def _run_dir(self, arm: str, group: Sequence[int]) -> Path | None:
        """Return the folder in which the run of a group of seeds is kept; None if none is."""
        if self.folder is None:
            return None
        name = "_".join([re.sub(r"[^a-z0-9]+", "_", arm.lower()), *map(str, sorted({group[0], group[-1]}))])
        folder = self.folder / name
        if folder in self.run_dirs:
            raise ValueError(f"{arm}: another arm of the experiment is kept in {folder}; give it another name")
        self.run_dirs.add(folder)
        return folder

    @contextlib.contextmanager
    def workplace(self) -> Iterator[None]:
        """Work in a folder for data, which is kept or temporary, so that records name data as it is called there."""
        with contextlib.ExitStack() as stack:
            if self.folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            else:
                folder = self.folder / "data"
                folder.mkdir(exist_ok=True)
            stack.enter_context(contextlib.chdir(folder))
            yield

    def time_program(self, program: Callable[..., Any], *arguments: Any) -> Any:
        """Compile a program and run it once."""
        started = time.perf_counter()
        compiled = jax.jit(program).lower(*arguments).compile()
        between = time.perf_counter()
        result = jax.block_until_ready(compiled(*arguments))
        self.compiling += between - started
        self.running += time.perf_counter() - between
        return result

    def returns(self, run: Trained, episodes: int = 100, sample: bool = False, config: Config | None = None) -> np.ndarray:
        """Return mean returns, f32 `[seeds]`, with keys that training did not use; greedy unless `sample`.

        Episodes are played in the environment of `config` if it is given.
        """
        agent = run.agent if config is None else make_agent(config)
        play = lambda state, key: jnp.mean(  # noqa: E731
            evaluate(agent, state, jax.random.fold_in(key, 1), episodes, deterministic=not sample)
        )
        return np.asarray(self.time_program(jax.vmap(play), run.states, run.keys))

    def measure(self, name: str, values: Any, threshold: float | None = None) -> np.ndarray:
        """Record a value, or a row of values, for each seed."""
        found = np.asarray(values)
        if len(found) != len(self.seeds):
            raise ValueError(f"{name}: expected a value for each of {len(self.seeds)} seeds, got {list(found.shape)}")
        self.raw[name] = to_plain(found)
        if threshold is not None:
            self.thresholds[name] = threshold
        if found.ndim == 1:
            self.say(f"{self.name}: {name}: {json.dumps(_round(summarize(found, threshold)))}")
        return found

    def record(self, command: str) -> dict[str, Any]:
        """Return the record of the measurements so far."""
        notes = [self.note] if self.note else []
        if self.kept:
            of_last = "Date, commit, versions, hardware and seconds are those of the last call."
            notes.append(f"Begun in earlier calls: {', '.join(self.kept)}. {of_last}")
        return {
            "name": self.name,
            "measures": self.measures,
            "command": command,
            "note": " ".join(notes),
            "date": self.began.isoformat(timespec="seconds"),
            "commit": self.commit,
            "versions": versions(),
            "hardware": hardware_table(),
            "load": [round(x, 2) for x in (*self.load, *load_averages())],
            "seconds": {"compile": round(self.compiling, 1), "run": round(self.running, 1)},
            "seeds": self.seeds,
            "budget": self.budget,
            "configs": self.configs,
            "presets": self.presets,
            "raw": self.raw,
            "thresholds": self.thresholds,
            "summary": summaries(self.raw, self.thresholds),
            "facts": to_plain(self.facts),
            **({"kept": self.kept} if self.kept else {}),
        }


def _kept_folder(run_dir: Path, name: str, first_seed: int, budget: float) -> Path:
    """Make the folder for the runs of an experiment.

    What all seeds share, such as recorded games, depends on the first of them.
    """
    place = run_dir.absolute() / name
    folder = place / (f"from_{first_seed}" if budget == 1 else f"from_{first_seed}_budget_{budget:g}")
    if (place / CONFIG_FILE).exists():
        raise ConfigError(f"run_dir = {run_dir}: {place} is a run; choose a folder for this experiment's runs")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"run_dir = {run_dir}: {folder} cannot be made: {error.strerror}") from None
    return folder


def recorded_metrics(run_dir: Path, config: Config) -> dict[str, np.ndarray]:
    """Return the metrics of a run of several seeds from its folder, `[seeds, iterations]`.

    A run of at most `records.MAX_RECORDS` iterations has a record of each. Of a longer one, all iterations of a record get its
    means; an evaluation stands where it was, the last one of a record.

    Raises:
        ConfigError: there are not all records of a complete run.
    """
    records = read_metrics(run_dir).records
    last, steps = config.num_iterations, config.steps_per_iteration
    names = list(records[0]["seeds"]) if records else []
    window = window_length(last, len(records[0]["seeds"][names[0]]), len(names)) if names else last
    ends = [*range(window, last, window), last]
    if [record["step"] for record in records] != [end * steps for end in ends]:
        missing = f"records are missing in {METRICS_FILE}, so its curves are not known"
        raise ConfigError(f"{run_dir}: {missing}; choose another run_dir")
    lengths = np.diff([0, *ends])
    iterations = jnp.arange(last)
    due = False if config.eval_every is None else evaluation_due(config.eval_every, steps, iterations) | (iterations == last - 1)
    evaluated = np.flatnonzero(np.broadcast_to(due, last))
    at = {int(np.searchsorted(ends, i, side="right")): i for i in evaluated}  # by record, the last one
    metrics: dict[str, np.ndarray] = {}
    for name in names:
        values = np.array([record["seeds"][name] for record in records], np.float32).T  # null becomes NaN
        if name.startswith("eval/") and window > 1:
            metrics[name] = np.full((len(values), last), np.nan, np.float32)
            metrics[name][:, list(at.values())] = values[:, list(at)]
        else:
            shares = lengths if is_count(name) else np.ones_like(lengths)
            metrics[name] = np.repeat(values / shares.astype(np.float32), lengths, axis=1)
    return metrics


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record atomically: a failure leaves the old file as it was."""
    with atomic_file(path) as aside:
        aside.write_text(json.dumps(to_plain(record), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def summaries(raw: Mapping[str, Any], thresholds: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Summarize each measure with one value for each seed."""
    numbers = {name: np.array(values, np.float64) for name, values in raw.items() if np.ndim(values) == 1}
    return {name: summarize(values, thresholds.get(name)) for name, values in numbers.items()}


def summarize(values: np.ndarray, threshold: float | None = None) -> dict[str, float]:
    """Summarize the values of seeds `[seeds]`; a seed without a value (NaN) is left out and counts as not solved."""
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
    """Return the versions of Python and of the packages that compute."""
    found = {"python": platform.python_version(), "rljax": __version__}
    for name in (*PACKAGES, *PEERS):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if name in PACKAGES:
                found[name] = "not installed"
    return found


def hardware_table() -> dict[str, Any]:
    """Return the processor, its cores and JAX's devices."""
    devices = [device.device_kind for device in jax.devices()]
    return {"cpu": cpu_model(), "cores": usable_cores(), "cores_of_machine": os.cpu_count(), "devices": devices}


def _changed_fields(config: Config, preset: str | None, by_name: Set[str]) -> list[str]:
    """Return the fields that differ from the preset, and those changed by name, since a preset may later have the same value."""
    if preset is None:
        return []
    table, usual = config_table(config), config_table(load_config(preset))
    return [name for name in table if name in by_name or (name in usual and table[name] != usual[name])]


class _Clock:
    """Progress that notes when a program is compiled, and passes all calls on to the one that is shown."""

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


def _round(summary: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.5g}") for name, value in summary.items()}


def to_plain(value: Any) -> Any:
    """Convert a value for JSON: floats get seven digits, as many as f32 has; those that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(name): to_plain(inner) for name, inner in value.items()}
    if isinstance(value, (np.ndarray, jax.Array)):
        return to_plain(np.asarray(value).tolist())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_plain(inner) for inner in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
