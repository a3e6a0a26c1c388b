"""The seats of a team and those of its opponents, where all players move at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.core.games.game import Game


class Side(NamedTuple):
    """The seats of a team, or those of all others, in the order of play; one row for each team.

    Teams of fewer seats than the largest are padded with other seats, which are ignored.

    Attributes:
        seats: seats of the side, i32 `[teams, K]`.
        place: where each seat is among them, i32 `[teams, P]`; 0 for seats that are not of the side.
    """

    seats: np.ndarray
    place: np.ndarray

    def part(self, team: jax.Array, tree: Any) -> Any:
        """Return the part `[E, K, ...]` of the side, of leaves `[E, P, ...]`; `team` is that of each game, i32 `[E]`."""
        return _chosen(self.seats, team, tree)

    def whole(self, team: jax.Array, tree: Any) -> Any:
        """Undo `part`: return leaves `[E, P, ...]`, with anything for seats that are not of the side."""
        return _chosen(self.place, team, tree)


def _chosen(places: np.ndarray, team: jax.Array, tree: Any) -> Any:
    """Return the entries `places[team]` of the second axis of leaves `[E, N, ...]`."""

    def entries(x: jax.Array) -> jax.Array:
        found = []
        for of_teams in places.T:  # By choices among the few entries, which fuse where a gather would not.
            which = jnp.asarray(of_teams)[team].reshape(-1, *(1,) * (x.ndim - 2))
            entry = x[:, of_teams[0]]
            for place in sorted(set(of_teams.tolist()) - {of_teams[0]}):
                entry = jnp.where(which == place, x[:, place], entry)
            found.append(entry)
        return jnp.stack(found, axis=1)

    return jax.tree.map(entries, tree)


def sides(game: Game) -> tuple[Side, Side]:
    """Return the side of each team, and that of all others."""
    of_team = np.asarray(game.teams) == np.arange(game.num_teams)[:, None]

    def side(members: np.ndarray) -> Side:
        # A stable sort puts the members first.
        seats = np.argsort(~members, axis=1, kind="stable")[:, : members.sum(axis=1).max()]
        place = np.where(members, np.cumsum(members, axis=1) - 1, 0)
        return Side(seats.astype(np.int32), place.astype(np.int32))

    return side(of_team), side(~of_team)
