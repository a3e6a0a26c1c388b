"""Ratings of players whose strength is known, and equilibria of known games."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from rljax.league.ratings import elo, nash_mixture, plackett_luce

TRUE = np.array([1000.0, 1200.0, 900.0, 1600.0])


def results(games: int, seed: int) -> np.ndarray:
    """Wins `[N, N]` of players of `TRUE` strength, each pair with as many games."""
    rng = np.random.default_rng(seed)
    chance = 1 / (1 + 10 ** ((TRUE - TRUE[:, None]) / 400))
    wins = np.zeros((4, 4))
    for i in range(4):
        for j in range(i):
            wins[i, j] = rng.binomial(games, chance[i, j])
            wins[j, i] = games - wins[i, j]
    return wins


@pytest.mark.slow
def test_elo_finds_the_strengths_and_its_intervals_hold_them() -> None:
    many = elo(jnp.asarray(results(100_000, 0)))
    np.testing.assert_allclose(many.rating, TRUE, atol=8.0)
    assert float(many.rating[0]) == float(many.low[0]) == float(many.high[0]) == 1000.0
    wins = jnp.stack([jnp.asarray(results(60, seed)) for seed in range(400)])
    rated = jax.jit(jax.vmap(lambda w: elo(w, prior=0.01)))(wins)
    inside = np.asarray((rated.low <= TRUE) & (rated.high >= TRUE))[:, 1:].mean(0)
    assert (inside > 0.91).all(), inside
    assert (inside < 0.99).all(), inside


@pytest.mark.slow
def test_who_wins_everything_has_a_finite_rating_and_draws_are_halves() -> None:
    never_beaten = elo(jnp.array([[0.0, 20.0], [0.0, 0.0]]), anchor=1)
    assert 1300 < float(never_beaten.rating[0]) < 2500
    assert float(never_beaten.high[0] - never_beaten.low[0]) > 300
    even = elo(jnp.array([[0.0, 5.0], [5.0, 0.0]]))
    np.testing.assert_allclose(even.rating, [1000.0, 1000.0], atol=1e-2)


@pytest.mark.long
def test_plackett_luce_of_two_is_elo_and_of_four_finds_the_strengths() -> None:
    wins = results(50, 1)
    rankings = [(i, j) for i in range(4) for j in range(4) for _ in range(int(wins[i, j]))]
    pairs = plackett_luce(jnp.array(rankings), 4)
    for a, b in zip(pairs, elo(jnp.asarray(wins)), strict=True):
        np.testing.assert_allclose(a, b, atol=0.5)
    rng = np.random.default_rng(0)
    # The order of exponential clocks that run at the players' strengths is Plackett's; the second half of the games has three.
    order = np.argsort(rng.exponential(size=(40_000, 4)) / 10 ** (TRUE / 400), axis=1)
    absent = rng.integers(0, 4, 20_000)
    three = order[20_000:][order[20_000:] != absent[:, None]].reshape(-1, 3)
    order[20_000:] = np.concatenate([three, np.full((20_000, 1), -1)], axis=1)
    np.testing.assert_allclose(plackett_luce(jnp.asarray(order), 4).rating, TRUE, atol=15.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rankings",
    [
        [[0, 1, 2, -1], [1, 0, -1, -1]],
        [[0, 1, 2, 3], [3, 2, -1, -1], [1, -1, -1, -1], [-1, -1, -1, -1], [2, 0, 1, -1]],
        [[0, -1, 1, -1, -1], [-1, 2, -1, 1, 3], [3, 1, 0, -1, 2]],
    ],
)
def test_plackett_luce_with_places_that_are_not_taken_has_the_greatest_likelihood(rankings: list[list[int]]) -> None:
    players, prior = 4, 0.5

    def loss(free: np.ndarray) -> float:
        """In plain Python and f64: minus the log of the likelihood, with the games drawn with player 0."""
        strength = [0.0, *free]
        total = 0.0
        for row in rankings:
            left = [player for player in row if player >= 0]
            while left:
                total -= strength[left[0]] - math.log(sum(math.exp(strength[player]) for player in left))
                left = left[1:]
        return total + sum(0.5 * prior * (math.log1p(math.exp(-s)) + math.log1p(math.exp(s))) for s in free)

    best = scipy.optimize.minimize(loss, np.zeros(players - 1), tol=1e-12).x
    h = 1e-4
    steps = np.eye(players - 1) * h
    curvature = np.array([
        [(loss(best + a + b) - loss(best + a - b) - loss(best - a + b) + loss(best - a - b)) / (4 * h * h) for b in steps]
        for a in steps
    ])  # fmt: skip
    points = 400 / math.log(10)
    half = 1.959964 * points * np.sqrt(np.diagonal(np.linalg.inv(curvature)))
    found = plackett_luce(jnp.array(rankings), players, prior=prior)
    np.testing.assert_allclose(found.rating, 1000 + points * np.array([0.0, *best]), atol=0.1)
    np.testing.assert_allclose(found.high - found.rating, [0.0, *half], rtol=1e-3, atol=0.1)


@pytest.mark.parametrize(
    ("payoff", "row", "column", "value"),
    [
        ([[0, -25, 50], [25, 0, -5], [-50, 5, 0]], [1 / 16, 10 / 16, 5 / 16], [1 / 16, 10 / 16, 5 / 16], 0.0),
        ([[3, -2], [-2, 1]], [0.375, 0.625], [0.375, 0.625], -1 / 8),
        ([[1, 2, 3], [0, 1, 5]], [1.0, 0.0], [1.0, 0.0, 0.0], 1.0),
    ],
)
def test_equilibria_of_known_games(payoff: list[list[float]], row: list[float], column: list[float], value: float) -> None:
    found = jax.jit(nash_mixture)(jnp.array(payoff, jnp.float32))
    np.testing.assert_allclose(found.row, row, atol=2e-3)
    np.testing.assert_allclose(found.column, column, atol=2e-3)
    assert float(found.value) == pytest.approx(value, abs=0.05)
    matrix = np.array(payoff, float)
    gap = (matrix @ np.asarray(found.column)).max() - (np.asarray(found.row) @ matrix).min()
    assert gap < 1e-3 * np.abs(matrix).max()
