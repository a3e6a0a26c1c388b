"""Melee: fights of a few units on a small map of MicroRTS, with teams of varied units, for experiments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.errors import ConfigError, did_you_mean, shown
from rljax.core.games.versus import VersusState
from rljax.envs.microrts.against_bots import MicroRTSBots
from rljax.envs.microrts.game import RTSParams
from rljax.envs.microrts.rules.units import HP, UNIT_NAMES, WORKER

MAP = "melee4x4light2"
"""Map whose units the teams replace: two for each player, in opposite corners."""

FIGHTERS = UNIT_NAMES[WORKER:]


class Melee(MicroRTSBots):
    """Two units fight two of a scripted player's, on a map of 4 x 4 cells.

    Observations, actions and rewards are those of `MicroRTSBots`. For each game the agent's team is drawn from `teams` and the
    other one from `others`, all with the same probability.

    Args:
        teams: pairs of units, such as `[["Light", "Ranged"]]`.
        others: pairs of units of the opponent.
        opponents: scripted players.
        wait_cycles: as in `MicroRTS`.
    """

    def __init__(
        self,
        teams: tuple[tuple[str, str], ...] = (("Light", "Light"),),
        others: tuple[tuple[str, str], ...] = (("Light", "Light"),),
        opponents: tuple[str, ...] = ("lightrush",),
        wait_cycles: int = 5,
    ):
        super().__init__(opponents, MAP, wait_cycles=wait_cycles)
        self.kinds = np.array([_kinds(team) for team in teams]), np.array([_kinds(team) for team in others])
        places = [[(each.row, each.column) for each in self.env.map.units if each.owner == player] for player in range(2)]
        # The second player looks from the other side, where its last unit is the first.
        self.rows, self.columns = np.array([places[0], places[1][::-1]]).transpose(2, 0, 1)

    @property
    def name(self) -> str:
        return "Melee"

    def reset_env(self, key: jax.Array, params: RTSParams) -> tuple[Any, VersusState]:
        key, *keys = jax.random.split(key, 3)
        _, state = super().reset_env(key, params)
        drawn = [jax.random.choice(k, jnp.asarray(kinds)) for k, kinds in zip(keys, self.kinds, strict=True)]
        kinds = jnp.stack(drawn)[jnp.array([0, 1]) ^ state.team]
        start = state.game
        game = start.replace(
            unit=start.unit.at[self.rows, self.columns].set(kinds.astype(start.unit.dtype)),
            hp=start.hp.at[self.rows, self.columns].set(jnp.asarray(HP)[kinds].astype(start.hp.dtype)),
        )
        state = state._replace(game=game, obs=self.env.observe(game, params))
        return self._team_part(state.team, state.obs), state


def _kinds(team: Any) -> list[int]:
    """Return the types of a pair of units."""
    if not isinstance(team, (list, tuple)) or len(team) != 2:
        raise ConfigError(f"Melee: team {shown(team)}: expected two units, such as ['Light', 'Heavy']")
    for unit in team:
        if unit not in FIGHTERS:
            raise ConfigError(f"Melee: unknown unit {shown(unit)}: {did_you_mean(str(unit), FIGHTERS)}")
    return [UNIT_NAMES.index(unit) for unit in team]
