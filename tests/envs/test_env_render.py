"""Pictures: of the promised type, the same under jit, and different where the state is."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.envs import drawing, env_ids, make_env
from rljax.envs.connect_four import cells_of_four, four_in_a_row

# Compiling takes most of the time here, so XLA need not optimise.
QUICK = {"xla_backend_optimization_level": 0}


@pytest.mark.slow
@pytest.mark.parametrize("env_id", env_ids())
def test_render_is_a_picture_of_the_state(env_id: str) -> None:
    env, params = make_env(env_id)
    _, state = jax.jit(env.reset)(jax.random.key(0), params)
    moved = jax.tree.map(
        lambda leaf: leaf + jnp.asarray(0.4 if jnp.issubdtype(leaf.dtype, jnp.floating) else 1, leaf.dtype), state
    )
    render = jax.jit(env.render)
    pictures = [np.asarray(render(s, params)) for s in (state, moved)]
    for picture in pictures:
        assert picture.dtype == np.uint8
        assert picture.ndim == 3
        assert picture.shape[0] in (256, 288)
        assert picture.shape[1] in (256, 384)
        assert picture.shape[2] == 3
        assert picture.std() > 5
    changed = (np.abs(pictures[0].astype(int) - pictures[1]).max(2) > 20).mean()
    assert changed > 0.001


def area(picture: drawing.Canvas) -> jax.Array:
    """What is painted white on black, in units squared."""
    return picture.rgb[:, :, 0].sum() / 255 * picture.pixel**2


def black() -> drawing.Canvas:
    return drawing.canvas(80, 100, (1.0, 2.0), 10.0, (0, 0, 0))


WHITE = (255, 255, 255)


def test_canvas_coordinates_run_right_and_up() -> None:
    picture = jax.jit(black)()
    assert picture.rgb.shape == (80, 100, 3)
    assert picture.pixel == pytest.approx(0.1)
    np.testing.assert_allclose(np.asarray(picture.x)[0, [0, -1]], [-3.95, 5.95], atol=1e-5)
    np.testing.assert_allclose(np.asarray(picture.y)[[0, -1], 0], [5.95, -1.95], atol=1e-5)
    corner = jax.jit(lambda: drawing.finish(drawing.circle(black(), 6.0, 6.0, 0.5, WHITE)))()
    corner = np.asarray(corner)
    assert corner[0, -1].tolist() == [255, 255, 255]
    assert corner[-1, 0].tolist() == [0, 0, 0]


def test_shapes_have_their_area() -> None:
    @functools.partial(jax.jit, compiler_options=QUICK)
    def areas() -> list[jax.Array]:
        return [
            area(drawing.circle(black(), 1.3, 2.1, 1.5, WHITE)),
            area(drawing.rectangle(black(), 1.0, 2.0, 3.0, 2.0, WHITE)),
            area(drawing.rectangle(black(), 1.0, 2.0, 3.0, 2.0, WHITE, angle=0.5)),
            area(drawing.rectangle(black(), 1.0, 2.0, 3.0, 2.0, WHITE, rounding=0.5)),
            area(drawing.capsule(black(), 0.0, 1.0, 2.0, 2.0, 0.4, WHITE)),
        ]

    expected = [np.pi * 1.5**2, 6.0, 6.0, 6.0 - (4 - np.pi) * 0.5**2, np.pi * 0.4**2 + 0.8 * np.hypot(2, 1)]
    np.testing.assert_allclose(areas(), expected, rtol=0.01)


def test_a_rectangle_turns_counter_clockwise() -> None:
    picture = jax.jit(lambda: drawing.finish(drawing.rectangle(black(), 1.0, 2.0, 6.0, 0.4, WHITE, angle=np.pi / 4)))()
    picture = np.asarray(picture)
    row, column = 39 - 15, 50 + 15
    assert picture[row, column, 0] == 255
    assert picture[79 - row, column, 0] == 0


def test_edges_are_blended() -> None:
    values = np.unique(jax.jit(lambda: drawing.finish(drawing.circle(black(), 1.0, 2.0, 1.5, WHITE)))())
    assert len(values) > 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "moves"),
    [
        ("ConnectFour-v0", (1, 0, 1, 0, 1, 2, 1)),
        ("ConnectFour-v0", (0, 1, 1, 2, 2, 3, 2, 3, 3, 6, 3)),
        ("TicTacToe-v0", (0, 3, 1, 4, 2)),
    ],
)
def test_a_winning_line_is_marked_and_nothing_else(name: str, moves: tuple[int, ...]) -> None:
    game, params = make_env(name)
    _, state = game.reset_env(jax.random.key(0), params)
    picture = jax.jit(game.render)
    marked = []
    for move in moves:
        _, state, _, over, _ = game.step_env(jax.random.key(0), state, jnp.full(2, move), params)
        marked.append(int((np.asarray(picture(state, params)) == np.array(drawing.INK)).all(-1).sum()))
    assert bool(over)
    assert not any(marked[:-1])
    assert marked[-1] > 100


def test_the_cells_of_four_are_those_of_plain_loops() -> None:
    for seed in range(20):
        discs = np.random.default_rng(seed).random((6, 7)) < 0.6
        expected = np.zeros((6, 7), bool)
        for row, column, (up, right) in itertools.product(range(6), range(7), ((0, 1), (1, 0), (1, 1), (1, -1))):
            cells = [(row + i * up, column + i * right) for i in range(4)]
            if all(0 <= r < 6 and 0 <= c < 7 and discs[r, c] for r, c in cells):
                for cell in cells:
                    expected[cell] = True
        np.testing.assert_array_equal(cells_of_four(jnp.asarray(discs)), expected)
        assert bool(four_in_a_row(jnp.asarray(discs))) == expected.any()
