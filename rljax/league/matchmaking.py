"""Matchmaking: prioritised fictitious self-play, and the record of results that it uses (Vinyals et al., 2019)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from rljax.core.errors import ConfigError, did_you_mean, shown

WEIGHTINGS = ("squared", "variance", "linear", "linear_capped")
"""Names of PFSP weights of an opponent that is beaten with probability x: (1-x)^2, x (1-x), 1-x, min(1/2, 1-x)."""

DECAY = 0.99
"""Factor by which a pair's record shrinks with each of its games."""


def pfsp_probabilities(
    win_rate: jax.Array,
    filled: jax.Array,
    weighting: str | float | jax.Array = "squared",
    min_probability: float | jax.Array = 0.0,
) -> jax.Array:
    """Return the probability of each opponent, f32 `[..., N]`.

    Args:
        win_rate: probability of beating each opponent, `[..., N]` in [0, 1].
        filled: which opponents exist, bool `[..., N]`.
        weighting: one of `WEIGHTINGS`, or a power p of (1 - x)^p.
        min_probability: lower bound of each opponent's probability; with too many opponents for it, all are equally likely.

    Returns:
        Probabilities that add up to 1: uniform if the weights sum to less than 1e-10, and all zeros if there is no opponent.

    Raises:
        ConfigError: the weighting is unknown.
    """
    x = jnp.clip(win_rate, 0.0, 1.0)
    if isinstance(weighting, str):
        if weighting not in WEIGHTINGS:
            raise ConfigError(f"weighting = {shown(weighting)}: {did_you_mean(weighting, WEIGHTINGS)}")
        weight = {
            "squared": jnp.square(1.0 - x),
            "variance": x * (1.0 - x),
            "linear": 1.0 - x,
            "linear_capped": jnp.minimum(0.5, 1.0 - x),
        }[weighting]
    else:
        weight = (1.0 - x) ** weighting
    weight = jnp.where(filled, weight, 0.0)
    count = jnp.sum(filled, axis=-1, keepdims=True)
    uniform = filled / jnp.maximum(count, 1)
    total = jnp.sum(weight, axis=-1, keepdims=True)
    probabilities = jnp.where(total > 1e-10, weight / jnp.maximum(total, 1e-10), uniform)
    share = jnp.minimum(min_probability * count, 1.0)
    return (1.0 - share) * probabilities + share * uniform


class Record(NamedTuple):
    """Results of pairs, from the view of the first player, each f32 `[N, N]`."""

    games: jax.Array
    wins: jax.Array
    draws: jax.Array
    losses: jax.Array


class Payoff(struct.PyTreeNode):
    """Results of every player against every other, in both directions; older games have a smaller weight.

    Attributes:
        record: `[N, N]`; entry `[i, j]` is the record of player i against player j.
    """

    record: Record

    @classmethod
    def empty(cls, players: int) -> Payoff:
        """Create a payoff without any games."""
        return cls(Record(*(jnp.zeros((players, players)) for _ in range(4))))

    def update(
        self, home: jax.Array, away: jax.Array, result: jax.Array, ended: jax.Array, decay: float | jax.Array = DECAY
    ) -> Payoff:
        """Add games. A pair with n new games keeps `decay ** n` of its earlier record.

        Args:
            home: players, i32 `[B]`.
            away: their opponents, i32 `[B]`; games of a player against itself do not count.
            result: result of `home`, `[B]`, from 1 for a win over 0 for a draw to -1 for a loss. In between, with more than two
                teams, part of the game is a draw.
            ended: which games count, bool `[B]`.
            decay: factor per game.
        """
        players = self.record.games.shape[0]
        counted = ended & (home != away)
        first = jax.nn.one_hot(home, players) * counted[:, None]
        second = jax.nn.one_hot(away, players)

        def pairs(which: jax.Array) -> jax.Array:
            return (first * which[:, None]).T @ second

        wins, draws, losses = pairs(jnp.maximum(result, 0.0)), pairs(1.0 - jnp.abs(result)), pairs(jnp.maximum(-result, 0.0))
        added = Record(wins + draws + losses, wins, draws, losses)
        mirrored = Record(added.games.T, losses.T, draws.T, wins.T)
        both = jax.tree.map(jnp.add, added, mirrored)
        kept = jnp.asarray(decay, jnp.float32) ** both.games
        return self.replace(record=jax.tree.map(lambda old, new: old * kept + new, self.record, both))

    def win_rate(self) -> jax.Array:
        """Return the win rate of each player against each, f32 `[N, N]`; a draw is half a win, and 1/2 stands where two never
        met.
        """
        games, wins, draws, _ = self.record
        return jnp.where(games > 0, (wins + 0.5 * draws) / jnp.maximum(games, 1e-10), 0.5)

    def clear(self, player: jax.Array, when: jax.Array) -> Payoff:
        """Clear a player's record if `when`, bool []: its place has a new player."""
        index = jnp.arange(self.record.games.shape[0])
        gone = when & ((index[:, None] == player) | (index == player))
        return self.replace(record=jax.tree.map(lambda x: jnp.where(gone, 0.0, x), self.record))
