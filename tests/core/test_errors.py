"""Errors for users."""

from __future__ import annotations

import pytest

from rljax.core.errors import did_you_mean

FLAGS = ["reset", "merge", "run-dir", "max-steps", "batch-size", "games", "player", "stop", "spot", "metric"]


@pytest.mark.parametrize(
    ("word", "name"),
    [
        # One letter of a short word, two fifths of a longer one.
        ("rest", "reset"),
        ("rseet", "reset"),
        ("gmaes", "games"),
        ("stp", "stop"),
        ("Plyaer", "player"),
        ("batchsize", "batch-size"),
        ("timesteps", "max-steps"),
        # The beginning of a name, and one of its words.
        ("met", "metric"),
        ("dir", "run-dir"),
        ("size", "batch-size"),
        ("steps", "max-steps"),
        ("pla", "player"),  # `play` of another list would be one letter off
        ("ste", "max-steps"),
    ],
)
def test_an_unknown_name_is_told_the_one_that_is_close(word, name):
    assert did_you_mean(word, FLAGS, prefix="--") == f"did you mean '--{name}'?"


@pytest.mark.parametrize("word", ["verbose", "debug", "name", "save", "yes", "lr", "n", "v1", "seeds", "color", ""])
def test_an_unknown_name_that_is_close_to_none_is_told_all(word):
    assert did_you_mean(word, ["stop", *FLAGS[:-3]]) == (
        "expected one of: batch-size, games, max-steps, merge, player, reset, run-dir, stop"
    )


def test_letters_of_short_names_that_differ_count_whatever_their_case():
    assert did_you_mean("3x", ["2s3z", "3M", "8m"]) == "did you mean '3M'?"
    assert did_you_mean("bat", ["cue", "bit"]) == "did you mean 'bit'?"
