"""Devices that need not be there: their names, their figures, and what XLA needs to know to compile for them."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

import jax
from jax.experimental import topologies

from rljax.core.devices import Target
from rljax.core.errors import ConfigError, did_you_mean, first_line, how_to_install, shortened, shown


class Chip(NamedTuple):
    """Figures of a device, from which `rljax compile` estimates times; none of them is measured by rljax.

    Attributes:
        platform: `tpu` or `gpu`.
        memory: bytes of memory.
        usable: part of the memory that JAX lets programs use, unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise.
        bf16: most floating-point operations a second in products of bfloat16 numbers.
        f32: the same for float32 numbers at JAX's default precision: bfloat16 on TPUs, TF32 on GPUs.
        f32_exact: the same at the highest precision.
        bandwidth: bytes a second to and from memory.
        interconnect: bytes a second that a device sends to others.
        launch: seconds that an operation takes at least. An assumption.
        wait: seconds that each trip of a loop takes whose number of trips is not known in advance. An assumption.
        collective: seconds that a collective operation takes at least. An assumption.
        source: where the figures come from.
    """

    platform: str
    memory: int
    usable: float
    bf16: float
    f32: float
    f32_exact: float
    bandwidth: float
    interconnect: float
    launch: float
    wait: float
    collective: float
    source: str


def _tpu(memory: int, flops: float, bandwidth: float, interconnect: float, source: str) -> Chip:
    """Return a TPU's figures. XLA computes exact products of float32 numbers as six of bfloat16 numbers."""
    return Chip(
        "tpu", memory << 30, 1.0, flops, flops, flops / 6, bandwidth, interconnect, 0.5e-6, 0.5e-6, 2e-6,
        f"cloud.google.com/tpu/docs/{source}",
    )  # fmt: skip


def _gpu(mebibytes: int, bf16: float, tf32: float, f32: float, bandwidth: float, interconnect: float, source: str) -> Chip:
    return Chip(
        "gpu", mebibytes << 20, 0.75, bf16, tf32, f32, bandwidth, interconnect, 2e-6, 10e-6, 10e-6,
        f"NVIDIA's data sheet of the {source}",
    )  # fmt: skip


CHIPS = {
    "v5e": _tpu(16, 197e12, 819e9, 200e9, "v5e"),
    "v5p": _tpu(95, 459e12, 2765e9, 600e9, "v5p"),
    "v6e": _tpu(32, 918e12, 1640e9, 400e9, "v6e"),
    "a100": _gpu(81920, 312e12, 156e12, 19.5e12, 2039e9, 300e9, "A100 80 GB SXM"),
    "h100": _gpu(81559, 989e12, 494e12, 67e12, 3350e9, 450e9, "H100 80 GB SXM"),
    "h200": _gpu(143771, 989e12, 494e12, 67e12, 4800e9, 450e9, "H200 141 GB SXM"),
}
"""The figures of all chips. Products of matrices without sparsity; interconnects in one direction, all links together."""

TOPOLOGIES = {
    "v5e": {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"},
    "v6e": {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"},
    "v5p": {8: "2x2x1", 16: "2x2x2", 32: "2x2x4", 64: "2x4x4", 128: "4x4x4", 256: "4x4x8", 512: "4x8x8", 1024: "8x8x8"},
}
"""Slices by the number in their names, which Google Cloud makes of chips (v5e, v6e) or of cores, two to a chip (v5p)."""

LARGEST_HOST = 8
"""Most GPUs of a target: those of one machine, which NVLink connects."""

_GPU_DESCRIPTION = """
gpu_device_info {{ threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: {shared} threads_per_core_limit: 2048 core_count: {cores} fpus_per_core: {fpus}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: {bandwidth}
  l2_cache_size: {cache} clock_rate_ghz: {clock} device_memory_size: {memory} shared_memory_per_block_optin: {optin}
  cuda_compute_capability {{ major: {major} }} registers_per_core_limit: 65536 registers_per_block_limit: 65536 }}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 12 minor: 9 patch: 0 }}
device_description_str: "NVIDIA {name}"
"""

_AMPERE = {"shared": 167936, "optin": 166912, "cores": 108, "fpus": 64, "cache": 41943040, "clock": 1.41, "major": 8}
_HOPPER = {"shared": 233472, "optin": 232448, "cores": 132, "fpus": 128, "cache": 52428800, "clock": 1.98, "major": 9}

_NO_TPU = {"TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
"""Environment variables without which libtpu asks the cloud what the machine is and complains that there is none, and lets one
process at a time use it, as if there were a TPU to share."""


def parse_target(name: str) -> tuple[str, int]:
    """Return the chip and the number in the name of a target: `v5e-16` -> `("v5e", 16)`, `h200` -> `("h200", 1)`.

    Raises:
        ConfigError: there is no such target; says which there are.
    """
    if not isinstance(name, str):
        raise ConfigError(f"target = {shown(name)}: expected a name, such as v5e-8 or h200")
    chip, dash, number = name.lower().partition("-")
    if chip not in CHIPS:
        raise ConfigError(f"unknown target '{shortened(name)}': {did_you_mean(chip, CHIPS)} (such as v5e-8 or h200)")
    sizes = sorted(TOPOLOGIES[chip]) if chip in TOPOLOGIES else list(range(1, LARGEST_HOST + 1))
    if not dash:
        return chip, sizes[0]
    if not re.fullmatch(r"[1-9]\d{0,5}", number) or int(number) not in sizes:
        raise ConfigError(f"unknown target '{shortened(name)}': expected {chip}-N with N one of {', '.join(map(str, sizes))}")
    return chip, int(number)


@contextlib.contextmanager
def target_of(name: str) -> Iterator[tuple[Target, Chip]]:
    """Give the devices of a target and the figures of one of them, while a program is compiled.

    Raises:
        ConfigError: there is no such target, or what XLA needs to compile for it is not installed.
    """
    chip_name, number = parse_target(name)
    chip = CHIPS[chip_name]
    _prepare_libtpu()
    devices = _tpu_devices(chip_name, number) if chip.platform == "tpu" else _gpu_devices(chip_name, chip, number)
    fraction = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "")
    usable = float(fraction) if chip.platform == "gpu" and re.fullmatch(r"0?\.\d+|1(\.0*)?", fraction) else chip.usable
    with _gpu_without_driver() if chip.platform == "gpu" else contextlib.nullcontext():
        yield Target(name.lower(), chip.platform, devices, int(usable * chip.memory)), chip


def _tpu_devices(chip: str, number: int) -> tuple[jax.Device, ...]:
    if importlib.util.find_spec("libtpu") is None and not os.environ.get("TPU_LIBRARY_PATH"):
        raise ConfigError(f"target {chip}-{number}: compiling for TPUs needs libtpu: {how_to_install('tpu')}")
    shape = TOPOLOGIES[chip][number]
    # A host has 2x2 chips, but for the smallest slice.
    bounds = {"chips_per_host_bounds": (1, 1, 1)} if math.prod(map(int, shape.split("x"))) == 1 else {}
    try:
        return tuple(topologies.get_topology_desc(platform="tpu", topology_name=f"{chip}:{shape}", **bounds).devices)
    except Exception as error:
        raise ConfigError(f"target {chip}-{number}: libtpu cannot compile for it here: {first_line(error)}") from None


def _prepare_libtpu() -> None:
    """Tell libtpu, before it is loaded, that this machine has no TPU to ask about, where JAX has found none."""
    if os.environ.get("TPU_SKIP_MDS_QUERY") == "1":  # JAX sets it when it is imported and finds no TPU
        for name, value in _NO_TPU.items():
            os.environ.setdefault(name, value)


def _gpu_devices(name: str, chip: Chip, number: int) -> tuple[jax.Device, ...]:
    family = _AMPERE if name == "a100" else _HOPPER
    description = _GPU_DESCRIPTION.format(**family, name=name.upper(), memory=chip.memory, bandwidth=int(chip.bandwidth))
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        raise ConfigError(f"target {name}: compiling for NVIDIA GPUs needs JAX's plug-in for CUDA: {how_to_install('cuda13')}")
    try:
        jax.devices()  # loads the plug-in
        described = topologies.get_topology_desc(
            platform="cuda", topology_name="", target_config=description, topology=f"1x1x{number}"
        )
        return tuple(described.devices)
    except Exception as error:
        raise ConfigError(f"target {name}: JAX's plug-in cannot compile for it here: {first_line(error)}") from None


@contextlib.contextmanager
def _gpu_without_driver() -> Iterator[None]:
    """Let JAX understand "gpu" where there is none (jax-ml/jax#23971)."""
    import jax._src.xla_bridge as bridge

    known = bridge.canonicalize_platform

    def canonical(platform: str) -> str:
        try:
            return known(platform)
        except RuntimeError:
            if platform != "gpu":
                raise
            return "cuda"

    bridge.canonicalize_platform = canonical
    try:
        yield
    finally:
        bridge.canonicalize_platform = known
