"""Runs of several processes, on one machine or many: all run the same program, but only the first writes and prints."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import sys
import threading
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from rljax.core.config import Config
from rljax.core.devices import replicated
from rljax.core.errors import ConfigError, RljaxError, first_line, shown

HEARTBEAT_SECONDS = 20
"""Number of seconds without a sign of life from a process after which the others give up."""

AUTO = "auto"
"""Coordinator that JAX finds."""

START_SECONDS = 120
"""Number of seconds to wait for all processes to start."""

LARGEST_PORT = 65_535

MAX_SHOWN = 3
"""Largest number of differences between processes that a message names."""


def join_processes(coordinator: str, num_processes: int | None = None, process_id: int | None = None) -> None:
    """Connect to the other processes of a run; each process must call this before it uses JAX.

    Args:
        coordinator: address and port of the first process, `10.0.0.1:1234`, the same for all processes. Or "auto": under Slurm,
            Open MPI (`mpirun`), Kubernetes and on TPU pods, JAX finds address, number and index.
        num_processes: number of processes; None with "auto".
        process_id: index of this process, from 0; None with "auto".

    The process ends with status 1 and one line if the others do not come within `START_SECONDS`.

    Raises:
        ConfigError: an argument is not allowed, or "auto" finds nothing.
        RljaxError: the processes did not connect for another reason.
    """
    if coordinator == AUTO:
        if num_processes is not None or process_id is not None:
            raise ConfigError("num_processes and process_id: coordinator = 'auto' finds them itself; give only one of both")
        _initialize("this process did not meet the others")
        return
    host, colon, port = coordinator.rpartition(":")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) <= LARGEST_PORT:
        raise ConfigError(
            f"coordinator = {shown(coordinator)}: expected address:port of process 0, such as 10.0.0.1:1234, or auto"
        )
    if num_processes is None or process_id is None:
        raise ConfigError(
            f"coordinator = {shown(coordinator)}: expected num_processes and process_id with it, the number of processes and the "
            "index of this one; or coordinator = 'auto'"
        )
    if num_processes < 1:
        raise ConfigError(f"num_processes = {num_processes}: expected a whole number > 0")
    if not 0 <= process_id < num_processes:
        raise ConfigError(f"process_id = {process_id}: expected a whole number from 0 to {num_processes - 1}")
    _initialize(
        f"process {process_id} of {num_processes} did not meet the others at {coordinator}",
        coordinator_address=coordinator,
        num_processes=num_processes,
        process_id=process_id,
    )


def _initialize(failure: str, **how: Any) -> None:
    # JAX would not raise at its own timeout, but abort the process with a stack trace.
    watch = threading.Timer(START_SECONDS, _give_up, [failure])
    watch.daemon = True
    watch.start()
    seconds: dict[str, Any] = {"initialization_timeout": 2 * START_SECONDS, "heartbeat_timeout_seconds": HEARTBEAT_SECONDS}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Kubernetes environment detected")  # `_nothing_found` says it in one line
            jax.distributed.initialize(**how, **seconds)
    except Exception as error:  # the package of Kubernetes has errors of its own
        if not how and "coordinator_address" in str(error):
            raise ConfigError(f"coordinator = 'auto': {_nothing_found()}") from None
        raise RljaxError(f"{failure}: {first_line(error)}") from error
    finally:
        watch.cancel()


def _nothing_found() -> str:
    """Return why JAX found no other processes, and what to do."""
    if "KUBERNETES_SERVICE_HOST" in os.environ and importlib.util.find_spec("kubernetes") is None:
        return (
            "in Kubernetes, JAX needs the package kubernetes to find the other processes: pip install 'jax[k8s]', or give the "
            "address of process 0"
        )
    return "this process was not started by Slurm, by Open MPI, in Kubernetes or on a TPU pod; give the address of process 0"


def _give_up(failure: str) -> None:
    print(f"rljax: {failure} within {START_SECONDS} seconds", file=sys.stderr, flush=True)
    os._exit(1)


def is_first() -> bool:
    """Return whether this is the first process, which writes and prints; the only process of a run is."""
    return jax.process_index() == 0


def check_processes(config: Config) -> None:
    """Refuse a run that would leave a process without work.

    Raises:
        ConfigError: `num_devices` is not the number of devices of all processes.
    """
    if jax.process_count() > 1 and config.num_devices != jax.device_count():
        raise ConfigError(
            f"num_devices = {config.num_devices}: {jax.process_count()} processes have {jax.device_count()} devices together, "
            f"expected num_devices = {jax.device_count()}"
        )


def check_same(values: Mapping[str, Any]) -> None:
    """Refuse a run whose processes were started with different configurations; all of them must call this.

    Processes with other programs would wait for each other forever, and those with other numbers would train something that
    none of them was told to.

    Args:
        values: what must be the same in all processes, by name; JSON can hold each value.

    Raises:
        ConfigError: a value differs. All processes raise it; the message names what differs, and how.
    """
    if jax.process_count() == 1:
        return
    of_process = [json.loads(text) for text in _gather_bytes(json.dumps(dict(values)).encode())]
    differences = []
    for name in dict.fromkeys(itertools.chain(*of_process)):
        texts = [json.dumps(each.get(name), sort_keys=True) for each in of_process]  # NaN equals itself as a text
        other = next((i for i, text in enumerate(texts) if text != texts[0]), None)
        if other is not None:
            here, there = (shown(each[name]) if name in each else "not given" for each in (of_process[0], of_process[other]))
            differences.append(f"{name} is {here} in process 0 and {there} in process {other}")
    if differences:
        more = f"; {len(differences) - MAX_SHOWN} more differ" if len(differences) > MAX_SHOWN else ""
        raise ConfigError(
            f"the processes of this run were started with different configurations: {'; '.join(differences[:MAX_SHOWN])}{more}; "
            "start all with the same command"
        )


def _gather_bytes(content: bytes) -> list[bytes]:
    """Gather the bytes of every process, as many as each has."""
    from jax.experimental import multihost_utils

    lengths = gather_values(len(content))[:, 0].astype(int)
    padded = np.zeros(lengths.max(), np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]


def gather_values(*values: float) -> np.ndarray:
    """Gather the values of every process, f64 `[processes, values]`."""
    if jax.process_count() == 1:
        return np.array([values], np.float64)
    from jax.experimental import multihost_utils

    # Gather the bits: JAX would round f64 to f32.
    bits = multihost_utils.process_allgather(np.array(values, np.float64).view(np.uint32))
    return np.ascontiguousarray(bits).view(np.float64).reshape(jax.process_count(), -1)


def distribute(state: Any, layout: Any) -> Any:
    """Shard a state over the devices of all processes; each process has all of it, or already has its part."""
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


def gather_state(state: Any, layout: Any) -> Any:
    """Gather a state from the devices of all processes, which must all call this; return any other state as it is."""
    if jax.process_count() == 1:
        return state
    gathered = jax.jit(lambda x: x, out_shardings=replicated(layout))(state)
    return jax.tree.map(lambda x: x.addressable_data(0), gathered)
