"""Folders of runs as training leaves them, written without training: for tests of what reads them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import rljax
from rljax.core.config_files import dump_config
from rljax.run.files.folder import CONFIG_FILE, METRICS_FILE, RunInfo, _write_info, add_checksum
from rljax.run.files.records import JsonLines, record_of

CONFIG = rljax.PPOConfig(total_timesteps=640, eval_every=128, network={"hidden": [16]})


def save_run(folder: Path, steps: range = range(64, 641, 64), seeds: int | None = 3, config: Any = CONFIG) -> Path:
    """Write a run with a record at each of `steps`, an evaluation in every second one, and a video."""
    folder.mkdir()
    (folder / CONFIG_FILE).write_text(add_checksum(dump_config(config)))
    _write_info(folder, RunInfo(seeds=seeds))
    add_records(folder, steps, seeds)
    frames = [Image.fromarray(np.full((24, 32, 3), 60 * i, np.uint8)) for i in range(4)]
    frames[0].save(folder / "agent.gif", save_all=True, append_images=frames[1:])
    return folder


def add_records(folder: Path, steps: range, seeds: int | None = 3) -> None:
    file = JsonLines(folder / METRICS_FILE)
    for step in steps:
        each = np.arange(seeds or 1) + step / 100.0
        evaluation = each + 0.5 if step % 128 == 0 else np.full_like(each, math.nan)
        summary = {"episode/return": each, "eval/return": evaluation, "train/value_loss": 1.0 / each, "train/entropy": each}
        file.write(record_of(step, summary, seeds is not None, **{"perf/steps_per_second": 1000.0}))
    file.close()
