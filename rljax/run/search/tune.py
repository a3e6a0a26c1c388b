"""Tuning: Optuna chooses hyperparameters, and a whole batch of its trials trains in one program."""

from __future__ import annotations

import contextlib
import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tomli_w

from rljax.algos.common.teacher import check_teacher
from rljax.core.agent import MakeAgent, check_own, own_of
from rljax.core.agent import make_agent as standard_agent
from rljax.core.config import Config
from rljax.core.config_files import dump_config, load_config
from rljax.core.devices import warn_of_unseen_gpu
from rljax.core.errors import ConfigError, did_you_mean, first_line, shown
from rljax.core.places import WatchedFolder, as_path
from rljax.run.episodes import check_one_run
from rljax.run.files.folder import BEST_FILE, CONFIG_FILE, TRIALS_FILE, TUNE_FILE, check_num_seeds
from rljax.run.files.outputs import is_current, make_folder, read_table, write_text
from rljax.run.initial import IN_SEARCHES
from rljax.run.search.population import Population, Printer, Programs, fill, train_batches
from rljax.run.search.space import Range, apply_cell, check_counts, check_space, is_leaf, parse_space, space_table
from rljax.run.search.storage import absolute, file_of, is_inside
from rljax.run.search.study import (
    PROCESS,
    check_optuna,
    check_same,
    completed_trials,
    distributions,
    draw_study,
    free_abandoned,
    make_sampler,
    open_study,
    process_name,
    valid_trials,
    write_trials,
)
from rljax.run.view.layout import format_number

JOURNAL, PICTURE = "study.journal", "tune.png"

RUNGS = 10
"""Number of parts of a training; after each part the worse trials may be pruned."""

PRIORS = {
    "learning_rate": Range(1e-5, 1e-1, log=True),
    "gamma": Range(0.9, 0.9999),
    "gae_lambda": Range(0.8, 1.0),
    "td_lambda": Range(0.5, 1.0),
    "ent_coef": Range(1e-5, 1e-1, log=True),
    "clip_eps": Range(0.05, 0.4),
    "vf_coef": Range(0.1, 1.0),
    "max_grad_norm": Range(0.1, 5.0, log=True),
    "tau": Range(1e-3, 1.0, log=True),
}
"""Ranges to search by default, for those of these fields that a configuration has."""

PRUNERS = ("percentile", "median", "halving", "none")


class TuneResult(NamedTuple):
    """Result of tuning.

    Attributes:
        best: configuration of the best trial.
        value: mean return of the best trial.
        trials: all trials of the study (`optuna.trial.FrozenTrial`), including those run by other processes.
        study: Optuna's study.
    """

    best: Any
    value: float
    trials: list[Any]
    study: Any


def default_space(config: Config) -> dict[str, Range]:
    """Return the wide ranges in `PRIORS` of the fields that a configuration has and uses."""
    return {name: prior for name, prior in PRIORS.items() if is_leaf(config, name) and getattr(config, name) is not None}


def tune(
    config: Config,
    space: Mapping[str, Any] | None = None,
    *,
    trials: int = 64,
    batch_size: int = 16,
    seeds: int = 1,
    episodes: int = 100,
    pruner: str = "percentile",
    storage: str | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    progress: Printer = lambda _: None,
    make_agent: MakeAgent = standard_agent,
) -> TuneResult:
    """Search for leaves with a high mean return of the final policy, with Optuna's TPE (Bergstra et al., 2011).

    Optuna suggests trials in batches, and one program trains a whole batch. After each tenth of the training, the trials that
    Optuna prunes are stopped; once half of a batch is stopped, a smaller program continues.

    Args:
        config: configuration whose fields are changed; its budget is that of each trial.
        space: a `Range` or a list of numbers for each field; if None, `default_space(config)`.
        trials: number of trials in the study, including those of other processes and of earlier times (each of P processes may
            ask for the last batch). Failed trials are repeated.
        batch_size: number of trials to train at once.
        seeds: number of seeds per trial; the value of a trial is the mean over its seeds.
        episodes: number of episodes to play with each final policy.
        pruner: trials to stop: "percentile" (the worst quarter at that step), "median" (worse than the median; with noisy
            returns that leaves few), "halving" (successive halving) or "none".
        storage: an Optuna URL (`sqlite:///study.db`), or a file for a journal; several processes or machines may share it. If
            None, the study is in `run_dir`, or in memory.
        run_dir: folder for the study, `trials.csv`, `best.toml` and `tune.png`; if it exists, its study continues.
        progress: function that is called with lines of text about the progress.
        make_agent: function from a configuration to its agent, such as `functools.partial(rljax.make_agent, loss_fn=my_loss)`.

    Raises:
        ConfigError: a field or value is not allowed, or Optuna is not installed.
    """
    check_optuna()
    check_counts(trials=trials, batch_size=batch_size, seeds=seeds, episodes=episodes)
    check_num_seeds(seeds, config)
    check_one_run(config, "tuning")
    if pruner not in PRUNERS:
        raise ConfigError(f"pruner = {shown(pruner)}: {did_you_mean(str(pruner), PRUNERS)}")
    chosen = check_space(config, default_space(config) if space is None else space, "random")
    if not chosen:
        raise ConfigError("nothing to tune: give at least one field")
    for name, values in chosen.items():
        numbers = isinstance(values, Range) or all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in values)
        if not is_leaf(config, name) or not numbers:
            raise ConfigError(
                f"{name}: fixes the structure of the program, so trials could not share one program: sweep it instead"
            )
    folder = None if run_dir is None else as_path(run_dir, "run_dir")
    if storage is not None:
        storage = absolute(storage)
    same: dict[str, Any] = {"seeds": seeds, "episodes": episodes, "pruner": pruner}
    own = own_of(config, make_agent)
    check_teacher(make_agent(config), IN_SEARCHES)
    same |= {"own": own} if own else {}  # omitted if empty, so that studies of earlier versions stay the same
    joined = storage is not None
    if folder is not None and (folder / TUNE_FILE).exists():
        joined, storage = True, _storage_of(folder, storage)
    warn_of_unseen_gpu()
    programs = Programs(config, tuple(chosen), make_agent)
    most = min(batch_size, trials) * seeds
    # A size for all devices may be less than the seeds of one trial, which are one batch.
    size = programs.batch_size(most, most) // seeds or int(programs.fits(seeds))
    if size < 1:
        raise ConfigError(f"seeds = {seeds}: so many runs do not fit in this device's memory")
    if storage is not None:
        open_study(storage, pruner)  # checks the storage before the folder is created
    begun = folder is not None and not (folder / TUNE_FILE).exists()
    if folder is not None and begun:
        _create_study_dir(folder, config, chosen, storage, same)
    with contextlib.nullcontext() if folder is None else WatchedFolder(folder) as watched:
        try:
            study = open_study(storage or (None if folder is None else str(folder / JOURNAL)), pruner)
        except ConfigError:
            if folder is not None and begun:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        check_same(study, config, chosen, same)
        study.set_user_attr(f"{PROCESS} {process_name()}", True)
        free_abandoned(study)
        before = sum(trial.state.is_finished() for trial in valid_trials(study))
        if before >= trials:
            progress(f"trials done before: {before}; none is left to train, a larger number of trials goes on")

        def next_batch(size: int) -> list[Any]:
            left = trials - len(valid_trials(study))
            if left <= 0:
                return []
            # A resumed study must not suggest its first trials again, and processes that share one must suggest different ones.
            # The entropies are mixed, not added, since different numbers of trials and processes may have equal sums.
            here = zlib.crc32(process_name().encode()) if joined else 0
            study.sampler = make_sampler(config.seed, len(study.get_trials(deepcopy=False)), here)
            batch = [study.ask(distributions(chosen)) for _ in range(min(size, left))]
            for trial in batch:
                trial.set_user_attr(PROCESS, process_name())
            return batch

        def train(batch: list[Any], size: int) -> None:
            _run_batch(study, batch, programs, size, seeds, episodes, watched)
            done = [t for t in valid_trials(study) if t.state.is_finished()]
            best = format_number(study.best_value if completed_trials(study) else np.nan)
            progress(f"{len(done)}/{trials} trials done, best return {best}")
            if watched is not None:
                watched.check()
                write_trials(watched.folder, study, tuple(chosen))

        train_batches(programs, next_batch, train, size, seeds=seeds, what="trials", progress=progress)
        under_way = [t for t in valid_trials(study) if not t.state.is_finished()]
        if under_way:
            progress(f"{len(under_way)} trials are still running in other processes")
        if not completed_trials(study):
            what = "they are still running in other processes" if under_way else "try smaller learning rates"
            raise ConfigError(f"none of {trials} trials has a finite result: {what}")
        best_config = apply_cell(config, study.best_params).replace(num_devices=1)  # as the trial was trained
        if folder is not None:
            write_trials(folder, study, tuple(chosen))
            write_text(folder / BEST_FILE, dump_config(best_config))
            if not is_current(folder / PICTURE, folder / TRIALS_FILE, folder / BEST_FILE):
                draw_study(study, folder / PICTURE)
        return TuneResult(best_config, float(study.best_value), study.get_trials(), study)


def resume_tune(
    run_dir: str | os.PathLike[str],
    *,
    trials: int = 64,
    batch_size: int = 16,
    storage: str | None = None,
    progress: Printer = lambda _: None,
    make_agent: MakeAgent = standard_agent,
) -> TuneResult:
    """Resume a study with its original settings, or join one that another process works on.

    Args:
        run_dir: the study's folder.
        trials: number of trials in the study, as in `tune`.
        batch_size: number of trials to train at once.
        progress: function that is called with a line of text after each batch.
        make_agent: the function that made the agents when the study was begun.
        storage: the original storage, if it is not in the study's folder: files outside a folder are never opened only because a
            file in it says so.

    Raises:
        ConfigError: there is no study in that folder, its storage is another one, or it was begun with another `make_agent`.
    """
    folder = Path(run_dir)
    config, space, _, same = read_tune(folder)
    check_own(f"the study in {folder}", same.pop("own", ""), own_of(config, make_agent))
    how: dict[str, Any] = {"trials": trials, "batch_size": batch_size, "progress": progress, "make_agent": make_agent}
    return tune(config, space, storage=storage, run_dir=folder, **same, **how)


def _storage_of(folder: Path, given: str | None) -> str | None:
    """Return the storage of the study in a folder; None if it is the journal in the folder.

    Raises:
        ConfigError: the storage is outside the folder and was not given as well, or the folder's journal is a link that leads
            out of it.
    """
    storage = read_tune(folder)[2]
    if storage is None and not is_inside(folder / JOURNAL, folder):
        raise ConfigError(f"{folder / JOURNAL}: leads out of this folder: put the journal itself in its place to continue")
    if storage is None and given is not None:
        raise ConfigError(f"storage = {given!r}: the study of {folder} is in that folder; leave it out")
    # A storage is written with its absolute path: some drivers interpret relative ones, such as "file:...", differently.
    path = None if storage is None else file_of(storage)
    here = path is not None and os.path.isabs(path) and is_inside(path, folder)
    if storage is not None and given is None and not here:
        raise ConfigError(
            f"{folder / TUNE_FILE}: storage = {storage!r} is not in this folder: give the same storage again to continue"
        )
    if given is not None and given != storage:
        raise ConfigError(f"storage = {given!r}: the study of {folder} is in {storage!r}")
    return storage


def _run_batch(
    study: Any, batch: list[Any], programs: Programs, size: int, seeds: int, episodes: int, watched: WatchedFolder | None = None
) -> None:
    """Train trials and tell Optuna their results; also when something goes wrong, each trial gets a result.

    Raises:
        RljaxError: the study's folder was moved or removed; then the trials get no result.
    """
    from optuna.trial import TrialState

    told: set[int] = set()
    try:
        # Fill up the batch with copies of its trials: another size would need another program.
        places = fill(len(batch), size)
        seed = programs.config.seed
        values = {name: np.repeat([batch[i].params[name] for i in places], seeds) for name in programs.names}
        population = Population(programs, values, np.tile(seed + np.arange(seeds), size))
        iterations = programs.config.num_iterations
        for rung in range(1, RUNGS + 1):
            population.advance(-(-iterations * rung // RUNGS) - population.done)
            if watched is not None:
                watched.check()
            scores = population.score.reshape(-1, seeds).mean(1)
            for place, i in enumerate(places):
                if i in told or i in places[:place]:
                    continue
                if np.isfinite(scores[place]):
                    batch[i].report(float(scores[place]), rung)
                # Always prune a trial whose losses are no longer finite: it is the worst possible.
                if np.isneginf(scores[place]) or (rung < RUNGS and np.isfinite(scores[place]) and batch[i].should_prune()):
                    study.tell(batch[i], state=TrialState.PRUNED)
                    told.add(int(i))
            alive = [place for place, i in enumerate(places) if i not in told and i not in places[:place]]
            if not alive:
                return
            if len(alive) <= len(places) // 2 and rung < RUNGS:
                kept = np.array([alive[k % len(alive)] for k in range(-(-len(places) // 2))])
                population.keep((kept[:, None] * seeds + np.arange(seeds)).ravel())
                places = places[kept]
        returns = population.play(episodes).reshape(-1, seeds).mean(1)
        if watched is not None:
            watched.check()
        for place, i in enumerate(places):
            if i in told:
                continue
            told.add(int(i))
            if np.isfinite(returns[place]):
                study.tell(batch[i], float(returns[place]))
            else:
                study.tell(batch[i], state=TrialState.PRUNED)
    finally:
        for i, trial in enumerate(batch):
            if i not in told and (watched is None or watched.there):
                study.tell(trial, state=TrialState.FAIL)


def _create_study_dir(
    folder: Path, config: Config, space: Mapping[str, Any], storage: str | None, same: Mapping[str, Any]
) -> None:
    table = {
        **same,
        "storage": "none" if storage is None else storage,
        "space": space_table(space),
    }
    files = {CONFIG_FILE: dump_config(config), TUNE_FILE: tomli_w.dumps(table)}
    make_folder(folder, files, "to continue a study there, resume it")


def read_tune(folder: Path) -> tuple[Config, dict[str, Any], str | None, dict[str, Any]]:
    """Read the configuration, the space, the storage and the other fixed settings of a study from its folder."""
    table = read_table(folder, TUNE_FILE, "study")
    try:
        space = parse_space(table["space"])
        storage = None if table["storage"] == "none" else table["storage"]
        same = {name: table[name] for name in ("seeds", "episodes", "pruner")} | ({"own": table["own"]} if "own" in table else {})
        if not isinstance(storage, str | None):
            raise TypeError(f"storage = {storage!r}")
    except (KeyError, AttributeError, TypeError) as error:
        raise ConfigError(f"{folder / TUNE_FILE}: differs from what was written ({first_line(error)})") from None
    return load_config(folder / CONFIG_FILE), space, storage, same
