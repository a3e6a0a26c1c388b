"""Ctrl-C and SIGTERM while a run trains: the first is noted, to save and stop; the second stops at once."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple


class Stopping(NamedTuple):
    """The signals received so far."""

    received: list[int]

    @property
    def signum(self) -> int | None:
        return self.received[0] if self.received else None


class _Active(NamedTuple):
    """A `noted_signals` that is entered, and the handlers that it stands in for."""

    stopping: Stopping
    usual: dict[int, Any]

    def restore(self) -> None:
        for number, handler in self.usual.items():
            signal.signal(number, handler)


_active: list[_Active] = []
"""The innermost last: a callback of one run may train another."""


@contextlib.contextmanager
def noted_signals() -> Iterator[Stopping]:
    """Within it, the first Ctrl-C or SIGTERM only notes itself; the next has its usual effect. Other threads are left alone."""
    stopping = Stopping([])
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    active = _Active(stopping, {n: handler for n, handler in handlers.items() if handler not in (signal.SIG_IGN, None)})

    def note(signum: int, _: Any) -> None:
        active.restore()
        for each in _active:
            each.stopping.received.append(signum)

    # A handler of the user's own is theirs to call, and in a notebook the second signal must not end the whole kernel.
    fatal = {n for n, handler in active.usual.items() if handler in (signal.default_int_handler, signal.SIG_DFL)}
    watched = signal.SIGINT in fatal and not _interactive()
    with _watched(fatal) if watched else contextlib.nullcontext():
        _active.append(active)
        for number in active.usual:
            signal.signal(number, note)
        try:
            yield stopping
        finally:
            active.restore()
            _active.remove(active)


@contextlib.contextmanager
def _watched(fatal: set[int]) -> Iterator[None]:
    """A thread that says at once that the first signal came, and ends the process at the second, if that is a fatal one.

    Python calls its handlers between instructions of the main thread only: in a long compilation, or a long chunk, that would be
    minutes later, and several signals would have become one.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        received = 0
        while data := reader.recv(1):
            if data[0] not in (signal.SIGINT, signal.SIGTERM):
                continue
            received += 1
            if received == 1:
                print("stopping: finishing the chunk and saving; once more stops at once", file=sys.stderr, flush=True)
            elif data[0] in fatal:
                if sys.stdout.isatty():
                    print("\x1b[?25h", flush=True)  # a progress bar hides the cursor
                os._exit(128 + data[0])

    thread = threading.Thread(target=watch, name="rljax-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        writer.close()
        thread.join()
        reader.close()


_masks: list[set[int]] = []
"""The signals that were blocked before a fork under way."""


def _before_fork() -> None:
    if _active:
        _masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM}))


def _after_fork() -> None:
    if _masks:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop())


def _after_fork_in_child() -> None:
    """A forked process (a data loader's, say) has the handlers and the socket of its parent, whose signals are not its own."""
    if _active:
        signal.set_wakeup_fd(-1)
        for active in reversed(_active):
            active.restore()
        _active.clear()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


def _interactive() -> bool:
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules
