"""Auto-regressive heads that are read only if an earlier head takes certain actions: against enumeration of all actions."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.core.environments.spaces import MultiDiscrete
from rljax.nn.outputs.composite import composite_head
from rljax.nn.outputs.pointed import Pointed, pointed_head

NVEC = (3, 3, 4, 2, 2)
ONLY_IF = (None, (0, (1,)), (0, (0, 2)), None, (3, (1,)))
ACTIONS = np.array(list(itertools.product(*map(range, NVEC))))
READ = np.stack(
    [np.full(len(ACTIONS), True), ACTIONS[:, 0] == 1, ACTIONS[:, 0] != 1, np.full(len(ACTIONS), True), ACTIONS[:, 3] == 1]
)
READ = READ.T


def distribution(make: Any, only_if: Any = ONLY_IF) -> tuple[Any, Any]:
    """Return a head of either kind, and a distribution whose every head depends on all those before it."""
    head = make(MultiDiscrete(NVEC, only_if=only_if), context=6)
    keys = jax.random.split(jax.random.key(0), 3)
    context, entities = jax.random.normal(keys[0], (6,)), jax.random.normal(keys[1], (3, 5))
    x: Any = context if make is composite_head else Pointed(context, entities, None)
    assert head.module is not None
    shapes = jax.eval_shape(head.module.init, keys[2], x)
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: (0.8 * rng.normal(size=leaf.shape)).astype(np.float32), shapes)
    return head, head.distribution(head.module.apply(params, x), None)


def for_each(dist: Any, function: Any) -> np.ndarray:
    return np.asarray(jax.jit(jax.vmap(lambda action: function(dist, action)))(jnp.asarray(ACTIONS)))


@pytest.mark.parametrize("make", [composite_head, pytest.param(pointed_head, marks=pytest.mark.slow)])
def test_what_is_not_read_changes_neither_probabilities_nor_later_heads(make: Any) -> None:
    head, dist = distribution(make)
    log_prob = for_each(dist, lambda d, a: d.log_prob(a))
    as_read = [tuple(a[r].tolist()) + tuple(r.tolist()) for a, r in zip(ACTIONS, READ, strict=True)]
    probability: dict[Any, float] = {}
    for name, value in zip(as_read, np.exp(log_prob), strict=True):
        assert value == pytest.approx(probability.setdefault(name, float(value)), rel=1e-5)
    assert len(probability) == (3 + 4 + 4) * 3
    assert sum(probability.values()) == pytest.approx(1.0, rel=1e-5)
    choices = for_each(dist, lambda d, a: head.choices(d, a).log_prob)
    np.testing.assert_array_equal(for_each(dist, lambda d, a: head.choices(d, a).read), READ)
    each = np.take_along_axis(choices, ACTIONS[..., None], -1)[..., 0]
    np.testing.assert_allclose(np.where(READ, each, 0.0).sum(-1), log_prob, rtol=1e-4, atol=1e-5)
    # The entropy along what the policy draws is that of what is read, on average.
    entropy = for_each(dist, lambda d, a: head.entropy(d, a))
    every = np.exp(each.sum(-1))
    assert every.sum() == pytest.approx(1.0, rel=1e-5)
    assert (every * entropy).sum() == pytest.approx(-sum(p * np.log(p) for p in probability.values()), rel=1e-4)

    draws = 20_000
    noise = head.noise(jax.random.key(5), (draws,))
    sample = np.asarray(jax.jit(jax.vmap(lambda n: head.sample(dist, n)))(noise))
    place = np.ravel_multi_index(tuple(sample.T), NVEC)
    # Heads that are not read are drawn, too, each as `choices` says.
    assert np.abs(np.bincount(place, minlength=len(ACTIONS)) / draws - every).max() < 0.01
    mode = np.asarray(dist.mode())
    first = ACTIONS.tolist().index(mode.tolist())
    np.testing.assert_array_equal(choices[first].argmax(-1), mode)


@pytest.mark.parametrize("make", [composite_head, pytest.param(pointed_head, marks=pytest.mark.slow)])
def test_a_head_whose_decider_comes_later_counts(make: Any) -> None:
    only_if = (None, (3, (1,)), None, None, None)
    head, dist = distribution(make, only_if)
    assert for_each(dist, lambda d, a: head.choices(d, a).read).all(), "a clone learns it wherever it counts"
    _, plain = distribution(make, None)
    np.testing.assert_array_equal(for_each(dist, lambda d, a: d.log_prob(a)), for_each(plain, lambda d, a: d.log_prob(a)))
    assert not np.allclose(
        for_each(distribution(make)[1], lambda d, a: d.log_prob(a)), for_each(plain, lambda d, a: d.log_prob(a))
    )
