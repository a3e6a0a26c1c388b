"""MicroRTS in the terminal: what a player sees of the map, the names of its orders, and what it is asked."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.core.environments.spaces import as_space, head_sizes
from rljax.core.games.versus import random_player
from rljax.envs import make_env
from rljax.envs.microrts.rules.units import EMPTY, MOVE, WORKER
from rljax.envs.microrts.words import ORDER_NAMES, cell_names
from rljax.run.view.play import play


@pytest.mark.parametrize(
    "settings", [{}, {"actions": "gridnet"}, {"actions": "units"}, {"actions": "units", "observation": "entities"}]
)
def test_every_head_and_action_has_a_name(settings: dict[str, str]) -> None:
    game, params = make_env("MicroRTS-v0", **settings)
    sizes = head_sizes(as_space(game.action_space(params)))
    names = game.action_names(params)
    assert len(game.head_names(params)) == len(set(game.head_names(params))) == len(sizes)
    assert len(names) == sum(sizes)
    for part in np.split(np.array(names), np.cumsum(sizes[:-1])):
        assert len(set(part)) == len(part)
        assert all(name == name.lower() and " " not in name for name in part)


def test_cells_beyond_the_alphabet_have_names() -> None:
    names = cell_names((2, 28))
    assert (names[0], names[25], names[26], names[27], names[28]) == ("a1", "z1", "aa1", "ab1", "a2")


@pytest.mark.parametrize("player", [0, 1])
def test_both_players_see_their_own_side_and_an_order_goes_where_its_name_says(player: int) -> None:
    """The map is symmetric, so both see the same; "move-down" is down on the player's own map."""
    game, params = make_env("MicroRTS-v0")
    _, state = game.reset_env(jax.random.key(0), params)
    lines = game.text(state, params, player).splitlines()
    assert lines[0].split() == list("abcdefgh")
    assert (lines[2], lines[7].split()) == ("2  .   W*  B*  .   .   .   .   .", ["7", ".", ".", ".", ".", ".", "b", "w", "."])
    assert "cycle 0 of 2,000; you have 5 resources, the opponent 5" in lines
    cell = cell_names(game.map.shape).index("b2")
    action = jnp.zeros((2, 64), jnp.int32).at[player, cell].set(ORDER_NAMES.index("move-down"))
    _, after, *_ = game.step_env(jax.random.key(0), state, action, params)
    while (np.asarray(after.action) == MOVE).any():
        _, after, *_ = game.step_env(jax.random.key(0), after, jnp.zeros((2, 64), jnp.int32), params)
    lines = game.text(after, params, player).splitlines()
    assert (lines[2].split()[2], lines[3].split()[2]) == (".", "W*")


def test_a_unit_that_waits_shows_what_it_carries() -> None:
    game, params = make_env("MicroRTS-v0")
    _, state = game.reset_env(jax.random.key(0), params)
    state = state.replace(carried=jnp.where(state.unit == WORKER, jnp.int8(1), state.carried))
    lines = game.text(state, params, 0).splitlines()
    assert (lines[2], lines[7].split()[7]) == ("2  .  +W*  B*  .   .   .   .   .", "+w")


@pytest.mark.parametrize("player", [0, 1])
def test_units_that_are_ordered_by_number_are_listed(player: int) -> None:
    """The first entity is a resource; both players number from their own corner."""
    game, params = make_env("MicroRTS-v0", actions="units", observation="entities")
    _, state = game.reset_env(jax.random.key(0), params)
    assert game.text(state, params, player).splitlines()[-1] == "units by number: 1 at b2, 2 at c2"


def test_fog_hides_cells_units_and_resources() -> None:
    game, params = make_env("MicroRTS-v0", fog=True)
    _, state = game.reset_env(jax.random.key(0), params)
    text = game.text(state, params, 0)
    board = "".join(text.splitlines()[1:9])
    assert "?" in board
    assert not re.search("[bkwlhr]", board)
    assert "opponent 5" not in text
    # A unit that is hidden does not change what is seen.
    gone = state.replace(unit=jnp.where(state.owner == 1, EMPTY, state.unit), owner=jnp.where(state.owner == 1, -1, state.owner))
    assert game.text(gone, params, 0) == text


@pytest.mark.parametrize("actions", ["cells", "gridnet"])
def test_a_person_is_asked_for_units_with_a_choice_only(actions: str) -> None:
    """Two light units of 16 cells; in "gridnet" an order to move asks for its direction and for nothing else."""
    game, _ = make_env("MicroRTS-v0", map_name="melee4x4light2", actions=actions)
    params = game.default_params.replace(max_cycles=30)
    asked: list[str] = []
    said: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt.partition(" (")[0])
        choices = prompt.partition("(")[2].partition(", or quit")[0].split()
        return next((name for name in choices if name.startswith("move")), choices[0])

    assert play(game, params, random_player, seat=0, key=jax.random.key(0), ask=ask, say=said.append) is not None
    boards = [text for text in said if "waits for an order" in text]
    # The last board is that of the end, of which nothing is asked.
    waiting = sum("\n".join(text.splitlines()[1:5]).count("*") for text in boards[:-1])
    names = cell_names((4, 4))
    assert 2 <= len(boards) - 1 <= len(asked)
    if actions == "cells":
        assert len(asked) == waiting
        assert set(asked) <= set(names)
    else:
        assert {label.split(" ")[1] for label in asked} <= {"order", "move"}
        assert sum(label.endswith(" order") for label in asked) == waiting
    assert not any("chooses" in line for line in said)
