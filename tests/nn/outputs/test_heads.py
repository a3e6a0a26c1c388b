"""Heads that are read only if another head takes certain actions, against enumeration of the actions that are read."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.core.environments.spaces import MultiDiscrete
from rljax.nn.outputs.actions import ActionHead, action_head

NVEC = (2, 3, 4, 3, 2)
ONLY_IF = (None, (3, (1,)), (0, (0,)), None, (3, (0, 2)))
"""Heads 0 and 3 are always read; head 1 if head 3 is 1, head 2 if head 0 is 0, head 4 if head 3 is 0 or 2."""


def head() -> ActionHead:
    return action_head(MultiDiscrete(NVEC, only_if=ONLY_IF))


def read(action: tuple[int, ...]) -> tuple[int | None, ...]:
    """Return the action without what is not read."""
    conditions = [True, action[3] == 1, action[0] == 0, True, action[3] in (0, 2)]
    return tuple(a if condition else None for a, condition in zip(action, conditions, strict=True))


def probabilities(outputs: np.ndarray, mask: np.ndarray | None) -> dict[tuple[int | None, ...], float]:
    """Return the probability of each action that is read: a sum over those of all heads."""
    heads, start = [], 0
    for n in NVEC:
        weights = np.exp(outputs[start : start + n].astype(float))
        weights *= 1 if mask is None else mask[start : start + n]
        heads.append(weights / weights.sum())
        start += n
    total: dict[tuple[int | None, ...], float] = {}
    for action in itertools.product(*map(range, NVEC)):
        p = float(np.prod([heads[k][a] for k, a in enumerate(action)]))
        if p > 0:
            total[read(action)] = total.get(read(action), 0.0) + p
    return total


MASKS = {"no mask": None, "mask": np.array([1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1], bool)}


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKS)
def test_probability_entropy_and_divergence_are_those_of_what_is_read(name: str) -> None:
    mask, given = MASKS[name], None if MASKS[name] is None else jnp.asarray(MASKS[name])
    outputs = np.asarray(jax.random.normal(jax.random.key(3), (2, sum(NVEC))))
    expected, other = (probabilities(row, mask) for row in outputs)
    assert sum(expected.values()) == pytest.approx(1.0)
    first, second = (head().distribution(jnp.asarray(row), given) for row in outputs)
    legal = [a for a in itertools.product(*map(range, NVEC)) if read(a) in expected and _legal(a, mask)]
    found = np.asarray(first.log_prob(jnp.array(legal)))
    np.testing.assert_allclose(found, [np.log(expected[read(a)]) for a in legal], rtol=1e-4, atol=1e-5)
    entropy = -sum(p * np.log(p) for p in expected.values())
    assert float(first.entropy()) == pytest.approx(entropy, rel=1e-5)
    divergence = sum(p * np.log(p / other[action]) for action, p in expected.items())
    assert float(first.kl_divergence(second)) == pytest.approx(divergence, rel=1e-4)


def _legal(action: tuple[int, ...], mask: np.ndarray | None) -> bool:
    starts = np.cumsum((0, *NVEC[:-1]))
    return mask is None or all(mask[start + a] for start, a in zip(starts, action, strict=True))


def test_heads_that_are_not_read_get_no_gradient() -> None:
    action = jnp.array([1, 2, 3, 1, 1])

    def log_prob(outputs: jax.Array) -> jax.Array:
        result: jax.Array = head().distribution(outputs, None).log_prob(action)
        return result

    gradient = np.split(np.asarray(jax.grad(log_prob)(jnp.arange(14) * 0.1)), np.cumsum(NVEC)[:-1])
    assert [bool((part != 0).any()) for part in gradient] == [True, True, False, True, False]


@pytest.mark.slow
def test_samples_modes_and_batches_are_those_of_independent_heads() -> None:
    plain = action_head(MultiDiscrete(NVEC))
    outputs = jax.random.normal(jax.random.key(0), (6, 3, sum(NVEC)))
    noise = plain.noise(jax.random.key(1), (6, 3))
    ours, theirs = (h.distribution(outputs, None) for h in (head(), plain))
    np.testing.assert_array_equal(head().sample(ours, noise), plain.sample(theirs, noise))
    np.testing.assert_array_equal(ours.mode(), theirs.mode())
    assert ours.log_prob(ours.mode()).shape == ours.entropy().shape == (6, 3)


@pytest.mark.parametrize(
    ("only_if", "words"),
    [
        ((None,), "only_if has 1 entries, expected one for each of 2 heads"),
        ((None, (0, (2,))), r"only_if\[1\] = \(0, \(2,\)\), expected the number of a head that is always read"),
        ((None, (0, ())), r"only_if\[1\] = \(0, \(\)\), expected"),
        ((None, (1, (0,))), r"only_if\[1\] = \(1, \(0,\)\), expected"),
        ((None, (2, (0,))), r"only_if\[1\] = \(2, \(0,\)\), expected"),
        ((None, (0,)), r"only_if\[1\] = \(0,\), expected"),
        ((None, (0, 1)), r"only_if\[1\] = \(0, 1\), expected"),
        ((None, 1), r"only_if\[1\] = 1, expected"),
        ((None, (0, (0.5,))), r"only_if\[1\] = \(0, \(0.5,\)\), expected"),
    ],
)
def test_conditions_that_make_no_sense_are_refused(only_if: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MultiDiscrete((2, 3), only_if=only_if)


def test_conditions_may_be_lists_and_are_repeated_with_the_heads() -> None:
    space = MultiDiscrete([2, 3], only_if=[None, [np.int64(0), [np.int32(1)]]])  # type: ignore[arg-type]
    assert hash(space) == hash(MultiDiscrete((2, 3), only_if=(None, (0, (1,)))))
    assert space.repeated(2) == MultiDiscrete((2, 3, 2, 3), only_if=(None, (0, (1,)), None, (2, (1,))))
    assert MultiDiscrete((2, 3)).repeated(2) == MultiDiscrete((2, 3, 2, 3))
