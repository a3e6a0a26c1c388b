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
"""Share of a pair's record that is left after each of its games."""


def pfsp_probabilities(
    win_rate: jax.Array,
    filled: jax.Array,
    weighting: str | float | jax.Array = "squared",
    min_probability: float | jax.Array = 0.0,
) -> jax.Array:
    """Return the probability of each opponent, f32 `[..., N]`.

    Args:
        win_rate: how likely it is beaten, `[..., N]` in [0, 1].
        filled: which there are, bool `[..., N]`.
        weighting: one of `WEIGHTINGS`, or a power p of (1 - x)^p.
        min_probability: of each that there is; where there are too many for it, all are equally likely.

    Returns:
        Probabilities that add up to 1; where all weights are 0 those of a uniform choice, and zeros where nobody is there.

    Raises:
        ConfigError: another weighting.
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
    """Results of pairs as the first of them had them, each f32 `[N, N]`."""

    games: jax.Array
    wins: jax.Array
    draws: jax.Array
    losses: jax.Array


class Payoff(struct.PyTreeNode):
    """Results of every player against every other, in both directions; old games count less and less.

    Attributes:
        record: `[N, N]`; entry `[i, j]` is of player i against player j.
    """

    record: Record

    @classmethod
    def empty(cls, players: int) -> Payoff:
        """No games yet."""
        return cls(Record(*(jnp.zeros((players, players)) for _ in range(4))))

    def update(
        self, home: jax.Array, away: jax.Array, result: jax.Array, ended: jax.Array, decay: float | jax.Array = DECAY
    ) -> Payoff:
        """Add games. A pair that had n of them keeps `decay ** n` of what was before.

        Args:
            home: players i32 `[B]`.
            away: their opponents i32 `[B]`; games of a player against itself do not count.
            result: of home: above 0 won, below 0 lost, 0 drawn, `[B]`.
            ended: which count, bool `[B]`.
            decay: per game.
        """
        players = self.record.games.shape[0]
        counted = ended & (home != away)
        first = jax.nn.one_hot(home, players) * counted[:, None]
        second = jax.nn.one_hot(away, players)

        def pairs(which: jax.Array) -> jax.Array:
            return (first * which[:, None]).T @ second

        wins, draws, losses = pairs(result > 0), pairs(result == 0), pairs(result < 0)
        added = Record(wins + draws + losses, wins, draws, losses)
        mirrored = Record(added.games.T, losses.T, draws.T, wins.T)
        both = jax.tree.map(jnp.add, added, mirrored)
        kept = jnp.asarray(decay, jnp.float32) ** both.games
        return self.replace(record=jax.tree.map(lambda old, new: old * kept + new, self.record, both))

    def win_rate(self) -> jax.Array:
        """Return the win rate of each player against each, a draw as half a win, f32 `[N, N]`; 1/2 where they never met."""
        games, wins, draws, _ = self.record
        return jnp.where(games > 0, (wins + 0.5 * draws) / jnp.maximum(games, 1e-10), 0.5)

    def clear(self, player: jax.Array, when: jax.Array) -> Payoff:
        """Forget a player's games, where `when`, bool []: somebody else has its place now."""
        index = jnp.arange(self.record.games.shape[0])
        gone = when & ((index[:, None] == player) | (index == player))
        return self.replace(record=jax.tree.map(lambda x: jnp.where(gone, 0.0, x), self.record))
