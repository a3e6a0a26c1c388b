"""onnxruntime-web, which runs policies in a page: fetched from the npm registry once, and kept in the user's cache."""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from rljax.core.errors import ConfigError, RljaxError, first_line
from rljax.core.places import atomic_folder, user_cache

PACKAGE, VERSION = "onnxruntime-web", "1.30.0"
SHA512 = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
"""Checksum of the archive, as the registry states it; an archive with another one is refused."""

REGISTRY = "https://registry.npmjs.org"
REGISTRY_VARIABLES = ("npm_config_registry", "NPM_CONFIG_REGISTRY")
MEGABYTES = 33
LIMIT = 600
"""Seconds that npm may take."""

SHORT = 5
"""Largest number of words in a line in which npm gives a code or a path, but no reason."""

SCRIPT_FILE, WASM_FILE = "ort.js", "ort.wasm.gz"
INSIDE = {SCRIPT_FILE: "package/dist/ort.wasm.bundle.min.mjs", WASM_FILE: "package/dist/ort-wasm-simd-threaded.wasm"}
"""Files of a page, and where they are in the archive: the runtime for the CPU alone, and its WebAssembly."""


def runtime_folder() -> Path:
    """Return the folder of the cache that holds the runtime. It need not be there yet."""
    return user_cache() / f"{PACKAGE}-{VERSION}"


def is_there(folder: Path) -> bool:
    """Return whether a folder holds the runtime."""
    return all((folder / name).is_file() for name in INSIDE)


def fetch_runtime(say: Callable[[str], None] = lambda _: None) -> dict[str, bytes]:
    """Return the files of the runtime by name, after fetching them if they are not in the cache.

    npm fetches the archive, from the registry that it is set to; without npm it comes from `$npm_config_registry`, or else from
    npm's public registry. The WebAssembly is kept compressed, a quarter of its size.

    Args:
        say: called with a line of text before a download.

    Raises:
        ConfigError: the cache cannot be written.
        RljaxError: the archive could not be fetched, or is not the one that was expected.
    """
    folder = runtime_folder()
    if not is_there(folder):
        say(f"fetching {PACKAGE} {VERSION} ({MEGABYTES} MB, once) into {folder}")
        with tempfile.TemporaryDirectory(prefix="rljax-ort-") as download:
            archive = Path(download) / f"{PACKAGE}-{VERSION}.tgz"
            _download(archive)
            if base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() != SHA512:
                raise RljaxError(f"{PACKAGE} {VERSION}: the archive that came is another one: its checksum differs")
            try:
                with atomic_folder(folder) as aside:
                    _unpack(archive, aside)
                    if not is_there(folder):
                        shutil.rmtree(folder, ignore_errors=True)  # some of its files were deleted
            except (OSError, tarfile.TarError) as error:
                if is_there(folder):  # another process has been faster
                    return fetch_runtime()
                raise ConfigError(f"{folder}: {PACKAGE} cannot be unpacked there: {error}") from None
    return {name: (folder / name).read_bytes() for name in INSIDE}


def _download(archive: Path) -> None:
    """Fetch the archive with npm, or without it from the registry."""
    npm = shutil.which("npm")
    if npm is not None:
        # With --silent it would not say why it fails, and by default it tries a server that does not answer for over a minute.
        quiet = ("--loglevel=error", "--no-update-notifier", "--fetch-retries=1")
        command = [npm, "pack", f"{PACKAGE}@{VERSION}", *quiet, "--ignore-scripts"]
        try:
            done = subprocess.run(command, cwd=archive.parent, capture_output=True, text=True, check=False, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise RljaxError(f"{PACKAGE} {VERSION}: npm could not fetch it within {LIMIT} s") from None
        if done.returncode or not archive.is_file():
            raise RljaxError(f"{PACKAGE} {VERSION}: npm could not fetch it: {_reason(done.stderr)}")
        return
    import urllib.request  # takes a while, and is needed here only

    registry = next(filter(None, map(os.environ.get, REGISTRY_VARIABLES)), REGISTRY)
    address = f"{registry.rstrip('/')}/{PACKAGE}/-/{archive.name}"
    try:
        with urllib.request.urlopen(address, timeout=60) as response, archive.open("wb") as file:
            shutil.copyfileobj(response, file)
    except (OSError, ValueError) as error:
        raise RljaxError(f"{PACKAGE} {VERSION}: {address} could not be fetched: {first_line(error)}") from None


def _reason(said: str) -> str:
    """Return the line in which npm says why it failed; before it come short ones, such as `npm error code ECONNREFUSED`."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    sentences = [line for line in lines if len(line.split()) > SHORT]
    return next(iter(sentences + lines), "it says nothing")


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        for name, inside in INSIDE.items():
            file = tar.extractfile(inside)
            assert file is not None  # the checksum says which archive it is
            content = file.read()
            (folder / name).write_bytes(gzip.compress(content, mtime=0) if name == WASM_FILE else content)
