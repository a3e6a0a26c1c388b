"""MLflow."""

from __future__ import annotations

import os
import posixpath
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rljax.run.loggers.parts import RunStart, finite, folder_of, forgotten, recall_identity

IMPATIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Defaults for a server: MLflow's own let a run wait for minutes if the server cannot be reached."""

MAX_METRICS, MAX_PARAMS = 1000, 100
"""Largest numbers of metrics and of parameters that MLflow takes at a time."""

SECONDS = 5.0
"""Number of seconds for which records are collected: MLflow takes many at once in hardly more time than one."""


class MLflow:
    """MLflow, on the server of MLFLOW_TRACKING_URI, else in a database in `RUN/mlflow` (`mlflow ui --backend-store-uri ...`)."""

    def __init__(self) -> None:
        self.there: set[tuple[str, int]] = set()
        """Names and steps of the metrics that an earlier process has sent: MLflow would keep a second value beside the first."""
        self.status = "FINISHED"

    def unlogged(self, run: RunStart, steps: Sequence[int]) -> list[int]:
        self._open(run)
        known = {step for _, step in self.there}
        return [step for step in steps if step not in known]

    def start(self, run: RunStart) -> None:
        from mlflow.entities import Metric, Param

        self._open(run)
        self.client.update_run(self.run_id, "RUNNING")  # also one that had ended, and goes on
        self.waiting: list[Metric] = []
        self.sent_at = time.monotonic()
        # What is there cannot be changed, such as the budget of a run that is extended.
        params = [Param(name, str(value)) for name, value in run.hyperparameters.items() if name not in self.data.params]
        for i in range(0, len(params), MAX_PARAMS):
            self.client.log_batch(self.run_id, params=params[i : i + MAX_PARAMS])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        named = {_name(name): value for name, value in finite(metrics).items()}
        new = {name: value for name, value in named.items() if (name, step) not in self.there}
        self.waiting += [Metric(name, value, now, step) for name, value in new.items()]
        if len(self.waiting) > MAX_METRICS // 2 or time.monotonic() - self.sent_at > SECONDS:
            self.flush()

    def flush(self) -> None:
        waiting, self.waiting, self.sent_at = self.waiting, [], time.monotonic()
        for i in range(0, len(waiting), MAX_METRICS):
            self.client.log_batch(self.run_id, waiting[i : i + MAX_METRICS])

    def media(self, step: int, name: str, path: Path) -> None:
        self.client.log_artifact(self.run_id, str(path), "media")

    def failed(self) -> None:
        self.status = "FAILED"

    def close(self) -> None:
        self.flush()
        self.client.set_terminated(self.run_id, self.status)

    def _open(self, run: RunStart) -> None:
        """Find or create the experiment and the run, and note which metrics it has already."""
        import mlflow

        for name, value in IMPATIENT.items():
            os.environ.setdefault(name, value)
        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        self.place, artifacts = uri, None
        if not uri:
            folder = (folder_of(run) / "mlflow").resolve()
            folder.mkdir(exist_ok=True)
            self.place, artifacts = f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()
        self.client = mlflow.MlflowClient(tracking_uri=self.place)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "rljax")
        found = self.client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self.client.create_experiment(name, artifacts)

        def create() -> str:
            created: str = self.client.create_run(experiment, run_name=run.name).info.run_id
            return created

        # The database in the folder may be moved with it, so its address does not count.
        self.run_id = recall_identity(run, "mlflow", create, uri)
        try:
            known = self.client.get_run(self.run_id)
            self.data, there = known.data, known.info.lifecycle_stage == "active"
        except mlflow.exceptions.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            there = False
        if not there:
            raise forgotten(run, "mlflow", self.run_id, self.place)
        histories = (self.client.get_metric_history(self.run_id, name) for name in self.data.metrics)
        self.there = {(metric.key, metric.step) for history in histories for metric in history}


def _name(metric: str) -> str:
    """Return a name that MLflow takes, for any metric of the user's own: it refuses a whole batch for one of "distance (m)"."""
    refused = r"[^-/\w. ]" if os.name == "nt" else r"[^-/\w. :]"
    # Nor does it take a slash or ".." at the beginning, or two slashes.
    return posixpath.normpath("/./" + re.sub(refused, "_", metric))[1:] or "_"
