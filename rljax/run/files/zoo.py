"""Addresses of packed agents, which commands and functions take in place of a run's folder: `zoo:NAME` and `hub:USER/REPO`."""

from __future__ import annotations

import importlib.resources
import os
from pathlib import Path

from rljax.core.errors import ConfigError, did_you_mean, shortened
from rljax.core.own import ADDRESSES
from rljax.run.files.cards import CARD_FILE, Card, read_card

ZOO, HUB = ADDRESSES


def zoo_cards() -> dict[str, Card]:
    """Return the cards of the agents that come with rljax, by name; `rljax.load("zoo:NAME")` loads one.

    Raises:
        ConfigError: a card is damaged.
    """
    return {folder.name: read_card(folder) for folder in _folders()}


def is_address(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is the address of a packed agent."""
    return os.fspath(path).startswith(ADDRESSES)


def absolute(path: str | os.PathLike[str]) -> str:
    """Return a path that means the same in every working directory; an address is one."""
    return os.fspath(path) if is_address(path) else os.path.abspath(path)


def find_agent(path: str | os.PathLike[str]) -> Path | None:
    """Return the folder of the packed agent at an address; None if the path is no address.

    An agent of the Hub is fetched into the user's cache the first time.

    Raises:
        ConfigError: there is no such agent in the zoo, or the address is not of the form `hub:USER/REPO`.
        RljaxError: the Hub's agent could not be fetched.
    """
    text = os.fspath(path)
    if text.startswith(HUB):
        from rljax.run.files.hub import cached

        return cached(text.removeprefix(HUB))
    if not text.startswith(ZOO):
        return None
    name, known = text.removeprefix(ZOO), {folder.name: folder for folder in _folders()}
    if name not in known:
        raise ConfigError(f"no agent '{shortened(name)}' in the zoo: {did_you_mean(name, known)} (rljax zoo lists them)")
    return known[name]


def _folders() -> list[Path]:
    there = Path(str(importlib.resources.files("rljax.zoo")))
    return sorted(folder for folder in there.iterdir() if os.path.isfile(folder / CARD_FILE))
