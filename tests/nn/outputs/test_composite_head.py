"""Auto-regressive composite actions: against enumeration of all joint actions by a slow implementation, head by head."""

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

from rljax.core.environments.spaces import Discrete, MultiDiscrete
from rljax.core.errors import ConfigError
from rljax.nn.outputs.composite import CompositeHead, CompositeOutputs, composite_entropy, composite_head

NVEC, CONTEXT, SAMPLES = (3, 4, 2), 5, 40_000
TOTAL, STARTS = sum(NVEC), (0, 3, 7)
JOINT = list(itertools.product(*map(range, NVEC)))
ALL_LEGAL = np.ones(TOTAL, bool)


def pairwise(legal: np.ndarray, ruled_out: dict[tuple[int, int], list[tuple[int, int]]]) -> np.ndarray:
    """A mask `[A, A]` from what is legal at all and, by `(head, action)`, what that choice rules out."""
    mask = np.ones((TOTAL, TOTAL), bool)
    mask[np.diag_indices(TOTAL)] = legal
    for (head, action), others in ruled_out.items():
        for other_head, other in others:
            mask[STARTS[head] + action, STARTS[other_head] + other] = False
    return mask


# Nothing reads what a choice says of its own head or of an earlier one, so it may say anything.
NOISY = pairwise(
    ALL_LEGAL, {(0, 1): [(0, 0), (0, 2)], (1, 2): [(0, 0), (0, 1), (0, 2), (1, 0)], (2, 1): [(0, 1), (1, 3), (2, 0)]}
)

MASKS: dict[str, np.ndarray | None] = {
    "no mask": None,
    "nothing masked": ALL_LEGAL,
    "last action of each head masked": np.array([1, 1, 0, 1, 1, 1, 0, 1, 0], bool),
    "last action of the widest head masked": np.array([1, 1, 1, 1, 1, 1, 0, 1, 1], bool),
    "first actions masked": np.array([0, 1, 1, 0, 0, 1, 1, 1, 1], bool),
    "one legal": np.array([0, 1, 0, 0, 0, 1, 0, 0, 1], bool),
    "pairs, nothing masked": pairwise(ALL_LEGAL, {}),
    "pairs": pairwise(ALL_LEGAL, {(0, 0): [(1, 0), (1, 3)], (0, 1): [(1, 0), (1, 1), (2, 1)], (1, 1): [(2, 0)]}),
    "pairs, and the last action of each head masked": pairwise(
        np.array([1, 1, 0, 1, 1, 1, 0, 1, 0], bool), {(0, 0): [(1, 0)], (0, 1): [(1, 1), (1, 2)], (2, 0): [(1, 0)]}
    ),
    "pairs, of which some are not read": NOISY,
}


def outputs_of(nvec: tuple[int, ...] = NVEC, context: int = CONTEXT, seed: int = 0, scale: float = 1.0) -> CompositeOutputs:
    """Parameters and a context large enough that every head's choice matters to the heads after it."""
    rng, heads, widest = np.random.default_rng(seed), len(nvec), max(nvec)
    shapes = ((context,), (heads, widest, context), (heads, context, widest), (heads, widest))
    return CompositeOutputs(*(jnp.asarray(scale * rng.normal(size=shape), jnp.float32) for shape in shapes))


def head_probabilities(outputs: CompositeOutputs, mask: np.ndarray | None, before: tuple[int, ...]) -> np.ndarray:
    """Probabilities `[n]` of the next head's actions, given those of the heads before it: one head, one action at a time."""
    context, embedding, kernel, bias = (np.asarray(x, np.float64) for x in outputs)
    k = len(before)
    x = context.copy()
    for j, action in enumerate(before):
        x += embedding[j, action]
    weights = []
    for action in range(NVEC[k]):
        logit = bias[k, action] + sum(math.tanh(x[c]) * kernel[k, c, action] for c in range(len(x)))
        place = STARTS[k] + action
        legal = True
        if mask is not None and mask.ndim == 1:
            legal = bool(mask[place])
        elif mask is not None:
            legal = bool(mask[place, place]) and all(mask[STARTS[j] + a, place] for j, a in enumerate(before))
        weights.append(math.exp(logit) if legal else 0.0)
    return np.array(weights) / sum(weights)


def joint_probability(outputs: CompositeOutputs, mask: np.ndarray | None, actions: tuple[int, ...]) -> float:
    probability = 1.0
    for k, action in enumerate(actions):
        if probability == 0.0:
            return 0.0
        probability *= head_probabilities(outputs, mask, actions[:k])[action]
    return probability


class Facts(NamedTuple):
    """What a distribution says; log-probabilities are those of all joint actions, in order of enumeration."""

    log_prob: np.ndarray
    entropy_along: np.ndarray
    mode: np.ndarray
    actions: np.ndarray
    gradient: CompositeOutputs
    gradient_of_large_outputs: CompositeOutputs
    gradient_at_illegal: CompositeOutputs


@functools.cache
def measurement() -> Any:
    head = composite_head(MultiDiscrete(NVEC), CONTEXT)
    everything = jnp.array(JOINT, jnp.int32)

    @jax.jit
    def measure(outputs: CompositeOutputs, mask: jax.Array | None, key: jax.Array) -> Facts:
        distribution = head.distribution(outputs, mask)
        mode = distribution.mode()

        def loss(outputs: CompositeOutputs, action: jax.Array) -> jax.Array:
            d = head.distribution(outputs, mask)
            return d.log_prob(action) + 0.1 * d.entropy_along(action)

        return Facts(
            jax.vmap(distribution.log_prob)(everything),
            jax.vmap(distribution.entropy_along)(everything),
            mode,
            jax.vmap(lambda noise: head.to_env(head.sample(distribution, noise)))(head.noise(key, (SAMPLES,))),
            jax.grad(loss)(outputs, mode),
            jax.grad(loss)(jax.tree.map(lambda x: 100.0 * x, outputs), mode),  # probabilities that underflow
            jax.grad(loss)(outputs, jnp.array(NVEC) - 1),
        )

    return measure


class Case(NamedTuple):
    mask: np.ndarray | None
    outputs: CompositeOutputs
    expected: np.ndarray
    facts: Facts


@pytest.fixture(params=MASKS, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    mask, outputs = MASKS[request.param], outputs_of()
    facts = measurement()(outputs, None if mask is None else jnp.asarray(mask), jax.random.key(1))
    expected = np.array([joint_probability(outputs, mask, actions) for actions in JOINT])
    return Case(mask, outputs, expected, jax.tree.map(np.asarray, facts))


def test_probabilities_of_all_joint_actions_are_those_of_head_after_head_and_sum_to_one(case: Case) -> None:
    probability = np.exp(case.facts.log_prob)
    np.testing.assert_allclose(probability, case.expected, rtol=2e-5)
    assert probability.sum() == pytest.approx(1.0, abs=1e-5)
    assert np.all(probability[case.expected == 0.0] == 0.0)
    assert np.all(np.isfinite(case.facts.log_prob))


def test_masks_of_pairs_rule_out_what_they_say() -> None:
    outputs, possible = outputs_of(), {}
    for name in ("pairs", "pairs, of which some are not read"):
        possible[name] = sum(joint_probability(outputs, MASKS[name], actions) > 0 for actions in JOINT)
    # After 0 head 1 has 1, which leaves head 2 one action, and 2; after 1 it has 2 and 3, and head 2 only 0; after 2 all is
    # legal but 0 of head 2 after 1 of head 1.
    assert possible["pairs"] == (1 + 2) + (1 + 1) + (2 + 1 + 2 + 2)
    # Head 1's action 2 speaks of heads 0 and 1 only, head 0's action 1 of head 0: nothing of it counts.
    assert possible["pairs, of which some are not read"] == len(JOINT)


def test_samples_follow_the_probabilities_and_are_never_illegal(case: Case) -> None:
    actions = case.facts.actions
    assert actions.dtype == np.int32
    assert actions.shape == (SAMPLES, len(NVEC))
    counts = np.bincount(np.ravel_multi_index(actions.T, NVEC), minlength=len(JOINT))
    possible = case.expected > 0
    assert np.all(counts[~possible] == 0)
    if possible.sum() > 1:
        assert scipy.stats.chisquare(counts[possible], SAMPLES * case.expected[possible]).pvalue > 1e-3


def test_the_mean_entropy_along_samples_is_the_entropy_of_the_joint_distribution(case: Case) -> None:
    exact = -sum(p * math.log(p) for p in case.expected if p > 0)
    # Exactly, weighted by the probabilities, and as a mean over samples.
    assert np.sum(case.expected * case.facts.entropy_along) == pytest.approx(exact, abs=1e-5)
    along = case.facts.entropy_along[np.ravel_multi_index(case.facts.actions.T, NVEC)]
    assert along.mean() == pytest.approx(exact, abs=float(5 * along.std() / math.sqrt(SAMPLES) + 1e-5))


def test_entropy_along_sums_the_entropies_of_heads_given_the_actions_before(case: Case) -> None:
    for actions, probability, along in zip(JOINT, case.expected, case.facts.entropy_along, strict=True):
        if probability > 0:
            heads = [head_probabilities(case.outputs, case.mask, actions[:k]) for k in range(len(NVEC))]
            expected = -sum(p * math.log(p) for head in heads for p in head if p > 0)
            assert along == pytest.approx(expected, abs=1e-5)


def test_the_mode_is_greedy_head_by_head(case: Case) -> None:
    expected: tuple[int, ...] = ()
    for _ in NVEC:
        expected += (int(np.argmax(head_probabilities(case.outputs, case.mask, expected))),)
    assert tuple(case.facts.mode.tolist()) == expected
    assert case.facts.mode.dtype == np.int32


def test_gradients_are_finite_and_zero_at_illegal_actions(case: Case) -> None:
    for gradient in (case.facts.gradient, case.facts.gradient_of_large_outputs, case.facts.gradient_at_illegal):
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))
    legal = ALL_LEGAL if case.mask is None else case.mask if case.mask.ndim == 1 else np.diagonal(case.mask)
    gradient, at_illegal = case.facts.gradient, case.facts.gradient_at_illegal
    for k, (start, size) in enumerate(zip(STARTS, NVEC, strict=True)):
        padded = np.concatenate([~legal[start : start + size], np.ones(max(NVEC) - size, bool)])
        for g in (gradient, at_illegal):
            assert np.all(g.bias[k, padded] == 0.0)
            assert np.all(g.kernel[k][:, padded] == 0.0)
    has_a_choice = np.sum(case.expected > 0) > 1
    assert np.any(gradient.bias != 0.0) == has_a_choice


def test_gradients_are_those_of_finite_differences() -> None:
    head, mask = composite_head(NVEC, CONTEXT), jnp.asarray(MASKS["pairs"])
    actions = jnp.array([actions for actions in JOINT if joint_probability(outputs_of(), MASKS["pairs"], actions) > 0])

    @jax.jit
    def total(outputs: CompositeOutputs) -> jax.Array:
        d = head.distribution(outputs, mask)
        return jnp.mean(jax.vmap(d.log_prob)(actions)) - jnp.mean(jax.vmap(d.entropy_along)(actions))

    outputs, step = outputs_of(), 1e-2
    direction = outputs_of(seed=7)
    moved = [jax.tree.map(lambda x, d, s=s: x + s * step * d, outputs, direction) for s in (1, -1)]
    slope = (total(moved[0]) - total(moved[1])) / (2 * step)
    along = sum(jnp.sum(g * d) for g, d in zip(jax.jit(jax.grad(total))(outputs), direction, strict=True))
    assert along == pytest.approx(float(slope), rel=1e-2)
    assert abs(slope) > 0.1


def test_two_illegal_heads_have_a_finite_log_probability() -> None:
    mask = jnp.asarray(MASKS["last action of each head masked"])
    distribution = composite_head(NVEC, CONTEXT).distribution(outputs_of(), mask)
    log_prob = distribution.log_prob(jnp.array(NVEC) - 1)
    assert jnp.isfinite(log_prob)
    assert log_prob < -1e38


def test_a_head_sees_the_actions_of_all_heads_before_it_and_of_none_after_it() -> None:
    log_prob = measurement()(outputs_of(), None, jax.random.key(1)).log_prob
    joint = np.exp(log_prob).reshape(NVEC)
    first, second = joint.sum((1, 2)), joint.sum(2)
    given_first, given_both = second / first[:, None], joint / second[..., None]
    assert np.ptp(given_first, axis=0).max() > 0.1
    assert np.ptp(given_both, axis=0).max(-1).min() > 0.03  # over the actions of head 0, whatever head 1 chose
    assert np.ptp(given_both, axis=1).max(-1).min() > 0.03
    # Parameters of the third head change nothing of the first two, and the last embedding nothing at all.
    outputs = outputs_of()
    changed = outputs._replace(
        embedding=outputs.embedding.at[2].add(1.0), kernel=outputs.kernel.at[2].add(1.0), bias=outputs.bias.at[2, 0].add(1.0)
    )
    other = np.exp(measurement()(changed, None, jax.random.key(1)).log_prob).reshape(NVEC)
    np.testing.assert_allclose(other.sum(2), second, rtol=1e-5)
    assert np.abs(other - joint).max() > 0.01
    last = measurement()(outputs._replace(embedding=outputs.embedding.at[2].add(1.0)), None, jax.random.key(1))
    np.testing.assert_array_equal(last.log_prob, log_prob)


def test_the_mode_need_not_be_the_likeliest_joint_action() -> None:
    # Head 0 prefers action 0 (.6); head 1 is then undecided, but certain after action 1.
    outputs = CompositeOutputs(
        context=jnp.zeros(1),
        embedding=jnp.array([[[0.0], [9.0]], [[0.0], [0.0]]]),
        kernel=jnp.array([[[0.0, 0.0]], [[9.0, 0.0]]]),
        bias=jnp.array([[math.log(0.6), math.log(0.4)], [0.0, 0.0]]),
    )
    distribution = composite_head((2, 2), 1).distribution(outputs, None)
    assert distribution.mode()[0] == 0
    assert jnp.exp(distribution.log_prob(jnp.array([0, 0]))) == pytest.approx(0.3, abs=1e-5)
    assert jnp.exp(distribution.log_prob(jnp.array([1, 0]))) == pytest.approx(0.4, abs=1e-3)


def test_a_head_that_is_left_nothing_acts_as_if_all_its_actions_were_legal_and_all_is_finite() -> None:
    mask = jnp.asarray(pairwise(ALL_LEGAL, {(0, a): [(2, 0), (2, 1)] for a in range(3)}))
    facts = measurement()(outputs_of(), mask, jax.random.key(0))
    free = measurement()(outputs_of(), jnp.ones_like(mask), jax.random.key(0))
    np.testing.assert_array_equal(facts.actions, free.actions)
    assert set(np.unique(facts.actions[:, 2])) == {0, 1}
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(facts))


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [False, True])
def test_a_rollouts_batch_has_a_context_and_a_mask_for_each_place(pairs: bool) -> None:
    head, rng = composite_head(NVEC, CONTEXT), np.random.default_rng(3)
    outputs = outputs_of()._replace(context=jnp.asarray(rng.normal(size=(5, 4, CONTEXT)), jnp.float32))
    legal = rng.random((5, 4, TOTAL)) < 0.7
    legal[..., STARTS] = True
    mask = legal
    if pairs:
        mask = rng.random((5, 4, TOTAL, TOTAL)) < 0.7
        mask[..., STARTS] = True
        mask[..., np.arange(TOTAL), np.arange(TOTAL)] = legal
    noise = head.noise(jax.random.key(3), (5, 4))
    assert noise.shape == (5, 4, len(NVEC), max(NVEC))

    def measure(outputs: CompositeOutputs, mask: jax.Array, noise: jax.Array) -> tuple[jax.Array, ...]:
        distribution = head.distribution(outputs, mask)
        action = head.sample(distribution, noise)
        return action, distribution.log_prob(action), composite_entropy(distribution, action), distribution.mode()

    together, one_by_one = jax.jit(measure)(outputs, jnp.asarray(mask), noise), jax.jit(measure)
    contexts: Any = CompositeOutputs(0, None, None, None)  # type: ignore[arg-type]
    vmapped = jax.jit(jax.vmap(measure, (contexts, 0, 0)))(outputs, jnp.asarray(mask), noise)
    assert together[0].shape == together[3].shape == (5, 4, len(NVEC))
    assert together[1].shape == together[2].shape == (5, 4)
    for place in itertools.product(range(5), range(4)):
        single = one_by_one(outputs._replace(context=outputs.context[place]), jnp.asarray(mask[place]), noise[place])
        for result in (together, vmapped):
            np.testing.assert_array_equal(result[0][place], single[0])
            np.testing.assert_array_equal(result[3][place], single[3])
            np.testing.assert_allclose([x[place] for x in result[1:3]], single[1:3], rtol=1e-5, atol=1e-6)


def test_seeds_vmapped_have_parameters_of_their_own() -> None:
    head, module = composite_head(NVEC, CONTEXT), CompositeHead(NVEC)

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        context = jax.random.normal(key, (6, CONTEXT))
        outputs = module.apply(module.init(key, context), context)
        distribution = head.distribution(outputs, None)
        action = head.sample(distribution, head.noise(key, (6,)))
        return action, distribution.log_prob(action)

    keys = jax.random.split(jax.random.key(0), 3)
    together = jax.jit(jax.vmap(one))(keys)
    for i, key in enumerate(keys):
        single = jax.jit(one)(key)
        np.testing.assert_array_equal(together[0][i], single[0])
        np.testing.assert_allclose(together[1][i], single[1], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("nvec", "context"), [(NVEC, CONTEXT), ((2, 2), 64), ((20, 3), 4), ((5,), 8)])
def test_the_module_starts_with_a_nearly_uniform_policy_and_embeddings_that_matter(nvec: tuple[int, ...], context: int) -> None:
    module, head = CompositeHead(nvec), composite_head(nvec, context)
    x = jax.random.normal(jax.random.key(1), (7, context))
    variables: Any = jax.jit(module.init)(jax.random.key(0), x)
    heads, widest = len(nvec), max(nvec)
    shapes = jax.tree.map(jnp.shape, variables["params"])
    assert shapes == {"embedding": (heads, widest, context), "kernel": (heads, context, widest), "bias": (heads, widest)}
    outputs: Any = module.apply(variables, x)
    np.testing.assert_array_equal(outputs.context, x)
    # Of all that the last head sees together.
    assert jnp.sum(jnp.mean(jnp.square(outputs.embedding[:-1]), (1, 2))) == pytest.approx(float(heads > 1), abs=1e-3)
    distribution = head.distribution(outputs, None)
    action = head.sample(distribution, head.noise(jax.random.key(2), (7,)))
    np.testing.assert_allclose(distribution.log_prob(action), -sum(map(math.log, nvec)), atol=0.15)
    np.testing.assert_allclose(distribution.entropy_along(action), sum(map(math.log, nvec)), atol=0.01)
    for draw in (outputs.embedding, outputs.kernel):
        assert len({float(x) for x in jnp.sum(jnp.abs(draw), (1, 2))}) == heads  # no two heads alike


def test_the_head_is_that_of_a_policy() -> None:
    head = composite_head(MultiDiscrete(NVEC), 16)
    assert (head.num_outputs, head.num_log_std) == (16, 0)
    action = jnp.array([1, 2, 0])
    np.testing.assert_array_equal(head.to_env(action), action)


@pytest.mark.parametrize("shape", [(TOTAL - 1,), (3, TOTAL), (2, TOTAL, TOTAL + 1), (1, 2, TOTAL, TOTAL), (TOTAL, TOTAL)])
def test_a_mask_of_another_shape_is_refused_in_one_line(shape: tuple[int, ...]) -> None:
    outputs = outputs_of()._replace(context=jnp.zeros((2, CONTEXT)))
    with pytest.raises(ConfigError, match=r"action mask of shape .*: expected \[2, 9\], or \[2, 9, 9\] for") as error:
        composite_head(NVEC, CONTEXT).distribution(outputs, jnp.ones(shape, bool))
    assert "\n" not in str(error.value)


def test_a_space_without_heads_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="expected several heads") as error:
        composite_head(Discrete(3), CONTEXT)
    assert "\n" not in str(error.value)
