"""Advantages against the definition summed in plain Python, against rlax, and against closed forms."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax.collect.returns import explained_variance, gae, lambda_returns, q_lambda_returns, upgo, vtrace

T, N = 12, 4
jitted_gae = jax.jit(gae)


class Batch(NamedTuple):
    """Arrays `[T, N]`."""

    reward: np.ndarray
    value: np.ndarray
    next_value: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def random_batch(ends: str, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    reward, value, next_value = rng.normal(size=(3, T, N)).astype(np.float32)
    terminated, truncated = rng.random((2, T, N)) < 0.3
    if ends == "both at once":
        terminated = truncated = terminated | truncated
    if ends in ("none", "truncated"):
        terminated = np.zeros((T, N), bool)
    if ends in ("none", "terminated"):
        truncated = np.zeros((T, N), bool)
    if ends == "at the last step":
        terminated, truncated = np.zeros((2, T, N), bool)
        terminated[-1, ::2] = truncated[-1, 1::2] = True
    return Batch(reward, value, next_value, terminated, truncated)


def gae_by_definition(batch: Batch, gamma: float, gae_lambda: float) -> np.ndarray:
    """The sum of eq. 16, term by term from each step to the end of its episode, in doubles: no recursion, no mask arithmetic."""
    steps, envs = batch.reward.shape
    advantage = np.zeros((steps, envs))
    for n in range(envs):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                target = float(batch.reward[k, n])
                if not batch.terminated[k, n]:
                    target += gamma * float(batch.next_value[k, n])
                advantage[t, n] += weight * (target - float(batch.value[k, n]))
                if batch.terminated[k, n] or batch.truncated[k, n]:
                    break
                weight *= gamma * gae_lambda
    return advantage


@pytest.mark.parametrize("ends", ["none", "terminated", "truncated", "mixed", "both at once", "at the last step"])
def test_gae_is_the_sum_of_discounted_td_errors_up_to_the_end_of_the_episode(ends: str) -> None:
    batch = random_batch(ends)
    np.testing.assert_allclose(jitted_gae(*batch, 0.97, 0.9), gae_by_definition(batch, 0.97, 0.9), rtol=1e-5, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    data=hnp.arrays(np.float32, (3, T, N), elements=st.floats(-100, 100, width=32)),
    ends=hnp.arrays(np.bool_, (2, T, N)),
    gamma=st.floats(0, 1),
    gae_lambda=st.floats(0, 1),
)
def test_gae_equals_the_definition_for_any_batch(data: np.ndarray, ends: np.ndarray, gamma: float, gae_lambda: float) -> None:
    batch = Batch(*data, *ends)
    advantage = jitted_gae(*batch, gamma, gae_lambda)
    np.testing.assert_allclose(advantage, gae_by_definition(batch, gamma, gae_lambda), rtol=1e-4, atol=1e-3)


def test_gae_equals_that_of_rlax_episode_by_episode() -> None:
    batch = random_batch("mixed", seed=1)
    done = batch.terminated | batch.truncated
    # rlax has one value per time: inside an episode the value of the next observation is the next value.
    batch.next_value[:-1] = np.where(done[:-1], batch.next_value[:-1], batch.value[1:])
    advantage = jitted_gae(*batch, 0.99, 0.95)
    by_rlax = jax.jit(rlax.truncated_generalized_advantage_estimation)
    episodes = 0
    for n in range(N):
        bounds = [0, *(np.flatnonzero(done[:-1, n]) + 1), T]
        for start, end in itertools.pairwise(bounds):
            discount = np.where(batch.terminated[start:end, n], 0.0, 0.99).astype(np.float32)
            values = np.append(batch.value[start:end, n], batch.next_value[end - 1, n])
            expected = by_rlax(batch.reward[start:end, n], discount, 0.95, values)
            np.testing.assert_allclose(advantage[start:end, n], expected, rtol=1e-5, atol=1e-5)
            episodes += 1
    assert episodes > 3 * N


def test_lambda_zero_gives_the_td_error() -> None:
    batch = random_batch("mixed")
    td_error = batch.reward + 0.9 * np.where(batch.terminated, 0, batch.next_value) - batch.value
    np.testing.assert_allclose(jitted_gae(*batch, 0.9, 0.0), td_error, rtol=1e-6, atol=1e-6)


def test_lambda_one_gives_the_discounted_return_minus_the_value() -> None:
    batch = random_batch("none", seed=2)
    # Values telescope away only where the value of the next observation is the next value.
    batch.next_value[:-1] = batch.value[1:]
    returns = batch.next_value[-1].astype(np.float64)
    for t in reversed(range(T)):
        returns = batch.reward[t] + 0.9 * returns
        np.testing.assert_allclose(jitted_gae(*batch, 0.9, 1.0)[t], returns - batch.value[t], rtol=1e-5, atol=1e-5)


def test_termination_has_no_future_and_truncation_has_that_of_the_final_observation() -> None:
    zeros, ends = jnp.zeros((1, 1)), jnp.ones((1, 1), bool)
    final_value = jnp.full((1, 1), 7.0)
    assert gae(zeros, zeros, final_value, ends, ~ends, 0.5, 0.9) == 0.0
    assert gae(zeros, zeros, final_value, ~ends, ends, 0.5, 0.9) == 3.5
    assert gae(zeros, zeros, final_value, ends, ends, 0.5, 0.9) == 0.0


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_no_advantage_leaks_into_the_episode_before(ends: str) -> None:
    batch = random_batch(ends, seed=3)
    t, n = next((t, n) for n in range(N) for t in range(T - 1) if batch.terminated[t, n] or batch.truncated[t, n])
    before = jitted_gae(*batch, 0.99, 0.95)[: t + 1, n]
    batch.reward[t + 1 :] += 100.0
    np.testing.assert_array_equal(jitted_gae(*batch, 0.99, 0.95)[: t + 1, n], before)


def test_gae_takes_any_batch_shape_and_is_the_same_under_vmap_and_jit() -> None:
    batch = random_batch("mixed")
    whole = jitted_gae(*batch, 0.99, 0.95)
    per_env = jax.jit(jax.vmap(lambda *arrays: gae(*arrays, 0.99, 0.95), in_axes=1, out_axes=1))(*batch)
    np.testing.assert_allclose(per_env, whole, rtol=1e-5, atol=1e-6)
    folded = gae(*(x.reshape(T, 2, 2) for x in batch), 0.99, 0.95)
    np.testing.assert_allclose(folded.reshape(T, N), whole, rtol=1e-5, atol=1e-6)


def test_explained_variance_is_that_of_numpy_and_0_of_targets_that_do_not_vary() -> None:
    rng = np.random.default_rng(0)
    target, own = rng.normal(3.0, 2.0, (16, 4)), rng.random((16, 4)) < 0.5
    prediction = target + rng.normal(0.0, 0.5, (16, 4))
    for who in (None, own):
        of = np.ones((16, 4), bool) if who is None else who
        expected = 1.0 - np.var((target - prediction)[of]) / np.var(target[of])
        found = explained_variance(jnp.asarray(target), jnp.asarray(prediction), None if who is None else jnp.asarray(who))
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        assert np.isnan(explained_variance(jnp.full((16, 4), jnp.nan), jnp.asarray(prediction), None))
        constant = jnp.full((16, 4), 0.1).at[0].add(1e-8)
        assert float(explained_variance(constant, jnp.asarray(prediction), None if who is None else jnp.asarray(who))) == 0.0


def test_arrays_of_different_shapes_are_refused() -> None:
    batch = random_batch("none")
    with pytest.raises(AssertionError, match="shape"):
        gae(batch.reward[1:], *batch[1:], 0.99, 0.95)


# V-trace

ENDS = ["none", "terminated", "truncated", "mixed", "both at once", "at the last step"]
jitted_vtrace = jax.jit(vtrace)
jitted_upgo = jax.jit(upgo)


def whole_batch(ends: str, seed: int = 0) -> Batch:
    """A batch whose value of the next observation is the next value inside an episode, as rollouts have it."""
    batch = random_batch(ends, seed)
    batch.next_value[:-1] = np.where((batch.terminated | batch.truncated)[:-1], batch.next_value[:-1], batch.value[1:])
    return batch


def random_log_rho(seed: int = 0) -> np.ndarray:
    """Ratios on both sides of every bound, one beyond all floats and one of nearly 0."""
    log_rho = np.random.default_rng(seed + 100).normal(0, 1, (T, N)).astype(np.float32)
    log_rho[3, 0], log_rho[4, 1] = 200.0, -200.0
    return log_rho


def vtrace_by_definition(
    batch: Batch, log_rho: np.ndarray, gamma: float, rho_bar: float, c_bar: float, vtrace_lambda: float
) -> tuple[np.ndarray, np.ndarray]:
    """Eq. 1 as the sum it is, from each step to the end of its episode, in doubles, and advantages by looking up vs_{t+1}."""
    steps, envs = batch.reward.shape
    b = Batch(*(x.astype(np.float64) for x in batch[:3]), *batch[3:])
    ratio = np.exp(np.minimum(log_rho.astype(np.float64), 20.0))
    target, advantage = np.zeros((2, steps, envs))
    for n in range(envs):
        for s in range(steps):
            target[s, n], weight = b.value[s, n], 1.0
            for t in range(s, steps):
                future = 0.0 if b.terminated[t, n] else b.next_value[t, n]
                target[s, n] += weight * min(rho_bar, ratio[t, n]) * (b.reward[t, n] + gamma * future - b.value[t, n])
                if b.terminated[t, n] or b.truncated[t, n]:
                    break
                weight *= gamma * vtrace_lambda * min(c_bar, ratio[t, n])
        for s in range(steps):
            if b.terminated[s, n]:
                future = 0.0
            elif b.truncated[s, n] or s == steps - 1:
                future = b.next_value[s, n]
            else:
                future = target[s + 1, n]
            advantage[s, n] = min(rho_bar, ratio[s, n]) * (b.reward[s, n] + gamma * future - b.value[s, n])
    return target, advantage


@pytest.mark.parametrize(("rho_bar", "c_bar", "vtrace_lambda"), [(1.0, 1.0, 1.0), (2.0, 1.5, 0.9), (0.7, 0.0, 1.0)])
@pytest.mark.parametrize("ends", ENDS)
def test_vtrace_is_the_sum_of_the_paper(ends: str, rho_bar: float, c_bar: float, vtrace_lambda: float) -> None:
    batch, log_rho = whole_batch(ends), random_log_rho()
    expected = vtrace_by_definition(batch, log_rho, 0.97, rho_bar, c_bar, vtrace_lambda)
    got = jitted_vtrace(*batch, log_rho, 0.97, rho_bar, c_bar, vtrace_lambda)
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rho_bar", [1.0, 1.7])
def test_vtrace_equals_that_of_rlax_where_no_episode_is_cut(rho_bar: float) -> None:
    batch, log_rho = whole_batch("terminated", seed=1), random_log_rho(1)
    target, advantage = jitted_vtrace(*batch, log_rho, 0.99, rho_bar, 1.0, 1.0)
    discount = np.where(batch.terminated, 0.0, 0.99).astype(np.float32)
    ratio = np.exp(np.minimum(log_rho, 20.0))
    by_rlax = jax.vmap(lambda *x: rlax.vtrace_td_error_and_advantage(*x, 1.0, rho_bar, rho_bar), in_axes=1, out_axes=1)
    expected = jax.jit(by_rlax)(batch.value, batch.next_value, batch.reward, discount, ratio)
    np.testing.assert_allclose(target - batch.value, expected.errors, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(advantage, expected.pg_advantage, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ends", ENDS)
def test_on_policy_vtrace_targets_are_those_of_gae_with_lambda_one(ends: str) -> None:
    batch = whole_batch(ends, seed=2)
    target, advantage = jitted_vtrace(*batch, np.zeros((T, N), np.float32), 0.95)
    expected = jitted_gae(*batch, 0.95, 1.0)
    np.testing.assert_allclose(target, expected + batch.value, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(advantage, expected, rtol=1e-5, atol=1e-5)


def test_a_ratio_of_zero_leaves_the_value_as_it_is_and_a_huge_one_counts_as_the_bound() -> None:
    batch = whole_batch("mixed", seed=3)
    never, always = (np.full((T, N), x, np.float32) for x in (-1e4, 1e4))
    target, advantage = jitted_vtrace(*batch, never, 0.99)
    np.testing.assert_array_equal(target, batch.value)
    np.testing.assert_array_equal(advantage, 0.0)
    for got, on_policy in zip(jitted_vtrace(*batch, always, 0.99), jitted_vtrace(*batch, 0 * always, 0.99), strict=True):
        np.testing.assert_array_equal(got, on_policy)


def test_vtrace_discounts_may_differ_by_step() -> None:
    batch, log_rho = whole_batch("truncated", seed=4), random_log_rho(4)
    # A discount of 0 is a termination.
    cut = np.random.default_rng(4).random((T, N)) < 0.3
    gamma = np.where(cut, 0.0, 0.9).astype(np.float32)
    as_ends = batch._replace(terminated=cut)
    for got, expected in zip(jitted_vtrace(*batch, log_rho, gamma), jitted_vtrace(*as_ends, log_rho, 0.9), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jitted_upgo(*batch, gamma), jitted_upgo(*as_ends, 0.9), rtol=1e-5, atol=1e-6)


def test_one_step_is_a_td_target() -> None:
    one = np.ones((1, 1), np.float32)
    reward, value, next_value, log_rho = 2.0 * one, 3.0 * one, 7.0 * one, np.log(0.5) * one
    for terminated, truncated, backup in ((0, 0, 5.5), (0, 1, 5.5), (1, 0, 2.0), (1, 1, 2.0)):
        ends = (np.full((1, 1), bool(terminated)), np.full((1, 1), bool(truncated)))
        target, advantage = vtrace(reward, value, next_value, *ends, log_rho, 0.5)
        assert target[0, 0] == pytest.approx(3.0 + 0.5 * (backup - 3.0))
        assert advantage[0, 0] == pytest.approx(0.5 * (backup - 3.0))
        assert upgo(reward, value, next_value, *ends, 0.5)[0, 0] == pytest.approx(backup)


# UPGO


def upgo_by_definition(batch: Batch, gamma: float) -> np.ndarray:
    """Each step's return added up forwards for as long as the next step is no worse than expected, in doubles."""
    steps, envs = batch.reward.shape
    b = Batch(*(x.astype(np.float64) for x in batch[:3]), *batch[3:])
    returns = np.zeros((steps, envs))
    for n in range(envs):
        for s in range(steps):
            weight = 1.0
            for t in range(s, steps):
                returns[s, n] += weight * b.reward[t, n]
                weight *= gamma
                if b.terminated[t, n]:
                    break
                if b.truncated[t, n] or t == steps - 1:
                    returns[s, n] += weight * b.next_value[t, n]
                    break
                after = 0.0 if b.terminated[t + 1, n] else b.next_value[t + 1, n]
                if b.reward[t + 1, n] + gamma * after < b.value[t + 1, n]:
                    returns[s, n] += weight * b.value[t + 1, n]
                    break
    return returns


@pytest.mark.parametrize("ends", ENDS)
def test_upgo_follows_rewards_while_they_are_no_worse_than_expected(ends: str) -> None:
    batch = whole_batch(ends, seed=5)
    np.testing.assert_allclose(jitted_upgo(*batch, 0.97), upgo_by_definition(batch, 0.97), rtol=1e-5, atol=1e-5)


def test_upgo_is_the_lambda_return_of_rlax_with_lambda_zero_or_one() -> None:
    batch = whole_batch("terminated", seed=6)
    discount = np.where(batch.terminated, 0.0, 0.9).astype(np.float32)
    better = batch.reward + discount * batch.next_value >= batch.value
    follow = np.append(better[1:], np.zeros((1, N), bool), axis=0).astype(np.float32)
    expected = jax.jit(jax.vmap(rlax.lambda_returns, in_axes=1, out_axes=1))(batch.reward, discount, batch.next_value, follow)
    np.testing.assert_allclose(jitted_upgo(*batch, 0.9), expected, rtol=1e-5, atol=1e-5)
    assert 0.2 < follow.mean() < 0.8


def test_upgo_never_looks_beyond_an_episode() -> None:
    for ends in ("terminated", "truncated"):
        batch = whole_batch(ends, seed=7)
        t, n = next((t, n) for n in range(N) for t in range(T - 1) if batch.terminated[t, n] or batch.truncated[t, n])
        before = jitted_upgo(*batch, 0.99)[: t + 1, n]
        batch.reward[t + 1 :] += 100.0
        np.testing.assert_array_equal(jitted_upgo(*batch, 0.99)[: t + 1, n], before)


@pytest.mark.slow
def test_vtrace_and_upgo_take_any_batch_shape_and_are_the_same_under_vmap() -> None:
    batch, log_rho = whole_batch("mixed", seed=8), random_log_rho(8)
    for function, arrays in ((vtrace, (*batch, log_rho)), (upgo, tuple(batch))):
        whole = jnp.stack([*jax.tree.leaves(function(*arrays, 0.99))])
        per_env = jax.vmap(lambda *x, function=function: function(*x, 0.99), in_axes=1, out_axes=1)(*arrays)
        folded = function(*(x.reshape(T, 2, 2) for x in arrays), 0.99)
        np.testing.assert_allclose(jnp.stack([*jax.tree.leaves(per_env)]), whole, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(jnp.stack([*jax.tree.leaves(folded)]).reshape(whole.shape), whole, rtol=1e-5, atol=1e-6)


def test_vtrace_and_upgo_refuse_arrays_of_different_shapes() -> None:
    batch = random_batch("none")
    with pytest.raises(AssertionError, match="shape"):
        vtrace(*batch, np.zeros((T - 1, N), np.float32), 0.99)
    with pytest.raises(AssertionError, match="shape"):
        upgo(batch.reward[1:], *batch[1:], 0.99)


# Q(lambda)

jitted_q_lambda = jax.jit(q_lambda_returns)


def q_lambda_by_definition(batch: Batch, gamma: float, q_lambda: float) -> np.ndarray:
    """The mixture of n-step returns that the lambda-return is, each added up forwards and bootstrapped once, in doubles."""
    steps, envs = batch.reward.shape
    returns = np.zeros((steps, envs))
    for n in range(envs):
        for s in range(steps):
            total, discount, left = 0.0, 1.0, 1.0
            for t in range(s, steps):
                total += discount * float(batch.reward[t, n])
                discount *= gamma
                n_step = total if batch.terminated[t, n] else total + discount * float(batch.next_value[t, n])
                if batch.terminated[t, n] or batch.truncated[t, n] or t == steps - 1:
                    returns[s, n] += left * n_step
                    break
                returns[s, n] += left * (1 - q_lambda) * n_step
                left *= q_lambda
    return returns


@pytest.mark.parametrize("q_lambda", [0.0, 0.65, 1.0])
@pytest.mark.parametrize("ends", ENDS)
def test_q_lambda_returns_are_a_mixture_of_n_step_returns(ends: str, q_lambda: float) -> None:
    batch = random_batch(ends, seed=5)
    # At a termination the bootstrap counts for nothing, whatever it is.
    next_q_max = np.where(batch.terminated, np.nan, batch.next_value)
    returns = jitted_q_lambda(batch.reward, next_q_max, batch.terminated, batch.truncated, 0.97, q_lambda)
    np.testing.assert_allclose(returns, q_lambda_by_definition(batch, 0.97, q_lambda), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ends", ["none", "terminated"])
def test_q_lambda_returns_equal_rlax_lambda_returns_where_nothing_is_truncated(ends: str) -> None:
    batch = random_batch(ends, seed=6)
    returns = jitted_q_lambda(batch.reward, batch.next_value, batch.terminated, batch.truncated, 0.99, 0.65)
    discount = np.where(batch.terminated, 0.0, 0.99).astype(np.float32)
    by_rlax = jax.vmap(lambda r, d, v: rlax.lambda_returns(r, d, v, 0.65), in_axes=1, out_axes=1)
    np.testing.assert_allclose(returns, jax.jit(by_rlax)(batch.reward, discount, batch.next_value), rtol=1e-5, atol=1e-5)


def test_a_truncated_q_lambda_return_is_that_of_the_final_observation_alone() -> None:
    batch = random_batch("none", seed=7)
    batch.truncated[4, :] = True
    returns = jitted_q_lambda(batch.reward, batch.next_value, batch.terminated, batch.truncated, 0.9, 0.8)
    np.testing.assert_allclose(returns[4], batch.reward[4] + 0.9 * batch.next_value[4], rtol=1e-6)
    batch.reward[5:] += 100.0
    again = jitted_q_lambda(batch.reward, batch.next_value, batch.terminated, batch.truncated, 0.9, 0.8)
    np.testing.assert_array_equal(again[:5], returns[:5])


def test_what_follows_a_termination_counts_for_nothing_whatever_it_is() -> None:
    reward, value = jnp.ones(3), jnp.zeros(3)
    next_value = jnp.array([0.0, jnp.inf, 0.0])
    terminated, never = jnp.array([False, True, False]), jnp.zeros(3, bool)
    targets, advantages = vtrace(reward, value, next_value, terminated, never, jnp.zeros(3), 0.9)
    np.testing.assert_allclose(targets, [1.9, 1.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(advantages, [1.9, 1.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(upgo(reward, value, next_value, terminated, never, 0.9), [1.9, 1.0, 1.0], rtol=1e-6)


# Returns of states with the reward on arriving

jitted_lambda_returns = jax.jit(lambda_returns)


def lambda_returns_in_plain_python(
    reward: np.ndarray, value: np.ndarray, discount: np.ndarray, lambda_: float, last: np.ndarray
) -> list[float]:
    """The mixture of n-step returns, each added up forwards and bootstrapped once, in doubles; all arrays `[T]`."""
    returns = []
    for s in range(len(reward) - 1):
        mixture, total, weight, left = 0.0, 0.0, 1.0, 1.0
        for t in range(s + 1, len(reward)):
            total += weight * float(reward[t])
            weight *= float(discount[t])
            n_step = total + weight * float(value[t])
            if last[t] or t == len(reward) - 1:
                mixture += left * n_step
                break
            mixture += left * (1 - lambda_) * n_step
            left *= lambda_
        returns.append(mixture)
    return returns


def test_lambda_returns_of_the_specification() -> None:
    reward, value = jnp.array([9.0, 1.0, 2.0, 3.0]), jnp.array([10.0, 20.0, 30.0, 40.0])
    golden = [43.774759, 44.109051, 42.879880]
    np.testing.assert_allclose(lambda_returns(reward, value, 332 / 333, 0.95), golden, rtol=1e-6)
    np.testing.assert_allclose(lambda_returns(reward, value, jnp.full(4, 332 / 333), 0.95, jnp.zeros(4, bool)), golden, rtol=1e-6)


@pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
def test_lambda_returns_are_a_mixture_of_n_step_returns_up_to_the_last_of_an_episode(lambda_: float) -> None:
    rng = np.random.default_rng(8)
    reward, value = rng.normal(size=(2, T, N)).astype(np.float32)
    last = rng.random((T, N)) < 0.3
    # Terminal states in the midst of it, of which some are marked as the last of an episode and some are not.
    discount = np.where(rng.random((T, N)) < 0.2, 0.0, rng.uniform(0.8, 1.0, (T, N))).astype(np.float32)
    assert ((discount == 0) & last).any()
    assert ((discount == 0) & ~last).any()
    returns = jitted_lambda_returns(reward, value, discount, lambda_, last)
    assert returns.shape == (T - 1, N)
    for n in range(N):
        want = lambda_returns_in_plain_python(reward[:, n], value[:, n], discount[:, n], lambda_, last[:, n])
        np.testing.assert_allclose(returns[:, n], want, rtol=1e-5, atol=1e-5)


def test_lambda_returns_see_nothing_beyond_the_last_of_an_episode_nor_a_terminal_state() -> None:
    rng = np.random.default_rng(9)
    reward, value = rng.normal(size=(2, 8)).astype(np.float32)
    last = np.arange(8) == 4
    later = np.where(np.arange(8) > 4, 100.0, 0.0).astype(np.float32)
    for discount, kept in ((np.full(8, 0.9, np.float32), last), (np.where(last, 0.0, 0.9).astype(np.float32), None)):
        returns = jitted_lambda_returns(reward, value, discount, 0.9, kept)
        again = jitted_lambda_returns(reward + later, value + later, discount, 0.9, kept)
        np.testing.assert_array_equal(again[:4], returns[:4])
        assert (np.abs(again - returns)[4:] > 1.0).all()
    truncated = jitted_lambda_returns(reward, value, np.full(8, 0.9, np.float32), 0.9, last)
    np.testing.assert_allclose(truncated[3], reward[4] + 0.9 * value[4], rtol=1e-6)


def test_lambda_returns_equal_those_of_rlax_and_are_the_same_under_vmap() -> None:
    batch = random_batch("none", seed=10)
    discount = np.random.default_rng(10).uniform(0.8, 1.0, (T, N)).astype(np.float32)
    one = jax.jit(lambda r, v, d: rlax.lambda_returns(r[1:], d[1:], v[1:], 0.9))
    by_rlax = jax.vmap(one, in_axes=1, out_axes=1)(batch.reward, batch.value, discount)
    together = jitted_lambda_returns(batch.reward, batch.value, discount, 0.9)
    np.testing.assert_allclose(together, by_rlax, rtol=1e-5, atol=1e-5)
    mapped = jax.vmap(lambda r, v, d: lambda_returns(r, v, d, 0.9), in_axes=1, out_axes=1)
    np.testing.assert_allclose(mapped(batch.reward, batch.value, discount), together, rtol=1e-6, atol=1e-6)


def test_lambda_returns_refuse_arrays_of_different_shapes() -> None:
    with pytest.raises(AssertionError):
        lambda_returns(jnp.zeros(4), jnp.zeros(3), 0.9, 0.95)
    with pytest.raises(AssertionError):
        lambda_returns(jnp.zeros(4), jnp.zeros(4), 0.9, 0.95, jnp.zeros(3, bool))
