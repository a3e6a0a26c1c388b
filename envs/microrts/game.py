"""MicroRTS-v0: two players gather resources, build and fight, all of their units at once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.environments.environment import tree_where
from rljax.core.environments.spaces import Box, Dict, MultiDiscrete
from rljax.core.errors import ConfigError, check_int, did_you_mean, shown
from rljax.core.games.game import RESULT, Game, ScriptedPlayer
from rljax.envs.microrts import picture, words
from rljax.envs.microrts.actions import (
    NUM_ORDERS,
    cell_mask,
    drop_own_conflicts,
    gridnet_mask,
    orders_of_cells,
    orders_of_gridnet,
    player_masks,
    read_heads,
)
from rljax.envs.microrts.by_unit import ByUnit, CycleState, begin_cycle, with_pending
from rljax.envs.microrts.named_maps import find_map
from rljax.envs.microrts.observation import (
    ENTITY_FEATURES,
    NUM_PLANES,
    PAPER_PLANES,
    entity_list,
    feature_planes,
    visible_cells,
)
from rljax.envs.microrts.rules import engine
from rljax.envs.microrts.rules.layout import games_last, over_cells
from rljax.envs.microrts.rules.maps import MAPS
from rljax.envs.microrts.rules.state import Orders, RTSState
from rljax.envs.microrts.rules.units import (
    ATTACK,
    BARRACKS,
    BASE,
    HARVEST,
    HEADS,
    HEAVY,
    LIGHT,
    NONE,
    PRODUCE,
    RANGED,
    RETURN,
    WORKER,
)
from rljax.envs.microrts.rules.waits import Waits
from rljax.envs.microrts.scripted.bots import SCRIPTED
from rljax.envs.microrts.scripted.players import scripted_player
from rljax.envs.microrts.seats import TURNED, turn_actions

ACTIONS = ("cells", "gridnet", "units")
OBSERVATIONS = ("planes", "paper", "entities")
MAX_WAIT = 100
"""Largest number of cycles for which an order may let a unit wait."""


@struct.dataclass
class RTSParams:
    """Parameters: the cycles after which a game is drawn, and the weights of the components of the reward."""

    max_cycles: int = 2000
    win_weight: float = 1.0
    resource_weight: float = 0.0
    worker_weight: float = 0.0
    building_weight: float = 0.0
    attack_weight: float = 0.0
    combat_weight: float = 0.0


class MicroRTS(Game):
    """Two players order workers, bases, barracks and fighters on a grid; who has no units left has lost.

    The rules are those of microRTS (Ontanon, 2013) with its unit type table 2, and the same orders give the same next state as in
    its Java engine. In each step each player gives an order to each of its units that has none under way, and then cycles are
    played until a unit has none again. Orders take 5 to 200 cycles. A player's orders are taken row by row; one that needs a cell
    or resources of an earlier one is not given. After `max_cycles` cycles the game is a draw.

    Both players look from the same side: what the second sees and orders is turned by half. Observation of each player: "planes",
    f32 `[H, W, 37]` (see `rljax.envs.microrts.observation`); "paper", the first 27 of them, those of Gym-microRTS; or "entities",
    a list of all units that it sees, with a mask. Actions: "cells", i32 `[H W]`, one of 65 orders for each cell, the first of
    which is to wait; or "gridnet", i32 `[H W 7]`, the seven heads of Gym-microRTS for each cell. The mask
    leaves one action in cells without an idle unit of the player.

    With actions = "units" each player orders one unit in a step (see `rljax.envs.microrts.by_unit`): the heads are "source", the
    place of the unit, and "order". The places are the cells, or with "entities" the entities; one more ends the player's orders,
    so its other units wait. Time passes in the step after which neither player has a unit left that could do more than wait; a
    player without such a unit can only end its turn until then. The mask, bool `[A, A]` for each player, needs auto-regressive
    heads. A player's own orders since time last passed look like actions under way, and the other's are not seen. Discounts
    count these steps.

    The reward is the sum of the components in `info["reward_components"]`, each times its weight: "win" (1, or -1 for a loss),
    "resource" (harvests and returns), "worker", "building" (bases and barracks), "combat" (fighters) and "attack", the numbers of
    orders of these kinds that were begun in the step. By default only "win" counts. Gym-microRTS has the weights 10, 1, 1, 0.2, 4
    and 1 (Huang et al., 2021).

    Args:
        map_name: a name in `rljax.envs.microrts.rules.maps.MAPS`, that of a map of the Java engine (once it is there), or the
            path of a map in microRTS's format, a file `.xml`.
        actions: "cells", "gridnet" or "units".
        observation: "planes", "paper" or "entities".
        fog: whether players see only cells within the sight of their units; so do scripted players and bots of the Java engine.
        max_entities: number of entities E of "entities".
        wait_cycles: number of cycles for which a unit that is given no order waits. Most orders take a multiple of 5 cycles, so
            with 5 most units are ready at the same time, and a game has far fewer steps than with 1.
        wait_until_change: whether units wait only until something changes: for one cycle if any unit is given an order in this
            step, else until the next unit is ready, `wait_cycles` at most. Players that go by the state alone, and not by the
            time, then play as if they were asked in each cycle, as the Java bots are, in about half of the steps.
    """

    best_is_random = True
    """Both players order at once, so the best policies mix; greedy ones repeat orders that block each other."""

    announces_actions = False

    def __init__(
        self,
        map_name: str = "basesWorkers8x8",
        actions: str = "cells",
        observation: str = "planes",
        fog: bool = False,
        max_entities: int = 64,
        wait_cycles: int = 1,
        wait_until_change: bool = False,
    ):
        check_int("MicroRTS-v0", 1, max_entities=max_entities, wait_cycles=wait_cycles)
        for name, value, allowed in (("actions", actions, ACTIONS), ("observation", observation, OBSERVATIONS)):
            if value not in allowed:
                raise ConfigError(f"MicroRTS-v0: {name} = {shown(value)}: {did_you_mean(str(value), allowed)}")
        for name, flag in (("fog", fog), ("wait_until_change", wait_until_change)):
            if not isinstance(flag, bool):
                raise ConfigError(f"MicroRTS-v0: {name} = {shown(flag)}, expected true or false")
        if wait_cycles > MAX_WAIT:
            raise ConfigError(f"MicroRTS-v0: wait_cycles = {wait_cycles}, expected at most {MAX_WAIT}")
        self.map = find_map(map_name)
        self.files_digest = "" if map_name in MAPS else hashlib.sha256(repr(self.map).encode()).hexdigest()
        self.walls = self.map.wall_cells()
        self.map_name, self.actions, self.observation, self.fog = map_name, actions, observation, fog
        self.hides_state = fog
        self.wait_cycles, self.wait_until_change = wait_cycles, wait_until_change
        self.max_entities, self.waits = min(max_entities, self.walls.size), Waits(wait_cycles, wait_until_change)
        entities = self.max_entities if observation == "entities" else None
        self.by_unit = ByUnit(self.walls, entities, fog, self.waits)

    @property
    def name(self) -> str:
        return "MicroRTS-v0"

    @property
    def default_params(self) -> RTSParams:
        return RTSParams()

    def observation_space(self, params: RTSParams) -> Any:
        if self.observation == "entities":
            entities = Box(0.0, 1.0, (self.max_entities, ENTITY_FEATURES))
            return Dict({"entities": entities, "entity_mask": Box(0, 1, (self.max_entities,), jnp.bool_)})
        return Box(0.0, 1.0, (*self.map.shape, PAPER_PLANES if self.observation == "paper" else NUM_PLANES))

    def action_space(self, params: RTSParams) -> MultiDiscrete | Dict:
        if self.actions == "units":
            return self.by_unit.space
        cells = self.walls.size
        return MultiDiscrete(self._heads * cells, only_if=read_heads(cells) if self.actions == "gridnet" else None)

    @property
    def _heads(self) -> tuple[int, ...]:
        return (NUM_ORDERS,) if self.actions == "cells" else HEADS

    def observe(self, state: RTSState, params: RTSParams) -> Any:
        progress = state.time / jnp.maximum(params.max_cycles, 1)
        known = [with_pending(state, player) for player in range(2)]
        planes = feature_planes(known, self.walls, self.fog, progress, self.observation == "paper")
        return jax.vmap(lambda p: entity_list(p, self.max_entities))(planes) if self.observation == "entities" else planes

    def action_mask(self, state: RTSState, params: RTSParams) -> jax.Array:
        if self.actions == "units":
            return self.by_unit.masks(state)
        legal = engine.legal_orders(state, self.walls)
        mask = cell_mask(legal) if self.actions == "cells" else gridnet_mask(state, legal)
        return player_masks(state, mask, TURNED[self.actions])

    def reset_env(self, key: jax.Array, params: RTSParams) -> tuple[Any, RTSState]:
        state = jax.tree.map(jnp.asarray, self.map.start())
        if self.actions == "units":
            state = begin_cycle(state)
        return self.observe(state, params), state

    def step_env(
        self, key: jax.Array, state: RTSState, action: Any, params: RTSParams
    ) -> tuple[Any, RTSState, jax.Array, jax.Array, dict[str, Any]]:
        if isinstance(state, CycleState):
            state, components, terminated = self._play_by_unit(state, action, params)
        else:
            state, components, terminated = self.play(state, self.orders(state, action), params)
        weights = {name: getattr(params, f"{name}_weight") for name in components}
        reward = sum(weights[name] * value for name, value in components.items())
        return (
            self.observe(state, params),
            state,
            reward,
            terminated,
            {"reward_components": components, RESULT: components["win"]},
        )

    def _play_by_unit(
        self, state: CycleState, action: dict[str, jax.Array], params: RTSParams
    ) -> tuple[RTSState, dict[str, jax.Array], jax.Array]:
        """Take both players' next orders, and play the cycle if they were the last; return what `play` does."""
        state, passes = self.by_unit.give(state, action)
        after, components, terminated = self.play(state, self.with_waits(state, state.pending.orders), params)
        state = tree_where(passes, begin_cycle(after), state)
        return state, {name: jnp.where(passes, value, 0.0) for name, value in components.items()}, passes & terminated

    def orders(self, state: RTSState, action: jax.Array) -> Orders:
        """Return the orders that both players' actions of a cycle give, and how long units wait that are given none."""
        return self.with_waits(state, self.given(state, action))

    def given(self, state: RTSState, action: jax.Array) -> Orders:
        """Return the orders that both players' actions of a cycle give; with "units" there are several, see `by_unit.plan`."""
        decode = orders_of_cells if self.actions == "cells" else orders_of_gridnet
        seen = jnp.stack([action[0], turn_actions(action[1], self.actions)])
        return drop_own_conflicts(state, decode(state, seen), engine.legal_orders(state, self.walls))

    def with_waits(self, state: RTSState, orders: Orders) -> Orders:
        """Return the orders, but units without one wait for as long as the game lets them: `waits`."""
        wait = self.waits.of(state, orders)
        # A unit that is to wait for one cycle is given no order.
        return orders.replace(parameter=jnp.where(orders.action == NONE, jnp.where(wait > 1, wait, 0), orders.parameter))

    def play(self, state: RTSState, orders: Orders, params: RTSParams) -> tuple[RTSState, dict[str, jax.Array], jax.Array]:
        """Play the cycles of a step with given orders, such as those of scripted players.

        Returns:
            The next state, the components of the reward f32 `[2]`, and whether the game is over.
        """
        before = engine.is_idle(state)
        ordered = engine.issue(state, orders, self.walls)
        state = engine.advance(engine.skip(ordered, params.max_cycles))
        winner = engine.winner(state)
        components = {"win": _win(winner), **_begun(ordered, before)}
        return state, components, (winner != engine.NOT_OVER) | (state.time >= params.max_cycles)

    @property
    def scripted(self) -> Mapping[str, ScriptedPlayer]:
        return {name: scripted_player(self, name) for name in SCRIPTED}

    def text(self, state: RTSState, params: RTSParams, player: int) -> str:
        visible = visible_cells(state, player) if self.fog else jnp.ones(state.unit.shape, bool)
        text = words.describe(with_pending(state, player), visible, player, self.walls, self.fog, params.max_cycles)
        if self.actions != "units" or self.observation != "entities":
            return text
        choices = self.by_unit.choices(state, player)
        cells = np.asarray(choices.cell)[np.asarray(choices.source)]
        names = words.cell_names(self.map.shape)[:: -1 if player else 1]
        places = zip(np.flatnonzero(choices.source), cells, strict=True)
        return f"{text}\nunits by number: " + ", ".join(f"{place} at {names[cell]}" for place, cell in places)

    def head_names(self, params: RTSParams) -> tuple[str, ...]:
        if self.actions == "units":
            return super().head_names(params)
        cells = words.cell_names(self.map.shape)
        return cells if self.actions == "cells" else tuple(f"{cell} {head}" for cell in cells for head in words.GRIDNET_HEADS)

    def action_names(self, params: RTSParams) -> tuple[str, ...]:
        cells = words.cell_names(self.map.shape)
        if self.actions == "cells":
            return words.ORDER_NAMES * len(cells)
        if self.actions == "gridnet":
            return tuple(name for head in words.GRIDNET_NAMES for name in head) * len(cells)
        # Which entity has which place changes from step to step.
        places = cells if self.observation != "entities" else tuple(map(str, range(self.max_entities)))
        return (*places, "end", *words.ORDER_NAMES)

    def render(self, state: RTSState, params: RTSParams) -> jax.Array:
        return picture.draw(with_pending(state), self.walls)


def _win(winner: jax.Array) -> jax.Array:
    players = np.arange(2)
    return jnp.where(winner < 0, 0.0, jnp.where(winner == players, 1.0, -1.0)).astype(jnp.float32)


@games_last
def _begun(state: RTSState, idle_before: jax.Array) -> dict[str, jax.Array]:
    """Return the numbers of actions of each kind that both players' units have just begun, f32 `[2]` each."""

    def products(kinds: tuple[int, ...]) -> jax.Array:
        return (state.action == PRODUCE) & jnp.any(jnp.stack([state.product == kind for kind in kinds]), axis=0)

    kinds = {
        "resource": (state.action == HARVEST) | (state.action == RETURN),
        "worker": products((WORKER,)),
        "building": products((BASE, BARRACKS)),
        "combat": products((LIGHT, HEAVY, RANGED)),
        "attack": state.action == ATTACK,
    }
    own = [idle_before & (state.owner == player) for player in range(2)]
    count = {name: [over_cells(jnp.add, (cells & new).astype(jnp.int16)) for new in own] for name, cells in kinds.items()}
    return {name: jnp.stack(pair).astype(jnp.float32) for name, pair in count.items()}
