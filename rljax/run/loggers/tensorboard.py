"""TensorBoard."""

from __future__ import annotations

import contextlib
import json
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rljax.core.errors import ConfigError, RljaxWarning, how_to_install
from rljax.core.places import numbered
from rljax.run.files.folder import CONFIG_FILE
from rljax.run.loggers.parts import RunStart, finite, folder_of, layout

MAX_QUEUE = 10
"""Number of events that wait for the thread of the writer."""


class TensorBoard:
    """TensorBoard, in `RUN/tensorboard` (tensorboardX): scalars and their layout, histograms, pictures, hyperparameters."""

    def __init__(self) -> None:
        self.there: set[tuple[str, bytes]] = set()
        """Texts and pictures that are logged already, each with its tag."""
        self.follows = False
        self.arranged = False

    def unlogged(self, run: RunStart, steps: Sequence[int]) -> list[int]:
        """Return the steps from the first unknown one on: TensorBoard reads the records of a run in order."""
        folder = folder_of(run) / "tensorboard"
        if not folder.is_dir():
            return list(steps)
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError:
            raise ConfigError(f"log = 'tensorboard': tensorboard is not installed: {how_to_install('tensorboard')}") from None
        events = EventAccumulator(str(folder), {"scalars": 0, "images": 0, "tensors": 0})  # 0: all of them
        events.Reload()
        tags: Any = events.Tags()
        self.there |= {(tag, event.encoded_image_string) for tag in tags["images"] for event in events.Images(tag)}
        self.there |= {(tag, text) for tag in tags["tensors"] for event in events.Tensors(tag)
                       for text in event.tensor_proto.string_val}  # fmt: skip
        known = {event.step for tag in tags["scalars"] for event in events.Scalars(tag)}
        self.follows = bool(known)
        first = next((i for i, step in enumerate(steps) if step not in known), len(steps))
        return list(steps[first:])

    def start(self, run: RunStart) -> None:
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams, text

        folder = _free_folder(run.name) if run.folder is None else run.folder / "tensorboard"
        self.place = str(folder)
        # purge_step hides what an earlier process logged after the checkpoint from which the run is resumed.
        purge_step = run.step + 1 if run.resumed or self.follows else None
        # A file's own name has the second of its creation only: a run sent in that second would overwrite it.
        suffix = f".{time.time_ns()}"
        self.writer = SummaryWriter(self.place, purge_step=purge_step, max_queue=MAX_QUEUE, filename_suffix=suffix)
        _put_last(folder, suffix)
        rows = [f"| {name} | {value} |" for name, value in run.hyperparameters.items()]
        self._add(text("hyperparameters", "\n".join(["| field | value |", "| --- | --- |", *rows])), run.step)
        # Only the session's part, so that all scalars can be columns of the table: TensorBoard would show the columns that the
        # first run lists for all runs, also those of other algorithms.
        self._add(hparams(_flat(run.hyperparameters), {})[1], run.step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from tensorboardX.summary import custom_scalars

        metrics = {re.sub(r"[^-/\w.]", "_", name): value for name, value in metrics.items()}  # as tensorboardX names them
        if not self.arranged:
            groups = {group: {t: ("Multiline", [tag]) for t, tag in of.items()} for group, of in layout(metrics).items()}
            self._add(custom_scalars(groups), step)
            self.arranged = True
        for name, value in finite(metrics).items():
            self.writer.add_scalar(name, value, step)

    def flush(self) -> None:
        from tensorboardX.proto.event_pb2 import Event

        # The writer's own `flush` leaves out the events in the queue. Once all these empty ones have found a place there, the
        # thread has written every event before them.
        for _ in range(MAX_QUEUE + 1):
            self.writer.file_writer.add_event(Event())
        self.writer.flush()

    def histograms(self, step: int, trees: Mapping[str, Any]) -> None:
        for kind, tree in trees.items():
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
                name = jax.tree_util.keystr(path, simple=True, separator="/")
                self.writer.add_histogram(f"{kind}/{name}", np.asarray(leaf).ravel(), step)

    def media(self, step: int, name: str, path: Path) -> None:
        from PIL import Image
        from tensorboardX.proto.summary_pb2 import Summary

        if path.suffix.lower() == ".mp4":
            warnings.warn(f"{path}: TensorBoard shows no .mp4; record a .gif", RljaxWarning, stacklevel=2)
            return
        with Image.open(path) as image:
            width, height = image.size
        # The file as it is: TensorBoard plays a GIF, and `add_video` would encode it once more.
        picture = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes())
        self._add(Summary(value=[Summary.Value(tag=f"media/{name}", image=picture)]), step)

    def close(self) -> None:
        self.writer.close()

    def _add(self, summary: Any, step: int) -> None:
        """Add a summary of one value unless the same text or picture is there already."""
        (value,) = summary.value
        content = (value.tag, value.image.encoded_image_string or b"".join(value.tensor.string_val))
        if content not in self.there:
            self.writer.file_writer.add_summary(summary, step)
        self.there |= {content} if content[1] else set()


def _free_folder(name: str) -> Path:
    """Make a folder for a run that saves nothing: others may have its name, and TensorBoard takes a folder for one run."""
    for run in numbered(Path("runs") / name):
        if not (run / CONFIG_FILE).exists():  # a run that is saved
            with contextlib.suppress(FileExistsError):
                (run / "tensorboard").mkdir(parents=True)
                break
    return run / "tensorboard"


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return hyperparameters as numbers, booleans and texts, those in tables with dotted names."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value if isinstance(value, (bool, int, float, str)) else json.dumps(value)
    return flat


def _put_last(folder: Path, suffix: str) -> None:
    """Rename the file of events that ends with `suffix` so that it is the last one.

    TensorBoard reads files by name, and names begin with the second of their creation: on a clock that is behind that of an
    earlier process, this part of the run would be read before what it follows, and `purge_step` would hide nothing.
    """
    seconds = {file: int(file.name.split(".")[3]) for file in folder.glob("events.out.tfevents.[0-9]*")}
    own = next((file for file in seconds if file.name.endswith(suffix)), None)
    latest = max((second for file, second in seconds.items() if file != own), default=0)
    if own is not None and seconds[own] <= latest:
        rest = own.name.split(".", 4)[4]
        with contextlib.suppress(OSError):  # a system that cannot rename an open file
            own.rename(own.with_name(f"events.out.tfevents.{latest + 1:010d}.{rest}"))
