"""Runs of several processes, on one machine or on many: all run the same program, the first alone writes and speaks."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from rljax.core.config import Config
from rljax.core.devices import replicated
from rljax.core.errors import ConfigError, RljaxError, first_line, shown

HEARTBEAT_SECONDS = 20
"""Without a word from a process for so long the others give up."""

START_SECONDS = 120
"""How long to wait for all processes to come."""


def join_processes(coordinator: str, num_processes: int, process_id: int) -> None:
    """Meet the other processes of a run; every one of them must call this before anything else is done with JAX.

    Args:
        coordinator: address and port of the first process, `10.0.0.1:1234`; the same for all.
        num_processes: how many there are.
        process_id: which one this is, from 0.

    Raises:
        ConfigError: a number is not allowed.
        RljaxError: they did not meet.
    """
    host, colon, port = coordinator.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise ConfigError(f"coordinator = {shown(coordinator)}: expected address:port of process 0, such as 10.0.0.1:1234")
    if num_processes < 1:
        raise ConfigError(f"num_processes = {num_processes}: expected a whole number > 0")
    if not 0 <= process_id < num_processes:
        raise ConfigError(f"process_id = {process_id}: expected a whole number from 0 to {num_processes - 1}")
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            initialization_timeout=START_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        raise RljaxError(
            f"process {process_id} of {num_processes} did not meet the others at {coordinator}: {first_line(error)}"
        ) from error


def is_first() -> bool:
    """Whether this process writes and speaks; a run of one process does."""
    return jax.process_index() == 0


def check_processes(config: Config) -> None:
    """Refuse runs that would leave a process without work.

    Raises:
        ConfigError: `num_devices` is not the number of all devices.
    """
    if jax.process_count() > 1 and config.num_devices != jax.device_count():
        raise ConfigError(
            f"num_devices = {config.num_devices}: {jax.process_count()} processes have {jax.device_count()} devices together, "
            f"expected num_devices = {jax.device_count()}"
        )


def all_of(*values: float) -> np.ndarray:
    """What every process says, f64 `[processes, values]`."""
    if jax.process_count() == 1:
        return np.array([values], np.float64)
    from jax.experimental import multihost_utils

    # As bits: JAX would make f32 of it.
    said = multihost_utils.process_allgather(np.array(values, np.float64).view(np.uint32))
    return np.ascontiguousarray(said).view(np.float64).reshape(jax.process_count(), -1)


def over_processes(state: Any, layout: Any) -> Any:
    """A state laid out on the devices of all processes, each of which has it whole, or has its part already."""
    if jax.process_count() == 1:
        return jax.device_put(state, layout)

    def put(x: jax.Array, sharding: NamedSharding) -> jax.Array:
        if not x.is_fully_addressable:
            return x
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            data = jax.random.key_data(x)
            return jax.random.wrap_key_data(put(data, replicated(layout)), impl=jax.random.key_impl(x))
        host = np.asarray(x)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(put, state, layout)


def on_this_process(state: Any, layout: Any) -> Any:
    """A state that lies on the devices of several processes, whole on each; others as they are. All must call it at once."""
    if jax.process_count() == 1:
        return state
    gathered = jax.jit(lambda x: x, out_shardings=replicated(layout))(state)
    return jax.tree.map(lambda x: x.addressable_data(0), gathered)
