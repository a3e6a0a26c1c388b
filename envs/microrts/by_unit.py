"""Orders unit by unit: in each step each player orders one of its units, and when neither has one left to order, time passes.

This is the unit action simulation (UAS) of Gym-microRTS (Huang et al., "Gym-microRTS: toward affordable full game real-time
strategy games research with deep reinforcement learning", 2021), for both players at once. Orders given earlier in the cycle are
pending: they reserve cells and resources for the player who gave them, and the other does not see them.

An action has two heads. "source" is the unit, as one of P places (the cells, or the entities that the player observes), or P:
the player ends its orders of this cycle. "order" is one of `rljax.envs.microrts.actions.ORDERS`. One head of 65 orders instead of
the seven heads of "gridnet" makes the mask exact, since it need only depend on the source, and leaves no head unused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.environments.spaces import Dict, Discrete
from rljax.envs.microrts.actions import NUM_ORDERS, ORDERS, cell_mask
from rljax.envs.microrts.observation import visible_cells
from rljax.envs.microrts.rules.engine import is_idle, legal_orders
from rljax.envs.microrts.rules.layout import once
from rljax.envs.microrts.rules.state import Orders, RTSState
from rljax.envs.microrts.rules.units import (
    ATTACK,
    ATTACK_TIME,
    EMPTY,
    HARVEST,
    HARVEST_TIME,
    MOVE,
    MOVE_TIME,
    NONE,
    NUM_TYPES,
    PRODUCE,
    PRODUCE_TIME,
    RETURN,
    RETURN_TIME,
)
from rljax.envs.microrts.rules.waits import Waits
from rljax.envs.microrts.seats import TURNED

WAIT = 0
"""The order to wait."""


def _durations() -> np.ndarray:
    table = np.ones((NUM_ORDERS, NUM_TYPES), np.int16)
    fixed: dict[int, Any] = {HARVEST: HARVEST_TIME, RETURN: RETURN_TIME, ATTACK: ATTACK_TIME, MOVE: MOVE_TIME}
    for order, (action, _, product) in enumerate(ORDERS.tolist()):
        if action != NONE:
            table[order] = PRODUCE_TIME[product] if action == PRODUCE else fixed[action]
    return table


_DURATION = _durations()
"""Cycles that each order takes, by the type of the unit, i16 `[65, 7]`."""

_NUMBERING = np.arange(NUM_ORDERS), TURNED["cells"][0]
"""For each player the number in `ORDERS` of an order as it numbers them, and the other way round."""


class Pending(struct.PyTreeNode):
    """Orders of both players that have been given in this cycle, and are carried out when it is played.

    Attributes:
        orders: the orders, `Orders`; waiting 0 cycles in cells without one.
        duration: cycles that they take, i16 `[H, W]`; 0 in cells without one.
        ended: which players have ended their orders of this cycle, bool `[2]`.
    """

    orders: Orders
    duration: jax.Array
    ended: jax.Array


class CycleState(RTSState):
    """State of a game within a cycle: the state at its start, and the orders that have been given since."""

    pending: Pending


def begin_cycle(state: RTSState) -> CycleState:
    """Return the state without pending orders, at the start of a cycle."""
    zero = jnp.zeros(state.unit.shape, jnp.int8)
    pending = Pending(Orders(zero + NONE, zero, zero + EMPTY), zero.astype(jnp.int16), jnp.zeros(2, bool))
    return CycleState(**{field.name: getattr(state, field.name) for field in dataclasses.fields(RTSState)}, pending=pending)


def with_pending(state: RTSState, player: int | None = None) -> RTSState:
    """Return the state in which the pending orders of a player, or of both, are actions under way.

    It is what the player sees, and from which follows what else it may order: the other's pending orders reserve nothing.
    """
    if not isinstance(state, CycleState):
        return state
    orders, given = state.pending.orders, state.pending.duration > 0
    if player is not None:
        given &= state.owner == player
    seen: RTSState = state.replace(
        action=jnp.where(given, orders.action, state.action),
        parameter=jnp.where(given, orders.parameter, state.parameter),
        product=jnp.where(given, orders.product, state.product),
        remaining=jnp.where(given, state.pending.duration, state.remaining),
    )
    return seen


class Choices(NamedTuple):
    """What a player may order next, at each of P places.

    Attributes:
        cell: number of the place's cell, row by row, i32 `[P]`; H W for a place without an entity.
        source: whether its unit may be ordered, bool `[P]`.
        order: its unit's legal orders as the player numbers them, bool `[P, 65]`; to wait is legal everywhere.
    """

    cell: jax.Array
    source: jax.Array
    order: jax.Array


class ByUnit(NamedTuple):
    """The encoding of actions of a game in which units are ordered one by one. Players are 0 and 1; the second's side is turned.

    Attributes:
        walls: walls of the map, bool `[H, W]`.
        max_entities: the places are those of the entities that a player observes, at most so many; None: they are the cells.
        fog: whether players observe only what is within the sight of their units.
        waits: for how long units wait.
    """

    walls: np.ndarray
    max_entities: int | None
    fog: bool
    waits: Waits

    @property
    def num_places(self) -> int:
        """Number of places P."""
        return self.walls.size if self.max_entities is None else self.max_entities

    @property
    def space(self) -> Dict:
        """The action space of a player: "source" and "order"."""
        return Dict({"source": Discrete(self.num_places + 1), "order": Discrete(NUM_ORDERS)})

    def cells(self, state: RTSState, player: int) -> jax.Array:
        """Return the number of each place's cell, i32 `[P]`; H W for a place without an entity."""
        size = self.walls.size
        if self.max_entities is None:
            place = jnp.arange(size)
        else:
            present = state.unit != EMPTY
            if self.fog:
                present &= visible_cells(state, player)
            seen = present.reshape(-1)[:: -1 if player else 1]
            (place,) = jnp.nonzero(seen, size=self.max_entities, fill_value=size)
        return jnp.where(place < size, size - 1 - place, size) if player else place

    def choices(self, state: RTSState, player: int) -> Choices:
        """Return what a player may order next. A unit that could only wait is not asked."""
        seen = with_pending(state, player)
        legal = jnp.moveaxis(once(cell_mask(legal_orders(seen, self.walls))), 0, -1).reshape(-1, NUM_ORDERS)
        able = (is_idle(seen) & (seen.owner == player)).reshape(-1) & jnp.any(legal & (ORDERS[:, 0] != NONE), axis=-1)
        if isinstance(state, CycleState):
            able &= ~state.pending.ended[player]
        cell = self.cells(state, player)
        at = jnp.minimum(cell, self.walls.size - 1)
        return Choices(cell, able[at] & (cell < self.walls.size), legal[at][:, _NUMBERING[player]])

    def masks(self, state: RTSState) -> jax.Array:
        """Return the masks of both players, bool `[2, A, A]` with A = P + 1 + 65: the legal orders depend on the source."""

        def mask(player: int) -> jax.Array:
            _, source, order = self.choices(state, player)
            # To end is always legal, and its order is to wait.
            source = jnp.append(source, True)
            order = jnp.concatenate([order, jnp.arange(NUM_ORDERS)[None] == WAIT])
            some = jnp.any(order & source[:, None], axis=0)
            return jnp.block([[jnp.diag(source), order], [jnp.zeros(order.T.shape, bool), jnp.diag(some)]])

        return jnp.stack([mask(player) for player in range(2)])

    def give(self, state: CycleState, action: dict[str, jax.Array]) -> tuple[CycleState, jax.Array]:
        """Add both players' actions, each i32 `[2]`, to the pending orders.

        A player who names no idle unit of its own ends its orders. An order that is not legal is given, and the engine lets the
        unit wait for as long as it would have taken.

        Returns:
            The state, and whether time passes now: each player has ended its orders or has no unit left that may be ordered.
        """
        orders, duration, ended = state.pending.orders, state.pending.duration, []
        for player in range(2):
            place = jnp.clip(action["source"][player], 0, self.num_places - 1)
            named = np.arange(self.walls.size).reshape(self.walls.shape) == self.cells(state, player)[place]
            own = is_idle(state) & (state.owner == player) & (duration == 0) & ~state.pending.ended[player]
            here = named & own & (place == action["source"][player])
            number = jnp.asarray(_NUMBERING[player])[action["order"][player]]
            planes = zip(jnp.asarray(ORDERS)[number], (orders.action, orders.parameter, orders.product), strict=True)
            orders = Orders(*(jnp.where(here, value, plane) for value, plane in planes))
            cycles = jnp.asarray(_DURATION)[number, jnp.sum(jnp.where(here, state.unit, 0))]
            duration = jnp.where(here, jnp.where(number == WAIT, self.waits.longest(state).astype(jnp.int16), cycles), duration)
            ended.append(state.pending.ended[player] | ~jnp.any(here))
        state = state.replace(pending=Pending(orders, duration, jnp.stack(ended)))
        more = [jnp.any(self.choices(state, player).source) for player in range(2)]
        return state, ~(more[0] | more[1])

    def next_action(self, state: RTSState, orders: jax.Array) -> dict[str, jax.Array]:
        """Return both players' next actions, each i32 `[2]`, of those that give every unit its order.

        Args:
            state: the state.
            orders: number in `ORDERS` of each cell's order, i32 `[H, W]`. A unit whose order is no longer legal waits.
        """
        sources, numbers = [], []
        for player in range(2):
            choices = self.choices(state, player)
            place, more = jnp.argmax(choices.source), jnp.any(choices.source)
            number = jnp.asarray(_NUMBERING[player])[orders.reshape(-1)[choices.cell[place]]]
            sources.append(jnp.where(more, place, self.num_places))
            numbers.append(jnp.where(more & choices.order[place, number], number, WAIT))
        return {"source": jnp.stack(sources).astype(jnp.int32), "order": jnp.stack(numbers).astype(jnp.int32)}

    def plan(self, act: Callable[[CycleState, Any], tuple[Any, Any]], state: RTSState, memory: Any) -> tuple[Orders, Any]:
        """Return the orders of a whole cycle, and the memory after it, of players who act step by step.

        Units without an order wait 0 cycles.

        Args:
            act: `(state, memory) -> (action, memory)`, the actions of both players in a step.
            state: the state at the start of the cycle.
            memory: their memory, which may have random keys in it.
        """

        def step(loop: tuple[CycleState, Any, jax.Array]) -> tuple[CycleState, Any, jax.Array]:
            now, memory, _ = loop
            action, memory = act(now, memory)
            now, over = self.give(now, action)
            return now, memory, over

        start = begin_cycle(state), memory, jnp.zeros((), bool)
        end, memory, _ = jax.lax.while_loop(lambda loop: ~loop[2], step, start)
        return end.pending.orders, memory
