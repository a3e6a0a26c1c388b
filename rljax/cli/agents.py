"""Commands that list packed agents, make them, and exchange them with the Hugging Face Hub."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import rljax
from rljax.cli.folders import parse_seed_index
from rljax.cli.options import Pack, Pull, Push, Saved, Zoo
from rljax.run.files.cards import CARD_FILE
from rljax.run.files.folder import split_path
from rljax.run.files.hub import check_login
from rljax.run.files.zoo import ZOO, find_agent
from rljax.run.view.card import print_card, print_cards
from rljax.run.view.layout import say

AGENTS = "agents"
"""Folder in which packed agents are created."""


def zoo(options: Zoo) -> None:
    """`rljax zoo`: print a table of the agents that come with rljax, or the card of one."""
    if options.name is None:
        print_cards(rljax.zoo_cards())
        say("next: rljax zoo NAME shows a card; play, record, eval, export, tournament and show take zoo:NAME in place of a run")
        return
    folder = find_agent(ZOO + options.name.removeprefix(ZOO))
    assert folder is not None
    print_card(folder, ZOO + folder.name)


def pack(options: Pack) -> None:
    """`rljax pack`: write a trained agent to a folder with its card."""
    out = Path(options.out or Path(AGENTS) / split_path(options.run)[0].resolve().name)
    _pack(options, out, options.episodes)
    print_card(out, str(out))


def push(options: Push) -> None:
    """`rljax push`: write a trained agent to a repository of the Hub; a run is packed first."""
    folder, _ = split_path(options.run)
    check_login(options.repo)  # before episodes are played for its card
    with tempfile.TemporaryDirectory(prefix="rljax-push-") as aside:
        if not os.path.isfile(folder / CARD_FILE):
            folder = Path(aside) / "agent"
            _pack(options, folder, options.episodes)
        address = rljax.push(folder, options.repo, private=options.private)
        print_card(folder, address)
    say(f"next: rljax pull {options.repo}, or rljax.load('hub:{options.repo}')")


def pull(options: Pull) -> None:
    """`rljax pull`: fetch a packed agent from a repository of the Hub."""
    out = Path(options.out or Path(AGENTS) / options.repo.rpartition("/")[2])
    rljax.pull(options.repo, out)
    print_card(out, str(out))


def _pack(options: Saved, out: Path, episodes: int) -> None:
    seed_index = parse_seed_index(options)
    rljax.pack(options.run, out, checkpoint=options.checkpoint, seed_index=seed_index, episodes=episodes)
