"""Progress of a run: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from typing import Protocol


class Progress(Protocol):
    """What `fit` tells about its progress; `episode_return` is NaN while no episode has ended."""

    def start(self, total_steps: int) -> None: ...
    def compiled(self) -> None: ...
    def update(self, step: int, steps_per_second: float, episode_return: float) -> None: ...
    def stop(self) -> None: ...


class Silent:
    def start(self, total_steps: int) -> None:
        pass

    def compiled(self) -> None:
        pass

    def update(self, step: int, steps_per_second: float, episode_return: float) -> None:
        pass

    def stop(self) -> None:
        pass


class Lines:
    """A line at every tenth of the run, or every ten seconds where that is sooner; `title` comes first."""

    def __init__(self, title: str = ""):
        self.title = title

    def start(self, total_steps: int) -> None:
        self.total, self.last_step, self.last_time = total_steps, 0, time.monotonic()
        print(f"{self.title}\ncompiling ..." if self.title else "compiling ...", flush=True)

    def compiled(self) -> None:
        print(f"compiled in {time.monotonic() - self.last_time:.1f} s", flush=True)
        self.last_time = time.monotonic()

    def update(self, step: int, steps_per_second: float, episode_return: float) -> None:
        now = time.monotonic()
        if step < self.total and step - self.last_step < self.total / 10 and now - self.last_time < 10:
            return
        self.last_step, self.last_time = step, now
        left = (self.total - step) / steps_per_second if steps_per_second > 0 else math.nan
        print(
            f"step {step:,}/{self.total:,}  {steps_per_second:,.0f} steps/s  "
            f"return {_number(episode_return)}  {_duration(left)} left",
            flush=True,
        )

    def stop(self) -> None:
        pass


class Bar:
    """rich's progress bar: steps, steps per second, return, time left; `title` comes first."""

    def __init__(self, title: str = ""):
        self.title = title

    def start(self, total_steps: int) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        if self.title:
            print(self.title, flush=True)
        self.total = total_steps
        self.bar = RichProgress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[steps]} steps"),
            TextColumn("{task.fields[speed]} steps/s"),
            TextColumn("return {task.fields[episode_return]}"),
            TextColumn("{task.fields[left]} left"),
        )
        fields = {"steps": f"0/{total_steps:,}", "speed": "-", "episode_return": "-", "left": "-"}
        self.task = self.bar.add_task("compiling", total=total_steps, **fields)  # type: ignore[arg-type]
        self.bar.start()

    def compiled(self) -> None:
        self.bar.update(self.task, description="training")

    def update(self, step: int, steps_per_second: float, episode_return: float) -> None:
        left = (self.total - step) / steps_per_second if steps_per_second > 0 else math.nan
        self.bar.update(
            self.task,
            completed=step,
            steps=f"{step:,}/{self.total:,}",
            speed=f"{steps_per_second:,.0f}",
            episode_return=_number(episode_return),
            left=_duration(left),
        )

    def stop(self) -> None:
        self.bar.stop()


def default_progress(title: str) -> Progress:
    """A bar where standard output is a terminal, plain lines where it is not."""
    return Bar(title) if sys.stdout.isatty() else Lines(title)


def _number(x: float) -> str:
    return f"{x:.1f}" if math.isfinite(x) else "-"


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "-"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
