"""What a run says about the device it computes on, and the warning where a GPU stays unused."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

import rljax
from rljax.core.devices import device_summary, warn_of_unseen_gpu


def driver(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Put an `nvidia-smi` that runs `script` first on the path, and let JAX choose its platform."""
    command = folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("rljax.core.devices._platforms", lambda: "")


def test_a_cpu_is_named_with_its_cores() -> None:
    assert device_summary().startswith("CPU (")
    assert "core" in device_summary()


@pytest.mark.parametrize(("count", "expected"), [(1, "NVIDIA H200 (gpu)"), (4, "4 x NVIDIA H200 (gpu)")], ids=["one", "several"])
def test_accelerators_are_named_and_counted(count: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(platform="gpu", device_kind="NVIDIA H200")
    monkeypatch.setattr(jax, "devices", lambda: [device] * count)
    assert device_summary() == expected


def test_a_gpu_that_jax_does_not_see_is_named_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, tmp_path, "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1234)'")
    with pytest.warns(rljax.RljaxWarning, match=r"an NVIDIA H200, but JAX .* on the CPU: pip install 'rljax-jit\[cuda13\]'"):
        warn_of_unseen_gpu()


@pytest.mark.parametrize("script", ["echo 'No devices found.'", "exit 9", "echo 'GPU 0: NVIDIA H200'; exit 1"])
def test_no_gpu_and_a_broken_driver_are_no_warning(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, tmp_path, script)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_unseen_gpu()


def test_who_asked_for_the_cpu_is_not_warned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, tmp_path, "echo 'GPU 0: NVIDIA H200'")
    monkeypatch.setattr("rljax.core.devices._platforms", lambda: "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_unseen_gpu()
