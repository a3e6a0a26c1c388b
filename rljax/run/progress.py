"""Progress of a run: a bar in a terminal and in a notebook, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from typing import Any, Protocol


class Progress(Protocol):
    """Methods that `fit` calls to report its progress, in this order."""

    def prepare(self) -> None:
        """Announce that the run is being created or read; tracing and compiling follow."""
        ...

    def start(self, total_steps: int) -> None:
        """Announce the total number of environment steps."""
        ...

    def compiled(self) -> None:
        """Announce that training begins."""
        ...

    def update(self, step: int, steps_per_second: float, episode_return: float, seconds_left: float) -> None:
        """Report the steps taken. `episode_return` is NaN until an episode has ended, `seconds_left` until learning starts."""
        ...

    def stop(self) -> None:
        """Announce that the run has ended or failed, at any point; may be called twice."""
        ...


class Silent:
    def prepare(self) -> None:
        pass

    def start(self, total_steps: int) -> None:
        pass

    def compiled(self) -> None:
        pass

    def update(self, step: int, steps_per_second: float, episode_return: float, seconds_left: float) -> None:
        pass

    def stop(self) -> None:
        pass


class Pace:
    """Mean time of iterations of full cost; those before learning starts are many times faster and do not count."""

    def __init__(self) -> None:
        self.seconds, self.iterations = 0.0, 0

    def add(self, seconds: float, iterations: int) -> None:
        """Add the time that some full iterations took, including the work of the host."""
        self.seconds += seconds
        self.iterations += iterations

    def left(self, iterations: int) -> float:
        """Return the seconds that `iterations` iterations will take; NaN before any was timed."""
        return iterations * self.seconds / self.iterations if self.iterations else math.nan


class _Compiling:
    """Timer that calls `tick` at an interval from `begin` to `end`, in a thread of its own: XLA may compile for minutes."""

    thread: threading.Thread | None = None

    def begin(self, interval: float) -> None:
        self.begun = time.monotonic()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(interval,), name="rljax-progress", daemon=True)
        self.thread.start()

    def tick(self) -> None:
        """Show the time spent compiling."""
        raise NotImplementedError

    def _run(self, interval: float) -> None:
        # If the output cannot be written (a full disk, say), training will report it.
        with contextlib.suppress(OSError, ValueError):
            while not self.over.wait(interval):
                self.tick()

    def end(self) -> None:
        """Stop the timer; may be called twice, and before `begin`."""
        if self.thread is not None:
            self.over.set()
            self.thread.join()


class Lines(_Compiling):
    """Progress as lines: one at every tenth of the run or every ten seconds, also while compiling; `title` comes first."""

    SECONDS = 10.0

    def __init__(self, title: str = ""):
        self.title = title

    def prepare(self) -> None:
        print(f"{self.title}\ncompiling ..." if self.title else "compiling ...", flush=True)
        self.begin(self.SECONDS)

    def tick(self) -> None:
        print(f"compiling ... {_duration(time.monotonic() - self.begun)}", flush=True)

    def start(self, total_steps: int) -> None:
        self.total, self.last_step = total_steps, 0

    def compiled(self) -> None:
        self.end()
        self.last_time = time.monotonic()
        print(f"compiled in {self.last_time - self.begun:.1f} s", flush=True)

    def update(self, step: int, steps_per_second: float, episode_return: float, seconds_left: float) -> None:
        now = time.monotonic()
        if step < self.total and step - self.last_step < self.total / 10 and now - self.last_time < self.SECONDS:
            return
        self.last_step, self.last_time = step, now
        left = f"{_duration(seconds_left)} left" if math.isfinite(seconds_left) else "time left is known once learning starts"
        print(
            f"step {step:,}/{self.total:,}  {steps_per_second:,.0f} steps/s  return {_number(episode_return)}  {left}",
            flush=True,
        )

    def stop(self) -> None:
        self.end()


class Bar(_Compiling):
    """Progress bar of rich: time spent compiling; then steps, steps per second, return, time left. `title` comes first."""

    def __init__(self, title: str = ""):
        self.title = title

    def prepare(self) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        if self.title:
            print(self.title, flush=True)
        # The bar takes the rest of the line, so that all numbers fit into 80 columns.
        self.bar = RichProgress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[numbers]}"),
            expand=True,
            get_time=time.monotonic,
        )
        self.task = self.bar.add_task("compiling", total=None, numbers="0:00")
        self._show()
        self.begin(1.0)

    def _show(self) -> None:
        self.bar.start()

    def _refresh(self) -> None:
        """Draw the bar again; nothing to do here, since rich draws in a thread of its own."""

    def tick(self) -> None:
        """Show the time spent compiling, as a sign of life."""
        self.bar.update(self.task, numbers=_duration(time.monotonic() - self.begun))
        self._refresh()

    def start(self, total_steps: int) -> None:
        self.total = total_steps

    def compiled(self) -> None:
        self.end()
        self.bar.update(self.task, description="training", total=self.total, numbers=f"0/{self.total:,} steps")
        self._refresh()

    def update(self, step: int, steps_per_second: float, episode_return: float, seconds_left: float) -> None:
        left = f"{_duration(seconds_left)} left" if math.isfinite(seconds_left) else "left: once learning starts"
        shown = f"return {_number(episode_return)}"
        of_all = f"{step:,}/{self.total:,}"
        # In a narrow terminal the return and the time left stay longest.
        versions = [
            f"{of_all}  {steps_per_second:,.0f} steps/s  {shown}  {left}",
            f"{of_all}  {shown}  {left}",
            f"{step:,}  {shown}  {left}",
            f"{shown}  {left}",
            shown,
        ]
        room = self.bar.console.width - len("training ")
        numbers = next((numbers for numbers in versions if len(numbers) <= room), shown)
        self.bar.update(self.task, completed=step, numbers=numbers)
        self._refresh()

    def stop(self) -> None:
        self.end()
        self.bar.stop()


class NotebookBar(Bar):
    """Progress bar in a notebook: an output that is drawn anew, without the widgets that rich would need (ipywidgets)."""

    SECONDS = 0.25
    """Smallest number of seconds between two drawings: each is a message to the browser."""

    def _show(self) -> None:
        from IPython.display import display

        self.drawn_at = time.monotonic()
        self.output: Any = display(self.bar, display_id=True)

    def _refresh(self, always: bool = False) -> None:
        if always or time.monotonic() - self.drawn_at >= self.SECONDS:
            self.drawn_at = time.monotonic()
            self.output.update(self.bar)

    def stop(self) -> None:
        self.end()
        self._refresh(always=True)


def default_progress(title: str) -> Progress:
    """Return a bar if standard output is a terminal or a notebook, else plain lines."""
    if sys.stdout is not None and sys.stdout.isatty():  # None where it is closed
        return Bar(title)
    if "ipykernel" in sys.modules:
        from rich.console import Console

        if Console().is_jupyter:
            return NotebookBar(title)
    return Lines(title)


def _number(x: float) -> str:
    if not math.isfinite(x):
        return "-"
    return f"{x:.1f}" if abs(x) >= 10 else f"{x + 0.0:.3g}"  # returns of games lie between -1 and 1; not -0


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
