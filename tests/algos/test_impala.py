"""IMPALA: its loss against numpy, whose policy it is that collects, and probes with known values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import (
    ConfigError,
    ImpalaConfig,
    ImpalaParts,
    ImpalaState,
    impala_collect,
    impala_init,
    impala_loss,
    impala_parts,
    impala_update,
    make_agent,
    make_train,
)
from rljax.algos.common.state import normalize_obs
from rljax.collect.streams import Streams
from rljax.envs.probes import TruncationProbeParams, truncation_probe_values

TINY = ImpalaConfig(
    env="TruncationProbe-v0",
    num_envs=4,
    num_steps=8,
    total_timesteps=320,
    network={"hidden": [8]},
    learning_rate=1e-2,
)


# Probes


def trained(env: str, **changes: Any) -> tuple[Any, ImpalaState]:
    config = ImpalaConfig(
        env=env,
        num_envs=8,
        num_steps=16,
        num_minibatches=2,
        num_epochs=4,
        learning_rate=1e-2,
        **{"total_timesteps": 128 * 60, "network": {"hidden": [16]}, **changes},
    )
    return make_agent(config), jax.jit(make_train(config))(jax.random.key(0)).state


def value_of(config: ImpalaConfig, state: ImpalaState, obs: list[float]) -> float:
    return float(impala_parts(config).policy.apply(state.params, jnp.array(obs))[1])


@pytest.mark.slow
def test_a_value_is_discounted_once_per_step() -> None:
    agent, state = trained("DelayedReward-v0", gamma=0.5)
    assert value_of(agent.config, state, [0.0]) == pytest.approx(0.5, abs=0.05)
    assert value_of(agent.config, state, [1.0]) == pytest.approx(1.0, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"policy_lag": 3}, {"upgo_coef": 1.0, "vtrace_lambda": 0.9}])
def test_the_policy_depends_on_the_observation(changes: dict[str, Any]) -> None:
    agent, state = trained("ActionReward-v0", **changes)
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
    after_reset, going = truncation_probe_values(0.9, TruncationProbeParams())
    assert value_of(agent.config, state, [0.0, 1.0]) == pytest.approx(going, abs=1.0)
    assert value_of(agent.config, state, [1.0, 0.0]) == pytest.approx(after_reset, abs=1.0)


@pytest.mark.slow
@pytest.mark.parametrize(("env", "best"), [("MaskedBandit-v0", 4.0), ("MultiDiscreteMatch-v0", 1.0)])
def test_masked_and_multi_discrete_actions_are_learned(env: str, best: float) -> None:
    changes = {"policy_lag": 1, "learning_rate": 3e-3, "num_envs": 16, "network": {"hidden": [32]}}
    config = ImpalaConfig(env=env, num_steps=16, num_epochs=4, num_minibatches=2, total_timesteps=40_000, **changes)
    state = jax.jit(make_train(config))(jax.random.key(0)).state
    assert jnp.mean(rljax.evaluate(make_agent(config), state, jax.random.key(1))) >= best - 1e-3


@pytest.mark.slow
def test_continuous_actions_are_learned() -> None:
    config = ImpalaConfig(
        env="BoxTarget-v0",
        num_envs=16,
        num_steps=16,
        num_epochs=4,
        policy_lag=1,
        learning_rate=3e-3,
        ent_coef=0.0,
        total_timesteps=100_000,
        network={"hidden": [32]},
    )
    agent = make_agent(config)
    states = (agent.init(jax.random.key(0)), jax.jit(make_train(config))(jax.random.key(0)).state)
    returns = [float(jnp.mean(rljax.evaluate(agent, state, jax.random.key(1)))) for state in states]
    assert returns[1] > 0.2 * returns[0], returns  # minus the squared error


# The loss


def loss_in_numpy(
    config: ImpalaConfig, outputs: np.ndarray, values: tuple[np.ndarray, np.ndarray], streams: Any
) -> dict[str, float]:
    """One trajectory at a time, in doubles, backwards through the recursions of the papers."""
    value, next_value = values
    length, envs = streams.reward.shape
    sums = dict.fromkeys(("policy_loss", "value_loss", "entropy", "upgo_loss", "mean_rho", "rho_clip_fraction", "approx_kl"), 0.0)
    for n in range(envs):
        vs_next, upgoing_next, better_next = 0.0, 0.0, False
        for t in reversed(range(length)):
            probability = np.exp(outputs[t, n]) / np.exp(outputs[t, n]).sum()
            log_pi = np.log(probability[streams.action[t, n]])
            ratio = np.exp(log_pi - streams.log_prob[t, n])
            used = ratio if config.off_policy_correction else 1.0
            rho, c = min(config.rho_bar, used), config.vtrace_lambda * min(config.c_bar, used)
            last = t == length - 1 or streams.truncated[t, n] or streams.terminated[t, n]
            gamma = 0.0 if streams.terminated[t, n] else config.gamma
            after = next_value[t, n] if last else vs_next
            reward, v = streams.reward[t, n], value[t, n]
            # Remark 1 of Espeholt et al.: vs_t = V_t + delta_t + gamma c_t (vs_{t+1} - V_{t+1}).
            vs = v + rho * (reward + gamma * next_value[t, n] - v) + (0.0 if last else gamma * c * (vs_next - value[t + 1, n]))
            upgoing = reward + gamma * (upgoing_next if better_next and not last else next_value[t, n])
            sums["policy_loss"] -= rho * (reward + gamma * after - v) * log_pi
            sums["upgo_loss"] -= rho * (upgoing - v) * log_pi
            sums["value_loss"] += (vs - v) ** 2 / 2
            sums["entropy"] -= float(np.sum(probability * np.log(probability)))
            sums["mean_rho"] += min(config.rho_bar, ratio)
            sums["rho_clip_fraction"] += ratio > config.rho_bar
            sums["approx_kl"] += ratio - 1 - np.log(ratio)
            vs_next, upgoing_next = vs, upgoing
            better_next = reward + gamma * next_value[t, n] >= v
    means = {name: total / (length * envs) for name, total in sums.items()}
    means["loss"] = means["policy_loss"] + config.vf_coef * means["value_loss"] - config.ent_coef * means["entropy"]
    if config.upgo_coef is None:
        del means["upgo_loss"]
    else:
        means["loss"] += config.upgo_coef * means["upgo_loss"]
    return means


@pytest.fixture(scope="module")
def batch() -> tuple[ImpalaParts, Any, Streams]:
    """Parts, parameters far from the first ones, and streams of other policies with episodes that end in both ways."""
    parts = impala_parts(TINY.replace(env="CartPole-v1"))
    params = jax.jit(parts.policy.init)(jax.random.key(1), jnp.zeros(4))
    head = params["params"]["network"]["policy_head"]
    head["kernel"] = 200.0 * head["kernel"]
    rng = np.random.default_rng(0)
    shape = (8, 4)
    terminated, truncated = np.zeros((2, *shape), bool)
    terminated[3, 0] = truncated[4, 1] = terminated[-1, 2] = truncated[2, 3] = True
    obs = rng.normal(size=(9, 4, 4)).astype(np.float32)
    next_obs = np.where((terminated | truncated)[..., None], rng.normal(size=(*shape, 4)), obs[1:]).astype(np.float32)
    streams = Streams(
        obs=jnp.asarray(obs[:-1]),
        next_obs=jnp.asarray(next_obs),
        mask=None,
        reward=jnp.asarray(rng.normal(size=shape), jnp.float32),
        action=jnp.asarray(rng.integers(0, 2, shape), jnp.int32),
        terminated=jnp.asarray(terminated),
        truncated=jnp.asarray(truncated),
        log_prob=jnp.asarray(rng.normal(-1.0, 0.7, shape), jnp.float32),
    )
    return parts, params, streams


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rho_bar": 1.5, "c_bar": 0.8, "vtrace_lambda": 0.9, "vf_coef": 0.7, "ent_coef": 0.1},
        {"upgo_coef": 0.6},
        {"upgo_coef": 0.6, "off_policy_correction": False},
    ],
)
def test_the_loss_is_that_of_the_papers(batch: Any, changes: dict[str, Any]) -> None:
    parts, params, streams = batch
    config = parts.config.replace(**changes)
    outputs, value = (np.asarray(x, np.float64) for x in parts.policy.apply(params, streams.obs)[:2])
    next_value = np.asarray(parts.policy.apply(params, streams.next_obs)[1], np.float64)
    expected = loss_in_numpy(config, outputs, (value, next_value), jax.tree.map(np.asarray, streams))
    loss, metrics = jax.jit(lambda p, s: impala_loss(parts._replace(config=config), p, s))(params, streams)
    assert float(loss) == pytest.approx(expected.pop("loss"), rel=1e-5, abs=1e-5)
    assert set(metrics) == {f"train/{name}" for name in (*expected, "value", "explained_variance")}
    for name, want in expected.items():
        assert float(metrics[f"train/{name}"]) == pytest.approx(want, rel=1e-4, abs=1e-5), name
    assert 0.1 < expected["rho_clip_fraction"] < 0.9


@pytest.mark.slow
def test_targets_and_advantages_are_constants_of_the_gradient(batch: Any) -> None:
    parts, params, streams = batch
    steps = jax.tree.map(lambda x: x[-1:], streams)
    parts = parts._replace(config=parts.config.replace(ent_coef=0.0, vf_coef=1.0))
    outputs, value, _ = parts.policy.apply(params, steps.obs)
    next_value = jnp.where(steps.terminated, 0.0, parts.policy.apply(params, steps.next_obs)[1])
    log_prob = parts.head.distribution(outputs, None).log_prob(steps.action)
    rho = jnp.minimum(1.0, jnp.exp(log_prob - steps.log_prob))
    advantage = rho * (steps.reward + parts.config.gamma * next_value - value)

    def surrogate(params: Any) -> jax.Array:
        outputs, v, _ = parts.policy.apply(params, steps.obs)
        log_prob = parts.head.distribution(outputs, None).log_prob(steps.action)
        return -jnp.mean(advantage * log_prob) + 0.5 * jnp.mean(jnp.square(value + advantage - v))

    got = jax.grad(lambda p: impala_loss(parts, p, steps)[0])(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, jax.grad(surrogate)(params))


def test_metrics_are_finite_where_two_policies_have_nothing_in_common(batch: Any) -> None:
    parts, params, streams = batch
    for log_prob in (-1e4, 0.0):
        apart = streams._replace(log_prob=jnp.full_like(streams.log_prob, log_prob))
        far = jax.tree.map(lambda x: 100.0 * x, params)
        loss, metrics = impala_loss(parts._replace(config=parts.config.replace(upgo_coef=1.0)), far, apart)
        assert np.isfinite([float(loss), *map(float, metrics.values())]).all()


# Whose policy it is that collects


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1, 3])
def test_actions_are_those_of_the_policy_of_so_many_iterations_ago(lag: int) -> None:
    config = TINY.replace(env="CartPole-v1", policy_lag=lag, normalize_observations=True, learning_rate=0.1)
    parts = impala_parts(config)
    collect = jax.jit(lambda s: impala_collect(parts, s))
    update = jax.jit(lambda s, r: impala_update(parts, s, r))
    state = jax.jit(lambda key: impala_init(parts, key))(jax.random.key(0))
    history = [state.params]
    others_differ = 0
    for iteration in range(6):
        noise = parts.head.noise(jax.random.split(state.key, 3)[1], (8, 4))
        collected, rollout = collect(state)
        obs, action = normalize_obs(state, rollout.steps.obs), rollout.steps.action
        distributions = [parts.head.distribution(parts.policy.apply(params, obs)[0], None) for params in history]
        furthest = [float(jnp.max(jnp.abs(d.log_prob(action) - rollout.log_prob))) for d in distributions]
        acted = max(0, iteration - lag)
        assert furthest.pop(acted) < 1e-5
        assert all(gap > 1e-3 for gap in furthest)
        # Not only the log-probabilities: with the same noise this policy takes the same actions.
        np.testing.assert_array_equal(parts.head.sample(distributions.pop(acted), noise), action)
        others_differ += sum(bool(jnp.any(parts.head.sample(d, noise) != action)) for d in distributions)
        state, metrics = update(collected, rollout)
        if acted == iteration:
            assert metrics["train/mean_rho"] == pytest.approx(1.0, abs=1e-5)
            assert metrics["train/approx_kl"] == pytest.approx(0.0, abs=1e-6)
        else:
            assert metrics["train/approx_kl"] > 1e-4
        history.append(state.params)
    assert others_differ > 5


@pytest.mark.slow
def test_under_vmap_each_seed_has_its_own_past() -> None:
    agent = make_agent(TINY.replace(policy_lag=2))
    keys = jax.random.split(jax.random.key(0), 3)

    def three_steps(key: jax.Array) -> ImpalaState:
        return jax.lax.scan(lambda s, _: (agent.step(s)[0], None), agent.init(key), None, 3)[0]

    together = jax.jit(jax.vmap(three_steps))(keys)
    for i in range(3):
        alone = jax.jit(three_steps)(keys[i])
        np.testing.assert_allclose(together.past_params[i], alone.past_params, rtol=1e-4, atol=1e-5)
    assert together.past_params.shape[:2] == (3, 2)


@pytest.mark.slow
def test_past_policies_are_saved_and_restored(tmp_path: Path) -> None:
    config = TINY.replace(env="CartPole-v1", policy_lag=3)
    result = rljax.fit(config, run_dir=tmp_path / "run")
    restored = rljax.load_run(tmp_path / "run").state
    np.testing.assert_array_equal(restored.past_params, result.state.past_params)
    assert len({row.tobytes() for row in np.asarray(restored.past_params)}) == 3


@pytest.mark.slow
def test_a_second_pass_is_off_policy_and_corrected() -> None:
    metrics = jax.jit(make_train(TINY.replace(env="CartPole-v1", num_epochs=4, learning_rate=0.05)))(jax.random.key(0)).metrics
    assert jnp.all(metrics["train/mean_rho"][:-1] < 1.0)
    assert jnp.all(metrics["train/approx_kl"][:-1] > 0.0)


# The update


@pytest.mark.slow
def test_minibatches_are_whole_trajectories() -> None:
    parts = impala_parts(TINY.replace(num_minibatches=2, num_epochs=3))
    state = jax.jit(lambda key: impala_init(parts, key))(jax.random.key(0))
    state, rollout = jax.jit(lambda s: impala_collect(parts, s))(state)
    number = jnp.arange(32).reshape(8, 4)
    numbered = rollout._replace(steps=rollout.steps._replace(action=number))
    weights = jax.random.uniform(jax.random.key(3), (4,))

    def report(parts: ImpalaParts, params: Any, batch: Streams) -> tuple[jax.Array, Any]:
        env = batch.action % 4
        return 0.0 * jnp.sum(parts.policy.apply(params, batch.obs)[1]), {
            "in_order": jnp.all(batch.action // 4 == jnp.arange(8)[:, None]).astype(jnp.float32),
            "together": jnp.all(env == env[0]).astype(jnp.float32),
            "weight": jnp.sum(weights[env[0]]),
            "torn": jnp.sum(batch.obs != rollout.steps.obs.reshape(32, -1)[batch.action], dtype=jnp.float32),
        }

    _, metrics = jax.jit(lambda s, r: impala_update(parts, s, r, report))(state, numbered)
    assert metrics["in_order"] == metrics["together"] == 1
    assert metrics["weight"] * 2 == pytest.approx(float(jnp.sum(weights)), rel=1e-5)
    assert metrics["torn"] == 0


@pytest.mark.slow
def test_every_metric_is_finite_in_every_iteration() -> None:
    config = TINY.replace(env="CartPole-v1", upgo_coef=0.5, policy_lag=2, normalize_rewards=True, num_epochs=2)
    metrics = jax.jit(make_train(config))(jax.random.key(0)).metrics
    for name, values in metrics.items():
        if name.startswith("train/"):
            assert np.isfinite(values).all(), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_minibatches": 3}, "num_minibatches = 3: must divide num_envs = 4"),
        ({"total_timesteps": 31}, "total_timesteps = 31: expected at least num_envs"),
        ({"policy_lag": -1}, "policy_lag = -1: expected a whole number >= 0"),
        ({"rho_bar": 0.0}, "rho_bar = 0.0: expected a number > 0"),
        ({"vtrace_lambda": 1.5}, "vtrace_lambda = 1.5: expected a number >= 0 and <= 1"),
        ({"upgo_coef": -1.0}, "upgo_coef = -1.0: expected a number >= 0"),
        ({"off_policy_correction": 1}, "off_policy_correction = 1: expected true or false"),
        ({"policy_lags": 1}, "unknown field 'policy_lags' of ImpalaConfig: did you mean 'policy_lag'"),
    ],
)
def test_bad_values_are_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        ImpalaConfig(**{"num_envs": 4, "num_steps": 8, **changes})
    assert "\n" not in str(error.value)


def test_more_past_policies_than_memory_are_refused() -> None:
    with pytest.raises(ConfigError, match="policy_lag = 1000000000: that many past policies needs"):
        make_agent(TINY.replace(policy_lag=10**9))
