"""Dreamer's losses: one training step against plain NumPy, where each term's gradient goes, and what an update moves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

import rljax
from rljax.algos.dreamer.dreamer import loss_noise
from rljax.algos.dreamer.laprop import LaPropState
from rljax.algos.dreamer.losses import dreamer_loss, imagine, reconstruction_loss, world_model_loss
from rljax.algos.dreamer.networks import Networks, encode
from rljax.algos.dreamer.parts import target_of
from rljax.algos.dreamer.replay import Replayed
from rljax.collect.normalizers import ReturnNormalizer
from rljax.nn.latent.decoders import Parts
from rljax.nn.latent.rssm import Latent
from tests.nn.latent import plain_dreamer
from tests.nn.latent.plain_dreamer import perceptron, sigmoid, softmax

BATCH, LENGTH, HORIZON = 2, 5, 3
STATES = BATCH * LENGTH
ENVS = {"discrete": "CartPole-v1", "continuous": "BoxTarget-v0", "multi-discrete": "MultiDiscreteMatch-v0"}


def config(**changes: Any) -> rljax.DreamerConfig:
    settings: dict[str, Any] = {
        "size": "debug",
        "batch_size": BATCH,
        "batch_length": LENGTH,
        "horizon": HORIZON,
        "num_envs": 2,
        "num_steps": 1,
        "train_ratio": 5,
        "buffer_size": 40,
        "learning_starts": 12,
        "total_timesteps": 400,
    }
    return rljax.DreamerConfig(**{**settings, **changes})


def some_params(parts: rljax.DreamerParts, seed: int = 0) -> Any:
    """As they may be after some training: every part says something, and the two-hot numbers are of a few units."""
    params = plain_dreamer.perturbed(rljax.dreamer_init(parts, jax.random.key(0)).params, seed, 0.1)
    for name, centre in (("reward", 2.0), ("critic", 12.0)):
        place = jnp.arange(255.0) - 127 - centre
        params[name]["head"]["bias"] = params[name]["head"]["bias"] - 0.5 * jnp.square(place / 5.0)
    return params


def some_batch(parts: rljax.DreamerParts) -> Replayed:
    """The first sequence has a terminal state at row 1, the second is truncated at row 2; it begins with an episode."""
    rng = np.random.default_rng(1)
    is_first, is_last, is_terminal = (np.zeros((LENGTH, BATCH), bool) for _ in range(3))
    is_last[1, 0] = is_last[2, 1] = is_terminal[1, 0] = True
    is_first[2, 0] = is_first[3, 1] = is_first[0, 1] = True
    (size,) = parts.head.action.shape
    if parts.head.num_outputs == size:  # one-hot
        outputs = rng.normal(size=(LENGTH, BATCH, size)).astype(np.float32)
        action = np.asarray(parts.head.distribution(outputs, None).mode())
    else:
        action = 1.5 * rng.normal(size=(LENGTH, BATCH, size)).astype(np.float32)
    rssm = parts.networks.rssm
    return Replayed(
        latent=Latent(
            jnp.asarray(np.tanh(rng.normal(size=(BATCH, rssm.deter))), jnp.float32),
            jnp.asarray(np.eye(4)[rng.integers(0, 4, (BATCH, 32))], jnp.float32),
        ),
        obs=jax.tree.map(lambda x: some_observations(rng, x), parts.obs),
        action=jnp.asarray(action),
        reward=jnp.asarray(3 * rng.normal(size=(LENGTH, BATCH)), jnp.float32),
        is_first=jnp.asarray(is_first),
        is_last=jnp.asarray(is_last),
        is_terminal=jnp.asarray(is_terminal),
    )


def some_observations(rng: np.random.Generator, x: Any) -> jax.Array:
    shape = (LENGTH, BATCH, *x.shape)
    return jnp.asarray(rng.integers(0, 256, shape) if x.dtype == jnp.uint8 else 3 * rng.normal(size=shape), x.dtype)


RETURNS = ReturnNormalizer(jnp.float32(-1.5), jnp.float32(2.0))
FREE_NATS = 9.0
"""Some of the divergences are below it, some above."""


def before(slow: Any, target: Any = None, updates: int = 0) -> Any:
    """The fields of a state that losses read."""
    return SimpleNamespace(slow_critic=slow, target=target, returns=RETURNS, updates=jnp.int32(updates))


@functools.cache
def one_step(kind: str) -> SimpleNamespace:
    """A loss with its metrics, the imagined states and actions, and all that went into it."""
    settings = config(env=ENVS[kind], free_nats=FREE_NATS)
    parts = rljax.dreamer_parts(settings)
    params, slow = some_params(parts), some_params(parts, 1)["critic"]
    batch, noise = some_batch(parts), loss_noise(parts, jax.random.key(3))

    def run(params: Any, slow: Any, batch: Replayed) -> Any:
        loss, aux = dreamer_loss(parts, params, before(slow), batch, noise)
        start = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), aux.latents)
        return loss, aux, imagine(parts, params, start, noise)

    loss, aux, imagined = jax.jit(run)(params, slow, batch)
    return SimpleNamespace(
        parts=parts, config=settings, params=params, slow=slow, batch=batch, loss=loss, aux=aux, imagined=imagined, noise=noise
    )


def test_imagination_rounds_kernels_before_its_steps_to_the_same_result() -> None:
    """Products are in bfloat16 on accelerators; there a kernel that is rounded in a step is rounded in each."""
    parts = rljax.dreamer_parts(config(env=ENVS["discrete"], dtype="bfloat16"))
    params, noise = some_params(parts), loss_noise(parts, jax.random.key(3))
    start = jax.tree.map(lambda x: jnp.concatenate([x] * LENGTH), some_batch(parts).latent)

    def imagined(rounded: bool) -> Callable[[Any], Any]:
        networks = parts.networks if rounded else Unrounded(*parts.networks)
        return lambda params: imagine(parts._replace(networks=networks), params, start, noise)

    jax.tree.map(np.testing.assert_array_equal, jax.jit(imagined(True))(params), jax.jit(imagined(False))(params))
    assert rounded_in_scans(imagined(True), params) == 0
    assert rounded_in_scans(imagined(False), params) > 5


class Unrounded(Networks):
    """Networks that round kernels where they are used."""

    def rounded(self, params: Any, *_: str) -> Any:
        return params


def rounded_in_scans(function: Callable[[Any], Any], params: Any) -> int:
    """Return how many kernels the loops in a function of parameters round in each step."""
    shapes = {x.shape for path, x in jax.tree_util.tree_flatten_with_path(params)[0] if path[-1].key == "kernel"}

    def visit(jaxpr: Any, in_loop: bool) -> int:
        count = 0
        for equation in jaxpr.eqns:
            for inner in jaxprs_in_params(equation.params):
                count += visit(inner, in_loop or equation.primitive.name == "scan")
            if in_loop and equation.primitive.name == "convert_element_type":
                x = equation.invars[0].aval
                count += x.dtype == jnp.float32 and x.shape in shapes
        return count

    return visit(jax.make_jaxpr(function)(params).jaxpr, False)


# A training step in plain NumPy.


def symlog(x: np.ndarray) -> np.ndarray:
    return np.sign(x) * np.log1p(np.abs(x))


HALF = np.expm1(np.linspace(-20.0, 0.0, 128)[:-1] * -1.0)
BINS = np.concatenate([-HALF, [0.0], HALF[::-1]])


def two_hot(x: float) -> np.ndarray:
    """Weights of the two bins around x, interpolated between the bins themselves."""
    weights = np.zeros(255)
    above = int(np.searchsorted(BINS, x, side="right"))
    share = (x - BINS[above - 1]) / (BINS[above] - BINS[above - 1])
    weights[above - 1], weights[above] = 1.0 - share, share
    return weights


def mean_of(logits: np.ndarray) -> float:
    return float(softmax(logits) @ BINS)


def cross_entropy(logits: np.ndarray, x: float) -> float:
    return float(-two_hot(x) @ np.log(softmax(logits)))


def policy_terms(kind: str, outputs: np.ndarray, action: np.ndarray) -> tuple[float, float]:
    """`(log probability, entropy)` of one action."""
    if kind == "continuous":
        mean, s = np.split(outputs, 2)
        mean, std = np.tanh(mean), 0.9 * sigmoid(s + 2.0) + 0.1
        density = np.exp(-0.5 * ((action - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
        return float(np.log(density).sum()), float((0.5 * np.log(2 * np.pi * np.e * std**2)).sum())
    heads = (2,) if kind == "discrete" else (3, 4, 2)
    log_prob = entropy = 0.0
    for logits, chosen in zip(*(np.split(x, np.cumsum(heads)[:-1]) for x in (outputs, action)), strict=True):
        probs = plain_dreamer.unimix(logits)
        log_prob += float(np.log(probs[chosen.argmax()]))
        entropy -= float(probs @ np.log(probs))
    return log_prob, entropy


@functools.cache
def plain_step(kind: str) -> dict[str, Any]:
    """Every loss of `one_step`, by loops; what was drawn (samples of latents, imagined actions) is taken from there."""
    ours = one_step(kind)
    p, slow, batch = (plain_dreamer.plain(x) for x in (ours.params, ours.slow, ours.batch))
    deter_size = ours.parts.networks.rssm.deter
    samples = np.asarray(ours.aux.latents.stoch)
    tokens = np.stack([[perceptron(p["encoder"]["vector"], symlog(o)) for o in row] for row in batch.obs])
    deter, posterior = plain_dreamer.observe(p["rssm"], batch.latent, tokens, batch.action, batch.is_first, samples)
    feature = np.concatenate([deter, samples.reshape(LENGTH, BATCH, -1)], -1)

    sums = dict.fromkeys(("representation", "reward", "cont", "dyn", "rep", "policy", "value", "repval"), 0.0)
    divergences = []
    for t in range(LENGTH):
        for b in range(BATCH):
            f = feature[t, b]
            sums["representation"] += ((perceptron(p["decoder"]["vector"], f) - symlog(batch.obs[t, b])) ** 2).sum() / STATES
            sums["reward"] += cross_entropy(perceptron(p["reward"], f), batch.reward[t, b]) / STATES
            goes_on, label = sigmoid(perceptron(p["cont"], f)[0]), 0.0 if batch.is_terminal[t, b] else 1.0 - 1.0 / 333.0
            sums["cont"] -= (label * np.log(goes_on) + (1.0 - label) * np.log(1.0 - goes_on)) / STATES
            prior = plain_dreamer.prior(p["rssm"], deter[t, b])
            divergences.append((posterior[t, b] * np.log(posterior[t, b] / prior)).sum())
            for name in ("dyn", "rep"):
                sums[name] += max(FREE_NATS, divergences[-1]) / STATES

    start = SimpleNamespace(deter=deter.reshape(STATES, -1), stoch=samples.reshape(STATES, 32, -1))
    actions = np.asarray(ours.imagined.action)
    drawn = np.asarray(ours.imagined.feature)[1:, :, deter_size:].reshape(HORIZON, STATES, 32, -1)
    ahead, _ = plain_dreamer.imagine(p["rssm"], start, actions, drawn)
    imagined = np.concatenate([feature.reshape(1, STATES, -1), np.concatenate([ahead, drawn.reshape(HORIZON, STATES, -1)], -1)])

    returns, values, weights, rewards = (np.zeros((HORIZON, STATES)) for _ in range(4))
    for n in range(STATES):
        reward = [mean_of(perceptron(p["reward"], f)) for f in imagined[:, n]]
        goes_on = [sigmoid(perceptron(p["cont"], f)[0]) for f in imagined[:, n]]
        value = [mean_of(perceptron(p["critic"], f)) for f in imagined[:, n]]
        after = value[HORIZON]
        for h in reversed(range(HORIZON)):
            after = reward[h + 1] + goes_on[h + 1] * (0.05 * value[h + 1] + 0.95 * after)
            returns[h, n], values[h, n], weights[h, n], rewards[h, n] = after, value[h], np.prod(goes_on[: h + 1]), reward[h + 1]
    low, high = (0.99 * old + 0.01 * np.quantile(returns, q) for old, q in ((-1.5, 0.05), (2.0, 0.95)))
    scale = max(1.0, high - low)

    by_bias = {"value": np.zeros(255), "repval": np.zeros(255)}
    for n in range(STATES):
        for h in range(HORIZON):
            f, share = imagined[h, n], weights[h, n] / (HORIZON * STATES)
            log_prob, entropy = policy_terms(kind, perceptron(p["actor"], f), actions[h, n])
            sums["policy"] -= share * (log_prob * (returns[h, n] - values[h, n]) / scale + 3e-4 * entropy)
            logits, slow_mean = perceptron(p["critic"], f), mean_of(perceptron(slow, f))
            sums["value"] += share * (cross_entropy(logits, returns[h, n]) + cross_entropy(logits, slow_mean))
            by_bias["value"] += share * (2.0 * softmax(logits) - two_hot(returns[h, n]) - two_hot(slow_mean))

    first = returns[0].reshape(LENGTH, BATCH)
    for b in range(BATCH):
        after = first[LENGTH - 1, b]
        for t in reversed(range(LENGTH - 1)):
            discount = 0.0 if batch.is_terminal[t + 1, b] else 1.0 - 1.0 / 333.0
            trace = 0.0 if batch.is_last[t + 1, b] else 0.95
            after = batch.reward[t + 1, b] + discount * ((1.0 - trace) * first[t + 1, b] + trace * after)
            if not batch.is_last[t, b]:
                logits, slow_mean = (perceptron(x, feature[t, b]) for x in (p["critic"], slow))
                loss = cross_entropy(logits, after) + cross_entropy(logits, mean_of(slow_mean))
                sums["repval"] += loss / ((LENGTH - 1) * BATCH)
                difference = 2.0 * softmax(logits) - two_hot(after) - two_hot(mean_of(slow_mean))
                by_bias["repval"] += difference / ((LENGTH - 1) * BATCH)
    return sums | {
        "deter": deter,
        "imagined": imagined,
        "range": (low, high),
        "divergences": divergences,
        "returns": returns,
        "imagined_reward": np.average(rewards, weights=weights),
        "by_bias": by_bias,
    }


def test_pictures_and_vectors_are_reconstructed_by_summed_squares() -> None:
    """Of pictures between 0 and 1, and of vectors in symlog space, all numbers in one; without a half, and without a mean."""
    rng = np.random.default_rng(0)
    obs = {
        "a": rng.normal(size=(2, 3, 2)).astype(np.float32),
        "b": rng.integers(0, 256, (2, 3, 4, 4, 3)).astype(np.uint8),
        "c": rng.integers(0, 9, (2, 3)),
    }
    vector, image = rng.normal(size=(2, 3, 3)), rng.random((2, 3, 4, 4, 3))
    want = ((vector - symlog(np.concatenate([obs["a"], obs["c"][..., None]], -1))) ** 2).sum(-1)
    want += ((image - obs["b"] / 255.0) ** 2).sum((-3, -2, -1))
    got = reconstruction_loss(Parts(jnp.asarray(vector), (jnp.asarray(image),)), jax.tree.map(jnp.asarray, obs))
    np.testing.assert_allclose(got, want, rtol=1e-5)


KINDS = ["discrete", "continuous", pytest.param("multi-discrete", marks=pytest.mark.slow)]
TERMS = ("representation", "reward", "cont", "dyn", "rep", "policy", "value", "repval")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("term", TERMS)
def test_a_loss_term_is_that_of_the_plain_step(kind: str, term: str) -> None:
    assert float(one_step(kind).aux.metrics[f"train/{term}_loss"]) == pytest.approx(plain_step(kind)[term], rel=1e-4, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_sum_of_the_terms_with_their_scales(kind: str) -> None:
    scales = dict.fromkeys(TERMS, 1.0) | {"rep": 0.1, "repval": 0.3}
    want = sum(scale * plain_step(kind)[term] for term, scale in scales.items())
    assert float(one_step(kind).loss) == pytest.approx(want, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_range_of_returns_is_that_of_the_plain_step(kind: str) -> None:
    ours, (low, high) = one_step(kind).aux, plain_step(kind)["range"]
    assert (float(ours.returns.low), float(ours.returns.high)) == pytest.approx((low, high), rel=1e-4)
    assert float(ours.metrics["train/return_scale"]) == pytest.approx(max(1.0, high - low), rel=1e-4)
    assert high - low > 1.5, "advantages are scaled here"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_imagined_rewards_up_to_predicted_ends_are_beside_those_of_steps_that_were_taken(kind: str) -> None:
    ours = one_step(kind)
    taken = np.asarray(ours.batch.reward)[~np.asarray(ours.batch.is_first)].mean()
    assert float(ours.aux.metrics["train/imagined_reward"]) == pytest.approx(
        plain_step(kind)["imagined_reward"], rel=1e-4, abs=1e-6
    )
    assert float(ours.aux.metrics["train/replayed_reward"]) == pytest.approx(taken, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_step_is_on_the_same_states(kind: str) -> None:
    np.testing.assert_allclose(one_step(kind).aux.latents.deter, plain_step(kind)["deter"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(one_step(kind).imagined.feature, plain_step(kind)["imagined"], rtol=1e-4, atol=1e-5)


def test_the_plain_step_tells_rules_apart() -> None:
    """Free nats clip some of the divergences, and returns differ from state to state."""
    step = plain_step("discrete")
    assert min(step["divergences"]) < FREE_NATS < max(step["divergences"])
    assert step["returns"].std() > 0.1


# Where gradients go.

MODEL = {"encoder", "rssm"}
REACHED = {
    "representation": {*MODEL, "decoder"},
    "reward": {*MODEL, "reward"},
    "cont": {*MODEL, "cont"},
    "dyn": MODEL,
    "rep": MODEL,
    "policy": {"actor"},
    "value": {"critic"},
    "repval": {*MODEL, "critic"},
}


@functools.cache
def gradients() -> tuple[Any, Any, dict[str, Any]]:
    """Of every term, largest absolute values: `({term: {tensor: ...}}, those of the slow critic)`; and for the critic's last
    bias the gradients themselves."""
    settings = config(env=ENVS["discrete"])
    parts = rljax.dreamer_parts(settings)
    batch, noise = some_batch(parts), loss_noise(parts, jax.random.key(3))

    def terms(params: Any, slow: Any) -> jax.Array:
        metrics = dreamer_loss(parts, params, before(slow), batch, noise)[1].metrics
        return jnp.stack([metrics[f"train/{term}_loss"] for term in TERMS])

    jacobians = jax.jit(jax.jacrev(terms, (0, 1)))(some_params(parts), some_params(parts, 1)["critic"])
    sizes = jax.tree.map(lambda x: np.abs(x).reshape(len(TERMS), -1).max(-1), jacobians)
    by_term = {term: jax.tree.map(lambda x, i=i: x[i], sizes[0]) for i, term in enumerate(TERMS)}
    return by_term, sizes[1], dict(zip(TERMS, jacobians[0]["critic"]["head"]["bias"], strict=True))


def largest(tree: Any) -> float:
    return float(max(np.max(x) for x in jax.tree.leaves(tree)))


@pytest.mark.slow
@pytest.mark.parametrize("term", TERMS)
def test_a_term_reaches_its_networks_and_no_other(term: str) -> None:
    sizes = gradients()[0][term]
    assert {name for name, tree in sizes.items() if largest(tree) > 0} == REACHED[term]


@pytest.mark.slow
def test_all_of_a_network_that_a_term_is_for_is_reached() -> None:
    for term, name in (("policy", "actor"), ("value", "critic"), ("repval", "critic"), ("reward", "reward"), ("cont", "cont")):
        assert min(jax.tree.leaves(gradients()[0][term][name])) > 0, (term, name)


@pytest.mark.slow
def test_rep_leaves_the_prior_where_it_is_and_dyn_moves_it() -> None:
    for name in ("prior_in", "prior_hidden", "prior_out"):
        assert largest(gradients()[0]["rep"]["rssm"][name]) == 0.0
        assert min(jax.tree.leaves(gradients()[0]["dyn"]["rssm"][name])) > 0.0


def test_only_dyn_moves_the_prior_so_imagination_trains_no_model() -> None:
    for term in set(TERMS) - {"dyn"}:
        assert largest({name: x for name, x in gradients()[0][term]["rssm"].items() if name.startswith("prior")}) == 0.0, term


def test_the_slow_critic_gets_no_gradient() -> None:
    assert largest(gradients()[1]) == 0.0


@pytest.mark.parametrize("term", ["value", "repval"])
def test_the_targets_of_the_critic_pass_no_gradient(term: str) -> None:
    """Then that of its last bias is the difference of its probabilities and the targets'."""
    np.testing.assert_allclose(gradients()[2][term], plain_step("discrete")["by_bias"][term], rtol=1e-3, atol=1e-6)


# What an update moves.


class Room(rljax.Environment):
    """A vector and a picture of 16 x 16, two heads of actions; an episode is 3 steps."""

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        return self._observe(jnp.zeros((), jnp.int32)), jnp.zeros((), jnp.int32)

    def _observe(self, state: jax.Array) -> Any:
        picture = jnp.zeros((16, 16, 3), jnp.uint8).at[:, 4 * state].set(200)
        return {"near": jnp.stack([state, -state]).astype(jnp.float32), "view": picture}

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        return self._observe(state + 1), state + 1, jnp.sum(action).astype(jnp.float32), state >= 2, {}

    def observation_space(self, params: Any) -> Any:
        return rljax.Dict({"near": rljax.Box(-3, 3, (2,)), "view": rljax.Box(0, 255, (16, 16, 3), jnp.uint8)})

    def action_space(self, params: Any) -> Any:
        return rljax.MultiDiscrete((3, 2))


def some_state(parts: rljax.DreamerParts, **changes: Any) -> rljax.DreamerState:
    """A new run's, with some parameters and a full buffer of made-up steps."""
    state, rng = rljax.dreamer_init(parts, jax.random.key(0)), np.random.default_rng(2)

    def made_up(x: jax.Array) -> jax.Array:
        if x.dtype == jnp.bool_:
            return jnp.asarray(rng.random(x.shape) < 0.2)
        return jnp.asarray(rng.integers(0, 4, x.shape) if x.dtype == jnp.uint8 else rng.normal(size=x.shape), x.dtype)

    replay = state.replay.replace(data=jax.tree.map(made_up, state.replay.data), size=jnp.int32(state.replay.capacity))
    params = plain_dreamer.perturbed(state.params, 0, 0.1)
    return state.replace(params=params, replay=replay, slow_critic=params["critic"], target=target_of(params)).replace(**changes)


@functools.cache
def updater(representation: str) -> Any:
    """`(parts, updates -> (state before, state after, metrics))`."""
    env = Room() if representation == "dreamerpro" else "CartPole-v1"
    parts = rljax.dreamer_parts(config(env=env, representation=representation, learning_rate=1e-2, warmup=10))
    update = jax.jit(lambda state, noise: rljax.dreamer_update(parts, state, noise))
    _, noise = rljax.dreamer_noise(parts, some_state(parts))

    @functools.cache
    def run(updates: int) -> Any:
        before = some_state(parts, updates=jnp.int32(updates))
        return before, *update(before, noise.update)

    return run


def moved(before: Any, after: Any) -> Any:
    return jax.tree.map(lambda a, b: np.asarray(b) - np.asarray(a), before, after)


@pytest.mark.slow
def test_the_first_update_has_a_learning_rate_of_zero() -> None:
    before, after, _ = updater("decoder")(0)
    jax.tree.map(np.testing.assert_array_equal, before.params, after.params)
    assert (int(before.updates), int(after.updates)) == (0, 1)
    assert largest(next(x for x in jax.tree.leaves(after.opt_state, is_leaf=is_laprop) if is_laprop(x)).nu) > 0.0


def is_laprop(x: Any) -> bool:
    return isinstance(x, LaPropState)


@pytest.mark.slow
@pytest.mark.parametrize(("updates", "rate"), [(5, 0.5e-2), (10, 1e-2), (1_000, 1e-2)])
def test_laprop_starts_with_steps_of_the_warmed_up_learning_rate(updates: int, rate: float) -> None:
    """The first direction is the gradient's sign, so each number moves by the rate or, without a gradient, not at all."""
    before, after, metrics = updater("decoder")(updates)
    assert float(metrics["train/learning_rate"]) == pytest.approx(rate)
    for name, tree in moved(before.params, after.params).items():
        steps = np.concatenate([np.abs(x).ravel() for x in jax.tree.leaves(tree)])
        np.testing.assert_allclose(steps[steps > 0], rate, rtol=1e-2)
        assert (steps > 0).mean() > 0.5, name


@pytest.mark.slow
def test_the_slow_critic_moves_by_its_fraction_after_the_update() -> None:
    before, after, _ = updater("decoder")(10)
    want = jax.tree.map(lambda slow, fast: slow + 0.02 * (fast - slow), before.slow_critic, after.params["critic"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), after.slow_critic, want)
    assert largest(moved(before.slow_critic, after.slow_critic)) > 1e-4


# Representations.


@functools.cache
def represented(representation: str) -> SimpleNamespace:
    """The loss of one batch by its representation alone, its gradient, and the pairs it ties together, `[N, E]` each."""
    settings = config(representation=representation)
    parts = rljax.dreamer_parts(settings)
    params, batch, noise = some_params(parts), some_batch(parts), loss_noise(parts, jax.random.key(3))
    target = rljax.dreamer_init(parts, jax.random.key(0)).target

    def loss(params: Any) -> Any:
        _, latents, metrics = world_model_loss(parts, params, before(None, target), batch, noise)
        return metrics["train/representation_loss"], (latents.feature, encode(parts.networks, params, batch.obs, 2))

    (value, (feature, token)), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    feature, token = (np.asarray(x, np.float64).reshape(STATES, -1) for x in (feature, token))
    sizes = jax.tree.map(lambda x: np.abs(x).max(), gradient)
    return SimpleNamespace(value=float(value), sizes=sizes, x1=feature @ np.asarray(params["projection"]["kernel"]), x2=token)


@pytest.mark.slow
@pytest.mark.parametrize("representation", ["r2dreamer", "infonce", "dreamerpro"])
def test_a_representation_is_finite_and_its_gradient_reaches_the_encoder(representation: str) -> None:
    ours = represented(representation)
    assert np.isfinite([ours.value, *jax.tree.leaves(ours.sizes)]).all()
    trained = {*MODEL, "projection"} | ({"obs_projection"} if representation == "dreamerpro" else set())
    assert {name for name, tree in ours.sizes.items() if largest(tree) > 0} == trained


@pytest.mark.slow
def test_r2dreamer_is_the_redundancy_of_features_and_tokens_times_its_scale() -> None:
    ours = represented("r2dreamer")
    x1, x2 = ((x - x.mean(0)) / (x.std(0, ddof=1) + 1e-8) for x in (ours.x1, ours.x2))
    c = x1.T @ x2 / STATES
    on, off = (np.diag(c) - 1.0) ** 2, c**2 - np.diag(np.diag(c) ** 2)
    assert ours.value == pytest.approx(0.05 * (on.sum() + 5e-4 * off.sum()), rel=1e-4)


@pytest.mark.slow
def test_infonce_finds_the_token_of_each_feature_at_full_scale() -> None:
    ours = represented("infonce")
    assert ours.value == pytest.approx(-np.mean(np.log(np.diag(softmax(ours.x1 @ ours.x2.T)))), rel=1e-4)


@pytest.mark.long
def test_dreamerpro_has_a_metric_of_each_of_its_terms() -> None:
    _, _, metrics = updater("dreamerpro")(10_000)
    assert np.isfinite(list(metrics.values())).all()
    assert {"train/swav_loss", "train/temporal_loss", "train/norm_loss"} <= set(metrics)


def normalized(kernel: Any) -> np.ndarray:
    return np.asarray(kernel) / np.linalg.norm(kernel, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("updates", [0, 9_999, 10_000])
def test_prototypes_have_length_one_after_each_update(updates: int) -> None:
    _, after, _ = updater("dreamerpro")(updates)
    np.testing.assert_allclose(np.linalg.norm(after.params["prototypes"]["kernel"], axis=0), 1.0, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("updates", "moves"), [(9_999, False), (10_000, True)])
def test_prototypes_are_frozen_for_the_first_10000_updates(updates: int, moves: bool) -> None:
    before, after, _ = updater("dreamerpro")(updates)
    start = normalized(before.params["prototypes"]["kernel"])
    assert bool(np.abs(start - after.params["prototypes"]["kernel"]).max() > 1e-4) == moves


@pytest.mark.slow
def test_the_target_of_dreamerpro_moves_by_its_fraction() -> None:
    before, after, _ = updater("dreamerpro")(10_000)
    for name, tree in after.target.items():
        want = jax.tree.map(lambda old, new: old + 0.05 * (new - old), before.target[name], after.params[name])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), tree, want)
    assert set(after.target) == {"encoder", "obs_projection"}


class Field(Room):
    """A vector that has the shape of a picture."""

    def _observe(self, state: jax.Array) -> Any:
        return jnp.ones((4, 4, 1)) * state

    def observation_space(self, params: Any) -> Any:
        return rljax.Box(0.0, 3.0, (4, 4, 1))


@pytest.mark.slow
def test_dreamerpro_shifts_pictures_and_nothing_else() -> None:
    settings = config(env=Field(), representation="dreamerpro")
    parts = rljax.dreamer_parts(settings)
    state, batch, noise = some_state(parts), some_batch(parts), loss_noise(parts, jax.random.key(3))
    uniform, offsets = noise.views

    @jax.jit
    def loss(offsets: jax.Array) -> jax.Array:
        moved = noise._replace(views=(uniform, offsets))
        metrics = world_model_loss(parts, state.params, before(None, state.target), batch, moved)[2]
        return metrics["train/representation_loss"]

    assert float(loss(offsets)) == float(loss(jnp.full_like(offsets, 4)))
