"""Loggers: where the records of a run go besides metrics.jsonl. Several at once; one that fails is dropped with one warning."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from rljax.core.errors import ConfigError, RljaxWarning, did_you_mean, how_to_install, shown


class RunStart(NamedTuple):
    """What a logger is told as a run starts or goes on.

    Attributes:
        name: of the run: its folder's, or the algorithm's and the environment's.
        folder: the run's folder; None where nothing is kept.
        hyperparameters: the fields of the configuration, plain values.
        step: environment steps taken; more than 0 for a run that goes on. Records of later steps, logged before a kill, come
            again.
        resumed: whether the run goes on.
    """

    name: str
    folder: Path | None
    hyperparameters: dict[str, Any]
    step: int
    resumed: bool


class Logger(Protocol):
    """Write your own: `fit(config, loggers=[MyLogger()])`.

    A method `histograms(step, trees)` may be added: it is called about 50 times in a run with `{"parameters": tree of arrays,
    "gradients": tree of arrays}`. Those gradients are Adam's first moment: the mean of the clipped gradients over about the last
    ten steps.
    """

    def start(self, run: RunStart) -> None: ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """A record: `step` in environment steps; values may be NaN (no episode ended, say)."""
        ...

    def close(self) -> None: ...


class TensorBoard:
    """Scalars, histograms and the configuration as text, in `RUN/tensorboard` (tensorboardX)."""

    def start(self, run: RunStart) -> None:
        from tensorboardX import SummaryWriter

        folder = _folder(run) / "tensorboard"
        # purge_step: what an earlier process logged after the checkpoint that the run goes on from is hidden.
        self.writer = SummaryWriter(str(folder), purge_step=run.step + 1 if run.resumed else None)
        rows = [f"| {name} | {value} |" for name, value in run.hyperparameters.items()]
        self.writer.add_text("hyperparameters", "\n".join(["| field | value |", "| --- | --- |", *rows]), run.step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in _finite(metrics).items():
            self.writer.add_scalar(name, value, step)

    def histograms(self, step: int, trees: Mapping[str, Any]) -> None:
        for kind, tree in trees.items():
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
                name = jax.tree_util.keystr(path, simple=True, separator="/")
                self.writer.add_histogram(f"{kind}/{name}", np.asarray(leaf).ravel(), step)

    def close(self) -> None:
        self.writer.close()


class WandB:
    """Weights & Biases. Without an account, `WANDB_MODE=offline` keeps the run in `RUN/wandb`; `wandb sync` uploads it later."""

    def start(self, run: RunStart) -> None:
        import wandb

        folder = _folder(run)
        known = _remembered(run, "wandb", lambda: uuid.uuid4().hex[:8])
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "rljax"),
            name=run.name,
            id=known,
            resume="allow",
            dir=str(folder),
            config=run.hyperparameters,
        )
        # An axis of its own: wandb drops records whose built-in step does not rise, as after a resume.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.log({"step": step, **_finite(metrics)})

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """MLflow: the server of MLFLOW_TRACKING_URI, or else a database in `RUN/mlflow` (`mlflow ui --backend-store-uri ...`)."""

    def start(self, run: RunStart) -> None:
        import mlflow

        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            folder = (_folder(run) / "mlflow").resolve()
            folder.mkdir(exist_ok=True)
            uri = f"sqlite:///{folder / 'mlflow.db'}"
        self.client = mlflow.MlflowClient(tracking_uri=uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "rljax")
        found = self.client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self.client.create_experiment(name)

        def create() -> str:
            created: str = self.client.create_run(experiment, run_name=run.name).info.run_id
            return created

        self.run_id = _remembered(run, "mlflow", create)
        if not run.resumed:
            for key, value in run.hyperparameters.items():
                self.client.log_param(self.run_id, key, str(value))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(self.run_id, [Metric(name, value, now, step) for name, value in _finite(metrics).items()])

    def close(self) -> None:
        self.client.set_terminated(self.run_id)


class Aim:
    """Aim, in the repository of the working directory, or in that of AIM_REPO."""

    def start(self, run: RunStart) -> None:
        import aim

        repo = os.environ.get("AIM_REPO") or None
        known = _remembered(run, "aim", lambda: "")
        self.run = aim.Run(run_hash=known or None, repo=repo, experiment="rljax", log_system_params=False)
        if not known:
            _remember(run, "aim", self.run.hash)
        self.run.name = run.name
        self.run["hparams"] = json.loads(json.dumps(run.hyperparameters, default=str))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in _finite(metrics).items():
            self.run.track(value, name=name, step=step)

    def close(self) -> None:
        self.run.close()


LOGGERS: dict[str, tuple[Callable[[], Logger], str]] = {
    "tensorboard": (TensorBoard, "tensorboardX"),
    "wandb": (WandB, "wandb"),
    "mlflow": (MLflow, "mlflow"),
    "aim": (Aim, "aim"),
}
"""Logger and the module it needs, by the name that `--log` takes; the extra of rljax is called the same."""


def make_logger(logger: str | Logger) -> Logger:
    """A logger by its name, or the user's own as it is.

    Raises:
        ConfigError: an unknown name, or the library behind it is not installed.
    """
    if not isinstance(logger, str):
        return logger
    if logger not in LOGGERS:
        raise ConfigError(f"log = {shown(logger)}: {did_you_mean(logger, LOGGERS)}")
    make, module = LOGGERS[logger]
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"log = {logger!r}: {module} is not installed: {how_to_install(logger)}")
    return make()


class Loggers:
    """Several loggers as one. Whatever one of them raises drops that one, with a single warning, and training goes on."""

    def __init__(self, loggers: Sequence[str | Logger]):
        self.loggers = [make_logger(logger) for logger in ([loggers] if isinstance(loggers, str) else loggers)]

    @property
    def want_histograms(self) -> bool:
        return any(hasattr(logger, "histograms") for logger in self.loggers)

    def start(self, run: RunStart) -> None:
        self._each(lambda logger: logger.start(run))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._each(lambda logger: logger.log(step, metrics))

    def histograms(self, step: int, state: Any) -> None:
        trees = {"parameters": state.params, "gradients": recent_gradients(state)}
        trees = {kind: jax.device_get(tree) for kind, tree in trees.items() if tree is not None}
        self._each(lambda logger: logger.histograms(step, trees) if hasattr(logger, "histograms") else None)

    def close(self) -> None:
        loggers, self.loggers = self.loggers, []
        for logger in loggers:
            self._try(logger, lambda logger: logger.close())

    def _each(self, call: Callable[[Any], None]) -> None:
        for logger in list(self.loggers):
            if not self._try(logger, call):
                self.loggers.remove(logger)
                with contextlib.suppress(Exception):
                    logger.close()

    def _try(self, logger: Any, call: Callable[[Any], None]) -> bool:
        try:
            call(logger)
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            warnings.warn(
                f"logger {type(logger).__name__} failed and is switched off, training goes on: {reason}",
                RljaxWarning,
                stacklevel=2,
            )
            return False
        return True


def recent_gradients(state: Any) -> Any:
    """Adam's first moment, in the structure of the parameters; None for an optimiser without one."""
    moment = optax.tree.get(getattr(state, "opt_state", None), "mu", None)
    if not isinstance(moment, jax.Array):
        return moment
    # The optimiser may keep all parameters as one flat vector; of several seeds, as one for each.
    unravel = ravel_pytree(jax.tree.map(lambda x: x[0], state.params) if moment.ndim == 2 else state.params)[1]
    return jax.vmap(unravel)(moment) if moment.ndim == 2 else unravel(moment)


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _folder(run: RunStart) -> Path:
    """The run's folder, or one under `runs/` for what a logger writes where the run itself keeps nothing."""
    folder = run.folder or Path("runs") / run.name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _remembered(run: RunStart, service: str, make: Callable[[], str]) -> str:
    """The identity that a service gave the run, kept in its folder, so that a resumed run goes on under the same one."""
    if run.folder is None:
        return make()
    file = run.folder / f".{service}_id"
    if run.resumed and file.is_file():
        return file.read_text(encoding="utf-8").strip()
    identity = make()
    _remember(run, service, identity)
    return identity


def _remember(run: RunStart, service: str, identity: str) -> None:
    if run.folder is not None:
        (run.folder / f".{service}_id").write_text(identity, encoding="utf-8")
