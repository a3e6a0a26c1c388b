"""Send a run that is there already to a logger: its records, configuration, pictures and videos."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rljax.collect.environments import evaluation_opponent
from rljax.core.config_files import config_table
from rljax.core.errors import ConfigError, RljaxError, reason_of, shown
from rljax.core.places import lock_folder
from rljax.run.files.folder import METRICS_FILE, read_config, read_info, split_path
from rljax.run.loggers.parts import Logger, RunStart, with_seeds
from rljax.run.loggers.several import make_logger
from rljax.run.view.curves import NOT_METRICS, read_metrics
from rljax.run.view.plot import plot

MEDIA = (".png", ".gif", ".mp4")
"""Suffixes of the files in a run's folder that are sent."""


class SavedRun(NamedTuple):
    """A run as loggers get it.

    Attributes:
        start: its description, as at the start of its training.
        records: (step, metrics) of each record, as they are logged in training.
        failed: whether its training ended with an error.
    """

    start: RunStart
    records: list[tuple[int, dict[str, float]]]
    failed: bool


class Sent(NamedTuple):
    """Result of sending a run to a logger.

    Attributes:
        records: number of records that were sent.
        known: number of records that were left out because the logger had them already.
        media: names of the pictures and videos.
        place: where to look at it, as far as the logger says so.
    """

    records: int
    known: int
    media: list[str]
    place: str

    def __str__(self) -> str:
        known = f" ({self.known:,} were there already)" if self.known else ""
        media = f", {', '.join(self.media)}" if self.media else ""
        return f"{self.records:,} records{known}{media}{f'; see {self.place}' if self.place else ''}"


def log_run(run_dir: str | os.PathLike[str], logger: str | Logger) -> Sent:
    """Send a run that is there already, finished or not, to a logger.

    The logger gets what it would have got in training, except histograms; then the learning curves as a picture, and the pictures
    and videos in the run's folder (.png, .gif, .mp4). What TensorBoard and MLflow have already is left out, Aim replaces it, and
    Weights & Biases replaces the whole run.

    Args:
        run_dir: the run's folder.
        logger: "tensorboard", "wandb", "mlflow" or "aim", or an object with the methods of `Logger`.

    Raises:
        ConfigError: there is no run, nothing is recorded yet, the run is being trained, or the logger is unknown or not set up.
        RljaxError: the logger failed. The run is as it was; to send it again sends the rest.
    """
    attached = make_logger(logger)
    return send(read_run(run_dir), attached, logger if isinstance(logger, str) else type(logger).__name__)


def read_run(run_dir: str | os.PathLike[str]) -> SavedRun:
    """Read what loggers get of a run.

    Raises:
        ConfigError: there is no run, or nothing is recorded yet.
    """
    folder = split_path(run_dir)[0].resolve()
    history = read_metrics(folder)
    if not history.records:
        raise ConfigError(f"{run_dir}: nothing recorded yet (no records in {METRICS_FILE})")
    config, info = read_config(folder), read_info(folder)
    table = config_table(config) | ({"seeds": info.seeds} if info.seeds else {})
    whom = evaluation_opponent(config)
    start = RunStart(folder.name, folder, table | ({} if whom is None else {"eval_opponent": whom}), 0, False)
    records = []
    for record in history.records:
        metrics = {name: math.nan if x is None else float(x) for name, x in record.items() if name not in NOT_METRICS}
        records.append((record["step"], with_seeds(metrics, record.get("seeds", {}))))
    return SavedRun(start, records, history.failure is not None)


def send(run: SavedRun, logger: Any, name: str) -> Sent:
    """Send a run to a logger; `name` is the logger's in messages (see `log_run`)."""
    start, steps = run.start, [step for step, _ in run.records]
    folder = start.folder
    assert folder is not None
    with lock_folder(folder), _media(folder) as media, _closed(logger, name, folder):
        wanted = set(logger.unlogged(start, steps) if hasattr(logger, "unlogged") else steps)
        # The run goes on from the last record before the first one that is sent.
        before = [step for step in steps if step < min(wanted, default=math.inf)]
        logger.start(start._replace(step=before[-1] if before else 0, resumed=len(wanted) < len(steps)))
        for step, metrics in run.records:
            if step in wanted:
                logger.log(step, metrics)
        media = media if hasattr(logger, "media") else {}
        for title, path in media.items():
            logger.media(steps[-1], title, path)
        if run.failed and hasattr(logger, "failed"):
            logger.failed()
    return Sent(len(wanted), len(steps) - len(wanted), list(media), getattr(logger, "place", ""))


@contextlib.contextmanager
def _closed(logger: Any, name: str, folder: Path) -> Iterator[None]:
    """Close the logger at the end, and explain an error of it in one line."""
    try:
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):  # a logger that did not start cannot be closed
                logger.close()
            raise
        logger.close()
    except RljaxError:
        raise
    except Exception as error:
        reason = reason_of(error)
        place = f" to {logger.place}" if getattr(logger, "place", "") else ""
        raise RljaxError(f"log = {shown(name)}: {folder} was not sent{place}, or not all of it: {reason}") from error


@contextlib.contextmanager
def _media(folder: Path) -> Iterator[dict[str, Path]]:
    """Yield the pictures and videos of a run by their names: its curves, drawn for this, and the files in its folder."""
    media: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in MEDIA and path.is_file():
            media[path.name if path.stem in media else path.stem] = path
    with tempfile.TemporaryDirectory() as aside:
        if "curves" not in media:
            with contextlib.suppress(ConfigError):  # no return is known yet: there is nothing to draw
                media["curves"] = plot(folder, Path(aside) / "curves.png").path
        yield media
