"""Estimate the time of an iteration from what its program starts: a roofline with a least time for each operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rljax.run.compile.costs import Kernel
from rljax.run.compile.targets import Chip

BOUNDS = ("launches", "memory", "arithmetic", "collectives", "waiting")
"""What an iteration's time is spent on. `launches`: starting operations. `memory`: moving bytes. `arithmetic`: products of
matrices. `collectives`: combining arrays of several devices. `waiting`: loops whose number of trips is known only at run time."""


class Collective(NamedTuple):
    """Operations of one kind that combine arrays of several devices.

    Attributes:
        kind: XLA's name, `all-reduce`.
        times: how many an iteration takes.
        bytes: bytes that they combine on each device in an iteration.
    """

    kind: str
    times: int
    bytes: int


def seconds_by_bound(kernels: Sequence[Kernel], chip: Chip, num_devices: int) -> dict[str, float]:
    """Return the estimated seconds of an iteration by what takes them; operations run one after the other.

    An operation takes the longest of three times: its launch, its bytes at the memory's bandwidth, and its products of matrices
    at the chip's peak. Other arithmetic is taken to be as fast as the memory is.
    """
    seconds = dict.fromkeys(BOUNDS, 0.0)
    for kernel in kernels:
        if kernel.sent is not None:
            way = chip.collective + _passes(kernel.opcode, num_devices) * kernel.sent / chip.interconnect
            seconds["collectives"] += kernel.times * way
            continue
        if kernel.waits:
            seconds["waiting"] += kernel.times * chip.wait
            continue
        times = {
            "launches": chip.launch if kernel.launched else 0.0,
            "memory": kernel.moved / chip.bandwidth,
            "arithmetic": sum(flops / _peak(chip, *kind) for kind, flops in kernel.products),
        }
        longest = max(times, key=lambda name: times[name])
        seconds[longest] += kernel.times * times[longest]
    return seconds


def collectives_of(kernels: Sequence[Kernel]) -> tuple[Collective, ...]:
    """Return the collective operations of an iteration by kind."""
    totals: dict[str, Collective] = {}
    for kernel in kernels:
        if kernel.sent is not None:
            before = totals.get(kernel.opcode, Collective(kernel.opcode, 0, 0))
            after = before._replace(times=before.times + kernel.times, bytes=before.bytes + kernel.times * kernel.sent)
            totals[kernel.opcode] = after
    return tuple(totals[kind] for kind in sorted(totals))


def _peak(chip: Chip, dtype: str, precision: str) -> float:
    """Return the peak of products of an element type at a precision of XLA."""
    if dtype.startswith(("bf16", "f16", "f8")):
        return chip.bf16
    if dtype != "f32" or precision == "highest":
        return chip.f32_exact
    if precision == "high":  # three products of bfloat16 numbers on TPUs
        return chip.f32 / 3 if chip.platform == "tpu" else chip.f32
    return chip.f32


def _passes(kind: str, num_devices: int) -> float:
    """Return how often a device sends the bytes of a collective operation, in a ring."""
    if kind in ("collective-permute", "collective-broadcast"):
        return 1.0
    return (2 if kind == "all-reduce" else 1) * (num_devices - 1) / num_devices
