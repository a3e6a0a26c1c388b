"""Intrinsic rewards against dictionaries, loops and closed forms, and as states that training can carry."""

from __future__ import annotations

import collections
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.collect.intrinsic import (
    NO_ENTROPY,
    Intrinsic,
    count_bonus,
    entropy_reduction,
    entropy_reduction_bonus,
    hash_cells,
    make_intrinsic,
    random_network_distillation,
)
from rljax.core.errors import ConfigError

T, N = 6, 4
NEVER = jnp.zeros((T, N), bool)
KEY = jax.random.key(0)


def positions(seed: int, shape: tuple[int, ...] = (T, N), size: int = 4) -> np.ndarray:
    """Coordinates in a small square, so that they come up again."""
    return np.random.default_rng(seed).integers(0, size, (*shape, 2)).astype(np.float32)


def test_counts_are_those_of_a_dictionary_and_take_in_the_whole_rollout_first() -> None:
    bonus = count_bonus()
    state, update = bonus.init(KEY, jnp.zeros(2), N), jax.jit(bonus.update)
    visits: collections.Counter[tuple[float, ...]] = collections.Counter()
    for seed in range(3):
        obs = positions(seed)
        visits.update(map(tuple, obs.reshape(-1, 2).tolist()))
        state, reward, metrics = update(state, KEY, obs, NEVER)
        expected = [[1 / math.sqrt(visits[tuple(obs[t, n].tolist())]) for n in range(N)] for t in range(T)]
        np.testing.assert_allclose(reward, expected, rtol=1e-6)
        assert metrics["train/intrinsic_reward"] == pytest.approx(np.mean(expected), rel=1e-5)
    assert state.counts.sum() == 3 * T * N
    assert sorted(filter(None, state.counts.tolist())) == sorted(visits.values())


@pytest.mark.parametrize(
    ("resolution", "same", "other"),
    [(1.0, [-0.5, 0.0, 0.49], [0.5, 1.0]), (0.1, [0.26, 0.3, 0.34], [0.24, 0.36]), (10.0, [5.0, 10.0, 14.9], [4.9, 15.0])],
)
def test_states_are_as_wide_as_the_resolution_says(resolution: float, same: list[float], other: list[float]) -> None:
    bonus = count_bonus(resolution)

    def reward(a: float, b: float) -> float:
        obs = jnp.array([[[a]], [[b]]])
        return float(bonus.update(bonus.init(KEY, obs[0, 0], 1), KEY, obs, jnp.zeros((2, 1), bool))[1][0, 0])

    assert all(reward(same[0], x) == pytest.approx(1 / math.sqrt(2)) for x in same)
    assert all(reward(same[0], x) == 1.0 for x in other)


def test_all_states_have_the_same_width() -> None:
    bonus, values = count_bonus(2.0), jnp.arange(-20.0, 20.0)[:, None, None]
    _, reward, _ = bonus.update(bonus.init(KEY, values[0, 0], 1), KEY, values, jnp.zeros((40, 1), bool))
    np.testing.assert_allclose(reward[1:-1], 1 / math.sqrt(2), rtol=1e-6)


@pytest.mark.slow
def test_every_leaf_of_an_observation_counts() -> None:
    bonus = count_bonus()
    image = jnp.zeros((4, 1, 2, 2, 1), jnp.uint8).at[1, 0, 1, 1, 0].set(200)
    flag = jnp.zeros((4, 1), bool).at[2].set(True)
    vector = jnp.zeros((4, 1, 3)).at[3, 0, 2].set(-1.0)
    obs = {"image": image, "flag": flag, "vector": vector}
    example = jax.tree.map(lambda x: x[0, 0], obs)
    _, reward, _ = bonus.update(bonus.init(KEY, example, 1), KEY, obs, jnp.zeros((4, 1), bool))
    np.testing.assert_array_equal(reward, 1.0)
    _, reward, _ = bonus.update(bonus.init(KEY, example, 1), KEY, jax.tree.map(lambda x: x[:1], obs), jnp.zeros((1, 1), bool))
    np.testing.assert_array_equal(reward, 1.0)


def test_numbers_beyond_the_counters_are_counted_too() -> None:
    bonus, obs = count_bonus(1e-3), jnp.array([[[1e30]], [[1e30]], [[-1e30]], [[jnp.inf]]])
    _, reward, _ = bonus.update(bonus.init(KEY, obs[0, 0], 1), KEY, obs, jnp.zeros((4, 1), bool))
    np.testing.assert_allclose(reward[:, 0], [3**-0.5, 3**-0.5, 1.0, 3**-0.5], rtol=1e-6)


def murmur_finalizer(x: int) -> int:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        x = ((x ^ (x >> shift)) * factor) % 2**32
    return x


def test_the_hash_is_what_it_says_in_whole_numbers() -> None:
    cells = np.random.default_rng(0).integers(-(2**31), 2**31 - 1, (50, 7))
    for row, hashed in zip(cells.tolist(), hash_cells(jnp.asarray(cells, jnp.int32)).tolist(), strict=True):
        parts = [murmur_finalizer((x + 0x9E3779B9 * (i + 1)) % 2**32) for i, x in enumerate(row)]
        assert hashed == murmur_finalizer(sum(parts) % 2**32)


@pytest.mark.parametrize("first", [0, -25, 1000])
def test_hashes_of_a_grid_are_all_different_and_fill_the_counters_like_chance(first: int) -> None:
    grid = first + jnp.stack(jnp.meshgrid(jnp.arange(50), jnp.arange(50)), -1).reshape(-1, 2)
    hashed = np.asarray(hash_cells(grid))
    assert len(set(hashed.tolist())) == 2500
    # Of 2^16 counters 2500 states use 2^16 (1 - exp(-2500 / 2^16)) = 2453, give or take 7.
    assert abs(len(set((hashed % 2**16).tolist())) - 2453) < 35
    assert abs(len(set((hashed % 2**10).tolist())) - 2**10 * (1 - math.exp(-2500 / 2**10))) < 40


def initial(bonus: Intrinsic, example: Any, num_envs: int = N) -> Any:
    return jax.jit(lambda key: bonus.init(key, example, num_envs))(KEY)


def run_distillation(bonus: Intrinsic, obs: np.ndarray, rollouts: int) -> tuple[Any, np.ndarray, list[dict[str, float]]]:
    """State, bonuses `[rollouts, T, N]` and metrics of the same rollout again and again."""
    state, update = initial(bonus, obs[0, 0]), jax.jit(bonus.update)
    rewards, metrics = [], []
    for i in range(rollouts):
        state, reward, m = update(state, jax.random.key(i), obs, jnp.zeros(obs.shape[:2], bool))
        rewards.append(reward)
        metrics.append(jax.tree.map(float, m))
    return state, np.stack(rewards), metrics


@pytest.mark.slow
def test_the_bonus_of_distillation_falls_where_it_was_often_and_stays_high_where_it_was_not() -> None:
    rng = np.random.default_rng(0)
    seen, new = rng.normal(0, 1, (8, 4, 6)).astype(np.float32), rng.normal(0, 1, (8, 4, 6)).astype(np.float32)
    bonus = random_network_distillation(hidden=(32,), features=16, learning_rate=1e-2, num_minibatches=2)
    state, _, metrics = run_distillation(bonus, seen, 150)
    errors = [m["train/intrinsic_error"] for m in metrics]
    assert errors[-1] < 0.03 * errors[0]
    update = jax.jit(bonus.update)
    _, known, _ = update(state, KEY, seen, jnp.zeros((8, 4), bool))
    _, unknown, _ = update(state, KEY, new, jnp.zeros((8, 4), bool))
    assert jnp.mean(unknown) > 10 * jnp.mean(known)
    assert jnp.min(unknown) > jnp.max(known)


@pytest.mark.slow
def test_only_the_predictor_learns_and_it_is_another_network_than_the_target() -> None:
    bonus = random_network_distillation(hidden=(8,), features=4, num_minibatches=2)
    first = initial(bonus, jnp.zeros(2))
    state, _, _ = run_distillation(bonus, positions(0), 3)
    assert jax.tree.structure(first.target) == jax.tree.structure(first.params)
    for before, after in zip(jax.tree.leaves(first.target), jax.tree.leaves(state.target), strict=True):
        np.testing.assert_array_equal(before, after)
    kernels = [(a, b) for a, b in zip(jax.tree.leaves(first.target), jax.tree.leaves(first.params), strict=True) if a.ndim == 2]
    assert len(kernels) == 2
    assert all(jnp.max(jnp.abs(a - b)) > 0.1 for a, b in kernels)
    moved = [jnp.any(a != b) for a, b in zip(jax.tree.leaves(first.params), jax.tree.leaves(state.params), strict=True)]
    assert all(moved)


def predicted(params: Any, x: np.ndarray) -> np.ndarray:
    """A multilayer perceptron with one hidden layer of relu, in doubles."""
    layers = jax.tree.map(lambda p: np.asarray(p, np.float64), params["params"])
    hidden = np.maximum(x @ layers["dense_0"]["kernel"] + layers["dense_0"]["bias"], 0.0)
    return hidden @ layers["head"]["kernel"] + layers["head"]["bias"]


def test_the_bonus_is_the_error_of_standardised_observations_over_the_deviation_of_its_return() -> None:
    gamma, rng = 0.9, np.random.default_rng(1)
    bonus = random_network_distillation(hidden=(8,), features=4, num_minibatches=2, gamma=gamma)
    state, update = initial(bonus, jnp.zeros(3)), jax.jit(bonus.update)
    everything, returns, running = np.zeros((0, 3)), [], np.zeros(N)
    for i in range(4):
        obs = rng.normal((5.0, -1.0, 0.0), (0.1, 10.0, 1.0), (T, N, 3)).astype(np.float32)
        if i == 3:
            obs[0, 0] = (500.0, 0.0, 0.0)  # so far out that it is clipped
        before = state
        # Episodes end, and the return of the bonus goes on.
        state, reward, metrics = update(before, KEY, obs, jnp.asarray(rng.random((T, N)) < 0.3))
        everything = np.concatenate([everything, obs.reshape(-1, 3).astype(np.float64)])
        standardised = (obs - everything.mean(0)) / everything.std(0)
        assert (np.abs(standardised).max() > 8) == (i == 3)
        x = np.clip(standardised, -5, 5)
        error = np.mean((predicted(before.params, x) - predicted(before.target, x)) ** 2, axis=-1)
        for t in range(T):
            running = gamma * running + error[t]
            returns.extend(running)
        np.testing.assert_allclose(reward, error / np.std(returns), rtol=2e-3, atol=1e-4)
        assert metrics["train/intrinsic_error"] == pytest.approx(error.mean(), rel=1e-3)
        assert metrics["train/intrinsic_reward"] == pytest.approx(float(jnp.mean(reward)), rel=1e-5)
        assert metrics["train/intrinsic_grad_norm"] > 0


def test_one_minibatch_is_one_step_of_adam_at_the_learning_rate() -> None:
    rates = jnp.array([0.0, 1e-3, 1e-2])
    obs = positions(0)

    def first_step(rate: jax.Array) -> Any:
        bonus = random_network_distillation(hidden=(8,), features=4, num_minibatches=1, learning_rate=rate)
        before = bonus.init(KEY, jnp.zeros(2), N)
        after, _, _ = bonus.update(before, KEY, obs, NEVER)
        return jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), after.params, before.params)

    # The first step of Adam is the sign of the gradient: the learning rate for each parameter that has one.
    for moved in jax.tree.leaves(jax.jit(jax.vmap(first_step))(rates)):
        np.testing.assert_allclose(moved, rates, rtol=1e-2, atol=1e-7)


def test_minibatches_that_do_not_divide_the_rollout_are_refused_in_one_line() -> None:
    bonus = random_network_distillation(num_minibatches=5)
    with pytest.raises(ConfigError, match="num_minibatches = 5: must divide the 24 steps") as error:
        jax.eval_shape(lambda: bonus.update(bonus.init(KEY, jnp.zeros(2), N), KEY, positions(0), NEVER))
    assert "\n" not in str(error.value)


def test_entropy_reduction_is_that_of_a_loop_over_episodes_and_rollouts() -> None:
    rng = np.random.default_rng(0)
    entropy, done = rng.random((40, 3)).astype(np.float32), rng.random((40, 3)) < 0.25
    done[9] = (True, False, True)  # at the end of a rollout, too
    expected = np.zeros((40, 3))
    for n in range(3):
        before: float | None = None
        for t in range(40):
            expected[t, n] = 0.0 if before is None else max(before - float(entropy[t, n]), 0.0)
            before = None if done[t, n] else float(entropy[t, n])
    bonus = entropy_reduction_bonus()
    state, rewards = bonus.init(KEY, jnp.zeros(2), 3), []
    for t in range(0, 40, 10):
        state, reward, metrics = bonus.update(state, KEY, jnp.zeros((10, 3, 2)), done[t : t + 10], entropy[t : t + 10])
        rewards.append(reward)
        assert metrics["train/intrinsic_reward"] == pytest.approx(float(jnp.mean(reward)), rel=1e-6)
    np.testing.assert_allclose(np.concatenate(rewards), expected, rtol=1e-6)
    assert 0 < np.sum(expected[10] > 0) < 3  # across rollouts, and not across episodes


@pytest.mark.parametrize("entropy", [0.0, 5.0, -5.0, 1e30])
def test_the_first_step_of_an_episode_earns_exactly_nothing(entropy: float) -> None:
    reward, last = entropy_reduction(jnp.full((2, 1), entropy), jnp.array([[True], [True]]), jnp.full(1, NO_ENTROPY))
    np.testing.assert_array_equal(reward, 0.0)
    assert np.all(np.isfinite(last))
    reward, _ = entropy_reduction(jnp.full((1, 1), entropy), jnp.array([[False]]), last)
    np.testing.assert_array_equal(reward, 0.0)


def test_entropy_reduction_without_entropies_is_refused_in_one_line() -> None:
    bonus = entropy_reduction_bonus()
    with pytest.raises(ConfigError, match="belief_entropy") as error:
        bonus.update(bonus.init(KEY, jnp.zeros(2), N), KEY, positions(0), NEVER)
    assert "\n" not in str(error.value)


BONUSES = {
    "count": count_bonus(0.5, 2**8),
    "rnd": random_network_distillation(hidden=(8,), features=4, num_minibatches=3),
    "entropy_reduction": entropy_reduction_bonus(),
}


@pytest.fixture(params=BONUSES)
def bonus(request: pytest.FixtureRequest) -> Intrinsic:
    return BONUSES[request.param]


def rollout(seed: int) -> tuple[Any, jax.Array, jax.Array]:
    rng = np.random.default_rng(seed)
    obs = {"a": jnp.asarray(positions(seed)), "b": jnp.asarray(rng.integers(0, 2, (T, N)), jnp.int32)}
    return obs, jnp.asarray(rng.random((T, N)) < 0.2), jnp.asarray(rng.random((T, N)), jnp.float32)


def test_a_state_keeps_its_structure_and_types_and_a_second_update_does_not_compile(bonus: Intrinsic) -> None:
    example = jax.tree.map(lambda x: x[0, 0], rollout(0)[0])
    state = jax.jit(lambda key: bonus.init(key, example, N))(KEY)
    update = jax.jit(bonus.update, donate_argnums=0)
    kinds = [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(state)]
    structure = jax.tree.structure(state)
    for seed in range(2):
        state, reward, metrics = update(state, jax.random.key(seed), *rollout(seed))
        assert jax.tree.structure(state) == structure
        assert [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(state)] == kinds
        assert (reward.shape, reward.dtype) == ((T, N), jnp.float32)
        assert all((m.shape, m.dtype) == ((), jnp.float32) for m in metrics.values())
    assert update._cache_size() == 1
    assert not any(weak for _, _, weak in kinds)


@pytest.mark.slow
def test_seeds_vmapped_are_those_of_single_runs(bonus: Intrinsic) -> None:
    rollouts = [rollout(seed) for seed in range(6)]
    example = jax.tree.map(lambda x: x[0, 0], rollouts[0][0])

    def run(key: jax.Array, first: Any, second: Any) -> Any:
        state = bonus.init(key, example, N)
        state, reward_1, _ = bonus.update(state, key, *first)
        state, reward_2, metrics = bonus.update(state, jax.random.fold_in(key, 1), *second)
        return reward_1, reward_2, metrics, state

    keys = jax.random.split(KEY, 3)
    first, second = (jax.tree.map(lambda *x: jnp.stack(x), *rollouts[i : i + 3]) for i in (0, 3))
    together = jax.jit(jax.vmap(run))(keys, first, second)
    single = jax.jit(run)
    for i in range(3):
        alone = single(keys[i], rollouts[i], rollouts[3 + i])
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "table",
    [
        {"type": "count", "resolution": 0.5, "bins": 256},
        {"type": "rnd", "hidden": (8,), "features": 4, "num_minibatches": 3},
        {"type": "entropy_reduction"},
    ],
)
def test_a_table_makes_the_bonus_that_it_describes(table: dict[str, Any]) -> None:
    obs, done, entropy = rollout(0)
    example = jax.tree.map(lambda x: x[0, 0], obs)
    expected, made = BONUSES[table["type"]], make_intrinsic(table, T * N)
    results = [jax.jit(b.update)(initial(b, example), KEY, obs, done, entropy) for b in (expected, made)]
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_learning_rate_and_discount_of_a_table_come_before_those_of_the_algorithm() -> None:
    obs, done, _ = rollout(0)
    example = jax.tree.map(lambda x: x[0, 0], obs)

    def first(table: dict[str, Any], **attributes: float) -> Any:
        bonus = make_intrinsic({"type": "rnd", "hidden": [8], "features": 4, **table}, T * N, **attributes)
        state, reward, _ = jax.jit(bonus.update)(initial(bonus, example), KEY, obs, done)
        return state.params["params"]["head"]["bias"], reward

    by_table = first({"learning_rate": 0.1, "gamma": 0.5}, learning_rate=0.2, gamma=0.1)
    by_argument = first({}, learning_rate=0.1, gamma=0.5)
    default = first({})
    for a, b, c in zip(by_table, by_argument, default, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.any(a != c)


@pytest.mark.slow
def test_minibatches_divide_the_rollout_or_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"intrinsic\.num_minibatches = 5: must divide the 12 steps of a rollout"):
        make_intrinsic({"type": "rnd", "num_minibatches": 5}, 12)
    # Where the table does not say it is 4, or the most that divides both.
    bonus = make_intrinsic({"type": "rnd", "hidden": [8], "features": 4}, 6)
    obs = jnp.zeros((3, 2, 4))
    _, reward, _ = bonus.update(bonus.init(KEY, obs[0, 0], 2), KEY, obs, obs[..., 0] > 0)
    assert reward.shape == (3, 2)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("count", "intrinsic = 'count': expected a table with a type"),
        ({"bins": 2}, "expected a table with a type"),
        ({"type": "counts"}, "intrinsic.type = 'counts': did you mean 'count'?"),
        ({"type": "curiosity"}, "intrinsic.type = 'curiosity': expected one of: count, entropy_reduction, rnd"),
        ({"type": ["rnd"]}, "intrinsic.type = ['rnd']: "),
        ({"type": "count", "resolutoin": 1.0}, "intrinsic.resolutoin: unknown key of type 'count', did you mean 'resolution'?"),
        ({"type": "rnd", "bins": 8}, "intrinsic.bins: unknown key of type 'rnd', expected one of: "),
        ({"type": "entropy_reduction", "gamma": 0.9}, "intrinsic.gamma: unknown key"),
        ({"type": "count", "resolution": 0}, "intrinsic.resolution = 0: expected a number > 0"),
        ({"type": "count", "resolution": float("nan")}, "intrinsic.resolution = nan: expected a number > 0"),
        ({"type": "count", "resolution": "fine"}, "intrinsic.resolution = 'fine': expected a number > 0"),
        ({"type": "count", "bins": 1000}, "intrinsic.bins = 1000: expected a power of two"),
        ({"type": "count", "bins": 0}, "intrinsic.bins = 0: expected a power of two"),
        ({"type": "count", "bins": 2.0}, "intrinsic.bins = 2.0: expected a power of two"),
        ({"type": "rnd", "hidden": 64}, "intrinsic.hidden = 64: expected a list of layer sizes"),
        ({"type": "rnd", "hidden": [64, 0]}, "intrinsic.hidden = [64, 0]: expected a list of layer sizes"),
        ({"type": "rnd", "features": True}, "intrinsic.features = True: expected a whole number > 0"),
        ({"type": "rnd", "num_minibatches": 0}, "intrinsic.num_minibatches = 0: expected a whole number > 0"),
        ({"type": "rnd", "learning_rate": -1e-3}, "intrinsic.learning_rate = -0.001: expected a number >= 0"),
        ({"type": "count", "resolution": 1e-320}, "intrinsic.resolution = 1e-320: expected a number > 0, at least 1e-30"),
        ({"type": "rnd", "learning_rate": 1e40}, "intrinsic.learning_rate = 1e+40: expected a number >= 0 within the range of"),
        ({"type": "rnd", "gamma": 1.5}, "intrinsic.gamma = 1.5: expected a number >= 0 and <= 1"),
    ],
)
def test_a_wrong_table_is_refused_in_one_line(table: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_intrinsic(table, T * N)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
