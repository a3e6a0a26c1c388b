"""MicroRTSBots-v0: MicroRTS as an environment of one agent, against scripted players."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rljax.core.errors import ConfigError, shown
from rljax.core.games.versus import Versus, VersusState, drawn_carry, drawn_once, one_of, without_view
from rljax.envs.microrts.game import MicroRTS, RTSParams
from rljax.envs.microrts.rules import engine
from rljax.envs.microrts.scripted.bots import find_bots
from rljax.envs.microrts.scripted.players import actions_of, scripted_player, seen_by


class MicroRTSBots(Versus):
    """The agent plays one side of MicroRTS, drawn anew for each game, against a scripted player, which is drawn too.

    Observations, actions, masks, rewards and their components are those of `MicroRTS` for one player; the parameters are
    `RTSParams`.
    `info["metrics"]` has the share of games won, "win", and drawn, "draw".

    Args:
        opponents: names in `rljax.envs.microrts.scripted.bots.SCRIPTED`.
        map_name, actions, observation, fog, max_entities, wait_cycles, wait_until_change: as in `MicroRTS`.
    """

    def __init__(
        self,
        opponents: tuple[str, ...] = ("randombiased", "workerrush", "lightrush"),
        map_name: str = "basesWorkers8x8",
        actions: str = "cells",
        observation: str = "planes",
        fog: bool = False,
        max_entities: int = 64,
        wait_cycles: int = 1,
        wait_until_change: bool = False,
    ):
        if not isinstance(opponents, (list, tuple)) or not opponents:
            raise ConfigError(
                f"MicroRTSBots-v0: opponents = {shown(opponents)}: expected a list of names, such as ['workerrush']"
            )
        game = MicroRTS(map_name, actions, observation, fog, max_entities, wait_cycles, wait_until_change)
        super().__init__(game, one_of([without_view(scripted_player(game, name), None) for name in opponents]))
        self.opponents, self._bots = tuple(opponents), find_bots(opponents)

    @property
    def name(self) -> str:
        return "MicroRTSBots-v0"

    def _opponent_action(self, key: jax.Array, state: VersusState, params: RTSParams) -> tuple[Any, Any]:
        """Do what the opponent would, but for its seat only, and with one computation for all that rush."""
        draw_key, key = jax.random.split(key)
        which, memories = drawn_once(draw_key, state.carry, len(self.opponents), 2)
        seat = 1 - state.team
        memory = jax.tree.map(lambda x: x[seat], memories)
        seen = seen_by(self.env, state.game, seat, self.opponents)
        orders, memory = self._bots(which[0] - 1, key, seen, seat, self.env.walls, memory)
        if memories is not None:
            memories = jax.tree.map(lambda x, new: x.at[seat].set(new), memories, memory)
        return actions_of(self.env, state.game, orders), drawn_carry(which, memories)

    def step_env(
        self, key: jax.Array, state: VersusState, action: Any, params: RTSParams
    ) -> tuple[Any, VersusState, jax.Array, jax.Array, dict[str, Any]]:
        obs, state, reward, over, info = super().step_env(key, state, action, params)
        winner = engine.winner(state.game)
        metrics = {"win": winner == state.team, "draw": over & (winner < 0)}
        return obs, state, reward, over, info | {"metrics": {name: x.astype(jnp.float32) for name, x in metrics.items()}}
