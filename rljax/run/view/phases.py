"""Print a run of phases at a glance, for `rljax show RUN`."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rljax.core.config import env_name
from rljax.core.errors import printable
from rljax.run.files.folder import CONFIG_FILE
from rljax.run.phases.train import read_phases
from rljax.run.view.layout import make_console, make_table, print_table
from rljax.run.view.show import is_training, status_of


def show_phases(folder: Path, *, console: Console | None = None) -> None:
    """Print the phases of a run: algorithm, environment, what each begins with, and how far it is.

    Args:
        folder: the run's folder.
        console: console to print to; if None, standard output.

    Raises:
        ConfigError: there is no run of phases, or a file of it cannot be read.
    """
    console = make_console() if console is None else console
    phases = read_phases(folder)
    console.print(Text(printable(str(folder)), style="bold"), soft_wrap=True)
    columns = ("phase", "algorithm", "environment", "learns from", "status")
    table, unfinished = make_table(*columns, text=columns), False
    for name, phase in phases.items():
        run = folder / name
        status = status_of(run) if (run / CONFIG_FILE).is_file() else "not begun"
        unfinished |= not status.startswith("complete")
        learns = [*getattr(phase.config, "teachers", ()), *([] if phase.init_from is None else [phase.init_from])]
        row = (name, phase.config.algorithm, env_name(phase.config), ", ".join(learns), status.partition(";")[0])
        table.add_row(*(Text(printable(cell)) for cell in row))
    print_table(console, table)
    if unfinished and not is_training(folder):
        console.print(Text(f"to go on: rljax train --resume {shlex.quote(printable(str(folder)))}"), soft_wrap=True)
