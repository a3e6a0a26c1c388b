"""SkyPilot: its catalogue of offers, its checks of a task file, and its commands.

The catalogue and the checks are read in this process. Only the commands talk to SkyPilot's server, which the first one starts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rljax.core.errors import ConfigError, RljaxError, did_you_mean, how_to_install, reason_of, shown
from rljax.core.places import LOCK_FILE
from rljax.run.files.remote import replaced_run

UNPRICED = ("kubernetes", "k8s", "ssh", "slurm")
"""Places of one's own, which have no prices."""


class Offer(NamedTuple):
    """A machine in SkyPilot's catalogue; the price is in dollars an hour."""

    price: float
    cloud: str
    region: str
    instance: str


def is_installed() -> bool:
    """Return whether SkyPilot is installed beside rljax."""
    return importlib.util.find_spec("sky") is not None


def how_to_get() -> str:
    """Return what to do where SkyPilot is missing."""
    return f"SkyPilot is not installed: {how_to_install('cloud')}"


def check_cloud(infra: str) -> None:
    """Check the name in CLOUD or CLOUD/REGION; SkyPilot would answer with the pattern that it compares it with.

    Raises:
        ConfigError: SkyPilot knows no such cloud; the closest name is given.
    """
    with _quiet():
        from sky.skylet import constants

    names = {*constants.ALL_CLOUDS, *UNPRICED, "*"}
    cloud = infra.partition("/")[0].lower()
    if cloud not in names:
        raise ConfigError(f"cloud = {shown(infra)}: {did_you_mean(cloud, names - {'*'})}")


def check_task(text: str) -> None:
    """Let SkyPilot read a task file.

    Raises:
        ConfigError: it refuses it.
    """
    import yaml

    with _quiet():
        import sky

        try:
            sky.Task.from_yaml_config(yaml.safe_load(text))
        except Exception as error:  # ValueError and many types of its own
            raise ConfigError(f"SkyPilot refuses the task: {reason_of(error)}") from None


def find_offers(name: str, count: int, infra: str | None, spot: bool) -> list[Offer] | None:
    """Return the machines with these accelerators, the cheapest first; None where no prices are known.

    Args:
        name: accelerator.
        count: how many of them.
        infra: CLOUD or CLOUD/REGION, or None for all clouds.
        spot: whether they may be taken away.

    Raises:
        ConfigError: no cloud has such an accelerator (the closest name is given), or not so many.
    """
    cloud, _, region = (infra or "").partition("/")
    if cloud.lower() in UNPRICED:
        return None
    with _quiet():
        from sky.skylet import constants

        clouds = [each for each in constants.ALL_CLOUDS if each not in UNPRICED and cloud.lower() in ("", "*", each)]
        found = {each: _catalogue(each, f"^{re.escape(name)}$") for each in clouds}
    offers: dict[tuple[str, str], Offer] = {}
    counts = set()
    for each, table in found.items():
        for row in (row for rows in table.values() for row in rows):
            price = row.spot_price if spot else row.price
            counts.add(int(row.accelerator_count))
            there = region.partition("/")[0] in ("", "*", row.region)
            if row.accelerator_count == count and there and price > 0 and math.isfinite(price):
                offer = Offer(float(price), each, row.region, row.instance_type)
                key = (each, row.instance_type)
                offers[key] = min(offer, offers.get(key, offer))
    where = "" if infra is None else f" in {infra}"
    if not counts:
        with _quiet():
            names = {known for each in clouds for known in _catalogue(each)}
        if not names:  # no catalogue could be fetched
            return None
        raise ConfigError(f"accelerators = {shown(name)}: nobody{where} offers that: {did_you_mean(name, names)}")
    if not offers:
        kind = " that may be taken away (--spot)" if spot else ""
        numbers = ", ".join(map(str, sorted(counts)))
        raise ConfigError(f"accelerators = {shown(f'{name}:{count}')}: nobody{where} offers such a machine{kind}; "
                          f"there are some with {numbers} of them")  # fmt: skip
    return sorted(offers.values())


def _catalogue(cloud: str, pattern: str | None = None) -> dict[str, list[Any]]:
    """Return the machines of a cloud by accelerator; none if its catalogue cannot be fetched."""
    from sky import catalog

    try:
        return catalog.list_accelerators(
            gpus_only=False, name_filter=pattern, clouds=cloud, case_sensitive=False, all_regions=True
        )
    except Exception:  # of its own, of requests, of pandas
        return {}


def clouds_with_credentials() -> list[str] | None:
    """Return the places of which SkyPilot has credentials here; None where its server is elsewhere, which knows its own."""
    with _quiet():
        from sky import check
        from sky.clouds import cloud
        from sky.server import common

        if not common.is_api_server_local():
            return None
        return [str(each).lower() for each in check.get_cached_enabled_clouds_or_refresh(cloud.CloudCapability.COMPUTE)]


def run_sky(*arguments: str) -> None:
    """Run a command of SkyPilot; it prints and asks nothing.

    Raises:
        RljaxError: it failed. What it said is above.
    """
    command = [sys.executable, "-c", "from sky.cli import cli; cli()", *arguments]
    status = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    if status:
        raise RljaxError(f"`sky {' '.join(arguments)}` ended with status {status}; SkyPilot says above why")


def fetch_from_machine(name: str, folder: Path) -> None:
    """Copy the run on a machine into a folder, whole or not at all; see `replaced_run` for what is there already.

    Raises:
        ConfigError: the run in the folder has gone on here, or another process trains there.
        RljaxError: there is no such machine, or no run on it yet, or the folder cannot be written.
    """
    run_sky("status", name)  # writes how to reach it into the user's settings of ssh
    source = f"{name}:runs/{name}"
    unfinished = [f"--exclude={pattern}" for pattern in (".writing_*", ".removing_*", LOCK_FILE)]
    known = [f"--link-dest={folder.resolve()}"] if folder.exists() else []  # files that have not changed are not sent again
    try:
        with replaced_run(folder, source) as aside:
            copy = ["rsync", "-a", *unfinished, *known, f"{source}/", f"{aside}/"]
            status = subprocess.run(copy, stdin=subprocess.DEVNULL, check=False).returncode
            if status not in (0, 24):  # 24: a checkpoint was removed meanwhile, as a newer one was there
                raise RljaxError(
                    f"{folder}: the run could not be copied (rsync ended with status {status}; what it says is above)"
                )
    except FileNotFoundError as error:
        if error.filename != "rsync":
            raise
        raise RljaxError("rsync is not installed, which copies the run") from None
    except OSError as error:
        raise RljaxError(f"{folder}: cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what SkyPilot prints and logs on the way."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
