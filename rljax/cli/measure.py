"""`rljax bench`, `rljax compile` and `rljax reproduce`."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from rljax.cli.options import Bench, Compile, Reproduce
from rljax.cli.overrides import merge_tables
from rljax.core.config_files import load_config
from rljax.core.errors import ConfigError, did_you_mean
from rljax.run.view.layout import columns, say, wrap_text


def bench(options: Bench) -> None:
    """`rljax bench`: measure, print tables in Markdown, and write them as JSON."""
    from rljax.run.bench.suites import SUITES, run_suite
    from rljax.run.bench.timing import parse_tables
    from rljax.run.files.outputs import atomic_file, output_path

    suite, repeats = options.suite, options.repeats
    if suite not in SUITES:
        raise ConfigError(f"unknown benchmark '{suite}': {did_you_mean(suite, SUITES)}")
    path = None if options.json is None else output_path(options.json, (".json",), "json")
    said = io.StringIO()
    with contextlib.redirect_stdout(_Tee(sys.stdout, said)):
        load = run_suite(suite, repeats)
    if path is not None:
        with atomic_file(path) as aside:
            table = {"suite": suite, "repeats": repeats, "load": load, **parse_tables(said.getvalue())}
            aside.write_text(json.dumps(table, indent=1) + "\n")
        print(path)


def compile_run(options: Compile, overrides: dict[str, Any]) -> None:
    """`rljax compile`: compile a run for a target and print what it needs and does; status 2 if it does not fit."""
    import jax

    from rljax.run.compile.program import SUFFIX, compile_for
    from rljax.run.compile.report import report_lines
    from rljax.run.compile.targets import parse_target
    from rljax.run.files.outputs import atomic_file, output_path

    parse_target(options.target)
    # Nothing is computed, so the devices of this machine, their memory and their drivers are left alone.
    jax.config.update("jax_platforms", "cpu")
    config = load_config(options.config, **merge_tables(lambda: load_config(options.config), overrides))
    path = None if options.json is None else output_path(options.json, (".json",), "json")
    saved = None if options.save is None else output_path(options.save, (SUFFIX,), "save")
    report = compile_for(config, options.target, seeds=options.seeds)
    # Compiling may have taken minutes: a reader who has gone (head, say) loses no file, and a file that fails loses no report.
    try:
        if path is not None:
            with atomic_file(path) as aside:
                aside.write_text(json.dumps({"config": options.config, **report.as_dict()}, indent=1) + "\n")
        if saved is not None:
            report.save(saved)
    finally:
        print("\n".join(report_lines(report)))
    for file in (path, saved):
        if file is not None:
            print(file)
    if not report.fits:
        smaller = "take a smaller buffer, network or batch, or fewer environments"
        raise ConfigError(f"{options.config} does not fit on {report.target}: {smaller}")


def reproduce(options: Reproduce) -> None:
    """`rljax reproduce`: run an experiment and write its record, or list the experiments."""
    from rljax.run import reproduce as figures

    if options.merge is not None:
        _merge(options)
        return
    if options.name is None:
        width = max(map(len, figures.EXPERIMENTS))
        start = f"{'name':{width}}  seeds  minutes  "
        print(wrap_text("what is measured (minutes: approximate, on one core)", columns(), start, " " * len(start)))
        for name, experiment in figures.EXPERIMENTS.items():
            start = f"{name:{width}}  {experiment.seeds:5}  {experiment.minutes:7g}  "
            print(wrap_text(experiment.measures, columns(), start, " " * len(start)))
        return
    folder = Path(options.out)
    record = figures.reproduce(
        options.name,
        folder,
        seeds=options.seeds,
        first_seed=options.first_seed,
        budget=options.budget,
        run_dir=options.run_dir,
    )
    seconds = record["seconds"]
    say(f"{folder / options.name}.json: compiled in {seconds['compile']} s, ran for {seconds['run']} s")


def _merge(options: Reproduce) -> None:
    from rljax.run.reproduce import merge_records

    if options.name is None:
        raise ConfigError("merge: expected the name of an experiment: rljax reproduce NAME --merge FOLDER FOLDER")
    usual = Reproduce()
    for field in ("seeds", "first_seed", "budget", "run_dir"):
        if getattr(options, field) != getattr(usual, field):
            raise ConfigError(f"{field} = {getattr(options, field)}: is not for --merge, which measures nothing")
    folder = Path(options.out)
    seeds = merge_records(options.name, options.merge or (), folder)["seeds"]
    say(f"{folder / options.name}.json: seeds {', '.join(map(str, seeds))}")


class _Tee(io.TextIOBase):
    """Stream that writes to several streams."""

    def __init__(self, *streams: Any):
        self.streams = streams

    def write(self, text: str) -> int:
        for stream in self.streams:
            stream.write(text)
        return len(text)

    def flush(self) -> None:
        for stream in self.streams:
            stream.flush()
