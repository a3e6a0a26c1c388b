"""Command-v0: build the numbers of units that a command requests."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.environments.environment import Environment, EnvParams
from rljax.core.environments.spaces import Box, Dict, Discrete
from rljax.core.errors import check_int
from rljax.envs import drawing


@struct.dataclass
class CommandState:
    """State: `commanded` and `built` are the numbers of units of each type, i32 `[num_units]`."""

    commanded: jax.Array
    built: jax.Array
    time: jax.Array


class Command(Environment):
    """A command z says how many units of each of K = `num_units` types to build; each of T = `num_builds` steps builds one.

    Observation, a dictionary: "observation" f32 `[K]`, the units built so far, and "goal" f32 `[K]`, the command z, both divided
    by T. Actions 0 .. K - 1: build one unit of that type. The command is uniform over all ways to divide T units among K types.
    The reward is the decrease of the distance `sum_k |built_k - z_k| / T`: 1 / T for a unit that is still needed, and -1 / T for
    one too many. Over an episode it adds up to 1 minus the final distance. `info["achieved"]` f32 `[K]` has the units built after
    the step, and `info["commanded"]` the command z, both divided by T, to compare them at the end of episodes.

    The best return is 1, for every command. Without the goal it is best to build T / K units of each type: `blind_return(K, T)`
    (0.296). The units built then do not depend on z, so their R2 is at most 0. The uniform policy has `uniform_return(K, T)`
    (0.226). Build orders as statistics z: Vinyals et al., "Grandmaster level in StarCraft II" (2019).
    """

    reward_threshold = 0.95

    def __init__(self, num_units: int = 4, num_builds: int = 16):
        check_int("Command-v0", 2, num_units=num_units)
        check_int("Command-v0", 1, num_builds=num_builds)
        self.num_units = num_units
        self.num_builds = num_builds
        self._commands = all_commands(num_units, num_builds)

    @property
    def name(self) -> str:
        return "Command-v0"

    @property
    def default_params(self) -> EnvParams:
        return EnvParams(max_steps_in_episode=self.num_builds)

    def observation_space(self, params: EnvParams) -> Dict:
        return Dict({"observation": Box(0.0, 1.0, (self.num_units,)), "goal": Box(0.0, 1.0, (self.num_units,))})

    def action_space(self, params: EnvParams) -> Discrete:
        return Discrete(self.num_units)

    def reset_env(self, key: jax.Array, params: EnvParams) -> tuple[dict[str, jax.Array], CommandState]:
        index = (jax.random.uniform(key) * len(self._commands)).astype(jnp.int32)
        state = CommandState(jnp.asarray(self._commands)[index], jnp.zeros(self.num_units, jnp.int32), jnp.zeros((), jnp.int32))
        return self._observe(state), state

    def step_env(
        self, key: jax.Array, state: CommandState, action: jax.Array, params: EnvParams
    ) -> tuple[dict[str, jax.Array], CommandState, jax.Array, jax.Array, dict[str, Any]]:
        unit = jnp.arange(self.num_units) == action
        wanted = jnp.any(unit & (state.built < state.commanded))
        reward = jnp.where(wanted, 1.0, -1.0).astype(jnp.float32) / self.num_builds
        state = CommandState(state.commanded, state.built + unit.astype(jnp.int32), state.time + 1)
        obs = self._observe(state)
        info = {"achieved": obs["observation"], "commanded": obs["goal"]}
        return obs, state, reward, state.time >= self.num_builds, info

    def render(self, state: CommandState, params: EnvParams) -> jax.Array:
        picture = drawing.canvas(256, 256, (0.5, 0.5), 1.2)
        width = 1.0 / self.num_units
        for unit in range(self.num_units):
            x = (unit + 0.5) * width
            built = jnp.clip(state.built[unit] / self.num_builds, 0.0, 1.0)
            asked = jnp.clip(state.commanded[unit] / self.num_builds, 0.0, 1.0)
            color = jnp.where(built > asked, jnp.asarray(drawing.RED), jnp.asarray(drawing.BLUE))
            picture = drawing.rectangle(picture, x, 0.5, 0.7 * width, 1.0, (236, 236, 233))
            picture = drawing.rectangle(picture, x, built / 2, 0.7 * width, built, color)
            picture = drawing.rectangle(picture, x, asked, 0.9 * width, 0.02, drawing.GOLD)
        return drawing.finish(drawing.capsule(picture, 0.0, 0.0, 1.0, 0.0, 0.006, drawing.INK))

    def _observe(self, state: CommandState) -> dict[str, jax.Array]:
        return {
            "observation": state.built.astype(jnp.float32) / self.num_builds,
            "goal": state.commanded.astype(jnp.float32) / self.num_builds,
        }


def all_commands(num_units: int, num_builds: int) -> np.ndarray:
    """Return all ways to divide T units among K types, i32 `[C(T + K - 1, K - 1), K]`: gaps between K - 1 bars (Feller, 1950)."""
    places = num_builds + num_units - 1
    bars = np.array(list(itertools.combinations(range(places), num_units - 1)), np.int32)
    ends = np.full((len(bars), 1), places, np.int32)
    return np.diff(np.concatenate([np.full_like(ends, -1), bars, ends], axis=1), axis=1) - 1


def blind_return(num_units: int, num_builds: int) -> float:
    """Return the best mean return of a policy that does not see the command and builds the types as equally as T allows.

    The command requests j units of a type with probability `C(T - j + K - 2, K - 2) / C(T + K - 1, K - 1)`, the same for all
    types.
    """
    more, least = num_builds % num_units, num_builds // num_units
    distance = _distance(least, num_units, num_builds), _distance(least + 1, num_units, num_builds)
    return 1.0 - ((num_units - more) * distance[0] + more * distance[1]) / num_builds


def uniform_return(num_units: int, num_builds: int) -> float:
    """Return the mean return of the uniform policy, whose numbers of units of each type are binomial."""
    chance = 1.0 / num_units
    distance = sum(
        math.comb(num_builds, n) * chance**n * (1.0 - chance) ** (num_builds - n) * _distance(n, num_units, num_builds)
        for n in range(num_builds + 1)
    )
    return 1.0 - num_units * distance / num_builds


def _distance(built: int, num_units: int, num_builds: int) -> float:
    """Return the mean of `|built - commanded|` for one type."""
    ways = [math.comb(num_builds - j + num_units - 2, num_units - 2) for j in range(num_builds + 1)]
    return sum(abs(built - j) * w for j, w in enumerate(ways)) / sum(ways)
