"""Matches: openings that both sides play, and which games are the same one again, against plain Python."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.collect.distinct import fingerprint, first_occurrences
from rljax.collect.games.matches import play_match
from rljax.core.versus import random_player
from rljax.envs import make_env
from rljax.envs.tic_tac_toe import LINES

GAME, PARAMS = make_env("TicTacToe-v0")


def lowest(_key: Any, _state: Any, _obs: Any, mask: jax.Array) -> jax.Array:
    return jnp.argmax(mask, axis=-1)


def highest(_key: Any, _state: Any, _obs: Any, mask: jax.Array) -> jax.Array:
    return mask.shape[-1] - 1 - jnp.argmax(mask[:, ::-1], axis=-1)


def test_first_occurrences_are_those_of_numpy() -> None:
    rows = np.random.default_rng(0).integers(0, 2, (500, 8))
    expected = np.zeros(500, bool)
    expected[np.unique(rows, axis=0, return_index=True)[1]] = True
    for values in (rows.astype(np.float32), rows.astype(bool), rows, np.where(rows, np.nan, -1.0)):
        prints = jax.vmap(fingerprint)(jnp.asarray(values))
        np.testing.assert_array_equal(first_occurrences(prints), expected)
        chained = jax.vmap(lambda x: fingerprint({"b": x[4:]}, after=fingerprint(x[:4])))(jnp.asarray(values))
        np.testing.assert_array_equal(first_occurrences(chained), expected)
    np.testing.assert_array_equal(fingerprint(jnp.array([0.0, 1.0])), fingerprint(jnp.array([-0.0, 1.0])))


def plain_game(opening: tuple[int, ...], seat: int) -> int:
    """What the lowest empty cell gets against the highest, from this seat, after these moves."""
    board, time = [0] * 9, 0
    while True:
        empty = [i for i in range(9) if not board[i]]
        cell = opening[time] if time < len(opening) else (empty[0] if time % 2 == seat else empty[-1])
        board[cell] = 1 + time % 2
        if any(all(board[c] == board[cell] for c in line) for line in LINES):
            return 1 if time % 2 == seat else -1
        time += 1
        if time == 9:
            return 0


def test_each_opening_is_played_from_both_seats_and_repeated_games_are_not_new() -> None:
    play = jax.jit(lambda moves, key: play_match(GAME, PARAMS, lowest, highest, key, 400, opening_moves=moves), static_argnums=0)
    for moves, openings in ((0, [()]), (1, [(i,) for i in range(9)])):
        match = play(moves, jax.random.key(0))
        new = np.asarray(match.new)
        assert new.sum() == 2 * len(openings)
        found = sorted(zip(match.seat[new].tolist(), match.result[new].tolist(), strict=True))
        assert found == sorted((seat, float(plain_game(opening, seat))) for opening in openings for seat in (0, 1))
    # Seats change within an opening: games 2 i and 2 i + 1 begin alike.
    assert match.seat[:4].tolist() == [0, 1, 0, 1]


def test_openings_do_not_end_games() -> None:
    """Of nine random moves those that would end the game are left out: somebody must have made the last one."""
    match = jax.jit(lambda key: play_match(GAME, PARAMS, lowest, lowest, key, 64, opening_moves=20))(jax.random.key(1))
    assert bool(jnp.isfinite(match.result).all())
    assert int(match.length.min()) >= 5
    rps, params = make_env("RPS-v0")  # its only step ends it
    both = jax.jit(lambda key: [play_match(rps, params, lowest, highest, key, 4, opening_moves=n) for n in (0, 3)])
    plain, opened = both(jax.random.key(2))
    np.testing.assert_array_equal(plain.result, opened.result)
    np.testing.assert_array_equal(opened.length, 1)


def test_deals_and_players_that_draw_make_games_new() -> None:
    kuhn, params = make_env("KuhnPoker-v0")
    match = jax.jit(lambda key: play_match(kuhn, params, lowest, lowest, key, 200))(jax.random.key(0))
    assert int(match.new.sum()) == 2 * 6  # passes only: six deals, two seats
    match = jax.jit(lambda key: play_match(GAME, PARAMS, random_player, lowest, key, 200))(jax.random.key(0))
    assert int(match.new.sum()) > 100
