"""Observations of MicroRTS for each player: feature planes over the cells, or a list of units."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from rljax.envs.microrts.rules.bits import pack, unpack, words
from rljax.envs.microrts.rules.layout import games_last, once
from rljax.envs.microrts.rules.state import RTSState
from rljax.envs.microrts.rules.units import ATTACK, EMPTY, NONE, NUM_TYPES, SIGHT, TURNED_DIRECTIONS

PAPER_PLANES = 5 + 5 + 3 + (NUM_TYPES + 1) + 6
"""The 27 planes of Gym-microRTS, each one-hot: hit points 0 to 4 and more, resources carried 0 to 4 and more, owner (none,
oneself, opponent), type (none, then each type), action under way."""

EXTRA_PLANES = 4 + 1 + 1 + 1 + 3
"""Direction of the action under way (one-hot), its remaining cycles / 200, walls, visible cells; then, the same in all cells, own
and the opponent's resources / 20 and the cycles played as a share of all."""

NUM_PLANES = PAPER_PLANES + EXTRA_PLANES

_NO_UNIT = 5 + 5 + 3
_REMAINING, _SCALARS = PAPER_PLANES + 4, NUM_PLANES - 3
ENTITY_FEATURES = NUM_PLANES + 2


def visible_cells(state: RTSState, player: jax.Array | int) -> jax.Array:
    """Return which cells are within the sight of a player's units (Euclidean distance), bool `[H, W]`."""
    height, width = state.unit.shape
    place = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), -1).reshape(-1, 2)
    distance = np.hypot(*(place[:, None] - place).transpose(2, 0, 1))
    seen = jnp.zeros(height * width, bool)
    for sight in np.unique(SIGHT[SIGHT > 0]):
        eyes = (state.owner == player) & jnp.any(jnp.stack([state.unit == t for t in np.flatnonzero(sight == SIGHT)]), axis=0)
        seen |= eyes.reshape(-1).astype(jnp.float32) @ jnp.asarray(distance <= sight, jnp.float32) > 0
    return seen.reshape(height, width)


def hide(state: RTSState, visible: jax.Array) -> RTSState:
    """Return the state without what is in cells that are not visible."""

    def shown(cells: jax.Array, empty: int) -> jax.Array:
        return jnp.where(visible, cells, empty)

    return state.replace(
        unit=shown(state.unit, EMPTY), owner=shown(state.owner, -1), hp=shown(state.hp, 0), carried=shown(state.carried, 0),
        action=shown(state.action, NONE), parameter=shown(state.parameter, 0), product=shown(state.product, EMPTY),
        remaining=shown(state.remaining, 0),
    )  # fmt: skip


def feature_planes(
    states: Sequence[RTSState], walls: np.ndarray, fog: bool, progress: jax.Array, paper: bool = False
) -> jax.Array:
    """Return the planes that both players see, f32 `[2, H, W, C]`; the second player's are turned by half.

    Args:
        states: the state as each player knows it. A player's own units and the opponent's are in the same planes for both.
        walls: bool `[H, W]`.
        fog: whether the players see cells within the sight of their units only, and not the opponent's resources.
        progress: cycles played as a share of the cycles of a game, f32 [].
        paper: only the `PAPER_PLANES`.
    """
    visible = [visible_cells(state, p) if fog else jnp.ones(state.unit.shape, bool) for p, state in enumerate(states)]

    @games_last
    def bits_and_remaining(
        states: Sequence[RTSState], visible: Sequence[jax.Array], walls: jax.Array
    ) -> tuple[list[jax.Array], jax.Array]:
        packed, remaining = [], []
        for player, state in enumerate(states):
            seen = hide(state, visible[player]) if fog else state
            planes = _bit_planes(seen, visible[player], walls, player)[: PAPER_PLANES if paper else None]
            # Turned while they are bits, as to move every plane of every cell takes much longer.
            packed.append(words(pack([_side(plane, player) for plane in planes])))
            remaining.append(_side(seen.remaining, player))
        return [jnp.stack(pair) for pair in zip(*packed, strict=True)], jnp.stack(remaining)

    bits, remaining = bits_and_remaining(states, visible, jnp.asarray(walls))
    if paper:
        return unpack(bits, PAPER_PLANES).astype(jnp.float32)
    # Computed before the planes are made: there, each division would be done again in every plane.
    share, scalars = once((jnp.clip(remaining / 200.0, 0.0, 1.0), _scalars(states, fog, progress)))
    planes = jnp.where(unpack(bits, NUM_PLANES), jnp.float32(1.0), scalars[:, None, None])
    return jnp.where(np.arange(NUM_PLANES) == _REMAINING, share[..., None], planes)


def _bit_planes(seen: RTSState, visible: jax.Array, walls: jax.Array, player: int) -> list[jax.Array]:
    """Return all planes, bool `[H, W]`; those that are no bits are False."""
    whose = jnp.where(seen.owner < 0, 0, jnp.where(seen.owner == player, 1, 2))
    directed = (seen.action != NONE) & (seen.action != ATTACK)
    nothing = jnp.zeros_like(directed)
    return [
        *_one_hot(jnp.clip(seen.hp, 0, 4), 5),
        *_one_hot(jnp.clip(seen.carried, 0, 4), 5),
        *_one_hot(whose, 3),
        *_one_hot(seen.unit + 1, NUM_TYPES + 1),
        *_one_hot(seen.action, 6),
        *(directed & (seen.parameter == d) for d in (TURNED_DIRECTIONS if player else range(4))),
        nothing,
        walls & ~nothing,
        visible,
        *[nothing] * 3,
    ]


def _side(cells: jax.Array, player: int) -> jax.Array:
    return cells[::-1, ::-1] if player else cells


def _scalars(states: Sequence[RTSState], fog: bool, progress: jax.Array) -> jax.Array:
    """Return what both players see alike in all cells, in its planes, and 0 in the others, f32 `[2, C]`."""
    rows = []
    for player, state in enumerate(states):
        own, other = (jnp.clip(state.resources[p] / 20.0, 0.0, 1.0) for p in (player, 1 - player))
        rows.append(jnp.stack([own, jnp.zeros(()) if fog else other, jnp.clip(progress, 0.0, 1.0)]))
    return jnp.pad(jnp.stack(rows), ((0, 0), (_SCALARS, 0)))


def _one_hot(values: jax.Array, size: int) -> list[jax.Array]:
    return [values == i for i in range(size)]


def entity_list(planes: jax.Array, capacity: int) -> dict[str, jax.Array]:
    """Return the cells with units as a list.

    Args:
        planes: all planes that the player sees, f32 `[H, W, C]`.
        capacity: number of entities E; if there are more units, those in the lower rows are left out.

    Returns:
        "entities" f32 `[E, C + 2]`: the planes of the cell, then its row and column as shares of the map; zeros where there is
        no entity. "entity_mask" bool `[E]`.
    """
    height, width, _ = planes.shape
    present = planes[..., _NO_UNIT].reshape(-1) == 0
    (index,) = jnp.nonzero(present, size=capacity, fill_value=height * width)
    mask = index < height * width
    row, column = (jnp.broadcast_to(axis, (height, width)) for axis in np.indices((height, width)))
    place = jnp.stack([row / max(height - 1, 1), column / max(width - 1, 1)], axis=-1).astype(jnp.float32)
    features = jnp.concatenate([planes, place], axis=-1).reshape(height * width, -1)
    entities = jnp.where(mask[:, None], features[jnp.minimum(index, height * width - 1)], 0.0)
    return {"entities": entities, "entity_mask": mask}
