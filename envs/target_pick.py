"""TargetPick-v0: from a set of targets, pick the one of the requested kind that is nearest to the beacon."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.environments.environment import Environment, bounded
from rljax.core.environments.spaces import Box, Dict, Discrete
from rljax.core.errors import ConfigError, check_int
from rljax.envs import drawing


@struct.dataclass
class TargetPickState:
    """State: `bearing` f32 `[E]`; `kind` i32 `[E]`, `num_kinds` for the beacon; `present` bool `[E]`; requested `asked` i32."""

    bearing: jax.Array
    kind: jax.Array
    present: jax.Array
    asked: jax.Array
    time: jax.Array


@struct.dataclass
class TargetPickParams:
    """Parameters: the number of targets is uniform in `min_targets .. max_targets`, and must be less than the capacity."""

    min_targets: int = 2
    max_targets: int = 6
    num_picks: int = bounded(8, ge=1)


class TargetPick(Environment):
    """Targets and one beacon stand on the unit circle; all of them are drawn anew after each pick, `num_picks` per episode.

    Observation, a dictionary (E = `capacity`, K = `num_kinds`): "entities" f32 `[E, 3 + K]`, each with its position (x, y), its
    kind (one-hot) and whether it is the beacon, which is at a random place in the list; "entity_mask" bool `[E]`, the entities
    that are present, always the first ones, where the rest are zeros; "query" f32 `[K]`, the requested kind, one-hot.
    Actions 0 .. E - 1: pick that entity; the action mask is "entity_mask". The reward is 1 for the target of the requested kind
    that is nearest to the beacon, else 0. The requested kind is that of a random target, so at least one target has it.

    The best return is `num_picks` (8). The uniform policy is right with probability 1 / (n + 1) for n targets (1.75 per episode),
    and a random target of the requested kind with `K (1 - (1 - 1 / K)^n) / n` (4.03; `kind_return`). A policy that scores each
    target only by itself and the query does not see the beacon, and has at most 4.45: its best pick is the target of the kind
    that is nearest to the largest part of the circle. So a policy must relate entities.
    Evaluate with other `min_targets` and `max_targets` to test numbers that did not occur in training.
    Entities, attention and pointers: Vinyals et al., "Grandmaster level in StarCraft II" (2019).
    """

    reward_threshold = 7.2

    def __init__(self, capacity: int = 16, num_kinds: int = 2):
        check_int("TargetPick-v0", 3, capacity=capacity)
        check_int("TargetPick-v0", 1, num_kinds=num_kinds)
        self.capacity = capacity
        self.num_kinds = num_kinds

    @property
    def name(self) -> str:
        return "TargetPick-v0"

    @property
    def default_params(self) -> TargetPickParams:
        return TargetPickParams(max_targets=min(6, self.capacity - 1))

    def observation_space(self, params: TargetPickParams) -> Dict:
        low, high = params.min_targets, params.max_targets
        known = all(isinstance(count, (int, np.integer)) for count in (low, high))  # a traced one has no value
        if known and not 1 <= low <= high < self.capacity:
            raise ConfigError(
                f"TargetPick-v0: min_targets = {low}, max_targets = {high}:"
                f" expected 1 <= min_targets <= max_targets <= capacity - 1 = {self.capacity - 1}"
            )
        return Dict(
            {
                "entities": Box(-1.0, 1.0, (self.capacity, 3 + self.num_kinds)),
                "entity_mask": Box(0, 1, (self.capacity,), jnp.bool_),
                "query": Box(0.0, 1.0, (self.num_kinds,)),
            }
        )

    def action_space(self, params: TargetPickParams) -> Discrete:
        return Discrete(self.capacity)

    def reset_env(self, key: jax.Array, params: TargetPickParams) -> tuple[dict[str, jax.Array], TargetPickState]:
        state = self._draw(key, jnp.zeros((), jnp.int32), params)
        return self._observe(state), state

    def step_env(
        self, key: jax.Array, state: TargetPickState, action: jax.Array, params: TargetPickParams
    ) -> tuple[dict[str, jax.Array], TargetPickState, jax.Array, jax.Array, dict[str, Any]]:
        reward = jnp.any(self.right(state) & (jnp.arange(self.capacity) == action)).astype(jnp.float32)
        state = self._draw(key, state.time + 1, params)
        return self._observe(state), state, reward, state.time >= params.num_picks, {}

    def action_mask(self, state: TargetPickState, params: TargetPickParams) -> jax.Array:
        return state.present

    def right(self, state: TargetPickState) -> jax.Array:
        """Return which entity is the right pick, bool `[E]`."""
        beacon = jnp.sum(jnp.where(state.present & (state.kind == self.num_kinds), state.bearing, 0.0))
        nearness = jnp.cos(state.bearing - beacon)
        nearness = jnp.where(state.present & (state.kind == state.asked), nearness, -2.0)
        return (nearness == jnp.max(nearness)) & (nearness >= -1.5)

    def render(self, state: TargetPickState, params: TargetPickParams) -> jax.Array:
        picture = drawing.canvas(256, 256, (0.0, 0.0), 3.0)
        picture = drawing.circle(picture, 0.0, 0.0, 1.01, drawing.GREY)
        picture = drawing.circle(picture, 0.0, 0.0, 0.99, drawing.PAPER)
        palette = jnp.asarray([drawing.BLUE, drawing.RED, drawing.GREEN, (140, 110, 170)], jnp.float32)

        def entity(picture: drawing.Canvas, one: tuple[jax.Array, ...]) -> tuple[drawing.Canvas, None]:
            bearing, kind, present, right = one
            x, y = jnp.cos(bearing), jnp.sin(bearing)
            beacon = kind == self.num_kinds
            # The shape of an absent entity, or of a wrong pick, has no size.
            ring = jnp.where(present & right, 0.24, -1.0)
            picture = drawing.circle(picture, x, y, ring, drawing.INK)
            picture = drawing.circle(picture, x, y, ring - 0.03, drawing.PAPER)
            picture = drawing.circle(picture, x, y, jnp.where(present & ~beacon, 0.16, -1.0), palette[kind % len(palette)])
            size = jnp.where(present & beacon, 0.3, -2.0)
            return drawing.rectangle(picture, x, y, size, size, drawing.GOLD, angle=math.pi / 4), None

        picture, _ = jax.lax.scan(entity, picture, (state.bearing, state.kind, state.present, self.right(state)))
        picture = drawing.circle(picture, 0.0, 0.0, 0.3, drawing.INK)
        return drawing.finish(drawing.circle(picture, 0.0, 0.0, 0.26, palette[state.asked % len(palette)]))

    def _draw(self, key: jax.Array, time: jax.Array, params: TargetPickParams) -> TargetPickState:
        # One random word for each entity, with high bits for the bearing and low bits for the kind, and three more words.
        words = jax.random.bits(key, (self.capacity + 3,))
        of_entities, (for_count, for_beacon, for_asked) = words[:-3], words[-3:]
        bearing = (of_entities >> 8).astype(jnp.float32) * (2.0 * math.pi / 2**24)
        kind = _below(self.num_kinds, of_entities << 24)
        count = params.min_targets + _below(params.max_targets - params.min_targets + 1, for_count)
        places = jnp.arange(self.capacity)
        present = places <= count
        beacon = places == _below(count + 1, for_beacon)
        # The requested kind is that of a random target: the r-th entity after the beacon, in a ring.
        like = (_place_of(beacon) + 1 + _below(count, for_asked)) % (count + 1)
        asked = jnp.sum(jnp.where(places == like, kind, 0))
        kind = jnp.where(beacon, self.num_kinds, kind)
        return TargetPickState(jnp.where(present, bearing, 0.0), kind, present, asked, time)

    def _observe(self, state: TargetPickState) -> dict[str, jax.Array]:
        position = jnp.stack([jnp.cos(state.bearing), jnp.sin(state.bearing)], axis=1)
        kind = (state.kind[:, None] == jnp.arange(self.num_kinds + 1)).astype(jnp.float32)
        entities = jnp.where(state.present[:, None], jnp.concatenate([position, kind], axis=1), 0.0)
        query = (jnp.arange(self.num_kinds) == state.asked).astype(jnp.float32)
        return {"entities": entities, "entity_mask": state.present, "query": query}


def kind_return(params: TargetPickParams, num_kinds: int = 2) -> float:
    """Return the mean return of a policy that picks a random target of the requested kind: 1 / m per pick among m of them.

    The requested kind is that of one of n targets, and each of the others has it with probability 1 / K.
    """
    counts = range(params.min_targets, params.max_targets + 1)
    return params.num_picks * sum(num_kinds * (1.0 - (1.0 - 1.0 / num_kinds) ** n) / n for n in counts) / len(counts)


def _below(limit: Any, word: jax.Array) -> jax.Array:
    """Return an integer in `0 .. limit - 1` from the 24 high bits of a random word, i32 of its shape."""
    unit = (word >> 8).astype(jnp.float32) * 2.0**-24
    return jnp.minimum((unit * limit).astype(jnp.int32), limit - 1)


def _place_of(one_hot: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(one_hot, jnp.arange(one_hot.shape[0]), 0))
