"""SAC: its density against calculus and distrax, its losses against plain Python, who trains what, memory, and probes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import (
    Box,
    Choice,
    ConfigError,
    CQLConfig,
    Environment,
    IQLConfig,
    SACConfig,
    SACParts,
    SACState,
    evaluate,
    load_config,
    make_agent,
    make_train,
    sac_actor_loss,
    sac_collect,
    sac_critic_loss,
    sac_init,
    sac_loss,
    sac_noise,
    sac_parts,
    sac_target,
    sac_temperature_loss,
    sac_update,
    soft_value,
)
from rljax.algos.common.soft_policy import critic_values, policy_outputs, q_of_choice
from rljax.cli.overrides import merge_tables
from rljax.collect.replay import NStep, Places, Replay, Transition, init_replay, take_n_step
from rljax.core.memory import tree_bytes
from rljax.nn.outputs.actions import SquashedGaussian, scaled_to_box, soft_head

TINY = SACConfig(
    env="Pendulum-v1",
    num_envs=4,
    num_steps=8,
    buffer_size=400,
    batch_size=16,
    learning_starts=32,
    total_timesteps=3200,
    learning_rate=1e-2,
    network={"hidden": [8]},
)
BANDIT = TINY.replace(env="MaskedBandit-v0")


# The distribution


def density(action: np.ndarray, mean: float, log_std: float) -> np.ndarray:
    """Of the tanh of a normal, in doubles, by the change of variables."""
    u, std = np.arctanh(action), np.exp(log_std)
    return np.exp(-0.5 * ((u - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi)) / (1 - action**2)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.7, -1.0), (-1.5, 0.5), (0.2, -3.0)])
def test_the_density_is_that_of_the_change_of_variables_and_integrates_to_1(mean: float, log_std: float) -> None:
    edges = np.tanh(mean + np.exp(log_std) * np.linspace(-7, 7, 20_001))
    edges = edges[np.abs(edges) < 1 - 1e-9]
    middle = (edges[1:] + edges[:-1]) / 2
    noise = (np.arctanh(middle) - mean) / np.exp(log_std)
    parameters = (jnp.full((len(noise), 1), x) for x in (mean, log_std))
    action, log_prob = SquashedGaussian(*parameters).sample_and_log_prob(jnp.asarray(noise, jnp.float32)[:, None])
    assert np.sum(np.exp(np.asarray(log_prob, np.float64)) * np.diff(edges)) == pytest.approx(1.0, abs=1e-3)
    inside = np.abs(middle) < 0.999
    np.testing.assert_allclose(action[inside, 0], middle[inside], atol=1e-6)
    np.testing.assert_allclose(log_prob[inside], np.log(density(middle[inside], mean, log_std)), atol=2e-3)


@pytest.mark.slow
def test_the_density_is_that_of_distrax_and_its_gradients_too() -> None:
    mean, log_std, noise = jax.random.normal(jax.random.key(0), (3, 50, 3))

    def by_distrax(mean: jax.Array, log_std: jax.Array) -> jax.Array:
        normal = distrax.MultivariateNormalDiag(mean, jnp.exp(log_std))
        squashed = distrax.Transformed(normal, distrax.Block(distrax.Tanh(), 1))
        u = mean + jnp.exp(log_std) * noise
        return normal.log_prob(u) - squashed.bijector.forward_log_det_jacobian(u)

    def by_rljax(mean: jax.Array, log_std: jax.Array) -> jax.Array:
        return SquashedGaussian(mean, log_std).sample_and_log_prob(noise)[1]

    np.testing.assert_allclose(by_rljax(mean, log_std), by_distrax(mean, log_std), atol=1e-4)
    for argument in (0, 1):
        ours, theirs = (jax.grad(lambda *a, f=f: jnp.sum(f(*a)), argument)(mean, log_std) for f in (by_rljax, by_distrax))
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_the_density_is_finite_where_tanh_is_1_and_log_std_is_clipped() -> None:
    outputs = jnp.array([50.0, -50.0, 0.0, 9.0, -9.0, 1.0])
    mean, log_std = soft_head(Box(-1.0, 1.0, (3,))).distribution(outputs, None)
    np.testing.assert_allclose(log_std, [2.0, -5.0, 1.0])
    value, grads = jax.value_and_grad(lambda m: SquashedGaussian(m, log_std).sample_and_log_prob(jnp.ones(3))[1])(mean)
    assert jnp.isfinite(value)
    assert jnp.all(jnp.isfinite(grads))
    assert jnp.all(grads[:2] == jnp.array([2.0, -2.0]))  # d/du of 2 (u + softplus(-2 u)): the density of 1 goes on falling


@pytest.mark.parametrize("shape", [(2,), (2, 1), ()])
def test_actions_are_scaled_to_asymmetric_bounds(shape: tuple[int, ...]) -> None:
    low = np.array([-3.0, 1.0], np.float32)[: math.prod(shape)].reshape(shape)
    space = Box(low, low + 5.0, shape)
    scaled = [scaled_to_box(space, jnp.full((7, math.prod(shape)), x)) for x in (-1.0, 0.0, 1.0)]
    for got, want in zip(scaled, (low, low + 2.5, low + 5.0), strict=True):
        assert got.shape == (7, *shape)
        np.testing.assert_allclose(got, np.broadcast_to(want, got.shape))


# The losses


def params_of(parts: SACParts, seed: int = 0) -> tuple[Any, Any]:
    """Parameters and target critics, each far from its first values, so that the policy is far from uniform."""
    state = jax.jit(lambda key: sac_init(parts, key))(jax.random.key(seed))
    leaves, structure = jax.tree.flatten((state.params, state.target_params))
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    moved = [x + 0.5 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, moved)


def batch_for(parts: SACParts, size: int = 32) -> NStep:
    """Random transitions."""
    rng = np.random.default_rng(0)
    if isinstance(parts.policy.space, Box):
        obs, next_obs = rng.normal(size=(2, size, 3))
        action, mask, next_mask = rng.uniform(-1, 1, (size, 1)), None, None
    else:
        mask, next_mask = rng.random((2, size, 5)) < 0.5
        mask[:, 1] = next_mask[:, 2] = True
        mask[0] = next_mask[0] = np.eye(5, dtype=bool)[3]  # one legal action
        obs, next_obs = (np.concatenate([rng.normal(size=(size, 4)), m], 1) for m in (mask, next_mask))
        action = np.array([rng.choice(np.flatnonzero(m)) for m in mask], np.int32)
    reward, discount = rng.normal(size=size), np.where(rng.random(size) < 0.3, 0.0, 0.9)
    batch = NStep(obs, Choice(action, mask), reward, discount, next_obs, next_mask)
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32 if x.dtype == np.float64 else x.dtype), batch)


@pytest.fixture(scope="module", params=["continuous", "discrete"])
def case(request: Any) -> tuple[SACParts, Any, Any, NStep, jax.Array | None, jax.Array | None]:
    """Parts, parameters, target critics, a batch, and the noise at its observations and at the next ones."""
    parts = sac_parts(TINY if request.param == "continuous" else BANDIT)
    batch = batch_for(parts)
    here, there = jax.random.normal(jax.random.key(5), (2, 32, 1)) if request.param == "continuous" else (None, None)
    return parts, *params_of(parts), batch, here, there


def value_in_numpy(parts: SACParts, params: Any, critics: Any, obs: Any, mask: Any, noise: Any) -> tuple[np.ndarray, np.ndarray]:
    """Soft value and entropy, one observation at a time, in doubles, with an enumeration of legal actions."""
    alpha = math.exp(float(params["log_alpha"]))
    outputs = np.asarray(policy_outputs(parts.policy, params, obs), np.float64)
    values, entropies = [], []
    if isinstance(parts.policy.space, Box):
        log_std = np.clip(outputs[:, 1:], -5, 2)
        action = np.tanh(outputs[:, :1] + np.exp(log_std) * np.asarray(noise, np.float64))
        q = np.asarray(critic_values(parts.policy, critics, obs, jnp.asarray(action, jnp.float32)), np.float64)
        for i in range(len(outputs)):
            log_prob = math.log(density(action[i, 0], outputs[i, 0], log_std[i, 0]))
            values.append(min(q[0, i], q[1, i]) - alpha * log_prob)
            entropies.append(-log_prob)
    else:
        q = np.asarray(critic_values(parts.policy, critics, obs), np.float64)
        for i in range(len(outputs)):
            legal = np.flatnonzero(mask[i])
            weights = {a: math.exp(outputs[i, a]) for a in legal}
            probability = {a: w / sum(weights.values()) for a, w in weights.items()}
            values.append(sum(p * (min(q[0, i, a], q[1, i, a]) - alpha * math.log(p)) for a, p in probability.items()))
            entropies.append(-sum(p * math.log(p) for p in probability.values()))
    return np.array(values), np.array(entropies)


@pytest.mark.slow
def test_the_soft_value_is_the_expectation_over_legal_actions(case: Any) -> None:
    parts, params, _, batch, here, _ = case
    expected = value_in_numpy(parts, params, params["critic"], batch.obs, batch.action.mask, here)
    got = soft_value(parts.policy, params, params["critic"], batch.obs, batch.action.mask, here)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(sac_actor_loss(parts, params, batch, here)[0], -expected[0], rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_the_soft_value_of_continuous_actions_is_an_integral() -> None:
    parts = sac_parts(TINY)
    params, _ = params_of(parts)
    obs = jnp.array([0.3, -0.5, 1.0])
    outputs = policy_outputs(parts.policy, params, obs)
    mean, log_std = (float(x[0]) for x in parts.policy.head.distribution(outputs, None))
    edges = np.linspace(-1 + 1e-6, 1 - 1e-6, 40_001)
    action = (edges[1:] + edges[:-1]) / 2
    tiled = jnp.tile(obs, (len(action), 1))
    q = np.asarray(critic_values(parts.policy, params["critic"], tiled, jnp.asarray(action, jnp.float32)[:, None])).min(0)
    p = density(action, mean, log_std)
    expected = np.sum(p * (q - math.exp(float(params["log_alpha"])) * np.log(p)) * np.diff(edges))
    noise = jax.random.normal(jax.random.key(0), (40_000, 1))
    value, _ = soft_value(parts.policy, params, params["critic"], tiled, None, noise)
    assert float(jnp.mean(value)) == pytest.approx(expected, abs=5 * float(jnp.std(value)) / 200)


@pytest.mark.slow
def test_illegal_actions_and_none_legal_at_all_leave_everything_finite() -> None:
    parts = sac_parts(BANDIT)
    params, target_params = params_of(parts)
    params["log_alpha"] = jnp.float32(5.0)
    batch = batch_for(parts)
    # An environment may have no legal action left where it terminated.
    batch = batch._replace(next_mask=jnp.zeros_like(batch.next_mask), discount=jnp.zeros_like(batch.discount))
    np.testing.assert_array_equal(sac_target(parts, params, target_params, batch, None), batch.reward)
    loss, grads = jax.value_and_grad(lambda p: sac_loss(parts, p, batch, batch.reward, None)[0])(params)
    assert jnp.isfinite(loss)
    assert all(jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(grads))


@pytest.mark.slow
def test_targets_and_critic_losses_are_those_of_plain_python(case: Any) -> None:
    parts, params, target_params, batch, _, there = case
    value, _ = value_in_numpy(parts, params, target_params, batch.next_obs, batch.next_mask, there)
    expected = np.asarray(batch.reward) + np.asarray(batch.discount) * value
    target = sac_target(parts, params, target_params, batch, there)
    np.testing.assert_allclose(target, expected, rtol=1e-3, atol=1e-3)
    losses, mean_value = sac_critic_loss(parts, params, batch, target)
    q = np.asarray(q_of_choice(parts.policy, params["critic"], batch.obs, batch.action))
    if isinstance(parts.policy.space, Box):
        by_hand = critic_values(parts.policy, params["critic"], batch.obs, batch.action.action)
    else:
        every = np.asarray(critic_values(parts.policy, params["critic"], batch.obs))
        by_hand = [[critic[i, a] for i, a in enumerate(batch.action.action)] for critic in every]
    np.testing.assert_allclose(q, by_hand, rtol=1e-5)
    np.testing.assert_allclose(losses, [sum((q[k, i] - target[i]) ** 2 for k in (0, 1)) / 2 for i in range(32)], rtol=1e-4)
    np.testing.assert_allclose(mean_value, (q[0] + q[1]) / 2, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 3])
def test_targets_stop_at_terminations_bootstrap_at_truncations_and_sum_n_rewards(n: int) -> None:
    parts = sac_parts(TINY.replace(n_step=n, gamma=0.9))
    params, target_params = params_of(parts)
    rng = np.random.default_rng(1)
    rows, envs = 12, 4
    obs, next_obs = rng.normal(size=(2, rows, envs, 3)).astype(np.float32)
    reward = rng.normal(size=(rows, envs)).astype(np.float32)
    terminated, truncated = rng.random((2, rows, envs)) < 0.2
    action = Choice(jnp.zeros((rows, envs, 1)), None)
    data = Transition(*map(jnp.asarray, (obs,)), action, *map(jnp.asarray, (reward, terminated, truncated, next_obs)), None)
    replay = Replay(data, jnp.int32(0), jnp.int32(rows))
    row, env = (x.ravel() for x in np.meshgrid(np.arange(rows - n + 1), np.arange(envs)))
    batch = take_n_step(replay, Places(jnp.asarray(row), jnp.asarray(env)), n, 0.9)
    noise = jax.random.normal(jax.random.key(5), (len(row), 1))
    target = sac_target(parts, params, target_params, batch, noise)
    for i, (start, e) in enumerate(zip(row, env, strict=True)):
        expected, step = 0.0, start
        for k in range(n):
            step = start + k
            expected += 0.9**k * reward[step, e]
            if terminated[step, e] or truncated[step, e]:
                break
        if not terminated[step, e]:
            value, _ = value_in_numpy(parts, params, target_params, next_obs[step, e][None], None, noise[i : i + 1])
            expected += 0.9 ** (step - start + 1) * value[0]
        assert float(target[i]) == pytest.approx(expected, rel=1e-3, abs=1e-3)


# Who trains what


@pytest.mark.slow
def test_each_loss_trains_its_own_part_and_their_sum_has_the_same_gradients(case: Any) -> None:
    parts, params, _, batch, here, _ = case
    target = batch.reward
    losses = {
        "critic": lambda p: jnp.mean(sac_critic_loss(parts, p, batch, target)[0]),
        "actor": lambda p: jnp.mean(sac_actor_loss(parts, p, batch, here)[0]),
        "log_alpha": lambda p: jnp.mean(
            sac_temperature_loss(parts, p, sac_actor_loss(parts, p, batch, here)[1], batch.action.mask)
        ),
    }
    together = jax.grad(lambda p: sac_loss(parts, p, batch, target, here)[0])(params)
    for part, loss in losses.items():
        grads = jax.grad(loss)(params)
        for name, own in grads.items():
            size = sum(float(jnp.sum(jnp.abs(leaf))) for leaf in jax.tree.leaves(own))
            assert (size > 0) == (name == part), (part, name)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), grads[part], together[part])


@pytest.mark.slow
def test_the_actors_gradient_is_that_of_its_loss(case: Any) -> None:
    parts, params, _, batch, here, _ = case
    # Smaller outputs: a log_std outside its bounds has a gradient that is not its loss's, but leads back.
    params = params | {"actor": jax.tree.map(lambda x: 0.5 * x, params["actor"])}
    if isinstance(parts.policy.space, Box):
        assert np.abs(policy_outputs(parts.policy, params, batch.obs)).max() < 2
    direction = jax.tree.map(lambda x: jax.random.normal(jax.random.key(x.size), x.shape), params["actor"])

    def moved(step: float) -> float:
        actor = jax.tree.map(lambda p, d: p + step * d, params["actor"], direction)
        value, _ = value_in_numpy(parts, params | {"actor": actor}, params["critic"], batch.obs, batch.action.mask, here)
        return -float(np.mean(value))

    grads = jax.grad(lambda p: jnp.mean(sac_actor_loss(parts, p, batch, here)[0]))(params)["actor"]
    slope = sum(float(jnp.sum(g * d)) for g, d in zip(jax.tree.leaves(grads), jax.tree.leaves(direction), strict=True))
    assert slope == pytest.approx((moved(1e-3) - moved(-1e-3)) / 2e-3, rel=0.03, abs=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.1, 3.0])
def test_the_temperature_rises_below_the_target_entropy_and_falls_above_it(alpha: float) -> None:
    parts = sac_parts(TINY.replace(target_entropy=-0.5))
    params = {"log_alpha": jnp.log(jnp.float32(alpha))}

    def slope(entropy: jax.Array) -> float:
        return float(jax.grad(lambda p: jnp.mean(sac_temperature_loss(parts, p, entropy, None)))(params)["log_alpha"])

    for entropy in (jnp.array([-2.0, 0.0, -1.0]), jnp.array([1.0, 2.0, -1.0])):
        # d/d log alpha of exp(log alpha) (H - target)
        assert slope(entropy) == pytest.approx(alpha * float(jnp.mean(entropy) + 0.5), rel=1e-5)
    assert slope(jnp.array([-1.0])) < 0 < slope(jnp.array([0.0]))
    fixed = sac_parts(TINY.replace(temperature=alpha))
    assert not jnp.any(sac_temperature_loss(fixed, params, jnp.ones(3), None))
    assert sac_init(fixed, jax.random.key(0)).params["log_alpha"] == pytest.approx(math.log(alpha), rel=1e-5)


def test_the_target_entropy_is_minus_the_dimensions_or_a_share_of_the_most_that_legal_actions_allow() -> None:
    params = {"log_alpha": jnp.zeros(())}
    none = jnp.zeros(2)
    assert float(sac_temperature_loss(sac_parts(TINY.replace(env="BoxTarget-v0")), params, none, None)[0]) == 2.0
    mask = jnp.array([[True, True, False, False, True], [False, True, False, False, False]])
    bandit = sac_parts(BANDIT.replace(target_entropy_ratio=0.5))
    np.testing.assert_allclose(sac_temperature_loss(bandit, params, none, mask), [-0.5 * math.log(3), 0.0], rtol=1e-6)
    np.testing.assert_allclose(sac_temperature_loss(bandit, params, none, None), -0.5 * math.log(5), rtol=1e-6)


# The turn


def collected(config: SACConfig, turns: int = 1) -> tuple[SACParts, SACState, Any]:
    parts = sac_parts(config)

    def collect(key: jax.Array) -> tuple[SACState, Any]:
        state, noise = sac_noise(parts, sac_init(parts, key), turns)
        return jax.lax.scan(lambda s, n: sac_collect(parts, s, n), state, noise)

    state, steps = jax.jit(collect)(jax.random.key(0))
    return parts, state, steps


class Asymmetric(Environment):
    """Reports in its observation the action it got, of bounds [-3, 1] and [10, 11]."""

    def observation_space(self, params: Any) -> Box:
        return Box(-100.0, 100.0, (2,))

    def action_space(self, params: Any) -> Box:
        return Box(jnp.array([-3.0, 10.0]), jnp.array([1.0, 11.0]), (2,))

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        return jnp.zeros(2), jnp.zeros((), jnp.int32)

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        return action, state + 1, jnp.zeros(()), jnp.asarray(False), {}


def test_actions_are_uniform_within_the_bounds_until_learning_starts() -> None:
    config = TINY.replace(env=Asymmetric(), learning_starts=400)
    _, state, steps = collected(config, turns=2000)
    seen = np.asarray(steps.next_obs[:100]).reshape(-1, 2)  # before learning starts
    low, high = np.array([-3.0, 10.0]), np.array([1.0, 11.0])
    assert np.all((seen >= low) & (seen <= high))
    unit = (seen - low) / (high - low)
    for quantile in np.linspace(0.1, 0.9, 9):  # of 400 uniform numbers: 3 deviations are 0.075
        np.testing.assert_allclose(np.mean(unit < quantile, 0), quantile, atol=0.075)
    kept = np.asarray(steps.action.action[:100]).reshape(-1, 2)
    np.testing.assert_allclose(kept, 2 * unit - 1, atol=1e-5)
    # Afterwards they are the policy's: near the tanh of a standard normal, whose deviation is 0.628; the uniform one's is 0.577.
    later = np.asarray(steps.action.action[100:]).reshape(-1, 2)
    assert np.std(later) == pytest.approx(0.628, abs=0.015)
    assert np.std(kept) == pytest.approx(0.577, abs=0.03)
    assert state.replay.size == 100


@pytest.mark.slow
def test_discrete_actions_are_uniform_among_the_legal_ones_until_learning_starts() -> None:
    _, _, steps = collected(BANDIT.replace(buffer_size=3000, learning_starts=3000), turns=500)
    action, mask = np.asarray(steps.action.action).ravel(), np.asarray(steps.action.mask).reshape(-1, 5)
    assert np.all(mask[np.arange(len(action)), action])
    assert np.all(mask.sum(1) == 3)
    right = np.asarray(steps.obs)[..., :4].reshape(-1, 4).argmax(1)
    assert np.mean(action == right) == pytest.approx(1 / 3, abs=0.035)


@pytest.mark.slow
def test_nothing_changes_before_learning_starts_and_afterwards_updates_are_counted() -> None:
    agent = make_agent(TINY.replace(learning_starts=48, updates_per_step=3))
    start = jax.jit(agent.init)(jax.random.key(0))
    step = jax.jit(agent.step)
    first, metrics = step(start)
    jax.tree.map(np.testing.assert_array_equal, (first.params, first.target_params), (start.params, start.target_params))
    assert metrics["train/updates"] == 0 == first.updates
    known = {name for name, v in metrics.items() if name.startswith("train/") and math.isfinite(float(v))}
    assert known == {"train/updates", "train/learning_rate", "train/temperature"}, "there are no losses without gradient steps"
    second, metrics = step(first)
    # 32 + 16 transitions are there after the 4th of 8 turns: 5 turns of 3 gradient steps.
    assert metrics["train/updates"] == 15 == second.updates
    assert metrics["train/learning_rate"] == pytest.approx(1e-2)
    assert all(math.isfinite(float(v)) for name, v in metrics.items() if name.startswith("train/"))


@pytest.mark.slow
def test_the_target_critics_move_after_every_gradient_step() -> None:
    """A turn of three gradient steps beside three turns of one on the same samples, and the moves made in NumPy."""
    config = TINY.replace(tau=0.25, updates_per_step=3)
    parts, state, _ = collected(config, turns=8)
    single = sac_parts(config.replace(updates_per_step=1, target_update_every=10_000))
    state, noise = jax.jit(lambda s: sac_noise(parts, s))(state)
    after, _ = jax.jit(lambda s, n: sac_update(parts, s, n))(state, noise)
    one_step = jax.jit(lambda s, n: sac_update(single, s, n)[0])
    expected = state
    for i in range(3):
        expected = one_step(expected, noise._replace(sample=noise.sample[i : i + 1], policy=noise.policy[i : i + 1]))
        pairs = zip(jax.tree.leaves(expected.target_params), jax.tree.leaves(expected.params["critic"]), strict=True)
        moved = [0.75 * np.asarray(t) + 0.25 * np.asarray(p) for t, p in pairs]
        expected = expected.replace(target_params=jax.tree.unflatten(jax.tree.structure(state.target_params), moved))
    for a, b in ((after.params, expected.params), (after.target_params, expected.target_params)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)


@pytest.mark.slow
def test_a_turn_is_gradient_steps_of_adam_and_then_a_move_of_the_target_critics() -> None:
    config = TINY.replace(tau=0.25, critic_learning_rate=2e-2, temperature_learning_rate=0.1)
    parts, state, _ = collected(config, turns=8)
    state, noise = jax.jit(lambda s: sac_noise(parts, s))(state)
    after, metrics = jax.jit(lambda s, n: sac_update(parts, s, n))(state, noise)
    assert metrics["train/updates"] == 1
    # Adam's first step is the rate times the sign of the gradient: each part's own.
    for part, rate in (("actor", 1e-2), ("critic", 2e-2), ("log_alpha", 0.1)):
        moved = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), after.params[part], state.params[part])
        assert max(map(float, jax.tree.leaves(moved))) == pytest.approx(rate, rel=1e-2)
    expected = jax.tree.map(lambda t, p: 0.75 * t + 0.25 * p, state.target_params, after.params["critic"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), after.target_params, expected)


@pytest.mark.slow
def test_both_critics_are_their_own() -> None:
    params = sac_init(sac_parts(TINY), jax.random.key(0)).params["critic"]["params"]
    for layer in params.values():
        assert not np.allclose(layer["kernel"][0], layer["kernel"][1])


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [None, 4])
def test_no_copy_of_the_buffer_is_made(seeds: int | None) -> None:
    config = TINY.replace(env="Pendulum-v1", buffer_size=2_000_000 if seeds is None else 500_000, total_timesteps=64)
    if seeds is None:
        agent = make_agent(config)
        shapes = jax.eval_shape(agent.init, jax.random.key(0))
        compiled = jax.jit(agent.step, donate_argnums=0).lower(shapes).compile()
        buffer = tree_bytes(shapes.replay.data)
    else:
        train, keys = make_train(config), jax.random.split(jax.random.key(0), seeds)
        compiled = jax.jit(jax.vmap(train)).lower(keys).compile()
        buffer = tree_bytes(jax.eval_shape(jax.vmap(train), keys).state.replay.data)
    assert buffer > 50e6
    assert compiled.memory_analysis().temp_size_in_bytes < 0.1 * buffer


# Probes


def trained(env: str, **changes: Any) -> tuple[Any, SACState, np.ndarray]:
    """The agent, its state, and the returns of greedy episodes."""
    settings = {"num_envs": 8, "num_steps": 16, "updates_per_step": 4, "batch_size": 64, "learning_starts": 256, "tau": 0.05}
    settings |= {"total_timesteps": 8 * 600, "learning_rate": 3e-3, "buffer_size": 4096, "network": {"hidden": [32]}}
    config = SACConfig(env=env, **{**settings, **changes})
    agent = make_agent(config)
    state = jax.jit(make_train(config))(jax.random.key(0)).state
    return agent, state, np.asarray(jax.jit(lambda s: evaluate(agent, s, jax.random.key(1)))(state))


@pytest.mark.slow
def test_continuous_actions_depend_on_the_observation() -> None:
    agent, state, returns = trained("BoxTarget-v0", target_entropy=-6.0)
    assert returns.mean() > -0.01  # uniform actions: -0.547
    obs = jnp.array([[0.5, -0.5], [-0.7, 0.2]])
    np.testing.assert_allclose(agent.act(state, obs, None, jax.random.key(0), True)[0], obs, atol=0.2)
    sampled, _ = agent.act(state, jnp.tile(obs[:1], (500, 1)), None, jax.random.key(0))
    assert np.all(np.std(sampled, 0) > 1e-3)


@pytest.mark.slow
def test_discrete_actions_depend_on_the_observation() -> None:
    agent, state, returns = trained("ActionReward-v0", target_entropy_ratio=0.3)
    np.testing.assert_array_equal(returns, 1.0)
    sampled, _ = agent.act(state, jnp.tile(jnp.array([[-1.0], [1.0]]), (200, 1)), None, jax.random.key(1))
    assert np.mean(np.asarray(sampled).reshape(200, 2) == [0, 1]) > 0.8


@pytest.mark.slow
def test_masks_are_respected_and_the_best_legal_action_is_found() -> None:
    _, _, returns = trained("MaskedBandit-v0", target_entropy_ratio=0.3, gamma=0.9)
    np.testing.assert_array_equal(returns, 4.0)


@pytest.mark.slow
def test_the_entropy_goes_to_its_target() -> None:
    config = TINY.replace(env="ActionReward-v0", target_entropy_ratio=0.5, total_timesteps=16_000, num_envs=8)
    metrics = jax.jit(make_train(config))(jax.random.key(0)).metrics
    assert float(jnp.mean(metrics["train/entropy"][-40:])) == pytest.approx(0.5 * math.log(2), abs=0.1)


# Errors


class Unbounded(Asymmetric):
    def action_space(self, params: Any) -> Box:
        return Box(-np.inf, np.inf, (2,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": "MultiDiscreteMatch-v0"}, "SAC needs a Box or Discrete action space"),
        ({"env": Unbounded()}, "finite bounds"),
        ({"network": nn.Dense(2)}, "network = Dense: a Module cannot be"),
        ({"env": "MaskedBandit-v0", "network": nn.Dense(2)}, r"network = Dense: expected outputs \[B, 5\]"),
        ({"buffer_size": 2_000_000_000}, "buffer_size = 2000000000: .* needs"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        make_agent(TINY.replace(**changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("config_class", [SACConfig, IQLConfig, CQLConfig])
def test_a_table_that_names_other_keys_keeps_the_default_sizes_in_python_in_files_and_on_the_command_line(
    config_class: Any, tmp_path: Path
) -> None:
    base, wide = config_class(), (256, 256)
    assert base.network == {"hidden": wide}
    expected = {"hidden": wide, "layer_norm": True}
    assert base.replace(network={"layer_norm": True}).network == expected
    (tmp_path / "own.toml").write_text(f'algorithm = "{base.algorithm}"\nnetwork = {{ layer_norm = true }}\n')
    assert load_config(tmp_path / "own.toml").network == expected
    assert merge_tables(lambda: base, {"network": {"layer_norm": True}}) == {"network": expected}
    assert base.replace(network={"hidden": [8]}).network == {"hidden": (8,)}


def test_layers_of_a_table_without_sizes_are_wide() -> None:
    parts = sac_parts(TINY.replace(network={"layer_norm": True}))
    assert (parts.policy.actor.hidden, parts.policy.critic.hidden) == ((256, 256), (256, 256))


@pytest.mark.slow
def test_a_users_network_is_trained_on_discrete_actions() -> None:
    _, _, returns = trained("ActionReward-v0", network=nn.Dense(2), target_entropy_ratio=0.3)
    np.testing.assert_array_equal(returns, 1.0)


@pytest.mark.slow
def test_an_empty_buffer_is_of_the_shapes_that_are_written() -> None:
    _, state, steps = collected(BANDIT)
    empty = init_replay(jax.tree.map(lambda x: x[0, 0], state.replay.data), 100, 4)
    assert jax.tree.structure(empty.data) == jax.tree.structure(state.replay.data)
    np.testing.assert_array_equal(state.replay.data.action.mask[0], steps.mask[0, 0])
