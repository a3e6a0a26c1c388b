"""Packed planes of bits against NumPy, and functions with the games on the last axis against one game at a time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rljax.envs.microrts.rules.bits import count, is_set, nth, pack, unpack, words
from rljax.envs.microrts.rules.layout import games_last, over_cells, running_sum


def test_packed_bits_are_found_counted_and_unpacked() -> None:
    planes = np.random.default_rng(0).random((37, 500)) < np.linspace(0, 1, 500)
    planes[5] = True
    packed = pack([jnp.asarray(plane) for plane in planes])
    np.testing.assert_array_equal(np.stack(packed), np.packbits(planes, axis=0, bitorder="little"))
    np.testing.assert_array_equal(unpack(words(packed), 37), planes.T)
    np.testing.assert_array_equal(count(packed), planes.sum(0))
    for number in (-1, 0, 9, 36, 37, 100):
        expected = planes[number] if 0 <= number < 37 else np.zeros(500, bool)
        np.testing.assert_array_equal(is_set(packed, jnp.full(500, number, jnp.int8)), expected)
    for last in (False, True):
        n = planes.sum(0) - 1 if last else np.zeros(500, int)
        expected = [np.flatnonzero(column)[i] for column, i in zip(planes.T, n, strict=True)]
        np.testing.assert_array_equal(nth(packed, jnp.asarray(n, jnp.uint8)), expected)


def test_games_on_the_last_axis_are_what_vmap_makes_of_them() -> None:
    def shifted(x: jax.Array, walls: jax.Array) -> dict[str, jax.Array]:
        return {"below": jnp.where(walls, 0, jnp.concatenate([x[1:], x[:1]])), "sum": x.sum((0, 1)), "walls": walls}

    x, walls = np.random.default_rng(0).integers(0, 9, (2, 5, 3, 4)), np.eye(3, 4, dtype=bool)
    for axes in ((0, None), (0, 0)):
        other = walls if axes[1] is None else np.stack([walls, ~walls])
        got = jax.vmap(jax.vmap(games_last(shifted), (0, None)), axes)(x, other)
        expected = jax.vmap(jax.vmap(shifted, (0, None)), axes)(x, other)
        jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_reductions_over_the_cells_are_those_of_numpy() -> None:
    cells = np.random.default_rng(0).integers(-100, 100, (5, 7, 33)).astype(np.int16)
    for operator, expected in ((jnp.add, np.add), (jnp.minimum, np.minimum), (jnp.maximum, np.maximum)):
        np.testing.assert_array_equal(over_cells(operator, jnp.asarray(cells)), expected.reduce(cells, (0, 1)))
    np.testing.assert_array_equal(over_cells(jnp.logical_or, jnp.asarray(cells > 97)), (cells > 97).any((0, 1)))
    np.testing.assert_array_equal(running_sum(jnp.asarray(cells)), cells.reshape(35, 33).cumsum(0).reshape(cells.shape))
    np.testing.assert_array_equal(running_sum(jnp.asarray(cells[..., 0])), cells[..., 0].cumsum().reshape(5, 7))
