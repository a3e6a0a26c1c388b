"""Running statistics against numpy over everything seen, and scaled rewards against a plain-Python loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.collect.normalizers import (
    MAX_BATCHES,
    RewardStatistics,
    RunningStatistics,
    init_return_normalizer,
    init_reward_statistics,
    init_statistics,
    normalize,
    normalize_rewards,
    update_reward_statistics,
    update_statistics,
)


def test_statistics_are_those_of_all_batches_together() -> None:
    rng = np.random.default_rng(0)
    # Unequal batches from different distributions: a mean of means or of variances would be wrong.
    batches = [rng.normal(mean, std, (t, 3, 5)).astype(np.float32) for mean, std, t in ((0, 1, 4), (5, 3, 40), (-2, 0.1, 7))]
    statistics = init_statistics(jnp.zeros(5))
    for batch in batches:
        statistics = jax.jit(update_statistics)(statistics, batch)
    everything = np.concatenate(batches).reshape(-1, 5).astype(np.float64)
    np.testing.assert_allclose(statistics.mean, everything.mean(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(statistics.var, everything.var(0), rtol=1e-5)
    assert statistics.count == len(everything)


def test_statistics_of_small_deviations_around_a_large_mean_are_exact() -> None:
    batch = 1000.0 + np.random.default_rng(1).normal(0, 0.1, (64, 8, 1)).astype(np.float32)
    statistics = init_statistics(jnp.zeros(1))
    for part in np.split(batch, 8):
        statistics = update_statistics(statistics, part)
    np.testing.assert_allclose(statistics.var, batch.astype(np.float64).var((0, 1)), rtol=1e-2)


@pytest.mark.slow
def test_dictionary_observations_with_leaves_of_different_ranks_and_dtypes() -> None:
    rng = np.random.default_rng(2)

    def batch(t: int) -> dict[str, np.ndarray]:
        return {
            "image": rng.integers(0, 256, (t, 3, 4, 4, 2)).astype(np.uint8),
            "scalar": rng.normal(3, 2, (t, 3)).astype(np.float32),
            "vector": rng.integers(-5, 5, (t, 3, 6)).astype(np.int32),
        }

    batches = [batch(5), batch(9)]
    statistics = init_statistics(jax.tree.map(lambda x: x[0, 0], batches[0]))
    for part in batches:
        statistics = jax.jit(update_statistics)(statistics, part)
    assert statistics.count == 14 * 3
    for name in batches[0]:
        everything = np.concatenate([part[name] for part in batches]).astype(np.float64)
        everything = everything.reshape(-1, *everything.shape[2:])
        np.testing.assert_allclose(statistics.mean[name], everything.mean(0), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(statistics.var[name], everything.var(0), rtol=1e-5)
    normalized = normalize(statistics, batches[1])
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(normalized))
    assert jax.tree.map(jnp.shape, normalized) == jax.tree.map(np.shape, batches[1])


def test_normalized_data_has_mean_0_and_variance_1() -> None:
    batch = np.random.default_rng(3).normal(-7, 4, (100, 4, 3)).astype(np.float32)
    x = np.asarray(normalize(update_statistics(init_statistics(jnp.zeros(3)), batch), batch))
    np.testing.assert_allclose(x.mean((0, 1)), 0, atol=1e-5)
    np.testing.assert_allclose(x.std((0, 1)), 1, atol=1e-5)


def test_a_huge_number_leaves_finite_statistics_and_infinities_stay_visible() -> None:
    batch = jax.random.normal(jax.random.key(0), (4, 8, 2))
    update = jax.jit(update_statistics)
    before = update(init_statistics(jnp.zeros(2)), batch)
    for huge in (batch.at[1, 2, 0].set(1e20), batch.at[:, :, 0].set(3e38).at[0, 0, 0].set(-3e38)):
        after = update(before, huge)
        assert (float(after.mean[0]), float(after.var[0])) == (float(before.mean[0]), float(before.var[0]))
        np.testing.assert_allclose(after.var[1], before.var[1], rtol=1e-5)
        assert np.isfinite(update(update(init_statistics(jnp.zeros(2)), huge), batch).var).all()
    for broken in (jnp.inf, jnp.nan):
        assert not np.isfinite(update(before, batch.at[0, 0, 1].set(broken)).mean[1])


def test_normalized_values_are_clipped_on_both_sides_and_finite_without_variance() -> None:
    statistics = update_statistics(init_statistics(jnp.zeros(())), jnp.array([1.0, 3.0]))
    np.testing.assert_allclose(normalize(statistics, jnp.array([-100.0, 1.0, 3.0, 100.0])), [-10, -1, 1, 10], atol=1e-5)
    np.testing.assert_array_equal(normalize(statistics, jnp.array([-100.0, 100.0]), clip=2.5), [-2.5, 2.5])
    constant = update_statistics(init_statistics(jnp.zeros(())), jnp.full(16, 5.0))
    np.testing.assert_array_equal(normalize(constant, jnp.array([5.0, 6.0])), [0.0, 10.0])


def test_before_any_data_normalization_changes_nothing() -> None:
    x = jnp.array([-3.0, 0.0, 2.0])
    np.testing.assert_allclose(normalize(init_statistics(x), x), x, rtol=1e-6)


def test_statistics_have_fixed_types_so_that_a_second_call_does_not_compile() -> None:
    statistics = init_statistics(jnp.zeros(3))
    updated = jax.eval_shape(update_statistics, statistics, jnp.zeros((2, 3)))
    for before, after in zip(jax.tree.leaves(statistics), jax.tree.leaves(updated), strict=True):
        assert (before.shape, before.dtype, before.weak_type) == (after.shape, after.dtype, after.weak_type)


def scaled_rewards_in_plain_python(
    batches: list[tuple[np.ndarray, np.ndarray]], gamma: float, num_envs: int
) -> list[list[list[float]]]:
    """Each reward over the deviation of all discounted returns so far, those of its own batch included."""
    running, seen, scaled = [0.0] * num_envs, [], []
    for reward, done in batches:
        for t in range(len(reward)):
            for n in range(num_envs):
                running[n] = gamma * running[n] + float(reward[t, n])
                seen.append(running[n])
                if done[t, n]:
                    running[n] = 0.0
        mean = sum(seen) / len(seen)
        deviation = (sum((x - mean) ** 2 for x in seen) / len(seen)) ** 0.5
        scaled.append([[float(r) / deviation for r in row] for row in reward])
    return scaled


def test_rewards_are_divided_by_the_deviation_of_the_discounted_return() -> None:
    rng = np.random.default_rng(4)
    batches = [(rng.normal(2, 3, (t, 3)).astype(np.float32), rng.random((t, 3)) < 0.2) for t in (6, 6, 25)]
    statistics = init_reward_statistics(3)
    expected = scaled_rewards_in_plain_python(batches, 0.9, 3)
    for (reward, done), want in zip(batches, expected, strict=True):
        statistics, scaled = jax.jit(normalize_rewards)(statistics, reward, done, 0.9)
        np.testing.assert_allclose(scaled, want, rtol=1e-4)


def test_the_return_so_far_is_carried_over_batches_and_restarts_where_an_episode_ends() -> None:
    reward, done = jnp.ones((2, 2)), jnp.array([[False, False], [False, True]])
    statistics, _ = normalize_rewards(init_reward_statistics(2), reward, done, 0.5)
    np.testing.assert_allclose(statistics.discounted_return, [1.5, 0.0])
    statistics, _ = normalize_rewards(statistics, jnp.ones((1, 2)), jnp.zeros((1, 2), bool), 0.5)
    np.testing.assert_allclose(statistics.discounted_return, [1.75, 1.0])


@pytest.mark.parametrize("reward", [1.0, -2.0])
def test_rewards_are_not_centred(reward: float) -> None:
    done = jnp.arange(20)[:, None] % 5 == 4
    _, scaled = normalize_rewards(init_reward_statistics(1), jnp.full((20, 1), reward), done, 0.99)
    assert jnp.all(jnp.sign(scaled) == jnp.sign(reward))
    assert jnp.all(scaled == scaled[0])


def test_flags_are_counted_but_never_standardised() -> None:
    """A mask that is made a number would be true everywhere."""
    obs = {"mask": jnp.array([[True, False], [True, True]]), "x": jnp.array([[1.0], [3.0]])}
    statistics = update_statistics(init_statistics(jax.tree.map(lambda x: x[0], obs)), obs)
    seen = normalize(statistics, obs)
    assert seen["mask"].dtype == jnp.bool_
    np.testing.assert_array_equal(seen["mask"], obs["mask"])
    np.testing.assert_allclose(seen["x"], [[-1.0], [1.0]], atol=1e-5)


@pytest.mark.parametrize("shape", [(1,), (2,), (21,), (15, 64), (7, 3, 5)])
def test_the_return_normalizer_averages_the_percentiles_of_numpy_from_zero(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    normalizer, low, high = init_return_normalizer(), 0.0, 0.0
    update = jax.jit(lambda normalizer, returns: normalizer.update(returns))
    for _ in range(3):
        returns = rng.normal(4, 3, shape).astype(np.float32)
        normalizer = update(normalizer, returns)
        p5, p95 = np.percentile(returns.astype(np.float64), (5, 95))
        low, high = 0.99 * low + 0.01 * p5, 0.99 * high + 0.01 * p95
        np.testing.assert_allclose((normalizer.low, normalizer.high), (low, high), rtol=1e-5)
    at_once = init_return_normalizer().update(returns, decay=0.0)
    np.testing.assert_allclose((at_once.low, at_once.high), (p5, p95), rtol=1e-5)


def test_the_scale_of_returns_is_their_range_but_never_less_than_the_limit() -> None:
    normalizer = init_return_normalizer()
    assert normalizer.scale() == 1.0
    normalizer = normalizer.update(jnp.array([-3.0, 7.0]), decay=0.0)
    np.testing.assert_allclose(normalizer.scale(), 9.0, rtol=1e-6)
    np.testing.assert_allclose(normalizer.scale(limit=20.0), 20.0)
    assert normalizer.update(jnp.array([5.0]), decay=0.0).scale() == 1.0


def test_the_return_normalizer_passes_no_gradient_and_is_the_same_under_vmap() -> None:
    returns = jnp.asarray(np.random.default_rng(6).normal(size=(2, 30)), jnp.float32)
    gradient = jax.grad(lambda x: init_return_normalizer().update(x, decay=0.0).scale(limit=0.0))(returns[0])
    np.testing.assert_array_equal(gradient, 0.0)
    both = jax.vmap(lambda x: init_return_normalizer().update(x))(returns)
    for seed in range(2):
        one = init_return_normalizer().update(returns[seed])
        np.testing.assert_allclose((both.low[seed], both.high[seed]), (one.low, one.high), rtol=1e-6)
    before, after = jax.tree.leaves(init_return_normalizer()), jax.tree.leaves(one)
    assert [(x.shape, x.dtype, x.weak_type) for x in before] == [(x.shape, x.dtype, x.weak_type) for x in after]


def test_statistics_of_single_numbers_neither_drift_nor_stand_still_after_many_millions() -> None:
    """The count jumps to 2^26 numbers, more than f32 can count by ones; then the numbers come from elsewhere."""
    x = np.random.default_rng(0).normal(3.0, 2.0, 2**18).astype(np.float32)
    before = RunningStatistics(jnp.zeros(()), jnp.ones(()), jnp.float32(2.0**26))
    after = jax.jit(lambda s, x: jax.lax.scan(lambda s, y: (update_statistics(s, y[None]), None), s, x)[0])(before, x)
    # In f64, moments of which the past holds the share that 2^18 numbers of weight 2^-16 have left it.
    weights = 2.0**-16 * (1.0 - 2.0**-16) ** np.arange(len(x))[::-1]
    past = 1.0 - weights.sum()
    mean = (weights * x.astype(np.float64)).sum()
    var = past * 1.0 + (weights * x.astype(np.float64) ** 2).sum() - mean**2
    np.testing.assert_allclose(after.mean, mean, rtol=1e-4)
    np.testing.assert_allclose(after.var, var, rtol=1e-4)
    assert after.count == MAX_BATCHES
    assert abs(mean - 3.0) < 0.1
    assert abs(var - 4.0) < 0.3


@pytest.mark.parametrize("base", [0.0, 1_000.0, -30_000.0])
def test_statistics_of_skewed_numbers_far_from_0_do_not_drift(base: float) -> None:
    """Nine in ten are a little below the mean, and one is far above it; f32 at 1,000 tells numbers apart that differ by 6e-5."""
    rare = np.random.default_rng(3).random(2**18) < 0.1
    x = np.where(rare, base + 4.5, base - 0.5).astype(np.float32)
    before = RunningStatistics(jnp.float32(base), jnp.float32(2.25), jnp.float32(2.0**26))
    after = jax.jit(lambda s, x: jax.lax.scan(lambda s, y: (update_statistics(s, y[None]), None), s, x)[0])(before, x)
    # The fewer numbers count, the less exact the moments; with -30,000 they are some twenty.
    tolerance = 0.02 if base == 0 else 0.15 if base > 0 else 0.5
    assert abs(float(after.mean) - base) < tolerance
    assert abs(float(after.var) - 2.25) < 2 * tolerance


def test_statistics_of_constants_have_finite_gradients() -> None:
    def mean(scale: jax.Array) -> jax.Array:
        return update_statistics(init_statistics(jnp.zeros(3)), scale * jnp.ones((4, 3))).mean.sum()

    assert jax.grad(mean)(2.0) == 3.0


def test_statistics_of_single_numbers_are_exact_as_long_as_all_of_them_count() -> None:
    x = np.random.default_rng(1).normal(-2.0, 0.5, MAX_BATCHES).astype(np.float32)
    update = jax.jit(lambda s, x: jax.lax.scan(lambda s, y: (update_statistics(s, y[None]), None), s, x)[0])
    after = update(init_statistics(jnp.zeros(())), x)
    np.testing.assert_allclose(after.mean, x.astype(np.float64).mean(), rtol=1e-5)
    np.testing.assert_allclose(after.var, x.astype(np.float64).var(), rtol=1e-4)


def test_the_scale_of_rewards_follows_them_after_many_millions() -> None:
    """Rewards of deviation 5 with no memory of the past, after 2^26 of deviation 1."""
    reward = np.random.default_rng(2).normal(0.0, 5.0, (2**18, 1)).astype(np.float32)
    statistics = init_reward_statistics(1)
    statistics = statistics._replace(statistics=statistics.statistics.replace(count=jnp.float32(2.0**26)))

    def step(s: RewardStatistics, r: jax.Array) -> tuple[RewardStatistics, None]:
        return update_reward_statistics(s, r[None], jnp.zeros((1, 1), bool), 0.0), None

    after = jax.jit(lambda s, r: jax.lax.scan(step, s, r)[0])(statistics, reward)
    weights = 2.0**-16 * (1.0 - 2.0**-16) ** np.arange(len(reward))[::-1]
    r = reward[:, 0].astype(np.float64)
    expected = 1.0 - weights.sum() + (weights * r**2).sum() - (weights * r).sum() ** 2
    np.testing.assert_allclose(after.statistics.var, expected, rtol=1e-4)
