"""Calls of the host from compiled programs: how long they took, why one failed, and a cheap call with side effects."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from rljax.core.devices import check_platform
from rljax.core.errors import RljaxError

# A failure that a line explains needs no traceback before it.
logging.getLogger("jax._src.callback").addFilter(
    lambda record: record.exc_info is None or not isinstance(record.exc_info[1], RljaxError)
)

buffer_callback: Any
try:
    from jax.experimental.buffer_callback import buffer_callback
except ImportError:  # experimental in JAX: a version without it has the slower way
    buffer_callback = None


class Waiting:
    """Time that compiled programs of this process spent waiting for the host, by what they waited for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._failure: RljaxError | None = None

    def add(self, what: str, seconds: float) -> None:
        with self._lock:
            self._seconds[what] = self._seconds.get(what, 0.0) + seconds

    def replace(self, what: str, seconds: float) -> None:
        """Note another time than was added since the last call of `shares`: that which nothing else was done in."""
        with self._lock:
            self._seconds[what] = seconds

    @contextlib.contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Note the time that the block takes, and why it failed if it raises a RljaxError."""
        started = time.perf_counter()
        try:
            yield
        except RljaxError as error:
            self.fail(error)
            raise
        finally:
            self.add(what, time.perf_counter() - started)

    def fail(self, error: RljaxError) -> None:
        """Note why a call failed: JAX reports an error of a callback as one of its own."""
        with self._lock:
            self._failure = error

    def reset(self) -> None:
        """Forget what other programs waited for, and why they stopped."""
        with self._lock:
            self._seconds, self._failure = {}, None

    def shares(self, seconds: float) -> dict[str, float]:
        """Return `perf/WHAT_wait`, the share of the last `seconds` that was waiting, for whatever was waited for since the last
        call.
        """
        with self._lock:
            waited, self._seconds = self._seconds, {}
        return {f"perf/{what}_wait": min(1.0, time / seconds) for what, time in waited.items()}

    def take_failure(self) -> RljaxError | None:
        """Return why a call failed, if one did since the last call of this."""
        with self._lock:
            failure, self._failure = self._failure, None
        return failure


WAITING = Waiting()
"""Waiting of all programs in this process."""


@contextlib.contextmanager
def failures_explained() -> Iterator[None]:
    """Raise the error of the host instead of JAX's, if a program stopped because a call of the host failed, or none could run.

    Raises:
        RljaxError: what went wrong, in one line.
        ConfigError: JAX does not find the platform that it was told to use.
    """
    WAITING.take_failure()  # of a program that nobody asked
    try:
        yield
    except jax.errors.JaxRuntimeError:
        failure = WAITING.take_failure()
        if failure is None:
            raise
        raise failure from None
    except (RuntimeError, AssertionError) as error:
        if not isinstance(error, RljaxError):
            check_platform()
        raise


def host_call(function: Callable[..., Sequence[np.ndarray]], shapes: Sequence[Any], *args: jax.Array) -> list[jax.Array]:
    """Call a function with side effects on the host, in the order in which its arguments are ready.

    Args:
        function: takes NumPy arrays, which it must neither keep nor change, and returns one for each of `shapes`.
        shapes: shapes and dtypes of the results.
        *args: its arguments.
    """

    def noted(*values: Any) -> Sequence[np.ndarray]:
        try:
            return function(*(np.asarray(x) for x in values))
        except RljaxError as error:
            WAITING.fail(error)
            raise

    def into(_context: Any, out: Sequence[Any], *values: Any) -> None:
        for place, x in zip(out, noted(*values), strict=True):
            np.asarray(place)[...] = x

    def copied(*values: Any) -> list[np.ndarray]:
        return [np.array(x) for x in noted(*values)]

    def by_copies(*values: jax.Array) -> list[jax.Array]:
        found: list[jax.Array] = io_callback(copied, list(shapes), *values)
        return found

    if buffer_callback is None:
        return by_copies(*args)
    # A call with buffers takes 13 microseconds, one with copies 400, but the buffers of other devices are not the host's.
    by_buffers = buffer_callback(into, list(shapes), has_side_effect=True)
    found: list[jax.Array] = jax.lax.platform_dependent(*args, cpu=by_buffers, default=by_copies)
    return found
