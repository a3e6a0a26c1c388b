"""Files that a user asks for (plots, recordings): checked before any work is done, and there whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import errno
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljax.core.errors import ConfigError, shown
from rljax.run.files.places import made_aside


def output_path(out: str | os.PathLike[str], suffixes: Sequence[str]) -> Path:
    """The path of a file to write, whose suffix says its format.

    Raises:
        ConfigError: another suffix, or a folder in the file's place.
    """
    path = Path(out)
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"out = {shown(str(out))}: expected a file name that ends in {' or '.join(suffixes)}")
    if path.is_dir():
        raise ConfigError(f"out = {shown(str(out))}: this is a folder; give the name of a file")
    return path


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A path to write to, with the suffix of `path`, which is renamed to it at the end: a failure leaves nothing behind.

    Raises:
        ConfigError: it cannot be written there.
    """
    aside = path.with_name(f".writing_{os.getpid()}_{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        aside.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table, there whole or as it was."""
    with written_aside(path) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def make_folder(folder: Path, files: Mapping[str, str], again: str) -> None:
    """A new folder with some files of text, there with all of them or not at all.

    Raises:
        ConfigError: it exists (`again` says what to do about that), or cannot be made.
    """
    try:
        if os.path.lexists(folder):
            raise FileExistsError
        with made_aside(folder) as aside:
            for name, text in files.items():
                (aside / name).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise ConfigError(f"{folder}: exists already; {again}") from None
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            raise ConfigError(f"{folder}: exists already; {again}") from None
        raise ConfigError(f"{folder}: cannot be made: {error.strerror or error}") from error


def read_table(folder: Path, name: str, what: str) -> dict[str, Any]:
    """A table of a folder, from TOML.

    Raises:
        ConfigError: it is not there (`what` should be), or is no TOML.
    """
    try:
        return tomllib.loads((folder / name).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{folder}: no {what} there ({name}: {error.strerror or error})") from None
    except RecursionError:
        raise ConfigError(f"{folder / name}: tables or lists lie too deep in each other") from None
    except ValueError as error:  # no TOML, no UTF-8, or a number of thousands of digits
        raise ConfigError(f"{folder / name}: {error}") from None
