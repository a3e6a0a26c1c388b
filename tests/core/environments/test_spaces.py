"""Spaces: samples lie inside, `contains` refuses what lies outside, and those of gymnax and Gymnasium are read as ours."""

from __future__ import annotations

from typing import Any

import gymnasium.spaces
import gymnax.environments.spaces
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.core.environments.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple, as_space, head_sizes, is_legal, legal_action

# Compiling takes most of the time here, so XLA need not optimise.
QUICK = {"xla_backend_optimization_level": 0}
LOW, HIGH = np.array([-1.0, 0.0, -np.inf], np.float32), np.array([1.0, 5.0, np.inf], np.float32)
NESTED = Dict({"b": Discrete(3), "a": Tuple((Box(-1.0, 1.0, (2, 2)), MultiDiscrete((2, 5))))})


def samples(space: Any, count: int = 2000) -> Any:
    draw = jax.jit(lambda: jax.vmap(space.sample)(jax.random.split(jax.random.key(0), count)), compiler_options=QUICK)
    return jax.tree.map(np.asarray, draw())


@pytest.mark.parametrize(
    "space",
    [Discrete(4), MultiDiscrete((3, 1, 4)), Box(-2.0, 3.0, (2,)), Box(LOW, HIGH, (3,)), Box(0, 255, (2,), jnp.uint8), NESTED],
    ids=["discrete", "multi", "box", "unbounded", "pixels", "nested"],
)
def test_samples_are_contained(space: Any) -> None:
    drawn = samples(space)
    assert np.all(jax.jit(jax.vmap(space.contains), compiler_options=QUICK)(drawn))


def test_discrete_samples_are_uniform() -> None:
    drawn = samples(Discrete(4))
    assert drawn.dtype == np.int32
    np.testing.assert_allclose(np.bincount(drawn) / 2000, 0.25, atol=0.04)


def test_multi_discrete_heads_are_uniform_and_independent() -> None:
    drawn = samples(MultiDiscrete((3, 2)))
    assert drawn.shape == (2000, 2)
    counts = np.zeros((3, 2))
    np.add.at(counts, (drawn[:, 0], drawn[:, 1]), 1)
    np.testing.assert_allclose(counts / 2000, 1 / 6, atol=0.035)


def test_box_samples_are_uniform_or_normal_by_bound() -> None:
    drawn = samples(Box(LOW, HIGH, (3,)))
    np.testing.assert_allclose(drawn[:, :2].min(0), LOW[:2], atol=0.05)
    np.testing.assert_allclose(drawn[:, :2].max(0), HIGH[:2], atol=0.05)
    np.testing.assert_allclose(drawn.mean(0), [0.0, 2.5, 0.0], atol=0.12)
    assert drawn[:, 2].std() == pytest.approx(1.0, abs=0.06)
    half = samples(Box(0.0, np.inf, (1,)))
    assert half.min() >= 0
    assert np.isfinite(half).all()
    huge = np.finfo(np.float32).max
    assert np.isfinite(samples(Box(-huge, huge, (1,)))).all()


@pytest.mark.parametrize(("dtype", "high"), [(jnp.int32, 3), (jnp.uint8, 3), (jnp.bool_, 1)])
def test_both_bounds_of_whole_numbers_are_drawn_as_often_as_the_others(dtype: Any, high: int) -> None:
    space = Box(0, high, (2,), dtype)
    drawn = samples(space)
    assert drawn.dtype == dtype
    noise = jax.random.uniform(jax.random.key(1), (2000, 2))
    played = jax.jit(jax.vmap(lambda x: legal_action(space, None, x)[0]), compiler_options=QUICK)(noise)
    assert played.dtype == dtype
    for found in (drawn, np.asarray(played)):
        np.testing.assert_allclose(np.bincount(found.ravel().astype(int)) / 4000, 1 / (high + 1), atol=0.035)


def test_contains_refuses_what_lies_outside() -> None:
    assert [bool(Discrete(3).contains(x)) for x in (-1, 0, 2, 3)] == [False, True, True, False]
    multi = MultiDiscrete((3, 2))
    assert [bool(multi.contains(x)) for x in ([2, 1], [3, 1], [2, 2], [-1, 0])] == [True, False, False, False]
    box = Box(np.array([-1.0, 0.0]), np.array([1.0, 5.0]), (2,))
    assert [bool(box.contains(x)) for x in ([1.0, 5.0], [1.1, 5.0], [1.0, -0.1], [np.nan, 1.0])] == [True, False, False, False]
    inside = {"b": 2, "a": (jnp.zeros((2, 2)), jnp.array([1, 4]))}
    assert NESTED.contains(inside)
    assert not NESTED.contains({**inside, "b": 3})
    assert not NESTED.contains({**inside, "a": (jnp.full((2, 2), 2.0), jnp.array([1, 4]))})


def test_flat_dim() -> None:
    assert Discrete(4).flat_dim == 4
    assert MultiDiscrete((3, 4, 2)).flat_dim == 9
    assert Box(0.0, 1.0, (2, 3)).flat_dim == 6
    assert Box(0.0, 1.0).flat_dim == 1
    assert NESTED.flat_dim == 3 + 4 + 7


def test_shapes() -> None:
    assert Discrete(4).shape == ()
    assert MultiDiscrete((3, 4, 2)).shape == (3,)


@pytest.mark.parametrize("make", [lambda: Discrete(0), lambda: MultiDiscrete(()), lambda: MultiDiscrete((2, 0))])
def test_empty_spaces_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="at least"):
        make()


def test_our_spaces_pass_through_as_space() -> None:
    for space in (Discrete(2), MultiDiscrete((2, 2)), Box(0.0, 1.0, (1,)), NESTED):
        assert as_space(space) is space


def test_as_space_reads_gymnasium() -> None:
    spaces = gymnasium.spaces
    assert as_space(spaces.Discrete(3)) == Discrete(3)
    assert as_space(spaces.MultiDiscrete([3, 4, 2])) == MultiDiscrete((3, 4, 2))
    box = as_space(spaces.Box(LOW, HIGH, dtype=np.float32))
    assert isinstance(box, Box)
    assert box.shape == (3,)
    np.testing.assert_array_equal(box.low, LOW)
    np.testing.assert_array_equal(box.high, HIGH)
    assert as_space(spaces.MultiBinary(3)) == MultiDiscrete((2, 2, 2))
    pixels = as_space(spaces.Box(0, 255, (4, 4), np.uint8))
    assert (pixels.shape, pixels.dtype) == ((4, 4), np.uint8)
    nested = as_space(spaces.Dict({"x": spaces.Discrete(2), "y": spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Discrete(5)))}))
    assert isinstance(nested, Dict)
    assert isinstance(nested.spaces["y"], Tuple)
    assert nested.flat_dim == 2 + 2 + 5


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (gymnasium.spaces.MultiBinary((2, 3)), r"^MultiBinary: has shape \(2, 3\), expected \(\) or \(n,\)$"),
        (gymnasium.spaces.MultiDiscrete([[2, 3], [4, 5]]), r"^MultiDiscrete: nvec has shape \(2, 2\), expected one axis$"),
        (gymnasium.spaces.Discrete(3, start=1), "^Discrete: start = 1, expected elements that count from 0$"),
        (gymnasium.spaces.MultiDiscrete([3, 3], start=[0, 1]), r"^MultiDiscrete: start = \[0, 1\], expected"),
    ],
)
def test_what_rljax_has_no_space_for_is_refused_in_one_line(space: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        as_space(space)


def test_as_space_reads_gymnax() -> None:
    spaces = gymnax.environments.spaces
    assert as_space(spaces.Discrete(3)) == Discrete(3)
    box = as_space(spaces.Box(-1.0, 2.0, (2, 3)))
    assert (box.low, box.high, box.shape, box.dtype) == (-1.0, 2.0, (2, 3), jnp.float32)
    assert as_space(spaces.Box(0.0, 1.0, 4)).shape == (4,)
    assert as_space(spaces.Box(0.0, 1.0, ())).shape == ()
    nested = as_space(spaces.Dict({"x": spaces.Discrete(2), "y": spaces.Tuple((spaces.Discrete(3), spaces.Box(0.0, 1.0, (2,))))}))
    assert isinstance(nested.spaces["y"], Tuple)
    assert nested.flat_dim == 2 + 3 + 2


def test_what_is_no_space_is_refused() -> None:
    with pytest.raises(TypeError, match="is not a space"):
        as_space(3)


def test_head_sizes_are_in_order_of_insertion() -> None:
    heads = Dict({"verb": Discrete(4), "amount": Discrete(2), "target": Discrete(3)})
    assert head_sizes(heads) == (4, 2, 3)
    assert heads.flat_dim == 9
    action = heads.sample(jax.random.key(0))
    assert action.keys() == heads.spaces.keys()
    assert all(part.shape == () and part.dtype == jnp.int32 for part in action.values())
    assert head_sizes(Discrete(5)) == (5,)
    assert head_sizes(MultiDiscrete((2, 3))) == (2, 3)
    for other in (Box(0.0, 1.0, (2,)), Tuple((Discrete(2),)), Dict({}), NESTED):
        assert head_sizes(other) is None


def test_an_action_is_legal_if_each_head_that_is_read_allows_it() -> None:
    pairs = jnp.array([[1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1]], bool)  # the second head repeats the first
    reads = MultiDiscrete((2, 2), only_if=(None, (0, (1,))))  # the second head is read after action 1 of the first
    no_second = jnp.array([True, True, True, False])
    heads = Dict({"b": Discrete(2), "a": Discrete(3)})  # in this order
    last = jnp.array([True, False, False, False, True])
    for space, mask, action, expected in (
        (Discrete(2), None, 1, True),
        (Discrete(2), None, 2, False),
        (Discrete(2), None, -1, False),
        (Discrete(2), jnp.array([True, False]), 1, False),
        (MultiDiscrete((2, 2)), pairs, (1, 1), True),
        (MultiDiscrete((2, 2)), pairs, (0, 1), False),
        (reads, no_second, (0, 1), True),
        (reads, no_second, (1, 1), False),
        (heads, last, {"b": 0, "a": 2}, True),
        (heads, last, {"b": 1, "a": 2}, False),
        (Box(0.0, 1.0, (2,)), None, (0.5, 1.0), True),
        (Box(0.0, 1.0, (2,)), None, (0.5, 1.5), False),
    ):
        action = jnp.asarray(action) if not isinstance(action, dict) else jax.tree.map(jnp.asarray, action)
        assert bool(is_legal(space, mask, action)) == expected, (space, action)
