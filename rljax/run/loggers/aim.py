"""Aim."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

from rljax.core.errors import RljaxWarning
from rljax.run.loggers.parts import RunStart, finite, forgotten, recall_identity, split_seed


class Aim:
    """Aim, in the repository of AIM_REPO, or else of the working directory. A value replaces an earlier one of the same step."""

    def start(self, run: RunStart) -> None:
        import aim
        from aim.sdk.errors import MissingRunError

        repo = os.environ.get("AIM_REPO") or "."
        self.place = repo if "://" in repo else str(Path(repo).resolve())
        made: list[aim.Run] = []

        def create() -> str:
            made.append(aim.Run(repo=self.place, experiment="rljax", log_system_params=False))
            return str(made[0].hash)

        known = recall_identity(run, "aim", create, self.place)
        try:
            self.run = made[0] if made else aim.Run(known, repo=self.place, experiment="rljax", log_system_params=False)
        except MissingRunError:
            raise forgotten(run, "aim", known, self.place) from None
        self.run.name = run.name
        self.run["hparams"] = json.loads(json.dumps(run.hyperparameters, default=str))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in finite(metrics).items():
            # As a context, the seed is something that Aim's charts can be grouped by.
            seed, metric = split_seed(name)
            self.run.track(value, name=metric, step=step, context={} if seed is None else {"seed": seed})

    def media(self, step: int, name: str, path: Path) -> None:
        import aim

        if path.suffix.lower() == ".mp4":
            warnings.warn(f"{path}: Aim shows no .mp4; record a .gif", RljaxWarning, stacklevel=2)
            return
        self.run.track(aim.Image(str(path)), name=f"media/{name}", step=step)

    def close(self) -> None:
        self.run.close()
