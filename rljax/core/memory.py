"""Check that the arrays a run keeps on the device fit into its memory, before anything is compiled."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import jax

from rljax.core.devices import current_target
from rljax.core.errors import ConfigError


def tree_bytes(tree: Any) -> int:
    """Return the number of bytes of all arrays in a tree; their shapes (`jax.ShapeDtypeStruct`) are enough."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def readable_bytes(count: int) -> str:
    """Format a number of bytes: "2.1 GB", "0.4 GB", "10 MB", "0.3 MB"."""
    unit, name = (1e9, "GB") if count >= 1e8 else (1e6, "MB")
    return f"{count / unit:.0f} {name}" if count >= 10 * unit else f"{count / unit:.1f} {name}"


def device_memory() -> int | None:
    """Return the memory of the default device in bytes; for the CPU that of the machine or container; None if unknown.

    Within `compiling_for` it is the memory of a device of the target.
    """
    target = current_target()
    if target is not None:
        return target.memory
    device = jax.local_devices()[0]
    limit = (device.memory_stats() or {}).get("bytes_limit")
    if limit is not None or device.platform != "cpu":
        return limit
    return host_memory()


def host_memory() -> int | None:
    """Return the memory of the machine or container in bytes; None if unknown."""
    try:
        limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, OSError, ValueError):  # no POSIX
        return None
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(path).read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return min(limits)


def check_memory(needed: int, what: str, advice: str, host: bool = False) -> None:
    """Check that `needed` bytes fit into the device's memory, with `host` into the machine's, so that a run does not crash later.

    Raises:
        ConfigError: there is less memory: "WHAT needs N GB, this device has M GB: ADVICE".
    """
    if host and current_target() is not None:
        return  # the host of a target is not known
    limit, name = (host_memory(), "this machine") if host else (device_memory(), _name_of_device())
    if limit is not None and needed > limit:
        raise ConfigError(f"{what} needs {needed / 1e9:.1f} GB, {name} has {limit / 1e9:.1f} GB: {advice}")


def _name_of_device() -> str:
    target = current_target()
    return "this device" if target is None else f"a device of {target.name}"


def out_of_memory(error: Exception) -> bool:
    """Return whether an error of XLA means that the device's memory was not enough."""
    return "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower()
