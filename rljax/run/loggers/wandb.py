"""Weights & Biases."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljax.core.errors import ConfigError
from rljax.run.files.scores import SCORES
from rljax.run.loggers.parts import RunStart, finite, folder_of, recall_identity, split_seed

INIT_TIMEOUT = 30
"""Number of seconds to wait for the server before the run goes on without it; wandb's own 90 are long for a run of a minute."""


class WandB:
    """Weights & Biases. Without an account, `WANDB_MODE=offline` keeps the run in `RUN/wandb`; `wandb sync` uploads it later."""

    def __init__(self) -> None:
        self.seeds: dict[str, dict[int, list[tuple[int, float]]]] = {}
        """Points of the chart of the seeds: metric -> seed -> (step, value)."""
        self.exit_code = 0

    def start(self, run: RunStart) -> None:
        import wandb

        folder = folder_of(run)
        known = recall_identity(run, "wandb", lambda: uuid.uuid4().hex[:8])
        patience = {} if "WANDB_INIT_TIMEOUT" in os.environ else {"init_timeout": INIT_TIMEOUT}
        try:
            self.run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "rljax"),
                name=run.name,
                id=known,
                # Without resuming, a run replaces one of the same identity: nothing is doubled if it is sent again.
                resume="allow" if run.resumed else None,
                dir=str(folder),
                config=run.hyperparameters,
                settings=wandb.Settings(**patience),
            )
        except wandb.errors.UsageError as error:
            raise ConfigError(f"log = 'wandb': {error} WANDB_MODE=offline needs no account") from None
        self.place = self.run.url or f"{folder / 'wandb'} (offline; wandb sync uploads it)"
        # Use our own axis: wandb drops records whose built-in step does not increase, as after a resume.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")
        for name in SCORES:
            self.run.define_metric(name, step_metric="step", summary="max,last")
        self.whole = not run.resumed

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        named: dict[str, float] = {}
        for name, value in finite(metrics).items():
            seed, metric = split_seed(name)
            # wandb makes a section of what stands before the first slash: one for all seeds, not one for each.
            named[name if seed is None else f"seeds/{metric}/{seed}"] = value
            if seed is not None and self.whole:  # a part of a run would draw a part of the chart
                self.seeds.setdefault(metric, {}).setdefault(seed, []).append((step, value))
        self.run.log({"step": step, **named})

    def media(self, step: int, name: str, path: Path) -> None:
        import wandb

        suffix = path.suffix.lower()
        shown: Any = wandb.Image(str(path)) if suffix == ".png" else wandb.Video(str(path), format=suffix[1:])
        self.run.log({"step": step, f"media/{name}": shown})

    def failed(self) -> None:
        self.exit_code = 1

    def close(self) -> None:
        import wandb

        for metric, curves in self.seeds.items():
            steps, values = zip(*(zip(*points, strict=True) for points in curves.values()), strict=True)
            keys = [f"seed {seed}" for seed in curves]
            chart = wandb.plot.line_series(list(map(list, steps)), list(map(list, values)), keys, metric, "environment steps")
            self.run.log({f"seeds/{metric}": chart})
        self.run.finish(self.exit_code)
