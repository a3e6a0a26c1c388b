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

from rljax.collect.returns import gae

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


def test_arrays_of_different_shapes_are_refused() -> None:
    batch = random_batch("none")
    with pytest.raises(AssertionError, match="shape"):
        gae(batch.reward[1:], *batch[1:], 0.99, 0.95)
