"""A replay buffer in the host's memory, in programs for devices that are not there: where it is, and that nothing copies it."""

from __future__ import annotations

import importlib.util
import re

import jax
import pytest

import rljax
from rljax.core.devices import Target
from rljax.run.compile.program import CompileReport, compile_on
from rljax.run.compile.report import report_lines
from rljax.run.compile.targets import CHIPS

pytestmark = pytest.mark.slow

CONFIG = rljax.DQNConfig(
    env="Breakout-MinAtar",
    num_envs=4,
    num_steps=4,
    train_every=4,
    batch_size=32,
    buffer_size=40_000,
    learning_starts=100,
    total_timesteps=10_000,
    network={"hidden": [8]},
    replay_memory="host",
)
OBSERVATION = 10 * 10 * 4
OBSERVATIONS = 2 * 40_000 * OBSERVATION * 4
"""Bytes of the observations, and those after them, in the buffer."""

PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def check_parts(report: CompileReport) -> None:
    assert report.host == OBSERVATIONS
    assert report.parts["buffer"] < 0.1 * OBSERVATIONS
    assert report.bytes < 0.1 * OBSERVATIONS
    assert any(line.startswith("host memory: ") for line in report_lines(report))


def test_the_report_has_the_hosts_memory_apart() -> None:
    target = Target("h200", "cpu", tuple(jax.devices()[:1]), 10**10)
    report = compile_on(CONFIG, target, CHIPS["h200"])
    check_parts(report)
    with_all = compile_on(CONFIG.replace(replay_memory="device"), target, CHIPS["h200"])
    assert with_all.host == with_all.bus == 0
    assert with_all.parts["buffer"] == report.parts["buffer"] + OBSERVATIONS
    assert not any(line.startswith("host memory") for line in report_lines(with_all))


@pytest.mark.skipif(not any(map(importlib.util.find_spec, PLUGINS)), reason="needs JAX's plug-in for CUDA")
def test_a_gpu_reads_and_writes_it_in_place() -> None:
    report = rljax.compile_for(CONFIG, "h200")
    check_parts(report)
    memory = report.compiled.memory_analysis()
    assert memory.host_argument_size_in_bytes == memory.host_alias_size_in_bytes == report.host
    assert memory.host_temp_size_in_bytes < 0.01 * report.host
    ring = r"f32\[10000,4,10,10,4\]"
    assert not re.findall(rf"= {ring}\S* copy\(|= \({ring}.*? copy-start\(", report.compiled.as_text())
    # In the one turn of an iteration a sample of both observations is read, and four rows are written, which are read before.
    assert report.bus >= 2 * 32 * OBSERVATION * 4 + 2 * 4 * 4 * OBSERVATION * 4
    assert report.bus < 100_000 + 20 * 32 * OBSERVATION * 4
