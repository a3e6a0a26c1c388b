"""Memory: whether what a run keeps on the device fits there, asked before anything is compiled."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import jax

from rljax.core.errors import ConfigError


def tree_bytes(tree: Any) -> int:
    """Bytes of all arrays of a tree; their shapes (`jax.ShapeDtypeStruct`) are enough."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def readable_bytes(count: int) -> str:
    """ "2.1 GB", "0.4 GB", "10 MB", "0.3 MB"."""
    unit, name = (1e9, "GB") if count >= 1e8 else (1e6, "MB")
    return f"{count / unit:.0f} {name}" if count >= 10 * unit else f"{count / unit:.1f} {name}"


def device_memory() -> int | None:
    """Bytes that the default device can hold; for the CPU those of the machine, or of the container; None: not known."""
    device = jax.local_devices()[0]
    limit = (device.memory_stats() or {}).get("bytes_limit")
    if limit is not None or device.platform != "cpu":
        return limit
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


def check_memory(needed: int, what: str, advice: str) -> None:
    """One line instead of a crash in the middle of a run.

    Raises:
        ConfigError: `needed` bytes are more than the device has: "WHAT needs N GB, ...: ADVICE".
    """
    limit = device_memory()
    if limit is not None and needed > limit:
        raise ConfigError(f"{what} needs {needed / 1e9:.1f} GB, this device has {limit / 1e9:.1f} GB: {advice}")
