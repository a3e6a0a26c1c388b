"""Cards of packed agents: what an agent is, how it was trained, how good it is, and the checksum of each of its files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, NamedTuple

from rljax.core.errors import ConfigError
from rljax.core.sealed import FORMAT, DamagedError, Field, OtherFormatError, matching, number, read_sealed, seal, table_of, whole

CARD_FILE = "card.json"


class Card(NamedTuple):
    """Description of a packed agent.

    Attributes:
        algorithm: name of the algorithm.
        env: id of the environment or game.
        preset: preset that it was trained with, but for seed and budget; None for another configuration.
        budget: number of steps of the preset; None without one.
        step: number of environment steps of training.
        seed: seed of training.
        seeds: number of seeds that the run trained; of several, the one with the best score in training is packed.
        mean: mean return over episodes of a seed that training did not see.
        std: standard deviation of these returns.
        episodes: number of these episodes.
        eval_seed: their seed: `rljax eval AGENT --seed EVAL_SEED --episodes EPISODES` plays the same ones.
        sampled: whether actions were sampled, because the best policy of the environment is random.
        opponent: opponent in these games; None for environments of one agent.
        date: date of packing.
        rljax: version of rljax.
        commit: commit of rljax's source, with `-dirty` if it was changed; None outside a checkout.
        files: SHA-256 of each file, by its path in the folder.
    """

    algorithm: str
    env: str
    preset: str | None
    budget: int | None
    step: int
    seed: int
    seeds: int
    mean: float
    std: float
    episodes: int
    eval_seed: int
    sampled: bool
    opponent: str | None
    date: str
    rljax: str
    commit: str | None
    files: dict[str, str]

    @property
    def result(self) -> str:
        """The mean return in words, with the standard deviation, or the opponent in a game."""
        whom = f" ± {self.std:.2g}" if self.opponent is None else f" against {self.opponent}"
        return f"{self.mean:.4g}{whom}{', sampled' if self.sampled else ''}"

    @property
    def score(self) -> str:
        """The result, and over how many episodes."""
        return f"{self.result} over {self.episodes:,} {'episodes' if self.opponent is None else 'games'}"

    def lines(self) -> dict[str, str]:
        """The card as lines of text, by their titles."""
        share = 1.0 if self.budget is None else self.step / self.budget
        budget = f", {share:.0%} of its steps" if share < 0.99 else ""  # whole iterations may end a little before the budget
        return {
            "trained": f"{self.algorithm} on {self.env}, {self.step:,} steps",
            "preset": f"{self.preset}{budget}" if self.preset else "none, a configuration of its own",
            "seed": str(self.seed) if self.seeds == 1 else f"{self.seed}, the best of {self.seeds}",
            "return": self.score,
            "packed": f"{self.date}, rljax {self.rljax}{f', commit {self.commit}' if self.commit else ''}",
        }


def _is_file(name: Any) -> bool:
    """Return whether a name is that of a file inside a folder, on any system."""
    parts = name.split("/")
    return _WORDS.test(name) and all(part not in ("", ".", "..") and not set(part) & set('\\:<>"|?*') for part in parts)


# Without control characters and halves of characters, which are neither printed nor in names of files.
_WORDS = matching(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,300}", "a line of text")
_SUM = matching(r"[0-9a-f]{64}", "a SHA-256")

FIELDS = {
    "algorithm": _WORDS,
    "env": _WORDS,
    "preset": _WORDS.optional,
    "budget": whole(1).optional,
    "step": whole(),
    "seed": whole(),
    "seeds": whole(1),
    "mean": number(),
    "std": number(),
    "episodes": whole(1),
    "eval_seed": whole(),
    "sampled": Field("true or false", lambda x: isinstance(x, bool)),
    "opponent": _WORDS.optional,
    "date": matching(r"\d{4}-\d\d-\d\d", "a date"),
    "rljax": _WORDS,
    "commit": _WORDS.optional,
    "files": Field(
        "a table of SHA-256, by paths in the folder",
        lambda x: bool(x) and table_of(_SUM.test, "").test(x) and all(map(_is_file, x)),
    ),
}
"""Fields of card.json; see `Card`."""


def read_card(folder: Path) -> Card:
    """Read the card of a packed agent; its files are not looked at (see `check_card`).

    Raises:
        ConfigError: there is no card, it is damaged, or this version cannot read it.
    """
    file = folder / CARD_FILE
    try:
        table = read_sealed(file, FIELDS)
    except FileNotFoundError:
        raise ConfigError(f"{folder}: no packed agent there (no {CARD_FILE}): rljax pack makes one of a run") from None
    except DamagedError as error:
        raise ConfigError(f"{file} is damaged: {error}") from None
    except OtherFormatError as error:
        raise ConfigError(f"{file} has format {error.format}: this version of rljax reads format 1") from None
    return Card(**{name: table[name] for name in Card._fields})


def check_card(folder: Path) -> None:
    """Compare the files of a packed agent with the checksums in its card; any other folder is not looked at.

    Raises:
        ConfigError: the card is damaged, or a file is missing or is another one.
    """
    if not os.path.isfile(folder / CARD_FILE):
        return
    for name, expected in read_card(folder).files.items():
        try:
            found = _sha256(folder / name)
        except OSError as error:
            raise ConfigError(f"{folder / name}: cannot be read: {error.strerror}") from None
        if found != expected:
            raise ConfigError(f"{folder / name}: refused, it is not the file that {CARD_FILE} names (its SHA-256 differs)")


def write_card(folder: Path, card: Card) -> Card:
    """Write the card of an agent in a folder, with the checksums of all files that are there; return it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    card = card._replace(files={path.relative_to(folder).as_posix(): _sha256(path) for path in files})
    (folder / CARD_FILE).write_text(seal({FORMAT: 1, **card._asdict()}, indent=1), encoding="utf-8")
    return card


def size_of(folder: Path, card: Card) -> int:
    """Return the size of an agent in bytes."""
    return sum((folder / name).stat().st_size for name in [CARD_FILE, *card.files])


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
