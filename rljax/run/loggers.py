"""Loggers, which get the records of a run besides metrics.jsonl. One that fails is dropped with a warning."""

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
    """Description of a run that a logger gets when the run starts or is resumed.

    Attributes:
        name: name of the run: its folder's, or the algorithm and the environment.
        folder: the run's folder; None if nothing is saved.
        hyperparameters: fields of the configuration, as plain values.
        step: number of environment steps taken; more than 0 for a resumed run. Records of later steps that were logged before a
            kill are logged again.
        resumed: whether the run is resumed.
    """

    name: str
    folder: Path | None
    hyperparameters: dict[str, Any]
    step: int
    resumed: bool


class Logger(Protocol):
    """Methods of a logger. To use your own: `fit(config, loggers=[MyLogger()])`.

    A logger may also have a method `histograms(step, trees)`. It is called about 50 times in a run with `{"parameters": tree of
    arrays, "gradients": tree of arrays}`. These gradients are Adam's first moment: the mean of the clipped gradients over about
    the last ten steps.
    """

    def start(self, run: RunStart) -> None: ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log a record; `step` is in environment steps, and values may be NaN (if no episode ended, say)."""
        ...

    def close(self) -> None: ...


class TensorBoard:
    """TensorBoard: scalars, histograms and the configuration as text, in `RUN/tensorboard` (tensorboardX)."""

    def start(self, run: RunStart) -> None:
        from tensorboardX import SummaryWriter

        folder = _folder(run) / "tensorboard"
        # purge_step hides what an earlier process logged after the checkpoint from which the run is resumed.
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
        known = _recall_identity(run, "wandb", lambda: uuid.uuid4().hex[:8])
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "rljax"),
            name=run.name,
            id=known,
            resume="allow",
            dir=str(folder),
            config=run.hyperparameters,
        )
        # Use our own axis: wandb drops records whose built-in step does not increase, as after a resume.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.log({"step": step, **_finite(metrics)})

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """MLflow, on the server of MLFLOW_TRACKING_URI, else in a database in `RUN/mlflow` (`mlflow ui --backend-store-uri ...`)."""

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

        self.run_id = _recall_identity(run, "mlflow", create)
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
    """Aim, in the repository of AIM_REPO, or else of the working directory."""

    def start(self, run: RunStart) -> None:
        import aim

        repo = os.environ.get("AIM_REPO") or None
        known = _recall_identity(run, "aim", lambda: "")
        self.run = aim.Run(run_hash=known or None, repo=repo, experiment="rljax", log_system_params=False)
        if not known:
            _save_identity(run, "aim", self.run.hash)
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
"""Logger and the module it needs, by its name in `--log`, which is also the name of the extra of rljax."""


def make_logger(logger: str | Logger) -> Logger:
    """Return the logger of a name; return the user's own logger as it is.

    Raises:
        ConfigError: the name is unknown, or the library is not installed.
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
    """Several loggers as one. A logger that raises an error is dropped with a warning, and training continues."""

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
                f"logger {type(logger).__name__} failed and is switched off; training continues: {reason}",
                RljaxWarning,
                stacklevel=2,
            )
            return False
        return True


def recent_gradients(state: Any) -> Any:
    """Return Adam's first moment, in the structure of the parameters; None for an optimiser without one."""
    moment = optax.tree.get(getattr(state, "opt_state", None), "mu", None)
    if not isinstance(moment, jax.Array):
        return moment
    # The optimiser may keep all parameters as one flat vector; with several seeds, one vector per seed.
    unravel = ravel_pytree(jax.tree.map(lambda x: x[0], state.params) if moment.ndim == 2 else state.params)[1]
    return jax.vmap(unravel)(moment) if moment.ndim == 2 else unravel(moment)


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _folder(run: RunStart) -> Path:
    """Return the run's folder; if the run saves nothing, create one for the logger under `runs/`."""
    folder = run.folder or Path("runs") / run.name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _recall_identity(run: RunStart, service: str, make: Callable[[], str]) -> str:
    """Return the run's identity with a service; it is kept in the run's folder, so that a resumed run keeps it."""
    if run.folder is None:
        return make()
    file = run.folder / f".{service}_id"
    if run.resumed and file.is_file():
        return file.read_text(encoding="utf-8").strip()
    identity = make()
    _save_identity(run, service, identity)
    return identity


def _save_identity(run: RunStart, service: str, identity: str) -> None:
    if run.folder is not None:
        (run.folder / f".{service}_id").write_text(identity, encoding="utf-8")
