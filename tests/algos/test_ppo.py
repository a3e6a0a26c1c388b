"""PPO: its loss against numpy, its promises about ratios, early stops and schedules, and probes with known values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax import (
    ConfigError,
    Minibatch,
    PPOConfig,
    PPOParts,
    PPOState,
    Rollout,
    make_agent,
    make_train,
    ppo_collect,
    ppo_init,
    ppo_loss,
    ppo_parts,
    ppo_update,
)
from rljax.algos.ppo import annealed
from rljax.collect.minibatches import permutations, sorted_places
from rljax.collect.returns import gae
from rljax.envs.probes import TruncationProbeParams, truncation_probe_values

TINY = PPOConfig(
    env="ActionReward-v0",
    num_envs=4,
    num_steps=8,
    num_minibatches=2,
    num_epochs=2,
    total_timesteps=320,
    network={"hidden": [8]},
    learning_rate=1e-2,
)


def log_prob_and_value(parts: PPOParts, params: Any, rollout: Rollout, obs: Any) -> tuple[jax.Array, jax.Array]:
    outputs, value, _ = parts.policy.apply(params, obs)
    return parts.head.distribution(outputs, rollout.steps.mask).log_prob(rollout.steps.action), value


# Probes


class Linear(nn.Module):
    """A user's network."""

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        return nn.Dense(2, name="policy")(obs), nn.Dense(1, name="value")(obs)[..., 0]


def trained(env: str, **changes: Any) -> tuple[Any, PPOState]:
    config = PPOConfig(
        env=env,
        num_envs=8,
        num_steps=16,
        num_minibatches=2,
        num_epochs=4,
        learning_rate=1e-2,
        vf_clip_eps=None,
        **{"total_timesteps": 128 * 60, "network": {"hidden": [16]}, **changes},
    )
    return make_agent(config), jax.jit(make_train(config))(jax.random.key(0)).state


def value_of(config: PPOConfig, state: PPOState, obs: list[float]) -> float:
    return float(ppo_parts(config).policy.apply(state.params, jnp.array(obs))[1])


@pytest.mark.slow
def test_a_value_is_discounted_once_per_step() -> None:
    # Value g at the first observation, 1 at the second; gamma 0.5 tells g from 1, from g^2 and from 0.
    agent, state = trained("DelayedReward-v0", gamma=0.5)
    assert value_of(agent.config, state, [0.0]) == pytest.approx(0.5, abs=0.05)
    assert value_of(agent.config, state, [1.0]) == pytest.approx(1.0, abs=0.05)


@pytest.mark.slow
def test_the_policy_depends_on_the_observation_and_a_users_network_is_trained() -> None:
    agent, state = trained("ActionReward-v0", network=Linear())
    assert set(state.params["params"]["network"]) == {"policy", "value"}
    obs = jnp.array([[-1.0], [1.0]])
    actions, _ = agent.act(state, obs, None, jax.random.key(0), True)
    np.testing.assert_array_equal(actions, [0, 1])
    sampled, _ = agent.act(state, jnp.tile(obs, (200, 1)), None, jax.random.key(1))
    assert np.mean(sampled.reshape(200, 2) == jnp.array([0, 1])) > 0.95
    assert value_of(agent.config, state, [1.0]) == pytest.approx(1.0, abs=0.15)


@pytest.mark.slow
def test_truncation_bootstraps_from_final_observation() -> None:
    # Reward 1 for ever, cut every 4 steps: 10 with gamma 0.9. With no bootstrap 2.5, with that of the reset observation -9.3.
    agent, state = trained("TruncationProbe-v0", gamma=0.9, total_timesteps=128 * 200)
    params = TruncationProbeParams()
    after_reset, going = truncation_probe_values(0.9, params)
    assert going == pytest.approx(10.0)
    for wrong in ("none", "reset"):
        assert abs(truncation_probe_values(0.9, params, wrong)[1] - going) > 5.0
    assert value_of(agent.config, state, [0.0, 1.0]) == pytest.approx(going, abs=1.0)
    assert value_of(agent.config, state, [1.0, 0.0]) == pytest.approx(after_reset, abs=1.0)


# The rollout


@pytest.mark.slow
def test_the_ratio_is_1_on_the_first_minibatch_with_moving_observation_statistics_too() -> None:
    config = TINY.replace(env="Pendulum-v1", normalize_observations=True, total_timesteps=3200)
    agent = make_agent(config)
    # One pass over one minibatch: the loss is evaluated before anything moves.
    first_pass = ppo_parts(config.replace(num_epochs=1, num_minibatches=1))

    def furthest(parts: PPOParts, params: Any, batch: Minibatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        outputs, _, _ = parts.policy.apply(params, batch.obs)
        log_ratio = parts.head.distribution(outputs, batch.mask).log_prob(batch.action) - batch.log_prob
        return 0.0 * jnp.sum(outputs), {"furthest": jnp.max(jnp.abs(log_ratio))}

    def look_and_step(state: PPOState, _: None) -> tuple[PPOState, jax.Array]:
        _, metrics = ppo_update(first_pass, *ppo_collect(first_pass, state), loss_fn=furthest)
        return agent.step(state)[0], metrics["furthest"]

    state, furthest_by_iteration = jax.jit(lambda key: jax.lax.scan(look_and_step, agent.init(key), None, 5))(jax.random.key(0))
    assert jnp.all(furthest_by_iteration < 1e-5)
    assert state.obs_statistics.count == 5 * config.steps_per_iteration
    assert jnp.all(jnp.abs(state.obs_statistics.mean) > 1e-3)  # the statistics did move


@pytest.fixture(scope="module")
def tiny() -> tuple[PPOParts, PPOState, PPOState, Rollout]:
    """Parts, the state before and after a rollout, and the rollout."""
    parts = ppo_parts(TINY)
    state = jax.jit(lambda key: ppo_init(parts, key))(jax.random.key(0))
    collected, rollout = jax.jit(lambda s: ppo_collect(parts, s))(state)
    return parts, state, collected, rollout


@pytest.mark.slow
def test_values_and_log_probs_are_those_of_the_policy_that_took_the_steps(tiny: Any) -> None:
    parts, state, _, rollout = tiny
    log_prob, value = log_prob_and_value(parts, state.params, rollout, rollout.steps.obs)
    np.testing.assert_allclose(rollout.log_prob, log_prob, atol=1e-6)
    np.testing.assert_allclose(rollout.value, value, atol=1e-6)
    assert rollout.log_prob.shape == rollout.value.shape == rollout.next_value.shape == (8, 4)


def test_collecting_changes_the_environments_and_the_key_but_not_the_policy(tiny: Any) -> None:
    _, state, collected, _ = tiny
    for name in ("params", "opt_state", "obs_statistics", "reward_statistics", "iteration", "eval_key"):
        jax.tree.map(np.testing.assert_array_equal, *(as_data(getattr(s, name)) for s in (state, collected)))
    assert not np.array_equal(jax.random.key_data(state.key), jax.random.key_data(collected.key))


def as_data(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree)


# The loss


def batch_for(parts: PPOParts, params: Any, size: int = 64, seed: int = 0) -> Minibatch:
    """Random transitions of MaskedBandit, with old log-probabilities and values some way from the policy's."""
    rng = np.random.default_rng(seed)
    right, offset = rng.integers(0, 4, size), rng.integers(1, 4, size)
    mask = (np.arange(5) != ((right + offset) % 4)[:, None]) & (np.arange(5) != 4)
    obs = np.concatenate([np.eye(4)[right], mask], axis=1).astype(np.float32)
    action = np.array([rng.choice(np.flatnonzero(legal)) for legal in mask], np.int32)
    outputs, value, _ = parts.policy.apply(params, jnp.asarray(obs))
    log_prob = parts.head.distribution(outputs, jnp.asarray(mask)).log_prob(action)
    return Minibatch(
        obs=jnp.asarray(obs),
        action=jnp.asarray(action),
        mask=jnp.asarray(mask),
        log_prob=log_prob + jnp.asarray(rng.normal(0, 0.8, size), jnp.float32),
        value=value + jnp.asarray(rng.normal(0, 0.5, size), jnp.float32),
        advantage=jnp.asarray(rng.normal(0.3, 2.0, size), jnp.float32),
        target=value + jnp.asarray(rng.normal(0, 0.5, size), jnp.float32),
    )


def loss_in_numpy(config: PPOConfig, outputs: np.ndarray, value: np.ndarray, batch: Minibatch) -> dict[str, float]:
    """One transition at a time, in doubles, from the papers."""
    b = jax.tree.map(lambda x: np.asarray(x, np.float64) if x.dtype == np.float32 else np.asarray(x), batch)
    size, advantage = len(b.advantage), b.advantage
    sums = dict.fromkeys(("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"), 0.0)
    for i in range(size):
        weights = {a: np.exp(float(outputs[i, a])) for a in range(5) if b.mask[i, a]}
        probability = {a: w / sum(weights.values()) for a, w in weights.items()}
        ratio = probability[int(b.action[i])] / np.exp(b.log_prob[i])
        clipped = min(max(ratio, 1 - config.clip_eps), 1 + config.clip_eps)
        objective = min(ratio * advantage[i], clipped * advantage[i])
        if config.dual_clip is not None and advantage[i] < 0:
            objective = max(objective, config.dual_clip * advantage[i])
        error = (value[i] - b.target[i]) ** 2
        if config.vf_clip_eps is not None:
            moved = min(max(value[i] - b.value[i], -config.vf_clip_eps), config.vf_clip_eps)
            error = max(error, (b.value[i] + moved - b.target[i]) ** 2)
        sums["policy_loss"] -= objective
        sums["value_loss"] += error / 2
        sums["entropy"] -= sum(p * np.log(p) for p in probability.values())
        sums["approx_kl"] += ratio - 1 - np.log(ratio)
        sums["clip_fraction"] += abs(ratio - 1) > config.clip_eps
    means = {name: total / size for name, total in sums.items()}
    means["loss"] = means["policy_loss"] + config.vf_coef * means["value_loss"] - config.ent_coef * means["entropy"]
    return means


@pytest.fixture(scope="module")
def bandit() -> tuple[PPOParts, Any, Minibatch]:
    """A masked policy far from uniform, and a batch for it."""
    parts = ppo_parts(TINY.replace(env="MaskedBandit-v0"))
    params = jax.jit(parts.policy.init)(jax.random.key(1), jnp.zeros(9))
    head = params["params"]["network"]["policy_head"]
    head["kernel"] = 300.0 * head["kernel"]
    return parts, params, batch_for(parts, params)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"vf_clip_eps": None, "vf_coef": 0.7, "ent_coef": 0.1},
        {"clip_eps": 0.1, "vf_clip_eps": 0.05},
        {"dual_clip": 1.5},
        {"dual_clip": 2.0},
    ],
)
def test_the_loss_is_that_of_the_papers(bandit: Any, changes: dict[str, Any]) -> None:
    parts, params, batch = bandit
    config = parts.config.replace(**changes)
    outputs, value = (np.asarray(x, np.float64) for x in parts.policy.apply(params, batch.obs)[:2])
    expected = loss_in_numpy(config, outputs, value, batch)
    loss, metrics = jax.jit(lambda p, b: ppo_loss(parts._replace(config=config), p, b))(params, batch)
    assert float(loss) == pytest.approx(expected.pop("loss"), rel=1e-5, abs=1e-5)
    assert set(metrics) == {f"train/{name}" for name in expected}
    for name, want in expected.items():
        assert float(metrics[f"train/{name}"]) == pytest.approx(want, rel=1e-5, abs=1e-5), name
    assert 0.2 < expected["clip_fraction"] < 1.0


def test_dual_clip_bounds_the_loss_of_bad_actions_that_became_likely_and_nothing_else(bandit: Any) -> None:
    parts, params, batch = bandit
    dual = parts._replace(config=parts.config.replace(dual_clip=3.0))
    likely = batch._replace(log_prob=batch.log_prob - 5.0)  # ratios of about 150
    bad, good = (likely._replace(advantage=jnp.full(64, a)) for a in (-1.0, 1.0))
    assert ppo_loss(parts, params, bad)[1]["train/policy_loss"] > 50
    assert ppo_loss(dual, params, bad)[1]["train/policy_loss"] == pytest.approx(3.0)
    assert ppo_loss(dual, params, good)[1]["train/policy_loss"] == ppo_loss(parts, params, good)[1]["train/policy_loss"]


def test_illegal_actions_add_nothing_to_the_entropy(bandit: Any) -> None:
    parts, params, batch = bandit
    flat = jax.tree.map(jnp.zeros_like, params)  # uniform over the 3 legal arms of 5
    assert ppo_loss(parts, flat, batch)[1]["train/entropy"] == pytest.approx(np.log(3), rel=1e-6)


# The update


def update(parts: PPOParts, loss_fn: Any = None) -> Callable[[PPOState, Rollout], tuple[PPOState, Any]]:
    return jax.jit(lambda state, rollout: ppo_update(parts, state, rollout, loss_fn))


@pytest.fixture(scope="module")
def plain_update(tiny: Any) -> Callable[[PPOState, Rollout], tuple[PPOState, Any]]:
    return update(tiny[0])


@pytest.mark.slow
def test_target_kl_stops_the_remaining_updates_inside_jit_and_under_vmap(tiny: Any) -> None:
    _, _, collected, rollout = tiny
    # One step of this rate moves the policy far beyond the target, so the first step is taken and the other seven are not.
    config = TINY.replace(learning_rate=0.3, target_kl=1e-3, num_epochs=4, anneal_lr=False, max_grad_norm=None)

    def update_at(learning_rate: jax.Array) -> tuple[PPOState, Any]:
        return ppo_update(ppo_parts(config.replace(learning_rate=learning_rate)), collected, rollout)

    # Under vmap one agent stops, and one that does not move goes on to the end.
    (after, metrics) = jax.jit(jax.vmap(update_at))(jnp.array([0.3, 0.0]))
    np.testing.assert_array_equal(metrics["train/updates"], [1.0, 8.0])
    counts = [int(leaf[0]) for leaf in jax.tree.leaves(after.opt_state) if leaf.dtype == jnp.int32]
    assert counts == [1]
    # What is left is the state after that one step: Adam's first step is the rate times the sign of the gradient.
    for before, now in zip(jax.tree.leaves(collected.params), jax.tree.leaves(after.params), strict=True):
        moved = np.abs(np.asarray(now[0] - before))
        assert np.all((moved < 0.3 * 1.01) & ((moved > 0.25) | (moved < 0.05)))
        np.testing.assert_array_equal(now[1], before)
    single, single_metrics = jax.jit(update_at)(jnp.float32(0.3))
    assert single_metrics["train/updates"] == 1.0
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[0], rtol=1e-5, atol=1e-6), single.params, after.params)
    # The loss is that of the step that was taken: the very first, with ratio 1.
    assert abs(single_metrics["train/policy_loss"]) < 1e-6
    # The divergence is the mean of that step's, 0, and of what stopped the second step, which saw how far the first had gone: as
    # in an epoch of two steps without a target.
    _, both = update(ppo_parts(config.replace(target_kl=None, num_epochs=1)))(collected, rollout)
    assert both["train/approx_kl"] > 0.1
    for name in ("train/approx_kl", "train/clip_fraction"):
        assert single_metrics[name] == pytest.approx(float(both[name]), rel=1e-4)


def test_a_stop_lasts_to_the_end_of_the_iteration_and_the_step_that_went_too_far_is_not_taken(tiny: Any) -> None:
    _, _, collected, rollout = tiny
    numbered = rollout._replace(steps=rollout.steps._replace(action=jnp.arange(32).reshape(8, 4)))

    def too_far_with_transition_0(parts: PPOParts, params: Any, batch: Minibatch) -> tuple[jax.Array, Any]:
        loss, _ = linear_loss(parts, params, batch)
        too_far = jnp.any(batch.action == 0)
        return loss, {
            "train/approx_kl": too_far.astype(jnp.float32),
            "train/clip_fraction": jnp.where(too_far, jnp.inf, 0.5),
            "train/entropy": jnp.where(too_far, jnp.nan, 2.0),
        }

    parts = ppo_parts(TINY.replace(num_minibatches=4, num_epochs=2, target_kl=0.5))

    def metrics_of(key: jax.Array) -> Any:
        return ppo_update(parts, collected.replace(key=key), numbered, too_far_with_transition_0)[1]

    # The minibatch with transition 0 comes anywhere in the first epoch: those before it are taken, and nothing after it.
    metrics = jax.jit(jax.vmap(metrics_of))(jax.random.split(jax.random.key(0), 64))
    taken = np.asarray(metrics["train/updates"])
    np.testing.assert_array_equal(np.unique(taken), [0, 1, 2, 3])
    # Its divergence counts once, its other metrics do not, and what is not finite of a step that was not taken ends no run.
    np.testing.assert_allclose(metrics["train/approx_kl"], 1.0 / (taken + 1.0), rtol=1e-6)
    np.testing.assert_array_equal(metrics["train/clip_fraction"], np.where(taken > 0, 0.5, 0.0))
    np.testing.assert_array_equal(metrics["train/entropy"], np.where(taken > 0, 2.0, 0.0))


def linear_loss(parts: PPOParts, params: Any, batch: Minibatch) -> tuple[jax.Array, Any]:
    """Gradient 100 in every parameter."""
    del parts, batch
    return sum(100.0 * jnp.sum(leaf) for leaf in jax.tree.leaves(params)), {}


def test_a_custom_loss_is_minimised_and_max_grad_norm_is_the_global_norm(tiny: Any) -> None:
    _, _, collected, rollout = tiny
    # An Adam whose epsilon dwarfs the gradients takes steps in proportion to them: rate * g / eps.
    eps = 1e6
    config = TINY.replace(num_epochs=1, num_minibatches=1, learning_rate=eps, adam_eps=eps, anneal_lr=False)
    after, metrics = update(ppo_parts(config), linear_loss)(collected, rollout)
    size = sum(leaf.size for leaf in jax.tree.leaves(collected.params))
    moved = jax.tree.map(lambda a, b: np.asarray(b - a, np.float64), after.params, collected.params)
    # Reported before clipping; after it the norm over all parameters together is 0.5, and directions are kept.
    assert metrics["train/grad_norm"] == pytest.approx(100 * size**0.5, rel=1e-5)
    assert float(optax.tree.norm(moved)) == pytest.approx(0.5, rel=1e-3)
    for leaf in jax.tree.leaves(moved):
        np.testing.assert_allclose(leaf, 0.5 / size**0.5, rtol=1e-2)


def test_without_max_grad_norm_gradients_are_whole(tiny: Any) -> None:
    _, _, collected, rollout = tiny
    eps = 1e6
    config = TINY.replace(num_epochs=1, num_minibatches=1, learning_rate=eps, adam_eps=eps, anneal_lr=False, max_grad_norm=None)
    after, _ = update(ppo_parts(config), linear_loss)(collected, rollout)
    for before, now in zip(jax.tree.leaves(collected.params), jax.tree.leaves(after.params), strict=True):
        np.testing.assert_allclose(before - now, 100.0, rtol=1e-3)


@pytest.mark.slow
def test_one_minibatch_is_the_whole_batch_in_order_and_several_are_a_partition_in_random_order(tiny: Any) -> None:
    _, _, collected, rollout = tiny
    numbered = rollout._replace(steps=rollout.steps._replace(action=jnp.arange(32).reshape(8, 4)))
    weights = jax.random.uniform(jax.random.key(3), (32,))

    def report(parts: PPOParts, params: Any, batch: Minibatch) -> tuple[jax.Array, Any]:
        number = batch.action
        return 0.0 * jnp.sum(parts.policy.apply(params, batch.obs)[1]), {
            "size": jnp.float32(len(number)),
            "in_order": jnp.all(number == jnp.arange(len(number))).astype(jnp.float32),
            # Random weights: their sum over an epoch is the whole one only if each transition is in one minibatch.
            "weight": jnp.sum(weights[number]),
            # Rows stay together: the observation still is that of its number.
            "torn": jnp.sum(batch.obs != rollout.steps.obs.reshape(32, -1)[number], dtype=jnp.float32),
        }

    for num_minibatches in (1, 4):
        config = TINY.replace(num_minibatches=num_minibatches, num_epochs=3)
        _, metrics = update(ppo_parts(config), report)(collected, numbered)
        assert metrics["size"] == 32 / num_minibatches
        assert metrics["in_order"] == (num_minibatches == 1)
        assert metrics["weight"] * num_minibatches == pytest.approx(float(jnp.sum(weights)), rel=1e-5)
        assert metrics["torn"] == 0


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("num_minibatches", [1, 4])
def test_a_loss_gets_advantages_standardised_over_its_minibatch_or_as_they_are(
    tiny: Any, num_minibatches: int, standardise: bool
) -> None:
    _, _, collected, rollout = tiny
    numbered = rollout._replace(steps=rollout.steps._replace(action=jnp.arange(32).reshape(8, 4)))
    steps = rollout.steps
    config = TINY.replace(num_minibatches=num_minibatches, num_epochs=3, normalize_advantages=standardise)
    after = (steps.reward, rollout.value, rollout.next_value, steps.terminated, steps.truncated)
    raw = gae(*after, config.gamma, config.gae_lambda).ravel()

    def report(parts: PPOParts, params: Any, batch: Minibatch) -> tuple[jax.Array, Any]:
        expected = raw[batch.action]
        if standardise:
            expected = (expected - jnp.mean(expected)) / jnp.std(expected)
        wrong = jnp.sum(jnp.abs(batch.advantage - expected) > 1e-4, dtype=jnp.float32)
        return 0.0 * jnp.sum(parts.policy.apply(params, batch.obs)[1]), {"wrong": wrong, "spread": jnp.std(batch.advantage)}

    metrics = update(ppo_parts(config), report)(collected, numbered)[1]
    assert metrics["wrong"] == 0
    assert (abs(metrics["spread"] - 1.0) < 1e-4) == standardise


def test_permutations_are_permutations_and_independent() -> None:
    orders = np.asarray(permutations(jax.random.key(0), 50, 12))
    assert orders.shape == (50, 12)
    np.testing.assert_array_equal(np.sort(orders, axis=1), np.tile(np.arange(12), (50, 1)))
    assert len({tuple(order) for order in orders}) == 50
    assert len(set(orders[:, 0])) == 12


@pytest.mark.parametrize("size", [1, 2, 3, 512, 1 << 16, (1 << 16) + 1])
def test_places_are_those_of_a_stable_sort_of_pairs(size: int) -> None:
    bits = jax.random.bits(jax.random.key(0), (2, size))
    for numbers in (bits, bits % 5, bits >> 16 << 16, ~jnp.zeros_like(bits)):
        np.testing.assert_array_equal(jax.jit(sorted_places)(numbers), np.argsort(numbers, axis=-1, kind="stable"))


@pytest.mark.parametrize("num_iterations", [1, 10, 41, 49, 1000])
def test_annealing_starts_whole_is_right_in_the_middle_and_ends_at_exactly_0(num_iterations: int) -> None:
    config = TINY.replace(total_timesteps=num_iterations * TINY.steps_per_iteration + 7, learning_rate=0.3)
    assert config.num_iterations == num_iterations
    rate = jax.jit(lambda i: annealed(config, i))
    assert rate(jnp.asarray(0)) == pytest.approx(0.3, rel=1e-6)
    assert rate(jnp.asarray(num_iterations // 2)) == pytest.approx(0.3 * (1 - (num_iterations // 2) / num_iterations), rel=1e-5)
    assert rate(jnp.asarray(num_iterations)) == 0.0
    constant = config.replace(anneal_lr=False)
    assert annealed(constant, jnp.asarray(num_iterations)) == np.float32(0.3)


def test_the_rate_is_annealed_by_iteration_whatever_the_number_of_gradient_steps(tiny: Any, plain_update: Any) -> None:
    _, _, collected, rollout = tiny
    assert TINY.num_iterations == 10
    for iteration in (0, 5, 9):
        _, metrics = plain_update(collected.replace(iteration=jnp.asarray(iteration, jnp.int32)), rollout)
        assert metrics["train/learning_rate"] == pytest.approx(1e-2 * (1 - iteration / 10), rel=1e-6)
    after, _ = plain_update(collected.replace(iteration=jnp.asarray(10, jnp.int32)), rollout)
    jax.tree.map(np.testing.assert_array_equal, after.params, collected.params)


def test_the_users_own_loop_equals_agent_step(tiny: Any, plain_update: Any) -> None:
    _, state, collected, rollout = tiny
    by_parts, update_metrics = plain_update(collected, rollout)
    by_step, metrics = jax.jit(make_agent(TINY).step)(state)
    # Two programs, so equal to rounding only.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), as_data(by_parts), as_data(by_step))
    assert by_step.iteration == 1
    assert set(metrics) == set(update_metrics) | {"episode/return", "episode/length", "episode/count"}
    for name, value in update_metrics.items():
        assert metrics[name] == pytest.approx(float(value), rel=1e-4, abs=1e-6)


def test_a_network_that_does_not_fit_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="network = Linear: expected"):
        make_agent(TINY.replace(env="MaskedBandit-v0", network=Linear()))
