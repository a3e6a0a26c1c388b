"""Several devices: environments and batches are split over them, and XLA's partitioner sees to the rest.

The program is that of one device. What says which axis is split are constraints on arrays (`over_devices`), so results differ
from those of one device only by the rounding of sums in another order.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rljax.core.errors import ConfigError, RljaxWarning, first_line, how_to_install
from rljax.core.state import Role, roles_of

AXIS = "data"

_MESH: ContextVar[Mesh | None] = ContextVar("mesh", default=None)


def check_platform() -> None:
    """Refuse a platform (`JAX_PLATFORMS=cuda`) that JAX does not find on this machine.

    Raises:
        ConfigError: names it.
    """
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # a known platform that is not installed fails an assertion of JAX
        reason = f" ({first_line(error)})" if str(error) else ""
        raise ConfigError(
            f"JAX_PLATFORMS = {_platforms()!r}: JAX finds no such device here{reason}; leave it unset, or install "
            "JAX for that device"
        ) from None


def make_mesh(num_devices: int) -> Mesh:
    """The first devices in a row, those of all processes.

    Raises:
        ConfigError: there are fewer.
    """
    devices = jax.devices()
    if num_devices > len(devices):
        raise ConfigError(
            f"num_devices = {num_devices}: there {'is' if len(devices) == 1 else 'are'} {len(devices)} {devices[0].platform} "
            f"device{'s' * (len(devices) > 1)} (XLA_FLAGS=--xla_force_host_platform_device_count={num_devices} makes a CPU seem "
            "several)"
        )
    return jax.make_mesh((num_devices,), (AXIS,), axis_types=(AxisType.Auto,), devices=devices[:num_devices])


def device_summary() -> str:
    """What JAX computes on, for people: `CPU (2 cores)`, `NVIDIA H200 (gpu)`, `8 x TPU v5 lite (tpu)`."""
    devices = jax.devices()
    if devices[0].platform == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        seemingly = "" if len(devices) == 1 else f", seen as {len(devices)} devices"
        return f"CPU ({cores} core{'s' * (cores != 1)}{seemingly})"
    many = "" if len(devices) == 1 else f"{len(devices)} x "
    return f"{many}{devices[0].device_kind} ({devices[0].platform})"


def warn_of_unseen_gpu() -> None:
    """Warn where the driver lists an NVIDIA GPU and JAX computes on the CPU, unless it was told to (JAX_PLATFORMS=cpu)."""
    if jax.default_backend() != "cpu" or "cpu" in _platforms().split(","):
        return
    gpu = _driver_says()
    if gpu is not None:
        warnings.warn(
            f"this machine has an {gpu}, but JAX {jax.__version__} does not see it and computes on the CPU: "
            f"{how_to_install('cuda13')}, or [cuda12] for an older driver (JAX_PLATFORMS=cpu silences this)",
            RljaxWarning,
            stacklevel=3,
        )


def _platforms() -> str:
    """The platforms that JAX was told to use, by commas; empty where it chooses."""
    platforms: str | None = getattr(jax.config, "jax_platforms")  # noqa: B009 - JAX's types do not have it
    return platforms or ""


def _driver_says() -> str | None:
    """The first GPU that `nvidia-smi -L` lists, `NVIDIA H200`; None where there is no such command, or it finds none."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    try:
        listed = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"^GPU 0: (.*?)(?: \(UUID.*)?$", listed, re.MULTILINE)
    return found[1] if found else None


@contextlib.contextmanager
def on_mesh(mesh: Mesh) -> Iterator[None]:
    """While a program is traced here, `over_devices` splits arrays over the mesh."""
    token = _MESH.set(mesh)
    try:
        yield
    finally:
        _MESH.reset(token)


def over_devices(tree: Any, axis: int = 0) -> Any:
    """Arrays split along an axis over the devices of the mesh; as they are where there is none, or where it does not divide the
    axis."""
    mesh = _MESH.get()
    if mesh is None:
        return tree
    spec = PartitionSpec(*[None] * axis, AXIS)

    def split(x: jax.Array) -> jax.Array:
        if x.ndim <= axis or x.shape[axis] % mesh.size:
            return x
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    return jax.tree.map(split, tree)


def shardings(mesh: Mesh, state: Any, num_envs: int, leading: int = 0) -> Any:
    """Return the sharding of each leaf of a state: environments and the steps in a buffer are split, all else is on every device.

    `leading` axes (of seeds) come before all others.
    """
    roles = roles_of(state)
    axes = {Role.PER_ENVIRONMENT: leading, Role.BUFFER: leading + 1}

    def sharding(path: Any, x: Any) -> NamedSharding:
        axis = axes.get(roles[path[0].name].role)
        if axis is None or len(x.shape) <= axis or x.shape[axis] != num_envs:
            return NamedSharding(mesh, PartitionSpec())
        return NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))

    return jax.tree_util.tree_map_with_path(sharding, state)


def laid_out(function: Callable[..., Any], num_devices: int, num_envs: int) -> Callable[..., Any]:
    """`init` or `step` of an agent on several devices, where the state that it returns is laid out.

    The devices are looked for when it is called: an agent can be made, and play, where there are fewer.
    """

    def on_devices(argument: Any) -> Any:
        mesh = make_mesh(num_devices)
        with on_mesh(mesh):
            result = function(argument)
        state, rest = (result[0], result[1:]) if type(result) is tuple else (result, None)
        state = jax.lax.with_sharding_constraint(state, shardings(mesh, state, num_envs))
        return state if rest is None else (state, *rest)

    return on_devices


def everywhere(layout: Any) -> NamedSharding:
    """The sharding of what every device of a layout has whole."""
    return NamedSharding(jax.tree.leaves(layout)[0].mesh, PartitionSpec())
