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


@contextlib.contextmanager
def noted_signals() -> Iterator[Stopping]:
    """Within it, the first Ctrl-C or SIGTERM only notes itself; the next has its usual effect. Other threads are left alone."""
    stopping = Stopping([])
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    usual = {number: handler for number, handler in usual.items() if handler not in (signal.SIG_IGN, None)}

    def restore() -> None:
        for number, handler in usual.items():
            signal.signal(number, handler)

    def note(signum: int, _: Any) -> None:
        restore()
        stopping.received.append(signum)

    # In a notebook the second one must not end the whole kernel, and a handler of the user's own is theirs to call.
    hard = usual.get(signal.SIGINT) is signal.default_int_handler and not _interactive()
    with _watched() if hard else contextlib.nullcontext():
        for number in usual:
            signal.signal(number, note)
        try:
            yield stopping
        finally:
            restore()


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """A thread that says at once that the first signal came, and ends the process at the second.

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
            else:
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


def _interactive() -> bool:
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules
