"""Ctrl-C and SIGTERM during training: the first one makes the run save and stop; the second one stops it at once."""

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
    """Signals received so far."""

    received: list[int]

    @property
    def signum(self) -> int | None:
        return self.received[0] if self.received else None


class _Active(NamedTuple):
    """State of a `note_signals` that has been entered, and the handlers that it replaces."""

    stopping: Stopping
    usual: dict[int, Any]

    def restore(self) -> None:
        for number, handler in self.usual.items():
            signal.signal(number, handler)


_active: list[_Active] = []
"""Entered `note_signals`, the innermost last: a callback of one run may train another."""


@contextlib.contextmanager
def note_signals() -> Iterator[Stopping]:
    """Only note the first Ctrl-C or SIGTERM; the next one has its usual effect. In other threads nothing changes.

    What an outer `note_signals` has received, an inner one has received, too.
    """
    stopping = Stopping(list(_active[-1].stopping.received) if _active else [])
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    active = _Active(stopping, {n: handler for n, handler in handlers.items() if handler not in (signal.SIG_IGN, None)})

    def note(signum: int, _: Any) -> None:
        active.restore()
        for each in _active:
            each.stopping.received.append(signum)

    # A user's own handler must still be called, and in a notebook the second signal must not end the whole kernel.
    fatal = {n for n, handler in active.usual.items() if handler in (signal.default_int_handler, signal.SIG_DFL)}
    watched = signal.SIGINT in fatal and not _interactive()
    with _watch_signals(fatal) if watched else contextlib.nullcontext():
        _active.append(active)
        for number in active.usual:
            signal.signal(number, note)
        try:
            yield stopping
        finally:
            active.restore()
            _active.remove(active)


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[list[int]]:
    """Let SIGTERM raise a KeyboardInterrupt, as Ctrl-C does; the list that is yielded holds it then.

    In other threads, and where somebody else handles the signal, nothing changes.
    """
    received: list[int] = []

    def interrupt(signum: int, _: Any) -> None:
        received.append(signum)
        raise KeyboardInterrupt

    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield received
        return
    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def _watch_signals(fatal: set[int]) -> Iterator[None]:
    """Watch for signals in a thread: it acknowledges the first one at once, and ends the process at the second if it is fatal.

    Python calls its handlers only between instructions of the main thread: during a long compilation or chunk, that would be
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
                print("stopping: finishing the chunk and saving; a second signal stops at once", file=sys.stderr, flush=True)
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
"""Signals that were blocked before the forks in progress."""


def _before_fork() -> None:
    if _active:
        _masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM}))


def _after_fork() -> None:
    if _masks:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop())


def _after_fork_in_child() -> None:
    """Restore the signals in a forked process (of a data loader, say), which inherits its parent's handlers and socket."""
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
