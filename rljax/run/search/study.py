"""Studies of Optuna: opened, shared by processes, and written out."""

from __future__ import annotations

import importlib.util
import math
import os
import socket
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rljax.core.config import Config
from rljax.core.config_files import dump_config
from rljax.core.errors import ConfigError, first_line, how_to_install, shown
from rljax.run.files.folder import TRIALS_FILE
from rljax.run.files.outputs import atomic_file, write_csv
from rljax.run.search.space import Range
from rljax.run.search.storage import check_storage, journal

STUDY, PROCESS = "rljax", "process"


def check_optuna() -> None:
    """Check that Optuna is installed, before any work is done."""
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError(f"tuning needs Optuna: {how_to_install('tune')}")


def distributions(space: Mapping[str, tuple[Any, ...] | Range]) -> dict[str, Any]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    return {
        name: FloatDistribution(x.low, x.high, log=x.log) if isinstance(x, Range) else CategoricalDistribution(x)
        for name, x in space.items()
    }


def open_study(where: str | None, pruner: str) -> Any:
    """Open or create Optuna's study in a storage, or in memory.

    Raises:
        ConfigError: the storage cannot be opened.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruners = {
        "percentile": optuna.pruners.PercentilePruner(75.0, n_startup_trials=8, n_warmup_steps=2),
        "median": optuna.pruners.MedianPruner(n_startup_trials=8, n_warmup_steps=2),
        "halving": optuna.pruners.SuccessiveHalvingPruner(),
        "none": optuna.pruners.NopPruner(),
    }
    try:
        storage: Any = where
        if where is not None:
            check_storage(where)
            if "://" not in where:
                storage = optuna.storages.JournalStorage(journal(where))
        return optuna.create_study(
            storage=storage, pruner=pruners[pruner], study_name=STUDY, direction="maximize", load_if_exists=True
        )
    except ConfigError:
        raise
    except Exception as error:  # drivers of storages raise errors of many types
        raise ConfigError(f"storage = {shown(where)}: cannot be opened: {first_line(error)}") from error


def make_sampler(*entropy: int) -> Any:
    import optuna

    seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
    return optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)


_BEGAN = time.time_ns()
"""Tells this process from an earlier one: a container that is started again has the same host name and process numbers."""


def process_name() -> str:
    """Return a name of this process that is unique among machines and times."""
    return f"{socket.gethostname()}:{os.getpid()}:{_BEGAN}"


def check_same(study: Any, config: Config, space: Mapping[str, Any], same: Mapping[str, Any]) -> None:
    """Refuse a study with other settings: its trials would be ranked with ours."""
    what = dump_config(config) + repr({name: str(x) for name, x in space.items()}) + repr(dict(same))
    if study.user_attrs.get("rljax", what) != what:
        raise ConfigError(
            "this storage has a study of another configuration, space, seeds, episodes or pruner: choose another storage"
        )
    study.set_user_attr("rljax", what)


def free_abandoned(study: Any) -> None:
    """Mark trials as failed if their process on this machine has ended, so that they are repeated.

    A process that is killed before it writes its name on a trial leaves a trial without a name. Such a trial is marked once all
    other processes have ended.
    """
    from optuna.trial import TrialState

    others = {name.removeprefix(f"{PROCESS} ") for name in study.user_attrs if name.startswith(f"{PROCESS} ")} - {process_name()}
    nobodys = all(_is_gone(process) for process in others)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        process = trial.user_attrs.get(PROCESS)
        if nobodys if process is None else _is_gone(process):
            study.tell(trial.number, state=TrialState.FAIL)


def _is_gone(process: str) -> bool:
    """Return whether a process has ended; False if it runs on another machine, since nothing is known of those."""
    host, pid, *_ = process.split(":")
    if host != socket.gethostname():
        return False
    if int(pid) == os.getpid():
        return process != process_name()
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # the process exists but belongs to another user
    return False


def valid_trials(study: Any) -> list[Any]:
    """Return all trials except the failed ones, which are repeated."""
    return [t for t in study.get_trials(deepcopy=False) if t.state.name != "FAIL"]


def completed_trials(study: Any) -> list[Any]:
    from optuna.trial import TrialState

    found: list[Any] = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return found


def write_trials(folder: Path, study: Any, names: tuple[str, ...]) -> None:
    rows = []
    for trial in study.get_trials(deepcopy=False):
        value = "" if trial.value is None else trial.value
        rows.append([trial.number, trial.state.name.lower(), value, *(trial.params.get(name, "") for name in names)])
    write_csv(folder / TRIALS_FILE, ["trial", "state", "return", *names], rows)


def importances(study: Any) -> dict[str, float]:
    """Return the importance of each field for the trials' values (PED-ANOVA, Watanabe et al., 2023); {} with too few trials, or
    where all reached the same."""
    import optuna

    values = [trial.value for trial in completed_trials(study)]
    if len(values) < 4 or len(set(values)) == 1:
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of many equal trials
            found: dict[str, float] = optuna.importance.get_param_importances(
                study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
            )
    except (RuntimeError, ValueError):
        return {}
    return {name: x for name, x in found.items() if math.isfinite(x)}


def draw_study(study: Any, path: Path) -> None:
    """Draw the history of a study and the importance of each field."""
    import matplotlib
    from matplotlib.figure import Figure

    from rljax.run.view.plot import COLORS, METADATA, STYLE

    complete, weights = completed_trials(study), importances(study)
    with matplotlib.rc_context(STYLE), atomic_file(path) as aside:
        figure = Figure(figsize=(8.0, 3.2), layout="constrained")
        history, bars = figure.subplots(1, 2, width_ratios=(3, 2))
        numbers, values = [t.number for t in complete], [t.value for t in complete]
        history.plot(numbers, values, "o", color=COLORS[0], markersize=4, label="trained to the end")
        history.plot(numbers, np.maximum.accumulate(values), "-", color=COLORS[1], label="best so far")
        pruned = [
            (t.number, t.intermediate_values[max(t.intermediate_values)])
            for t in study.get_trials(deepcopy=False)
            if t.state.name == "PRUNED" and t.intermediate_values
        ]
        if pruned:
            history.plot(*zip(*pruned, strict=True), "x", color="0.6", markersize=4, label="pruned, last value")
        history.set_xlabel("trial")
        history.set_ylabel("return")
        history.grid(alpha=0.3)
        figure.legend(*history.get_legend_handles_labels(), loc="outside upper left", ncols=3, frameon=False)
        names = list(weights)[::-1]
        bars.barh(range(len(names)), [weights[name] for name in names], color=COLORS[0])
        bars.set_yticks(range(len(names)), names)
        bars.set_xlabel("importance" if names else "importance: too few trials to tell")
        suffix = path.suffix.lower()
        figure.savefig(aside, format=suffix[1:], dpi=200, metadata=METADATA[suffix])
