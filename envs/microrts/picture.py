"""Pictures of MicroRTS in the manner of the original: black ground, square buildings and resources, round units."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from rljax.envs.microrts.rules.state import RTSState
from rljax.envs.microrts.rules.units import ATTACK, BARRACKS, BASE, DIRECTIONS, HP, NONE, OFFSETS, RESOURCE

# Colours and sizes of Resource, Base, Barracks, Worker, Light, Heavy, Ranged.
_FILL = np.array([(0, 170, 0), (230, 230, 230), (150, 150, 150), (140, 140, 140), (255, 160, 40), (250, 230, 60), (70, 220, 230)])
_RADIUS = np.array([0.42, 0.42, 0.42, 0.22, 0.28, 0.40, 0.28])
_EDGE = np.array([(0, 90, 0), (70, 110, 255), (240, 70, 60)])
_LINE = np.array([(0, 0, 0), (190, 190, 190), (120, 230, 120), (120, 230, 120), (90, 160, 255), (255, 60, 60)])
_GROUND, _GRID, _WALL, _TEXT = (12, 12, 12), (48, 48, 48), (0, 70, 20), (0, 0, 0)

_POINT, _SMALL_POINT = 0.08, 0.06
"""Side of a point of a digit, in cells: of resources, and of what a worker carries."""

_DIGITS = np.array(
    [[int(bit) for bit in glyph] for glyph in (
        "111101101101111", "010110010010111", "111001111100111", "111001111001111", "101101111001001",
        "111100111001111", "111100111101111", "111001010010010", "111101111101111", "111101111001111",
    )], bool,
).reshape(10, 5, 3)  # fmt: skip


def draw(state: RTSState, walls: np.ndarray) -> jax.Array:
    """Return a picture of a state, uint8 `[h, w, 3]`, about 256 pixels wide; below the map are the players' resources.

    Resources and loaded workers show how much they have, damaged units their hit points as a bar, and units with an action under
    way a line towards its target: grey for a move, green for a harvest or return, blue for a production, red for an attack.
    """
    height, width = walls.shape
    size = max(12, 256 // max(height, width))
    rows, columns = (np.repeat(np.arange(n), size) for n in (height, width))
    # Position of each pixel in its cell, from -1/2 to 1/2, x to the right and y down.
    y, x = np.meshgrid(*((np.arange(n * size) % size + 0.5) / size - 0.5 for n in (height, width)), indexing="ij")

    def pixels(cells: jax.Array) -> jax.Array:
        return jnp.asarray(cells)[rows][:, columns]

    unit, present = pixels(state.unit), pixels(state.unit) >= 0
    ground = np.where(walls[rows][:, columns, None], _WALL, _GROUND)
    ground = np.where(((x < -0.5 + 1.0 / size) | (y < -0.5 + 1.0 / size))[..., None], _GRID, ground)
    image = jnp.asarray(ground, jnp.float32)

    def paint(image: jax.Array, inside: jax.Array, color: jax.Array) -> jax.Array:
        return jnp.where(inside[..., None], jnp.asarray(color, jnp.float32), image)

    square = jnp.isin(unit, jnp.array([RESOURCE, BASE, BARRACKS]))
    distance = jnp.where(square, np.maximum(np.abs(x), np.abs(y)), np.hypot(x, y))
    radius = jnp.asarray(_RADIUS, jnp.float32)[unit]
    image = paint(image, present & (distance <= radius), jnp.asarray(_EDGE)[pixels(state.owner) + 1])
    image = paint(image, present & (distance <= radius - 2.0 / size), jnp.asarray(_FILL)[unit])
    image = paint(image, present & _line(state, pixels, x, y), jnp.asarray(_LINE)[pixels(state.action)])
    full = jnp.asarray(HP)[unit]
    hurt = present & (pixels(state.hp) < full) & (np.abs(x) <= 0.4) & (y > 0.34) & (y <= 0.44)
    alive = x <= -0.4 + 0.8 * pixels(state.hp) / full
    image = paint(image, hurt, jnp.where(alive[..., None], jnp.array([0, 220, 0]), jnp.array([200, 0, 0])))
    image = paint(
        image, present & _number(pixels(state.carried), x, y, jnp.where(square, _POINT, _SMALL_POINT)), jnp.array(_TEXT)
    )
    image = jnp.concatenate([image, _footer(state, width * size, size)])
    return jnp.clip(jnp.round(image), 0, 255).astype(jnp.uint8)


def _line(state: RTSState, pixels: Callable[[jax.Array], jax.Array], x: np.ndarray, y: np.ndarray) -> jax.Array:
    """Return which pixels are on the line from the middle of a cell towards the target of its unit's action."""
    parameter = state.parameter.astype(jnp.int32)
    toward = jnp.where(
        (state.action == ATTACK)[..., None], jnp.asarray(OFFSETS)[parameter], jnp.asarray(DIRECTIONS)[jnp.clip(parameter, 0, 3)]
    ).astype(jnp.float32)
    toward = toward / jnp.maximum(jnp.linalg.norm(toward, axis=-1, keepdims=True), 1.0)
    down, right = (pixels(toward[..., i]) for i in range(2))
    along, across = x * right + y * down, x * down - y * right
    return (pixels(state.action) != NONE) & (along >= 0) & (jnp.abs(across) <= 0.04)


def _number(value: jax.Array, x: np.ndarray, y: np.ndarray, point: jax.Array | float = _POINT) -> jax.Array:
    """Return which pixels of a cell are ink of its number, if that is not 0.

    It is in the middle and has up to three digits of 3 x 5 points.
    """
    value = jnp.clip(value.astype(jnp.int32), 0, 999)
    digits = 1 + (value > 9).astype(jnp.int32) + (value > 99)
    # A digit and the gap after it are four points wide.
    column = jnp.floor(x / point + (4 * digits - 1) / 2).astype(jnp.int32)
    row = jnp.floor(y / point + 2.5).astype(jnp.int32)
    inside = (column >= 0) & (column < 4 * digits - 1) & (column % 4 < 3) & (row >= 0) & (row < 5)
    power = jnp.array([1, 10, 100])[jnp.clip(digits - 1 - column // 4, 0, 2)]
    ink = jnp.asarray(_DIGITS)[value // power % 10, jnp.clip(row, 0, 4), jnp.clip(column % 4, 0, 2)]
    return inside & (value > 0) & ink


def _footer(state: RTSState, width: int, size: int) -> jax.Array:
    """Return a strip with the resources of both players in their colours, f32 `[size, width, 3]`."""
    column = np.arange(width)
    x, y = np.meshgrid((column % size + 0.5) / size - 0.5, (np.arange(size) + 0.5) / size - 0.5)
    strip = jnp.broadcast_to(jnp.asarray(_GROUND, jnp.float32), (size, width, 3))
    for player, cell in enumerate((0, width // size - 1)):
        here = np.broadcast_to(column // size == cell, x.shape)
        strip = jnp.where(here[..., None], jnp.asarray(_EDGE[player + 1], jnp.float32), strip)
        strip = jnp.where((here & _number(state.resources[player], x, y))[..., None], 255.0, strip)
    return strip
