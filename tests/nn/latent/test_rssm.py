"""The recurrent state-space model against plain NumPy, the golden values of DreamerV3, and what must never leak."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from rljax import Box, Discrete, MultiDiscrete
from rljax.algos.dreamer.networks import SIZES, init_networks, make_networks
from rljax.nn.latent.rssm import (
    RSSM,
    Latent,
    draw_one_hot,
    gru_gates,
    kl_loss,
)
from rljax.nn.modules.classes import unimix_logits
from rljax.nn.modules.layers import by_block
from rljax.nn.outputs.actions import BoundedNormal, dreamer_head
from rljax.nn.outputs.distributions import draw_index
from tests.jaxprs import num_carried
from tests.nn.latent import plain_dreamer

LENGTH, BATCH, ACTIONS, TOKENS = 5, 3, 2, 6
KEY = jax.random.key(0)


def model(**changes: Any) -> RSSM:
    return RSSM(**{"actions": ACTIONS, "tokens": TOKENS, "deter": 32, "hidden": 8, **changes})


def params_of(rssm: RSSM) -> Any:
    params = rssm.init(KEY, jnp.zeros((1, rssm.deter)), method="prior")["params"]
    return plain_dreamer.perturbed(params, 0)


def inputs(seed: int = 0) -> dict[str, Any]:
    """Of `observe`: one sequence begins anew at its first row, one inside, one nowhere; actions beyond [-1, 1]."""
    rng = np.random.default_rng(seed)
    is_first = np.zeros((LENGTH, BATCH), bool)
    is_first[0, 0] = is_first[2, 1] = True
    stoch = np.eye(4, dtype=np.float32)[rng.integers(0, 4, (BATCH, 32))]
    return {
        "latent": Latent(rng.normal(size=(BATCH, 32)).astype(np.float32), stoch),
        "tokens": rng.normal(size=(LENGTH, BATCH, TOKENS)).astype(np.float32),
        "actions": (2 * rng.normal(size=(LENGTH, BATCH, ACTIONS))).astype(np.float32),
        "is_first": is_first,
        "uniform": rng.random((LENGTH, BATCH, 32), np.float32),
    }


def observe(rssm: RSSM, params: Any, x: dict[str, Any]) -> tuple[Latent, jax.Array]:
    return jax.jit(lambda p, x: rssm.apply({"params": p}, **x, method="observe"))(params, x)


def drawn(probs: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """One-hot samples by the inverse distribution function."""
    index = (uniform[..., None] >= np.cumsum(probs, -1)[..., :-1]).sum(-1)
    return np.eye(probs.shape[-1])[index]


def close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


# Sizes.


def counts(size: str, obs: int, space: Any) -> dict[str, int]:
    shape = jax.ShapeDtypeStruct((obs,), jnp.float32)
    networks = make_networks(size, "decoder", shape, dreamer_head(space), None)
    params = jax.eval_shape(lambda key: init_networks(networks, key, shape), KEY)
    return {name: sum(x.size for x in jax.tree.leaves(tree)) for name, tree in params.items()}


@pytest.mark.slow
def test_size_1m_has_the_published_parameters_of_walker() -> None:
    assert counts("1M", 24, Box(-1.0, 1.0, (6,))) == {
        "encoder": 10_112,
        "rssm": 364_416,
        "decoder": 51_096,
        "reward": 57_663,
        "cont": 41_153,
        "actor": 50_316,
        "critic": 66_111,
    }


def test_size_1m_has_the_published_parameters_of_cartpole() -> None:
    assert sum(counts("1M", 4, Discrete(2)).values()) == 637_381


@pytest.mark.parametrize(("size", "first"), [("debug", 18_816), ("1M", 66_304)])
def test_the_decoder_of_images_has_the_published_parameters(size: str, first: int) -> None:
    """Those of the layers that make the smallest image, and of 4 convolutions and norms."""
    shape = jax.ShapeDtypeStruct((64, 64, 3), jnp.uint8)
    networks = make_networks(size, "decoder", shape, dreamer_head(Discrete(2)), None)
    params = jax.eval_shape(lambda key: init_networks(networks, key, shape), KEY)["decoder"]
    depths = [SIZES[size].depth * multiplier for multiplier in (4, 4, 3, 2)]
    convolutions = sum(25 * a * b + b + a for a, b in itertools.pairwise([*depths, 3]))
    assert sum(x.size for x in jax.tree.leaves(params)) == first + convolutions


@pytest.mark.parametrize("size", SIZES)
def test_every_size_has_about_the_parameters_that_it_is_named_by(size: str) -> None:
    deter, hidden, classes, _ = SIZES[size]
    assert (
        size == "debug"
        or (deter, hidden, classes)
        == {
            "1M": (512, 64, 4),
            "12M": (2048, 256, 16),
            "25M": (3072, 384, 24),
            "50M": (4096, 512, 32),
            "100M": (6144, 768, 48),
            "200M": (8192, 1024, 64),
            "400M": (12288, 1536, 96),
        }[size]
    )
    want = 0.1 if size == "debug" else float(size[:-1])
    assert 0.5 * want < sum(counts(size, 4, Discrete(2)).values()) / 1e6 < 1.3 * want


# Distributions.


def test_unimix_of_the_specification() -> None:
    log_probs = unimix_logits(jnp.array([2.0, 0.0, 0.0, 0.0]))
    probs = np.exp(log_probs)
    assert probs[0] == pytest.approx(0.7066223, abs=1e-6)
    assert float(jnp.sum(probs * (log_probs - np.log(0.25)))) == pytest.approx(0.458838, abs=1e-6)
    assert probs.sum() == pytest.approx(1.0, abs=1e-6)


def test_no_class_is_impossible() -> None:
    probs = np.exp(unimix_logits(jnp.array([1e4, 0.0, -1e4, 0.0])))
    np.testing.assert_allclose(probs, [0.9925, 0.0025, 0.0025, 0.0025], rtol=1e-5)


def test_the_standard_deviation_of_the_specification() -> None:
    mean, std = BoundedNormal(jnp.array([1.0, 0.0])).parameters()
    assert float(std[0]) == pytest.approx(0.892717, abs=1e-6)
    assert float(mean[0]) == pytest.approx(np.tanh(1.0), abs=1e-6)
    low, high = (float(BoundedNormal(jnp.array([0.0, s])).parameters()[1][0]) for s in (-50.0, 50.0))
    assert (low, high) == pytest.approx((0.1, 1.0), abs=1e-6)


def test_draws_have_the_frequencies_of_the_probabilities() -> None:
    probs = np.array([0.1, 0.0, 0.6, 0.3])
    log_probs = jnp.log(jnp.asarray(probs) + 1e-30)
    # Evenly spaced numbers, so that nothing is left to chance.
    uniform = (jnp.arange(10_000) + 0.5) / 10_000
    index = draw_index(jnp.broadcast_to(log_probs, (10_000, 4)), uniform)
    np.testing.assert_allclose(np.bincount(np.asarray(index), minlength=4) / 10_000, probs, atol=2e-4)


def test_the_least_and_the_largest_number_draw_a_possible_class() -> None:
    """Rounding must not give an illegal action away: the probabilities of the others may add up to less than 1."""
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(20_000, 7)), jnp.float32)
    legal = jnp.array([False, True, True, False, True, True, False])
    log_probs = jax.nn.log_softmax(jnp.where(legal, logits, jnp.finfo(jnp.float32).min))
    for extreme in (0.0, 1.0 - 2.0**-23):  # of jax.random.uniform
        index = draw_index(log_probs, jnp.full((20_000,), extreme))
        assert np.asarray(legal)[np.asarray(index)].all()


def test_a_policy_of_heads_has_the_probabilities_that_it_draws_from() -> None:
    head = dreamer_head(MultiDiscrete((3, 2)))
    outputs, mask = jnp.array([1.0, 0.0, -2.0, 0.5, 0.0]), jnp.array([True, True, False, True, True])
    probs = head.distribution(outputs, mask).probs
    assert probs[2] == 0.0
    np.testing.assert_allclose([probs[:3].sum(), probs[3:].sum()], 1.0, atol=1e-6)
    uniform = (np.arange(1000)[:, None] + 0.5) / 1000 * np.ones(2)
    drawn = jax.vmap(head.distribution(outputs, mask).sample)(jnp.asarray(uniform, jnp.float32))
    np.testing.assert_allclose(drawn.mean(0), probs, atol=2e-3)


@pytest.mark.slow
def test_samples_are_one_hot_to_the_bit() -> None:
    log_probs = unimix_logits(3 * jax.random.normal(KEY, (500, 32, 4)))
    sample = np.asarray(draw_one_hot(log_probs, jax.random.uniform(KEY, (500, 32))))
    assert set(np.unique(sample)) == {0.0, 1.0}
    assert (sample.sum(-1) == 1.0).all()


@pytest.mark.slow
def test_the_gradient_of_a_sample_is_that_of_the_probabilities() -> None:
    logits, weights = jax.random.normal(KEY, (2, 6, 4))
    uniform = jax.random.uniform(KEY, (6,))
    got = jax.grad(lambda x: jnp.sum(weights * draw_one_hot(unimix_logits(x), uniform)))(logits)
    want = jax.grad(lambda x: jnp.sum(weights * jnp.exp(unimix_logits(x))))(logits)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert float(jnp.abs(got).max()) > 0.01


# Gates.


@pytest.mark.parametrize(("gates", "want"), [((0.0, 0.0, 0.0), 0.3655293), ((1.0, 2.0, -1.0), 0.5474503)])
def test_gates_of_the_specification(gates: tuple[float, ...], want: float) -> None:
    assert float(gru_gates(jnp.float32(0.5), *map(jnp.float32, gates))) == pytest.approx(want, abs=1e-6)


@pytest.mark.slow
def test_blocks_one_by_one_are_the_batched_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU takes the first way, accelerators the second."""
    keys = jax.random.split(KEY, 4)
    x, h = jax.random.normal(keys[0], (3, 8 * 5)), jax.random.normal(keys[1], (3, 8 * 2))
    weights = (jax.random.normal(keys[2], (8, 5, 2)), jax.random.normal(keys[3], (8, 2)))

    def function(x: jax.Array, h: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        return jnp.tanh(x @ kernel + bias) * h

    results = []
    for backend in ("cpu", "gpu"):
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        results.append(by_block(function, weights)(x, h))
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)
    assert results[0].shape == (3, 16)


@pytest.mark.slow
def test_the_model_is_the_same_on_accelerators_as_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    rssm, x = model(), inputs()
    params = params_of(rssm)

    def with_gradient() -> Any:
        def loss(params: Any) -> tuple[jax.Array, Any]:
            result = observe(rssm, params, x)
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(result)), result

        (_, result), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        return result, gradient

    here, gradient = with_gradient()
    assert max(carried(rssm, params, x)) > 10
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert carried(rssm, params, x) == [2, 2], (
        "a step back hands on the gradient of the latent state, and not those of the weights"
    )
    there, other = with_gradient()
    jax.tree.map(close, here, there)
    for found, right in zip(jax.tree.leaves(other), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5 * (1.0 + float(jnp.abs(right).max())))
    assert len([g for g in jax.tree.leaves(gradient) if np.any(g)]) > 10


def carried(rssm: RSSM, params: Any, x: dict[str, Any]) -> list[int]:
    """Return how many arrays a step hands to the next in each loop of the gradient."""
    counts = []

    def loss(params: Any) -> jax.Array:
        results = rssm.apply({"params": params}, **x, method="observe")
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(results))

    def visit(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            if equation.primitive.name == "scan":
                counts.append(num_carried(equation))
            for sub in jaxprs_in_params(equation.params):
                visit(sub)

    visit(jax.make_jaxpr(jax.grad(loss))(params).jaxpr)
    return counts


# Divergences.


def distributions(*logits: float) -> tuple[jax.Array, jax.Array]:
    """Posteriors of two groups whose first logits these are, `[steps, 2, 4]`, and uniform priors."""
    posterior = jnp.zeros((len(logits), 2, 4)).at[..., 0].set(jnp.asarray(logits)[:, None])
    return posterior, jnp.zeros_like(posterior)


def test_divergences_are_summed_over_groups() -> None:
    posterior, prior = (unimix_logits(x) for x in distributions(2.0, 2.0))
    for kl in kl_loss(posterior, prior, free_nats=0.0):
        np.testing.assert_allclose(kl, 2 * 0.458838, rtol=1e-5)


def test_divergences_are_those_of_the_posterior_from_the_prior() -> None:
    logits = np.random.default_rng(1).normal(size=(2, 5, 3, 4))
    p, q = (plain_dreamer.unimix(x) for x in logits)
    want = (p * np.log(p / q)).sum((-2, -1))
    kl = kl_loss(*(unimix_logits(jnp.asarray(x, jnp.float32)) for x in logits), free_nats=0.0)
    np.testing.assert_allclose(kl.dyn, want, rtol=1e-4)
    np.testing.assert_allclose(kl.rep, want, rtol=1e-4)


def test_each_step_has_its_free_nat_before_any_mean() -> None:
    """One step below 1 nat and one above: the clip of the mean would cost (0.92 + 2.29) / 2, and less with larger steps."""
    posterior, prior = distributions(2.0, 50.0)
    free = kl_loss(unimix_logits(posterior), unimix_logits(prior), free_nats=0.0).dyn
    clipped = kl_loss(unimix_logits(posterior), unimix_logits(prior), free_nats=1.0)
    assert float(free[0]) < 1.0 < float(free[1])
    np.testing.assert_array_equal(clipped.dyn, [1.0, free[1]])
    np.testing.assert_array_equal(clipped.rep, [1.0, free[1]])
    np.testing.assert_array_equal(clipped.value, free)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dyn", "rep"])
def test_below_a_nat_there_is_no_gradient_and_above_there_is(name: str) -> None:
    def loss(posterior: jax.Array, prior: jax.Array) -> jax.Array:
        return jnp.mean(getattr(kl_loss(unimix_logits(posterior), unimix_logits(prior)), name))

    by_posterior, by_prior = jax.grad(loss, (0, 1))(*distributions(2.0, 5.0))
    moved, fixed = (by_prior, by_posterior) if name == "dyn" else (by_posterior, by_prior)
    assert (np.asarray(moved)[0] == 0).all()
    assert float(jnp.abs(moved[1]).max()) > 1e-3
    assert (np.asarray(fixed) == 0).all(), "dyn moves the prior alone, rep the posterior"


# The model.


@pytest.mark.slow
def test_observing_is_that_of_a_loop_over_steps() -> None:
    rssm, x = model(), inputs()
    params = params_of(rssm)
    latents, log_probs = observe(rssm, params, x)
    p, plain_x = plain_dreamer.plain(params), plain_dreamer.plain(x)
    deter, probs = plain_dreamer.observe(
        p, plain_x["latent"], plain_x["tokens"], plain_x["actions"], x["is_first"], np.asarray(latents.stoch)
    )
    close(latents.deter, deter)
    close(jnp.exp(log_probs), probs)
    np.testing.assert_array_equal(latents.stoch, drawn(probs, x["uniform"]))


@pytest.mark.slow
def test_imagining_is_that_of_a_loop_over_steps() -> None:
    rssm, x = model(), inputs()
    params = params_of(rssm)
    mix = np.random.default_rng(4).normal(size=(160, ACTIONS)).astype(np.float32)

    def policy(feature: jax.Array, noise: jax.Array) -> jax.Array:
        return feature @ mix + noise

    latents, actions = jax.jit(
        lambda p: rssm.apply({"params": p}, x["latent"], policy, x["actions"], x["uniform"], method="imagine")
    )(params)
    p, start = plain_dreamer.plain(params), plain_dreamer.plain(x["latent"])
    deter, probs = plain_dreamer.imagine(p, start, np.asarray(actions), np.asarray(latents.stoch))
    close(latents.deter, deter)
    np.testing.assert_array_equal(latents.stoch, drawn(probs, x["uniform"]))
    before = [start, *(Latent(*(np.asarray(part)[h] for part in latents)) for h in range(LENGTH - 1))]
    want = [np.concatenate([s.deter, s.stoch.reshape(BATCH, -1)], -1) @ mix + x["actions"][h] for h, s in enumerate(before)]
    close(actions, np.stack(want))


def test_the_prior_sees_the_deterministic_state_alone() -> None:
    rssm = model()
    params = params_of(rssm)
    deter = np.random.default_rng(2).normal(size=(4, 32)).astype(np.float32)
    log_probs = rssm.apply({"params": params}, deter, method="prior")
    close(jnp.exp(log_probs), np.stack([plain_dreamer.prior(plain_dreamer.plain(params), d) for d in plain_dreamer.plain(deter)]))


def test_actions_are_scaled_into_the_unit_box_number_by_number() -> None:
    rssm, x = model(), inputs()
    params = params_of(rssm)
    scaled = x | {"actions": x["actions"] / np.maximum(1.0, np.abs(x["actions"]))}
    assert np.abs(x["actions"]).max() > 1.0
    jax.tree.map(close, observe(rssm, params, x), observe(rssm, params, scaled))


@pytest.mark.slow
def test_nothing_before_the_beginning_of_an_episode_reaches_what_follows() -> None:
    rssm, x = model(), inputs()
    params = params_of(rssm)
    other = inputs(1)
    mixed = {name: other[name] for name in ("latent", "tokens", "actions")}
    # Of the second sequence all before row 2, and the action that led there; of the first one what came before it.
    for name, rows in (("tokens", 2), ("actions", 3)):
        mixed[name] = x[name].copy()
        mixed[name][:rows, 1] = other[name][:rows, 1]
        mixed[name][: rows - 2, 0] = other[name][: rows - 2, 0]
    a, b = observe(rssm, params, x), observe(rssm, params, {**x, **mixed})
    for before, after in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(before[2:, 1], after[2:, 1])
        np.testing.assert_array_equal(before[:, 0], after[:, 0])
        assert (np.asarray(before[:2, 1]) != np.asarray(after[:2, 1])).any(), "elsewhere it does"


def test_zeros_are_the_state_before_an_episode() -> None:
    rssm, x = model(), inputs()
    params = params_of(rssm)
    x["is_first"] = np.zeros_like(x["is_first"])
    x["is_first"][0] = True
    begun = {**x, "latent": rssm.initial((BATCH,)), "actions": x["actions"].copy(), "is_first": np.zeros_like(x["is_first"])}
    begun["actions"][0] = 0.0
    jax.tree.map(np.testing.assert_array_equal, observe(rssm, params, x), observe(rssm, params, begun))


def test_bf16_products_stay_near_those_of_f32() -> None:
    x = inputs()
    params = params_of(model())
    full, _ = observe(model(), params, x)
    x["latent"] = x["latent"]._replace(deter=jnp.bfloat16(x["latent"].deter))
    half, log_probs = observe(model(dtype=jnp.bfloat16), params, x)
    assert half.deter.dtype == jnp.bfloat16
    assert half.stoch.dtype == log_probs.dtype == jnp.float32
    # One step: after it draws may differ.
    np.testing.assert_allclose(half.deter[0].astype(np.float32), full.deter[0], atol=0.05)
    assert set(np.unique(half.stoch)) == {0.0, 1.0}


def test_parameters_are_f32_whatever_the_products_are() -> None:
    params = params_of(model(dtype=jnp.bfloat16))
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
