"""Experiment with a dataset that is larger than what may be kept of it in memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from rljax.algos.imitation.bc import BCConfig
from rljax.collect.demos.dataset import open_dataset
from rljax.collect.demos.store import MEMORY_BUDGET
from rljax.core.agent import make_agent
from rljax.run.demos.recording import demonstrations
from rljax.run.fit import fit
from rljax.run.reproduce.report import Report

EPISODES = 11_800
"""Episodes of pictures, about ten times the budget of memory."""

NETWORK: dict[str, Any] = {"encoder": "cnn", "channels": [8, 8], "kernels": [8, 4], "strides": [8, 2], "hidden": [32]}


def large_data(report: Report) -> None:
    """Clone from files, and measure the memory of the process and the share of time that it waited for data."""
    found: list[tuple[int, float, float]] = []

    def look(step: int, metrics: Any) -> bool:
        found.append((step, resident_megabytes(), float(metrics.get("perf/data_wait", np.nan))))
        return False

    with report.workplace():
        demonstrations(
            "random", "data", num_episodes=max(64, round(EPISODES * report.budget)), env="GridWorldPixels-v0", num_envs=64,
            resume=True,
        )  # fmt: skip
        size = sum(file.stat().st_size for file in Path("data").rglob("*") if file.is_file())
        dataset = open_dataset("data", verify=False)
        config = report.configure(
            BCConfig(
                env="GridWorldPixels-v0",
                dataset="data",
                held_out=0.0,
                num_envs=16,
                num_steps=64,
                num_minibatches=4,
                total_timesteps=600_000,
                network=NETWORK,
                vf_coef=0.0,
            )
        )[0]
        fit(make_agent(config), callback=look, progress=False)
    taken, memory, waited = np.array(found).T
    half = len(found) // 2
    report.facts |= {
        "bytes of the dataset, of the budget": size / MEMORY_BUDGET,
        "steps of the dataset": dataset.num_steps,
        "steps": [int(step) for step in taken],
        "resident megabytes": [float(x) for x in memory],
        "share of time waiting for data": [float(x) for x in waited],
    }
    report.measure("resident megabytes at half of the run", [memory[half]])
    report.measure("resident megabytes at the end", [memory[-1]])
    report.measure("share of time waiting for data", [np.nanmean(waited)])


def resident_megabytes() -> float:
    """Return the memory of this process without pages of files, in MB of 1,024 squared bytes; NaN where it is unknown."""
    status = Path("/proc/self/status")
    found = re.search(r"RssAnon:\s+(\d+)", status.read_text()) if status.exists() else None
    return float(found[1]) / 1024 if found else float("nan")
