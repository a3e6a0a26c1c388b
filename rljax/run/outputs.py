"""Files that a user asks for (plots, recordings): checked before any work is done, and there whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rljax.core.errors import ConfigError


def output_path(out: str | os.PathLike[str], suffixes: Sequence[str]) -> Path:
    """The path of a file to write, whose suffix says its format.

    Raises:
        ConfigError: another suffix, or a folder in the file's place.
    """
    path = Path(out)
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"out = {str(out)!r}: expected a file name that ends in {' or '.join(suffixes)}")
    if path.is_dir():
        raise ConfigError(f"out = {str(out)!r}: this is a folder; give the name of a file")
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
