"""PFSP's formula, payoffs by plain Python, and a pool whose evictions are as likely as stated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.league.matchmaking import Payoff, pfsp_probabilities
from rljax.league.pool import NOBODY, Pool

RATES = jnp.array([0.9, 0.5, 0.2, 0.0, 1.0])
FILLED = jnp.array([True, True, True, False, True])


@pytest.mark.parametrize(
    ("weighting", "weights"),
    [
        ("squared", [0.01, 0.25, 0.64, 0.0, 0.0]),
        ("variance", [0.09, 0.25, 0.16, 0.0, 0.0]),
        ("linear", [0.1, 0.5, 0.8, 0.0, 0.0]),
        ("linear_capped", [0.1, 0.5, 0.5, 0.0, 0.0]),
        (3.0, [0.001, 0.125, 0.512, 0.0, 0.0]),
    ],
)
def test_pfsp_is_its_formula_and_draws_are_as_likely(weighting: str | float, weights: list[float]) -> None:
    probabilities = pfsp_probabilities(RATES, FILLED, weighting)
    np.testing.assert_allclose(probabilities, np.array(weights) / sum(weights), rtol=1e-5)
    drawn = jax.random.categorical(jax.random.key(0), jnp.log(probabilities), shape=(20_000,))
    counts = np.bincount(drawn, minlength=5)
    expected = 20_000 * np.asarray(probabilities)
    there = expected > 0
    assert counts[~there].sum() == 0
    assert (np.square(counts - expected)[there] / expected[there]).sum() < 30.0  # 1e-5 quantile of chi-square with 3: 26


def test_pfsp_where_weights_vanish_and_with_a_least_probability() -> None:
    sure = jnp.ones(5)
    np.testing.assert_allclose(pfsp_probabilities(sure, FILLED), np.array([1, 1, 1, 0, 1]) / 4)
    np.testing.assert_array_equal(pfsp_probabilities(sure, jnp.zeros(5, bool)), np.zeros(5))
    nearly = 1.0 - jnp.array([2.0, 1.0, 1.0, 8.0, 4.0]) * 2.0**-20  # squared, their shares sum to 2e-11
    np.testing.assert_allclose(pfsp_probabilities(nearly, FILLED), np.array([1, 1, 1, 0, 1]) / 4)
    np.testing.assert_allclose(pfsp_probabilities(nearly, FILLED, "linear"), np.array([2, 1, 1, 0, 4]) / 8, rtol=1e-5)
    least = pfsp_probabilities(RATES, FILLED, "squared", 0.1)
    np.testing.assert_allclose(least, 0.6 * np.array([0.01, 0.25, 0.64, 0, 0]) / 0.9 + 0.1 * np.array([1, 1, 1, 0, 1]), rtol=1e-5)
    np.testing.assert_allclose(pfsp_probabilities(RATES, FILLED, "squared", 0.9), np.array([1, 1, 1, 0, 1]) / 4, atol=1e-7)
    assert pfsp_probabilities(jnp.stack([RATES, sure]), FILLED).shape == (2, 5)
    with pytest.raises(rljax.ConfigError, match="did you mean 'squared'"):
        pfsp_probabilities(RATES, FILLED, "square")


def test_payoffs_are_those_of_plain_python() -> None:
    """Batches of games among four players, with games under way and against oneself in them."""
    rng, payoff = np.random.default_rng(0), Payoff.empty(4)
    assert (payoff.win_rate() == 0.5).all()
    table = np.zeros((4, 4, 3))  # wins, draws, losses
    for _ in range(5):
        home, away = rng.integers(0, 4, (2, 30))
        result, ended = rng.integers(-1, 2, 30), rng.random(30) < 0.7
        payoff = jax.jit(Payoff.update)(payoff, *map(jnp.asarray, (home, away, result, ended)))
        new = np.zeros((4, 4, 3))
        for i, j, r in zip(home[ended], away[ended], result[ended], strict=True):
            if i != j:
                new[i, j, 1 - r] += 1
                new[j, i, 1 + r] += 1
        table = table * 0.99 ** new.sum(-1, keepdims=True) + new
    np.testing.assert_allclose(payoff.record.games, table.sum(-1), rtol=1e-5)
    for got, expected in zip(payoff.record[1:], np.moveaxis(table, -1, 0), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)
    off = ~np.eye(4, dtype=bool)
    rate = (table[..., 0] + 0.5 * table[..., 1])[off] / table.sum(-1)[off]
    np.testing.assert_allclose(np.asarray(payoff.win_rate())[off], rate, rtol=1e-5)
    np.testing.assert_allclose(payoff.win_rate() + payoff.win_rate().T, np.ones((4, 4)), rtol=1e-5)
    cleared = payoff.clear(jnp.int32(2), jnp.array(True))
    assert (cleared.win_rate()[2] == 0.5).all()
    assert (cleared.record.games[:, 2] == 0).all()
    np.testing.assert_array_equal(cleared.record.wins[:2, :2], payoff.record.wins[:2, :2])
    np.testing.assert_array_equal(payoff.clear(jnp.int32(2), jnp.array(False)).record.wins, payoff.record.wins)


def test_a_game_between_a_win_and_a_loss_counts_in_part() -> None:
    """Ahead of one of two other teams and level with the second, or behind it."""
    home, away, all_ended = jnp.array([0, 0, 0]), jnp.array([1, 2, 3]), jnp.ones(3, bool)
    payoff = Payoff.empty(4).update(home, away, jnp.array([0.5, 0.0, -0.5]), all_ended)
    np.testing.assert_allclose(payoff.win_rate()[0], [0.5, 0.75, 0.5, 0.25])
    np.testing.assert_allclose(payoff.win_rate()[:, 0], [0.5, 0.25, 0.5, 0.75])
    np.testing.assert_allclose(payoff.record.games[0], [0, 1, 1, 1])


def filled_pool(players: int, capacity: int, key: jax.Array, eviction: str = "reservoir", protected: int = 1) -> Pool:
    def add(pool: Pool, i: jax.Array) -> tuple[Pool, jax.Array]:
        slot = pool.place(jax.random.fold_in(key, i), eviction)
        params = {"w": jnp.full(2, i, jnp.float32)}
        return pool.add(slot, params, jnp.array(True), age=i, parent=i - 1, role=i % 3, protect=i < protected), slot

    return jax.lax.scan(add, Pool.empty({"w": jnp.zeros(2)}, capacity), jnp.arange(players))[0]


def test_a_pool_keeps_every_player_as_likely_as_the_others() -> None:
    """40 players for 8 slots, one of them protected: each of the 39 others is kept with probability 7 / 39."""
    runs = 4_000
    pools = jax.jit(jax.vmap(lambda key: filled_pool(40, 8, key)))(jax.random.split(jax.random.key(0), runs))
    assert pools.filled.all()
    kept = np.asarray(pools.params["w"][..., 0]).astype(int)
    assert (kept[:, 0] == 0).all()
    assert (np.asarray(pools.offered) == 39).all()
    counts = np.bincount(kept[:, 1:].ravel(), minlength=40)[1:]
    expected = runs * 7 / 39
    # Variances are those of draws without replacement: a share 32/39 of the multinomial's.
    assert (np.square(counts - expected) / expected).sum() / (32 / 39) < 85.0  # 1e-5 quantile of chi-square with 38: 84
    np.testing.assert_array_equal(np.asarray(pools.age), kept)
    np.testing.assert_array_equal(np.asarray(pools.parent), kept - 1)
    np.testing.assert_array_equal(np.asarray(pools.role), kept % 3)


def test_first_in_first_out_and_a_pool_of_protected_players() -> None:
    pool = filled_pool(10, 4, jax.random.key(0), "fifo")
    np.testing.assert_array_equal(np.sort(pool.params["w"][:, 0]), [0, 7, 8, 9])
    full = filled_pool(4, 4, jax.random.key(0), protected=4)
    for eviction in ("fifo", "reservoir"):
        assert int(full.place(jax.random.key(1), eviction)) == NOBODY
    same = full.add(jnp.int32(NOBODY), {"w": jnp.full(2, 9.0)}, jnp.array(True))
    np.testing.assert_array_equal(same.params["w"], full.params["w"])
    np.testing.assert_array_equal(full.gather(jnp.array([[2], [0]]))["w"][..., 0], [[2], [0]])
    assert not Pool.empty({"w": jnp.zeros(2)}, 3).filled.any()


@pytest.mark.slow
def test_nothing_is_added_where_it_is_not_due_and_the_pool_is_not_copied() -> None:
    pool = filled_pool(3, 4, jax.random.key(0))
    later = pool.add(pool.place(jax.random.key(1)), {"w": jnp.full(2, 9.0)}, jnp.array(False), age=7)
    for a, b in zip(jax.tree.leaves(pool), jax.tree.leaves(later), strict=True):
        np.testing.assert_array_equal(a, b)
    large = Pool.empty({"w": jnp.zeros((1000, 1000))}, 16)
    program = jax.jit(lambda pool, params, key, when: pool.add(pool.place(key), params, when), donate_argnums=0).lower(
        large, {"w": jnp.zeros((1000, 1000))}, jax.random.key(0), jnp.array(True)
    )
    assert program.compile().memory_analysis().temp_size_in_bytes < 10_000_000  # type: ignore[union-attr]
