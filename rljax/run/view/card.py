"""Print the cards of packed agents, for `rljax zoo` and `rljax show`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rljax.core.errors import printable
from rljax.run.files.cards import Card, check_card, read_card, size_of
from rljax.run.files.zoo import ZOO, find_agent
from rljax.run.view.layout import make_console, make_table, print_table, say


def print_cards(cards: Mapping[str, Card]) -> None:
    """Print a table of the agents of the zoo."""
    table = make_table("agent", "return", "episodes", "steps", "size", "packed", text=("agent", "return"))
    for name, card in cards.items():
        folder = find_agent(ZOO + name)
        assert folder is not None
        table.add_row(ZOO + name, card.result, f"{card.episodes:,}", f"{card.step:,}", _size(folder, card), card.date)
    print_table(make_console(), table)


def print_card(folder: Path, title: str) -> None:
    """Print the card of a packed agent below a title (see `card_lines`)."""
    lines = card_lines(folder)
    say(title)
    for line in lines:
        print(line)


def card_lines(folder: Path) -> list[str]:
    """Return the card of a packed agent as lines of text, after comparing its files with it.

    Raises:
        ConfigError: there is no packed agent, or it is damaged.
    """
    card = read_card(folder)
    check_card(folder)
    lines = {**card.lines(), "size": f"{_size(folder, card)} in {len(card.files) + 1} files, checksums verified"}
    return [printable(f"  {name:8} {text}") for name, text in lines.items()]


def _size(folder: Path, card: Card) -> str:
    return f"{size_of(folder, card) / 1000:.0f} kB"
