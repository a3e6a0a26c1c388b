"""Print a run at a glance, for `rljax show RUN`."""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rljax.collect.environments import evaluation_opponent
from rljax.core.config import Config
from rljax.core.errors import ConfigError, printable
from rljax.core.places import LOCK_FILE
from rljax.core.plain import class_name
from rljax.run.divergence import diverged_steps
from rljax.run.files.checkpoint import CHECKPOINTS, CheckpointError, checkpoint_steps, noted_best, read_meta
from rljax.run.files.folder import RunInfo, last_iteration, read_config, read_info
from rljax.run.files.scores import EVALUATIONS, SCORES
from rljax.run.view.card import card_lines
from rljax.run.view.curves import Curves, History, common_grid, curves, on_grid, read_metrics
from rljax.run.view.layout import format_number, make_console, make_table, print_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

SPARKLINE = 60
BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII_BLOCKS = " .:-=+*%#"
MAX_SEED_ROWS = 16


class _Checkpoint(NamedTuple):
    """Row of the table of checkpoints; `meta` is None for a damaged one."""

    step: int
    size: int
    marks: list[str]
    meta: dict[str, Any] | None


def show(
    run_dir: str | os.PathLike[str],
    *,
    console: Console | None = None,
) -> None:
    """Print a run's status, origin, configuration, figures, curve of returns and checkpoints; of a packed agent also its card.

    Args:
        run_dir: the run's folder.
        console: console to print to; if None, standard output, with plain text of 100 columns if that is not a terminal.

    Raises:
        ConfigError: there is no run, or one of its files cannot be read.
    """
    folder = Path(run_dir)
    config = read_config(folder)
    info = read_info(folder)
    history = read_metrics(folder)
    checkpoints = _checkpoints(folder / CHECKPOINTS)
    console = make_console() if console is None else console

    env = class_name(str(config.env))
    seeds = "" if info.seeds is None else f", {info.seeds} seeds"
    console.print(_text(str(folder), style="bold"), soft_wrap=True)
    status = _status(folder, config, info, history, checkpoints)
    console.print(_text(f"{config.algorithm} on {env}{seeds}: {status}"))
    if status.startswith("stopped"):
        # The command has a line of its own that is never broken, to be copied.
        console.print(_text(f"  rljax train --resume {shlex.quote(str(folder))}"), soft_wrap=True)
    for line in card_lines(folder) if info.left_out else ():
        console.print(_text(line), soft_wrap=True)
    opponent = _opponent(config)
    if opponent is not None:
        console.print(_text(f"evaluated against {opponent}"))
    if info.init_from:
        console.print(_text(f"began with the policy of {info.init_from}"), soft_wrap=True)
    if info.forked_from is not None:
        console.print(_text(f"forked from {info.forked_from['checkpoint']} at step {info.forked_from['step']:,}"), soft_wrap=True)
    for line in _changes(history):
        console.print(_text(line))
    console.print()
    _print_config(console, config)
    if info.left_out:
        return
    console.print()
    meta: dict[str, Any] = next((c.meta for c in reversed(checkpoints) if c.meta is not None), {})
    diverged = diverged_steps(meta, info.seeds or 1)
    _print_figures(console, folder, info, history, meta, diverged)
    for i, step in enumerate(diverged):
        if step is not None:
            console.print(_text(f"seed_index {i} diverged at step {step:,}: its training stopped"))
    console.print()
    _print_checkpoints(console, checkpoints)


def _text(text: str, style: str = "") -> Text:
    """Return printable text: in a plain string, [brackets] would be markup, and files could control the terminal."""
    from rich.text import Text

    return Text(printable(text), style=style)


def sparkline(values: np.ndarray, blocks: str = BLOCKS) -> str:
    """Return one character per value `[W]`, whose height shows its place between minimum and maximum; a space for NaN."""
    low, high = np.nanmin(values), np.nanmax(values)
    heights = (values - low) / ((high - low) or 1.0)
    top = len(blocks) - 2
    return "".join(blocks[0] if math.isnan(h) else blocks[1 + round(h * top)] for h in heights)


def status_of(folder: Path) -> str:
    """Return how far a run is, in words."""
    config, info = read_config(folder), read_info(folder)
    return _status(folder, config, info, read_metrics(folder), _checkpoints(folder / CHECKPOINTS))


def _status(folder: Path, config: Any, info: RunInfo, history: History, checkpoints: list[_Checkpoint]) -> str:
    taken = max([*(record["step"] for record in history.records[-1:]), *(c.step for c in checkpoints)], default=0)
    budget = info.step_offset + last_iteration(config, info) * config.steps_per_iteration
    if info.left_out:
        return f"packed at {taken:,} steps, to act and not to train"
    if taken >= budget and history.failure is None:
        return f"complete at {taken:,} steps"
    if is_training(folder):
        return f"training, at step {taken:,} of {budget:,}"
    why = "" if history.failure is None else f": {history.failure}"
    return f"stopped at step {taken:,} of {budget:,}{why}; to go on:"


def is_training(folder: Path) -> bool:
    """Return whether a process holds the run's lock."""
    try:
        import fcntl

        with (folder / LOCK_FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):  # Windows; no lock, or a file system without them
        return False
    return False


def _changes(history: History) -> list[str]:
    """Return a line for each change of hyperparameters during the run."""
    lines = []
    for (_, before), (step, after) in zip(history.hyperparameters, history.hyperparameters[1:], strict=False):
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        if changed:
            changes = ", ".join(f"{name} {_value(before.get(name))} -> {_value(after.get(name))}" for name in changed)
            lines.append(f"changed at step {step:,}: {changes}")
    return lines


def _print_config(console: Console, config: Any) -> None:
    """Print the fields that differ from their defaults in a table, and the others below it."""
    table = make_table("configuration", "value", "default", text=("configuration", "value", "default"))
    unchanged = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value == field.default:
            unchanged.append(f"{field.name}={_value(value)}")
        else:
            table.add_row(_text(field.name, style="bold"), _text(_value(value)), _text(_value(field.default), style="dim"))
    if table.row_count:
        print_table(console, table, optional=(2,))
    title = "defaults: " if table.row_count else "configuration, all defaults: "
    console.print(_text(title + " ".join(unchanged), style="dim"))


def _print_figures(
    console: Console, folder: Path, info: RunInfo, history: History, meta: dict[str, Any], diverged: list[int | None]
) -> None:
    overall = {name: _overall(history, name) for name in SCORES}
    table = make_table("metric", "latest", "at step", "best", "at step", text=("metric",))
    for name, (steps, values) in overall.items():
        if len(values):
            best = int(np.argmax(values))
            marked = _text(format_number(values[best]), style="bold")
            at = steps[best]
            noted = meta.get("best_step") if name in EVALUATIONS else None
            # The record of several iterations has the step of the last; the checkpoint knows that of the evaluation.
            if noted is not None and steps[: best + 1].searchsorted(noted) == best:
                at = noted
            table.add_row(name, format_number(values[-1]), f"{steps[-1]:,}", marked, f"{at:,}")
    if not history.records:
        console.print(_text("no records yet"))
        return
    if table.row_count:
        print_table(console, table, optional=(2, 4))
    else:
        reported = any(name in history.metrics for name in SCORES)
        console.print(_text("no returns yet" if reported else "no returns: the agent's step does not report episode/return"))
    speed = [record["perf/steps_per_second"] for record in history.records if record.get("perf/steps_per_second")]
    if speed:
        waits = [record["perf/data_wait"] for record in history.records if record.get("perf/data_wait") is not None]
        waited = f", {100.0 * np.median(waits):.1f} % of the time waiting for data" if waits else ""
        console.print(_text(f"speed: {np.median(speed):,.0f} steps/s{waited} (median)"))
    score = next((name for name in SCORES if len(overall[name].values)), None)
    if score is None:
        return
    console.print()
    _print_sparkline(console, score, overall[score])
    if info.seeds is not None:
        console.print()
        _print_seeds(console, score, curves(folder, score, history), diverged)


def _overall(history: History, metric: str) -> Curves:
    """Return the known values of a metric, averaged over seeds: `values` `[R]`, without the axis of seeds."""
    known = [(record["step"], record[metric]) for record in history.records if record.get(metric) is not None]
    return Curves(np.array([step for step, _ in known]), np.array([value for _, value in known], np.float64))


def _print_sparkline(console: Console, score: str, overall: Curves) -> None:
    from rich.text import Text

    grid = common_grid(overall.steps, max(1, min(SPARKLINE, console.width - len(score) - 1)))
    line = on_grid(Curves(overall.steps, overall.values[None]), grid)[0]
    blocks = ASCII_BLOCKS if console.options.ascii_only else BLOCKS
    console.print(Text.assemble(f"{score} ", (sparkline(line, blocks), "cyan")))
    span = f"steps {overall.steps[0]:,} to {overall.steps[-1]:,}"
    console.print(_text(f"min {format_number(np.nanmin(line))}, max {format_number(np.nanmax(line))}, {span}"))


def _print_seeds(console: Console, score: str, by_seed: Curves, diverged: list[int | None]) -> None:
    """Print the latest and best score of each seed, or for many seeds the spread of those that have not diverged."""
    known = [values[np.isfinite(values)] for values in by_seed.values]
    latest = np.array([values[-1] if len(values) else math.nan for values in known])
    best = [values.max() if len(values) else math.nan for values in known]
    if len(known) > MAX_SEED_ROWS:
        judged = np.where([step is None for step in diverged], latest, math.nan)
        if not np.isfinite(judged).any():
            judged = latest
        quartiles = zip(("min", "25 %", "median", "75 %", "max"), np.nanpercentile(judged, [0, 25, 50, 75, 100]), strict=True)
        spread = ", ".join(f"{name} {format_number(value)}" for name, value in quartiles)
        count = int(np.isfinite(judged).sum())
        console.print(_text(f"latest {score} of {count} seeds: {spread}; the highest is seed_index {np.nanargmax(judged)}"))
    else:
        table = make_table("seed_index", f"latest {score}", "best")
        for i in range(len(known)):
            table.add_row(str(i), format_number(latest[i]), format_number(best[i]))
        print_table(console, table)


def _opponent(config: Config) -> str | None:
    """Return whom a run is evaluated against, or None; a run whose game cannot be made here is shown without."""
    try:
        return evaluation_opponent(config)
    except ConfigError:
        return None


def _checkpoints(folder: Path) -> list[_Checkpoint]:
    """Return the checkpoints, the oldest first."""
    steps = checkpoint_steps(folder)
    # Copies may have no links, or folders in their place.
    marked = {"latest": f"step_{max(steps, default=None)}", "best": f"step_{noted_best(folder)}"}
    marked |= {mark: os.readlink(folder / mark) for mark in marked if (folder / mark).is_symlink()}
    found = []
    for step in sorted(steps):
        path = folder / f"step_{step}"
        try:
            meta = read_meta(path)
        except CheckpointError:
            meta = None
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        found.append(_Checkpoint(step, size, [mark for mark, target in marked.items() if target == path.name], meta))
    return found


def _print_checkpoints(console: Console, checkpoints: list[_Checkpoint]) -> None:
    if not checkpoints:
        console.print(_text("no checkpoints yet"))
        return
    metas = [c.meta or {} for c in checkpoints]
    known = [meta for meta in metas if any(score is not None for score in meta.get("scores") or [])]
    names = list(dict.fromkeys(meta["score_name"] for meta in known if meta.get("score_name")))
    to_the_second = 19 if console.width >= 75 else 16
    table = make_table("checkpoint", "size", names[0] if len(names) == 1 else "score", "", "written", text=("",))
    for checkpoint, meta in zip(checkpoints, metas, strict=True):
        scores = [score for score in meta.get("scores") or [] if score is not None]
        score = format_number(float(np.mean(scores))) if scores else "-"
        if len(names) > 1 and scores:
            score += f" ({meta['score_name']})"
        marks = ", ".join(checkpoint.marks) if checkpoint.meta is not None else "damaged"
        written = str(meta.get("time", "-"))[:to_the_second].replace("T", " ")
        table.add_row(f"{checkpoint.step:,}", _size(checkpoint.size), score, _text(marks, style="bold"), written)
    print_table(console, table, optional=(4, 1))


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _value(value: Any) -> str:
    """Format a value as in TOML, but without quotes."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return class_name(value)
    if isinstance(value, bool):
        return str(value).lower()
    if hasattr(value, "items"):
        return "{" + ", ".join(f"{key} = {_value(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return f"{value:,}" if isinstance(value, int) else str(value)
