"""The choices of every kind of policy with discrete actions, against its own probabilities, which have tests of their own."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.core.environments.spaces import Discrete, MultiDiscrete
from rljax.nn.groups import PerGroup, grouped_head
from rljax.nn.outputs.actions import action_head
from rljax.nn.outputs.composite import CompositeHead, composite_head
from rljax.nn.outputs.pointed import Pointed, PointedHead, pointed_head

NVEC = (3, 2, 4)
ACTIONS = jnp.array(list(itertools.product(*map(range, NVEC))))
ONLY_IF = (None, (0, (1, 2)), None)


def pair_mask() -> jax.Array:
    """Action 2 of head 0 is illegal, and its action 1 rules out the actions 0 and 2 of head 2."""
    mask = np.ones((9, 9), bool)
    mask[2, 2] = False
    mask[1, [5, 7]] = False
    return jnp.asarray(mask)


def independent(mask: Any) -> tuple[Any, Any]:
    head = action_head(MultiDiscrete(NVEC))
    return head, head.distribution(jax.random.normal(jax.random.key(0), (len(ACTIONS), 9)), mask)


def composite(mask: Any) -> tuple[Any, Any]:
    head = composite_head(MultiDiscrete(NVEC), context=8)
    module = CompositeHead(NVEC)
    context = jax.random.normal(jax.random.key(1), (8,))
    params = jax.tree.map(lambda x: 3.0 * x + 0.1, module.init(jax.random.key(2), context))
    outputs = module.apply(params, jnp.broadcast_to(context, (len(ACTIONS), 8)))
    return head, head.distribution(outputs, mask)


def pointed(mask: Any) -> tuple[Any, Any]:
    head, module = pointed_head(MultiDiscrete(NVEC), context=8), PointedHead(NVEC)
    one = Pointed(
        jax.random.normal(jax.random.key(1), (8,)), jax.random.normal(jax.random.key(3), (2, 5)), jnp.array([True, True])
    )
    params = jax.tree.map(lambda x: 3.0 * x + 0.1, module.init(jax.random.key(2), one))
    outputs = module.apply(params, jax.tree.map(lambda x: jnp.broadcast_to(x, (len(ACTIONS), *x.shape)), one))
    return head, head.distribution(outputs, mask)


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", [independent, composite, pytest.param(pointed, marks=pytest.mark.slow)])
def test_heads_multiply_to_the_probability_of_the_action_and_are_distributions(kind: Any, masked: bool) -> None:
    mask = None
    if masked:
        mask = pair_mask()
        mask = jnp.diagonal(mask) if kind is independent else mask
        mask = jnp.broadcast_to(mask, (len(ACTIONS), *mask.shape))
    head, distribution = kind(mask)
    found = head.choices(distribution, ACTIONS)
    assert found.log_prob.shape == (len(ACTIONS), 3, 4)
    each = np.take_along_axis(np.asarray(found.log_prob), np.asarray(ACTIONS)[..., None], -1)[..., 0]
    expected = np.asarray(distribution.log_prob(ACTIONS))
    legal = expected > -1e30
    assert masked != legal.all()
    np.testing.assert_allclose(each.sum(-1)[legal], expected[legal], rtol=1e-4)
    np.testing.assert_array_equal(np.asarray(found.valid).all(-1), legal)
    np.testing.assert_allclose(np.exp(found.log_prob).sum(-1), 1.0, rtol=1e-5)
    assert found.read.all()
    widths = np.asarray(found.legal).sum(-1)
    if not masked:
        np.testing.assert_array_equal(widths, np.broadcast_to(NVEC, widths.shape))
    elif kind is not independent:
        after_one = np.asarray(ACTIONS)[:, 0] == 1
        np.testing.assert_array_equal(widths[after_one, 2], 2)
        np.testing.assert_array_equal(widths[~after_one & legal, 2], 4)
    likeliest = np.asarray(found.likeliest)
    np.testing.assert_array_equal(likeliest[:, 0], np.asarray(distribution.mode())[:, 0])


def test_a_single_head_and_heads_that_are_not_read() -> None:
    head = action_head(Discrete(3))
    distribution = head.distribution(jnp.array([[0.0, 1.0, 5.0]]), jnp.array([[True, True, False]]))
    assert head.choices is not None
    found = head.choices(distribution, jnp.array([1]))
    np.testing.assert_allclose(np.exp(found.log_prob[0, 0]), [0.26894, 0.73106, 0.0], rtol=1e-4)
    assert found.decides.all()
    assert not head.choices(distribution, jnp.array([2])).valid.any()
    forced = head.distribution(jnp.zeros((1, 3)), jnp.array([[False, True, False]]))
    assert not head.choices(forced, jnp.array([1])).decides.any()
    several = action_head(MultiDiscrete(NVEC, only_if=ONLY_IF))
    assert several.choices is not None
    found = several.choices(several.distribution(jnp.zeros((len(ACTIONS), 9)), None), ACTIONS)
    np.testing.assert_array_equal(found.read[:, 1], np.asarray(ACTIONS)[:, 0] > 0)


def test_groups_choose_with_the_network_of_their_own() -> None:
    head = action_head(MultiDiscrete(NVEC))
    outputs = jax.random.normal(jax.random.key(0), (2, 9, 2))
    group = jnp.array([[True, False], [False, True]])
    grouped = grouped_head(head)
    assert grouped.choices is not None
    assert head.choices is not None
    action = ACTIONS[:2]
    found = grouped.choices(grouped.distribution(PerGroup(outputs, group), None), action)
    alone = head.choices(head.distribution(jnp.stack([outputs[0, :, 0], outputs[1, :, 1]]), None), action)
    np.testing.assert_allclose(found.log_prob, alone.log_prob, rtol=1e-6)
    np.testing.assert_array_equal(found.action, alone.action)
