"""Pictures: of the promised type, the same under jit, and different where the state is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.envs import drawing, env_ids, make_env


@pytest.mark.parametrize("env_id", env_ids())
def test_render_is_a_picture_of_the_state(env_id: str) -> None:
    env, params = make_env(env_id)
    _, state = env.reset(jax.random.key(0), params)
    moved = jax.tree.map(lambda leaf: leaf + jnp.asarray(0.4 if jnp.issubdtype(leaf.dtype, jnp.floating) else 1, leaf.dtype), state)
    render = jax.jit(env.render)
    pictures = [np.asarray(render(s, params)) for s in (state, moved)]
    for picture in pictures:
        assert picture.dtype == np.uint8
        assert picture.ndim == 3
        assert picture.shape[0] == 256
        assert picture.shape[1] in (256, 384)
        assert picture.shape[2] == 3
        assert picture.std() > 5
    changed = (np.abs(pictures[0].astype(int) - pictures[1]).max(2) > 20).mean()
    assert changed > 0.001
    # Fused arithmetic may round a pixel the other way.
    assert np.abs(np.asarray(env.render(state, params)).astype(int) - pictures[0]).max() <= 1


def coverage(picture: drawing.Canvas) -> Any:
    """Area painted white on black, in units squared."""
    return float(picture.rgb[:, :, 0].sum()) / 255 * picture.pixel**2


def black(width: int = 100) -> drawing.Canvas:
    return drawing.canvas(80, width, (1.0, 2.0), 10.0, (0, 0, 0))


WHITE = (255, 255, 255)


def test_canvas_coordinates_run_right_and_up() -> None:
    picture = black()
    assert (picture.rgb.shape, picture.pixel) == ((80, 100, 3), 0.1)
    np.testing.assert_allclose(picture.x[0, [0, -1]], [-3.95, 5.95], atol=1e-5)
    np.testing.assert_allclose(picture.y[[0, -1], 0], [5.95, -1.95], atol=1e-5)
    corner = drawing.finish(drawing.circle(picture, 6.0, 6.0, 0.5, WHITE))
    assert corner[0, -1].tolist() == [255, 255, 255]
    assert corner[-1, 0].tolist() == [0, 0, 0]


def test_shapes_have_their_area() -> None:
    assert coverage(drawing.circle(black(), 1.3, 2.1, 1.5, WHITE)) == pytest.approx(np.pi * 1.5**2, rel=0.01)
    assert coverage(drawing.rectangle(black(), 1.0, 2.0, 3.0, 2.0, WHITE)) == pytest.approx(6.0, rel=0.01)
    assert coverage(drawing.rectangle(black(), 1.0, 2.0, 3.0, 2.0, WHITE, angle=0.5)) == pytest.approx(6.0, rel=0.01)
    rounded = 6.0 - (4 - np.pi) * 0.5**2
    assert coverage(drawing.rectangle(black(), 1.0, 2.0, 3.0, 2.0, WHITE, rounding=0.5)) == pytest.approx(rounded, rel=0.01)
    capsule = np.pi * 0.4**2 + 0.8 * np.hypot(2, 1)
    assert coverage(drawing.capsule(black(), 0.0, 1.0, 2.0, 2.0, 0.4, WHITE)) == pytest.approx(capsule, rel=0.01)


def test_a_rectangle_turns_counter_clockwise() -> None:
    picture = drawing.finish(drawing.rectangle(black(), 1.0, 2.0, 6.0, 0.4, WHITE, angle=np.pi / 4))
    row, column = 39 - 15, 50 + 15
    assert picture[row, column, 0] == 255
    assert picture[79 - row, column, 0] == 0


def test_edges_are_blended() -> None:
    values = np.unique(np.asarray(drawing.finish(drawing.circle(black(), 1.0, 2.0, 1.5, WHITE))))
    assert len(values) > 5
