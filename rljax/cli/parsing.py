"""Parse arguments into a command and fields of the configuration."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import itertools
import re
import sys
import typing
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import tyro

from rljax.cli.overrides import axes_of, overrides_of
from rljax.core.errors import ConfigError, did_you_mean, shortened, shown
from rljax.run.view.layout import WIDTH, columns, wrap_text

OF_FIELDS = ("train", "compile", "launch", "sweep", "tune")
"""Commands that take the fields of the configuration as flags."""

OPTIONS = {"resume": "train --resume RUN", "fork": "train --fork RUN", "merge": "sweep --merge FOLDER"}
"""Options that users may take for commands, and the command that each belongs to."""


class Bounds(NamedTuple):
    """Range of a number that a command takes, in the annotation of its option: `Annotated[int, Bounds(1, 1000)]`."""

    low: int
    high: int


def parse(
    arguments: Sequence[str], commands: Any, description: str, examples: Sequence[tuple[str, str]]
) -> tuple[Any, dict[str, Any]]:
    """Parse the command and the configuration fields to change.

    These are values for `train`, `compile` and `launch`, lists or ranges for `sweep` and `tune`.

    Args:
        arguments: arguments after `rljax`.
        commands: union of the dataclasses of all commands.
        description: first line of `rljax --help`.
        examples: example commands listed below it, each with its description.

    Raises:
        ConfigError: an unknown command or option (the closest match is named), or a bad value.
    """
    arguments = list(arguments)
    if arguments in (["--version"], ["-V"]):
        import rljax

        print(f"rljax {rljax.__version__}")
        sys.exit()
    kinds = by_name(commands)
    name = arguments[0] if arguments else ""
    if name and not name.startswith("-") and name not in kinds:
        meant = f"did you mean '{OPTIONS[name]}'?" if name in OPTIONS else did_you_mean(name, kinds)
        raise ConfigError(f"unknown command '{shortened(name)}': {meant} (see rljax --help)")
    options = [field.name for field in dataclasses.fields(kinds[name])] if name in kinds else []
    positional = _positional(kinds[name]) if name in kinds else {}
    _check_positional(arguments, name, positional)
    if name in kinds:
        arguments = _with_values(arguments, kinds[name])
    own, fields = _split(arguments, options) if name in OF_FIELDS else (arguments, [])
    errors, output = io.StringIO(), io.StringIO()
    width = columns() or WIDTH
    header = f"{description}\n{_format_examples(examples, width)}"
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(output):
            command, rest = tyro.cli(commands, args=own, prog="rljax", description=header, return_unknown_args=True)
    except SystemExit as stop:
        if not stop.code:
            text = re.sub(r"\s*\(default:\s*\)", "", output.getvalue())  # an empty default tells nothing
            print("\n".join(_help_line(line, width) for line in text.splitlines()))
            raise
        raise ConfigError(_message_in(errors.getvalue())) from None
    if rest and rest[0].startswith("--"):
        flags = [option.replace("_", "-") for option in options if option not in positional]
        meant = did_you_mean(rest[0].partition("=")[0].lstrip("-"), flags, prefix="--")
        raise ConfigError(f"unknown option {shortened(rest[0])}: {meant} (see rljax {name} --help)")
    if rest:
        raise ConfigError(f"unexpected argument '{shortened(rest[0])}': options look like --learning-rate 1e-3")
    _check_bounds(command)
    _check_empty(command)
    if fields:
        _check_misspelt([field for field, _ in fields], options, _source_of(command))
        _check_values([field for field, values in fields if not values], _source_of(command))
    given = [(field, values or ["true"]) for field, values in fields]
    if name in ("sweep", "tune"):
        return command, axes_of(given)
    return command, overrides_of([(field, values[0]) for field, values in given])


def _with_values(arguments: Sequence[str], command: Any) -> list[str]:
    """Return the arguments with the value of each switch that may be left open (`bool | None`): `--sample`, `--no-sample`."""
    hints = typing.get_type_hints(command)
    flags = [name.replace("_", "-") for name, kind in hints.items() if kind == (bool | None)]
    values = {f"--{no}{flag}": f"--{flag}={not no}" for flag in flags for no in ("", "no-")}
    given = []
    for argument in arguments:
        flag, equals, _ = argument.partition("=")
        flag = flag.replace("_", "-")
        if equals and flag in values:
            raise ConfigError(f"{shortened(argument)}: {flag} takes no value")
        given.append(values.get(flag, argument))
    return given


def by_name(commands: Any) -> dict[str, Any]:
    """Return the dataclasses of a union of commands by the names that they have on the command line."""
    return {kind.__name__.lower(): kind for kind in (getattr(kind, "__origin__", kind) for kind in typing.get_args(commands))}


def split_commas(words: Iterable[str]) -> list[str]:
    """Return the names in words that may hold several, separated by commas."""
    return [name.strip() for word in words for name in word.split(",") if name.strip()]


def _split(arguments: Sequence[str], options: Iterable[str]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Split the arguments into the command's own and the configuration fields, as (name, values).

    A field of `train`, `compile` and `launch` takes one value.
    """
    several = arguments[0] in ("sweep", "tune")
    known = {"help", *options}
    own: list[str] = []
    fields: list[tuple[str, list[str]]] = []
    tokens = list(arguments)
    while tokens:
        token = tokens.pop(0)
        name, equals, value = token.removeprefix("--").partition("=")
        if not token.startswith("--") or not name or name.replace("-", "_") in known:
            own.append("None" if token == "none" else token)
        else:
            values = [value] if equals else []
            while tokens and not tokens[0].startswith("--") and (several or not values):
                values.append(tokens.pop(0))
            fields.append((name, values))
    return own, fields


def _message_in(box: str) -> str:
    """Return the message in tyro's box as one line: the options that are missing, or else its first paragraph, and the second if
    the first ends in a colon.
    """
    missing = re.search(r"Missing from rljax (\w+):(.*?)For full helptext", box, re.DOTALL)
    if missing:
        named = re.findall(r"^\W {5}(\S+)", missing[2], re.MULTILINE)  # their descriptions are further to the right
        return f"{missing[1]} needs {' and '.join(named)} (see rljax {missing[1]} --help)"
    lines = [line.strip("│╭╮╰╯─|+- ") for line in box.splitlines()[1:]]
    paragraphs = [" ".join(group) for filled, group in itertools.groupby(lines, bool) if filled]
    said = " ".join(paragraphs[:2] if paragraphs and paragraphs[0].endswith(":") else paragraphs[:1])
    return f"{_rephrase(said.rstrip('.')) or 'bad arguments'} (see rljax --help)"


def _rephrase(said: str) -> str:
    """Return a message of tyro in the words of rljax's: option, value, what is allowed; a message of another kind as it is."""
    number = re.fullmatch(
        r"Error parsing (--\S+): (?:no type matching \{None\}\|(INT|FLOAT) could be instantiated from \[['\"](.*)['\"]\]"
        r"|invalid literal for (int)\(\) with base 10: ['\"](.*)['\"]|could not convert string to (float): ['\"](.*)['\"])",
        said,
    )
    if number:
        option, kind, value = (group for group in number.groups() if group is not None)
        what = "a whole number" if kind.lower() == "int" else "a number"
        return f"{option} = {shown(value)}: expected {what}{' or none' if kind.isupper() else ''}"
    choice = re.fullmatch(r"invalid choice '(.*)' for argument '(--\S+)'. Expected one of \((.*)\)", said)
    if choice:
        allowed = ", ".join(re.findall("'(.*?)'", choice[3]))
        return f"{choice[2]} = {shown(choice[1])}: expected one of: {allowed}"
    missing = re.fullmatch(r"Missing value for argument '(--\S+)'. Expected 1 values", said)
    return f"{missing[1]} needs a value" if missing else said


def _format_examples(examples: Iterable[tuple[str, str]], width: int) -> str:
    """Return the commands with their descriptions: beside them on a wide terminal, else below."""
    start = 2 + max(len(command) for command, _ in examples) + 2
    if width >= start + 56:
        return "\n".join(f"  {command}".ljust(start) + what for command, what in examples)
    return "\n".join(f"  {command}\n{wrap_text(what, width, ' ' * 6, ' ' * 6)}" for command, what in examples)


def _positional(command: type) -> dict[str, str]:
    """Return the arguments of a command that have no `--` before them, and what its help calls them."""
    found = {}
    for name, hint in typing.get_type_hints(command, include_extras=True).items():
        marks = getattr(hint, "__metadata__", ())
        if tyro.conf.Positional in marks:
            found[name] = next((x.metavar for x in marks if getattr(x, "metavar", None)), name.upper())
    return found


def _check_positional(arguments: Sequence[str], command: str, positional: Mapping[str, str]) -> None:
    """Refuse such an argument with its name before it, as `--run` of `rljax eval RUN`."""
    for argument in arguments:
        flag = argument.partition("=")[0]
        name = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--") and name in positional:
            raise ConfigError(f"{flag}: is given without its name: rljax {command} {positional[name].strip('[]')}")


def _help_line(line: str, width: int) -> str:
    """Wrap a line of the help text. tyro wraps only the text in its boxes, not usage lines and descriptions."""
    if line.startswith("usage: "):
        line = re.sub(r"\{[^}]*,[^}]*\}", "COMMAND ...", line)
    indent = line[: len(line) - len(line.lstrip())]
    return wrap_text(line.strip(), width, indent, indent) if len(line) > width else line.rstrip()


def _check_bounds(command: Any) -> None:
    """Refuse numbers so large that the command could never finish or fit in memory."""
    for name, hint in typing.get_type_hints(type(command), include_extras=True).items():
        value = getattr(command, name)
        for bounds in getattr(hint, "__metadata__", ()):
            if isinstance(bounds, Bounds) and value is not None and not bounds.low <= value <= bounds.high:
                kind = "number" if isinstance(value, float) else "whole number"
                raise ConfigError(f"{name} = {shown(value)}: expected a {kind} from {bounds.low} to {bounds.high}")


def _check_empty(command: Any) -> None:
    """Refuse an option whose value is empty (a variable of a script that is not set, say), unless it is so by default."""
    for field in dataclasses.fields(command):
        if getattr(command, field.name) == "" and field.default != "":
            raise ConfigError(f"{field.name} = '': expected at least one character")


def _check_values(fields: Sequence[str], source: str | None) -> None:
    """Refuse fields that are given without a value, unless they are true or false. Unknown ones, keys of tables and fields of an
    algorithm of the user's own are checked where the configuration is made.
    """
    if not fields:
        return
    from rljax.core.config import ALGORITHMS
    from rljax.core.config_files import names_own

    if source is not None and names_own(source):
        return
    types: dict[str, set[str]] = {}
    for config_class in ALGORITHMS.values():
        for known in dataclasses.fields(config_class):
            types.setdefault(known.name, set()).add(str(known.type))
    for field in fields:
        of_field = types.get(field.replace("-", "_"), {"bool"})
        if not any("bool" in text for text in of_field):
            raise ConfigError(f"--{shortened(field)} needs a value: only fields that are true or false may be given without one")


def _source_of(command: Any) -> str | None:
    """Return what describes the run of a command: a preset, a file or an algorithm, or a file of the run that it goes on from."""
    run = getattr(command, "fork", None) or getattr(command, "resume", None)
    if run is None:
        source: str | None = getattr(command, "config", None)
        return source
    from rljax.run.files.folder import CONFIG_FILE, PHASES_FILE, split_path

    folder, _ = split_path(run)
    phases = folder / PHASES_FILE
    return str(phases if phases.is_file() else folder / CONFIG_FILE)


def _check_misspelt(fields: Iterable[str], options: Sequence[str], source: str | None) -> None:
    """Refuse an unknown field that looks like a misspelt option of the command; `Config` refuses all other unknown fields.

    An algorithm of the user's own, in what `source` names, may have fields that only its module tells.
    """
    names = {field: field.replace("-", "_").partition(".")[0] for field in fields}
    suspects = [field for field, name in names.items() if difflib.get_close_matches(name, options, n=1, cutoff=0.6)]
    if not suspects:
        return  # The usual case, in which no algorithm but the chosen one is imported.
    from rljax.core.config import ALGORITHMS
    from rljax.core.config_files import names_own

    if source is not None and names_own(source):
        return
    known = {field.name for config_class in ALGORITHMS.values() for field in dataclasses.fields(config_class)}
    for field in suspects:
        if names[field] in known:
            continue
        near = partial(difflib.get_close_matches, names[field], [*known, *options], 1)
        # --num-seeds means --seeds, though num_steps is a little nearer by its letters.
        words = [option for option in options if option in names[field].split("_")]
        closest = near(0.8) or words or near(0.6)
        if closest and closest[0] in options and closest[0] not in known:
            raise ConfigError(f"unknown option --{shortened(field)}: did you mean --{closest[0].replace('_', '-')}?")
