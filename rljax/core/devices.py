"""Several devices: environments and batches are split over them, and XLA's partitioner does the rest.

The program is the same as for one device; constraints on arrays (`over_devices`) say which axis is split. So results differ from
those of one device only by the rounding of sums in another order.
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
from typing import Any, NamedTuple

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rljax.core.errors import ConfigError, RljaxWarning, first_line, how_to_install
from rljax.core.state import Role, roles_of

AXIS = "data"

_MESH: ContextVar[Mesh | None] = ContextVar("mesh", default=None)


class Target(NamedTuple):
    """Devices to compile for that need not be there.

    Attributes:
        name: name of the target, `v5e-16`.
        platform: JAX's name of their kind: `tpu`, `gpu` or `cpu`.
        devices: all of them.
        memory: bytes of memory that a program may use on one of them.
    """

    name: str
    platform: str
    devices: tuple[jax.Device, ...]
    memory: int


_TARGET: ContextVar[Target | None] = ContextVar("target", default=None)


@contextlib.contextmanager
def compiling_for(target: Target) -> Iterator[None]:
    """Let programs that are built and traced within this context be those of a target, whatever this process computes on."""
    token = _TARGET.set(target)
    try:
        yield
    finally:
        _TARGET.reset(token)


def current_target() -> Target | None:
    """Return the target of `compiling_for`; None outside it, where programs are for the devices of this process."""
    return _TARGET.get()


def platform() -> str:
    """Return the platform that programs are for: `cpu`, `gpu` or `tpu`."""
    target = _TARGET.get()
    return jax.default_backend() if target is None else target.platform


def check_platform() -> None:
    """Check that JAX finds the platform that it was told to use (`JAX_PLATFORMS=cuda`) on this machine.

    Raises:
        ConfigError: JAX does not find it; the message names it.
    """
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX fails an assertion for a known platform that is not installed
        reason = f" ({first_line(error)})" if str(error) else ""
        raise ConfigError(
            f"JAX_PLATFORMS = {_platforms()!r}: JAX finds no such device here{reason}; leave it unset, or install "
            "JAX for that device"
        ) from None


def make_mesh(num_devices: int) -> Mesh:
    """Return a one-dimensional mesh of the first `num_devices` devices of all processes, or of the target of `compiling_for`.

    Raises:
        ConfigError: there are fewer devices.
    """
    target = _TARGET.get()
    devices = jax.devices() if target is None else list(target.devices)
    if target is not None and num_devices > len(devices):
        raise ConfigError(f"num_devices = {num_devices}: {target.name} has {len(devices)} device{'s' * (len(devices) > 1)}")
    if num_devices > len(devices):
        raise ConfigError(
            f"num_devices = {num_devices}: there {'is' if len(devices) == 1 else 'are'} {len(devices)} {devices[0].platform} "
            f"device{'s' * (len(devices) > 1)} (XLA_FLAGS=--xla_force_host_platform_device_count={num_devices} makes a CPU seem "
            "several)"
        )
    return jax.make_mesh((num_devices,), (AXIS,), axis_types=(AxisType.Auto,), devices=devices[:num_devices])


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load_averages() -> tuple[float, ...]:
    """Return the load averages of one, five and fifteen minutes; none on Windows, which has none."""
    return os.getloadavg() if hasattr(os, "getloadavg") else ()


def device_summary() -> str:
    """Describe the devices that JAX uses: `CPU (2 cores)`, `NVIDIA H200 (gpu)`, `8 x TPU v5 lite (tpu)`."""
    devices = jax.devices()
    if devices[0].platform == "cpu":
        cores = usable_cores()
        seemingly = "" if len(devices) == 1 else f", seen as {len(devices)} devices"
        return f"CPU ({cores} core{'s' * (cores != 1)}{seemingly})"
    many = "" if len(devices) == 1 else f"{len(devices)} x "
    return f"{many}{devices[0].device_kind} ({devices[0].platform})"


def warn_of_unseen_gpu() -> None:
    """Warn if the driver lists an NVIDIA GPU but JAX computes on the CPU, unless it was told to (JAX_PLATFORMS=cpu)."""
    if jax.default_backend() != "cpu" or "cpu" in _platforms().split(","):
        return
    gpu = _first_gpu()
    if gpu is not None:
        warnings.warn(
            f"this machine has an {gpu}, but JAX {jax.__version__} does not see it and computes on the CPU: "
            f"{how_to_install('cuda13')}, or [cuda12] for an older driver (JAX_PLATFORMS=cpu silences this)",
            RljaxWarning,
            stacklevel=3,
        )


def _platforms() -> str:
    """Return the platforms that JAX was told to use, separated by commas; "" if it chooses."""
    platforms: str | None = getattr(jax.config, "jax_platforms")  # noqa: B009 - JAX's types lack this attribute
    return platforms or ""


def _first_gpu() -> str | None:
    """Return the name of the first GPU that `nvidia-smi -L` lists, `NVIDIA H200`; None without the command or a GPU."""
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
    """Let `over_devices` split arrays over the mesh in programs that are traced within this context."""
    token = _MESH.set(mesh)
    try:
        yield
    finally:
        _MESH.reset(token)


def is_split() -> bool:
    """Return whether a program is traced within `on_mesh`, so that its arrays are split over devices."""
    return _MESH.get() is not None


def over_devices(tree: Any, axis: int = 0) -> Any:
    """Split arrays along an axis over the devices of the mesh.

    Arrays stay as they are if there is no mesh, or if its size does not divide the axis.
    """
    mesh = _MESH.get()
    if mesh is None:
        return tree
    spec = PartitionSpec(*[None] * axis, AXIS)

    def split(x: jax.Array) -> jax.Array:
        if x.ndim <= axis or x.shape[axis] % mesh.size:
            return x
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    return jax.tree.map(split, tree)


def on_all_devices(tree: Any) -> Any:
    """Copy arrays to every device of the mesh; without a mesh they stay as they are."""
    mesh = _MESH.get()
    return tree if mesh is None else jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, PartitionSpec()))


def shardings(mesh: Mesh, state: Any, num_envs: int, leading: int = 0) -> Any:
    """Return the shardings of a state's leaves: environments and their steps in a buffer are split, all else is replicated.

    `leading` is the number of axes (of seeds) before all others.
    """
    roles = roles_of(state)
    axes = {Role.PER_ENVIRONMENT: leading, Role.BUFFER: leading + 1}

    def sharding(path: Any, x: Any) -> NamedSharding:
        name = path[0].name
        axis = axes.get(roles[name].role)
        length = num_envs // len(getattr(state, name)) if roles[name].shares else num_envs
        if axis is None or len(x.shape) <= axis or x.shape[axis] != length:
            return NamedSharding(mesh, PartitionSpec())
        return NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))

    return jax.tree_util.tree_map_with_path(sharding, state)


def shard_state(function: Callable[..., Any], num_devices: int, num_envs: int) -> Callable[..., Any]:
    """Return an agent's `init` or `step` for several devices, with the state that it returns sharded over them.

    The devices are looked up when the function is called: an agent can be made, and can play, with fewer.
    """

    def on_devices(argument: Any) -> Any:
        mesh = make_mesh(num_devices)
        with on_mesh(mesh):
            result = function(argument)
        state, rest = (result[0], result[1:]) if type(result) is tuple else (result, None)
        state = jax.lax.with_sharding_constraint(state, shardings(mesh, state, num_envs))
        return state if rest is None else (state, *rest)

    return on_devices


def replicated(layout: Any) -> NamedSharding:
    """Return the sharding of an array that every device of a layout holds as a whole."""
    return NamedSharding(jax.tree.leaves(layout)[0].mesh, PartitionSpec())
