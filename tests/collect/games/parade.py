"""A game of any players, teams and actions for tests, and the same in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.core.environments.spaces import Box, Dict, Discrete, MultiDiscrete, head_sizes
from rljax.core.games.game import Game
from rljax.core.games.versus import Remembering

SIZES = (3, 4)
SPACES: dict[str, Any] = {
    "discrete": Discrete(4),
    "multi": MultiDiscrete(SIZES),
    "heads": Dict({"word": Discrete(SIZES[0]), "number": Discrete(SIZES[1])}),
    "box": Box(0.0, 3.0, (2,)),
}


@struct.dataclass
class ParadeState:
    total: jax.Array
    out: jax.Array
    mover: jax.Array
    time: jax.Array


@struct.dataclass
class ParadeParams:
    steps: int = 7


class Parade(Game):
    """Each move is worth a number, which its player adds to its total and gets as its reward times its seat plus 1.

    The components of the reward are the number, "worth", and the rest, "seat"; the metric "most" is the largest total. Players
    report their totals as the entropies of their beliefs.

    Args:
        teams: team of each player.
        space: name in `SPACES`.
        turns: whether the players move one after the other.
        drops: whether a player whose total is 5 or more is out; without turns, player 0 also pauses at every third step.
    """

    def __init__(self, teams: tuple[int, ...], space: str = "discrete", turns: bool = False, drops: bool = False) -> None:
        self._teams, self.space, self.turns, self.drops = teams, space, turns, drops
        self.num_players = len(teams)

    @property
    def name(self) -> str:
        return "Parade"

    @property
    def default_params(self) -> ParadeParams:
        return ParadeParams()

    @property
    def teams(self) -> tuple[int, ...]:
        return self._teams

    @property
    def all_move(self) -> bool:
        return not (self.turns or self.drops)

    @property
    def turn_gap(self) -> int:
        return self.num_players - 1 if self.turns else 0

    def observation_space(self, params: ParadeParams) -> Dict:
        return Dict({"seat": Discrete(self.num_players), "totals": Box(0.0, 100.0, (self.num_players,))})

    def action_space(self, params: ParadeParams) -> Any:
        return SPACES[self.space]

    def to_move(self, state: ParadeState) -> jax.Array:
        seats = jnp.arange(self.num_players)
        if self.turns:
            return seats == state.mover
        if self.drops:
            return ~state.out & ~((seats == 0) & (state.time % 3 == 2) & (jnp.sum(~state.out) > 1))
        return jnp.ones(self.num_players, bool)

    def action_mask(self, state: ParadeState, params: ParadeParams) -> Any:
        """A second head never chooses what the first has chosen; at odd times, nobody's first head chooses 0."""
        if self.space == "box":
            return None
        waits = ~self.to_move(state)
        if self.space == "discrete":
            return (jnp.arange(4) > state.time % 2) | waits[:, None]
        legal = jnp.ones((7, 7), bool).at[jnp.arange(3), 3 + jnp.arange(3)].set(False).at[0, 0].set(state.time % 2 == 0)
        return jnp.where(waits[:, None, None], True, legal)

    def observe(self, state: ParadeState, params: ParadeParams) -> dict[str, jax.Array]:
        return {"seat": jnp.arange(self.num_players), "totals": jnp.tile(state.total, (self.num_players, 1))}

    def reset_env(self, key: jax.Array, params: ParadeParams) -> Any:
        zero = jnp.zeros((), jnp.int32)
        state = ParadeState(jnp.zeros(self.num_players), jnp.zeros(self.num_players, bool), zero, zero)
        return self.observe(state, params), state

    def step_env(self, key: jax.Array, state: ParadeState, action: Any, params: ParadeParams) -> Any:
        heads = [action["word"], action["number"]] if self.space == "heads" else jnp.moveaxis(jnp.atleast_2d(action.T), 0, 0)
        worth = heads[0] if len(heads) == 1 else 2 * heads[0] + heads[1]
        gain = jnp.where(self.to_move(state), worth, 0).astype(jnp.float32)
        total = state.total + gain
        out = total >= 5 if self.drops else state.out
        after = (state.mover + 1 + jnp.arange(self.num_players)) % self.num_players
        mover = after[jnp.argmax(~out[after])]
        state = ParadeState(total, out, mover, state.time + 1)
        components = {"worth": gain, "seat": gain * jnp.arange(self.num_players)}
        reward = components["worth"] + components["seat"]
        info = {"reward_components": components, "metrics": {"most": jnp.max(total)}, "belief_entropy": total}
        return self.observe(state, params), state, reward, (state.time >= params.steps) | jnp.all(out), info


def counting(space: str, shift: int) -> Remembering:
    """Player that counts its own moves and chooses by the count, its seat and `shift`; see `plain_choice`."""

    def act(key: jax.Array, state: Any, obs: Any, mask: Any, carry: Any) -> tuple[Any, Any]:
        return counted(space, shift, obs["seat"], carry)

    return Remembering(act)


def counted(space: str, shift: Any, seat: jax.Array, carry: Any) -> tuple[Any, Any]:
    """`(action, carry)` of `counting` for seats of any shape."""
    count = jnp.zeros(seat.shape, jnp.int32) if carry is None else carry["count"]
    values = [(2 * count + seat + shift + i) % size for i, size in enumerate(_sizes(space))]
    action: Any
    if space == "heads":
        action = dict(zip(("word", "number"), values, strict=True))
    elif space == "discrete":
        action = values[0]
    else:
        action = jnp.stack(values, axis=-1)
    return action if space != "box" else action.astype(jnp.float32), {"count": count + 1}


def _sizes(space: str) -> tuple[int, ...]:
    return head_sizes(SPACES[space]) or SIZES


def plain_choice(space: str, shift: int, seat: int, count: int) -> list[int]:
    return [(2 * count + seat + shift + i) % size for i, size in enumerate(_sizes(space))]


def plain_parade(
    game: Parade, choose: Callable[[int, int], Sequence[float]], steps: int = 7, by_seat: bool = True
) -> tuple[list[float], list[int], int]:
    """Play a game in plain Python; `choose(seat, number of its earlier moves)` returns the heads' values.

    Without `by_seat`, returns are those of the component "worth".

    Returns:
        The return of each team, the number of moves of each player, and the number of steps.
    """
    players = game.num_players
    total, moved, returns, mover, time = [0.0] * players, [0] * players, [0.0] * players, 0, 0
    while time < steps:
        alive = [seat for seat in range(players) if not (game.drops and total[seat] >= 5)]
        if not alive:
            break
        if game.turns:
            movers = [mover]
        elif game.drops:
            movers = [seat for seat in alive if not (seat == 0 and time % 3 == 2 and len(alive) > 1)]
        else:
            movers = alive
        for seat in movers:
            heads = choose(seat, moved[seat])
            worth = heads[0] if len(heads) == 1 else 2 * heads[0] + heads[1]
            total[seat] += worth
            returns[seat] += worth * (seat + 1 if by_seat else 1)
            moved[seat] += 1
        time += 1
        if game.turns:
            alive = [seat for seat in range(players) if not (game.drops and total[seat] >= 5)]
            mover = next((s for s in [(mover + 1 + i) % players for i in range(players)] if s in alive), 0)
    by_team = [[r for r, t in zip(returns, game.teams, strict=True) if t == team] for team in range(max(game.teams) + 1)]
    return [float(np.mean(members)) for members in by_team], moved, time
