"""Action distributions: samples against log_prob, log_prob against scipy and enumeration, and masks that hold exactly."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from rljax.core.environments.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from rljax.core.errors import ConfigError
from rljax.nn.modules.classes import mask_logits
from rljax.nn.outputs.actions import (
    LOG_STD_MAX,
    LOG_STD_MIN,
    ActionHead,
    action_head,
    bounded_log_std,
)

SAMPLES = 40_000


class Case(NamedTuple):
    """Heads of a (multi-)discrete policy, its outputs and the legal actions of each head."""

    nvec: tuple[int, ...]
    multi: bool
    legal: tuple[tuple[bool, ...], ...] | None


CASES = {
    "discrete": Case((4,), False, None),
    "discrete, last action masked": Case((4,), False, ((True, True, True, False),)),
    "discrete, two masked": Case((4,), False, ((False, True, False, True),)),
    "discrete, one legal": Case((4,), False, ((False, False, True, False),)),
    "heads": Case((3, 4, 2), True, None),
    "heads, nothing masked": Case((3, 4, 2), True, ((True,) * 3, (True,) * 4, (True,) * 2)),
    "heads, last action of each masked": Case((3, 4, 2), True, ((True, True, False), (True, True, True, False), (True, False))),
    "heads, last action of the widest masked": Case((3, 4, 2), True, ((True,) * 3, (True, True, True, False), (True,) * 2)),
    "heads, first actions masked": Case((3, 4, 2), True, ((False, True, True), (False, False, True, True), (True, True))),
}


def head_of(case: Case) -> ActionHead:
    return action_head(MultiDiscrete(case.nvec) if case.multi else Discrete(case.nvec[0]))


def outputs_of(case: Case) -> jax.Array:
    return jax.random.normal(jax.random.key(9), (sum(case.nvec),))


def mask_of(case: Case) -> jax.Array | None:
    return None if case.legal is None else jnp.array([ok for head in case.legal for ok in head])


def joint_probabilities(case: Case) -> dict[tuple[int, ...], float]:
    """Probability of every joint action, in doubles: a softmax over the legal actions of each head by itself."""
    flat = np.asarray(outputs_of(case), np.float64)
    legal = case.legal or tuple((True,) * n for n in case.nvec)
    heads, start = [], 0
    for n, ok in zip(case.nvec, legal, strict=True):
        weights = np.exp(flat[start : start + n]) * np.asarray(ok)
        heads.append(weights / weights.sum())
        start += n
    return {a: math.prod(p[i] for p, i in zip(heads, a, strict=True)) for a in itertools.product(*map(range, case.nvec))}


def as_array(case: Case, actions: Any) -> jax.Array:
    """Joint actions as the distribution takes them: `[n, heads]`, or `[n]` for Discrete."""
    array = jnp.array(list(actions), jnp.int32)
    return array if case.multi else array[:, 0]


class Facts(NamedTuple):
    """What a head says of a case. Log-probabilities are those of all joint actions, in order of enumeration."""

    log_prob: np.ndarray
    log_prob_of_wild_outputs: np.ndarray
    entropy: np.ndarray
    mode: np.ndarray
    actions: np.ndarray
    gradient: np.ndarray
    gradient_of_large_outputs: np.ndarray


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@functools.cache
def measurement(nvec: tuple[int, ...], multi: bool) -> Any:
    """Everything at once, compiled for all cases of these heads: `(outputs, other outputs, mask, key) -> Facts`."""
    case = Case(nvec, multi, None)
    head, everything = head_of(case), as_array(case, itertools.product(*map(range, nvec)))

    @jax.jit
    def measure(outputs: jax.Array, wild_outputs: jax.Array, mask: jax.Array | None, key: jax.Array) -> Facts:
        distribution = head.distribution(outputs, mask)
        mode = distribution.mode()

        def loss(outputs: jax.Array) -> jax.Array:
            d = head.distribution(outputs, mask)
            return d.log_prob(mode) + 0.1 * d.entropy()

        return Facts(
            jax.vmap(distribution.log_prob)(everything),
            jax.vmap(head.distribution(wild_outputs, mask).log_prob)(everything),
            distribution.entropy(),
            mode,
            jax.vmap(lambda noise: head.to_env(head.sample(distribution, noise)))(head.noise(key, (SAMPLES,))),
            jax.grad(loss)(outputs),
            jax.grad(loss)(100.0 * outputs),  # probabilities that underflow
        )

    return measure


@pytest.fixture(scope="module")
def facts(case: Case) -> Facts:
    outputs, mask = outputs_of(case), mask_of(case)
    wild = outputs if mask is None else jnp.where(mask, outputs, 1e6)
    return jax.tree.map(np.asarray, measurement(case.nvec, case.multi)(outputs, wild, mask, jax.random.key(1)))


def test_probabilities_are_those_of_independent_heads_and_sum_to_one(case: Case, facts: Facts) -> None:
    expected = np.array(list(joint_probabilities(case).values()))
    probability = np.exp(facts.log_prob)
    np.testing.assert_allclose(probability, expected, rtol=1e-5)
    assert probability.sum() == pytest.approx(1.0, abs=1e-5)
    assert np.any(expected == 0.0) == (case.legal is not None and not all(map(all, case.legal)))
    assert np.all(probability[expected == 0.0] == 0.0)


def test_samples_follow_the_probabilities_and_are_never_illegal(case: Case, facts: Facts) -> None:
    assert facts.actions.dtype == np.int32
    assert facts.actions.shape == ((SAMPLES, len(case.nvec)) if case.multi else (SAMPLES,))
    flat = np.ravel_multi_index(facts.actions.reshape(SAMPLES, -1).T, case.nvec)
    counts = np.bincount(flat, minlength=math.prod(case.nvec))
    probability = np.array(list(joint_probabilities(case).values()))
    possible = probability > 0
    assert np.all(counts[~possible] == 0)
    if possible.sum() > 1:
        assert scipy.stats.chisquare(counts[possible], SAMPLES * probability[possible]).pvalue > 1e-3


def test_entropy_is_that_of_the_enumerated_probabilities(case: Case, facts: Facts) -> None:
    assert facts.entropy == pytest.approx(-sum(p * math.log(p) for p in joint_probabilities(case).values() if p > 0), abs=1e-5)


def test_the_mode_is_the_likeliest_joint_action(case: Case, facts: Facts) -> None:
    expected = joint_probabilities(case)
    assert tuple(np.atleast_1d(facts.mode).tolist()) == max(expected, key=lambda a: expected[a])


def test_gradients_are_finite_and_zero_at_illegal_actions(case: Case, facts: Facts) -> None:
    assert np.all(np.isfinite(facts.gradient))
    assert np.all(np.isfinite(facts.gradient_of_large_outputs))
    legal = np.array([ok for head in case.legal or [(True,) * n for n in case.nvec] for ok in head])
    np.testing.assert_array_equal(facts.gradient[~legal], 0.0)
    np.testing.assert_array_equal(facts.gradient_of_large_outputs[~legal], 0.0)
    has_a_choice = sum(p > 0 for p in joint_probabilities(case).values()) > 1
    assert np.any(facts.gradient != 0.0) == has_a_choice


def test_outputs_of_illegal_actions_change_nothing(facts: Facts) -> None:
    np.testing.assert_allclose(np.exp(facts.log_prob_of_wild_outputs), np.exp(facts.log_prob), rtol=1e-5)


@pytest.mark.parametrize("space", [Discrete(4), MultiDiscrete((3, 4, 2)), MultiDiscrete((300, 2))], ids=str)
def test_a_number_added_to_all_outputs_changes_no_draw(space: Any) -> None:
    head, number = action_head(space), 4096.0  # whose exponential is infinite
    outputs = jnp.round(64.0 * jax.random.normal(jax.random.key(3), (200, head.num_outputs))) / 64.0  # so that sums are exact
    mask = jnp.arange(head.num_outputs) % 3 != 1
    noise = head.noise(jax.random.key(4), (200,))
    drawn, moved = (head.sample(head.distribution(x, mask), noise) for x in (outputs, outputs + number))
    if isinstance(space, Discrete):
        assert set(np.asarray(drawn).tolist()) == {0, 2, 3}
    np.testing.assert_allclose(moved, drawn)


def test_a_batch_has_a_mask_for_each_place() -> None:
    head = action_head(MultiDiscrete((2, 3)))
    outputs = jax.random.normal(jax.random.key(2), (5, 4, 5))
    mask = jnp.ones((5, 4, 5), bool).at[0, :, 1].set(False).at[:, 2, 4].set(False)
    noise = head.noise(jax.random.key(3), (5, 4))

    def measure(outputs: jax.Array, mask: jax.Array, noise: jax.Array) -> tuple[jax.Array, ...]:
        distribution = head.distribution(outputs, mask)
        action = head.sample(distribution, noise)
        return action, distribution.log_prob(action), distribution.entropy()

    together, one_by_one = jax.jit(measure)(outputs, mask, noise), jax.jit(measure)
    assert together[0].shape == (5, 4, 2)
    for place in itertools.product(range(5), range(4)):
        single = one_by_one(outputs[place], mask[place], noise[place])
        np.testing.assert_array_equal(together[0][place], single[0])
        np.testing.assert_allclose([x[place] for x in together[1:]], single[1:], rtol=1e-6)


def test_masked_logits_are_finite_in_half_precision_too() -> None:
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        logits = mask_logits(jnp.zeros(2, dtype), jnp.array([True, False]))
        assert logits.dtype == dtype
        assert jnp.all(jnp.isfinite(logits))
        np.testing.assert_array_equal(jax.nn.softmax(logits), [1.0, 0.0])


BOX = Box(jnp.array([-1.0, -2.0, 0.0]), jnp.array([1.0, 0.5, 3.0]), (3,))
MEAN, LOG_STD = np.array([0.3, -1.5, 2.0]), np.array([-0.7, 0.2, 0.5])
GAUSSIAN_OUTPUTS = jnp.asarray(np.concatenate([MEAN, LOG_STD]), jnp.float32)


@pytest.mark.parametrize(("log_std", "num_outputs", "num_log_std"), [("parameter", 3, 3), ("network", 6, 0)])
def test_log_std_is_a_parameter_or_comes_from_the_network(log_std: str, num_outputs: int, num_log_std: int) -> None:
    head = action_head(BOX, log_std)
    assert (head.num_outputs, head.num_log_std) == (num_outputs, num_log_std)


@pytest.mark.parametrize("log_std", ["parameter", "network"])
def test_gaussian_log_prob_entropy_and_mode_are_those_of_scipy(log_std: str) -> None:
    distribution = action_head(BOX, log_std).distribution(GAUSSIAN_OUTPUTS, None)
    actions = jax.random.normal(jax.random.key(5), (20, 3)) * 2
    normal = scipy.stats.norm(MEAN, np.exp(LOG_STD))
    np.testing.assert_allclose(jax.vmap(distribution.log_prob)(actions), normal.logpdf(actions).sum(-1), rtol=1e-4, atol=1e-5)
    assert distribution.entropy() == pytest.approx(normal.entropy().sum(), rel=1e-5)
    np.testing.assert_allclose(distribution.mode(), MEAN, rtol=1e-6)


@pytest.mark.parametrize("log_std", ["parameter", "network"])
def test_gaussian_samples_follow_the_density(log_std: str) -> None:
    head = action_head(BOX, log_std)
    actions = head.sample(head.distribution(jnp.tile(GAUSSIAN_OUTPUTS, (4000, 1)), None), head.noise(jax.random.key(6), (4000,)))
    assert actions.shape == (4000, 3)
    for i in range(3):
        assert scipy.stats.kstest(np.asarray(actions)[:, i], scipy.stats.norm(MEAN[i], np.exp(LOG_STD[i])).cdf).pvalue > 1e-3
    np.testing.assert_allclose(np.corrcoef(np.asarray(actions).T), np.eye(3), atol=0.08)


def test_log_std_is_clamped() -> None:
    head = action_head(Box(-1.0, 1.0, (2,)), "network")
    distribution = head.distribution(jnp.array([0.0, 0.0, -50.0, 50.0]), None)
    np.testing.assert_allclose(distribution.std, [np.exp(LOG_STD_MIN), np.exp(LOG_STD_MAX)], rtol=1e-6)
    assert (LOG_STD_MIN, LOG_STD_MAX) == (-5.0, 2.0)
    gradient = jax.grad(lambda o: head.distribution(o, None).log_prob(jnp.ones(2)))(jnp.array([0.0, 0.0, -50.0, 50.0]))
    assert jnp.all(jnp.isfinite(gradient))


def test_environments_get_gaussian_actions_clipped_to_their_bounds_but_log_prob_is_of_the_sample() -> None:
    head = action_head(BOX)
    np.testing.assert_allclose(head.to_env(jnp.array([5.0, -5.0, -1.0])), [1.0, -2.0, 0.0])
    np.testing.assert_allclose(head.to_env(jnp.array([0.5, 0.0, 2.0])), [0.5, 0.0, 2.0])
    outputs = jnp.array([10.0, 10.0, 10.0, 0.0, 0.0, 0.0])
    distribution = head.distribution(outputs, None)
    action = head.sample(distribution, jnp.zeros(3))
    np.testing.assert_allclose(action, 10.0)
    assert distribution.log_prob(action) == pytest.approx(-1.5 * math.log(2 * math.pi), rel=1e-5)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_boxes_of_any_shape_have_one_log_prob_per_action(shape: tuple[int, ...]) -> None:
    head = action_head(Box(-1.0, 1.0, shape))
    size = math.prod(shape)
    assert head.num_outputs == head.num_log_std == size
    distribution = head.distribution(jnp.zeros((5, 2 * size)), None)
    actions = head.sample(distribution, head.noise(jax.random.key(7), (5,)))
    assert actions.shape == head.to_env(actions).shape == (5, *shape)
    assert distribution.log_prob(actions).shape == distribution.entropy().shape == (5,)
    expected = scipy.stats.norm.logpdf(np.asarray(actions)).reshape(5, -1).sum(-1)
    np.testing.assert_allclose(distribution.log_prob(actions), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Dict({"a": Discrete(2), "b": Box(0, 1, (2,))}), "expected several heads, a MultiDiscrete or a Dict of Discrete"),
        (Tuple((Discrete(2),)), "expected Discrete, MultiDiscrete, a Dict of Discrete, or Box"),
    ],
)
def test_a_space_without_a_policy_is_refused_in_one_line(space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        action_head(space)
    assert "\n" not in str(error.value)


def test_named_heads_are_those_of_a_multi_discrete_in_the_order_of_the_dictionary() -> None:
    head, plain = action_head(Dict({"z": Discrete(3), "a": Discrete(2)})), action_head(MultiDiscrete((3, 2)))
    outputs = jax.random.normal(jax.random.key(0), (7, 5))
    noise = head.noise(jax.random.key(1), (7,))
    action = head.sample(head.distribution(outputs, None), noise)
    np.testing.assert_array_equal(action, plain.sample(plain.distribution(outputs, None), noise))
    named = head.to_env(action)
    assert list(named) == ["z", "a"]
    np.testing.assert_array_equal(named["z"], action[:, 0])
    np.testing.assert_array_equal(named["a"], action[:, 1])


def test_wide_heads_compile_quickly_and_draw_only_legal_actions() -> None:
    head = action_head(MultiDiscrete((3000, 2)))
    mask = jnp.arange(3002) % 1000 == 1  # of the first head 1, 1001 and 2001; of the second 1
    outputs = jnp.zeros((4000, 3002))

    def choose(key: jax.Array) -> jax.Array:
        return head.choose(head.distribution(outputs, mask), key, (4000,), False)

    lines = jax.jit(choose).lower(jax.random.key(0)).as_text().count("\n")
    assert lines < 1000, "a line for each action"
    actions, counts = np.unique(choose(jax.random.key(0)), axis=0, return_counts=True)
    np.testing.assert_array_equal(actions, [[1, 1], [1001, 1], [2001, 1]])
    np.testing.assert_allclose(counts / 4000, 1 / 3, atol=0.04)


@pytest.mark.parametrize("start", [LOG_STD_MIN - 2.0, LOG_STD_MAX + 2.0])
def test_a_log_std_outside_its_bounds_is_brought_back_by_descent(start: float) -> None:
    """Maximum likelihood of samples of deviation 2, by plain gradient descent: it must end at the closed form's log 2."""
    head = action_head(Box(-1.0, 1.0, (1,)))
    actions = 2.0 * jnp.asarray(scipy.stats.norm.ppf((np.arange(512) + 0.5) / 512), jnp.float32)[:, None]
    deviation = float(np.log(np.std(np.asarray(actions))))

    def loss(log_std: jax.Array) -> jax.Array:
        outputs = jnp.broadcast_to(jnp.stack([jnp.zeros(()), log_std]), (512, 2))
        return -jnp.mean(head.distribution(outputs, None).log_prob(actions))

    def step(log_std: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        gradient = jnp.clip(jax.grad(loss)(log_std), -1.0, 1.0)
        return log_std - 0.1 * gradient, gradient

    last, gradients = jax.jit(lambda x: jax.lax.scan(step, x, None, length=200))(jnp.float32(start))
    assert np.sign(gradients[0]) == np.sign(start)
    assert float(last) == pytest.approx(deviation, abs=1e-2)


def test_a_log_std_is_never_pushed_further_out_and_inside_nothing_changes() -> None:
    x = jnp.array([LOG_STD_MIN - 1.0, LOG_STD_MIN, -1.0, LOG_STD_MAX, LOG_STD_MAX + 1.0])
    np.testing.assert_array_equal(bounded_log_std(x), np.clip(x, LOG_STD_MIN, LOG_STD_MAX))
    out, back = (np.asarray(jax.vjp(bounded_log_std, x)[1](g * jnp.ones(5))[0]) for g in (-1.0, 1.0))
    np.testing.assert_array_equal(out, [-1.0, -1.0, -1.0, -1.0, 0.0])
    np.testing.assert_array_equal(back, [0.0, 1.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("space", "mask"),
    [(MultiDiscrete((3, 2)), [1, 1, 1, 0, 0]), (MultiDiscrete((3, 2)), [0, 0, 0, 0, 0]), (Discrete(4), [0, 0, 0, 0])],
)
def test_a_head_without_a_legal_action_acts_as_if_all_of_its_own_were_legal(space: Any, mask: list[int]) -> None:
    head = action_head(space)
    outputs = jnp.broadcast_to(jnp.linspace(-1.0, 1.0, head.num_outputs), (1000, head.num_outputs))
    none = head.distribution(outputs, jnp.broadcast_to(jnp.array(mask, bool), outputs.shape))
    free = head.distribution(outputs, None)
    noise = head.noise(jax.random.key(0), (1000,))
    drawn = np.asarray(head.sample(none, noise))
    assert (drawn < np.array(space.nvec if isinstance(space, MultiDiscrete) else space.n)).all()
    np.testing.assert_array_equal(drawn, head.sample(free, noise))
    np.testing.assert_array_equal(none.mode(), free.mode())
    np.testing.assert_allclose(none.log_prob(drawn), free.log_prob(drawn), rtol=1e-6)
    np.testing.assert_allclose(none.entropy(), free.entropy(), rtol=1e-6)
