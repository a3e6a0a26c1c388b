"""Ratings from results: Elo and Plackett-Luce with confidence intervals, and the equilibrium of a payoff matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

SCALE = 400.0 / math.log(10.0)
"""Elo points per unit of log strength: 400 points are a factor of 10 in the odds."""

ANCHOR_RATING = 1000.0
_NEWTON_STEPS, _LONGEST_STEP, _Z95 = 50, 2.0, 1.959964
_NOBODY = -1e30
"""Log strength at an empty place of a ranking."""


class Ratings(NamedTuple):
    """Elo points f32 `[N]`, and the ends of their 95 % intervals; the anchor has 1000 and no interval."""

    rating: jax.Array
    low: jax.Array
    high: jax.Array


def elo(wins: jax.Array, anchor: int = 0, prior: float = 0.5) -> Ratings:
    """Return maximum-likelihood ratings of the model that i beats j with odds 10^((r_i - r_j) / 400) (Elo, 1978; Bradley and
    Terry, 1952).

    All games are fitted together, so their order does not matter.

    Args:
        wins: number of wins of i over j, `[N, N]`; a draw counts half for both.
        anchor: index of the player whose rating is fixed at 1000.
        prior: number of drawn games against the anchor that every player gets in advance, above 0; without it, a player who won
            or lost all games would have no finite rating.
    """
    players = wins.shape[0]
    others = jnp.arange(players) != anchor
    extra = 0.5 * prior * others
    counted = jnp.where(jnp.eye(players, dtype=bool), 0.0, wins).at[:, anchor].add(extra).at[anchor].add(extra)
    return _fitted(lambda s: -jnp.sum(counted * jax.nn.log_sigmoid(s[:, None] - s)), players, anchor)


def plackett_luce(
    rankings: jax.Array, players: int, anchor: int = 0, prior: float = 0.5, weights: jax.Array | None = None
) -> Ratings:
    """Return maximum-likelihood ratings from games of any number of players (Plackett, 1975).

    The model draws the winner in proportion to strength, then the second among the others, and so on. For games of two players
    it is `elo`.

    Args:
        rankings: the players of each game from the first place to the last, i32 `[G, K]`; -1 at empty places.
        players: number of players N.
        anchor: as in `elo`.
        prior: as in `elo`.
        weights: number of games with each ranking, f32 `[G]`, if a row stands for several games or for a part of one, as where
            places are shared; None: one each.
    """
    there = rankings >= 0
    others = jnp.arange(players) != anchor

    def loss(strength: jax.Array) -> jax.Array:
        # Finite at empty places: the gradient of the log of a sum of two zeros would be NaN.
        placed = jnp.where(there, strength[jnp.maximum(rankings, 0)], _NOBODY)
        # The log of the sum of strengths over the players that were not placed before.
        left = jax.lax.cumlogsumexp(placed, axis=1, reverse=True)
        each = jnp.sum(jnp.where(there, placed - jnp.where(there, left, 0.0), 0.0), axis=1)
        likely = jnp.sum(each if weights is None else weights * each)
        ahead = strength - strength[anchor]
        drawn = jax.nn.log_sigmoid(ahead) + jax.nn.log_sigmoid(-ahead)
        return -likely - 0.5 * prior * jnp.sum(jnp.where(others, drawn, 0.0))

    return _fitted(loss, players, anchor)


def _fitted(loss: Callable[[jax.Array], jax.Array], players: int, anchor: int) -> Ratings:
    """Minimise the loss by Newton's method over all strengths except the anchor's; intervals come from the curvature at the
    minimum.
    """
    free = jnp.array([i for i in range(players) if i != anchor], jnp.int32)

    def of(x: jax.Array) -> jax.Array:
        return loss(jnp.zeros(players).at[free].set(x))

    def step(_: int, x: jax.Array) -> jax.Array:
        move = jnp.linalg.solve(jax.hessian(of)(x), jax.grad(of)(x))
        return x - move * jnp.minimum(1.0, _LONGEST_STEP / jnp.maximum(jnp.max(jnp.abs(move)), 1e-10))

    x = jax.lax.fori_loop(0, _NEWTON_STEPS, step, jnp.zeros(players - 1)) if players > 1 else jnp.zeros(0)
    deviation = jnp.sqrt(jnp.diagonal(jnp.linalg.inv(jax.hessian(of)(x)))) if players > 1 else jnp.zeros(0)
    rating = ANCHOR_RATING + SCALE * jnp.zeros(players).at[free].set(x)
    half = _Z95 * SCALE * jnp.zeros(players).at[free].set(deviation)
    return Ratings(rating, rating - half, rating + half)


class Equilibrium(NamedTuple):
    """Mixed strategies over rows, f32 `[R]`, and columns, f32 `[C]`, and the value of the game for the row player, f32 []."""

    row: jax.Array
    column: jax.Array
    value: jax.Array


def nash_mixture(payoff: jax.Array, iterations: int = 20_000) -> Equilibrium:
    """Return an equilibrium of a zero-sum matrix game.

    The method is regret matching+ with alternating updates and linear averages (Tammelin et al., 2015).

    Args:
        payoff: rewards of the row player, `[R, C]`; for win rates, pass `2 rate - 1`.
        iterations: number of iterations; exploitability falls about as 1 / iterations.
    """
    rows, columns = payoff.shape

    def matched(regret: jax.Array) -> jax.Array:
        total = jnp.sum(regret)
        return jnp.where(total > 0, regret / jnp.maximum(total, 1e-30), 1.0 / regret.shape[0])

    def step(i: jax.Array, loop: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        row_regret, column_regret, row_sum, column_sum = loop
        column = matched(column_regret)
        gains = payoff @ column
        row_regret = jnp.maximum(row_regret + gains - matched(row_regret) @ gains, 0.0)
        row = matched(row_regret)
        losses = row @ payoff
        column_regret = jnp.maximum(column_regret + column @ losses - losses, 0.0)
        weight = 2.0 * (i + 1.0) / (iterations * (iterations + 1.0))
        return row_regret, column_regret, row_sum + weight * row, column_sum + weight * matched(column_regret)

    start = (jnp.zeros(rows), jnp.zeros(columns), jnp.zeros(rows), jnp.zeros(columns))
    _, _, row, column = jax.lax.fori_loop(0, iterations, step, start)
    row, column = row / jnp.sum(row), column / jnp.sum(column)
    return Equilibrium(row, column, row @ payoff @ column)
