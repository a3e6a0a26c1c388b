"""Files that a user asks for (plots, recordings): their paths are checked before any work, and they are written atomically."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import os
import secrets
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljax.core.errors import ConfigError, shown
from rljax.core.places import as_path, atomic_folder


def output_path(out: str | os.PathLike[str], suffixes: Sequence[str], option: str = "out") -> Path:
    """Check and return the path of a file to write, whose suffix gives its format; messages name the option that gave it.

    Raises:
        ConfigError: it is no path, its suffix is not allowed, or it is that of a folder or of a file that cannot be written.
    """
    path = as_path(out, option)
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"{option} = {shown(str(out))}: expected a file name that ends in {' or '.join(suffixes)}")
    if path.is_dir():
        raise ConfigError(f"{option} = {shown(str(out))}: this is a folder; give the name of a file")
    there = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        why = "no permission to write" if there.is_dir() else "no folder"
        raise ConfigError(f"{path}: cannot be written: there is {why} at {there}")
    return path


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path with the suffix of `path`; rename it to `path` at the end. A failure leaves nothing behind.

    Raises:
        ConfigError: the file cannot be written.
    """
    # Processes in several containers may have one id, and share a disk.
    aside = path.with_name(f".writing_{secrets.token_hex(8)}_{path.name}")
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
    """Write a table as CSV atomically, as `write_text` does: a failure leaves the old file as it was."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_text(path: Path, text: str) -> None:
    """Write a text atomically. A file that has it already is left alone, with its time.

    Raises:
        ConfigError: the file cannot be written.
    """
    data = text.encode()
    with contextlib.suppress(OSError):
        if path.read_bytes() == data:
            return
    with atomic_file(path) as aside:
        aside.write_bytes(data)


def is_current(path: Path, *sources: Path) -> bool:
    """Return whether a file that is made from others is there, and none of them has been written since."""
    try:
        return path.stat().st_mtime_ns >= max(source.stat().st_mtime_ns for source in sources)
    except OSError:
        return False


def make_folder(folder: Path, files: Mapping[str, str], again: str) -> None:
    """Create a folder with some text files, with all of them or not at all.

    Raises:
        ConfigError: the folder exists (the message ends with the advice `again`), or cannot be created.
    """
    try:
        if os.path.lexists(folder):
            raise FileExistsError
        with atomic_folder(folder) as aside:
            for name, text in files.items():
                (aside / name).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise ConfigError(f"{folder}: exists already; {again}") from None
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            raise ConfigError(f"{folder}: exists already; {again}") from None
        raise ConfigError(f"{folder}: cannot be made: {error.strerror or error}") from error


def read_table(folder: Path, name: str, what: str) -> dict[str, Any]:
    """Read a TOML table from a file in a folder.

    Raises:
        ConfigError: the file is missing (the message names the expected `what`), or is not TOML.
    """
    try:
        return tomllib.loads((folder / name).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{folder}: no {what} there ({name}: {error.strerror or error})") from None
    except RecursionError:
        raise ConfigError(f"{folder / name}: tables or lists are nested too deep") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise ConfigError(f"{folder / name}: {error}") from None
