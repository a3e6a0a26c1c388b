"""Anti-aliased drawing in pure JAX: each shape is a signed distance to its edge, blended over the picture within one pixel.

Coordinates are in the caller's units, x to the right and y up; colours are RGB in 0..255.
The shapes are from Quilez, "2D distance functions", https://iquilezles.org/articles/distfunctions2d.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Color = tuple[int, int, int]

PAPER: Color = (250, 249, 246)
INK: Color = (45, 52, 64)
GREY: Color = (206, 208, 212)
BLUE: Color = (59, 110, 165)
RED: Color = (204, 78, 72)
GREEN: Color = (78, 154, 104)
GOLD: Color = (232, 176, 66)


class Canvas(NamedTuple):
    """Picture being drawn: `rgb` f32 `[H, W, 3]`, pixel centres `x` f32 `[1, W]` and `y` f32 `[H, 1]`, their spacing `pixel`."""

    rgb: jax.Array
    x: jax.Array
    y: jax.Array
    pixel: float


def canvas(height: int, width: int, center: tuple[float, float], view_width: float, background: Color = PAPER) -> Canvas:
    """Return an empty picture of `height` x `width` pixels that shows `view_width` units around `center`."""
    pixel = view_width / width
    x = center[0] + (jnp.arange(width, dtype=jnp.float32) + 0.5 - width / 2) * pixel
    y = center[1] - (jnp.arange(height, dtype=jnp.float32) + 0.5 - height / 2) * pixel
    return Canvas(jnp.broadcast_to(jnp.asarray(background, jnp.float32), (height, width, 3)), x[None, :], y[:, None], pixel)


def paint(picture: Canvas, distance: jax.Array, color: Any) -> Canvas:
    """Fill the pixels whose `distance` to the edge of a shape (f32 `[H, W]`, in units) is negative."""
    coverage = jnp.clip(0.5 - distance / picture.pixel, 0.0, 1.0)[:, :, None]
    return picture._replace(rgb=picture.rgb + coverage * (jnp.asarray(color, jnp.float32) - picture.rgb))


def circle(picture: Canvas, x: Any, y: Any, radius: Any, color: Any) -> Canvas:
    """Draw a disc."""
    return paint(picture, jnp.hypot(picture.x - x, picture.y - y) - radius, color)


def capsule(picture: Canvas, x0: Any, y0: Any, x1: Any, y1: Any, radius: Any, color: Any) -> Canvas:
    """Draw a thick line from `(x0, y0)` to `(x1, y1)` with round ends."""
    from_x, from_y, along_x, along_y = picture.x - x0, picture.y - y0, x1 - x0, y1 - y0
    length_squared = jnp.maximum(along_x**2 + along_y**2, 1e-12)
    nearest = jnp.clip((from_x * along_x + from_y * along_y) / length_squared, 0.0, 1.0)
    return paint(picture, jnp.hypot(from_x - nearest * along_x, from_y - nearest * along_y) - radius, color)


def rectangle(
    picture: Canvas, x: Any, y: Any, width: Any, height: Any, color: Any, *, angle: Any = 0.0, rounding: float = 0.0
) -> Canvas:
    """Draw a rectangle around `(x, y)`, turned counter-clockwise by `angle` (rad), with corners of radius `rounding`."""
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    local_x = (picture.x - x) * cos + (picture.y - y) * sin
    local_y = (picture.y - y) * cos - (picture.x - x) * sin
    over_x = jnp.abs(local_x) - width / 2 + rounding
    over_y = jnp.abs(local_y) - height / 2 + rounding
    outside = jnp.hypot(jnp.maximum(over_x, 0.0), jnp.maximum(over_y, 0.0))
    return paint(picture, outside + jnp.minimum(jnp.maximum(over_x, over_y), 0.0) - rounding, color)


def polygon(picture: Canvas, corners: jax.Array, color: Any) -> Canvas:
    """Draw a convex polygon of `corners` f32 `[K, 2]`, counter-clockwise."""
    edges = jnp.roll(corners, -1, 0) - corners
    distance = jnp.full(jnp.broadcast_shapes(picture.x.shape, picture.y.shape), -jnp.inf)
    for (x, y), (along_x, along_y) in zip(corners, edges, strict=True):
        outside = ((picture.x - x) * along_y - (picture.y - y) * along_x) / jnp.hypot(along_x, along_y)
        distance = jnp.maximum(distance, outside)
    return paint(picture, distance, color)


def bars(values: jax.Array) -> jax.Array:
    """Return a bar chart of `values` (f32 `[N]`, drawn within -1..1), uint8 `[256, 256, 3]`."""
    picture = canvas(256, 256, (0.0, 0.0), 2.4)
    step = 2.2 / values.shape[0]
    width = min(0.8 * step, 0.5)
    # Bars do not overlap, so every column of pixels has one nearest bar, and all bars are drawn at once.
    nearest = jnp.clip(jnp.floor((picture.x + 1.1) / step), 0, values.shape[0] - 1)
    value = jnp.clip(values, -1.0, 1.0)[nearest.astype(jnp.int32)]
    center = -1.1 + (nearest + 0.5) * step
    color = jnp.where(value[:, :, None] < 0, jnp.asarray(RED, jnp.float32), jnp.asarray(BLUE, jnp.float32))
    picture = rectangle(picture, center, 0.0, width, 2.0, (236, 236, 233))
    picture = rectangle(picture, center, value / 2, width, jnp.abs(value), color)
    return finish(capsule(picture, -1.15, 0.0, 1.15, 0.0, 0.008, INK))


def finish(picture: Canvas) -> jax.Array:
    """Return the picture as uint8 `[H, W, 3]`."""
    return jnp.round(jnp.clip(picture.rgb, 0.0, 255.0)).astype(jnp.uint8)
