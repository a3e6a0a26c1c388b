"""Where the Java archives of microRTS are, and how they get there: pip fetches the source archive of gym-microrts."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from rljax.core.errors import ConfigError, RljaxError
from rljax.core.places import atomic_folder, user_cache

FOLDER_VARIABLE = "RLJAX_MICRORTS"
"""Environment variable with the folder of the Java archives, instead of one in the user's cache."""

PACKAGE = "gym-microrts==0.4.3"
SHA256 = "6779aa081749f7925facddd9b3acd27b1a85aa22a9d81836641fb28f0807a462"
"""The source archive on PyPI and its checksum: pip runs a file of it to read its metadata, so it must be this one."""

INSIDE = "/gym_microrts/microrts/"
"""Folder inside the source archive that holds the engine, the bots and the maps."""

MEGABYTES = 71


def microrts_folder() -> Path:
    """Return the folder of the Java archives: `$RLJAX_MICRORTS`, or one in the user's cache. It need not be there yet."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named).expanduser()
    return user_cache() / "microrts-0.4.3"


def is_there(folder: Path) -> bool:
    """Return whether a folder holds the engine."""
    return (folder / "microrts.jar").is_file()


def map_files(folder: Path) -> dict[str, Path]:
    """Return the files of the maps beside the engine in a folder, by their names; none where it is not there."""
    # Of files of one name in several folders, the first is the map.
    return {path.stem: path for path in sorted((folder / "maps").glob("**/*.xml"), reverse=True)}


def map_file(name: str, folder: Path) -> Path | None:
    """Return the file of a map: the path itself if it ends in ".xml", else the one beside the engine; None if there is none."""
    return Path(os.path.expanduser(name)) if name.endswith(".xml") else map_files(folder).get(name)


def fetch_microrts(say: Callable[[str], None] = lambda _: None) -> Path:
    """Return the folder of the Java archives, after fetching them with pip if they are not there.

    It holds `microrts.jar`, the archives of the bots, `lib/` and `maps/`.

    Args:
        say: called with a line of text before a download.

    Raises:
        ConfigError: `$RLJAX_MICRORTS` names a folder of something else, or one that cannot be written.
        RljaxError: pip is not installed, or could not fetch the archive.
    """
    folder = microrts_folder()
    if is_there(folder):
        return folder
    if folder.exists():
        raise ConfigError(f"{folder}: holds no microrts.jar; expected the Java archives of microRTS, or no folder, to fetch them")
    say(f"fetching the Java engine of microRTS and its bots ({MEGABYTES} MB) into {folder}")
    with tempfile.TemporaryDirectory(prefix="rljax-microrts-") as download:
        archive = _download(Path(download))
        try:
            with atomic_folder(folder) as aside:
                _unpack(archive, aside)
        except (OSError, tarfile.TarError) as error:
            raise ConfigError(f"{folder}: the Java archives of microRTS cannot be unpacked there: {error}") from None
    return folder


def _download(folder: Path) -> Path:
    """Fetch the source archive with pip; only its metadata is prepared, nothing is installed."""
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n")
    name = PACKAGE.partition("==")[0]
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", name, "--require-hashes"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), "--requirement", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No module named pip" in done.stderr:
        raise RljaxError(f"microRTS: pip is not installed here: run {sys.executable} -m ensurepip, or set {FOLDER_VARIABLE}")
    archives = sorted(folder.glob("*.tar.gz"))
    if done.returncode or not archives:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()[-1:]
        raise RljaxError(f"microRTS: pip could not fetch {PACKAGE}: {(reasons or ['it says nothing'])[-1]}")
    return archives[0]


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack the Java archives, their licence and the maps."""
    with tarfile.open(archive) as tar:
        for member in tar:
            inside = member.name.partition(INSIDE)[2]
            wanted = inside.endswith(".jar") or inside == "LICENSE" or (inside.startswith("maps/") and inside.endswith(".xml"))
            if wanted and member.isfile():
                member.name = inside
                tar.extract(member, folder, filter="data")
